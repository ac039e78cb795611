"""The headroom for people: one waterfall from the measured step down to the limit, its parts, and who owns them.

The strips of a report's first screen stand here as well: where the time went, and what the same mathematics needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import fsum
from typing import Any, Final

import polars as pl

from warplens.analysis.headroom import GROUPS, PARTS, STEPS_DOWN, Headroom
from warplens.analysis.headroom.budget import NO_MODEL
from warplens.analysis.timebudget import TimeBudget
from warplens.analysis.window import Window
from warplens.profile.columns import column
from warplens.report import text as fmt
from warplens.report.document import Block, Figure, Section, Segment, Strip, Table, pick, quiet, with_texts
from warplens.report.jsonout import named
from warplens.report.questions.time import titled_parts
from warplens.report.text import category_title, cause_title
from warplens.report.theme import part_fill

#: What goes away at each step down, and what is left at its end.
_LEVELS: Final = {
    "idle": "idle",
    "roof": "below roof",
    "avoidable": "avoidable",
    "precision": "precision",
    "limit": "limit",
}
_LEVEL_MEANINGS: Final = {
    "idle": "the GPU computes nothing",
    "roof": "time above the practical roof of the same work",
    "avoidable": "avoidable work",
    "precision": "cost of a format other than the tensor cores' own",
    "limit": "what is left",
}
_PARTS: Final = {
    "exposed-communication": "exposed communication",
    "exposed-copies": "exposed copies over links",
    "recomputation": "recomputed forward work",
    "unfused-attention": "attention scores in memory",
    "explicit-mask": "masks that attention reads",
    "conversion": "conversions of layout and format",
    "fusion": "passes that fusion makes one",
    "small-work": "kernels too small for the GPU",
}
#: How each step down is drawn where it stands above the limit.
_LEVEL_FILLS: Final = {"precision": "softmax", "avoidable": "idle-5", "roof": "idle-3", "idle": "idle-1"}
#: Parts of one step down that a chart names, if they are this share of the step; the others are one bar.
_NAMED: Final = 3
_WORTH_A_BAR: Final = 0.01
_WORTH_A_SEGMENT: Final = 0.0005


def headroom_part_title(level: str, part: str) -> str:
    """A part of the headroom as people call it."""
    if part in _PARTS:
        return _PARTS[part]
    return cause_title(part) if level == "idle" else category_title(part, short=True)


def facts(found: Headroom) -> Iterator[str]:
    """The headroom in sentences: the levels, how much of it is known, and utilisation."""
    unit = "step" if found.steps else "window"
    down = " → ".join(f"{fmt.duration(found.per_step(found.after(step)))} {words}" for step, words in _DOWN)
    yield f"GPU {found.device}, one {unit}: {fmt.duration(found.per_step(found.duration_ns))} measured → {down}"
    if found.roofs is None:
        yield "roofs: unknown for this GPU; kernels count as measured"
    else:
        yield f"roofs: {found.roofs.source}"
    if found.known_share is not None:
        known = f"work (FLOPs, bytes) known for {fmt.share(found.known_share)} of the busy time"
        if found.product_known_share is not None:
            known += f", FLOPs for {fmt.share(found.product_known_share)} of the products' time"
        yield known
    if found.mfu is not None and found.hfu is not None and found.roofs is not None:
        peak = f"{fmt.flop_rate(found.peak_flops_per_s or 0)} ({found.peak_format}, dense)"
        model, hardware = fmt.share(found.mfu), fmt.share(found.hfu)
        yield f"utilisation of {peak}: model FLOPs (MFU) {model}, hardware FLOPs (HFU) {hardware}"
    yield from _rates(found)


def _rates(found: Headroom) -> Iterator[str]:
    seconds, rates = found.duration_ns / 1e9, found.rates
    through = [(rates.tokens, "tokens"), (rates.images, "images")]
    said = [f"{fmt.count(round(amount / seconds))} {what}/s" for amount, what in through if amount and seconds]
    if said:
        yield f"throughput as recorded: {', '.join(said)}"
    if rates.weight_bytes and rates.weights_ns:
        size, time = fmt.data_size(found.per_step(rates.weight_bytes)), fmt.duration(found.per_step(rates.weights_ns))
        yield f"products of few rows read {size} of weights per {'step' if found.steps else 'window'}: at least {time}"


_DOWN: Final = (
    ("idle", "without idle time"),
    ("roof", "at practical roofs"),
    ("avoidable", "without avoidable work"),
    ("precision", "at the limit"),
)


_PART_COLUMNS: Final = pick(PARTS, "level part step_ns share how confidence owners")
_GROUP_COLUMNS: Final = pick(
    GROUPS,
    GROUPS.column("name").but(full="kernel"),
    "input_shapes dtype",
    GROUPS.column("calls").but(kind="count"),
    "measured_ns theoretical_ns roof_ns limit_ns lacks known",
)


def parts_table(found: Headroom) -> Table:
    """The parts of the headroom, from the top down, and their sum."""
    keys = found.parts.select("level", "part").rows()
    shown = found.parts.select(
        pl.Series("level", [_LEVELS[level] for level, _ in keys], dtype=pl.String),
        pl.Series("part", [headroom_part_title(*key) for key in keys], dtype=pl.String),
        "step_ns", "share", "how", "confidence", pl.col("owners").list.first(),
    )  # fmt: skip
    total = shown.select(
        pl.lit("sum").alias("level"), pl.lit("").alias("part"), pl.col("step_ns", "share").sum(),
        *(pl.lit("").alias(name) for name in ("how", "confidence", "owners")),
    )  # fmt: skip
    unit = f"one of {found.steps} steps" if found.steps else "the window"
    caption = f"GPU {found.device}: headroom of {unit}, {fmt.duration(found.per_step(found.duration_ns))}"
    return Table(f"headroom-{found.device}", caption, _PART_COLUMNS, pl.concat([shown, total]), limit=None)


def groups_table(found: Headroom) -> Table:
    """The groups of work that are furthest above the limit."""
    rows = found.groups.with_columns(pl.col("calls").round().cast(pl.Int64))
    labels = fmt.kernel_labels(rows["kernel"].drop_nulls())

    def told_apart(row: Mapping[str, Any]) -> str | None:
        # What no operator launched bears the short name of its kernel, which many kernels share (`Kernel2`).
        name, kernel = row["name"], row["kernel"]
        return labels[kernel] if kernel and name and "::" not in name and name in kernel else name

    rows = with_texts(rows, name=told_apart)
    caption = f"GPU {found.device}: operators and kernels, largest excess over their limit first"
    return Table(f"headroom-groups-{found.device}", caption, _GROUP_COLUMNS, rows, empty="No GPU work.")


def headroom_rows(found: Sequence[Headroom]) -> pl.DataFrame:
    """One row a part and GPU, with `owners` as one text."""
    empty = PARTS.only(column("device"), *PARTS.columns).empty()
    rows = [one.parts.select(pl.lit(one.device, dtype=pl.Int32).alias("device"), pl.all()) for one in found]
    return pl.concat([empty, *rows]).with_columns(pl.col("owners").list.join(", "))


def device_data(found: Headroom) -> dict[str, Any]:
    """What the JSON holds about one GPU beside the parts."""
    return {
        **named(found, "device steps duration_ns"),
        "step_ns": found.per_step(found.duration_ns),
        "after": {step: found.after(step) for step in STEPS_DOWN[:-1]},
        **named(
            found, "to_roof_share known_share product_known_share flops model_flops mfu hfu peak_flops_per_s rates"
        ),
        "roofs": None if found.roofs is None else named(found.roofs, "measured source"),
        "groups": {"rows": found.groups},
    }


def headroom_data(found: Sequence[Headroom]) -> dict[str, Any]:
    """The `headroom` of a report's JSON: for each GPU its parts and groups."""
    return {"devices": [{**device_data(one), "parts": {"rows": one.parts}} for one in found]}


def headroom_blocks(found: Sequence[Headroom]) -> Iterator[Block | Section]:
    """From the measured step down to the limit; the GPUs after the first are folded."""
    for place, one in enumerate(found):
        if place:
            title = f"Headroom of GPU {one.device}"
            yield Section(f"headroom-of-{one.device}", title, tuple(_device_blocks(one)), folded=True)
        else:
            yield from _device_blocks(one)


def _device_blocks(found: Headroom) -> Iterator[Block]:
    """The chart, the sentences, the parts, the groups."""
    yield _figure(found)
    yield from (quiet(fmt.sentence(sentence)) for sentence in facts(found))
    yield parts_table(found)
    yield groups_table(found)


def headroom_strip(found: Headroom) -> Strip | None:
    """The limit and what stands above it, from the left: what is needed, then what could go away.

    None where neither the GPU's roofs nor the work of its kernels is known: it would say no more than the budget.
    """
    if found.roofs is None or not found.known_share:
        return None
    unit, whole = "step" if found.steps else "window", found.duration_ns or 1
    limit = found.after("precision")
    unknown = int(found.parts.filter(pl.col("part") == NO_MODEL)["time_ns"].sum())
    levels = [
        ("needed for the same work", limit - unknown, "gemm", _LEVEL_MEANINGS["limit"]),
        ("work not known, as measured", unknown, "other", "no model says what this work needs"),
    ]
    exposed = int(found.parts.filter(pl.col("part").str.starts_with("exposed-"))["time_ns"].sum())
    for level, fill in _LEVEL_FILLS.items():
        gone = int(found.parts.filter(pl.col("level") == level)["time_ns"].sum())
        # The budget's strip counts transfers as busy: the same word for more time would be another number for it.
        transfers = level == "idle" and exposed / whole >= _WORTH_A_SEGMENT
        name = "idle or only transferring" if transfers else _LEVELS[level]
        levels.append((name, gone, fill, _LEVEL_MEANINGS[level]))
    segments = tuple(
        Segment(title, found.per_step(time), time / whole, fill, meaning)
        for title, time, fill, meaning in levels
        if time / whole >= _WORTH_A_SEGMENT
    )
    known = f"modelled; the work of {fmt.share(found.known_share)} of the busy time is known"
    most = "at most " if unknown else ""
    title = f"What this GPU needs for the same {unit}: {most}{fmt.duration(found.per_step(limit))} ({known})"
    return Strip("headroom", found.device, title, segments)


def _figure(found: Headroom) -> Figure:
    from warplens.report.charts import waterfall_chart

    measured, limit = (found.per_step(found.after(step)) for step in ("measured", "precision"))
    bars = pl.DataFrame(list(_bars(found)), schema={"name": pl.String, "delta": pl.Int64, "detail": pl.String})
    unit = "step" if found.steps else "window"
    alt = ", ".join(f"{fmt.duration(found.per_step(found.after(step)))} {words}" for step, words in _DOWN)
    return Figure(
        f"headroom-chart-{found.device}",
        f"GPU {found.device}: from the measured {unit} to the least time that this GPU needs for the same computation",
        waterfall_chart((f"measured {unit}", measured), bars, ("limit", limit)),
        f"measured {fmt.duration(measured)}; {alt}",
    )


def _bars(found: Headroom) -> Iterator[dict[str, Any]]:
    """What each step down takes away: its parts that are worth a bar, and the rest in one."""
    for level in STEPS_DOWN[:-1]:
        rows = found.parts.filter(pl.col("level") == level)
        named = rows.filter((pl.col("share") >= _WORTH_A_BAR) | (pl.int_range(pl.len()) == 0)).head(_NAMED)
        for row in named.iter_rows(named=True):
            name = f"{_LEVELS[level]}: {headroom_part_title(level, row['part'])}"
            yield {"name": name, "delta": -row["step_ns"], "detail": ", ".join(row["owners"]) or _LEVEL_MEANINGS[level]}
        rest = int(rows.slice(named.height)["step_ns"].sum())
        if rest:
            yield {"name": f"{_LEVELS[level]}: the rest", "delta": -rest, "detail": _LEVEL_MEANINGS[level]}


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
    which_one = "mean" if steps > 1 else "one" if window.steps else "the"
    whole = f"{which_one} {unit} as recorded, {fmt.duration(found.duration_ns / steps)}"
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
