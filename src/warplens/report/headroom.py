"""Headroom for display: a waterfall from the measured step down to the limit, its parts, and their owners.

The strips of a report's first screen are here as well: the time budget, and the time the same computation needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import fsum
from typing import Any, Final, NamedTuple

import polars as pl

from warplens.analysis.headroom import GROUPS, PARTS, STEPS_DOWN, Headroom
from warplens.analysis.headroom.budget import LEAST_KNOWN
from warplens.analysis.timebudget import TimeBudget
from warplens.analysis.window import Window
from warplens.profile.columns import column
from warplens.report import text as fmt
from warplens.report.document import Block, Figure, Section, Segment, Strip, Table, pick, quiet, with_texts
from warplens.report.jsonout import named
from warplens.report.questions.time import titled_parts
from warplens.report.text import category_title, cause_title
from warplens.report.theme import part_fill


class _Level(NamedTuple):
    """A level of the waterfall: what a step down removes, or what is left."""

    name: str
    meaning: str
    fill: str  # colour token in the strip
    after: str = ""  # words for the time without it


_LEVELS: Final = {
    "idle": _Level("idle", "the GPU computes nothing", "idle-1", "without idle time"),
    "roof": _Level("below roof", "time above the practical roof of the same work", "idle-3", "at practical roofs"),
    "avoidable": _Level("avoidable", "avoidable work", "idle-5", "without avoidable work"),
    "precision": _Level("precision", "cost of a format other than the tensor cores' own", "softmax", "at the limit"),
    "limit": _Level("limit", "what is left", "gemm"),
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
#: A chart names at most this many parts per level, of at least this share of the step; the others are one bar.
_MOST_BARS_OF_LEVEL: Final = 3
_SMALLEST_BAR_SHARE: Final = 0.01

#: Segments of a strip below this share are left out.
_SMALLEST_SEGMENT_SHARE: Final = 0.0005

#: Where less of the products' time has known FLOPs, the rest would show in the utilisation, which is a lower bound.
_NEARLY_ALL: Final = 0.995


def headroom_part_title(level: str, part: str) -> str:
    """The display name of a part of the headroom."""
    if part in _PARTS:
        return _PARTS[part]
    return cause_title(part) if level == "idle" else category_title(part, short=True)


def _unit(headroom: Headroom) -> str:
    return "step" if headroom.steps else "window"


def _times_after(headroom: Headroom) -> Iterator[str]:
    """The time after each step down, in words; the last one is the limit, as far as it is known."""
    known = STEPS_DOWN[:-1] if headroom.limit_known else STEPS_DOWN[:-2]
    for step in known:
        also = " and transfers" if step == "idle" and _transfers(headroom) else ""
        yield f"{fmt.duration(headroom.per_step(headroom.after(step)))} {_LEVELS[step].after}{also}"
    if not headroom.limit_known:
        yield f"limit not known for {fmt.share(headroom.unmodelled_share)} of the {_unit(headroom)}"


def _transfers(headroom: Headroom) -> bool:
    """Whether the idle level includes exposed transfers, which a budget counts as busy, so that both differ."""
    exposed = int(headroom.parts.filter(pl.col("part").str.starts_with("exposed-"))["time_ns"].sum())
    return exposed > 0 and exposed / headroom.duration_ns >= _SMALLEST_SEGMENT_SHARE


def facts(headroom: Headroom, program: str | None = None, counters: str | None = None) -> Iterator[str]:
    """The headroom in sentences: levels, roofs, share of known work, utilisation and throughput.

    `program` and `counters` are the names of the trace and of the report that told the work of equal kernels, if given.
    """
    unit = _unit(headroom)
    down = " → ".join(_times_after(headroom))
    measured = fmt.duration(headroom.per_step(headroom.duration_ns))
    yield f"GPU {headroom.device}, {'one' if headroom.steps else 'the'} {unit}: {measured} measured → {down}"
    yield from _limit(headroom)
    if headroom.roofs is None:
        yield "roofs: unknown for this GPU (--gpu names it); kernels count as measured"
    else:
        yield f"roofs: {headroom.roofs.source}"
    if headroom.known_share is not None and headroom.roofs is not None:  # without roofs, no work counts as known
        known = f"work (FLOPs, bytes) known for {fmt.share(headroom.known_share)} of the busy time"
        if headroom.product_known_share is not None:
            known += f", FLOPs for {fmt.share(headroom.product_known_share)} of the products' time"
        yield known
    for name, known_by in ((program, "trace"), (counters, "counters")):
        if name is not None and (busy_ns := int(headroom.groups["measured_ns"].sum())):
            found_ns = int(headroom.groups.filter(pl.col("known") == known_by)["measured_ns"].sum())
            yield f"work taken from {name}: that of {fmt.share(found_ns / busy_ns)} of the busy time"
    if headroom.mfu is not None and headroom.hfu is not None and headroom.roofs is not None:
        peak = f"{fmt.flop_rate(headroom.peak_flops_per_s or 0)} ({headroom.peak_format}, dense)"
        model, hardware = fmt.share(headroom.mfu), fmt.share(headroom.hfu)
        at_least = "at least " if (headroom.product_known_share or 0.0) < _NEARLY_ALL else ""
        yield f"utilisation of {peak}: model FLOPs (MFU) {at_least}{model}, hardware FLOPs (HFU) {at_least}{hardware}"
    elif headroom.roofs is not None and 0.0 < (headroom.product_known_share or 0.0) < LEAST_KNOWN:
        yield "utilisation (MFU, HFU): not known, since the FLOPs of most of the products' time are not"
    yield from _rates(headroom)


def _limit(headroom: Headroom) -> Iterator[str]:
    """What the limit covers, and what it does not."""
    unknown = f"{fmt.duration(headroom.per_step(headroom.unmodelled_ns))} of it have no model and count as measured"
    if headroom.limit_known:
        held = f"the recorded work ({unknown})" if headroom.unmodelled_ns else "the recorded work"
        yield f"the limit is that of {held}; work that is batched or left out needs less"
    else:
        left = fmt.duration(headroom.per_step(headroom.after("precision")))
        yield f"the limit is at most {left}: {unknown}; work that is batched or left out needs less"
    if headroom.product_known_share is not None and headroom.product_known_share < LEAST_KNOWN:
        yield "without recorded shapes, attention scores and masks in memory do not count as avoidable"


def _rates(headroom: Headroom) -> Iterator[str]:
    seconds, rates = headroom.duration_ns / 1e9, headroom.rates
    # Of a recommender these are clicks, of a model of molecules atoms; of a model of sound, spectrograms.
    amounts = [
        (rates.tokens, "tokens (look-ups in their embedding)"),
        (rates.images, "images (inputs of the first convolution)"),
    ]
    throughputs = [
        f"{fmt.count(round(amount / seconds))} {noun} per second" for amount, noun in amounts if amount and seconds
    ]
    if throughputs:
        yield f"throughput as recorded: {', '.join(throughputs)}"
    if rates.weight_bytes and rates.weights_ns:
        size = fmt.data_size(headroom.per_step(rates.weight_bytes))
        time = fmt.duration(headroom.per_step(rates.weights_ns))
        unit = _unit(headroom)
        yield f"products of few rows read {size} of weights per {unit}: at least {time}"


_SHOWN_OF_PART: Final = "level part step_ns share how confidence owners"
_PART_COLUMNS: Final = pick(PARTS, _SHOWN_OF_PART)
_GROUP_COLUMNS: Final = pick(
    GROUPS,
    GROUPS.column("name").but(full="full_name"),
    GROUPS.column("input_shapes").but(title="Shapes, or grid"),
    "dtype",
    GROUPS.column("calls").but(kind="count"),
    "measured_ns theoretical_ns roof_ns limit_ns lacks known",
)


def parts_table(headroom: Headroom) -> Table:
    """The parts of the headroom, from the measured time down, and their sum."""
    keys = headroom.parts.select("level", "part").rows()
    shown = headroom.parts.select(
        pl.Series("level", [_LEVELS[level].name for level, _ in keys], dtype=pl.String),
        pl.Series("part", [headroom_part_title(*key) for key in keys], dtype=pl.String),
        "step_ns", "share", "how", "confidence", pl.col("owners").list.first(),
    )  # fmt: skip
    total = shown.select(
        pl.lit("sum").alias("level"), pl.lit("").alias("part"), pl.col("step_ns", "share").sum(),
        *(pl.lit("").alias(name) for name in ("how", "confidence", "owners")),
    )  # fmt: skip
    counted = f"{fmt.number(headroom.steps)} steps"
    whole = float(headroom.steps).is_integer()
    one = "the only step" if headroom.steps == 1 else f"one of {counted}"
    unit = (one if whole else f"one step, the mean of {counted}") if headroom.steps else "the window"
    columns = _PART_COLUMNS if headroom.steps else pick(PARTS, _SHOWN_OF_PART, step_ns="Time")
    caption = f"GPU {headroom.device}: headroom of {unit}, {fmt.duration(headroom.per_step(headroom.duration_ns))}"
    return Table(f"headroom-{headroom.device}", caption, columns, pl.concat([shown, total]), limit=None)


def groups_table(headroom: Headroom) -> Table:
    """Operators and kernels, those furthest above their limit first."""
    rows = headroom.groups.with_columns(pl.col("calls").round().cast(pl.Int64))
    labels = fmt.kernel_labels(rows["full_name"].drop_nulls())

    def distinct_name(row: Mapping[str, Any]) -> str | None:
        # Work that no operator launched has the short name of its kernel, which many kernels share (`Kernel2`).
        name, kernel = row["name"], row["full_name"]
        return labels[kernel] if kernel and name and "::" not in name and name in kernel else name

    def work_of(row: Mapping[str, Any]) -> str | None:
        # Without shapes, groups of one kernel differ in their grids.
        shapes, blocks = row["input_shapes"], row["launch_blocks"]
        return fmt.plural(blocks, "block") if shapes is None and blocks is not None else shapes

    rows = with_texts(rows, name=distinct_name, input_shapes=work_of)
    together = f" of {fmt.number(headroom.steps)} steps together" if headroom.steps > 1 else ""
    caption = f"GPU {headroom.device}: operators and kernels{together}, largest excess over their limit first"
    return Table(f"headroom-groups-{headroom.device}", caption, _GROUP_COLUMNS, rows, empty="No GPU work.")


def headroom_rows(headrooms: Sequence[Headroom]) -> pl.DataFrame:
    """One row per GPU and part, `owners` joined to one text."""
    empty = PARTS.only(column("device"), *PARTS.columns).empty()
    rows = [
        headroom.parts.select(pl.lit(headroom.device, dtype=pl.Int32).alias("device"), pl.all())
        for headroom in headrooms
    ]
    return pl.concat([empty, *rows]).with_columns(pl.col("owners").list.join(", "))


def device_data(headroom: Headroom) -> dict[str, Any]:
    """The JSON data of one GPU, without the parts."""
    return {
        **named(headroom, "device steps duration_ns"),
        "step_ns": headroom.per_step(headroom.duration_ns),
        "after": {step: headroom.after(step) for step in STEPS_DOWN[:-1]},
        **named(
            headroom,
            "to_roof_share known_share product_known_share unmodelled_share flops model_flops mfu hfu peak_flops_per_s "
            "rates",
        ),
        "roofs": None if headroom.roofs is None else named(headroom.roofs, "measured source"),
        "groups": {"rows": headroom.groups},
    }


def headroom_data(headrooms: Sequence[Headroom]) -> dict[str, Any]:
    """The `headroom` of a report's JSON: for each GPU its parts and groups."""
    return {"devices": [{**device_data(headroom), "parts": {"rows": headroom.parts}} for headroom in headrooms]}


def headroom_blocks(headrooms: Sequence[Headroom]) -> Iterator[Block | Section]:
    """Chart, sentences and tables of each GPU; the GPUs after the first are folded."""
    for number, headroom in enumerate(headrooms):
        if number:
            title = f"Headroom of GPU {headroom.device}"
            yield Section(f"headroom-of-{headroom.device}", title, tuple(_device_blocks(headroom)), folded=True)
        else:
            yield from _device_blocks(headroom)


def _device_blocks(headroom: Headroom) -> Iterator[Block]:
    yield _figure(headroom)
    yield from (quiet(fmt.sentence(sentence)) for sentence in facts(headroom))
    yield parts_table(headroom)
    yield groups_table(headroom)


def headroom_strip(headroom: Headroom) -> Strip | None:
    """The measured time of one GPU as a strip: from the left the time needed, then the removable parts.

    None if the GPU's roofs or the work of its kernels are unknown: the strip would say no more than the budget.
    """
    if headroom.roofs is None or not headroom.known_share:
        return None
    unit, total_ns = _unit(headroom), headroom.duration_ns or 1
    limit = headroom.after("precision")
    unknown = headroom.unmodelled_ns
    levels = [
        ("needed for the same work", limit - unknown, _LEVELS["limit"].fill, _LEVELS["limit"].meaning),
        ("work not known, as measured", unknown, "other", "no model says what this work needs"),
    ]
    for level in reversed(STEPS_DOWN[:-1]):
        removed = int(headroom.parts.filter(pl.col("level") == level)["time_ns"].sum())
        name = "idle or only transferring" if level == "idle" and _transfers(headroom) else _LEVELS[level].name
        levels.append((name, removed, _LEVELS[level].fill, _LEVELS[level].meaning))
    segments = tuple(
        Segment(title, headroom.per_step(time), time / total_ns, fill, meaning)
        for title, time, fill, meaning in levels
        if time / total_ns >= _SMALLEST_SEGMENT_SHARE
    )
    known = f"modelled; the work of {fmt.share(headroom.known_share)} of the busy time is known"
    at_most = "at most " if headroom.known_share < 1 else ""
    title = f"What this GPU needs for the same {unit}: {at_most}{fmt.duration(headroom.per_step(limit))} ({known})"
    return Strip("headroom", headroom.device, title, segments)


def _figure(headroom: Headroom) -> Figure:
    from warplens.report.charts.bars import waterfall_chart

    measured, limit = (headroom.per_step(headroom.after(step)) for step in ("measured", "precision"))
    bars = pl.DataFrame(list(_bars(headroom)), schema={"name": pl.String, "delta": pl.Int64, "detail": pl.String})
    unit = _unit(headroom)
    return Figure(
        f"headroom-chart-{headroom.device}",
        f"GPU {headroom.device}: from the measured {unit} to the least time that this GPU needs for the same "
        "computation",
        waterfall_chart(
            (f"measured {unit}", measured), bars, ("limit" if headroom.limit_known else "limit at most", limit)
        ),
        f"measured {fmt.duration(measured)}; {', '.join(_times_after(headroom))}",
    )


def _bars(headroom: Headroom) -> Iterator[dict[str, Any]]:
    """One bar for each large part of a level (at least one per level), and one for the rest of the level."""
    for level in STEPS_DOWN[:-1]:
        rows = headroom.parts.filter(pl.col("level") == level)
        is_large = (pl.col("share") >= _SMALLEST_BAR_SHARE) | (pl.int_range(pl.len()) == 0)
        named_parts = rows.filter(is_large).head(_MOST_BARS_OF_LEVEL)
        for row in named_parts.iter_rows(named=True):
            name = f"{_LEVELS[level].name}: {headroom_part_title(level, row['part'])}"
            yield {"name": name, "delta": -row["step_ns"], "detail": ", ".join(row["owners"]) or _LEVELS[level].meaning}
        rest = int(rows.slice(named_parts.height)["step_ns"].sum())
        if rest:
            yield {"name": f"{_LEVELS[level].name}: the rest", "delta": -rest, "detail": _LEVELS[level].meaning}


#: Parts of a budget below this share of the window are merged into one segment.
_SMALL_SEGMENT: Final = 0.03


def strips(budgets: Sequence[TimeBudget], headrooms: Sequence[Headroom], window: Window) -> Iterator[Strip]:
    """The time budget of the least busy GPU, and the time it needs for the same computation, on the same scale."""
    if not budgets:
        return
    budget = min(budgets, key=lambda budget: budget.busy_ns)
    yield _budget_strip(budget, window, one_of_many=len(budgets) > 1)
    for headroom in headrooms:
        if headroom.device == budget.device and (strip := headroom_strip(headroom)) is not None:
            yield strip


def strips_data(budgets: Sequence[TimeBudget], headrooms: Sequence[Headroom], window: Window) -> list[dict[str, Any]]:
    """The `strips` of a report's JSON: kind, GPU, title, and each part with its time per step."""
    return [
        {
            "strip": strip.what,
            "device": strip.device,
            "title": strip.title,
            "rows": [
                {"part": segment.title, "time_ns": segment.time_ns, "share": segment.share}
                for segment in strip.segments
            ],
        }
        for strip in strips(budgets, headrooms, window)
    ]


def _budget_strip(budget: TimeBudget, window: Window, *, one_of_many: bool) -> Strip:
    """The time budget of one GPU: busy time by category, then idle time by cause."""
    steps, unit = max(1, window.step_count), "step" if window.steps else "window"
    rows = merged_small_parts(titled_parts(budget), _SMALL_SEGMENT).iter_rows(named=True)
    segments = (
        Segment(row["part"], row["duration_ns"] / steps, row["share"], row["fill"], row["detail"] or "") for row in rows
    )
    article = "mean" if steps > 1 else "one" if window.steps else "the"
    recorded = f"{article} {unit} as recorded, {fmt.duration(budget.duration_ns / steps)}"
    of_gpu = f" of GPU {budget.device}" if one_of_many else ""
    busy = fmt.share(budget.busy_ns / budget.duration_ns if budget.duration_ns else 0.0)
    return Strip("budget", budget.device, f"Where the time{of_gpu} goes ({recorded}): {busy} busy", tuple(segments))


def merged_small_parts(parts: pl.DataFrame, least: float) -> pl.DataFrame:
    """The rows of `titled_parts` for drawing; two or more busy or idle parts with a share below `least` are merged."""
    fills = [part_fill(*key) for key in parts.select("group", "part").rows()]
    titled = parts.select(
        pl.col("title").alias("part"),
        pl.when(pl.col("group") == "idle").then(pl.lit("idle")).otherwise(pl.lit("busy")).alias("family"),
        pl.col("time_ns").alias("duration_ns"),
        "share",
        pl.Series("fill", fills, dtype=pl.String),
        pl.col("meaning").alias("detail"),
    )
    merged = []
    for family in ("busy", "idle"):
        of_family = titled.filter(pl.col("family") == family)
        small = of_family.filter(pl.col("share") < least)
        if small.height < 2:
            merged.append(of_family)
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
        merged.extend((of_family.filter(pl.col("share") >= least), rest))
    return pl.concat(merged)
