"""What a case of the suite is, and the list of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Step = Callable[[], object]
    Build = Callable[[str], Step]

#: The variant that has the cause in it; the others are named after their remedy.
BASELINE = "baseline"

CASES: dict[str, Case] = {}


@dataclass(frozen=True)
class Case:
    """One program of the suite.

    Attributes:
        name: the function's name.
        group: the module that it is in.
        build: makes one step of a variant: everything before the first step happens in here.
        expected: the verdict (id of a finding) that names the planted cause; "" where no verdict is asked for.
        accept: other verdicts that are right as well; `why` says why.
        healthy: nothing is planted: no critical or warning finding is right.
        second: the second cause of a mixture, which has to be among the findings.
        remedies: variants without the cause (or without one of the causes).
        captured: variants that are profiled.
        ranges: whether each step has a range ("step"), or the trace has to do without.
        steps: profiled steps.
        recorded_warmup: warm-up steps inside the profile, in ranges named "warmup".
        sync_each_step: the program waits for the GPU after each step, as one does that measures latencies.
        training: gradients are recorded.
        environment: variables of the process in the baseline; such a case gets a process of its own.
        own_process: leaves the process unfit for other cases.
        graph_trace: how nsys traces CUDA graphs: "graph" or "node".
        sources: the profilers that can record the case.
        profiler: options of torch.profiler.profile.
        planted: known sizes, by name with unit.
        why: what the format can and cannot show (the function's docstring).
    """

    name: str
    group: str
    build: Build
    expected: str
    accept: tuple[str, ...] = ()
    healthy: bool = False
    second: str = ""
    remedies: tuple[str, ...] = ()
    captured: tuple[str, ...] = (BASELINE,)
    ranges: bool = True
    steps: int = 5
    recorded_warmup: int = 0
    sync_each_step: bool = False
    training: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    own_process: bool = False
    graph_trace: str = "node"
    sources: tuple[str, ...] = ("nsys", "torch")
    profiler: Mapping[str, bool] = field(default_factory=dict)
    planted: Mapping[str, int] = field(default_factory=dict)
    why: str = ""

    def described(self) -> dict[str, Any]:
        """Everything but the code, for the driver and the index."""
        left_out = {"build"}
        values = {key: value for key, value in vars(self).items() if key not in left_out}
        return {
            key: dict(value) if key in {"environment", "profiler", "planted"} else value
            for key, value in values.items()
        }


def case(expected: str, **settings: Any) -> Callable[[Build], Build]:
    """Registers a function that builds the steps of a case; its docstring says what is planted."""

    def register(build: Build) -> Build:
        name = build.__name__
        why = " ".join((build.__doc__ or "").split())
        if name in CASES:
            raise ValueError(f"two cases are called {name}")
        group = build.__module__.rpartition(".")[2]
        CASES[name] = Case(name=name, group=group, build=build, expected=expected, why=why, **settings)
        return build

    return register
