"""The process that measures: reads tasks from standard input, answers each with one line of JSON.

    python -m warplens.studies.runner.child

A fresh interpreter for each task starts from the same state; `cellsweep.CellRunner` is the other end.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, fields
from importlib import import_module
from typing import TYPE_CHECKING, Any

from warplens.errors import UsageError
from warplens.workloads.registry import Plan, workload

if TYPE_CHECKING:
    from collections.abc import Mapping


def main() -> None:
    """Answer until there is nothing more to read."""
    # What programs print must not get into the answers: those have a descriptor of their own.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        answers.write(json.dumps(answer(json.loads(line)), allow_nan=False) + "\n")
        answers.flush()


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """What became of a task.

    Args:
        request: a `Measuring` as JSON, and the `cells` to measure.

    Returns:
        `records`, one a cell, and the `environment`; or, where nothing can be measured here, `usage`: why.
    """
    try:
        return _measured(request)
    except UsageError as error:
        return {"usage": str(error)}
    except Exception as error:  # a user's program may fail in any way; the run goes on, and says how this ended
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        return {"records": [{"cell": cell, "status": "failed", "reason": reason} for cell in request["cells"]]}


def _measured(request: Mapping[str, Any]) -> dict[str, Any]:
    from warplens.workloads.cells import attempted, default_device, run_cells, run_cells_in_turns

    for module in request["modules"]:
        import_module(module)
    kind, plan = workload(request["workload"]), Plan(**request["plan"])
    cells = [cell_of(kind.cell, settings) for settings in request["cells"]]
    device = request["device"] or default_device()
    records: list[dict[str, Any]]
    if request["rounds"] is None or kind.prepare is None:
        records = list(run_cells(kind.name, cells, plan=plan, device=device))
    else:
        done, trouble = attempted(
            lambda: run_cells_in_turns(
                kind.name, cells, rounds=request["rounds"], per_round=plan.most, plan=plan, device=device
            )
        )
        if trouble.get("status") == "unsupported":
            raise UsageError(trouble["reason"])
        records = [{"cell": asdict(cell), **trouble} for cell in cells] if done is None else done
    from warplens.workloads.environment import environment

    return {"records": records, "environment": environment(device)}


def cell_of(kind: type, settings: Mapping[str, Any]) -> Any:
    """Settings that went through JSON, which knows no tuples.

    Raises:
        UsageError: the settings exclude one another, or there is no such setting.
    """
    known = {item.name for item in fields(kind)}
    if strange := [name for name in settings if name not in known]:
        raise UsageError(f"there is no setting {strange[0]!r}; known are {', '.join(sorted(known))}")
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()})


if __name__ == "__main__":
    main()
