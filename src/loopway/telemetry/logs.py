"""Notes to log lines: one per exchange at its end, and one per abort, hook failure and upstream failure.

Never a key; never a prompt or a reply. A stream that cannot take a line loses it: no exchange fails for its log. This
file must not know how notes come about.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import select
import stat
import sys
import threading
import traceback
from collections.abc import Callable, MutableMapping
from typing import Any, Literal, TextIO

import msgspec
import structlog

from loopway.engine.notes import CallEnded, Ended, HookRan, IterationDecided, Note, Said, Subject, ToolRan
from loopway.telemetry import content

LogFormat = Literal["auto", "json", "text"]
LogLevel = Literal["debug", "info", "warning", "error"]

_ERROR_STATUS = 400
_SERVER_ERROR = 500
_LONGEST_TEXT = 500
_PIECE = 1024
"""Characters that are written at once: at most 4096 bytes, which a pipe that can be written takes without waiting."""
_PATIENCE_MILLISECONDS = 100
"""How long the first line waits that the stream does not take at once."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")


def _frames(exc_info: Any) -> str:
    """A traceback without what its exceptions say, which may be a prompt or a reply, unless such content is wanted.

    What the system says (`OSError`: no space, refused) is no content, and is kept.
    """
    if content.wanted():
        return "".join(traceback.format_exception(*exc_info)).rstrip()
    parts: list[str] = []
    raised, seen = exc_info[1], set[int]()
    while raised is not None and id(raised) not in seen:
        seen.add(id(raised))
        name = f"{type(raised).__module__}.{type(raised).__qualname__}"
        said = f": {raised.strerror}" if isinstance(raised, OSError) and raised.strerror else ""
        frames = traceback.extract_tb(raised.__traceback__)
        lines = [f'  File "{one.filename}", line {one.lineno}, in {one.name}\n' for one in frames]
        parts.append("".join([*lines, name, said]))
        raised = raised.__cause__ or (None if raised.__suppress_context__ else raised.__context__)
    return "\n".join(reversed(parts))


_TRACEBACK = structlog.processors.ExceptionRenderer(_frames)


def configure(*, form: LogFormat = "auto", level: LogLevel = "info", stream: TextIO | None = None) -> None:
    """Set up logging of this process: ours, and what libraries say through the standard library.

    Args:
        form: `json` lines, readable `text`, or `auto`: text where the stream is a terminal.
        level: The least level that is shown.
        stream: Where to; standard error if None.
    """
    out = stream if stream is not None else sys.stderr
    text = form == "text" or (form == "auto" and out.isatty())
    number = getattr(logging, level.upper())
    lines = _Lines(out)
    shared: list[Any] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if text:
        shared.append(_one_line)
    render: Any = structlog.dev.ConsoleRenderer() if text else structlog.processors.JSONRenderer(serializer=_json)
    structlog.configure(
        processors=[*shared, _bounded, _TRACEBACK, render],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=lines,
        cache_logger_on_first_use=False,
    )
    handler = _Handler(lines)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                _TRACEBACK,
                render,
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(number, logging.WARNING))
    logging.getLogger("uvicorn.access").disabled = True


def _json(fields: Any, **_options: Any) -> str:
    """A line in ASCII: whatever else a text holds is escaped. The usual line has nothing else, and is made faster."""
    try:
        line = msgspec.json.encode(fields)
    except (TypeError, ValueError, msgspec.MsgspecError):
        return json.dumps(fields, ensure_ascii=True, default=repr)
    return line.decode("ascii") if line.isascii() else json.dumps(fields, ensure_ascii=True, default=repr)


class _Lines:
    """Writes lines to a stream, and goes on when the stream cannot take them.

    That is a closed pipe, a full disk, or a pipe that nobody empties, which would hold up every exchange. Lines are
    lost then, and the next one that goes out says how many.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._lost = 0
        self._broken_off = False
        self._poll: select.poll | None = None
        with contextlib.suppress(OSError, ValueError, AttributeError):  # no file is behind it, or it is closed
            number = stream.fileno()
            if not stat.S_ISREG(os.fstat(number).st_mode):
                self._poll = select.poll()
                self._poll.register(number, select.POLLOUT)

    def __call__(self, *_: Any) -> _Lines:
        return self

    def msg(self, line: str) -> None:
        """Write a line."""
        with self._lock:
            try:
                if self._lost and self._takes():
                    lost, self._lost = self._lost, 0
                    begin = "\n" if self._broken_off else ""
                    self._write(f'{begin}{{"event": "log_lines_lost", "level": "warning", "lines": {lost}}}\n')
                self._write(line + "\n")
            except (OSError, ValueError):  # ValueError: it is closed
                pass

    def _write(self, text: str) -> None:
        self._broken_off = False
        for place in range(0, len(text), _PIECE):
            if not self._takes():
                self._lost += 1
                self._broken_off = place > 0
                return
            self._stream.write(text[place : place + _PIECE])
            self._stream.flush()

    def _takes(self) -> bool:
        """Whether a piece can be written at once. Waits a little, but not again while lines are lost."""
        return self._poll is None or bool(self._poll.poll(0 if self._lost else _PATIENCE_MILLISECONDS))

    debug = info = warning = error = critical = exception = msg


class _Handler(logging.Handler):
    """Lines of libraries, to the same stream."""

    def __init__(self, lines: _Lines) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line. What cannot be formatted is left out: nobody is left to be told."""
        with contextlib.suppress(Exception):
            self._lines.msg(self.format(record))


class Logs:
    """The listener that writes lines."""

    def __init__(self) -> None:
        self._logger: Any = None
        self.handlers: dict[type[Any], Callable[[Subject, Any], None]] = {
            Ended: self._ended,
            HookRan: self._hook_ran,
            CallEnded: self._call_ended,
            ToolRan: self._tool_ran,
            IterationDecided: self._iteration_decided,
            Said: self._said,
        }

    @property
    def _log(self) -> Any:
        """The logger; bound when the first line is written, since that is behind `configure`."""
        if self._logger is None:
            self._logger = structlog.get_logger().bind()
        return self._logger

    def __call__(self, subject: Subject, note: Note) -> None:
        """Write what an operator has to read."""
        handler = self.handlers.get(type(note))
        if handler is not None:
            handler(subject, note)

    def _hook_ran(self, subject: Subject, note: HookRan) -> None:
        if note.error is not None:
            self._log.error(
                "hook_failed",
                **_who(subject),
                hook=note.hook,
                phase=note.phase,
                error=note.error,
                detail=note.detail,
                seconds=round(note.seconds, 6),
            )

    def _call_ended(self, subject: Subject, note: CallEnded) -> None:
        if note.error is not None or note.status >= _ERROR_STATUS:
            self._log.warning(
                "upstream_failed",
                **_who(subject),
                upstream=note.upstream,
                status=note.status,
                error=note.error,
                seconds=round(note.seconds, 6),
            )

    def _tool_ran(self, subject: Subject, note: ToolRan) -> None:
        if note.result in ("error", "timeout"):
            self._log.warning(
                "tool_failed",
                **_who(subject),
                tool=note.tool,
                result=note.result,
                detail=note.detail,
                depth=note.depth,
                seconds=round(note.seconds, 6),
            )

    def _iteration_decided(self, subject: Subject, note: IterationDecided) -> None:
        if note.breach is not None:
            self._log.warning(
                "loop_aborted",
                **_who(subject),
                reason=note.breach,
                depth=note.depth,
                hook=note.hook,
                fingerprint=note.fingerprint,
            )

    def _said(self, subject: Subject, note: Said) -> None:
        self._log.warning(note.event, **_who(subject), detail=note.detail)

    def _ended(self, subject: Subject, note: Ended) -> None:
        failed = note.error is not None and note.status >= _SERVER_ERROR
        if not (failed or self._log.is_enabled_for(logging.INFO)):
            return
        fields: dict[str, Any] = {
            **_who(subject),
            "route": subject.route,
            "stream": subject.stream,
            "status": note.status,
            "iterations": note.iterations,
            "outcome": note.outcome,
            "seconds": round(note.seconds, 6),
            "upstream_seconds": round(note.upstream_seconds, 6),
            "hook_seconds": round(note.hook_seconds, 6),
        }
        for name, number in note.usage.items():
            fields[f"tokens_{name}"] = number
        if note.breach is not None:
            fields["abort"] = note.breach
        if note.gone is not None:
            fields["client_left_in"] = note.gone
        if note.error is not None:
            fields["error"] = note.error
            fields["error_text"] = note.error_text
        if failed:
            self._log.error("exchange", **fields)
        else:
            self._log.info("exchange", **fields)


def _who(subject: Subject) -> dict[str, Any]:
    fields: dict[str, Any] = {"request_id": subject.request_id, "dialect": subject.dialect}
    trace_id = subject.state.get("trace_id")
    if trace_id is None and subject.traceparent:  # no trace of ours, but the client's
        sent = _TRACEPARENT.fullmatch(subject.traceparent)
        trace_id = sent[1] if sent is not None else None
    if trace_id is not None:
        fields["trace_id"] = trace_id
    fields["model"] = subject.model[:_LONGEST_TEXT]
    if subject.key_name:
        fields["key"] = subject.key_name
    return fields


def _one_line(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """No text for people breaks its line or moves the cursor: what a client sent cannot look like a line of ours."""
    for name, value in event.items():
        if isinstance(value, str) and _CONTROL.search(value):
            event[name] = _CONTROL.sub(lambda found: repr(found[0])[1:-1], value)
    return event


def _bounded(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """No line grows without end, whatever a client or a hook put into a text."""
    for name, value in event.items():
        if isinstance(value, str) and len(value) > _LONGEST_TEXT and name != "exception":
            event[name] = value[:_LONGEST_TEXT] + "…"
    return event
