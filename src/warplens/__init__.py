"""Where the GPU time of a transformer went, why, and what to do about it.

>>> import warplens
>>> answer = warplens.diagnose("demo:deit224_bs1_baseline")      # a path, a folder, a Trace or a live torch profiler
>>> answer.verdict
'launch-overhead'
>>> warplens.kernels("demo:deit224_bs1_baseline").frame.height   # Polars frames, exact nanoseconds
17

The public names below are loaded when they are first used, so that `import warplens` costs next to nothing.
"""

from __future__ import annotations

from warplens import _start  # noqa: F401  # before all others: from here on Ctrl-C is one line

# isort: split
import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from warplens._version import __version__

if TYPE_CHECKING:
    from warplens.analysis.timeline import Timeline
    from warplens.analysis.window import Window
    from warplens.answers import (
        api,
        budget,
        code,
        compare,
        copies,
        counters,
        diagnose,
        flops,
        headroom,
        kernels,
        launches,
        memory,
        operators,
        phases,
        ranges,
        ranks,
        read,
        report,
        roofline,
        steps,
    )
    from warplens.answers.results import (
        Answer,
        BudgetAnswer,
        ComparisonAnswer,
        DiagnosisAnswer,
        HeadroomAnswer,
        RanksAnswer,
        ReportAnswer,
        RunAnswer,
        TableAnswer,
    )
    from warplens.collect.recording import capture, step
    from warplens.diagnosis.findings import Finding, Remedy
    from warplens.errors import UnreadableInputError, UsageError, WarplensError
    from warplens.profile import Capture, Device, Trace
    from warplens.profile.counters import KernelCounters
    from warplens.readers import read_counters
    from warplens.studies.policies.adaptive import AdaptiveModule

_HOME: Final = {
    "AdaptiveModule": "warplens.studies.policies.adaptive",
    "Answer": "warplens.answers.results",
    "BudgetAnswer": "warplens.answers.results",
    "Capture": "warplens.profile",
    "ComparisonAnswer": "warplens.answers.results",
    "Device": "warplens.profile",
    "DiagnosisAnswer": "warplens.answers.results",
    "Finding": "warplens.diagnosis.findings",
    "HeadroomAnswer": "warplens.answers.results",
    "KernelCounters": "warplens.profile.counters",
    "RanksAnswer": "warplens.answers.results",
    "Remedy": "warplens.diagnosis.findings",
    "ReportAnswer": "warplens.answers.results",
    "RunAnswer": "warplens.answers.results",
    "TableAnswer": "warplens.answers.results",
    "Timeline": "warplens.analysis.timeline",
    "Trace": "warplens.profile",
    "UnreadableInputError": "warplens.errors",
    "UsageError": "warplens.errors",
    "WarplensError": "warplens.errors",
    "Window": "warplens.analysis.window",
    "api": "warplens.answers",
    "budget": "warplens.answers",
    "capture": "warplens.collect.recording",
    "code": "warplens.answers",
    "copies": "warplens.answers",
    "counters": "warplens.answers",
    "diagnose": "warplens.answers",
    "flops": "warplens.answers",
    "headroom": "warplens.answers",
    "kernels": "warplens.answers",
    "launches": "warplens.answers",
    "memory": "warplens.answers",
    "operators": "warplens.answers",
    "phases": "warplens.answers",
    "ranges": "warplens.answers",
    "read": "warplens.answers",
    "read_counters": "warplens.readers",
    "roofline": "warplens.answers",
    "step": "warplens.collect.recording",
    "steps": "warplens.answers",
}

#: Questions whose names are those of packages as well: `warplens.report(…)` asks, `warplens.report.write` is a module.
_PACKAGES_THAT_ANSWER: Final = ("compare", "ranks", "report")

__all__ = [
    "AdaptiveModule",
    "Answer",
    "BudgetAnswer",
    "Capture",
    "ComparisonAnswer",
    "Device",
    "DiagnosisAnswer",
    "Finding",
    "HeadroomAnswer",
    "KernelCounters",
    "RanksAnswer",
    "Remedy",
    "ReportAnswer",
    "RunAnswer",
    "TableAnswer",
    "Timeline",
    "Trace",
    "UnreadableInputError",
    "UsageError",
    "WarplensError",
    "Window",
    "__version__",
    "api",
    "budget",
    "capture",
    "code",
    "compare",
    "copies",
    "counters",
    "diagnose",
    "flops",
    "headroom",
    "kernels",
    "launches",
    "memory",
    "operators",
    "phases",
    "ranges",
    "ranks",
    "read",
    "read_counters",
    "report",
    "roofline",
    "step",
    "steps",
]


class _Answering(ModuleType):
    """A package that can be asked: calling it calls the function of its name in `warplens.answers`."""

    def __call__(self, *given: Any, **more: Any) -> Any:
        return _function(self)(*given, **more)


def _function(package: ModuleType) -> Callable[..., Any]:
    """The function that a package calls."""
    function: Callable[..., Any] = getattr(import_module("warplens.answers"), package.__name__.rpartition(".")[2])
    return function


def _signature(package: ModuleType) -> Any:
    from inspect import signature

    return signature(_function(package))


# Set here, since `__doc__` in a class statement is the text of the class. Help and `inspect` show the function.
_Answering.__doc__ = property(lambda package: _function(package).__doc__)  # type: ignore[assignment]
_Answering.__signature__ = property(_signature)  # type: ignore[attr-defined]


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
