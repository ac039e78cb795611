"""The columns that the reader takes from a Chrome trace are those that a plain JSON parser finds, to the nanosecond."""

from __future__ import annotations

import gzip
import json
import lzma
import random
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from tests.readers.kineto_oracle import rows_of
from tests.readers.kineto_traces import Raw, laid_out
from tests.tiers import thinned
from warplens.readers.kineto import document as kineto_document
from warplens.readers.kineto import json_text as kineto_json
from warplens.readers.kineto.spans import Recorded as Document
from warplens.readers.kineto.spans import read_events as read_document
from warplens.readers.kineto.values import PADDING, nanoseconds_at, whole_at, words_of
from warplens.readers.opening import Input

REAL_TRACES = (
    "h200_lm_small_train.json.gz",
    "h200_topk_deit224_bs1.json.gz",
    "hta_alexnet.json.gz",
    "hta_amd_mi250_minitoy.json.gz",
    "hta_call_stack_backward_thread.json",
    "hta_cpu_only_rank34.json.gz",
    "hta_cupti_profiler_counters.json.gz",
    "hta_large_integer_rank70.json.gz",
    "hta_multirank_sampled_rank0.json.gz",
    "hta_multirank_sampled_rank1.json.gz",
    "hta_nccl_data.json.gz",
    "hta_negative_queue_rank0.json.gz",
    "hta_no_distributed_info.json.gz",
    "hta_ns_resolution_rank0.json.gz",
    "hta_trace_diff_control.json.gz",
    "hta_trace_diff_test.json.gz",
    "tracelens_b200_eager_trace.json.gz",
    "tracelens_h100_qwen0p5b.json.gz",
    "tracelens_mi300_qwen0p5b.json.gz",
    "tracelens_vllm_graph_execution.json.gz",
)

#: Take seconds each; `make test` reads the others.
LARGE = (
    "hta_negative_queue_rank0.json.gz",
    "hta_ns_resolution_rank0.json.gz",
    "hta_trace_diff_control.json.gz",
    "hta_trace_diff_test.json.gz",
    "h200_lm_small_train.json.gz",
    "tracelens_b200_eager_trace.json.gz",
)


def _document(path: Path, compression: str | None = None) -> Document:
    return read_document(Input(path, path, compression), True)


def _assert_same(document: Document, expected: dict[str, list[dict[str, Any]]]) -> None:
    for kind, rows in expected.items():
        frame = document.frames[kind]
        assert frame.height == len(rows), kind
        for column in frame.columns:
            assert frame[column].to_list() == [row[column] for row in rows], (kind, column)


@pytest.mark.parametrize("name", thinned(REAL_TRACES, slow=LARGE))
def test_every_value_of_a_real_trace(captured, name):
    path = captured(f"kineto/{name}")
    is_packed = name.endswith(".gz")
    text = gzip.decompress(path.read_bytes()) if is_packed else path.read_bytes()
    document = _document(path, "gzip" if is_packed else None)
    _assert_same(document, rows_of(text.decode("utf-8", "replace")))
    assert document.events == len(json.loads(text)["traceEvents"])
    assert document.damaged == 0
    assert document.cut_off_bytes is None


@pytest.mark.parametrize(
    ("compression", "pack"),
    [("gzip", gzip.compress), ("xz", lzma.compress), ("zstd", zstandard.ZstdCompressor().compress)],
)
def test_compressed_traces_of_one_and_of_several_members(tmp_path, compression, pack):
    text = json.dumps({"traceEvents": [_plain_kernel(number) for number in range(50)]}).encode()
    for parts in ([text], [text[:300], text[300:2_000], b"", text[2_000:]]):
        (path := tmp_path / "trace").write_bytes(b"".join(pack(part) for part in parts))
        document = _document(path, compression)
        _assert_same(document, rows_of(text.decode()))
        assert document.cut_off_bytes is None


def test_gzip_is_unpacked_without_isal_too(captured, tmp_path, monkeypatch):
    packed = captured("kineto/hta_alexnet.json.gz").read_bytes()
    for path in ((tmp_path / "whole.gz"), (tmp_path / "cut.gz")):
        path.write_bytes(packed if path.stem == "whole" else packed[:20_000])
    found = [_document(tmp_path / name, "gzip") for name in ("whole.gz", "cut.gz")]
    monkeypatch.setitem(sys.modules, "isal", None)
    for document, name in zip(found, ("whole.gz", "cut.gz"), strict=True):
        without = _document(tmp_path / name, "gzip")
        assert without.events > 0
        assert abs(without.events - document.events) <= (0 if name == "whole.gz" else 200)
        assert (without.cut_off_bytes is None) == (document.cut_off_bytes is None) == (name == "whole.gz")


def _plain_kernel(number: int) -> dict[str, Any]:
    return {"ph": "X", "cat": "kernel", "name": f"k{number % 7}", "ts": number, "dur": 1, "pid": 0, "tid": 7}


_NUMBERS = st.one_of(
    st.integers(0, 10**6).map(lambda value: Raw(str(value))),
    st.integers(-(10**20), 10**20).map(lambda value: Raw(str(value))),
    st.decimals(-(10**16), 10**16, places=3).map(lambda value: Raw(str(value))),
    st.decimals(0, 10**13, places=9, allow_nan=False).map(lambda value: Raw(f"{value:f}")),
    st.floats(allow_nan=False, allow_infinity=False).map(lambda value: Raw(json.dumps(value))),
    st.sampled_from(
        [Raw("1.5e3"), Raw("-0"), Raw("0.0005"), Raw("0.0015"), Raw("12.3456785"), Raw("18446744073709551615")]
    ),
)
_ODD = st.one_of(
    st.none(), st.booleans(), st.text(max_size=5), st.just("stream 7"), st.just("42"), st.just([]), st.just({})
)
_SHAPES = st.lists(st.lists(st.integers(0, 4_096), max_size=3), max_size=3)
_NAMES = st.one_of(
    st.sampled_from(
        ["aten::mm", "[memory]", 'a "quoted" name', "back\\slash\\", "{lambda(int)#1}", ":odd", '"', "}, {", ""]
    ),
    st.text(max_size=40),
)
_ARGUMENTS = st.dictionaries(
    st.sampled_from(
        [
            "device",
            "stream",
            "correlation",
            "External id",
            "external id",
            "bytes",
            "Sequence number",
            "Addr",
            "Bytes",
            "x",
        ]
    ),
    st.one_of(_NUMBERS, _NUMBERS, _ODD),
    max_size=6,
)
_TEXTS = st.dictionaries(
    st.sampled_from(
        ["Input Dims", "Input type", "Concrete Inputs", "grid", "block", "Collective name", "name", "ts", "y"]
    ),
    st.one_of(_SHAPES, _NAMES, st.lists(_NAMES, max_size=3), _ODD, st.just({"cat": "kernel", "deep": [{"ph": "X"}]})),
    max_size=4,
)
_EVENTS = st.fixed_dictionaries(
    {},
    optional={
        "ph": st.sampled_from(["X", "X", "X", "X", "i", "M", "s", "f", "B", "E", "C"]),
        "cat": st.sampled_from(
            ["kernel", "Kernel", "cpu_op", "cuda_runtime", "gpu_memcpy", "fwdbwd", "cpu_instant_event", "ac2g", "other"]
        ),
        "name": _NAMES,
        "pid": st.one_of(_NUMBERS, _ODD),
        "tid": st.one_of(_NUMBERS, _ODD),
        "ts": st.one_of(_NUMBERS, _NUMBERS, _NUMBERS, _ODD),
        "dur": st.one_of(_NUMBERS, _NUMBERS, _ODD),
        "id": _NUMBERS,
        "args": st.one_of(st.builds(lambda first, second: {**first, **second}, _ARGUMENTS, _TEXTS), _ODD),
        "more": st.one_of(_SHAPES, _NAMES, st.just({"args": {"device": 3}})),
    },
)


@example(events=[], seed=0, around="{}x")
@given(events=st.lists(_EVENTS, max_size=12), seed=st.integers(0, 10**6), around=st.sampled_from(["{}", "{}x", "[]"]))
def test_any_valid_layout_gives_what_a_json_parser_gives(tmp_path_factory, events, seed, around):
    choice = random.Random(seed)
    if around == "[]":
        text = laid_out(events, choice)
    else:
        header = {"schemaVersion": 1, "distributedInfo": {"rank": 3, "more": [{"ph": "X"}, "]"]}, "traceEvents": events}
        text = laid_out({"traceEvents": events} if around == "{}" else header, choice)
    path = tmp_path_factory.mktemp("layout") / "trace.json"
    path.write_bytes(text.encode("utf-8", "replace"))
    document = _document(path)
    _assert_same_in_any_order(document, rows_of(path.read_text("utf-8")))
    assert document.events == len(events)
    assert document.damaged == 0
    if around == "{}x":
        assert document.header["distributedInfo"]["rank"] == 3


def _assert_same_in_any_order(document: Document, expected: dict[str, list[dict[str, Any]]]) -> None:
    """Events that hold further objects are read apart, and come after the others of their kind."""
    for kind, rows in expected.items():
        found = document.frames[kind].to_dicts()
        if kind == "flow":
            found = [{**row, "name": None} for row in found]
            rows = [{**row, "name": None} for row in rows]  # noqa: PLW2901
        assert sorted(map(repr, found)) == sorted(map(repr, rows)), kind


@given(events=st.lists(_EVENTS, min_size=1, max_size=40), seed=st.integers(0, 10**6), size=st.integers(40, 900))
def test_it_does_not_matter_where_the_text_is_cut(tmp_path_factory, events, seed, size):
    path = tmp_path_factory.mktemp("cut") / "trace.json"
    path.write_bytes(
        laid_out({"traceEvents": events, "a": [{"ph": 1}]}, random.Random(seed)).encode("utf-8", "replace")
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warplens.readers.kineto.document.BLOCK_BYTES", size)
        patch.setattr(kineto_document, "_WINDOW_BYTES", size)
        _assert_same_in_any_order(_document(path), rows_of(path.read_text("utf-8")))


@given(
    st.lists(
        st.one_of(
            st.from_regex(r"-?(0|[1-9][0-9]{0,20})(\.[0-9]{1,20})?", fullmatch=True),
            st.from_regex(r"(0|[1-9][0-9]{0,14})\.[0-9]{3}(0{0,6}|50{0,6}|49{0,5}|5[0-9]{0,5})", fullmatch=True),
            st.sampled_from(["NaN", "null", '"1"', "1e3", "1.", ".5", "-", "+1", "0x10", "1a", "1.5.5"]),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_a_number_is_read_exactly_or_left_to_the_exact_parser(tokens):
    text = b"\xff" * PADDING
    places = []
    for token in tokens:
        places.append(len(text))
        text += token.encode() + b","
    buffer = np.frombuffer(text + b"\xff" * PADDING, np.uint8)
    times = nanoseconds_at(buffer, words_of(buffer), np.array(places))
    wholes = whole_at(buffer, words_of(buffer), np.array(places))
    for row, token in enumerate(tokens):
        if times.read[row]:
            assert times.values[row] == int((Decimal(token) * 1000).to_integral_value())
        if wholes.read[row]:
            assert wholes.values[row] == kineto_json.whole(int(token))


def test_usual_times_and_ids_need_no_second_look():
    tokens = [
        "4371753741882.861",
        "1712195495519689.123",
        "1666149715033200",
        "0.896",
        "68.0",
        "18446744073709551615",
        "7",
    ]
    text = b"\xff" * PADDING + ",".join(tokens).encode() + b"\n" + b"\xff" * PADDING
    places = PADDING + np.cumsum([0, *(len(token) + 1 for token in tokens[:-1])])
    buffer = np.frombuffer(text, np.uint8)
    times = nanoseconds_at(buffer, words_of(buffer), places[[0, 1, 2, 3, 4, 6]])
    assert times.read.all()
    assert times.values.tolist() == [
        4_371_753_741_882_861, 1_712_195_495_519_689_123, 1_666_149_715_033_200_000, 896, 68_000, 7_000,
    ]  # fmt: skip
    wholes = whole_at(buffer, words_of(buffer), places[[5, 6]])
    assert wholes.read.all()
    assert wholes.values.tolist() == [-1, 7]
