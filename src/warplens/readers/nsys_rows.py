"""From loaded rows to the trace's tables: what the numbers in an nsys export mean, where that takes more than casts."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from warplens.profile.schema import encode_names
from warplens.readers.nsys_load import codes_of
from warplens.readers.nsys_strings import Strings
from warplens.readers.nsys_tables import Source
from warplens.readers.sqlite_file import SqliteFile

__all__ = ["event_window", "finished", "joined_overheads", "only_process", "without_backtrace_copies"]

#: TRACE_PROCESS_EVENT_CUDABACKTRACE: with backtraces on, the 2021 collector wrote each call twice, once with its stack.
BACKTRACE_CLASS = 67

#: Types of CUPTI_ACTIVITY_KIND_OVERHEAD that are the profiler's doing: buffer flush, instrumentation, resources. The
#: others (compiling, loading modules and functions lazily, a full command buffer) happen without a profiler, too.
_PROFILER_OVERHEADS = (3, 4, 5)

#: nsys appends the CUDA version that a function's parameters date from: cudaLaunchKernel_v7000 → cudaLaunchKernel, but
#: cuMemcpyHtoD_v2 is a name.
_VERSION_SUFFIX = {r"_v\d{4,5}$": ""}

#: The argument of `dlopen(…)` is a file of the user's where it is a path.
_PATH_ARGUMENT = {r"\(.*[/\\].*\)$": ""}

_REWRITES: Mapping[str, Mapping[str, str]] = {"api_calls": _VERSION_SUFFIX, "profiler_overhead": _PATH_ARGUMENT}

#: Joins no work: a call without a correlation id issued none that could be told.
_NO_CORRELATION = -1

_SYNCHRONIZATIONS = ("event", "stream-wait-event", "stream", "context")


def only_process(calls: pl.DataFrame | None) -> int:
    """The process of work whose rows do not say: the one that made all API calls, else 0."""
    processes = [] if calls is None else calls["process"].drop_nulls().unique().to_list()
    return int(processes[0]) if len(processes) == 1 else 0


def without_backtrace_copies(calls: pl.DataFrame) -> pl.DataFrame:
    """API calls without those that repeat another one, made by the same thread under the same correlation id."""
    copies = pl.col("class") == BACKTRACE_CLASS
    if not calls.select(copies.any()).item():
        return calls.drop("class")
    call = ("process", "thread", "correlation")
    own = calls.with_row_index("row").filter(copies)
    repeated = own.join(calls.filter(~copies).select(call), on=call, how="semi")
    return calls.with_row_index("row").join(repeated, on="row", how="anti", maintain_order="left").drop("row", "class")


def joined_overheads(frames: dict[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """The frames with both tables of overhead as one, less the overhead that CUDA has without a profiler, too."""
    cupti = frames.pop("CUPTI_ACTIVITY_KIND_OVERHEAD", None)
    if cupti is not None:
        cupti = cupti.filter(pl.col("overhead").is_in(_PROFILER_OVERHEADS)).drop("overhead")
        own = frames.get("PROFILER_OVERHEAD")
        frames["PROFILER_OVERHEAD"] = cupti if own is None else pl.concat([own, cupti])
    return frames


def event_window(frames: Mapping[str, pl.DataFrame], duration_ns: int | None) -> tuple[int, int]:
    """Begin and end of the recorded time: the first and the last instant of any event.

    The session's own duration is no measure of it. It runs from the start of the session on a clock of its own, and
    with a capture range most of it was not recorded (138 s for 0.3 s of events). It stands in where there are no
    events.
    """
    begins, ends = [], []
    for frame in frames.values():
        if frame.height:
            columns = [name for name in ("start_ns", "end_ns", "time_ns") if name in frame.columns]
            row = frame.select(
                begin=pl.min_horizontal(pl.col(columns).min()), end=pl.max_horizontal(pl.col(columns).max())
            )
            begins.append(row["begin"].item())
            ends.append(row["end"].item())
    return (min(begins), max(ends)) if begins else (0, duration_ns or 0)


def finished(file: SqliteFile, source: Source, frame: pl.DataFrame, strings: Strings) -> pl.DataFrame:
    """A source's loaded rows with names and codes as text, and what its table needs beyond that."""
    columns = {}
    for field in source.fields:
        values = frame.get_column(field.name)
        if field.is_string:
            if values.dtype == pl.Binary:
                texts = strings.decode_all(values)
                columns[field.name] = texts.cast(pl.Enum(texts.unique(maintain_order=True)))
            else:
                columns[field.name] = strings.encode(values, _REWRITES.get(source.trace_table))
        elif field.codes is not None:
            columns[field.name] = _encoded(values, codes_of(file, *field.codes))
    frame = frame.with_columns(**columns)
    if source.trace_table == "api_calls":
        return frame.with_columns(pl.col("correlation").fill_null(_NO_CORRELATION))
    if source.trace_table == "synchronizations":
        return _with_kind(frame)
    if source.trace_table == "memory":
        released = pl.col("operation").cast(pl.String) == "deallocation"
        return frame.with_columns(delta_bytes=pl.when(released).then(-pl.col("bytes")).otherwise(pl.col("bytes")))
    return frame


def _encoded(values: pl.Series, codes: Mapping[int, str]) -> pl.Series:
    used = values.drop_nulls().unique(maintain_order=True)
    texts = [codes.get(code, "unknown") for code in used.to_list()]
    places = values.replace_strict(used, pl.Series(range(used.len()), dtype=pl.UInt32), return_dtype=pl.UInt32)
    return encode_names(places, texts)


def _with_kind(waits: pl.DataFrame) -> pl.DataFrame:
    """What each wait waited for, told by what it names: a stream, an event, both, or neither.

    Its number (`syncType`) cannot be trusted. In 2021 and 2022 a context is 1, an event 2, a stream 3; in 2024.6 and
    2025.3 a context is 0, an event 1, a stream 2; in 2026 the numbers are CUPTI's (event 1, stream waiting for an event
    2, stream 3, context 4), while the export's own table of them always says the latter. What is named agrees with the
    API call in every capture looked at.
    """
    event, stream = pl.col("event").is_not_null(), pl.col("stream").is_not_null()
    kind = (
        pl.when(event & stream)
        .then(pl.lit("stream-wait-event"))
        .when(event)
        .then(pl.lit("event"))
        .when(stream)
        .then(pl.lit("stream"))
        .otherwise(pl.lit("context"))
    )
    return waits.with_columns(kind=kind.cast(pl.Enum(_SYNCHRONIZATIONS)))
