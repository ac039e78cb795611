"""Several machines of one run, each a rank, whose collectives begin when all have come and end together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

from tests.analysis.builders import kernel, trace
from tests.diagnosis.machine import BETWEEN_NS, H200, NCCL, START_NS, US, Machine
from warplens.analysis.ranks.summary import rank_windows, summary_of
from warplens.analysis.timeline import Timeline
from warplens.diagnosis import DEFAULTS, Finding
from warplens.diagnosis.facts import gather
from warplens.diagnosis.rules.ranks import RanksRule
from warplens.diagnosis.run import Run, rank_facts, run_of_ranks
from warplens.profile import Trace

SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


@dataclass
class Fleet:
    """The machines, by rank."""

    size: int = 2
    machines: list[Machine] = field(init=False)
    beside: int = 0  #: end of the last collective that ran beside compute

    def __post_init__(self) -> None:
        self.machines = [Machine() for _ in range(self.size)]

    def meet(
        self,
        transfer: int,
        name: str = NCCL,
        members: Sequence[int] | None = None,
        times: int = 1,
        *,
        overlaps: bool = False,
    ) -> None:
        """A collective: each rank's kernel waits for the last one, and all end together.

        One that overlaps waits for the work before it and for others of its kind; `join` waits for it.
        """
        for _ in range(times):
            started = []
            for rank in members or range(self.size):
                machine = self.machines[rank]
                machine._issue("cudaLaunchKernelExC")
                ready = max(machine.gpu, self.beside if overlaps else 0)
                started.append((machine, max(ready + BETWEEN_NS, machine.host + START_NS)))
            end = max(start for _, start in started) + transfer
            for machine, start in started:
                short = name.partition("(")[0]
                row = kernel(start, end, short, stream=20, correlation=machine.count, full_name=name)
                machine.kernels.append(row)
                machine.gpu = machine.gpu if overlaps else end
            self.beside = end if overlaps else self.beside

    def join(self) -> None:
        """Further work waits for the collectives that overlap."""
        for machine in self.machines:
            machine.gpu = max(machine.gpu, self.beside)

    @contextmanager
    def step(self) -> Iterator[None]:
        """One repetition, in a range on each rank."""
        with ExitStack() as stack:
            for machine in self.machines:
                stack.enter_context(machine.step())
            yield

    def run(self, step: Callable[[Fleet], None], steps: int = 6) -> Fleet:
        """Some repetitions."""
        for _ in range(steps):
            with self.step():
                step(self)
        return self

    def one_file(self) -> Trace:
        """All ranks in one profile: a process and a GPU each."""
        rows: dict[str, list[dict[str, object]]] = {"kernels": [], "calls": [], "ranges": []}
        for rank, machine in enumerate(self.machines):
            for name, found in rows.items():
                place = {"process": rank + 1} | ({"device": rank} if name == "kernels" else {})
                found += [{**row, **place} for row in getattr(machine, name)]
        made = trace(
            sorted(rows["kernels"], key=lambda row: row["start_ns"]),  # type: ignore[arg-type,return-value]
            sorted(rows["calls"], key=lambda row: row["start_ns"]),  # type: ignore[arg-type,return-value]
            sorted(rows["ranges"], key=lambda row: (row["process"], row["start_ns"], -row["end_ns"])),  # type: ignore[operator]
            copies=[],
            memsets=[],
            graph_launches=[],
        )
        devices = tuple(replace(H200, ordinal=rank) for rank in range(self.size))
        return replace(made, capture=replace(made.capture, devices=devices))

    def files(self) -> list[Trace]:
        """A profile a rank."""
        traces = []
        for rank, machine in enumerate(self.machines):
            made = machine.trace()
            capture = replace(made.capture, source=f"rank{rank}.json", rank=rank, world_size=self.size, epoch_ns=0)
            traces.append(replace(made, capture=capture))
        return traces


def run_of_files(traces: Sequence[Trace]) -> Run:
    """The run of a profile a rank."""
    windows = [rank_windows(Timeline(each))[0] for each in traces]
    facts = [rank_facts(gather(each.timeline, each.window)) for each in windows]
    return run_of_ranks([*map(summary_of, windows)], facts.__getitem__, range(len(windows)))


def found_across(rule: RanksRule, fleet: Fleet) -> Finding | None:
    """What a rule finds in the files of a fleet."""
    return rule.across(run_of_files(fleet.files()), DEFAULTS)


__all__ = ["SEND_RECV", "US", "Fleet", "found_across", "run_of_files"]
