"""What CONTRIBUTING says of an addition holds in a copy of the repository; examples run; the wheel is small."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

import warplens
from tests.tiers import thinned

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Copy:
    """A copy of the repository in which recipes are carried out."""

    root: Path

    def make(self, target: str, name: str) -> subprocess.CompletedProcess[str]:
        """Runs a recipe as `make` does, with the packages that are installed already."""
        installed = ["-o", ".venv/.installed-dev", f"BIN={Path(sys.executable).parent}"]
        return self._run("make", *installed, target, f"NAME={name}")

    def warplens(self, *words: str) -> str:
        """What the copy's command prints."""
        return self.python("-m", "warplens", *words)

    def added(self) -> dict[str, int]:
        """The source files that differ from the original, with the number of lines that are new."""
        changed = {}
        for path in sorted((self.root / "src").rglob("*.py")):
            before = ROOT / path.relative_to(self.root)
            old = before.read_text("utf-8").splitlines() if before.exists() else []
            if new := [line for line in path.read_text("utf-8").splitlines() if line not in old]:
                changed[path.name] = len(new)
        return changed

    def files(self) -> dict[Path, bytes]:
        """The content of every file but bytecode."""
        paths = (path for path in self.root.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        return {path: path.read_bytes() for path in paths}

    def assert_linted(self) -> None:
        """The sources pass the checks of style."""
        for words in (("check",), ("format", "--check")):
            run = self.run("-m", "ruff", *words, "src")
            assert run.returncode == 0, run.stdout

    def python(self, *words: str) -> str:
        """What Python prints, as by `run`."""
        run = self.run(*words)
        assert run.returncode == 0, run.stdout + run.stderr
        return run.stdout

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Runs Python with the copy's package, and the tests of the original."""
        return self._run(sys.executable, *words)

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        paths = {"PYTHONPATH": os.pathsep.join((str(self.root / "src"), str(ROOT))), "COLUMNS": "200"}
        return subprocess.run(
            words, cwd=self.root, env={**os.environ, **paths}, capture_output=True, text=True, check=False
        )


@pytest.fixture
def copy(tmp_path):
    if shutil.which("make") is None:
        pytest.skip("the recipes are run by make, which is not installed")
    root = tmp_path / "copy"
    forgotten = shutil.ignore_patterns("__pycache__", "*.ipynb_checkpoints")
    for folder in ("src", "docs", "examples"):
        shutil.copytree(ROOT / folder, root / folder, ignore=forgotten)
    for name in ("Makefile", "mkdocs.yml", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, root)
    return Copy(root)


def _statements(path: Path) -> int:
    """Lines of a module beside blank ones, texts that only explain, and imports."""
    lines = path.read_text("utf-8").split("\n\n", 2)[-1].splitlines()
    told = ("from ", "import ", "if TYPE_CHECKING", "    from ", '"""', '    """', "#")
    return sum(bool(line.strip()) and not line.startswith(told) for line in lines)


def test_a_table_command_is_two_files_and_fifteen_lines(copy):
    columns = copy.root / "docs/reference/columns.md"
    assert "### Longest" not in columns.read_text("utf-8")
    made = copy.make("new-table", "longest")
    assert made.returncode == 0, made.stderr
    assert copy.added() == {"longest.py": pytest.approx(32, abs=6), "catalogue.py": 1}
    assert _statements(copy.root / "src/warplens/report/questions/longest.py") + 1 <= 15
    copy.assert_linted()
    assert "longest" in copy.warplens("--help")
    answer = json.loads(copy.warplens("longest", "demo:deit224_bs1_baseline", "--format", "json", "--limit", "3"))
    assert answer["schema"] == "warplens.longest/1"
    lengths = [row["duration_ns"] for row in answer["data"]["rows"]]
    assert len(lengths) == 3
    assert lengths == sorted(lengths, reverse=True)
    assert "### Longest" in columns.read_text("utf-8")
    assert "how-to/longest.md" in (copy.root / "mkdocs.yml").read_text("utf-8")
    page = copy.root / "docs/how-to/longest.md"
    assert len(page.read_text("utf-8").splitlines()) > 8, "the command and its output"
    copy.python("docs/console_examples.py", str(page))


#: A program whose only kernel takes 200 ms, and what limits it.
LONG_KERNEL = """
from tests.diagnosis.programs import MS, verdict

found = verdict(lambda machine: machine.launch(200 * MS, times=3))
print(found.verdict, found.findings[0].remedies[0].expected, sep="; ")
"""


@pytest.mark.slow
def test_a_finding_is_one_file(copy):
    made = copy.make("new-finding", "exceedingly-long-kernels")
    assert made.returncode == 0, made.stderr
    assert [*copy.added()] == ["exceedingly_long_kernels.py"]
    copy.assert_linted()
    verdict, _, expected = copy.python("-c", LONG_KERNEL).partition("; ")
    assert verdict == "exceedingly-long-kernels"
    assert expected.strip().endswith(": without these kernels")
    assert "`exceedingly-long-kernels`" in (copy.root / "docs/reference/findings.md").read_text("utf-8")


def _write_kernels(path: Path, *kernels: tuple[str, int, int]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = [("kernel", "device", "stream", "start_ns", "end_ns"), *((name, 0, 7, *span) for name, *span in kernels)]
        csv.writer(file).writerows(rows)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["handwritten", "tsv", "a-csv"])
def test_a_format_is_two_files(copy, name):
    made = copy.make("new-format", name)
    assert made.returncode == 0, made.stderr
    assert sorted(copy.added()) == sorted(("__init__.py", f"{name.replace('-', '_')}.py"))
    copy.assert_linted()
    profile = copy.root / "kernels.csv"
    _write_kernels(profile, ("softmax", 100, 300), ("gemm", 400, 1_400), ("softmax", 1_500, 1_800))
    answer = json.loads(copy.warplens("kernels", str(profile), "--window", "all", "--format", "json"))
    times = {row["full_name"]: (row["calls"], row["total_ns"]) for row in answer["data"]["rows"]}
    assert times == {"gemm": (1, 1_000), "softmax": (2, 500)}
    assert copy.warplens("scrub", str(profile), str(copy.root / "shared.csv"))
    _write_kernels(profile, ("gemm", 400, 300))
    refused = copy.run("-m", "warplens", "kernels", str(profile))
    assert (refused.returncode, "ends before it starts" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    ("target", "name", "said"),
    [
        pytest.param("new-table", "kernels-by-day", "one word", id="a command of two words"),
        pytest.param("new-finding", "Long", "lower-case words", id="a name with a capital"),
        pytest.param("new-format", "timings", "is there already", id="a name that is taken"),
        pytest.param("new-format", "kineto", "is there already", id="the name of a package"),
        pytest.param("new-format", "reader", "uses this name", id="a class of the example"),
        pytest.param("new-table", "copies", "such a command", id="a command"),
        pytest.param("new-table", "waits", "such a table", id="a table without a command"),
        pytest.param("new-table", "python", "is there already", id="a page without a command"),
        pytest.param("new-table", "import", "uses this name", id="a keyword"),
        pytest.param("new-finding", "saturated", "such a finding", id="a finding in a module of another name"),
    ],
)
def test_a_name_that_cannot_be_is_refused_before_anything_is_written(copy, target, name, said):
    before = copy.files()
    made = copy.make(target, name)
    assert made.returncode != 0
    assert said in made.stderr
    assert copy.files() == before


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


#: What the requirements allow.
MOST_BYTES = 3_000_000

#: Metadata, licence and entry points of the distribution, beside RECORD: 9.2 kB in a built wheel, and their headers.
ABOUT_BYTES = 10_500


def test_the_wheel_is_no_larger_than_allowed():
    """Packed as the build backend packs it: deflated in a zip archive, with a RECORD of hashes."""
    package = Path(warplens.__file__).parent
    held, record = io.BytesIO(), []
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as wheel:
        for path in sorted(package.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                name, content = str(path.relative_to(package.parent)), path.read_bytes()
                wheel.writestr(name, content)
                digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
                record.append(f"{name},sha256={digest},{len(content)}")
        wheel.writestr("warplens.dist-info/RECORD", "\n".join(record))
    size = len(held.getvalue()) + ABOUT_BYTES
    assert size <= MOST_BYTES, f"{size:,} bytes: large files that the package does not need belong into data/"
