"""Where NVIDIA's profilers hide, and which version they are."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from warplens.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from warplens.collect.system import System

__all__ = ["HOW_TO_GET", "TITLES", "Tool", "find_tool", "needed_tool", "parse_version", "places"]

Version = tuple[int, ...]

TITLES: Final = {"nsys": "Nsight Systems", "ncu": "Nsight Compute"}

HOW_TO_GET: Final = {
    "nsys": "install the package nsight-systems-cli or the CUDA toolkit, or name the program with --tool",
    "ncu": "install the package nsight-compute or the CUDA toolkit, or name the program with --tool",
}

#: Versions of both are written year.number[.number…]; other numbers in the output are years of a copyright, or builds.
_VERSION = re.compile(r"\b[Vv]ersion:?\s+(\d{4}(?:\.\d+){1,3})")

#: Below a folder of a toolkit or of a package; the first that matches counts. Nsight Compute brings an nsys of its own.
_BELOW: Final = {
    "nsys": (
        "bin/nsys",
        "nsight-systems-*/bin/nsys",
        "nsight-systems/bin/nsys",
        "nsight-compute-*/host/target-linux-x64/nsys",
        "nsight-compute/host/target-linux-x64/nsys",
    ),
    "ncu": ("bin/ncu", "nsight-compute-*/ncu", "nsight-compute/ncu"),
}
_VENDOR: Final = {
    "nsys": (
        "/opt/nvidia/nsight-systems/*/bin/nsys",
        "/opt/nvidia/nsight-systems/*/target-linux-*/nsys",
        "/opt/nvidia/nsight-systems-cli/*/bin/nsys",
        "/opt/nvidia/nsight-compute/*/host/target-linux-*/nsys",
        "/opt/nvidia/nsight-compute/*/host/*/nsys",
        "/usr/lib/nsight-systems/bin/nsys",
    ),
    "ncu": (
        "/opt/nvidia/nsight-compute/*/ncu",
        "/opt/nvidia/nsight-compute/*/target/linux-desktop-*/ncu",
        "/usr/lib/nsight-compute/ncu",
    ),
}


@dataclass(frozen=True)
class Tool:
    """An installed profiler.

    Attributes:
        name: `nsys` or `ncu`.
        path: of the program.
        version: as numbers, to compare.
        on_path: whether its name alone starts it.
    """

    name: str
    path: str
    version: Version
    on_path: bool = False

    @property
    def title(self) -> str:
        """Name and version for people."""
        return f"{TITLES[self.name]} {'.'.join(map(str, self.version))}"


def parse_version(text: str) -> Version | None:
    """The version in what `--version` of nsys or ncu prints; None where there is none."""
    found = _VERSION.search(text)
    return tuple(map(int, found[1].split("."))) if found else None


def places(name: str, system: System) -> Iterator[tuple[str, bool]]:
    """Where a profiler lies on this machine, the likeliest first; and whether the search path finds it."""
    if found := system.which(name):
        yield found, True
    toolkits = [folder for variable in ("CUDA_HOME", "CUDA_PATH") if (folder := system.variable(variable))]
    for folder in (*toolkits, "/usr/local/cuda", "/usr/local/cuda-*"):
        for below in _BELOW[name]:
            for path in _newest_first(system.matching(f"{folder.rstrip('/')}/{below}")):
                yield path, False
    for pattern in _VENDOR[name]:
        for path in _newest_first(system.matching(pattern)):
            yield path, False


def find_tool(name: str, system: System, given: str | None = None) -> Tool | None:
    """The profiler to use: the first that answers with its version; None where there is none.

    Args:
        name: `nsys` or `ncu`.
        system: the machine.
        given: the program that the user named; then no other counts.
    """
    candidates = [(given, False)] if given else places(name, system)
    tried = set()
    for path, on_path in candidates:
        if path in tried:
            continue
        tried.add(path)
        answer = system.run([path, "--version"])
        version = parse_version(answer.text) if answer else None
        if version and answer and TITLES[name] in answer.text:
            return Tool(name, path, version, on_path)
    return None


def needed_tool(name: str, system: System, given: str | None = None) -> Tool:
    """The same, where nothing goes without it.

    Raises:
        UsageError: it is not there; the message says how to get it.
    """
    if tool := find_tool(name, system, given):
        return tool
    if given:
        raise UsageError(f"--tool: that program does not answer as {TITLES[name]} ({name} --version)")
    raise UsageError(f"{name} ({TITLES[name]}) was not found on this machine: {HOW_TO_GET[name]}")


def _newest_first(paths: list[str]) -> list[str]:
    return sorted(paths, key=lambda path: [int(part) for part in re.findall(r"\d+", path)], reverse=True)
