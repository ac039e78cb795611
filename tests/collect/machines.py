"""Recorded machines: what their tools print and their files hold, without hosts, users and paths of anybody."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from warplens.collect.machine import Output

NSYS = {
    "2023.4": "NVIDIA Nsight Systems version 2023.4.4.54-234433681190v0\n",
    "2025.3": "NVIDIA Nsight Systems version 2025.3.2.367-253236212210v0\n",
    "2021.1": "NVIDIA Nsight Systems version 2021.1.3.14-b695ea9\n",
}
NCU = {
    "2024.1": (
        "NVIDIA (R) Nsight Compute Command Line Profiler\nCopyright (c) 2018-2024 NVIDIA Corporation\n"
        "Version 2024.1.1.0 (build 33998838) (public-release)\n"
    ),
    "2025.3": (
        "NVIDIA (R) Nsight Compute Command Line Profiler\nCopyright (c) 2018-2025 NVIDIA Corporation\n"
        "Version 2025.3.0.0 (build 36273991) (public-release)\n"
    ),
    "2020.3": (
        "NVIDIA (R) Nsight Compute Command Line Profiler\nCopyright (c) 2018-2020 NVIDIA Corporation\n"
        "Version 2020.3.1.0 (Build 29567288)\n"
    ),
}

H200 = "NVIDIA H200, 570.124.06, 9.0, 143771, 1, Disabled\n"
LINUX = "Linux version 5.15.0-generic (gcc 11.4.0)\n"
WSL = "Linux version 5.15.153.1-microsoft-standard-WSL2 (gcc 11.2.0)\n"

#: `CapEff` of root on a plain machine, of root in a plain container, and of a user.
ALL_CAPABILITIES = "CapEff:\t000001ffffffffff\n"
CONTAINER_CAPABILITIES = "CapEff:\t00000000a80425fb\n"
NO_CAPABILITIES = "CapEff:\t0000000000000000\n"
PERFMON_ONLY = "CapEff:\t0000004000000000\n"


@dataclass
class Machine:
    """A `System` of recorded answers."""

    programs: dict[str, str | Output] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    on_path: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    free: int | None = 100 << 30

    def read(self, path: str) -> str | None:
        return self.files.get(path)

    def exists(self, path: str) -> bool:
        return path in self.files

    def run(self, command: Sequence[str], patience_s: float = 60.0) -> Output | None:
        """The answer recorded for the longest beginning of the command."""
        line = " ".join(command)
        fitting = [begin for begin in self.programs if line.startswith(begin)]
        if not fitting:
            return None
        answer = self.programs[max(fitting, key=len)]
        return answer if isinstance(answer, Output) else Output(0, answer)

    def which(self, program: str) -> str | None:
        return self.on_path.get(program)

    def matching(self, pattern: str) -> list[str]:
        return sorted(path for path in self.programs if fnmatch.fnmatch(path, pattern) and " " not in path)

    def variable(self, name: str) -> str | None:
        return self.variables.get(name)

    def free_bytes(self, folder: str) -> int | None:
        return self.free

    def python(self) -> str:
        return "/usr/bin/python3"


def torch_answer(**facts: object) -> str:
    told = {"version": "2.7.0+cu128", "cuda": "12.8", "available": True, "names": ["NVIDIA H200"], "arch": ["sm_90"]}
    return "WARPLENS " + json.dumps({**told, **facts}) + "\n"


def gpu_machine(gpus: str = H200, apps: str = "", **torch: object) -> Machine:
    """A GPU server that can record everything."""
    return Machine(
        programs={
            "nvidia-smi --query-gpu": gpus,
            "nvidia-smi --query-compute-apps": apps,
            "nvcc --version": "Cuda compilation tools, release 12.8, V12.8.93\n",
            "/usr/bin/python": torch_answer(**torch),
            "/opt/nvidia/nsight-systems/2025.3.2/bin/nsys": NSYS["2025.3"],
            "/usr/local/cuda/bin/ncu": NCU["2025.3"],
        },
        files={
            "/proc/version": LINUX,
            "/proc/driver/nvidia/params": "ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: 0\n",
            "/proc/self/status": f"Name:\tpython\n{NO_CAPABILITIES}",
            "/proc/sys/kernel/perf_event_paranoid": "2\n",
            "/proc/1/cgroup": "0::/init.scope\n",
        },
        on_path={"python": "/usr/bin/python"},
    )


def laptop() -> Machine:
    """No GPU, no tools, no PyTorch."""
    missing = "Traceback (most recent call last):\nModuleNotFoundError: No module named 'torch'\n"
    return Machine(programs={"/usr/bin/python3": Output(1, missing)}, files={"/proc/version": LINUX})
