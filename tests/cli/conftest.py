from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.cli.small_export import write_export
from warplens.cli.main import app
from warplens.cli.process import start_afresh


@dataclass(frozen=True)
class Run:
    """How a run of the program ended."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """`data` of the object that it printed with `--format json`."""
        return json.loads(self.out)["data"]


@pytest.fixture(autouse=True)
def _heard():
    """A run with --quiet in one test silences no other; the program itself begins afresh each time."""
    start_afresh()


def run_in_process(*arguments: object) -> Run:
    """Runs the program in this process with these arguments."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert not isinstance(result.exception, Exception), f"{arguments} raised {result.exception!r}"
    return Run(result.exit_code, result.stdout, result.stderr)


@pytest.fixture
def warplens():
    """Runs the program in this process with the given arguments."""
    return run_in_process


@pytest.fixture
def on_terminal(monkeypatch):
    """Runs the program as on a terminal of 80 columns; what it prints, without colours."""

    def run(*arguments: object) -> str:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("COLUMNS", "80")
        return re.sub(r"\x1b\[[\d;]*m", "", run_in_process(*arguments).out)

    return run


def in_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The end of a process that executes this code."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, check=False)


@pytest.fixture(scope="session")
def asked():
    """The object that a command prints with `--format json`."""

    def ask(*arguments: object, code: int = 0) -> dict[str, Any]:
        run = run_in_process(*arguments, "--format", "json", "--quiet")
        assert run.code == code, run.err
        return json.loads(run.out)

    return ask


@pytest.fixture(scope="session")
def export(tmp_path_factory):
    """A small profile; see `small_export`."""
    return write_export(tmp_path_factory.mktemp("profiles") / "small.sqlite")
