"""How many events a large trace holds, and where its middle is, from samples of its text.

The position of an event in the file does not tell its time: the profiler writes host events and GPU work one after the
other, and in blocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np

from warplens.readers.excerpts import Excerpt, Sample
from warplens.readers.kineto.document import BLOCK_BYTES, Source, last_boundary, padded
from warplens.readers.kineto.events import EventReader
from warplens.readers.kineto.scan import BOUNDARY
from warplens.readers.kineto.values import GPU_KINDS, GPU_TABLES, KINDS, PADDING
from warplens.readers.opening import Input

#: A sample: some hundred events, which array operations read in a millisecond.
_SAMPLE_BYTES: Final = 2**16
_SAMPLES: Final = 256
#: The same for each block of a compressed trace; a block has 4 MiB.
_SAMPLES_OF_BLOCK: Final = 8

#: The tables of the trace that the events of each kind become.
_TABLES: Final = {
    **{kind: (table,) for kind, table in zip(GPU_KINDS, GPU_TABLES, strict=True)},
    "call": ("api_calls",),
    "operator": ("ranges", "operators"),
    "annotation": ("ranges",),
    "python": ("python_functions",),
    "wait": ("synchronizations",),
    "overhead": ("profiler_overhead",),
    "allocation": ("allocations",),
    "flow": ("autograd_links",),
}


def text_bytes(file: Input) -> int:
    """The size of a trace's text; of a compressed one an estimate by its begin."""
    if file.compression is None:
        return file.path.stat().st_size
    source = Source(file.path, file.compression)
    with file.path.open("rb") as packed:
        size = 0
        for part in source.unpacked(packed):
            size += len(part)
            if size >= BLOCK_BYTES:
                break
    return size * source.packed_bytes // max(source.packed_read, 1)


def rows_in(file: Input) -> dict[str, int]:
    """Estimate of the rows of each table of the trace."""
    sampled = _sampled(file.path, file.compression, file.path.stat().st_mtime_ns)
    rows: Counter[str] = Counter()
    for kind, tables in _TABLES.items():
        rows.update(dict.fromkeys(tables, sampled.rows(kind)))
    return rows


def texts_in(file: Input) -> dict[str, int]:
    """Estimate of the distinct names in the trace, and of their characters."""
    return _sampled(file.path, file.compression, file.path.stat().st_mtime_ns).texts()


def excerpt_of(file: Input, share: float) -> Excerpt:
    """The middle span of a trace that holds this share of its events, by GPU work, else by calls, else by operators.

    Raises:
        UnreadableInputError: no events were found.
    """
    begins = _sampled(file.path, file.compression, file.path.stat().st_mtime_ns).begins
    kinds = (GPU_KINDS, ("call",), ("operator",), KINDS)
    found = ([part for kind in group for part in begins[kind]] for group in kinds)
    return Excerpt.of((np.concatenate(parts) for parts in found if parts), share, file.known_as)


@lru_cache(maxsize=4)
def _sampled(path: Path, compression: str | None, _modified_ns: int) -> Sample:
    sampled, reader = Sample(), EventReader(launch_configuration=False)
    for text in _samples(path, compression, sampled):
        first, last = BOUNDARY.search(text), last_boundary(text)
        if first is None or last is None or last <= first.end():
            continue
        buffer = padded(text[first.end() : last], last - first.end())
        piece = reader.read(buffer, PADDING, len(buffer) - PADDING)
        sampled.read += last - first.end()
        for kind, columns in piece.columns.items():
            begins, known = columns["begin_ns"]
            sampled.begins[kind].append((begins if known is None else begins[known]).astype(np.int64))
            names, known = columns["name"]
            codes, times = np.unique(names if known is None else names[known], return_counts=True)
            texts = (reader.names.texts[code] or "" for code in codes.tolist())
            sampled.names.update(dict(zip(texts, times.tolist(), strict=True)))
    return sampled


def _samples(path: Path, compression: str | None, sampled: Sample) -> Iterator[bytes]:
    """Pieces of the text, evenly spread; a compressed trace is unpacked for them."""
    if compression is not None:
        for block in Source(path, compression).blocks():
            sampled.size += len(block)
            for number in range(_SAMPLES_OF_BLOCK):
                yield block[number * len(block) // _SAMPLES_OF_BLOCK :][:_SAMPLE_BYTES]
        return
    sampled.size = path.stat().st_size
    count = min(_SAMPLES, max(sampled.size // _SAMPLE_BYTES, 1))
    with path.open("rb") as file:
        for number in range(count):
            file.seek(number * sampled.size // count)
            yield file.read(_SAMPLE_BYTES)
