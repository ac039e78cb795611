"""Work of the tensor cores: operations by number format, and the rate that the GPU has for each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from warplens.analysis.counters.speedoflight import measured, with_launch

if TYPE_CHECKING:
    from warplens.profile.counters import KernelCounters


#: Rates of tensor operations: of each data type, of each instruction, and of both with and without sparsity.
_RATE = re.compile(
    r"^sm__ops_path_tensor_(?P<what>src|op_\w+?_src)_(?P<source>[a-z0-9]+(?:_(?:fp|bf|tf)\d+)*?)"
    r"(?:_dst_(?P<result>\w+?))?(?:_sparsity_(?P<sparsity>on|off))?\.sum\.per_second$"
)

#: Products with two of four values zero run twice as fast as dense ones on the paper of every GPU that has them
#: (compute capability 8.0 and later), and the peak of a data type's total is theirs: on an H200, 8,192 operations a
#: multiprocessor and cycle for bfloat16 in total and with sparsity, 4,096 without.
SPARSE_GAIN: Final = 2
_FIRST_WITH_SPARSITY: Final = 8

#: Types that have no sparse products.
_ALWAYS_DENSE: Final = ("fp64", "int1")


@dataclass(frozen=True)
class _Rate:
    """One metric: what it counts."""

    name: str
    is_instruction: bool
    source: str
    total: str
    sparse: bool | None


def tensor_work(counters: KernelCounters, clock: pl.Series) -> pl.DataFrame | None:
    """Operations of the tensor cores of each launch, and the peak that they are to be measured against.

    All types count. The peak is that of the instruction that did most of them; where only totals of data types were
    collected, that of the type. A dense product is not measured against the peak of a sparse one: a total's peak is
    halved where the type has sparse products, unless the operations counted show that these were at work.

    Args:
        clock: of the multiprocessors in each launch, in Hz.

    Returns:
        `launch`, `flops_per_s`, `peak_flops_per_s`, `format` (data type of the factors), `sparse` (null where only a
        total was collected and does not tell) and `precision`, which is `tensor`; None where nothing was collected.
    """
    rates = _rates(counters)
    if not rates:
        return None
    totals = {rate.total for rate in rates if rate.sparse is None}
    typed = any(not rate.is_instruction for rate in rates)
    parts = []
    for rate in rates:
        per_cycle = measured(counters, rate.name.removesuffix("per_second") + "peak_sustained")
        # A sum counts once: the total of a type, or its parts with and without sparsity; instructions only alone.
        counts = (not rate.is_instruction or not typed) and (rate.sparse is None or rate.total not in totals)
        part = with_launch(counters, flops_per_s=measured(counters, rate.name), peak_flops_per_s=per_cycle * clock)
        parts.append(
            part.with_columns(
                format=pl.lit(rate.source),
                sparse=pl.lit(rate.sparse, dtype=pl.Boolean),
                counts=pl.lit(counts),
                # The nearer to the instruction, the truer its peak.
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
    first = ranked.group_by("launch", maintain_order=True).agg(
        pl.col("flops_per_s").filter("counts").sum(),
        pl.col("peak_flops_per_s", "format", "sparse", "halved").first(),
    )
    return _with_dense_peaks(counters, first).with_columns(precision=pl.lit("tensor"))


def _with_dense_peaks(counters: KernelCounters, first: pl.DataFrame) -> pl.DataFrame:
    """Halves the peaks that are those of sparse products, where the products can have been dense."""
    major = with_launch(counters, major=measured(counters, "device__attribute_compute_capability_major"))
    capabilities = [device.compute_capability for device in counters.capture.devices if device.compute_capability]
    known = max((major for major, _ in capabilities), default=0)
    half = pl.col("peak_flops_per_s") / SPARSE_GAIN
    sparsity = pl.coalesce("major", pl.lit(float(known))) >= _FIRST_WITH_SPARSITY
    halved = pl.col("halved") & sparsity & (pl.col("flops_per_s") <= half)
    above = pl.col("halved") & sparsity & (pl.col("flops_per_s") > half)
    return first.join(major, on="launch", how="left", maintain_order="left").select(
        "launch",
        "flops_per_s",
        pl.when(halved).then(half).otherwise("peak_flops_per_s").alias("peak_flops_per_s"),
        pl.when(pl.col("flops_per_s") > 0).then("format").alias("format"),
        pl.when(above).then(pl.lit(value=True)).otherwise("sparse").alias("sparse"),
    )


def _rates(counters: KernelCounters) -> list[_Rate]:
    found = []
    for name in counters.metrics.columns:
        if match := _RATE.match(name):
            sparsity = match["sparsity"]
            total = f"{match['what']}_{match['source']}_{match['result']}"
            sparse = None if sparsity is None else sparsity == "on"
            found.append(_Rate(name, match["what"] != "src", match["source"], total, sparse))
    return found
