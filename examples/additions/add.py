"""Adds a table command, a finding or a file format that works at once: `make new-table`, `new-finding`, `new-format`.

python examples/additions/add.py table NAME

What it writes is the example beside this file under the new name; what makes it known is one line in a list. Then the
pages that are made from the code are made anew. What is left to do is printed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parent
ROOT = EXAMPLES.parents[1]
SOURCE = Path("src/warplens")


def main() -> int:
    """Adds what is asked for to the repository that this file stands in."""
    parser = argparse.ArgumentParser(description="Adds something that works at once; change it to what you need.")
    parser.add_argument("what", choices=_KINDS)
    parser.add_argument("name", help="lower-case words, joined by hyphens")
    asked = parser.parse_args()
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", asked.name):
        parser.error(f"{asked.name!r}: give lower-case words, joined by hyphens")
    changed = _KINDS[asked.what](asked.name)
    sys.stdout.write("".join(f"{path.relative_to(ROOT)}\n" for path in changed))
    sys.stdout.write("Next: change it to what you need, add a test and a line to CHANGELOG.md, then make test lint\n")
    return 0


def add_table(name: str) -> list[Path]:
    """A command that prints a table: its module, its line in the list of commands, its page."""
    if "-" in name:
        raise SystemExit(f"{name!r}: a command is one word")
    module = _written("singles", name, SOURCE / "report/questions")
    catalogue = ROOT / SOURCE / "cli/catalogue.py"
    entry = f'        "{name}": ("questions.{name}", "Kernels one by one, the longest first."),'
    listed = _inserted(catalogue, r'(?m)^    \},\n    "Hardware counters"', f"{entry}\n")
    page = ROOT / f"docs/how-to/{name}.md"
    page.write_text(f"# Kernels one by one\n\n```console\n$ warplens {name} PROFILE\n```\n", "utf-8")
    contents = _inserted(ROOT / "mkdocs.yml", r"(?m)^ *- how-to/code\.md$", f"          - how-to/{name}.md\n")
    _made_anew("generate_columns")
    return [module, listed, page, contents]


def add_finding(name: str) -> list[Path]:
    """A finding: its rule. Every module of rules is looked through, so that nothing lists it."""
    module = _written("long-kernels", name, SOURCE / "diagnosis/rules")
    _made_anew("generate_findings")
    return [module]


def add_format(name: str) -> list[Path]:
    """A file format: its reader, and its name among those of the same content."""
    module = _written("plain", name, SOURCE / "readers")
    readers = ROOT / SOURCE / "readers/__init__.py"
    _inserted(
        readers, r"(?m)^from warplens\.readers\.shipped", f"from warplens.readers.{module.stem} import {_class(name)}\n"
    )
    return [module, _inserted(readers, r"(?<=KinetoTrace\(\))\),\n    \"not a profile\"", f", {_class(name)}()")]


_KINDS = {"table": add_table, "finding": add_finding, "format": add_format}


def _class(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("-"))


def _written(example: str, name: str, folder: Path) -> Path:
    """The example under the new name, in each of its spellings."""
    target = ROOT / folder / f"{name.replace('-', '_')}.py"
    if target.exists():
        raise SystemExit(f"{target.relative_to(ROOT)} is there already")
    text = (EXAMPLES / f"{example.replace('-', '_')}.py").read_text("utf-8")
    first, _, rest = text.partition("\n")
    text = re.sub(r":? what `make .*$", '."""' if first.endswith('"""') else ".", first) + f"\n{rest}"
    for spelled in (str, _class, lambda words: words.replace("-", "_"), str.upper):
        text = re.sub(rf"\b{spelled(example)}\b", spelled(name), text)
    target.write_text(text, "utf-8")
    return target


def _inserted(path: Path, before: str, text: str) -> Path:
    """A text put before the one place of a file that a pattern finds."""
    content = path.read_text("utf-8")
    (place,) = re.finditer(before, content)
    path.write_text(content[: place.start()] + text + content[place.start() :], "utf-8")
    return path


def _made_anew(script: str) -> None:
    subprocess.run([sys.executable, f"docs/{script}.py"], cwd=ROOT, check=True)


if __name__ == "__main__":
    sys.exit(main())
