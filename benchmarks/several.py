"""How the diagnosis does on programs with several habits: are causes ranked, and how do their remedies add up.

    python -m benchmarks.several             # data/several of the repository
    python -m benchmarks.several --write     # benchmarks/results/several.md, which the docs show

Each program was timed without a profiler as it is, with each fix alone, and with all of them; some pairs and triples of
fixes later, on another machine. Asked of each recording: which fixes does a finding name; does the costliest come
first; does the order agree with the measured gains; how near are the expected gains, alone and together (`diagnose
--if`). Groups count if a finding expects a gain for each of their fixes, and if both machines were about as fast.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import combinations
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

from benchmarks.pairs import SOURCES
from benchmarks.pairs_scorecard import NEAR
from warplens.analysis.timeline import Timeline
from warplens.diagnosis import Diagnosis, Finding, diagnose
from warplens.readers import read

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "data" / "several"
TARGET = ROOT / "benchmarks" / "results" / "several.md"

#: Largest difference of the step times on two machines for gains on one to be held against a recording on the other.
ALIKE: Final = 0.10
#: Least measured gain of a fix that a diagnosis should name, and least factor between two whose order is judged.
WORTH: Final = 1.10


@dataclass(frozen=True)
class Fix:
    """One fix of a program, measured and as the diagnosis tells it."""

    name: str
    measured: tuple[float, float, float]  #: median gain alone, without a profiler, and its 95 % interval
    accepted: tuple[str, ...]  #: findings that name the habit
    rank: int | None  #: place of the first of these findings that names a gain, from 1
    finding: Finding | None
    expected: float | None  #: gain of the remedy that was made, else of the finding; None if no remedy is that fix


@dataclass(frozen=True)
class Group:
    """Several fixes together, measured and predicted."""

    name: str  #: the fixes, with + between them
    measured: tuple[float, float, float]
    expected: float
    interval: tuple[float, float]
    comparable: bool  #: whether it was timed where the recording was made, or where the program was about as fast


@dataclass(frozen=True)
class Result:
    """The diagnosis of one recording of a program."""

    program: str
    source: str
    fixes: tuple[Fix, ...]
    groups: tuple[Group, ...]  #: those for each of whose fixes a finding expects a gain
    measured: tuple[float, float, float]  #: gain of all fixes together
    verdict: str

    @property
    def worth(self) -> list[Fix]:
        """The fixes that bring enough to be named, the best first."""
        return sorted((fix for fix in self.fixes if fix.measured[0] >= WORTH), key=lambda fix: -fix.measured[0])

    def ordered(self) -> Iterator[bool]:
        """Of each two named fixes whose gains differ enough, whether the better one is listed first."""
        named = [fix for fix in self.worth if fix.rank is not None]
        for better, other in combinations(named, 2):
            if better.finding is not other.finding and better.measured[0] >= WORTH * other.measured[0]:
                yield (better.rank or 0) < (other.rank or 0)


def programs(folder: Path = FOLDER) -> list[dict[str, Any]]:
    """The entries of the index; none in a repository without its data."""
    path = folder / "INDEX.json"
    return json.loads(path.read_text(encoding="utf-8"))["pairs"] if path.exists() else []


def results(folder: Path = FOLDER) -> Iterator[Result]:
    """The diagnosis of each recording."""
    tasks = [
        (entry, source, folder / entry["files"][f"{source}_before"]["path"])
        for entry in programs(folder)
        for source in SOURCES
        if f"{source}_before" in entry["files"]
    ]
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        yield from pool.map(result, tasks)


def result(task: tuple[dict[str, Any], str, Path]) -> Result:
    """The diagnosis of a recording: the entry, its profiler and its file."""
    entry, source, path = task
    timeline = Timeline(read(path))
    window = timeline.window()
    found = diagnose(timeline, window)
    fixes = tuple(_fix(name, entry, found) for name in entry["fixes"])
    by_name = {fix.name: fix for fix in fixes}
    worth = [fix.name for fix in fixes if fix.measured[0] >= WORTH]
    groups = []
    there = entry.get("together_before_ms", 0.0)
    alike = abs(there / entry["before_ms"][0] - 1) <= ALIKE
    # All fixes bring what those that are worth making bring together.
    measured = {"+".join(worth): (entry["ratio"], True)} if worth else {}
    measured |= {name: (ratio, alike) for name, ratio in entry.get("together", {}).items()}
    for name, (ratio, comparable) in measured.items():
        of_group = [by_name[each] for each in name.split("+")]
        ids = sorted({fix.finding.id for fix in of_group if fix.finding is not None and fix.expected is not None})
        if len(ids) < len(of_group):
            continue
        what_if = diagnose(timeline, window, together=ids).what_if
        if what_if is not None and what_if.asked is not None:
            asked = what_if.asked
            groups.append(Group(name, tuple(ratio), asked.expected, asked.expected_interval, comparable))
    return Result(entry["name"], source, fixes, tuple(groups), tuple(entry["ratio"]), found.verdict)


def _fix(name: str, entry: dict[str, Any], found: Diagnosis) -> Fix:
    accepted, remedies = entry["named"][name]
    finding = next((each for each in found.findings if each.id in accepted), None)
    rank = found.findings.index(finding) + 1 if finding is not None else None
    listed = finding.remedies if finding is not None else ()
    made = next((each for begin in remedies or () for each in listed if each.action.startswith(begin)), None)
    expected = made.gain if made is not None and made.gain is not None else finding and finding.expected
    if remedies is None:
        expected = None
    return Fix(name, tuple(entry["fixes"][name]["ratio"]), tuple(accepted), rank, finding, expected or None)


def summary(judged: list[Result]) -> Iterator[str]:
    """The figures as a Markdown table."""
    yield (
        "| on | fixes named | costliest first | of two, the better first | expected alone within 20 % | "
        "bound exceeded | together within 20 % | in the 90 % interval |"
    )
    yield "|---|---:|---:|---:|---:|---:|---:|---:|"
    for source in SOURCES:
        of_source = [each for each in judged if each.source == source]
        worth = [fix for each in of_source for fix in each.worth]
        told = [fix for fix in worth if fix.expected is not None]
        bounded = [fix for fix in worth if fix.finding is not None and fix.finding.bound is not None]
        firsts = [each.worth[0].rank == 1 for each in of_source if each.worth]
        orders = [right for each in of_source for right in each.ordered()]
        groups = [group for each in of_source for group in each.groups if group.comparable and "+" in group.name]
        cells = (
            _of(sum(fix.rank is not None for fix in worth), len(worth)),
            _of(sum(firsts), len(firsts)),
            _of(sum(orders), len(orders)),
            _of(sum(_near(fix.measured[0], fix.expected) for fix in told), len(told)),
            _of(sum(fix.measured[1] > (fix.finding.bound or 0.0) for fix in bounded if fix.finding), len(bounded)),
            _of(sum(_near(group.measured[0], group.expected) for group in groups), len(groups)),
            _of(sum(_covered(group) for group in groups), len(groups)),
        )
        yield f"| {source} | {' | '.join(cells)} |"


def cases(judged: list[Result]) -> Iterator[str]:
    """Each fix of each program as a Markdown table."""
    yield "| program | fix | measured | on | named by | place | expected |"
    yield "|---|---|---:|---|---|---:|---:|"
    for each in judged:
        for fix in sorted(each.fixes, key=lambda fix: -fix.measured[0]):
            named = fix.finding.id if fix.finding is not None else "–"
            cells = (each.program, fix.name, f"{fix.measured[0]:.2f}", each.source, named, fix.rank or "–")
            yield f"| {' | '.join(map(str, cells))} | {_factor(fix.expected)} |"
        for group in each.groups:
            low_high = f" ({group.interval[0]:.2f}–{group.interval[1]:.2f})"
            place = "" if group.comparable else "another machine"
            cells = (each.program, group.name, f"{group.measured[0]:.2f}", each.source, "together", place)
            yield f"| {' | '.join(cells)} | {_factor(group.expected)}{low_high} |"
        cells = (each.program, "*all*", f"{each.measured[0]:.2f}", each.source, f"first: {each.verdict}", "")
        yield f"| {' | '.join(cells)} | |"


def _near(measured: float, expected: float | None) -> bool:
    return expected is not None and abs(measured / expected - 1) <= NEAR


def _covered(group: Group) -> bool:
    return group.interval[0] <= group.measured[2] and group.measured[1] <= group.interval[1]


def _factor(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _of(count: int, total: int) -> str:
    return f"{count} of {total} ({count / total:.0%})" if total else "–"


def main() -> None:
    """Prints the figures, or writes them for the docs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    judged = list(results())
    parts = {"summary": summary(judged), "cases": cases(judged)}
    text = "\n\n".join(
        "\n".join((f"<!-- --8<-- [start:{name}] -->", *lines, f"<!-- --8<-- [end:{name}] -->"))
        for name, lines in parts.items()
    )
    if options.write:
        TARGET.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
