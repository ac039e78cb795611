"""Rules for a process that drives several GPUs, which wait for each other: uneven work, turns, replicas of a model."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import polars as pl

from warplens.diagnosis.claims import Claims
from warplens.diagnosis.devices import IN_TURN, REPLICATED, UNEVEN, Sharing
from warplens.diagnosis.evidence import needed_ns
from warplens.diagnosis.facts import Facts
from warplens.diagnosis.findings import GAIN, ISSUING, MANY, USUAL, Basis, Finding, Remedy, Variant, ceiling, times
from warplens.diagnosis.replicas import BETWEEN
from warplens.diagnosis.rule import Limit, bringing, first_of, interval_of
from warplens.diagnosis.rules.ranks import RanksRule
from warplens.diagnosis.unprofiled import NOISE, Gain
from warplens.profile.schema import Float64s


class GpusRule(RanksRule):
    """A cause that shows between the GPUs of one process, in the pauses of `warplens.diagnosis.devices`."""

    located = None

    def find(self, facts: Facts, claims: Claims) -> Finding | None:
        """The finding, if the window has it: on the process whose GPUs wait the longest."""
        found = [each for each in facts.sharings if each.cause == self.id]
        waited = claims.idle_ns(self.id)
        if not found or ceiling(facts.wall_ns, waited) < facts.thresholds.raise_ceiling:
            return None
        return self._of(facts, max(found, key=lambda each: each.waits.total), waited)

    def _of(self, facts: Facts, sharing: Sharing, waited_ns: int) -> Finding:
        raise NotImplementedError


class UnevenGpus(GpusRule):
    """The busiest GPU of a process sets the pace, and the others are idle for the rest of its work."""

    id = UNEVEN
    question = "Does one GPU of a process have more work than the others, which wait for it?"
    limiter = "uneven work over the GPUs of one process"
    cause = "one GPU of a process with more work than the others: unequal parts, or loss and update on one of them"
    raised_when = (
        "the waiting of the other GPUs is worth 2 % of the time of all of them. Informational if they have less than a "
        "hundredth of the busiest one's work"
    )
    claimed = (
        "idle time of the other GPUs while the busiest one works, up to the difference of their busy times; no finding "
        "on the host claims it"
    )
    headline = (
        "Limited by uneven work over the GPUs of one process: of the time of all GPUs, {share} goes into waiting for "
    )
    evidence: ClassVar = {
        "gpus_count": "GPUs of the process",
        "most_to_others_factor": "busy time of the busiest GPU over the mean of the others",
        "busiest_busy_share": "of the window, on the busiest GPU: no change of the host brings more than its inverse",
        "waiting_ns_per_step": "idle time of the other GPUs that its additional work explains, sum over GPUs",
        "waiting_share": "the same, of the time of all GPUs",
    }
    refutation = (
        "Give the busiest GPU half of its work: if the step takes as long as before, it did not set the pace, and this "
        "is the host."
    )

    least_share = Limit(
        0.01, "A GPU with less work than this share of the busiest one's holds a stray tensor or a test."
    )

    def headline_of(self, finding: Finding) -> str:
        """The headline, with the busiest GPU."""
        factor = finding.evidence["most_to_others_factor"]
        return f"{self.headline}{finding.where[0]}, which has {factor:,.3g} times the work of the others"

    def _of(self, facts: Facts, sharing: Sharing, waited_ns: int) -> Finding:
        busiest, *others = sharing.busy_ns
        factor = busiest / max(sum(others) / len(others), 1.0)
        gpu, shares_work = f"GPU {sharing.devices[0]}", self.least_share * factor <= 1
        expected = self._gain(facts, sharing, 1.0, waited_ns, facts.unprofiled_share)
        # The host may be as slow as recorded: then it may set the pace as soon as the work is even.
        slow, as_recorded = (self._gain(facts, sharing, part, waited_ns, 1.0) for part in (0.5, 1.0))
        return self.costing(
            facts.thresholds,
            (slow, expected, expected),
            sure=facts.sure,
            bound=ceiling(facts.wall_ns, waited_ns),
            title=f"{gpu} has {factor:,.3g} times the work of the other GPUs of its process, which wait for it",
            confidence="high" if facts.sure and shares_work and as_recorded >= expected else "medium",
            warning=None if shares_work else math.inf,
            evidence={
                "gpus_count": len(sharing.devices),
                "most_to_others_factor": factor,
                "busiest_busy_share": busiest / facts.window.duration_ns,
                "waiting_ns_per_step": waited_ns / facts.steps,
                "waiting_share": waited_ns / facts.wall_ns,
            },
            where=(gpu,),
            remedies=(
                Remedy(
                    "Give every GPU the same work",
                    "# equal parts of the batch for every GPU, or layers dealt out by their time instead of their size",
                    f"{GAIN}: all GPUs take the mean time",
                ),
                Remedy(
                    "Start one process for each GPU",
                    f"torchrun --nproc-per-node={len(sharing.devices)} program.py\n"
                    "model = DistributedDataParallel(model, device_ids=[int(os.environ['LOCAL_RANK'])])\n"
                    "# instead of torch.nn.DataParallel; for inference, each process has a part of the inputs",
                    "each GPU has its own loss, gradients and update, and its own host",
                ),
                Remedy(
                    "Move the loss and what is gathered off the busiest GPU",
                    "# nn.DataParallel gathers all outputs there: return the loss from forward(), then loss.mean()",
                    "what every GPU can do with its own part need not wait for one of them",
                ),
            ),
        )

    def _gain(self, facts: Facts, sharing: Sharing, part: float, waited_ns: int, host_share: float) -> float:
        """Speed-up if this part of the waiting goes away; a host that sets the pace then still does.

        Args:
            host_share: of the host's recorded time for issuing work, without the profiler.
        """
        if facts.phase is not None:
            return ceiling(facts.wall_ns, part * waited_ns)
        saved_ns = part * (sharing.busy_ns[0] - sharing.evened_ns)
        busiest = sharing.devices[0]
        work = facts.work.filter(pl.col("device") == busiest)
        of_gpu = (facts.gaps["device"] == busiest).to_numpy()
        idle = {cause: spent.where(of_gpu).total for cause, spent in facts.causes.items()}
        other = sum(spent for cause, spent in idle.items() if cause not in (*ISSUING, "submission", "profiler"))
        host = host_share * needed_ns(facts.host, work, np.zeros(work.height, dtype=np.int32))
        host = min(host, facts.window.duration_ns - other)
        before, after = (max(sharing.busy_ns[0] - saved, host) + other for saved in (0.0, saved_ns))
        return before / max(after, 1.0)


class GpusInTurn(GpusRule):
    """Each GPU of a process works while the others wait for it, as stages of a pipeline without micro-batches."""

    id = IN_TURN
    question = "Do the GPUs of one process take turns, so that one waits while another works?"
    limiter = "GPUs of one process that take turns"
    cause = "GPUs of one process that take turns: layers spread over GPUs (`device_map='auto'`) without micro-batches"
    raised_when = (
        "GPUs work for 5 % of the window or more while the busiest one is idle, and each spends half of its idle time "
        "while others work with queued work, or with a host that waits for another GPU"
    )
    claimed = "idle time of a GPU while another GPU of its process works; no finding on the host claims it"
    headline = "Limited by GPUs that take turns: of the time of all GPUs, {share} goes into waiting for another one"
    title = "The GPUs of one process take turns: while one works, the others wait for it"
    waited: ClassVar = Variant("The GPUs of one process take turns: the host waits for one before it uses another")
    filling: ClassVar = Variant(
        "The GPUs of one process are a pipeline, and wait for each other while it fills and drains",
        "Limited by a pipeline that fills and drains: of the time of all GPUs, {share} goes into waiting for another "
        "one",
    )
    evidence: ClassVar = {
        "gpus_count": "GPUs of the process",
        "gpus_at_once_count": "GPUs that work at the same time, the mean while any works",
        "busiest_busy_share": "of the window, on the busiest GPU",
        "peer_copies_per_step": "copies from one GPU to another",
        "waiting_ns_per_step": "idle time of GPUs while another one of the process works, sum over GPUs",
        "waiting_share": "the same, of the time of all GPUs",
    }
    refutation = (
        "Run two halves of the batch, the second one issued before the first is waited for: if they take as long as "
        "the whole batch did, the GPUs did not wait for each other."
    )
    overlapping = Limit(1.1, "GPUs that take turns overlap by no more than the copies between them.")
    kept_share = Limit(0.25, "Four times as many micro-batches leave a quarter of the time in which a pipeline fills.")

    def _of(self, facts: Facts, sharing: Sharing, waited_ns: int) -> Finding:
        count = len(sharing.devices)
        # Of the waiting, this part is not due to uneven work.
        part = count * sharing.together_ns / max(sharing.waits.total, 1)

        def gain(kept: float) -> float:
            return ceiling(facts.wall_ns, (1 - kept) * part * waited_ns)

        of_process = facts.work.filter(pl.col("device").is_in(sharing.devices))
        copies = int((of_process["label"] == "peer-to-peer").sum()) / facts.steps
        at_once = sum(sharing.busy_ns) / max(sharing.any_busy_ns, 1)
        by_host = copies < 1 and facts.waits_inside
        return self.costing(
            facts.thresholds,
            (gain(0.5), gain(0.0 if by_host else self.kept_share), gain(0.0)),
            sure=facts.sure,
            bound=gain(0.0),
            variant=first_of((by_host, self.waited), (at_once >= self.overlapping, self.filling), default=USUAL),
            confidence="high" if facts.sure and (copies >= 1 or by_host) else "medium",
            evidence={
                "gpus_count": count,
                "gpus_at_once_count": at_once,
                "busiest_busy_share": sharing.busy_ns[0] / facts.window.duration_ns,
                "peer_copies_per_step": copies,
                "waiting_ns_per_step": waited_ns / facts.steps,
                "waiting_share": waited_ns / facts.wall_ns,
            },
            where=tuple(f"GPU {device}" for device in sharing.devices[:3]),
            remedies=(
                first_of(
                    (
                        by_host,
                        Remedy(
                            "Issue the work of all GPUs before waiting for one of them",
                            "outs = [model(x) for model, x in zip(models, parts)]  # no .item(), .cpu() in here\n"
                            "results = [out.cpu() for out in outs]",
                            f"{GAIN}: they all work at the same time",
                        ),
                    ),
                    default=Remedy(
                        "Split the batch into micro-batches that follow each other through the GPUs",
                        f"torch.distributed.pipelining.ScheduleGPipe(stage, n_microbatches={4 * count})\n"
                        "# or in one process: issue all parts of the batch one after the other, then wait once",
                        f"{GAIN}: a quarter of the waiting stays, while the parts still fill the GPUs",
                    ),
                ),
                Remedy(
                    "Use tensor or data parallelism",
                    "# every GPU holds a part of each layer: torch.distributed.tensor.parallel.parallelize_module\n"
                    f"# vLLM: --tensor-parallel-size {count}\n"
                    "# or the whole model and a part of the batch: DistributedDataParallel, fully_shard",
                    f"at most {times(gain(0.0))}: all GPUs work at the same time",
                ),
                Remedy(
                    "Use one GPU if the model fits",
                    "model.to('cuda:0')  # instead of device_map='auto'; in 16 or 8 bits if memory is short",
                    "as fast as now, without the copies, and the other GPUs are free",
                ),
            ),
        )


class DataParallelThreads(GpusRule):
    """One process copies its model onto several GPUs in each step, and a thread for each launches (`nn.DataParallel`).

    The model of the gain is in `warplens.diagnosis.replicas`.
    """

    id = REPLICATED
    question = "Does one process copy its model onto several GPUs in each step, with a thread for each of them?"
    limiter = "threads of one process that launch the replicas of a model"
    cause = (
        "`nn.DataParallel`: the model is copied onto every GPU in each step, and threads of one process, which need "
        "the interpreter's lock, launch the replicas"
    )
    raised_when = (
        "one thread launches NCCL's broadcasts onto all GPUs of its process in each step, and other threads at least "
        "half of the work of each GPU; the time is worth 2 %"
    )
    claimed = (
        "copies of the model and copies between GPUs; idle time from the first copy to the end of the replicas' work, "
        "and while another GPU works, as far as one process for each GPU would not have it"
    )
    headline = (
        "Limited by threads of one process that launch the replicas of a model (nn.DataParallel): of the time of all "
        "GPUs, {share} goes into copies of the model and waiting"
    )
    title = "One process copies the model onto all GPUs in each step, and its threads launch in turn (nn.DataParallel)"
    evidence: ClassVar = {
        "gpus_count": "GPUs of the process",
        "replications_per_step": "how often the model is copied onto the GPUs",
        "busiest_own_share": "of the window, on the busiest GPU, without copies of the model and between GPUs",
        "host_needed_ns_per_step": "recorded host time between the launches of one GPU, without long pauses",
        "copying_ns_per_step": "broadcasts and sums by NCCL and copies between GPUs, sum over GPUs",
        "waiting_ns_per_step": "idle time that a process for each GPU would not have, sum over GPUs",
        "waiting_share": "the same, of the time of all GPUs",
    }
    refutation = (
        "Run the whole batch on one GPU, without nn.DataParallel: if the step takes nearly as many times as long as "
        "there are GPUs, the replicas do work at the same time, and the cause is another one."
    )

    def claim(self, facts: Facts) -> Float64s | None:
        """What is copied between the GPUs of such a process."""
        devices = [device for each in facts.sharings if each.cause == self.id for device in each.devices]
        if not devices:
            return None
        between = facts.program.having("label", *BETWEEN) & facts.work["device"].is_in(devices).to_numpy()
        return np.asarray(between, dtype=np.float64)

    def _of(self, facts: Facts, sharing: Sharing, waited_ns: int) -> Finding:
        replicas, count = sharing.replicas, len(sharing.devices)
        assert replicas is not None
        copied_ns = facts.own_ns(pl.col("label").is_in(BETWEEN) & pl.col("device").is_in(sharing.devices))
        usual = facts.unprofiled_share
        paces = (usual, min(usual * NOISE, 1.0), usual / NOISE)
        gains = [replicas.now_ns(pace) / max(replicas.apart_ns(pace), 1.0) for pace in paces]
        idle_ns = replicas.duration_ns - sharing.busy_ns[sharing.devices.index(replicas.device)]
        longest_ns = replicas.duration_ns + (NOISE - 1) * idle_ns  # pauses of the host differ from run to run
        bound = longest_ns / max(replicas.own_ns, 1)
        alone = [max(replicas.now_ns(pace) / max(replicas.alone_ns(pace), 1.0), 1.0) for pace in paces]
        alone_most = max(*alone, longest_ns / max(replicas.alone_ns(1.0), 1.0))
        if facts.phase is not None:
            gains = [ceiling(facts.wall_ns, waited_ns + copied_ns)] * 3
            bound = gains[0]
        expected = min(gains[0], MANY)
        low, high = interval_of(Basis("host", min(gains), max(gains)), max(bound, expected))
        return self.costing(
            facts.thresholds,
            (low, expected, high),
            sure=facts.sure,
            bound=bound,
            confidence="high" if facts.sure else "medium",
            evidence={
                "gpus_count": count,
                "replications_per_step": replicas.replications / facts.steps,
                "busiest_own_share": replicas.own_ns / replicas.duration_ns,
                "host_needed_ns_per_step": replicas.host_ns / facts.steps,
                "copying_ns_per_step": copied_ns / facts.steps,
                "waiting_ns_per_step": waited_ns / facts.steps,
                "waiting_share": waited_ns / facts.wall_ns,
            },
            where=tuple(f"GPU {device}" for device in sharing.devices[:3]),
            remedies=(
                Remedy(
                    "Start one process for each GPU",
                    f"torchrun --nproc-per-node={count} program.py\n"
                    + (
                        "model = DistributedDataParallel(model, device_ids=[int(os.environ['LOCAL_RANK'])])\n"
                        "# each process has its part of the batch: DataLoader(…, sampler=DistributedSampler(data))"
                        if facts.trains
                        else "torch.cuda.set_device(int(os.environ['LOCAL_RANK']))\n"
                        f"inputs = inputs[int(os.environ['RANK'])::{count}]  # each process has a part of them"
                    ),
                    f"{GAIN}: the model stays on every GPU, and each has its own interpreter",
                ),
                bringing(
                    Remedy(
                        "Use one GPU for the whole batch, if it fits",
                        f"model = model.to('cuda:{sharing.devices[0]}')  # without nn.DataParallel",
                        f"{GAIN}: no copies and no second thread; the other GPUs are free",
                    ),
                    Gain(alone[0], min(alone), alone_most),
                ),
            ),
        )
