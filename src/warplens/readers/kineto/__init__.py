"""Chrome traces of the PyTorch profiler (Kineto), 2021 to 2026, CUDA and ROCm, and their shareable copies.

From the file to the `Trace`: `document` unpacks the text and walks over it piece by piece, `scan` finds the events of a
piece by array operations, `events` turns them into columns (`values` decodes numbers and texts; an unusually written
value is read on its own with `json_text`), `spans` joins the pieces to intervals on one clock, `trace` makes tables of
them with `gpu`, and `capture` reads the text around the events and determines what the trace lacks. `scrub` takes the
same events and leaves out identifying texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from warplens.profile import Recorder, Trace
from warplens.readers.opening import Input, Kind, Reader, ReadOptions, surely_fits

if TYPE_CHECKING:
    from warplens.readers.scrubbing import Removed

KINETO: Final = Recorder(
    name="PyTorch profiler",
    slows_first_step=True,
    unprofiled_share=0.40,  # of 41 host-bound programs timed with and without: 0.2 to 0.7
    remedies={
        "no-api-calls": "Record them as well: ProfilerActivity.CPU and ProfilerActivity.CUDA together",
        "no-ranges": "Record the CPU side, too (ProfilerActivity.CPU), and put torch.profiler.record_function around "
        "parts of it",
        "no-steps": "Call profiler.step() after each step, or name a window",
        "profiler-overhead": "Record fewer things at once (no with_stack, no profile_memory), or choose a window after "
        "its start",
    },
)

#: Every trace of the PyTorch profiler has one of these near its begin: its own description, or categories of events.
_MARKS: Final = (
    b'"schemaVersion"',
    b'"deviceProperties"',
    b'"distributedInfo"',
    b'"cpu_op"',
    b'"Operator"',
    b'"user_annotation"',
    b'"cuda_runtime"',
    b'"Runtime"',
    b'"kernel"',
    b'"Kernel"',
)


#: Memory of a report per byte of text, at most: the shortest events that the profiler writes have 130 bytes and take
#: a kilobyte. Traces with shapes take 1.2.
_MOST_MEMORY_PER_BYTE: Final = 8

#: Memory for an event, compared with one of an SQLite export: commands took 1.2 to 1.8 times as much for traces of
#: 0.5 to 4 M events with shapes, with Python's functions, and of the GPU alone.
_MEMORY_OF_ROW: Final = 1.7


class KinetoTrace(Reader[Trace]):
    """Files of `export_chrome_trace` and `tensorboard_trace_handler`, JSON of an object or of a bare array."""

    kinds = frozenset({Kind.JSON})
    unpacks = True

    def sniff(self, head: bytes) -> bool:
        is_chrome = b'"traceEvents"' in head or b'"ph"' in head or b'"deviceProperties"' in head
        return is_chrome and super().sniff(head) and any(mark in head for mark in _MARKS)

    def read(self, file: Input, options: ReadOptions) -> Trace:
        from warplens.readers.kineto.trace import read_kineto

        return read_kineto(file, options)

    def events_in(self, file: Input, memory: int) -> Mapping[str, int] | None:
        from warplens.readers.kineto.excerpt import rows_in, text_bytes, texts_in

        if surely_fits(text_bytes(file), _MOST_MEMORY_PER_BYTE, memory):
            return None
        rows = {table: round(_MEMORY_OF_ROW * count) for table, count in rows_in(file).items()}
        return rows | texts_in(file) if any(rows.values()) else None  # another JSON file, which reading refuses

    def scrub(self, file: Input, copy: Path) -> Removed:
        from warplens.readers.kineto.scrub import copy_kineto

        return copy_kineto(file, copy)
