"""The workloads by name, and the form that every one of them has.

A user's own program becomes one with `register`:

    @dataclass(frozen=True)
    class Settings:
        width: int = 256

    def prepare(cell: Settings, setting: Setting) -> Program:
        layer = torch.nn.Linear(cell.width, cell.width, device=setting.device)
        x = torch.randn(64, cell.width, device=setting.device)
        return Program(step=lambda: layer(x), items=64, unit="row")

    register(Workload("my-layer", "One linear layer.", Settings, prepare))

and is then measured like the others (`warplens.workloads.cells.run_cells`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from warplens.errors import UsageError

if TYPE_CHECKING:
    from warplens.workloads.marks import Marks
    from warplens.workloads.plan import Plan
    from warplens.workloads.ranges import Ranges

__all__ = ["WORKLOADS", "Program", "Setting", "Work", "Workload", "imported", "register", "workload"]


@dataclass(frozen=True)
class Work:
    """Arithmetic of one step, from shapes: modelled, not measured.

    One multiply-accumulate is two FLOPs. Sources that call multiply-accumulates "FLOPs" are off by that factor.

    Attributes:
        macs: multiply-accumulates of matrix products and convolutions.
        flops: floating-point operations of the same, `2 · macs`.
    """

    macs: int
    flops: int


@dataclass(frozen=True)
class Setting:
    """Where and how a workload runs, beside its own settings.

    Attributes:
        device: as PyTorch names it: `cuda`, `cuda:1`, `cpu`.
        ranges: annotations for a profiler.
        seed: of weights and inputs.
    """

    device: str
    ranges: Ranges
    seed: int = 0


@dataclass(frozen=True)
class Program:
    """A workload made ready.

    Attributes:
        step: one repetition. It enqueues GPU work and need not wait for it.
        items: what a step processes, in `unit`s: its batch.
        unit: what one of them is, in the singular (`image`, `sequence`).
        work: arithmetic of a step, where it is known.
        marks: told at the end of each phase of a step, where a step has phases.
        launch: how the step reaches the GPU: `eager`, `compiled` or `graph`.
        details: further facts about the step worth keeping, as they stand in the measurements file.
    """

    step: Callable[[], object]
    items: int
    unit: str
    work: Work | None = None
    marks: Marks | None = None
    launch: str = "eager"
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Workload:
    """A kind of program to measure.

    Attributes:
        name: unique.
        summary: one line for people.
        cell: frozen dataclass of its settings; its fields become the columns of the results.
        prepare: makes a `Program` from such settings; or its address `module:function`, imported when needed.
        run: instead of `prepare`, for a workload that measures itself: gives a cell's finished record; or its address.
    """

    name: str
    summary: str
    cell: type
    prepare: Callable[[Any, Setting], Program] | str | None = None
    run: Callable[[Any, Plan, Setting], dict[str, Any]] | str | None = None


def imported(function: Callable[..., Any] | str | None) -> Callable[..., Any] | None:
    """A function, or the one at the address `module:function`."""
    if not isinstance(function, str):
        return function
    module, _, name = function.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), name)
    return found


#: Every workload by name. Change it through `register`.
WORKLOADS: dict[str, Workload] = {}


def register(new: Workload) -> Workload:
    """Make a workload known by its name.

    Raises:
        UsageError: another one has that name.
    """
    if WORKLOADS.get(new.name, new) != new:
        raise UsageError(f"there is another workload named {new.name!r}: choose a different name")
    WORKLOADS[new.name] = new
    return new


def workload(name: str) -> Workload:
    """The workload of that name.

    Raises:
        UsageError: there is none.
    """
    from warplens.workloads import settings  # noqa: F401, PLC0415  registers our own

    if name not in WORKLOADS:
        raise UsageError(f"there is no workload {name!r}; known are {', '.join(WORKLOADS)}")
    return WORKLOADS[name]
