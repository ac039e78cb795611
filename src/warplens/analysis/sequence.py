"""Steps from the sequence of launches, where no ranges mark them.

A program's rhythms are nested: tokens or layers in micro-batches in steps in epochs. Which of them is the step is
judged by evidence, the strongest first:

1. the optimizer: the work between the ends of two of its passes is a step, even if no two steps launch alike;
2. a data loader that is asked for the next batch;
3. a stretch in which the sequence of launches equals itself (`warplens.analysis.repetition`). Its turns are steps if
   they are launches of CUDA graphs, or are built as steps are (layers, and work done once). They may be parts of a step
   if something happens only once in several turns: a longer pause, a wait, a copy.

Turns without an optimizer, beside one that runs elsewhere, are parts of a step, and are not taken for one. Without
evidence, the turns are returned with low confidence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np
import polars as pl

from warplens.analysis.frames import busiest
from warplens.analysis.repetition import (
    ALIKE_TOLERANCE,
    LEAST_STRUCTURE,
    MIN_REPEATS,
    MOST_TURNS,
    alike,
    batches,
    inside_one_module,
    inside_one_part,
    is_structured,
    launched_in_warmup,
    longest_repetition,
    optimizer_ends,
    repetitions_per_step,
    stand_out,
)
from warplens.analysis.trees import RangeForest
from warplens.patterns import lazy_pattern
from warplens.profile import Trace
from warplens.profile.schema import Bools, Int64s, name_categories

#: The repeating stretch must hold this share of the GPU time, or it is only a part of the program.
_MIN_SEQUENCE_SHARE = 0.5
#: …and this share before its turns count as steps for their structure alone: a step's layers leave more to its other
#: parts (embedding, head, loss, optimizer), while start-up and warm-up are short beside a loop worth recording.
_STRUCTURED_SHARE = 0.8
#: Two turns are a repetition only if they make up this share of the launches.
_TWO_TURNS_SHARE = 0.95

#: Steps launch about the same amount of work: half of them are alike (`ALIKE_TOLERANCE`).
_ALIKE_SHARE = 0.5

#: More turns than this without any copy or wait may be those of a loop inside a step, such as a sampler's, that works
#: on its own results; recordings of steps without either hold ten as a rule, or fewer.
_MOST_WITHOUT_WAITS = 10

#: Calls that wait for the GPU, or copy: a step with any has them once.
_WAITS = lazy_pattern(r"^(cuda|cu|hip)((Device|Stream|Event|Ctx)Synchronize|Memcpy)")
#: Further calls that show a rhythm.
_ALLOCATES = lazy_pattern(r"^(cuda|cu|hip)(Malloc|MemAlloc|Free|MemFree)")
#: Kernels that choose a token: a turn with one is one token of a text, and how much is generated per step is unknown.
_SAMPLES_TOKEN = lazy_pattern(r"argmax|multinomial|\bsampl(e|ing)", re.IGNORECASE)
#: Kernels that occur only in training.
_BACKWARD = lazy_pattern(r"backward|bwd|[dw]grad|grad_(input|weight)|gradient", re.IGNORECASE)


_SEQUENCE = "the repeating kernel sequence"

#: An odd multiplier that spreads codes over all bits, so that sums of different codes differ.
_MIX = 0x9E3779B1


#: Certainty that repetitions are steps. High: marked as such, or shown by something a program does once per step.
#: Medium: built like steps. Low: they only repeat.
Confidence: TypeAlias = Literal["high", "medium", "low"]


@dataclass(frozen=True)
class Rhythm:
    """Something that repeats and may be the step."""

    what: str  #: description of what repeats, for people
    count: int
    pace_ns: int | None  #: median time from one start to the next; None for a single one
    launches: int  #: median number of launches in each
    confidence: Confidence  #: confidence that these are the steps
    why: str
    chosen: bool = False  #: whether they were taken for the steps


class StepCandidates(NamedTuple):
    """Candidate steps."""

    #: starts, ends: of each step
    starts: Int64s
    ends: Int64s
    counts: Int64s  #: launches in each
    named_warmup: Bools  #: which are called warm-up
    name: str | None  #: name of their ranges, numbers replaced by `N`; None for steps from launches
    #: ends of each step's GPU work, if a step ends where the next one begins: then the last one ends with its work,
    #: because the pause after it is unknown. None if ranges end them.
    work_ends: Int64s | None = None
    origin: str = ""  #: evidence for people, for steps not from ranges
    rhythms: tuple[Rhythm, ...] = ()  #: everything that repeats, the steps among them
    without_work: int = 0  #: further ranges of that name that launched nothing

    def part(self, first: int, stop: int) -> StepCandidates:
        """Those at the places `[first, stop)`."""
        if (first, stop) == (0, len(self.starts)):
            return self
        places = slice(first, stop)
        return self._replace(
            starts=self.starts[places],
            ends=self.ends[places],
            counts=self.counts[places],
            named_warmup=self.named_warmup[places],
            work_ends=None if self.work_ends is None else self.work_ends[places],
        )


@dataclass(frozen=True, eq=False)
class _Turns:
    """Repetitions in the sequence of calls: `calls[begin + i * period : begin + (i + 1) * period]` up to `stop`."""

    trace: Trace
    calls: pl.DataFrame
    period: int
    begin: int
    stop: int

    def grouped(self, length: int, before: int) -> _Turns:
        """Groups of `length` turns as one each, without the turns before the first complete group."""
        period, begin = length * self.period, self.begin + before * self.period
        return _Turns(self.trace, self.calls, period, begin, begin + (self.stop - begin) // period * period)

    @property
    def repeats(self) -> int:
        return (self.stop - self.begin) // self.period

    @property
    def cuts(self) -> Int64s:
        """Begin of each turn, and the end of the last."""
        return self.begin + self.period * np.arange(self.repeats + 1)

    def holding(self, places: Int64s) -> Int64s:
        inside = places[(places >= self.begin) & (places < self.stop)]
        return np.bincount((inside - self.begin) // self.period, minlength=self.repeats)

    @cached_property
    def is_structured(self) -> bool:
        """Whether a turn is built like a step."""
        first = self.calls[self.begin : self.begin + self.period]
        return is_structured(_codes_with_grids(self.trace, first), self.period)

    @cached_property
    def marks(self) -> tuple[Int64s, Int64s, Int64s]:
        """Per turn: number of waits and copies, a code of its other calls, and the number of waits at its end."""
        wait_count, code, waits_at_end = np.zeros((3, self.repeats), dtype=np.int64)
        if self.calls["launch_start_ns"].null_count() or not self.trace.api_calls.height:
            return wait_count, code, waits_at_end
        names = name_categories(self.trace.api_calls["name"])
        waits = np.array([_WAITS.search(text) is not None for text in names], dtype=np.bool_)
        allocates = np.array([_ALLOCATES.search(text) is not None for text in names], dtype=np.bool_)
        calls_of_process = self.trace.api_calls.filter(pl.col("process") == self.calls["process"][0])
        call_name = calls_of_process["name"].to_physical().to_numpy().astype(np.int64)
        call_times = calls_of_process["start_ns"].to_numpy()
        launches = self.calls["launch_start_ns"].to_numpy()[self.begin : self.stop]
        position = np.searchsorted(launches, call_times, side="right") - 1
        turn = position // self.period
        inside = (turn >= 0) & (waits | allocates)[call_name]
        np.add.at(code, turn[inside], (call_name[inside] + 1) * _MIX)
        inside &= waits[call_name]
        np.add.at(wait_count, turn[inside], 1)
        np.add.at(waits_at_end, turn[inside & (position % self.period == self.period - 1)], 1)
        return wait_count, np.unique(code, return_inverse=True)[1].reshape(-1).astype(np.int64), waits_at_end

    @cached_property
    def whole(self) -> _Turns:
        """The steps that these turns are parts of, where there is evidence; else the turns themselves."""
        return _whole_steps(self)

    @cached_property
    def confidence(self) -> tuple[Confidence, str]:
        """Confidence that these are steps, and the reason."""
        return next((level, reason) for holds, level, reason in _SIGNS if holds(self))

    @cached_property
    def repeated(self) -> pl.DataFrame:
        """The calls of all turns."""
        return self.calls[self.begin : self.stop]

    @property
    def has_graphs(self) -> bool:
        return bool((self.repeated["launches"] > 1).any() or (self.repeated["kind"] == "graph").any())

    @cached_property
    def _kernels(self) -> list[str]:
        """Names of the kernels of a turn."""
        rows = self.repeated[: self.period].filter(pl.col("kind") == "kernel")["row"]
        return self.trace.kernels["full_name"].gather(rows).cast(pl.String).to_list()

    @cached_property
    def token_choices(self) -> int:
        """Number of kernels of a turn that choose a token."""
        choosing = set(filter(_SAMPLES_TOKEN.search, set(self._kernels)))
        return sum(name in choosing for name in self._kernels)

    @cached_property
    def is_pair(self) -> bool:
        """Whether there are only two turns, without a backward pass."""
        return self.repeats < MIN_REPEATS and not any(map(_BACKWARD.search, set(self._kernels)))

    @property
    def is_long(self) -> bool:
        """Whether a turn has enough launches to have a structure."""
        return self.period >= LEAST_STRUCTURE

    @cached_property
    def has_pauses(self) -> bool:
        """Whether the GPU or the host pauses longer after each turn than inside one."""
        pauses = _pauses_before(self.calls, np.arange(self.begin + 1, self.stop))
        ends = np.zeros(self.stop - self.begin - 1, dtype=np.bool_)
        ends[self.period - 1 :: self.period] = True
        return any(stand_out(pause[ends], pause[~ends]) for pause in pauses)

    @cached_property
    def has_step_structure(self) -> bool:
        """Whether a turn is built like a step, and the turns leave little work to other parts of the program."""
        return self.is_structured and _share(self.calls, self.begin, self.stop) >= _STRUCTURED_SHARE

    @property
    def marked(self) -> int:
        """Number of turns with a wait or copy."""
        return int((self.marks[0] > 0).sum())

    @property
    def ended(self) -> int:
        """Number of turns with one after their last launch."""
        return int((self.marks[2] > 0).sum())


def steps_from_sequence(trace: Trace, work: pl.DataFrame, forest: RangeForest) -> StepCandidates | None:
    """The steps shown by the launches; None where there are none. Arguments as for `find_steps`."""
    calls = _by_call(_launch_sequence(trace, work, ("kernel", "graph")))
    if calls.height < MIN_REPEATS:
        return None
    passes = optimizer_ends(trace, calls)
    turns = _repetition(trace, work, forest, calls)
    repeating = () if turns is None else _turn_rhythms(turns)
    if len(passes):
        reason = "the optimizer runs once in each"
        if turns is not None and turns.calls is calls and (turns.holding(passes) == 1).all():
            return _candidates(calls, turns.cuts, trace, forest, _SEQUENCE, reason, "high", repeating)
        cuts = _step_bounds(passes)
        if cuts is None:
            return None
        # Two passes cannot be shown to be alike: a recording cut at both ends may hold two parts of one.
        certainty: Confidence = "high" if len(passes) > 2 and alike(calls, trace, passes) else "low"
        return _candidates(calls, cuts, trace, forest, "the passes of the optimizer", reason, certainty, repeating)
    batch_starts = batches(trace, calls)
    if len(batch_starts) > 1:
        cuts = np.r_[batch_starts, calls.height]
        cause = "a batch is asked for once in each"
        return _candidates(calls, cuts, trace, forest, "the requests to the data loader", cause, "high", repeating)
    if turns is None:
        return None
    steps = turns.whole
    if steps.repeats < 2:
        return None
    parts = steps.period // turns.period
    origin = f"{_SEQUENCE}, {parts} turns in each" if parts > 1 else _SEQUENCE
    confidence, evidence = steps.confidence
    return _candidates(steps.calls, steps.cuts, trace, forest, origin, evidence, confidence, repeating)


def _turn_rhythms(turns: _Turns) -> tuple[Rhythm, ...]:
    """Rhythms of the turns, of the steps they form if there is evidence, and of the parts that repeat inside a turn."""
    rhythms = []
    steps = turns.whole
    for candidate in (steps, turns) if steps.period > turns.period and steps.repeats > 1 else (turns,):
        confidence, reason = candidate.confidence
        parts = candidate.period // turns.period
        description = f"{parts} turns of the kernel sequence" if parts > 1 else "turns of the kernel sequence"
        rhythms.append(_rhythm(candidate.calls, candidate.cuts, description, confidence, reason))
    period, begin, stop = longest_repetition(turns.calls["code"].to_numpy()[turns.begin : turns.begin + turns.period])
    if period and (repeats := (stop - begin) // period) >= MIN_REPEATS:
        cuts = turns.begin + begin + period * np.arange(repeats + 1)
        part = _rhythm(turns.calls, cuts, "parts of a turn, such as layers", "low", "they repeat inside of each turn")
        rhythms.append(replace(part, count=repeats * turns.repeats))
    return tuple(rhythms)


def _rhythm(
    calls: pl.DataFrame, cuts: Int64s, origin: str, confidence: Confidence, reason: str, *, chosen: bool = False
) -> Rhythm:
    firsts = calls["start_ns"].to_numpy()[cuts[:-1]]
    pace = int(np.median(np.diff(np.sort(firsts)))) if len(firsts) > 1 else None
    return Rhythm(origin, len(firsts), pace, int(np.median(np.diff(cuts))), confidence, reason, chosen)


def _step_bounds(lasts: Int64s) -> Int64s | None:
    """Begins of the steps that end at these places, and the last end; None where they are too few or not alike.

    The launches before the first place may include a whole step after a start, or only the rest of one: that step gets
    the usual number of launches.
    """
    sizes = np.diff(lasts)
    if not len(sizes):
        return None
    usual_size = int(np.median(sizes))
    if np.mean(np.abs(sizes - usual_size) <= ALIKE_TOLERANCE * usual_size) < _ALIKE_SHARE:
        return None
    first_complete = int(lasts[0]) + 1 >= (1 - ALIKE_TOLERANCE) * usual_size
    cuts: Int64s = np.r_[max(int(lasts[0]) + 1 - usual_size, 0), lasts + 1] if first_complete else lasts + 1
    return cuts if len(cuts) > 2 else None


def _repetition(trace: Trace, work: pl.DataFrame, forest: RangeForest, calls: pl.DataFrame) -> _Turns | None:
    """The turns of the first view of the launches that shows a repetition.

    Views: kernels by name; kernels by name and grid; with copies and fills.
    """
    for view in _views(trace, work, calls):
        period, begin, stop = longest_repetition(view["code"].to_numpy())
        if period == 0 or _share(view, begin, stop) < _MIN_SEQUENCE_SHARE:
            continue
        repeats = (stop - begin) // period
        if repeats < MIN_REPEATS and (repeats < 2 or stop - begin < _TWO_TURNS_SHARE * view.height):
            continue
        if inside_one_part(view[begin:stop], trace, forest) or inside_one_module(view[begin:stop], trace):
            return None
        begin += _largest_gap_offset(view["start_ns"].to_numpy(), view["end_ns"].to_numpy(), begin, stop, period)
        return _Turns(trace, view, period, begin, begin + (stop - begin) // period * period)
    return None


def _share(calls: pl.DataFrame, begin: int, stop: int) -> float:
    """Share of the GPU time of all calls that lies in these."""
    busy = calls["busy_ns"].to_numpy()
    return float(busy[begin:stop].sum()) / max(float(busy.sum()), 1.0)


def _views(trace: Trace, work: pl.DataFrame, calls: pl.DataFrame) -> Iterator[pl.DataFrame]:
    yield calls
    yield calls.with_columns(pl.Series("code", _codes_with_grids(trace, calls)))
    if work["kind"].is_in(["copy", "memset"]).any():
        yield _by_call(_launch_sequence(trace, work, ("kernel", "graph", "copy", "memset")))


def _codes_with_grids(trace: Trace, calls: pl.DataFrame) -> Int64s:
    """Codes of the calls that also distinguish kernels by their grids."""
    kernel = (calls["kind"] == "kernel").to_numpy()
    rows = calls["row"].to_numpy()[kernel]
    code: Int64s = calls["code"].to_numpy().copy()
    for axis in ("grid_x", "grid_y", "grid_z"):
        size = trace.kernels[axis].fill_null(0).to_numpy().astype(np.int64)
        code[kernel] = (code[kernel] << 7) + code[kernel] + size[rows] * _MIX  # wrapping sums are distinct enough
    return np.unique(code, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _whole_steps(turns: _Turns) -> _Turns:
    """The steps that the turns (layers, tokens, micro-batches) are parts of, where there is evidence."""
    wait_count, code, _ = turns.marks
    length, first, stop = longest_repetition(code)
    if length > 1 and stop - first >= max(MOST_TURNS * turns.repeats, 2 * length):
        # An event that occurs once in several parts (a wait, a read-back) ends the last of them.
        return turns.grouped(length, (first + int(np.argmax(wait_count[first : first + length])) + 1) % length)
    for pauses in _pauses_before(turns.calls, turns.cuts[1:-1]):
        length, before = repetitions_per_step(pauses)
        if length > 1:
            return turns.grouped(length, before)
    return turns


#: Whether turns without an optimizer are steps: the first condition that holds decides.
_SIGNS: Final[tuple[tuple[Callable[[_Turns], bool], Confidence, str], ...]] = (
    # A graph that is launched repeatedly is the program's loop; one among other launches may be a token's.
    (
        lambda turns: turns.period == 1 and turns.repeated.height < _TWO_TURNS_SHARE * turns.calls.height,
        "low",
        "each is a single launch, and there are others beside them",
    ),
    (lambda turns: turns.has_graphs, "high", "CUDA graphs are what a program repeats"),
    (
        lambda turns: turns.token_choices == 1 or (turns.token_choices > 1 and turns.marked < turns.repeats),
        "low",
        "each chooses a token: one of a text",
    ),
    (lambda turns: turns.token_choices > 1, "medium", "each is a text of several tokens that the host waits for"),
    (
        lambda turns: turns.is_pair and turns.marked == turns.repeats and turns.is_long and turns.has_pauses,
        "medium",
        "two are all there is, each with a wait or copy, and a pause between them",
    ),
    (lambda turns: turns.is_pair, "low", "there are only two"),
    (
        lambda turns: turns.has_step_structure and turns.ended >= turns.repeats - 1,
        "high",
        "each has parts that repeat and parts that it has once, and a wait or copy behind them",
    ),
    # As in passes over parts of a batch, whose results the step uses at its end.
    (
        lambda turns: turns.has_step_structure and turns.marked > 1,
        "low",
        "waits and copies lie inside of each, and none between them",
    ),
    (
        lambda turns: turns.has_step_structure and turns.repeats > _MOST_WITHOUT_WAITS,
        "low",
        "so many in a row take nothing in and give nothing out, as a sampler's do",
    ),
    (lambda turns: turns.has_step_structure, "medium", "each has parts that repeat and parts that it has once"),
    (
        lambda turns: turns.is_long and turns.marked >= turns.repeats - 1 and turns.has_pauses,
        "high",
        "each has a wait or copy, followed by a pause",
    ),
    (lambda _: True, "low", "the only sign is that they repeat"),
)


def _candidates(
    calls: pl.DataFrame,
    cuts: Int64s,
    trace: Trace,
    forest: RangeForest,
    origin: str,
    reason: str,
    confidence: Confidence,
    repeating: tuple[Rhythm, ...],
) -> StepCandidates | None:
    """Steps that begin with the first GPU work of these stretches of the sequence."""
    steps_part, step_edges = calls[int(cuts[0]) : int(cuts[-1])], cuts[:-1] - cuts[0]
    firsts = np.minimum.reduceat(steps_part["start_ns"].to_numpy(), step_edges)
    if np.any(np.diff(firsts) <= 0):
        return None
    lasts = np.maximum.reduceat(steps_part["end_ns"].to_numpy(), step_edges)
    counts = np.add.reduceat(steps_part["launches"].to_numpy(), step_edges)
    is_warmup = (
        np.add.reduceat(launched_in_warmup(steps_part, trace, forest).astype(np.int64), step_edges) > np.diff(cuts) // 2
    )
    best = _rhythm(calls, cuts, origin.removeprefix("the "), confidence, reason, chosen=True)
    other_rhythms = (rhythm for rhythm in repeating if (rhythm.count, rhythm.launches) != (best.count, best.launches))
    return StepCandidates(
        firsts, np.r_[firsts[1:], lasts[-1]], counts, is_warmup, None, lasts, origin, (best, *other_rhythms)
    )


def _launch_sequence(trace: Trace, work: pl.DataFrame, kinds: tuple[str, ...]) -> pl.DataFrame:
    """Work of the busiest process and device in launch order, with a code for each identity."""
    ops = work.filter(pl.col("kind").is_in(kinds))
    if not ops.height:
        return ops.with_columns(pl.lit(0, dtype=pl.Int64).alias("code"))
    process, device = busiest(ops, "process", "device")
    ops = ops.filter(pl.col("process") == process, pl.col("device") == device)
    kernels = trace.kernels["full_name"].to_physical().cast(pl.Int64).to_numpy()
    directions = trace.copies["direction"].to_physical().cast(pl.Int64).to_numpy()
    # Kernels by name, graphs by number, copies by direction; the ranges of the codes lie apart.
    code_of = {
        "kernel": kernels,
        "graph": -1 - trace.graph_launches["graph"].fill_null(0).to_numpy(),
        "copy": (1 << 40) + directions,
        "memset": np.full(trace.memsets.height, 1 << 41, dtype=np.int64),
    }
    codes = np.empty(ops.height, dtype=np.int64)
    for kind in kinds:
        of_kind = (ops["kind"] == kind).to_numpy()
        codes[of_kind] = code_of[kind][ops["row"].to_numpy()[of_kind]]
    # Launch order is the program's order; streams may run it in another one. Work launched before the recording began
    # came before the work that follows it on its stream. The GPU's own times are far behind those of a host that is
    # ahead.
    launch_time = pl.col("launch_start_ns")
    if 0 < ops["launch_start_ns"].null_count() < ops.height:
        launch_time = (
            launch_time.fill_null(strategy="backward").fill_null(strategy="forward").over("stream", order_by="start_ns")
        )
    return ops.with_columns(pl.Series("code", codes)).sort(
        pl.coalesce(launch_time, "start_ns"), "start_ns", maintain_order=True
    )


def _by_call(sequence: pl.DataFrame) -> pl.DataFrame:
    """The sequence with all work of one call (nodes of a CUDA graph) as one row: no step ends inside a call."""
    call = sequence["api_row"].fill_null(-1).to_numpy()
    first = np.flatnonzero(np.r_[True, (call[1:] != call[:-1]) | (call[1:] < 0)])[: sequence.height]
    busy = (sequence["end_ns"] - sequence["start_ns"]).to_numpy()
    if not len(first):
        return sequence.with_columns(busy_ns=pl.lit(0, dtype=pl.Int64), launches=pl.lit(0, dtype=pl.Int64))
    code = sequence["code"].to_numpy()
    if len(first) < sequence.height:
        place = np.arange(sequence.height) - np.repeat(first, np.diff(np.r_[first, sequence.height]))
        # Calls are equal if they run the same work in the same order; wrapping sums distinguish orders well enough.
        code = np.add.reduceat((code + 1) * (2 * place + 1), first)
    return sequence[first].with_columns(
        pl.Series("code", code),
        pl.Series("start_ns", np.minimum.reduceat(sequence["start_ns"].to_numpy(), first)),
        pl.Series("end_ns", np.maximum.reduceat(sequence["end_ns"].to_numpy(), first)),
        pl.Series("busy_ns", np.add.reduceat(busy, first)),
        pl.Series("launches", np.diff(np.r_[first, sequence.height])),
    )


def _pauses_before(calls: pl.DataFrame, places: Int64s) -> list[Int64s]:
    """Pauses before each of these calls: time since the host's last launch, if known, and the GPU's idle time."""
    reach = np.maximum.accumulate(calls["end_ns"].to_numpy())
    pauses = [np.maximum(calls["start_ns"].to_numpy()[places] - reach[places - 1], 0)]
    if not calls["launch_start_ns"].null_count():
        launch = calls["launch_start_ns"].to_numpy()
        pauses.insert(0, launch[places] - launch[places - 1])
    return pauses


def _largest_gap_offset(start: Int64s, end: Int64s, begin: int, stop: int, period: int) -> int:
    """Offset in the period at which a step begins: after the largest typical pause, since programs wait between steps.

    Only offsets that do not cost a whole repetition are considered; a stretch of whole periods begins with a step.
    """
    repeats, rest = divmod(stop - begin, period)
    reach = np.maximum.accumulate(end)
    index = begin + np.arange(repeats * period)
    gaps = np.where(index > 0, start[index] - reach[np.maximum(index - 1, 0)], 0).reshape(repeats, period)
    return int(np.argmax(np.median(gaps[:, : rest + 1], axis=0)))
