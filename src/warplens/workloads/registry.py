"""The registry of workloads and their interface, plans of measurements, annotations, and measurements files."""

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
    """A measurements file as a dictionary, with the description of the machine and the records of `workloads.cells`.

    The command, without folders, repeats the measurement; `head` has further keys.
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
    """Write the content of a `document`, one cell per line, replacing an existing file atomically."""
    head = {name: value for name, value in content.items() if name != "measurements"}
    lines = [f" {json_text(name)}: {json_text(value)}," for name, value in head.items()]
    records = ",\n".join(f"  {json_text(record)}" for record in content["measurements"])
    text = "{\n" + "\n".join(lines) + f'\n "measurements": [\n{records}\n ]\n}}\n'
    write_whole(path, text)


def json_text(value: Any) -> str:
    """A value as one line of JSON."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


# --- The registry and the interface of workloads ---------------------------------------------------------------------
# A user's own program becomes a workload with `register`:
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
    """Arithmetic of one step, modelled from shapes.

    One multiply-accumulate is two FLOPs; some sources call multiply-accumulates "FLOPs".
    """

    macs: int  #: multiply-accumulates of matrix products and convolutions
    flops: int  #: floating-point operations of the same, `2 · macs`


@dataclass(frozen=True)
class Setting:
    """How a workload runs, apart from its own settings."""

    device: str  #: PyTorch name: `cuda`, `cuda:1`, `cpu`
    ranges: Ranges  #: annotations for a profiler
    seed: int = 0  #: of weights and inputs


@dataclass(frozen=True)
class Program:
    """A workload that is ready to run."""

    step: Callable[[], object]  #: one repetition; it enqueues GPU work and need not wait for it
    items: int  #: number of `unit`s that a step processes: its batch
    unit: str  #: name of one item, in the singular (`image`, `sequence`)
    work: Work | None = None  #: arithmetic of a step, where known
    marks: Marks | None = None  #: to which the step reports the ends of its phases, if it has phases
    launch: str = "eager"  #: how the step reaches the GPU: `eager`, `compile` or `graph`
    #: further fields of the step in the measurements file
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Workload:
    """A kind of program to measure."""

    name: str  #: unique
    summary: str  #: one line for people
    cell: type  #: frozen dataclass of its settings; its fields become the columns of the results
    #: function from settings to a `Program`; or its address `module:function`, imported when needed
    prepare: Callable[[Any, Setting], Program] | str | None = None
    #: instead of `prepare`, for a workload that measures itself: function to a cell's finished record; or its address
    run: Callable[[Any, Plan, Setting], dict[str, Any]] | str | None = None


def imported(function: Callable[..., Any] | str | None) -> Callable[..., Any] | None:
    """The function itself, or that at the address `module:function`."""
    if not isinstance(function, str):
        return function
    module, _, name = function.partition(":")
    target: Callable[..., Any] = getattr(import_module(module), name)
    return target


#: Every workload by name. Change it through `register`.
WORKLOADS: dict[str, Workload] = {}


def register(new: Workload) -> Workload:
    """Add a workload to the registry.

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
    import_module("warplens.workloads.settings")  # registers the reference workloads

    if name not in WORKLOADS:
        raise UsageError(f"there is no workload {name!r}; known are {', '.join(WORKLOADS)}")
    return WORKLOADS[name]


@dataclass(frozen=True)
class Plan:
    """Number of repetitions and stopping rule of a measurement.

    A measurement ends when the confidence interval of the median is narrow enough, when there are `most` repetitions,
    or when the time is up, but not before the `least` number (the `fewest`, if the time is up).

    Raises:
        UsageError: inconsistent numbers.
    """

    warmup_steps: int = 5  #: least number of warm-up steps …
    #: … and their least time, since a GPU takes tens of milliseconds to raise its clocks from idle
    warmup_ns: int = 100_000_000
    least: int = 30  #: repetitions before the interval is examined
    most: int = 300  #: most repetitions
    #: least repetitions if the time is up; six is the smallest number with a 95 % interval of the median
    fewest: int = 6
    precision: float = 0.02  #: sufficient half width of the interval, as a share of the median
    confidence: float = 0.95  #: of the interval, 0 to 1
    most_ns: int = 60_000_000_000  #: time limit of the repetitions; the last one is finished
    flush_l2: bool = False  #: whether to overwrite the GPU's L2 cache before each repetition

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
        """A fixed number of repetitions after a fixed warm-up, as needed under a profiler."""
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


#: Key of an annotation → default name of its range. `{index}` is the layer's number.
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

_NOTHING: Final = nullcontext()


class Ranges:
    """Opens profiler ranges by the keys of `RANGE_NAMES`; when off, a call does nothing.

    Args:
        on: whether to annotate.
        names: other names for some of the keys.

    Raises:
        UsageError: an unknown key.
    """

    def __init__(self, on: bool = False, names: Mapping[str, str] | None = None) -> None:
        if unknown := sorted(set(names or {}) - set(RANGE_NAMES)):
            raise UsageError(f"no range is called {', '.join(unknown)}; known are {', '.join(RANGE_NAMES)}")
        self.on = on
        self.names = {**RANGE_NAMES, **(names or {})}

    def __call__(self, key: str, index: int | None = None) -> AbstractContextManager[None]:
        """Context of a range; it is closed also if the block raises."""
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
        """Context of the steady steps, which a profiler with `--capture-range=cudaProfilerApi` records."""
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
