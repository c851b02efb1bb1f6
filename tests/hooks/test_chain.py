"""`loopway.hooks.chain`: who is asked, with what, and what follows when a hook fails."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from loopway import AgenticLoopHook, AgenticLoopPlan, AgenticLoopRequestPatch
from loopway.engine.fingerprint import fingerprint
from loopway.engine.limits import Limits
from loopway.engine.loop import Claim, Gate, Plan
from loopway.engine.notes import HookRan, Note, Subject
from loopway.engine.plan import Override, Rerun, Skip, Terminate
from loopway.engine.reply import Reply, ToolCall
from loopway.errors import BadRequest, HookFailed, Rejected
from loopway.hooks.chain import Asked, Caller, Chain, Session, Surface
from loopway.testing import Recorded, call, text
from loopway.testing import Reply as Said
from served import MODEL, running

TINY = 0.02  # seconds; a hook that hangs is one that waits for ever
VALUE = {"content": [{"type": "tool_use", "id": "t1", "name": "owned_tool", "input": {"n": 1}}], "model": "m"}
MESSAGES = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
TOOLS = [{"name": "owned_tool", "input_schema": {"type": "object"}}]
CALL = ToolCall("t1", "owned_tool", {"n": 1}, '{"n":1}')


class Hook(AgenticLoopHook):
    """Does what its functions say, and remembers what it was given."""

    def __init__(self, owned: Sequence[str] = (), gate: Any = (True, {}), plan: Any = None) -> None:
        self.server_fulfilled_tool_names = frozenset(owned)
        self.gate_answer = gate
        self.plan_answer = AgenticLoopPlan() if plan is None else plan
        self.gates: list[dict[str, Any]] = []
        self.plans: list[dict[str, Any]] = []

    async def async_should_run_agentic_loop(self, *_: Any, **given: Any) -> Any:
        self.gates.append(given)
        return await answered(self.gate_answer)

    async def async_build_agentic_loop_plan(self, *_: Any, **given: Any) -> Any:
        self.plans.append(given)
        return await answered(self.plan_answer)


async def answered(answer: Any) -> Any:
    """What a hook says: a value, or what a function of no arguments does."""
    if callable(answer):
        made = answer()
        return await made if asyncio.iscoroutine(made) else made
    return answer


async def hang() -> None:
    await asyncio.Event().wait()


async def cancelled_inside() -> None:
    """Waits for something that is cancelled, and is not cancelled itself."""
    waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiting.cancel()
    await waiting


def raises(error: BaseException) -> Callable[[], Any]:
    def fail() -> Any:
        raise error

    return fail


FAILURES: dict[str, tuple[Any, str]] = {
    "exception": (raises(RuntimeError("secret")), "it raised RuntimeError"),
    "exit": (raises(SystemExit(1)), "it raised SystemExit"),
    "own cancellation": (cancelled_inside, "it raised CancelledError"),
    "hang": (hang, "no answer within 0.02 s (loop.hook_timeout_seconds)"),
    "own TimeoutError": (raises(TimeoutError()), "it raised TimeoutError"),
}


def run_all(hooks: Sequence[object], surface: Surface = "messages") -> tuple[Session, list[Note]]:
    """One exchange with these hooks, named h0, h1, …; and what telemetry is told."""
    notes: list[Note] = []

    def listen(_subject: Subject, note: Note) -> None:
        notes.append(note)

    chain = Chain([(f"h{n}", hook) for n, hook in enumerate(hooks)], timeout_seconds=TINY, listener=listen)
    subject = Subject(request_id="req_1", dialect=surface, began=0.0, model="m")
    caller = Caller(
        surface=surface,
        provider="anthropic" if surface == "messages" else "openai",
        call_type="anthropic_messages" if surface == "messages" else "acompletion",
        key_name="team-a",
        key_models=("*",),
        metadata=lambda: {"user_id": "u1"},
    )
    return chain.session(subject, caller), notes


def asked(*, offered: Sequence[str] = ("owned_tool",), stream: bool = False) -> Asked:
    return Asked(
        model="m",
        stream=stream,
        offered=frozenset(offered),
        messages=lambda: copy.deepcopy(MESSAGES),
        tools=lambda: copy.deepcopy(TOOLS),
        optional_params=lambda: {"max_tokens": 100},
    )


def reply(*calls: ToolCall, value: Any = VALUE) -> Reply:
    return Reply(raw=msgspec.json.encode(value), calls=calls)


def gate(*calls: ToolCall, after: int = -1, depth: int = 0, seen: tuple[str, ...] = ()) -> Gate:
    return Gate(reply(*(calls or (CALL,))), depth, after, seen, Limits(loops=3))


def plan(context: Any = None, *, hook: int = 0, depth: int = 0, seen: tuple[str, ...] = ()) -> Plan:
    return Plan(reply(CALL), depth, Claim(hook, f"h{hook}", context or {}), seen, Limits(loops=3))


def rerun(**patch: Any) -> AgenticLoopPlan:
    return AgenticLoopPlan(run_agentic_loop=True, request_patch=AgenticLoopRequestPatch(**patch))


def failures(notes: Sequence[Note]) -> list[tuple[str, str, str | None]]:
    return [(note.hook, note.phase, note.error) for note in notes if isinstance(note, HookRan) and note.error]


# --- order ---


async def test_gates_are_asked_in_order_until_one_claims() -> None:
    """The first hook that says yes gets the reply; those behind it are not asked."""
    hooks = [Hook(gate=(False, {})), Hook(gate=(True, {"mine": 1})), Hook()]
    session, _ = run_all(hooks)
    assert await session.gate(gate(), asked()) == Claim(1, "h1", {"mine": 1})
    assert [len(hook.gates) for hook in hooks] == [1, 1, 0]


@pytest.mark.parametrize(("after", "claims"), [(-1, 0), (0, 1), (1, 2), (2, None)])
async def test_a_skip_asks_the_hooks_behind(after: int, claims: int | None) -> None:
    """Behind hook number `after` the chain goes on with the next one, and ends behind the last."""
    session, _ = run_all([Hook(), Hook(), Hook()])
    claim = await session.gate(gate(after=after), asked())
    assert (claim.hook if claim else None) == claims


async def test_all_gates_pass() -> None:
    """Where no gate says yes, nobody claims."""
    session, _ = run_all([Hook(gate=(False, {})), Hook(gate=[False, None])])
    assert await session.gate(gate(), asked()) is None


@pytest.mark.parametrize(
    ("owned", "offered", "is_asked"),
    [
        ((), (), True),
        ((), ("other",), True),
        (("owned_tool",), ("owned_tool", "other"), True),
        (("owned_tool", "second"), ("second",), True),
        (("owned_tool",), ("other",), False),
        (("owned_tool",), (), False),
    ],
)
async def test_a_hook_with_names_is_asked_only_when_one_is_offered(
    owned: tuple[str, ...], offered: tuple[str, ...], is_asked: bool
) -> None:
    """A hook without names is always asked, one with names only about requests that offer one of them."""
    hook = Hook(owned)
    session, _ = run_all([hook])
    claim = await session.gate(gate(), asked(offered=offered))
    assert (claim is not None, len(hook.gates)) == (is_asked, int(is_asked))


@pytest.mark.parametrize(
    ("owned", "any_name", "watches"), [((), True, True), (("a",), False, True), (("b",), False, False)]
)
def test_who_watches_a_request(owned: tuple[str, ...], any_name: bool, watches: bool) -> None:
    """A hook watches requests that offer one of its tools; one without names watches all, and may claim any call."""
    chain = Chain([("h0", Hook(owned))], timeout_seconds=1, listener=lambda _subject, _note: None)
    assert chain.any_name("messages") is any_name
    assert chain.watches("messages", lambda: frozenset({"a"})) is watches


class OnlyChat(AgenticLoopHook):
    async def async_should_run_chat_completion_agentic_loop(self, *_: Any, **given: Any) -> Any:
        return True, {"gate": "chat"}

    async def async_build_chat_completion_agentic_loop_plan(self, *_: Any, **given: Any) -> Any:
        assert given["optional_params"] == {"max_tokens": 100}
        return AgenticLoopPlan(response_override={"plan": "chat"})


class Both(OnlyChat):
    async def async_should_run_agentic_loop(self, *_: Any, **given: Any) -> Any:
        return True, {"gate": "base"}

    async def async_build_agentic_loop_plan(self, *_: Any, **given: Any) -> Any:
        assert given["anthropic_messages_optional_request_params"] == {"max_tokens": 100}
        assert given["anthropic_messages_provider_config"] is None
        return AgenticLoopPlan(response_override={"plan": "base"})


class OnlyBase(Both):
    async_should_run_chat_completion_agentic_loop = AgenticLoopHook.async_should_run_chat_completion_agentic_loop
    async_build_chat_completion_agentic_loop_plan = AgenticLoopHook.async_build_chat_completion_agentic_loop_plan


@pytest.mark.parametrize(
    ("hook", "surface", "who"),
    [
        (OnlyChat(), "messages", None),
        (OnlyChat(), "chat_completions", "chat"),
        (Both(), "messages", "base"),
        (Both(), "chat_completions", "chat"),
        (OnlyBase(), "messages", "base"),
        (OnlyBase(), "chat_completions", "base"),
    ],
)
async def test_which_gate_and_plan_a_dialect_asks(hook: object, surface: Surface, who: str | None) -> None:
    """Chat Completions asks its own methods, or the general ones where they are not overridden; Messages only these."""
    session, notes = run_all([hook], surface)
    claim = await session.gate(gate(), asked())
    assert (claim.context if claim else None) == ({"gate": who} if who else None)
    assert len(notes) == (1 if who else 0)
    if claim:
        assert await session.plan(Plan(reply(CALL), 0, claim, (), Limits()), asked()) == Override({"plan": who})


# --- what a gate and a plan are given ---


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("surface", "provider"), [("messages", "anthropic"), ("chat_completions", "openai")])
async def test_a_gate_is_given_the_request_and_the_truth(stream: bool, surface: Surface, provider: str) -> None:
    """A gate gets the reply, the request and `kwargs` with all that the contract lists."""
    hook = Hook()
    session, _ = run_all([hook], surface)
    await session.gate(gate(depth=2, seen=("f1", "f2")), asked(stream=stream))
    given = hook.gates[0]
    kwargs = given.pop("kwargs")
    assert given == {
        "response": VALUE,
        "model": "m",
        "messages": MESSAGES,
        "tools": TOOLS,
        "stream": stream,
        "custom_llm_provider": provider,
    }
    assert kwargs.pop("litellm_call_id")
    assert kwargs == {
        "metadata": {"user_api_key_alias": "team-a", "requester_metadata": {"user_id": "u1"}},
        "_agentic_loop_depth": 2,
        "max_agentic_loops": 3,
        "_agentic_loop_fingerprints": ["f1", "f2"],
        "_agentic_loop_api_surface": surface,
        "request_id": "req_1",
        "custom_llm_provider": provider,
    }


async def test_a_plan_is_given_the_context_of_its_gate() -> None:
    """`tools` of a plan is what its gate returned, and `logging_obj` has the id that `kwargs` has."""
    hook = Hook()
    session, _ = run_all([hook])
    await session.plan(plan({"tool_calls": [1]}), asked(stream=True))
    given = hook.plans[0]
    assert given["tools"] == {"tool_calls": [1]}
    assert given["response"].content[0].input.n == 1
    assert given["stream"] is True
    assert given["logging_obj"].litellm_call_id == given["kwargs"]["litellm_call_id"]
    assert given["logging_obj"].model_call_details["model"] == "m"


async def test_the_call_id_is_one_for_the_exchange_and_another_for_the_next() -> None:
    """`litellm_call_id` is the same in all phases of one exchange, and differs between exchanges."""
    hook = Hook()
    for _ in range(2):
        session, _ = run_all([hook])
        await session.gate(gate(), asked())
        await session.plan(plan(), asked())
    ids = [given["kwargs"]["litellm_call_id"] for given in (*hook.gates, *hook.plans)]
    assert ids[0] == ids[2] != ids[1] == ids[3]


class Spoiler(Hook):
    """Writes into everything that it is given."""

    async def async_should_run_agentic_loop(self, *_: Any, **given: Any) -> Any:
        for name in ("response", "messages", "tools", "kwargs"):
            _spoil(given[name])
        return False, {}


def _spoil(value: Any) -> None:
    if isinstance(value, dict):
        for item in list(value.values()):
            _spoil(item)
        value["spoiled"] = True
    elif isinstance(value, list):
        for item in value:
            _spoil(item)
        value.append("spoiled")


async def test_what_a_hook_writes_reaches_nobody() -> None:
    """The next hook, and the next iteration, see nothing of what a hook wrote into what it was given."""
    first, second = Hook(plan=rerun(kwargs={"kept": {"deep": [1]}})), Hook(gate=(False, {}))
    session, _ = run_all([first, Spoiler(), second])
    await session.plan(plan(), asked())
    for _ in range(2):
        await session.gate(gate(after=0, depth=1), asked())
    for given in second.gates:
        assert "spoiled" not in str(given)
        assert given["kwargs"]["kept"] == {"deep": [1]}


async def test_what_a_hook_keeps_and_changes_later_reaches_nobody() -> None:
    """A list that a patch put into `kwargs` is copied when the plan is taken."""
    mine = [1]
    hook = Hook(plan=rerun(kwargs={"mine": mine}))
    session, _ = run_all([hook])
    await session.plan(plan(), asked())
    mine.append(2)
    await session.gate(gate(), asked())
    assert hook.gates[0]["kwargs"]["mine"] == [1]


# --- what a patch carries on ---


async def test_kwargs_of_a_patch_are_there_in_later_iterations() -> None:
    """`request_patch.kwargs` is in the `kwargs` of every later gate and plan; a later patch adds to it."""
    hook = Hook()
    session, _ = run_all([hook])
    for answer in (rerun(kwargs={"a": 1, "b": 1}), rerun(kwargs={"b": 2})):
        hook.plan_answer = answer
        await session.plan(plan(), asked())
    await session.gate(gate(), asked())
    assert [given["kwargs"].get("a") for given in hook.plans] == [None, 1]
    assert (hook.gates[0]["kwargs"]["a"], hook.gates[0]["kwargs"]["b"]) == (1, 2)


async def test_a_patch_may_replace_the_metadata() -> None:
    """`metadata` is no reserved name: a hook may carry its own."""
    hook = Hook(plan=rerun(kwargs={"metadata": {"mine": 1}}))
    session, _ = run_all([hook])
    await session.plan(plan(), asked())
    await session.gate(gate(), asked())
    assert hook.gates[0]["kwargs"]["metadata"] == {"mine": 1}


@pytest.mark.parametrize(
    "name",
    [
        "_agentic_loop_depth",
        "_agentic_loop_fingerprints",
        "_agentic_loop_api_surface",
        "max_agentic_loops",
        "litellm_call_id",
        "request_id",
        "custom_llm_provider",
    ],
)
async def test_reserved_names_stay_true(name: str) -> None:
    """What the gateway says in `kwargs` is true, whatever a patch puts under the same name."""
    hook = Hook()
    session, _ = run_all([hook])
    await session.gate(gate(), asked())
    hook.plan_answer = rerun(kwargs={name: 2 if name == "max_agentic_loops" else "forged"})
    await session.plan(plan(), asked())
    await session.gate(gate(), asked())
    assert hook.gates[1]["kwargs"][name] == hook.gates[0]["kwargs"][name]


async def test_a_plan_that_skips_carries_kwargs_but_plans_no_rerun() -> None:
    """A hook that only counts can keep its count: the next iteration has it, and no post hook is due for it."""
    hook = Post(lambda response: response)
    hook.plan_answer = AgenticLoopPlan(request_patch=AgenticLoopRequestPatch(kwargs={"a": 1}))
    session, _ = run_all([hook])
    assert await session.plan(plan(), asked()) == Skip()
    await session.gate(gate(), asked())
    assert hook.gates[0]["kwargs"]["a"] == 1
    assert not session.post_is_due


@pytest.mark.parametrize("patch", [{"kwargs": {}}, AgenticLoopRequestPatch(kwargs=None)])  # type: ignore[arg-type]
@pytest.mark.parametrize("terminate", [True, False])
async def test_a_patch_of_a_wrong_type_is_a_failure_in_any_plan(patch: Any, terminate: bool) -> None:
    """Where no rerun is asked for, the type of the patch is checked all the same."""
    session, _ = run_all([Hook(plan=AgenticLoopPlan(terminate=terminate, request_patch=patch))])
    with pytest.raises(HookFailed, match="is no AgenticLoopRequestPatch with kwargs"):
        await session.plan(plan(), asked())


# --- failures: the stance table ---


@pytest.mark.parametrize("kind", FAILURES)
async def test_a_gate_that_fails_passes_to_the_next_hook(kind: str) -> None:
    """An exception or a time-out in a gate is told, and the next hook is asked."""
    answer, _ = FAILURES[kind]
    session, notes = run_all([Hook(gate=answer), Hook()])
    claim = await session.gate(gate(), asked())
    assert claim is not None
    assert claim.hook == 1
    error = {"hang": "timeout"}.get(kind) or FAILURES[kind][1].split()[-1]
    assert failures(notes) == [("h0", "gate", error)]


@pytest.mark.parametrize(
    "answer",
    [None, True, "yes", {}, (True,), (True, {}, {}), (1, {}), ("yes", {}), (None, {}), [], AgenticLoopPlan()],
    ids=repr,
)
async def test_a_gate_of_a_wrong_type_is_a_failure(answer: object) -> None:
    """Anything but a pair whose first half is True or False is a failure, not a guess."""
    session, notes = run_all([Hook(gate=answer), Hook()])
    claim = await session.gate(gate(), asked())
    assert claim is not None
    assert claim.hook == 1
    assert failures(notes) == [("h0", "gate", "wrong_answer")]


@pytest.mark.parametrize("kind", FAILURES)
@pytest.mark.parametrize(("calls", "fails"), [("owned_tool", True), ("other", False)])
async def test_a_gate_that_fails_on_a_call_of_its_own_tool_ends_the_exchange(
    kind: str, calls: str, fails: bool
) -> None:
    """Nobody else may answer a call to a tool that only this hook runs: then the failure is the exchange's."""
    answer, said = FAILURES[kind]
    session, _ = run_all([Hook(["owned_tool"], gate=answer)])
    asking = session.gate(gate(ToolCall("c", calls, {}, "{}")), asked())
    if not fails:
        assert await asking is None
        return
    with pytest.raises(HookFailed) as caught:
        await asking
    assert (caught.value.hook, caught.value.phase) == ("h0", "gate")
    assert said in caught.value.text


@pytest.mark.parametrize("kind", FAILURES)
async def test_a_plan_that_fails_ends_the_exchange(kind: str) -> None:
    """The text names hook, phase and kind of failure, and nothing that the hook said."""
    answer, said = FAILURES[kind]
    session, notes = run_all([Hook(plan=answer)])
    with pytest.raises(HookFailed) as caught:
        await session.plan(plan(), asked())
    assert caught.value.text == f"the hook 'h0' failed in its plan: {said}"
    assert "secret" not in caught.value.text
    assert [(hook, phase) for hook, phase, _ in failures(notes)] == [("h0", "plan")]


def endless() -> dict[str, Any]:
    cycle: dict[str, Any] = {}
    cycle["itself"] = cycle
    return cycle


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"run_agentic_loop": True}, "it returned a dict; return an AgenticLoopPlan"),
        (lambda: None, "it returned None; return an AgenticLoopPlan"),
        (AgenticLoopPlan(run_agentic_loop=True), "run_agentic_loop=True without a request_patch"),
        (rerun(messages=["text"]), "request_patch.messages is a list"),
        (rerun(kwargs={"max_agentic_loops": "three"}), "request_patch.kwargs.max_agentic_loops"),
        (rerun(kwargs=endless()), "request_patch.kwargs contains itself"),
        (AgenticLoopPlan(response_override="text"), "response_override is a str"),
    ],
)
async def test_a_plan_that_is_none_ends_the_exchange(answer: Any, said: str) -> None:
    """What is no plan, or one that cannot be carried out, is a failure that says what was found."""
    session, notes = run_all([Hook(plan=answer)])
    with pytest.raises(HookFailed) as caught:
        await session.plan(plan(), asked())
    assert said in caught.value.text
    assert failures(notes) == [("h0", "plan", "wrong_answer")]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [(AgenticLoopPlan(), Skip), (AgenticLoopPlan(terminate=True), Terminate), (rerun(), Rerun)],
)
async def test_a_good_plan_is_told_without_an_error(answer: Any, kind: type) -> None:
    """Each phase is told once, with the time that it took."""
    session, notes = run_all([Hook(plan=answer)])
    assert isinstance(await session.plan(plan(depth=1), asked()), kind)
    [note] = notes
    assert isinstance(note, HookRan)
    assert (note.hook, note.phase, note.depth, note.error) == ("h0", "plan", 1, None)
    assert session.seconds == note.seconds >= 0


async def test_cancellation_goes_through_a_hook() -> None:
    """A cancelled exchange ends; the hook that was waiting has not failed."""
    entered = asyncio.Event()

    async def wait() -> None:
        entered.set()
        await hang()

    notes: list[Note] = []
    chain = Chain([("h0", Hook(gate=wait))], timeout_seconds=60, listener=lambda _subject, note: notes.append(note))
    session = chain.session(*_subject_and_caller())
    task = asyncio.create_task(session.gate(gate(), asked()))
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert failures(notes) == []


def _subject_and_caller() -> tuple[Subject, Caller]:
    session, _ = run_all([])
    return session._subject, session._caller


# --- clean-up ---


class Cleaning(Hook):
    """Remembers its clean-ups in a list that it shares with others."""

    def __init__(self, story: list[tuple[str, Any]], does: Any = None, **given: Any) -> None:
        super().__init__(**given)
        self.story = story
        self.does = does

    async def async_agentic_loop_cleanup_hook(self, plan: AgenticLoopPlan, kwargs: dict[str, Any]) -> None:
        self.story.append((str(plan.stop_reason), kwargs["_agentic_loop_depth"]))
        await answered(self.does)


async def plan_of(session: Session, hook: Hook, number: int, depth: int, name: str) -> None:
    hook.plan_answer = AgenticLoopPlan(run_agentic_loop=True, request_patch=AgenticLoopRequestPatch(), stop_reason=name)
    await session.plan(plan(hook=number, depth=depth), asked())


async def test_each_plan_is_cleaned_up_once_the_last_one_first() -> None:
    """Every plan of every hook is cleaned up once, in reverse order, with the depth that it was made at."""
    story: list[tuple[str, Any]] = []
    one, two = Cleaning(story), Cleaning(story)
    session, _ = run_all([one, two])
    await plan_of(session, one, 0, 0, "a")
    await plan_of(session, two, 1, 1, "b")
    await plan_of(session, one, 0, 2, "c")
    assert session.has_cleanup
    await session.cleanup()
    await session.cleanup()
    assert story == [("c", 2), ("b", 1), ("a", 0)]
    assert not session.has_cleanup


@pytest.mark.parametrize(
    "answer",
    [AgenticLoopPlan(), AgenticLoopPlan(terminate=True), AgenticLoopPlan(run_agentic_loop=True)],
    ids=["skip", "terminate", "one that cannot be carried out"],
)
async def test_a_plan_of_any_kind_is_cleaned_up(answer: AgenticLoopPlan) -> None:
    """The hook made a plan: it is told when the exchange is over, whatever became of it."""
    story: list[tuple[str, Any]] = []
    session, _ = run_all([Cleaning(story, plan=answer)])
    try:
        await session.plan(plan(), asked())
    except HookFailed:
        assert answer.run_agentic_loop
    await session.cleanup()
    assert story == [("None", 0)]


@pytest.mark.parametrize("kind", FAILURES)
async def test_a_clean_up_that_fails_keeps_none_from_the_others(kind: str) -> None:
    """A failure in a clean-up is told and goes no further; those of the other plans still run."""
    story: list[tuple[str, Any]] = []
    one, bad = Cleaning(story), Cleaning(story, FAILURES[kind][0])
    session, notes = run_all([one, bad])
    await plan_of(session, one, 0, 0, "first")
    await plan_of(session, bad, 1, 0, "bad")
    await session.cleanup()
    assert story == [("bad", 0), ("first", 0)]
    assert [(hook, phase) for hook, phase, _ in failures(notes)] == [("h1", "cleanup")]


async def test_a_hook_without_a_clean_up_needs_none() -> None:
    """Where no hook with a plan has a clean-up, none is due."""
    hook = Hook(plan=rerun())
    session, notes = run_all([hook])
    await session.plan(plan(), asked())
    assert not session.has_cleanup
    await session.cleanup()
    assert [note.phase for note in notes if isinstance(note, HookRan)] == ["plan"]


# --- before the first iteration ---


class Body:
    """A request that only has data."""

    def __init__(self, data: dict[str, Any]) -> None:
        self._data = data

    def data(self) -> dict[str, Any]:
        return copy.deepcopy(self._data)


class PreCall(AgenticLoopHook):
    def __init__(self, does: Callable[..., Any]) -> None:
        self.does = does
        self.given: list[dict[str, Any]] = []

    async def async_pre_call_hook(self, *_: Any, **given: Any) -> Any:
        self.given.append(given)
        made = self.does(given["data"])
        return await made if asyncio.iscoroutine(made) else made


def accept(_request: Body, data: dict[str, Any]) -> Body:
    if data.get("stream") is True:
        raise BadRequest("$.stream: it was changed")
    return Body(data)


async def pre_call(*hooks: object) -> dict[str, Any]:
    session, _ = run_all(hooks)
    return (await session.pre_call(Body({"model": "m", "n": [1]}), accept)).data()


def in_place(data: dict[str, Any]) -> None:
    data["changed"] = True
    data["n"].append(2)


@pytest.mark.parametrize(
    ("does", "becomes"),
    [
        (lambda data: data, {"model": "m", "n": [1]}),
        (lambda _data: None, {"model": "m", "n": [1]}),
        (lambda data: {**data, "extra": {"a": [1]}}, {"model": "m", "n": [1], "extra": {"a": [1]}}),
        (lambda _data: {"model": "other"}, {"model": "other"}),
        (in_place, {"model": "m", "n": [1, 2], "changed": True}),
    ],
    ids=["as it is", "None", "one more", "all new", "in place and None"],
)
async def test_a_pre_call_hook_changes_the_request(does: Callable[..., Any], becomes: dict[str, Any]) -> None:
    """A mapping is the new request; None takes the one that was handed over, as it is now."""
    assert await pre_call(PreCall(does)) == becomes


async def test_pre_call_hooks_build_on_each_other() -> None:
    """The second hook sees what the first one made of the request, and a caller of its own."""
    first, second = PreCall(lambda data: {**data, "first": 1}), PreCall(lambda data: {**data, "second": data["first"]})
    first.does = lambda data: first.given[-1]["user_api_key_dict"].update(key_alias="forged") or {**data, "first": 1}
    assert await pre_call(first, second) == {"model": "m", "n": [1], "first": 1, "second": 1}
    assert second.given[0]["user_api_key_dict"].key_alias == "team-a"
    assert second.given[0]["call_type"] == "anthropic_messages"


async def test_pre_call_hooks_share_a_cache() -> None:
    """`cache` is one for the gateway: what one exchange sets, the next one finds."""
    hook = PreCall(lambda data: data)
    session, _ = run_all([hook])
    for _ in range(2):
        await session.pre_call(Body({}), accept)
    one, two = (given["cache"] for given in hook.given)
    await one.async_set_cache("k", 1)
    assert await two.async_get_cache("k") == 1


class Http(Exception):
    """As web frameworks have it."""

    def __init__(self, status_code: int, detail: Any) -> None:
        super().__init__(detail)
        self.status_code = status_code
        self.detail = detail


@pytest.mark.parametrize(
    ("does", "status", "text"),
    [
        (lambda _data: "not on a Sunday", 400, "not on a Sunday"),
        (lambda _data: "", 400, "a hook of the gateway refused the request"),
        (lambda _data: raises(Rejected("house rule"))(), 400, "house rule"),
        (lambda _data: Rejected("returned"), 400, "returned"),
        (lambda _data: raises(Http(403, "not you"))(), 403, "not you"),
        (lambda _data: raises(Http(429, {"error": "slowly"}))(), 429, "slowly"),
        (lambda _data: raises(Http(422, {"why": 1}))(), 422, "{'why': 1}"),
        (lambda _data: Http(400, "returned"), 400, "returned"),
    ],
    ids=["text", "empty text", "Rejected", "Rejected returned", "403", "429 and error", "422", "Http returned"],
)
async def test_a_pre_call_hook_rejects(does: Callable[..., Any], status: int, text: str) -> None:
    """A text, `Rejected` and an HTTP exception with a 4xx status are a no, in the hook's own words."""
    with pytest.raises(Rejected) as caught:
        await pre_call(PreCall(does))
    assert (caught.value.status, caught.value.text) == (status, text)


async def test_a_rejection_asks_no_further_hook_and_is_no_failure() -> None:
    """Behind a no the others are not asked, and telemetry counts no error."""
    later = PreCall(lambda data: data)
    session, notes = run_all([PreCall(lambda _data: raises(Rejected("no"))()), later])
    with pytest.raises(Rejected):
        await session.pre_call(Body({}), accept)
    assert later.given == []
    assert failures(notes) == []


class Array:
    """Compares as arrays do."""

    def __eq__(self, _other: object) -> bool:
        raise ValueError("the truth value is ambiguous")

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("does", "said"),
    [
        (lambda _data: raises(RuntimeError("secret"))(), "it raised RuntimeError"),
        (lambda _data: raises(Http(500, "secret"))(), "it raised Http"),
        (lambda _data: raises(Http(400, ""))(), "it raised Http"),
        (lambda _data: hang(), "no answer within"),
        (lambda _data: 7, "it returned a int, no request"),
        (lambda _data: [1], "it returned a list, no request"),
        (lambda _data: {1: 2}, "no request"),
        (lambda _data: RuntimeError("secret"), "it returned an exception"),
        (lambda data: {**data, "stream": True}, "the request that it returned: $.stream: it was changed"),
        (lambda _data: endless(), "the request that it returned contains itself"),
    ],
)
async def test_a_pre_call_hook_that_fails_ends_the_exchange(does: Callable[..., Any], said: str) -> None:
    """Any other exception, a time-out or a wrong type is the hook's failure; a changed `stream`, too."""
    with pytest.raises(HookFailed) as caught:
        await pre_call(PreCall(does))
    assert (caught.value.hook, caught.value.phase) == ("h0", "pre_call")
    assert said in caught.value.text
    assert "secret" not in caught.value.text


async def test_a_value_that_cannot_be_compared_is_the_hooks_failure() -> None:
    """What raises while the gateway looks for changes is told as the hook's, not as the gateway's own mistake."""

    def compare(_request: Body, data: dict[str, Any]) -> Body:
        assert data["n"] != [1]
        return Body(data)

    session, _ = run_all([PreCall(lambda data: {**data, "n": Array()})])
    with pytest.raises(HookFailed, match="the request that it returned is no JSON"):
        await session.pre_call(Body({"n": [1]}), compare)


# --- behind a rerun ---


class Post(Hook):
    def __init__(self, does: Callable[..., Any], **given: Any) -> None:
        super().__init__(plan=rerun(kwargs={"mine": 1, "max_agentic_loops": 7}), **given)
        self.does = does
        self.posts: list[dict[str, Any]] = []

    async def async_post_agentic_loop_response_hook(self, *_: Any, **given: Any) -> Any:
        self.posts.append(given)
        made = self.does(given["response"])
        return await made if asyncio.iscoroutine(made) else made


async def post(hook: Post) -> dict[str, Any] | None:
    session, _ = run_all([hook])
    await session.plan(plan({"calls": ["x"]}), asked())
    return await session.post(reply(value={"content": [{"type": "text", "text": "a"}]}), 1)


def edited(response: Any) -> None:
    response.content[0].text = "b"


class Model:
    def __init__(self, data: Any) -> None:
        self.data = data

    def model_dump(self) -> Any:
        return self.data


@pytest.mark.parametrize(
    ("does", "becomes"),
    [
        (lambda response: response, None),
        (lambda _response: None, None),
        (edited, {"content": [{"type": "text", "text": "b"}]}),
        (lambda response: {**response, "more": 1}, {"content": [{"type": "text", "text": "a"}], "more": 1}),
        (lambda _response: Model({"content": []}), {"content": []}),
    ],
    ids=["as it is", "None", "in place and None", "a mapping", "a model of an SDK"],
)
async def test_a_post_hook_replaces_the_reply(does: Callable[..., Any], becomes: Any) -> None:
    """A mapping or an SDK's model is the new reply; None takes the one that was handed over, as it is now."""
    made = await post(Post(does))
    assert made == becomes
    assert type(made) in (dict, type(None))


async def test_a_post_hook_is_given_its_plan_and_the_truth() -> None:
    """It gets the plan itself, and `kwargs` of the rerun: depth, limit, fingerprints and what the patch added."""
    hook = Post(lambda response: response)
    await post(hook)
    [given] = hook.posts
    assert given["plan"] is hook.plan_answer
    kwargs = given["kwargs"]
    assert (kwargs["_agentic_loop_depth"], kwargs["max_agentic_loops"], kwargs["mine"]) == (1, 7, 1)
    assert kwargs["_agentic_loop_fingerprints"] == [fingerprint({"calls": ["x"]}, [CALL])]


@pytest.mark.parametrize(
    ("does", "said"),
    [
        (lambda _response: raises(RuntimeError("secret"))(), "it raised RuntimeError"),
        (lambda _response: hang(), "no answer within"),
        (lambda _response: "text", "it returned a str; return a whole reply"),
        (lambda _response: [], "it returned a list; return a whole reply"),
        (lambda _response: Model("text"), "it returned a str; return a whole reply"),
        (lambda _response: endless(), "the reply that it returned contains itself"),
    ],
)
async def test_a_post_hook_that_fails_ends_the_exchange(does: Callable[..., Any], said: str) -> None:
    """Its reply may hold what the hook exists to keep back, so it does not go out."""
    with pytest.raises(HookFailed) as caught:
        await post(Post(does))
    assert (caught.value.hook, caught.value.phase) == ("h0", "post")
    assert said in caught.value.text


async def test_a_post_hook_sees_only_the_reruns_of_its_own_plans() -> None:
    """Before any rerun, and behind one that another hook planned, it is not asked."""
    mine, other = Post(lambda response: response), Hook(plan=rerun())
    session, _ = run_all([mine, other])
    assert not session.post_is_due
    assert await session.post(reply(), 0) is None
    await session.plan(plan(), asked())
    assert session.post_is_due
    await session.plan(plan(hook=1), asked())
    assert not session.post_is_due
    assert await session.post(reply(), 2) is None
    assert mine.posts == []


def test_a_refused_answer_names_its_hook() -> None:
    """What the driver finds wrong with a plan is told under the hook's name."""
    session, notes = run_all([Hook()])
    failed = session.refused("h0", 0, "its request_patch does not fit")
    assert failed.text == "the hook 'h0' failed in its plan: its request_patch does not fit"
    assert failures(notes) == [("h0", "plan", "wrong_answer")]


# --- many at once ---


class Diary(AgenticLoopHook):
    """Keeps a diary of the exchange in `kwargs`: what it was called with, in order."""

    async def async_should_run_agentic_loop(
        self,
        response: Any,
        model: str,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        stream: bool,
        custom_llm_provider: str,
        kwargs: dict[str, Any],
    ) -> tuple[bool, Any]:
        calls = [block for block in response.content if block.type == "tool_use"]
        return bool(calls), {"calls": calls}

    async def async_build_agentic_loop_plan(self, *_: Any, **given: Any) -> AgenticLoopPlan:
        calls, kwargs = given["tools"]["calls"], given["kwargs"]
        diary = [*kwargs.get("diary", []), calls[0]["input"]["word"]]
        await asyncio.sleep(0)  # let the others in between
        results = [{"type": "tool_result", "tool_use_id": one["id"], "content": " ".join(diary)} for one in calls]
        turns = [{"role": "assistant", "content": given["response"].content}, {"role": "user", "content": results}]
        patch = AgenticLoopRequestPatch(messages=[*given["messages"], *turns], kwargs={"diary": diary})
        return AgenticLoopPlan(run_agentic_loop=True, request_patch=patch)


async def test_two_hundred_exchanges_keep_their_state_apart() -> None:
    """State in `kwargs` belongs to one exchange: 200 at once, two reruns each, see no word of another's."""
    everybody = asyncio.Event()
    waiting = 0

    async def say(request: Recorded) -> Said:
        nonlocal waiting
        word, turns = request.body["messages"][0]["content"], len(request.body["messages"])
        if turns == 1:  # nobody goes on before all have come
            waiting += 1
            if waiting == 200:
                everybody.set()
            await everybody.wait()
        if turns < 5:
            return Said(call("note", {"word": f"{word}-{turns}"}))
        return Said(text(request.body["messages"][-1]["content"][0]["content"]))

    async with running(hooks=[Diary()], script=say) as here:

        async def ask(word: str) -> str:
            body = {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": word}]}
            answer = await here.http.post("/v1/messages", json=body)
            assert answer.status_code == 200, answer.text
            return str(answer.json()["content"][0]["text"])

        words = [f"w{number}" for number in range(200)]
        answers = await asyncio.gather(*map(ask, words))
    assert answers == [f"{word}-1 {word}-3" for word in words]
