"""Chrome traces of the PyTorch profiler (Kineto), 2021 to 2026, CUDA and ROCm, as a `Trace`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from warplens.errors import UnreadableInputError
from warplens.profile import Capture, Trace
from warplens.profile.nesting import nest
from warplens.profile.schema import Int64s, encode_names
from warplens.profile.trace import TABLES
from warplens.readers.kineto import KINETO
from warplens.readers.kineto.capture import RECAPTURE, Findings, devices_of, epoch_of, is_rocm, notes_of, placement_of
from warplens.readers.kineto.excerpt import excerpt_of
from warplens.readers.kineto.gpu import (
    collectives_of,
    copies_of,
    int32,
    kernels_of,
    mapped,
    memsets_of,
    named,
    together,
    waits_of,
    with_threads,
)
from warplens.readers.kineto.issuers import Issued, shorten_ids, with_issuers
from warplens.readers.kineto.spans import WHOLE, WORK_ALONE, Part, Recorded, Spans, read_events, spans_of
from warplens.readers.kineto.values import GPU_TABLES
from warplens.readers.limits import EVENT_BYTES
from warplens.readers.opening import Input, ReadOptions
from warplens.secrets import without_folders

_FORWARD = ord("s")


def autograd_links_of(arrows: pl.DataFrame, operators: pl.DataFrame, ranges: pl.DataFrame, host: int) -> pl.DataFrame:
    """The recorded arrows from forward operators to backward ones.

    An arrow's ends give thread and begin of an operator with a sequence number. Where several operators of a thread
    begin at the same time (times in whole microseconds), those with equal sequence numbers are taken, then the
    outermost.
    """
    with_sequence = operators["sequence"].is_not_null().arg_true()
    arrows = arrows.filter(pl.col("start_ns").is_not_null(), pl.col("flow").is_not_null())
    if not arrows.height or not with_sequence.len():
        return TABLES["autograd_links"].empty()
    arrows = with_threads(arrows, host)
    columns = ("process", "thread", "start_ns")
    operator_starts = ranges.select(columns)[with_sequence]
    end, place = _matches(
        *(arrows[name].to_numpy() for name in columns), *(operator_starts[name].to_numpy() for name in columns)
    )
    row = with_sequence.to_numpy().astype(np.int64)[place]
    matched_ends = pl.DataFrame({"arrow": end, "row": row}).with_columns(
        arrows["flow"][end],
        arrows["phase"][end],
        operators["sequence"][row].alias("sequence"),
        ranges["depth"][row].alias("depth"),
    )
    forward = matched_ends.filter(pl.col("phase") == _FORWARD).drop("phase", "arrow")
    backward = matched_ends.filter(pl.col("phase") != _FORWARD).drop("phase")
    pairs = forward.join(backward, on="flow", suffix="_backward")
    if pairs["arrow"].n_unique() < pairs.height:
        agree = pl.col("sequence") == pl.col("sequence_backward")
        pairs = pairs.sort(~agree, "depth", "depth_backward", maintain_order=True)
        pairs = pairs.unique("arrow", keep="first", maintain_order=True)
    return pairs.select(forward="row", backward="row_backward").unique().sort("forward", "backward")


def _matches(
    process: Int64s, thread: Int64s, start: Int64s, process_of: Int64s, thread_of: Int64s, start_of: Int64s
) -> tuple[Int64s, Int64s]:
    """All pairs of equal rows of the first three columns and the last three columns."""
    threads = np.concatenate([process, process_of]).astype(np.int64) * 2**32 + np.concatenate([thread, thread_of])
    number = np.unique(threads, return_inverse=True)[1].reshape(-1).astype(np.int64)
    # One number per thread and time: times are those of one trace, far below 2^63 divided by its threads.
    stride = int(max(start.max(), start_of.max())) + 1
    keys_wanted = number[: len(start)] * stride + start
    present = number[len(start) :] * stride + start_of
    order = np.argsort(present, kind="stable")
    first = np.searchsorted(present[order], keys_wanted, "left")
    count = np.searchsorted(present[order], keys_wanted, "right") - first
    row = np.repeat(np.arange(len(keys_wanted)), count)
    offset = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    return row, order[np.repeat(first, count) + offset]


#: torch.profiler's device type (c10::DeviceType) of host memory.
_HOST_MEMORY = 0

#: Overhead that CUDA has without a profiler, too: compilation, lazy loading, a full command buffer.
_CUDA_OVERHEAD = r"(?i)compil|lazy|command buffer"

#: Memory for records is requested within the first call that needs it. Traces of CUDA 11 to 13 give thread 0.
_BUFFER_REQUEST = r"(?i)buffer request"

#: Prefixes of PyTorch's own annotations. Traces of 2021 have them among the operators.
_MARKS = r"^(ProfilerStep#|Optimizer\.|enumerate\(DataLoader\)#)"

#: Correlation id of calls without one, which have no matching work.
_NO_CORRELATION = -1


def host_process(spans: Spans) -> int:
    """The process with the most host events, 0 without any."""
    for kind in ("call", "operator", "annotation", "python"):
        counts = spans.frames[kind]["process"].drop_nulls().value_counts(sort=True)
        if counts.height:
            return int(counts["process"][0])
    return 0


def tables_of(spans: Spans) -> tuple[dict[str, pl.DataFrame], Issued]:
    """The tables by name, and the issuers of the work; the spans' frames are freed one by one."""
    shorten_ids(spans)
    frames = spans.frames
    host = host_process(spans)
    issued = with_issuers(frames, host)
    calls, operators = frames.pop("call"), frames.pop("operator")
    is_mark = named(operators["name"]).cast(pl.String).str.contains(_MARKS)
    marks, operators = operators.filter(is_mark), operators.filter(~is_mark)
    kernels = kernels_of(frames.pop("kernel"), calls)
    tables = {
        "kernels": kernels,
        "collectives": collectives_of(kernels, operators, calls),
        "copies": copies_of(frames.pop("copy")),
        "memsets": memsets_of(frames.pop("memset")),
        "synchronizations": waits_of(frames.pop("wait")),
    }
    tables["kernels"] = TABLES["kernels"].checked(kernels)
    del kernels
    tables["api_calls"] = with_threads(
        calls.select("start_ns", "end_ns", "process", "thread", pl.col("correlation").fill_null(_NO_CORRELATION)), host
    ).with_columns(named(calls["name"]), return_value=pl.lit(None, pl.Int32))
    del calls
    overheads = frames.pop("overhead")
    overheads = with_threads(overheads, host).with_columns(named(overheads["name"]))
    overheads = overheads.filter(~pl.col("name").cast(pl.String).str.contains(_CUDA_OVERHEAD))
    tables["profiler_overhead"] = _on_threads(overheads, tables["api_calls"])
    tables["ranges"] = _ranges(operators, (marks, frames.pop("annotation")), host)
    # Operators are the first rows of the ranges, in the same order.
    tables["operators"] = operators.with_columns(range=pl.int_range(pl.len(), dtype=pl.Int64))
    tables["autograd_links"] = autograd_links_of(spans.arrows, operators, tables["ranges"], host)
    del operators
    functions = frames.pop("python")
    lines = mapped(named(functions["name"]), without_folders)
    tables["python_functions"] = _nested(with_threads(functions, host).with_columns(lines))
    tables["allocations"] = _allocations(frames.pop("allocation"), host)
    checked = {name: TABLES[name].checked(tables[name]) if name in tables else TABLES[name].empty() for name in TABLES}
    return checked, issued


def _on_threads(overheads: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """The overhead with the blocked threads: a buffer request belongs to the thread whose call begins next."""
    is_known = pl.col("thread").is_in(calls["thread"].unique().implode())
    is_request = ~is_known & pl.col("name").cast(pl.String).str.contains(_BUFFER_REQUEST)
    if not calls.height or not overheads.select(is_request.any()).item():
        return overheads
    call_starts = calls.select("process", begun="start_ns", of="thread").sort("begun")
    with_next_call = overheads.sort("end_ns")
    with_next_call = with_next_call.join_asof(
        call_starts, left_on="end_ns", right_on="begun", by="process", strategy="forward", check_sortedness=False
    )
    thread = pl.when(is_request & pl.col("of").is_not_null()).then("of").otherwise("thread").alias("thread")
    return with_next_call.with_columns(thread).select(overheads.columns)


def _ranges(operators: pl.DataFrame, annotations: tuple[pl.DataFrame, ...], host: int) -> pl.DataFrame:
    """Operators first, in their order, then annotations."""
    parts = (operators, *annotations)
    columns = ("start_ns", "end_ns", "process", "thread")
    rows = with_threads(pl.concat([part.select(columns) for part in parts]), host)
    kinds = encode_names((np.arange(rows.height) >= operators.height).astype(np.int64), ["cpu-op", "user-annotation"])
    names = together([named(part["name"]) for part in parts])
    return _nested(rows.with_columns(names.alias("name"), kinds.alias("kind"), domain=pl.lit(0, pl.Int64)))


def _nested(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows on threads with `depth` and `parent`."""
    thread = rows["process"].to_numpy().astype(np.int64) * 2**32 + rows["thread"].to_numpy()
    nesting = nest(rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy(), thread)
    return rows.with_columns(
        pl.Series("depth", nesting.depth, dtype=pl.Int32),
        pl.Series("parent", nesting.parent).replace(-1, None).alias("parent"),
    )


def _allocations(events: pl.DataFrame, host: int) -> pl.DataFrame:
    with_delta = with_threads(events, host).filter(pl.col("delta_bytes").is_not_null())
    on_gpu = pl.col("device_type").fill_null(_HOST_MEMORY) != _HOST_MEMORY
    return with_delta.rename({"start_ns": "time_ns"}).with_columns(
        pl.when(on_gpu).then("device_number").pipe(int32).alias("device")
    )


def recorded_tables(tables: Mapping[str, pl.DataFrame], header: Mapping[str, Any]) -> frozenset[str]:
    """The tables that the trace recorded, empty or not.

    GPU activities are recorded together, and so are all tables of operators.
    """
    recorded = {name for name, frame in tables.items() if frame.height}
    if not recorded.isdisjoint(GPU_TABLES):
        recorded.update(GPU_TABLES)
    if "operators" in recorded:
        recorded |= {"ranges", "autograd_links"}
    if header.get("profile_memory") == 1:
        recorded.add("allocations")
    if header.get("with_stack") == 1:
        recorded.add("python_functions")
    return frozenset(recorded)


#: Other JSON formats of GPU programs, recognised by words near their begin.
_OTHER_FORMATS = (
    (b'"rocprofiler-sdk-tool"', "the JSON output of rocprofv3", "Record the program with the PyTorch profiler"),
    (
        b'"nodes"',
        "an execution trace of PyTorch (ExecutionTraceObserver), which has no GPU times",
        "Export a Chrome trace",
    ),
    (b'"CudaEvent"', "a JSON export of Nsight Systems", "Export it with nsys export --type sqlite"),
    (b'"nvtxw"', "a JSON export of Nsight Systems", "Export it with nsys export --type sqlite"),
    (b'"segments"', "a memory snapshot of PyTorch", "Export a Chrome trace"),
)
_CUT_OFF = ("the file is damaged or incomplete, and ends before any event", "Copy or download it again")
#: Processes as XLA's profiler names them.
_XLA_PROCESSES = (b'"/device:GPU:', b'"/device:TPU:', b'"/host:CPU"')
_ADVICE = "Give a trace that torch.profiler wrote (export_chrome_trace or tensorboard_trace_handler)"
_NO_EVENTS = (f"none of its events can be read: events are objects of at most {EVENT_BYTES >> 20} MiB", _ADVICE)


def read_kineto(file: Input, options: ReadOptions) -> Trace:
    """The trace in a Chrome trace of the PyTorch profiler.

    Times are relative to the trace's first event, in nanoseconds, exactly as recorded. Of an incomplete trace all
    complete events are read, which a note states; so it does where only a part is asked for.
    """
    part = WORK_ALONE if options.work_alone else WHOLE
    if options.share < 1:
        file.tell("finding its middle")
        part = Part(excerpt_of(file, options.share))
    file.tell("reading the events")
    document = read_events(file, options.launch_configuration, part)
    _refuse_others(document, file.known_as)
    file.tell("putting the trace together")
    spans = spans_of(document.frames, document.extent_ns, part.excerpt)
    tables, issued = tables_of(spans)
    used = pl.concat([tables[name]["device"] for name in GPU_TABLES]).unique().to_list()
    rocm = is_rocm(document.header, tables["api_calls"]["name"])
    devices = devices_of(document.header, used, rocm, issued.renumbered)
    rank, world_size = placement_of(document.header) if not issued.shared else (None, None)
    version = document.header.get("schemaVersion")
    epoch = epoch_of(document.header, spans.zero_ns)
    capture = Capture(
        source=file.known_as.name,
        format="kineto-json",
        recorder=replace(KINETO, counters="rocprof-compute") if rocm else KINETO,
        schema_version=str(version) if isinstance(version, int) else None,
        devices=devices,
        window_ns=_window_of(document, spans),
        epoch_ns=epoch,
        began_ns=epoch,
        rank=rank,
        world_size=world_size,
        recorded=recorded_tables(tables, document.header),
        notes=notes_of(
            Findings(tables, document, spans, issued, devices, options.launch_configuration and not options.work_alone)
        ),
    )
    return Trace(capture, **tables)


def _window_of(document: Recorded, spans: Spans) -> tuple[int, int]:
    """Begin and end of what was read."""
    excerpt = document.part.excerpt
    if excerpt is None or spans.zero_ns is None:
        return 0, spans.last_ns
    return max(excerpt.start_ns - spans.zero_ns, 0), min(excerpt.end_ns - spans.zero_ns, spans.last_ns)


def _refuse_others(document: Recorded, known_as: Path) -> None:
    """Refuses JSON that is no trace of PyTorch's profiler, or an empty one, and says what it is instead."""
    if not document.is_trace:
        for mark, found, advice in _OTHER_FORMATS:
            if mark in document.begin:
                raise UnreadableInputError(known_as, f"this is {found}, not a trace of the PyTorch profiler", advice)
        if document.cut_off_bytes is not None:
            raise UnreadableInputError(known_as, *_CUT_OFF)
        raise UnreadableInputError(known_as, "this is JSON, but no Chrome trace: it has no traceEvents", _ADVICE)
    if any(frame.height for frame in document.frames.values()):
        return
    if document.events and not {"schemaVersion", "deviceProperties", "distributedInfo"} & document.header.keys():
        if any(text in document.begin for text in (b'"CPU functions"', b'"CUDA functions"')):
            found = "this is a trace of PyTorch's old autograd profiler, which is not read"
            raise UnreadableInputError(known_as, found, "Record the program with torch.profiler.profile instead")
        if any(text in document.begin for text in _XLA_PROCESSES):
            found = "this is a trace of XLA's profiler (JAX, TensorFlow), which is not read"
            advice = "Record the program with Nsight Systems: nsys profile --trace=cuda,nvtx python train.py"
            raise UnreadableInputError(known_as, found, advice)
        found = "this is a Chrome trace, but of another program: none of its events is PyTorch's or a GPU's"
        raise UnreadableInputError(known_as, found, _ADVICE)
    # For an array, `begin` is the text after its bracket.
    if not document.events and document.begin.lstrip().startswith(b"["):
        found = "this is a list of numbers, as PyTorch's export_memory_timeline writes, and no trace"
        raise UnreadableInputError(known_as, found, _ADVICE)
    if not document.events and document.cut_off_bytes is not None:
        raise UnreadableInputError(known_as, *(_NO_EVENTS if document.damaged else _CUT_OFF))
    if not document.events and not document.header.get("schemaVersion"):
        raise UnreadableInputError(known_as, "this Chrome trace has no events", f"Record again with {RECAPTURE}")
