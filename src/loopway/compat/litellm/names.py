"""LiteLLM's import names where it is not installed, and its callback classes where it is.

This file must not know any file shape. A hook module that was written for LiteLLM imports three names; they are put
into `sys.modules`, bound to ours, and anything else that is asked of them says plainly that LiteLLM is not there.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
import types
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any

from loopway.engine.plan import AgenticLoopPlan, AgenticLoopRequestPatch
from loopway.hooks.base import HOOK_METHODS, AgenticLoopHook

if TYPE_CHECKING:
    from collections.abc import Sequence

_ROOT = "litellm"
_LOGGER = "litellm.integrations.custom_logger"
_TYPES = "litellm.types.integrations.custom_logger"
_THERE = (
    "LiteLLM is not installed; Loopway stands in for litellm.callbacks, "
    f"{_LOGGER}.CustomLogger, and {_TYPES}.AgenticLoopPlan and .AgenticLoopRequestPatch"
)


class _StandIn(types.ModuleType):
    """A module that has what hook modules import, and says so when it is asked for more."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        raise AttributeError(f"there is no {self.__name__}.{name}: {_THERE}")

    def __setattr__(self, name: str, value: object) -> None:
        if not name.startswith("__") and name not in self.__dict__:
            raise AttributeError(f"{self.__name__}.{name} would have no effect: {_THERE}")
        super().__setattr__(name, value)


class _Absent:
    """Refuses to import any other module of LiteLLM, with a sentence that says why."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: object = None) -> None:
        """Find nothing; see `importlib.abc.MetaPathFinder`."""
        del path, target
        if name.startswith(f"{_ROOT}.") and stands_in():
            raise ImportError(f"there is no {name}: {_THERE}", name=name)


def stands_in() -> bool:
    """Whether `litellm` is our stand-in."""
    return isinstance(sys.modules.get(_ROOT), _StandIn)


def installed() -> bool:
    """Whether LiteLLM itself can be imported. A folder of that name, without code, is not it."""
    if _ROOT in sys.modules:
        return not stands_in()
    spec = importlib.util.find_spec(_ROOT)
    return spec is not None and spec.origin is not None


def install_import_names() -> None:
    """Put the names into `sys.modules`, unless LiteLLM is installed. A second call changes nothing."""
    if installed() or stands_in():
        return
    members: dict[str, dict[str, object]] = {
        _ROOT: {"callbacks": []},
        "litellm.integrations": {},
        _LOGGER: {"CustomLogger": AgenticLoopHook},
        "litellm.types": {},
        "litellm.types.integrations": {},
        _TYPES: {"AgenticLoopPlan": AgenticLoopPlan, "AgenticLoopRequestPatch": AgenticLoopRequestPatch},
    }
    for name, own in members.items():
        module = _StandIn(name, _THERE)
        package = name not in (_LOGGER, _TYPES)
        module.__spec__ = ModuleSpec(name, None, origin="loopway", is_package=package)
        module.__package__ = name if package else name.rpartition(".")[0]
        if package:
            module.__path__ = []
        module.__dict__.update(own)
        sys.modules[name] = module
        above, _, last = name.rpartition(".")
        if above:
            sys.modules[above].__dict__[last] = module
    if _Absent not in sys.meta_path:
        sys.meta_path.insert(0, _Absent)


def callbacks_in_code() -> list[object]:
    """What code has put into `litellm.callbacks`, ours or the real one; nothing if nobody imported it.

    Texts are left out where the real LiteLLM is installed: there they name its own loggers.
    """
    module = sys.modules.get(_ROOT)
    if module is None:
        return []
    found = getattr(module, "callbacks", None)
    if found is None:
        return []
    listed = list(found) if isinstance(found, (list, tuple)) else [found]
    return listed if stands_in() else [item for item in listed if not isinstance(item, str)]


class _TheirPlan(AgenticLoopPlan, kw_only=True):
    """A plan of the real LiteLLM's, as ours; its author gets back what he made."""

    original: Any = None


def adapted(instance: object) -> object:
    """A hook of ours that forwards to an instance of the real LiteLLM's `CustomLogger`; anything else as it is.

    Only methods that the instance's class overrides are there, so that refusals and defaults stay as they are.
    """
    base = getattr(sys.modules.get(_LOGGER), "CustomLogger", None)
    if stands_in() or not isinstance(base, type) or not isinstance(instance, base):
        return instance
    if isinstance(instance, AgenticLoopHook):
        return instance
    members: dict[str, Any] = {}
    for method in HOOK_METHODS:
        if getattr(type(instance), method, None) is getattr(base, method, None):
            continue
        bound = getattr(instance, method)
        members[method] = _forward(bound) if inspect.iscoroutinefunction(bound) else staticmethod(bound)
    names = getattr(instance, "server_fulfilled_tool_names", None)
    if names is not None:
        members["server_fulfilled_tool_names"] = names
    kind = type(instance)
    members["__module__"] = kind.__module__
    members["__doc__"] = kind.__doc__
    return type(kind.__name__, (AgenticLoopHook,), members)()


def _forward(bound: Any) -> Any:
    async def forward(_self: AgenticLoopHook, **given: Any) -> Any:
        plan = given.get("plan")
        if isinstance(plan, _TheirPlan):
            given["plan"] = plan.original
        return _ours(await bound(**given))

    return forward


def _ours(value: object) -> Any:
    """LiteLLM's plan as ours; whether it can be carried out is for `engine.plan` to say. Anything else as it is."""
    module = sys.modules.get(_TYPES)
    plan_type = getattr(module, "AgenticLoopPlan", None)
    if not isinstance(plan_type, type) or not isinstance(value, plan_type) or isinstance(value, AgenticLoopPlan):
        return value
    return _TheirPlan(original=value, **_copied(value, AgenticLoopPlan, module))


def _copied(value: object, ours: type, module: object) -> dict[str, Any]:
    made = {name: getattr(value, name) for name in ours.__struct_fields__ if hasattr(value, name)}  # type: ignore[attr-defined]
    patch_type = getattr(module, "AgenticLoopRequestPatch", None)
    patch = made.get("request_patch")
    if isinstance(patch_type, type) and isinstance(patch, patch_type):
        made["request_patch"] = AgenticLoopRequestPatch(**_copied(patch, AgenticLoopRequestPatch, module))
    return made
