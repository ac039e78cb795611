"""Writes measurements files (JSON, schema `warplens.measurements/1`; docs/reference/measurements.md)."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from warplens._version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from warplens.workloads.plan import Plan

__all__ = ["SCHEMA", "document", "write_measurements"]

SCHEMA: Final = "warplens.measurements/1"


def document(
    workload: str,
    plan: Plan,
    environment: Mapping[str, Any],
    measurements: Sequence[Mapping[str, Any]],
    command: str | None = None,
) -> dict[str, Any]:
    """A measurements file as a dictionary.

    Args:
        workload: its name in the registry.
        plan: how it was measured.
        environment: what with (`warplens.workloads.environment`).
        measurements: the cells' records, from `run_cells`.
        command: that makes the same again; without folders.
    """
    return {
        "schema": SCHEMA,
        "version": __version__,
        "workload": workload,
        "command": command,
        "environment": dict(environment),
        "plan": asdict(plan),
        "measurements": [dict(record) for record in measurements],
    }


def write_measurements(path: Path, content: Mapping[str, Any]) -> None:
    """Write a measurements file, one cell a line; a file that is there is replaced in one go.

    Args:
        path: the file.
        content: from `document`.
    """
    head = {name: value for name, value in content.items() if name != "measurements"}
    lines = [f" {_text(name)}: {_text(value)}," for name, value in head.items()]
    records = ",\n".join(f"  {_text(record)}" for record in content["measurements"])
    text = "{\n" + "\n".join(lines) + f'\n "measurements": [\n{records}\n ]\n}}\n'
    unfinished = path.with_name(f"{path.name}.part")
    unfinished.write_text(text, "utf-8")
    os.replace(unfinished, path)  # noqa: PTH105  atomic, so that an interruption leaves the last complete file


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
