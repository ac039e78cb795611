"""Rules for copies between host and GPU, and for allocations inside the steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Literal, TypeAlias

import numpy as np
import polars as pl

from warplens.analysis.api import IS_PAGEABLE
from warplens.analysis.frames import once
from warplens.analysis.hostpace import SMALL_COPY_BYTES
from warplens.analysis.intervals import Intervals, total, union
from warplens.analysis.prediction import Change
from warplens.diagnosis.claims import Claims
from warplens.diagnosis.facts import Facts, range_names
from warplens.diagnosis.findings import GAIN, USUAL, Finding, Remedy, Variant
from warplens.diagnosis.rule import (
    GPU_BUSY_SHARE,
    SEEN_IDLE,
    STEPS_ONLY,
    Limit,
    Rule,
    bringing,
    gain_of,
    modelled,
    predicted,
    remembered,
    seen_idle,
)
from warplens.diagnosis.structure import passes_of_step
from warplens.diagnosis.unprofiled import NOISE, Gain
from warplens.profile.schema import Bools, Float64s, Int64s

#: Copies over the link between host and GPU.
HOST_COPIES: Final = ("host-to-device", "device-to-host")


@once
def link_copies(facts: Facts, *, read_back: bool | None = None) -> Int64s:
    """Rows of copies over the link: read-backs of a few bytes, all others, or both (None)."""
    rows = np.flatnonzero(facts.program.having("label", *HOST_COPIES))
    if read_back is None:
        return rows
    small = (facts.work["bytes"].gather(rows) <= facts.thresholds.readback_bytes).fill_null(value=False)
    is_readback = facts.program.having("label", HOST_COPIES[1])[rows] & small.to_numpy() & ~fetched_sets(facts)[rows]
    return np.asarray(rows[is_readback if read_back else ~is_readback], dtype=np.int64)


@once
def fetched_sets(facts: Facts) -> Bools:
    """Copies to the host one after the other, small and large, as of all weights of a model for an average of them."""
    sizes = int(BlockingCopy.distinct_sizes)
    return _sets(facts, HOST_COPIES[1], copies=int(BlockingCopy.in_a_row), large=sizes, sizes=sizes)


@once
def sent_sets(facts: Facts) -> Bools:
    """Copies to the GPU one after the other, so many that they are the tensors of a network or of an adapter."""
    least = int(BlockingCopy.in_a_set)
    return _sets(facts, HOST_COPIES[0], copies=least, large=least, sizes=2)


def _sets(facts: Facts, direction: str, *, copies: int, large: int, sizes: int) -> Bools:
    """Copies in this direction in rows of at least so many, of which so many are large, of so many sizes."""
    program = facts.program
    inside, in_set = program.having("label", direction), np.zeros(facts.work.height, dtype=np.bool_)
    at = np.flatnonzero(inside)
    if len(at) < copies:
        return in_set
    is_large = np.zeros(facts.work.height, dtype=np.bool_)
    is_large[at] = (facts.work["bytes"].gather(at) > SMALL_COPY_BYTES).fill_null(value=False).to_numpy()
    for rows in program.runs(inside, (inside, copies), (is_large, large)):
        in_set[rows] = facts.work["bytes"].gather(rows[is_large[rows]]).n_unique() >= sizes
    return in_set


#: Largest growth of a cache from one token to the next, as a share of it; other sizes differ by chance.
_MOST_GROWTH_SHARE: Final = 0.1


@once
def copies_grow(facts: Facts) -> bool:
    """Whether large copies over the link grow by the same few bytes twice in a row, as an offloaded cache does."""
    rows = link_copies(facts)
    bytes_ = facts.work["bytes"].gather(rows).fill_null(0).to_numpy()
    sent = facts.program.having("label", HOST_COPIES[0])[rows]
    starts = facts.work["start_ns"].to_numpy()[rows]
    for direction in (sent, ~sent):
        chosen = np.flatnonzero(direction & (bytes_ > SMALL_COPY_BYTES))
        sizes = bytes_[chosen[np.argsort(starts[chosen], kind="stable")]]
        sizes = sizes[np.r_[True, np.diff(sizes) != 0]] if len(sizes) else sizes
        growth = np.diff(sizes)
        few = (growth > 0) & (growth <= _MOST_GROWTH_SHARE * sizes[:-1])
        if (few[1:] & (growth[1:] == growth[:-1])).any():
            return True
    return False


def _every_copy(facts: Facts) -> pl.DataFrame:
    """Times, bytes and `pageable` of all copies over the link, with those that kernels hide, which own no time."""
    if facts.is_part:
        return facts.work.select("start_ns", "end_ns", "bytes", "pageable")[link_copies(facts)]
    work = facts.timeline.work_in(facts.window)
    copies = facts.timeline.trace.copies[work["row"].filter(work["kind"] == "copy")]
    over_link = copies.filter(pl.col("direction").is_in(HOST_COPIES))
    return over_link.select("start_ns", "end_ns", "bytes", pageable=IS_PAGEABLE)


def _copied_bytes(facts: Facts) -> dict[str, float | None]:
    """Evidence: number, bytes and rate of all copies over the link."""
    every = _every_copy(facts)
    bytes_, copying_ns = int(every["bytes"].sum()), total(union(Intervals.of(every)))
    return {
        "copied_bytes_per_step": bytes_ / facts.steps,
        "copies_per_step": every.height / facts.steps,
        "bandwidth_bytes_per_s": bytes_ / copying_ns * _NS_PER_S if copying_ns else None,
        "pageable_share": int(every.filter("pageable")["bytes"].sum()) / bytes_ if bytes_ else None,
    }


def ones_at(facts: Facts, rows: Int64s) -> Float64s:
    """Shares of the pieces of work, shape (pieces,): all of these rows, none of the others."""
    share = np.zeros(facts.work.height)
    share[rows] = 1.0
    return share


#: The pattern of the copies: data that could stay on the GPU (a set of tensors that is fetched, data that come back, a
#: set that is sent, other data sent in the middle of a step), many small pieces, or inputs and results of the steps.
_Pattern: TypeAlias = Literal["fetched-set", "returning", "sent-set", "staying", "pieces", "passing"]
_Way: TypeAlias = Literal["sent", "fetched", "both"]


@dataclass(frozen=True)
class _Copies:
    """The copies of a window, as far as the remedies go by them."""

    pattern: _Pattern
    way: _Way  #: the direction that the remedies change
    pageable_share: float  #: of their bytes; 0 if unknown
    halved: float  #: gain of half of the bytes
    link_bound: bool = False  #: whether half of the bytes gain more than other ways to copy

    @property
    def stay(self) -> bool:
        """Whether the data could stay on the GPU."""
        return self.pattern not in ("pieces", "passing")

    @property
    def unpinned(self) -> bool:
        """Whether the copies are from or to pageable memory."""
        return self.pageable_share >= BlockingCopy.pageable_share


_NS_PER_S = 1e9
_PAGE_BYTES: Final = 4096


_LEFT_OUT: Final = (
    "Leave these copies out of a test run, with any data in their place: if the step takes as long as before, they "
    "were not the limit."
)


class BlockingCopy(Rule):
    """Copies over the link that no kernel hides, and pauses while one blocked the host."""

    id = "blocking-copy"
    model = "host"
    change = "async-copies"
    located = "copies"
    question = "Do copies between host and GPU run while nothing computes?"
    limiter = "copies between host and GPU delay the work"
    cause = "copies between host and GPU"
    raised_when = "it costs 2 %"
    claimed = "time in which only such a copy ran; pauses while one blocked the host"
    headline = "Limited by copies between host and GPU: for {share} of the time nothing computes because of them"
    title = "Copies between host and GPU run while nothing computes"
    evidence: ClassVar = {
        "exposed_copy_ns": "exposed copies",
        "host_held_idle_ns": "pauses while a copy blocked the host, and between copies of pieces or of a set",
        "claimed_share": "all claimed time, of the window",
        "copied_bytes_per_step": "copies between host and GPU",
        "copies_per_step": "number of copies, with those that kernels hide",
        "bandwidth_bytes_per_s": "their bytes over the time in which one of them ran",
        "pageable_share": "the share of the bytes from or to pageable memory",
    }
    refutation = (
        "Keep one batch on the GPU and use it in every step: if the step takes as long as before, the copies were "
        "not the limit."
    )
    precedence = "certain"

    kept_share = Limit(0.1, "Pinned copies still take time, and nothing hides the first of them.")
    pageable_share = Limit(0.05, "A few bytes from pageable memory, such as a loss, do not make the copies pageable.")
    clearly = Limit(
        2.0, "Pinned memory is one argument; a separate stream is worth the effort only if it gains twice as much."
    )
    least_inside = Limit(
        4, "Copies of a step after its first matrix product: an input has a few parts, each layer has its own weights."
    )
    inside_share = Limit(0.5, "Of the bytes sent to the GPU: below this share, most are the step's input.")
    distinct_sizes = Limit(4, "Inputs and results of a step have few sizes, the weights of a network many.")
    round_share = Limit(0.9, "Of the bytes sent: the inputs of the step are sent beside what goes round.")
    page_ns = Limit(
        300, "A page of memory is freed in 210 ns (352 MB in 18 ms); a thread needs longer to read its contents."
    )
    fewer_bytes = Limit(0.5, "Float32 sent as bfloat16 is half of the bytes, images as uint8 a quarter.")
    in_a_row = Limit(16, "A batch has a few parts; so many copies in a row are sent by a loop.")
    in_a_set = Limit(64, "An input of so many tensors is one of small columns.")
    piece_bytes = Limit(
        1 << 18, "From pageable memory at 10 GB/s, so many bytes take 26 µs, as long as the call itself."
    )

    variants: ClassVar[Mapping[_Pattern, Variant]] = {
        "fetched-set": Variant(
            "The tensors of a set, such as all weights, are copied to the host, and delay the work",
            refutation=_LEFT_OUT,
        ),
        "returning": Variant(
            "Data that could stay on the GPU are copied to the host and back, which delays the work",
            refutation=_LEFT_OUT,
        ),
        "sent-set": Variant(
            "The tensors of a set, such as weights or adapters, are sent to the GPU, and delay the work",
            refutation=_LEFT_OUT,
        ),
        "staying": Variant(
            "Data that could stay on the GPU are sent to it in the middle of a step, and delay the work",
            refutation=_LEFT_OUT,
        ),
        "pieces": Variant("Many small pieces are sent to the GPU one by one, and each waits for the last"),
    }
    fetched: ClassVar = Variant("Copies to pageable memory delay the work", refutation=_LEFT_OUT)

    def makes_launches(self, finding: Finding) -> bool:
        """True for many copies one after the other, each of which the host issues and waits for."""
        return finding.variant in (self.variants["sent-set"], self.variants["fetched-set"], self.variants["pieces"])

    @remembered
    def _pieces(self, facts: Facts) -> Float64s:
        """Share of each small copy to the GPU that goes away if a long row of such copies becomes one copy."""
        work, program = facts.work, facts.program
        at = np.flatnonzero(program.having("label", HOST_COPIES[0]))
        copies = work.select("bytes", "pageable")[at]
        small = copies.select((pl.col("bytes") <= self.piece_bytes) & pl.col("pageable")).to_series()
        at = at[small.fill_null(value=False).to_numpy()]
        if len(at) < self.in_a_row:
            return facts.no_share
        sent, share = np.zeros(work.height, dtype=np.bool_), np.zeros(work.height)
        sent[at] = True
        for rows in program.runs(sent, (sent, int(self.in_a_row))):
            share[rows] = 1 - 1 / len(rows)
        return share

    def claim_gaps(self, facts: Facts) -> Float64s | None:
        """The pauses between pieces that are sent one by one, and between the tensors of a set."""
        pieces, in_set = self._pieces(facts), fetched_sets(facts) | sent_sets(facts)
        if in_set.any():
            pieces = np.maximum(pieces, self._staying(facts) * in_set)
        return facts.program.of_gaps(pieces) if pieces.any() else None

    def claim(self, facts: Facts) -> Float64s | None:
        """All other copies over the link."""
        return ones_at(facts, link_copies(facts, read_back=False))

    def find(self, facts: Facts, claims: Claims) -> Finding | None:
        """The finding, if the window has it."""
        claimed = claims.total_ns(self.id)
        if not claimed:
            return None
        staying, pieces = self._staying(facts), self._pieces(facts)
        at_once = None
        if pieces.any() and not staying.any():
            at_once = facts.replayed("no-synchronization", calls=pieces)
        replayed = at_once or self._replayed(facts, staying)
        if replayed is None and not _computes(facts):
            replayed = Gain.exactly(1.0)  # nothing hides pinned copies
        copies = self._copies(facts, claims, "passing" if at_once is None else "pieces")
        if copies.pattern == "passing" and replayed is not None:
            copies = replace(copies, link_bound=copies.halved > 1 + (replayed.high - 1) * NOISE)
            if copies.link_bound:
                replayed = replace(replayed, expected=copies.halved, high=max(copies.halved, replayed.high))
        # Pageable memory is a certain fault; a pinned copy that nothing hides may be the program's first input.
        return self.raised(
            facts,
            claimed,
            variant=self._variant(copies),
            confidence="high" if copies.unpinned and facts.sure else "medium",
            evidence={
                "exposed_copy_ns": claims.busy_ns(self.id),
                "host_held_idle_ns": claims.idle_ns(self.id),
                "claimed_share": claimed / facts.wall_ns,
                **_copied_bytes(facts),
            },
            where=range_names(facts, facts.work["range"], claims.of_work(self.id))
            or range_names(facts, facts.gaps["range"], claims.pauses(self.id)),
            remedies=self._remedies(facts, copies),
            on_gpu=True,
            residual_share=0.0 if copies.stay else self.kept_share,
            replayed=replayed,
            busy_ns=claims.busy_ns(self.id),
            at_least=predicted(facts, "async-copies", "overlapped-copies"),
            bound_ns=facts.own_idle_ns + claims.busy_ns(self.id),
        )

    def _copies(self, facts: Facts, claims: Claims, otherwise: _Pattern) -> _Copies:
        """The copies of the window; `otherwise` is their pattern if none could stay on the GPU."""
        bytes_ = facts.work.select("bytes", "pageable")[link_copies(facts)]
        moved = int(bytes_["bytes"].sum())
        pageable_share = int(bytes_.filter("pageable")["bytes"].sum()) / moved if moved else 0.0
        staying = self._staying(facts)
        if staying.any():
            pattern = self._pattern_of_staying(facts, staying)
            return _Copies(pattern, "fetched" if pattern == "fetched-set" else "sent", pageable_share, halved=1.0)
        way: _Way = "both"
        if (direction := self._direction(facts)) is not None:
            way = "fetched" if direction == HOST_COPIES[1] else "sent"
        halved = gain_of(facts, int(claims.busy_ns(self.id) * self.fewer_bytes), on_gpu=True)
        return _Copies(otherwise, way, pageable_share, halved)

    def _pattern_of_staying(self, facts: Facts, staying: Float64s) -> _Pattern:
        """The pattern of these copies of data that could stay on the GPU."""
        if not staying[facts.program.having("label", HOST_COPIES[0])].any():
            return "fetched-set"
        if self._comes_back(facts, staying):
            return "returning"
        return "sent-set" if sent_sets(facts)[staying > 0].all() else "staying"

    def _variant(self, copies: _Copies) -> Variant:
        """The variant for these copies."""
        if copies.pattern in self.variants:
            return self.variants[copies.pattern]
        if not copies.unpinned:
            return USUAL
        return self.fetched if copies.way == "fetched" else Variant("Copies from pageable memory delay the work")

    def _remedies(self, facts: Facts, copies: _Copies) -> tuple[Remedy | None, ...]:
        """The remedies for these copies, in order.

        The gain of the finding is that of the first remedy for inputs and results: pinned memory or a stream of their
        own, or fewer bytes if the link is the limit. All others have gains of their own.
        """
        overlaps = self._overlaps(facts)
        is_first = copies.pattern == "passing" and not copies.link_bound
        pinned = _pinned(facts, fetched=copies.way == "fetched", from_pageable=copies.pageable_share > 0)
        if overlaps or not is_first:
            pinned = bringing(pinned, self._copied(facts, "async-copies"))
        ahead = _overlapped(facts, copies) if _computes(facts) else None
        if ahead is not None and not (overlaps and is_first):
            ahead = bringing(ahead, self._copied(facts, "overlapped-copies"))
        if copies.pattern == "fetched-set":
            return _OF_SET, pinned
        if copies.stay:
            return _RETURNING if copies.pattern == "returning" else _STAYING, ahead
        less = _less(copies)
        return (
            _ALL_PIECES if copies.pattern == "pieces" else None,
            less if copies.link_bound else None,
            *((ahead, pinned) if overlaps else (pinned, ahead)),
            *self._once(facts),
            None if copies.link_bound else less,
            self._other_way(facts, copies),
        )

    def _other_way(self, facts: Facts, copies: _Copies) -> Remedy | None:
        """The remedy for large copies in the direction that the others do not name, with its replayed gain."""
        if copies.way == "both" or not _both_ways(facts) or not _computes(facts):
            return None
        fetched = copies.way == "fetched"
        gain = facts.replayed("overlapped-copies", direction=HOST_COPIES[not fetched])
        if gain is None or gain.expected < facts.thresholds.raise_ceiling:
            return None
        remedy = _ahead(facts, stays=False, unpinned=copies.unpinned) if fetched else _behind(facts)
        return bringing(remedy, gain)

    def _once(self, facts: Facts) -> Iterator[Remedy]:
        """The remedy for data that may be the same in every step, as their sizes are, with its replayed gain.

        What the host does before it sends them stays: the profile does not show that it is for them.
        """
        rows, bytes_, sent, large = self._over_link(facts)
        sent = sent & large
        sizes, of = bytes_[sent], facts.program.step[rows[sent]].astype(np.int64)
        if facts.steps < 2 or not len(sizes):
            return
        steps, counts = np.unique(of, return_counts=True)
        if len(steps) != facts.steps or (counts != counts[0]).any():
            return
        of_steps = sizes[np.lexsort((sizes, of))].reshape(len(steps), -1)
        if (of_steps != of_steps[0]).any():
            return
        share = ones_at(facts, rows[sent])
        without = facts.replayed("async-copies", time=share, calls=share, stalls=0.0, direction=HOST_COPIES[0])
        yield bringing(_ONCE, without, self.model)

    def _over_link(self, facts: Facts) -> tuple[Int64s, Int64s, Bools, Bools]:
        """Rows and bytes of the copies over the link, which of them go to the GPU, and which are large."""
        rows = link_copies(facts)
        bytes_ = facts.work["bytes"].gather(rows).fill_null(0).to_numpy()
        sent = facts.program.having("label", HOST_COPIES[0])[rows]
        return rows, bytes_, sent, bytes_ > SMALL_COPY_BYTES

    @remembered
    def _staying(self, facts: Facts) -> Float64s:
        """1 for copies after the first product of a step, which are no input: weights, constants, activations.

        Data that were copied to the host in the same step and come back count as well, in both directions. If nearly
        all data of many sizes do so, they count wherever in the step they are copied. Else sets of tensors count, if
        those that are fetched (`fetched_sets`) or sent (`sent_sets`) are most of the bytes.
        """
        of_set = facts.no_share
        if not facts.window.steps:
            return of_set
        work, program = facts.work, facts.program
        rows, bytes_, sent, large = self._over_link(facts)
        for in_set in (fetched_sets(facts)[rows], sent_sets(facts)[rows]):
            if in_set.any() and bytes_[in_set].sum() >= self.inside_share * bytes_.sum():
                of_set = ones_at(facts, rows[in_set])
        if (sent & large).sum() < self.least_inside * facts.steps:
            return of_set
        if self._goes_round(program.step[rows].astype(np.int64), bytes_, sent & large, ~sent & large):
            return ones_at(facts, rows[large])
        firsts = np.full(int(program.step.max(initial=0)) + 1, np.iinfo(np.int64).max)
        starts, products = work["start_ns"].to_numpy(), program.products
        np.minimum.at(firsts, program.step[products], starts[products])
        inside = sent & large & (starts[rows] > firsts[program.step[rows]])
        if inside.sum() < self.least_inside * facts.steps:
            return of_set
        fetched = ~sent & large
        there_and_back = bytes_[fetched].sum() >= self.inside_share * bytes_[inside].sum()
        # The next batch is sent in the middle of a step as well, in one go.
        if not there_and_back and not self._between_layers(facts, rows[inside]):
            return of_set
        if bytes_[inside].sum() < self.inside_share * bytes_[sent].sum():
            return of_set
        # Equal parts of a step that each begin with a copy may be layers, or passes over inputs.
        if passes_of_step(facts).count > 1 and (sent & large & ~inside).any():
            return of_set
        return ones_at(facts, rows[inside | (fetched & there_and_back)])

    def _goes_round(self, steps: Int64s, bytes_: Int64s, sent: Bools, fetched: Bools) -> bool:
        """Whether tensors of many sizes are sent and fetched in the same steps: the weights of a model, for example."""
        keys = np.column_stack((steps, bytes_))
        sizes, found = np.unique(keys[sent | fetched], axis=0, return_inverse=True)
        of_sent, of_fetched = (
            np.bincount(found.ravel()[which[sent | fetched]], minlength=len(sizes)) for which in (sent, fetched)
        )
        both = np.minimum(of_sent, of_fetched)
        distinct = len(np.unique(sizes[both > 0, 1]))
        return bool(distinct >= self.distinct_sizes and both @ sizes[:, 1] >= self.round_share * bytes_[sent].sum())

    def _comes_back(self, facts: Facts, staying: Float64s) -> bool:
        """Whether most of these bytes that are sent were fetched in copies of the same sizes."""
        rows, bytes_, sent, _ = self._over_link(facts)
        chosen = staying[rows] > 0
        sizes, found = np.unique(bytes_[chosen], return_inverse=True)
        of_sent, of_fetched = (np.bincount(found[which[chosen]], minlength=len(sizes)) for which in (sent, ~sent))
        return bool(np.minimum(of_sent, of_fetched) @ sizes >= self.inside_share * (of_sent @ sizes))

    def _between_layers(self, facts: Facts, sent: Int64s) -> bool:
        """Whether several of these copies of a step have products between them."""
        starts, products = facts.work["start_ns"].to_numpy(), facts.program.products
        before = np.searchsorted(np.sort(starts[products]), starts[sent])
        return len(np.unique(before)) >= self.least_inside * facts.steps

    def _replayed(self, facts: Facts, staying: Float64s) -> Gain | None:
        """Gain of the first remedy: without avoidable copies, with overlapped copies, or with pinned memory.

        Without avoidable copies, the host's work for them goes as well, such as allocating and freeing memory.
        """
        pinned, overlapped = self._copied(facts, "async-copies"), self._copied(facts, "overlapped-copies")
        gains = [gain for gain in (pinned, overlapped) if gain is not None]
        without = None
        if staying.any():
            without = facts.replayed("async-copies", "no-host-stall", time=staying, calls=staying)
            gains += [without] if without is not None else []
        if not gains:
            return None
        best = without or (overlapped if self._overlaps(facts) else None) or gains[0]
        return replace(best, low=gains[0].low, high=max(gain.high for gain in gains))

    def _copied(self, facts: Facts, change: Change) -> Gain | None:
        """Gain of copies made in this way; pinned memory is kept, so pauses for freeing memory go as well.

        None for copies beside compute, if there is none. Copies of inputs and of results are made differently, so only
        those in one direction are changed.
        """
        if change == "overlapped-copies" and not _computes(facts):
            return None
        freeing: tuple[Change, ...] = ("no-host-stall",) if self._frees_memory(facts) else ()
        direction = None if self._staying(facts).any() else self._direction(facts)
        return facts.replayed(change, *freeing, direction=direction)

    @remembered
    def _direction(self, facts: Facts) -> str | None:
        """The direction whose copies gain most on a stream of their own; else the one with most bytes.

        None for both, if both gain and all of them are pinned already: then streams are the remedy for both.
        """
        if _both_ways(facts):
            gains = [facts.replayed("overlapped-copies", direction=direction) for direction in HOST_COPIES]
            told = [1.0 if gain is None else gain.expected for gain in gains]
            if max(told) - 1 > self.clearly * (min(told) - 1):
                return HOST_COPIES[int(np.argmax(told))]
            if min(told) >= facts.thresholds.raise_ceiling and facts.replayed("async-copies") is None:
                return None
        _, bytes_, sent, _ = self._over_link(facts)
        return HOST_COPIES[int(2 * int(bytes_[~sent].sum()) > int(bytes_.sum()))]

    def _frees_memory(self, facts: Facts) -> bool:
        """Whether the host spends most of its long pauses freeing the memory that an earlier copy wrote to.

        Such pauses come right after the next copy, and are shorter than reading its bytes once.
        """
        fetched = facts.copies.filter(pl.col("pageable") & (pl.col("label") == HOST_COPIES[1])).sort("end_ns")
        host = facts.causes["host"]
        if not fetched.height or not host:
            return False
        spent, begins = host.ns, facts.gaps["start_ns"].to_numpy()[host.at]
        ends = fetched["end_ns"].to_numpy()
        copy = np.minimum(np.searchsorted(ends, begins), len(ends) - 1)
        pages = np.where(ends[copy] == begins, fetched["bytes"].to_numpy()[copy] / _PAGE_BYTES, 0.0)
        return bool(2 * spent[spent <= self.page_ns * pages].sum() > spent.sum())

    def _overlaps(self, facts: Facts) -> bool:
        """Whether copies on a separate stream gain clearly more than pinned ones."""
        if not _computes(facts):
            return False
        if _both_ways(facts):
            pinned, overlapped = self._copied(facts, "async-copies"), self._copied(facts, "overlapped-copies")
            pinned_gain = 1.0 if pinned is None else pinned.expected
            return overlapped is not None and overlapped.expected - 1 > self.clearly * (pinned_gain - 1)
        return predicted(facts, "overlapped-copies") - 1 > self.clearly * (predicted(facts, "async-copies") - 1)


#: For loops that send in pieces what one copy could send.
_ALL_PIECES: Final = Remedy(
    "Send all pieces in one copy",
    "batch = torch.stack(columns).to('cuda')  # put together on the host first; views of it are the pieces\n"
    "# or fill one pinned buffer, and copy it with non_blocking=True",
    f"{GAIN}: the call and the wait of one piece instead of all",
)

#: For copies of the same sizes in every step.
_ONCE: Final = Remedy(
    "If every step sends the same data, keep them on the GPU",
    "x = x.to('cuda')  # once, before the loop: a whole graph or table, or a data set that fits into the GPU's memory\n"
    "batch = x[index]  # its batches are picked there, by an index on the GPU: torch.randperm(n, device='cuda')",
    f"{GAIN}: these copies are not made",
)

#: For data sent to the GPU that are no input of the step.
_STAYING: Final = Remedy(
    "Keep on the GPU what is used in every step",
    "self.register_buffer('bias', bias)  # constants and tables; then model.to('cuda')\n"
    "# where memory allows: no offloading of layers (cpu_offload, device_map), no save_on_cpu()",
    f"{GAIN}: these copies are not made",
    id="kept-inputs",
)

#: For data that are copied to the host and come back.
_RETURNING: Final = Remedy(
    "Keep on the GPU what comes back to it",
    "# where memory allows, no offloading: of models and layers (cpu_offload, device_map, model.to('cpu')),\n"
    "# of activations (save_on_cpu()), of keys and values (transformers: no cache_implementation='offloaded';\n"
    "# DynamicCache(config=model.config, offloading=False) is the default)",
    f"{GAIN}: these copies are not made",
    id="kept-round-trips",
)


#: For the tensors of a set that are copied to the host in each step.
_OF_SET: Final = Remedy(
    "Keep these tensors on the GPU, or copy them less often",
    "# averages of weights (EMA), norms and statistics are worked out on the GPU: timm's ModelEmaV3(model)\n"
    "# save weights every thousand steps, not in each; gradients and moments of the optimizer stay on the GPU",
    f"{GAIN}: these copies are not made",
)

#: How results take fewer bytes.
_FEWER_RESULTS: Final = (
    "# classes instead of scores (scores.argmax(-1)), 8 or 16 bits instead of 32, only what is read there\n"
    "# metrics and averages are worked out on the GPU"
)


def _less(copies: _Copies) -> Remedy:
    """The remedy to copy fewer bytes; it has a gain of its own unless the link is the limit."""
    fetched = copies.way == "fetched"
    less = Remedy(
        "Copy less",
        _FEWER_RESULTS if fetched else "# send uint8 images or token ids and convert on the GPU; keep results there",
        f"{GAIN}; with half of the bytes, and in proportion to them",
        id="fewer-copies",
    )
    if copies.link_bound:
        return less
    # Far less than was fetched may be needed: a class for each pixel is a hundredth of its scores.
    known = copies.halved > 1 and not fetched
    return bringing(less, Gain.exactly(copies.halved) if known else None, "traffic")


@once
def _computes(facts: Facts) -> bool:
    """Whether there is work that can hide copies."""
    return bool((~facts.work["kind"].is_in(["copy", "memset"])).any())


@once
def _both_ways(facts: Facts) -> bool:
    """Whether large copies run in both directions, so that a change of one is not the prediction for both."""
    large = facts.copies.filter(pl.col("bytes") > SMALL_COPY_BYTES)
    return set(HOST_COPIES) <= set(large["label"])


def _predicted_text(facts: Facts, change: Change) -> str:
    """As `modelled`, without the predicted effect if that is of copies in both directions."""
    return GAIN if _both_ways(facts) else modelled(facts, change)


def _pinned(facts: Facts, *, fetched: bool, from_pageable: bool) -> Remedy:
    """The remedy not to block the host, for what is sent to the GPU, or for results that are fetched from it."""
    if fetched:
        title, id_ = "Copy to pinned memory, without blocking", "pinned-results"
        how = (
            "kept = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)  # once, before the loop\n"
            "event = torch.cuda.Event()\n"
            "kept.copy_(x, non_blocking=True); event.record()\n"
            "# read `kept` after event.synchronize(), when the next batch has been launched"
        )
    else:
        how = "x = x.to('cuda', non_blocking=True)"
        title, id_ = "Copy without blocking", "async-copies"
        if from_pageable:
            how = f"loader = DataLoader(dataset, pin_memory=True)  # or x = x.pin_memory()\n{how}"
            title, id_ = "Copy from pinned memory, without blocking", "pinned-input"
    return Remedy(title, how, _predicted_text(facts, "async-copies"), id=id_)


def _behind(facts: Facts) -> Remedy:
    """The remedy to fetch results on a stream of its own."""
    return Remedy(
        "Copy these results while the next batch is computed",
        "side.wait_stream(torch.cuda.current_stream())  # side = torch.cuda.Stream(), once\n"
        "with torch.cuda.stream(side): kept.copy_(x, non_blocking=True)  # into pinned memory\n"
        "x.record_stream(side); done = side.record_event()\n"
        "# read `kept` after done.synchronize(), before the next copy into it: two buffers in turn",
        _predicted_text(facts, "overlapped-copies"),
        id="overlapped-results",
    )


def _both_directions(facts: Facts) -> Remedy:
    """The remedy to send inputs and to fetch results on streams of their own."""
    return Remedy(
        "Copy in both directions while the GPU computes",
        "current = torch.cuda.current_stream()  # sending, fetching = torch.cuda.Stream(), torch.cuda.Stream(), once\n"
        "with torch.cuda.stream(sending): next_x = x.to('cuda', non_blocking=True)  # from pinned memory\n"
        "current.wait_stream(sending)  # before use\n"
        "fetching.wait_stream(current)\n"
        "with torch.cuda.stream(fetching): kept.copy_(y, non_blocking=True)  # into pinned memory\n"
        "next_x.record_stream(current); y.record_stream(fetching)\n"
        "# two or three buffers of each in turn: one step's input, another's work and a third's results at a time",
        modelled(facts, "overlapped-copies"),
        id="overlapped-both-ways",
    )


def _overlapped(facts: Facts, copies: _Copies) -> Remedy:
    """The remedy to copy on a stream of its own, in the direction that the remedies change."""
    if copies.way == "both":
        return _both_directions(facts)
    return _behind(facts) if copies.way == "fetched" else _ahead(facts, stays=copies.stay, unpinned=copies.unpinned)


def _ahead(facts: Facts, *, stays: bool, unpinned: bool) -> Remedy:
    """The remedy to copy on a stream of its own: the next input, or data that the step uses again.

    A copy from pageable memory holds the host up, so that such memory has to be pinned first.
    """
    what = "data" if stays else "x"
    pin = (
        "data = data.pin_memory()  # once, before the loop\n"
        if stays
        else "loader = DataLoader(dataset, pin_memory=True)\n"
    )
    return Remedy(
        "Copy ahead what memory has no room for" if stays else "Copy the next batch while this one is computed",
        (pin if unpinned else "")
        + "side = torch.cuda.Stream()  # once\n"
        + f"with torch.cuda.stream(side): next_{what} = {what}.to('cuda', non_blocking=True)\n"
        + "torch.cuda.current_stream().wait_stream(side)  # before use\n"
        + f"next_{what}.record_stream(torch.cuda.current_stream())",
        _predicted_text(facts, "overlapped-copies"),
        id="data-ahead" if stays else "input-ahead",
    )


class AllocatorChurn(Rule):
    """Idle time while the host was inside cudaMalloc, cudaFree and similar calls, which occur in every step."""

    id = "allocator-churn"
    model = "host"
    change = "cached-allocation"
    located = "allocations"
    question = "Is device memory allocated and freed inside the steps?"
    limiter = "memory is allocated and freed inside the steps"
    cause = "cudaMalloc, cudaFree and similar calls inside the steps"
    raised_when = "there is one per step, and it costs 2 %"
    claimed = "idle time while the host was inside one"
    headline = "Limited by memory allocation: for {share} of the time the GPU waits for cudaMalloc or cudaFree"
    title = "Memory is allocated and freed inside the steps, and the GPU waits for it"
    once: ClassVar = Variant("The GPU waits while memory is allocated and freed, which may belong to the start-up")
    evidence: ClassVar = {
        **SEEN_IDLE,
        "allocation_calls_per_step": "calls that allocate or free memory",
        "allocation_call_ns_per_step": "their time",
        **GPU_BUSY_SHARE,
    }
    refutation = (
        "Count cudaMalloc and cudaFree per step after the change (warplens api): if none is left and the step "
        "takes as long, something else delayed the GPU."
    )
    thresholds = ("allocations_per_step",)

    def makes_launches(self, finding: Finding) -> bool:
        """True: no graph captures an allocation, and most allocations wait for the GPU."""
        return True

    def find(self, facts: Facts, claims: Claims) -> Finding | None:
        """The finding, if the window has it."""
        calls = facts.host.allocations / facts.process_steps
        if calls < facts.thresholds.allocations_per_step:
            return None
        claimed = claims.idle_ns(self.id)
        is_whole, pooled = facts.phase is None, modelled(facts, "cached-allocation")
        return self.raised(
            facts,
            claimed,
            variant=USUAL if facts.sure else self.once,
            confidence="high" if facts.sure else "low",
            evidence={
                **seen_idle(facts, claims, self.id),
                "allocation_calls_per_step": calls if is_whole else None,
                "allocation_call_ns_per_step": facts.host.allocation_ns / facts.process_steps if is_whole else None,
            },
            where=range_names(facts, facts.gaps["range"], claims.pauses(self.id)),
            remedies=(
                None if facts.sure else STEPS_ONLY,
                Remedy(
                    "Let the caching allocator keep its memory",
                    "# remove torch.cuda.empty_cache() from the loop, unset PYTORCH_NO_CUDA_MEMORY_CACHING\n"
                    "# outside of PyTorch: cudaMallocAsync, with the release threshold of its pool raised",
                    pooled,
                    id="cached-memory",
                ),
                Remedy(
                    "Keep the allocator from running out of memory and retrying",
                    "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True  # 2.9 renames it, but reads both\n"
                    "# or a smaller batch: an allocator at its limit frees its cache and synchronises\n"
                    "# (torch.cuda.memory_stats()['num_alloc_retries'])",
                    pooled,
                    id="no-retries",
                ),
                Remedy(
                    "Reuse buffers",
                    "# allocate outputs once and pass them on (out=, copy_); pad inputs to few distinct shapes",
                    pooled,
                    id="reused-buffers",
                ),
            ),
            issuing_ns=claims.issuing_ns.get(self.id, 0),
            replayed=facts.replayed("cached-allocation") if claimed else None,
            at_least=predicted(facts, "cached-allocation"),
            bound_ns=facts.own_idle_ns,
        )
