"""`manifest.json`: what was collected into a folder, with what, and how to do it again; nothing of people and hosts."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any, Final

from warplens._version import __version__
from warplens.scrub_secrets import ADDRESSES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["MANIFEST", "SCHEMA", "add_run", "without_paths"]

MANIFEST: Final = "manifest.json"
SCHEMA: Final = "warplens.collection/1"

#: Everything before the last separator of what looks like a path, wherever it stands in a word.
_FOLDERS = re.compile(
    r"(?:~|\.{0,2}|(?<![A-Za-z])[A-Za-z]:)?[/\\](?:[^\s/\\=,:;'\"]+[/\\])*|(?:[^\s/\\=,:;'\"]+[/\\])+"
)
_ROOTED = re.compile(r"(?:~|\.{1,2})?[/\\]|[A-Za-z]:[/\\]")
_SEPARATORS: Final = "/\\"
_SEPARATOR: Final = r"[/\\]"
_SECRET = re.compile(r"token|secret|passw|api[-_]?key|credential|auth", re.IGNORECASE)
_REMOVED: Final = "[removed]"


def without_paths(command: Sequence[str]) -> list[str]:
    """The words of a command without folders, and without values of options that sound secret.

    Of a path, the last name remains; the program itself keeps its name alone.
    """
    words: list[str] = []
    hide_next = False
    for word in command:
        option, equals, _ = word.partition("=")
        if hide_next and not word.startswith("-"):
            words.append(_REMOVED)
            hide_next = False
            continue
        is_secret = bool(_SECRET.search(option)) and (option.startswith("-") or bool(equals))
        hide_next = is_secret and not equals
        words.append(f"{option}={_REMOVED}" if is_secret and equals else _bare(word))
    return words


def _bare(word: str) -> str:
    # A filter of kernel names or a range may hold a slash that separates no folders.
    if word.startswith(("regex:", "--nvtx-capture=")) or (word.endswith("/") and "/" not in word[:-1]):
        return word
    option, equals, value = word.rpartition("=")
    if _ROOTED.match(value):  # all of it is one path, blanks included
        return f"{option}{equals}{re.split(_SEPARATOR, value.rstrip(_SEPARATORS))[-1]}"
    return ADDRESSES.sub(_REMOVED.encode(), _FOLDERS.sub("", word).encode()).decode()


def add_run(
    folder: Path, *, tool: str, version: str, commands: Sequence[Sequence[str]], files: Sequence[Path], exit_code: int
) -> Path:
    """Add a run to the folder's manifest; one of the same files is replaced.

    Args:
        folder: that the files lie in.
        tool: that recorded them.
        version: of the tool.
        commands: that were run; folders are left out.
        files: that came of it, with their sizes.
        exit_code: of the last command.
    """
    path = folder / MANIFEST
    runs = _runs(path)
    names = [file.name for file in files]
    run: dict[str, Any] = {
        "tool": tool,
        "version": version,
        "commands": [without_paths(command) for command in commands],
        "exit_code": exit_code,
        "files": [{"name": file.name, "bytes": file.stat().st_size} for file in files],
    }
    runs = [old for old in runs if not {file.get("name") for file in old.get("files", ())} & set(names)]
    content = {"schema": SCHEMA, "version": __version__, "runs": [*runs, run]}
    unfinished = path.with_name(f"{MANIFEST}.part")
    unfinished.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf-8")
    os.replace(unfinished, path)  # noqa: PTH105  atomic
    return path


def _runs(path: Path) -> list[dict[str, Any]]:
    """The runs of a manifest that is there; none where it is no manifest of ours."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return []
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        return []
    return [run for run in content.get("runs", ()) if isinstance(run, dict)]
