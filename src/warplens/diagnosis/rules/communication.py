"""Rules for communication between GPUs: exposed time, and too many small collectives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Final

import numpy as np
import polars as pl

from warplens.analysis.frames import Spent, duration_ns, largest
from warplens.analysis.intervals import Intervals, total, union
from warplens.analysis.ranks.collectives import bus_factor
from warplens.diagnosis.claims import Claims
from warplens.diagnosis.facts import Facts, kernel_names
from warplens.diagnosis.findings import GAIN, USUAL, Finding, Remedy, Variant, ceiling, percent
from warplens.diagnosis.rule import Limit, Rule, bound_of, bringing, first_of, gain_of, remembered
from warplens.diagnosis.rules.ranks import PACES, RanksRule, Straggler, gains_of, waited_share
from warplens.diagnosis.run import EXCHANGES, Run, run_of
from warplens.diagnosis.structure import backward_work, in_launch_order, micro_batches
from warplens.diagnosis.thresholds import Thresholds
from warplens.diagnosis.unprofiled import NOISE, Gain
from warplens.profile.schema import Bools, Float64s, Int64s

_NO_SYNC: Final = (
    "with model.no_sync(): model(x).backward()  # all but the last micro-batch; the forward pass inside, too"
)

#: Purpose of most of the exposed time → how to hide it, and how to reduce it.
_REMEDIES: Final[dict[str, tuple[Remedy, Remedy]]] = {
    "gradients": (
        Remedy(
            "Overlap it with the backward pass",
            "model = DistributedDataParallel(model, gradient_as_bucket_view=True, static_graph=True)\n"
            "# static_graph=True only if each step uses the same parameters of the model\n"
            "# FSDP: backward_prefetch=BackwardPrefetch.BACKWARD_PRE, forward_prefetch=True\n"
            "# fully_shard: block.set_modules_to_forward_prefetch([next_block])",
        ),
        Remedy(
            "Communicate less",
            f"{_NO_SYNC}\n# or in bfloat16, which rounds each gradient:\n"
            "model.register_comm_hook(dist.group.WORLD, default_hooks.bf16_compress_hook)",
        ),
    ),
    "parameters": (
        Remedy(
            "Gather the next parameters while these compute",
            "# FSDP: backward_prefetch=BackwardPrefetch.BACKWARD_PRE, forward_prefetch=True\n"
            "# fully_shard: block.set_modules_to_forward_prefetch([next_block])",
        ),
        Remedy(
            "Keep parameters gathered between forward and backward pass",
            "fully_shard(block, reshard_after_forward=False)  # if memory allows\n"
            "# FSDP: sharding_strategy=ShardingStrategy.SHARD_GRAD_OP; DeepSpeed: stage 2",
        ),
    ),
    "all_to_all": (
        Remedy(
            "Exchange rows while others are computed",
            "# embedding tables: torchrec's TrainPipelineSparseDist exchanges the next batch during this one\n"
            "# in sparse_data_dist the host waits for sizes before it issues more: newer torchrec waits a stage later\n"
            "# pooled rows: all dense layers that do not need them between the look-up and their first use\n"
            "# experts: split the batch in two, and compute one half while the other is exchanged\n"
            "# attention over parts of a sequence: queries are exchanged while keys and values are projected",
        ),
        Remedy(
            "Exchange fewer bytes",
            "# rows in bfloat16 or fp8: torchrec's QCommsConfig, DeepEP for experts\n"
            "# tables or experts that are used together: on one rank, or on one host",
        ),
    ),
    "send_recv": (
        Remedy(
            "Send one part while another is computed",
            "# a pipeline: more micro-batches than stages, so that one is computed while another is sent\n"
            "# a ring: dist.batch_isend_irecv of the next block before the work on this one, wait() after it",
        ),
        Remedy(
            "Send fewer bytes",
            "# 16 bits or fewer; in a ring, keys and values before they are repeated for heads",
        ),
    ),
    "layers": (
        Remedy(
            "Communicate for one part while another is computed",
            "torch._inductor.config._micro_pipeline_tp = True  # with torch.compile: overlaps sums and products\n"
            "# older versions need torch.distributed._symmetric_memory.enable_symm_mem_for_group(name) as well\n"
            "# or split the batch in two, and compute one half while the other is summed",
        ),
        Remedy(
            "Split each model over fewer GPUs",
            "# tensor parallel over as few GPUs as hold the model, and more copies of it\n"
            "# kernels for small sums inside a host (custom all-reduce of inference engines; symmetric memory)",
        ),
    ),
}

#: Purpose and format of most of the exposed time → how to reduce it, if the format matters.
_BY_FORMAT: Final[dict[tuple[str, str], Remedy]] = {
    ("gradients", "16 bits"): Remedy("Communicate less", _NO_SYNC),
    ("layers", "32 bits"): Remedy(
        "Sum in 16 bits",
        "part = part.to(torch.bfloat16)  # before dist.all_reduce(part); rounds each part",
    ),
}

_ONCE: Final = Remedy(
    "Reduce gradients with the last micro-batch only",
    f"{_NO_SYNC}\n"
    "# fully_shard: model.set_requires_gradient_sync(False), which keeps whole gradients in memory\n"
    "# accelerate: with accelerator.accumulate(model): …; Lightning: accumulate_grad_batches",
)


#: The sums of each micro-batch take this part of the time of the last ones at least: statistics of norms take less.
_LEAST_SUMS: Final = 0.5
#: Least share of sums that a forward pass waits for, if layers are split over GPUs.
_LEAST_OF_LAYERS: Final = 0.25


def _accumulated(facts: Facts) -> tuple[Bools, float]:
    """Sums of gradients that a later micro-batch of their step sums again, and micro-batches per step.

    Sums in forward passes belong to layers that are split over GPUs, which cannot wait.
    """
    program = facts.program
    again, counts = np.zeros(facts.work.height, dtype=np.bool_), []
    sums = program.having("label", "communication") & program.marked("summing")
    launched, lengths = facts.work["launch_start_ns"].fill_null(-1).to_numpy(), facts.lengths
    for rows in in_launch_order(facts) if sums.any() else ():
        work, collectives = rows[~sums[rows]], rows[sums[rows]]
        begins, ends = micro_batches(facts, work)
        if not len(begins):
            continue
        # Sums are issued while their backward pass is, or right after it.
        passes = np.searchsorted(launched[work[begins]], launched[collectives], side="right") - 1
        forward = np.r_[launched[work[(ends[:-1] + begins[1:]) // 2]], np.iinfo(np.int64).max]
        if not ((passes >= 0) & (launched[collectives] < forward[passes])).all():
            continue
        spent = np.bincount(passes, weights=lengths[collectives], minlength=len(begins))
        if spent.min() >= _LEAST_SUMS * spent[-1] > 0:
            again[collectives[passes < len(begins) - 1]] = True
            counts.append(len(begins))
    return again, float(np.mean(counts)) if counts else 1.0


def _of_layers(facts: Facts, claimed: Spent) -> bool:
    """Whether forward passes wait for much of the claimed work, as for the sums of layers that are split over GPUs.

    Half of such sums are of the backward pass; of gradients, those of a micro-batch's end alone come before a product.
    """
    program, backward = facts.program, backward_work(facts)
    sums = program.having("label", "communication") & program.marked("summing")
    in_forward, outside = program.products & ~backward, backward | program.optimizing
    needed = np.zeros(len(sums), dtype=np.bool_)
    for rows in in_launch_order(facts):
        places = np.flatnonzero(sums[rows])
        forward = np.r_[np.flatnonzero(in_forward[rows]), len(rows)]
        others = np.r_[np.flatnonzero(outside[rows]), len(rows)]
        needed[rows[places]] = forward[np.searchsorted(forward, places)] < others[np.searchsorted(others, places)]
    return bool(claimed.ns[needed[claimed.at]].sum() > _LEAST_OF_LAYERS * claimed.total)


def _kind(facts: Facts, claimed: Spent) -> str:
    """Purpose of most of the claimed work (key of `_REMEDIES`): exchanges by their kind, sums by the summed tensors."""
    run = run_of(facts)
    if run is not None:
        begins = facts.work["start_ns"].gather(np.arange(claimed.count)[claimed.at]).implode()
        collectives = (run.summary(rank).collectives for rank in run.ranks)
        rows = pl.concat([of_rank.filter(pl.col("start_ns").is_in(begins)) for of_rank in collectives])
        spent = rows.group_by(pl.col("kind").cast(pl.String)).agg(pl.col("exposed_ns").sum())
        most = spent.sort("exposed_ns", "kind", descending=[True, False])["kind"].head(1).to_list()
        if most and most[0] in _REMEDIES:
            return str(most[0])
    if not facts.trains or _of_layers(facts, claimed):
        return "layers"
    gathered = claimed.where(facts.program.marked("gathering")).total
    return "parameters" if 2 * gathered > claimed.total else "gradients"


def _alone_share(facts: Facts, claimed: Spent, which: Bools) -> float:
    """Share of the claimed time in which nothing runs but these pieces of work."""
    share = claimed.where(which).total / claimed.total
    if share == 1.0:
        return share
    alone = 0
    for device in facts.work["device"].unique():
        here = (facts.work["device"] == device).to_numpy()
        on_device = facts.work.select("start_ns", "end_ns").filter(here)
        others = facts.work.select("start_ns", "end_ns").filter(here & ~which)
        alone += total(union(Intervals.of(on_device))) - total(union(Intervals.of(others)))
    return min(share, alone / claimed.total)


def _format(facts: Facts, claimed: Spent) -> str:
    """`16 bits` or `32 bits`, if most of the claimed work sums such numbers; empty if its names do not tell."""
    for name, formats in (("16 bits", ("bf16", "fp16")), ("32 bits", ("fp32",))):
        if 2 * claimed.ns[facts.program.having("precision", *formats)[claimed.at]].sum() > claimed.total:
            return name
    return ""


def _most_ns(facts: Facts, rows: Int64s | slice, spent_ns: Int64s) -> int:
    """The largest sum of these times, one for each of these pieces of work, on a GPU."""
    spent = pl.DataFrame({"device": facts.work["device"].to_numpy()[rows], "spent": spent_ns})
    return largest(spent.group_by("device").agg(pl.col("spent").sum())["spent"])


@dataclass(frozen=True)
class _Exposed:
    """What exposed communication is spent on, and what could shorten it."""

    kind: str  #: purpose of most of it (key of `_REMEDIES`)
    format: str  #: of most of its sums (`_format`)
    removable_ns: int  #: without the waiting
    waited_ns: int  #: the waiting, which stays
    by_peers_ns: int  #: waiting for other ranks in one rank's profile
    in_turn: bool  #: whether it comes in every nth step, in which the program may also sum more
    #: hideable, fewer, sooner: shares of the claimed time that could be hidden, that half of the bytes (or gathering
    #: parameters once) save, and that a later micro-batch repeats
    hideable: float
    fewer: float
    sooner: float
    micro_batches: float  #: per step

    @property
    def most(self) -> float:
        """The largest share that a remedy saves."""
        return max(self.hideable, self.fewer, self.sooner)

    @property
    def is_waiting(self) -> bool:
        """Whether waiting for other ranks takes longer than any remedy for the communication itself saves."""
        return self.by_peers_ns > self.most * self.removable_ns

    @property
    def is_of_16_bits(self) -> bool:
        """Whether it sums gradients that have 16 bits already."""
        return (self.kind, self.format) == ("gradients", "16 bits")

    @property
    def sums_in_32_bits(self) -> bool:
        """Whether it sums layers in 32 bits, of which 16 are enough."""
        return (self.kind, self.format) == ("layers", "32 bits")


class ExposedCommunication(Rule):
    """Time of communication kernels during which no other kernel ran on their GPU."""

    id = "exposed-communication"
    question = "Do collectives run while nothing computes?"
    limiter = "exposed communication"
    cause = "collectives that are not overlapped with compute"
    raised_when = "it costs 2 %"
    claimed = "time in which only a collective ran, without waiting for a late rank"
    headline = "Limited by communication: for {share} of the time it runs while nothing computes"
    title = "Collectives run while nothing computes"
    beyond: ClassVar = Variant(
        f"{title}, beyond the waiting for a late rank",
        f"{headline}, beyond the waiting for a late rank",
    )
    peers: ClassVar = Variant(
        "Collectives wait for other ranks: in some steps they last far longer, and nothing computes",
        "Limited by waiting for other ranks: for {share} of the time a collective runs while nothing computes, and in "
        "some steps far longer than in others",
        "Record all ranks: if they arrive at these collectives at the same time, the network is the cause, or these "
        "steps sum more.",
    )
    repeated: ClassVar = Variant(f"{title}, after each of {{count}} micro-batches of a step")
    evidence: ClassVar = {
        "exposed_ns": "collectives with nothing else on the GPU, without waiting for a late rank",
        "exposed_share": "of the window",
        "exposed_of_their_time_share": "of their own time",
        "collectives_per_step": "exposed collectives",
        "most_exposed_gpu_share": "of the window, on the GPU with the most of it",
        "most_to_least_exposed_gpu_factor": "ratio of the most to the least exposed GPU",
        "unprofiled_host_share": "host time to issue the work without a profiler, if that limits the gain",
        "micro_batches_per_step": "backward passes whose gradients are summed, each before the next",
        "summed_again_share": "of the exposed time, sums that a later micro-batch repeats",
        "waiting_for_ranks_share": "of the exposed time of one rank, collectives beyond the lower quartile of the same "
        "ones of all steps, where they last more than twice as long",
    }
    refutation = (
        "Leave the exposed collectives out of one step (results are wrong then, times are not; for an exchange, a copy "
        "of a tensor of the output's size in its place; for gradients under DistributedDataParallel, model.no_sync() "
        "around forward and backward pass): "
        "if it does not get faster by the exposed time, something else is the limit."
    )
    precedence = "certain"

    transfer_factor = Limit(2.0, "Transfers of the same bytes over a shared network vary by less.")
    least_equal = Limit(6, "Of fewer steps, the quartile is that of one or two.")
    fewer_bytes = Limit(
        0.5, "Gradients reduced in bfloat16 are half of the bytes: half of the time of large collectives."
    )
    hidden_of_layers = Limit(
        0.5, "The next layer needs a layer's sum: of a batch in two halves, one at most is summed beside the other."
    )

    def claim(self, facts: Facts) -> Float64s | None:
        """Collectives."""
        part = self.part(facts)
        return facts.program.having("label", "communication").astype(np.float64) if part is None else part

    @remembered
    def part(self, facts: Facts) -> Float64s | None:
        """Collectives without the waiting, if that is for a late rank."""
        run, late = run_of(facts), Straggler().part(facts)
        if run is None or late is None:
            return None
        waited = waited_share(facts, run, run.result.waits.members, pl.col("exposed_wait_ns"))
        return np.where(facts.program.having("label", "communication"), 1 - np.maximum(waited, late), 0.0)

    def find(self, facts: Facts, claims: Claims) -> Finding | None:
        """The finding, if the window has it."""
        own_rows, is_late = claims.pieces(self.id).at, self.part(facts) is not None
        claims = claims.of(self.id)
        claimed = claims.busy_ns(self.id)
        if not claimed:
            return None
        kernels = facts.work.select("start_ns", "end_ns", "own_ns", "device", "label").filter(
            pl.col("label") == "communication"
        )
        # Completely hidden collectives own no time and are not in the table: the share is that of the exposed ones.
        duration = int((kernels["end_ns"] - kernels["start_ns"]).sum())
        by_device = kernels.group_by("device").agg(pl.col("own_ns").sum())["own_ns"]
        uneven = float(by_device.max()) / float(by_device.min()) if by_device.len() > 1 and by_device.min() else None  # type: ignore[arg-type]
        # Averages hide the GPU with the most of it, which bounds the gain, with the waiting in it.
        pieces = claims.pieces(self.id)
        most_ns = _most_ns(facts, pieces.at, pieces.ns) * by_device.len()
        bound_ns = _most_ns(facts, own_rows, facts.program.own_ns[own_rows]) * by_device.len()
        exposed = self._exposed(facts, claims, is_late=is_late)
        waits, sooner = exposed.is_waiting, exposed.sooner
        variant = first_of((waits, self.peers), (sooner, self.repeated), (is_late, self.beyond), default=USUAL)
        late = facts.unprofiled_host_ns > facts.busy_ns - exposed.most * exposed.removable_ns
        return self.raised(
            facts,
            exposed.by_peers_ns if waits else exposed.removable_ns,
            confidence=first_of(
                (not facts.window.steps or (waits and exposed.in_turn), "low"),
                (facts.sure and not waits, "high"),
                default="medium",
            ),
            evidence={
                "exposed_ns": claimed,
                "exposed_share": claimed / facts.wall_ns,
                "exposed_of_their_time_share": claimed / duration if duration else None,
                "collectives_per_step": kernels.height / facts.steps,
                "most_exposed_gpu_share": most_ns / facts.wall_ns if by_device.len() > 1 else None,
                "most_to_least_exposed_gpu_factor": uneven,
                "unprofiled_host_share": facts.unprofiled_host_ns / facts.wall_ns if late else None,
                "micro_batches_per_step": exposed.micro_batches if sooner else None,
                "summed_again_share": sooner or None,
                "waiting_for_ranks_share": exposed.by_peers_ns / claimed or None,
            },
            where=kernel_names(facts, claims.of_work(self.id)),
            title=variant.title.format(count=f"{exposed.micro_batches:,.0f}"),
            variant=variant,
            remedies=self._remedies(facts, exposed),
            on_gpu=True,
            residual_share=0.0 if waits else 1 - exposed.most,
            bound_ns=max(most_ns, bound_ns),
        )

    def _exposed(self, facts: Facts, claims: Claims, *, is_late: bool) -> _Exposed:
        """What the claimed time is spent on, and what could shorten it.

        Args:
            is_late: whether the claims are without the waiting for a late rank.
        """
        pieces, claimed = claims.pieces(self.id), claims.busy_ns(self.id)
        kind = _kind(facts, pieces)
        # Some versions of NCCL name all kernels alike: what is not named after gathering may be sums.
        sums = facts.program.having("label", "communication") & ~facts.program.marked("gathering")
        known = _format(facts, pieces.where(sums) if kind == "gradients" else pieces)
        hideable = self._hideable_ns(facts, claimed) / claimed
        by_peers, in_turn = self._by_peers(facts, pieces) if kind in ("gradients", "parameters") else (0, False)
        waited = 0 if is_late else self._waited_ns(facts, claims) or by_peers
        again, micro_batches = _accumulated(facts)
        sooner = int(pieces.ns[again[pieces.at]].sum()) / claimed
        fewer = 0.0 if (kind, known) == ("layers", "16 bits") else float(self.fewer_bytes)
        if kind == "gradients":
            fewer *= _alone_share(facts, pieces, sums)
        elif kind == "parameters":  # gathered in the forward pass, and again
            fewer = _alone_share(facts, pieces, facts.program.marked("gathering") & backward_work(facts))
        return _Exposed(
            kind,
            known,
            removable_ns=claimed - waited,
            waited_ns=waited,
            by_peers_ns=by_peers,
            in_turn=in_turn,
            hideable=min(hideable, self.hidden_of_layers) if kind == "layers" else hideable,
            fewer=fewer,
            sooner=sooner if sooner >= self.fewer_bytes else 0.0,  # otherwise most of it is something else
            micro_batches=micro_batches,
        )

    def _waited_ns(self, facts: Facts, claims: Claims) -> int:
        """Waiting in the claimed collectives that is not communication, if no rank stands out as late."""
        run = run_of(facts)
        if run is None:
            return 0
        share = waited_share(facts, run, run.result.waits.members, pl.col("exposed_wait_ns"))
        waited = claims.pieces(self.id).times(share).total
        if ceiling(facts.wall_ns, waited) < facts.thresholds.raise_ceiling:
            return 0  # the ranks need not be compared
        stays = sum(run.not_communication_ns(rank, late=False) for rank in run.ranks)
        return int(waited * stays / sum(map(run.waited_ns, run.ranks)))

    def _by_peers(self, facts: Facts, claimed: Spent) -> tuple[int, bool]:
        """Waiting for other ranks in one rank's claimed work: what equal collectives last longer in some steps.

        Also whether these are every nth step.

        Gradients and parameters have the same bytes in each step, in the same order. A rank that is late in every step
        shows only in profiles of several ranks.
        """
        run = run_of(facts)
        if run is not None and len(run.ranks) > 1:
            return 0, False
        program = facts.program
        rows = np.flatnonzero(claimed.whole() * (program.marked("summing") | program.marked("gathering")))
        frame = facts.work.select("start_ns", "device")[rows].with_columns(
            pl.Series("kind", program.launched_as(rows)),
            pl.Series("step", program.step[rows]),
            pl.Series("length", facts.lengths[rows]),
            pl.Series("claimed", claimed.whole()[rows]),
        )
        of_kind = ["kind", "device"]
        frame = frame.sort("start_ns").with_columns(
            place=pl.int_range(pl.len()).over(*of_kind, "step"), count=pl.len().over(*of_kind, "step")
        )
        usual = frame.filter(pl.col("step") > 0, pl.col("count") == pl.col("count").median().over(of_kind))
        equal = [*of_kind, "place"]
        transfer = pl.col("length").quantile(0.25).over(equal)
        waits = (pl.len().over(equal) >= self.least_equal) & (pl.col("length") > self.transfer_factor * transfer)
        long = usual.filter(waits)
        waited = int(usual.select(pl.when(waits).then((pl.col("claimed") - transfer).clip(0)).sum()).item() or 0)
        if ceiling(facts.wall_ns, waited) < facts.thresholds.raise_ceiling:
            return 0, False
        apart = np.diff(long["step"].unique().sort().to_numpy())
        return waited, len(apart) > 1 and bool((apart == apart[0]).all()) and int(apart[0]) > 1

    def _remedies(self, facts: Facts, exposed: _Exposed) -> tuple[Remedy | None, ...]:
        """What to do, each with the placeholder for its gain."""
        less, hidden = self._less(facts, exposed), self._hidden(facts, exposed)
        look = self._look(facts, exposed)
        is_less_first = exposed.fewer > exposed.hideable or exposed.sums_in_32_bits
        return (
            look if exposed.is_waiting else None,
            self._saving(facts, exposed, _ONCE, exposed.sooner) if exposed.sooner else None,
            *((less, hidden) if is_less_first else (hidden, less)),
            None if exposed.is_waiting else look,
        )

    def _saving(self, facts: Facts, exposed: _Exposed, remedy: Remedy, share: float, effect: str = "") -> Remedy:
        """The remedy with its gain if it saves this share of the removable time, and how it does so."""
        text = f"{GAIN}; {effect}" if effect else GAIN
        # Saved GPU time helps only until the host sets the pace, which issues the same work.
        if facts.unprofiled_host_ns > facts.busy_ns - share * exposed.removable_ns:
            needed = percent(facts.unprofiled_host_ns / facts.wall_ns)
            text += f"; the host then sets the pace: without a profiler it needs {needed} of this time"
        told = replace(remedy, expected=text)
        if share == exposed.most and not exposed.is_waiting:
            return told  # its gain is that of the finding
        gain = gain_of(facts, int(exposed.removable_ns * share), on_gpu=True)
        return bringing(told, Gain.exactly(gain), self.model)

    def _less(self, facts: Facts, exposed: _Exposed) -> Remedy | None:
        """How to communicate less; None if that is the same as `_ONCE`."""
        fewer = _BY_FORMAT.get((exposed.kind, exposed.format), _REMEDIES[exposed.kind][1])
        if exposed.sooner and exposed.is_of_16_bits:
            return None
        effect = "without gathering them again" if exposed.kind == "parameters" else ""
        if not exposed.fewer:
            return replace(fewer, expected=effect or "in proportion to the bytes, but each GPU then computes more")
        half = "sums" if exposed.is_of_16_bits else "bytes"
        effect = effect or f"with half of the {half}, and in proportion to them"
        return self._saving(facts, exposed, fewer, exposed.fewer, effect)

    def _hidden(self, facts: Facts, exposed: _Exposed) -> Remedy:
        """How to communicate beside compute."""
        beside, share = _REMEDIES[exposed.kind][0], exposed.hideable
        limited = "limited by the compute that can run beside it, which takes less time"
        if share >= self.fewer_bytes:
            effect = "one half of the batch beside the other" if exposed.kind == "layers" else ""
            if share == 1.0:
                effect = "the most that it can bring, if all of it hides"
            return self._saving(facts, exposed, beside, share, effect)
        if share >= exposed.fewer:
            return self._saving(facts, exposed, beside, share, limited)
        return replace(beside, expected=limited)

    def _look(self, facts: Facts, exposed: _Exposed) -> Remedy:
        """How to find the rank that others wait for, with its gain if the waiting is known to be for ranks."""
        is_exchange = bool(exposed.waited_ns) and exposed.kind in EXCHANGES
        look = Remedy(
            "Give every rank the same work between collectives" if is_exchange else "Look for a straggler",
            "warplens report RANK0 RANK1  # a collective lasts until the slowest rank arrives",
            "the waiting inside the collectives goes away",
        )
        if not exposed.by_peers_ns and not is_exchange:
            return look
        look = replace(look, expected=f"{GAIN}: {look.expected}")
        if exposed.is_waiting:
            return look  # its gain is that of the finding
        gain = gain_of(facts, exposed.waited_ns, on_gpu=True)
        return bringing(look, Gain.exactly(gain), self.model)

    def _hideable_ns(self, facts: Facts, exposed_ns: int) -> int:
        """How much of the exposed time could be hidden: compute on the same GPUs without a collective beside it."""
        compute, hidden = 0, -exposed_ns
        work = facts.work.select("device", "kind", "label", "start_ns", "end_ns", "own_ns")
        for device in work["device"].unique():
            on_device = work["device"] == device
            collective = on_device & (work["label"] == "communication")
            spans = work.filter(collective)
            hidden += total(union(Intervals.of(spans)))
            compute += int(work["own_ns"].filter(on_device & ~collective & (work["kind"] != "copy")).sum())
        return min(max(compute - hidden, 0), exposed_ns)


class UnbucketedCommunication(RanksRule):
    """Collectives that are dominated by latency and could be merged."""

    id = "unbucketed-communication"
    question = "Are gradients reduced one by one, in collectives dominated by latency?"
    limiter = "many small collectives"
    cause = "many small collectives per step, which could be merged into a few"
    raised_when = (
        "a step has 32 collectives of up to 1 MiB (if sizes are not recorded, of up to 50 µs) with only small "
        "work between them, or overlapped with compute; or a step has 100 collectives, and hosts that set the pace "
        "spend their time on preparing and issuing them; and it costs 2 %"
    )
    claimed = (
        "the exposed part of collectives that could be merged with a neighbour; for hosts that are busy with "
        "collectives, the share of pauses that larger units would remove"
    )
    headline = "Limited by small collectives: for {share} of the time one runs while nothing computes"
    evidence: ClassVar = {
        "small_collectives_per_step": "mergeable collectives that are small; per rank",
        "joinable_collectives_per_step": "collectives that could be merged with the one before or after; per rank",
        "collectives_per_step": "all collectives; per rank, and for busy hosts on the rank with the fewest",
        "joinable_bytes_per_step": "bytes that the mergeable ones carry; per rank",
        "floor_ns": "5th percentile of the duration of the small ones",
        "small_median_ns": "median duration of the small ones",
        "between_ns": "from one mergeable collective to the next, with only small work between; mean over the ranks",
        "exposed_ns": "mergeable collectives with nothing else on the GPU; mean over the ranks",
        "exposed_share": "the same, of the window",
        "most_exposed_rank_share": "the same on the rank with the most",
        "saved_of_exposed_share": "share of the mergeable ones' time that is latency, not bytes (Hockney's model)",
        "handling_ns_per_step": "host time in the framework's calls for collectives; mean over the ranks",
        "handling_share": "the same, of the host time to issue the work",
    }
    handled: ClassVar = Variant(
        "The hosts spend {share} of their time on preparing and issuing {count} collectives per step"
    )
    refutation = (
        "Reduce all gradients in one flat tensor, or shard the whole model as one unit: if the step takes as long as "
        "before, neither latency nor the hosts' calls were the cost of the collectives."
    )
    least_per_step = Limit(32, "A network of a few layers, FSDP by layers, or buckets of 25 MB have fewer.")
    small_bytes = Limit(1 << 20, "Up to 1 MiB, collectives reach a fifth of the bus bandwidth or less (nccl-tests).")
    small_ns = Limit(50_000, "For unrecorded sizes: an all-reduce of 1 MiB within a host takes 20 to 50 µs.")
    link_bytes_per_s = Limit(900e9, "The rate of NVLink 5 in each direction, the fastest link between GPUs.")
    handled_per_step = Limit(100, "FSDP by blocks of a deep network needs three for each block; so many are by layers.")
    least_handling_share = Limit(0.25, "Hosts that spend less of their time on collectives are late for other reasons.")
    host_factor = Limit(2.0, "Of modelled host times in programs that were timed, nine of ten are within this factor.")
    left_share = Limit(0.25, "Units of four layers need a quarter of the calls; a block of a transformer has as many.")

    def _joinable(self, run: Run) -> dict[int, pl.DataFrame]:
        """By rank, the collectives that could be merged with a neighbour, and which are `small`; {} if too few are."""
        by_rank = {}
        for rank in run.ranks:
            summary = run.summary(rank)
            rows = summary.collectives.filter("in_window", ~pl.col("kind").is_in(["send_recv", "barrier"]))
            length = duration_ns()
            small = (
                pl.when(pl.col("size_bytes").is_null())
                .then(length <= self.small_ns)
                .otherwise(pl.col("size_bytes") <= self.small_bytes)
            )
            is_joinable = pl.col("joinable") | pl.col("joinable").shift(-1).fill_null(value=False)
            joinable = rows.filter(is_joinable).with_columns(small.alias("small"))
            if int(joinable["small"].sum()) >= self.least_per_step * max(1, len(summary.window.steps)):
                by_rank[rank] = joinable
        return by_rank if len(by_rank) == len(run.ranks) else {}

    def claim(self, facts: Facts) -> Float64s | None:
        """1 for these collectives."""
        run = run_of(facts)
        joinable = self._joinable(run) if run is not None else {}
        if not joinable:
            return None
        begins = np.unique(np.concatenate([rows["start_ns"].to_numpy() for rows in joinable.values()]))
        collectives = np.flatnonzero(facts.program.having("label", "communication"))
        share = np.zeros(facts.work.height)
        share[collectives] = np.isin(facts.work["start_ns"].to_numpy()[collectives], begins)
        return share

    def claim_gaps(self, facts: Facts) -> Float64s | None:
        """For hosts that are busy with collectives, the share of all pauses that larger units remove."""
        run = run_of(facts)
        share = self._handling_share(run) if run is not None else 0.0
        return np.full(facts.gaps.height, (1 - self.left_share) * share) if share else None

    def headline_of(self, finding: Finding) -> str:
        """The headline; none for hosts that are busy with collectives, whose pauses are not told apart."""
        return "" if finding.variant == self.handled else self.headline

    def makes_launches(self, finding: Finding) -> bool:
        """True for hosts that are busy with collectives: no graph captures what a framework does around them."""
        return finding.variant == self.handled

    def across(self, run: Run, limits: Thresholds) -> Finding | None:
        """The finding, if the run has it."""
        joinable = self._joinable(run)
        if not joinable:
            return self._handled(run, limits)
        exposed = {rank: int(rows["exposed_ns"].sum()) for rank, rows in joinable.items()}
        if ceiling(round(run.wall_ns), sum(exposed.values()) / len(exposed)) < limits.raise_ceiling:
            return None
        issued, most = self._issued(run, {rank: facts.chained_ns for rank, facts in run.ranks.items()})
        collectives = pl.concat(joinable.values())
        length = (collectives["end_ns"] - collectives["start_ns"]).to_numpy()
        small = length[collectives["small"].to_numpy()]
        floor = float(np.quantile(small, 0.05))
        # t = α + S / β (R. Hockney, "The communication challenge for MPP", Parallel Computing 20, 1994): the time of
        # each beyond the floor α is that of its bytes and its waiting.
        saved_share = 1 - float(np.maximum(length - floor, 0).sum() / max(length.sum(), 1))
        shares = run.shares(exposed).values()
        sizes = collectives["size_bytes"]
        known = sizes.null_count() == 0
        # Work between two of them, such as scaling one gradient, becomes one pass over all of them.
        with_work_between = {rank: float(spent + _between_ns(joinable[rank])) for rank, spent in exposed.items()}
        bound = max(
            bound_of(
                run.ranks[rank],
                max(spent - self._at_link(joinable[rank]), 0.0),
                run.ranks[rank].before_communication_ns,
            )
            for rank, spent in with_work_between.items()
        )
        ranks, steps = len(joinable), run.steps
        kinds = collectives["kind"].cast(pl.String).value_counts(sort=True)["kind"].to_list()
        per_step = len(small) / ranks / steps
        transferred = gains_of(run.ranks, with_work_between, 1 - saved_share)
        return self.costing(
            limits,
            # Merged collectives take less time on the GPU, and their host issues fewer: the larger gain counts.
            tuple(map(max, sorted(transferred), sorted(issued))),
            sure=run.sure,
            bound=max(bound, most),
            title=f"There are {per_step:,.0f} small collectives per step, which could be merged into a few",
            confidence="high" if known and run.sure else "medium" if run.sure else "low",
            evidence={
                "small_collectives_per_step": per_step,
                "joinable_collectives_per_step": collectives.height / ranks / steps,
                "collectives_per_step": sum(_in_window(run, rank) for rank in run.ranks) / ranks / steps,
                "joinable_bytes_per_step": int(sizes.sum()) / ranks / steps if known else None,
                "floor_ns": floor,
                "small_median_ns": float(np.median(small)),
                "between_ns": (sum(with_work_between.values()) - sum(exposed.values())) / ranks,
                "exposed_ns": sum(exposed.values()) / ranks,
                "exposed_share": sum(shares) / ranks,
                "most_exposed_rank_share": max(shares),
                "saved_of_exposed_share": saved_share,
            },
            where=tuple(kinds[:3]),
            remedies=(
                Remedy(
                    "Reduce the gradients in buckets, overlapped with the backward pass",
                    "model = DistributedDataParallel(model, bucket_cap_mb=25, gradient_as_bucket_view=True)\n"
                    "# instead of an all_reduce for each parameter; if it is used already: a larger bucket_cap_mb",
                ),
                Remedy(
                    "Merge small collectives into one call",
                    "grads = [p.grad for p in parameters]\n"
                    "flat = torch.cat([grad.flatten() for grad in grads])\n"
                    "dist.all_reduce(flat); flat /= dist.get_world_size()\n"
                    "parts = flat.split([grad.numel() for grad in grads])\n"
                    "torch._foreach_copy_(grads, [part.view_as(grad) for part, grad in zip(parts, grads)])",
                ),
                Remedy(
                    "Communicate less often",
                    "with model.no_sync(): model(x).backward()  # all but the last micro-batch, forward pass inside",
                    "in proportion to the collectives saved",
                ),
            ),
        )

    def _per_step(self, run: Run) -> float:
        """Collectives per step on the rank with the fewest."""
        return min(_in_window(run, rank) for rank in run.ranks) / run.steps

    def _handling_share(self, run: Run) -> float:
        """Share of the host time that collectives take, mean over the ranks; 0 if it is small or unknown."""
        stepless = any(not summary.window.steps for summary in run.result.summaries)
        if stepless or self._joinable(run) or self._per_step(run) < self.handled_per_step:
            return 0.0
        shares = [facts.handling_ns / max(facts.host_ns, 1) for facts in run.ranks.values()]
        share = min(sum(shares) / len(shares), 1.0) if all(shares) else 0.0
        return share if share >= self.least_handling_share else 0.0

    def _issued(self, run: Run, spent_ns: Mapping[int, int]) -> tuple[tuple[float, float, float], float]:
        """Gain if the hosts, of which the slowest sets the pace, spend less time on collectives, and its bound.

        Args:
            spent_ns: by rank, what they spend on collectives that larger units would replace.
        """
        slowest = max(run.ranks, key=lambda rank: run.ranks[rank].host_ns)
        host, spent = run.ranks[slowest], spent_ns[slowest]

        def gain_at(pace: float, left: float, times: float = 1.0) -> float:
            return host.host_gain(host.paced(pace), min((1 - left) * spent * times, host.host_ns))

        expected = float(np.mean([gain_at(pace, self.left_share) for pace in PACES]))
        # Without any of these calls, whether the profiler made them longer or not; host times differ from run to run.
        bound = max(
            1 + (facts.host_gain(pace, min(spent_ns[rank], facts.host_ns)) - 1) * NOISE
            for rank, facts in run.ranks.items()
            for pace in (1.0, facts.unprofiled_share)
        )
        low = gain_at(0.0, 2 * self.left_share, 1 / self.host_factor)
        high = min(gain_at(1.0, self.left_share / 2, self.host_factor), bound)
        return (min(low, expected), expected, max(expected, high)), max(bound, expected)

    def _handled(self, run: Run, limits: Thresholds) -> Finding | None:
        """The finding for hosts that are busy with the collectives of many small units."""
        share = self._handling_share(run)
        if not share:
            return None
        gains, bound = self._issued(run, {rank: facts.handling_ns for rank, facts in run.ranks.items()})
        if gains[1] < limits.raise_ceiling:
            return None
        count = self._per_step(run)
        return self.costing(
            limits,
            gains,
            sure=run.sure,
            bound=bound,
            title=self.handled.title.format(share=percent(share), count=f"{count:,.0f}"),
            variant=self.handled,
            confidence="high" if run.sure else "medium",
            evidence={
                "collectives_per_step": count,
                "handling_ns_per_step": sum(facts.handling_ns for facts in run.ranks.values())
                / len(run.ranks)
                / run.steps,
                "handling_share": share,
            },
            where=(),
            remedies=(
                Remedy(
                    "Shard or reduce larger units",
                    "for block in model.blocks: fully_shard(block)  # each block, not each layer in it\n"
                    "fully_shard(model)  # and then the optimizer\n"
                    "# DistributedDataParallel: a larger bucket_cap_mb",
                ),
                Remedy(
                    "Keep parameters gathered between forward and backward pass",
                    "fully_shard(block, reshard_after_forward=False)  # if memory allows",
                    "a third of the collectives of FSDP",
                ),
                Remedy(
                    "Communicate less often",
                    "model.set_requires_gradient_sync(False)  # FSDP, all but the last micro-batch\n"
                    "# it keeps whole gradients in memory; DDP: model.no_sync() around forward and backward pass",
                    "in proportion to the collectives saved",
                ),
            ),
        )

    def _at_link(self, rows: pl.DataFrame) -> float:
        """Nanoseconds that their bytes take on the fastest existing link; 0 if no sizes are recorded."""
        sizes = (
            rows.filter(pl.col("size_bytes").is_not_null())
            .group_by("kind", "group_size")
            .agg(pl.col("size_bytes").sum())
        )
        moved = sum(size * (bus_factor(str(kind), ranks) or 0.0) for kind, ranks, size in sizes.iter_rows())
        return float(moved / self.link_bytes_per_s * 1e9)


def _in_window(run: Run, rank: int) -> int:
    return int(run.summary(rank).collectives["in_window"].sum())


def _between_ns(rows: pl.DataFrame) -> int:
    """Time between successive collectives of which the first ran alone."""
    alone = pl.col("exposed_ns") == duration_ns()
    pause = (pl.col("start_ns") - pl.col("end_ns").shift(1)).clip(0)
    return int(rows.select(pause.filter(pl.col("joinable") & alone.shift(1)).sum()).item() or 0)
