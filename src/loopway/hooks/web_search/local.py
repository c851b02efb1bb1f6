"""Search in a folder of texts: an index in memory, which follows the files.

This file must not know who asks. Nothing outside the folder is read: links are not followed.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import msgspec

from loopway.hooks.ranking import Ranking
from loopway.hooks.web_search.hits import SNIPPET_CHARACTERS, Hit, SearchFailed, hit
from loopway.hooks.web_search.providers import Wish

SUFFIXES = frozenset({".md", ".markdown", ".txt", ".rst"})
MOST_FILES = 5000
LARGEST_FILE = 1024 * 1024
"""Bytes of a file that are read."""
MOST_BYTES = 64 * 1024 * 1024
"""Bytes of all files together."""
LOOK_SECONDS = 3.0
"""How often the folder is looked at, at most."""
PASSAGE_CHARACTERS = 1200
"""A passage ends behind the paragraph that makes it longer than this, and at every heading."""

_HEADING = re.compile(r"(#{1,6})\s+(.+?)\s*#*\s*")
_FENCE = re.compile(r"\s*(```|~~~)")
_NOT_IN_ANCHORS = re.compile(r"[^\w\- ]")


class Passage(msgspec.Struct, frozen=True):
    """A piece of a file."""

    file: str
    number: int
    title: str
    anchor: str
    text: str


class _Seen(msgspec.Struct, frozen=True):
    """A file as it was when it was read."""

    changed: int
    size: int
    passages: int


class Local:
    """Searches a folder.

    Args:
        folder: Its path.
        address: What stands in front of a file's path in the addresses of results; empty for the path alone.
        clock: Seconds, rising.
    """

    longest_query = 2000

    def __init__(self, folder: Path, address: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._address = address.rstrip("/") + "/" if address else ""
        self._clock = clock
        self._lock = threading.Lock()
        self._looked: float | None = None
        self._seen: dict[str, _Seen] = {}
        self._passages: dict[tuple[str, int], Passage] = {}
        self._ranking: Ranking[tuple[str, int]] = Ranking()

    async def start(self) -> None:
        """Read the folder."""
        await asyncio.to_thread(self._look)

    async def aclose(self) -> None:
        """Forget the index."""
        with self._lock:
            self._ranking.close()
            self._ranking = Ranking()
            self._seen.clear()
            self._passages.clear()
            self._looked = None

    async def search(self, query: str, wish: Wish) -> list[Hit]:
        """The passages that fit best, at most `wish.count`."""
        return await asyncio.to_thread(self._found, query, wish.count)

    def _found(self, query: str, most: int) -> list[Hit]:
        self._look()
        with self._lock:
            found = [self._passages[key] for key, _ in self._ranking.best(query, most)]
        return [
            hit(one.title, self._address + quote(one.file) + (f"#{one.anchor}" if one.anchor else ""), one.text)
            for one in found
        ]

    # --- the folder ---

    def _look(self) -> None:
        """Read what has changed, unless that was done a moment ago."""
        with self._lock:
            now = self._clock()
            if self._looked is not None and now - self._looked < LOOK_SECONDS:
                return
            try:
                there = dict(self._files())
            except OSError:
                raise SearchFailed("unavailable", "The folder of the search cannot be read.") from None
            self._looked = now
            for name in [name for name, seen in self._seen.items() if _differs(there.get(name), seen)]:
                self._forget(name)
            for name, about in there.items():
                if name not in self._seen:
                    self._read(name, about)

    def _files(self) -> Iterator[tuple[str, os.stat_result]]:
        """The files that count, in the order of their names, by their paths below the folder."""
        room, files = MOST_BYTES, 0
        for at, folders, names in os.walk(self._folder):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for name in sorted(names):
                path = Path(at, name)
                if name.startswith(".") or path.suffix.lower() not in SUFFIXES:
                    continue
                about = path.lstat()
                if not stat.S_ISREG(about.st_mode):
                    continue
                files += 1
                room -= min(about.st_size, LARGEST_FILE)
                if files > MOST_FILES or room < 0:
                    return
                yield path.relative_to(self._folder).as_posix(), about

    def _forget(self, name: str) -> None:
        keys = [(name, number) for number in range(self._seen.pop(name).passages)]
        self._ranking.remove(keys)
        for key in keys:
            del self._passages[key]

    def _read(self, name: str, about: os.stat_result) -> None:
        try:
            # Not through a link that has taken the file's place since it was seen.
            place = os.open(self._folder / name, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
            with os.fdopen(place, "rb") as file:
                text = file.read(LARGEST_FILE).decode("utf-8", "replace")
        except OSError:
            return  # gone again, or not ours to read
        made = list(passages(name, text))
        self._seen[name] = _Seen(about.st_mtime_ns, about.st_size, len(made))
        self._passages |= {(one.file, one.number): one for one in made}
        self._ranking.add(((one.file, one.number), one.title, one.text) for one in made)


def _differs(there: os.stat_result | None, seen: _Seen) -> bool:
    return there is None or (there.st_mtime_ns, there.st_size) != (seen.changed, seen.size)


def passages(name: str, text: str) -> Iterator[Passage]:
    """A file's passages: cut at headings (outside of code) and between paragraphs, with the headings above as title."""
    number = 0
    path: list[tuple[int, str]] = []
    anchor = ""
    lines: list[str] = []
    size = 0
    code = False

    def made() -> Iterator[Passage]:
        nonlocal number, size
        whole = "\n".join(lines).strip()
        lines.clear()
        size = 0
        title = " > ".join(words for _, words in path) or Path(name).name
        for at in range(0, len(whole), SNIPPET_CHARACTERS):
            yield Passage(name, number, title, anchor, whole[at : at + SNIPPET_CHARACTERS])
            number += 1

    for line in text.splitlines():
        code ^= _FENCE.match(line) is not None
        heading = None if code else _HEADING.fullmatch(line)
        if heading is not None:
            yield from made()
            depth = len(heading[1])
            path = [*(one for one in path if one[0] < depth), (depth, heading[2])]
            anchor = _NOT_IN_ANCHORS.sub("", heading[2].lower()).strip().replace(" ", "-")
            continue
        lines.append(line)
        size += len(line) + 1
        if size > PASSAGE_CHARACTERS and not line.strip() and not code:
            yield from made()
    yield from made()
