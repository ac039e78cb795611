"""Writes the tables of `reference/findings.md` from the rules: the vocabulary, the limits, and what each number means.

    python docs/generate_findings.py

Each table stands between two comments that name it; what is around them is written by hand.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from warplens.diagnosis import DEFAULTS, RULES
from warplens.diagnosis.thresholds import REASONS

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).parent / "reference" / "findings.md"


def _findings() -> Iterator[str]:
    yield "| id | the window's limiter is … | raised when | claims |"
    yield "|---|---|---|---|"
    for rule in RULES:
        yield f"| `{rule.id}` | {rule.cause} | {rule.raised_when} | {rule.claimed} |"


def _questions() -> Iterator[str]:
    yield "| id | question | what would refute it |"
    yield "|---|---|---|"
    for rule in RULES:
        yield f"| `{rule.id}` | {rule.question} | {rule.refutation} |"


def _limits() -> Iterator[str]:
    yield "| limit | value | rules | why |"
    yield "|---|---|---|---|"
    for name in (each.name for each in fields(DEFAULTS)):
        users = ", ".join(f"`{rule.id}`" for rule in RULES if name in rule.thresholds) or "all"
        yield f"| `{name}` | {getattr(DEFAULTS, name):.4g} | {users} | {REASONS[name]} |"
    for rule in RULES:
        for name, limit in rule.limits().items():
            yield f"| `{name}` | {float(limit):.4g} | `{rule.id}` | {limit.why} |"


def _evidence() -> Iterator[str]:
    yield "| name | meaning | of |"
    yield "|---|---|---|"
    meanings: dict[tuple[str, str], list[str]] = {}
    for rule in RULES:
        for name, meaning in rule.evidence.items():
            meanings.setdefault((name, meaning), []).append(f"`{rule.id}`")
    for (name, meaning), ids in sorted(meanings.items()):
        yield f"| `{name}` | {meaning} | {', '.join(ids)} |"


_TABLES = {"findings": _findings, "questions": _questions, "limits": _limits, "evidence": _evidence}


def page(text: str) -> str:
    """The page with its tables as the rules have them."""
    for name, rows in _TABLES.items():
        begin, end = f"<!-- {name}: from the rules -->\n", f"<!-- end of {name} -->"
        before, _, rest = text.partition(begin)
        text = before + begin + "".join(f"{row}\n" for row in rows()) + end + rest.partition(end)[2]
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
