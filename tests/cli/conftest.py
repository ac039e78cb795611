from __future__ import annotations

from dataclasses import dataclass

import pytest
from typer.testing import CliRunner

from tests.cli.small_export import write_export
from warplens.cli.edge import start_afresh
from warplens.cli.main import app


@dataclass(frozen=True)
class Run:
    """How a run of the program ended."""

    code: int
    out: str
    err: str


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


@pytest.fixture(scope="session")
def export(tmp_path_factory):
    """A small profile; see `small_export`."""
    return write_export(tmp_path_factory.mktemp("profiles") / "small.sqlite")
