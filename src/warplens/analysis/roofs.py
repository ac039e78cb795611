"""Practical roofs: the time of well-shaped work of a kind on a GPU, beside the data sheet's peaks.

No kernel reaches the peaks of a data sheet. The practical roof of a kernel is the time that the best kernels of its
kind take for as much work of about this shape:

    time = max(FLOPs / practical FLOP rate, bytes / practical bandwidth), and never less than the shortest kernel

Rates come from a table measured on a GPU of that name (`data/roofs`, made by `benchmarks.roofs.measure`): the
well-shaped entries that are nearest in size, so that small work has a lower roof. For any other GPU they are the data
sheet's peaks times the stated factors of `STATED`, which are taken from the table of the H200.
"""

from __future__ import annotations

import json
import lzma
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.resources import files
from itertools import pairwise
from statistics import median
from typing import Any, Final

import numpy as np

from warplens.profile import Device
from warplens.profile.peaks import Peaks, peaks_of
from warplens.profile.schema import Float64s

#: 16-bit formats of tensor cores; the first one that a GPU supports is its native format for products.
NARROW: Final = ("bf16", "fp16")

#: Shares of the data sheet's peak reached by well-shaped kernels at large sizes, where no table was measured.
STATED: Final = {
    "gemm": 0.75,  # large products by cuBLAS: 0.7–0.8 at the clock that the power limit leaves
    "vector": 0.80,  # fp32 products on the vector units
    "convolution": 0.60,
    "attention": 0.50,  # fused attention, forward, head size 64–128
    "attention-backward": 0.40,
    "memory": 0.88,  # one long pass over memory
    "rows": 0.75,  # norms, softmax, reductions
    "index": 0.50,  # gather and scatter
    "sort": 0.07,  # radix sorts pass over keys and values several times
    "optimizer": 0.80,
}

#: A product that is faster than this share of the data sheet's peak is not what its shapes imply. Those of 400 traces
#: of an H200 reach 0.93; a GPU may exceed the boost clock of its data sheet by a few percent.
MOST_OF_PEAK: Final = 1.1

#: The shortest kernels: CUPTI shows 0.75–0.93 µs for the smallest ones on an H200.
SHORTEST_NS: Final = 900.0
#: Time that a kernel takes in addition to size ÷ rate where only a rate is known: filling and draining the GPU.
_RAMP_NS: Final = 2_000.0

#: Number of nearest entries (by size) whose rates are combined.
_NEIGHBOURS: Final = 3

#: Kinds of the table by family of work.
_MEMORY_KINDS: Final = {
    "normalization": "norm",
    "softmax": "softmax",
    "reduction": "reduction",
    "optimizer": "optimizer",
    "gather-scatter": "index",
    "sort-topk": "sort",
    "elementwise": "elementwise",
    "copy": "elementwise",
}


#: Kinds whose operations have different roofs: no sort is as fast as a scan.
_PER_OPERATION_KINDS: Final = ("sort",)
#: Bytes of an element.
ITEM: Final = {"fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}


@dataclass(frozen=True)
class Task:
    """The work of one kernel, or of the kernels of one operator."""

    family: str  #: kind of work, as `warplens.analysis.work` names families
    #: flops, bytes: the minimum required; 0 for what does not apply, None for unknown
    flops: float | None
    bytes: float | None
    dtype: str | None = None  #: format of the operands (`bf16`, `tf32`, `fp32`, …); None where it is not known
    tensor_cores: bool | None = None
    backward: bool = False  #: whether it computes gradients (attention and convolution differ there)
    #: operation within its family, as the table names it, where it has separate rates; None for any
    operation: str | None = None
    #: known sizes: `m`, `n`, `k`, `b` of products; `s`, `d`, `causal` of attention; `in`, `out`, `side`, `kernel`,
    #: `groups`, `b` of convolutions; `mask` where attention reads one
    sizes: Mapping[str, float] = field(default_factory=dict)
    half_sums: bool = False  #: whether products in fp16 are summed in fp16, too


@dataclass(frozen=True, eq=False)
class Roofs:
    """The roofs of one GPU."""

    gpu: str
    peaks: Peaks
    table: tuple[Mapping[str, Any], ...]  #: measured entries; empty where none were measured on a GPU of that name
    source: str  #: source of the practical roofs, one sentence for people

    @property
    def measured(self) -> bool:
        """Whether practical roofs were measured on such a GPU."""
        return bool(self.table)

    @cached_property
    def narrow(self) -> str | None:
        """The native 16-bit format of the GPU's tensor cores; None without one."""
        return next((name for name in NARROW if name in self.peaks.flops_per_s), None)

    def peak_of(self, task: Task) -> float | None:
        """The data sheet's FLOP rate for its arithmetic; None where it is not known."""
        return self.peaks.of(task.dtype, tensor_cores=task.tensor_cores, half_sums=task.half_sums)

    def time_ns(self, task: Task) -> float | None:
        """Time of this work at its practical roof, for its own size; None where both sides are unknown."""
        times = [self._compute_ns(task, large=False), self._memory_ns(task, large=False)]
        known = [time for time in times if time is not None]
        return max(*known, SHORTEST_NS) if known else None

    def large_ns(self, task: Task) -> float | None:
        """Its time as part of larger work of its kind: without ramp, and without kernels too small for the GPU."""
        times = [self._compute_ns(task, large=True), self._memory_ns(task, large=True)]
        known = [time for time in times if time is not None]
        return max(known) if known else None

    def theoretical_ns(self, task: Task) -> float | None:
        """Its time at the data sheet's peaks; None where both sides are unknown."""
        rate = self.peak_of(task)
        times = []
        if task.flops and rate:
            times.append(task.flops / rate * 1e9)
        if task.bytes and self.peaks.bytes_per_s:
            times.append(task.bytes / self.peaks.bytes_per_s * 1e9)
        return max(times) if times else None

    def unaligned_share(self, dtype: str | None, *, legacy: bool = False) -> float | None:
        """Rate of products with sizes unsuitable for tensor cores, as a share of the rate of well-shaped ones.

        Odd sizes fall back to kernels of an older generation (`legacy`), even ones to those of the generation after it.
        """
        large = [entry for entry in self._entries("gemm", dtype) if entry["m"] >= _LARGE]
        aligned_rates = [float(entry["rate"]) for entry in large if _well_shaped(entry)]
        same_api = (entry for entry in large if bool(entry.get("legacy")) == legacy)
        unaligned = [float(entry["rate"]) for entry in same_api if not _well_shaped(entry)]
        return min(1.0, median(unaligned) / max(aligned_rates)) if aligned_rates and unaligned else None

    def _compute_ns(self, task: Task, *, large: bool) -> float | None:
        if not task.flops:
            return None
        if task.family not in ("gemm", "convolution", "attention"):
            # Passes over expanded tensors read few bytes for many operations; their rates were not measured.
            peak = self.peak_of(task)
            return task.flops / peak * 1e9 if peak else None
        rate = self._flop_rate(task, large=large)
        if rate is None:
            return None
        mask = 0.0 if large else self._mask_ns(task)
        return task.flops / rate * 1e9 + mask + (0.0 if large or self.measured else _RAMP_NS)

    def _mask_ns(self, task: Task) -> float:
        """Time to read a mask: one element per score, once more for each head and sequence that share it.

        The mask is read from the cache, which is assumed to be no faster than a long pass over memory. On an H200
        attention with a head size of 64 then reaches 0.54 of its rate without a mask; cuDNN's and PyTorch's kernels
        were measured at 0.54–0.64.
        """
        sizes = task.sizes
        if not sizes.get("mask"):
            return 0.0
        scores = math.prod(sizes.get(name, 1) for name in "bhqs")
        mask = Task("elementwise", None, scores * max(ITEM.get(task.dtype or "", 2), 2))
        return self._memory_ns(mask, large=True) or 0.0

    def _flop_rate(self, task: Task, *, large: bool) -> float | None:
        peak = self.peak_of(task)
        dtype = "fp32" if task.tensor_cores is False and task.dtype in ("fp32", "fp16", "bf16") else task.dtype
        kind = "batched_gemm" if task.family == "gemm" and task.sizes.get("b", 1) > 1 else task.family
        rates = self._rates(task, kind, dtype)
        if rates is not None:
            return (rates.best(task.sizes) if large or not task.sizes else rates.near(task.sizes)) * 1e12
        if peak is None:
            return None
        name = task.family if task.family != "attention" or not task.backward else "attention-backward"
        return peak * (STATED["vector"] if dtype in ("fp32", "fp64") else STATED[name])

    def _rates(self, task: Task, kind: str, dtype: str | None) -> _Rates | None:
        """The rates of well-shaped work of this kind; None where none were measured."""
        direction = ("backward" if task.backward else "forward") if task.family != "gemm" else None
        depthwise = task.sizes.get("groups", 1) > 1 if task.family == "convolution" else None
        key = (task.family, kind, dtype, direction, depthwise)
        if key not in self._rates_by_kind:
            entries = [
                entry
                for entry in self._entries(kind, dtype)
                if _well_shaped(entry)
                and direction in (None, entry["op"])
                and (depthwise is None or (entry["groups"] > 1) == depthwise)
            ]
            self._rates_by_kind[key] = _Rates(task.family, entries) if entries else None
        return self._rates_by_kind[key]

    @cached_property
    def _rates_by_kind(self) -> dict[tuple[str | bool | None, ...], _Rates | None]:
        return {}

    def _memory_ns(self, task: Task, *, large: bool) -> float | None:
        if not task.bytes or self.peaks.bytes_per_s is None:
            return None
        kind = _MEMORY_KINDS.get(task.family, "elementwise")
        curve = self._curves.get(kind)
        if curve and task.operation is not None and (kind in _PER_OPERATION_KINDS or not large):
            # For large work the best operation of the kind is the limit: it shows what a better implementation would
            # take.
            curve = self._curves.get(f"{kind} {task.operation}", curve)
        if not curve:
            name = {"norm": "rows", "softmax": "rows", "reduction": "rows"}.get(kind, kind)
            rate: float = self.peaks.bytes_per_s * STATED.get(name, STATED["memory"])
            return task.bytes / rate * 1e9 + (0.0 if large else _RAMP_NS)
        if large:
            return task.bytes / max(rate for _, rate in curve) * 1e9
        return _time_on(curve, task.bytes)

    def _entries(self, kind: str, dtype: str | None) -> Sequence[Mapping[str, Any]]:
        return self._by_kind.get((kind, dtype), ())

    @cached_property
    def _by_kind(self) -> Mapping[tuple[str, str | None], Sequence[Mapping[str, Any]]]:
        entries: dict[tuple[str, str | None], list[Mapping[str, Any]]] = {}
        for entry in self.table:
            if entry["unit"] == "TFLOP/s":
                entries.setdefault((entry["kind"], entry["dtype"]), []).append(entry)
        return entries

    @cached_property
    def _curves(self) -> Mapping[str, Sequence[tuple[float, float]]]:
        """By kind, and by kind and operation: ascending sizes in bytes, and the best bandwidth at about each size."""
        best: dict[str, dict[int, tuple[float, float]]] = {}
        for entry in self.table:
            if entry["unit"] == "GB/s" and "dtype" in entry:
                rate = float(entry["rate"]) * 1e9
                size = rate * float(entry["us"]) / 1e6
                size_class = round(math.log2(size))
                for key in (entry["kind"], f"{entry['kind']} {entry['op']}"):
                    sizes = best.setdefault(key, {})
                    if rate > sizes.get(size_class, (0.0, 0.0))[1]:
                        sizes[size_class] = (size, rate)
        return {kind: _rising(sizes) for kind, sizes in best.items()}


def _rising(sizes: Mapping[int, tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """The sizes in order; a larger size reaches at least the bandwidth of a smaller one."""
    curve, reached = [], 0.0
    for _, (size, rate) in sorted(sizes.items()):
        reached = max(reached, rate)
        curve.append((size, reached))
    return curve


#: Products with at least this many rows are large.
_LARGE: Final = 1024
#: Sizes suitable for tensor cores are multiples of this many elements (16 bytes).
ALIGNED: Final = {"fp8": 16, "int8": 16, "bf16": 8, "fp16": 8, "tf32": 4}


def _well_shaped(entry: Mapping[str, Any]) -> bool:
    multiple = ALIGNED.get(entry["dtype"], 1)
    if entry["kind"] == "attention":
        return int(entry["d"]) % 8 == 0
    # The number of rows does not matter to the fast kernels, only the sizes contiguous in memory.
    return all(int(entry[size]) % multiple == 0 for size in ("n", "k") if size in entry)


#: What the distance between two tasks of a family weighs: differences of sizes, as binary logarithms.
_WEIGHTS: Final[Mapping[str, Mapping[str, float]]] = {
    "gemm": {"m": 1, "n": 1, "k": 1, "b": 0.5},
    "attention": {"s": 1, "d": 3, "causal": 4},
    "convolution": {"b": 1, "in": 1, "out": 1, "side": 1, "kernel": 1},
}


#: Sizes that stay as they are in larger work of a kind, and decide how fast it can be: head size and mask of attention.
FIXED_SIZES: Final = ("d", "causal")


class _Rates:
    """Measured rates of one kind of work, by the sizes at which they were measured.

    Distances to all entries are computed at once: a trace may hold a hundred thousand distinct shapes.
    """

    def __init__(self, family: str, entries: Sequence[Mapping[str, Any]]) -> None:
        self._rates = [float(entry["rate"]) for entry in entries]
        self._weights = _WEIGHTS[family]
        self._fixed = [name for name in FIXED_SIZES if name in self._weights]
        self._best: dict[tuple[float, ...], float] = {}  # by fixed sizes
        for entry, rate in zip(entries, self._rates, strict=True):
            fixed = tuple(entry[name] for name in self._fixed)
            self._best[fixed] = max(self._best.get(fixed, 0.0), rate)
        self._weight = np.array(list(self._weights.values()), dtype=np.float64)
        self._places = np.array([self._place(entry) for entry in entries])

    def best(self, sizes: Mapping[str, float]) -> float:
        """The highest rate that larger work reaches, of attention with this head size and mask.

        Of a head size that was not measured it is that of the nearest entries: nothing tells what larger work gains. Of
        an unknown one it is the highest of all, which none of them exceeds.
        """
        known = [sizes.get(name) for name in self._fixed]
        rates = [
            rate
            for fixed, rate in self._best.items()
            if all(size in (None, own) for size, own in zip(known, fixed, strict=True))
        ]
        return max(rates) if rates else self.near(sizes)

    def _place(self, sizes: Mapping[str, Any]) -> list[float]:
        return [
            float(bool(sizes.get(name, 0))) if name == "causal" else math.log2(max(sizes.get(name, 1), 1))
            for name in self._weights
        ]

    def _distances(self, sizes: Mapping[str, float]) -> Float64s:
        distances: Float64s = abs(self._places - self._place(sizes)) @ self._weight
        return distances

    def near(self, sizes: Mapping[str, float]) -> float:
        """The rate of the nearest entries, weighted by nearness; of equally near ones the best."""
        distances = self._distances(sizes)
        if "m" in self._weights:  # the product of the transposed matrices is as fast
            transposed = {**sizes, "m": sizes.get("n", 1), "n": sizes.get("m", 1)}
            distances = np.minimum(distances, self._distances(transposed))
        best: dict[float, float] = {}
        for entry in np.argsort(distances).tolist():
            distance = round(float(distances[entry]), 3)
            if len(best) == _NEIGHBOURS and distance not in best:
                break
            best[distance] = max(best.get(distance, 0.0), self._rates[entry])
        weights = [1 / (distance + 0.1) ** 2 for distance in best]
        return sum(weight * rate for weight, rate in zip(weights, best.values(), strict=True)) / sum(weights)


def _time_on(curve: Sequence[tuple[float, float]], size: float) -> float:
    """Time of one pass over this many bytes, interpolated between the two nearest sizes of the curve."""
    times = [(bytes_, bytes_ / rate * 1e9) for bytes_, rate in curve]
    if size <= times[0][0]:
        # Below the smallest size: a straight line to the shortest kernel.
        first, time = times[0]
        return SHORTEST_NS + (time - SHORTEST_NS) * size / first if time > SHORTEST_NS else SHORTEST_NS
    for (low, fast), (high, slow) in pairwise(times):
        if size <= high:
            return fast + (slow - fast) * (size - low) / (high - low)
    return size / curve[-1][1] * 1e9


def roofs_of(device: Device | None) -> Roofs | None:
    """The roofs of a GPU; None where its peaks are unknown."""
    peaks = peaks_of(device)
    if device is None or peaks is None:
        return None
    for pattern, table in _tables():
        if pattern.search(device.name):
            source = f"measured on one {table['gpu']} ({table['date']}, PyTorch {table['torch']})"
            return Roofs(device.name, peaks, tuple(table["entries"]), source)
    factors = f"{STATED['gemm']} for products, {STATED['memory']} for memory, …"
    return Roofs(device.name, peaks, (), f"{peaks.source}, times stated factors ({factors}), not measured")


@cache
def _tables() -> tuple[tuple[re.Pattern[str], Mapping[str, Any]], ...]:
    """The measured tables of the package with patterns of the GPU names that they hold for."""
    stored = files("warplens").joinpath("data", "roofs.json.xz")
    tables = json.loads(lzma.decompress(stored.read_bytes())) if stored.is_file() else []
    # An NVL card of the same chip has other clocks and bandwidth: a table holds only for its exact name.
    return tuple((re.compile(rf"^{re.escape(table['gpu'])}$"), table) for table in tables)
