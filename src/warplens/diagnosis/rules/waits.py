"""Rule for a host that waits for the GPU: loops that read values back, checks of tensors, waits within the step."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import ClassVar, Final

import numpy as np

from warplens.analysis.hostpace import SMALL_COPY_BYTES
from warplens.diagnosis.claims import Claims
from warplens.diagnosis.facts import Facts, range_names
from warplens.diagnosis.findings import GAIN, USUAL, Finding, Remedy, Variant
from warplens.diagnosis.rule import (
    GPU_BUSY_SHARE,
    SEEN_IDLE,
    Limit,
    Rule,
    bringing,
    first_of,
    modelled,
    predicted,
    remembered,
    seen_idle,
)
from warplens.diagnosis.rules.copies import fetched_sets, link_copies, ones_at
from warplens.diagnosis.structure import backward_work, loops_of
from warplens.diagnosis.unprofiled import Gain
from warplens.profile.schema import Bools, Float64s, Int64s

_SMALL_COPIES: Final = f"{SMALL_COPY_BYTES // 1024} KiB"

#: For loops that read back item by item.
_AT_ONCE: Final = Remedy(
    "Process all items at once",
    "losses = torch.stack(values).tolist()  # once, after the loop\n"
    "# weights or torch.where over the whole batch instead of x[i][mask[i]] for each i\n"
    "# torch._foreach_norm for norms of many tensors, repeat_interleave for items of different lengths\n"
    "# if a turn needs the result of the last: one kernel for the loop, such as torchvision.ops.nms for boxes",
    id="all-items-at-once",
)


#: For programs that check each gradient.
_NO_CHECKS: Final = Remedy(
    "Turn the detection of anomalies off",
    "torch.autograd.set_detect_anomaly(False)  # Lightning: Trainer(detect_anomaly=False)\n"
    "# turn it on only for the few steps in which you look for a NaN\n"
    "# checks of your own: test the loss, or torch.nn.utils.get_total_norm of all gradients, once per step",
)

#: The headline of loops that read back item by item: their work counts as well as the waiting.
_OF_LOOPS: Final = (
    "Limited by synchronization: {share} of the time goes into loops that read a value back for every item, "
    "and into refilling the GPU's queue"
)
#: The refutation of such loops. Without their waits alone, they would still issue all items.
_WITHOUT_LOOP: Final = (
    "Run the loop for one item only, or leave it out of a test run: if the step takes as long as before, the loop was "
    "not the limit."
)


class HostSync(Rule):
    """Pauses that began while the host waited for the GPU, until it had issued the next work.

    One wait at the end of a step is normal: its cost is reported, but only as information.
    """

    id = "host-sync"
    model = "host"
    change = "no-synchronization"
    located = "waits"
    question = "Does the host wait until the GPU's queue is empty and then have to refill it?"
    limiter = "the host waits until the GPU's queue is empty, then has to refill it"
    cause = (
        "synchronization: the host lets the GPU run dry (`.item()`, `cudaStreamSynchronize`, a copy of a few bytes "
        "to the host), then refills its queue"
    )
    raised_when = "it costs 2 %. Informational with 1.5 waits or fewer per step, if ranges mark the steps"
    claimed = (
        f"idle time from a wait to the next work; read-backs of up to {_SMALL_COPIES}, and loops around them without "
        "matrix products and graphs traced as a whole, with their backward pass; the part of the launch pauses that a "
        "host without these waits would hide"
    )
    headline = "Limited by synchronization: {share} of the time goes into draining the GPU's queue and refilling it"
    title = "The host waits until the GPU's queue is empty and then has to refill it"
    evidence: ClassVar = {
        **SEEN_IDLE,
        "readback_ns": "exposed time of those copies",
        "looped_kernels_per_step": "kernels of loops that read a value back for every item, and of their backward pass",
        "looped_copies_per_step": "copies and fills of these loops, with the read-backs",
        **GPU_BUSY_SHARE,
        "waits_per_step": "calls that block the host until the GPU is done, but for copies of a set of tensors",
        "readbacks_per_step": f"copies of up to {_SMALL_COPIES} to the host, but for those of a set of tensors",
        "idle_ns_per_wait": "that idle time, per wait",
        "host_waiting_share": "share of the window in which the host waited for a busy GPU",
    }
    refutation = (
        "Remove the waits (or keep the values on the GPU): if the step takes as long as before, the host's launch "
        "rate was the limit, and this is launch-overhead."
    )
    thresholds = ("normal_waits_per_step", "launches_behind_wait", "readback_bytes")
    precedence = "certain"

    crowded: ClassVar = Variant("The host waits for the GPU after every few launches, and never gets ahead of it")
    checked: ClassVar = Variant(
        "The host reads back whether each tensor holds a NaN, as anomaly detection does",
        _OF_LOOPS,
        "Leave these checks out of a test run: if the step takes as long as before, they were not the limit.",
    )
    looped: ClassVar = Variant(
        "A loop reads a value back for every item, and the GPU runs dry each time", _OF_LOOPS, _WITHOUT_LOOP
    )
    issued: ClassVar = Variant(
        "A loop issues work and reads a value back for every item, and the GPU waits for the next launch",
        "Limited by loops that issue work item by item, and read a value back for each: {share} of the time goes into "
        "them, and into refilling the GPU's queue",
        _WITHOUT_LOOP,
    )
    faster_percent = Limit(25, "A quarter of the launches belongs to operators that record no traceback.")
    in_a_row = Limit(8, "Fewer read-backs in close succession are not a loop.")
    restart_ns = Limit(5_000, "From a launching call to the start of its kernel on an idle GPU: 4 to 6 µs on servers.")
    turns_of_kind = Limit(
        3,
        "Of one turn each, or two, eight read-backs are different questions. Loops of 30 programs had six or more.",
    )
    between = Limit(16, "Launches for one item of such a loop; layers of a network have products in between.")
    longest_turn = Limit(64, "The same if turns are alike, and each selects by a mask: 19 launches to compare boxes.")
    backward_apart = Limit(0.2, "A loop of the backward pass has about as many turns as the loop with the read-backs.")

    def makes_launches(self, finding: Finding) -> bool:
        """True: a host that waits cannot run ahead."""
        return True

    def delays(self, facts: Facts) -> bool:
        """False if all waits but those at the ends of steps are for sets of tensors, which `blocking-copy` tells."""
        waits, _ = self._own_counts(facts)
        return waits == facts.host.waits or waits > facts.normal_waits

    def claim(self, facts: Facts) -> Float64s | None:
        """Copies of a few bytes to the host, and the work that a loop around them runs for each item."""
        share = self._loops(facts).copy()
        share[link_copies(facts, read_back=True)] = 1.0
        return share

    def claim_gaps(self, facts: Facts) -> Float64s | None:
        """Pauses in loops that read a value back for each item: with one read-back, nothing is issued item by item.

        Even short work of the host on the values that it read would stay; it belongs to `host-stall`.
        """
        loops = self._loops(facts)
        if not loops.any():
            return None
        not_stalled = 1 - np.minimum(facts.causes["host"].whole() / np.maximum(facts.pause_lengths, 1), 1.0)
        return np.asarray(facts.program.of_gaps(loops) * not_stalled, dtype=np.float64)

    @remembered
    def _checks(self, facts: Facts) -> Bools:
        """Tests of whole tensors whose result the host reads, if they are most read-backs and many per step.

        Autograd's anomaly detection looks for NaN in each gradient this way. It also records a traceback for each
        operator of the forward pass, which no call shows.
        """
        program, order = facts.program, facts.program.order
        checks = np.zeros(facts.work.height, dtype=np.bool_)
        tests, compares = (program.marked(mark) for mark in ("any-of", "of-itself"))
        if not tests.any() or not compares.any():
            return checks
        reads = self._reads(facts)
        kernels = np.flatnonzero(program.is_kernel[order])

        def kernel_before(places: Int64s) -> Int64s:
            """The kernel before each piece; fills that a reduction needs may lie between them."""
            before: Int64s = np.r_[0, kernels][np.searchsorted(kernels, places)]
            return before

        tested = kernel_before(reads)
        compared = kernel_before(tested)
        is_check = tests[order[tested]] & compares[order[compared]]
        ends, begins = reads[is_check], compared[is_check]
        if len(ends) >= self.in_a_row * facts.steps and 2 * len(ends) > len(reads):
            edges = np.zeros(len(order) + 1, dtype=np.int64)
            np.add.at(edges, begins, 1)
            np.add.at(edges, ends + 1, -1)
            checks[order] = np.cumsum(edges[:-1]) > 0
        return checks

    def _reads(self, facts: Facts) -> Int64s:
        """Places of read-backs in program order."""
        return np.flatnonzero(facts.program.in_order(ones_at(facts, link_copies(facts, read_back=True))))

    def saved_calls(self, facts: Facts) -> Float64s | None:
        """The calls of loops that read a value back for each item, and those that checks and their tracebacks cost."""
        checks, loops = self._checks(facts), self._loops(facts)
        if checks.any():
            return self._calls_without_checks(facts, checks)
        return loops if loops.any() else None

    def _calls_without_checks(self, facts: Facts, checks: Bools) -> Float64s | None:
        """Saved time of each call without checks and tracebacks: the rest is issued at the pace of its faster quarter.

        Only anomaly detection, which tests gradients, records tracebacks; a user's own hooks do not.
        """
        order, calls = facts.program.order, checks.astype(np.float64)
        if 2 * int((checks & backward_work(facts)).sum()) >= int(checks.sum()):
            starts = facts.work["launch_start_ns"].fill_null(0).to_numpy()[order]
            interval = np.r_[0, np.diff(starts)]
            rest = ~checks[order] & (interval > 0)
            if not rest.any():
                return None
            pace = float(np.percentile(interval[rest], self.faster_percent / 2))
            calls[order[rest]] = np.maximum(1 - pace / interval[rest], 0.0)
        return calls

    @remembered
    def _loops(self, facts: Facts) -> Float64s:
        """Share of each piece of work that goes away if a loop reads back once instead of for each item."""
        program = facts.program
        if (checks := self._checks(facts)).any():
            return checks.astype(np.float64)
        order, places = program.order, self._reads(facts)
        if len(places) < self.in_a_row:
            return facts.no_share
        share = np.zeros(len(checks))
        close = (np.diff(places) <= self.between) | self._selecting_turns(facts, places)
        for parting in (program.in_order(self._products(facts)), program.breaks):
            close &= np.diff(np.searchsorted(np.flatnonzero(parting), places, side="right")) == 0
        edges = np.flatnonzero(np.r_[True, ~close])
        names = program.in_order(program.names())
        for first, last in zip(edges, np.r_[edges[1:], len(places)], strict=True):
            if last - first >= self.in_a_row and self._repeats(names, places[first:last]):
                rows = order[places[first] : places[last - 1] + 1]
                share[rows] = 1 - 1 / (last - first)
        return self._with_backward(facts, share)

    def _repeats(self, names: Int64s, reads: Int64s) -> bool:
        """Whether the work between these read-backs is often the same, as that of items is.

        The kind of a turn is that of its kernels: a loop has as many kinds as read-backs for an item, or branches.
        """
        kinds = {names[begin:end].tobytes() for begin, end in pairwise(reads)}
        return len(reads) - 1 >= self.turns_of_kind * len(kinds)

    def _products(self, facts: Facts) -> Bools:
        """Matrix products, and CUDA graphs traced as a whole, which may hold some."""
        products: Bools = facts.program.products | facts.program.having("kind", "graph")
        return products

    def _selecting_turns(self, facts: Facts, places: Int64s) -> Bools:
        """Whether the work from each read-back to the next is a long turn of a loop that goes on with a part of it.

        Such a turn takes what a mask selects, as suppression of overlapping boxes does, and launches the same kernels
        as the turn before or after it. A solver that asks whether to stop runs each turn on the whole data.
        """
        lengths = np.diff(places)
        is_turn = np.zeros(len(lengths), dtype=np.bool_)
        ends = np.r_[places, places[-1:]][2:]  # the mask is counted, read back, and then applied
        selecting = np.r_[0, np.cumsum(facts.program.in_order(facts.program.marked("selecting")))]
        long = (lengths > self.between) & (lengths <= self.longest_turn) & (selecting[ends] > selecting[places[:-1]])
        at = np.flatnonzero(long)
        if len(at) < 2:
            return is_turn
        names = facts.program.in_order(facts.program.names())
        turns = [names[places[i] : places[i + 1]].tobytes() for i in at]
        same = np.array([turn == other for turn, other in pairwise(turns)])
        same &= places[at[1:]] - places[at[:-1] + 1] <= self.longest_turn
        is_turn[at] = np.r_[False, same] | np.r_[same, False]
        return is_turn

    def _with_backward(self, facts: Facts, share: Float64s) -> Float64s:
        """These shares, and those of the loops that have as many turns in the backward pass of the same step."""
        program, backward = facts.program, backward_work(facts)
        if not share.any() or not backward.any():
            return share
        looped = ones_at(facts, link_copies(facts, read_back=True)) * share > 0
        names, products = program.names(), self._products(facts)
        for rows in program.by_step():
            first = int(np.argmax(backward[rows]))
            items = int(looped[rows[:first]].sum())
            after = rows[backward[rows] & (share[rows] == 0)]
            if items < self.in_a_row or len(after) < items:
                continue
            turns: dict[bytes, list[tuple[int, int, int]]] = {}
            for begin, stop, period in loops_of(names[after]):
                if not products[after[begin : begin + period]].any():
                    turn = np.sort(names[after[begin : begin + period]]).tobytes()
                    turns.setdefault(turn, []).append((begin, stop, period))
            for loops in turns.values():
                count = sum((stop - begin) // period for begin, stop, period in loops)
                if abs(count - items) <= self.backward_apart * items:
                    for begin, stop, _ in loops:
                        share[after[begin:stop]] = 1 - 1 / count
        return share

    def _replayed(self, facts: Facts) -> Gain | None:
        """Gain without waits and read-backs.

        A host that is never ahead of the GPU waits, without the profiler, for the last kernel and the start of the next
        one. With the profiler, the GPU has often finished before the host asks, so this time is added to the gain.
        """
        gain = self._gain_without_reads(facts)
        ahead = facts.unprofiled_host_ns < facts.busy_ns
        if gain is None or ahead or not facts.waits_crowded or self._loops(facts).any():
            return gain
        wait_ns = float(np.median(facts.lengths)) + self.restart_ns
        factor = 1 + facts.host.waits * wait_ns / max(facts.wall_ns - facts.added_ns, 1)
        return replace(gain, expected=gain.expected * factor, high=gain.high * factor)

    def _gain_without_reads(self, facts: Facts) -> Gain | None:
        """Gain without waits and read-backs, and with one turn of the loops that read a value back for each item."""
        calls = self.saved_calls(facts)
        if (checks := self._checks(facts)).any():
            time = checks.astype(np.float64)
            return None if calls is None else facts.replayed("no-synchronization", time=time, calls=calls)
        return facts.replayed("no-synchronization", time=self._loops(facts), calls=calls, elsewhere=True)

    def _own_counts(self, facts: Facts) -> tuple[int, int]:
        """Waits and read-backs of the window without those of sets of tensors, which are no values that are read."""
        in_set = fetched_sets(facts)
        if not in_set.any():
            return facts.host.waits, facts.host.readbacks
        bytes_, pageable = (facts.work[name].filter(in_set) for name in ("bytes", "pageable"))
        small = int((bytes_ <= facts.thresholds.readback_bytes).sum())
        waiting = int(pageable.fill_null(value=False).sum())
        return max(facts.host.waits - waiting, 0), max(facts.host.readbacks - small, 0)

    def _looped(self, facts: Facts) -> dict[str, float]:
        """Evidence: kernels, copies and fills of the loops, counted like `launches_per_step`; none without loops."""
        loops, kernels = self._loops(facts) > 0, facts.program.is_kernel
        if not loops.any():
            return {}
        return {
            "looped_kernels_per_step": int((loops & kernels).sum()) / facts.process_steps,
            "looped_copies_per_step": int((loops & ~kernels).sum()) / facts.process_steps,
        }

    def _waits_little(self, facts: Facts, unwaited: Gain | None, without_loops: Gain | None) -> bool:
        """Whether the waits of these loops cost less than what else the loops do for each item, as far as is known."""
        if unwaited is None or without_loops is None:
            return False
        waiting, looping = (1 - 1 / gain.expected for gain in (unwaited, without_loops))
        return waiting < facts.thresholds.dominant_share * looping

    def _remedies(self, facts: Facts, own: Remedy | None, unwaited: Gain | None) -> tuple[Remedy | None, ...]:
        """The remedies, with the `own` one of loops and checks first.

        Args:
            own: the only one that removes the work that such loops run for each item.
            unwaited: gain without the waits alone, for those that leave that work.
        """
        only_waits = own is None and 2 * facts.host.bare_waits > facts.host.waits
        sends = own is None and 2 * facts.host.sending_waits > facts.host.waits
        reads = self._own_counts(facts)[1] > 0 or not (only_waits or sends)
        removed = modelled(facts, "no-synchronization")
        rarely = Remedy(
            "Read results back less often, or not inside the step",
            "loss_sum += loss.detach()  # stays on the GPU; .item() once every N steps\n"
            "# inside the model no `if tensor:`, .item(), .cpu(), .tolist(), nonzero() and boolean masks:\n"
            "# torch.where, index_select with fixed sizes",
            removed,
            id="fewer-readbacks",
        )
        bare = Remedy(
            "Remove the calls that wait",
            "# no torch.cuda.synchronize(), stream.synchronize() or event.synchronize() between launches:\n"
            "# work of one stream runs in order anyway\n"
            "# time with events, and wait once at the end: torch.cuda.Event(enable_timing=True)",
            removed,
            id="no-waits",
        )
        later = Remedy(
            "Read the values back one step later",
            "out, event = torch.empty(loss.shape, pin_memory=True), torch.cuda.Event()  # once, before the loop\n"
            "out.copy_(loss.detach(), non_blocking=True); event.record()\n"
            "# read `out` after event.synchronize() in the next step, before the next copy into it",
            f"{GAIN}: the copy is then finished before the host waits for it",
            id="later-readbacks",
        )
        unsent = Remedy(
            "Make small values on the GPU, or send them without waiting",
            "torch.full((), value, device='cuda')  # a scalar: nothing is copied\n"
            "table.pin_memory().to('cuda', non_blocking=True)  # what changes in each step\n"
            "# what is the same in each step: copy it once, before the loop",
            removed,
            id="sent-without-waiting",
        )
        find = Remedy(
            "Find all synchronizing operations",
            "torch.cuda.set_sync_debug_mode('warn')  # names the line of most of them; 'error' raises there\n"
            "# remove torch.cuda.synchronize() calls left over from timing",
            "a list of the lines to change",
            id="find-waits",
        )
        if own is not None:
            return own, bringing(rarely, unwaited), find, bringing(later, unwaited)
        return (
            bare if only_waits else None,
            unsent if sends else None,
            rarely if reads else None,
            find,
            later if reads else None,
        )

    def find(self, facts: Facts, claims: Claims) -> Finding | None:
        """The finding, if the window has it."""
        waits, readbacks = self._own_counts(facts)
        claimed = claims.total_ns(self.id)
        is_whole, seen = facts.phase is None, claims.seen_idle_ns(self.id)
        inside, checked = facts.waits_inside and self.delays(facts), bool(self._checks(facts).any())
        looped = not checked and bool(self._loops(facts).any())
        waited = facts.host.waited_ns / (facts.window.duration_ns * facts.processes)
        unwaited = facts.replayed("no-synchronization") if checked or looped else None
        replayed = self._replayed(facts) if claimed and inside else None
        return self.raised(
            facts,
            claimed,
            variant=first_of(
                (checked, self.checked),
                (looped and self._waits_little(facts, unwaited, replayed), self.issued),
                (looped, self.looped),
                (inside and facts.waits_crowded, self.crowded),
                default=USUAL,
            ),
            confidence="high" if facts.sure and inside else "medium",
            evidence={
                **seen_idle(facts, claims, self.id),
                "readback_ns": int(facts.program.own_ns[link_copies(facts, read_back=True)].sum()),
                **self._looped(facts),
                "waits_per_step": waits / facts.process_steps if is_whole else None,
                "readbacks_per_step": readbacks / facts.process_steps if is_whole else None,
                "idle_ns_per_wait": seen / waits if is_whole and waits else None,
                "host_waiting_share": waited if is_whole else None,
            },
            where=range_names(facts, facts.gaps["range"], claims.pauses(self.id)),
            remedies=self._remedies(facts, first_of((checked, _NO_CHECKS), (looped, _AT_ONCE), default=None), unwaited),
            informs=not inside,
            # If most of these pauses belong to a loop that goes away as a whole, the replay has the gain of that loop.
            replayed=replayed if 2 * seen >= facts.idle("synchronization", "refill") else None,
            busy_ns=claims.busy_ns(self.id),
            issuing_ns=claims.issuing_ns[self.id],
            at_least=predicted(facts, "no-synchronization"),
            bound_ns=facts.own_idle_ns + claims.busy_ns(self.id),
        )
