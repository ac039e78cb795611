"""`warplens doctor`: exit codes and the two formats."""

from __future__ import annotations

import importlib
import json
from typing import TYPE_CHECKING

import pytest

from tests.collect.machines import Machine, gpu_machine, laptop

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Run

COMMAND = importlib.import_module("warplens.cli.commands.collect")


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Callable[[Machine], None]:
    return lambda machine: monkeypatch.setattr(COMMAND, "machine", lambda: machine)


def test_a_machine_without_gpu_is_no_failure(on: Callable[[Machine], None], warplens: Callable[..., Run]) -> None:
    on(laptop())

    run = warplens("doctor")

    assert run.code == 0
    assert run.out.splitlines()[0].split()[:2] == ["problem", "gpu"]
    assert run.out.endswith("recording needs a machine with a GPU.\n")


@pytest.mark.parametrize(("required", "code"), [("nsys", 0), ("nsys,ncu,gpu,torch", 0), ("", 2), ("cuda", 2)])
def test_requirements_that_are_met(
    required: str, code: int, on: Callable[[Machine], None], warplens: Callable[..., Run]
) -> None:
    on(gpu_machine())

    assert warplens("doctor", "--require", required).code == code


def test_requirements_that_are_not_met_fail_by_name(
    on: Callable[[Machine], None], warplens: Callable[..., Run]
) -> None:
    machine = gpu_machine()
    machine.files["/proc/driver/nvidia/params"] = "RmProfilingAdminOnly: 1\n"
    on(machine)

    run = warplens("doctor", "--require", "nsys,ncu")

    assert (run.code, run.err) == (1, "error: required, but not possible here: ncu\n")
    assert "NVreg_RestrictProfilingToAdminUsers=0" in run.out


def test_programs_get_the_checks_by_name(on: Callable[[Machine], None], warplens: Callable[..., Run]) -> None:
    on(gpu_machine())

    answer = json.loads(warplens("doctor", "--format", "json").out)

    assert answer["schema"] == "warplens.doctor/1"
    assert answer["data"]["can"] == {"gpu": True, "torch": True, "nsys": True, "ncu": True}
    checks = {check["name"]: check for check in answer["data"]["checks"]}
    assert checks["nsys"].keys() == {"name", "status", "found", "fix"}
    assert checks["nsys"]["found"].startswith("Nsight Systems 2025.3.2.367")


def test_this_machine_can_be_examined(warplens: Callable[..., Run]) -> None:
    answer = json.loads(warplens("doctor", "--format", "json").out)

    assert {"gpu", "torch", "nsys", "ncu", "counters", "disk"} <= {check["name"] for check in answer["data"]["checks"]}
