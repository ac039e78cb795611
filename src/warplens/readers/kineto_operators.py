"""What operators recorded about themselves, and which backward operator belongs to which forward one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.profile.schema import TABLES
from warplens.readers.kineto_rows import with_threads

__all__ = ["autograd_links_of", "operators_of"]

Int64s = npt.NDArray[np.int64]

_FORWARD = ord("s")


def operators_of(operators: pl.DataFrame) -> pl.DataFrame:
    """The table of operators; they are the first rows of the ranges, in the same order."""
    return operators.with_columns(range=pl.int_range(pl.len(), dtype=pl.Int64))


def autograd_links_of(arrows: pl.DataFrame, operators: pl.DataFrame, ranges: pl.DataFrame, host: int) -> pl.DataFrame:
    """The recorded arrows from forward operators to backward ones.

    An arrow's ends name thread and begin of an operator with a sequence number. Where several of a thread begin at the
    same instant (times in whole microseconds), those two are taken whose sequence numbers agree, then the outermost.

    Args:
        arrows: their ends as recorded, with `start_ns`.
        operators: as recorded, the first rows of `ranges`.
        ranges: the table of ranges.
        host: the process of the program.
    """
    numbered = operators["sequence"].is_not_null().arg_true()
    if not arrows.height or not numbered.len():
        return TABLES["autograd_links"].empty()
    arrows = with_threads(arrows, host)
    columns = ("process", "thread", "start_ns")
    begun = ranges.select(columns)[numbered]
    end, place = _matches(*(arrows[name].to_numpy() for name in columns), *(begun[name].to_numpy() for name in columns))
    row = numbered.to_numpy().astype(np.int64)[place]
    found = pl.DataFrame({"arrow": end, "row": row}).with_columns(
        arrows["flow"][end],
        arrows["phase"][end],
        operators["sequence"][row].alias("sequence"),
        ranges["depth"][row].alias("depth"),
    )
    forward = found.filter(pl.col("phase") == _FORWARD).drop("phase", "arrow")
    backward = found.filter(pl.col("phase") != _FORWARD).drop("phase")
    pairs = forward.join(backward, on="flow", suffix="_backward")
    if pairs["arrow"].n_unique() < pairs.height:
        agree = pl.col("sequence") == pl.col("sequence_backward")
        pairs = pairs.sort(~agree, "depth", "depth_backward", maintain_order=True)
        pairs = pairs.unique("arrow", keep="first", maintain_order=True)
    return pairs.select(forward="row", backward="row_backward").unique().sort("forward", "backward")


def _matches(
    process: Int64s, thread: Int64s, start: Int64s, process_of: Int64s, thread_of: Int64s, start_of: Int64s
) -> tuple[Int64s, Int64s]:
    """All pairs of a row of the first three columns and one of the last three that are equal."""
    threads = np.concatenate([process, process_of]).astype(np.int64) * 2**32 + np.concatenate([thread, thread_of])
    number = np.unique(threads, return_inverse=True)[1].reshape(-1).astype(np.int64)
    # One number for thread and time: times are those of one trace, far below 2^63 divided by its threads.
    stride = int(max(start.max(), start_of.max())) + 1
    wanted = number[: len(start)] * stride + start
    present = number[len(start) :] * stride + start_of
    order = np.argsort(present, kind="stable")
    first = np.searchsorted(present[order], wanted, "left")
    count = np.searchsorted(present[order], wanted, "right") - first
    row = np.repeat(np.arange(len(wanted)), count)
    offset = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    return row, order[np.repeat(first, count) + offset]
