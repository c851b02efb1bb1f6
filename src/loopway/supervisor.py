"""`loopway serve`: one process, or several workers that one supervisor starts, watches and ends.

This file must not know what a worker serves. The workers share the listening sockets, which the supervisor opens once;
each scrape of `/metrics` is the sum of all of them, also over workers that have died.

Supervisor and worker talk over a socket pair: the worker sends a byte when it is ready, the supervisor sends one when
it is to drain, and the end of the stream tells a worker that its supervisor is dead.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import msgspec
import structlog

from loopway.settings import Settings, at_address

_FRESH_SECONDS = 5.0
"""A worker that dies younger than this has failed to start."""
_FAILED_STARTS = 3
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def serve(config: Path, *, host: str | None, port: int | None, workers: int) -> int:
    """Serve until a signal; gives the exit code.

    Raises:
        ConfigError: Before anything listens.
        OSError: An address cannot be listened on.
    """
    # Without a handler the first process of a container never sees the signal: it would wait for the kill.
    signal.signal(signal.SIGTERM, _leave)
    if workers == 1:
        # One process needs no shared folder: with it there are no exemplars, and two instances would mix.
        os.environ.pop("PROMETHEUS_MULTIPROC_DIR", None)
        return _serve_alone(config, host, port)
    return _Supervisor(config, host, port, workers).run()


def _leave(*_: object) -> None:
    """End a start: nothing is served yet."""
    sys.exit(0)


def _adjusted(host: str | None, port: int | None) -> Callable[[Settings], Settings]:
    return lambda settings: at_address(settings, host=host, port=port)


def _serve_alone(config: Path, host: str | None, port: int | None) -> int:
    from loopway import serving  # noqa: PLC0415 - a supervisor needs none of it
    from loopway.app import build, warnings_of  # noqa: PLC0415
    from loopway.telemetry import logs  # noqa: PLC0415

    gateway = build(config, adjust=_adjusted(host, port))
    telemetry = gateway.settings.telemetry
    logs.configure(form=telemetry.log_format, level=telemetry.log_level)
    log = structlog.get_logger()
    for line in warnings_of(config):
        log.warning("configuration", detail=line)
    main, admin = _listen(gateway.settings)
    serving.run(
        serving.serve(
            gateway,
            [main],
            [admin] if admin is not None else [],
            ready=lambda: _say_ready(main, admin, 1),
            flush=gateway.flush,
        )
    )
    log.info("stopped")
    return 0


def _listen(settings: Settings) -> tuple[socket.socket, socket.socket | None]:
    from loopway.serving import bind  # noqa: PLC0415

    server = settings.server
    main = bind(server.host, server.port)
    if server.admin_port is None:
        return main, None
    try:
        return main, bind(server.host, server.admin_port)
    except OSError:
        main.close()
        raise


def _say_ready(main: socket.socket, admin: socket.socket | None, workers: int) -> None:
    host, port = main.getsockname()[:2]
    fields: dict[str, Any] = {"url": f"http://{host}:{port}", "workers": workers}
    if admin is not None:
        fields["admin_url"] = "http://{}:{}".format(*admin.getsockname()[:2])
    structlog.get_logger().info("ready", **fields)


class _Worker(msgspec.Struct):
    """A worker process.

    Attributes:
        process: A process of `multiprocessing`.
        control: Our end of the socket pair.
        began: When it was started.
        ready: Whether it takes requests.
    """

    process: Any
    control: socket.socket
    began: float
    ready: bool = False

    def tell_to_drain(self) -> None:
        """Give the order. Nothing if it is dead."""
        with contextlib.suppress(OSError):
            self.control.send(b"d")


class _Supervisor:
    """Starts workers, starts them again when they die, and ends them."""

    def __init__(self, config: Path, host: str | None, port: int | None, workers: int) -> None:
        self._config, self._host, self._port, self._count = config, host, port, workers
        self._context = multiprocessing.get_context("spawn")
        self._workers: dict[int, _Worker] = {}
        self._stopping = False
        self._failed = 0
        self._said_ready = False
        self._main: socket.socket | None = None
        self._admin: socket.socket | None = None
        self._log: Any = None

    def run(self) -> int:
        folder = tempfile.mkdtemp(prefix="loopway-metrics-")
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder  # read by prometheus_client when it is imported
        try:
            return self._run()
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _run(self) -> int:
        from loopway.app import build, warnings_of  # noqa: PLC0415
        from loopway.serving import AFTER_DRAIN_SECONDS  # noqa: PLC0415
        from loopway.telemetry import logs  # noqa: PLC0415

        settings = build(self._config, adjust=_adjusted(self._host, self._port)).settings
        logs.configure(form=settings.telemetry.log_format, level=settings.telemetry.log_level)
        self._log = structlog.get_logger()
        for line in warnings_of(self._config):
            self._log.warning("configuration", detail=line)
        self._main, self._admin = _listen(settings)
        waker, woken = socket.socketpair()
        with waker, woken:
            for end in (waker, woken):
                end.setblocking(False)
            signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
            for number in _SIGNALS:
                signal.signal(number, self._on_signal)
            for _ in range(self._count):
                self._start()
            try:
                code = self._watch(woken, settings.server.drain_seconds + AFTER_DRAIN_SECONDS)
            finally:
                signal.set_wakeup_fd(-1)
        self._log.info("stopped")
        return code

    def _start(self) -> None:
        """Start a worker, unless the end has begun.

        Signals wait: none is lost between the look at `_stopping` and the entry in `_workers`, and the worker, which
        inherits that, has none taken by a default action before it has its own handlers.
        """
        with _signals_blocked():
            if self._stopping:
                return
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            with theirs:
                arguments = (self._config, self._host, self._port, self._main, self._admin, theirs)
                process = self._context.Process(target=_worker, args=arguments, name="loopway-worker")
                process.start()
            self._workers[process.sentinel] = _Worker(process, ours, time.monotonic())

    def _watch(self, woken: socket.socket, longest: float) -> int:
        """Until the last worker has ended; gives the exit code."""
        code = 0
        killed = False
        deadline: float | None = None
        while self._workers:
            if self._stopping and deadline is None:
                deadline = time.monotonic() + longest
                self._stop_listening()  # what the workers answer they have from their own listeners
            left = None if deadline is None or killed else max(0.0, deadline - time.monotonic())
            starting = {worker.control: worker for worker in self._workers.values() if not worker.ready}
            for what in wait([woken, *self._workers, *starting], timeout=left):
                if what is woken:
                    with contextlib.suppress(BlockingIOError):
                        woken.recv(4096)
                elif isinstance(what, socket.socket):
                    self._one_is_ready(starting[what])
                elif isinstance(what, int):
                    code = self._one_has_ended(self._workers.pop(what)) or code
            if deadline is not None and not killed and time.monotonic() >= deadline:
                killed = True
                self._kill_all()
        return code

    def _one_is_ready(self, worker: _Worker) -> None:
        with contextlib.suppress(OSError):
            worker.ready = bool(worker.control.recv(1))  # the end: it is dead, and its sentinel tells so
        if not self._said_ready and not self._stopping and all(one.ready for one in self._workers.values()):
            self._said_ready = True
            if self._main is not None:
                _say_ready(self._main, self._admin, self._count)

    def _one_has_ended(self, worker: _Worker) -> int:
        """See to a worker's end; gives the exit code that follows from it."""
        process = worker.process
        process.join()
        worker.control.close()
        self._forget_gauges(process.pid)
        if self._stopping:
            return 0 if process.exitcode == 0 else 1
        self._log.error("worker_died", pid=process.pid, exit_code=process.exitcode)
        self._failed = self._failed + 1 if time.monotonic() - worker.began < _FRESH_SECONDS else 0
        if self._failed < _FAILED_STARTS * self._count:
            self._start()
            return 0
        self._log.error("workers_cannot_start", tries=self._failed)
        self._stop()
        return 1

    def _on_signal(self, _number: int, _frame: object) -> None:
        if self._stopping:
            self._kill_all()
            sys.exit(1)
        self._stop()

    def _stop(self) -> None:
        self._stopping = True
        for worker in list(self._workers.values()):
            worker.tell_to_drain()

    def _stop_listening(self) -> None:
        for listening in (self._main, self._admin):
            if listening is not None:
                listening.close()

    def _kill_all(self) -> None:
        for worker in list(self._workers.values()):
            worker.process.kill()

    @staticmethod
    def _forget_gauges(pid: int | None) -> None:
        """The gauges of a dead worker count no more; its counters stay."""
        from prometheus_client import multiprocess  # noqa: PLC0415

        multiprocess.mark_process_dead(pid)  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _worker(
    config: Path,
    host: str | None,
    port: int | None,
    main: socket.socket,
    admin: socket.socket | None,
    control: socket.socket,
) -> None:
    """One worker process."""
    from prometheus_client import CollectorRegistry, multiprocess  # noqa: PLC0415

    from loopway import serving  # noqa: PLC0415
    from loopway.app import build  # noqa: PLC0415
    from loopway.telemetry import logs  # noqa: PLC0415

    def scraped() -> CollectorRegistry:
        every = CollectorRegistry()
        multiprocess.MultiProcessCollector(every)  # type: ignore[no-untyped-call]
        return every

    def ready() -> None:
        with contextlib.suppress(OSError):
            control.send(b"r")

    gateway = build(config, adjust=_adjusted(host, port), scraped=scraped)
    telemetry = gateway.settings.telemetry
    logs.configure(form=telemetry.log_format, level=telemetry.log_level)
    for one in (main, admin, control):
        if one is not None:
            one.setblocking(False)
    admins = [admin] if admin is not None else []
    serving.run(serving.serve(gateway, [main], admins, ready=ready, flush=gateway.flush, supervisor=control))
