"""Warplens and `nsys stats` agree to the nanosecond, on every capture and over everything that was recorded."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import TYPE_CHECKING

import pytest
from benchmarks.generate_nsys import generate

import warplens
from tests.tiers import thinned

from .captures import captures, has_device_data
from .nsys_stats import EXPECTED, REPORTS, Answers, collect, digest, find_nsys, fingerprint, load
from .our_reports import OUR_REPORTS

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from .captures import Capture
    from .nsys_stats import Reported, Row, Value

#: Means, medians and standard deviations are printed with one decimal.
ROUNDING = 0.05
#: … and are computed in double precision by both sides.
DOUBLE_PRECISION = 1e-9

#: Captures that hold every API call twice, as two layers of the tool saw it: nsys joins a kernel with both.
CALLS_RECORDED_TWICE = {"a100_tiny_2021"}

#: Captures of which nsys is asked again each time, one of ours and one of somebody else; of the others its answers are
#: stored, and compared with ours by `test_the_statistics_equal_those_that_nsys_gave`.
_ASKED_AGAIN = ("deit224_bs1_baseline", "a100_lm_small_no_nvtx")

_CAPTURES = {capture.stem: capture for capture in captures()}
_STORED = [path.name.removesuffix(".json.gz") for path in sorted(EXPECTED.glob("*.json.gz"))]

# The CUDA version that a function's parameters date from: nsys removes it where it has four digits, we also where five.
_VERSION_SUFFIX = re.compile(r"_v\d{4,5}$")


def test_an_expectation_is_stored_for_every_capture_with_device_data(tmp_path):
    for stem, capture in _CAPTURES.items():
        if has_device_data(capture.unpacked_into(tmp_path)):
            assert stem in _STORED, f"{stem}: run `python -m tests.oracle.collect_expected {stem}`"


@pytest.mark.parametrize("stem", _STORED)
def test_the_stored_expectation_is_of_this_version_of_the_capture(stem, tmp_path):
    database = _capture(stem).unpacked_into(tmp_path)
    assert _stored(stem).sha256 == fingerprint(database), "the capture has changed: collect the expectations again"


@cache
def _stored(stem: str) -> Answers:
    answers = load(stem)
    assert answers is not None
    return answers


#: The answers to one capture of three each time: the others differ in the program, not in what is in the file.
_STORED_REPORTS = [
    pytest.param(stem, report, marks=[pytest.mark.slow] * bool(place % 3))
    for place, stem in enumerate(_STORED)
    for report in _stored(stem).reports
]


@pytest.mark.parametrize(("stem", "report"), _STORED_REPORTS)
def test_the_statistics_equal_those_that_nsys_gave(stem, report):
    answers = _stored(stem)
    _assert_equal(stem, report, answers.reports[report], answers.domains)


_needs_nsys = pytest.mark.skipif(find_nsys() is None, reason="nsys is neither in WARPLENS_NSYS nor on the PATH")


@pytest.mark.oracle
@_needs_nsys
@pytest.mark.parametrize("stem", thinned(_CAPTURES, quick=_ASKED_AGAIN))
def test_the_statistics_equal_those_that_nsys_gives_now(stem, tmp_path):
    database = _capture(stem).unpacked_into(tmp_path)
    if not has_device_data(database):
        pytest.skip("the capture holds no CUDA data")
    answers = collect(str(find_nsys()), database, shorten=False)
    for report, reported in answers.reports.items():
        _assert_equal(stem, report, reported, answers.domains)


@pytest.mark.oracle
@_needs_nsys
def test_nsys_reads_the_generated_capture_of_the_benchmarks_as_we_do(tmp_path):
    database = tmp_path / "generated.sqlite"
    generate(database, kernels=10_000)
    answers = collect(str(find_nsys()), database, shorten=False)
    assert answers.reports.keys() == REPORTS.keys()
    for report, reported in answers.reports.items():
        _assert_rows_equal(report, OUR_REPORTS[report](_timeline(database)).rows(), reported, domains=[])


def _capture(stem: str) -> Capture:
    if stem not in _CAPTURES:
        pytest.skip(f"the capture {stem} is not on this machine (see WARPLENS_SHARED)")
    return _CAPTURES[stem]


@lru_cache(maxsize=2)
def _timeline(path: Path) -> warplens.Timeline:
    return warplens.Timeline(warplens.read(path))


def _assert_equal(stem: str, report: str, theirs: Reported, domains: list[str]) -> None:
    ours = OUR_REPORTS[report](_timeline(_capture(stem).path)).rows()
    if stem in CALLS_RECORDED_TWICE and report == "cuda_api_sum":
        _assert_one_of_two_equal(ours, theirs)
    elif stem in CALLS_RECORDED_TWICE and report == "cuda_kern_exec_sum":
        _assert_kernels_equal_and_counted_twice(ours, theirs)
    else:
        _assert_rows_equal(report, ours, theirs, domains)


def _assert_rows_equal(report: str, ours: list[Row], theirs: Reported, domains: list[str]) -> None:
    found, expected = _by_key(report, ours, domains), _by_key(report, theirs.rows, domains)
    if theirs.is_complete:
        assert found.keys() == expected.keys()
    else:
        assert len(ours) == theirs.count
        assert digest(report, ours) == theirs.digest
    for key, row in expected.items():
        for column, mine, value in zip(_numbers(report), found[key], row, strict=True):
            assert _is_equal(report, column, mine, value), f"{key}: {column} is {mine}, nsys says {value}"


def _numbers(report: str) -> tuple[str, ...]:
    return (*REPORTS[report].exact, *REPORTS[report].rounded)


def _is_equal(report: str, column: str, ours: Value, theirs: Value) -> bool:
    if column in REPORTS[report].exact:
        return ours == theirs
    if ours is None or theirs is None:
        return not ours and not theirs  # nsys prints 0.0 as the standard deviation of nothing
    return abs(float(ours) - float(theirs)) <= ROUNDING + DOUBLE_PRECISION * abs(float(theirs))


def _by_key(report: str, rows: Iterable[Row], domains: list[str]) -> dict[Row, Row]:
    """The numbers of each row by what it is about, under names that both sides share."""
    keys = REPORTS[report].keys
    table = {}
    for row in rows:
        key = tuple(_shared_name(report, column, cell, domains) for column, cell in zip(keys, row, strict=False))
        assert key not in table, f"two rows for {key}"
        table[key] = tuple(row[len(keys) :])
    return table


def _shared_name(report: str, column: str, cell: Value, domains: list[str]) -> Value:
    if not isinstance(cell, str):
        return cell
    if column in ("Range", "NVTX Range"):
        return next((cell.removeprefix(f"{domain}:") for domain in domains if cell.startswith(f"{domain}:")), cell)
    if column == "Operation":
        return cell.lower()
    names_a_function = column == "API Name" or report == "cuda_api_sum"
    return _VERSION_SUFFIX.sub("", cell) if names_a_function else cell


def _assert_one_of_two_equal(ours: list[Row], theirs: Reported) -> None:
    assert {row[0] for row in ours} == {row[0] for row in theirs.rows}
    for name, *numbers in ours:
        layers = [row[1:] for row in theirs.rows if row[0] == name]
        assert len(layers) == 2
        columns = _numbers("cuda_api_sum")
        assert any(
            all(_is_equal("cuda_api_sum", *compared) for compared in zip(columns, numbers, layer, strict=True))
            for layer in layers
        )


def _assert_kernels_equal_and_counted_twice(ours: list[Row], theirs: Reported) -> None:
    columns = REPORTS["cuda_kern_exec_sum"].columns
    ours_by_kernel = {row[columns.index("Kernel Name")]: dict(zip(columns, row, strict=True)) for row in ours}
    for row in theirs.rows:
        expected = dict(zip(columns, row, strict=True))
        found = ours_by_kernel[expected["Kernel Name"]]
        assert expected["Count"] == 2 * int(found["Count"] or 0)
        assert (expected["KMin"], expected["KMax"]) == (found["KMin"], found["KMax"])
