"""What the reader says about a capture that cannot answer the main questions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.readers.exports import CALLS, KERNELS, Export, global_pid, global_tid
from warplens.profile import Note
from warplens.readers import read


def _notes(export: Export, path: Path) -> dict[str, Note]:
    return {note.code: note for note in read(export.write(path)).capture.notes}


def _good_export(launches: int = 100) -> Export:
    """A capture with nothing to complain about: one kernel for each launch, 5 ns after it, and a range around all."""
    export = Export()
    export.gpu(0, "NVIDIA H200")
    for number in range(1, launches + 1):
        export.call(100 * number, 100 * number + 10, correlation=number)
        export.kernel(100 * number + 15, 100 * number + 90, correlation=number)
    export.range(0, 100 * (launches + 2), "step")
    return export


@pytest.fixture
def export():
    return _good_export()


def test_a_complete_capture_needs_no_note(path):
    assert _notes(_good_export(), path) == {}


def test_work_that_the_export_holds_twice_is_told(export, path):
    export.tables[KERNELS] += export.tables[KERNELS][:3]  # as far apart as they can be
    export.kernel(115, 190, correlation=1, streamId=8)  # the same but for one column
    note = _notes(export, path)["repeated-events"]
    assert note.level == "warning"
    assert note.text.startswith("3 events of GPUs occur more than once in the export")


def test_without_any_cuda_data_nothing_can_be_answered(path):
    export = Export()
    export.range(0, 10)
    (note,) = _notes(export, path).values()
    assert (note.code, note.level) == ("no-cuda-data", "blocking")
    assert "nsys profile --trace=cuda,nvtx" in str(note.remedy)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (("META_DATA_CAPTURE", "PROCESS_0:COLLECT_CUDA_TRACE", "false"), "not asked for"),
        (("TARGET_INFO_SYSTEM_ENV", "SoftwareReleaseVersion", "6.6.87.2-microsoft-standard-WSL2"), "WSL2"),
    ],
)
def test_it_says_why_there_is_no_cuda_data(row, said, path):
    export = Export()
    export.row(row[0], name=row[1], value=row[2])
    assert said in _notes(export, path)["no-cuda-data"].text


def test_events_of_impossible_times_are_not_blamed_on_the_program_alone(path):
    export = Export()
    export.kernel(2**62, 2**62 + 10, correlation=1)
    assert "among those left out" in _notes(export, path)["no-cuda-data"].text


@pytest.mark.parametrize(
    ("table", "code", "level"),
    [
        (KERNELS, "no-gpu-work", "blocking"),  # calls without any work are no capture of a GPU
        (CALLS, "no-api-calls", "warning"),  # work cannot be attributed
        ("NVTX_EVENTS", "no-ranges", "warning"),  # there are no phases
        ("TARGET_INFO_GPU", "no-device-info", "warning"),  # there are no limits
    ],
)
def test_a_table_that_is_not_there_is_told(table, code, level, export, path):
    del export.tables[table]
    assert _notes(export, path)[code].level == level


@pytest.mark.parametrize(
    ("code", "name", "told"),
    [
        (700, None, "CUDA error 700 (illegal memory access)"),
        (0, "cudaGetDeviceCount_v3020", "None of the calls launches any"),
        (2, None, "no GPU work: no kernels, copies or memsets."),
    ],
)
def test_it_says_why_there_is_no_gpu_work(code, name, told, export, path):
    del export.tables[KERNELS]
    export.tables[CALLS][-1]["returnValue"] = code
    for call in export.tables[CALLS] if name else ():
        call["nameId"] = export.string(name)
    note = _notes(export, path)["no-gpu-work"]
    assert told in note.text
    assert ("compute-sanitizer" in str(note.remedy)) == (code == 700)


def _failed(export):
    del export.tables[KERNELS][20:40]
    for call in export.tables[CALLS][20:40]:
        call["returnValue"] = 98


def _captured(export, **on):
    del export.tables[KERNELS][20:40]
    export.call(2090, 2091, "cudaStreamBeginCapture_v10000", correlation=901, **on)
    export.call(4095, 4096, "cudaStreamEndCapture_v10000", correlation=902)


def _of_another_process(export):
    for kernel in export.tables[KERNELS][20:40]:
        kernel["globalPid"] = global_pid(process=99)


@pytest.mark.parametrize(
    ("happened", "lost"),
    [
        pytest.param(_failed, False, id="launches that failed"),
        pytest.param(_captured, False, id="launches into a graph that is being captured"),
        pytest.param(
            lambda export: _captured(export, globalTid=global_tid(thread=5)), True, id="a capture on another thread"
        ),
        pytest.param(_of_another_process, True, id="the same correlation id in another process"),
    ],
)
def test_launches_are_lost_unless_something_tells_why_they_ran_nothing(happened, lost, export, path):
    happened(export)
    assert set(_notes(export, path)) == ({"lost-gpu-work"} if lost else set())


@pytest.mark.parametrize(("lost", "level"), [(1, "warning"), (3, "warning"), (40, "blocking")])
def test_launches_without_a_kernel_are_lost_work(export, path, lost, level):
    del export.tables[KERNELS][10 : 10 + lost]
    note = _notes(export, path)["lost-gpu-work"]
    assert note.level == level
    assert note.text.startswith(f"{lost} of 100 launches")


def test_launches_of_work_without_ids_are_not_lost(path):
    export = Export()
    for number in range(20):
        export.call(number * 100, number * 100 + 5, correlation=number)
        export.kernel(number * 100 + 10, number * 100 + 60, correlation=None)
    assert "lost-gpu-work" not in {note.code for note in read(export.write(path)).capture.notes}


def test_launches_that_still_waited_when_the_capture_stopped_are_not_lost(export, path):
    for number in range(101, 111):
        export.call(10_100 + number, 10_110 + number, correlation=number)
    assert _notes(export, path) == {}


def test_a_host_far_ahead_leaves_more_in_the_queues_than_one_queue_holds(path):
    export = Export()
    export.gpu(0, "NVIDIA H200")
    export.range(0, 20_000, "step")
    for number in range(1, 2_001):  # launched every 10 ns, run every 100 ns; the recording ends at 20,100 ns
        export.call(10 * number, 10 * number + 5, correlation=number)
        if number <= 200:
            export.kernel(100 * number, 100 * number + 90, correlation=number)
    assert _notes(export, path) == {}
    del export.tables[KERNELS][50:]  # a trace that stopped early: these would have run long before the last launch
    assert _notes(export, path.with_name("stopped.sqlite"))["lost-gpu-work"].level == "blocking"


def test_a_few_launches_of_many_are_told_quietly(path):
    export = _good_export(1_000)
    del export.tables[KERNELS][10:15]
    assert _notes(export, path)["lost-gpu-work"].level == "info"


@pytest.mark.parametrize("function", ["cudaMemsetAsync_v3020", "cudaMemcpyAsync_v3020"])
def test_fills_and_copies_of_no_byte_launch_no_work(export, path, function):
    for number in range(201, 214):
        export.call(100 * number - 15_000, 100 * number - 14_995, function, correlation=number)
    assert _notes(export, path) == {}
    del export.tables[KERNELS][20:40]  # where kernels are lost, copies and fills may be, too
    assert _notes(export, path.with_name("lost.sqlite"))["lost-gpu-work"].text.startswith("33 of 113 launches")


@pytest.mark.parametrize("name", ["launches_queued", "memset_nothing"])
def test_a_recording_that_ends_in_the_midst_of_work_or_fills_nothing_lost_nothing(name):
    path = Path(__file__).parents[2] / "data" / "recordings" / f"{name}.sqlite.xz"
    assert "lost-gpu-work" not in {note.code for note in read(path).capture.notes}


def test_a_launched_graph_may_come_back_as_its_nodes_or_as_a_whole(export, path):
    export.call(5001, 5002, "cudaGraphLaunch_v10000", correlation=901)
    export.kernel(5010, 5020, correlation=901, graphNodeId=1)
    export.kernel(5020, 5030, correlation=901, graphNodeId=2)
    assert _notes(export, path) == {}


def test_a_graph_as_a_whole_hides_its_kernels(export, path):
    export.call(5001, 5002, "cudaGraphLaunch_v10000", correlation=901)
    row = {"deviceId": 0, "streamId": 7, "globalPid": global_pid(), "correlationId": 901, "graphId": 1}
    export.row("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", start=5010, end=5020, **row)
    (note,) = _notes(export, path).values()
    assert (note.code, note.level) == ("graph-level-tracing", "warning")
    assert "--cuda-graph-trace=node" in str(note.remedy)


def test_a_long_silence_of_the_calls_while_ranges_go_on_is_lost_work(export, path):
    for row in export.tables[CALLS][50:] + export.tables[KERNELS][50:]:
        row["correlationId"] += 70_000
        row["start"] += 10_000
        row["end"] += 10_000
    export.range(8000, 9000, "step that left no trace")
    note = _notes(export, path)["lost-gpu-work"]
    assert note.level == "blocking"
    assert "70,001 CUDA calls left no trace" in note.text


def test_a_pause_of_the_collection_is_no_lost_work(export, path):
    for row in export.tables[CALLS][50:] + export.tables[KERNELS][50:]:
        row["correlationId"] += 70_000  # cudaProfilerStop … cudaProfilerStart: no ranges either in between
        row["start"] += 10_000
        row["end"] += 10_000
    assert _notes(export, path) == {}


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("Not all CUDA events might have been collected.", "info"),  # every launch has its work
        ("12 CUDA events were dropped for process /home/someone/train.py", "warning"),
        ("CUPTI buffer overflow: records lost", "warning"),
    ],
)
def test_a_diagnostic_about_lost_events_is_passed_on_but_never_quoted(export, path, text, level):
    export.row("DIAGNOSTIC_EVENT", severity=2, text=text, globalPid=global_pid())
    (note,) = _notes(export, path).values()
    assert (note.code, note.level) == ("dropped-events", level)
    assert text not in note.text + str(note.remedy)


@pytest.mark.parametrize(
    ("severity", "text", "process"),
    [
        (2, "Not all CUDA events might have been collected.", 1234),  # a helper process without CUDA
        (1, "Not all CUDA events might have been collected.", 77),  # for information only
        (2, "No NVTX events collected. Does the process use NVTX?", 77),
        (2, "No MMAP events were received; symbols might remain unresolved.", 77),
    ],
)
def test_other_diagnostics_are_noise(export, path, severity, text, process):
    export.row("DIAGNOSTIC_EVENT", severity=severity, text=text, globalPid=global_pid(process))
    assert _notes(export, path) == {}


def test_a_newer_schema_than_tested_is_said(export, path):
    export.row("META_DATA_EXPORT", name="EXPORT_SCHEMA_VERSION", value="4.1.0")
    assert _notes(export, path)["untested-schema"].level == "info"
