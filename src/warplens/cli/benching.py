"""What `warplens bench` asks for: texts of options become settings, cells and a plan; and the run over the cells."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

from warplens.errors import UsageError
from warplens.workloads.needs import torch_or_advice
from warplens.workloads.plan import Plan
from warplens.workloads.registry import workload as workload_named
from warplens.workloads.settingtexts import setting_value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

__all__ = ["REPETITIONS_PER_TURN", "Asked", "axes_of", "command_line", "make_plan", "measure_all", "range_names"]

_SECOND_NS: Final = 10**9

#: Repetitions of a cell in each of its turns, unless the user says otherwise.
REPETITIONS_PER_TURN: Final = 4

#: Time before the first step that counts, where the user fixes no number of steps: see `Plan.warmup_ns`.
_WARMUP_NS: Final = 100_000_000


@dataclass(frozen=True)
class Asked:
    """What to measure and how.

    Attributes:
        workload: its name.
        axes: values of each setting that was given.
        plan: how often to repeat.
        device: as PyTorch names it; None for the GPU if there is one.
        ranges: whether to annotate for a profiler.
        range_names: other names of ranges.
        rounds: measure the cells in turns, so many; None for one cell after the other.
        command: that asks for the same.
    """

    workload: str
    axes: Mapping[str, Sequence[Any]]
    plan: Plan
    device: str | None = None
    ranges: bool = False
    range_names: Mapping[str, str] = field(default_factory=dict)
    rounds: int | None = None
    command: str | None = None


def axes_of(workload: str, given: Mapping[str, str | None]) -> dict[str, list[Any]]:
    """The values of each setting, from texts of options; those not given are left out.

    Raises:
        UsageError: an option of another workload, or a value that cannot be read.
    """
    settings = fields(workload_named(workload).cell)
    known = {item.name for item in settings}
    if strange := [name for name, text in given.items() if text is not None and name not in known]:
        raise UsageError(f"--{strange[0].replace('_', '-')} is no option of bench {workload}")
    axes: dict[str, list[Any]] = {}
    for item in settings:  # in their order, so that the grid's does not depend on that of the options
        name, text = item.name, given.get(item.name)
        if text is None:
            continue
        option = f"--{name.replace('_', '-')}"
        values = [setting_value(option, word.strip(), item.default) for word in text.split(",")]
        if len(set(values)) < len(values):
            raise UsageError(f"{option} names something twice: {text}")
        axes[name] = values
    return axes


def range_names(given: Sequence[str]) -> dict[str, str]:
    """Other names of ranges, from texts `what=name`.

    Raises:
        UsageError: a text of another form.
    """
    names = {}
    for text in given:
        what, equals, name = text.partition("=")
        if not (what and equals and name):
            raise UsageError(f"--range-name takes WHAT=NAME, such as softmax=my_softmax, not {text!r}")
        names[what] = name
    return names


def make_plan(
    warmup: int, repetitions: int | None, interval: float, seconds: float, flush_l2: bool, rounds: int | None
) -> Plan:
    """The plan that the options describe; in turns, the repetitions are those of a turn.

    Raises:
        UsageError: the cache is to be flushed in turns.
    """
    if rounds is not None and flush_l2:
        raise UsageError(
            "--flush-l2 and --rounds exclude one another: between turns other cells fill the caches anyway"
        )
    if rounds is not None:
        repetitions = repetitions or REPETITIONS_PER_TURN
    if repetitions is not None:
        return Plan(
            warmup_steps=warmup, warmup_ns=0, least=repetitions, most=repetitions, fewest=repetitions, precision=0,
            flush_l2=flush_l2,
        )  # fmt: skip
    return Plan(
        warmup_steps=warmup, warmup_ns=_WARMUP_NS, precision=interval, most_ns=round(seconds * _SECOND_NS),
        flush_l2=flush_l2,
    )  # fmt: skip


def command_line(
    workload: str,
    given: Mapping[str, str | None],
    warmup: int,
    repetitions: int | None,
    interval: float,
    seconds: float,
    flush_l2: bool,
    rounds: int | None,
) -> str:
    """The command that asks for the same measurements, without the files that it writes."""
    words = ["warplens", "bench", workload]
    for name, text in given.items():
        words += [f"--{name.replace('_', '-')}", text] if text is not None else []
    words += ["--warmup", str(warmup)]
    if rounds is not None:
        words += ["--rounds", str(rounds)]
    if repetitions is not None:
        words += ["--repetitions", str(repetitions)]
    elif rounds is None:
        words += ["--interval", f"{interval:g}", "--seconds", f"{seconds:g}"]
    return shlex.join(words + (["--flush-l2"] if flush_l2 else []))


def measure_all(asked: Asked, output: Path | None, tell: Callable[[str], None]) -> dict[str, Any]:
    """Measure every cell; the file is written anew after each, so that an interruption loses one cell at most.

    In turns, all cells are done at the same time, and the file is written then.

    Args:
        asked: what to measure.
        output: the measurements file; None for none.
        tell: is told what is being done.

    Returns:
        The measurements file's content.
    """
    from warplens.workloads.cells import cell_grid, default_device, run_cells, run_cells_in_turns  # noqa: PLC0415
    from warplens.workloads.files import document, write_measurements  # noqa: PLC0415
    from warplens.workloads.ranges import Ranges  # noqa: PLC0415

    cells, impossible = cell_grid(workload_named(asked.workload).cell, asked.axes)
    ranges, device = Ranges(asked.ranges, asked.range_names), asked.device or default_device()
    torch_or_advice()
    from warplens.workloads.environment import environment  # noqa: PLC0415  imports PyTorch

    records: list[dict[str, Any]] = []
    content: dict[str, Any]
    if asked.rounds is not None:
        tell(f"measuring {len(cells)} cells in turns")
        records = run_cells_in_turns(
            asked.workload, cells, rounds=asked.rounds, per_round=asked.plan.most, plan=asked.plan, device=device,
            ranges=ranges,
        )  # fmt: skip
        content = document(asked.workload, asked.plan, environment(device), [*records, *impossible], asked.command)
        if output is not None:
            write_measurements(output, content)
        return content
    content = {}
    facts: dict[str, Any] = {}
    tell(f"measuring cell 1 of {len(cells)}")
    for number, record in enumerate(run_cells(asked.workload, cells, plan=asked.plan, device=device, ranges=ranges), 1):
        facts = facts or environment(device)
        records.append(record)
        content = document(asked.workload, asked.plan, facts, [*records, *impossible], asked.command)
        if output is not None:
            write_measurements(output, content)
        tell(f"measuring cell {min(number + 1, len(cells))} of {len(cells)}")
    return content
