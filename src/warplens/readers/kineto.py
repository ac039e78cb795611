"""Chrome traces of the PyTorch profiler (Kineto), 2021 to 2026, CUDA and ROCm, as a `Trace`.

`kineto_document` reads the text: `kineto_source` unpacks it block by block, `kineto_scan` finds the events of a piece,
`kineto_events` turns them into columns (`kineto_numbers`, `kineto_strings`; `kineto_json` where a value is unusual),
`kineto_frames` puts the columns together; `kineto_fields` declares what is read. `kineto_spans` makes intervals of the
events and `kineto_tables` the trace's tables, with `kineto_gpu`, `kineto_operators` and `kineto_collectives`. Facts
about the capture come from `kineto_capture`, its shortcomings from `kineto_notes`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl

from warplens.errors import UnreadableInputError
from warplens.profile import Capture, Trace
from warplens.readers.kineto_capture import devices_of, epoch_of, placement_of
from warplens.readers.kineto_document import Document, read_document
from warplens.readers.kineto_notes import RECAPTURE, Findings, notes_of
from warplens.readers.kineto_spans import spans_of
from warplens.readers.kineto_tables import recorded_tables, tables_of

__all__ = ["read_kineto"]

#: What else JSON about GPU programs can be, told by words near its begin.
_OTHERS = (
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
_ADVICE = "Give a trace that torch.profiler wrote (export_chrome_trace or tensorboard_trace_handler)"


def read_kineto(
    path: Path,
    known_as: Path,
    report: Callable[[str], None],
    compression: str | None,
    launch_configuration: bool = True,
) -> Trace:
    """The trace that a Chrome trace of the PyTorch profiler holds.

    Times count from the trace's first event on, in nanoseconds, exactly as recorded. An incomplete trace gives its
    complete events, and a note that says so.

    Args:
        path: the file on disk, plain or compressed.
        known_as: the file that the user named.
        report: told in a few words what is being done.
        compression: how the file is packed; None for a plain one.
        launch_configuration: whether to read how kernels were launched.

    Raises:
        UnreadableInputError: the file is no such trace; the message says what it looks like.
    """
    report(f"{known_as.name}: reading the events")
    document = read_document(
        path,
        compression,
        launch_configuration,
        lambda percent: report(f"{known_as.name}: reading the events, {percent} %"),
    )
    _refuse_others(document, known_as)
    report(f"{known_as.name}: putting the trace together")
    spans = spans_of(document.frames)
    tables = tables_of(spans)
    used = pl.concat([tables[name]["device"] for name in ("kernels", "copies", "memsets")]).unique().to_list()
    devices = devices_of(document.header, used)
    rank, world_size = placement_of(document.header)
    version = document.header.get("schemaVersion")
    capture = Capture(
        source=known_as.name,
        format="kineto-json",
        tool="PyTorch profiler",
        schema_version=str(version) if isinstance(version, int) else None,
        devices=devices,
        window_ns=(0, spans.last_ns),
        epoch_ns=epoch_of(document.header, spans.zero_ns),
        rank=rank,
        world_size=world_size,
        recorded=recorded_tables(tables, document.header),
        notes=notes_of(Findings(tables, document, spans, devices, launch_configuration)),
    )
    return Trace(capture, **tables)


def _refuse_others(document: Document, known_as: Path) -> None:
    if not document.is_trace:
        for mark, found, advice in _OTHERS:
            if mark in document.begin:
                raise UnreadableInputError(known_as, f"this is {found}, not a trace of the PyTorch profiler", advice)
        if document.cut_off_bytes is not None:
            found = "the compressed file is damaged or incomplete, and ends before any event"
            raise UnreadableInputError(known_as, found, "Copy or download it again")
        raise UnreadableInputError(known_as, "this is JSON, but no Chrome trace: it has no traceEvents", _ADVICE)
    if any(frame.height for frame in document.frames.values()):
        return
    if document.events and not {"schemaVersion", "deviceProperties", "distributedInfo"} & document.header.keys():
        if any(text in document.begin for text in (b'"CPU functions"', b'"CUDA functions"')):
            found = "this is a trace of PyTorch's old autograd profiler, which is not read"
            raise UnreadableInputError(known_as, found, "Record the program with torch.profiler.profile instead")
        found = "this is a Chrome trace, but of another program: none of its events is PyTorch's or a GPU's"
        raise UnreadableInputError(known_as, found, _ADVICE)
    if not document.events and not document.header.get("schemaVersion"):
        raise UnreadableInputError(known_as, "this Chrome trace has no events", f"Record again with {RECAPTURE}")
