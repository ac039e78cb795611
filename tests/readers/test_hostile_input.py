"""Files that were damaged, or made to keep a reader busy: each is read or refused within bounds."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import zstandard

from tests.cli.small_export import GEMM, SOFTMAX, write_export
from tests.readers.ncu_reports import Report
from warplens.analysis.counters.groups import group_launches
from warplens.analysis.timeline import Timeline
from warplens.errors import UnreadableInputError, UsageError
from warplens.profile.schema import LONGEST_NAME
from warplens.readers import read, read_counters
from warplens.readers.kineto import document
from warplens.readers.kineto.values import PADDING, skip_space
from warplens.readers.measurements import read_measurements
from warplens.readers.published import read_published
from warplens.readers.timings import read_timings
from warplens.scrub import scrub
from warplens.studies.policies.files import read_policy

_HEAD = b'{"schemaVersion":1,"traceEvents":['


def _operator(start_us: int, sequence: int = 1) -> bytes:
    name = b'{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"dur":5,'
    return name + b'"ts":%d,"args":{"External id":%d,"Sequence number":%d}}' % (start_us, start_us, sequence)


def _arrow(phase: bytes, at_us: bytes, flow: bytes) -> bytes:
    return b'{"ph":"%b","cat":"fwdbwd","name":"f","pid":1,"tid":1,"ts":%b,"id":%b}' % (phase, at_us, flow)


def _trace(path: Path, *events: bytes) -> Path:
    path.write_bytes(_HEAD + b",".join(events) + b"]}")
    return path


def test_forward_and_backward_links_in_a_circle_are_no_links(tmp_path):
    there = [_arrow(b"s", b"10", b"1"), _arrow(b"f", b"20", b"1")]
    back = [_arrow(b"s", b"20", b"2"), _arrow(b"f", b"10", b"2")]
    timeline = Timeline(read(_trace(tmp_path / "t.json", _operator(10, 1), _operator(20, 2), *there, *back)))

    chain = timeline.autograd.forward_chain(np.array([0, 1]))

    assert [rows.tolist() for rows in chain] == [[-1, 0]]


def test_arrows_without_time_or_number_are_left_out(tmp_path):
    arrows = [_arrow(b"s", b"NaN", b"1"), _arrow(b"f", b"20", b"NaN"), _arrow(b"s", b"10", b"2")]

    trace = read(_trace(tmp_path / "t.json", _operator(10), _operator(20), *arrows))

    assert (trace.operators.height, trace.autograd_links.height) == (2, 0)


@pytest.mark.parametrize("step", [1, -1])
def test_a_desert_of_blanks_is_crossed_from_either_side(step):
    text = np.full(100_000, ord(" "), np.uint8)
    text[[PADDING, 5_000, 90_000]] = ord("x")
    places = np.array([PADDING, 5_001, 40_000, 89_999])

    assert skip_space(text, places, step).tolist() == (
        [PADDING, 90_000, 90_000, 90_000] if step == 1 else [PADDING, 5_000, 5_000, 5_000]
    )


def test_blanks_everywhere_change_nothing(tmp_path):
    events = [_operator(1), _operator(9)]
    spaced = [event.replace(b":", b":" + b" " * 3_000).replace(b"}", b" " * 3_000 + b"}") for event in events]
    plain = read(_trace(tmp_path / "plain.json", *events))

    wide = read(_trace(tmp_path / "wide.json", *spaced[:1], b" " * 10**6 + spaced[1]))

    assert wide.ranges.equals(plain.ranges)
    assert wide.operators.equals(plain.operators)


@pytest.mark.parametrize("filler", [b"x", b'"', b"\\", b"{"], ids=["letters", "quotes", "backslashes", "braces"])
def test_text_without_events_is_passed_over_in_parts(filler, tmp_path, monkeypatch):
    monkeypatch.setattr(document, "EVENT_BYTES", 2**16)
    longest = 0
    padded = document.padded

    def watched(text: bytes, length: int) -> np.ndarray:
        nonlocal longest
        longest = max(longest, length)
        return padded(text, length)

    path = tmp_path / "t.json.zst"
    content = _HEAD + _operator(1) + b',{"ph":"X","name":"' + filler * (20 * 2**20)
    path.write_bytes(zstandard.compress(content))
    monkeypatch.setattr(document, "padded", watched)

    trace = read(path)

    assert trace.ranges.height == 1
    assert longest <= 8 * document.BLOCK_BYTES
    assert {"truncated-trace", "damaged-events"} & {note.code for note in trace.capture.notes}


def test_a_huge_text_is_removed_whole_from_a_copy(tmp_path):
    source = tmp_path / "profile.sqlite"
    write_export(source)
    huge = "x/" * 2**20
    with closing(sqlite3.connect(source)) as connection, connection:
        connection.execute("UPDATE StringIds SET value = ? WHERE id = (SELECT min(id) FROM StringIds)", (huge,))

    scrub(source, tmp_path / "copy.sqlite")

    assert (tmp_path / "copy.sqlite").stat().st_size < len(huge)


def test_a_cut_trace_is_copied_as_far_as_it_goes(tmp_path):
    source = tmp_path / "cut.json"
    source.write_bytes(_HEAD + _operator(1) + b"," + _operator(9) + b',{"ph": "X", "na')

    scrub(source, tmp_path / "copy.json")

    before, after = read(source), read(tmp_path / "copy.json")
    assert after.ranges.equals(before.ranges)
    assert "truncated-trace" not in {note.code for note in after.capture.notes}


@pytest.mark.parametrize("figure", ["99999999999999999999", "1e999999999", "10000000000000"])
def test_figures_beyond_64_bits_are_no_timings(figure, tmp_path):
    path = tmp_path / "times.csv"
    path.write_text(f"model,context,step_s\nsmall,128,{figure}\n")

    with pytest.raises(UnreadableInputError, match=r"times\.csv: line 2, column 'step_s'"):
        read_timings(path)


def test_a_name_of_megabytes_is_cut(tmp_path):
    profile = write_export(tmp_path / "p.sqlite", extra_kernel_name="k" * 5 * 2**20)

    names = read(profile).kernels["name"].cast(pl.String).unique().to_list()

    assert sorted(map(len, names)) == [len(SOFTMAX), len(GEMM), LONGEST_NAME + 1]


def _fifo(folder: Path) -> Path:
    os.mkfifo(folder / "fifo")
    return folder / "fifo"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("reader", [read, read_counters, read_measurements, read_published, read_timings, read_policy])
@pytest.mark.parametrize("make", [_fifo, lambda _: Path("/dev/zero")], ids=["pipe", "device"])
def test_what_never_ends_is_not_read(reader, make, tmp_path):
    with pytest.raises(UnreadableInputError, match="this is not a regular file"):
        reader(make(tmp_path))


@pytest.mark.parametrize("reader", [read_measurements, read_published, read_timings])
def test_documents_are_bounded_and_the_bound_is_named(reader, tmp_path, monkeypatch):
    path = tmp_path / "large.json"
    path.write_bytes(b"[" * 2_000)
    monkeypatch.setenv("WARPLENS_MAX_DOCUMENT_BYTES", "1e3")

    with pytest.raises(UnreadableInputError, match=r"more than 1,000 bytes.*WARPLENS_MAX_DOCUMENT_BYTES"):
        reader(path)


def test_a_policy_is_no_larger_than_policies_are(tmp_path):
    path = tmp_path / "large.json"
    path.write_bytes(b" " * (16 * 2**20 + 1))

    with pytest.raises(UnreadableInputError, match="more than 16,777,216 bytes, as no policy has"):
        read_policy(path)


@pytest.mark.parametrize("text", ["", "0", "-1", "nan", "1e30", "many"])
def test_a_bound_that_is_none_is_wrong_usage(text, tmp_path, monkeypatch):
    monkeypatch.setenv("WARPLENS_MAX_DOCUMENT_BYTES", text)
    (tmp_path / "p.json").write_text("{}")

    with pytest.raises(UsageError, match="WARPLENS_MAX_DOCUMENT_BYTES"):
        read_measurements(tmp_path / "p.json")


def test_an_endless_view_in_place_of_a_table_is_no_table(tmp_path):
    path = write_export(tmp_path / "p.sqlite")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL")
        endless = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT n AS start FROM r"
        connection.execute(f"CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS {endless}")

    assert read(path).kernels.height == 0


def test_counters_of_which_a_damaged_report_has_none_are_still_grouped(tmp_path):
    report = Report().launch("gemm", {}).launch("gemm", {"gpu__time_duration.sum": "a text"})

    counters = read_counters(report.write(tmp_path / "p.ncu-rep"))

    assert group_launches(counters).groups["total_ns"].to_list() == [None]
