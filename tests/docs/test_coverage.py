"""Every row of what was asked for is shown by the command that stands beside it."""

from __future__ import annotations

import re
import shlex
import sys
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from warplens.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs"))

from generate_coverage import PAGE, page, rows

ROWS = rows()


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """What a command prints and writes, each command run once, in a folder that looks like the checkout."""
    here = tmp_path_factory.mktemp("checkout")
    for folder in ("data", "src", "tests"):
        (here / folder).symlink_to(ROOT / folder)

    @cache
    def run(command: str) -> str:
        out = tmp_path_factory.mktemp("out")
        words = [word.replace("OUT", str(out)) for word in shlex.split(command)]
        assert words[0] == "warplens"
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(here)  # reports go there that no folder is named for
            result = CliRunner().invoke(app, words[1:], env={"COLUMNS": "240"})
        assert result.exit_code == 0, f"{command}: {result.stderr}"
        written = [path.name + "\n" + path.read_text("utf-8", "replace") for path in sorted(out.rglob("*.md"))]
        names = [path.name for path in sorted(out.rglob("*"))]
        return "\n".join([result.stdout, result.stderr, *names, *written])

    return run


def test_the_page_is_what_the_table_says():
    assert PAGE.read_text("utf-8") == page(), "run `python docs/generate_coverage.py`"


def test_the_rows_are_those_of_the_documents():
    """As many as were counted in each section when the documents were read."""
    counted = {"W": 15, "C": 14, "I": 12, "M": 21, "A": 21, "X": 10, "Q": 5, "R": 10, "P": 8, "E": 11}
    expected = [f"{letter}{number}" for letter, most in counted.items() for number in range(1, most + 1)]
    expected = [f"Q{'abcde'[int(row[1:]) - 1]}" if row[0] == "Q" else row for row in expected]
    assert [row.id for row in ROWS] == expected
    assert len(ROWS) == 127


#: Rows whose command takes seconds, and is run by tests of its own as well.
SLOW = {"A10", "A14", "C3", "C13", "I5", "M10", "P8", "W2", "W3", "W15"}


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=row.id, marks=[pytest.mark.slow] if row.id in SLOW else []) for row in ROWS]
)
def test_the_row_is_shown(row, outputs):
    assert row.shows, "a row that shows nothing proves nothing"
    assert row.page or row.run
    text = (ROOT / row.page).read_text("utf-8") if row.page else ""
    text += outputs(row.run) if row.run else ""
    plain = re.sub(r"\s+", " ", text)
    assert [wanted for wanted in row.shows if re.sub(r"\s+", " ", wanted) not in plain] == []
    assert (row.gpu is None) == (row.stored is None) == (row.when is None)
    assert row.stored is None or (ROOT / row.stored).is_file()
