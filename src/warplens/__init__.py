"""Where the GPU time of a transformer went, why, and what to do about it.

>>> import warplens
>>> answer = warplens.diagnose("demo:deit224_bs1_baseline")      # a path, a folder, a Trace or a live torch profiler
>>> answer.verdict
'launch-overhead'
>>> warplens.kernels("demo:deit224_bs1_baseline").frame.height   # Polars frames, exact nanoseconds
38

The public names below are loaded when they are first used, so that `import warplens` costs next to nothing.
"""

from __future__ import annotations

from warplens import _start  # noqa: F401  # before all others: from here on Ctrl-C is one line

# isort: split
import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from warplens._version import __version__

if TYPE_CHECKING:
    from warplens.analysis.timeline import Timeline
    from warplens.analysis.window import Window
    from warplens.answers import (
        budget,
        compare,
        counters,
        diagnose,
        headroom,
        kernels,
        operators,
        ranges,
        ranks,
        read,
        report,
    )
    from warplens.collect.recording import capture, step
    from warplens.errors import UnreadableInputError, UsageError, WarplensError
    from warplens.profile import Capture, Device, Trace
    from warplens.profile.counters import KernelCounters
    from warplens.readers import read_counters
    from warplens.studies.policies.adaptive import AdaptiveModule

_HOME: Final = {
    "AdaptiveModule": "warplens.studies.policies.adaptive",
    "Capture": "warplens.profile",
    "Device": "warplens.profile",
    "KernelCounters": "warplens.profile.counters",
    "Timeline": "warplens.analysis.timeline",
    "Trace": "warplens.profile",
    "UnreadableInputError": "warplens.errors",
    "UsageError": "warplens.errors",
    "WarplensError": "warplens.errors",
    "Window": "warplens.analysis.window",
    "budget": "warplens.answers",
    "capture": "warplens.collect.recording",
    "counters": "warplens.answers",
    "diagnose": "warplens.answers",
    "headroom": "warplens.answers",
    "kernels": "warplens.answers",
    "operators": "warplens.answers",
    "ranges": "warplens.answers",
    "read": "warplens.answers",
    "read_counters": "warplens.readers",
    "step": "warplens.collect.recording",
}

#: Questions whose names are those of packages as well: `warplens.report(…)` asks, `warplens.report.write` is a module.
_PACKAGES_THAT_ANSWER: Final = ("compare", "ranks", "report")

__all__ = [
    "AdaptiveModule",
    "Capture",
    "Device",
    "KernelCounters",
    "Timeline",
    "Trace",
    "UnreadableInputError",
    "UsageError",
    "WarplensError",
    "Window",
    "__version__",
    "budget",
    "capture",
    "compare",
    "counters",
    "diagnose",
    "headroom",
    "kernels",
    "operators",
    "ranges",
    "ranks",
    "read",
    "read_counters",
    "report",
    "step",
]


class _Answering(ModuleType):
    """A package that can be asked: calling it calls the function of its name in `warplens.answers`."""

    def __call__(self, *given: Any, **more: Any) -> Any:
        return getattr(import_module("warplens.answers"), self.__name__.rpartition(".")[2])(*given, **more)


class _Warplens(ModuleType):
    """This package. Importing a part of it binds the part's name here, whoever imports it: the place to notice it."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _PACKAGES_THAT_ANSWER and type(value) is ModuleType:
            value.__class__ = _Answering
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Warplens


def __getattr__(name: str) -> Any:
    if name in _PACKAGES_THAT_ANSWER:
        return import_module(f"warplens.{name}")
    try:
        module = _HOME[name]
    except KeyError:
        raise AttributeError(f"module 'warplens' has no attribute {name!r}") from None
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    """The public names. `help(warplens)` and completion load them all: without PyTorch, its module is left out."""
    from importlib.util import find_spec

    return [name for name in __all__ if name != "AdaptiveModule" or find_spec("torch") is not None]
