"""Every number of the reader against plain SQL over the same file, on real exports of 2021 to 2026."""

from __future__ import annotations

from functools import cache

import polars as pl
import pytest

from tests.readers.conftest import PlainSql
from warplens.profile import TABLES
from warplens.readers import read

_trace = cache(read)  # the tests only look


#: The trace's tables whose rows are an export's rows one to one.
ONE_TO_ONE = {
    "kernels": "CUPTI_ACTIVITY_KIND_KERNEL",
    "copies": "CUPTI_ACTIVITY_KIND_MEMCPY",
    "memsets": "CUPTI_ACTIVITY_KIND_MEMSET",
    "graph_launches": "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
    "synchronizations": "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    "os_calls": "OSRT_API",
}


@pytest.mark.parametrize("name", ONE_TO_ONE)
def test_no_row_is_lost_and_no_nanosecond(real_export, name):
    sql, frame = PlainSql(real_export), getattr(_trace(real_export), name)
    if not sql.has(ONE_TO_ONE[name]):
        assert frame.height == 0
        return
    ((count, begins, ends),) = sql.rows(f'SELECT count(*), sum(start), sum("end") FROM {ONE_TO_ONE[name]}')
    assert frame.height == count
    assert frame["start_ns"].sum() == (begins or 0)
    assert frame["end_ns"].sum() == (ends or 0)


def test_rows_stay_in_the_order_of_the_file(real_export):
    sql, trace = PlainSql(real_export), _trace(real_export)
    for name, table in ONE_TO_ONE.items():
        if sql.has(table):
            begins = [start for (start,) in sql.rows(f"SELECT start FROM {table} ORDER BY rowid")]
            assert getattr(trace, name)["start_ns"].to_list() == begins


def test_every_column_of_a_kernel_is_what_the_file_says(real_export):
    sql, kernels = PlainSql(real_export), _trace(real_export).kernels
    if not sql.has("CUPTI_ACTIVITY_KIND_KERNEL"):
        return
    available = sql.columns("CUPTI_ACTIVITY_KIND_KERNEL")
    sources = {
        "start_ns": 'k."end" - (k."end" - k.start)',
        "end_ns": 'k."end"',
        "device": "k.deviceId",
        "stream": "k.streamId",
        "process": "(k.globalPid >> 24) & 16777215",
        "correlation": "k.correlationId",
        "name": "short.value",
        "full_name": "long.value",
        "grid_x": "k.gridX",
        "grid_y": "k.gridY",
        "grid_z": "k.gridZ",
        "block_x": "k.blockX",
        "block_y": "k.blockY",
        "block_z": "k.blockZ",
        "registers_per_thread": "k.registersPerThread",
        "static_shared_bytes": "k.staticSharedMemory",
        "dynamic_shared_bytes": "k.dynamicSharedMemory",
        "graph_node": "k.graphNodeId",
    }
    present = {name: text for name, text in sources.items() if text[:2] != "k." or text.rsplit(".")[-1] in available}
    if "globalPid" not in available:
        present.pop("process")
    rows = sql.rows(
        f"SELECT {', '.join(present.values())} FROM CUPTI_ACTIVITY_KIND_KERNEL AS k "
        "LEFT JOIN StringIds AS short ON short.id = k.shortName "
        "LEFT JOIN StringIds AS long ON long.id = k.demangledName "
        "ORDER BY k.rowid"
    )
    ours = kernels.with_columns(pl.col("name", "full_name").cast(pl.String)).select(
        [name.replace('"', "") for name in present]
    )
    assert ours.rows() == rows


def test_api_calls_carry_the_functions_own_names(real_export):
    sql, calls = PlainSql(real_export), _trace(real_export).api_calls
    if not sql.has("CUPTI_ACTIVITY_KIND_RUNTIME"):
        return
    expected: dict[str, tuple[int, int]] = {}
    query = (
        'SELECT s.value, count(*), sum("end" - start) FROM CUPTI_ACTIVITY_KIND_RUNTIME JOIN StringIds AS s '
        "ON s.id = nameId " + ("" if "minimal" in real_export.name else "WHERE eventClass <> 67 ") + "GROUP BY 1"
    )
    for written, count, total in sql.rows(query):
        head, mark, version = written.rpartition("_v")
        name = head if mark and version.isdigit() and len(version) in (4, 5) else written
        before = expected.get(name, (0, 0))
        expected[name] = (before[0] + count, before[1] + total)
    found = calls.group_by(pl.col("name").cast(pl.String)).agg(pl.len(), (pl.col("end_ns") - pl.col("start_ns")).sum())
    assert {row[0]: row[1:] for row in found.rows()} == expected


def test_calls_that_2021_recorded_twice_count_once(captured):
    trace = _trace(captured("nsys/a100_tiny_2021.sqlite"))
    # A six-launch program, counted in its source: 4 cudaMalloc, 6 launches, 7 cudaDeviceSynchronize, 1 cudaMemcpy.
    assert dict(trace.api_calls["name"].cast(pl.String).value_counts().rows()) == {
        "cudaMalloc": 4,
        "cudaLaunchKernel": 6,
        "cudaDeviceSynchronize": 7,
        "cudaMemcpy": 1,
    }
    assert trace.api_calls.select("process", "correlation").is_unique().all()
    assert [note.code for note in trace.capture.notes if note.code == "repeated-api-calls"]


def test_ranges_have_the_text_that_nsys_shows(real_export):
    sql, ranges = PlainSql(real_export), _trace(real_export).ranges
    if not sql.has("NVTX_EVENTS"):
        assert ranges.height == 0
        return
    rows = sql.rows(
        'SELECT e.start, e."end", coalesce(s.value, e.text) FROM NVTX_EVENTS AS e '
        "LEFT JOIN StringIds AS s ON s.id = e.textId WHERE e.eventType IN (59, 60, 70, 71) ORDER BY e.rowid"
    )
    assert ranges.select("start_ns", "end_ns", pl.col("name").cast(pl.String)).rows() == rows


def test_a_parent_encloses_its_child_one_level_up(real_export):
    ranges = _trace(real_export).ranges.with_row_index("row")
    nested = ranges.filter(pl.col("parent").is_not_null())
    joined = nested.join(ranges, left_on=pl.col("parent").cast(pl.UInt32), right_on="row", suffix="_parent")
    assert joined.height == nested.height
    assert joined.select(
        (pl.col("start_ns_parent") <= pl.col("start_ns")).all()
        & (pl.col("end_ns") <= pl.col("end_ns_parent")).all()
        & (pl.col("thread") == pl.col("thread_parent")).all()
        & (pl.col("process") == pl.col("process_parent")).all()
        & (pl.col("depth") == pl.col("depth_parent") + 1).all()
    ).item()
    assert ranges.filter(pl.col("parent").is_null())["depth"].eq(0).all()


def test_waits_are_of_the_kind_that_their_api_call_says(real_export):
    trace = _trace(real_export)
    joined = trace.synchronizations.join(trace.api_calls, on=["process", "correlation"], suffix="_call")
    kinds = {
        "cudaDeviceSynchronize": "context",
        "cuCtxSynchronize": "context",
        "cudaStreamSynchronize": "stream",
        "cudaEventSynchronize": "event",
        "cudaEventQuery": "event",
        "cudaStreamWaitEvent": "stream-wait-event",
    }
    pairs = joined.select(pl.col("name").cast(pl.String), pl.col("kind").cast(pl.String)).unique().rows()
    assert [kind for name, kind in pairs] == [kinds[name] for name, kind in pairs]


def test_memory_in_use_returns_to_zero_when_everything_is_freed(captured):
    memory = _trace(captured("nsys/gtx1060_streams_2022.sqlite")).memory
    assert memory.height == 60
    assert memory["delta_bytes"].sum() == 0
    assert memory.group_by("address", "memory").agg(pl.col("delta_bytes").sum())["delta_bytes"].eq(0).all()
    # 15 allocations by cudaHostAlloc, 15 by cudaMalloc, each of them freed again.
    assert dict(memory["memory"].cast(pl.String).value_counts().rows()) == {"pinned": 30, "device": 30}


def test_copies_have_direction_and_kind_of_memory(captured):
    copies = _trace(captured("nsys/a100_lm_small_no_nvtx.sqlite")).copies
    kinds = copies.group_by(pl.col("direction", "source_memory", "destination_memory").cast(pl.String)).len()
    assert sorted(kinds.rows()) == [
        ("host-to-device", "pageable", "device", 112),
        ("host-to-device", "pinned", "device", 2),
    ]


def test_two_processes_may_use_the_same_correlation_id(captured):
    trace = _trace(captured("nsys/h100x2_after.sqlite"))
    shared = trace.kernels.group_by("correlation").agg(pl.col("process").n_unique()).filter(pl.col("process") > 1)
    assert shared.height == 82
    assert trace.api_calls.select("process", "correlation").is_unique().all()
    assert sorted(trace.kernels.select("process", "device").unique().rows()) == [(148, 0), (149, 1)]


def test_a_table_that_the_file_lacks_is_empty_and_not_recorded(real_export):
    sql, trace = PlainSql(real_export), _trace(real_export)
    for name, table in {**ONE_TO_ONE, "ranges": "NVTX_EVENTS", "api_calls": "CUPTI_ACTIVITY_KIND_RUNTIME"}.items():
        assert (name in trace.capture.recorded) == sql.has(table)
    assert trace.capture.recorded <= TABLES.keys()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("rtx5000_lm_small_windows", [(0, "NVIDIA RTX 5000 Ada Generation Laptop GPU", (8, 9), 76, 576_064_000_000)]),
        ("gtx1060_streams_2022", [(0, "GeForce GTX 1060 with Max-Q Design", (6, 1), 10, 192_192_000_000)]),
        ("a100_tiny_2021", [(0, "A100-PCIE-40GB", (8, 0), 108, 1_555_200_000_000)]),
        ("h200_lm_small_train", [(0, "NVIDIA H200", (9, 0), 132, 4_814_304_000_000)]),
        ("minimal_schema", [(0, "NVIDIA H100 80GB HBM3", None, None, None)]),
        ("h100x2_after", []),
    ],
)
def test_devices_are_the_gpus_that_were_used(captured, name, expected):
    devices = _trace(captured(f"nsys/{name}.sqlite")).capture.devices
    limits = [(d.ordinal, d.name, d.compute_capability, d.sm_count, d.memory_bandwidth_bytes_per_s) for d in devices]
    assert limits == expected


@pytest.mark.parametrize(
    ("name", "codes"),
    [
        ("a100_lm2p7b_cudagraph", ["graph-level-tracing", "no-ranges", "dropped-events"]),
        ("a100_lm2p7b_nvtx", []),
        ("a100_lm_small_no_nvtx", ["no-ranges"]),
        ("empty_capture_old", ["no-cuda-data"]),
        ("gtx1060_streams_2022", []),
        ("h100x2_after", ["no-device-info"]),
        ("h100x2_before", ["no-device-info"]),
        ("h200_lm_small_lost_kernels", ["lost-gpu-work"]),
        ("h200_lm_small_train", []),
        ("minimal_schema", ["no-ranges"]),
        ("rtx5000_lm_small_windows", []),
        ("wsl2_no_cuda_tables", ["no-cuda-data"]),
    ],
)
def test_a_capture_says_what_it_cannot_tell_and_a_good_one_nothing(captured, name, codes):
    notes = _trace(captured(f"nsys/{name}.sqlite")).capture.notes
    assert [note.code for note in notes] == codes
    for note in notes:
        levels = {"no-cuda-data": "blocking", "lost-gpu-work": "blocking", "dropped-events": "info"}
        assert note.level == levels.get(note.code, "warning")


def test_nothing_about_people_machines_or_programs_reaches_the_capture(real_export):
    sql, trace = PlainSql(real_export), _trace(real_export)
    private: set[str] = set()
    for table in ("META_DATA_EXPORT", "EXPORT_META_DATA"):
        if sql.has(table):
            private |= {
                value
                for name, value in sql.rows(f"SELECT name, value FROM {table}")
                if any(word in name for word in ("HOST", "USER", "PATH", "FILE", "TIME_"))
            }
    if sql.has("META_DATA_CAPTURE"):
        query = (
            "SELECT value FROM META_DATA_CAPTURE WHERE name LIKE '%COMMAND' OR name LIKE '%ARGUMENT%' "
            "OR name LIKE '%DIR' OR name LIKE '%DISPLAY_NAME' OR name LIKE '%USER_NAME' OR name LIKE '%ENVIRONMENT%'"
        )
        private |= {value for (value,) in sql.rows(query)}
    if sql.has("TARGET_INFO_SYSTEM_ENV"):
        private |= {
            v
            for (v,) in sql.rows(
                "SELECT value FROM TARGET_INFO_SYSTEM_ENV WHERE name LIKE '%Environment%' OR name LIKE 'Host%'"
            )
        }
    if sql.has("PROCESSES"):
        private |= {str(name) for (name,) in sql.rows("SELECT name FROM PROCESSES")}
    # Numbers and short words ("12", "true", "root") occur anywhere; "python" stands in the advice on purpose, and
    # "System", a process of Windows, in the name of the tool.
    private = {text for text in private if text and len(text) > 4 and not text.replace(".", "").isdigit()}
    private -= {"python", "System"}
    shown = repr(trace.capture).replace(real_export.name, "")
    assert [text for text in sorted(private) if text in shown] == []
    names = {
        text
        for table in TABLES
        for column in getattr(trace, table).iter_columns()
        if isinstance(column.dtype, pl.Enum)
        for text in column.dtype.categories
    }
    assert [text for text in names if "=" in text and text.partition("=")[0].isupper()] == []
