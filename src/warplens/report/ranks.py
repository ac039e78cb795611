"""The ranks of one run for display: the answer in sentences, tables, the document, and JSON data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import polars as pl

from warplens.analysis.ranks.across import MATCHING, RanksResult
from warplens.analysis.ranks.balance import COLLECTIVE_INSTANCES, PARTS, RANK_WAITS, RANKS, STEP_BALANCE, delays
from warplens.analysis.ranks.clocks import CLOCKS
from warplens.analysis.ranks.collectives import COLLECTIVE_GROUPS
from warplens.profile import Note, NoteLevel
from warplens.profile.columns import column
from warplens.report import text as fmt
from warplens.report.document import (
    Block,
    Document,
    Figure,
    KeyFigure,
    KeyFigures,
    Paragraph,
    Section,
    SectionOf,
    Table,
    limits,
    pick,
    quiet,
    sections,
)
from warplens.report.jsonout import named, window_data

#: Ranks drawn one by one; a chart of more would be longer than a screen.
_DRAWN_RANKS: Final = 64

#: Parts of a rank's time: column, title and colour token, from left to right in a bar.
_PARTS_OF_A_RANK: Final = (
    ("compute_ns", "compute", "gemm"),
    ("graph_ns", "in graphs", "graph"),
    ("transfer_part_ns", "exposed communication: transfer", "communication"),
    ("wait_part_ns", "exposed communication: waiting for ranks", "softmax"),
    ("copy_ns", "copies", "transfer"),
    ("idle_ns", "idle", "idle-1"),
)


def longest_window(rows: pl.DataFrame) -> int:
    """The longest window of any rank (ns), the common scale of all bars; at least 1."""
    return max((int(value) for value in rows["duration_ns"].to_list()), default=1) or 1


def parts_of(row: dict[str, Any]) -> Iterator[tuple[str, str, int]]:
    """Title, colour token and time (ns) of each part of one rank's window, from left to right."""
    # Waiting is summed over collectives, exposure is the length of a union: concurrent waits can exceed exposure.
    wait = min(row["exposed_wait_ns"] or 0, row["exposed_ns"])
    times = {**row, "wait_part_ns": wait, "transfer_part_ns": row["exposed_ns"] - wait}
    yield from ((title, token, times[column]) for column, title, token in _PARTS_OF_A_RANK if times[column])


def answer(result: RanksResult) -> str:
    """The answer in two or three sentences: the late ranks, their cost, load imbalance and exposed communication."""
    sentences = []
    waits, ranks, uneven = result.waits, result.balance.ranks, result.balance.imbalance
    if total := waits.collectives.height:
        wait, exposed = int(waits.ranks["wait_ns"].sum()), int(waits.ranks["exposed_wait_ns"].sum())
        cost = f"together the ranks waited {fmt.duration(wait)}, {fmt.duration(exposed)} of it exposed"
        late = result.late
        if not late:
            sentences.append(f"No rank stands out as late over {fmt.plural(total, 'collective')}; {cost}.")
        elif len(late) > 1:
            delayed = delays(waits, late)
            often = f"{fmt.share(delayed.height / total)} of {fmt.plural(total, 'collective')}"
            sentences.append(
                f"Ranks {fmt.listed([str(rank) for rank in sorted(late)])} are late together: they arrived after "
                f"all others in {often} and delayed them by "
                f"{fmt.duration(int(delayed['delay_ns'].sum()))}; {cost}."
            )
        else:
            worst = waits.ranks.row(by_predicate=pl.col("rank") == late[0], named=True)
            sentences.append(
                f"Rank {worst['rank']} is the straggler: it arrived last in {fmt.share(worst['last_share'])} of "
                f"{fmt.plural(worst['matched'], 'collective')} and alone delayed them by "
                f"{fmt.duration(worst['delay_ns'])}; {cost}."
            )
    if uneven is not None and len(result.ranks) > 1:
        sentences.append(f"The busiest rank computes {uneven:.2f} times the mean.")
    if communication := int(ranks["communication_ns"].sum()):
        exposed, window = int(ranks["exposed_ns"].sum()), int(ranks["duration_ns"].sum())
        sentences.append(
            f"Exposed communication takes {fmt.share(exposed / window)} of the time; "
            f"{fmt.share(1 - exposed / communication)} of all communication is overlapped by compute."
        )
    if len(result.ranks) == 1 and not sentences:
        return "One rank that communicates with no other: there is nothing to compare it with."
    return " ".join(sentences) or "The ranks neither communicate nor compute in these windows."


def facts(result: RanksResult) -> Iterator[str]:
    """The lines above the tables: run, windows, clocks, matching."""
    yield run_line(result)
    yield f"window: {window_text(result)}"
    if len(result.ranks) > 1:
        yield f"clocks: {clock_sentence(result)}"
        kernels, matched = int(result.matching["kernels"].sum()), int(result.matching["matched"].sum())
        if kernels:
            yield f"matched: {fmt.count(matched)} of {fmt.count(kernels)} communication kernels found on other ranks"


def run_line(result: RanksResult) -> str:
    """Number of ranks, world size, number of files, and the recording tools."""
    size = result.placing.world_size
    count = len(result.ranks)
    of_size = f" of {fmt.count(size)}" if size is not None else ""
    files = len({(summary.source, number) for summary, number in zip(result.summaries, _files(result), strict=True)})
    tools = " · ".join(dict.fromkeys(summary.tool for summary in result.summaries))
    return f"{fmt.plural(count, 'rank')}{of_size} in {fmt.plural(files, 'file')} · {tools}"


def window_text(result: RanksResult) -> str:
    """The windows of all ranks, in one sentence."""
    lengths = [summary.window.duration_ns for summary in result.summaries]
    first, *others = dict.fromkeys(summary.window.how for summary in result.summaries)
    low, high = fmt.duration(min(lengths)), fmt.duration(max(lengths))
    length = low if low == high else f"{low} to {high}"
    return f"{length}, found in each rank ({first}; …)" if others else f"{length}, {first}"


def run_meta(result: RanksResult) -> tuple[tuple[str, str], ...]:
    """Run and windows, for the head of a page."""
    return ("Run", run_line(result)), ("Window", window_text(result))


def _files(result: RanksResult) -> list[int]:
    """For each summary the number of its file among those of the same name.

    A file has each part (rank) only once, so a repeated part begins another file.
    """
    seen: dict[tuple[str, int], int] = {}
    numbers = []
    for summary in result.summaries:
        key = (summary.source, summary.part)
        numbers.append(seen.get(key, 0))
        seen[key] = numbers[-1] + 1
    return numbers


def clock_sentence(result: RanksResult) -> str:
    """How the clocks were aligned, and the residual difference."""
    residual = _residual(result)
    return result.alignment.method + (f"; {residual}" if residual else "")


def _residual(result: RanksResult) -> str:
    """The residual difference of the clocks as a clause; empty if it is not known."""
    median_ns, most_ns = result.alignment.residual_median_ns, result.alignment.residual_max_ns
    if median_ns is None or most_ns is None:
        return ""
    median, most = fmt.duration(median_ns), fmt.duration(most_ns)
    return f"ends of the same collective differ from their median by {median} (median), at most {most}"


_RANKS: Final = pick(
    RANKS, "rank source duration_ns compute_ns exposed_ns overlapped_ns overlap_share copy_ns idle_ns idle_share"
)
_WAITS: Final = pick(
    RANK_WAITS,
    "rank matched last last_share delay_ns wait_ns exposed_wait_ns transfer_ns wait_share unmatched_ns",
    matched="Collectives",
)
_GROUPS: Final = pick(
    COLLECTIVE_GROUPS,
    "kind group group_size size_bytes kernels total_ns median_ns transfer_median_ns",
    "algorithm_bytes_per_s bus_bytes_per_s own_bus_bytes_per_s",
    kind="Collective",
    median_ns="Own median",
)
_PARTS: Final = pick(PARTS, "group", column("title"), "share mean_ns min_ns max_ns max_rank", max_ns="Most")
_STEPS: Final = pick(
    STEP_BALANCE,
    "step wall_max_ns compute_mean_ns compute_max_ns compute_max_rank imbalance exposed_mean_ns idle_mean_ns in_window",
)
_CLOCKS: Final = pick(CLOCKS, "rank clock aligned shift_ns drift_ppm collectives residual_median_ns residual_max_ns")
_MATCHING: Final = pick(
    MATCHING, "group group_ranks kind ranks method kernels matched rejected matched_share", method="Paired by"
)
_INSTANCES: Final = pick(
    COLLECTIVE_INSTANCES,
    "collective kind group ranks size_bytes last_rank delay_ns arrival_ns wait_ns exposed_wait_ns transfer_ns",
    kind="Collective",
    delay_ns="Delay it caused",
    wait_ns="All waited",
    exposed_wait_ns="exposed",
)


def rank_rows(result: RanksResult) -> pl.DataFrame:
    """One row per rank: its times, waits and clock."""
    waits = result.waits.ranks.drop("communication_ns")
    clocks = result.alignment.ranks.drop("collectives")
    return result.balance.ranks.join(waits, on="rank", how="left", maintain_order="left").join(
        clocks, on="rank", how="left", maintain_order="left"
    )


def rank_table(result: RanksResult) -> Table:
    """The time of each rank by activity."""
    rows = result.balance.ranks
    columns = list(_RANKS)
    if rows["process"].count():
        columns[2:2] = pick(RANKS, "process device")
    if rows["graph_ns"].sum():
        columns.insert(columns.index(_RANKS[4]), RANKS.column("graph_ns"))
    if rows["compute_per_step_ns"].count():
        columns.append(RANKS.column("compute_per_step_ns"))
    return Table("ranks", "Where each rank's time went", tuple(columns), rows)


def wait_table(result: RanksResult) -> Table:
    """Late arrivals and waiting time of each rank."""
    return Table("waits", "Arrivals and waits in communication", _WAITS, result.waits.ranks)


def collective_table(result: RanksResult) -> Table:
    """Collectives by kind, group and size."""
    rows = result.groups
    recorded = [
        column
        for column in _GROUPS
        if column.name in ("kind", "kernels", "total_ns", "median_ns") or rows[column.name].count()
    ]
    return Table(
        "collectives", "Collectives by kind, process group and size", tuple(recorded), rows, empty="No communication."
    )


def part_table(result: RanksResult) -> Table:
    """The time budget over all ranks."""
    rows = fmt.with_part_titles(result.balance.parts.with_columns(pl.col("group").cast(pl.String)))
    return Table("budget", "Time budget of all ranks", _PARTS, rows, limit=None)


def clock_table(result: RanksResult) -> Table:
    """Alignment of the clocks."""
    return Table("clocks", "Clocks", _CLOCKS, result.alignment.ranks)


#: Notes that do not limit answers about ranks: peaks of the GPU are not used here.
_IRRELEVANT: Final = ("no-device-info",)


def limiting_notes(result: RanksResult) -> tuple[Note, ...]:
    """The notes that limit the answers: those across ranks first, then each note on profiles once, with its ranks."""
    by_note: dict[tuple[str, str], tuple[Note, list[int]]] = {}
    for rank, summary in zip(result.ranks, result.summaries, strict=True):
        for note in summary.notes:
            if note.level is not NoteLevel.INFO and note.code not in _IRRELEVANT:
                by_note.setdefault((note.code, note.text), (note, []))[1].append(rank)
    of_profiles = (
        note if len(ranks) == len(result.ranks) else replace(note, text=f"{_ranks_named(ranks)}: {note.text}")
        for note, ranks in by_note.values()
    )
    return (*result.notes, *of_profiles)


def _ranks_named(ranks: Sequence[int]) -> str:
    more = f" and {len(ranks) - 4} more" if len(ranks) > 4 else ""
    return f"Rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:4]))}{more}"


def terminal_tables(result: RanksResult) -> list[Table]:
    """The tables for a terminal: times, waits, parts, collectives and clocks, as far as they apply."""
    several, communicating = len(result.ranks) > 1, result.groups.height > 0
    return [
        rank_table(result),
        *([wait_table(result)] if several and communicating else []),
        part_table(result),
        *([collective_table(result)] if communicating else []),
        *([clock_table(result)] if several else []),
    ]


def ranks_document(result: RanksResult, notes: Sequence[Note]) -> Document:
    """The report on many ranks: the answer, its cautions, then time, waits, collectives, steps and clocks."""
    return Document(
        title=f"{fmt.count(len(result.ranks))} ranks" if len(result.ranks) != 1 else "One rank",
        lead=answer(result),
        sections=(Section("quality", "Cautions", tuple(limits(notes))), *sections(SECTIONS, result)),
        meta=run_meta(result),
    )


def _key_figures(result: RanksResult) -> Iterator[Block]:
    ranks, waits = result.balance.ranks, result.waits.ranks
    communication, exposed = int(ranks["communication_ns"].sum()), int(ranks["exposed_ns"].sum())
    window = int(ranks["duration_ns"].sum())
    overlap = 1 - exposed / communication if communication else None
    waited = int(waits["wait_ns"].sum())
    in_matched = waited + int(waits["transfer_ns"].sum())
    yield KeyFigures.of(
        KeyFigure("Ranks", len(result.ranks), "count", "With a profile."),
        KeyFigure("Exposed communication", exposed / window if window else None, "share", "Of all windows."),
        KeyFigure("Overlap", overlap, "share", "Communication that compute hides, of all communication."),
        KeyFigure(
            "Waiting", waited / in_matched if in_matched else None, "share", "Of the time in matched collectives."
        ),
        KeyFigure("Imbalance", result.balance.imbalance, "number", f"Most by mean: {result.balance.how}."),
        KeyFigure("Clock residual", result.alignment.residual_median_ns, "duration_ns", "Median; see Clocks."),
    )


def _time(result: RanksResult) -> Iterator[Block]:
    """The section on what each rank's GPU did in its window."""
    yield Paragraph(
        "At every instant a GPU does exactly one of these; a rank's compute, graphs, exposed communication, copies and "
        "idle time sum to its window. Overlap is the share of communication during which the rank computes."
    )
    from warplens.report.charts.bars import stacked_chart

    rows = rank_rows(result)
    drawn = "" if rows.height <= _DRAWN_RANKS else f" (the first {_DRAWN_RANKS})"
    bars = [
        (
            f"rank {row['rank']}",
            [
                (title, time_ns, f"{fmt.duration(time_ns)} · {fmt.share(time_ns / row['duration_ns'])}")
                for title, _, time_ns in parts_of(row)
            ],
        )
        for row in rows.head(_DRAWN_RANKS).iter_rows(named=True)
    ]
    yield Figure(
        "rank-chart",
        f"What each rank's GPU did in its window{drawn}",
        stacked_chart(bars, {title: token for _, title, token in _PARTS_OF_A_RANK}, longest_window(rows)),
        "One bar a rank: compute, exposed communication split into waiting and transfer, copies, idle time. "
        + answer(result),
    )
    yield rank_table(result)
    yield part_table(result)


def _waits(result: RanksResult) -> Iterator[Block]:
    yield Paragraph(
        "A communication kernel spins until its peers arrive. On the common clock of all ranks, a rank waits from "
        "its own start to the last rank's; the rest of its kernel is transfer. The last rank delays the collective "
        "by its distance to the second-to-last. Only collectives inside the window of every participating rank "
        "count."
    )
    yield wait_table(result)
    rows = result.waits.collectives.sort(["wait_ns", "collective"], descending=[True, False])
    empty = "No collective was found on several ranks."
    yield Table("worst", "Collectives with the most waiting", _INSTANCES, rows, empty=empty)


def _collectives(result: RanksResult) -> Iterator[Block]:
    yield collective_table(result)
    yield quiet(
        "Sizes and bandwidths are those of nccl-tests: algorithm bandwidth is size by time, bus bandwidth multiplies "
        "it by 2(n−1)/n for all-reduce, (n−1)/n for all-gather, reduce-scatter and all-to-all, 1 for the others. Time "
        "is from the last rank's arrival to the last end; “own” is by the kernels' own durations, which hold the "
        "waiting. Both are modelled: recorded size by measured time."
    )
    caption = "The same collective on several ranks"
    yield Table("matching", caption, _MATCHING, result.matching, empty="No communication.")


def _steps(result: RanksResult) -> Iterator[Block]:
    empty = "The ranks share no steps: none were found, or not the same number in each."
    yield Table("steps", "Steps across ranks", _STEPS, result.balance.step_balance, empty=empty)


def _clock_blocks(result: RanksResult) -> Iterator[Block]:
    yield Paragraph(f"{fmt.capitalised(result.alignment.method)}.")
    if residual := _residual(result):
        yield Paragraph(f"The {residual}: shorter waits are not significant.")
    else:
        yield Paragraph("No collective that ends at the same time was found on two ranks, so the residual is unknown.")
    yield clock_table(result)


SECTIONS: Final[tuple[SectionOf[Any], ...]] = (
    SectionOf("key-figures", "Key figures", _key_figures),
    SectionOf("time", "Time budget", _time),
    SectionOf("waits", "Stragglers and waits", _waits),
    SectionOf("collectives", "Collectives", _collectives),
    SectionOf("steps", "Steps and load imbalance", _steps),
    SectionOf("clocks", "Clocks", _clock_blocks),
)


def ranks_data(result: RanksResult) -> dict[str, Any]:
    """All numbers for the JSON, exact; frames under `rows`."""
    alignment, balance, placing = result.alignment, result.balance, result.placing
    return {
        "rows": rank_rows(result),
        "world_size": placing.world_size,
        "missing": list(placing.missing),
        "placed_by": list(placing.how),
        "windows": [window_data(summary.window) for summary in result.summaries],
        "imbalance": {"ratio": balance.imbalance, "how": balance.how},
        "budget": {"rows": balance.parts},
        "rank_budgets": {"rows": balance.budget},
        "steps": {"rows": balance.step_balance},
        "rank_steps": {"rows": balance.steps},
        "clocks": named(alignment, "method residual_median_ns residual_max_ns warning"),
        "matching": {"rows": result.matching},
        "waits": {"tolerance_ns": result.waits.tolerance_ns},
        "groups": {"rows": result.groups},
        "collectives": {"rows": result.waits.collectives},
    }
