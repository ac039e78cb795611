"""The optimisation checklist: items of optimisation guides on memory, arithmetic, algorithm, configuration and faults.

Items are answered from findings, launches of the window and hardware counters, as far as recorded; otherwise the answer
is `cannot tell`, with a command that would answer it. `in order` means no fault worth 2 % of the examined time, which
is `seen_share` of the kernel time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, Literal, TypeAlias

import polars as pl

from warplens.analysis.categories import categories_of
from warplens.analysis.counters.bounds import LOW_SHARE, kernel_facts, kernel_faults
from warplens.analysis.counters.groups import group_launches
from warplens.analysis.counters.occupancy import WARP_SIZE
from warplens.analysis.counters.speedoflight import instruction_mix
from warplens.analysis.frames import duration_ns
from warplens.analysis.streams import concurrency, stream_statistics, stream_turns
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import Window
from warplens.diagnosis.findings import Diagnosis
from warplens.diagnosis.thresholds import DEFAULTS
from warplens.profile import Device
from warplens.profile.columns import column, table
from warplens.profile.counters import KernelCounters
from warplens.profile.schema import Column
from warplens.profile.trace import BLOCK_THREADS, GRID_BLOCKS

State: TypeAlias = Literal["in order", "to mend", "not applicable", "cannot tell"]
STATES: Final[tuple[State, ...]] = ("in order", "to mend", "not applicable", "cannot tell")

#: A number that an answer rests on.
EVIDENCE: Final = pl.Struct({"name": pl.String, "value": pl.Float64})

CHECKLIST: Final = table(
    "checklist",
    "One item of the optimisation checklist. `warplens report`.",
    Column("item", pl.String, "its name", title="Item"),
    column("group", dtype=pl.String, help="what it is about", title="About"),
    Column("asked", pl.String, "what should hold", title="What should hold"),
    Column(
        "found", pl.String, "`in order`, `to mend`: checked; `not applicable`; `cannot tell`: `then` says what would"
    ),
    Column("rests_on", pl.String, "findings, launches, counters", nullable=True, title="Rests on"),
    Column("seen_share", pl.Float64, "of the kernel time, what the answer rests on", nullable=True, title="Seen"),
    Column("numbers", pl.String, "the numbers that say so", nullable=True, title="Evidence"),
    column("evidence", dtype=pl.List(EVIDENCE), help="`numbers` by name; the unit ends the name"),
    Column("then", pl.String, "what to do next: what to mend first, or the command that would tell", nullable=True),
)

#: Least share of the examined time that a fault costs, as for findings.
_LEAST_SHARE: Final = DEFAULTS.raise_ceiling - 1

#: Least share of the kernel time with counters for an answer (`counters_share`).
_ENOUGH_SHARE: Final = DEFAULTS.counters_share

#: Half of a sector of 32 bytes, which always moves as a whole: using less is wasted traffic by any measure.
_USED_BYTES: Final = 16.0

#: Above this share of branches, critical loops are short: a loop of eight instructions and a branch, such as one around
#: a load and a product that was not unrolled, has a ninth.
_BRANCH_SHARE: Final = 0.1

#: Instructions that exchange values in a warp: shuffles, votes, matches, reductions and matrix fragments.
_WARP_OPCODES: Final = ("SHFL", "REDUX", "VOTE", "VOTEU", "MATCH", "MOVM", "CREDUX")

#: Kernels that combine values of several threads.
_REDUCING: Final = ("reduction", "softmax", "normalization")

_NCU: Final = "warplens collect ncu --preset {} -- python your_program.py"


@dataclass(frozen=True)
class Answer:
    """The answer to one item."""

    state: State
    evidence: Mapping[str, float] = field(default_factory=dict)
    rests_on: str | None = None
    seen_share: float | None = None
    then: str | None = None


_NO_TRACE: Final = Answer("cannot tell", then="warplens collect nsys -- python your_program.py")


@dataclass(frozen=True, eq=False)
class Checked:
    """Data for the answers: a window of a trace with its diagnosis, a report of counters, or both."""

    timeline: Timeline | None = None
    window: Window | None = None
    diagnosis: Diagnosis | None = None
    counters: KernelCounters | None = None

    @cached_property
    def facts(self) -> pl.DataFrame:
        """Values by counters of each group of launches that has a duration, and `total_ns`."""
        if self.counters is None:
            return pl.DataFrame({"total_ns": []}, schema={"total_ns": pl.Float64})
        groups = group_launches(self.counters)
        launched = groups.counters.launches.select("launch", pl.col("name").cast(pl.String), BLOCK_THREADS)
        frame = kernel_facts(groups.counters).with_columns(groups.groups["total_ns"]).join(launched, "launch", "left")
        faults = kernel_faults(groups.counters).select("launch", "fault", "gain_share")
        wide = faults.pivot("fault", index="launch", values="gain_share", aggregate_function="max")
        mix = instruction_mix(self.counters)
        of_launch = pl.DataFrame({"launch": self.counters.launches["launch"], "group": groups.of_launch})
        mix_of_groups = mix.join(of_launch, on="launch").group_by(launch="group").agg(_mix_shares())
        frame = frame.join(wide.rename(lambda name: name if name == "launch" else f"fault {name}"), "launch", "left")
        return frame.join(mix_of_groups, on="launch", how="left").filter(pl.col("total_ns") > 0)

    def measured(self, *names: str) -> tuple[pl.DataFrame, float]:
        """The groups with all of these values, and their share of the profiled time."""
        return _with_values(self.facts, names)

    @cached_property
    def launches(self) -> pl.DataFrame:
        """The kernels of the window: `total_ns`, `threads`, `grid_blocks`, `shared_bytes`, `sm_count`, `category`."""
        if self.timeline is None or self.window is None:
            return pl.DataFrame()
        kernels = self.timeline.kernels_in(self.window, launches=False)
        counts = {ordinal: device.sm_count for ordinal, device in self.devices.items()}
        return kernels.select(
            duration_ns().alias("total_ns"),
            BLOCK_THREADS,
            GRID_BLOCKS.alias("grid_blocks"),
            (pl.col("static_shared_bytes") + pl.col("dynamic_shared_bytes")).alias("shared_bytes"),
            pl.col("device").replace_strict(counts, default=None, return_dtype=pl.Int64).alias("sm_count"),
            categories_of(kernels["full_name"]).alias("category"),
        )

    @cached_property
    def devices(self) -> dict[int, Device]:
        """The GPUs that the trace names, by ordinal."""
        devices = () if self.timeline is None else self.timeline.trace.capture.devices
        return {device.ordinal: device for device in devices}

    def launched(self, *names: str) -> tuple[pl.DataFrame, float]:
        """The kernels with all of these recorded, and their share of the kernel time."""
        return _with_values(self.launches, names)

    def configured(self, *names: str) -> tuple[pl.DataFrame, float, str]:
        """`launched`, or else `measured`, and what it rests on."""
        known, seen = self.launched(*names)
        return (known, seen, "launches") if seen else (*self.measured(*names), "counters")

    def found(self, *ids: str) -> tuple[str, ...]:
        """Which of these findings the window has."""
        return () if self.diagnosis is None else tuple(id_ for id_ in ids if self.diagnosis.finding(id_) is not None)


def _with_values(rows: pl.DataFrame, names: Sequence[str]) -> tuple[pl.DataFrame, float]:
    """The rows with all of these values, and their share of the time."""
    time = float(rows["total_ns"].sum()) if rows.height else 0.0
    if not time or any(name not in rows.columns for name in names):
        return rows.clear(), 0.0
    known = rows.drop_nulls(list(names))
    return known, float(known["total_ns"].sum()) / time


def _mix_shares() -> list[pl.Expr]:
    """Shares of branches, of exchanges inside a warp, and of calls among the instructions of a group's launches."""
    root, total = pl.col("opcode").str.split(".").list.first(), pl.col("instructions").sum()
    parts = {"branch": ("BRA", "BRX", "JMP"), "exchange": _WARP_OPCODES, "call": ("CALL",)}
    return [
        (pl.col("instructions").filter(root.is_in(opcodes)).sum() / total).alias(f"{name}_share")
        for name, opcodes in parts.items()
    ]


def _weighted(frame: pl.DataFrame, value: str | pl.Expr) -> float:
    """The mean weighted by time; 0 without rows."""
    total = float(frame["total_ns"].sum())
    if not total:
        return 0.0
    expression = pl.col(value) if isinstance(value, str) else value
    return float(frame.select((expression.cast(pl.Float64).fill_null(0.0) * pl.col("total_ns")).sum()).item()) / total


def _unknown(preset: str, **evidence: float) -> Answer:
    return Answer("cannot tell", evidence, "launches" if evidence else None, None, _NCU.format(preset))


def _by_fault(checked: Checked, fault: str, needed: Sequence[str], preset: str, then: str, **shown: str) -> Answer:
    """An item answered by the largest possible cost of a kernel fault (`analysis.counters.bounds`)."""
    known, seen = checked.measured(*needed)
    if not seen:
        return _unknown(preset)
    lost = _weighted(known, f"fault {fault}") if f"fault {fault}" in known.columns else 0.0
    evidence = {"lost_at_most_share": lost, **{name: _weighted(known, value) for name, value in shown.items()}}
    return _judged(lost, evidence, seen, then, preset)


def _judged(
    cost: float, evidence: Mapping[str, float], seen: float, then: str, preset: str = "", rests_on: str = "counters"
) -> Answer:
    """`to mend` for a large cost; else `in order`, or `cannot tell` if counters cover too little of the time.

    Args:
        cost: share of the time that was seen.
        evidence, seen, then, rests_on: as in `Answer`.
        preset: of the counters that would tell; empty if a part of the time is enough.
    """
    if cost >= _LEAST_SHARE:
        return Answer("to mend", evidence, rests_on, seen, then)
    if preset and seen < _ENOUGH_SHARE:
        return Answer("cannot tell", evidence, rests_on, seen, _NCU.format(preset))
    return Answer("in order", evidence, rests_on, seen)


def _found(checked: Checked, ids: Sequence[str], evidence: Mapping[str, float]) -> Answer | None:
    """An item that is to mend by one of these findings; None if the window has none of them."""
    if not (found := checked.found(*ids)):
        return None
    return Answer("to mend", evidence, "findings", 1.0, f"see {', '.join(found)} among the findings")


def _by_findings(checked: Checked, ids: Sequence[str], evidence: Mapping[str, float]) -> Answer:
    """An item answered by findings of the window; `cannot tell` without a diagnosis."""
    if checked.diagnosis is None or not checked.launches.height:
        return replace(_NO_TRACE, evidence=evidence)
    return _found(checked, ids, evidence) or Answer("in order", evidence, "findings", 1.0)


def _coalesced(checked: Checked) -> Answer:
    then = "let neighbouring threads read neighbouring numbers"
    wasted = {"not_needed_of_sectors_share": "global_wasted_share"}
    return _by_fault(checked, "uncoalesced", ["global_wasted_share"], "memory", then, **wasted)


def _shared_memory(checked: Checked) -> Answer:
    known, seen = checked.measured("streaming", "memory_share", "shared_wavefronts")
    launched, recorded = checked.launched("shared_bytes")
    evidence = {}
    if recorded:
        evidence["kernel_time_with_shared_memory_share"] = _weighted(launched, pl.col("shared_bytes") > 0)
    if not seen:
        return _unknown("memory", **evidence)
    # Kernels that are limited by memory, read data again and use no shared memory.
    again = ~pl.col("streaming") & (pl.col("memory_share") >= LOW_SHARE) & (pl.col("shared_wavefronts") == 0)
    cost = evidence["reads_again_without_it_share"] = _weighted(known, again)
    return _judged(cost, evidence, seen, "keep what a block reads more than once in shared memory", "memory")


def _banks(checked: Checked) -> Answer:
    known, seen = checked.measured("shared_wavefronts")
    launched, recorded = checked.launched("shared_bytes")
    if seen and not known["shared_wavefronts"].sum():
        return Answer("not applicable", {"shared_memory_passes_count": 0}, "counters", seen)
    if not seen and recorded and not launched["shared_bytes"].sum():
        return Answer("not applicable", {"shared_memory_bytes": 0}, "launches", recorded)
    then = "pad or swizzle the tiles in shared memory"
    conflicts = {"conflicts_of_passes_share": "shared_conflict_share"}
    return _by_fault(checked, "bank-conflicts", ["shared_wavefronts"], "memory", then, **conflicts)


def _transactions(checked: Checked) -> Answer:
    used = "global_load_bytes_per_sector"
    known, seen = checked.measured(used)
    if not seen:
        return _unknown("memory")
    evidence = {"used_of_each_sector_bytes": _weighted(known, used)}
    half = pl.when(pl.col(used) < _USED_BYTES).then(pl.col("memory_share")) * (1 - pl.col(used) / (2 * _USED_BYTES))
    spilled = pl.col("fault spills") if "fault spills" in known.columns else pl.lit(0.0)
    cost = evidence["lost_at_most_share"] = _weighted(known, pl.max_horizontal(half, spilled))
    return _judged(cost, evidence, seen, "load vectors of 16 aligned bytes; keep registers from spilling", "memory")


def _occupancy(checked: Checked) -> Answer:
    shown = {"achieved_occupancy_share": "achieved_share", "theoretical_occupancy_share": "theoretical_share"}
    return _by_fault(
        checked,
        "occupancy",
        ["achieved_share", "theoretical_share"],
        "occupancy",
        "use fewer registers or less shared memory a block, or another block size",
        **shown,
    )


def _warp_primitives(checked: Checked) -> Answer:
    groups = checked.facts
    if groups.height:
        groups = groups.with_columns(category=categories_of(groups["name"].cast(pl.Enum(groups["name"].unique()))))
        reducing = groups.filter(pl.col("category").cast(pl.String).is_in(_REDUCING))
        if reducing.height and (known := reducing.drop_nulls("exchange_share")).height:
            seen = float(known["total_ns"].sum()) / float(groups["total_ns"].sum())
            without = _weighted(known, pl.col("exchange_share") == 0)
            evidence = {"reducing_kernels_share": seen, "of_these_without_exchange_share": without}
            return _judged(without * seen, evidence, seen, "reduce inside a warp with __shfl_sync, then a block")
    launched, recorded = checked.launched("category")
    if recorded and not launched["category"].is_in(_REDUCING).any():
        return Answer("not applicable", {"reducing_kernels_count": 0}, "launches", recorded)
    return _unknown("instructions")


def _divergence(checked: Checked) -> Answer:
    return _by_fault(
        checked,
        "divergence",
        ["threads_per_instruction"],
        "instructions",
        "group items that take the same branch",
        active_threads_of_32="threads_per_instruction",
    )


def _unrolled(checked: Checked) -> Answer:
    known, seen = checked.measured("branch_share")
    if not seen:
        return _unknown("instructions")
    short = pl.col("branch_share") > _BRANCH_SHARE
    evidence = {"branches_of_instructions_share": _weighted(known, "branch_share")}
    evidence["kernels_above_a_tenth_share"] = _weighted(known, short)
    cost = _weighted(known.filter(pl.col("compute_share") >= LOW_SHARE), short)
    return _judged(cost, evidence, seen, "unroll the inner loop (#pragma unroll; tl.static_range)", "instructions")


_FUSING: Final = (
    *("small-kernels", "unfused-chain", "unfused-attention", "unfused-optimizer", "per-expert-loop", "launch-overhead"),
    "unbucketed-communication",
)


def _fusion(checked: Checked) -> Answer:
    launched, recorded = checked.launched("total_ns")
    if not recorded:
        return _NO_TRACE
    passes = launched.filter(pl.col("category").is_in([*_REDUCING, "elementwise", "copy-cast"]))
    steps = max(1, checked.window.step_count) if checked.window else 1
    evidence = {
        "kernels_per_step": launched.height / steps,
        "in_passes_share": float(passes["total_ns"].sum()) / float(launched["total_ns"].sum()),
    }
    return _by_findings(checked, _FUSING, evidence)


def _distribution(checked: Checked) -> Answer:
    then = "choose a grid of whole waves, or a persistent kernel"
    among_gpus = ("straggler", "pipeline-bubble", "uneven-gpus", "gpus-in-turn", "data-parallel-threads")
    return _found(checked, among_gpus, {}) or _by_fault(
        checked, "tail", ["waves"], "occupancy", then, last_wave_share="tail_share"
    )


def _synchronization(checked: Checked) -> Answer:
    if checked.diagnosis is None or checked.timeline is None or checked.window is None:
        return _NO_TRACE
    waits = checked.timeline.synchronizations_in(checked.window)
    evidence = {"waits_per_step": waits.height / max(1, checked.window.step_count)}
    recorded = "synchronizations" in checked.timeline.trace.capture.recorded
    known = evidence if recorded and checked.launches.height else {}
    return _by_findings(checked, ("host-sync", "blocking-copy"), known)


def _reuse(checked: Checked) -> Answer:
    reread = ("memory-bandwidth", "weight-bound", "growing-cache", "unfused-chain", "unfused-attention")
    if (told := _found(checked, reread, {})) is not None:
        return told
    known, seen = checked.measured("dram_share", "compute_share", "streaming")
    if not seen:
        return _unknown("memory")
    # Kernels that read each byte once have nothing to reuse; only another algorithm or fusion would save traffic.
    bound = (pl.col("dram_share") >= LOW_SHARE) & (pl.col("compute_share") < LOW_SHARE)
    cost = _weighted(known, bound & ~pl.col("streaming"))
    evidence = {"bound_by_dram_share": _weighted(known, bound), "reads_again_while_bound_by_dram_share": cost}
    return _judged(cost, evidence, seen, "fuse passes over the same data, or take larger tiles", "memory")


def _whole_warps(checked: Checked) -> Answer:
    known, seen, rests_on = checked.configured("threads")
    if not seen:
        return _NO_TRACE
    partial = pl.col("threads") % WARP_SIZE != 0
    cost = _weighted(known, partial)
    evidence = {"time_in_partial_warps_share": cost, "launches_with_partial_warps_count": known.filter(partial).height}
    return _judged(cost, evidence, seen, "take blocks of a multiple of 32 threads", rests_on=rests_on)


def _filled(checked: Checked) -> Answer:
    known, seen, rests_on = checked.configured("grid_blocks", "sm_count")
    if not seen:
        return _NO_TRACE
    blocks = pl.col("grid_blocks")
    idle = _weighted(known, (1 - blocks / pl.col("sm_count")).clip(0.0, 1.0))
    evidence = {"time_in_small_grids_share": _weighted(known, blocks < pl.col("sm_count"))}
    evidence["multiprocessors_without_block_share"] = idle
    then = "more work a launch: a larger batch, split-K, or streams at once"
    return _judged(idle, evidence, seen, then, rests_on=rests_on)


def _resources(checked: Checked) -> Answer:
    known, seen = checked.measured("theoretical_share")
    if not seen:
        return _unknown("occupancy")
    limited = pl.col("limiter").is_in(["registers", "shared-memory"]).fill_null(value=False)
    evidence = {"limited_by_registers_or_shared_memory_share": _weighted(known, limited)}
    costs = [pl.col("fault spills")] if "fault spills" in known.columns else []
    if "fault occupancy" in known.columns:
        costs.append(pl.when(limited).then(pl.col("fault occupancy")))
    cost = evidence["lost_at_most_share"] = _weighted(known, pl.max_horizontal(costs)) if costs else 0.0
    return _judged(cost, evidence, seen, "__launch_bounds__, smaller tiles, fewer stages", "occupancy")


#: No profile has the compiler's options, but the binary has the GPUs that it was compiled for.
_FLAGS: Final = Answer(
    "cannot tell", then="cuobjdump --list-elf your_extension.so  # the GPUs that its code was compiled for"
)


#: Reason why streams take turns → what to do.
_TURNS_THEN: Final = {
    "default-stream": "use non-blocking streams: torch.cuda.Stream(), cudaStreamNonBlocking, nvcc --default-stream "
    "per-thread",
    "event": "leave out event waits that pass no data; record again",
    "unknown": "launch breadth-first, with CUDA_DEVICE_MAX_CONNECTIONS=8 or more; see which resource runs out (ncu)",
}


def _right_gpu(checked: Checked) -> Answer:
    if not checked.launches.height or checked.timeline is None or checked.window is None or not checked.devices:
        return Answer("cannot tell", then="nvidia-smi  # with the name of the GPU and who uses it")
    used = set(checked.timeline.devices_in(checked.window))
    evidence = {"gpus_used_count": len(used), "gpus_recorded_count": len(checked.devices)}
    largest = max((device.sm_count or 0) for device in checked.devices.values())
    # A GPU of unknown size may be the largest.
    sizes = {device.sm_count or largest: device.name for ordinal, device in checked.devices.items() if ordinal in used}
    if sizes and max(sizes) < largest:
        then = f"a larger GPU than {sizes[max(sizes)]} is there: choose it with CUDA_VISIBLE_DEVICES"
        return Answer("to mend", evidence, "launches", 1.0, then)
    return Answer("in order", evidence, "launches", 1.0)


def _at_once(checked: Checked) -> Answer:
    """Whether kernels of several streams run at once, or take turns without need."""
    if not checked.launches.height or checked.timeline is None or checked.window is None:
        return _NO_TRACE
    streams = stream_statistics(checked.timeline, checked.window).filter(pl.col("kernels") > 0)
    if streams.height < 2:
        return Answer("not applicable", {"streams_with_kernels_count": streams.height}, "launches", 1.0)
    together = concurrency(checked.timeline, checked.window).filter(pl.col("kernels_at_once") > 1)["time_ns"].sum()
    evidence = {"streams_with_kernels_count": float(streams.height), "kernels_at_once_ns": float(int(together))}
    turns = stream_turns(checked.timeline, checked.window)
    evidence |= {f"turns_by_{row['why'].replace('-', '_')}_count": row["turns"] for row in turns.to_dicts()}
    # The busiest stream alone takes its busy time, so no more than the rest can be saved.
    busy = [int(busy_ns) for busy_ns in streams["busy_ns"]]
    most = sum(busy) - max(busy)
    lost = {row["why"]: min(row["at_once_ns"], most) / checked.window.duration_ns for row in turns.to_dicts()}
    if (share := lost.get("default-stream", 0.0)) >= _LEAST_SHARE:
        evidence["lost_at_most_share"] = share
        return Answer("to mend", evidence, "launches", 1.0, _TURNS_THEN["default-stream"])
    for why in ("event", "unknown"):
        # The profile does not record if data passes between the streams, or if a resource ran out.
        if lost.get(why, 0.0) >= _LEAST_SHARE:
            return Answer("cannot tell", evidence, "launches", 1.0, _TURNS_THEN[why])
    return Answer("in order", evidence, "launches", 1.0)


def _allocation(checked: Checked) -> Answer:
    # Kernels allocate memory by calling a function of the driver: without any call there is no allocation.
    known, seen = checked.measured("call_share")
    if not seen:
        return _unknown("instructions")
    calling = _weighted(known, pl.col("call_share") > 0)
    evidence = {"kernels_that_call_functions_share": calling}
    if calling:
        then = "cuobjdump -sass your_extension.so | grep -E 'CALL.*(malloc|free)'  # calls alone do not tell of what"
        return Answer("cannot tell", evidence, "counters", seen, then)
    return _judged(0.0, evidence, seen, "", "instructions")


#: A profile has no values.
_NUMERICS: Final = Answer(
    "cannot tell", then="warplens numerics OUTPUT.npy REFERENCE.npy  # NaN, infinities, error in ULPs"
)


_ITEMS: Final[Mapping[str, tuple[str, str, Callable[[Checked], Answer]]]] = {
    "coalescing": ("memory", "neighbouring threads read neighbouring numbers", _coalesced),
    "shared memory": ("memory", "what is read often is kept in shared memory", _shared_memory),
    "bank conflicts": ("memory", "threads do not queue for a bank of shared memory", _banks),
    "transactions": ("memory", "most of each sector that moves is used", _transactions),
    "occupancy": ("arithmetic", "enough warps to hide latency", _occupancy),
    "warp primitives": ("arithmetic", "threads of a warp exchange values directly", _warp_primitives),
    "divergence": ("arithmetic", "threads of a warp take the same branch", _divergence),
    "unrolled loops": ("arithmetic", "critical loops are unrolled", _unrolled),
    "fusion": ("algorithm", "kernels are fused where that pays", _fusion),
    "distribution": ("algorithm", "work is spread evenly", _distribution),
    "synchronization": ("algorithm", "the host waits as little as it can", _synchronization),
    "reuse": ("algorithm", "data is used often once it is read", _reuse),
    "block size": ("configuration", "blocks are whole warps", _whole_warps),
    "grid": ("configuration", "the grid fills the GPU", _filled),
    "registers and shared memory": ("configuration", "neither keeps warps out that are needed", _resources),
    "compile flags": ("configuration", "the compiler's options are right", lambda _: _FLAGS),
    "GPU": ("faults", "it ran on the right GPU", _right_gpu),
    "streams": ("faults", "streams run at once where nothing orders them", _at_once),
    "allocation in kernels": ("faults", "no kernel allocates memory", _allocation),
    "numerics": ("faults", "results are finite and exact enough", lambda _: _NUMERICS),
}


def checklist(
    timeline: Timeline | None = None,
    window: Window | None = None,
    diagnosis: Diagnosis | None = None,
    counters: KernelCounters | None = None,
) -> dict[str, tuple[str, str, Answer]]:
    """Item name → its group, what should hold, and the answer.

    Args:
        timeline, window, diagnosis: a trace, its window and its diagnosis; None without a trace.
        counters: a report of Nsight Compute on the same program.
    """
    checked = Checked(timeline, window, diagnosis, counters)
    return {name: (group, asked, answer(checked)) for name, (group, asked, answer) in _ITEMS.items()}
