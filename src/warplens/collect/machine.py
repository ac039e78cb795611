"""Access to the machine: files and programs, the GPUs and their driver, and installed profilers."""

from __future__ import annotations

import glob
import itertools
import os
import posixpath
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from warplens.errors import UsageError

_MIB: Final = 1 << 20

_FIELDS: Final = ("name", "driver_version", "compute_cap", "memory.total", "memory.used", "mig.mode.current")

#: Candidates for nvidia-smi; on WSL2 it is not on the search path of every shell.
_PLACES: Final = ("nvidia-smi", "/usr/lib/wsl/lib/nvidia-smi")


@dataclass(frozen=True)
class Gpu:
    """One GPU."""

    name: str
    compute_capability: str | None  #: such as 9.0; None if unknown
    memory_bytes: int | None
    used_bytes: int | None
    mig: bool  #: whether it is divided into instances


@dataclass(frozen=True)
class Driver:
    """The driver and its GPUs."""

    version: str | None
    gpus: tuple[Gpu, ...]  #: in the order of the PCI bus
    processes: int | None  #: number of processes that use a GPU; None if unknown
    problem: str | None = None  #: error message of nvidia-smi; then there are no GPUs


def ask_driver(system: System) -> Driver | None:
    """The driver and its GPUs; None if there is no nvidia-smi."""
    for program in _PLACES:
        answer = system.run([program, f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"])
        if answer is None:
            continue
        rows = [[cell.strip() for cell in line.split(",")] for line in answer.text.splitlines()]
        rows = [row for row in rows if len(row) == len(_FIELDS)]
        if answer.code != 0 or not rows:
            lines = answer.text.strip().splitlines()
            return Driver(None, (), None, lines[0] if lines else "nvidia-smi gave no answer")
        apps = system.run([program, "--query-compute-apps=used_memory", "--format=csv,noheader,nounits"])
        processes = len(apps.text.split("\n")) - 1 if apps and apps.code == 0 else None
        return Driver(rows[0][1], tuple(_gpu(row) for row in rows), processes)
    return None


def _gpu(row: list[str]) -> Gpu:
    name, _, capability, total, used, mig = row
    return Gpu(
        name=name,
        compute_capability=capability if capability[:1].isdigit() else None,
        memory_bytes=int(total) * _MIB if total.isdigit() else None,
        used_bytes=int(used) * _MIB if used.isdigit() else None,
        mig=mig == "Enabled",
    )


# --- Access to files and programs -------------------------------------------------------------------------------------
# All access goes through `System`, so that tests can replace it by recorded machines.

#: Time limit for queries of a tool; nvidia-smi hangs if a GPU has fallen off the bus.
_PATIENCE_S: Final = 60.0


@dataclass(frozen=True)
class Output:
    """The result of a program."""

    code: int | None  #: its exit code; None after a timeout
    text: str  #: standard output, then standard error


class System:
    """Queries of the machine that this runs on; tests use recorded machines with the same methods."""

    def read(self, path: str) -> str | None:
        """The content of a text file; None if it cannot be read."""
        try:
            return Path(path).read_text("utf-8", errors="replace")
        except OSError:
            return None

    def exists(self, path: str) -> bool:
        """Whether there is such a file or folder."""
        return Path(path).exists()

    def run(self, command: Sequence[str], patience_s: float = _PATIENCE_S) -> Output | None:
        """Run a program; None if it does not exist."""
        try:
            done = subprocess.run(  # noqa: S603  a list of words, no shell
                list(command), capture_output=True, stdin=subprocess.DEVNULL, timeout=patience_s, check=False
            )
        except subprocess.TimeoutExpired:
            return Output(None, "")
        except OSError:
            return None
        return Output(done.returncode, (done.stdout + done.stderr).decode("utf-8", "replace"))

    def which(self, program: str) -> str | None:
        """The path of a program on the search path."""
        return shutil.which(program)

    def matching(self, pattern: str) -> list[str]:
        """Executable files that match a shell pattern."""
        return sorted(path for path in glob.glob(pattern) if os.access(path, os.X_OK) and not Path(path).is_dir())  # noqa: PTH207

    def variable(self, name: str) -> str | None:
        """The value of an environment variable, which must never be displayed."""
        return os.environ.get(name)

    def free_bytes(self, folder: str) -> int | None:
        """Free disk space of a folder."""
        try:
            return shutil.disk_usage(folder).free
        except OSError:
            return None

    def python(self) -> str:
        """The interpreter that runs this."""
        return sys.executable


Version = tuple[int, ...]

TITLES: Final = {"nsys": "Nsight Systems", "ncu": "Nsight Compute"}

HOW_TO_GET: Final = {
    "nsys": "install the package nsight-systems-cli or the CUDA toolkit, or name the program with --tool or $NSYS",
    "ncu": "install the package nsight-compute or the CUDA toolkit, or name the program with --tool or $NCU",
}

#: Variables that name the program to use, the first that is set.
VARIABLES: Final = {"nsys": ("WARPLENS_NSYS", "NSYS"), "ncu": ("WARPLENS_NCU", "NCU")}

#: Matches versions of both tools, year.number[.number…], but not copyright years or build numbers.
_VERSION = re.compile(r"\b[Vv]ersion:?\s+(\d{4}(?:\.\d+){1,3})")

#: Patterns below the folder of a toolkit, in order of preference. Nsight Compute includes an nsys of its own.
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
    """An installed profiler."""

    name: str  #: `nsys` or `ncu`
    path: str
    version: Version
    on_path: bool = False  #: whether it is on the search path

    @property
    def title(self) -> str:
        """Name and version for display."""
        return f"{TITLES[self.name]} {dotted(self.version)}"


def dotted(version: Version) -> str:
    """A version as text: `2024.4`."""
    return ".".join(map(str, version))


def parse_version(text: str) -> Version | None:
    """The version in the output of `--version` of nsys or ncu; None if there is none."""
    match = _VERSION.search(text)
    return tuple(map(int, match[1].split("."))) if match else None


def _places(name: str, system: System) -> Iterator[str]:
    """Candidate paths of a profiler, the most likely first."""
    if on_path := system.which(name):
        yield on_path
    toolkits = [folder for variable in ("CUDA_HOME", "CUDA_PATH") if (folder := system.variable(variable))]
    folders = (*toolkits, "/usr/local/cuda", "/usr/local/cuda-*")
    patterns = [f"{folder.rstrip('/')}/{below}" for folder in folders for below in _BELOW[name]]
    for pattern in (*patterns, *_VENDOR[name]):
        yield from _newest_first(system.matching(pattern))


def find_tool(name: str, system: System, given: str | None = None) -> Tool | None:
    """The first profiler that prints its version; None if there is none.

    A program named by the user (`given`, else `$NSYS` or `$NCU`) is the only one that is tried.
    """
    given = given or named_by_variable(name, system)
    tried = set()
    for path in [given] if given else _places(name, system):
        if path in tried:
            continue
        tried.add(path)
        answer = system.run([path, "--version"])
        version = parse_version(answer.text) if answer else None
        if version and answer and TITLES[name] in answer.text:
            return Tool(name, path, version, on_path=not given and path == system.which(name))
    return None


def named_by_variable(name: str, system: System) -> str | None:
    """The program named by an environment variable, if one is set."""
    return next((program for variable in VARIABLES[name] if (program := system.variable(variable))), None)


#: Paths of the importer relative to the folder of nsys: in a separate installation, and inside Nsight Compute.
_IMPORTERS: Final = ("../host-linux-*/QdstrmImporter", "QdstrmImporter", "../../host/linux-desktop-*/QdstrmImporter")


def missing_libraries(tool: Tool, system: System) -> list[str]:
    """Missing shared libraries of the importer of nsys, without which a recording cannot be converted to a report.

    Empty if the importer or `ldd` is not found.
    """
    folders = dict.fromkeys(posixpath.dirname(path) for path in (tool.path, posixpath.realpath(tool.path)))
    for folder, below in itertools.product(folders, _IMPORTERS):
        for importer in system.matching(posixpath.normpath(posixpath.join(folder, below))):
            answer = system.run(["ldd", importer])
            if answer is not None:
                return sorted(set(re.findall(r"^\s*(\S+) => not found", answer.text, re.MULTILINE)))
    return []


def needed_tool(name: str, system: System, given: str | None = None) -> Tool:
    """`find_tool` for a tool that is required.

    Raises:
        UsageError: it is not found; the message says how to install it.
    """
    if tool := find_tool(name, system, given):
        return tool
    if given:
        raise UsageError(f"--tool: that program does not answer as {TITLES[name]} ({name} --version)")
    if named_by_variable(name, system):
        variable = next(variable for variable in VARIABLES[name] if system.variable(variable))
        raise UsageError(f"${variable} names a program that does not answer as {TITLES[name]} ({name} --version)")
    raise UsageError(f"{name} ({TITLES[name]}) was not found on this machine: {HOW_TO_GET[name]}")


def _newest_first(paths: list[str]) -> list[str]:
    return sorted(paths, key=lambda path: [int(part) for part in re.findall(r"\d+", path)], reverse=True)
