"""What the tables of a `Trace` hold of a Chrome trace of the PyTorch profiler."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from tests.readers.kineto_traces import annotation, arrow, event, kernel, launch, operator, written
from warplens.profile import Device, Trace
from warplens.profile.spelling import short_name
from warplens.readers import discover, read
from warplens.readers.kineto.gpu import copy_words

#: Kernels, copies, memsets, API calls, operators, annotations: counted event by event by category.
COUNTS = {
    "h200_lm_small_train.json.gz": (3_546, 147, 219, 4_186, 20_688, 6),
    "hta_alexnet.json.gz": (79, 16, 3, 361, 359, 8),
    "hta_amd_mi250_minitoy.json.gz": (14, 2, 0, 21, 70, 3),
    "hta_nccl_data.json.gz": (2_700, 960, 114, 8_740, 14_346, 42),
    "tracelens_h100_qwen0p5b.json.gz": (1_465, 1, 241, 1_922, 4_186, 1),
    "tracelens_mi300_qwen0p5b.json.gz": (1_516, 1, 0, 1_707, 4_619, 1),
    "tracelens_vllm_graph_execution.json.gz": (425, 9, 0, 20, 100, 1),
}


@pytest.fixture
def trace(tmp_path):
    """Reads the trace that holds these events."""

    def of(*events: dict[str, Any], **header: Any) -> Trace:
        return read(written(tmp_path / "trace.json", list(events), **header))

    return of


def _codes(trace: Trace) -> set[str]:
    return {note.code for note in trace.capture.notes}


@pytest.mark.parametrize("name", COUNTS)
def test_every_event_of_a_real_trace_is_there(captured, name):
    found = read(captured(f"kineto/{name}"))
    kinds = found.ranges["kind"].cast(pl.String)
    assert COUNTS[name] == (
        found.kernels.height,
        found.copies.height,
        found.memsets.height,
        found.api_calls.height,
        (kinds == "cpu-op").sum(),
        (kinds == "user-annotation").sum(),
    )


def test_a_real_kernel_value_by_value(captured):
    found = read(captured("kineto/h200_lm_small_train.json.gz"))
    row = found.kernels.row(0, named=True)
    assert found.capture.epoch_ns == 1_790_857_026_000_000_000 + 4_371_753_723_578_073
    assert found.capture.began_ns == found.capture.epoch_ns
    assert found.capture.epoch_ns + row["start_ns"] == 1_790_857_026_000_000_000 + 4_371_753_725_525_031
    assert row["end_ns"] - row["start_ns"] == 896
    assert row["name"] == "vectorized_elementwise_kernel"
    assert row["full_name"].startswith(
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<bool>"
    )
    assert [row[f"grid_{axis}"] for axis in "xyz"] == [32, 1, 1]
    assert [row[f"block_{axis}"] for axis in "xyz"] == [128, 1, 1]
    assert (row["registers_per_thread"], row["device"], row["stream"], row["process"]) == (16, 0, 7, 683)
    assert row["correlation"] == 11
    call = found.api_calls.filter(pl.col("correlation") == 11).row(0, named=True)
    assert (call["name"], call["end_ns"] - call["start_ns"], call["thread"]) == ("cudaLaunchKernel", 41_357, 683)


def test_a_real_gpu_is_described(captured):
    found = read(captured("kineto/h200_lm_small_train.json.gz"))
    assert found.capture.devices == (
        Device(
            ordinal=0,
            name="NVIDIA H200",
            compute_capability=(9, 0),
            sm_count=132,
            memory_bytes=150_109_880_320,
            max_warps_per_sm=64,
            max_threads_per_block=1_024,
            registers_per_sm=65_536,
            shared_bytes_per_sm=233_472,
        ),
    )
    assert (found.capture.rank, found.capture.world_size) == (None, None)
    assert found.capture.format == "kineto-json"


def test_an_amd_gpu_has_no_compute_capability(captured):
    (device,) = read(captured("kineto/hta_amd_mi250_minitoy.json.gz")).capture.devices
    assert (device.ordinal, device.compute_capability, device.sm_count) == (2, None, 104)


@pytest.mark.parametrize(
    ("header", "described", "names"),
    [
        # ROCm numbers GPUs together with CPUs: two CPUs, then the GPU that PyTorch calls 0.
        ({"hip_runtime_version": 1}, ["MI300X"], ["MI300X"]),
        ({"hip_runtime_version": 1}, ["MI300X", "MI300X"], ["MI300X"]),
        ({"hip_runtime_version": 1}, ["MI300X", "MI210"], []),
        ({}, ["H200"], []),
    ],
)
def test_a_gpu_that_rocm_numbers_otherwise_is_the_only_kind_described(trace, header, described, names):
    entries = [{"id": number, "name": name} for number, name in enumerate(described)]
    found = trace(kernel(1, 1, device=2), deviceProperties=entries, **header).capture
    assert [(device.ordinal, device.name) for device in found.devices] == [(2, name) for name in names]
    assert ("no-device-info" in {note.code for note in found.notes}) == (not names)


def test_the_two_ranks_of_a_run_are_told_apart(captured):
    ranks = [read(captured(f"kineto/hta_multirank_sampled_rank{rank}.json.gz")).capture for rank in (0, 1)]
    assert [(capture.rank, capture.world_size) for capture in ranks] == [(0, 128), (1, 128)]
    assert abs(ranks[0].epoch_ns - ranks[1].epoch_ns) < 10**9


def test_nothing_that_identifies_people_or_machines_gets_into_the_capture(captured):
    shown = repr(read(captured("kineto/hta_ns_resolution_rank0.json.gz")).capture)
    assert not [word for word in ("sraikund", "twshared", "torchx", "mast_", "facebook", "/tmp") if word in shown]


def test_times_count_from_the_first_event_to_the_nanosecond(trace):
    found = trace(
        kernel(4371753741882.861, 2.004), launch(4371753741880.1, 1.5, 1), baseTimeNanoseconds=1_790_857_026_000_000_000
    )
    assert found.kernels.select("start_ns", "end_ns").row(0) == (2_761, 4_765)
    assert found.capture.window_ns == (0, 4_765)
    assert found.capture.epoch_ns == 1_790_857_026_000_000_000 + 4_371_753_741_880_100


def test_absolute_times_of_19_digits_lose_none(tmp_path):
    (path := tmp_path / "trace.json").write_text(
        '{"schemaVersion": 1, "displayTimeUnit": "ns", "traceEvents": ['
        '{"ph":"X","cat":"kernel","name":"a","pid":0,"tid":7,"ts":1712195495519689.123,"dur":0.001},'
        '{"ph":"X","cat":"kernel","name":"a","pid":0,"tid":7,"ts":1712195495519689.124,"dur":0.0015}]}'
    )
    found = read(path)
    assert found.capture.epoch_ns == 1_712_195_495_519_689_123
    assert found.kernels.select("start_ns", "end_ns").rows() == [(0, 1), (1, 3)]


def test_times_of_another_clock_have_no_epoch(trace):
    assert trace(kernel(100, 50)).capture.epoch_ns is None


def test_whole_microseconds_are_noted(trace):
    assert "whole-microseconds" in _codes(trace(kernel(100, 5)))
    assert "whole-microseconds" not in _codes(trace(kernel(100.5, 5)))


def test_events_of_impossible_times_are_left_out(trace):
    no_duration = kernel(20.5, 1)
    del no_duration["dur"]
    endless = (kernel(13, 4.6e15), operator("step", 4e15, 1))
    found = trace(kernel(10.5, 1), kernel(12, -3), no_duration, kernel(30, float("nan")), *endless)
    assert found.kernels.height == 1
    (note,) = [note for note in found.capture.notes if note.code == "invalid-times"]
    assert note.text.startswith("5 events")


def test_an_operator_without_an_end_lasts_until_the_trace_ends(trace):
    still_open = operator("step", 2.5, 0)
    del still_open["dur"]
    found = trace(still_open, kernel(10.5, 4))
    assert found.ranges.select("start_ns", "end_ns").row(0) == (0, 12_000)
    assert "open-ranges" in _codes(found)


def test_begins_and_ends_are_matched_on_their_thread(trace):
    def edge(phase: str, name: str, when: float, thread: int) -> dict[str, Any]:
        return {"ph": phase, "cat": "cpu_op", "name": name, "pid": 1, "tid": thread, "ts": when}

    found = trace(
        edge("B", "outer", 1.5, 1),
        edge("B", "elsewhere", 2, 2),
        edge("B", "inner", 3, 1),
        edge("E", "", 4, 1),
        edge("E", "", 5, 2),
        edge("E", "", 6, 2),  # closes nothing
        edge("E", "", 7, 1),
        edge("B", "open", 8, 1),
        kernel(8, 1),
    )
    spans = {row["name"]: (row["start_ns"], row["end_ns"]) for row in found.ranges.iter_rows(named=True)}
    assert spans == {"outer": (0, 5_500), "elsewhere": (500, 3_500), "inner": (1_500, 2_500), "open": (6_500, 7_500)}


def test_work_belongs_to_the_process_that_launched_it(trace):
    found = trace(
        launch(1, 1, 5, process=100), launch(1, 1, 6, process=200), kernel(3, 1, 5), kernel(4, 1, 6), kernel(5, 1, 99)
    )
    assert found.kernels["process"].to_list() == [100, 200, 100]


def test_categories_of_2021_mean_the_same(trace):
    older = {"kernel": "Kernel", "cuda_runtime": "Runtime", "cpu_op": "Operator"}
    events = [launch(1, 1, 5), kernel(3, 1, 5), operator("aten::mm", 0, 4)]
    found = trace(*({**event, "cat": older[event["cat"]]} for event in events))
    assert (found.kernels.height, found.api_calls.height, found.ranges.height) == (1, 1, 1)


def test_marks_that_were_operators_in_2021_are_annotations(trace):
    names = ["ProfilerStep#3", "aten::mm", "Optimizer.step#Adam.step", "enumerate(DataLoader)#_SingleProcess.__next__"]
    found = trace(*({**operator(name, 10 * i, 4), "cat": "Operator"} for i, name in enumerate(names)))
    kinds = dict(found.ranges.select(pl.col("name", "kind").cast(pl.String)).iter_rows())
    assert kinds == {name: "cpu-op" if name == "aten::mm" else "user-annotation" for name in names}
    assert [found.ranges["name"][row] for row in found.operators["range"]] == ["aten::mm"]


def test_what_the_profiler_derives_is_no_work(trace):
    derived = {**kernel(0, 100), "cat": "gpu_user_annotation", "name": "ProfilerStep#1"}
    found = trace(kernel(3, 1), derived, {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}})
    assert found.kernels.height == 1
    assert found.ranges.height == 0


@pytest.mark.parametrize("number", [2**63 - 1, 2**63, 10_159_970_886_766_084_423, 2**64 - 1])
def test_ids_of_64_bits_join_call_and_kernel(trace, number):
    found = trace(launch(1, 1, number), kernel(3, 1, number), operator("aten::mm", 0, 4, **{"External id": number}))
    assert found.kernels["correlation"].to_list() == found.api_calls["correlation"].to_list()
    assert found.operators["external_id"][0] % 2**64 == number


def test_a_kernel_without_grid_takes_that_of_its_call_unless_the_call_launched_several(trace):
    def bare(start: float, correlation: int) -> dict[str, Any]:
        event = kernel(start, 1, correlation)
        event["args"] = {"device": 0, "stream": 0, "correlation": correlation}
        return event

    single, graph = launch(1, 1, 5), launch(2, 1, 6)
    single["args"]["grid"] = graph["args"]["grid"] = [7, 1, 1]
    single["args"]["block"] = graph["args"]["block"] = [64, 1, 1]
    found = trace(single, graph, bare(3, 5), bare(4, 6), bare(5, 6))
    assert found.kernels["grid_x"].to_list() == [7, None, None]
    assert found.kernels["block_x"].to_list() == [64, None, None]
    assert "no-launch-configuration" in _codes(found)


def test_grids_are_not_read_where_they_are_not_asked_for(tmp_path):
    found = read(written(tmp_path / "trace.json", [kernel(3.5, 1)]), launch_configuration=False)
    assert found.kernels["grid_x"].to_list() == [None]
    assert "no-launch-configuration" not in _codes(found)


def test_kernels_of_a_graph_share_their_call(trace):
    graph = {**launch(1, 2, 9), "name": "cudaGraphLaunch"}
    found = trace(graph, *(kernel(5 + number, 1, 9, **{"graph node id": number}) for number in range(4)))
    assert found.kernels.height == 4
    assert found.kernels["graph_node"].to_list() == [0, 1, 2, 3]
    assert "repeated-events" not in _codes(found)


def test_events_that_stand_there_twice_count_once(trace):
    events = [launch(1, 1, 5), kernel(3, 1, 5), operator("aten::mm", 0.5, 4, **{"External id": 1})]
    found = trace(*events, *events, kernel(9, 1, 6))
    assert (found.kernels.height, found.api_calls.height, found.ranges.height) == (2, 1, 1)
    assert "repeated-events" in _codes(found)


def test_copies_and_memsets_say_what_they_move(trace):
    copy = {**kernel(1, 1, bytes=4_096), "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pageable -> Device)"}
    memset = {**kernel(3, 1, bytes=512), "cat": "gpu_memset", "name": "Memset (Device)"}
    found = trace(copy, memset)
    assert found.copies.select("bytes", "direction", "source_memory", "destination_memory").row(0) == (
        4_096, "host-to-device", "pageable", "device",
    )  # fmt: skip
    assert found.memsets.select("bytes", "memory").row(0) == (512, "device")


def test_waits_are_told_by_what_they_wait_for(captured):
    waits = read(captured("kineto/hta_alexnet.json.gz")).synchronizations
    assert waits.height == 41
    assert set(waits["kind"].cast(pl.String)) == {"stream", "stream-wait-event", "context"}


@pytest.mark.parametrize(
    ("full", "short"),
    [
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, 3>(float*)", "CatArrayBatchedCopy"),
        ("void at::native::f<g(int)::{lambda()#1}::operator()() const::{lambda(float)#1}>(int)", "f"),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x128_8x5_nn_align1>(Params)", "Kernel2"),
        (
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
        ),
        ("triton_poi_fused_0", "triton_poi_fused_0"),
        ("Cijk_Alik_Bljk_SB_MT64x16x32_MI16x16x1", "Cijk_Alik_Bljk_SB_MT64x16x32_MI16x16x1"),
        ("_ZN2at6native29vectorized_elementwise_kernelILi4EEEvi", "vectorized_elementwise_kernel"),
        ("_Z9my_kernelPfi.kd", "my_kernel"),
        ("_Z99short", "short"),
        ("", ""),
        ("kernelA(float *, int)", "kernelA"),
        ("void ns::copy<float, (int)4>(float *, const char (&)[3], int)", "copy"),
        ("void at::native::<unnamed>::gather<float>(T1)", "gather"),
        ("void unnamed>::cat<unnamed>::Opaque<2>, 8>(char *, unnamed>::Meta<T1, T2>)", "cat"),
        ("enable_if<!T7, void>::type kernel<int, 0>(T13)", "kernel"),
        ("void f<int, ns::g(int)::[lambda(float) (instance 1)]>(int)", "f"),
        ("void ns::S::operator()<int>(int)", "operator()"),
        ("std::enable_if<!(false), void>::type internal::gemvNSP_kernel<float, 1>(P)", "gemvNSP_kernel"),
    ],
)
def test_short_names_are_the_function_alone(full, short):
    assert short_name(full) == short


def test_copies_of_all_directions():
    assert copy_words("Memcpy DtoH (Device -> Pinned)") == ("device-to-host", "device", "pinned")
    assert copy_words("Memcpy PtoP (Device -> Device)") == ("peer-to-peer", "device", "device")
    assert copy_words("Memcpy DtoD") == ("device-to-device", None, None)
    assert copy_words("CopyBuffer") == ("unknown", None, None)


def test_operators_nest_by_thread(trace):
    found = trace(
        operator("aten::linear", 1.5, 10), operator("aten::mm", 3, 4), operator("other", 3, 4, thread=102),
        annotation("step", 1, 20),
    )  # fmt: skip
    rows = found.ranges.select("name", "kind", "depth", "parent").rows()
    assert rows == [
        ("aten::linear", "cpu-op", 1, 3),
        ("aten::mm", "cpu-op", 2, 0),
        ("other", "cpu-op", 0, None),
        ("step", "user-annotation", 0, None),
    ]


def test_operators_keep_what_they_recorded(trace):
    found = trace(
        annotation("step", 0.5, 20),
        operator("aten::mm", 1, 4, **{"Input Dims": [[2, 3], []], "Input type": ["float", ""], "Sequence number": 7}),
    )
    assert found.operators.select("range", "sequence", "input_shapes", "input_types", "input_strides").row(0) == (
        0, 7, "[[2, 3], []]", '["float", ""]', None,
    )  # fmt: skip
    assert found.ranges["name"][0] == "aten::mm"


def test_arrows_link_forward_and_backward_operators(trace):
    numbered = {"Sequence number": 7}
    found = trace(
        operator("aten::linear", 1, 10, **numbered), operator("aten::t", 1, 2, **{"Sequence number": 6}),
        arrow("s", 1, 1),
        operator("evaluate_function: AddmmBackward0", 50, 9, thread=102, **numbered),
        operator("AddmmBackward0", 51, 5, thread=102, **numbered), arrow("f", 1, 51, thread=102),
    )  # fmt: skip
    names = found.ranges["name"]
    links = [(names[row["forward"]], names[row["backward"]]) for row in found.autograd_links.iter_rows(named=True)]
    assert links == [("aten::linear", "AddmmBackward0")]


def test_all_arrows_of_a_real_trace_link_operators_of_one_sequence_number(captured):
    found = read(captured("kineto/h200_lm_small_train.json.gz"))
    sequence = dict(found.operators.select("range", "sequence").iter_rows())
    forward_threads = dict(found.operators.select("range", "forward_thread").iter_rows())
    links = found.autograd_links.rows()
    assert len(links) == 2_382  # as many as arrows end
    assert all(sequence[forward] == sequence[backward] for forward, backward in links)
    assert all(forward_threads[backward] for _, backward in links)


def test_allocations_are_those_of_the_framework(trace):
    def memory(when: float, size: int, kind: int) -> dict[str, Any]:
        args = {"Bytes": size, "Addr": 640, "Device Id": 3, "Device Type": kind, "Total Allocated": 700}
        return {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 2, "ts": when, "args": args}

    other = {**memory(9, 1, 1), "name": "[else]"}
    found = trace(memory(1.5, 512, 1), memory(2, -512, 6), memory(3, 64, 0), other)
    assert found.allocations.select("time_ns", "device", "delta_bytes", "allocated_bytes").rows() == [
        (0, 3, 512, 700), (500, 3, -512, 700), (1_500, None, 64, 700),
    ]  # fmt: skip
    assert found.allocations["reserved_bytes"].to_list() == [None] * 3


@pytest.mark.parametrize(
    ("recorded", "read_as"),
    [
        ("/home/ann/secret project/train.py(88): step", "train.py(88): step"),
        ("~/train.py(88): step", "train.py(88): step"),
        ("../../ann/train.py(88): step", "train.py(88): step"),
        ("/scratch/ann/venv/lib/python3.12/site-packages/timm/layers/mlp.py(40): forward",
         "timm/layers/mlp.py(40): forward"),
        ("models/vit.py(12): forward", "models/vit.py(12): forward"),
        ("<built-in method item of Tensor object at 0x7f>", "<built-in method item of Tensor object at 0x7f>"),
    ],
)  # fmt: skip
def test_no_folder_above_a_python_file_leaves_the_reader(trace, recorded, read_as):
    call = {**operator(recorded, 1, 5), "cat": "python_function"}
    assert trace(kernel(2, 1), call).python_functions["name"].to_list() == [read_as]


def test_python_functions_are_no_ranges(captured):
    found = read(captured("kineto/tracelens_h100_qwen0p5b.json.gz"))
    assert found.python_functions.height == 4_262
    assert found.python_functions["depth"].max() > 10
    modules = found.python_functions["name"].cast(pl.String).str.starts_with("nn.Module: ")
    assert modules.sum() == 316


def test_gpus_and_streams_told_by_handles_stay_apart(trace):
    ids = [(2**32, 7), (0, 2**32 + 7), (0, 7), (0, -1), (0, 2**32 - 1)]
    events = [kernel(number + 0.5, 1, device=device, stream=stream) for number, (device, stream) in enumerate(ids)]
    kernels = trace(*events).kernels.select("device", "stream").rows()
    assert len(set(kernels)) == 4
    assert kernels[2:] == [(0, 7), (0, -1), (0, -1)]


def test_threads_told_by_handles_stay_apart(trace):
    handles = [140_000_000_000_000, 140_000_000_000_000 + 2**31, 5]
    found = trace(*(operator("op", 1.5, 1, thread=handle) for handle in handles))
    threads = found.ranges["thread"].to_list()
    assert len(set(threads)) == 3
    assert threads[2] == 5


def test_threads_and_processes_that_are_texts(trace):
    event = {**operator("op", 1.5, 1), "pid": "python: 123", "tid": "thread 45 (main)"}
    gpu = {**kernel(3, 1), "pid": "GPU 2", "tid": "stream 9", "args": {}}
    found = trace(event, gpu)
    assert found.ranges.select("process", "thread").row(0) == (123, 45)
    assert found.kernels.select("process", "device", "stream").row(0) == (123, 2, 9)


def test_overhead_that_happens_without_a_profiler_is_not_the_profilers(trace):
    events = [
        {**operator(name, 1.5, 1), "cat": "overhead", "pid": -1} for name in ("Buffer Flush", "Lazy Function Loading")
    ]
    found = trace(operator("op", 1, 3), *events)
    assert found.profiler_overhead.select("name", "process").rows() == [("Buffer Flush", 100)]


def test_memory_for_records_holds_the_thread_whose_call_begins_next(trace):
    asked = [{**operator("Activity Buffer Request", at, 5, thread=0), "cat": "overhead", "pid": -1} for at in (10, 30)]
    calls = [launch(1, 2, 1, thread=7), launch(16, 2, 2, thread=8), launch(17, 2, 3, thread=7)]
    assert trace(*asked, *calls).profiler_overhead["thread"].to_list() == [8, 0]  # no call follows the second


_ALLREDUCE = {
    "Collective name": "allreduce", "In msg nelems": 1_024, "Out msg nelems": 1_024, "Group size": 2, "dtype": "Float",
    "Process Group Name": "0", "Process Group Ranks": "[0, 1]",
}  # fmt: skip


def test_a_kernel_that_describes_itself_is_one_collective(trace):
    teller = operator("record_param_comms", 1.5, 9, **{"External id": 4}, **_ALLREDUCE)
    nccl = {**kernel(5, 3, 8, **{"External id": 4}, **_ALLREDUCE), "name": "ncclDevKernel_AllReduce"}
    found = trace(teller, launch(2, 1, 8), nccl)
    assert found.collectives.rows(named=True) == [
        {
            "kernel": 0, "name": "allreduce", "group": "0", "group_ranks": "[0, 1]", "group_size": 2,
            "in_elements": 1_024, "out_elements": 1_024, "dtype": "Float", "sequence": None,
        }
    ]  # fmt: skip


def test_a_kernel_is_described_by_the_operator_around_its_launch(trace):
    teller = operator("record_param_comms", 1.5, 9, **_ALLREDUCE)
    nccl = {**kernel(15, 3, 8), "name": "ncclKernel_AllReduce_RING"}
    found = trace(kernel(1, 1, 3), teller, launch(4, 1, 8), nccl)
    assert found.collectives.select("kernel", "name").rows() == [(1, "allreduce")]


def test_a_collective_without_a_kernel_is_still_one(trace):
    found = trace(operator("record_param_comms", 1.5, 9, **_ALLREDUCE), kernel(3, 1, 2))
    assert found.collectives.select("kernel", "name").rows() == [(None, "allreduce")]


def test_every_nccl_kernel_of_real_traces_is_described(captured):
    for name in ("hta_nccl_data", "hta_ns_resolution_rank0", "tracelens_b200_eager_trace"):
        found = read(captured(f"kineto/{name}.json.gz"))
        communicating = found.kernels.with_row_index("row").filter(
            pl.col("name").cast(pl.String).str.contains("(?i)nccl")
        )
        assert set(communicating["row"]) == set(found.collectives["kernel"].drop_nulls()), name
        assert found.collectives["kernel"].drop_nulls().is_unique().all()


def test_a_trace_of_the_cpu_alone_is_blocked(captured):
    found = read(captured("kineto/hta_cpu_only_rank34.json.gz"))
    assert "no-cuda-data" in _codes(found)
    assert (found.capture.rank, found.capture.world_size) == (34, 300)
    assert "kernels" not in found.capture.recorded


@pytest.mark.parametrize(
    ("runtime", "work", "told"),
    [("xpu_runtime", "kernel", "XPU"), ("mtia_runtime", "mtia_ccp_events", "MTIA"),
     ("privateuse1_runtime", "privateuse1_driver", "another maker")],
)  # fmt: skip
def test_a_trace_of_another_accelerator_is_called_one(trace, runtime, work, told):
    notes = trace(launch(1, 1, 1) | {"cat": runtime}, kernel(3, 1, 1) | {"cat": work}).capture.notes
    (note,) = [note for note in notes if note.code == "other-accelerator"]
    assert told in note.text
    assert not {"no-api-calls", "no-cuda-data"} & {note.code for note in notes}


def test_gpu_work_without_readable_times_is_not_called_absent(trace):
    (note,) = [note for note in trace(kernel(1, 1, 1) | {"ts": "soon"}).capture.notes if note.code == "no-gpu-work"]
    assert "names GPU activity" in note.text


def test_kernels_without_correlation_are_not_lost(trace):
    assert "lost-gpu-work" not in _codes(trace(launch(1, 1, 1), kernel(3, 1)))


def test_hardware_counters_in_place_of_kernels_are_noted(captured):
    (note,) = read(captured("kineto/hta_cupti_profiler_counters.json.gz")).capture.notes
    assert note.code == "no-gpu-work"
    assert "range profiler" in note.text


def test_launches_without_a_kernel_are_lost_work(trace):
    events = [event for number in range(100) for event in (launch(number + 0.5, 1, number), kernel(number, 1, number))]
    assert "lost-gpu-work" not in _codes(trace(*events))
    (note,) = [note for note in trace(*events[:-1]).capture.notes if note.code == "lost-gpu-work"]
    assert (note.level.value, note.text[:24]) == ("warning", "1 of 100 kernel launches")
    (note,) = [note for note in trace(*events[:90:2], *events[90:]).capture.notes if note.code == "lost-gpu-work"]
    assert note.level.value == "blocking"


def test_all_kernels_may_be_lost(trace):
    memset = event("gpu_memset", "Memset (Device)", 3, 1, process=0, thread=7, device=0, stream=7, bytes=4)
    (note,) = [note for note in trace(launch(1, 1, 1), memset).capture.notes if note.code == "lost-gpu-work"]
    assert (note.level.value, note.text[:20]) == ("blocking", "1 of 1 kernel launch")


@pytest.mark.parametrize(("unreadable", "level"), [(1, "warning"), (30, "blocking")])
def test_gpu_work_of_impossible_times_is_lost_work(trace, unreadable, level):
    """Also where no call tells how many kernels there were, as with CUDA graphs."""
    kernels = [kernel(number, 1) for number in range(100)]
    found = trace(*kernels, *({**kernel(200 + number, 1), "ts": "soon"} for number in range(unreadable)))
    (note,) = [note for note in found.capture.notes if note.code == "invalid-times"]
    assert note.level.value == level
    assert ("30 of 130 pieces of GPU work are missing" in note.text) is (level == "blocking")


def test_a_trace_without_shapes_calls_or_devices_says_so(trace):
    assert {"no-api-calls", "no-device-info", "no-ranges"} <= _codes(trace(kernel(1.5, 1)))
    (note,) = [
        note
        for note in trace(kernel(1.5, 1), kernel(3, 1, device=1), deviceProperties=[{"id": 0}]).capture.notes
        if note.code == "no-device-info"
    ]
    assert note.text.startswith("The trace does not describe GPU 1:")
    shaped = operator("aten::mm", 1.5, 1, **{"Input Dims": [[1]]})
    assert "no-shapes" in _codes(trace(kernel(1.5, 1), operator("aten::mm", 1, 1)))
    assert "no-shapes" not in _codes(trace(kernel(1.5, 1), shaped))


def test_a_good_trace_has_no_notes(captured):
    assert read(captured("kineto/h200_lm_small_train.json.gz")).capture.notes == ()


def test_a_folder_gives_its_traces_and_no_other_json(tmp_path):
    trace = written(tmp_path / "rank0.json", [kernel(1, 1)])
    (tmp_path / "config.json").write_text('{"traceEvents": []}')
    (tmp_path / "chrome.json").write_text('[{"ph": "X", "cat": "blink", "name": "paint", "ts": 1, "dur": 2}]')
    assert discover([tmp_path]) == [trace]
