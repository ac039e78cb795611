"""Every example runs as it is and prints something."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiers import thinned

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("[0-9]*.py"))


@pytest.mark.parametrize("path", thinned(EXAMPLES, quick=EXAMPLES[:2]), ids=lambda path: path.stem)
def test_an_example_runs_as_it_is(path, tmp_path):
    run = subprocess.run(
        [sys.executable, "-W", "error", path], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.strip()


def test_the_list_of_examples_names_each():
    listed = (EXAMPLES[0].parent / "README.md").read_text("utf-8")
    assert all(f"`{path.name}`" in listed for path in EXAMPLES)
