"""The workloads by name, the form of every one of them, its annotations, and the files that measurements become."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from warplens._version import __version__
from warplens.errors import UsageError
from warplens.writing import write_whole

if TYPE_CHECKING:
    from pathlib import Path

    from warplens.workloads.measurement import Marks


SCHEMA: Final = "warplens.measurements/1"


def document(
    workload: str,
    plan: Plan,
    environment: Mapping[str, Any],
    measurements: Sequence[Mapping[str, Any]],
    command: str | None = None,
    head: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A measurements file as a dictionary.

    Args:
        workload: its name in the registry.
        plan: how it was measured.
        environment: what with (`warplens.workloads.cells.environment`).
        measurements: the cells' records, from `run_cells`.
        command: that makes the same again; without folders.
        head: further keys.
    """
    return {
        "schema": SCHEMA,
        "version": __version__,
        "workload": workload,
        "command": command,
        "environment": dict(environment),
        "plan": asdict(plan),
        **(head or {}),
        "measurements": [dict(record) for record in measurements],
    }


def write_measurements(path: Path, content: Mapping[str, Any]) -> None:
    """Write a measurements file, one cell a line; a file that is there is replaced in one go.

    Args:
        path: the file.
        content: from `document`.
    """
    head = {name: value for name, value in content.items() if name != "measurements"}
    lines = [f" {_text(name)}: {_text(value)}," for name, value in head.items()]
    records = ",\n".join(f"  {_text(record)}" for record in content["measurements"])
    text = "{\n" + "\n".join(lines) + f'\n "measurements": [\n{records}\n ]\n}}\n'
    write_whole(path, text)


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


# --- The workloads by name, and the form that every one of them has --------------------------------------------------
# A user's own program becomes one with `register`:
#
#     @dataclass(frozen=True)
#     class Settings:
#         width: int = 256
#
#     def prepare(cell: Settings, setting: Setting) -> Program:
#         layer = torch.nn.Linear(cell.width, cell.width, device=setting.device)
#         x = torch.randn(64, cell.width, device=setting.device)
#         return Program(step=lambda: layer(x), items=64, unit="row")
#
#     register(Workload("my-layer", "One linear layer.", Settings, prepare))
#
# and is then measured like the others (`warplens.workloads.cells.run_cells`).


@dataclass(frozen=True)
class Work:
    """Arithmetic of one step, from shapes: modelled, not measured.

    One multiply-accumulate is two FLOPs. Sources that call multiply-accumulates "FLOPs" are off by that factor.
    """

    macs: int  #: multiply-accumulates of matrix products and convolutions
    flops: int  #: floating-point operations of the same, `2 · macs`


@dataclass(frozen=True)
class Setting:
    """Where and how a workload runs, beside its own settings."""

    device: str  #: as PyTorch names it: `cuda`, `cuda:1`, `cpu`
    ranges: Ranges  #: annotations for a profiler
    seed: int = 0  #: of weights and inputs


@dataclass(frozen=True)
class Program:
    """A workload made ready."""

    step: Callable[[], object]  #: one repetition. It enqueues GPU work and need not wait for it.
    items: int  #: what a step processes, in `unit`s: its batch
    unit: str  #: what one of them is, in the singular (`image`, `sequence`)
    work: Work | None = None  #: arithmetic of a step, where it is known
    marks: Marks | None = None  #: told at the end of each phase of a step, where a step has phases
    launch: str = "eager"  #: how the step reaches the GPU: `eager`, `compiled` or `graph`
    #: further facts about the step worth keeping, as they stand in the measurements file
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Workload:
    """A kind of program to measure."""

    name: str  #: unique
    summary: str  #: one line for people
    cell: type  #: frozen dataclass of its settings; its fields become the columns of the results
    #: makes a `Program` from such settings; or its address `module:function`, imported when needed
    prepare: Callable[[Any, Setting], Program] | str | None = None
    #: instead of `prepare`, for a workload that measures itself: gives a cell's finished record; or its address
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
    import_module("warplens.workloads.settings")  # registers our own

    if name not in WORKLOADS:
        raise UsageError(f"there is no workload {name!r}; known are {', '.join(WORKLOADS)}")
    return WORKLOADS[name]


@dataclass(frozen=True)
class Plan:
    """When to stop measuring.

    A measurement ends when the confidence interval of the median is narrow enough, when there are `most` repetitions,
    or when the time is up, but not before the `least` number (the `fewest`, if the time is up).

    Raises:
        UsageError: numbers that contradict one another.
    """

    warmup_steps: int = 5  #: at least so many steps before the first that counts …
    #: … and at least so long, for a GPU takes tens of milliseconds to raise its clocks from idle
    warmup_ns: int = 100_000_000
    least: int = 30  #: repetitions before the interval is looked at
    most: int = 300  #: repetitions at most
    #: repetitions also if the time is up; six is the smallest number with a 95 % interval of the median
    fewest: int = 6
    precision: float = 0.02  #: half the interval's width, as a share of the median, that is narrow enough
    confidence: float = 0.95  #: of the interval, 0 to 1
    most_ns: int = 60_000_000_000  #: time for the repetitions; the one that runs out of it is finished
    flush_l2: bool = False  #: whether to overwrite the GPU's L2 cache before each repetition, so that no input is in it

    def __post_init__(self) -> None:
        if self.warmup_steps < 0 or self.warmup_ns < 0:
            raise UsageError("the warm-up cannot be negative")
        if not 1 <= self.fewest <= self.least <= self.most:
            raise UsageError(
                f"repetitions must be in the order 1 ≤ fewest ≤ least ≤ most, and are {self.fewest}, {self.least}, "
                f"{self.most}"
            )
        if not 0 < self.confidence < 1 or self.precision < 0:
            raise UsageError("a confidence lies between 0 and 1, and a precision is not negative")

    @classmethod
    def exactly(cls, repetitions: int, warmup_steps: int = 5) -> Plan:
        """A fixed number of repetitions after a fixed warm-up, as a profiler wants it."""
        return cls(
            warmup_steps=warmup_steps, warmup_ns=0, least=repetitions, most=repetitions, fewest=repetitions, precision=0
        )


def torch_or_advice() -> Any:
    """The module `torch`.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise UsageError(
            'workloads need PyTorch, which is not installed: pip install "warplens[gpu]", or install PyTorch as '
            "pytorch.org says for your CUDA version"
        ) from error
    return torch


#: What is annotated, and the name it bears unless another is given. `{index}` is the layer's number.
RANGE_NAMES: Final = {
    "warmup": "warmup",
    "step": "step",
    "forward_pass": "forward_pass",
    "backward_pass": "backward_pass",
    "optimizer_step": "optimizer_step",
    "layer": "layer_{index}",
    "self_attention": "self_attention",
    "feed_forward": "feed_forward",
    "lm_head": "lm_head",
    "loss": "loss",
    "attention": "scaled_dot_product_attention",
    "scores": "computing_attention_scores",
    "softmax": "computing_softmax",
    "values": "final_matmul",
    "patch_embedding": "patch_embedding",
    "block": "block_{index}",
    "block_attention": "attention",
    "token_reduction": "token_reduction",
    "mlp": "mlp",
    "classifier": "classifier",
}

#: The same with blanks, as the assignment's hand-out writes them.
SPACED_NAMES: Final = {key: name.replace("_", " ") for key, name in RANGE_NAMES.items()}

_NOTHING: Final = nullcontext()


class Ranges:
    """Opens ranges by what they annotate; off by default, and then it costs a call that does nothing.

    Args:
        on: whether to annotate.
        names: other names for some of `RANGE_NAMES`' keys.

    Raises:
        UsageError: a key that nothing is annotated with.
    """

    def __init__(self, on: bool = False, names: Mapping[str, str] | None = None) -> None:
        if unknown := sorted(set(names or {}) - set(RANGE_NAMES)):
            raise UsageError(f"no range is called {', '.join(unknown)}; known are {', '.join(RANGE_NAMES)}")
        self.on = on
        self.names = {**RANGE_NAMES, **(names or {})}

    def __call__(self, key: str, index: int | None = None) -> AbstractContextManager[None]:
        """The range round a block of code; closed also when the block raises."""
        return self._open(self.names[key].format(index=index)) if self.on else _NOTHING

    @contextmanager
    def _open(self, name: str) -> Iterator[None]:
        import torch

        cuda = torch.cuda.is_available()
        with torch.profiler.record_function(name):
            if cuda:
                torch.cuda.nvtx.range_push(name)
            try:
                yield
            finally:
                if cuda:
                    torch.cuda.nvtx.range_pop()

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """The part of the run that a profiler with `--capture-range=cudaProfilerApi` records: the steady steps."""
        import torch

        if not self.on or not torch.cuda.is_available():
            yield
            return
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        try:
            yield
        finally:
            torch.cuda.synchronize()
            torch.cuda.profiler.stop()


#: No annotations.
OFF: Final = Ranges()
