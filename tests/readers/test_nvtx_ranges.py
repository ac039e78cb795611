"""Names and nesting of NVTX ranges."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from tests.readers.exports import Export, global_tid
from warplens.readers import read
from warplens.readers.nsys.texts import _crossing_groups, with_nesting


def _ranges(export: Export, path: Path) -> pl.DataFrame:
    return read(export.write(path)).ranges.with_columns(pl.col("name", "kind").cast(pl.String))


def _lineage(ranges: pl.DataFrame) -> dict[str, str | None]:
    """The name of each range's parent by its own name."""
    names = ranges["name"].to_list()
    return {
        name: None if parent is None else names[parent] for name, parent in zip(names, ranges["parent"], strict=True)
    }


def test_names_come_from_the_row_or_from_the_strings_mixed_in_one_file(export, path):
    export.range(0, 10, "own text")
    export.range(20, 30, None, textId=export.string("registered"))
    export.range(40, 50, "own text", textId=export.string("registered"))
    export.range(60, 70, "own text", textId=9999)  # a string that the file lacks
    export.range(80, 90, None)
    assert _ranges(export, path)["name"].to_list() == ["own text", "registered", "registered", "own text", ""]
    assert "unnamed-events" not in [note.code for note in read(path).capture.notes]


def test_text_in_the_row_may_hold_nuls_and_foreign_bytes(export, path):
    export.range(0, 10, "schön")
    export.range(20, 30, b"sch\xf6n")
    export.range(40, 50, b"step\x00\x01")
    assert _ranges(export, path)["name"].to_list() == ["schön", "sch�n", "step"]


def test_marks_and_domains_are_no_ranges(export, path):
    for kind in (33, 34, 39, 59, 60, 70, 71, 75):
        export.range(0, 10, str(kind), eventType=kind)
    ranges = _ranges(export, path)
    assert ranges.select("name", "kind").rows() == [
        ("59", "push-pop"),
        ("60", "start-end"),
        ("70", "push-pop"),
        ("71", "start-end"),
    ]


def test_an_export_of_marks_alone_has_no_ranges(export, path):
    export.kernel(0, 1)
    export.range(5, None, "a mark", eventType=34)
    assert _ranges(export, path).height == 0


def test_the_exports_own_event_types_go_first(export, path):
    export.row("ENUM_NSYS_EVENT_TYPE", id=159, name="NvtxPushPopRange", label="")
    export.range(0, 10, "new number", eventType=159)
    export.range(0, 10, "old number", eventType=59)
    assert _ranges(export, path)["name"].to_list() == ["new number"]


def test_a_range_that_was_still_open_ends_with_the_capture(export, path):
    export.range(10, None, "open")
    export.range(20, 30, "inside")
    export.kernel(50, 99)
    trace = read(export.write(path))
    assert trace.ranges["end_ns"].to_list() == [99, 30]
    assert trace.ranges["parent"].to_list() == [None, 0]
    assert [note.text for note in trace.capture.notes if note.code == "open-ranges"] == [
        "1 range was still open when the capture ended, and taken to end with the recording."
    ]


def test_a_librarys_ranges_lie_inside_the_applications(export, path):
    export.range(0, 100, "step", domainId=0)
    export.range(10, 90, "allreduce", domainId=5)
    export.range(20, 30, "copy", domainId=0)
    assert _lineage(_ranges(export, path)) == {"step": None, "allreduce": "step", "copy": "allreduce"}


def test_where_domains_cross_on_a_thread_each_nests_on_its_own(export, path):
    export.range(0, 50, "a", domainId=0)
    export.range(10, 20, "inside a", domainId=0)
    export.range(40, 60, "b", domainId=5)
    export.range(42, 45, "inside b", domainId=5)
    other = global_tid(thread=1)
    export.range(0, 100, "step", domainId=0, globalTid=other)
    export.range(10, 90, "allreduce", domainId=5, globalTid=other)
    assert _lineage(_ranges(export, path)) == {
        "a": None,
        "inside a": "a",
        "b": None,
        "inside b": "b",
        "step": None,
        "allreduce": "step",  # this thread's domains do nest
    }


def test_start_end_ranges_that_cross_are_set_apart_and_domains_stay_together(export, path):
    export.range(0, 50, "forward")
    export.range(10, 20, "nccl", domainId=5)
    export.range(30, 70, "prefetch", eventType=60)
    export.range(35, 40, "part of prefetch", eventType=60)
    export.range(60, 80, "late", eventType=60)
    assert _lineage(_ranges(export, path)) == {
        "forward": None,
        "nccl": "forward",
        "prefetch": None,
        "part of prefetch": "prefetch",
        "late": None,
    }


def test_start_end_ranges_that_nest_enclose_the_others(export, path):
    export.range(0, 100, "epoch", eventType=60)
    export.range(10, 50, "step")
    assert _lineage(_ranges(export, path)) == {"epoch": None, "step": "epoch"}


def test_threads_and_processes_do_not_nest_in_each_other(export, path):
    export.range(0, 100, "main")
    export.range(10, 50, "other thread", globalTid=global_tid(thread=1))
    export.range(10, 50, "other process", globalTid=global_tid(process=1))
    assert set(_lineage(_ranges(export, path)).values()) == {None}


@st.composite
def _some_ranges(draw: st.DrawFn) -> pl.DataFrame:
    count = draw(st.integers(0, 12))
    numbers = st.lists(st.integers(0, 12), min_size=count, max_size=count)
    starts = np.array(draw(numbers), dtype=np.int64)
    ends = starts + np.array(draw(numbers), dtype=np.int64)
    kinds = draw(st.lists(st.sampled_from(["push-pop", "start-end"]), min_size=count, max_size=count))
    few = st.lists(st.integers(0, 1), min_size=count, max_size=count)
    return pl.DataFrame(
        {
            "start_ns": starts,
            "end_ns": ends,
            "process": pl.Series([7] * count, dtype=pl.Int32),
            "thread": pl.Series(draw(few), dtype=pl.Int32),
            "kind": pl.Series(kinds, dtype=pl.Enum(["push-pop", "start-end"])),
            "domain": pl.Series(draw(few), dtype=pl.Int64),
        }
    )


@given(_some_ranges())
def test_crossing_threads_are_found_as_by_comparing_every_pair(ranges):
    rows = ranges.to_dicts()
    crossing = {a["thread"] for a in rows for b in rows if a["thread"] == b["thread"] and _cross(a, b)}
    threads = ranges["thread"].to_numpy().astype(np.int64)
    found = _crossing_groups(ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy(), threads)
    assert set(found.tolist()) == crossing


def _cross(a: dict[str, int], b: dict[str, int]) -> bool:
    return a["start_ns"] < b["start_ns"] < a["end_ns"] < b["end_ns"]


@given(_some_ranges())
def test_whatever_the_ranges_a_parent_encloses_its_child_on_the_same_thread(ranges):
    rows = with_nesting(ranges).to_dicts()
    for row in rows:
        if row["parent"] is not None:
            parent = rows[row["parent"]]
            assert parent["thread"] == row["thread"]
            assert parent["start_ns"] <= row["start_ns"]
            assert row["end_ns"] <= parent["end_ns"]
            assert row["depth"] == parent["depth"] + 1
        else:
            assert row["depth"] == 0
