"""Kernels from a CSV file: what `make new-format NAME=plain` starts with, in `readers`.

The first line is `kernel,device,stream,start_ns,end_ns`; each further one is a kernel, in nanoseconds of one clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from warplens.errors import UnreadableInputError
from warplens.profile import TABLES, Capture, Recorder, Trace
from warplens.profile.schema import encode_names
from warplens.readers.opening import Input, Kind, Reader, ReadOptions

if TYPE_CHECKING:
    from pathlib import Path

    from warplens.readers.scrubbing import Removed

_HEAD: Final = b"kernel,device,stream,start_ns,end_ns"
_TYPES: Final = {"kernel": pl.String, "device": pl.Int32, "stream": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64}


class Plain(Reader[Trace]):
    """One kernel a line."""

    kinds: frozenset[Kind] = frozenset()

    def sniff(self, head: bytes) -> bool:
        """Whether the first line is that of this format."""
        return head.startswith(_HEAD)

    def read(self, file: Input, options: ReadOptions) -> Trace:
        """The kernels as a trace; whatever else a profile may hold counts as not recorded."""
        rows = _rows(file)
        names = encode_names(rows["kernel"].rank("dense").cast(pl.Int64) - 1, rows["kernel"].unique().sort())
        known = rows.select("device", "stream", "start_ns", "end_ns").with_columns(
            names.alias("name"), names.alias("full_name"), process=pl.lit(0, dtype=pl.Int32)
        )
        unknown = (column for column in TABLES["kernels"].columns if column.name not in known.columns)
        kernels = known.with_columns(pl.lit(None, dtype=column.dtype).alias(column.name) for column in unknown)
        first, last = rows.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0)
        capture = Capture(
            file.known_as.name,
            "plain",
            Recorder("a CSV file"),
            window_ns=(first, last),
            recorded=frozenset({"kernels"}),
        )
        return Trace(capture, kernels=kernels)

    def scrub(self, file: Input, copy: Path) -> Removed:
        """A copy of these columns, refused if it holds what identifies people or machines."""
        from warplens.readers.scrubbing import Removed, refuse_remains
        from warplens.secrets import Secrets

        _rows(file).write_csv(copy)
        refuse_remains(copy.read_bytes(), Secrets(), file.known_as)
        return Removed({}, {}, {}, 0, ("columns", "lines"))


def _rows(file: Input) -> pl.DataFrame:
    try:
        rows = pl.read_csv(file.path, schema=_TYPES)
    except pl.exceptions.PolarsError as error:
        found = str(error).partition("\n")[0]
        raise UnreadableInputError(file.known_as, f"a line is no kernel ({found})", "Write it again") from None
    if rows.is_empty() or rows.null_count().sum_horizontal()[0]:
        raise UnreadableInputError(file.known_as, "it has no kernel, or empty fields", "Write it again")
    if not rows.filter(pl.col("end_ns") < pl.col("start_ns")).is_empty():
        raise UnreadableInputError(file.known_as, "a kernel ends before it starts", "Write it again")
    return rows.sort("start_ns")
