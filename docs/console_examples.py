"""Runs the documentation's console examples as they are written and compares what they print with the pages.

    python docs/console_examples.py                   says which examples are no longer true
    python docs/console_examples.py --update          writes the real output into the pages
    python docs/console_examples.py --update PAGE…    only into these

An example is a block of kind `console`: a line `$ warplens …`, then its output, then perhaps more of both. A line `…`
stands for any number of lines; an update keeps as many lines before and after it as the page had. Other programs than
warplens are not run.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from typer.testing import CliRunner

from warplens.cli.main import app
from warplens.cli.process import DEFECT

__all__ = ["Example", "empty_folder", "examples", "pages"]

DOCS = Path(__file__).parent
_BLOCK = re.compile(r"^(?P<indent> *)```console\n(?P<body>.*?)^ *```$", re.MULTILINE | re.DOTALL)
_REST = "…"


@dataclass(frozen=True)
class Example:
    """One command of a page, and the output that the page shows for it."""

    page: Path
    command: str
    shown: tuple[str, ...]

    def output(self) -> list[str]:
        """What the command prints, on both streams; in an `empty_folder`.

        Raises:
            RuntimeError: the command failed by a defect.
        """
        result = CliRunner().invoke(app, shlex.split(self.command)[1:])
        if result.exit_code == DEFECT:
            raise RuntimeError(f"{self.page.name}: {self.command}: {result.output.strip()}")
        return _trimmed(result.output.split("\n"))

    def is_true(self) -> bool:
        """Whether the shown lines are the real ones, in order and complete but for `…`."""
        return list(self.shown) == self.updated()

    def updated(self) -> list[str]:
        """The real output, shortened as the page shows it."""
        real = self.output()
        if _REST not in self.shown:
            return real
        place = self.shown.index(_REST)
        last = len(self.shown) - place - 1
        return real if len(real) <= place + last else [*real[:place], _REST, *(real[-last:] if last else [])]


def pages() -> list[Path]:
    """All pages that may hold examples, the README among them."""
    return [DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))]


def examples(page: Path) -> list[Example]:
    """The commands of a page that start warplens, in order."""
    found = [run for block in _BLOCK.finditer(page.read_text("utf-8")) for run in _runs(page, block)]
    return [example for example in found if example.command.startswith("warplens ")]


@contextmanager
def empty_folder() -> Iterator[None]:
    """Work in a temporary folder, in which commands may write.

    Examples name profiles of the package as `demo:NAME`, and those of a checkout as `data/…`.
    """
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "data").symlink_to(DOCS.parent / "data")
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def _runs(page: Path, block: re.Match[str]) -> Iterator[Example]:
    command, shown = "", []
    for line in [*block["body"].split("\n"), "$ "]:
        text = line.removeprefix(block["indent"])
        if text.startswith("$ "):
            if command:
                yield Example(page, command, tuple(_trimmed(shown)))
            command, shown = text[2:], []
        else:
            shown.append(text)


def _trimmed(lines: list[str]) -> list[str]:
    """Without trailing blanks, and without empty lines at the begin and the end."""
    stripped = [line.rstrip() for line in lines]
    while stripped and not stripped[0]:
        stripped.pop(0)
    while stripped and not stripped[-1]:
        stripped.pop()
    return stripped


def _update(page: Path) -> None:
    def rewritten(block: re.Match[str]) -> str:
        lines = []
        for example in _runs(page, block):
            shown = example.updated() if example.command.startswith("warplens ") else list(example.shown)
            lines += [f"$ {example.command}", *shown]
        body = "\n".join(f"{block['indent']}{line}".rstrip() for line in lines)
        return f"{block['indent']}```console\n{body}\n{block['indent']}```"

    page.write_text(_BLOCK.sub(rewritten, page.read_text("utf-8")), encoding="utf-8")


def main() -> int:
    """Check or update the named pages, or all; 1 where an example is not true."""
    named = [Path(word).absolute() for word in sys.argv[1:] if word != "--update"] or pages()
    with empty_folder():
        if "--update" in sys.argv[1:]:
            for page in named:
                _update(page)
            return 0
        wrong = [example for page in named for example in examples(page) if not example.is_true()]
    for example in wrong:
        sys.stderr.write(f"{example.page.name}: {example.command}\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
