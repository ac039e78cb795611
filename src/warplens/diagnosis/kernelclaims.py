"""Which cause could take most of the time of each kernel, and how much of it at most."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.analysis.categories import PRODUCTS
from warplens.diagnosis.findings import FINDING_IDS
from warplens.profile.peaks import peaks_of

if TYPE_CHECKING:
    from warplens.diagnosis.facts import Facts
    from warplens.profile import Device

__all__ = ["BANDWIDTH", "CAUSES", "NO_CAUSE", "OFF_TENSOR_CORES", "kernel_claims", "moves_data", "tensor_core_factor"]

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int8]

#: The causes that claims are made for, by position.
CAUSES: Final = tuple(FINDING_IDS)

#: Stands for no cause among positions.
NO_CAUSE: Final = -1

#: Categories that read, do a few operations a number, and write: their time is that of the memory traffic.
BANDWIDTH: Final = ("elementwise", "reduction", "normalization", "softmax", "copy-cast", "random")

#: Of those, such as must have seen all numbers of a row before they can go on: a fused pass ends there.
_PASSES: Final = ("reduction", "normalization", "softmax")

#: Formats of operands that have narrower ones on tensor cores beside them.
_WIDE: Final = ("fp32", "fp64")

#: A product in fp32 or fp64 that vector units carry out, as its name says.
OFF_TENSOR_CORES: Final = (
    pl.col("label").is_in(PRODUCTS)
    & pl.col("precision").is_in(_WIDE)
    & ~pl.col("tensor_cores")
    & ~pl.col("vector_product")
).fill_null(value=False)

#: What a program in fp32 can change to; each keeps its range of numbers or has scaling to make up for it.
_NARROWER: Final = ("tf32", "bf16", "fp16")

#: Every GPU with tensor cores has at least twice the rate on them.
_LEAST_FACTOR: Final = 2.0

#: What a counter report calls a fault → the finding that it supports.
_FAULTS: Final = {
    "uncoalesced": "uncoalesced",
    "bank-conflicts": "bank-conflicts",
    "divergence": "divergence",
    "partial-warps": "divergence",
    "occupancy": "occupancy",
    "small-grid": "small-kernels",
}


def tensor_core_factor(device: Device | None) -> float:
    """How much faster a product can get on this GPU's tensor cores than in fp32 beside them, at most: by its peaks."""
    peaks = peaks_of(device)
    vector = peaks.flops_per_s.get("fp32") if peaks is not None else None
    if peaks is None or not vector:
        return _LEAST_FACTOR
    narrower = [peaks.flops_per_s[name] for name in _NARROWER if name in peaks.flops_per_s]
    return max([rate / vector for rate in narrower], default=_LEAST_FACTOR)


def kernel_claims(facts: Facts, unfused: bool) -> tuple[Codes, Floats]:
    """For each piece of work the finding that claims a part of its time, and the share that it claims.

    A counter that was measured outweighs what a name or a grid lets one infer; an optimizer that is known to be unfused
    is that first of all.

    Returns:
        Positions in `CAUSES`, −1 for none, and shares of 0–1; both of shape (pieces of work,).
    """
    work = facts.work
    claimant = np.full(work.height, NO_CAUSE, dtype=np.int8)
    share = np.zeros(work.height)
    for cause, claimed in (
        ("precision", _precision(facts)),
        ("small-kernels", _small(facts)),
        ("memory-bandwidth", _bandwidth(facts)),
    ):
        more = claimed > share
        claimant[more] = CAUSES.index(cause)
        share = np.where(more, claimed, share)
    if work["bound"].null_count() < work.height:
        _measure(work, claimant, share)
    if unfused:
        optimizer = ((work["phase"] == "optimizer") & work["label"].is_in(BANDWIDTH)).to_numpy()
        claimant[optimizer] = CAUSES.index("unfused-optimizer")
        share[optimizer] = facts.thresholds.optimizer_saved_share
    return claimant, share


def _measure(work: pl.DataFrame, claimant: Codes, share: Floats) -> None:
    """Put what counters measured in place of what was inferred of the same kernels; at memory's roof both agree."""
    codes = {fault: CAUSES.index(cause) for fault, cause in _FAULTS.items()}
    fault = work["fault"].replace_strict(codes, default=NO_CAUSE, return_dtype=pl.Int8).fill_null(NO_CAUSE).to_numpy()
    known, at_memory = (
        work["bound"].is_not_null().to_numpy(),
        (work["bound"] == "memory").fill_null(value=False).to_numpy(),
    )
    inferred = (claimant != NO_CAUSE) & (claimant != CAUSES.index("precision"))
    replaced = known & ((fault != NO_CAUSE) | (inferred & ~at_memory))
    claimant[replaced] = fault[replaced]
    share[replaced] = np.where(fault != NO_CAUSE, work["fault_share"].fill_null(0.0).to_numpy(), 0.0)[replaced]


def moves_data(facts: Facts) -> pl.Series:
    """Which pieces of work are limited by memory traffic: measured, or inferred from category, length and grid."""
    limits = facts.thresholds
    long = (pl.col("end_ns") - pl.col("start_ns")) >= limits.bandwidth_kernel_ns
    wide = pl.col("fill_share").fill_null(1.0) >= 1.0
    inferred = pl.col("label").is_in(BANDWIDTH) & long & wide
    measured = (pl.col("bound") == "memory") & (pl.col("bound_unit") == "dram")
    known = pl.col("bound").is_not_null()
    return facts.work.select(pl.when(known).then(measured).otherwise(inferred).fill_null(value=False)).to_series()


def _precision(facts: Facts) -> Floats:
    factor = min((tensor_core_factor(device) for device in facts.devices), default=_LEAST_FACTOR)
    return np.where(facts.work.select(OFF_TENSOR_CORES).to_series().to_numpy(), 1 - 1 / factor, 0.0)


def _small(facts: Facts) -> Floats:
    """The share of the GPU that each kernel's grid cannot reach, less what other kernels fill at the same time."""
    if facts.busy_share < facts.thresholds.small_kernels_busy_share:
        return np.zeros(facts.work.height)
    is_kernel = (pl.col("kind") == "kernel") & (pl.col("label") != "communication")
    duration = pl.col("end_ns") - pl.col("start_ns")
    owned, lasting = facts.work.select(
        owned=pl.col("own_ns").filter(is_kernel).sum(), lasting=duration.filter(is_kernel).sum()
    ).row(0)
    at_once = max(lasting / owned, 1.0) if owned else 1.0
    empty = 1 - (pl.col("fill_share") * at_once).clip(0.0, 1.0)
    return facts.work.select(pl.when(is_kernel).then(empty).fill_null(0.0)).to_series().to_numpy()


def _bandwidth(facts: Facts) -> Floats:
    """1 for every kernel of a chain but the longest: a single fused pass would still take about as long as that one.

    A chain is an unbroken sequence of kernels of one stream and step that move data. A reduction ends it, for what
    follows needs all of its result.
    """
    work = facts.work
    saved = np.zeros(work.height)
    moving = moves_data(facts).to_numpy()
    if not moving.any():
        return saved
    steps = np.array([step.start_ns for step in facts.window.steps], dtype=np.int64)
    starts = work["start_ns"].to_numpy()
    lane = work["device"].to_numpy().astype(np.int64) << 32 | work["stream"].to_numpy()
    order = (
        np.lexsort((starts, lane))
        if work["stream"].n_unique() > 1 or work["device"].n_unique() > 1
        else np.arange(len(starts))
    )
    step = np.searchsorted(steps, starts, side="right")[order]
    lane, chained = lane[order], moving[order]
    closes = work["label"].is_in(_PASSES).to_numpy()[order]
    breaks = (lane[1:] != lane[:-1]) | (step[1:] != step[:-1]) | (chained[1:] != chained[:-1]) | closes[:-1]
    firsts = np.r_[0, np.flatnonzero(breaks) + 1]
    length = (work["end_ns"].to_numpy() - starts)[order]
    longest = np.maximum.reduceat(length, firsts)
    run = np.zeros(len(order), dtype=np.int64)
    run[firsts[1:]] = 1
    run = np.cumsum(run)
    is_longest = length == longest[run]
    # Of several that are equally long, the first stays.
    places = np.flatnonzero(is_longest)
    is_longest[places[1:][run[places[1:]] == run[places[:-1]]]] = False
    saved[order] = chained & ~is_longest
    return saved
