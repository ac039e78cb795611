"""How well steps are found where nobody marked them: recordings whose steps are known, read with the marks hidden.

    python -m benchmarks.steps_scorecard                  # recordings of the repository, and of shared/data where it is
    python -m benchmarks.steps_scorecard --cases          # one line a recording as well
    python -m benchmarks.steps_scorecard --held-out       # cut at both ends, and one program behind another, as well
    python -m benchmarks.steps_scorecard --write          # benchmarks/results/steps.md, of the repository's alone

Hidden is what a person marked: all NVTX ranges, and of a torch trace `ProfilerStep` and every annotation but those that
PyTorch makes itself (optimizers, data loaders, compiled regions). Operators stay. Known are the marked steps; where a
recording has no marks, how many steps its index says that it holds.

*Right*: called sure, and the steps found are those. *Unsure*: the window says "they may be parts of a step", or that
there are none. *Wrong*: called sure, and they are others. A recording of a single step repeats nothing: "none" and
"unsure" are right there.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from warplens.analysis.steps import StepSearch
from warplens.analysis.timeline import Timeline
from warplens.analysis.trees import is_operator
from warplens.analysis.window import Step, is_framework_name
from warplens.errors import WarplensError
from warplens.profile import Trace
from warplens.profile.schema import Int64s, name_categories
from warplens.readers import read

REPOSITORY: Final = Path(__file__).resolve().parents[1]
RESULTS: Final = REPOSITORY / "benchmarks" / "results" / "steps.md"
#: Marked recordings, by folder; nsys reports beside an export are the same recording.
FOLDERS: Final = (
    "data/planted",
    "data/pairs",
    "data/captures",
    "data/recordings",
    "src/warplens/data/captures",
    "benchmarks/diagnosis/held_out",
)
_PROFILES: Final = (".sqlite", ".sqlite.xz", ".json.xz", ".json.gz", ".json")

#: Steps differ by some launches, and in time: paces this close are the same.
_SAME_PACE: Final = 0.05
#: This share of the steps found must each follow the marked step that the one before it lies in.
_ONE_TO_ONE: Final = 0.9


@dataclass(frozen=True)
class Case:
    """One recording.

    Attributes:
        path: of the file.
        known: how many steps it holds.
        pace_ns: from one to the next; None where they are not marked.
        found: without marks.
        answer: `right`, `unsure` or `wrong`.
    """

    path: Path
    known: int
    pace_ns: float | None
    found: StepSearch
    answer: str

    def line(self) -> str:
        """The case in one line."""
        pace = "unmarked" if self.pace_ns is None else f"{self.pace_ns / 1e6:.3f} ms"
        sure = "sure" if self.found.is_sure else "unsure"
        return (
            f"{self.answer:7} {self.path.parent.name}/{self.path.name}: {self.known} steps, {pace};"
            f" found {len(self.found.steps)}, {pace_ns(self.found) / 1e6:.3f} ms ({self.found.source}, {sure})"
        )


def recordings(shared: Path | None = None) -> Iterator[Path]:
    """Every profile of the repository, and of a folder with further ones."""
    folders = [REPOSITORY / folder for folder in FOLDERS]
    folders += [shared / kind for kind in ("nsys", "kineto", "pairs")] if shared else []
    for folder in folders:
        yield from (path for path in sorted(folder.rglob("*")) if path.name.endswith(_PROFILES))


def without_marks(trace: Trace) -> Trace:
    """The recording without its annotations."""
    ranges = trace.ranges
    if not ranges.height:
        return trace
    made = np.array([is_framework_name(text) for text in name_categories(ranges["name"])], dtype=np.bool_)
    kept = is_operator(ranges) | made[ranges["name"].to_physical().to_numpy()]
    place = np.where(kept, np.cumsum(kept) - 1, -1)
    parent = ranges["parent"].fill_null(-1).to_numpy().astype(np.int64)
    while (lost := (parent >= 0) & ~kept[np.maximum(parent, 0)]).any():
        parent = np.where(lost, parent[np.maximum(parent, 0)], parent)
    above = pl.Series("parent", np.where(parent >= 0, place[np.maximum(parent, 0)], -1))
    left = ranges.with_columns(pl.select(pl.when(above >= 0).then(above).alias("parent")).to_series())
    return replace(
        trace,
        ranges=left.filter(pl.Series(kept)),
        operators=_renumbered(trace.operators, place, "range"),
        autograd_links=_renumbered(trace.autograd_links, place, "forward", "backward"),
    )


def _renumbered(table: pl.DataFrame, place: Int64s, *columns: str) -> pl.DataFrame:
    for name in columns:
        table = table.with_columns(pl.Series(name, place[table[name].to_numpy()]))
    return table


def pace_ns(search: StepSearch) -> float:
    """Median time from step to step in ns; the duration of a single step; 0 without steps."""
    starts = [step.start_ns for step in search.steady or search.steps]
    if len(starts) > 1:
        return float(np.median(np.diff(starts)))
    return float(search.steps[-1].duration_ns) if search.steps else 0.0


def judged(path: Path) -> Case | None:
    """The comparison of steps with and without marks; None where the steps are unknown or the file is not a profile."""
    try:
        trace = read(path)
    except WarplensError:
        return None
    return compared(path, Timeline(trace).steps, Timeline(without_marks(trace)).steps)


def compared(path: Path, marked: StepSearch, found: StepSearch) -> Case | None:
    """One recording's steps with and without marks; None where the right steps are unknown."""
    if marked.source != "range":
        known = _indexed().get(path.resolve())
        if known is None:
            return None
        return Case(path, known, None, found, _answer(known, found, len(found.steps) == known))
    known = len(marked.steps)
    return Case(path, known, pace_ns(marked), found, _answer(known, found, _same(marked, found)))


def _answer(known: int, found: StepSearch, same: bool) -> str:
    if not found.steps or not found.is_sure:
        return "unsure" if known > 1 else "right"
    return "right" if same else "wrong"


@cache
def _indexed() -> dict[Path, int]:
    """Recording → number of its steps, from the indexes."""
    known: dict[Path, int] = {}
    for index in (REPOSITORY / "data/planted", REPOSITORY / "benchmarks/diagnosis/held_out"):
        for case in json.loads((index / "INDEX.json").read_text("utf-8"))["cases"]:
            for variant in case["variants"].values():
                known |= {index / name: case["steps"] for name in variant.get("files", {}).values()}
    pairs = REPOSITORY / "data/pairs"
    for pair in json.loads((pairs / "INDEX.json").read_text("utf-8"))["pairs"]:
        known |= {pairs / file["path"]: file["steps"] for file in pair["files"].values()}
    return known


def _same(marked: StepSearch, found: StepSearch) -> bool:
    """Whether the found steps have the pace of the marked ones, or correspond to one marked step each."""
    return abs(pace_ns(found) / pace_ns(marked) - 1) <= _SAME_PACE or _one_to_one(marked, found)


def _one_to_one(marked: StepSearch, found: StepSearch, least: float = 0.5) -> bool:
    """Whether each found step lies in a marked step of its own, and these are at least this share of all.

    Start-up may count as one more step.
    """
    begins = np.array([step.start_ns for step in marked.steps])
    # A found step begins with GPU work, a marked one on the host: they may be shifted relative to each other.
    for place in (0.0, 0.25, 0.5, 0.75):
        inside = np.array([step.start_ns + place * step.duration_ns for step in found.steps])
        within = np.searchsorted(begins, inside, side="right") - 1
        within = within[within >= 0]
        enough = len(within) >= max(2, least * len(begins))
        if enough and np.mean(np.diff(within) == 1) >= _ONE_TO_ONE:
            return True
    return False


# --- Recordings that no rule was made with ---


def altered(paths: Sequence[Path]) -> Iterator[Case]:
    """Each marked recording cut at both ends, followed by another program, and repeated with another one in between."""
    chance = random.Random(0)
    marked = []
    for path in paths:
        try:
            trace = read(path)
        except WarplensError:
            continue
        search = Timeline(trace).steps
        if (
            search.source == "range"
            and trace.kernels.height
            and len(search.steps) > 2
            and trace.capture.window_ns[1] > trace.capture.window_ns[0]
        ):
            marked.append((path, trace, search))
    for path, trace, search in marked:
        begin, end = int(search.steps[0].start_ns), int(search.steps[-1].end_ns)
        first = int(begin + chance.uniform(0.05, 0.3) * (end - begin))
        last = int(end - chance.uniform(0.05, 0.3) * (end - begin))
        steps = tuple(step for step in search.steps if step.end_ns > first and step.start_ns < last)
        known = replace(search, steps=steps, steady=steps)
        yield _altered(path, "cut", known, cut(trace, first, last))
        other = chance.choice(marked)
        if other[1].capture.format != trace.capture.format:
            continue
        for how, parts in (("then another", (trace, other[1])), ("evaluates", (trace, other[1], trace))):
            searches = (search, other[2], search)[: len(parts)]
            moved = [
                Step(0, step.start_ns + shift, step.end_ns + shift)
                for each, shift in zip(searches, _shifts(parts), strict=True)
                for step in each.steps
            ]
            yield _altered(path, how, replace(search, steps=tuple(moved)), joined(*parts))


def _altered(path: Path, how: str, marked: StepSearch, trace: Trace) -> Case:
    """The answer on an altered recording, where the steps of any of its programs count as right."""
    found = Timeline(without_marks(trace)).steps
    paces = np.array([step.duration_ns for step in marked.steps])
    same = bool(found.steps) and (
        bool(np.any(np.abs(pace_ns(found) / paces - 1) <= _SAME_PACE)) or _one_to_one(marked, found, 0.0)
    )
    known = max(len(marked.steps), 2)
    return Case(path.with_name(f"{path.name} ({how})"), known, pace_ns(marked), found, _answer(known, found, same))


def _shifts(traces: Sequence[Trace]) -> Iterator[int]:
    """Offsets added to the clocks of programs that run one after another."""
    clock = 0
    for trace in traces:
        begin, end = trace.capture.window_ns
        yield clock - begin
        clock += end - begin + _BETWEEN_NS


#: Between one program and the next.
_BETWEEN_NS: Final = 2_000_000
_TIMED: Final = (
    "kernels",
    "copies",
    "memsets",
    "graph_launches",
    "api_calls",
    "synchronizations",
    "ranges",
    "os_calls",
)


def cut(trace: Trace, first: int, last: int) -> Trace:
    """The rows that lie entirely within a span of time."""
    inside = (pl.col("start_ns") >= first) & (pl.col("end_ns") <= last)
    parts = {name: getattr(trace, name).filter(inside) for name in _TIMED if name != "ranges"}
    numbered = trace.ranges.with_row_index("place").filter(inside)
    place = pl.DataFrame({"parent": numbered["place"].cast(pl.Int64), "new": range(numbered.height)})
    ranges = numbered.drop("place").with_columns(pl.col("parent").cast(pl.Int64)).join(place, on="parent", how="left")
    ranges = ranges.with_columns(parent=pl.col("new").cast(trace.ranges.schema["parent"])).drop("new")
    empty = {"operators": trace.operators.clear(), "autograd_links": trace.autograd_links.clear()}
    capture = replace(trace.capture, window_ns=(first, last))
    return replace(
        trace, capture=capture, ranges=ranges, python_functions=trace.python_functions.clear(), **parts, **empty
    )


def joined(*traces: Trace) -> Trace:
    """Programs one after another in the process of the first, on its GPU."""
    first = traces[0]
    process = int(first.kernels["process"].mode().sort()[0])
    tables: dict[str, list[pl.DataFrame]] = {name: [] for name in _TIMED}
    clock, number, rows = 0, 0, 0
    for trace, shift in zip(traces, _shifts(traces), strict=True):
        for name in _TIMED:
            table = getattr(trace, name)
            table = table.with_columns(
                pl.col("start_ns", "end_ns") + shift,
                pl.lit(process, dtype=table.schema["process"]).alias("process"),
                *(pl.col(one) + number for one in ("correlation",) if one in table.columns),
                *(pl.col(one) + rows for one in ("parent",) if one in table.columns),
                *(pl.col(one).cast(pl.String) for one, dtype in table.schema.items() if isinstance(dtype, pl.Enum)),
            )
            tables[name].append(table)
        clock = trace.capture.window_ns[1] + shift
        number += 1 + int(trace.api_calls["correlation"].max() or 0)  # type: ignore[arg-type]
        rows += trace.ranges.height
    whole = {name: _with_names(pl.concat(parts), getattr(first, name)) for name, parts in tables.items()}
    empty = {"operators": first.operators.clear(), "autograd_links": first.autograd_links.clear()}
    capture = replace(first.capture, window_ns=(0, clock))
    return replace(first, capture=capture, python_functions=first.python_functions.clear(), **whole, **empty)


def _with_names(table: pl.DataFrame, like: pl.DataFrame) -> pl.DataFrame:
    names = [name for name, dtype in like.schema.items() if isinstance(dtype, pl.Enum)]
    return table.with_columns(
        table[name].cast(pl.Enum(table[name].drop_nulls().unique(maintain_order=True))) for name in names
    )


def scorecard(cases: Sequence[Case]) -> str:
    """The table of `docs/results/steps.md`."""
    rows = ["| recorded with | right | unsure | wrong | of |", "|---|---:|---:|---:|---:|"]
    for kind in (*sorted({_kind(case) for case in cases}), "all"):
        counts = Counter(case.answer for case in cases if kind in (_kind(case), "all"))
        cells = [counts[answer] for answer in ("right", "unsure", "wrong")]
        rows.append(f"| {kind} | {' | '.join(map(str, cells))} | {sum(cells)} |")
    return "\n".join(rows) + "\n"


def misses(cases: Sequence[Case]) -> str:
    """The recordings with a wrong answer."""
    rows = ["| recording | steps | found |", "|---|---:|---:|"]
    rows += [
        f"| `{case.path.name}` | {case.known} | {len(case.found.steps)} |" for case in cases if case.answer == "wrong"
    ]
    return "\n".join(rows) + "\n"


def _kind(case: Case) -> str:
    if case.path.name.endswith(")"):
        return "altered: " + case.path.name.rpartition("(")[2].rstrip(")")
    tool = "Nsight Systems" if ".sqlite" in case.path.name else "torch.profiler"
    return f"{tool}, a single step" if case.known < 2 else tool


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the scorecard."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--cases", action="store_true", help="one line a recording as well")
    parser.add_argument("--held-out", action="store_true", help="recordings altered so that no rule has seen them")
    parser.add_argument("--write", action="store_true", help="store the scorecard of the repository's recordings")
    given = parser.parse_args(arguments)
    shared = next((at for parent in REPOSITORY.parents if (at := parent / "shared" / "data").is_dir()), None)
    paths = given.paths or recordings(None if given.write else shared)
    if given.held_out:
        cases = list(altered(list(paths)))
    else:
        cases = [case for path in paths if (case := judged(path)) is not None]
    if given.write:
        RESULTS.write_text(f"{scorecard(cases)}\n{misses(cases)}", "utf-8")
    if given.cases:
        sys.stdout.writelines(case.line() + "\n" for case in cases)
    sys.stdout.write(scorecard(cases))
    return 0


if __name__ == "__main__":
    sys.exit(main())
