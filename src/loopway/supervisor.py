"""`loopway serve`: one process, or several workers that one supervisor starts, watches and ends.

This file must not know what a worker serves. The workers share the listening sockets, which the supervisor opens once;
each scrape of `/metrics` is the sum of all of them, also over workers that have died.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import structlog

from loopway.settings import Settings, at_address

_FRESH_SECONDS = 5.0
"""A worker that dies younger than this has failed to start."""
_FAILED_STARTS = 3
_KILL_AFTER_SECONDS = 10.0


def serve(config: Path, *, host: str | None, port: int | None, workers: int) -> int:
    """Serve until a signal; gives the exit code.

    Raises:
        ConfigError: Before anything listens.
        OSError: An address cannot be listened on.
    """
    if workers == 1:
        return _serve_alone(config, host, port)
    return _Supervisor(config, host, port, workers).run()


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
        serving.serve(gateway, [main], [admin] if admin is not None else [], ready=lambda: _say_ready(main, admin, 1))
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


class _Supervisor:
    """Starts workers, starts them again when they die, and ends them."""

    def __init__(self, config: Path, host: str | None, port: int | None, workers: int) -> None:
        self._config, self._host, self._port, self._count = config, host, port, workers
        self._context = multiprocessing.get_context("spawn")
        self._workers: dict[int, tuple[Any, float]] = {}
        self._stopping = False
        self._failed = 0

    def run(self) -> int:
        folder = tempfile.mkdtemp(prefix="loopway-metrics-")
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder  # read by prometheus_client when it is imported
        try:
            return self._run()
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _run(self) -> int:
        from loopway.app import build, warnings_of  # noqa: PLC0415
        from loopway.telemetry import logs  # noqa: PLC0415

        settings = build(self._config, adjust=_adjusted(self._host, self._port)).settings
        logs.configure(form=settings.telemetry.log_format, level=settings.telemetry.log_level)
        log = structlog.get_logger()
        for line in warnings_of(self._config):
            log.warning("configuration", detail=line)
        main, admin = _listen(settings)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        for _ in range(self._count):
            self._start(main, admin)
        _say_ready(main, admin, self._count)
        code = self._watch(main, admin, log, settings.server.drain_seconds)
        log.info("stopped")
        return code

    def _start(self, main: socket.socket, admin: socket.socket | None) -> None:
        process = self._context.Process(
            target=_worker, args=(self._config, self._host, self._port, main, admin), name="loopway-worker"
        )
        process.start()
        self._workers[process.sentinel] = (process, time.monotonic())

    def _watch(self, main: socket.socket, admin: socket.socket | None, log: Any, drain: float) -> int:
        """Until the last worker has ended; gives the exit code."""
        code = 0
        killed = False
        deadline: float | None = None
        while self._workers:
            if self._stopping and deadline is None:
                deadline = time.monotonic() + drain + _KILL_AFTER_SECONDS
            for sentinel in wait(list(self._workers), timeout=0.2):
                process, began = self._workers.pop(sentinel)  # type: ignore[index]
                process.join()
                self._forget_gauges(process.pid)
                if self._stopping:
                    # Our SIGTERM ends a worker that is still starting, before it listens to signals.
                    code = code or (0 if process.exitcode in (0, -signal.SIGTERM) else 1)
                    continue
                log.error("worker_died", pid=process.pid, exit_code=process.exitcode)
                self._failed = self._failed + 1 if time.monotonic() - began < _FRESH_SECONDS else 0
                if self._failed >= _FAILED_STARTS * self._count:
                    log.error("workers_cannot_start", tries=self._failed)
                    code = 1
                    self._signal_all(signal.SIGTERM)
                    self._stopping = True
                    continue
                self._start(main, admin)
            if deadline is not None and not killed and time.monotonic() > deadline:
                killed = True
                self._signal_all(signal.SIGKILL)
        return code

    def _on_signal(self, number: int, _frame: object) -> None:
        first = not self._stopping
        self._stopping = True
        self._signal_all(signal.SIGTERM if first else signal.SIGKILL)
        if not first:
            sys.exit(1)
        del number

    def _signal_all(self, number: int) -> None:
        for process, _ in list(self._workers.values()):
            if process.is_alive() and process.pid is not None:
                os.kill(process.pid, number)

    @staticmethod
    def _forget_gauges(pid: int | None) -> None:
        """The gauges of a dead worker count no more; its counters stay."""
        from prometheus_client import multiprocess  # noqa: PLC0415

        multiprocess.mark_process_dead(pid)


def _worker(config: Path, host: str | None, port: int | None, main: socket.socket, admin: socket.socket | None) -> None:
    """One worker process."""
    from prometheus_client import CollectorRegistry, multiprocess  # noqa: PLC0415

    from loopway import serving  # noqa: PLC0415
    from loopway.app import build  # noqa: PLC0415
    from loopway.telemetry import logs  # noqa: PLC0415

    def scraped() -> CollectorRegistry:
        every = CollectorRegistry()
        multiprocess.MultiProcessCollector(every)
        return every

    gateway = build(config, adjust=_adjusted(host, port), scraped=scraped)
    telemetry = gateway.settings.telemetry
    logs.configure(form=telemetry.log_format, level=telemetry.log_level)
    for listening in (main, admin):
        if listening is not None:
            listening.setblocking(False)
    serving.run(serving.serve(gateway, [main], [admin] if admin is not None else []))
