"""Rule for optimizers that update one tensor at a time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar, Final, Literal, TypeAlias

import numpy as np
import polars as pl

from warplens.analysis.intervals import Intervals, union
from warplens.analysis.kernel_names import PASSES
from warplens.diagnosis.claims import Claims
from warplens.diagnosis.evidence import is_unfused, optimizer_work, time_inside
from warplens.diagnosis.facts import Facts, kernel_names
from warplens.diagnosis.findings import GAIN, USUAL, Finding, Remedy, Variant
from warplens.diagnosis.rule import (
    IDLE_NS,
    LAUNCHES_PER_STEP,
    Limit,
    Rule,
    ahead_without,
    bringing,
    remembered,
)
from warplens.diagnosis.structure import backward_work, started_share
from warplens.diagnosis.unprofiled import Gain
from warplens.profile.schema import Bools, Float64s, rows_named

#: Begin and end of PyTorch's name of the range around an optimizer's step; its class lies between them.
_STEP_OF: Final = re.compile(r"^Optimizer\.step#(\w+)\.step$")

#: Optimizers of torch.optim that take `fused=True` on a GPU, and the others that take `foreach=True`.
_WITH_FUSED: Final = ("Adam", "AdamW", "SGD")
_WITH_LISTS: Final = (
    *_WITH_FUSED, "Adadelta", "Adafactor", "Adagrad", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop",
)  # fmt: skip

#: Those with `capturable=True`; the others of torch.optim keep nothing on the host, or cannot be captured.
_WITH_CAPTURABLE: Final = ("Adadelta", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop")

#: For fused optimizers with another loop over the parameters.
_OVER_PARAMETERS: Final = Remedy(
    "Go over all parameters at once",
    "with torch.no_grad(): torch._foreach_lerp_(averages, list(parameters), 1 - decay)  # a moving average of weights\n"
    "# torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))\n"
    "# torch._foreach_* for norms, clipping, penalties and copies; state_dict() once, not in every step",
    f"{GAIN}: a few launches in all instead of several per tensor",
)


#: An optimizer of the program's own, or of another library.
_OF_OTHERS: Final = ""


def optimizer_class(facts: Facts, which: Bools) -> str | None:
    """The class of the optimizer that launches most of this work: in torch.optim, `_OF_OTHERS`, or unknown (None)."""
    ranges = facts.timeline.trace.ranges
    steps = ranges.filter(pl.Series(rows_named(ranges["name"], _STEP_OF)))
    if steps.is_empty() or not which.any():
        return None
    launched = facts.work["launch_start_ns"].fill_null(-1).to_numpy()[which]
    for (name,), of_class in steps.group_by("name", maintain_order=True):
        at = pl.DataFrame({"start_ns": launched, "end_ns": launched + 1})
        if 2 * time_inside(union(Intervals.of(of_class)), at).sum() > len(launched):
            kind = _STEP_OF.sub(r"\1", str(name))
            return kind if kind in _WITH_LISTS else _OF_OTHERS
    return _OF_OTHERS


def capturable(kind: str | None) -> str:
    """What a CUDA graph of the step needs from an optimizer of this class."""
    if kind is None:
        return (
            "with capturable=True of the optimizer, if its class has it (Adam, AdamW; SGD needs none)\n"
            "# a learning rate that changes has to be a tensor on the GPU"
        )
    if kind in _WITH_CAPTURABLE:
        return f"with torch.optim.{kind}(model.parameters(), capturable=True); an lr that changes: a tensor on the GPU"
    if kind == "SGD":
        return "torch.optim.SGD needs no capturable=True; an lr that changes: fused=True and a tensor on the GPU"
    return "an optimizer that keeps its step count and learning rate in tensors on the GPU"


def fused_call(facts: Facts) -> str:
    """The fused form of the program's optimizer, as far as there is one for its class."""
    kind = optimizer_class(facts, facts.program.optimizing)
    if kind in _WITH_FUSED:
        return f"torch.optim.{kind}(model.parameters(), fused=True)"
    return "fused=True, if its class has it (Adam, AdamW, SGD)" if kind is None else "torch.compile(optimizer.step)"


def _fused_step(kind: str | None) -> Remedy:
    """The remedy of an optimizer that makes one pass, as far as there is one for this class."""
    if kind in _WITH_FUSED:
        code = f"torch.optim.{kind}(model.parameters(), fused=True)"
    elif kind in _WITH_LISTS:
        code = f"step = torch.compile(optimizer.step)  # torch.optim.{kind} has no fused=True; a changing lr: a tensor"
    elif kind is None:
        code = "torch.optim.AdamW(model.parameters(), fused=True)  # your class, if it is Adam, AdamW or SGD"
        code += "\nstep = torch.compile(optimizer.step)  # another one"
    else:
        code = "step = torch.compile(optimizer.step)  # one that is not of torch.optim, or a fused form of it"
    effect = f"{GAIN}: one pass over the parameters in a few launches"
    return Remedy("Use the fused optimizer", code, effect, compiles=kind not in _WITH_FUSED)


def _lists_step(kind: str | None) -> Remedy:
    """The remedy of an optimizer of this class that runs its operations on lists of tensors."""
    code = "# your own optimizer: torch._foreach_* functions, or torch.compile(optimizer.step)"
    if kind != _OF_OTHERS:
        hint = "" if kind else "  # your class of torch.optim"
        code = f"torch.optim.{kind or 'AdamW'}(model.parameters(), foreach=True){hint}\n{code}"
    effect = "a few launches in all instead of several per tensor; memory traffic stays"
    return Remedy("Update all tensors at once", code, effect, compiles=True)


def _over_all(kind: str | None) -> Remedy:
    """The remedy for optimizers of one parameter each, which are fused already."""
    made = f"torch.optim.{kind}(model.parameters(), fused=True)" if kind in _WITH_FUSED else "Optimizer(parameters)"
    return Remedy(
        "Step one optimizer over all parameters",
        f"optimizer = {made}  # all of them\n"
        "optimizer.step()  # after backward, not in a hook of each parameter; the gradients then need memory",
        f"{GAIN}: a few launches and one call in all instead of one for each tensor",
    )


def _few_groups(kind: str | None) -> Remedy:
    """The remedy for parameters in groups of one or two."""
    groups = "[{'params': decayed}, {'params': plain, 'weight_decay': 0}]"
    if kind in _WITH_FUSED:
        made = f"torch.optim.{kind}({groups}, fused=True)"
    else:
        # An optimizer with a product for each matrix goes from one to the next.
        made = f"Optimizer({groups})  # your class\n# one that goes from tensor to tensor: torch._foreach_* over all"
    return Remedy(
        "Put the parameters into few groups",
        "decayed = [p for p in model.parameters() if p.ndim > 1]\n"
        "plain = [p for p in model.parameters() if p.ndim <= 1]\n" + made,
        f"{GAIN}: the launches of two groups instead of one for each tensor",
    )


#: What an optimizer launches kernels for: each parameter, in hooks of the backward pass; each group of parameters; each
#: operation, on lists of tensors; each tensor in a loop of the program, beside a fused optimizer; each tensor.
Habit: TypeAlias = Literal["hooks", "groups", "lists", "loop", "tensors"]


class UnfusedOptimizer(Rule):
    """The launch pauses of the optimizer, and the memory traffic of its kernels that a fused optimizer saves."""

    id = "unfused-optimizer"
    question = "Does the optimizer go from tensor to tensor, with launches for each?"
    limiter = "an optimizer that launches kernels for each parameter tensor"
    cause = "an optimizer that updates one tensor at a time"
    raised_when = (
        "it launches 100 kernels per step, more than half of them for a single tensor, or it steps 64 times within "
        "the backward pass; and it costs 2 %"
    )
    claimed = (
        "launch pauses of the optimizer, and 26/33 of its kernels' time; of an optimizer in hooks, the launches of its "
        "kernels and the pauses before them"
    )
    headline = "Limited by the optimizer: updating one tensor at a time costs {share} of the time"
    title = "The optimizer updates one tensor at a time, with several kernels for each"
    variants: ClassVar[Mapping[Habit, Variant]] = {
        "hooks": Variant(
            "The optimizer steps for one parameter at a time, between kernels of the backward pass",
            "Limited by an optimizer that steps for one parameter at a time: it costs {share} of the time",
            "Leave the hooks out of a test run: if the step does not get faster by their share, something else is the "
            "limit.",
        ),
        "groups": Variant("The optimizer goes from group to group of parameters, with launches for each"),
        "lists": Variant("The optimizer runs its operations over all tensors one after the other (foreach)"),
        "loop": Variant(
            "A loop over the parameters launches kernels for each tensor, beside a fused optimizer",
            "Limited by a loop over the parameters: going from tensor to tensor costs {share} of the time",
            "Leave that loop out of a test run, but not optimizer.step(): if the step does not get faster by its "
            "share, something else is the limit.",
        ),
    }
    evidence: ClassVar = {
        "claimed_share": "cost of updating one tensor at a time, of the window",
        "optimizer_share": "time of the optimizer: its work, and the pauses before that work",
        "optimizer_ns_per_step": "time of the optimizer: its work, and the pauses before that work",
        **LAUNCHES_PER_STEP,
        "single_tensor_launches_share": "launches that update a single tensor",
        "parameter_tensors_count": "parameter tensors updated per step, where the kernels show it",
        "launches_per_tensor_factor": "launches per tensor",
        "optimizer_turns_per_step": "runs of optimizer kernels between other work of the backward pass",
        "groups_per_step": "groups of parameters, each with launches of its own",
        **IDLE_NS,
        "saved_kernel_ns": "kernel time that a fused optimizer saves",
    }
    refutation = (
        "Skip optimizer.step() in a test run: if the step does not get faster by the optimizer's share, "
        "something else is the limit."
    )
    precedence = "structure"
    thresholds = ("optimizer_launches_per_step", "optimizer_single_tensor_share", "optimizer_saved_share")
    #: One launch updates many tensors: launches of the remaining passes hardly cost host time.
    unlaunched_share = 0.5

    lead_share = Limit(
        0.5,
        "The forward and backward passes keep their own pauses; work queued ahead in the optimizer hides part of them.",
    )
    lists_saved_share = Limit(
        0.6,
        "AdamW with foreach makes about 20 memory accesses per parameter, fused AdamW 7; short lists are not "
        "memory-bound.",
    )
    lists_bound_share = Limit(0.95, "A lower limit of what remains: short lists wait for launches, not for memory.")
    least_lists = Limit(8, "Gradient clipping and loss scaling take a few foreach operations, AdamW a dozen.")
    least_operations = Limit(5, "A foreach optimizer runs several operations, clipping two or three.")
    least_groups = Limit(
        8, "Weight decay or none, in two formats, make four groups; each learning rate makes one more."
    )

    least_turns = Limit(64, "Two optimizers in turn, groups of parameters and sharded units make fewer.")

    def makes_launches(self, finding: Finding) -> bool:
        """True: it launches several kernels for each tensor."""
        return True

    def claim(self, facts: Facts) -> Float64s | None:
        """Share of the memory accesses of the optimizer's kernels that a fused optimizer does not make."""
        in_optimizer = facts.program.having("phase", "optimizer")
        if is_unfused(facts):
            passes = facts.program.having("label", *PASSES, "optimizer", "device-to-device")
            unfused = in_optimizer & passes & ~facts.program.marked("fused-optimizer")
            return np.where(unfused, facts.thresholds.optimizer_saved_share, 0.0)
        turns, _ = self._turns(facts)
        if turns.any():
            return np.where(turns, started_share(facts), 0.0)
        lists = self._lists(facts)
        return np.where(lists, float(self.lists_saved_share), 0.0) if lists.any() else None

    def claim_gaps(self, facts: Facts) -> Float64s | None:
        """The share of all pauses that goes away as a host without this work gets ahead."""
        if facts.phase is not None:
            return None
        if not is_unfused(facts):
            turns, _ = self._turns(facts)
            return np.maximum(facts.program.of_gaps(turns), ahead_without(facts, turns)) if turns.any() else None
        ahead = ahead_without(facts, facts.program.having("phase", "optimizer"))
        return np.full(facts.gaps.height, self.lead_share * ahead) if ahead else None

    @remembered
    def _turns(self, facts: Facts) -> tuple[Bools, int]:
        """Kernels of optimizers that step again and again within the backward pass, and the number of turns."""
        program = facts.program
        updates = program.marked("fused-optimizer")
        if not facts.window.step_count or updates.sum() < self.least_turns * facts.steps:
            return np.zeros_like(updates), 0
        # Hooks run on autograd's thread. Steps of minibatches do not.
        updates = (updates | program.marked("foreach")) & backward_work(facts)
        turns = sum(1 for _ in program.runs(updates))
        return (updates, turns) if turns >= self.least_turns * facts.steps else (np.zeros_like(updates), 0)

    def _lists(self, facts: Facts) -> Bools:
        """Kernels on lists of tensors with one operation each, if there are enough of them for an optimizer."""
        program = facts.program
        lists = program.marked("foreach")
        if not lists.any():
            return lists
        fused = program.marked("fused-optimizer")
        lists = lists & ~fused
        many = lists.sum() >= self.least_lists * facts.steps
        operations = len(np.unique(program.launched_as(np.flatnonzero(lists))))
        of_optimizer = many and operations >= self.least_operations
        if of_optimizer and fused.any():  # clipping takes one launch for each chunk of a large tensor
            of_optimizer = self._groups(facts, lists) >= self.least_groups
        return lists if of_optimizer else np.zeros_like(lists)

    def _groups(self, facts: Facts, lists: Bools) -> float:
        """Groups of parameters: how often the optimizer starts each of its operations in a step.

        An operation may start twice for each group, and a single one may belong to something else: the median counts.
        """
        program = facts.program
        names = program.name_codes[program.order[program.in_order(lists)]]
        if not len(names):
            return 0.0
        begins = np.r_[True, names[1:] != names[:-1]]
        return float(np.median(np.unique(names[begins], return_counts=True)[1])) / facts.steps

    def find(self, facts: Facts, claims: Claims) -> Finding | None:
        """The finding, if the window has it."""
        habit = self._habit(facts)
        if habit is None:
            return None
        on_lists = habit in ("groups", "lists")
        lists = self._lists(facts)
        turns, count = self._turns(facts)
        groups = self._groups(facts, lists) if habit == "groups" else None
        which = facts.work["phase"] == "optimizer"
        launches = optimizer_work(facts).launches
        if habit == "hooks" or on_lists:
            which = pl.Series(lists if on_lists else turns)
            launches = int(which.sum())
        claimed_ns = claims.total_ns(self.id)
        beyond = float(self.lists_bound_share) - float(self.lists_saved_share)
        lists_ns = int(beyond * facts.program.own_ns[lists].sum()) if on_lists else 0
        return self.raised(
            facts,
            claimed_ns,
            variant=self.variants.get(habit, USUAL),
            confidence="high" if facts.sure else "medium",
            evidence={
                "claimed_share": claims.seen_ns(self.id) / facts.wall_ns,
                "launches_per_step": launches / facts.steps,
                "optimizer_turns_per_step": count / facts.steps if habit == "hooks" else None,
                "groups_per_step": groups,
                "idle_ns": claims.idle_ns(self.id),
                "saved_kernel_ns": claims.busy_ns(self.id),
                **({} if habit == "hooks" else self._numbers(facts)),
            },
            where=kernel_names(facts, facts.work["own_ns"] * which),
            remedies=self._remedies(facts, habit, optimizer_class(facts, which.to_numpy())),
            issuing_ns=claims.issuing_ns[self.id],
            claims=None if habit == "hooks" else claims,
            replayed=None if groups is None else self._as_one_group(facts, lists, groups),
            busy_ns=claims.busy_ns(self.id),
            bound_ns=claimed_ns + facts.own_idle_ns - claims.idle_ns(self.id) + lists_ns,
        )

    def _habit(self, facts: Facts) -> Habit | None:
        """How the optimizer goes over its tensors; None if that costs nothing that a rule knows."""
        if is_unfused(facts):
            return "loop" if facts.program.marked("fused-optimizer").any() else "tensors"
        if self._turns(facts)[1]:
            return "hooks"
        lists = self._lists(facts)
        if not lists.any():
            return None
        return "groups" if self._groups(facts, lists) >= self.least_groups else "lists"

    def _remedies(self, facts: Facts, habit: Habit, kind: str | None) -> tuple[Remedy | None, ...]:
        """The remedies of a habit, for an optimizer of this class (`optimizer_class`)."""
        if habit == "hooks":
            return (_over_all(kind),)
        if habit == "loop":
            return (_OVER_PARAMETERS,)
        if habit == "groups":
            is_fused = facts.program.marked("fused-optimizer").any()
            return (_few_groups(kind), None if is_fused else bringing(_fused_step(kind), None))
        return (_fused_step(kind), self._on_lists(facts, kind) if habit == "tensors" else None)

    def _numbers(self, facts: Facts) -> dict[str, float | None]:
        """Evidence on all of the optimizer's work."""
        optimizer = optimizer_work(facts)
        numbers: dict[str, float | None] = {}
        if facts.program.having("phase", "optimizer").any():
            # Without a phase, it is unknown which work of a step is the optimizer's.
            wall = facts.wall_of_phase("optimizer")
            numbers |= {"optimizer_share": wall / facts.wall_ns, "optimizer_ns_per_step": wall / facts.steps}
        if optimizer.launches:
            numbers["single_tensor_launches_share"] = optimizer.single_tensor / optimizer.launches
        if optimizer.updates:
            numbers["parameter_tensors_count"] = optimizer.updates / facts.steps
            numbers["launches_per_tensor_factor"] = optimizer.launches / optimizer.updates
        return numbers

    def _on_lists(self, facts: Facts, kind: str | None) -> Remedy:
        """The remedy of kernels on lists, which move the same bytes, but launch, start and end only a few times."""
        kernels = facts.program.having("phase", "optimizer") & facts.program.is_kernel
        time = np.where(kernels, started_share(facts), 0.0)
        return bringing(
            _lists_step(kind), facts.replayed(time=time, calls=kernels.astype(np.float64)) if time.any() else None
        )

    def _as_one_group(self, facts: Facts, lists: Bools, groups: float) -> Gain | None:
        """Gain of a fused optimizer with one group of parameters instead of so many."""
        saved = np.where(lists, float(self.lists_saved_share), 0.0)
        calls = np.where(lists, 1 - 1 / groups, 0.0)
        return facts.replayed(time=saved, calls=calls, elsewhere=True)
