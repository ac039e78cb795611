from __future__ import annotations

import pytest

from tests.analysis.counters.builders import COMPUTE, MEMORY, OF_PEAK, counters, launch
from warplens.analysis.counters.speedoflight import speed_of_light, throughput_breakdown

TENSOR = f"sm__pipe_tensor_cycles_active{OF_PEAK}"
SHARED_PIPE = f"sm__pipe_shared_cycles_active{OF_PEAK}"
ISSUE = f"sm__issue_active{OF_PEAK}"
DRAM = f"dram__cycles_active{OF_PEAK}"
L2 = f"lts__t_sectors{OF_PEAK}"


def test_the_busiest_part_of_each_side_is_named() -> None:
    report = counters(
        launch(sm=70.0, memory=40.0, **{TENSOR: 70.0, SHARED_PIPE: 70.0, ISSUE: 20.0, DRAM: 40.0, L2: 30.0})
    )

    found = speed_of_light(report).row(0, named=True)

    assert (found["compute_share"], found["compute_unit"]) == (pytest.approx(0.7), "tensor")
    assert (found["memory_share"], found["memory_unit"]) == (0.4, "dram")
    assert (found["pipe_unit"], found["pipe_share"]) == ("tensor", pytest.approx(0.7))


def test_a_part_above_the_throughput_does_not_count_towards_it() -> None:
    # lts__throughput counts more parts of L2 than the memory throughput does.
    report = counters(launch(memory=40.0, **{DRAM: 40.0, L2: 55.0}))

    assert throughput_breakdown(report)["unit"].to_list() == ["dram"]


def test_a_report_says_itself_which_parts_count() -> None:
    named = {f"breakdown:{MEMORY}": f"{DRAM},{L2}", f"breakdown:{COMPUTE}": ISSUE}
    others = {f"l1tex__lsuin_requests{OF_PEAK}": 39.0, TENSOR: 9.0}
    report = counters(launch(sm=10.0, memory=40.0, **{DRAM: 40.0, L2: 30.0, ISSUE: 10.0}, **named, **others))

    assert throughput_breakdown(report).select("side", "unit", "share").rows() == [
        ("compute", "issue", 0.1),
        ("memory", "dram", 0.4),
        ("memory", "l2", 0.3),
    ]


def test_a_launch_that_failed_is_unknown_not_zero() -> None:
    found = speed_of_light(counters(launch(ns=float("nan"), sm=float("nan"), memory=None), launch(sm=0.0))).to_dicts()

    assert (found[0]["duration_ns"], found[0]["compute_share"], found[0]["memory_share"]) == (None, None, None)
    assert (found[1]["compute_share"], found[1]["compute_unit"]) == (0.0, None)


def test_a_report_without_metrics_gives_a_row_a_launch() -> None:
    assert speed_of_light(counters(launch(ns=None), launch(ns=None))).height == 2
