"""Base class of all rules: one `Rule` declares everything about one cause of lost time.

A rule asks one question about the window. It declares which time its cause claims, when it is raised, how sure it is,
which numbers show it, what to do, and which experiment would refute it. Gain and severity follow from the claim. The
headline, the documentation and the tests read these objects. To add a finding, add a rule in a module of
`warplens.diagnosis.rules`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import wraps
from typing import TYPE_CHECKING, ClassVar, Final, Literal, TypeAlias, TypeVar, cast

import numpy as np

from warplens.diagnosis.findings import (
    GAIN,
    MANY,
    USUAL,
    Basis,
    Confidence,
    Finding,
    Located,
    Remedy,
    Severity,
    Variant,
    about,
    ceiling,
    times,
)
from warplens.diagnosis.unprofiled import NOISE, Gain
from warplens.profile.schema import Bools, Float64s, Int64s

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from warplens.analysis.prediction import Change
    from warplens.diagnosis.claims import Claims
    from warplens.diagnosis.facts import Facts
    from warplens.diagnosis.run import RankFacts


#: Precedence of claims on the same piece of work, the last one wins: inferred from single kernels, seen in the
#: structure of the program (among several of these two, the largest share), measured by counters, certain from the
#: piece itself.
Precedence: TypeAlias = Literal["inferred", "structure", "measured", "certain"]
PRECEDENCES: Final[tuple[Precedence, ...]] = ("inferred", "structure", "measured", "certain")

#: Evidence of several findings.
GPU_BUSY_SHARE: Final = {"gpu_busy_share": "of the window, over its GPUs"}
IDLE_NS: Final = {"idle_ns": "idle time that the finding claims"}
IDLE_SHARE: Final = {"idle_share": "that idle time, of the window"}
SEEN_IDLE: Final = {
    **IDLE_NS,
    **IDLE_SHARE,
    "launches_behind_ns": "modelled: launch pauses that the host would hide without this cause",
}
LAUNCHES_PER_STEP: Final = {"launches_per_step": "kernels; for the optimizer, its own"}

_Rule = TypeVar("_Rule", bound="Rule")
_Result = TypeVar("_Result")
_Value = TypeVar("_Value")


def remembered(method: Callable[[_Rule, Facts], _Result]) -> Callable[[_Rule, Facts], _Result]:
    """Caches a method of a rule in each window (`Facts.cache`)."""

    @wraps(method)
    def cached(rule: _Rule, facts: Facts) -> _Result:
        key = (method, rule.id)
        if key not in facts.cache:
            facts.cache[key] = method(rule, facts)
        result: _Result = facts.cache[key]
        return result

    return cached


def first_of(*cases: tuple[object, _Value], default: _Value) -> _Value:
    """The value of the first case that holds."""
    return next((value for holds, value in cases if holds), default)


#: Placeholder in `Remedy.expected` for the gains of other batch sizes.
OTHER_BATCHES: Final = "{batches}"

_NS_PER_MS: Final = 1e6

#: Model of a gain: products in another algorithm or format, library kernels for another size or memory layout, memory
#: traffic (and how much of the GPU small grids leave empty), or the host, its pace and its other work.
Model: TypeAlias = Literal["products", "layout", "traffic", "host"]

#: Factor between measured gains (less 1) and the range of modelled gains that covers nine of ten recordings of programs
#: timed before and after the change, for each model. It is the widest of the fits with one set of programs left out,
#: because programs of one set are alike. For the host it is wider than any fit (1.7): with it, intervals held 44 of 48
#: gains of two sets that frozen rules read for the first time.
#: `python -m benchmarks.pairs_scorecard --spread` computes them anew.
SPREADS: Final[dict[Model, float]] = {"products": 1.8, "layout": 3.7, "traffic": 2.2, "host": 2.1}

#: Rules and spreads are fitted to the programs of all sets, so for other programs their intervals are too narrow. Each
#: end moves by this factor, but the gain (less 1) by a factor of two at most. Without it, intervals held 198 of 262
#: gains of programs that frozen rules read for the first time; with it, 225 would have been held (decision 46).
_UNSEEN: Final = 1.2
_UNSEEN_LESS_ONE: Final = 2.0

#: Causes on the GPU are also told behind a host that sets the pace if the GPU is busy for this share of the time.
_SEEN_BEHIND_HOST: Final = 0.3


def bringing(remedy: Remedy, gain: Gain | None, model: Model = "host") -> Remedy:
    """The remedy with a gain of its own, if that is not the gain of the finding.

    Args:
        remedy: its text of `modelled` stays.
        gain: computed from `model`; None if unknown.
        model: sets the width of its interval.
    """
    if gain is None:
        text = remedy.expected.replace(GAIN, "").lstrip(":; ")
        return replace(remedy, expected=text or "unknown from this profile")
    return replace(remedy, gain=gain.expected, basis=Basis(model, gain.low, gain.high))


def in_order(remedies: tuple[Remedy, ...], gain: float) -> tuple[Remedy, ...]:
    """The first remedy with the gain of the finding, then the others by gain, unknown gains last.

    Remedies before it stay there if their gain is unknown.
    """
    index = next((index for index, remedy in enumerate(remedies) if remedy.gain == gain), None)
    before = () if index is None else tuple(remedy for remedy in remedies[:index] if remedy.gain is None)
    first = () if index is None else remedies[index : index + 1]
    others = [remedy for remedy in remedies if remedy not in before + first]
    return *before, *first, *sorted(others, key=lambda remedy: -(remedy.gain or 0.0))


class Limit(float):
    """A limit of a single rule, with its reason. Limits of several rules are in `Thresholds`."""

    why: str

    def __new__(cls, value: float, why: str) -> Limit:
        """The number, with its reason."""
        limit = super().__new__(cls, value)
        limit.why = why
        return limit


class Rule:
    """One finding, in these words or those of a `Variant`. A test checks that all required texts are there."""

    id: ClassVar[str]  #: of the finding
    question: ClassVar[str]  #: that the rule asks about a window
    limiter: ClassVar[str]  #: the limit of a window with it, in a few words
    cause: ClassVar[str]  #: a longer `limiter`, for the documentation
    raised_when: ClassVar[str]  #: conditions that raise it
    claimed: ClassVar[str] = "nothing"  #: which time it claims
    #: the verdict with this cause, `{share}` being the time that it claims; empty if the rule only describes
    headline: ClassVar[str] = ""
    title: ClassVar[str] = ""  #: one sentence for people, if it is always the same
    beside: ClassVar[str] = ""  #: GPU work that its first remedy may remove beside its claim, if it is always the same
    #: name of each number that shows it → its meaning. The end of a name is its unit (`EVIDENCE_UNITS`).
    evidence: ClassVar[Mapping[str, str]]
    refutation: ClassVar[str]  #: the experiment that would refute it
    #: names of the `Thresholds` that it uses, except those that all rules use. Its own limits are attributes (`Limit`).
    thresholds: ClassVar[tuple[str, ...]] = ()
    #: it describes the window without naming lost time, and is the verdict only if no time is lost
    describes: ClassVar[bool] = False
    precedence: ClassVar[Precedence] = "inferred"  #: how sure its claim on GPU work is
    #: model of its gain if only GPU work gets less; it sets the width of the interval
    model: ClassVar[Model] = "traffic"
    #: kind of calls or work that its places count (`warplens.diagnosis.places`); None for a cause without a place
    located: ClassVar[Located | None] = "work"
    change: ClassVar[Change | None] = None  #: that its first remedy makes to the schedule
    #: whether its `inferred` claim yields to a smaller one that the structure of the program shows
    yields: ClassVar[bool] = True

    def claim(self, facts: Facts) -> Float64s | None:
        """Share of the time of each piece of GPU work that goes away with the cause; None for no work."""
        return None

    def part(self, facts: Facts) -> Float64s | None:
        """Its part of each piece of work that it divides with another rule; None if it divides no work."""
        return None

    def claim_gaps(self, facts: Facts) -> Float64s | None:
        """Share of each pause that goes away with the cause, except long stalls of the host; None for no pause."""
        return None

    def saved_calls(self, facts: Facts) -> Float64s | None:
        """Share of the host's time for issuing each piece that goes away beside its `change`; None for no time."""
        return None

    def find(self, facts: Facts, claims: Claims) -> Finding | None:
        """The finding, if the window has it."""
        raise NotImplementedError

    def headline_of(self, finding: Finding) -> str:
        """The headline for this finding."""
        return finding.variant.headline or self.headline

    def told(self, facts: Facts, finding: Finding) -> str:
        """The verdict of a describing finding as a sentence; empty to use its title."""
        return ""

    def needless(self, finding: Finding) -> bool:
        """Whether the results of the work are unused, so that it need not get faster but can go away."""
        return False

    def makes_launches(self, finding: Finding) -> bool:
        """Whether it keeps the host from running ahead, or makes it issue too much, in a way that no graph captures."""
        return self.needless(finding)

    def delays(self, facts: Facts) -> bool:
        """Whether its calls may keep the host from running ahead, so that it also claims pauses of later launches."""
        return True

    def place_time(self, facts: Facts) -> Int64s | None:
        """Time of each piece of work by which places are chosen if the finding claims no time; None for none."""
        return None

    @classmethod
    def limits(cls) -> dict[str, Limit]:
        """The limits of this rule alone, by name."""
        return {name: value for name, value in vars(cls).items() if isinstance(value, Limit)}

    def raised(
        self,
        facts: Facts,
        claimed_ns: int,
        *,
        confidence: Confidence,
        evidence: Mapping[str, int | float | None],
        where: tuple[str, ...],
        remedies: tuple[Remedy | None, ...],
        title: str = "",
        variant: Variant = USUAL,
        warning: float | None = None,
        informs: bool = False,
        on_gpu: bool = False,
        issuing_ns: int = 0,
        residual_share: float = 0.0,
        bound_ns: int | None = None,
        bound_known: bool = True,
        at_least: float = 1.0,
        replayed: Gain | None = None,
        busy_ns: int = 0,
        claims: Claims | None = None,
    ) -> Finding | None:
        """The finding, unless its gain is below `raise_ceiling`, and also behind a host that sets the pace.

        Args:
            claimed_ns: wall time that the cause claims.
            confidence, where, variant: as in `Finding`.
            title: as in `Finding`, if it is not that of the variant or the rule.
            evidence: as in `Finding`, `gpu_busy_share` excepted; None for numbers that were not recorded, which are
                left out.
            remedies: as in `Finding`; None for those that do not apply.
            warning: least gain of a warning, if larger than `warning_ceiling`.
            informs: it only informs, whatever its gain.
            on_gpu: it only slows down the GPU; with the remedy, the unchanged host may set the pace.
            issuing_ns: part of the claimed time in which the host issued work, which the profiler made longer.
            residual_share: share of the claimed time that is expected to stay after the first remedy.
            bound_known: whether the gain has a known bound; that of a larger batch, for example, has none.
            bound_ns: time that remedies could remove by the physics of the same mathematics; by default the claim.
            at_least: lower limit of the bound, such as the gain of a replayed remedy.
            replayed: replayed gain of the first remedy; it takes precedence over the gain of the claim.
            busy_ns: GPU work in the claimed time, if `replayed` is given.
            claims: given if the first remedy removes exactly the claimed work, whose removal is then replayed.
        """
        cost = _Cost(claimed_ns, issuing_ns, residual_share, bound_ns or 0, on_gpu)
        if replayed is not None:
            estimate = _estimate_by_replay(facts, cost, replayed, busy_ns)
        else:
            estimate = _estimate_by_claim(facts, cost, self._without(facts, claims) if claims is not None else None)
        if estimate.gain < facts.thresholds.raise_ceiling and not _shows_behind_host(facts, cost, estimate):
            return None
        bound = max(_bound(facts, cost, is_replayed=replayed is not None), estimate.gain, estimate.at_least, at_least)
        bounded = bound if bound_known and bound < MANY else None
        gain = min(estimate.gain, MANY)
        basis = estimate.basis(self.model if on_gpu else "host")
        gains = gain, interval_of(basis, bounded), bounded
        severity: Severity = "info" if informs else _severity(facts, gain, warning or 0.0, on_gpu=on_gpu)
        if any(note.code == "shared-gpu" for note in facts.notes) and facts.pace is None:
            confidence = "low"  # nothing is replayed, and the times include those of other processes
        shown = self._with_busy_share(facts, evidence)
        told = fill_gains(remedies, *gains, basis)
        return self.found(title, severity, confidence, gains, shown, where, told, variant, basis)

    def _with_busy_share(
        self, facts: Facts, evidence: Mapping[str, int | float | None]
    ) -> Mapping[str, int | float | None]:
        """The evidence with `GPU_BUSY_SHARE`, if the rule declares it."""
        return {**{name: facts.busy_share for name in GPU_BUSY_SHARE if name in self.evidence}, **evidence}

    def found(
        self,
        title: str,
        severity: Severity,
        confidence: Confidence,
        gains: tuple[float | None, tuple[float, float] | None, float | None],
        evidence: Mapping[str, int | float | None],
        where: tuple[str, ...],
        remedies: tuple[Remedy, ...],
        variant: Variant = USUAL,
        basis: Basis | None = None,
    ) -> Finding:
        """A finding with this gain, interval and bound; its numbers are in the order in which they are declared."""
        recorded = {name: number for name, number in evidence.items() if number is not None}
        known = {name: recorded[name] for name in sorted(recorded, key=[*self.evidence].index)}
        title, refute = title or variant.title or self.title, variant.refutation or self.refutation
        told = title, severity, confidence, *gains, known, where, remedies, refute
        return Finding(self.id, *told, basis=basis, variant=variant)

    #: For rules that claim pauses: from this share of its time on, a removed piece of work is not launched at all.
    unlaunched_share: ClassVar[float] = 0.99

    #: Whether its remedy also removes work that another cause has claimed. That of chains of passes does not.
    takes_all: ClassVar[bool] = True

    def _without(self, facts: Facts, claims: Claims) -> Gain | None:
        """Replayed gain without the claimed work and, if pauses are claimed, without its launches."""
        pieces, time = claims.pieces(self.id), facts.program.own_ns
        share, wanted = pieces.share_of(time), self.claim(facts)
        # If two causes claim the same work, one gets it; the remedy removes it all the same.
        if self.takes_all and wanted is not None and 2 * pieces.total > wanted @ time:
            share = np.maximum(wanted, share)
        calls = np.where(share >= self.unlaunched_share, 1.0, share) if claims.idle_ns(self.id) else None
        return facts.replayed(time=share, calls=calls)

    def described(
        self,
        facts: Facts,
        *,
        title: str = "",
        variant: Variant = USUAL,
        confidence: Confidence,
        gain: float | None = None,
        evidence: Mapping[str, int | float | None],
        where: tuple[str, ...] = (),
        remedies: tuple[Remedy | None, ...],
    ) -> Finding:
        """A finding that only informs; `gain` is its bound. Other arguments as in `raised`."""
        shown = self._with_busy_share(facts, evidence)
        told = tuple(filter(None, remedies))
        return self.found(title, "info", confidence, (None, None, gain), shown, where, told, variant)


@dataclass(frozen=True)
class _Cost:
    """The time that a cause claims, with the meaning of the arguments of `Rule.raised`."""

    claimed_ns: int
    issuing_ns: int
    residual_share: float
    bound_ns: int
    on_gpu: bool

    @property
    def saved_ns(self) -> float:
        """The part of it that the first remedy saves."""
        return self.claimed_ns * (1 - self.residual_share)


@dataclass(frozen=True)
class _Estimate:
    """The gain of the first remedy, and how it was found."""

    gain: float
    replayed: Gain | None  #: a replay that it rests on; None if it follows from the claim alone
    work_share: float | None  #: as in `Basis`
    at_least: float = 1.0  #: a gain that the bound is not below

    def basis(self, model: Model) -> Basis:
        """The basis of the gain, by this kind of model."""
        gain = min(self.gain, MANY)
        if self.replayed is None:
            return Basis(model, gain, gain, self.work_share)
        return Basis(model, min(self.replayed.low, gain), max(self.replayed.high, gain), self.work_share)


def _estimate_by_claim(facts: Facts, cost: _Cost, without: Gain | None) -> _Estimate:
    """The gain if the saved time goes away.

    Args:
        without: replayed gain without the claimed work, if there is one.
    """
    issuing_ns = int(cost.issuing_ns * (1 - cost.residual_share))
    gain = gain_of(facts, int(cost.saved_ns), on_gpu=cost.on_gpu, issuing_ns=issuing_ns)
    if without is None:
        # Gains of less host work are less certain than those of less GPU work.
        share = cost.saved_ns / max(facts.unprofiled_ns(), 1) if cost.on_gpu else None
        return _Estimate(gain, None, share)
    # If pauses are claimed, replay and claim model the host differently, and neither is better in general.
    other = without.expected if cost.on_gpu else gain
    without = replace(without, low=min(without.low, other), high=max(without.high, other))
    return _Estimate(math.sqrt(without.expected * other), without, without.work_share)


def _estimate_by_replay(facts: Facts, cost: _Cost, replayed: Gain, busy_ns: int) -> _Estimate:
    """The replayed gain of the first remedy, without pauses that no host could avoid.

    If the cause hardly shows in the time, that gain has another reason, such as a second thread: then the claim counts.
    """
    if bound_of(facts, cost.claimed_ns, cost.issuing_ns) < facts.thresholds.raise_ceiling:
        by_claim = _estimate_by_claim(facts, cost, None)
        return replace(by_claim, replayed=replayed, work_share=replayed.work_share)
    avoidable = facts.own_idle_ns - facts.idle("dependency", "submission", "profiler", "unknown")
    most = bound_of(facts, min(avoidable + busy_ns, facts.wall_ns))
    return _Estimate(min(replayed.expected, most), replayed, replayed.work_share, at_least=min(replayed.high, most))


def _shows_behind_host(facts: Facts, cost: _Cost, estimate: _Estimate) -> bool:
    """Whether a cause on the GPU is told although its gain is small: behind a faster host it would show."""
    high = estimate.gain if estimate.replayed is None else estimate.replayed.high
    return (
        cost.on_gpu
        and facts.busy_share >= _SEEN_BEHIND_HOST
        and ceiling(facts.busy_ns, cost.saved_ns) >= facts.thresholds.warning_ceiling
        and high >= facts.thresholds.raise_ceiling
    )


def _bound(facts: Facts, cost: _Cost, *, is_replayed: bool) -> float:
    """Speed-up without all of the cause, by the physics of the same mathematics."""
    bound = max(bound_of(facts, cost.claimed_ns, cost.issuing_ns), ceiling(facts.wall_ns, cost.bound_ns))
    if cost.on_gpu:
        bound = max(bound, bound_of(facts, cost.bound_ns))
    if is_replayed or not cost.on_gpu:
        bound = max(bound, _longer_idle(facts, max(cost.claimed_ns, cost.bound_ns)))
    return bound


def _severity(facts: Facts, gain: float, warning: float, *, on_gpu: bool) -> Severity:
    """The severity of a finding with this gain.

    Args:
        warning: least gain of a warning, if larger than `warning_ceiling`.
        on_gpu: whether only GPU work makes it, which is the same in all steps. Host behaviour in a single step may be
            exceptional.
    """
    limits = facts.thresholds
    least = max(limits.warning_ceiling, warning)
    if gain < least:
        return "info"
    # Inferred steps, which may be parts of a step, are never sure enough for `critical`.
    is_sure = len(facts.window.steps) > (0 if on_gpu else 1) and facts.timeline.steps.is_sure
    return "critical" if gain >= max(limits.critical_ceiling, least) and is_sure else "warning"


def interval_of(basis: Basis, bound: float | None) -> tuple[float, float]:
    """The 90 % interval of a gain with this basis, cut at its bound."""
    spread = SPREADS[cast("Model", basis.model)]
    least, most = (basis.least - 1) / spread, (basis.most - 1) * spread
    low = max((1 + least) / _UNSEEN, 1 + least / _UNSEEN_LESS_ONE)
    high = min((1 + most) * _UNSEEN, 1 + most * _UNSEEN_LESS_ONE, MANY)
    return low, high if bound is None else min(high, bound)


def fill_gains(
    remedies: tuple[Remedy | None, ...],
    gain: float,
    interval: tuple[float, float],
    bound: float | None,
    basis: Basis | None = None,
) -> tuple[Remedy, ...]:
    """The remedies of a finding in order, each with its gain, which is at most the bound.

    Remedies with the placeholder `GAIN` have the gain of the finding; without any, the first remedy has it.
    """
    applying = tuple(filter(None, remedies))
    first = 1 if applying[:1] == (STEPS_ONLY,) else 0
    has_placeholder = any(GAIN in remedy.expected for remedy in applying)
    best = None if has_placeholder else next(iter(applying[first:]), None)
    most = MANY if bound is None else min(bound, MANY)

    def with_gain(remedy: Remedy) -> Remedy:
        if remedy.gain_by_batch is not None:
            remedy = _with_batches(remedy, MANY if bound is None else bound)
        if remedy.gain is None or remedy.basis is None:
            if GAIN not in remedy.expected and remedy is not best:
                return remedy
            text = remedy.expected.replace(GAIN, about(gain))
            return replace(remedy, expected=text, gain=gain, gain_interval=interval, basis=basis)
        own = min(max(remedy.gain, 1.0), most)
        span = Basis(remedy.basis.model, min(remedy.basis.least, own), max(remedy.basis.most, own))
        text = remedy.expected.replace(GAIN, about(own))
        return replace(remedy, expected=text, gain=own, gain_interval=interval_of(span, bound), basis=span)

    return in_order(tuple(map(with_gain, applying)), gain)


def _with_batches(remedy: Remedy, bound: float) -> Remedy:
    """The remedy with the batch sizes whose gain is below the bound, and those other than its own in its text."""
    known = {size: gain for size, gain in (remedy.gain_by_batch or {}).items() if gain <= bound}
    others = ", ".join(f"{size} times: {times(gain)}" for size, gain in known.items() if gain != remedy.gain)
    text = remedy.expected.replace(OTHER_BATCHES, f" ({others})" if others else "")
    return replace(remedy, expected=text, gain_by_batch=known or None)


def gain_of(facts: Facts, saved_ns: int, *, on_gpu: bool, issuing_ns: int = 0) -> float:
    """Speed-up of the window without a profiler if this time goes away.

    Saved GPU time helps only until the host sets the pace. Pauses in which the host issues work count as long as they
    are without the profiler, in the claim and in the window.
    """
    if on_gpu:
        before, after = facts.unprofiled_ns(0), facts.unprofiled_ns(saved_ns)
        return before / max(after, 1)
    wall = facts.wall_ns - facts.added_ns
    return ceiling(wall, min(saved_ns - (1 - facts.unprofiled_share) * issuing_ns, wall))


def bound_of(facts: Facts | RankFacts, saved_ns: float, issuing_ns: float = 0) -> float:
    """Largest speed-up if this time goes away, whether the profiler added nothing to the launches or all of their time.

    Other host work may hide behind GPU work, and other pauses may shrink without the profiler.
    """
    as_recorded = ceiling(facts.wall_ns, min(saved_ns, facts.wall_ns))
    wall = max(facts.wall_ns - facts.issuing_ns, 1)
    without_launches = ceiling(wall, max(min(saved_ns - issuing_ns, wall), 0))
    return max(as_recorded, without_launches)


def _longer_idle(facts: Facts, saved_ns: int) -> float:
    """Largest speed-up if this time goes away, and its pauses last `NOISE` times as long as recorded.

    Pauses are the host's, whose time differs from run to run; that of the GPU hardly does.
    """
    longer = (NOISE - 1) * min(facts.own_idle_ns, saved_ns)
    return (facts.wall_ns + longer) / max(facts.wall_ns - saved_ns, 1)


def ahead_without(facts: Facts, pieces: Bools) -> float:
    """Share of the idle time that goes away if the host need not issue this work and gets ahead of the GPU."""
    program, issuing = facts.program, 0
    begins = facts.work["launch_start_ns"].fill_null(0).to_numpy()
    ends = facts.work["launch_end_ns"].fill_null(0).to_numpy()
    sorted_ends = np.sort(ends)
    for run in program.runs(pieces):
        begin = int(begins[run].min())
        if begin > 0:
            # Host time since the launch before the first of them belongs to them as well.
            before = sorted_ends[max(int(np.searchsorted(sorted_ends, begin)) - 1, 0)]
            issuing += int(ends[run].max()) - (min(int(before), begin) or begin)
    busy = facts.busy_ns - int(program.own_ns[pieces].sum())
    host = facts.unprofiled_share * (facts.host_needed_ns - min(issuing, facts.host_needed_ns))
    return min(max(1 - max(host - busy, 0.0) / max(facts.idle_ns - facts.added_ns, 1), 0.0), 1.0)


def weight(finding: Finding) -> float:
    """The number by which findings are ranked."""
    return finding.gain or 0.0


def predicted(facts: Facts, *changes: str) -> float:
    """The largest speed-up that a replay predicts for one of these changes; 1 if none was replayed."""
    return max((facts.predictions[change].speedup for change in changes if change in facts.predictions), default=1.0)


#: For windows that do not consist of steps.
STEPS_ONLY: Final = Remedy(
    "Record steps only",
    "schedule = torch.profiler.schedule(wait=5, warmup=2, active=3)  # and profiler.step() after each step\n"
    "nsys profile --capture-range=cudaProfilerApi python train.py  # torch.cuda.profiler.start() after warm-up\n"
    "# or a range around each step, torch.cuda.nvtx.range('step'), or --window for the profile at hand",
    "numbers of the steady workload, without its start-up",
    id="steps-only",
)

#: Begin of the text for a predicted change, which refers to the program as recorded, with the profiler.
REPLAYED: Final = "replayed with the profiler's overhead"


def modelled(facts: Facts, change: str) -> str:
    """Text with the gain and, if it was replayed, the predicted effect of a change on the window as recorded."""
    prediction = facts.predictions.get(change)
    if prediction is None:
        return GAIN
    unit = "per step" if facts.window.steps else "for the window"
    return (
        f"{GAIN}; {REPLAYED}: {prediction.measured_ns / _NS_PER_MS:.2f} → "
        f"{prediction.predicted_ns / _NS_PER_MS:.2f} ms {unit} ({times(prediction.speedup)})"
    )


def seen_idle(facts: Facts, claims: Claims, id_: str) -> dict[str, int | float | None]:
    """`SEEN_IDLE`: pauses that the profile shows with this cause, and separately those of the model."""
    seen = claims.seen_idle_ns(id_)
    return {
        "idle_ns": seen,
        "idle_share": seen / facts.wall_ns if facts.wall_ns else None,
        "launches_behind_ns": claims.idle_ns(id_) - seen or None,
    }
