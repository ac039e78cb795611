"""Notes about the shortcomings of an nsys capture, each with a remedy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.profile import Note, NoteLevel
from warplens.profile.schema import Int64s
from warplens.profile.trace import WORK_TABLES, worst_first
from warplens.readers.losses import LOST_SHARE_WARNING, called_like, invalid_times, lost_level, still_queued
from warplens.readers.nsys.capture import Session
from warplens.writing import plural

#: CUPTI numbers all calls of a process in sequence, and nsys leaves out unimportant ones: complete captures had 1 to 10
#: numbers per recorded call, and at most 615 between two. A gap this long, while ranges go on, means that tracing
#: stopped.
SILENT_CALLS = 10_000

#: Newest schema that the reader was tested with (its first two parts).
TESTED_SCHEMA = (3, 25)

RECAPTURE = "nsys profile --trace=cuda,nvtx --output=profile python your_program.py"


_LAUNCHES = r"^(cudaLaunch(Cooperative)?Kernel|cuLaunch(Cooperative)?Kernel|cuda?GraphLaunch|cuda?Mem(cpy|set)\w*Async)"
_COPIES_AND_MEMSETS = r"^cuda?Mem"
_CAPTURE_BEGIN = r"^cu(da)?StreamBeginCapture"
_CAPTURE_END = r"^cu(da)?StreamEndCapture"


#: CUDA errors (`cudaError_t`) that make a context unusable and lose what it recorded.
_GPU_FAULTS: Final = {
    214: "uncorrectable memory error",
    700: "illegal memory access",
    702: "launch timed out",
    710: "assertion in a kernel",
    714: "hardware stack error",
    715: "illegal instruction",
    716: "misaligned address",
    717: "invalid address space",
    718: "invalid program counter",
    719: "launch failed",
}
_WORK_CALLS: Final = r"^cu(?:da)?(?:Launch|Graph\w*Launch|Mem(?:cpy|set))"


@dataclass(frozen=True)
class Findings:
    """Everything the checks need, after all tables are read."""

    tables: Mapping[str, pl.DataFrame]  #: the frames of the trace by name
    session: Session  #: what the export says about its recording session
    has_devices: bool  #: whether the export describes the GPUs
    ambiguous_devices: bool  #: whether two processes use different models under one ordinal
    dropped_rows: int  #: rows left out because their times make no sense
    dropped_work: int  #: those of GPU work
    open_ranges: int  #: ranges that were still open when the capture ended
    repeated_calls: int  #: API calls that the export holds twice
    unnamed: int  #: strings referred to that the export does not hold
    replaced: int  #: names with bytes that are not UTF-8

    @property
    def work(self) -> list[pl.DataFrame]:
        """The tables of GPU work."""
        return [self.tables[name] for name in WORK_TABLES]

    @property
    def has_work(self) -> bool:
        """Whether anything ran on a GPU."""
        return any(frame.height for frame in self.work)

    @cached_property
    def launches_without_work(self) -> tuple[int, int]:
        """Number of successful launches that lost their work, and number of launches."""
        return _launches_without_work(self)


def notes_of(findings: Findings) -> tuple[Note, ...]:
    """All notes about a capture, the most limiting first."""
    return worst_first(note for check in _CHECKS for note in check(findings))


def _missing_cuda(findings: Findings) -> list[Note]:
    """Why the capture lacks GPU work or CUDA calls, and how to record them; nothing if it has both."""
    if findings.has_work:
        if not findings.tables["api_calls"].height:
            text = "No CUDA API calls were recorded: launches, queue times and the ranges around them are unknown."
            return [Note("no-api-calls", NoteLevel.WARNING, text, f"Record again: {RECAPTURE}")]
        return []
    session = findings.session
    if findings.tables["api_calls"].height:
        return [_no_work(findings.tables["api_calls"])]
    if session.is_wsl:
        text = "The capture holds no CUDA data. It was made in WSL2, where tracing CUDA depends on the Windows driver."
        remedy = f"Record on native Linux or Windows, or update the Windows driver and nsys, then: {RECAPTURE}"
    elif session.cuda_requested is False:
        text = "The capture holds no CUDA data: tracing CUDA was not asked for."
        remedy = f"Record again: {RECAPTURE}"
    else:
        untraced = "nsys could not trace it, or its events are among those left out"
        text = (
            "The capture holds no CUDA data: the program made no CUDA call, made them in a process that it forked, "
            f"{untraced if findings.dropped_rows else 'or nsys could not trace it'}."
        )
        remedy = (
            "Check that the program uses the GPU, then record again with a current nsys "
            f"(--trace-fork-before-exec=true follows forks): {RECAPTURE}"
        )
    return [Note("no-cuda-data", NoteLevel.BLOCKING, text, remedy)]


def _no_work(calls: pl.DataFrame) -> Note:
    """The reason for calls without GPU work: the program failed, launched nothing, or nsys lost it."""
    text = "CUDA API calls were recorded, but no GPU work: no kernels, copies or memsets."
    failed = calls.filter(pl.col("return_value").is_in(list(_GPU_FAULTS))).sort("start_ns").head(1)
    if failed.height:
        name, code = failed.select(pl.col("name").cast(pl.String), "return_value").row(0)
        text += f" {name} returned CUDA error {code} ({_GPU_FAULTS[code]}), after which records of the GPU are lost."
        remedy = f"Make the program run without this error first (compute-sanitizer), then record again: {RECAPTURE}"
    elif not calls["name"].cast(pl.String).str.contains(_WORK_CALLS).any():
        text += " None of the calls launches any: the program ended or was killed before, or nsys lost what followed."
        remedy = f"Record until the program ends by itself, with a current nsys: {RECAPTURE}"
    else:
        remedy = f"Record again with an nsys at least as new as the program's CUDA: {RECAPTURE}"
    return Note("no-gpu-work", NoteLevel.BLOCKING, text, remedy)


def _lost_work(findings: Findings) -> list[Note]:
    """Whether CUDA calls, or the work of launches, were lost from a capture that holds others."""
    calls = findings.tables["api_calls"]
    if not calls.height or not findings.has_work:
        return []
    lost, launches = findings.launches_without_work
    silent = _silent_calls(findings)
    if silent:
        text = (
            f"CUDA tracing stopped for a while: about {silent:,} CUDA calls left no trace while ranges went on, "
            f"and {findings.tables['kernels'].height:,} kernels were recorded in all."
        )
        level = NoteLevel.BLOCKING
    elif lost:
        text = (
            f"{lost:,} of {launches:,} launches have no kernel, copy or graph execution in the capture: events "
            "were lost."
        )
        level = lost_level(lost / launches)
    else:
        return []
    remedy = f"Record again with an nsys at least as new as the program's CUDA, for a shorter time: {RECAPTURE}"
    return [Note("lost-gpu-work", level, text, remedy)]


def _launches_without_work(findings: Findings) -> tuple[int, int]:
    """Number of successful launches without work (those still queued at the end excluded), and number of launches.

    Copies and memsets count only where kernels are lost as well: those of zero bytes never reach the GPU, and the calls
    do not record their size.
    """
    calls = findings.tables["api_calls"]
    failed = calls["return_value"].fill_null(0) != 0
    calls = calls.filter(~failed) if failed.any() else calls
    columns = ("process", "thread", "start_ns", "correlation", "name")
    launches = calls.select(columns).filter(called_like(calls, _LAUNCHES))
    launches = launches.with_columns(is_kernel=~called_like(launches, _COPIES_AND_MEMSETS)).drop("name")
    lost = 0
    if all(frame["correlation"].null_count() == frame.height for frame in findings.work):
        return 0, launches.height  # nothing links work to calls
    processes = launches["process"].unique().to_list()
    for process in processes:
        process_launches = launches.filter(pl.col("process") == process) if len(processes) > 1 else launches
        work = pl.concat(
            frame.filter(pl.col("process") == process).select("correlation", "start_ns", "end_ns")
            for frame in findings.work
        )
        matched = _is_in(process_launches["correlation"].to_numpy(), work["correlation"].drop_nulls().to_numpy())
        if not matched.all():
            unmatched = process_launches.filter(~matched)
            unmatched = unmatched.filter(~_is_captured(unmatched, calls.filter(pl.col("process") == process)))
            unmatched = unmatched.filter(~still_queued(unmatched, process_launches, work))
            kernels_ran = process_launches.filter(matched)["is_kernel"].any()
            lost += unmatched.height if unmatched["is_kernel"].any() or not kernels_ran else 0
    return lost, launches.height


def _is_in(ids: Int64s, present: Int64s) -> npt.NDArray[np.bool_]:
    """`np.isin` by a table of flags where the ids are small (they count calls): a tenth of the time."""
    top = int(max(ids.max(initial=0), present.max(initial=0)))
    if min(ids.min(initial=0), present.min(initial=0)) < 0 or top > 2**28:
        return np.isin(ids, present)
    flags = np.zeros(top + 1, np.bool_)
    flags[present] = True
    return flags[ids]


def _is_captured(launches: pl.DataFrame, calls: pl.DataFrame) -> pl.Series:
    """For each launch whether it only added a node to a graph: its thread was capturing a stream."""
    begins = calls.filter(called_like(calls, _CAPTURE_BEGIN)).select("thread", "start_ns", step=pl.lit(1))
    ends = calls.filter(called_like(calls, _CAPTURE_END)).select("thread", "start_ns", step=pl.lit(-1))
    edges = pl.concat([begins, ends]).sort("start_ns")
    edges = edges.select("thread", "start_ns", open=pl.col("step").cum_sum().over("thread"))
    ordered = launches.with_row_index("row").sort("start_ns")
    joined = ordered.join_asof(edges, on="start_ns", by="thread", strategy="backward", check_sortedness=False)
    return joined.sort("row")["open"].fill_null(0) > 0


def _silent_calls(findings: Findings) -> int:
    """Number of calls that were numbered but not recorded, in gaps during which ranges began."""
    silent = 0
    calls = findings.tables["api_calls"].select("process", "start_ns", "end_ns", "correlation")
    ranges = findings.tables["ranges"]
    for process in calls["process"].unique().to_list() if ranges.height else ():
        process_calls = calls.filter(pl.col("process") == process)
        if not process_calls["correlation"].is_sorted():
            process_calls = process_calls.sort("correlation", maintain_order=True)
        ids = process_calls["correlation"].to_numpy()
        begins = np.sort(ranges.filter(pl.col("process") == process)["start_ns"].to_numpy())
        for gap in np.flatnonzero(np.diff(ids) > SILENT_CALLS).tolist():
            before, after = process_calls["end_ns"][gap], process_calls["start_ns"][gap + 1]
            if np.searchsorted(begins, after) > np.searchsorted(begins, before):
                silent += int(ids[gap + 1] - ids[gap])
    return silent


def _hidden_graphs(findings: Findings) -> list[Note]:
    graphs = findings.tables["graph_launches"].height
    if not graphs:
        return []
    text = (
        f"{graphs:,} CUDA graph executions were traced as a whole: they count as busy, but the kernels inside are not "
        "recorded."
    )
    remedy = f"Record the nodes of the graphs: {RECAPTURE.replace(' --output', ' --cuda-graph-trace=node --output')}"
    return [Note("graph-level-tracing", NoteLevel.WARNING, text, remedy)]


def _missing_ranges(findings: Findings) -> list[Note]:
    if findings.tables["ranges"].height or not findings.has_work:
        return []
    text = "No NVTX ranges were recorded: GPU time cannot be attributed to steps, phases or layers of the program."
    remedy = f"Add ranges (NVTX; in PyTorch torch.cuda.nvtx.range or emit_nvtx) and trace them: {RECAPTURE}"
    return [Note("no-ranges", NoteLevel.WARNING, text, remedy)]


def _session(findings: Findings) -> list[Note]:
    """What the session of the recording makes doubtful: lost events, WSL2, a schema newer than those tested."""
    notes = []
    session = findings.session
    if session.reports_lost_events or session.may_lack_events:
        text = "nsys itself warns that not all CUDA events of the program may have been collected."
        remedy = "If numbers look incomplete, record a shorter part of the program"
        # That events may be missing is refuted where the launches have their work.
        lost, launches = findings.launches_without_work
        is_doubtful = session.reports_lost_events or not launches or lost >= LOST_SHARE_WARNING * launches
        level = NoteLevel.WARNING if is_doubtful else NoteLevel.INFO
        notes.append(Note("dropped-events", level, text, remedy))
    if session.is_wsl and findings.has_work:
        text = "The capture was made in WSL2: launches pass through the Windows driver and take longer than on Linux."
        notes.append(Note("wsl", NoteLevel.INFO, text, None))
    parts = (session.schema_version or "0").split(".")
    if tuple(map(int, (*parts, "0")[:2])) > TESTED_SCHEMA:
        text = f"The export's schema {session.schema_version} is newer than those that the reader was tested with."
        remedy = "Check the counts against nsys stats before relying on them"
        notes.append(Note("untested-schema", NoteLevel.INFO, text, remedy))
    return notes


def _devices(findings: Findings) -> list[Note]:
    if findings.has_work and not findings.has_devices:
        text = "The export does not describe its GPUs: peaks, occupancy and bandwidth limits are unavailable."
        remedy = "Name the GPU (--gpu '<name>', such as H100 PCIe), or give the original report (.nsys-rep)"
        return [Note("no-device-info", NoteLevel.WARNING, text, remedy)]
    if findings.ambiguous_devices:
        text = "Processes use different GPU models under the same number: the limits shown are those of the first."
        return [Note("ambiguous-devices", NoteLevel.WARNING, text, "Record one process at a time")]
    return []


def _repeated(work: pl.DataFrame) -> int:
    """Number of rows that are equal to another one in all columns; only those of equal begins are compared."""
    begins = work["start_ns"].to_numpy()
    order = np.argsort(begins, kind="stable")  # fast, as most tables are nearly in order
    same = np.flatnonzero(np.diff(begins[order]) == 0)
    suspects = work[np.union1d(order[same], order[same + 1])]
    return suspects.height - suspects.n_unique()


def _repairs(findings: Findings) -> list[Note]:
    """What the export had wrong, and how it was read: invalid and repeated events, open ranges, names."""
    notes = []
    if findings.dropped_rows:
        work = sum(frame.height for frame in findings.work)
        notes.append(invalid_times(findings.dropped_rows, findings.dropped_work, work, RECAPTURE))
    if findings.open_ranges:
        ranges = plural(findings.open_ranges, "range was", "ranges were")
        text = f"{ranges} still open when the capture ended, and taken to end with the recording."
        notes.append(Note("open-ranges", NoteLevel.INFO, text, None))
    if findings.repeated_calls:
        calls = plural(findings.repeated_calls, "API call is", "API calls are")
        text = f"{calls} recorded a second time with a backtrace, and counted once."
        notes.append(Note("repeated-api-calls", NoteLevel.INFO, text, None))
    if repeated := sum(map(_repeated, findings.work)):
        events = plural(repeated, "event of a GPU occurs", "events of GPUs occur")
        text = f"{events} more than once in the export, with all details equal, and count each time, as in nsys stats."
        remedy = "Export the capture again: nsys export --type sqlite profile.nsys-rep"
        notes.append(Note("repeated-events", NoteLevel.WARNING, text, remedy))
    if findings.unnamed:
        names = plural(findings.unnamed, "name is", "names are")
        text = f"{names} referred to, but missing or ambiguous in the export, and shown by number."
        remedy = "Export the capture again: nsys export --type sqlite profile.nsys-rep"
        notes.append(Note("unnamed-events", NoteLevel.WARNING, text, remedy))
    if findings.replaced:
        text = f"{plural(findings.replaced, 'name holds', 'names hold')} bytes that are not UTF-8, shown as �."
        notes.append(Note("undecodable-names", NoteLevel.INFO, text, None))
    return notes


_CHECKS = (_missing_cuda, _lost_work, _hidden_graphs, _missing_ranges, _session, _devices, _repairs)
