"""Where the GPU time of a transformer went, why, and what to do about it.

The public names below are loaded when they are first used, so that `import warplens` costs next to nothing.

>>> import warplens
>>> trace = warplens.read("profile.sqlite")                 # doctest: +SKIP
>>> timeline = warplens.Timeline(trace)                     # doctest: +SKIP
>>> window = timeline.window("steady")                      # doctest: +SKIP
>>> timeline.kernels_in(window)                             # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from warplens._version import __version__

if TYPE_CHECKING:
    from warplens.analysis.timeline import Timeline
    from warplens.analysis.window import Window
    from warplens.collect.recording import capture, step
    from warplens.errors import UnreadableInputError, UsageError, WarplensError
    from warplens.profile import Capture, Device, Trace
    from warplens.profile.counters import KernelCounters
    from warplens.readers import read, read_counters
    from warplens.studies.policies.adaptive import AdaptiveModule

_HOME = {
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
    "capture": "warplens.collect.recording",
    "read": "warplens.readers",
    "read_counters": "warplens.readers",
    "step": "warplens.collect.recording",
}

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
    "capture",
    "read",
    "read_counters",
    "step",
]


def __getattr__(name: str) -> Any:
    try:
        module = _HOME[name]
    except KeyError:
        raise AttributeError(f"module 'warplens' has no attribute {name!r}") from None
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return __all__
