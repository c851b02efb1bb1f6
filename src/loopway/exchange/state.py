"""What belongs to one exchange, and what telemetry hears of it. It lives exactly as long as the exchange.

This file must not know the order in which things happen.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from loopway.dialects.glimpse import Glimpse
from loopway.dialects.request import Request
from loopway.dialects.usage import added
from loopway.engine.limits import Breach
from loopway.engine.loop import Decided, Outcome
from loopway.engine.notes import Ended, FirstContent, GonePhase, IterationDecided, Note, ReplyCame, Subject
from loopway.engine.reply import Reply
from loopway.errors import ExchangeError, HookFailed
from loopway.exchange.calls import Calls
from loopway.exchange.ports import Incoming, LoopSettings, Sink
from loopway.hooks.chain import Caller, Chain, Session
from loopway.hooks.served import ServedTools
from loopway.upstream.routing import Router


class Exchange:
    """The state of one exchange.

    Attributes:
        phase: Where it is, for the case that the client leaves.
        owned: The tools that only the server runs.
        declared: The tools that the client declared itself.
        session: The hooks' side of it; None until one is asked.
        served: The server tools of it.
        planner: The name of the hook that was last asked for a plan.
        usage: The sum over all iterations.
        interim: The replies that were rerun.
        back: The headers of the upstream's answer that the client gets.
        tell: Tells the listeners.
    """

    def __init__(
        self,
        incoming: Incoming,
        subject: Subject,
        sink: Sink,
        *,
        settings: LoopSettings,
        router: Router,
        chain: Chain,
        listener: Callable[[Subject, Note], None],
        clock: Callable[[], float],
    ) -> None:
        self.incoming = incoming
        self.dialect = incoming.dialect
        self.subject = subject
        self.sink = sink
        self.settings = settings
        self.router = router
        self.chain = chain
        self.clock = clock
        self.tell: Callable[[Note], None] = functools.partial(listener, subject)
        self.calls = Calls(router, incoming, self.tell, clock)
        self.session: Session | None = None
        self._served: ServedTools | None = None
        self._asked: Request | None = None
        self.limits = settings.limits
        self.phase: GonePhase = "request"
        self.gone: GonePhase | None = None
        self.owned: frozenset[str] = frozenset()
        self.declared: frozenset[str] = frozenset()
        self.planner = ""
        self.usage: dict[str, Any] = {}
        self.interim: list[Reply] = []
        self.last: Reply | None = None
        self.back: list[tuple[bytes, bytes]] = []
        self._breach: Breach | None = None
        self._error: ExchangeError | None = None
        self._status = 200
        self._delivered = 200
        self._outcome: Outcome | None = None
        self._content_told = False
        self._counted: tuple[Any, dict[str, int]] = (None, {})

    @property
    def hooks(self) -> Session:
        """The hooks' side of it."""
        if self.session is None:
            self.session = self.chain.session(self.subject, _caller(self.incoming, self.asked))
        return self.session

    @property
    def asked(self) -> Request:
        """The client's own request, as it came."""
        if self._asked is None:
            raise RuntimeError("the request of this exchange has not been read yet")
        return self._asked

    @asked.setter
    def asked(self, request: Request) -> None:
        self._asked = request

    @property
    def served(self) -> ServedTools:
        """The server tools of this exchange."""
        if self._served is None:
            raise RuntimeError("the server tools of this exchange are not known yet")
        return self._served

    @served.setter
    def served(self, tools: ServedTools) -> None:
        self._served = tools

    @property
    def iterations(self) -> int:
        """Model calls so far, the failed ones among them; a call's retries and fallbacks are no further ones."""
        return self.calls.made

    def keep(self, name: str) -> bool:
        """Whether a call to this tool may reach the client."""
        return name in self.declared and name not in self.owned

    def refused(self, what: str, *, phase: str = "plan", depth: int = 0) -> HookFailed:
        """The failure of the hook that planned last."""
        return self.hooks.refused(self.planner, depth, what, "post" if phase == "post" else "plan")

    # --- what telemetry hears ---

    def reply_came(self, reply: Reply, depth: int, seconds: float) -> None:
        """A reply is whole, or as whole as it will be."""
        self.last = reply
        self.usage = added(self.usage, reply.usage)
        self.calls.answered()
        self.tell(
            ReplyCame(
                depth=depth,
                upstream=self.calls.upstream,
                model=self.calls.model,
                response_model=reply.model,
                response_id=reply.id,
                finish=reply.ending,
                usage=self._tokens(reply.usage),
                seconds=seconds,
                fault=reply.fault,
                value=reply.value,
            )
        )

    def passed_on(self, told: Glimpse, seconds: float) -> None:
        """A reply that nobody parsed was passed on; `told` is what was seen of it."""
        self.usage = told.usage
        self.calls.answered()
        self.tell(
            ReplyCame(
                depth=0,
                upstream=self.calls.upstream,
                model=self.calls.model,
                response_model=told.model,
                response_id=told.id,
                finish=told.finish,
                usage=self._tokens(told.usage),
                seconds=seconds,
            )
        )

    def decided(self, decided: Decided) -> None:
        """What was decided on the reply of one iteration."""
        if decided.breach is not None:
            self._breach = decided.breach
        self._outcome = decided.outcome
        self.tell(IterationDecided(decided.depth, decided.outcome, decided.hook, decided.breach, decided.fingerprint))

    def first_content(self) -> None:
        """The first content of the answer goes to the client."""
        if not self._content_told:
            self._content_told = True
            self.tell(FirstContent(self.clock()))

    def failed(self, error: ExchangeError, status: int) -> None:
        """The exchange ends with an error."""
        self._error = error
        self._status = status
        self._delivered = 200 if self.sink.opened else status

    def ended(self) -> None:
        """The last note."""
        left = self.gone is not None and not self.sink.opened
        self.calls.failed(self._why())
        self.tell(
            Ended(
                status=_CLIENT_LEFT if left else self._status,
                iterations=self.iterations,
                seconds=self.clock() - self.subject.began,
                upstream_seconds=self.calls.seconds,
                hook_seconds=self._hook_seconds(),
                delivered=0 if left else self._delivered,
                outcome=self._outcome,
                breach=self._breach,
                error=self._error.kind if self._error is not None else None,
                error_text=self._error.text if self._error is not None else None,
                gone=self.gone,
                usage=self._tokens(self.usage) if self.usage else {},
            )
        )

    def _tokens(self, usage: dict[str, Any]) -> dict[str, int]:
        """The counts by neutral names; those of one reply are asked for twice."""
        if self._counted[0] is not usage:
            self._counted = (usage, self.dialect.tokens(usage))
        return self._counted[1]

    def _hook_seconds(self) -> float:
        hooks = self.session.seconds if self.session is not None else 0.0
        return hooks + (self._served.seconds if self._served is not None else 0.0)

    def _why(self) -> str:
        """What ended a call that is still open."""
        if self.gone is not None:
            return "cancelled"
        return self._error.kind if self._error is not None else ""


def _caller(incoming: Incoming, request: Request) -> Caller:
    dialect = incoming.dialect
    return Caller(
        surface=dialect.name,
        provider=dialect.provider,
        call_type=dialect.call_type,
        key_name=incoming.key_name,
        key_models=incoming.key_models,
        metadata=request.metadata,
    )


_CLIENT_LEFT = 499
"""The status that logs and metrics show for a client that left before it got one; nginx's number."""
