"""`warplens flops` and `memory` on a trace counted by hand; profiles larger than the memory that a run may take."""

from __future__ import annotations

import gzip
import json
import lzma
from collections import Counter
from contextlib import closing
from dataclasses import replace
from functools import partial
from sqlite3 import connect
from typing import Any

import pytest
from benchmarks.generate_kineto import generate as generate_kineto
from benchmarks.generate_nsys import generate
from polars.testing import assert_frame_equal

from tests.readers.kineto_traces import event, written
from tests.readers.nsys_reports import report_of
from tests.shipped import capture
from warplens.analysis.kernels import kernel_statistics
from warplens.analysis.launches import launch_statistics
from warplens.analysis.phases import step_statistics
from warplens.analysis.ranges import range_statistics
from warplens.analysis.timebudget import time_budgets
from warplens.analysis.timeline import Timeline
from warplens.cli import memory
from warplens.cli.memory import parse_size
from warplens.cli.process import State
from warplens.errors import UnreadableInputError, UsageError
from warplens.profile.trace import TEXT_BYTES, TEXTS
from warplens.readers import events_in, read, sqlite
from warplens.readers.excerpts import distinct_values
from warplens.readers.nsys import slices

#: One product of 64 × 128 × 256 in bf16 (1 µs), one sum (2 µs), one operator of an extension (1 µs).
PRODUCT_FLOPS = 2 * 64 * 128 * 256
PRODUCT_BYTES = 2 * (64 * 128 + 128 * 256 + 64 * 256)
SUM_FLOPS = 64 * 256


_host = partial(event, process=1, thread=1)


def _operator(start: float, name: str, number: int, **inputs: Any) -> dict[str, Any]:
    return _host("cpu_op", name, start, 8.0, **{"External id": number, **inputs})


def _launched(call: float, start: float, length: float, name: str, number: int) -> list[dict[str, Any]]:
    tie = {"correlation": number, "External id": number}
    place = {"device": 0, "stream": 7, "grid": [1, 1, 1], "block": [128, 1, 1], **tie}
    return [
        _host("cuda_runtime", "cudaLaunchKernel", call, 1.0, **tie),
        event("kernel", name, start, length, process=0, thread=7, **place),
    ]


def _memory(time: float, size: int, address: int, total: int) -> dict[str, Any]:
    state = {"Total Allocated": total, "Total Reserved": 4_000_000}
    args = {"Device Type": 1, "Device Id": 0, "Bytes": size, "Addr": address, **state}
    return {**_host("cpu_instant_event", "[memory]", time, 0, **args), "ph": "i", "s": "t"}


@pytest.fixture(scope="session")
def torch_trace(tmp_path_factory):
    """A trace of three operators and three allocator events, as PyTorch's profiler writes it."""
    matrix = "c10::BFloat16"
    numbers = {"Input Dims": [[64, 256], [], [], []], "Input type": [matrix, "ScalarList", "Scalar", ""]}
    events = [
        _operator(0, "aten::mm", 1, **{"Input Dims": [[64, 128], [128, 256]], "Input type": [matrix, matrix]}),
        _memory(1, 32_768, 100, 1_032_768),
        *_launched(2, 20, 1.0, "nvjet_tst_64x64_64x16_1x1_h_bz_NNT", 1),
        _operator(10, "aten::sum", 2, **numbers, **{"Concrete Inputs": ["", "[0, 1]", "False", ""]}),
        _memory(11, 512, 200, 1_033_280),
        *_launched(12, 21, 2.0, "reduce_kernel<c10::BFloat16>", 2),
        _operator(20, "vendor::fused", 3, **{"Input Dims": [[64]], "Input type": [matrix]}),
        *_launched(22, 30, 1.0, "fused", 3),
        _memory(23, -32_768, 100, 1_000_512),
    ]
    device = {"id": 0, "name": "NVIDIA H200", "totalGlobalMem": 1, "numSms": 132}
    return written(tmp_path_factory.mktemp("traces") / "small.json", events, deviceProperties=[device])


@pytest.fixture
def asked(asked, torch_trace):
    """`data` of what is told of the trace."""
    return lambda command, *arguments: asked(command, torch_trace, "--window", "all", *arguments)["data"]


def test_flops_gives_modelled_work_over_measured_time(asked):
    data = asked("flops")

    by_name = {row["name"]: row for row in data["rows"]}
    product = by_name["aten::mm"]
    assert (product["flops"], product["bytes"], product["gpu_ns"]) == (PRODUCT_FLOPS, PRODUCT_BYTES, 1000)
    assert product["flops_per_s"] == pytest.approx(PRODUCT_FLOPS / 1e-6)
    assert product["peak_flops_per_s"] == 989.4e12
    assert by_name["aten::sum"]["flops"] == SUM_FLOPS
    assert data["flops"] == PRODUCT_FLOPS + SUM_FLOPS
    assert data["matmul_flops"] == PRODUCT_FLOPS


def test_flops_says_how_much_of_the_time_has_a_model_and_what_has_none(asked):
    data = asked("flops")

    assert data["coverage"] == {"total_ns": 4000, "modelled_ns": 3000, "modelled_share": 0.75}
    (rest,) = data["unmodelled"]["rows"]
    assert (rest["name"], rest["reason"], rest["share"]) == ("vendor::fused", "there is no formula for it", 0.25)


@pytest.mark.parametrize("by", ["name", "shapes", "family", "phase", "precision", "device"])
def test_however_operators_are_grouped_the_work_is_the_same(by, asked):
    rows = asked("flops", "--by", by)["rows"]

    assert sum(row["flops"] for row in rows) == PRODUCT_FLOPS + SUM_FLOPS


def test_memory_gives_the_peak_and_whose_it_was(asked):
    data = asked("memory")

    (row,) = data["rows"]
    assert row["peak_bytes"] == 1_033_280
    assert (row["reserved_bytes"], row["idle_bytes"]) == (4_000_000, 4_000_000 - 1_033_280)
    assert (row["begin_bytes"], row["end_bytes"], row["unseen_bytes"]) == (1_000_000, 1_000_512, 1_000_000)
    alive = [(item["owner"], item["bytes"]) for item in data["alive_at_peak"]["rows"]]
    assert alive == [("allocated before the recording", 1_000_000), ("aten::mm", 32_768), ("aten::sum", 512)]


def test_every_allocation_can_be_listed(asked):
    rows = asked("memory", "--by", "event")["rows"]

    assert [row["delta_bytes"] for row in rows] == [32_768, 512, -32_768]
    assert [row["allocated_bytes"] for row in rows] == [1_032_768, 1_033_280, 1_000_512]


def test_the_events_of_different_kinds_of_memory_are_told_apart(warplens):
    run = warplens("memory", capture("copies_and_syncs"), "--by", "event", "--window", "all")

    header = next(line for line in run.out.splitlines() if "Change" in line)
    assert header.split() == ["Time", "Process", "GPU", "Memory", "Change", "In", "use"]
    assert all(f" {kind} " in run.out for kind in ("device", "pinned"))


@pytest.mark.parametrize("by", ["memory", "operator", "step", "event"])
def test_a_profile_without_allocations_says_how_to_record_them(by, warplens, export):
    run = warplens("memory", export, "--by", by)

    assert run.code == 0
    assert "profile_memory=True" in run.out
    assert "--cuda-memory-usage=true" in run.out


@pytest.mark.parametrize(
    ("text", "size"), [("2GB", 2_000_000_000), ("500MB", 500_000_000), ("1.5GiB", 1_610_612_736), ("7", 7)]
)
def test_a_size_is_read_as_people_write_it(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "lots", "0GB", "-1GB", "2 XB"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(UsageError, match="2GB"):
        parse_size(text)


@pytest.mark.parametrize("window", ["all", ":1s"])
@pytest.mark.parametrize(
    "question",
    [
        *("kernels", "kernels --by name", "kernels --by category", "kernels --by stream"),
        *("api", "api --by name,thread", "copies", "copies --by direction"),
    ],
)
def test_slices_give_the_numbers_of_the_whole(question, window, export, warplens, monkeypatch):
    monkeypatch.setattr(sqlite, "ROWS_PER_PART", 3)
    monkeypatch.setattr(slices, "_LOOSE_ROWS", 3)  # so that counts are added up more than once
    command = (*question.split(), str(export), "--window", window, "--format", "json")
    whole = warplens(*command).data
    answered = json.loads(warplens(*command, "--memory", "1KB").out)
    sliced = answered["data"]
    whole["window"]["steps"] = []  # are not looked for

    assert whole["rows"]
    assert [note["code"] for note in answered["warnings"]] == ["read-in-slices"]
    assert _rounded(sliced) == _rounded(whole)


def _rounded(data: Any) -> Any:
    """Numbers to twelve digits: standard deviations are added up in another order."""
    if isinstance(data, dict):
        return {key: _rounded(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_rounded(value) for value in data]
    return float(f"{data:.12g}") if isinstance(data, float) else data


@pytest.fixture(
    scope="module", params=["steps.sqlite", "steps.json", "steps.json.gz", "steps.nsys-rep", "steps.sqlite.xz"]
)
def many_steps(request, tmp_path_factory):
    """Some twenty equal training steps: an export, packed or not, a report, and traces of PyTorch's profiler."""
    path = tmp_path_factory.mktemp("many") / request.param
    if ".json" in path.suffixes:
        generate_kineto(120_000, path)
        return path
    export = path.with_name("export.sqlite")
    generate(export, 40_000)
    if path.suffix == ".nsys-rep":
        path.write_bytes(report_of(export))
    else:
        path.write_bytes(lzma.compress(export.read_bytes(), preset=0) if path.suffix == ".xz" else export.read_bytes())
    return path


@pytest.mark.parametrize("share", [0.2, 0.7])
def test_the_steps_of_a_part_have_the_numbers_that_they_have_in_the_whole(share, many_steps):
    part, whole = Timeline(read(many_steps, share=share)), Timeline(read(many_steps))
    window = part.window()
    same = replace(whole.window("all"), start_ns=window.start_ns, end_ns=window.end_ns, kind="explicit",
                   steps=window.steps)  # fmt: skip

    assert 0.5 * share < len(window.steps) / len(whole.window().steps) < 1.1 * share
    assert {(step.start_ns, step.end_ns) for step in window.steps} <= {
        (step.start_ns, step.end_ns) for step in whole.window().steps
    }
    for ask in (kernel_statistics, launch_statistics, step_statistics):
        assert_frame_equal(ask(part, window), ask(whole, same))
    by_name = (range_statistics(*each, "name").drop("id") for each in ((part, window), (whole, same)))
    assert_frame_equal(*by_name)
    assert_frame_equal(time_budgets(part, window)[0].parts, time_budgets(whole, same)[0].parts)


@pytest.mark.parametrize("command", ["kernels", "diagnose", "report --format json"])
def test_a_profile_that_does_not_fit_is_answered_for_the_steps_in_its_middle(
    command, many_steps, warplens, monkeypatch, tmp_path
):
    for name in ("_FIXED_BYTES", "_READING_BYTES", "_ALONE"):  # of a small file they are nearly all
        monkeypatch.setattr(memory, name, 0)
    monkeypatch.chdir(tmp_path)
    name, *options = command.split()
    run = warplens(name, str(many_steps), "--memory", "10MB", *options)
    whole = warplens(name, str(many_steps), "--memory", "10MB", "--window", "all", *options)

    assert run.code == 0
    assert "of the recording was read" in run.out + run.err + "".join(p.read_text() for p in tmp_path.rglob("*.json"))
    assert whole.code == (0 if name == "kernels" else 2)  # in slices, as above


@pytest.mark.parametrize("question", ["kernels", "kernels --by category", "api", "copies"])
def test_work_read_alone_gives_the_numbers_of_the_whole(question, warplens, tmp_path, monkeypatch):
    rows = [
        event("kernel", "add", 10, 5, device=0, stream=7, correlation=1, **{"Collective name": "allreduce"}),
        event("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 20, 4, device=0, stream=7, correlation=2, bytes=64),
        _host("cuda_runtime", "cudaLaunchKernel", 2, 1, correlation=1),
        _host("cuda_runtime", "cudaMemcpyAsync", 4, 1, correlation=2),
        *(_host("cpu_op", "aten::add", start, 3, **{"External id": start}) for start in range(0, 400, 4)),
    ]
    trace = written(tmp_path / "trace.json", rows, deviceProperties=[{"id": 0, "name": "NVIDIA H200"}])
    _compare_with_whole(question, trace, ["read-in-slices", "whole-microseconds"], warplens, monkeypatch)


@pytest.mark.parametrize("question", ["kernels", "kernels --by category", "api", "copies"])
def test_work_of_a_report_read_alone_gives_the_numbers_of_the_whole(question, export, warplens, tmp_path, monkeypatch):
    report = tmp_path / "report.nsys-rep"
    report.write_bytes(report_of(export))
    _compare_with_whole(question, report, ["read-in-slices"], warplens, monkeypatch)


def _compare_with_whole(question, profile, notes, warplens, monkeypatch) -> None:
    command = (*question.split(), str(profile), "--window", "all", "--format", "json")
    whole = warplens(*command).data
    refused = warplens(*command, "--memory", "1KB")
    for name in ("_FIXED_BYTES", "_READING_BYTES", "_ALONE"):
        monkeypatch.setattr(memory, name, 0)
    answered = json.loads(warplens(*command, "--memory", "1KB").out)

    assert refused.code == 2
    assert "Ask about the steady steps" in refused.err
    whole["window"]["steps"] = []
    assert whole["rows"]
    assert [note["code"] for note in answered["warnings"]] == notes
    assert answered["data"] == whole


def test_profiles_that_are_read_together_must_fit_together(export, warplens, tmp_path, monkeypatch):
    other = tmp_path / "rank1.sqlite"
    other.write_bytes(export.read_bytes())
    files = [export, other]
    needed = memory.COMPARED.bytes_of(events_in(export, 1))
    compared = {size: warplens("compare", *map(str, files), "--memory", str(size)) for size in (needed, 3 * needed)}
    assert [run.code for run in compared.values()] == [2, 0]
    assert "together: needs about" in compared[needed].err
    assert warplens("ranks", *map(str, files), "--memory", "1KB").code == 2

    peak = memory.RANK.bytes_of(events_in(export, 1))
    for size, workers in ((peak, 1), (2 * peak, 2), (9 * peak, 2)):
        monkeypatch.setattr(State, "memory", size)
        assert memory.workers_that_fit(files, 5, memory.RANK) == workers


@pytest.mark.parametrize("name", ["damaged.json", "none.json", "none.json.gz"])
def test_a_large_trace_without_events_is_refused_when_a_part_is_asked_for(name, tmp_path):
    text = b'{"schemaVersion": 1, "traceEvents": [' + b'{"ph": "M", "name": "process_name", "args": {}},\n' * 3_000
    path = tmp_path / name
    path.write_bytes(gzip.compress(text + b"]}") if path.suffix == ".gz" else text + (b"]}" if "none" in name else b""))
    with pytest.raises(UnreadableInputError, match="no event of which a part could be read"):
        read(path, share=0.5)


@pytest.mark.parametrize(
    "text", ['[{"ph": "M", "name": "x"}]', '{"a": [1, 2]}', '{"traceEvents": [], "schemaVersion": 1}']
)
@pytest.mark.parametrize("command", ["diagnose", "kernels", "kernels --window all"])
def test_json_without_events_is_refused_as_such_whatever_the_limit(text, command, warplens, tmp_path):
    path = tmp_path / "other.json"
    path.write_text(text)
    name, *options = command.split()
    run, usual = (warplens(name, str(path), *options, *limit) for limit in (("--memory", "1KB"), ()))
    assert (run.code, run.out, run.err) == (usual.code, usual.out, usual.err)


def test_a_part_of_a_trace_of_begins_and_ends_has_the_steps_and_the_clock_of_the_whole(tmp_path):
    """Steps as pairs of `B` and `E`, one range around all of them, and events that reading leaves out."""
    rows: list[dict[str, Any]] = [{**_host("user_annotation", "epoch", 0, 1), "ph": "B"}]
    for number in range(40):
        start, tie = 100.0 * number, {"correlation": number}
        rows += [
            {**_host("user_annotation", f"ProfilerStep#{number}", start, 1), "ph": "B"},
            _host("cuda_runtime", "cudaLaunchKernel", start + 5, 2, **tie),
            event("kernel", "add", start + 20, 60.5, device=0, stream=7, **tie),
            {**_host("user_annotation", f"ProfilerStep#{number}", start + 99, 1), "ph": "E"},
        ]
    rows += [
        {**_host("user_annotation", "epoch", 4_000, 1), "ph": "E"},
        _host("cpu_op", "negative", -50, -3),
        {key: value for key, value in event("kernel", "lasting", -99, 1, device=0).items() if key != "dur"},
    ]
    for row in rows:
        if row["ph"] in "BE":
            del row["dur"]
    path = written(tmp_path / "steps.json", rows, deviceProperties=[{"id": 0, "name": "NVIDIA H200"}])
    part, whole = Timeline(read(path, share=0.4)), Timeline(read(path))
    of_part, of_whole = (
        {(step.start_ns, step.end_ns) for step in timeline.window().steps} for timeline in (part, whole)
    )
    assert len(of_part) > 10
    assert of_part <= of_whole
    assert not {"invalid-times", "open-ranges"} & {note.code for note in part.trace.capture.notes}
    assert "epoch" in part.trace.ranges["name"].to_list(), "it encloses the part"


def test_the_estimate_counts_distinct_names_and_their_characters(export, tmp_path):
    """Names of ranges and kernels that are all distinct, and long ones, against a count in SQL."""
    named = tmp_path / "named.sqlite"
    named.write_bytes(export.read_bytes())
    with closing(connect(named)) as connection:
        connection.execute("UPDATE NVTX_EVENTS SET text = 'range ' || rowid || printf('%.*c', 1000, 'x')")
        connection.commit()
        ((ranges, length),) = connection.execute("SELECT count(*), avg(length(text)) FROM NVTX_EVENTS").fetchall()
    usual, estimated = events_in(export, 1), events_in(named, 1)
    assert estimated[TEXTS] - usual[TEXTS] == pytest.approx(ranges, rel=0.1)
    assert estimated[TEXT_BYTES] - usual[TEXT_BYTES] == pytest.approx(ranges * length, rel=0.1)
    assert memory.TABLE.bytes_of(estimated) > memory.TABLE.bytes_of(usual) + ranges * length


def test_the_estimate_counts_the_names_of_traces_and_reports(export, tmp_path):
    trace, report = tmp_path / "trace.json", tmp_path / "report.nsys-rep"
    work = [_launched(10 * number, 10 * number + 2, 4, f"kernel {number}", number) for number in range(200)]
    written(trace, [event for launch in work for event in launch])
    report.write_bytes(report_of(export))
    assert events_in(trace, 1)[TEXTS] == pytest.approx(201, abs=4)
    assert events_in(report, 1)[TEXTS] == pytest.approx(events_in(export, 1)[TEXTS], rel=0.3)


@pytest.mark.parametrize(("distinct", "times", "count"), [(1_000, 1, 50_000), (10, 100, 50_000), (700, 1, 700)])
def test_distinct_values_are_estimated_from_a_sample(distinct, times, count):
    expected = count if times == 1 else distinct
    assert distinct_values(Counter(dict.fromkeys(range(distinct), times)), count) == expected
