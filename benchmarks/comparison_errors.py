"""How often comparisons err: `python -m benchmarks.comparison_errors [--quick]`.

Six questions, each with seeds, so that the same figures come out again:

* comparisons of real data with themselves: how often is a difference decided where there is none?
* simulated data with a known ratio: how often does the interval hold it, and how often do those of other methods?
* a planted slowdown of 3 %: is it found with the blocks that the tool says are needed?
* a gate of 5 % and a slowdown of 8 %: how often do so many runs a side find it?
* long steps that recur, and long steps at random: how often is a slowdown of 12 % found, and how often one of none?
* a hundred kernels of which none, or ten, changed: how many of the findings are chance?

Real data are the captures and the measurements that come with the package; those of the measurements are 40 rounds of
four steps a cell. Results: `benchmarks/results/comparison_errors.{json,md}`.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

import warplens
from warplens.compare.decisions import compare, ratio_interval, regression
from warplens.compare.many import many_differences
from warplens.compare.shift import Samples
from warplens.compare.side import Side, gpu_work_samples
from warplens.readers.measurements import read_measurements

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "SPLITS",
    "Draw",
    "Planted",
    "Splits",
    "aa_splits",
    "chance_findings",
    "coverage",
    "gate_power",
    "main",
    "measure",
    "normal_blocks",
    "one_run",
    "outlier_blocks",
    "planted",
    "real_rounds",
    "recurring",
    "skewed_blocks",
    "successive_runs",
    "tables",
]

Float64s = npt.NDArray[np.float64]
#: (generator, number of blocks) → logarithms of durations: one row per block, or a single row of the steps of one run.
Draw: TypeAlias = "Callable[[np.random.Generator, int], Float64s]"

_DATA: Final = Path(warplens.__file__).parent / "data"
_REPOSITORY: Final = Path(__file__).resolve().parents[1]
_RESULTS: Final = Path(__file__).parent / "results"

#: Splits of real data, each into two sides of the same program.
SPLITS: Final = (
    "steps of a capture, alternating",
    "steps of a capture, first half against second",
    "steps of a measurement, first half against second",
    "rounds, at random",
    "rounds, alternating",
    "rounds, first half against second",
    "rounds, in turns",
    "GPU work of a capture, alternating",
    "GPU work of a capture, first half against second",
)
#: Fewer steps than this cannot be split into sides of five.
_LEAST_STEPS: Final = 10


@cache
def capture_steps(of: Literal["steps", "GPU work"] = "steps") -> tuple[Float64s, ...]:
    """Nanoseconds of the steps of each stored capture that has ten of them, or of the GPU's work in them."""
    durations = []
    shipped = [path for folder in (_DATA, _REPOSITORY / "data") for path in (folder / "captures").glob("*.sqlite.xz")]
    for path in sorted(shipped, key=lambda path: path.name):
        if path.name.startswith("lm_"):
            continue  # one to three steps
        timeline = warplens.Timeline(warplens.read(path))
        window = timeline.window()
        if len(window.steps) < _LEAST_STEPS:
            continue
        if of == "steps":
            durations.append(np.array([step.end_ns - step.start_ns for step in window.steps], dtype=np.float64))
        elif (work := gpu_work_samples(Side("", timeline, window))) is not None:
            durations.append(work.values)
    return tuple(durations)


@cache
def measured_rounds() -> tuple[Float64s, ...]:
    """Wall times of every cell of the token-reduction measurements in nanoseconds: one row per round."""
    measurements = read_measurements(_DATA / "measurements" / "token_reduction.json.xz")
    walls = measurements.samples.filter(pl.col("of") == "wall").sort("cell", "index")
    rounds = dict(enumerate(measurements.cells["rounds"].to_list()))
    return tuple(
        part["time_ns"].to_numpy().astype(np.float64).reshape(rounds[number], -1)
        for (number,), part in walls.partition_by("cell", as_dict=True, maintain_order=True).items()
    )


def split(kind: str, generator: np.random.Generator) -> tuple[Samples, Samples]:
    """Two sides of one program, from real data chosen at random."""
    if "of a capture" in kind:
        captures = capture_steps("GPU work" if kind.startswith("GPU work") else "steps")
        steps = captures[generator.integers(len(captures))]
        length = int(generator.integers(6, steps.size + 1))
        first = int(generator.integers(0, steps.size - length + 1))
        steps = steps[first : first + length]
        return _steps_split(steps, alternating="alternating" in kind)
    cells = measured_rounds()
    rounds = cells[generator.integers(len(cells))]
    if kind.startswith("steps of a measurement"):
        steps = rounds.ravel()
        length = int(generator.integers(10, 61))
        first = int(generator.integers(0, steps.size - length + 1))
        return _steps_split(steps[first : first + length], alternating=False)
    count = 2 * int(generator.integers(3, rounds.shape[0] // 2 + 1))
    first = int(generator.integers(0, rounds.shape[0] - count + 1))
    rounds = rounds[first : first + count]
    if "random" in kind:
        order = generator.permutation(count)
        chosen = np.sort(order[: count // 2]), np.sort(order[count // 2 :])
    elif "half" in kind:
        chosen = np.arange(count // 2), np.arange(count // 2, count)
    else:
        chosen = np.arange(0, count, 2), np.arange(1, count, 2)
    paired = "turns" in kind
    return Samples.of(rounds[chosen[0]], paired), Samples.of(rounds[chosen[1]], paired)


def _steps_split(steps: Float64s, *, alternating: bool) -> tuple[Samples, Samples]:
    half = steps.size // 2
    if alternating:
        return Samples.of([steps[0::2]]), Samples.of([steps[1::2]])
    return Samples.of([steps[:half]]), Samples.of([steps[half:]])


@dataclass(frozen=True)
class Splits:
    """Counts of verdicts of comparisons of a program with itself."""

    kind: str
    splits: int
    decided: int  # faster or slower, with the margin of 2 %
    excluded: int  # the interval excludes 1, whatever the margin
    same: int


def aa_splits(kind: str, splits: int = 200, level: float = 0.05) -> Splits:
    """Compares real data with themselves; split n has seed n."""
    comparisons = []
    for seed in range(splits):
        one, other = split(kind, np.random.default_rng((SPLITS.index(kind), seed)))
        comparisons.append(compare(one, other, level=level, seed=seed))
    return Splits(
        kind=kind,
        splits=splits,
        decided=sum(comparison.verdict in {"faster", "slower"} for comparison in comparisons),
        excluded=sum(comparison.ratio.excludes_one for comparison in comparisons),
        same=sum(comparison.verdict == "same" for comparison in comparisons),
    )


# --- simulated data ---------------------------------------------------------------------------------------------------


def _blocks(values: Float64s, paired: bool = False) -> Samples:
    return Samples.of(1e6 * np.exp(values), paired)


def normal_blocks(generator: np.random.Generator, count: int) -> Float64s:
    """Blocks that differ by 2 %, with ten steps of 1 % each."""
    return generator.normal(0, 0.02, (count, 1)) + generator.normal(0, 0.01, (count, 10))


def skewed_blocks(generator: np.random.Generator, count: int) -> Float64s:
    """Blocks with exponential delays, and steps with exponential delays."""
    return generator.exponential(0.03, (count, 1)) + generator.exponential(0.02, (count, 10))


def outlier_blocks(generator: np.random.Generator, count: int) -> Float64s:
    """One block in ten is slower by 10 to 80 %, and one step in ten by 30 % on average."""
    hit = generator.random((count, 1)) < 0.1
    late = (generator.random((count, 10)) < 0.1) * generator.exponential(0.3, (count, 10))
    return normal_blocks(generator, count) + hit * generator.uniform(0.1, 0.6, (count, 1)) + late


def one_run(correlation: float) -> Draw:
    """Successive steps of one run with a deviation of 2 %, autocorrelated."""

    def draw(generator: np.random.Generator, count: int) -> Float64s:
        steps = np.zeros(count + 60)
        noise = generator.normal(0, 0.02 * math.sqrt(1 - correlation**2), steps.size)
        for place in range(1, steps.size):
            steps[place] = correlation * steps[place - 1] + noise[place]
        return steps[None, 60:]

    return draw


def some_longer(every: int, factor: float = 1.25, *, noise: float = 0.01, at_random: bool = False) -> Draw:
    """Independent steps of one run that deviate by `noise`; one in so many is `factor` times as long."""

    def draw(generator: np.random.Generator, count: int) -> Float64s:
        phase = generator.integers(every)
        hit = generator.random(count) < 1 / every if at_random else (np.arange(count) + phase) % every == 0
        return (generator.normal(0, noise, count) + hit * math.log(factor))[None, :]

    return draw


def successive_runs(correlation: float) -> Draw:
    """Blocks that differ by 2 %, each one correlated with the block before."""
    series = one_run(correlation)
    return lambda generator, count: series(generator, count).T


_COVERAGES: Final[tuple[tuple[str, Draw, tuple[int, ...]], ...]] = (
    ("blocks, normal", normal_blocks, (3, 5, 10, 40)),
    ("blocks, skewed", skewed_blocks, (3, 5, 10, 40)),
    ("blocks, with outliers", outlier_blocks, (3, 5, 10, 40)),
    ("successive runs, correlation 0.3", successive_runs(0.3), (5, 10, 40)),
    ("successive runs, correlation 0.5", successive_runs(0.5), (5, 10, 40)),
    ("steps of one run, independent", one_run(0.0), (3, 5, 10, 30)),
    ("steps of one run, correlation 0.5", one_run(0.5), (3, 5, 10, 30)),
    ("steps of one run, correlation 0.7", one_run(0.7), (10, 30)),
    ("steps of one run, every fourth longer", some_longer(4), (12, 24, 40)),
    ("steps of one run, one in five longer, at random", some_longer(5, at_random=True), (12, 24, 40)),
)


def coverage(draw: Draw, count: int, repeats: int) -> dict[str, float]:
    """How often 95 % intervals contain the true ratio of 1: ours, and the percentile bootstrap's of the same units.

    The bootstrap resamples blocks; of a single run, moving blocks of steps (Künsch, Ann. Statist. 17 (1989),
    1217–1241), n^(1/3) + 1 long.
    """
    ours = plain = 0
    for seed in range(repeats):
        generator = np.random.default_rng(seed)
        sides = draw(generator, count), draw(generator, count)
        interval = ratio_interval(*map(_blocks, sides), seed=seed)
        ours += interval.low <= 1 <= interval.high
        low, high = _percentile_bootstrap(sides, generator)
        plain += low <= 0 <= high
    return {"ours": ours / repeats, "percentile bootstrap": plain / repeats}


def _percentile_bootstrap(sides: tuple[Float64s, Float64s], generator: np.random.Generator) -> tuple[float, float]:
    centres = []
    for side in sides:
        units = side[0] if side.shape[0] == 1 else np.median(side, axis=1)
        length = round(units.size ** (1 / 3)) + 1 if side.shape[0] == 1 else 1
        starts = generator.integers(0, units.size - length + 1, (999, -(-units.size // length)))
        drawn = units[(starts[..., None] + np.arange(length)).reshape(999, -1)[:, : units.size]]
        centres.append(drawn.mean(axis=1))
    low, high = np.quantile(centres[1] - centres[0], [0.025, 0.975])
    return float(low), float(high)


def real_rounds(generator: np.random.Generator) -> Draw:
    """Draws rounds of one real cell, chosen at random, with replacement."""
    cells = measured_rounds()
    rounds = np.log(cells[generator.integers(len(cells))])
    return lambda _, count: rounds[generator.integers(0, rounds.shape[0], count)] - rounds.mean()


@dataclass(frozen=True)
class Planted:
    """Counts of outcomes with a planted slowdown."""

    trials: int
    at_once: int  # decided by the first blocks, rightly or not
    at_once_rightly: int
    asked: int  # undecided, with a number of needed blocks
    found: int  # of those: `slower` with that many newly drawn blocks
    beyond: int  # undecided, without a number of needed blocks
    needed: float | None  # median number of needed blocks


def planted(
    population: Callable[[np.random.Generator], Draw], pilot: int, trials: int, *, slowdown: float = 0.03
) -> Planted:
    """Plants a slowdown; where a few blocks leave it undecided, draws `needed_blocks` new blocks."""
    verdicts, needed, found = [], [], 0
    for seed in range(trials):
        generator = np.random.default_rng(seed)
        draw = population(generator)

        def sides(count: int, draw: Draw = draw, generator: np.random.Generator = generator) -> list[Samples]:
            return [_blocks(draw(generator, count)), _blocks(draw(generator, count) + math.log1p(slowdown))]

        first = compare(*sides(pilot), seed=seed)
        verdicts.append(first.verdict)
        if first.verdict == "undecided" and first.needed_blocks is not None:
            needed.append(first.needed_blocks)
            found += compare(*sides(first.needed_blocks), seed=seed).verdict == "slower"
    undecided = verdicts.count("undecided")
    return Planted(
        trials=trials,
        at_once=trials - undecided,
        at_once_rightly=verdicts.count("slower"),
        asked=len(needed),
        found=found,
        beyond=undecided - len(needed),
        needed=float(np.median(needed)) if needed else None,
    )


def gate_power(runs: int, repeats: int, *, turns: bool = False) -> float:
    """How often a gate of 5 % finds a slowdown of 8 % with so many independent runs a side, which differ by 1 %."""
    found = 0
    for seed in range(repeats):
        sides = np.random.default_rng((runs, seed)).normal([[0], [math.log1p(0.08)]], 0.01, (2, runs))[..., None]
        found += regression(compare(*(_blocks(side, turns) for side in sides), seed=seed), 0.05).found
    return found / repeats


#: Long steps: their name, their times, and how many steps a side has.
_LONG_STEPS: Final[tuple[tuple[str, Draw, tuple[int, ...]], ...]] = (
    ("every third, half longer", some_longer(3, 1.5, noise=0.02), (9, 24, 40)),
    ("every fourth, twice as long", some_longer(4, 2.0, noise=0.02), (12, 24, 40)),
    ("every fifth, half longer", some_longer(5, 1.5, noise=0.02), (15, 24, 40)),
    ("every sixth, three times as long", some_longer(6, 3.0, noise=0.02), (18, 24, 40)),
    ("one in three at random, half longer", some_longer(3, 1.5, noise=0.02, at_random=True), (9, 24, 40)),
    ("one in five at random, twice as long", some_longer(5, 2.0, noise=0.02, at_random=True), (15, 24, 40)),
)


def recurring(draw: Draw, count: int, repeats: int) -> dict[str, float]:
    """How often sides are compared by cycles, differ though nothing changed, and are called slower with 12 % more."""
    cycles = different = found = 0
    for seed in range(repeats):
        generator = np.random.default_rng(seed)
        before, after = draw(generator, count), draw(generator, count)
        unchanged = compare(_blocks(before), _blocks(after), seed=seed)
        cycles += unchanged.cycle > 1
        different += unchanged.ratio.excludes_one
        found += compare(_blocks(before), _blocks(after + math.log1p(0.12)), seed=seed).verdict == "slower"
    return {"by cycles": cycles / repeats, "excludes 1": different / repeats, "found": found / repeats}


def chance_findings(changed: int, repeats: int, kernels: int = 100, steps: int = 10) -> dict[str, float]:
    """Mean share of chance findings and of changes found among many kernels, the first `changed` slower by 10 %."""
    false_share = found = any_false = 0.0
    for seed in range(repeats):
        generator = np.random.default_rng(seed)
        sides = [generator.lognormal(10, 0.02, (steps, kernels)) for _ in range(2)]
        sides[1][:, :changed] *= 1.1
        verdicts = many_differences(*sides)["verdict"].to_list()
        different = [number for number, verdict in enumerate(verdicts) if verdict in {"faster", "slower"}]
        chance = sum(number >= changed for number in different)
        false_share += chance / max(len(different), 1)
        any_false += chance > 0
        found += (len(different) - chance) / changed if changed else 0.0
    return {"chance share": false_share / repeats, "any chance": any_false / repeats, "found": found / repeats}


# --- all of it --------------------------------------------------------------------------------------------------------


def measure(scale: float = 1.0) -> dict[str, Any]:
    """All results, with `scale` times the usual number of repetitions."""
    repeats = max(int(300 * scale), 20)
    trials = max(int(60 * scale), 10)
    populations: dict[str, Callable[[np.random.Generator], Draw]] = {
        "blocks, normal": lambda _: normal_blocks,
        "blocks, with outliers": lambda _: outlier_blocks,
        "rounds of the H200, resampled": real_rounds,
    }
    return {
        "level": 0.05,
        "splits": [asdict(aa_splits(kind, max(int(200 * scale), 20))) for kind in SPLITS],
        "coverage": [
            {"data": name, "units": count, "repeats": repeats, **coverage(draw, count, repeats)}
            for name, draw, counts in _COVERAGES
            for count in counts
        ],
        "planted": [
            {"data": name, "pilot": pilot, **asdict(planted(population, pilot, trials))}
            for name, population in populations.items()
            for pilot in (3, 5, 10)
        ],
        "power": [
            {
                "runs": runs,
                "repeats": repeats,
                "side by side": gate_power(runs, repeats),
                "in turns": gate_power(runs, repeats, turns=True),
            }
            for runs in (2, 3, 4, 5, 6, 7, 8, 10, 12)
        ],
        "long steps": [
            {"data": name, "steps": count, "repeats": repeats, **recurring(draw, count, repeats)}
            for name, draw, counts in _LONG_STEPS
            for count in counts
        ],
        "kernels": [
            {"changed": changed, "kernels": 100, "repeats": repeats, **chance_findings(changed, repeats)}
            for changed in (0, 10)
        ],
    }


def tables(result: dict[str, Any]) -> str:
    """The result as Markdown."""
    splits = _table(
        ("a program against itself", "splits", "faster or slower", "interval excludes 1", "same"),
        [
            (
                row["kind"],
                row["splits"],
                *(_share(row[name], row["splits"]) for name in ("decided", "excluded", "same")),
            )
            for row in result["splits"]
        ],
    )
    coverages = _table(
        ("simulated data", "units a side", "interval holds the ratio", "percentile bootstrap"),
        [
            (row["data"], row["units"], f"{100 * row['ours']:.1f} %", f"{100 * row['percentile bootstrap']:.1f} %")
            for row in result["coverage"]
        ],
    )
    slowdowns = _table(
        ("3 % slower", "blocks at first", "right at once", "asked for more", "then found", "blocks asked for, median"),
        [
            (
                row["data"],
                row["pilot"],
                _share(row["at_once_rightly"], row["trials"]),
                f"{row['asked']} of {row['trials']}",
                _share(row["found"], row["asked"]),
                "–" if row["needed"] is None else f"{row['needed']:g}",
            )
            for row in result["planted"]
        ],
    )
    powers = _table(
        ("gate of 5 %, 8 % slower: runs a side", "repeats", "found", "found, in turns"),
        [
            (row["runs"], row["repeats"], *(f"{100 * row[how]:.1f} %" for how in ("side by side", "in turns")))
            for row in result["power"]
        ],
    )
    long_steps = _table(
        ("long steps", "steps a side", "compared by cycles", "no change: interval excludes 1", "12 % slower: found"),
        [
            (row["data"], row["steps"], *(f"{100 * row[name]:.1f} %" for name in ("by cycles", "excludes 1", "found")))
            for row in result["long steps"]
        ],
    )
    kernels = _table(
        ("100 kernels", "repeats", "chance findings among the findings", "changes found"),
        [
            (
                f"{row['changed']} of them 10 % slower" if row["changed"] else "none changed",
                row["repeats"],
                f"{100 * row['chance share']:.1f} %",
                f"{100 * row['found']:.1f} %" if row["changed"] else "–",
            )
            for row in result["kernels"]
        ],
    )
    return "\n\n".join((splits, coverages, slowdowns, powers, long_steps, kernels)) + "\n"


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({100 * part / whole:.1f} %)" if whole else "–"


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.comparison_errors", description=__doc__.partition(":")[0]
    )
    parser.add_argument("--quick", action="store_true", help="a twentieth of the repetitions; nothing stored")
    options = parser.parse_args(arguments)
    result = measure(0.05 if options.quick else 1.0)
    text = tables(result)
    print(text)
    if not options.quick:
        (_RESULTS / "comparison_errors.json").write_text(json.dumps(result, indent=1) + "\n", "utf-8")
        (_RESULTS / "comparison_errors.md").write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
