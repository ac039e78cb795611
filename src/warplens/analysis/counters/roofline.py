"""Roofline: measured work and traffic of each kernel against the GPU's peaks, at each level of memory.

`roofline` covers every kind of arithmetic and level of a launch; `roofline_points` is for charts: a point for each
group of launches at each level, and the roofs over them. Work of tensor cores is counted by number format, each with
the GPU's rate for it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import polars as pl

from warplens.analysis.counters.bounds import BOUNDS, kernel_bounds
from warplens.analysis.counters.groups import SUMMARY, described, group_launches
from warplens.analysis.counters.speedoflight import LAUNCH, measured, share, with_launch
from warplens.errors import UsageError
from warplens.profile.columns import KERNEL_NAME, column, optional, table
from warplens.profile.counters import KernelCounters
from warplens.profile.schema import Column

#: Rates of tensor operations: of each data type, of each instruction, and of both with and without sparsity.
_RATE = re.compile(
    r"^sm__ops_path_tensor_(?P<what>src|op_\w+?_src)_(?P<source>[a-z0-9]+(?:_(?:fp|bf|tf)\d+)*?)"
    r"(?:_dst_(?P<result>\w+?))?(?:_sparsity_(?P<sparsity>on|off))?\.sum\.per_second$"
)

#: Products with two of four values zero run twice as fast as dense ones by specification on every GPU that has them
#: (compute capability 8.0 and later), and the peak of a data type's total is theirs: on an H200, 8,192 operations per
#: multiprocessor and cycle for bfloat16 in total and with sparsity, 4,096 without.
SPARSE_GAIN: Final = 2
_FIRST_WITH_SPARSITY: Final = 8

#: Types without sparse products.
_ALWAYS_DENSE: Final = ("fp64", "int1")


@dataclass(frozen=True)
class _Rate:
    """The meaning of one rate metric."""

    name: str
    is_instruction: bool
    source: str
    total: str
    sparse: bool | None


def tensor_work(counters: KernelCounters, clock: pl.Series) -> pl.DataFrame | None:
    """Operations of the tensor cores of each launch, and the applicable peak.

    All types count. The peak is that of the instruction that did most of them; where only totals of data types were
    collected, that of the type. A dense product is not measured against the peak of a sparse one: a total's peak is
    halved where the type has sparse products, unless the operations counted show that these were used.

    Args:
        clock: of the multiprocessors in each launch, in Hz.

    Returns:
        `launch`, `flops_per_s`, `peak_flops_per_s`, `format` (data type of the factors), `sparse` (null where only a
        total was collected) and `precision`, which is `tensor`; None where nothing was collected.
    """
    rates = _rates(counters)
    if not rates:
        return None
    totals = {rate.total for rate in rates if rate.sparse is None}
    has_type_totals = any(not rate.is_instruction for rate in rates)
    parts = []
    for rate in rates:
        per_cycle = measured(counters, rate.name.removesuffix("per_second") + "peak_sustained")
        # Each operation counts once: in the total of a type, or in its parts with and without sparsity; in instructions
        # only where there are no types.
        counts = (not rate.is_instruction or not has_type_totals) and (rate.sparse is None or rate.total not in totals)
        part = with_launch(counters, flops_per_s=measured(counters, rate.name), peak_flops_per_s=per_cycle * clock)
        parts.append(
            part.with_columns(
                format=pl.lit(rate.source),
                sparse=pl.lit(rate.sparse, dtype=pl.Boolean),
                counts=pl.lit(counts),
                # The more specific the metric, the more accurate its peak.
                closeness=pl.lit(2 * rate.is_instruction + (rate.sparse is not None)),
                halved=pl.lit(rate.sparse is None and not rate.is_instruction and rate.source not in _ALWAYS_DENSE),
            )
        )
    frame = pl.concat(parts).drop_nulls("flops_per_s").filter(pl.col("peak_flops_per_s") > 0)
    of_type = pl.col("flops_per_s").filter("counts").sum().over("launch", "format")
    used = pl.col("flops_per_s") > 0
    closeness = pl.when(used).then("closeness").otherwise(-pl.col("closeness"))
    ranked = frame.sort(
        *("launch", of_type, used, closeness, "flops_per_s"),
        descending=[False, True, True, True, True],
        maintain_order=True,
    )
    by_launch = ranked.group_by("launch", maintain_order=True).agg(
        pl.col("flops_per_s").filter("counts").sum(),
        pl.col("peak_flops_per_s", "format", "sparse", "halved").first(),
    )
    return _with_dense_peaks(counters, by_launch).with_columns(precision=pl.lit("tensor"))


def _with_dense_peaks(counters: KernelCounters, work: pl.DataFrame) -> pl.DataFrame:
    """Halves peaks of sparse products where the products may have been dense."""
    major = with_launch(counters, major=measured(counters, "device__attribute_compute_capability_major"))
    capabilities = [device.compute_capability for device in counters.capture.devices if device.compute_capability]
    known = max((major for major, _ in capabilities), default=0)
    half = pl.col("peak_flops_per_s") / SPARSE_GAIN
    sparsity = pl.coalesce("major", pl.lit(float(known))) >= _FIRST_WITH_SPARSITY
    halved = pl.col("halved") & sparsity & (pl.col("flops_per_s") <= half)
    is_sparse = pl.col("halved") & sparsity & (pl.col("flops_per_s") > half)
    return work.join(major, on="launch", how="left", maintain_order="left").select(
        "launch",
        "flops_per_s",
        pl.when(halved).then(half).otherwise("peak_flops_per_s").alias("peak_flops_per_s"),
        pl.when(pl.col("flops_per_s") > 0).then("format").alias("format"),
        pl.when(is_sparse).then(pl.lit(value=True)).otherwise("sparse").alias("sparse"),
    )


def _rates(counters: KernelCounters) -> list[_Rate]:
    rates = []
    for name in counters.metrics.columns:
        if match := _RATE.match(name):
            sparsity = match["sparsity"]
            total = f"{match['what']}_{match['source']}_{match['result']}"
            sparse = None if sparsity is None else sparsity == "on"
            rates.append(_Rate(name, match["what"] != "src", match["source"], total, sparse))
    return rates


#: Levels of memory, from the slowest to the fastest.
LEVELS: Final = ("dram", "l2", "l1")

#: Kinds of arithmetic with a peak of their own. `tensor` is every operation of the tensor cores that was counted.
PRECISIONS: Final = ("fp64", "fp32", "fp16", "tensor")

#: Bytes per busy cycle of the interface: one sector out of L2, 32 words out of L1 (the metric definitions of Nsight
#: Compute's hierarchical roofline sections).
_L2_BYTES: Final = 32
_L1_BYTES: Final = 128

#: Above this share of cycles, an uncounted tensor pipe makes the counted FLOPs too few to judge by.
_TENSOR_IN_USE: Final = 0.01

_THREAD = "sass_thread_inst_executed_op_"
ROOFLINE: Final = table(
    "roofline",
    "one kind of arithmetic of one launch, against one level of memory",
    LAUNCH,
    column("precision", help="`fp64`, `fp32`, `fp16` or `tensor`"),
    column("format", nullable=True),
    column("sparse", nullable=True),
    "level",
    column("flops_per_s", help="measured", title="Achieved"),
    "bytes_per_s",
    optional(intensity="FLOPs per byte"),
    "peak_flops_per_s",
    column("peak_bytes_per_s", help="the slope of the other, at the clock of the measurement"),
    "ridge",
    column("side", help="`memory` left of the ridge, `compute` right of it", nullable=True),
    optional(roof_flops_per_s=("the roof at this intensity", "allows")),
    "roof_share",
    Column("main", pl.Boolean, "the kind of arithmetic that is nearest to its own peak"),
    "uncounted_tensor",
    Column("ceiling_source", pl.String, "where the roofs come from"),
)

#: Sources of a roof: the report,
REPORTED: Final = "metrics of the report: peak rate per cycle × clock during the measurement"

#: or the user.
GIVEN: Final = "given by the user"

_MIXED: Final = f"one {GIVEN}, the other from {REPORTED}"


#: First letters of the instructions of a kind of arithmetic (`dadd`, `dmul`, `dfma`). Half-precision instructions work
#: on two values where the tool has the metric `…_x4`; with it, packed instructions are counted once.
_LETTERS: Final = {"fp64": "d", "fp32": "f", "fp16": "h"}
#: Operations per instruction: a fused multiply-add is two.
_OPERATIONS: Final = {"add": 1, "mul": 1, "fma": 2}
_PACKED_MARK: Final = "derived__sm__sass_thread_inst_executed_op_hfma_pred_on_x4"


def roofline(counters: KernelCounters, ceilings: Mapping[str, float] | None = None) -> pl.DataFrame:
    """Position of each launch under the roofs of its GPU.

    FLOPs and bytes are measured, not modelled. The side of the ridge follows from a kernel's arithmetic intensity
    alone; its distance from the roof is a separate matter (`roof_share`): a kernel on the memory side can be at its
    roof, or far from it because it waits (S. Williams et al., "Roofline", CACM 52(4), 2009). Roofs hold at the clocks
    of the measurement, which Nsight Compute locks to base unless told otherwise.

    Args:
        ceilings: roofs that replace the report's, such as measured ones: FLOPs per second by `PRECISIONS`, bytes per
            second by `LEVELS`.

    Returns:
        `ROOFLINE`, for each launch the kinds of arithmetic and levels of memory whose metrics were collected.

    Raises:
        UsageError: there is no roof of such a name.
    """
    works = [frame for precision in PRECISIONS if (frame := _work(counters, precision)) is not None]
    traffics = [_traffic(counters, level) for level in LEVELS]
    if not works:
        return ROOFLINE.empty()
    frame = pl.concat(works, how="diagonal").join(pl.concat(traffics), on="launch")
    frame = _with_ceilings(frame.drop_nulls(["flops_per_s", "bytes_per_s"]), ceilings or {})
    flops, peak_flops = pl.col("flops_per_s"), pl.col("peak_flops_per_s")
    traffic, peak_traffic = pl.col("bytes_per_s"), pl.col("peak_bytes_per_s")
    frame = frame.filter((peak_flops > 0) & (peak_traffic > 0)).with_columns(
        intensity=pl.when(traffic > 0).then(flops / traffic),
        ridge=peak_flops / peak_traffic,
    )
    intensity = pl.col("intensity")
    # Achieved / roof is FLOPs / min(peak, intensity × bandwidth): the larger of the two shares. It also holds for
    # kernels without any FLOPs, such as copies.
    frame = frame.with_columns(
        side=pl.when((traffic == 0) & (flops == 0))
        .then(None)
        .when(intensity.is_null() | (intensity >= pl.col("ridge")))
        .then(pl.lit("compute"))
        .otherwise(pl.lit("memory")),
        roof_flops_per_s=pl.when(intensity.is_not_null()).then(pl.min_horizontal(peak_flops, intensity * peak_traffic)),
        roof_share=pl.max_horizontal(flops / peak_flops, traffic / peak_traffic),
    )
    nearest = (flops / peak_flops).max().over("launch")
    counted = (pl.col("precision") == "tensor").any().over("launch")
    tensor = with_launch(
        counters, tensor_share=share(counters, "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed")
    )
    frame = frame.join(tensor, on="launch", how="left", maintain_order="left").with_columns(
        main=(flops / peak_flops == nearest) & (flops > 0),
        uncounted_tensor=~counted & (pl.col("tensor_share").fill_null(0) > _TENSOR_IN_USE),
    )
    order = (pl.col(name).cast(pl.Enum(known)) for name, known in (("precision", PRECISIONS), ("level", LEVELS)))
    return ROOFLINE.checked(frame.sort("launch", *order))


def _with_ceilings(frame: pl.DataFrame, ceilings: Mapping[str, float]) -> pl.DataFrame:
    """The peaks, with given ones in place of the report's, and their source."""
    if unknown := sorted(set(ceilings) - {*PRECISIONS, *LEVELS}):
        raise UsageError(f"there is no roof {', '.join(unknown)}; there are {', '.join((*PRECISIONS, *LEVELS))}")
    replaced = {"precision": "peak_flops_per_s", "level": "peak_bytes_per_s"}
    values = {name: pl.lit(value, dtype=pl.Float64) for name, value in ceilings.items()}
    peaks = [
        pl.coalesce(*(pl.when(pl.col(key) == name).then(value) for name, value in values.items()), peak).alias(peak)
        for key, peak in replaced.items()
    ]
    is_given = pl.col("precision").is_in(list(ceilings)), pl.col("level").is_in(list(ceilings))
    source = (
        pl.when(is_given[0] & is_given[1]).then(pl.lit(GIVEN)).when(is_given[0] | is_given[1]).then(pl.lit(_MIXED))
    ).otherwise(pl.lit(REPORTED))
    return frame.with_columns(*peaks, ceiling_source=source).drop_nulls(list(replaced.values()))


def _work(counters: KernelCounters, precision: str) -> pl.DataFrame | None:
    """`launch`, `flops_per_s` and `peak_flops_per_s` of one kind of arithmetic; None where it was not collected."""
    clock = measured(counters, "sm__cycles_elapsed.avg.per_second", "smsp__cycles_elapsed.avg.per_second")
    if precision == "tensor":
        return tensor_work(counters, clock)
    letter = _LETTERS[precision]
    packed = 2 if precision == "fp16" and _PACKED_MARK in counters.metrics.columns else 1
    own_clock = measured(counters, "smsp__cycles_elapsed.avg.per_second", "sm__cycles_elapsed.avg.per_second")
    flops = pl.Series("flops", [0.0] * counters.launches.height)
    for name, operations in _OPERATIONS.items():
        counted = measured(counters, f"smsp__{_THREAD}{letter}{name}_pred_on.sum.per_cycle_elapsed")
        flops += counted * operations * packed
    peak = measured(counters, f"sm__{_THREAD}{letter}fma_pred_on.sum.peak_sustained") * _OPERATIONS["fma"] * packed
    if flops.null_count() == flops.len() or peak.null_count() == peak.len():
        return None
    frame = with_launch(counters, flops_per_s=flops * own_clock, peak_flops_per_s=peak * clock)
    tensor_columns = {"format": pl.lit(None, dtype=pl.String), "sparse": pl.lit(None, dtype=pl.Boolean)}
    return frame.with_columns(precision=pl.lit(precision), **tensor_columns)


def _traffic(counters: KernelCounters, level: str) -> pl.DataFrame:
    """`launch`, `level`, `bytes_per_s` and `peak_bytes_per_s` of one level of memory."""
    if level == "dram":
        traffic = measured(counters, "dram__bytes.sum.per_second")
        peak = measured(counters, "dram__bytes.sum.peak_sustained")
        clock = measured(counters, "dram__cycles_elapsed.avg.per_second")
    elif level == "l2":
        traffic = measured(counters, "lts__lts2xbar_cycles_active.sum.per_second") * _L2_BYTES
        peak = measured(counters, "lts__lts2xbar_cycles_active.sum.peak_sustained") * _L2_BYTES
        clock = measured(counters, "lts__cycles_elapsed.avg.per_second")
        # Reads and writes have separate links of the same width: the busier one is nearer to its roof.
        written = share(counters, "lts__xbar2lts_cycles_active.avg.pct_of_peak_sustained_elapsed") * peak * clock
        traffic = pl.DataFrame({"read": traffic, "written": written}).max_horizontal()
    else:
        metrics = [f"l1tex__lsu_writeback_active{scope}.sum" for scope in ("_mem_lgds", "_mem_lg", "")]
        traffic = measured(counters, *(f"{line}.per_second" for line in metrics)) * _L1_BYTES
        peak = measured(counters, *(f"{line}.peak_sustained" for line in metrics)) * _L1_BYTES
        clock = measured(counters, "l1tex__cycles_elapsed.avg.per_second")
    frame = with_launch(counters, bytes_per_s=traffic, peak_bytes_per_s=peak * clock)
    return frame.with_columns(level=pl.lit(level))


_AT_LEVELS: Final = tuple(
    column
    for level, name in zip(
        LEVELS, ("dram", "l2, in the busier direction; of its busiest part in `counters`", "l1"), strict=True
    )
    for column in (
        Column(
            f"{level}_intensity",
            pl.Float64,
            f"FLOPs per byte through {level}; null: no bytes",
            nullable=True,
            title=f"FLOP/B {level.upper()}",
        ),
        Column(f"{level}_share", pl.Float64, f"of the peak bandwidth of {name}", nullable=True),
    )
)

POINTS: Final = table(
    "roofline_points",
    "a group of launches of one kernel with one grid and block, with medians over them; the most expensive first",
    SUMMARY.only("launch launches").columns,
    KERNEL_NAME,
    SUMMARY.only("full_name device grid block total_ns").columns,
    column("precision", help="arithmetic nearest to its own peak; null: none was counted", nullable=True),
    ROOFLINE.only("format sparse").columns,
    optional(
        flops_per_s=("achieved, of that arithmetic", "Achieved"),
        peak_flops_per_s="the flat roof at the measured clock",
        compute_share="of that roof",
    ),
    _AT_LEVELS,
    column("roof", nullable=True),
    optional(
        roof_flops_per_s=("that roof at its intensity: the most it could achieve", "allows"),
        roof_share=("how much of it was reached", "Reached"),
        distance_share="how much of it is missing; 0 where counters pass it",
        ridge="intensity at which the roofs of DRAM and arithmetic meet",
    ),
    column("side", help="of that ridge: `memory` left, `compute` right", nullable=True),
    BOUNDS.only("bound unit").columns,
    column("uncounted_tensor", help="tensor cores worked, but their operations were not collected"),
)

ROOFS: Final = table(
    "roofs",
    "one roof of a report",
    column("roof", help="`compute`, or a level of memory"),
    column("precision", help="of a roof of arithmetic", nullable=True),
    column("format", help="tensor: data type of the factors", nullable=True),
    column("sparse", help="tensor: of products with zeros left out", nullable=True),
    Column("peak", pl.Float64, "FLOPs a second, or bytes a second: the highest that held for a point"),
    Column("least_peak", pl.Float64, "the lowest: clocks differ between launches where they are not locked"),
    "points",
    column("source", help="where it comes from", title="Only in"),
)


@dataclass(frozen=True, eq=False)
class Roofline:
    """Groups of launches under the roofs of their GPU."""

    points: pl.DataFrame  #: `POINTS`, every group, with or without counters
    roofs: pl.DataFrame  #: `ROOFS`; only arithmetic that some group did

    @property
    def counted(self) -> bool:
        """Whether the report has any counter for a roofline."""
        return not (self.points["precision"].is_null().all() and self.roofs.is_empty())

    @property
    def placed(self) -> pl.DataFrame:
        """The points that can be drawn: with arithmetic, and bytes through a level of memory."""
        has_intensity = pl.any_horizontal(pl.col(f"{level}_intensity") > 0 for level in LEVELS)
        return self.points.filter(pl.col("precision").is_not_null() & has_intensity)


def roofline_points(counters: KernelCounters, ceilings: Mapping[str, float] | None = None) -> Roofline:
    """Position of each group of launches under the hierarchical roofline of its GPU.

    The most that a kernel can achieve is the lowest of its roofs: the peak of its arithmetic, and for each level of
    memory the intensity at that level times its bandwidth (C. Yang, T. Kurth, S. Williams, "Hierarchical Roofline
    analysis for GPUs", CCPE 32(20), 2020). The nearest roof is the one with the largest share reached. A kernel with
    several kinds of arithmetic is measured by the one nearest to its own peak.

    Args:
        ceilings: see `roofline`.

    Raises:
        UsageError: there is no roof of such a name.
    """
    grouped = group_launches(counters)
    roofline_rows = roofline(grouped.counters, ceilings)
    main = roofline_rows.filter("main").unique("launch", keep="first", maintain_order=True)
    arithmetic = main.select(
        "launch", "precision", "format", "sparse", "flops_per_s", "peak_flops_per_s",
        compute_share=pl.col("flops_per_s") / pl.col("peak_flops_per_s"),
    )  # fmt: skip
    frame = described(grouped).join(arithmetic, on="launch", how="left", maintain_order="left")
    for level in LEVELS:
        level_rows = roofline_rows.filter(pl.col("level") == level).unique("launch", keep="first", maintain_order=True)
        traffic = level_rows.select("launch", **{f"{level}_bytes": "bytes_per_s", f"{level}_peak": "peak_bytes_per_s"})
        frame = frame.join(traffic, on="launch", how="left", maintain_order="left")
    uncounted = roofline_rows.group_by("launch").agg(pl.col("uncounted_tensor").any())
    bounds = kernel_bounds(grouped.counters).select("launch", "bound", "unit")
    for more in (uncounted, bounds):
        frame = frame.join(more, on="launch", how="left", maintain_order="left")
    points = _with_nearest_roof(frame).with_columns(
        pl.col("uncounted_tensor").fill_null(value=False), launch="first_launch"
    )
    points = points.sort("total_ns", "launch", descending=[True, False], nulls_last=True)
    return Roofline(POINTS.checked(points), _roofs(roofline_rows, ceilings or {}))


def _with_nearest_roof(frame: pl.DataFrame) -> pl.DataFrame:
    """Adds the nearest roof of each row, the share of it that is reached, and the side of the ridge."""
    moved = {level: (pl.col(f"{level}_bytes"), pl.col(f"{level}_peak")) for level in LEVELS}
    flops = pl.col("flops_per_s")
    frame = frame.with_columns(
        *(pl.when(size > 0).then(flops / size).alias(f"{level}_intensity") for level, (size, _) in moved.items()),
        *((size / peak).alias(f"{level}_share") for level, (size, peak) in moved.items()),
        ridge=pl.col("peak_flops_per_s") / pl.col("dram_peak"),
    )
    shares = {"compute": pl.col("compute_share"), **{level: pl.col(f"{level}_share") for level in LEVELS}}
    reached = pl.max_horizontal(*shares.values())
    nearest = pl.coalesce(
        *(pl.when((share == reached) & (reached > 0)).then(pl.lit(roof)) for roof, share in shares.items())
    )
    return frame.with_columns(
        roof=nearest,
        roof_share=reached,
        distance_share=(1 - reached).clip(0.0, 1.0),
        roof_flops_per_s=pl.when(reached > 0).then(flops / reached),
        side=pl.when(flops.is_null() | pl.col("ridge").is_null())
        .then(None)
        .when(pl.col("dram_intensity").is_null() | (pl.col("dram_intensity") >= pl.col("ridge")))
        .then(pl.lit("compute"))
        .otherwise(pl.lit("memory")),
    )


def _roofs(under: pl.DataFrame, ceilings: Mapping[str, float]) -> pl.DataFrame:
    """The roofs that some point is under, arithmetic first."""
    flat = under.filter("main").unique("launch", keep="first", maintain_order=True)
    slopes = under.unique(["launch", "level"], keep="first", maintain_order=True).filter(pl.col("bytes_per_s") > 0)
    keys = ("roof", "precision", "format", "sparse")
    flat = flat.select(*keys[1:], roof=pl.lit("compute"), peak="peak_flops_per_s")
    rows = pl.concat([flat, slopes.select(roof="level", peak="peak_bytes_per_s")], how="diagonal")
    roofs = rows.group_by(keys, maintain_order=True).agg(
        peak=pl.col("peak").max(),
        least_peak=pl.col("peak").min(),
        points=pl.len().cast(pl.Int64),
    )
    has_ceiling = pl.coalesce("precision", "roof").is_in(list(ceilings))
    roofs = roofs.with_columns(source=pl.when(has_ceiling).then(pl.lit(GIVEN)).otherwise(pl.lit(REPORTED)))
    return ROOFS.checked(
        roofs.sort(pl.col("roof").cast(pl.Enum(("compute", *LEVELS))), "peak", descending=[False, True])
    )
