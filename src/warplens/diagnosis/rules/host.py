"""Rules for idle time that the host causes: launches, synchronization, copies over the link, allocation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar, Final

import numpy as np
import polars as pl

from warplens.analysis.frames import number, once
from warplens.analysis.hostpace import SMALL_COPY_BYTES
from warplens.analysis.intervals import Intervals, total, union
from warplens.analysis.kernel_names import PRODUCTS
from warplens.analysis.prediction import Change
from warplens.diagnosis.claims import Claims
from warplens.diagnosis.facts import Facts, range_names
from warplens.diagnosis.findings import PASSES, Confidence, Finding, Remedy
from warplens.diagnosis.pace import NOISE, Gain
from warplens.diagnosis.rule import (
    GAIN,
    GPU_BUSY_SHARE,
    IDLE_NS,
    IDLE_SHARE,
    LAUNCHES_BEHIND_NS,
    LAUNCHES_PER_STEP,
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
from warplens.diagnosis.rules.kernels import as_one_batch, filled_share, more_at_a_time
from warplens.diagnosis.structure import Passes, backward_work, loops_of, passes_of_step, turns_of_step
from warplens.profile.schema import Bools, Float64s, Int64s

_SMALL_COPIES: Final = f"{SMALL_COPY_BYTES // 1024} KiB"

#: Copies over the link between host and GPU.
HOST_COPIES: Final = ("host-to-device", "device-to-host")


def _copies(facts: Facts, *, read_back: bool | None = None) -> Int64s:
    """Rows of copies over the link: read-backs of a few bytes, all others, or both (None)."""
    rows = _link_copies(facts)
    if read_back is None:
        return rows
    small = (facts.work["bytes"].gather(rows) <= facts.thresholds.readback_bytes).fill_null(value=False)
    is_readback = facts.program.having("label", "device-to-host")[rows] & small.to_numpy()
    return np.asarray(rows[is_readback if read_back else ~is_readback], dtype=np.int64)


@once
def _link_copies(facts: Facts) -> Int64s:
    return np.flatnonzero(facts.program.having("label", *HOST_COPIES))


def _fetches(facts: Facts) -> Bools:
    """Which of the copies over the link go to the host."""
    fetches: Bools = facts.program.having("label", HOST_COPIES[1])[_link_copies(facts)]
    return fetches


def _ones_at(facts: Facts, rows: Int64s) -> Float64s:
    share = np.zeros(facts.work.height)
    share[rows] = 1.0
    return share


#: For idle time before launches of CUDA graphs.
_FROM_GRAPHS: Final = (
    Remedy(
        "Launch the next graph before this one has finished",
        "# g.replay() returns at once: do not wait between replays, read results one replay later",
        "the pauses between replays go away",
    ),
    Remedy(
        "Put more into one graph",
        "# capture several steps, or the whole step where parts are launched one by one",
        "fewer launches for the same work",
    ),
)


#: For steps whose launches mostly come from one loop.
_ALL_TURNS: Final = Remedy(
    "Do the work of all turns at once",
    "# one operation over the whole tensor instead of a loop over its rows, times, classes or words:\n"
    "# broadcasting, torch.where, cumsum, a product with a matrix of factors, torch.vmap, one gather for all\n"
    "# if a turn needs the result of the last: compile the loop, or write one kernel for the recurrence (a scan)",
    f"{GAIN}: the launches of one turn instead of all",
)


#: For recurrent networks that are launched one time step at a time.
_ONE_RECURRENCE: Final = Remedy(
    "Run the whole recurrence in one call",
    "y, state = nn.LSTM(width, width, layers, batch_first=True)(x)  # instead of nn.LSTMCell in a loop\n"
    "# torch.backends.cudnn.enabled = True, inputs and weights in one format, nothing between the time steps\n"
    "# if another network runs between time steps: a CUDA graph of the loop",
    f"{GAIN}: cuDNN issues the time steps without the framework in between, and fuses all but the products",
)

#: Most kernels between two cells of one recurrence.
_MOST_BETWEEN_CELLS: Final = 64
#: Least cells of a recurrence: fewer time steps are no loop.
_LEAST_CELLS: Final = 8
#: Share of the host's time for such a loop that one call saves.
_CELLS_SAVED_SHARE: Final = 0.78


@dataclass(frozen=True, eq=False)
class _Recurrence:
    """A recurrent network that is launched one time step after another."""

    time: Float64s  #: share of the time of each piece of work that one call for all time steps saves
    calls: Float64s  #: share of the host's time for issuing each piece that goes away
    cells: float  #: cells per step


def _recurrence(facts: Facts) -> _Recurrence | None:
    """The recurrence of a step; None if no cells are launched one by one.

    One call removes the copies, sums and casts between cells. Products and the arithmetic of the cells stay. cuDNN
    still launches a few kernels per time step: two LSTMs took a quarter and a fifth of the host time of their loops
    (26 and 34 µs per time step, forward or backward, on an H200).
    """
    program, cells = facts.program, facts.program.marked("recurrent-cell")
    if cells.sum() < _LEAST_CELLS * facts.steps:
        return None
    inside = np.zeros(facts.work.height, dtype=np.bool_)
    for rows in program.by_step():
        places = np.flatnonzero(cells[rows])
        for group in np.split(places, np.flatnonzero(np.diff(places) > _MOST_BETWEEN_CELLS) + 1):
            if len(group) >= _LEAST_CELLS:
                inside[rows[group[0] : group[-1] + 1]] = True
    if not inside.any():
        return None
    passes = inside & program.labelled(*PASSES) & ~cells
    calls = np.where(inside, _CELLS_SAVED_SHARE, 0.0)
    return _Recurrence(passes.astype(np.float64), calls, float(cells.sum()) / facts.steps)


class LaunchOverhead(Rule):
    """Idle time while the host was between or inside launching calls, less the claims of waits and the optimizer."""

    id = "launch-overhead"
    model = "host"
    question = "Does the GPU wait for work that the host is still issuing?"
    limiter = "the host cannot issue work as fast as the GPU finishes it"
    cause = "the host's launch rate: the GPU is idle because the next kernel, or CUDA graph, was not launched yet"
    raised_when = "it costs 2 %. Informational where the host is well ahead of the GPU without the profiler"
    claimed = (
        "idle time while the host was between or inside launching calls, including the GPU's own latency. A warning "
        "from 1.25× if the host may be ahead of the GPU without the profiler"
    )
    headline = (
        "Limited by the host's launch rate: for {share} of the time the GPU had no work, because the next kernel "
        "was not launched yet"
    )
    title = "The GPU waits because the host cannot issue work as fast as the GPU finishes it"
    evidence: ClassVar = {
        **IDLE_NS,
        **IDLE_SHARE,
        **GPU_BUSY_SHARE,
        **LAUNCHES_PER_STEP,
        "passes_per_step": "equal passes over different inputs, which could be one batch",
        "cells_per_step": "time steps of a recurrent network that are launched one by one",
        "turns_per_step": "turns of a loop that launches the same few small kernels in each turn",
        "launches_per_turn_factor": "launches per turn",
        "launch_interval_median_ns": "from one launch to the next on the thread that launches most",
        "launch_call_median_ns": "duration of the launching call",
        "kernel_median_ns": "duration of the kernels",
        "kernels_shorter_than_interval_share": "kernels shorter than that interval",
        "launched_onto_idle_gpu_share": (
            "kernels that started less than 5 µs after their launch: the GPU had been waiting for them"
        ),
        "host_needed_ns_per_step": (
            "host time to issue the work, of one process: from the first launch to the last, without waits for a busy "
            "GPU"
        ),
    }
    refutation = (
        "Double the batch: if the step takes about twice as long, the GPU was the limit, not the host. Time the "
        "step without a profiler (torch.cuda.Event): tracing makes every launch slower."
    )
    thresholds = ("unsure_warning_ceiling",)

    looped_title: ClassVar = "A loop launches the same few small kernels in every turn, and the GPU waits for them"

    cells_title: ClassVar = "A recurrent network is launched one time step after another, and the GPU waits for it"

    ahead_share = Limit(0.8, "A host that needs at most 80 % of the GPU's time is ahead of it without the profiler.")

    def find(self, facts: Facts, claims: Claims) -> Finding | None:
        """The finding, if the window has it."""
        claimed = claims.idle_ns(self.id)
        launches = facts.host.launches
        is_whole = facts.phase is None
        passes = passes_of_step(facts)
        graph = facts.replayed("cuda-graph") if claimed else None
        merged = self._merged(facts, passes) if claimed and passes.count > 1 else None
        if merged is not None and graph is not None and merged.expected < graph.expected:
            merged = None
        turns = turns_of_step(facts) if claimed and merged is None else None
        at_once = facts.replayed(time=turns.share, calls=turns.share, elsewhere=True) if turns is not None else None
        cells = _recurrence(facts) if claimed and merged is None and turns is None else None
        one_call = facts.replayed(time=cells.time, calls=cells.calls, elsewhere=True) if cells is not None else None
        if one_call is None or (graph is not None and one_call.expected < graph.expected):
            cells = one_call = None
        from_graphs = facts.graphed or facts.idle("graph-launch") > facts.idle("launch")
        # Turns that need the result of the last turn cannot become one, but a graph can replay them.
        is_sequential = turns is not None and turns.searches and graph is not None and not from_graphs
        replayed = merged or (None if is_sequential else at_once) or one_call or graph
        at_a_time = (
            *((as_one_batch(passes.count),) if merged is not None else ()),
            *((_ALL_TURNS,) if turns is not None and not is_sequential else ()),
        )
        removed_ns = 0 if cells is None else int(cells.time @ facts.program.own_ns)
        if merged is not None:
            removed_ns = passes.removed_ns(facts, self._saved(facts, passes))
        graphed = Remedy(
            "Replay the step from a CUDA graph",
            "model = torch.compile(model, mode='reduce-overhead')\n"
            "# or by hand:\n"
            "g = torch.cuda.CUDAGraph()\n"
            "with torch.cuda.graph(g): y = model(static_x)\n"
            "static_x.copy_(x); g.replay()",
            modelled(facts, "cuda-graph") + self._obstacles(facts),
        )
        larger = Remedy(
            "Give each launch more work",
            "DataLoader(dataset, batch_size=larger)  # until kernels run longer than the launch interval"
            if facts.trains
            else "# a larger batch: answer several requests, or chunks of the input, in one pass",
            "the same step time for more samples, until the GPU is busy",
        )
        # If the host sets the pace, most kernels start at once on a waiting GPU.
        prompt = launches.prompt_share if is_whole else None
        sure = facts.sure and (prompt is None or prompt >= 0.5)
        confidence: Confidence = "high" if sure else "medium"
        is_kernel = pl.col("kind") == "kernel"
        durations = facts.work.select((pl.col("end_ns") - pl.col("start_ns")).filter(is_kernel)).to_series()
        return self.raised(
            facts,
            claimed,
            title=self.looped_title if turns is not None else self.cells_title if cells is not None else "",
            confidence=confidence if len(facts.window.steps) else "low",
            evidence={
                "idle_ns": claimed,
                "idle_share": claimed / facts.wall_ns,
                "gpu_busy_share": facts.busy_share,
                "launches_per_step": durations.len() / facts.process_steps,
                "passes_per_step": passes.count if merged is not None else None,
                "cells_per_step": cells.cells if cells is not None else None,
                "turns_per_step": turns.count if turns is not None else None,
                "launches_per_turn_factor": turns.launches if turns is not None else None,
                "launch_interval_median_ns": launches.interval_median_ns if is_whole else None,
                "launch_call_median_ns": launches.api_median_ns if is_whole else None,
                "kernel_median_ns": number(durations.median()),
                "kernels_shorter_than_interval_share": launches.shorter_than_interval_share if is_whole else None,
                "launched_onto_idle_gpu_share": prompt,
                "host_needed_ns_per_step": facts.host_needed_ns / facts.process_steps,
            },
            where=range_names(facts, facts.gaps["range"], claims.pauses(self.id)),
            issuing_ns=claims.issuing_ns[self.id],
            # Graphs remove every pause, and fused kernels most passes over memory. One batch instead of equal passes
            # may take no longer than one of them.
            bound_ns=facts.idle_ns
            + max(
                facts.own_ns_having("label", *PASSES),
                int(facts.program.own_ns[passes.work].sum() * passes.freed),
            ),
            at_least=predicted(facts, "cuda-graph", "free-launches"),
            replayed=replayed,
            busy_ns=removed_ns,
            # Without the profiler, the host may be ahead of the GPU.
            warning=facts.thresholds.unsure_warning_ceiling
            if turns is None and facts.unprofiled_host_ns < facts.busy_ns
            else None,
            # A loop of tiny kernels is worth fixing however fast a launch is.
            informs=turns is None and facts.unprofiled_host_ns < self.ahead_share * facts.busy_ns,
            remedies=(*at_a_time, *_FROM_GRAPHS)
            if from_graphs
            else (
                *at_a_time,
                *((_ONE_RECURRENCE,) if cells is not None else ()),
                graphed if replayed is graph else bringing(graphed, graph),
                *((bringing(_ALL_TURNS, at_once),) if is_sequential else ()),
                Remedy(
                    "Launch fewer kernels",
                    "model = torch.compile(model)  # fuses elementwise work\n"
                    "# F.scaled_dot_product_attention for written-out attention\n"
                    "# a fused optimizer for its kernels: torch.optim.AdamW(model.parameters(), fused=True)",
                    "in proportion to the launches saved",
                ),
                # If launches cost little, more work in each brings little.
                more_at_a_time(facts, larger)
                if replayed is not None and replayed.expected >= facts.thresholds.warning_ceiling
                else larger,
            ),
        )

    @staticmethod
    def _obstacles(facts: Facts) -> str:
        """Text after the gain of a graph: which calls must be removed before the step can be captured."""
        allocates = facts.host.allocations >= facts.thresholds.allocations_per_step * facts.process_steps
        calls = (
            ("wait", facts.host.waits, facts.waits_inside),
            ("allocation", facts.host.allocations, allocates),
        )
        per_step = [(name, max(round(count / facts.process_steps), 1)) for name, count, seen in calls if seen]
        if not per_step:
            return ""
        inside = " and ".join(f"{count:,} {name}{'s' * (count > 1)}" for name, count in per_step)
        removed = f"{inside} per step (warplens code lists them)"
        return f"; the gain includes the removal of what no graph can capture: {removed}"

    def _merged(self, facts: Facts, passes: Passes) -> Gain | None:
        """Gain of running these passes of a step as one: one set of launches, kernels as long as they fill the GPU.

        The profile does not show how much of the host's other work is per pass and how much per item: half of it is
        expected to go away.
        """
        return facts.replayed(time=self._saved(facts, passes), calls=passes.calls(facts), stalls=0.5)

    @staticmethod
    def _saved(facts: Facts, passes: Passes) -> Float64s:
        return passes.saved_share(facts, filled_share(facts))


#: For loops that read back item by item.
_AT_ONCE: Final = (
    Remedy(
        "Process all items at once",
        "losses = torch.stack(values).tolist()  # once, after the loop\n"
        "# weights or torch.where over the whole batch instead of x[i][mask[i]] for each i\n"
        "# torch._foreach_norm for norms of many tensors, repeat_interleave for items of different lengths\n"
        "# if a turn needs the result of the last: one kernel for the loop, such as torchvision.ops.nms for boxes",
        GAIN,
    ),
)


#: For programs that check each gradient.
_NO_CHECKS: Final = (
    Remedy(
        "Turn the detection of anomalies off",
        "torch.autograd.set_detect_anomaly(False)  # Lightning: Trainer(detect_anomaly=False)\n"
        "# turn it on only for the few steps in which you look for a NaN\n"
        "# checks of your own: test the loss, or torch.nn.utils.get_total_norm of all gradients, once per step",
        GAIN,
    ),
)


class HostSync(Rule):
    """Pauses that began while the host waited for the GPU, until it had issued the next work.

    One wait at the end of a step is normal: its cost is reported, but only as information.
    """

    id = "host-sync"
    model = "host"
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
        "matrix products, with their backward pass; the part of the launch pauses that a host without these waits "
        "would hide"
    )
    headline = "Limited by synchronization: {share} of the time goes into draining the GPU's queue and refilling it"
    title = "The host waits until the GPU's queue is empty and then has to refill it"
    evidence: ClassVar = {
        **IDLE_NS,
        **IDLE_SHARE,
        **LAUNCHES_BEHIND_NS,
        "readback_ns": "exposed time of those copies",
        "looped_kernels_per_step": "work of loops that read a value back for every item, and of their backward pass",
        **GPU_BUSY_SHARE,
        "waits_per_step": "calls that block the host until the GPU is done",
        "readbacks_per_step": f"copies of up to {_SMALL_COPIES} to the host",
        "idle_ns_per_wait": "that idle time, per wait",
        "host_waiting_share": "share of the window in which the host waited for a busy GPU",
    }
    refutation = (
        "Remove the waits (or keep the values on the GPU): if the step takes as long as before, the host's launch "
        "rate was the limit, and this is launch-overhead."
    )
    thresholds = ("normal_waits_per_step", "launches_behind_wait", "readback_bytes")
    precedence = "certain"

    looped_title: ClassVar = "A loop reads a value back for every item, and the GPU runs dry each time"
    looped_headline: ClassVar = (
        "Limited by synchronization: {share} of the time goes into loops that read a value back for every item, "
        "and into refilling the GPU's queue"
    )
    crowded_title: ClassVar = "The host waits for the GPU after every few launches, and never gets ahead of it"
    checks_title: ClassVar = "The host reads back whether each tensor holds a NaN, as anomaly detection does"
    faster_percent = Limit(25, "A quarter of the launches belongs to operators that record no traceback.")
    in_a_row = Limit(8, "Fewer read-backs in close succession are not a loop.")
    restart_ns = Limit(5_000, "From a launching call to the start of its kernel on an idle GPU: 4 to 6 µs on servers.")
    between = Limit(16, "Launches for one item of such a loop; layers of a network have products in between.")
    longest_turn = Limit(64, "The same if turns are alike, and each selects by a mask: 19 launches to compare boxes.")
    backward_apart = Limit(0.2, "A loop of the backward pass has about as many turns as the loop with the read-backs.")

    def headline_of(self, finding: Finding) -> str:
        """The headline; that of loops says that their kernels count as well as the waiting."""
        return self.looped_headline if finding.evidence.get("looped_kernels_per_step") else self.headline

    def makes_launches(self, finding: Finding) -> bool:
        """True: a host that waits cannot run ahead."""
        return True

    def claim(self, facts: Facts) -> Float64s | None:
        """Copies of a few bytes to the host, and the work that a loop around them runs for each item."""
        share = self._loops(facts).copy()
        share[_copies(facts, read_back=True)] = 1.0
        return share

    def claim_gaps(self, facts: Facts) -> Float64s | None:
        """Pauses in loops that read a value back for each item: with one read-back, nothing is issued item by item.

        Even short work of the host on the values that it read would stay; it belongs to `host-stall`.
        """
        loops = self._loops(facts)
        if not loops.any():
            return None
        gaps = facts.gaps
        length = (gaps["end_ns"] - gaps["start_ns"]).to_numpy()
        not_stalled = 1 - np.minimum(facts.causes["host"].whole() / np.maximum(length, 1), 1.0)
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
        reads = np.zeros(facts.work.height, dtype=np.bool_)
        reads[_copies(facts, read_back=True)] = True
        return np.flatnonzero(facts.program.in_order(reads))

    def _gain_without_checks(self, facts: Facts, checks: Bools) -> Gain | None:
        """Gain without these checks and tracebacks: the host issues the rest at the pace of its faster quarter.

        Only anomaly detection, which tests gradients, records tracebacks; a user's own hooks do not.
        """
        order = facts.program.order
        time = checks.astype(np.float64)
        calls = time.copy()
        if 2 * int((checks & backward_work(facts)).sum()) >= int(checks.sum()):
            starts = facts.work["launch_start_ns"].fill_null(0).to_numpy()[order]
            interval = np.r_[0, np.diff(starts)]
            rest = ~checks[order] & (interval > 0)
            if not rest.any():
                return None
            pace = float(np.percentile(interval[rest], self.faster_percent / 2))
            calls[order[rest]] = np.maximum(1 - pace / interval[rest], 0.0)
        return facts.replayed("no-synchronization", time=time, calls=calls)

    @remembered
    def _loops(self, facts: Facts) -> Float64s:
        """Share of each piece of work that goes away if a loop reads back once instead of for each item."""
        program = facts.program
        if (checks := self._checks(facts)).any():
            return checks.astype(np.float64)
        order, places = program.order, self._reads(facts)
        if len(places) < self.in_a_row:
            return np.broadcast_to(0.0, len(checks))  # takes no memory
        share = np.zeros(len(checks))
        close = (np.diff(places) <= self.between) | self._selecting_turns(facts, places)
        for parting in (program.in_order(program.labelled(*PRODUCTS)), program.breaks):
            close &= np.diff(np.searchsorted(np.flatnonzero(parting), places, side="right")) == 0
        edges = np.flatnonzero(np.r_[True, ~close])
        for first, last in zip(edges, np.r_[edges[1:], len(places)], strict=True):
            if last - first >= self.in_a_row:
                rows = order[places[first] : places[last - 1] + 1]
                share[rows] = 1 - 1 / (last - first)
        return self._with_backward(facts, share)

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
        looped = _ones_at(facts, _copies(facts, read_back=True)) * share > 0
        names, products = program.names(), program.labelled(*PRODUCTS)
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
        wait_ns = float(np.median((facts.work["end_ns"] - facts.work["start_ns"]).to_numpy())) + self.restart_ns
        factor = 1 + facts.host.waits * wait_ns / max(facts.wall_ns - facts.added_ns, 1)
        return replace(gain, expected=gain.expected * factor, high=gain.high * factor)

    def _gain_without_reads(self, facts: Facts) -> Gain | None:
        """Gain without waits and read-backs, and with one turn of the loops that read a value back for each item."""
        if (checks := self._checks(facts)).any():
            return self._gain_without_checks(facts, checks)
        loops = self._loops(facts)
        return facts.replayed("no-synchronization", time=loops, calls=loops, elsewhere=True)

    def find(self, facts: Facts, claims: Claims) -> Finding | None:
        """The finding, if the window has it."""
        claimed = claims.total_ns(self.id)
        waits = facts.host.waits / facts.process_steps
        is_whole, seen = facts.phase is None, claims.seen_idle_ns(self.id)
        inside, checked = facts.waits_inside, bool(self._checks(facts).any())
        looped = not checked and bool(self._loops(facts).any())
        rarely = Remedy(
            "Read results back less often, or not inside the step",
            "loss_sum += loss.detach()  # stays on the GPU; .item() once every N steps\n"
            "# inside the model no `if tensor:`, .item(), .cpu(), .tolist(), nonzero() and boolean masks:\n"
            "# torch.where, index_select with fixed sizes",
            modelled(facts, "no-synchronization"),
        )
        bare = Remedy(
            "Remove the calls that wait",
            "# no torch.cuda.synchronize(), stream.synchronize() or event.synchronize() between launches:\n"
            "# work of one stream runs in order anyway\n"
            "# time with events, and wait once at the end: torch.cuda.Event(enable_timing=True)",
            modelled(facts, "no-synchronization"),
        )
        later = Remedy(
            "Read the values back one step later",
            "out = torch.empty(loss.shape, pin_memory=True)\n"
            "out.copy_(loss, non_blocking=True); event.record()\n"
            "# read `out` after event.synchronize() in the next step",
            f"{GAIN}: the copy is then finished before the host waits for it",
        )
        # Only their own remedy removes the work that such loops run for each item.
        has_own_remedy = checked or looped
        only_waits = not has_own_remedy and 2 * facts.host.bare_waits > facts.host.waits
        reads = facts.host.readbacks > 0 or not only_waits
        unwaited = facts.replayed("no-synchronization") if has_own_remedy else None
        return self.raised(
            facts,
            claimed,
            title=self.checks_title
            if checked
            else self.looped_title
            if looped
            else self.crowded_title
            if facts.waits_crowded
            else "",
            confidence="high" if facts.sure and inside else "medium",
            evidence={
                **seen_idle(facts, claims, self.id),
                "readback_ns": int(facts.program.own_ns[_copies(facts, read_back=True)].sum()),
                "looped_kernels_per_step": int((self._loops(facts) > 0).sum()) / facts.steps or None,
                "gpu_busy_share": facts.busy_share,
                "waits_per_step": waits if is_whole else None,
                "readbacks_per_step": facts.host.readbacks / facts.process_steps if is_whole else None,
                "idle_ns_per_wait": seen / facts.host.waits if is_whole and facts.host.waits else None,
                "host_waiting_share": facts.host.waited_ns / (facts.window.duration_ns * facts.processes)
                if is_whole
                else None,
            },
            where=range_names(facts, facts.gaps["range"], claims.pauses(self.id)),
            remedies=(
                *(_NO_CHECKS if checked else _AT_ONCE if looped else (bare,) if only_waits else ()),
                *((bringing(rarely, unwaited) if has_own_remedy else rarely,) if reads else ()),
                Remedy(
                    "Find all synchronizing operations",
                    "torch.cuda.set_sync_debug_mode('warn')  # a traceback at each synchronizing operation\n"
                    "# remove torch.cuda.synchronize() calls left over from timing",
                    "a list of the lines to change",
                ),
                *((bringing(later, unwaited) if has_own_remedy else later,) if reads else ()),
            ),
            informs=not inside,
            # If most of these pauses belong to a loop that goes away as a whole, the replay has the gain of that loop.
            replayed=self._replayed(facts)
            if claimed and inside and 2 * seen >= facts.idle("synchronization", "refill")
            else None,
            busy_ns=claims.busy_ns(self.id),
            issuing_ns=claims.issuing_ns[self.id],
            at_least=predicted(facts, "no-synchronization"),
            bound_ns=facts.idle_ns + claims.busy_ns(self.id),
        )


_NS_PER_S = 1e9
_PAGE_BYTES: Final = 4096


class BlockingCopy(Rule):
    """Copies over the link that no kernel hides, and pauses while one blocked the host."""

    id = "blocking-copy"
    model = "host"
    located = "copies"
    question = "Do copies between host and GPU run while nothing computes?"
    limiter = "copies between host and GPU delay the work"
    cause = "copies between host and GPU"
    raised_when = "it costs 2 %"
    claimed = "time in which only such a copy ran; pauses while one blocked the host"
    headline = "Limited by copies between host and GPU: for {share} of the time nothing computes because of them"
    evidence: ClassVar = {
        "exposed_copy_ns": "exposed copies",
        "host_held_idle_ns": "pauses while a copy blocked the host",
        "claimed_share": "all claimed time, of the window",
        "copied_bytes_per_step": "copies between host and GPU",
        "copies_per_step": "number of copies",
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
    piece_bytes = Limit(
        1 << 18, "From pageable memory at 10 GB/s, so many bytes take 26 µs, as long as the call itself."
    )

    pieces_title: ClassVar = "Many small pieces are sent to the GPU one by one, and each waits for the last"

    @remembered
    def _pieces(self, facts: Facts) -> Float64s:
        """Share of each small copy to the GPU that goes away if a long row of such copies becomes one copy."""
        work, program = facts.work, facts.program
        sent = program.having("label", HOST_COPIES[0])
        if sent.sum() < self.in_a_row:
            return np.broadcast_to(0.0, work.height)  # takes no memory
        small = (work["bytes"] <= self.piece_bytes).fill_null(value=False).to_numpy()
        sent = sent & small & work["pageable"].fill_null(value=False).to_numpy()
        share = np.zeros(work.height)
        if sent.sum() >= self.in_a_row:
            for rows in program.runs(sent, (sent, int(self.in_a_row))):
                share[rows] = 1 - 1 / len(rows)
        return share

    def claim_gaps(self, facts: Facts) -> Float64s | None:
        """The pauses between pieces that are sent one by one, which one copy does not have."""
        pieces = self._pieces(facts)
        return facts.program.of_gaps(pieces) if pieces.any() else None

    def claim(self, facts: Facts) -> Float64s | None:
        """All other copies over the link."""
        return _ones_at(facts, _copies(facts, read_back=False))

    def find(self, facts: Facts, claims: Claims) -> Finding | None:
        """The finding, if the window has it."""
        claimed = claims.total_ns(self.id)
        exposed = claims.of_work(self.id)
        if not claimed:
            return None
        copies = facts.work.select("start_ns", "end_ns", "bytes", "pageable")[_copies(facts)]
        copying_ns = total(union(Intervals(copies["start_ns"].to_numpy(), copies["end_ns"].to_numpy())))
        moved = int(copies["bytes"].sum())
        pageable = copies.filter("pageable")
        from_pageable = int(pageable["bytes"].sum()) / moved if moved else None
        unpinned = (from_pageable or 0.0) >= self.pageable_share
        staying = self._staying(facts)
        stays = bool(staying.any())
        pieces = self._pieces(facts)
        at_once = facts.replayed("no-synchronization", calls=pieces) if pieces.any() and not stays else None
        replayed = at_once or self._replayed(facts, staying)
        halved = 1.0 if stays else gain_of(facts, int(claims.busy_ns(self.id) * self.fewer_bytes), on_gpu=True)
        link_bound = at_once is None and replayed is not None and halved > 1 + (replayed.high - 1) * NOISE
        less = Remedy(
            "Copy less",
            "# send uint8 images or token ids and convert on the GPU; keep results there",
            f"{GAIN}; with half of the bytes, and in proportion to them",
        )
        overlaps = self._overlaps(facts)
        pinned = Remedy(
            "Copy from pinned memory, without blocking" if from_pageable else "Copy without blocking",
            ("loader = DataLoader(dataset, pin_memory=True)  # or x = x.pin_memory()\n" if from_pageable else "")
            + "x = x.to('cuda', non_blocking=True)",
            modelled(facts, "async-copies"),
        )
        ahead = Remedy(
            "Copy the next batch while this one is computed",
            "side = torch.cuda.Stream()\n"
            "with torch.cuda.stream(side): next_x = x.to('cuda', non_blocking=True)\n"
            "torch.cuda.current_stream().wait_stream(side)  # before use",
            modelled(facts, "overlapped-copies"),
        )
        others = not stays and not link_bound and at_once is None
        if overlaps or not others:
            pinned = bringing(pinned, self._copied(facts, "async-copies"))
        if not overlaps or not others:
            ahead = bringing(ahead, self._copied(facts, "overlapped-copies"))
        if not link_bound:
            # Far less than was fetched may be needed: a class for each pixel is a hundredth of its scores.
            fetched = int(facts.work["bytes"].gather(_copies(facts)[_fetches(facts)]).sum())
            known = halved > 1 and 2 * fetched <= moved
            less = bringing(less, Gain(halved, halved, halved) if known else None, "traffic")
        # Pageable memory is a certain fault; a pinned copy that nothing hides may be the program's first input.
        return self.raised(
            facts,
            claimed,
            title="Data that could stay on the GPU are sent to it in the middle of a step, and delay the work"
            if stays
            else self.pieces_title
            if at_once is not None
            else "Copies from pageable memory delay the work"
            if unpinned
            else "Copies between host and GPU run while nothing computes",
            confidence="high" if unpinned and facts.sure else "medium",
            evidence={
                "exposed_copy_ns": claims.busy_ns(self.id),
                "host_held_idle_ns": claims.idle_ns(self.id),
                "claimed_share": claimed / facts.wall_ns,
                "copied_bytes_per_step": moved / facts.steps,
                "copies_per_step": copies.height / facts.steps,
                "bandwidth_bytes_per_s": moved / copying_ns * _NS_PER_S if copying_ns else None,
                "pageable_share": from_pageable,
            },
            where=range_names(facts, facts.work["range"], exposed)
            or range_names(facts, facts.gaps["range"], claims.pauses(self.id)),
            remedies=(
                *((_STAYING,) if stays else ()),
                *((_ALL_PIECES,) if at_once is not None else ()),
                *((less,) if link_bound else ()),
                *((ahead, pinned) if overlaps else (pinned, ahead)),
                *(() if link_bound else (less,)),
            ),
            on_gpu=True,
            kept=0.0 if stays else self.kept_share,
            replayed=replace(replayed, expected=halved, high=max(halved, replayed.high))
            if link_bound and replayed is not None
            else replayed,
            busy_ns=claims.busy_ns(self.id),
            at_least=predicted(facts, "async-copies", "overlapped-copies"),
            bound_ns=facts.idle_ns + claims.busy_ns(self.id),
        )

    @remembered
    def _staying(self, facts: Facts) -> Float64s:
        """1 for copies after the first product of a step, which are no input: weights, constants, activations.

        Data that were copied to the host in the same step and come back count as well, in both directions. If nearly
        all data of many sizes do so, they count wherever in the step they are copied.
        """
        none = np.broadcast_to(0.0, facts.work.height)  # takes no memory
        if not facts.window.steps:
            return none
        work, program = facts.work, facts.program
        rows = _copies(facts)
        sent = (work["label"].gather(rows) == "host-to-device").to_numpy()
        bytes_ = work["bytes"].gather(rows).fill_null(0).to_numpy()
        large = bytes_ > SMALL_COPY_BYTES
        if (sent & large).sum() < self.least_inside * facts.steps:
            return none
        if self._goes_round(program.step[rows].astype(np.int64), bytes_, sent & large, ~sent & large):
            return _ones_at(facts, rows[large])
        firsts = np.full(int(program.step.max(initial=0)) + 1, np.iinfo(np.int64).max)
        starts, products = work["start_ns"].to_numpy(), program.labelled(*PRODUCTS)
        np.minimum.at(firsts, program.step[products], starts[products])
        inside = sent & large & (starts[rows] > firsts[program.step[rows]])
        if inside.sum() < self.least_inside * facts.steps:
            return none
        fetched = ~sent & large
        there_and_back = bytes_[fetched].sum() >= self.inside_share * bytes_[inside].sum()
        # The next batch is sent in the middle of a step as well, in one go.
        if not there_and_back and not self._between_layers(facts, rows[inside]):
            return none
        if bytes_[inside].sum() < self.inside_share * bytes_[sent].sum():
            return none
        # Equal parts of a step that each begin with a copy may be layers, or passes over inputs.
        if passes_of_step(facts).count > 1 and (sent & large & ~inside).any():
            return none
        return _ones_at(facts, rows[inside | (fetched & there_and_back)])

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

    def _between_layers(self, facts: Facts, sent: Int64s) -> bool:
        """Whether several of these copies of a step have products between them."""
        starts, products = facts.work["start_ns"].to_numpy(), facts.program.labelled(*PRODUCTS)
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
        """Gain of copies made in this way; pinned memory is kept, so pauses for freeing memory go as well."""
        freeing: tuple[Change, ...] = ("no-host-stall",) if self._frees_memory(facts) else ()
        return facts.replayed(change, *freeing)

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
        return predicted(facts, "overlapped-copies") - 1 > self.clearly * (predicted(facts, "async-copies") - 1)


#: For loops that send in pieces what one copy could send.
_ALL_PIECES: Final = Remedy(
    "Send all pieces in one copy",
    "batch = torch.stack(columns).to('cuda')  # put together on the host first; views of it are the pieces\n"
    "# or fill one pinned buffer, and copy it with non_blocking=True",
    f"{GAIN}: the call and the wait of one piece instead of all",
)

#: For data sent to the GPU that are no input of the step.
_STAYING: Final = Remedy(
    "Keep on the GPU what is used in every step",
    "self.register_buffer('bias', bias)  # constants and tables; then model.to('cuda')\n"
    "# where memory allows: no offloading of layers (cpu_offload, device_map), no save_on_cpu()",
    f"{GAIN}: these copies are not made",
)


class AllocatorChurn(Rule):
    """Idle time while the host was inside cudaMalloc, cudaFree and similar calls, which occur in every step."""

    id = "allocator-churn"
    model = "host"
    located = "allocations"
    question = "Is device memory allocated and freed inside the steps?"
    limiter = "memory is allocated and freed inside the steps"
    cause = "cudaMalloc, cudaFree and similar calls inside the steps"
    raised_when = "there is one per step, and it costs 2 %"
    claimed = "idle time while the host was inside one"
    headline = "Limited by memory allocation: for {share} of the time the GPU waits for cudaMalloc or cudaFree"
    title = "Memory is allocated and freed inside the steps, and the GPU waits for it"
    once_title: ClassVar = "The GPU waits while memory is allocated and freed, which may belong to the start-up"
    evidence: ClassVar = {
        **IDLE_NS,
        **IDLE_SHARE,
        **LAUNCHES_BEHIND_NS,
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
        is_whole = facts.phase is None
        return self.raised(
            facts,
            claimed,
            title="" if facts.sure else self.once_title,
            confidence="high" if facts.sure else "low",
            evidence={
                **seen_idle(facts, claims, self.id),
                "allocation_calls_per_step": calls if is_whole else None,
                "allocation_call_ns_per_step": facts.host.allocation_ns / facts.process_steps if is_whole else None,
                "gpu_busy_share": facts.busy_share,
            },
            where=range_names(facts, facts.gaps["range"], claims.pauses(self.id)),
            remedies=(
                *(() if facts.sure else (STEPS_ONLY,)),
                Remedy(
                    "Let the caching allocator keep its memory",
                    "# remove torch.cuda.empty_cache() from the loop, unset PYTORCH_NO_CUDA_MEMORY_CACHING\n"
                    "# outside of PyTorch: cudaMallocAsync, with the release threshold of its pool raised",
                    modelled(facts, "cached-allocation"),
                ),
                Remedy(
                    "Keep the allocator from running out of memory and retrying",
                    "export PYTORCH_ALLOC_CONF=expandable_segments:True\n"
                    "# or a smaller batch: an allocator at its limit frees its cache and synchronises\n"
                    "# (torch.cuda.memory_stats()['num_alloc_retries'])",
                    modelled(facts, "cached-allocation"),
                ),
                Remedy(
                    "Reuse buffers",
                    "# allocate outputs once and pass them on (out=, copy_); pad inputs to few distinct shapes",
                    modelled(facts, "cached-allocation"),
                ),
            ),
            issuing_ns=claims.issuing_ns.get(self.id, 0),
            replayed=facts.replayed("cached-allocation") if claimed else None,
            at_least=predicted(facts, "cached-allocation"),
            bound_ns=facts.idle_ns,
        )
