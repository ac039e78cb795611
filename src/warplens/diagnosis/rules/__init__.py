"""The rules, one object for each finding.

Every `Rule` that a module here declares is in `RULES`; to add a finding, declare one.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Final

from warplens.diagnosis.rule import Rule

__all__ = ["FINDING_IDS", "RULES", "rule"]


def _declared() -> tuple[Rule, ...]:
    """An instance of each rule, by module name and line."""
    modules = (import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__))
    return tuple(
        value()
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Rule)
        and value.__module__ == module.__name__
        and "id" in vars(value)
    )


#: All rules.
RULES: Final = _declared()

#: Finding id → limit of a window with it, in a few words.
FINDING_IDS: Final = {rule.id: rule.limiter for rule in RULES}


def rule(id_: str) -> Rule:
    """The rule of this finding."""
    return next(declared for declared in RULES if declared.id == id_)
