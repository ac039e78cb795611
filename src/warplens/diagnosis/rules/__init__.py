"""The rules: all that is known of each finding, in one object a finding.

Every `Rule` that a module here declares is in `RULES`; who adds a finding writes one, and changes nothing else.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Final

from warplens.diagnosis.rule import Rule

__all__ = ["FINDING_IDS", "RULES", "rule"]


def _declared() -> tuple[Rule, ...]:
    """One of each rule of each module, in the order of the modules' names and of their lines."""
    modules = (import_module(f"{__name__}.{found.name}") for found in iter_modules(__path__))
    return tuple(
        value()
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Rule)
        and value.__module__ == module.__name__
        and "id" in vars(value)
    )


#: Every rule.
RULES: Final = _declared()

#: Id of every finding → what limits a window with it.
FINDING_IDS: Final = {each.id: each.limiter for each in RULES}


def rule(id_: str) -> Rule:
    """The rule of this finding."""
    return next(each for each in RULES if each.id == id_)
