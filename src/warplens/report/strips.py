"""The strips of a report's first screen: where the time went, and what the GPU needs for the same mathematics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import fsum
from typing import Any, Final

import polars as pl

from warplens.analysis.headroom import Headroom
from warplens.analysis.timebudget import TimeBudget
from warplens.analysis.window import Window
from warplens.report import text as fmt
from warplens.report.document import Segment, Strip
from warplens.report.headroom import headroom_strip
from warplens.report.questions.time import titled_parts
from warplens.report.theme import part_fill

#: Parts of a budget below this share of the window are one segment.
_SMALL_SEGMENT: Final = 0.03


def strips(budgets: Sequence[TimeBudget], headrooms: Sequence[Headroom], window: Window) -> Iterator[Strip]:
    """The budget of the GPU with the least work, and what it needs for the same mathematics, in the same scale."""
    if not budgets:
        return
    found = min(budgets, key=lambda budget: budget.busy_ns)
    yield _budget_strip(found, window, one_of_many=len(budgets) > 1)
    needed = (headroom_strip(one) for one in headrooms if one.device == found.device)
    yield from (strip for strip in needed if strip is not None)


def strips_data(budgets: Sequence[TimeBudget], headrooms: Sequence[Headroom], window: Window) -> list[dict[str, Any]]:
    """The `strips` of a report's JSON: whose parts, of which GPU, and each part with its time in one step."""
    return [
        {
            "strip": strip.what,
            "device": strip.device,
            "title": strip.title,
            "rows": [{"part": each.title, "time_ns": each.time_ns, "share": each.share} for each in strip.segments],
        }
        for strip in strips(budgets, headrooms, window)
    ]


def _budget_strip(found: TimeBudget, window: Window, *, one_of_many: bool) -> Strip:
    """The budget of one GPU: what it was busy with, then why it was idle."""
    steps, unit = max(1, len(window.steps)), "step" if window.steps else "window"
    rows = merged_small_parts(titled_parts(found), _SMALL_SEGMENT).iter_rows(named=True)
    segments = (
        Segment(row["part"], row["duration_ns"] / steps, row["share"], row["fill"], row["detail"] or "") for row in rows
    )
    whole = f"one {unit}, {fmt.duration(found.duration_ns / steps)}"
    which = f" of GPU {found.device}" if one_of_many else ""
    busy = fmt.share(found.busy_ns / found.duration_ns if found.duration_ns else 0.0)
    return Strip("budget", found.device, f"Where the time{which} goes ({whole}): {busy} busy", tuple(segments))


def merged_small_parts(parts: pl.DataFrame, least: float) -> pl.DataFrame:
    """The `titled_parts` as they are drawn; those of a family below a share of the window become one, if several."""
    fills = [part_fill(*key) for key in parts.select("group", "part").rows()]
    titled = parts.select(
        pl.col("title").alias("part"),
        pl.when(pl.col("group") == "idle").then(pl.lit("idle")).otherwise(pl.lit("busy")).alias("family"),
        pl.col("time_ns").alias("duration_ns"),
        "share",
        pl.Series("fill", fills, dtype=pl.String),
        pl.col("meaning").alias("detail"),
    )
    drawn = []
    for family in ("busy", "idle"):
        mine = titled.filter(pl.col("family") == family)
        small = mine.filter(pl.col("share") < least)
        if small.height < 2:
            drawn.append(mine)
            continue
        rest = small.select(
            pl.lit(f"{small.height} {'smaller parts' if family == 'busy' else 'other causes of idle time'}").alias(
                "part"
            ),
            pl.lit(family).alias("family"),
            pl.col("duration_ns").sum(),
            pl.lit(fsum(small["share"])).alias("share"),  # the same in whatever order
            pl.lit("other" if family == "busy" else "idle-6").alias("fill"),
            pl.lit(", ".join(small["part"])).alias("detail"),
        )
        drawn.extend((mine.filter(pl.col("share") >= least), rest))
    return pl.concat(drawn)
