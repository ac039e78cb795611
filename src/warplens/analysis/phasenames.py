"""What the name of an annotated range says about the part of the program that it stands for."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["AUTOGRAD_ENGINE", "NO_PHASE", "PHASES", "generic_name", "is_step_name", "is_warmup_name", "phase_of_name"]

#: Phases in the order of a training step.
PHASES: Final = ("forward", "backward", "optimizer")

#: Label of what belongs to none of them.
NO_PHASE: Final = "none"

#: Autograd's engine runs each node of the backward graph inside an operator whose name begins so.
AUTOGRAD_ENGINE: Final = "autograd::engine::evaluate_function"

_WORDS = {
    "forward": re.compile(r"(?<![a-z])(forward|fwd)(?![a-z])", re.IGNORECASE),
    "backward": re.compile(r"(?<![a-z])(backward|bwd|backprop)(?![a-z])", re.IGNORECASE),
    "optimizer": re.compile(r"(?<![a-z])(optim(izer|iser)?|adamw?|sgd|weight[\s_-]*update)(?![a-z])", re.IGNORECASE),
}


#: Names that people and frameworks give to one repetition of the workload; `N` stands for a running number.
_STEP = re.compile(
    r"^(profilerstep|(train(ing)?|eval(uation)?|inference|model|global|benchmark)?[\s_-]*(step|iter(ation)?|batch))s?[\s_:#-]*N?$",
    re.IGNORECASE,
)
_DIGITS = re.compile(r"\d+")
_WARMUP = re.compile(r"warm[\s_-]*up", re.IGNORECASE)


def generic_name(name: str) -> str:
    """The name with its numbers replaced by `N`, so that `ProfilerStep#3` and `ProfilerStep#4` are one name."""
    return _DIGITS.sub("N", name)


def is_step_name(name: str) -> bool:
    """Whether a name, its numbers replaced by `N`, says that the range is one repetition of the workload."""
    return _STEP.match(name.strip()) is not None


def is_warmup_name(name: str) -> bool:
    """Whether a name says that what it holds is not the workload yet."""
    return _WARMUP.search(name) is not None


def phase_of_name(name: str) -> str:
    """The phase that a range's name speaks of; `none` where it names no phase, or more than one."""
    if name.startswith(AUTOGRAD_ENGINE):
        return "backward"  # whatever the node is called (`torch::autograd::AccumulateGrad`, `AddmmBackward0`)
    if "::" in name:
        return NO_PHASE  # an operator (`flash_attn::_flash_attn_forward`), which the backward pass may call as well
    # Camel case and underscores separate words: `OptimizerStep`, `forward_pass`.
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).replace("_", " ")
    named = [phase for phase, pattern in _WORDS.items() if pattern.search(spaced)]
    return named[0] if len(named) == 1 else NO_PHASE
