"""The Python interface: one function per question, which takes a profile and returns a typed answer.

A profile is a path, a folder, `demo:NAME`, a `Trace`, a `Timeline`, or a `torch.profiler.profile` after its `with`
block; anything else raises at the call (`inputs`). An answer (`results`) is immutable, has `.frame`, `.to_dict()` and
`.save()`, and displays itself in a notebook.

The command line uses the same functions. Each module holds the functions of one topic, and is loaded when one of them
is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from warplens.answers.comparing import compare, comparison_answer
    from warplens.answers.diagnosing import diagnose, diagnose_selection, ranks, ranks_answer, run_answer
    from warplens.answers.documents import report
    from warplens.answers.inputs import read
    from warplens.answers.tables import (
        api,
        budget,
        code,
        copies,
        counters,
        flops,
        headroom,
        headroom_selection,
        kernels,
        launches,
        memory,
        operators,
        phases,
        ranges,
        roofline,
        steps,
    )

_HOME: Final = {
    "api": "tables",
    "budget": "tables",
    "code": "tables",
    "compare": "comparing",
    "comparison_answer": "comparing",
    "copies": "tables",
    "counters": "tables",
    "diagnose": "diagnosing",
    "diagnose_selection": "diagnosing",
    "flops": "tables",
    "headroom": "tables",
    "headroom_selection": "tables",
    "kernels": "tables",
    "launches": "tables",
    "memory": "tables",
    "operators": "tables",
    "phases": "tables",
    "ranges": "tables",
    "ranks": "diagnosing",
    "ranks_answer": "diagnosing",
    "read": "inputs",
    "report": "documents",
    "roofline": "tables",
    "run_answer": "diagnosing",
    "steps": "tables",
}

__all__ = [
    "api",
    "budget",
    "code",
    "compare",
    "comparison_answer",
    "copies",
    "counters",
    "diagnose",
    "diagnose_selection",
    "flops",
    "headroom",
    "headroom_selection",
    "kernels",
    "launches",
    "memory",
    "operators",
    "phases",
    "ranges",
    "ranks",
    "ranks_answer",
    "read",
    "report",
    "roofline",
    "run_answer",
    "steps",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
