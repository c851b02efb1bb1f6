"""Which texts fit a question: BM25 of SQLite's FTS5, over words that also cut Chinese, Japanese and Korean.

This file must not know what the texts are.
"""

from __future__ import annotations

import re
import sqlite3
import threading
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_MOST_WORDS = 64
_WORD = re.compile(r"\w+")
_COMMON = frozenset(
    _WORD.findall(
        "a about after all an and any are as at be been but by can could did do does for from get give had has "
        "have he her him his how i if in into is it its let make me my no not of on or our out please she should "
        "so some tell than that the their them then there these they this those to up us was we were what when "
        "where which who why will with would you your "
    )
)
"""English words that say nothing of what is asked; they are left out of questions that have others."""
# Scripts that put no space between words: kana, Han and Hangul.
_UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff]+")


def spaced(text: str) -> str:
    """A text whose runs of unspaced script are cut into overlapping pairs of characters, so that parts of it match."""
    return _UNSPACED.sub(lambda run: f" {_pairs(run[0])} ", text)


def _pairs(run: str) -> str:
    return run if len(run) == 1 else " ".join(run[at : at + 2] for at in range(len(run) - 1))


def words(text: str, most: int = _MOST_WORDS) -> list[str]:
    """The first distinct words of a text, in lower case."""
    found: dict[str, None] = {}
    for word in _WORD.finditer(spaced(text)):
        found.setdefault(word[0].lower().replace("_", " ").strip())
        if len(found) > most:
            break
    found.pop("", None)
    return list(found)[:most]


class Ranking(Generic[K]):
    """Texts in memory, ranked by a question. May be used by several threads, one at a time.

    Args:
        title_weight: How much more a word in a title counts than one in the text.
    """

    def __init__(self, *, title_weight: float = 4.0) -> None:
        self._lock = threading.Lock()
        self._weight = title_weight
        self._keys: dict[int, K] = {}
        self._base = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self._base.execute(
            "CREATE VIRTUAL TABLE texts USING fts5(title, body, tokenize='porter unicode61 remove_diacritics 2')"
        )

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, texts: Iterable[tuple[K, str, str]]) -> None:
        """Add texts: key, title, body. A key must be new."""
        with self._lock:
            self._base.execute("BEGIN")
            for key, title, body in texts:
                row = self._base.execute("INSERT INTO texts VALUES (?, ?)", (spaced(title), spaced(body)))
                self._keys[int(row.lastrowid or 0)] = key
            self._base.execute("COMMIT")

    def remove(self, keys: Iterable[K]) -> None:
        """Remove texts; nothing happens for keys that are not there."""
        gone = set(keys)
        with self._lock:
            self._base.execute("BEGIN")
            for row in [row for row, key in self._keys.items() if key in gone]:
                self._base.execute("DELETE FROM texts WHERE rowid = ?", (row,))
                del self._keys[row]
            self._base.execute("COMMIT")

    def best(self, question: str, most: int) -> list[tuple[K, float]]:
        """The texts that share a word with the question, the best first, each with its score (more is better).

        Equal scores keep the order in which the texts were added.
        """
        every = words(question)
        asked = " OR ".join(f'"{word}"' for word in [word for word in every if word not in _COMMON] or every)
        if not asked or most < 1:
            return []
        with self._lock:
            rows = self._base.execute(
                "SELECT rowid, bm25(texts, ?, 1.0) AS score FROM texts WHERE texts MATCH ? "
                "ORDER BY score, rowid LIMIT ?",
                (self._weight, asked, most),
            ).fetchall()
            return [(self._keys[row], -score) for row, score in rows]

    def close(self) -> None:
        """Give the memory back."""
        with self._lock:
            self._base.close()
