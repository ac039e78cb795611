"""The machine as the doctor sees it: files and programs, the GPUs and their driver, and where profilers hide."""

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

#: On WSL2 it is not on the search path of every shell.
_PLACES: Final = ("nvidia-smi", "/usr/lib/wsl/lib/nvidia-smi")


@dataclass(frozen=True)
class Gpu:
    """One GPU."""

    name: str
    compute_capability: str | None  #: such as 9.0; None where the driver does not tell
    memory_bytes: int | None
    used_bytes: int | None
    mig: bool  #: whether it is divided into instances


@dataclass(frozen=True)
class Driver:
    """The driver and its GPUs."""

    version: str | None
    gpus: tuple[Gpu, ...]  #: in the order of the PCI bus
    processes: int | None  #: that compute on a GPU now; None where it does not tell
    problem: str | None = None  #: what nvidia-smi complained about; then there are no GPUs


def ask_driver(system: System) -> Driver | None:
    """The driver and its GPUs; None where there is no nvidia-smi."""
    for program in _PLACES:
        answer = system.run([program, f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"])
        if answer is None:
            continue
        rows = [[cell.strip() for cell in line.split(",")] for line in answer.text.splitlines()]
        rows = [row for row in rows if len(row) == len(_FIELDS)]
        if answer.code != 0 or not rows:
            said = answer.text.strip().splitlines()
            return Driver(None, (), None, said[0] if said else "nvidia-smi gave no answer")
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


# --- The machine as the doctor and the finder of tools see it: files, programs and their output, and nothing else ----
# Everything goes through `System`, so that recorded machines can stand in for this one.


#: A query of a tool that takes longer is stuck: a GPU that fell off the bus keeps nvidia-smi waiting for ever.
_PATIENCE_S: Final = 60.0


@dataclass(frozen=True)
class Output:
    """What a program answered."""

    code: int | None  #: its exit code; None where it had to be stopped
    text: str  #: standard output, then standard error


class System:
    """What can be asked of a machine: of the one that this runs on. Recorded ones answer the same questions."""

    def read(self, path: str) -> str | None:
        """A text file; None where there is none that may be read."""
        try:
            return Path(path).read_text("utf-8", errors="replace")
        except OSError:
            return None

    def exists(self, path: str) -> bool:
        """Whether there is such a file or folder."""
        return Path(path).exists()

    def run(self, command: Sequence[str], patience_s: float = _PATIENCE_S) -> Output | None:
        """What a program prints; None where there is no such program."""
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
        """Where a program of the search path lies."""
        return shutil.which(program)

    def matching(self, pattern: str) -> list[str]:
        """Executable files that match a shell pattern."""
        return sorted(path for path in glob.glob(pattern) if os.access(path, os.X_OK) and not Path(path).is_dir())  # noqa: PTH207

    def variable(self, name: str) -> str | None:
        """An environment variable. Its value is for looking things up, never for showing."""
        return os.environ.get(name)

    def free_bytes(self, folder: str) -> int | None:
        """Free space for files in a folder."""
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
    """An installed profiler."""

    name: str  #: `nsys` or `ncu`
    path: str
    version: Version  #: as numbers, to compare
    on_path: bool = False  #: whether its name alone starts it

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
        given: the program that the user named; then no other counts. What `$NSYS` or `$NCU` names is given, too.
    """
    given = given or named_by_variable(name, system)
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


def named_by_variable(name: str, system: System) -> str | None:
    """The program that a variable of the environment names."""
    return next((found for variable in VARIABLES[name] if (found := system.variable(variable))), None)


#: Where the importer lies, from the folder of nsys: in an installation of its own, and inside Nsight Compute.
_IMPORTERS: Final = ("../host-linux-*/QdstrmImporter", "QdstrmImporter", "../../host/linux-desktop-*/QdstrmImporter")


def missing_libraries(tool: Tool, system: System) -> list[str]:
    """Shared libraries that the importer of nsys needs, and that are not there: without them a recording stays raw.

    Empty where the importer or `ldd` cannot be asked.
    """
    folders = dict.fromkeys(posixpath.dirname(path) for path in (tool.path, posixpath.realpath(tool.path)))
    for folder, below in itertools.product(folders, _IMPORTERS):
        for importer in system.matching(posixpath.normpath(posixpath.join(folder, below))):
            answer = system.run(["ldd", importer])
            if answer is not None:
                return sorted(set(re.findall(r"^\s*(\S+) => not found", answer.text, re.MULTILINE)))
    return []


def needed_tool(name: str, system: System, given: str | None = None) -> Tool:
    """The same, where nothing goes without it.

    Raises:
        UsageError: it is not there; the message says how to get it.
    """
    if tool := find_tool(name, system, given):
        return tool
    if given:
        raise UsageError(f"--tool: that program does not answer as {TITLES[name]} ({name} --version)")
    if named_by_variable(name, system):
        variable = next(each for each in VARIABLES[name] if system.variable(each))
        raise UsageError(f"${variable} names a program that does not answer as {TITLES[name]} ({name} --version)")
    raise UsageError(f"{name} ({TITLES[name]}) was not found on this machine: {HOW_TO_GET[name]}")


def _newest_first(paths: list[str]) -> list[str]:
    return sorted(paths, key=lambda path: [int(part) for part in re.findall(r"\d+", path)], reverse=True)
