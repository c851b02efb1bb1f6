"""The JSON answer of an exchange, made of its last reply.

This file must not know how the exchange ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from loopway.dialects.base import Keep
from loopway.dialects.chat_completions.chunk import EMPTY, TEXTS, Named
from loopway.dialects.members import Members
from loopway.engine.reply import Reply

JOINT = "\n\n"
_RAWS = msgspec.json.Decoder(list[msgspec.Raw])


class _Call(msgspec.Struct, gc=False):
    function: Named | None = None
    custom: Named | None = None


def final(reply: Reply, *, keep: Keep, interim: Sequence[Reply] = (), usage: Mapping[str, Any] | None = None) -> bytes:
    """The last reply without the calls that nobody may see; its own bytes where nothing has to change."""
    top = Members.parse(reply.raw)
    changed: dict[str, Any] = {}
    if usage is not None and usage != reply.usage:
        changed["usage"] = usage
    choices = [bytes(raw) for raw in _RAWS.decode(top.raw("choices") or b"[]")]
    made = [_choice(raw, keep, interim if place == 0 else ()) for place, raw in enumerate(choices)]
    if made != choices:
        changed["choices"] = msgspec.Raw(b"[" + b",".join(made) + b"]")
    return top.with_members(changed).encode() if changed else reply.raw


def _choice(raw: bytes, keep: Keep, interim: Sequence[Reply]) -> bytes:
    choice = Members.parse(raw)
    message = Members.parse(choice.raw("message") or b"{}")
    changed = _joined(message, interim)
    removed: list[str] = []
    calls = _RAWS.decode(message.raw("tool_calls") or b"null") if _has(message, "tool_calls") else []
    kept = [call for call in calls if _kept(msgspec.json.decode(call, type=_Call), keep)]
    if calls and not kept:
        removed.append("tool_calls")
    elif len(kept) != len(calls):
        changed["tool_calls"] = kept
    legacy = _has(message, "function_call")
    if legacy and not _kept(_Call(msgspec.json.decode(message.raw("function_call") or b"", type=Named)), keep):
        removed.append("function_call")
        legacy = False
    of_choice: dict[str, Any] = {}
    if changed or removed:
        of_choice["message"] = msgspec.Raw(message.with_members(changed, tuple(removed)).encode())
    if not kept and not legacy and choice.raw("finish_reason") in (b'"tool_calls"', b'"function_call"'):
        of_choice["finish_reason"] = "stop"
    return choice.with_members(of_choice).encode() if of_choice else raw


def _has(message: Members, name: str) -> bool:
    return (message.raw(name) or b"") not in EMPTY


def _kept(call: _Call, keep: Keep) -> bool:
    body = call.function or call.custom
    return body is not None and isinstance(body.name, str) and keep(body.name)


def _joined(message: Members, interim: Sequence[Reply]) -> dict[str, Any]:
    """The texts of a message with those of earlier replies in front, a blank line between each two."""
    earlier = [reply.value()["choices"][0]["message"] for reply in interim]
    made: dict[str, Any] = {}
    for name in TEXTS:
        texts = [one[name] for one in earlier if isinstance(one.get(name), str) and one[name]]
        if not texts:
            continue
        own = message.get(name)
        if isinstance(own, list):  # content parts
            made[name] = [{"type": "text", "text": JOINT.join(texts)}, *own]
        else:
            made[name] = JOINT.join([*texts, *([own] if own else [])])
    return made
