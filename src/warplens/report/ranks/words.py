"""What many ranks have to say, in sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from warplens.report import format as fmt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from warplens.analysis.ranks.across import RanksResult

__all__ = ["answer", "facts", "run_line", "window_line"]

#: A rank is called the straggler if it causes this many times its even share of all delay (of two ranks: three
#: quarters), and arrives last more often than its turn.
_STANDS_OUT = 2.0


def answer(result: RanksResult) -> str:
    """The answer in two or three sentences: the straggler, what it costs, and whether the work is uneven."""
    sentences = [text for text in (_straggler(result), _imbalance(result), _exposed(result)) if text]
    return " ".join(sentences) if sentences else "The ranks neither communicate nor compute in these windows."


def facts(result: RanksResult) -> Iterator[str]:
    """What belongs above the tables: run, windows, clocks, matching."""
    yield run_line(result)
    yield window_line(result)
    if len(result.ranks) > 1:
        yield f"clocks: {_clocks(result)}"
        kernels, matched = int(result.matching["kernels"].sum()), int(result.matching["matched"].sum())
        if kernels:
            yield f"matched: {fmt.count(matched)} of {fmt.count(kernels)} communication kernels found on other ranks"


def run_line(result: RanksResult) -> str:
    """How many ranks of how many, from how many files, by which tool."""
    size = result.placing.world_size
    count = len(result.ranks)
    of = f" of {fmt.count(size)}" if size is not None else ""
    files = len({(summary.source, number) for summary, number in zip(result.summaries, _files(result), strict=True)})
    tools = " · ".join(dict.fromkeys(summary.tool for summary in result.summaries))
    return f"{_plural(count, 'rank')}{of} in {_plural(files, 'file')} · {tools}"


def window_line(result: RanksResult) -> str:
    """The windows of all ranks, in one sentence."""
    lengths = [summary.window.duration_ns for summary in result.summaries]
    hows = dict.fromkeys(summary.window.how for summary in result.summaries)
    low, high = min(lengths), max(lengths)
    length = (
        fmt.duration(low) if fmt.duration(low) == fmt.duration(high) else f"{fmt.duration(low)} to {fmt.duration(high)}"
    )
    how = next(iter(hows)) if len(hows) == 1 else f"found in each rank ({next(iter(hows))}; …)"
    return f"window: {length}, {how}"


def _files(result: RanksResult) -> list[int]:
    """A number for each file: two files of one name differ in their part 0."""
    seen: dict[tuple[str, int], int] = {}
    numbers = []
    for summary in result.summaries:
        key = (summary.source, summary.part)
        numbers.append(seen.get(key, 0))
        seen[key] = numbers[-1] + 1
    return numbers


def _clocks(result: RanksResult) -> str:
    alignment = result.alignment
    text = alignment.method
    if alignment.residual_median_ns is not None and alignment.residual_max_ns is not None:
        text += (
            f"; ends of the same collective differ from their median by {fmt.duration(alignment.residual_median_ns)} "
            f"(median), at most {fmt.duration(alignment.residual_max_ns)}"
        )
    return text


def _straggler(result: RanksResult) -> str | None:
    waits = result.waits
    if not waits.collectives.height:
        return None
    total = waits.collectives.height
    ranks = waits.ranks.sort(["delay_ns", "rank"], descending=[True, False])
    wait, exposed = int(waits.ranks["wait_ns"].sum()), int(waits.ranks["exposed_wait_ns"].sum())
    cost = f"together the ranks waited {fmt.duration(wait)}, {fmt.duration(exposed)} of it exposed"
    worst = ranks.row(0, named=True)
    even = 1 / waits.ranks.filter(pl.col("matched") > 0).height
    caused = worst["delay_ns"] / max(1, int(waits.ranks["delay_ns"].sum()))
    if worst["last"] and worst["last_share"] > even and caused >= min(_STANDS_OUT * even, (1 + even) / 2):
        return (
            f"Rank {worst['rank']} is the straggler: it arrived last in {fmt.share(worst['last_share'])} of "
            f"{_plural(worst['matched'], 'collective')} and alone held them up for {fmt.duration(worst['delay_ns'])}; "
            f"{cost}."
        )
    return f"No rank stands out as late over {_plural(total, 'collective')}; {cost}."


def _imbalance(result: RanksResult) -> str | None:
    uneven = result.balance.imbalance
    if uneven is None or len(result.ranks) < 2:
        return None
    return f"The busiest rank computes {uneven:.2f} × the mean."


def _exposed(result: RanksResult) -> str | None:
    ranks = result.balance.ranks
    communication, exposed = int(ranks["communication_ns"].sum()), int(ranks["exposed_ns"].sum())
    if not communication:
        return None
    window = int(ranks["duration_ns"].sum())
    return (
        f"Communication that nothing hides takes {fmt.share(exposed / window)} of the time; "
        f"{fmt.share(1 - exposed / communication)} of all communication is overlapped by compute."
    )


def _plural(count: int, noun: str) -> str:
    return f"{fmt.count(count)} {noun}" + ("" if count == 1 else "s")
