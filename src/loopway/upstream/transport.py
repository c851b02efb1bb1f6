"""The httpx transport over aiohttp, without what httpx and its adapter prepare anew for each request.

Both ends are ours, so a request brings its address and headers in aiohttp's own types, and a response leaves its
headers as they came until somebody reads them. To whom stands between (an instrumentation, a test) both are httpx's
own. This file must not know what is sent, nor what an answer means. Errors are aiohttp's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import aiohttp
import httpx
import httpx_aiohttp
from multidict import CIMultiDict
from yarl import URL

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Sequence


class Address:
    """Where a request goes, parsed once for both libraries; it travels as httpx writes it."""

    __slots__ = ("httpx", "yarl")

    def __init__(self, text: str) -> None:
        """Raises `httpx.InvalidURL`."""
        self.httpx = httpx.URL(text)
        self.yarl = URL(str(self.httpx), encoded=True)


class Sent(httpx.Request):
    """A request as the transport reads it, without what httpx's own constructor prepares for its client."""

    def __init__(
        self,
        method: str,
        address: Address,
        headers: CIMultiDict[str],
        content: bytes,
        extensions: dict[str, Any],
    ) -> None:
        self.method = method
        self.address = address
        self.url = address.httpx
        self.headers = headers  # type: ignore[assignment]
        self.extensions = dict(extensions)
        self.stream = httpx.ByteStream(content)
        self._content = content


class Received(httpx.Response):
    """An answer whose head is here.

    Its `headers` are made when somebody reads them.
    """

    def __init__(self, request: httpx.Request, answer: aiohttp.ClientResponse) -> None:
        self.status_code = answer.status
        self._raw = answer.raw_headers
        self.stream = Body(answer)
        self.extensions = {
            "http_version": b"HTTP/1.1",
            "reason_phrase": (answer.reason or "").encode("ascii", "ignore"),
        }
        self.history = []
        self.is_closed = self.is_stream_consumed = False
        self.next_request = None
        self._request = request
        self._num_bytes_downloaded = 0

    def __getattr__(self, name: str) -> Any:
        if name != "headers":
            raise AttributeError(name)
        self.headers = httpx.Headers(self._raw)
        return self.headers

    @property
    def lines(self) -> Sequence[tuple[bytes, bytes]]:
        """The header lines, with what who stands between has changed."""
        return self.headers.raw if "headers" in self.__dict__ else self._raw


class Body(httpx.AsyncByteStream):
    """The body as it comes; no generator, so that nothing is left to finalise when it is dropped."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer
        self.read_some: Callable[[], Awaitable[bytes]] = answer.content.readany
        """Gives the next piece, as much as there is; nothing at the end."""

    def __aiter__(self) -> Body:
        return self

    async def __anext__(self) -> bytes:
        piece = await self.read_some()
        if not piece:
            raise StopAsyncIteration
        return piece

    async def aclose(self) -> None:
        """Give the connection up."""
        if not self._answer.closed:  # it is, once it has been read to its end
            self._answer.release()
            await self._answer.wait_for_close()


class Transport(httpx_aiohttp.AiohttpTransport):
    """The connections to one upstream.

    Args:
        trusted: Whose certificates are trusted.
        session: Makes the session when the first request needs it.
        connect_timeout: Seconds for the connection.
        read_timeout: Seconds of silence.
    """

    def __init__(
        self,
        trusted: ssl.SSLContext,
        session: Callable[[], aiohttp.ClientSession],
        *,
        connect_timeout: float,
        read_timeout: float,
    ) -> None:
        super().__init__(verify=trusted, client=session)
        self._timeout = aiohttp.ClientTimeout(
            sock_connect=connect_timeout, sock_read=read_timeout, connect=connect_timeout
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request; the head of its answer is there when this returns."""
        if not isinstance(request, Sent):
            return await super().handle_async_request(request)
        session = self.client
        if not isinstance(session, aiohttp.ClientSession):
            session = self.client = self.get_client()
        answer = await session._request(  # noqa: SLF001 - what `request` wraps for `async with`
            request.method,
            request.address.yarl,
            headers=request.headers,
            data=request.content or None,
            allow_redirects=False,
            timeout=self._timeout,
        )
        return Received(request, answer)
