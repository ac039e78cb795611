"""Traces that are cut off, damaged, or no traces of the PyTorch profiler at all."""

from __future__ import annotations

import gzip
import json
import lzma

import pytest
import zstandard

from tests.readers.kineto_traces import kernel, launch, operator, written
from warplens.errors import UnreadableInputError
from warplens.profile import Trace
from warplens.readers import read

_EVENTS = [
    event for at in range(40) for event in (operator("aten::mm", at, 0.5), launch(at, 0.25, at), kernel(at, 1, at))
]


def _note(trace: Trace, code: str) -> str:
    (note,) = [note for note in trace.capture.notes if note.code == code]
    return note.text


def _has(trace: Trace, code: str) -> bool:
    return any(note.code == code for note in trace.capture.notes)


def _rows(trace: Trace) -> int:
    return trace.kernels.height + trace.api_calls.height + trace.ranges.height


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("share", [0.2, 0.5, 0.77, 0.99])
def test_the_complete_events_of_a_trace_that_was_cut_off_are_recovered(tmp_path, indent, share):
    whole = json.dumps({"schemaVersion": 1, "traceEvents": _EVENTS}, indent=indent)
    text = whole[: int(len(whole) * share)]
    (path := tmp_path / "trace.json").write_text(text)
    found = read(path)
    closed = text.count('"args"') - (0 if text.rstrip().endswith(("}", ",")) and _ends_event(text) else 1)
    assert abs(_rows(found) - closed) <= 1
    assert _note(found, "truncated-trace").startswith(f"The trace breaks off: {_rows(found)} complete events")


def _ends_event(text: str) -> bool:
    return text.count("{") - text.count("}") == 1


def test_a_trace_cut_off_before_its_gpu_work_is_not_called_one_of_the_cpu(tmp_path):
    whole = written(tmp_path / "whole.json", [operator("aten::mm", at, 0.5) for at in range(40)])
    path = tmp_path / "cut.json"
    path.write_bytes(whole.read_bytes()[:-200])
    found = read(path)
    assert _has(found, "truncated-trace")
    assert "truncated before the gpu activity" in _note(found, "no-gpu-work").lower()
    assert not _has(found, "no-cuda-data")


@pytest.mark.parametrize("kept", [30, '"traceEvents"', "[", '"cat"'])
def test_a_trace_cut_off_before_or_inside_its_first_event_is_called_incomplete(tmp_path, kept):
    whole = json.dumps({"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "x"}], "traceEvents": _EVENTS})
    length = kept if isinstance(kept, int) else whole.index(kept, whole.index('"traceE')) + len(kept)
    (path := tmp_path / "trace.json").write_text(whole[:length])
    with pytest.raises(UnreadableInputError, match="incomplete, and ends before any event"):
        read(path)


def test_a_trace_appended_to_another_one_is_not_passed_over_in_silence(tmp_path):
    whole = json.dumps({"schemaVersion": 1, "traceEvents": _EVENTS})
    (path := tmp_path / "trace.json.gz").write_bytes(gzip.compress(whole.encode()) * 2)
    found = read(path)
    assert _rows(found) == len(_EVENTS)
    assert _note(found, "damaged-events").startswith("1 place in the trace could not be read")


def test_a_real_trace_cut_anywhere_keeps_every_complete_event(captured, tmp_path):
    text = gzip.decompress(captured("kineto/h200_topk_deit224_bs1.json.gz").read_bytes())
    begin = text.index(b'"traceEvents"')
    for cut in range(begin + 1_000, len(text), len(text) // 7):
        part = text[:cut]
        (path := tmp_path / "trace.json").write_bytes(part)
        assert f"{part[begin:].count(b'  },'):,} complete events" in _note(read(path), "truncated-trace")


@pytest.mark.parametrize(
    "pack",
    [gzip.compress, pytest.param(lzma.compress, marks=pytest.mark.slow), zstandard.ZstdCompressor().compress],
    ids=["gzip", "xz", "zstd"],
)
@pytest.mark.parametrize("count", [40_000, 2_000], ids=["long", "short"])
def test_what_a_damaged_compressed_file_gives_is_kept(tmp_path, pack, count):
    many = [kernel(at * 1.37, (at * 7919) % 1_000 / 10, at) for at in range(count)]
    packed = pack(json.dumps({"schemaVersion": 1, "traceEvents": many}).encode())
    (path := tmp_path / "trace.json.x").write_bytes(packed[: len(packed) * 2 // 3])
    found = read(path)
    assert 0 < found.kernels.height < count
    assert _has(found, "truncated-trace")


def test_a_trace_that_ends_with_its_last_event_but_without_brackets(tmp_path):
    text = json.dumps({"schemaVersion": 1, "traceEvents": _EVENTS})[:-2]
    (path := tmp_path / "trace.json").write_text(text)
    found = read(path)
    assert _rows(found) == len(_EVENTS)
    assert _note(found, "truncated-trace").endswith("complete events were recovered; what followed is missing.")
    path.write_text(json.dumps(_EVENTS)[:-1] + ",\n")  # which the format allows for a plain array
    assert not _has(read(path), "truncated-trace")


def test_constants_and_commas_that_json_does_not_have(tmp_path):
    text = json.dumps({"schemaVersion": 1, "a": float("inf"), "distributedInfo": {"rank": 5}, "traceEvents": _EVENTS})
    text = text.replace('"cbid": 211', '"cbid": NaN, "x": -Infinity').replace("}}, ", "}},, ").replace("}]", "},]")
    (path := tmp_path / "trace.json").write_text(text.replace('"rank": 5}', '"rank": 5,}'))
    found = read(path)
    assert _rows(found) == len(_EVENTS)
    assert found.capture.rank == 5
    assert {note.code for note in found.capture.notes} == {"no-device-info", "no-shapes", "whole-microseconds"}


def test_backslashes_that_escape_nothing(tmp_path):
    (path := tmp_path / "trace.json").write_text(
        r'{"schemaVersion": 1, "traceName": "C:\Users\x.json", "distributedInfo": {"rank": 2}, "traceEvents": ['
        r'{"ph": "X", "cat": "python_function", "name": "C:\code\new.py(1): f", "pid": 1, "ts": 1, "dur": 2}]}'
    )
    found = read(path)
    assert found.capture.rank == 2
    assert found.python_functions["name"][0].startswith("C:\\code")


@pytest.mark.parametrize(
    "breakage",
    [
        (
            '"name": "aten::mm", "pid": 100, "tid": 101, "ts": 20,',
            '"name": "aten::"mm", "pid": 100, "tid": 101, "ts": 20,',
        ),
        ('"ts": 20, "dur": 0.5, "args": {}}', '"ts": 20, "dur": 0.5, "args": {}'),
        ('"ts": 20, "dur": 0.5, "args": {}}', '"ts": 20, "dur": 0.5, "args": {}}}'),
        ('"ts": 20, "dur": 0.5, "args": {}}', '"ts": 20, "du'),
    ],
    ids=["stray quote", "missing brace", "extra brace", "lost bytes"],
)
def test_a_damaged_event_costs_itself_and_at_most_its_neighbour(tmp_path, breakage):
    text = json.dumps({"schemaVersion": 1, "traceEvents": _EVENTS})
    broken = text.replace(*breakage)
    assert broken != text
    (path := tmp_path / "trace.json").write_text(broken)
    found = read(path)
    assert len(_EVENTS) - 2 <= _rows(found) <= len(_EVENTS)
    if _rows(found) < len(_EVENTS):
        assert _has(found, "damaged-events")


def test_objects_in_arrays_of_an_event_are_no_events(tmp_path, monkeypatch):
    monkeypatch.setattr("warplens.readers.kineto.document.BLOCK_BYTES", 300)
    inner = [{"name": "x", "cat": "kernel"}, {"name": "y", "ph": "X", "ts": 1}, {"name": "z"}]
    events = [operator("aten::mm", at + 0.5, 0.5, nested=inner) for at in range(40)] + [kernel(1, 1)]
    found = read(written(tmp_path / "trace.json", events))
    assert (found.ranges.height, found.kernels.height) == (40, 1)
    assert not _has(found, "damaged-events")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"traceEvents": [{"ph": "X", "cat": "blink", "name": "paint", "ts": 1, "dur": 2}]}, "of another program"),
        (
            {"traceEvents": [{"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "/device:GPU:0"}}]},
            "XLA's profiler",
        ),
        ([{"ph": "X", "name": "mm", "ts": 1, "dur": 2, "pid": "CPU functions", "tid": 0}], "old autograd profiler"),
        ({"schema": "1.1.0-chakra.0.0.4", "pid": 1, "nodes": [{"id": 1}]}, "an execution trace of PyTorch"),
        ({"rocprofiler-sdk-tool": [{}]}, "the JSON output of rocprofv3"),
        ({"learning_rate": 0.1}, "no Chrome trace"),
        ({"a": {"traceEvents": [kernel(1, 1)]}}, "no Chrome trace"),
        ({"traceEvents": []}, "has no events"),
        ([], "has no events"),
        ([[1, 2], [3, 4]], "export_memory_timeline"),
    ],
)
def test_json_of_another_kind_is_refused_for_what_it_is(tmp_path, content, said):
    (path := tmp_path / "trace.json").write_text(json.dumps(content))
    with pytest.raises(UnreadableInputError, match=said) as caught:
        read(path)
    assert "\n" not in str(caught.value)
    assert str(tmp_path) not in str(caught.value)


def test_a_file_that_unpacks_without_end_is_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr("warplens.readers.limits.UNSUSPICIOUS_BYTES", 2**20)
    monkeypatch.setenv("WARPLENS_MAX_TRACE_EXPANSION", "10")
    (path := tmp_path / "trace.json.gz").write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * 2**23))
    with pytest.raises(UnreadableInputError, match=r"more than 10 times its size.*WARPLENS_MAX_TRACE_EXPANSION"):
        read(path)
