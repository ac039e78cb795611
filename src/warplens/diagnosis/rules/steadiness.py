"""Rules for the recording itself: a GPU that gets slower, a profiler that costs too much."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import polars as pl

from warplens.analysis.kernel_names import PRODUCTS
from warplens.diagnosis.claims import Claims
from warplens.diagnosis.facts import Facts
from warplens.diagnosis.findings import Finding, Remedy
from warplens.diagnosis.rule import GPU_BUSY_SHARE, Limit, Rule, remembered
from warplens.diagnosis.rules.generation import growing_passes
from warplens.diagnosis.structure import (
    StructureRule,
)
from warplens.profile.schema import Float64s, Int64s


class SlowingGpu(StructureRule):
    """The same kernels take longer in later steps."""

    id = "slowing-gpu"
    question = "Do the same kernels take longer from step to step?"
    limiter = "a GPU whose clock falls"
    cause = "clocks: the same kernels take longer in later steps"
    raised_when = "products of the same name and grid take 8 % longer in the last third of the steps than in the first"
    claimed = "time beyond that of the first steps"
    headline = "The GPU gets slower: {share} of the time is extra time of kernels that were faster in the first steps"
    title = "The same kernels take longer in later steps"
    evidence: ClassVar = {
        "last_to_first_factor": "median time of equal kernels in the last third of the steps over that in the first",
    }
    refutation = (
        "Record clocks and power during the run (nvidia-smi dmon -s pc): if the clock is steady, the kernels do "
        "more work instead."
    )
    least_factor = Limit(
        1.08, "Clocks fall by a few percent in the first steps of any recording; these differ by more."
    )
    least_steps = Limit(9, "With fewer steps, a third is one or two steps, in which any GPU that warms up gets slower.")

    def share(self, facts: Facts) -> Float64s:
        """Share of each kernel's time beyond the median of its kind in the first steps."""
        share = np.zeros(facts.work.height)
        if facts.steps < self.least_steps:
            return share
        factor = self._factor(facts)
        # Over a growing text, products on grids of one block per multiprocessor keep their grid and take longer.
        if factor is None or factor < self.least_factor or growing_passes(facts) is not None:
            return share
        frame = self._frame(facts, np.arange(len(share)))
        first = frame.filter(pl.col("third") == 0).group_by("kind").agg(pl.col("length").median().alias("first"))
        joined = frame.join(first, on="kind", how="left", maintain_order="left")
        excess = (1 - pl.col("first") / pl.col("length")).clip(0.0, 1.0).fill_null(0.0)
        return joined.select(pl.when(pl.col("third") == 0).then(0.0).otherwise(excess)).to_series().to_numpy()

    def _frame(self, facts: Facts, rows: Int64s) -> pl.DataFrame:
        program = facts.program
        kinds = np.where(program.labelled(*PRODUCTS)[rows], program.launched_as(rows), -1)
        length = (facts.work["end_ns"] - facts.work["start_ns"]).to_numpy()[rows]
        third = np.clip((program.step[rows] - 1) * 3 // max(1, len(facts.window.steps)), 0, 2)
        return pl.DataFrame({"kind": kinds, "length": length, "third": third})

    @remembered
    def _kinds(self, facts: Facts) -> pl.DataFrame:
        """The median length of each kind of product in each third of the steps."""
        products = self._frame(facts, np.flatnonzero(facts.program.labelled(*PRODUCTS)))
        lengths = products.group_by("kind", "third").agg(pl.col("length").median())
        return lengths.pivot(on="third", index="kind", values="length")

    def _factor(self, facts: Facts) -> float | None:
        """Unweighted median over kinds of products of the last third's time over the first third's."""
        grouped = self._kinds(facts)
        if not {"0", "1", "2"} <= set(grouped.columns):
            return None
        rising = grouped.filter((pl.col("1") >= pl.col("0")) & (pl.col("2") >= pl.col("1")))
        if rising.height < grouped.height * 0.7:
            return None
        ratio = (grouped["2"] / grouped["0"]).median()
        return float(ratio) if isinstance(ratio, float) else None

    def shown(self, facts: Facts, claims: Claims) -> Finding | None:
        """The finding, with its numbers and remedies."""
        return self.seen(
            facts,
            claims,
            # A single kind may have more work, which need not show in its grid.
            confidence="medium" if self._kinds(facts).height > 1 else "low",
            evidence={"last_to_first_factor": self._factor(facts)},
            bound_ns=2 * claims.busy_ns(self.id),
            remedies=(
                Remedy(
                    "Find out what lowers the clock",
                    "nvidia-smi -q -d PERFORMANCE,CLOCK,POWER  # during the run: power cap, temperature, others",
                    "the step time of the first steps",
                ),
                Remedy(
                    "Measure at a steady clock",
                    "nvidia-smi --lock-gpu-clocks=MHZ  # where permitted; warm up for half a minute",
                    "comparable times",
                ),
            ),
        )


class ProfilerOverhead(Rule):
    """A recording with Python frames or shapes that costs more than what it records."""

    id = "profiler-overhead"
    question = "Does the profiler's overhead dominate?"
    limiter = "the overhead of the profiler"
    cause = "profiler overhead: recording stacks, shapes, memory"
    raised_when = "recording Python calls and operators costs the host a fifth of the window or more. Informational"
    evidence: ClassVar = {
        "python_calls_per_step": "recorded calls of Python functions",
        "operators_per_step": "recorded operators",
        "recording_ns": "least time that recording them takes",
        "recording_share": "of the window",
        **GPU_BUSY_SHARE,
    }
    refutation = "Record without stacks and shapes: if the step takes as long, they were not the cost."
    describes = True
    call_ns = Limit(300, "Recording the start and end of a Python call takes at least 0.3 µs.")
    operator_ns = Limit(1_000, "Recording an operator with its input shapes takes at least 1 µs.")
    least_share = Limit(0.2, "Below this, the program is slowed as by any profiler.")

    def find(self, facts: Facts, claims: Claims) -> Finding | None:
        """The finding, if the window has it."""
        trace, window = facts.timeline.trace, facts.window
        if not facts.wall_ns or facts.phase is not None:
            return None

        def inside(table: pl.DataFrame) -> int:
            starts = table["start_ns"]
            return int(((starts >= window.start_ns) & (starts < window.end_ns)).sum())

        calls = inside(trace.python_functions)
        operators = inside(trace.ranges.filter(pl.col("kind").cast(pl.String) == "cpu-op"))
        spent = int(calls * self.call_ns + operators * self.operator_ns)
        share = min(spent / max(window.duration_ns, 1), 1.0)
        if share < self.least_share or not facts.idle_ns:
            return None
        return self.described(
            title="The profiler takes a large part of the host's time",
            confidence="medium",
            gain=None,
            evidence={
                "python_calls_per_step": calls / facts.steps,
                "operators_per_step": operators / facts.steps,
                "recording_ns": spent,
                "recording_share": share,
                "gpu_busy_share": facts.busy_share,
            },
            remedies=(
                Remedy(
                    "Record less",
                    "torch.profiler.profile(with_stack=False, record_shapes=False, profile_memory=False)\n"
                    "# record stacks separately",
                    "times closer to those without a profiler",
                ),
            ),
        )
