from __future__ import annotations

import pytest

from tests.analysis.counters.builders import COMPUTE, counters, launch
from warplens.analysis.counters import counter_notes, counters_summary, group_launches
from warplens.errors import UsageError
from warplens.profile.counters import Session


def test_launches_of_the_same_kernel_grid_and_block_are_one_group() -> None:
    report = counters(
        launch("a", grid=10),
        launch("b", grid=10),
        launch("a", grid=20),
        launch("a", grid=10),
        launch("a", grid=10, block=64),
    )

    groups = group_launches(report)

    assert groups.of_launch.to_list() == [0, 1, 2, 0, 3]
    assert groups.groups.select("first_launch", "launches").rows() == [(0, 2), (1, 1), (2, 1), (4, 1)]


def test_a_group_has_the_medians_of_its_launches_and_their_total_time() -> None:
    groups = group_launches(counters(*(launch(ns=ns, sm=sm) for ns, sm in ((100, 10.0), (300, 50.0), (120, 20.0)))))

    assert groups.groups["total_ns"].to_list() == [520.0]
    assert groups.counters.values("gpu__time_duration.sum").to_list() == [120.0]
    assert groups.counters.values(COMPUTE).to_list() == [20.0]


def test_a_launch_that_failed_does_not_spoil_its_group() -> None:
    groups = group_launches(counters(launch(ns=float("nan")), launch(ns=200.0), launch(ns=None)))

    assert groups.counters.values("gpu__time_duration.sum").to_list() == [200.0]
    assert groups.groups["total_ns"].to_list() == [200.0]


def test_groups_stand_in_the_order_of_their_time_and_launches_in_that_of_the_file() -> None:
    report = counters(launch("short", ns=10.0), launch("long", ns=1000.0), launch("failed", ns=None))

    assert counters_summary(report)["name"].to_list() == ["long", "short", "failed"]
    assert counters_summary(report, "launch")["name"].to_list() == ["short", "long", "failed"]


def test_a_metric_asked_for_is_a_column_of_its_own() -> None:
    report = counters(launch(**{"lts__t_sectors.sum": 5.0}), launch(**{"lts__t_sectors.sum": 7.0}))

    assert counters_summary(report, "launch", ["lts__t_sectors.sum"])["lts__t_sectors.sum"].to_list() == [5.0, 7.0]
    assert counters_summary(report, "group", ["lts__t_sectors.sum"])["lts__t_sectors.sum"].to_list() == [6.0]


def test_a_metric_that_was_not_collected_is_refused_with_those_near_it() -> None:
    with pytest.raises(UsageError, match=r"'lts__t_sector.sum' was not collected; near it are lts__t_sectors.sum"):
        counters_summary(counters(launch(**{"lts__t_sectors.sum": 5.0})), "group", ["lts__t_sector.sum"])


def test_an_empty_report_has_no_rows_and_says_so() -> None:
    report = counters()

    assert counters_summary(report).is_empty()
    assert [item.code for item in counter_notes(report)][:1] == ["no-launches"]


def test_notes_say_how_the_numbers_were_got() -> None:
    session = Session(cache_control="all", clock_control="base")

    codes = {
        item.code for item in counter_notes(counters(launch(profiler__replayer_passes=19.0, sm=1.0), session=session))
    }

    assert codes == {"caches-flushed", "clocks-locked", "replayed", "coverage-unknown"}


def test_notes_say_what_is_missing() -> None:
    notes = {item.code: item.text for item in counter_notes(counters(launch(ns=None), launch(sm=1.0), launch()))}

    assert notes["launches-without-time"].startswith("1 of 3 launches")
    assert notes["no-throughputs"].startswith("1 of 3 launches")


def test_no_note_claims_idle_time() -> None:
    assert not any("idle" in item.text for item in counter_notes(counters(launch(sm=1.0))))
