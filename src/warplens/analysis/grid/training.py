"""A training step split into forward, backward and optimizer on the device, and what sets the optimizer's pace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl

from warplens.analysis.grid.lm_flops import (
    REFERENCE_ADAMW_BYTES_PER_PARAMETER,
    REFERENCE_ADAMW_LAUNCHES_PER_TENSOR,
    ModelSize,
)
from warplens.analysis.grid.passes import PhasedWork, Spread, busy_by_group
from warplens.analysis.phases import NO_PHASE, PHASES

__all__ = ["SPLIT_SCHEMA", "OptimizerCost", "TrainingSplit", "optimizer_cost", "training_split"]

#: One row a phase (`PHASES`, then `none` for GPU work outside of them). Times and counts are summed over the steps;
#: `share` is of all GPU time, `matmul_share` of the phase's own; `span_ns` runs from first begin to last end in a step.
SPLIT_SCHEMA = pl.Schema(
    {
        "phase": pl.String(),
        "gpu_ns": pl.Int64(),
        "busy_ns": pl.Int64(),
        "span_ns": pl.Int64(),
        "matmul_ns": pl.Int64(),
        "inferred_ns": pl.Int64(),
        "kernels": pl.Int64(),
        "ops": pl.Int64(),
        "share": pl.Float64(),
        "matmul_share": pl.Float64(),
    }
)

#: An optimizer whose GPU runs dry for more than the first share of its time waits for launches; below the second, the
#: launches keep up. In between both matter.
_LAUNCH_BOUND_ABOVE: Final = 0.2
_GPU_BOUND_BELOW: Final = 0.05


@dataclass(frozen=True, eq=False)
class TrainingSplit:
    """The GPU time of a profile's training steps by phase.

    Attributes:
        phases: `SPLIT_SCHEMA`; the rows' `gpu_ns` sum to `gpu_ns`.
        steps: how many steps were added up.
        wall: wall time of a step.
        gpu_ns: GPU time of all steps, summed durations.
        busy_ns: time in which the GPU did anything, of all steps.
        wall_ns: wall time of all steps.
    """

    phases: pl.DataFrame
    steps: int
    wall: Spread
    gpu_ns: int
    busy_ns: int
    wall_ns: int

    def phase(self, name: str) -> dict[str, int]:
        """The row of one phase."""
        return self.phases.row(by_predicate=pl.col("phase") == name, named=True)

    @property
    def idle_ns(self) -> int:
        """Time of the steps in which the GPU did nothing."""
        return self.wall_ns - self.busy_ns

    @property
    def matmul_share(self) -> float | None:
        """Share of all GPU time that matrix products take."""
        return int(self.phases["matmul_ns"].sum()) / self.gpu_ns if self.gpu_ns else None

    @property
    def residual_ns(self) -> int:
        """GPU time that no row accounts for; zero by construction, shown because it was not always so elsewhere."""
        return self.gpu_ns - int(self.phases["gpu_ns"].sum())


@dataclass(frozen=True)
class OptimizerCost:
    """What one optimizer step costs, and whether launches or the GPU set its pace.

    Attributes:
        launches: pieces of GPU work in one step, on average.
        gpu_ns: their GPU time in one step, on average.
        span_ns: from the first begin to the last end, on average.
        busy_share: share of the span in which the GPU works.
        starved_share: share of the span in which it has run dry: the call that launches its next work had not returned
            when the work before ended.
        between_share: share of the span that passes between two pieces of work although the next one was launched in
            time; a GPU needs about 1 µs to start the next kernel of a stream. The three shares sum to 1.
        launches_per_tensor: launches over the model's parameter tensors; None for unknown models.
        modelled_bytes_per_s: memory traffic of the assignment's AdamW (fp32, modelled) over the measured GPU time; None
            where the optimizer does not launch what that AdamW launches.
        peak_bytes_per_s: memory bandwidth of the device; None where the profile does not say.
    """

    launches: float
    gpu_ns: float
    span_ns: float
    busy_share: float
    starved_share: float
    between_share: float
    launches_per_tensor: float | None
    modelled_bytes_per_s: float | None
    peak_bytes_per_s: int | None

    @property
    def span_ns_per_launch(self) -> float:
        """Time from one launch's work to the next one's."""
        return self.span_ns / self.launches

    @property
    def gpu_ns_per_launch(self) -> float:
        """GPU time of one launch."""
        return self.gpu_ns / self.launches

    @property
    def bound(self) -> str:
        """`launches`: the GPU waits for the host; `gpu`: launches keep up with the GPU; `both`: in between."""
        if self.starved_share > _LAUNCH_BOUND_ABOVE:
            return "launches"
        return "gpu" if self.starved_share < _GPU_BOUND_BELOW else "both"

    @property
    def bandwidth_share(self) -> float | None:
        """Modelled traffic over the device's bandwidth; None where either is not known."""
        if self.modelled_bytes_per_s is None or not self.peak_bytes_per_s:
            return None
        return self.modelled_bytes_per_s / self.peak_bytes_per_s


def training_split(phased: PhasedWork) -> TrainingSplit | None:
    """The GPU time of the steps by phase; None where there are no steps."""
    walls = pl.Series([item.duration_ns for item in phased.steps], dtype=pl.Int64)
    wall = Spread.of(walls)
    if wall is None:
        return None
    work = phased.work
    total = int(work["duration_ns"].sum())
    order = {phase: position for position, phase in enumerate((*PHASES, NO_PHASE))}
    sums = ["gpu_ns", "busy_ns", "span_ns", "matmul_ns", "inferred_ns", "kernels", "ops"]
    phases = (
        phased.phases.group_by("phase")
        .agg(pl.col(sums).sum())
        .sort(pl.col("phase").replace_strict(order))
        .with_columns(
            (pl.col("gpu_ns") / max(1, total)).alias("share"),
            pl.when(pl.col("gpu_ns") > 0).then(pl.col("matmul_ns") / pl.col("gpu_ns")).alias("matmul_share"),
        )
        .select(SPLIT_SCHEMA.names())
    )
    position = {step.index: place for place, step in enumerate(phased.steps)}
    step = work["step"].replace_strict(position, return_dtype=pl.Int64).to_numpy()
    # Work may outlast its step by a little; what reaches beyond the end is not this step's time.
    ends = pl.Series([item.end_ns for item in phased.steps])
    until = pl.select(pl.min_horizontal(work["end_ns"], ends.gather(step))).to_series()
    busy = busy_by_group(step, work["start_ns"].to_numpy(), until.to_numpy(), len(phased.steps))
    return TrainingSplit(phases, len(phased.steps), wall, total, int(busy.sum()), int(walls.sum()))


def optimizer_cost(
    phased: PhasedWork, split: TrainingSplit, size: ModelSize | None, peak_bytes_per_s: int | None
) -> OptimizerCost | None:
    """What the optimizer costs; None where it has no work on the GPU.

    Args:
        phased: the training steps.
        split: the same by phase.
        size: the model, where it is known.
        peak_bytes_per_s: memory bandwidth of the device, where the profile says.
    """
    row = split.phase("optimizer")
    if not row["ops"]:
        return None
    starved_ns, between_ns = _gaps(phased.work.filter(pl.col("phase") == "optimizer"))
    launches, gpu_ns = row["ops"] / split.steps, row["gpu_ns"] / split.steps
    per_tensor = launches / size.parameter_tensors if size else None
    modelled = None
    if size and per_tensor == REFERENCE_ADAMW_LAUNCHES_PER_TENSOR:
        modelled = REFERENCE_ADAMW_BYTES_PER_PARAMETER * size.parameters / (gpu_ns * 1e-9)
    return OptimizerCost(
        launches,
        gpu_ns,
        row["span_ns"] / split.steps,
        row["busy_ns"] / row["span_ns"],
        starved_ns / row["span_ns"],
        between_ns / row["span_ns"],
        per_tensor,
        modelled,
        peak_bytes_per_s,
    )


def _gaps(work: pl.DataFrame) -> tuple[int, int]:
    """Time between pieces of work of a step: while the next was not launched yet, and although it was."""
    reach = pl.col("end_ns").cum_max().shift(1).over("step")
    gaps = work.sort("step", "start_ns").select(
        pl.max_horizontal(pl.col("start_ns") - reach, pl.lit(0)).alias("gap"),
        (pl.col("launch_end_ns") > reach).fill_null(False).alias("late"),
    )
    late = int(gaps.filter("late")["gap"].sum())
    return late, int(gaps["gap"].sum()) - late
