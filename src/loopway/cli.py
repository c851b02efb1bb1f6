"""The command line: serve, check, demo.

It must not decide anything about exchanges. Exit codes: 0 good, 2 bad configuration or usage, 1 anything else.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from loopway._version import __version__
from loopway.errors import ConfigError

_USAGE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; gives the exit code."""
    parser = _parser()
    given = parser.parse_args(arguments)
    command: Callable[[argparse.Namespace], int] | None = getattr(given, "command", None)
    if command is None:
        parser.print_help()
        return _USAGE
    try:
        return command(given)
    except ConfigError as wrong:
        for line in wrong.lines():
            print(line, file=sys.stderr)
        count = len(wrong.problems)
        print(f"{count} {'error' if count == 1 else 'errors'}; nothing was started", file=sys.stderr)
        return _USAGE
    except KeyboardInterrupt:
        return 0
    except OSError as wrong:
        print(f"loopway: {wrong}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="loopway", description="An LLM gateway that answers tool calls on the server."
    )
    parser.add_argument("--version", action="version", version=f"loopway {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    serve = commands.add_parser("serve", help="run the gateway")
    _config(serve)
    serve.add_argument("--host", metavar="H", help="listen here; wins over server.host")
    serve.add_argument("--port", metavar="P", type=int, help="listen here; wins over server.port")
    serve.add_argument("--workers", metavar="N", type=_workers, default=1, help="processes (default 1)")
    serve.set_defaults(command=_serve)

    check = commands.add_parser("check", help="load the configuration, import every hook, say what is there")
    _config(check)
    check.set_defaults(command=_check)

    demo = commands.add_parser("demo", help="the gateway over an embedded scripted model; no key, no network")
    demo.add_argument("--port", metavar="P", type=int, default=4000, help="listen on 127.0.0.1:P (default 4000)")
    demo.set_defaults(command=_demo)
    return parser


def _config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", type=Path, help="default: $LOOPWAY_CONFIG, else ./loopway.yaml")


def _workers(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"is {text!r}; write a whole number of at least 1")
    return int(text)


def _file(given: argparse.Namespace) -> Path:
    return given.config or Path(os.environ.get("LOOPWAY_CONFIG") or "loopway.yaml")


def _serve(given: argparse.Namespace) -> int:
    from loopway import supervisor  # noqa: PLC0415 - `--version` needs none of it

    return supervisor.serve(_file(given), host=given.host, port=given.port, workers=given.workers)


def _check(given: argparse.Namespace) -> int:
    from loopway.app import build, warnings_of  # noqa: PLC0415

    gateway = build(_file(given))
    for line in warnings_of(_file(given)):
        print(f"warning: {line}", file=sys.stderr)
    settings = gateway.settings
    for name, upstream in settings.upstreams.items():
        print(f"upstream {name}: {upstream.base_url} speaks {', '.join(upstream.dialects)}")
    for model in settings.models:
        loops = settings.loop.max_agentic_loops if model.max_agentic_loops is None else model.max_agentic_loops
        fallback = f", falls back to {model.fallback}" if model.fallback else ""
        print(f"model {model.name}: {model.sent_as} at {model.upstream}, at most {loops} reruns{fallback}")
    for hook in gateway.chain.hooks:
        names = ", ".join(sorted(hook.owned)) or "every request"
        print(f"hook {hook.name}: {type(hook.instance).__name__} watches {names}")
    for name, source in gateway.toolbox.sources:
        tools = ", ".join(tool.name for tool in source.tools()) or "tools that it learns when it starts"
        print(f"hook {name}: {type(source).__name__} offers {tools}")
    for kind, rules in (("pre_call", settings.rules.pre_call), ("post_call", settings.rules.post_call)):
        for rule in rules:
            print(f"rule {rule}: {kind}")
    print("good")
    return 0


def _demo(given: argparse.Namespace) -> int:
    from loopway import demo  # noqa: PLC0415

    return demo.run(given.port)


if __name__ == "__main__":
    sys.exit(main())
