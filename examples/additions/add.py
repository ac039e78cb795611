"""Adds a table command, a finding or a file format that works at once: `make new-table`, `new-finding`, `new-format`.

python examples/additions/add.py table NAME

What it writes is the example beside this file under the new name; what makes it known is one line in a list. A name
that something has already is refused before anything is written. Then the pages that are made from the code are made
anew. What is left to do is printed.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import keyword
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Final

EXAMPLES = Path(__file__).parent
ROOT = EXAMPLES.parents[1]
SOURCE = Path("src/warplens")

_EXAMPLE: Final = {"table": "singles", "finding": "long-kernels", "format": "plain"}
_FOLDER: Final = {"table": "report/questions", "finding": "diagnosis/rules", "format": "readers"}


def main() -> int:
    """Adds what is asked for to the repository that this file stands in."""
    parser = argparse.ArgumentParser(description="Adds something that works at once; change it to what you need.")
    parser.add_argument("what", choices=_KINDS)
    parser.add_argument("name", help="lower-case words, joined by hyphens")
    asked = parser.parse_args()
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", asked.name):
        parser.error(f"{asked.name!r}: give lower-case words, joined by hyphens")
    if reason := _taken(asked.what, asked.name):
        parser.error(f"{asked.name!r}: {reason}; choose another name")
    changed = _KINDS[asked.what](asked.name)
    _styled([path for path in changed if path.suffix == ".py"])
    sys.stdout.write("".join(f"{path.relative_to(ROOT)}\n" for path in changed))
    sys.stdout.write("Next: change it to what you need, add a test and a line to CHANGELOG.md, then make test lint\n")
    return 0


def add_table(name: str) -> list[Path]:
    """A command that prints a table: its module, its line in the list of commands, its page."""
    module = _written("table", name)
    catalogue = ROOT / SOURCE / "cli/catalogue.py"
    entry = f'        "{name}": ("questions.{name}", "Kernels one by one, the longest first."),'
    listed = _inserted(catalogue, r'(?m)^    \},\n    "Hardware counters"', f"{entry}\n")
    page = _page(name)
    command = f"warplens {name} demo:deit224_bs1_baseline --limit 5"
    page.write_text(f"# Kernels one by one\n\n```console\n$ {command}\n```\n", "utf-8")
    contents = _inserted(ROOT / "mkdocs.yml", r"(?m)^ *- how-to/code\.md$", f"          - how-to/{name}.md\n")
    columns = _made_anew("generate_columns", "reference/columns.md")
    _run("docs/console_examples.py", "--update", str(page))
    return [module, listed, page, contents, columns]


def add_finding(name: str) -> list[Path]:
    """A finding: its rule. Every module of rules is looked through, so that nothing lists it."""
    return [_written("finding", name), _made_anew("generate_findings", "reference/findings.md")]


def add_format(name: str) -> list[Path]:
    """A file format: its reader, and its name among those of the same content."""
    module = _written("format", name)
    readers = ROOT / SOURCE / "readers/__init__.py"
    _inserted(
        readers, r"(?m)^from warplens\.readers\.shipped", f"from warplens.readers.{module.stem} import {_class(name)}\n"
    )
    _inserted(readers, r"(?<=KinetoTrace\(\))\),\n    \"not a profile\"", f", {_class(name)}()")
    return [module, readers]


_KINDS = {"table": add_table, "finding": add_finding, "format": add_format}


def _taken(what: str, name: str) -> str:
    """Why something of this kind cannot have this name; empty if it can."""
    words, example = _identifier(name), ast.parse((EXAMPLES / f"{_identifier(_EXAMPLE[what])}.py").read_text("utf-8"))
    used = {node.id for node in ast.walk(example) if isinstance(node, ast.Name)}
    if keyword.iskeyword(words) or hasattr(builtins, words) or used & {words, words.upper(), _class(name)}:
        return "Python or the example uses this name"
    for path in (_module(what, name), _module(what, name).with_suffix("")):
        if path.exists():
            return f"{path.relative_to(ROOT)} is there already"
    return {"table": _taken_by_command, "finding": _taken_by_rule, "format": _taken_by_reader}[what](name)


def _taken_by_command(name: str) -> str:
    from warplens.cli.catalogue import COMMANDS

    sys.path.insert(0, str(ROOT / "docs"))
    tables = import_module("generate_columns").result_tables()
    if "-" in name:
        return "a command is one word"
    if name in COMMANDS:
        return "there is such a command already"
    if name in {table.name.casefold() for table in tables}:
        return "there is such a table already, see docs/reference/columns.md"
    return f"{_page(name).relative_to(ROOT)} is there already" if _page(name).exists() else ""


def _taken_by_rule(name: str) -> str:
    from warplens.diagnosis.rules import FINDING_IDS

    return "there is such a finding already" if name in FINDING_IDS else ""


def _taken_by_reader(name: str) -> str:
    from warplens import readers

    return "there is such a reader already" if hasattr(readers, _class(name)) else ""


def _identifier(name: str) -> str:
    return name.replace("-", "_")


def _class(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("-"))


def _module(what: str, name: str) -> Path:
    return ROOT / SOURCE / _FOLDER[what] / f"{_identifier(name)}.py"


def _page(name: str) -> Path:
    return ROOT / f"docs/how-to/{name}.md"


def _written(what: str, name: str) -> Path:
    """The example under the new name, in each of its spellings."""
    example, target = _EXAMPLE[what], _module(what, name)
    text = (EXAMPLES / f"{_identifier(example)}.py").read_text("utf-8")
    first, _, rest = text.partition("\n")
    text = re.sub(r":? what `make .*$", '."""' if first.endswith('"""') else ".", first) + f"\n{rest}"
    for spelled in (str, _class, _identifier, str.upper):
        text = re.sub(rf"\b{spelled(example)}\b", spelled(name), text)
    target.write_text(text, "utf-8")
    return target


def _inserted(path: Path, before: str, text: str) -> Path:
    """A text put before the one place of a file that a pattern finds."""
    content = path.read_text("utf-8")
    (place,) = re.finditer(before, content)
    path.write_text(content[: place.start()] + text + content[place.start() :], "utf-8")
    return path


def _made_anew(script: str, page: str) -> Path:
    """A page that a script makes from the code."""
    _run(f"docs/{script}.py")
    return ROOT / "docs" / page


def _styled(modules: list[Path]) -> None:
    """Modules in the project's style, which depends on the name: order of imports, breaks of lines."""
    for words in (("check", "--fix", "--exit-zero"), ("format",)):
        _run("-m", "ruff", *words, "--quiet", *map(str, modules))


def _run(*words: str) -> None:
    subprocess.run([sys.executable, *words], cwd=ROOT, check=True)


if __name__ == "__main__":
    sys.exit(main())
