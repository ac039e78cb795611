"""The optimisation checklist: what guides ask of memory, arithmetic, algorithm, configuration and faults, item by item.

Nothing is analysed here. An item is answered from findings, from the launches of a window and from hardware counters,
as far as they were recorded; where none of them tells, the answer is that, with the command that would. "In order"
says that what was looked at has no fault worth 2 % of its time, and never more than `seen_share` of it was looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal, TypeAlias

import polars as pl

from warplens.analysis.categories import categories_of
from warplens.analysis.counters.bounds import LOW_SHARE, kernel_facts, kernel_faults
from warplens.analysis.counters.groups import group_launches
from warplens.analysis.counters.occupancy import WARP_SIZE
from warplens.analysis.counters.speedoflight import instruction_mix
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

#: What costs less than this of the time looked at is no fault: what no finding is raised for.
_LEAST_SHARE: Final = DEFAULTS.raise_ceiling - 1

#: An answer from counters of less of the kernel time than this says little about the rest (`counters_share`).
_ENOUGH_SHARE: Final = DEFAULTS.counters_share

#: Sectors of which less than half is used are wasted traffic by any measure; 32 bytes move.
_USED_BYTES: Final = 16.0

#: A rolled loop of eight instructions and a branch spends a ninth of its instructions on branches; so does one that was
#: not unrolled around a load and a product. Above a tenth, critical loops are short.
_BRANCH_SHARE: Final = 0.1

#: Instructions by which threads of a warp exchange values: shuffles, votes, matches, reductions and matrix fragments.
_WARP_OPCODES: Final = ("SHFL", "REDUX", "VOTE", "VOTEU", "MATCH", "MOVM", "CREDUX")

#: Kernels that combine values of several threads.
_REDUCING: Final = ("reduction", "softmax", "normalization")

_NCU: Final = "warplens collect ncu --preset {} -- python your_program.py"
_RUN_NSYS: Final = "warplens collect nsys -- python your_program.py"


@dataclass(frozen=True)
class Answer:
    """What is known of one item."""

    state: State
    evidence: Mapping[str, float] = field(default_factory=dict)
    rests_on: str | None = None
    seen_share: float | None = None
    then: str | None = None


@dataclass(frozen=True, eq=False)
class Checked:
    """What the answers rest on: a window of a trace with its diagnosis, a report of counters, or both."""

    timeline: Timeline | None = None
    window: Window | None = None
    diagnosis: Diagnosis | None = None
    counters: KernelCounters | None = None

    @cached_property
    def facts(self) -> pl.DataFrame:
        """All that counters tell of each group of launches that has a duration, and `total_ns`."""
        if self.counters is None:
            return pl.DataFrame({"total_ns": []}, schema={"total_ns": pl.Float64})
        taken = group_launches(self.counters)
        launched = taken.counters.launches.select("launch", pl.col("name").cast(pl.String), BLOCK_THREADS)
        frame = kernel_facts(taken.counters).with_columns(taken.groups["total_ns"]).join(launched, "launch", "left")
        faults = kernel_faults(taken.counters).select("launch", "fault", "gain_share")
        wide = faults.pivot("fault", index="launch", values="gain_share", aggregate_function="max")
        mix = instruction_mix(self.counters)
        of_group = pl.DataFrame({"launch": self.counters.launches["launch"], "group": taken.of_launch})
        summed = mix.join(of_group, on="launch").group_by(launch="group").agg(_of_mix())
        frame = frame.join(wide.rename(lambda name: name if name == "launch" else f"fault {name}"), "launch", "left")
        return frame.join(summed, on="launch", how="left").filter(pl.col("total_ns") > 0)

    def measured(self, *names: str) -> tuple[pl.DataFrame, float]:
        """The groups of which all of these were counted, and their share of the profiled time."""
        if not self.facts.height or any(name not in self.facts.columns for name in names):
            return self.facts.clear(), 0.0
        known = self.facts.drop_nulls(list(names))
        return known, float(known["total_ns"].sum()) / float(self.facts["total_ns"].sum())

    @cached_property
    def launches(self) -> pl.DataFrame:
        """The kernels of the window, with `ns`, `threads`, `blocks`, `shared_bytes`, `sm_count` and `category`."""
        if self.timeline is None or self.window is None:
            return pl.DataFrame()
        kernels = self.timeline.kernels_in(self.window, launches=False)
        counts = {ordinal: device.sm_count for ordinal, device in self.devices.items()}
        return kernels.select(
            (pl.col("end_ns") - pl.col("start_ns")).alias("ns"),
            BLOCK_THREADS,
            GRID_BLOCKS,
            (pl.col("static_shared_bytes") + pl.col("dynamic_shared_bytes")).alias("shared_bytes"),
            pl.col("device").replace_strict(counts, default=None, return_dtype=pl.Int64).alias("sm_count"),
            categories_of(kernels["full_name"]).alias("category"),
        )

    @cached_property
    def devices(self) -> dict[int, Device]:
        """The GPUs that the trace names, by ordinal."""
        return {} if self.timeline is None else {each.ordinal: each for each in self.timeline.trace.capture.devices}

    def launched(self, *names: str) -> tuple[pl.DataFrame, float]:
        """The kernels of which all of these were recorded, and their share of the kernel time."""
        if not self.launches.height or not self.launches["ns"].sum():
            return self.launches.clear(), 0.0
        known = self.launches.drop_nulls(list(names))
        return known, float(known["ns"].sum()) / float(self.launches["ns"].sum())

    def found(self, *ids: str) -> tuple[str, ...]:
        """Which of these findings the window has."""
        return () if self.diagnosis is None else tuple(id_ for id_ in ids if self.diagnosis.finding(id_) is not None)


def _of_mix() -> list[pl.Expr]:
    """From the opcodes of a group's launches: shares of branches, of exchanges inside a warp, and of calls."""
    root, every = pl.col("opcode").str.split(".").list.first(), pl.col("instructions").sum()
    parts = {"branch": ("BRA", "BRX", "JMP"), "exchange": _WARP_OPCODES, "call": ("CALL",)}
    return [
        (pl.col("instructions").filter(root.is_in(names)).sum() / every).alias(f"{name}_share")
        for name, names in parts.items()
    ]


def _weighted(frame: pl.DataFrame, what: str | pl.Expr, weight: str = "total_ns") -> float:
    """The mean over the time; 0 of nothing."""
    value = pl.col(what) if isinstance(what, str) else what
    total = float(frame[weight].sum())
    return (
        float(frame.select((value.cast(pl.Float64).fill_null(0.0) * pl.col(weight)).sum()).item()) / total
        if total
        else 0.0
    )


def _unknown(preset: str, **evidence: float) -> Answer:
    return Answer("cannot tell", evidence, "launches" if evidence else None, None, _NCU.format(preset))


def _by_fault(
    checked: Checked, faults: Sequence[str], needed: Sequence[str], preset: str, then: str, **shown: str
) -> Answer:
    """An item that faults of kernels answer (`analysis.counters.bounds`): what they cost at most of the time."""
    known, seen = checked.measured(*needed)
    if not seen:
        return _unknown(preset)
    costs = [f"fault {fault}" for fault in faults if f"fault {fault}" in known.columns]
    lost = _weighted(known, pl.max_horizontal(costs)) if costs else 0.0
    numbers = {name: _weighted(known, of) for name, of in shown.items()}
    evidence = {"lost_at_most_share": lost, **numbers}
    if lost >= _LEAST_SHARE:
        return Answer("to mend", evidence, "counters", seen, then)
    return _enough("in order", evidence, seen, preset)


def _enough(state: State, evidence: Mapping[str, float], seen: float, preset: str) -> Answer:
    """An answer from counters, unless they speak of too little."""
    if seen < _ENOUGH_SHARE:
        return Answer("cannot tell", evidence, "counters", seen, _NCU.format(preset))
    return Answer(state, evidence, "counters", seen)


def _see(found: Sequence[str]) -> str:
    """Where to read on, for an item that findings answer."""
    return f"see {', '.join(found)} among the findings"


def _by_findings(checked: Checked, ids: Sequence[str], evidence: Mapping[str, float]) -> Answer | None:
    """An item that findings of the window answer; None where there is no diagnosis."""
    if checked.diagnosis is None or not checked.launches.height:
        return None
    if found := checked.found(*ids):
        return Answer("to mend", evidence, "findings", 1.0, _see(found))
    return Answer("in order", evidence, "findings", 1.0)


def _coalesced(checked: Checked) -> Answer:
    then = "let neighbouring threads read neighbouring numbers"
    wasted = {"not_needed_of_sectors_share": "global_wasted_share"}
    return _by_fault(checked, ["uncoalesced"], ["global_wasted_share"], "memory", then, **wasted)


def _shared_memory(checked: Checked) -> Answer:
    known, seen = checked.measured("streaming", "memory_share", "shared_wavefronts")
    launched, told = checked.launched("shared_bytes")
    uses = (
        {"kernel_time_with_shared_memory_share": _weighted(launched, pl.col("shared_bytes") > 0, "ns")} if told else {}
    )
    if not seen:
        return _unknown("memory", **uses)
    # Data that is read again, by kernels that wait for memory and keep nothing in shared memory.
    again = ~pl.col("streaming") & (pl.col("memory_share") >= LOW_SHARE) & (pl.col("shared_wavefronts") == 0)
    evidence = {**uses, "reads_again_without_it_share": _weighted(known, again)}
    if evidence["reads_again_without_it_share"] >= _LEAST_SHARE:
        return Answer("to mend", evidence, "counters", seen, "keep what a block reads more than once in shared memory")
    return _enough("in order", evidence, seen, "memory")


def _banks(checked: Checked) -> Answer:
    known, seen = checked.measured("shared_wavefronts")
    launched, told = checked.launched("shared_bytes")
    if seen and not known["shared_wavefronts"].sum():
        return Answer("not applicable", {"shared_memory_passes_count": 0}, "counters", seen)
    if not seen and told and not launched["shared_bytes"].sum():
        return Answer("not applicable", {"shared_memory_bytes": 0}, "launches", told)
    then = "pad or swizzle the tiles in shared memory"
    conflicts = {"conflicts_of_passes_share": "shared_conflict_share"}
    return _by_fault(checked, ["bank-conflicts"], ["shared_wavefronts"], "memory", then, **conflicts)


def _transactions(checked: Checked) -> Answer:
    used = "global_load_bytes_per_sector"
    known, seen = checked.measured(used)
    if not seen:
        return _unknown("memory")
    evidence = {"used_of_each_sector_bytes": _weighted(known, used)}
    half = pl.when(pl.col(used) < _USED_BYTES).then(pl.col("memory_share")) * (1 - pl.col(used) / (2 * _USED_BYTES))
    spilled = pl.col("fault spills") if "fault spills" in known.columns else pl.lit(0.0)
    evidence["lost_at_most_share"] = _weighted(known, pl.max_horizontal(half, spilled))
    if evidence["lost_at_most_share"] >= _LEAST_SHARE:
        return Answer(
            "to mend", evidence, "counters", seen, "load vectors of 16 aligned bytes; keep registers from spilling"
        )
    return _enough("in order", evidence, seen, "memory")


def _occupancy(checked: Checked) -> Answer:
    shown = {"achieved_occupancy_share": "achieved_share", "theoretical_occupancy_share": "theoretical_share"}
    return _by_fault(
        checked,
        ["occupancy"],
        ["achieved_share", "theoretical_share"],
        "occupancy",
        "use fewer registers or less shared memory a block, or another block size",
        **shown,
    )


def _warp_primitives(checked: Checked) -> Answer:
    every, _ = checked.measured()
    if every.height and "exchange_share" in every.columns:
        every = every.with_columns(category=categories_of(every["name"].cast(pl.Enum(every["name"].unique()))))
        reducing = every.filter(pl.col("category").cast(pl.String).is_in(_REDUCING))
        if reducing.height and (known := reducing.drop_nulls("exchange_share")).height:
            seen = float(known["total_ns"].sum()) / float(every["total_ns"].sum())
            without = _weighted(known, pl.col("exchange_share") == 0)
            evidence = {"reducing_kernels_share": seen, "of_these_without_exchange_share": without}
            if without * seen >= _LEAST_SHARE:
                return Answer(
                    "to mend", evidence, "counters", seen, "reduce inside a warp with __shfl_sync, then a block"
                )
            return Answer("in order", evidence, "counters", seen)
    launched, told = checked.launched("category")
    if told and not launched["category"].is_in(_REDUCING).any():
        return Answer("not applicable", {"reducing_kernels_count": 0}, "launches", told)
    return _unknown("instructions")


def _divergence(checked: Checked) -> Answer:
    return _by_fault(
        checked,
        ["divergence"],
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
    if _weighted(known.filter(pl.col("compute_share") >= LOW_SHARE), short) >= _LEAST_SHARE:
        return Answer("to mend", evidence, "counters", seen, "unroll the inner loop (#pragma unroll; tl.static_range)")
    return _enough("in order", evidence, seen, "instructions")


_FUSING: Final = (
    *("small-kernels", "unfused-chain", "unfused-attention", "unfused-optimizer", "per-expert-loop", "launch-overhead"),
    "unbucketed-communication",
)


def _fusion(checked: Checked) -> Answer:
    launched, told = checked.launched("ns")
    if not told:
        return Answer("cannot tell", then=_RUN_NSYS)
    passes = launched.filter(pl.col("category").is_in([*_REDUCING, "elementwise", "copy-cast"]))
    steps = max(1, len(checked.window.steps)) if checked.window else 1
    evidence = {
        "kernels_per_step": launched.height / steps,
        "in_passes_share": float(passes["ns"].sum()) / float(launched["ns"].sum()),
    }
    return _by_findings(checked, _FUSING, evidence) or Answer("cannot tell", evidence, then=_RUN_NSYS)


def _distribution(checked: Checked) -> Answer:
    if found := checked.found("straggler", "pipeline-bubble"):
        return Answer("to mend", {}, "findings", 1.0, _see(found))
    then = "choose a grid of whole waves, or a persistent kernel"
    return _by_fault(checked, ["tail"], ["waves"], "occupancy", then, last_wave_share="tail_share")


def _synchronization(checked: Checked) -> Answer:
    if checked.diagnosis is None or checked.timeline is None or checked.window is None:
        return Answer("cannot tell", then=_RUN_NSYS)
    waits = checked.timeline.synchronizations_in(checked.window)
    evidence = {"waits_per_step": waits.height / max(1, len(checked.window.steps))}
    recorded = "synchronizations" in checked.timeline.trace.capture.recorded
    ids = ("host-sync", "blocking-copy")
    return _by_findings(checked, ids, evidence if recorded else {}) or Answer("cannot tell", then=_RUN_NSYS)


def _reuse(checked: Checked) -> Answer:
    reread = ("memory-bandwidth", "weight-bound", "growing-cache", "unfused-chain", "unfused-attention")
    if found := checked.found(*reread):
        return Answer("to mend", {}, "findings", 1.0, _see(found))
    known, seen = checked.measured("dram_share", "compute_share", "streaming")
    if not seen:
        return _unknown("memory")
    # What reads each byte once reuses all that it can; only another algorithm or a fusion would save traffic.
    bound = (pl.col("dram_share") >= LOW_SHARE) & (pl.col("compute_share") < LOW_SHARE)
    again = {"reads_again_while_bound_by_dram_share": _weighted(known, bound & ~pl.col("streaming"))}
    evidence = {"bound_by_dram_share": _weighted(known, bound), **again}
    if evidence["reads_again_while_bound_by_dram_share"] >= _LEAST_SHARE:
        return Answer("to mend", evidence, "counters", seen, "fuse passes over the same data, or take larger tiles")
    return _enough("in order", evidence, seen, "memory")


def _whole_warps(checked: Checked) -> Answer:
    known, seen, time, rests_on = *checked.launched("threads"), "ns", "launches"
    if not seen:
        known, seen, time, rests_on = *checked.measured("threads"), "total_ns", "counters"
    if not seen:
        return Answer("cannot tell", then=_RUN_NSYS)
    partial = pl.col("threads") % WARP_SIZE != 0
    evidence = {"time_in_partial_warps_share": _weighted(known, partial, time)}
    evidence["launches_with_partial_warps_count"] = known.filter(partial).height
    if evidence["time_in_partial_warps_share"] >= _LEAST_SHARE:
        return Answer("to mend", evidence, rests_on, seen, "take blocks of a multiple of 32 threads")
    return Answer("in order", evidence, rests_on, seen)


def _filled(checked: Checked) -> Answer:
    known, seen, time, rests_on = *checked.launched("blocks", "sm_count"), "ns", "launches"
    blocks = pl.col("blocks")
    if not seen:
        known, seen, time, rests_on = *checked.measured("grid_blocks", "sm_count"), "total_ns", "counters"
        blocks = pl.col("grid_blocks")
    if not seen:
        return Answer("cannot tell", then=_RUN_NSYS)
    idle = _weighted(known, (1 - blocks / pl.col("sm_count")).clip(0.0, 1.0), time)
    evidence = {"time_in_small_grids_share": _weighted(known, blocks < pl.col("sm_count"), time)}
    evidence["multiprocessors_without_block_share"] = idle
    if idle >= _LEAST_SHARE:
        return Answer(
            "to mend", evidence, rests_on, seen, "more work a launch: a larger batch, split-K, or streams at once"
        )
    return Answer("in order", evidence, rests_on, seen)


def _resources(checked: Checked) -> Answer:
    known, seen = checked.measured("theoretical_share")
    if not seen:
        return _unknown("occupancy")
    limited = pl.col("limiter").is_in(["registers", "shared-memory"]).fill_null(value=False)
    evidence = {"limited_by_registers_or_shared_memory_share": _weighted(known, limited)}
    costs = [pl.col(name) for name in ("fault spills",) if name in known.columns]
    if "fault occupancy" in known.columns:
        costs.append(pl.when(limited).then(pl.col("fault occupancy")))
    evidence["lost_at_most_share"] = _weighted(known, pl.max_horizontal(costs)) if costs else 0.0
    if evidence["lost_at_most_share"] >= _LEAST_SHARE:
        return Answer("to mend", evidence, "counters", seen, "__launch_bounds__, smaller tiles, fewer stages")
    return _enough("in order", evidence, seen, "occupancy")


def _flags(checked: Checked) -> Answer:
    # No profile holds the compiler's options. What it was built for stands in the program itself.
    return Answer(
        "cannot tell", then="cuobjdump --list-elf your_extension.so  # the GPUs that its code was compiled for"
    )


#: What to do about streams that take turns, by why they do.
_TURNS_THEN: Final = {
    "default-stream": "use non-blocking streams: torch.cuda.Stream(), cudaStreamNonBlocking, nvcc --default-stream "
    "per-thread",
    "event": "leave out event waits that pass no data; record again",
    "unknown": "launch breadth-first, with CUDA_DEVICE_MAX_CONNECTIONS=8 or more; see which resource runs out (ncu)",
}


def _right_gpu(checked: Checked) -> Answer:
    if not checked.launches.height or checked.timeline is None or checked.window is None or not checked.devices:
        return Answer("cannot tell", then="nvidia-smi  # with the name of the GPU and who uses it")
    used = set(checked.timeline.work_in(checked.window)["device"].unique().to_list())
    largest = max((device.sm_count or 0) for device in checked.devices.values())
    evidence = {"gpus_used_count": len(used), "gpus_recorded_count": len(checked.devices)}
    small = [device.name for ordinal, device in checked.devices.items() if ordinal in used and device.sm_count]
    if any((checked.devices[ordinal].sm_count or largest) < largest for ordinal in used if ordinal in checked.devices):
        then = f"a larger GPU than {small[0]} is there: choose it with CUDA_VISIBLE_DEVICES" if small else None
        return Answer("to mend", evidence, "launches", 1.0, then)
    return Answer("in order", evidence, "launches", 1.0)


def _at_once(checked: Checked) -> Answer:
    if not checked.launches.height or checked.timeline is None or checked.window is None:
        return Answer("cannot tell", then=_RUN_NSYS)
    streams = stream_statistics(checked.timeline, checked.window).filter(pl.col("kernels") > 0)
    if streams.height < 2:
        return Answer("not applicable", {"streams_with_kernels_count": streams.height}, "launches", 1.0)
    together = concurrency(checked.timeline, checked.window).filter(pl.col("kernels_at_once") > 1)["time_ns"].sum()
    evidence = {"streams_with_kernels_count": float(streams.height), "kernels_at_once_ns": float(int(together))}
    turns = stream_turns(checked.timeline, checked.window)
    evidence |= {f"turns_by_{row['why'].replace('-', '_')}_count": row["turns"] for row in turns.to_dicts()}
    # However streams take turns, the busiest of them alone takes as long as it does.
    busy = [int(busy_ns) for busy_ns in streams["busy_ns"]]
    most = sum(busy) - max(busy)
    lost = {row["why"]: min(row["at_once_ns"], most) / checked.window.duration_ns for row in turns.to_dicts()}
    if (share := lost.get("default-stream", 0.0)) >= _LEAST_SHARE:
        evidence["lost_at_most_share"] = share
        return Answer("to mend", evidence, "launches", 1.0, _TURNS_THEN["default-stream"])
    for why in ("event", "unknown"):
        # Whether the data that passes between them needs the wait, or a resource ran out, is not recorded.
        if lost.get(why, 0.0) >= _LEAST_SHARE:
            return Answer("cannot tell", evidence, "launches", 1.0, _TURNS_THEN[why])
    return Answer("in order", evidence, "launches", 1.0)


def _allocation(checked: Checked) -> Answer:
    # Memory is allocated inside a kernel by a call of a function of the driver: without any call there is none.
    known, seen = checked.measured("call_share")
    if not seen:
        return _unknown("instructions")
    calling = _weighted(known, pl.col("call_share") > 0)
    evidence = {"kernels_that_call_functions_share": calling}
    if calling:
        then = "cuobjdump -sass your_extension.so | grep -E 'CALL.*(malloc|free)'  # calls alone do not tell of what"
        return Answer("cannot tell", evidence, "counters", seen, then)
    return _enough("in order", evidence, seen, "instructions")


def _numerics(checked: Checked) -> Answer:
    # A profile holds no values.
    return Answer("cannot tell", then="warplens numerics OUTPUT.npy REFERENCE.npy  # NaN, infinities, error in ULPs")


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
    "compile flags": ("configuration", "the compiler's options are right", _flags),
    "GPU": ("faults", "it ran on the right GPU", _right_gpu),
    "streams": ("faults", "streams run at once where nothing orders them", _at_once),
    "allocation in kernels": ("faults", "no kernel allocates memory", _allocation),
    "numerics": ("faults", "results are finite and exact enough", _numerics),
}


def checklist(
    timeline: Timeline | None = None,
    window: Window | None = None,
    diagnosis: Diagnosis | None = None,
    counters: KernelCounters | None = None,
) -> dict[str, tuple[str, str, Answer]]:
    """The answer to every item, by its name, with what it is about and what should hold.

    Args:
        timeline, window, diagnosis: a trace, its window, and what was found in it; None where there is none.
        counters: a report of Nsight Compute on the same program.
    """
    checked = Checked(timeline, window, diagnosis, counters)
    return {name: (group, asked, answer(checked)) for name, (group, asked, answer) in _ITEMS.items()}
