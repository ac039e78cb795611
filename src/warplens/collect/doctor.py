"""Checks what this machine can record, and how to fix what it cannot. Reports no host, user or environment."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from warplens.collect.commands import NSYS_OLDEST as OLDEST_NSYS
from warplens.collect.compute import OLDEST as OLDEST_NCU
from warplens.collect.machine import (
    HOW_TO_GET,
    TITLES,
    Driver,
    System,
    Tool,
    ask_driver,
    dotted,
    find_tool,
    missing_libraries,
    named_by_variable,
)
from warplens.collect.recording import COUNTERS_FIX, IMPORTER_FIX
from warplens.errors import UsageError

#: Statuses of checks, from harmless to preventing a recording.
STATUSES: Final = ("ok", "unknown", "warning", "problem")

_GIB: Final = 1 << 30

#: A profile of some steps takes hundreds of MB, and its export the same.
_LEAST_FREE_BYTES: Final = 5 * _GIB

#: With more of the memory in use than this share, other programs are likely to disturb measurements or fill the GPU.
_BUSY_SHARE: Final = 0.1

#: Highest perf_event_paranoid with which nsys samples the CPU; Warplens' default recordings need no samples.
_HIGHEST_PARANOIA: Final = 2

#: Capabilities that allow reading counters (numbers of `linux/capability.h`), by NVIDIA's page on ERR_NVGPUCTRPERM: the
#: second since driver R565.
_CAP_SYS_ADMIN: Final = 21
_CAP_PERFMON: Final = 38
_PERFMON_SINCE: Final = (565,)

#: Nsight Compute 2020.1 and later supports GPUs since Volta.
_LEAST_CAPABILITY: Final = (7, 0)

#: Torch is imported in a separate process, since the import may take long, or crash the interpreter.
_TORCH_PROGRAM: Final = (
    "import json, torch\n"
    "cuda = torch.cuda.is_available()\n"
    "names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if cuda else []\n"
    "arch = torch.cuda.get_arch_list() if cuda else []\n"
    "print('WARPLENS ' + json.dumps({'version': torch.__version__, 'cuda': torch.version.cuda, 'available': cuda,"
    " 'names': names, 'arch': arch}))\n"
)
_TORCH_PATIENCE_S: Final = 120.0

#: Abilities that `--require` accepts, and the checks that must pass for each.
ABILITIES: Final = {
    "gpu": ("gpu",),
    "torch": ("torch",),
    "nsys": ("gpu", "nsys"),
    "ncu": ("gpu", "ncu", "counters"),
}


@dataclass(frozen=True)
class Check:
    """The result of one check."""

    name: str  #: of the check; stable, for scripts
    status: str  #: one of `STATUSES`
    found: str
    fix: str | None = None  #: how to fix it, if necessary


@dataclass(frozen=True)
class Diagnosis:
    """All checks, and what can be recorded."""

    checks: tuple[Check, ...]  #: in the order of execution
    can: dict[str, bool]  #: for each of `ABILITIES` whether it works
    works: str  #: one sentence on what works in any case


def examine_machine(system: System, python: str | None = None) -> Diagnosis:
    """Check everything that recording needs; `python` runs the programs, by default the first on the search path."""
    driver = ask_driver(system)
    torch = _ask_torch(system, python)
    nsys, ncu = find_tool("nsys", system), find_tool("ncu", system)
    checks = [
        _check_gpu(driver, system),
        _check_toolkit(system),
        _check_torch(torch, driver),
        *_check_visible(torch, driver),
        _check_tool("nsys", nsys, OLDEST_NSYS, driver, system, missing_libraries(nsys, system) if nsys else ()),
        _check_tool("ncu", ncu, OLDEST_NCU, driver, system),
        _check_counters(system, driver),
        *_check_surroundings(system),
        *_check_use(driver),
        _check_disk(system),
    ]
    # Permission to read counters is often unknown until they are read, so "unknown" does not prevent ncu.
    enough = {"counters": ("ok", "warning", "unknown")}
    passed = {check.name for check in checks if check.status in enough.get(check.name, ("ok", "warning"))}
    can = {name: passed.issuperset(needed) for name, needed in ABILITIES.items()}
    return Diagnosis(tuple(checks), can, _works(can))


def missing(diagnosis: Diagnosis, required: str) -> list[str]:
    """The abilities, required by name and separated by commas, that this machine lacks.

    Raises:
        UsageError: a name is not in `ABILITIES`.
    """
    names = [name.strip() for name in required.split(",")]
    if unknown := [name for name in names if name not in ABILITIES]:
        raise UsageError(f"--require takes {', '.join(ABILITIES)}, not {unknown[0]!r}")
    return [name for name in names if not diagnosis.can[name]]


def _works(can: dict[str, bool]) -> str:
    anywhere = "Reading, reporting on, comparing and scrubbing profiles works here, as everywhere"
    command_of = {"nsys": "collect nsys", "ncu": "collect ncu", "torch": "collect torch"}
    commands = [command for name, command in command_of.items() if can[name]]
    if can["gpu"]:
        able = f"{', '.join(commands)} can record this GPU" if commands else "nothing can be recorded yet"
        return f"{anywhere}; {able}"
    if can["torch"]:
        return f"{anywhere}; collect torch and bench work on the CPU; recording a GPU needs a machine with one"
    return f"{anywhere}; recording needs a machine with a GPU"


def _check_gpu(driver: Driver | None, system: System) -> Check:
    """Whether an NVIDIA driver answers, and its GPUs are new enough for counters."""
    if driver is None:
        fix = "install the NVIDIA driver if this machine has a GPU of NVIDIA's"
        if _is_contained(system):
            fix = "start the container with GPUs: docker run --gpus all, with the NVIDIA Container Toolkit on the host"
        elif _is_wsl(system):
            fix = "install NVIDIA's driver in Windows, none in WSL2, and run 'wsl --update'"
        return Check("gpu", "problem", "no NVIDIA driver answers (there is no nvidia-smi)", fix)
    if not driver.gpus:
        problem = driver.problem or ""
        fix = "reload the driver or reboot; after a driver update the running kernel module may be another version"
        if "No devices" in problem:
            invisible = "no GPU is visible to the driver"
            fix = f"{invisible}: check that it is there (lspci) and given to this machine or container"
        return Check("gpu", "problem", f"the NVIDIA driver has no GPU to offer: {problem}", fix)
    described = ", ".join(_described(driver))
    old = [gpu for gpu in driver.gpus if _numbers(gpu.compute_capability or "99") < _LEAST_CAPABILITY]
    if old:
        fix = f"use a GPU of Volta or later for counters; {old[0].name} can be recorded with nsys and torch"
        return Check("gpu", "warning", f"{described}, driver {driver.version}", fix)
    return Check("gpu", "ok", f"{described}, driver {driver.version}")


def _described(driver: Driver) -> list[str]:
    counts: Counter[str] = Counter()
    for gpu in driver.gpus:
        memory = f", {gpu.memory_bytes / _GIB:.0f} GiB" if gpu.memory_bytes else ""
        counts[f"{gpu.name} (compute capability {gpu.compute_capability or 'unknown'}{memory})"] += 1
    return [text if count == 1 else f"{count} × {text}" for text, count in counts.items()]


def _check_toolkit(system: System) -> Check:
    home = system.variable("CUDA_HOME") or "/usr/local/cuda"
    for program in ("nvcc", f"{home}/bin/nvcc"):
        answer = system.run([program, "--version"])
        if answer and (found := re.search(r"release (\d+\.\d+)", answer.text)):
            return Check("toolkit", "ok", f"CUDA toolkit {found[1]}")
    return Check("toolkit", "ok", "no CUDA toolkit; only building CUDA programs would need one")


def _ask_torch(system: System, python: str | None) -> dict[str, Any] | str | None:
    """Facts about PyTorch; a text if it cannot be imported; None if there is no such interpreter."""
    interpreter = python or system.which("python") or system.which("python3") or system.python()
    answer = system.run([interpreter, "-c", _TORCH_PROGRAM], _TORCH_PATIENCE_S)
    if answer is None:
        return None
    for line in answer.text.splitlines():
        if line.startswith("WARPLENS "):
            facts: dict[str, Any] = json.loads(line.removeprefix("WARPLENS "))
            return facts
    if answer.code is None:
        return f"importing it took more than {_TORCH_PATIENCE_S:.0f} s"
    lines = answer.text.strip().splitlines()
    return lines[-1] if lines else "its import gave no answer"


def _check_torch(torch: dict[str, Any] | str | None, driver: Driver | None) -> Check:
    """Whether PyTorch can be imported and can use the GPU."""
    if torch is None:
        return Check("torch", "problem", "there is no such Python interpreter", "name one that exists with --python")
    if isinstance(torch, str):
        if "No module named 'torch'" in torch:
            fix = "install torch into the Python of your programs, or name another with --python"
            return Check("torch", "problem", "PyTorch is not installed in this Python", fix)
        # The text of an import error can contain paths with user names.
        kind = torch.partition(":")[0] if ":" in torch else torch
        fix = "run 'python -c \"import torch\"' and reinstall torch"
        return Check("torch", "problem", f"PyTorch cannot be imported: {kind}", fix)
    has_gpu = driver is not None and bool(driver.gpus)
    build = f"built for CUDA {torch['cuda']}" if torch["cuda"] else "built without CUDA"
    found = f"PyTorch {torch['version']}, {build}"
    if torch["available"] or not has_gpu:
        return Check("torch", "ok", found + ("" if torch["available"] else "; it sees no GPU"))
    if not torch["cuda"]:
        fix = "install a CUDA build of torch (see pytorch.org, Get Started)"
        return Check("torch", "warning", f"{found}: it cannot use the GPU that is here", fix)
    fix = (
        f"the driver may be too old for CUDA {torch['cuda']} (update it), or CUDA_VISIBLE_DEVICES may hide the GPU"
        " (unset it)"
    )
    return Check("torch", "warning", f"{found}, but torch.cuda.is_available() is false", fix)


def _check_visible(torch: dict[str, Any] | str | None, driver: Driver | None) -> Iterator[Check]:
    """Checks that PyTorch sees all GPUs, numbers them as nvidia-smi does, and has kernels for them."""
    if not isinstance(torch, dict) or not torch["available"] or driver is None or not driver.gpus:
        return
    seen, installed = torch["names"], [gpu.name for gpu in driver.gpus]
    if len(seen) < len(installed):
        found = f"PyTorch sees {len(seen)} of {len(installed)} GPUs"
        yield Check("visible", "warning", found, "unset CUDA_VISIBLE_DEVICES if the others are wanted, too")
    elif len(set(installed)) > 1 and seen[0] != installed[0]:
        found = f"cuda:0 is {seen[0]} for PyTorch, but {installed[0]} for nvidia-smi"
        yield Check("visible", "warning", found, "set CUDA_DEVICE_ORDER=PCI_BUS_ID for the same numbers in both")
    capability = _numbers(driver.gpus[0].compute_capability or "")
    built = [_numbers(f"{code[:-1]}.{code[-1]}") for arch in torch["arch"] if (code := re.sub(r"\D", "", arch))]
    if capability and built and len(seen) == len(installed) and capability[0] > max(built)[0]:
        found = f"this PyTorch has no kernels for compute capability {driver.gpus[0].compute_capability}"
        yield Check("architecture", "problem", found, "install a newer torch, built for this GPU")


def _check_tool(
    name: str,
    tool: Tool | None,
    oldest: tuple[int, ...],
    driver: Driver | None,
    system: System,
    lacking: Sequence[str] = (),
) -> Check:
    """Whether a profiler is installed, new enough and complete."""
    if tool is None:
        # Without a GPU the tool would have nothing to record.
        status = "problem" if driver is not None and driver.gpus else "warning"
        if named_by_variable(name, system):
            found = f"what ${name.upper()} names does not answer as {TITLES[name]}"
            return Check(name, status, found, f"unset the variable, or let it name {name}")
        return Check(name, status, f"no {TITLES[name]} ({name}) was found", HOW_TO_GET[name].partition(", or name")[0])
    if tool.version < oldest:
        return Check(name, "problem", f"{tool.title} is too old", f"install {TITLES[name]} {dotted(oldest)} or later")
    if lacking:
        found = f"{tool.title} records, but cannot make a report: its importer lacks {', '.join(lacking)}"
        return Check(name, "problem", found, IMPORTER_FIX)
    location = "" if tool.on_path else "; not on the search path, but collect finds it"
    if named_by_variable(name, system):
        location = f"; named by ${name.upper()}"
    return Check(name, "ok", tool.title + location)


def _check_counters(system: System, driver: Driver | None) -> Check:
    """Checks whether this user may read GPU counters (ERR_NVGPUCTRPERM)."""
    if driver is None or not driver.gpus:
        return Check("counters", "unknown", "without a GPU there are no counters")
    if _is_wsl(system):
        fix = (
            "if ncu says ERR_NVGPUCTRPERM: NVIDIA Control Panel of Windows, Developer, Manage GPU Performance Counters"
        )
        return Check("counters", "unknown", "on WSL2 the driver of Windows decides who may read counters", fix)
    restricted = re.search(r"RmProfilingAdminOnly: (\d)", system.read("/proc/driver/nvidia/params") or "")
    if restricted is None:
        return Check("counters", "unknown", "the driver does not tell who may read counters; try ncu")
    if restricted[1] == "0":
        return Check("counters", "ok", "every user may read GPU counters")
    if _is_privileged(system, driver):
        return Check("counters", "ok", "only administrators may read GPU counters, and this process is privileged")
    found = "only administrators may read GPU counters; ncu would fail with ERR_NVGPUCTRPERM"
    if _is_contained(system):
        found += " (being root inside a container is not enough)"
    return Check("counters", "problem", found, COUNTERS_FIX)


def _is_privileged(system: System, driver: Driver) -> bool:
    effective = re.search(r"^CapEff:\s*([0-9a-fA-F]+)", system.read("/proc/self/status") or "", re.MULTILINE)
    if effective is None:
        return False
    capabilities = int(effective[1], 16)
    sufficient = [_CAP_SYS_ADMIN]
    if _numbers(driver.version or "") >= _PERFMON_SINCE:
        sufficient.append(_CAP_PERFMON)
    return any(capabilities >> number & 1 for number in sufficient)


def _is_wsl(system: System) -> bool:
    return "microsoft" in (system.read("/proc/version") or "").lower()


def _is_contained(system: System) -> bool:
    if system.exists("/.dockerenv") or system.exists("/run/.containerenv"):
        return True
    return bool(re.search(r"docker|kubepods|containerd|libpod", system.read("/proc/1/cgroup") or ""))


def _check_surroundings(system: System) -> Iterator[Check]:
    if _is_wsl(system):
        fix = "compare with a native Linux machine if a profile has API calls and ranges but no kernels"
        found = "this is WSL2: older drivers record API calls and ranges there, but no kernels"
        yield Check("wsl", "warning", found, fix)
    if _is_contained(system):
        yield Check("container", "ok", "this is a container; ncu may need it started with --cap-add=SYS_ADMIN")
    paranoia = (system.read("/proc/sys/kernel/perf_event_paranoid") or "").strip()
    if not re.fullmatch(r"-?\d+", paranoia):
        yield Check("perf", "unknown", "the kernel does not tell who may sample the CPU")
    elif int(paranoia) > _HIGHEST_PARANOIA:
        fix = f"nothing, unless you want CPU samples: sudo sysctl kernel.perf_event_paranoid={_HIGHEST_PARANOIA}"
        yield Check("perf", "warning", f"perf_event_paranoid is {paranoia}: nsys cannot sample the CPU", fix)
    else:
        yield Check("perf", "ok", f"perf_event_paranoid is {paranoia}: nsys could sample the CPU")


def _check_use(driver: Driver | None) -> Iterator[Check]:
    """Checks MIG, free memory, and other programs on the GPUs."""
    if driver is None or not driver.gpus:
        return
    if any(gpu.mig for gpu in driver.gpus):
        mig_fix = "profile on a whole GPU to see its full bandwidth; on an instance use ncu with --clock-control none"
        yield Check("mig", "warning", "a GPU is divided (MIG): programs see a part of it", mig_fix)
    used = [
        (gpu.used_bytes / gpu.memory_bytes, gpu)
        for gpu in driver.gpus
        if gpu.memory_bytes and gpu.used_bytes is not None
    ]
    if used:
        share, fullest = max(used, key=lambda item: item[0])
        free = (fullest.memory_bytes or 0) - (fullest.used_bytes or 0)
        found = f"{free / _GIB:.1f} GiB of the fullest GPU's memory are free"
        fix = "end other programs (nvidia-smi lists them), or choose another GPU by CUDA_VISIBLE_DEVICES"
        yield Check("memory", "warning", found, fix) if share > _BUSY_SHARE else Check("memory", "ok", found)
    if driver.processes:
        others = f"{driver.processes} other program{'s' if driver.processes > 1 else ''}"
        found = f"{others} on the GPUs would disturb measurements"
        yield Check("processes", "warning", found, "end them, or choose an idle GPU by CUDA_VISIBLE_DEVICES")
    elif driver.processes == 0:
        yield Check("processes", "ok", "no other program computes on the GPUs")


def _check_disk(system: System) -> Check:
    free = system.free_bytes(".")
    if free is None:
        return Check("disk", "unknown", "the free disk space cannot be read")
    if free < _LEAST_FREE_BYTES:
        found = f"{free / _GIB:.1f} GiB free in this folder"
        return Check("disk", "warning", found, "write to another disk: collect -o")
    return Check("disk", "ok", f"{free / _GIB:.0f} GiB free in this folder")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
