"""Litestar, with a short way to the endpoints that are plain ASGI.

They do their own reading, refusing and failing; what Litestar does around them (normal path, route, state, handlers of
exceptions) costs as much as their admission. Every other path, also another spelling of theirs, goes Litestar's way.
This file must not know what an endpoint does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from litestar import Litestar
from litestar.enums import ScopeType
from litestar.handlers import ASGIRouteHandler, BaseRouteHandler

if TYPE_CHECKING:
    from litestar.types import LifeSpanReceive, LifeSpanScope, LifeSpanSend, Receive, Scope, Send


class Application(Litestar):
    """A Litestar application; its plain ASGI handlers are called straight for their exact paths.

    Args:
        handlers: All route handlers.
        more: Litestar's own arguments.
    """

    def __init__(self, handlers: Sequence[BaseRouteHandler], **more: Any) -> None:
        super().__init__(route_handlers=list(handlers), **more)
        plain = [handler for handler in handlers if isinstance(handler, ASGIRouteHandler)]
        self._plain = {path: handler.fn for handler in plain for path in handler.paths}

    async def __call__(
        self,
        scope: Scope | LifeSpanScope,
        receive: Receive | LifeSpanReceive,
        send: Send | LifeSpanSend,
    ) -> None:
        """Serve a connection."""
        if scope["type"] == ScopeType.HTTP:
            plain = self._plain.get(scope["path"])  # type: ignore[typeddict-item]
            if plain is not None:
                await plain(scope, receive, send)
                return
        await super().__call__(scope, receive, send)
