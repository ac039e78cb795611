"""Rules for the recording itself: a GPU that gets slower, a profiler that costs too much."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import polars as pl

from warplens.analysis.frames import numbered
from warplens.diagnosis.claims import Claims
from warplens.diagnosis.facts import Facts
from warplens.diagnosis.findings import USUAL, Finding, Remedy, Variant
from warplens.diagnosis.rule import GPU_BUSY_SHARE, Limit, Rule, remembered
from warplens.diagnosis.rules.generation import work_grows
from warplens.diagnosis.structure import StructureRule
from warplens.profile.schema import Float64s


class SlowingGpu(StructureRule):
    """The same kernels take longer in later steps."""

    id = "slowing-gpu"
    question = "Do the same kernels take longer from step to step?"
    limiter = "a GPU whose clock falls"
    cause = "clocks: the same kernels take longer in later steps"
    raised_when = (
        "products of the same name, grid and recorded shapes take 8 % longer in the last third of the steps than in "
        "the first, all kinds of them alike, in a trend that chance does not explain"
    )
    claimed = "time beyond that of the first steps"
    headline = "The GPU gets slower: {share} of the time is extra time of kernels that were faster in the first steps"
    title = "The same kernels take longer in later steps"
    single: ClassVar = Variant(
        "One kind of kernel takes longer in later steps: the clock falls, or its work grows",
        "One kind of kernel gets slower, by a falling clock or by more work: {share} of the time is extra time of "
        "kernels that were faster in the first steps",
    )
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
    most_chance = Limit(0.01, "Of programs whose steps have random lengths, at most one in a hundred gets a finding.")
    alike_share = Limit(
        0.7,
        "Of the products' time, in kinds that slow by half to one and a half times of what the median kind does: a "
        "clock slows all of them alike, growing work slows some of them.",
    )
    known_share = Limit(
        0.8, "Of the kernels' time in the last steps, in kinds that also ran in the first: a clock changes no grid."
    )
    level_share = Limit(
        0.2,
        "Of what a kind slows by: before and after a clock falls at one moment, times vary by less.",
    )
    jump_share = Limit(0.4, "Of the range of the steps' paces: a larger gap parts steps at two clocks, not on a slope.")

    def share(self, facts: Facts) -> Float64s:
        """Share of each kernel's time beyond the median of its kind in the first steps."""
        share = np.zeros(facts.work.height)
        if facts.steps < self.least_steps or not self._slows(facts):
            return share
        products = np.flatnonzero(facts.program.products)
        frame, lengths = self._frame(facts), self._kinds(facts).select("kind", pl.col("0").alias("first"))
        joined = frame.join(lengths, on="kind", how="left", maintain_order="left")
        excess = (1 - pl.col("first") / pl.col("length")).clip(0.0, 1.0).fill_null(0.0)
        # A clock that falls at one moment may have fallen in the first third.
        pace = (pl.col("length") / pl.col("first")).median().over("step")
        counts = (pl.col("third") > 0) | (pace >= (1 + (self._factor(facts) or 1.0)) / 2)
        share[products] = joined.select(pl.when(counts).then(excess).otherwise(0.0)).to_series().to_numpy()
        return share

    def _slows(self, facts: Facts) -> bool:
        """Whether all products slow down alike, in a trend, at work that stays the same."""
        factor = self._factor(facts)
        # On growing inputs, products on grids of one block per multiprocessor keep their grid and take longer.
        return (
            factor is not None
            and factor >= self.least_factor
            and not work_grows(facts)
            and self._alike(facts, factor)
            and self._same_work(facts)
            and self._chance(facts) <= self.most_chance
        )

    @remembered
    def _frame(self, facts: Facts) -> pl.DataFrame:
        """Kind, length, step, third of the steps and whether its shapes were recorded, of each product."""
        program = facts.program
        rows = np.flatnonzero(program.products)
        length = facts.lengths[rows]
        step = program.step[rows]
        third = np.clip((step - 1) * 3 // max(1, len(facts.window.steps)), 0, 2)
        # A product on more rows may keep its name and grid.
        shapes = program.shapes().gather(rows)
        _, kind = numbered(
            pl.DataFrame({"launched_as": program.launched_as(rows), "shapes": shapes}), ("launched_as", "shapes")
        )
        shaped = shapes.is_not_null()
        return pl.DataFrame({"kind": kind, "length": length, "step": step, "third": third, "shaped": shaped})

    @remembered
    def _kinds(self, facts: Facts) -> pl.DataFrame:
        """Of each kind of product that runs in all thirds of the steps: its median length in each, and its time."""
        frame = self._frame(facts)
        medians = frame.group_by("kind", "third").agg(pl.col("length").median())
        wide = medians.pivot(on="third", index="kind", values="length")
        times = frame.group_by("kind").agg(pl.col("length").sum().alias("time"))
        missing = [pl.lit(None, dtype=pl.Float64).alias(third) for third in "012" if third not in wide.columns]
        return wide.with_columns(missing).drop_nulls(["0", "1", "2"]).join(times, on="kind").sort("kind")

    def _factor(self, facts: Facts) -> float | None:
        """Unweighted median over kinds of products of the last third's time over the first third's; None if unclear."""
        kinds = self._kinds(facts)
        of_all = int(self._frame(facts)["length"].sum())
        if int(kinds["time"].sum()) < facts.thresholds.dominant_share * of_all:
            return None  # most products have shapes that come once
        slack = self.level_share * (pl.col("2") - pl.col("0")).clip(0)
        rising = kinds.filter(pl.col("1") + slack >= pl.col("0"), pl.col("2") + slack >= pl.col("1"))
        if rising.height < kinds.height * 0.7:
            return None
        ratio = (kinds["2"] / kinds["0"]).median()
        return float(ratio) if isinstance(ratio, float) else None

    def _alike(self, facts: Facts, factor: float) -> bool:
        """Whether most of the products' time is in kinds that slow down by about this factor."""
        excess = (pl.col("2") / pl.col("0") - 1) / (factor - 1)
        kinds = self._kinds(facts)
        alike, of_all = int(kinds.filter(excess.is_between(0.5, 1.5))["time"].sum()), int(kinds["time"].sum())
        return alike >= self.alike_share * of_all

    def _same_work(self, facts: Facts) -> bool:
        """Whether the kernels of the last third of the steps, and the passes alone, have grids of the first third."""
        program = facts.program
        third = np.clip((program.step - 1) * 3 // facts.steps, 0, 2)
        for kernels in (program.is_kernel, program.passes):
            first, last = (np.flatnonzero(kernels & (third == place)) for place in (0, 2))
            own = program.own_ns[last]
            known = np.isin(program.launched_as(last), program.launched_as(first))
            if own[known].sum() < self.known_share * own.sum():
                return False
        return True

    @remembered
    def _chance(self, facts: Facts) -> float:
        """The chance of such a trend of the steps' median lengths, each over that of its kind, without a cause.

        One-sided p-value of Kendall's rank correlation between the number of a step and its products' lengths; for
        steps at two clocks, of Mann and Whitney's test that the slow ones come last. The paces alone select the test.
        """
        from scipy.stats import kendalltau, mannwhitneyu

        kinds = self._kinds(facts)["kind"].implode()
        relative = pl.col("length") / pl.col("length").median().over("kind")
        steps = self._frame(facts).filter(pl.col("kind").is_in(kinds)).with_columns(relative.alias("relative"))
        paces = steps.group_by("step").agg(pl.col("relative").median()).sort("step")
        number, pace = paces["step"].to_numpy(), paces["relative"].to_numpy()
        in_order = np.sort(pace)
        jumps = np.diff(in_order)
        if len(jumps) and jumps.max() >= self.jump_share * (in_order[-1] - in_order[0]) > 0:
            slow = pace > in_order[np.argmax(jumps)]
            return float(mannwhitneyu(number[slow], number[~slow], alternative="greater", method="exact").pvalue)
        return float(kendalltau(number, pace, alternative="greater").pvalue)

    def _shown(self, facts: Facts, claims: Claims) -> Finding | None:
        # A single kind may have more work, which need not show in its grid.
        single = self._kinds(facts).height == 1 and self._frame(facts)["shaped"].sum() == 0
        return self.seen(
            facts,
            claims,
            variant=self.single if single else USUAL,
            confidence="low" if single else "medium",
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
                    "nvidia-smi --lock-gpu-clocks=MHZ  # where permitted; warm up for half a minute\n"
                    "nvidia-smi --reset-gpu-clocks  # afterwards",
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
            facts,
            title="The profiler takes a large part of the host's time",
            confidence="medium",
            evidence={
                "python_calls_per_step": calls / facts.steps,
                "operators_per_step": operators / facts.steps,
                "recording_ns": spent,
                "recording_share": share,
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
