"""Differences of tensors, against NumPy's own notion of neighbouring numbers and against sums written out."""

from __future__ import annotations

import numpy as np
import pytest

from warplens.analysis.numerics import FORMATS, NUMERICS, Tensor, numeric_differences, ulp_distance
from warplens.errors import MissingDataError


def random() -> np.random.Generator:
    """Numbers that are the same in each test, whichever ran before."""
    return np.random.default_rng(5)


def named(values: object, dtype: str) -> dict[str, Tensor]:
    kept = np.asarray(values, dtype="float32" if dtype == "bfloat16" else dtype)
    return {"out": Tensor(kept, dtype)}


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("steps", [0, 1, 3, 100])
def test_ulps_are_steps_to_the_next_number(dtype, steps):
    start = np.concatenate([random().normal(size=50), [0.0, -0.0, 1.0, -1.0, 2.0**-10]]).astype(dtype)
    moved = start.copy()
    for _ in range(steps):
        moved = np.nextafter(moved, np.asarray(np.inf, dtype=dtype))
    assert ulp_distance(start, moved, dtype).tolist() == [steps] * start.size
    assert ulp_distance(moved, start, dtype).tolist() == [steps] * start.size


def test_ulps_of_bfloat16_are_steps_of_its_eight_bits():
    one = np.asarray([1.0, 1.0, 1.0, -1.0, 0.0], dtype=np.float32)
    other = np.asarray([1.0 + 2**-7, 1.0 + 2**-9, 2.0, -1.0 - 2**-6, 0.0], dtype=np.float32)
    # The second rounds to one; from one to two are 2^7 numbers.
    assert ulp_distance(one, other, "bfloat16").tolist() == [1, 0, 128, 2, 0]


def test_the_coarser_format_counts():
    exact = random().uniform(1, 4, size=1000)
    rows = numeric_differences(named(exact, "float16"), named(exact, "float64"), "a to b")
    assert rows["ulp_format"].to_list() == ["float16"]
    assert rows["ulp_max"].item() == 0, "rounding to half precision is all that was done"
    assert rows["max_relative"].item() <= 2.0**-11


def test_errors_are_those_of_the_definitions():
    a, b = random().normal(size=(2, 3, 5)).astype(np.float32)
    (row,) = numeric_differences(named(a, "float32"), named(b, "float32"), "a to b").to_dicts()
    difference = np.abs(a.astype(float) - b)
    assert row["shape"] == "3×5"
    assert row["max_abs"] == difference.max()
    assert row["mean_abs"] == pytest.approx(difference.mean())
    assert row["relative"] == pytest.approx(np.sqrt((difference**2).sum() / (b.astype(float) ** 2).sum()))
    assert row["max_relative"] == pytest.approx((difference / np.abs(b)).max())
    assert sum(value for name, value in row.items() if name.startswith("ulp_") and name[4:].isdigit()) == 15


def test_what_is_not_finite_is_counted_and_left_out():
    rows = numeric_differences(named([1, np.nan, np.inf, 4], "float32"), named([1, 2, np.inf, 5], "float32"), "a to b")
    (row,) = rows.to_dicts()
    assert (row["not_finite"], row["not_finite_other"], row["not_finite_unlike"], row["max_abs"]) == (2, 1, 1, 1.0)
    assert row["identical_share"] == 0.5
    nothing = numeric_differences(named([np.nan], "float32"), named([1], "float32"), "a to b").to_dicts()[0]
    assert nothing["max_abs"] is None
    assert nothing["ulp_0"] == 0


@pytest.mark.parametrize("other", ["bfloat16", "float16", "float32", "float64"])
def test_numbers_beyond_the_other_format_are_compared_without_a_warning(other):
    (row,) = numeric_differences(named([1e308, 1], "float64"), named([-1, 1], other), "a to b").to_dicts()
    assert (row["max_abs"], row["ulp_0"], row["ulp_256"]) == (1e308, 1, 1)


def test_integers_differ_by_whole_numbers():
    (row,) = numeric_differences(named([2**62, -7, 5], "int64"), named([2**62 + 1, 3, 5], "int64"), "a to b").to_dicts()
    assert (row["max_abs"], row["ulp_max"], row["ulp_0"], row["ulp_1"], row["ulp_4"]) == (10, 10, 1, 1, 1)
    assert row["mean_abs"] == pytest.approx(11 / 3)


def test_an_exact_zero_has_no_relative_error():
    (row,) = numeric_differences(named([1e-9], "float32"), named([0], "float32"), "a to b").to_dicts()
    assert (row["relative"], row["max_relative"]) == (None, None)


def test_tensors_that_do_not_pair_are_refused():
    with pytest.raises(MissingDataError, match="no tensor has the same name"):
        numeric_differences(named([1], "float32"), {"other": Tensor(np.ones(1), "float64")}, "a to b")
    with pytest.raises(MissingDataError, match="out is of shape"):
        numeric_differences(named([1], "float32"), named([1, 2], "float32"), "a to b")


def test_the_columns_are_the_declared_ones():
    assert numeric_differences(named([1], "float16"), named([1], "float16"), "a to b").columns == NUMERICS.names
    assert set(FORMATS) == {"bfloat16", "float16", "float32", "float64", "int64"}
