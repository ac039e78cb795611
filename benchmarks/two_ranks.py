"""Programs of two ranks: is the cause named first, and does its remedy bring what is expected?

`python -m benchmarks.two_ranks` diagnoses the recordings in `data/pairs/ranks` and prints two tables; `--write` stores
them in `results/two_ranks.md`. A healthy program has no habit; its second timing leaves the communication out.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.comparison import RESULTS
from benchmarks.pairs import FOLDER, SOURCES
from warplens import diagnose

RANKS = FOLDER / "ranks"
#: Least gain, at the lower end of its measured interval, of a change whose habit should be named first.
LEAST_GAIN = 1.05


@dataclass(frozen=True)
class Answer:
    """The diagnosis of a recording beside the timings of its program."""

    entry: dict[str, Any]  #: of `INDEX.json`
    source: str  #: of `SOURCES`
    found: dict[str, Any]  #: the diagnosis as `diagnose --format json` writes it

    @property
    def first(self) -> str:
        """Id of the first finding."""
        return str(self.found["findings"][0]["id"])

    @property
    def right(self) -> bool:
        """Whether the first finding names the habit."""
        return self.first in (self.entry["habit"], *self.entry.get("accepted", ()))

    @property
    def scored(self) -> bool:
        """Whether the program has a habit that costs enough."""
        return bool(self.entry["habit"]) and self.entry["ratio"][1] >= LEAST_GAIN

    @property
    def finding(self) -> dict[str, Any] | None:
        """The finding that names the habit; None if none does, or it expects no gain."""
        ids = (self.entry["habit"], *self.entry.get("accepted", ()))
        named = [each for each in self.found["findings"] if each["id"] in ids and each["expected"] is not None]
        return min(named, key=lambda each: ids.index(each["id"])) if named else None

    @property
    def warns(self) -> bool:
        """Whether anything is worse than informational."""
        return any(each["severity"] != "info" for each in self.found["findings"])


def answers() -> list[Answer]:
    """The diagnosis of each recording."""
    entries = json.loads((RANKS / "INDEX.json").read_text("utf-8"))["pairs"]
    return [
        Answer(entry, source, diagnose([RANKS / file for file in entry["files"][source]]).to_dict())
        for entry in entries
        for source in SOURCES
        if source in entry["files"]
    ]


def summary(told: list[Answer]) -> Iterator[str]:
    """Counts by profiler, as lines of a table."""
    yield "| profiler | cause first | bound exceeded | expected within 20 % | in the interval | healthy, warned |"
    yield "|---|---:|---:|---:|---:|---:|"
    for source in SOURCES:
        of_source = [each for each in told if each.source == source]
        scored = [each for each in of_source if each.scored]
        with_gain = [(each, each.finding) for each in scored if each.finding is not None]
        errors = [abs(found["expected"] / each.entry["ratio"][0] - 1) <= 0.2 for each, found in with_gain]
        inside = [
            found["expected_interval"][0] <= each.entry["ratio"][2]
            and each.entry["ratio"][1] <= found["expected_interval"][1]
            for each, found in with_gain
        ]
        beaten = [found["bound"] is not None and found["bound"] < each.entry["ratio"][1] for each, found in with_gain]
        healthy = [each.warns for each in of_source if not each.entry["habit"]]
        counts = ((each.right for each in scored), beaten, errors, inside, healthy)
        cells = [[bool(value) for value in values] for values in counts]
        yield f"| {source} | " + " | ".join(f"{sum(values)} of {len(values)}" for values in cells) + " |"


def cases(told: list[Answer]) -> Iterator[str]:
    """One line per recording."""
    yield "| program | profiler | habit | first | measured | expected | bound |"
    yield "|---|---|---|---|---:|---:|---:|"
    for each in told:
        median, low, high = each.entry["ratio"]
        found, habit = each.finding, each.entry["habit"]
        mark = " ✗" if each.scored and not each.right else ""
        gain, bound = "–", "–"
        if found is not None:
            least, most = found["expected_interval"]
            gain = f"{found['expected']:.2f} ({least:.2f}–{most:.2f})"
            bound = f"{found['bound']:.2f}" if found["bound"] is not None else "–"
        yield (
            f"| {each.entry['name']} | {each.source} | {habit or 'healthy'} | {each.first}{mark} | "
            f"{median:.2f} ({low:.2f}–{high:.2f}) | {gain} | {bound} |"
        )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.two_ranks", description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="store the tables in results/two_ranks.md")
    options = parser.parse_args()
    told = answers()
    text = "\n".join((*summary(told), "", *cases(told), ""))
    if options.write:
        (RESULTS / "two_ranks.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
