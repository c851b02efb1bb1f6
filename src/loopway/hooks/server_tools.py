"""`@server_tool`: one function is a hook.

Its name, description and JSON schema come from its signature and docstring; its arguments are checked. This file must
not know when a tool is called.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import re
import typing
from collections.abc import Callable, Collection, Sequence
from typing import Annotated, Any, Generic, ParamSpec, TypeVar, overload

import docstring_parser
import msgspec

from loopway.hooks.tools import Tool, ToolContext, ToolError

P = ParamSpec("P")
R = TypeVar("R")

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class ServerTool(Generic[P, R]):
    """A function that the gateway runs when a model calls it. Still callable as the function that it was.

    Args:
        function: `async def` or `def`; the latter runs in a thread. A parameter annotated with `ToolContext` gets the
            context and is no argument of the tool.
        name: What the model calls; the function's name by default.
        description: What the model reads; the docstring's by default.
        timeout_seconds: Longest run; `loop.hook_timeout_seconds` by default.
        most_characters: Longest result in characters.
        models: The model names for which it is offered; all by default.

    Raises:
        TypeError: The signature cannot be told to a model; the text says what to write.
    """

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        description: str | None = None,
        timeout_seconds: float | None = None,
        most_characters: int = 100_000,
        models: Collection[str] | None = None,
    ) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        named = name or str(getattr(function, "__name__", ""))
        if not _NAME.fullmatch(named):
            raise TypeError(f"{named!r} is no name for a tool; write letters, digits, _ and -, at most 64")
        self._context_name, self._arguments = _arguments_of(function, named)
        self._asynchronous = inspect.iscoroutinefunction(inspect.unwrap(function))
        self.tool = Tool(
            name=named,
            description=description if description is not None else _description(function),
            schema=_schema(self._arguments),
            timeout_seconds=timeout_seconds,
            most_characters=most_characters,
            models=None if models is None else frozenset(models),
        )

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself."""
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"server_tool({self.tool.name})"

    def tools(self) -> Sequence[Tool]:
        """This one."""
        return (self.tool,)

    async def call(self, name: str, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Run it. Raises `ToolError` if the arguments do not fit; its text tells the model what to mend."""
        try:
            given = msgspec.convert(arguments, self._arguments, strict=True)
        except msgspec.ValidationError as wrong:
            raise ToolError(
                f"The arguments of {name} are wrong: {wrong}. Call it again with arguments that fit."
            ) from None
        values = {field: getattr(given, field) for field in given.__struct_fields__}
        if self._context_name is not None:
            values[self._context_name] = context
        function: Callable[..., Any] = self._function
        if self._asynchronous:
            return await function(**values)
        result = await asyncio.to_thread(function, **values)
        return await result if inspect.isawaitable(result) else result

    async def start(self) -> None:
        """Nothing to start."""

    async def aclose(self) -> None:
        """Nothing to end."""


@overload
def server_tool(function: Callable[P, R], /) -> ServerTool[P, R]: ...


@overload
def server_tool(
    *,
    name: str | None = None,
    description: str | None = None,
    timeout_seconds: float | None = None,
    most_characters: int = 100_000,
    models: Collection[str] | None = None,
) -> Callable[[Callable[P, R]], ServerTool[P, R]]: ...


def server_tool(function: Callable[..., Any] | None = None, /, **settings: Any) -> Any:
    """Make a function a server tool. Use it bare, or with settings: `@server_tool(timeout_seconds=5)`.

    The settings are those of `ServerTool`.
    """
    if function is not None:
        return ServerTool(function)
    return lambda wrapped: ServerTool(wrapped, **settings)


def _arguments_of(function: Callable[..., Any], name: str) -> tuple[str | None, type[msgspec.Struct]]:
    """The name of the context parameter, and a Struct of all the others."""
    target = inspect.unwrap(function)
    try:
        hints = typing.get_type_hints(target, include_extras=True)
    except NameError as wrong:
        raise TypeError(f"{name}: an annotation cannot be read: {wrong}") from wrong
    texts = {one.arg_name: one.description for one in _docstring(target).params if one.description}
    context: str | None = None
    fields: list[Any] = []
    for parameter in inspect.signature(target).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise TypeError(f"{name}: *{parameter.name} cannot be told to a model; name each argument")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise TypeError(f"{name}: {parameter.name} is positional only; arguments of tools have names")
        hint = hints.get(parameter.name, parameter.empty)
        if hint is ToolContext:
            context = parameter.name
            continue
        if hint is parameter.empty:
            raise TypeError(f"{name}: {parameter.name} has no type; write one, as {parameter.name}: str")
        if parameter.name in texts:
            hint = Annotated[hint, msgspec.Meta(description=" ".join(texts[parameter.name].split()))]
        if parameter.default is parameter.empty:
            fields.append((parameter.name, hint))
        elif isinstance(parameter.default, (list, dict, set)):
            fields.append((parameter.name, hint, msgspec.field(default_factory=_copier(parameter.default))))
        else:
            fields.append((parameter.name, hint, parameter.default))
    made = msgspec.defstruct(f"{name}_arguments", fields, kw_only=True, forbid_unknown_fields=True)
    return context, made


def _copier(value: Any) -> Callable[[], Any]:
    return lambda: type(value)(value)


def _schema(arguments: type[msgspec.Struct]) -> dict[str, Any]:
    """The JSON Schema of the arguments, an object at its top."""
    try:
        (top,), components = msgspec.json.schema_components((arguments,), ref_template="#/$defs/{name}")
    except TypeError as wrong:
        raise TypeError(f"a type of the signature has no JSON Schema: {wrong}") from wrong
    name = top["$ref"].rpartition("/")[2]
    schema = dict(components.pop(name))
    schema.pop("title", None)
    schema.setdefault("properties", {})
    if components:
        schema["$defs"] = components
    return schema


def _docstring(function: Callable[..., Any]) -> docstring_parser.Docstring:
    return docstring_parser.parse(inspect.getdoc(function) or "")


def _description(function: Callable[..., Any]) -> str:
    """The docstring without its list of arguments."""
    parsed = _docstring(function)
    parts = [part.strip() for part in (parsed.short_description, parsed.long_description) if part]
    returns = parsed.returns
    if returns is not None and returns.description:
        parts.append(f"Returns {returns.description.strip()}")
    return "\n\n".join(parts)
