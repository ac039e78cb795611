"""The window: the part of a profile that numbers refer to, its steps, and the meaning of range names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import polars as pl

from warplens.errors import UsageError
from warplens.patterns import lazy_pattern
from warplens.profile.schema import Bools, Int64s, name_labels, once_per_dictionary

_UNITS_NS = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000, "": 1}
_TIME = lazy_pattern(r"^\s*(?P<number>[+-]?\d+(?:\.\d+)?)\s*(?P<unit>ns|us|µs|ms|s|)\s*$")


@dataclass(frozen=True)
class Step:
    """One repetition of the workload. `index` counts from 1 over all steps found, including those left out."""

    index: int
    start_ns: int
    end_ns: int

    @property
    def duration_ns(self) -> int:
        """Wall time of the step."""
        return self.end_ns - self.start_ns


def edges_of(steps: Sequence[Step]) -> tuple[Int64s, Int64s, Int64s]:
    """Numbers, begins and ends of these steps; each of shape (steps,)."""
    edges = np.array([(step.index, step.start_ns, step.end_ns) for step in steps], dtype=np.int64).reshape(-1, 3)
    return edges[:, 0], edges[:, 1], edges[:, 2]


@dataclass(frozen=True)
class Window:
    """The part of the profile under analysis.

    Attributes:
        start_ns, end_ns: the half-open interval, in the profile's clock.
        kind: `steady` (repeating steps, warm-up left out), `device` (no steps were found: from the first to the last
            GPU work), `all` (everything recorded) or `explicit` (as the user asked).
        how: one sentence for people on how it was found.
        steps: the whole steps inside; empty where none were found.
        range_name: only work launched inside ranges of this name counts; None for all work.
        cut_steps: the parts of steps that the window cuts, by their time; 0.5 for half a step.
    """

    start_ns: int
    end_ns: int
    kind: str
    how: str
    steps: tuple[Step, ...] = ()
    range_name: str | None = None
    cut_steps: float = 0.0

    @property
    def step_count(self) -> float:
        """The number of steps to which the window's figures refer, with the parts of those that it cuts.

        0 where the window holds no whole step: then figures are those of the window.
        """
        return len(self.steps) + (self.cut_steps or 0) if self.steps else 0

    @property
    def duration_ns(self) -> int:
        """Length of the interval."""
        return self.end_ns - self.start_ns

    @property
    def step_edges(self) -> tuple[Int64s, Int64s, Int64s]:
        """Numbers, begins and ends of the steps; each of shape (steps,)."""
        return edges_of(self.steps)


def parse_span(text: str) -> tuple[int | None, int | None]:
    """Begin and end in nanoseconds of `START:END`, e.g. `1.5s:2s`, `250ms:`, `:3000000`; None for an open side.

    Raises:
        UsageError: the text is not of that form, or its end is not after its begin.
    """
    parts = text.split(":")
    if len(parts) != 2:
        raise UsageError(f"window {text!r} is not steady, all or START:END (for example 1.5s:2s)")
    start, end = (time_ns(part, f"window {text!r}") if part.strip() else None for part in parts)
    if start is not None and end is not None and end <= start:
        raise UsageError(f"window {text!r} {'is empty' if end == start else 'ends before it begins'}")
    return start, end


def span_text(start_ns: int, end_ns: int) -> str:
    """A window of whole microseconds that holds the span, as `parse_span` reads it: `0.000012s:0.000514s`."""
    return f"{start_ns // 1_000 / 1e6:.6f}s:{-(-end_ns // 1_000) / 1e6:.6f}s"


def time_ns(part: str, of: str) -> int:
    """Nanoseconds of a time such as `250ms` or `1.5s`; without a unit it is in nanoseconds.

    Args:
        part: the text.
        of: what it is a time of, for the error message.

    Raises:
        UsageError: the text is not a time.
    """
    match = _TIME.match(part)
    if match is None:
        raise UsageError(f"{of}: {part!r} is not a time (use ns, us, ms or s, for example 250ms)")
    integer_part, _, fraction = match["number"].partition(".")
    unit = _UNITS_NS[match["unit"]]
    sign = -1 if integer_part.startswith("-") else 1
    # Decimal digits are scaled as integers: 0.1 s must be 100,000,000 ns exactly.
    return int(integer_part) * unit + sign * (int(fraction) * unit // 10 ** len(fraction) if fraction else 0)


#: Phases in the order of a training step.
PHASES: Final = ("forward", "backward", "optimizer")

#: Label of work that belongs to none of them.
NO_PHASE: Final = "none"

#: Name prefix of the operators in which autograd's engine runs each node of the backward graph.
AUTOGRAD_ENGINE: Final = "autograd::engine::evaluate_function"

_WORDS = {
    "forward": lazy_pattern(r"(?<![a-z])(forward|fwd)(?![a-z])", re.IGNORECASE),
    "backward": lazy_pattern(r"(?<![a-z])(backward|bwd|backprop)(?![a-z])", re.IGNORECASE),
    "optimizer": lazy_pattern(r"(?<![a-z])(optim(izer|iser)?|adamw?|sgd|weight[\s_-]*update)(?![a-z])", re.IGNORECASE),
}

#: A layer, a skip of input, and code around a call, which are named with a word of the forward pass.
_NOT_FORWARD = lazy_pattern(r"(?<![a-z])(feed|fast)[\s-]*forward|(?<![a-z])hooks?(?![a-z])", re.IGNORECASE)

#: What every name contains that refers to a phase.
_MAY_NAME_PHASE = lazy_pattern(
    rf"forward|fwd|backward|bwd|backprop|optim|adam|sgd|weight[\s_-]*update|{AUTOGRAD_ENGINE}", re.IGNORECASE
)

#: Names that people and frameworks give to one repetition of the workload; `N` stands for a running number.
_STEP = lazy_pattern(
    r"^(profilerstep|(train(ing)?|eval(uation)?|inference|model|global|benchmark)?[\s_-]*(step|iter(ation)?|batch))s?[\s_:#-]*N?$",
    re.IGNORECASE,
)
#: What every name contains that marks a repetition.
_MAY_NAME_STEP = lazy_pattern("step|iter|batch", re.IGNORECASE)
FRAMEWORK: Final = lazy_pattern(
    r"## Call CompiledFxGraph|Torch-Compiled Region|CompiledFunction"
    r"|Optimizer\.|enumerate\(DataLoader\)#|nccl:|DistributedDataParallel\."
    r"|(?:Xla\w*|Thunk|TSL|GpuMetrics)(?::|$)"
    # Calls of NVIDIA's libraries, which annotate themselves.
    r"|(?:cub|thrust)::|cu(?:blas|dnn|sparse|solver|fft|rand)\w*$|nccl[A-Z]\w*$"
)
#: XLA's own ranges: around each program that it runs (`XlaModule:#hlo_module=jit_step,program_id=7#`), around each part
#: of one (`Thunk:#…#`), and around what it does to compile one.
_XLA = lazy_pattern(r"(?:Xla\w*|Thunk|TSL):#")
#: Kernels that PyTorch's compiler generated, as ranges.
_GENERATED = lazy_pattern(r"(?:triton|cpp)_\w*fused_")
XLA_PROGRAM: Final = lazy_pattern(r"XlaModule:#(?:[^#]*,)?hlo_module=(?P<module>[^,#]+),program_id=\d+")
_DIGITS = lazy_pattern(r"\d+")
WARMUP: Final = lazy_pattern(r"warm[\s_-]*up", re.IGNORECASE)

# PyTorch's emit_nvtx appends running numbers and shapes to operator names; they make every instance a name of its own.
_RUNNING_NUMBERS = lazy_pattern(r",\s*(?:op_id|seq|sizes|input_op_ids)\s*=.*$")
#: The number of a step or call after its name, and that of a layer within a path.
_TRAILING_NUMBER = lazy_pattern(r"[#_ :=.-]+\d+$")
_LAYER = lazy_pattern(r"\.\d+\.")

_PROFILER_STEP = lazy_pattern(r"^ProfilerStep#\d+$")

#: Cache size for names; only operators recorded with running numbers exceed it.
_NAME_CACHE_SIZE = 65_536


def generic_name(name: str) -> str:
    """The name with its numbers replaced by `N`, so that `ProfilerStep#3` and `ProfilerStep#4` are one name."""
    return _DIGITS.sub("N", name)


def generic_names(names: pl.Series) -> tuple[list[str], Int64s]:
    """The generic names of a dictionary-encoded column in order of appearance, and the number of each row's."""
    numbers: dict[str, int] = {}
    code = name_labels(names, lambda name: numbers.setdefault(generic_name(name), len(numbers)))
    return list(numbers), code


def plain_range_name(name: str) -> str:
    """The name without the running numbers that PyTorch appends.

    `emit_nvtx` numbers operators (`aten::add, op_id = 7` → `aten::add`), the profiler steps (`ProfilerStep#3` →
    `ProfilerStep#N`).
    """
    return _PROFILER_STEP.sub("ProfilerStep#N", _RUNNING_NUMBERS.sub("", name))


@lru_cache(maxsize=_NAME_CACHE_SIZE)
def unnumbered_name(name: str) -> str:
    """The name without the numbers of steps, calls and layers, which then count as one place.

    >>> [unnumbered_name(name) for name in ("ProfilerStep#4", "aten::mm, op_id = 7", "step 12", "layers.3.mlp")]
    ['ProfilerStep', 'aten::mm', 'step', 'layers.*.mlp']
    """
    return _LAYER.sub(".*.", _TRAILING_NUMBER.sub("", _RUNNING_NUMBERS.sub("", name))) or name


@once_per_dictionary
def unnumbered_names(texts: pl.Series) -> pl.Series:
    """`unnumbered_name` of each text of a dictionary."""
    return pl.Series(map(unnumbered_name, texts), dtype=pl.String)


def is_step_name(name: str) -> bool:
    """Whether a name, with numbers replaced by `N`, marks a range as one repetition of the workload."""
    return _STEP.match(name.strip()) is not None


def names_step(names: pl.Series) -> Bools:
    """Whether the name of each row marks its range as one repetition of the workload."""
    return name_labels(names, lambda name: is_step_name(generic_name(name)), _MAY_NAME_STEP) > 0


def is_framework_name(name: str) -> bool:
    """Whether a framework gave this name to a part of its own work (a compiled region, an optimizer, a loader)."""
    return FRAMEWORK.match(name) is not None


def xla_program(name: str) -> str | None:
    """The program (`jit_train_step`) whose run XLA marked with a range of this name; None for all other ranges.

    Each program that XLA compiled has a number; candidates that it tries out while compiling have none.
    """
    match = XLA_PROGRAM.match(name)
    return match["module"] if match is not None else None


def is_warmup_name(name: str) -> bool:
    """Whether a name marks a range as warm-up."""
    return WARMUP.search(name) is not None


def phase_numbers(names: pl.Series) -> Int64s:
    """The phase that the name of each row refers to: its place in `PHASES` from 1 on, 0 for none."""
    numbers = {phase: number for number, phase in enumerate((NO_PHASE, *PHASES))}
    return name_labels(names, lambda name: numbers[phase_of_name(name)], _MAY_NAME_PHASE)


def phase_of_name(name: str) -> str:
    """The phase that a range's name refers to; `none` where it names no phase, or more than one."""
    if _MAY_NAME_PHASE.search(name) is None:
        return NO_PHASE
    if name.startswith(AUTOGRAD_ENGINE):
        return "backward"  # whatever the node is called (`torch::autograd::AccumulateGrad`, `AddmmBackward0`)
    if "::" in name or _XLA.match(name) is not None or _GENERATED.match(name) is not None:
        # An operator (`flash_attn::_flash_attn_forward`), which the backward pass may call as well, or a kernel that a
        # compiler named after operators (`triton_per_fused_nll_loss_forward_3`).
        return NO_PHASE
    # Camel case and underscores separate words: `OptimizerStep`, `forward_pass`.
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).replace("_", " ")
    phases = [phase for phase, pattern in _WORDS.items() if pattern.search(spaced)]
    if "forward" in phases and _NOT_FORWARD.search(spaced) is not None:
        phases.remove("forward")
    return phases[0] if len(phases) == 1 else NO_PHASE
