"""The rules, one object for each finding.

Every `Rule` that a module here declares is in `RULES`; to add a finding, declare one.
"""

from __future__ import annotations

from collections import Counter
from importlib import import_module
from pkgutil import iter_modules
from typing import Final

from warplens.diagnosis.rule import Rule

__all__ = ["FINDING_IDS", "RULES", "rule"]


#: The order of modules, which decides between equal claims on one piece of work: among rules that are certain, such as
#: those of waits and copies, the later one has it, among all others the earlier one. Other modules follow, by name.
_ORDER: Final = (
    "communication", "caches", "gradients", "launches", "waits", "copies", "counters", "kernels", "optimizer",
    "precision", "attention", "formats", "weights", "ranks", "devices", "repetition", "results", "rows", "stalls",
)  # fmt: skip


def _declared() -> tuple[Rule, ...]:
    """An instance of each rule, in the order of the modules, and by line.

    Raises:
        ValueError: two rules have the same id.
    """
    rank = {name: place for place, name in enumerate(_ORDER)}
    names = sorted((rank.get(module.name, len(rank)), module.name) for module in iter_modules(__path__))
    modules = (import_module(f"{__name__}.{name}") for _, name in names)
    declared = tuple(
        value()
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Rule)
        and value.__module__ == module.__name__
        and "id" in vars(value)
    )
    ids = Counter(rule.id for rule in declared)
    if repeated := sorted(id_ for id_, count in ids.items() if count > 1):
        raise ValueError(f"several rules have the id {', '.join(repeated)}")
    return declared


#: All rules.
RULES: Final = _declared()

#: Finding id → limit of a window with it, in a few words.
FINDING_IDS: Final = {rule.id: rule.limiter for rule in RULES}


def rule(id_: str) -> Rule:
    """The rule of this finding."""
    return next(declared for declared in RULES if declared.id == id_)
