"""How a window is written, and what it selects."""

from __future__ import annotations

import pytest

from tests.analysis.builders import kernel, launch, nvtx, trace
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import parse_span
from warplens.errors import UsageError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1.5s:2s", (1_500_000_000, 2_000_000_000)),
        ("0.1ms:250us", (100_000, 250_000)),
        (":3", (None, 3)),
        ("-1ms:", (-1_000_000, None)),
        ("1.000000001s:", (1_000_000_001, None)),
        ("-0.5ms:1µs", (-500_000, 1_000)),
    ],
)
def test_spans_are_exact_in_nanoseconds(text: str, expected: tuple[int | None, int | None]) -> None:
    assert parse_span(text) == expected


@pytest.mark.parametrize("text", ["1", "1:2:3", "a:b", "2s:1s", "1 parsec:", "5:5"])
def test_a_span_that_cannot_be_read_says_what_it_should_look_like(text: str) -> None:
    with pytest.raises(UsageError):
        parse_span(text)


def _timeline() -> Timeline:
    return Timeline(
        trace(
            [
                kernel(10, 20, "a", correlation=1),
                kernel(30, 40, "b", correlation=2),
                kernel(50, 60, "a", correlation=3),
            ],
            [launch(0, 2, 1), launch(4, 6, 2), launch(8, 9, 3)],
            [nvtx(0, 7, "forward"), nvtx(7, 10, "backward")],
        )
    )


def test_an_explicit_window_selects_the_work_that_begins_inside() -> None:
    timeline = _timeline()
    assert timeline.kernels_in(timeline.window("30:50"))["start_ns"].to_list() == [30]


def test_all_selects_everything() -> None:
    timeline = _timeline()
    window = timeline.window("all")
    assert timeline.kernels_in(window).height == 3
    assert (window.start_ns, window.end_ns) == (0, 60)


def test_a_range_selects_the_work_launched_inside_it_not_the_work_that_runs_meanwhile() -> None:
    timeline = _timeline()
    assert timeline.kernels_in(timeline.window("all", "forward"))["start_ns"].to_list() == [10, 30]
    assert timeline.api_calls_in(timeline.window("all", "backward"))["correlation"].to_list() == [3]


def test_an_unknown_range_is_refused_with_similar_names() -> None:
    with pytest.raises(UsageError, match=r"'forwrd'.*'forward'"):
        _timeline().window("all", "forwrd")


def test_a_window_outside_of_the_recording_is_refused() -> None:
    with pytest.raises(UsageError, match=r"outside the recorded time"):
        _timeline().window("1s:")
