"""Pauses in which the host does something else than to issue work, and what to do about it, as far as names tell."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import ClassVar, Final

import numpy as np
import polars as pl

from warplens.analysis.intervals import Intervals, measure_before, union
from warplens.analysis.prediction import Change
from warplens.analysis.trees import NO_RANGE
from warplens.diagnosis.claims import Claims
from warplens.diagnosis.evidence import code_loading
from warplens.diagnosis.facts import Facts, range_names, time_by_range
from warplens.diagnosis.findings import Finding, Remedy
from warplens.diagnosis.rule import (
    GAIN,
    GPU_BUSY_SHARE,
    IDLE_NS,
    IDLE_SHARE,
    LAUNCHES_BEHIND_NS,
    STEPS_ONLY,
    Limit,
    Rule,
    modelled,
    predicted,
    seen_idle,
)
from warplens.profile.schema import Bools, Float64s

#: Where it prepares what the next step works on.
_INPUT: Final = (
    Remedy(
        "Prepare the input while the GPU computes",
        "DataLoader(dataset, num_workers=8, prefetch_factor=4, persistent_workers=True, pin_memory=True)\n"
        "x = x.to('cuda', non_blocking=True)",
        GAIN,
    ),
    Remedy(
        "Prepare it once, or on the GPU",
        "# decode, augment and tokenise once and store the result\n"
        "# or torchvision.transforms.v2 on CUDA tensors, NVIDIA DALI",
        GAIN,
    ),
)

#: Where it compiles, or tries out kernels.
_COMPILING: Final = (
    Remedy(
        "Compile before the loop",
        "# warm up with each shape; torch._dynamo.mark_dynamic, or inputs padded to few shapes\n"
        "TORCH_LOGS=recompiles python train.py  # names the reason\n"
        "torch.backends.cudnn.benchmark = False  # where sizes change: each new one is tried out again",
        GAIN,
    ),
)

#: What a host does in its pauses, by the name of a range that is open then, and what to do about it.
_ACTIVITIES: Final = (
    (
        r"dataloader|__next__|(?<![a-z])(?:data|batch|batches|loader|loading|input|inputs|fetch|prefetch|decode_image|"
        r"augment|tokeni[sz]e|tokeni[sz]er|preprocess|preprocessing|collate|dataset|get_batch|load_batch)(?![a-z])",
        _INPUT,
    ),
    (
        r"compiledf|inductor|dynamo|torch-compiled|(?<![a-z])(?:compile|compiling|autotun\w*|jit)(?![a-z])",
        _COMPILING,
    ),
    (
        r"optimi[sz]er|zero_grad|clip_grad|grad_norm|_foreach_|_fused_adam|gradscaler",
        (
            Remedy(
                "Replace host work per parameter with one kernel",
                "torch.optim.AdamW(model.parameters(), fused=True)\n"
                "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)\n"
                "# zero_grad(set_to_none=True); torch.compile(optimizer.step)",
                GAIN,
            ),
        ),
    ),
    (
        r"(?<![a-z])mpi_|barrier|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|all2all|rendezvous|nccl|c10d",
        (
            Remedy(
                "Find the rank that is late",
                "warplens ranks RANK0 RANK1\n# move collectives off the host: NCCL instead of MPI or gloo",
                GAIN,
            ),
        ),
    ),
    (
        r"backward|autograd|checkpointfunction",
        (
            Remedy(
                "Reduce host work in the backward pass",
                "model = torch.compile(model)  # issues the whole pass from one call\n"
                "# fewer hooks and custom autograd functions; checkpoint larger parts, or none",
                GAIN,
            ),
        ),
    ),
    (
        r"distributeddataparallel|(?<![a-z])forward(?![a-z])|fullyshardeddataparallel",
        (
            Remedy(
                "Reduce host work in the forward pass",
                "model = torch.compile(model)  # issues the whole pass from one call\n"
                "# no Python loops over items, no hooks, no checks of values inside the model",
                GAIN,
            ),
        ),
    ),
    (
        r"(?<![a-z])(?:generate|sample|beam_search|logits\w*|stopping_criteria|prepare_inputs_for_generation|decode|"
        r"decoding|scheduler|execute_context\w*)(?![a-z])",
        (
            Remedy(
                "Reduce host work between tokens",
                "model.forward = torch.compile(model.forward, mode='reduce-overhead')  # with a static cache\n"
                "# choose tokens and test for the end on the GPU; look at the result every few tokens",
                GAIN,
            ),
        ),
    ),
    (
        r"(?<![a-z])gc(?![a-z])|garbage",
        (
            Remedy(
                "Run garbage collection outside the steps",
                "gc.freeze(); gc.disable()  # after set-up\ngc.collect()  # between epochs, or every thousand steps",
                GAIN,
            ),
        ),
    ),
    (
        r"(?<![a-z])(?:log|logs|logging|metric|metrics|wandb|tensorboard|save|saving|checkpoint|print|write|"
        r"evaluate|callback)(?![a-z])",
        (
            Remedy(
                "Log and save from another thread, and less often",
                "torch.distributed.checkpoint.async_save(state, checkpoint_id=path)  # every N steps\n"
                "# queue values and write them in another thread",
                GAIN,
            ),
        ),
    ),
)

#: Where no name says what the host does.
_UNKNOWN_ACTIVITY: Final = (
    Remedy(
        "Move that host work out of the step",
        "# onto another thread or process, or ahead of time; what it is, the profile does not say",
        GAIN,
    ),
)

#: Where the pauses lie outside of the ranges that are the steps.
_BETWEEN_STEPS: Final = (
    Remedy(
        "Shorten what lies between the steps",
        "# input: another thread or process prepares the next one meanwhile; logs, checkpoints: less often\n"
        "# a server that waits there for requests lacks none of this: record it under load",
        GAIN,
    ),
)

#: Where it is inside of operators of the framework, which launch little for the time that they take.
_IN_OPERATORS: Final = (
    Remedy(
        "Take the host out of these operators",
        "# a CUDA graph launches what they launch, without their code on the host: torch.cuda.graph, or torch.compile\n"
        "# one call over a sequence or batch in place of many: nn.LSTM on all frames, torch.vmap\n"
        "# operators on tensors of the host: on the GPU",
        GAIN,
    ),
)

#: Where the host works on data that it then sends, or that it has just fetched.
_ON_DATA: Final = Remedy(
    "Process these data on the GPU",
    "# send images as uint8 and token ids as they are; convert, normalize and augment them there\n"
    "# count, compare and select there (torch.bincount, argmax), and copy only the result back\n"
    "DataLoader(dataset, num_workers=8, pin_memory=True)  # or prepare them in other processes",
    GAIN,
)

#: Where it works on what comes from the GPU and goes back there.
_ROUND_TRIP: Final = Remedy(
    "Do this work where its data are",
    "# an optimizer whose state or weights are kept on the host: on the GPU, torch.optim.AdamW(…, fused=True),\n"
    "# with 8-bit or sharded states where memory is short\n"
    "# NumPy or SciPy between two operations of the GPU: torch has most of it",
    GAIN,
)

#: Where the host works on what it has just read back.
_ON_RESULTS: Final = Remedy(
    "Work on these results on the GPU, or behind the loop",
    "# metrics: torchmetrics, torch.bincount, topk and comparisons on the GPU, and one number read back\n"
    "results.append(y.detach())  # in the step; torch.cat(results).cpu() and scikit-learn once, after the loop\n"
    "# or hand them to another thread or process: y.to('cpu', non_blocking=True), an event, a queue",
    GAIN,
)

_SEE: Final = Remedy(
    "Find out what the host does there",
    "py-spy record --gil -- python train.py\n"
    "nsys profile --trace=cuda,nvtx,osrt --python-sampling=true python train.py\n"
    "# ranges: with torch.cuda.nvtx.range('data'): ...",
    "shows the function that takes the time",
)


class HostStall(Rule):
    """Idle time in which no launching thread was inside a CUDA call for far longer than it takes to issue work."""

    id = "host-stall"
    model = "host"
    located = "pauses"
    question = "Is the host busy or asleep for long outside CUDA calls while the GPU runs out of work?"
    limiter = "long pauses of the host between CUDA calls"
    cause = "host code with no CUDA call in flight (input pipeline, Python, garbage collection)"
    raised_when = "it costs 2 %. Informational where a host that never waits would hide it without the profiler"
    claimed = (
        "idle time while no launching thread made a CUDA call for ten times its usual interval, and at least 0.1 ms"
    )
    headline = "Limited by the host: for {share} of the time the GPU had no work while the host did other work"
    title = "The host is busy with other work, and the GPU runs out of work"
    evidence: ClassVar = {
        **IDLE_NS,
        **IDLE_SHARE,
        **LAUNCHES_BEHIND_NS,
        **GPU_BUSY_SHARE,
        "stalls_per_step": "pauses of the GPU while the host did other work",
        "longest_stall_ns": "pauses of the GPU while the host did other work",
        "stalls_apart_share": "of their time, in pauses as long as a hundred launches; given where that is most of it",
        "in_os_calls_share": "of those pauses, with the launching thread blocked in operating-system calls",
    }
    refutation = (
        "Leave that work out of a test run (the same batch in every step, no logging, gc.disable()): if the step "
        "takes as long as before, that work was not the limit."
    )

    waiting = Limit(0.5, "A host that waits in most steps starts each step with an idle GPU.")
    mostly = Limit(0.5, "A remedy is named only for what the host does in most of the time of its pauses.")
    kept_share = Limit(
        0.03,
        "A GPU or a dozen processes do what one thread did in a small part of its time; that, and handing the result "
        "over, stays. Of seven programs timed without these pauses none to 11 % of them stayed, 2 % in the median.",
    )
    handed_share = Limit(
        0.1,
        "What others prepare has to be handed over, and the GPU needs some time for what it does instead: of eleven "
        "programs timed without such pauses a tenth of them stayed in the median, whichever set is left out.",
    )
    moved_kept_share = Limit(
        0.01,
        "Work that moves to where its data are runs at the rate of the GPU's memory, which is that of a thread's a "
        "hundred times and more (10 GB/s and some).",
    )
    large_bytes = Limit(1 << 20, "A smaller copy takes a fraction of a stall, and is not a batch of data.")

    starting_title: ClassVar = (
        "The window holds long pauses of the host that belong to no step, such as start-up or compilation"
    )
    launches_long = Limit(
        100, "A pause as long as so many launches is other work, and not issuing that an interruption made longer."
    )
    results_bytes = Limit(1_024, "Fewer bytes are a loss, a count or a flag, and not what the host works on.")
    input_title: ClassVar = "The host is busy until it sends the next data to the GPU, which runs out of work"
    round_trip_title: ClassVar = "Data go from the GPU to the host, are worked on there, and come back"
    results_title: ClassVar = "The host works on results that it has read back, and the GPU runs out of work"
    between_title: ClassVar = "Between the steps the GPU gets nothing to do"
    headlines: ClassVar = {
        between_title: "Limited by what lies between the steps: for {share} of the time the GPU got no work there"
    }
    compiling_title: ClassVar = "The host compiles or loads code in the middle of the steps, and the GPU waits for it"
    steps_long = Limit(5, "A pause as long as several steps is start-up, compilation or evaluation.")

    def _starting(self, facts: Facts, stalls: pl.DataFrame, claimed_ns: int) -> bool:
        """Whether most of it are pauses that no step has, where no range says what a step is."""
        if facts.timeline.steps.source == "range" and facts.window.steps:
            return False
        length, loads = stalls["end_ns"] - stalls["start_ns"], _loads(facts, stalls)
        steps = [step.end_ns - step.start_ns for step in facts.window.steps]
        long = (
            (length > self.steps_long * float(np.median(steps))).to_numpy() if steps else np.zeros(len(loads), np.bool_)
        )
        return int(length.filter(pl.Series(loads | long, dtype=pl.Boolean)).sum()) > claimed_ns / 2

    def _apart(self, facts: Facts, spent: Float64s) -> float | None:
        """The share of their time in pauses far longer than a launch takes, where that is most of it; else None."""
        usual = facts.host.launches.interval_median_ns
        length = (facts.gaps["end_ns"] - facts.gaps["start_ns"]).to_numpy()
        apart = float(spent[length >= self.launches_long * usual].sum()) / max(spent.sum(), 1) if usual else 0.0
        return apart if apart >= self.mostly else None

    def _between_steps(self, facts: Facts, within: pl.Series, spent: pl.Series) -> bool:
        """Whether most of their time lies outside of all ranges, where the steps are ranges.

        The range of one step has ended then, and that of the next has not begun. Whether the host does anything there,
        or waits to be asked, no range says.
        """
        between = facts.timeline.steps.source == "range" and facts.phase is None
        return between and float(spent.filter(within.is_null()).sum()) > self.mostly * float(spent.sum())

    def _on_data(self, facts: Facts, claims: Claims) -> bool:
        """Whether most of these pauses end with a large blocking copy to the GPU, or follow one from it.

        What the host prepares, it sends; what it fetches, it looks at. Whoever moves such work to the GPU, or to other
        processes that pin what they prepare, gets rid of the copies as well.
        """
        if "blocking-copy" not in claims.causes or not claims.busy_ns("blocking-copy"):
            return False
        work = facts.copies.filter(pl.col("pageable") & (pl.col("bytes") >= self.large_bytes))
        label = work["label"].cast(pl.String)
        sent = np.sort(work.filter(label == "host-to-device")["start_ns"].to_numpy())
        if len(sent) and sent[0] == facts.window.start_ns:
            sent = np.r_[sent, facts.window.end_ns]  # steps begin with such a copy: the next one, too
        fetched = np.sort(work.filter(label == "device-to-host")["end_ns"].to_numpy())
        spent = claims.of_gaps(self.id).to_numpy()
        mine = np.flatnonzero(spent)
        spent, begins, ends = spent[mine], *(facts.gaps[name].to_numpy()[mine] for name in ("start_ns", "end_ns"))
        beside = np.isin(ends, sent) | np.isin(begins, fetched)
        return bool(spent[beside].sum() >= self.mostly * spent.sum())

    def _worked_on(self, facts: Facts, spent: Float64s) -> tuple[str, Remedy | None] | None:
        """What most of these pauses are about, and what to do, by the copies that they lie between; None for neither.

        A host that fetches something and sends something back works on it; else on what it has read, or will send.
        """
        copies = facts.copies.filter(pl.col("bytes") >= self.results_bytes)
        read = copies.filter(pl.col("label") == "device-to-host")["end_ns"].to_numpy()
        sent = copies.filter(pl.col("label") == "host-to-device")["start_ns"].to_numpy()
        if len(sent) and sent.min() == facts.window.start_ns:
            sent = np.r_[sent, facts.window.end_ns]
        mine = np.flatnonzero(spent)
        spent, pauses = spent[mine], facts.gaps.select("start_ns", "end_ns")[mine]
        behind, ahead = np.isin(pauses["start_ns"].to_numpy(), read), np.isin(pauses["end_ns"].to_numpy(), sent)
        kinds: tuple[tuple[Bools, str, Remedy | None], ...] = (
            (behind & ahead, self.round_trip_title, _ROUND_TRIP),
            (behind, self.results_title, _ON_RESULTS),
            (ahead, self.input_title, None),  # a pause before the next batch may be about anything
        )
        for which, title, remedy in kinds:
            if spent[which].sum() > self.mostly * spent.sum():
                return title, remedy
        return None

    def _there_and_back(self, facts: Facts) -> Float64s:
        """1 for the copies of what is worked on between two copies: done on the GPU, it need not leave it."""
        work = facts.work
        between = work["label"].cast(pl.String).is_in(["host-to-device", "device-to-host"])
        return (between & (work["bytes"] >= self.results_bytes)).fill_null(value=False).to_numpy().astype(np.float64)

    def _hidden(self, facts: Facts, claimed_ns: int) -> bool:
        """Whether a host that never waits for the GPU would hide these pauses behind its work without the profiler."""
        if facts.host.waits >= self.waiting * facts.steps:
            return False
        return facts.unprofiled_share * (facts.host_needed_ns - claimed_ns) + claimed_ns < facts.busy_ns

    def _in_operators(self, facts: Facts, within: pl.Series, spent: pl.Series, apart: float | None) -> bool:
        """Whether the host is inside of operators for most of the time of its pauses, which are not as long as others.

        In an operator that takes as long as a hundred launches, it may be at anything, such as collecting garbage.
        """
        times = time_by_range(facts, within, spent)
        inside = sum(time for name, time in times.items() if _is_plain_operator(name))
        return apart is None and bool(times) and inside >= self.mostly * float(spent.sum())

    def _instead(
        self, facts: Facts, within: pl.Series, spent: pl.Series, unknown: tuple[Remedy, ...]
    ) -> tuple[bool, tuple[Remedy, ...]]:
        """Whether names of ranges tell what the host does in most of the time of its pauses, and remedies that fit it.

        What they do not tell is `unknown`.
        """
        time_of: dict[tuple[Remedy, ...], int] = {}
        for name, time in time_by_range(facts, within, spent).items():
            activity = next((remedies for pattern, remedies in _ACTIVITIES if re.search(pattern, name, re.I)), None)
            if activity is not None and not _is_plain_operator(name):
                time_of[activity] = time_of.get(activity, 0) + time
        most = max(time_of, key=lambda activity: time_of[activity], default=unknown)
        named = time_of.get(most, 0) >= self.mostly * float(spent.sum())
        fitting = most if named else unknown
        gain = modelled(facts, "no-host-stall")
        return named, (*(replace(remedy, expected=remedy.expected.format(gain=gain)) for remedy in fitting), _SEE)

    def find(self, facts: Facts, claims: Claims) -> Finding | None:
        """The finding, if the window has it."""
        claimed = claims.idle_ns(self.id)
        spent = claims.of_gaps(self.id)
        stalls = facts.gaps.filter(spent > 0)
        waiting = _in_os_calls(facts, stalls)
        within, spent_in = _open_ranges(facts, stalls), spent.filter(spent > 0)
        starting = self._starting(facts, stalls, claimed)
        on_data = bool(claimed) and not starting and self._on_data(facts, claims)
        copies = claims.busy_ns("blocking-copy") if on_data else 0
        if copies > claimed:
            copies = 0  # then the copies are the cause, and the pauses what comes with them: another finding's
        changes: tuple[Change, ...] = ("no-host-stall", "overlapped-copies") if copies else ("no-host-stall",)
        found = self._worked_on(facts, spent.to_numpy()) if claimed and not starting else None
        title, fitting = found or ("", None)
        stays = self._there_and_back(facts) if title == self.round_trip_title else None
        kept = self.handed_share if title == self.input_title else self.kept_share
        kept = kept if stays is None else self.moved_kept_share
        fitting = fitting or (_ON_DATA if on_data else None)
        apart = self._apart(facts, spent.to_numpy())
        unknown: tuple[Remedy, ...] = (
            _IN_OPERATORS if self._in_operators(facts, within, spent_in, apart) else _UNKNOWN_ACTIVITY
        )
        unknown = _INPUT if title == self.input_title else unknown
        if claimed and not starting and spent_in.filter(pl.Series(_loads(facts, stalls))).sum() > claimed / 2:
            title, fitting, unknown = self.compiling_title, None, _COMPILING
        named, instead = self._instead(facts, within, spent_in, unknown)
        if not title and not named and self._between_steps(facts, within, spent_in):
            title = self.between_title
            named, instead = self._instead(facts, within, spent_in, _BETWEEN_STEPS)
        return self.raised(
            facts,
            claimed,
            title=self.starting_title if starting else title,
            confidence="low" if starting else "high" if facts.sure else "medium" if facts.window.steps else "low",
            evidence={
                **seen_idle(facts, claims, self.id),
                "gpu_busy_share": facts.busy_share,
                "stalls_per_step": stalls.height / facts.steps,
                "longest_stall_ns": int(spent.max() or 0) if spent.len() else None,  # type: ignore[arg-type]
                "stalls_apart_share": apart,
                "in_os_calls_share": waiting,
            },
            where=range_names(facts, within, spent_in),
            remedies=(
                *((STEPS_ONLY,) if starting else ()),
                *((fitting,) if fitting is not None else ()),
                *instead,
            ),
            issuing_ns=claims.issuing_ns.get(self.id, 0),
            informs=starting or self._hidden(facts, claimed),
            kept=kept,
            replayed=facts.replayed(*changes, time=stays, calls=stays, kept=kept) if claimed else None,
            busy_ns=copies if stays is None else int(facts.program.own_ns @ stays),
            # A host that does not stop can be ahead of the GPU, and hide all other pauses, too.
            bound_ns=facts.idle_ns + (copies if stays is None else int(facts.program.own_ns @ stays)),
            at_least=predicted(facts, "no-host-stall"),
            # What the host does there may take many times as long in another run, as collecting garbage does.
            bound_known=on_data or named,
        )


def _loads(facts: Facts, stalls: pl.DataFrame) -> Bools:
    """In which of these pauses the host loads code."""
    loading = code_loading(facts)
    begins, ends = stalls["start_ns"].to_numpy(), stalls["end_ns"].to_numpy()
    return np.asarray(measure_before(loading, ends) > measure_before(loading, begins), dtype=np.bool_)


def _is_plain_operator(name: str) -> bool:
    """An operator says what is computed, not what the host is at; but those of optimizers do."""
    return name.startswith("aten::") and not name.startswith(("aten::_foreach_", "aten::_fused_"))


def _in_os_calls(facts: Facts, stalls: pl.DataFrame) -> float | None:
    """Share of the stalls with the launching thread blocked in the operating system; None where not recorded."""
    thread = facts.host.launches.thread
    if "os_calls" not in facts.timeline.trace.capture.recorded or not stalls.height or thread is None:
        return None
    calls = facts.timeline.trace.os_calls.filter((pl.col("process") == thread[0]) & (pl.col("thread") == thread[1]))
    blocked = union(Intervals(calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy()))
    begins, ends = stalls["start_ns"].to_numpy(), stalls["end_ns"].to_numpy()
    inside = measure_before(blocked, ends) - measure_before(blocked, begins)
    return float(inside.sum() / max(1, (ends - begins).sum()))


def _open_ranges(facts: Facts, stalls: pl.DataFrame) -> pl.Series:
    """Row of the innermost range that is open on the launching thread in the middle of each stall; null for none."""
    thread, middle = facts.host.launches.thread, (stalls["start_ns"] + stalls["end_ns"]).to_numpy() // 2
    rows = np.full(len(middle), NO_RANGE, dtype=np.int64)
    if thread is not None and len(middle):
        process, of_thread = (np.full(len(middle), part, dtype=np.int64) for part in thread)
        rows, _ = facts.timeline.forest.attribute(process, of_thread, middle)
    return pl.Series("row", rows).to_frame().select(pl.when(pl.col("row") >= 0).then("row")).to_series()
