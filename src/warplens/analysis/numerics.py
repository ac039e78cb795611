"""Numeric differences of two implementations: absolute, relative, and in units of the last place.

Differences are taken in float64. A unit in the last place (ULP) is one step to the next number that the coarser of the
two formats can hold; both values are rounded to it first. For integers it is 1. Elements that are not finite in either
are counted and left out of the differences. Goldberg, "What every computer scientist should know about floating-point
arithmetic" (1991).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.errors import MissingDataError
from warplens.profile.columns import column, table
from warplens.profile.schema import Column

#: Fraction bits of each format; fewer are coarser.
FORMATS: Final = {"bfloat16": 7, "float16": 10, "float32": 23, "float64": 52, "int64": 63}

#: Lower bounds, in ULPs, of the classes of the histogram: equal, neighbours, and then by factors.
ULP_CLASSES: Final = (0, 1, 2, 4, 16, 256)

NUMERICS: Final = table(
    "numerics",
    "A tensor of two files held against each other. `warplens numerics`.",
    column("pair", dtype=pl.String, help="what is held against what"),
    Column("tensor", pl.String, "its name in the file", kind="name"),
    Column("shape", pl.String, "its shape", kind="text"),
    Column("ulp_format", pl.String, "the coarser format of both, in which ULPs are counted", title="Format"),
    Column("elements", pl.Int64, "numbers in it"),
    Column("not_finite", pl.Int64, "NaN and infinities of the first", title="Not finite"),
    Column("not_finite_other", pl.Int64, "NaN and infinities of the other", title="Of the other"),
    Column("not_finite_unlike", pl.Int64, "elements that are not finite, nor the same in both", title="Unlike"),
    Column("identical_share", pl.Float64, "of the elements, those that are equal or both NaN", nullable=True),
    Column("max_abs", pl.Float64, "greatest absolute difference", nullable=True),
    Column("mean_abs", pl.Float64, "mean absolute difference", nullable=True),
    Column("relative", pl.Float64, "‖a − b‖ / ‖b‖, of the whole tensor", nullable=True),
    Column("max_relative", pl.Float64, "greatest |a − b| / |b| where b is not zero", nullable=True),
    Column("ulp_median", pl.Float64, "median difference in ULPs", title="ULP median", nullable=True),
    Column("ulp_max", pl.Float64, "greatest difference in ULPs", title="ULP max", nullable=True),
    *(
        Column(f"ulp_{least}", pl.Int64, f"elements that differ by {words} ULP", title=f"{words} ULP")
        for least, words in zip(ULP_CLASSES, ("0", "1", "2–3", "4–15", "16–255", "256 and more"), strict=True)
    ),
)


ATTENTION_ERRORS: Final = table(
    "attention errors",
    "A tensor that an attention kernel computed, held against float64. `warplens bench attention --check`.",
    Column("implementation", pl.String, "of `warplens.workloads.attention.problem.KERNELS`", kind="name"),
    Column("shapes", pl.String, title="Problem", help="batch × heads × tokens × width of a head, type, mask, mode"),
    Column("tokens", pl.Int64, "of a sequence", kind="count"),
    column("status", help="`compared`, `unsupported`, `out-of-memory`, `failed`"),
    column("reason", help="why it was not compared", nullable=True),
    Column("formula_relative", pl.Float64, "the same of the formula in that format", title="Formula's", nullable=True),
    Column("near_enough", pl.Boolean, "finite, and at most twice as far as the formula", nullable=True),
    (each.but(nullable=True) for each in NUMERICS.columns if each.name != "pair"),
)


@dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor saved by a program."""

    values: npt.NDArray[Any]  #: bfloat16 as float32, which holds them exactly
    dtype: str  #: a key of `FORMATS`; all integers and booleans are `int64`


def numeric_differences(a: Mapping[str, Tensor], b: Mapping[str, Tensor], pair: str) -> pl.DataFrame:
    """Differences of each tensor in both files, in the order of the first; see `NUMERICS`.

    Args:
        a, b: the tensors by name.
        pair: description of the comparison, for people.

    Raises:
        MissingDataError: no tensor of one is in the other, or one has another shape there.
    """
    if not (shared := [name for name in a if name in b]):
        tensor_names = (
            ", ".join([*tensors][:3]) + (f" and {len(tensors) - 3} more" * (len(tensors) > 3)) for tensors in (a, b)
        )
        raise MissingDataError(f"{pair}: no tensor has the same name in both; there are {', and '.join(tensor_names)}")
    rows = []
    for name in shared:
        before, after = a[name], b[name]
        if before.values.shape != after.values.shape:
            raise MissingDataError(f"{pair}: {name} is of shape {before.values.shape} and of {after.values.shape}")
        rows.append({"pair": pair, "tensor": name, **_row(before, after)})
    return NUMERICS.conform(pl.DataFrame(rows, schema=NUMERICS.schema))


@np.errstate(over="ignore")  # differences and norms beyond float64 are infinite, which the row tells
def _row(before: Tensor, after: Tensor) -> dict[str, Any]:
    """How far two tensors differ: numbers that are not finite, errors, and units in the last place."""
    coarser = min((before.dtype, after.dtype), key=lambda name: FORMATS[name])
    first, second = before.values.ravel(), after.values.ravel()
    finite = np.isfinite(first) & np.isfinite(second)
    identical = (first == second) | (np.isnan(first) & np.isnan(second))
    row = {
        "shape": "×".join(map(str, before.values.shape)) or "scalar",
        "ulp_format": coarser,
        "elements": first.size,
        "not_finite": int(first.size - np.isfinite(first).sum()),
        "not_finite_other": int(second.size - np.isfinite(second).sum()),
        "not_finite_unlike": int((~finite & ~identical).sum()),
        "identical_share": float(identical.mean()) if first.size else None,
    }
    if not finite.any():
        return row | {f"ulp_{least}": 0 for least in ULP_CLASSES}
    first, second = first[finite], second[finite]
    ulps, reference = ulp_distance(first, second, coarser), second.astype(np.float64)
    # float64 does not hold every integer; the distance of two integers does not need it.
    magnitude = ulps.astype(np.float64) if coarser == "int64" else np.abs(first.astype(np.float64) - reference)
    norm, nonzero = float(np.linalg.norm(reference)), reference != 0
    classes = np.searchsorted(np.asarray(ULP_CLASSES, dtype=np.uint64), ulps, side="right") - 1
    counts = np.bincount(classes, minlength=len(ULP_CLASSES))
    return row | {
        "max_abs": float(magnitude.max()),
        "mean_abs": float(magnitude.mean()),
        "relative": float(np.linalg.norm(magnitude)) / norm if norm else None,
        "max_relative": float((magnitude[nonzero] / np.abs(reference[nonzero])).max()) if nonzero.any() else None,
        "ulp_median": float(np.median(ulps)),
        "ulp_max": float(ulps.max()),
        **{f"ulp_{least}": int(count) for least, count in zip(ULP_CLASSES, counts, strict=True)},
    }


def beyond_limit(rows: pl.DataFrame, limit: float) -> dict[str, list[str]]:
    """Tensors of `NUMERICS` that differ by more than a limit of `relative`, by the reason.

    Against zeros, `relative` is not defined: a difference of any size is then beyond the limit.
    """
    reasons = {
        f"beyond the limit of {limit:g}": pl.col("relative") > limit,
        "not zero, where the other is all zeros": pl.col("relative").is_null() & (pl.col("max_abs") > 0),
        "NaN or infinite, and not the same in both": pl.col("not_finite_unlike") > 0,
    }
    return {reason: rows.filter(is_so)["tensor"].to_list() for reason, is_so in reasons.items()}


def ulp_distance(a: npt.NDArray[Any], b: npt.NDArray[Any], dtype: str) -> npt.NDArray[np.uint64]:
    """Number of steps of a format between two finite values rounded to it. Zeros of either sign are equal.

    Args:
        a, b: values of any format.
        dtype: the format, a key of `FORMATS`.
    """
    first, second = (_ordered(values, dtype) for values in (a, b))
    return np.maximum(first, second) - np.minimum(first, second)


@np.errstate(over="ignore")  # values beyond the narrower format of the two are its infinity
def _ordered(values: npt.NDArray[Any], dtype: str) -> npt.NDArray[np.uint64]:
    """The rank of each value among all values of the format: sign and magnitude bits as one ascending number."""
    if dtype == "int64":
        return values.astype(np.int64).view(np.uint64) ^ np.uint64(1 << 63)
    if dtype == "bfloat16":
        bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
        half, shift = np.uint64(0x7FFF), np.uint64(16)
        bits, width = (bits + half + ((bits >> shift) & np.uint64(1))) >> shift, 16  # round to nearest, ties to even
    else:
        rounded = values.astype(dtype)
        width = rounded.dtype.itemsize * 8
        bits = rounded.view(f"u{rounded.dtype.itemsize}").astype(np.uint64)
    middle = np.uint64(1 << (width - 1))
    magnitude = bits & (middle - np.uint64(1))
    return np.where(bits >= middle, middle - magnitude, middle + magnitude)
