"""A workload that fails in every way there is, and just enough of a `torch` for child processes to measure it."""

from __future__ import annotations

import os

import pytest

_TORCH = """
__version__ = "0.0-none"

class OutOfMemoryError(RuntimeError):
    pass

class device:
    def __init__(self, name):
        if name not in ("cpu",):
            raise RuntimeError(f"no such device: {name}")
        self.type = name

class cuda:
    @staticmethod
    def is_available():
        return False

def empty(size, device):
    globals()["device"](device)

def get_num_threads():
    return 1
"""

_WORKLOAD = '''
import os, signal, sys, time
from dataclasses import dataclass

from warplens.errors import UsageError
from warplens.workloads import Program, Work, Workload, register

held = []

@dataclass(frozen=True)
class Settings:
    """How long a step takes, in tenths of a millisecond, and what goes wrong."""

    tenths: int = 1
    side: str = "old"
    trouble: str = "none"
    shape: tuple[int, ...] = (1,)

    def __post_init__(self):
        if self.tenths == 13:
            raise UsageError("13 brings bad luck")

def prepare(cell, setting):
    import torch

    print("a program may print what it likes")
    if cell.trouble == "memory":
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 80 GiB in /home/somebody/model.py")
    if cell.trouble == "beside another" and held:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
    if cell.trouble == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if cell.trouble == "exit":
        print("cannot allocate memory", file=sys.stderr)
        os._exit(3)
    if cell.trouble == "defect":
        raise KeyError("defect")
    if cell.trouble == "hangs":
        time.sleep(60)
    held.append(cell)
    work = Work(macs=5 * cell.tenths, flops=10 * cell.tenths)
    return Program(lambda: time.sleep(cell.tenths / 10_000), items=2, unit="row", work=work)

register(Workload("trouble", "One that fails.", Settings, prepare))
'''


@pytest.fixture(scope="session")
def _modules(tmp_path_factory):
    folder = tmp_path_factory.mktemp("modules")
    (folder / "torch.py").write_text(_TORCH)
    (folder / "troubled.py").write_text(_WORKLOAD)
    return folder


@pytest.fixture
def troubled(_modules, monkeypatch):
    """The module that registers the workload `trouble`; child processes find it, and a torch of its kind."""
    inherited = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(_modules), inherited])))
    # This process needs the workload's settings alone, and must not mistake that torch for PyTorch.
    settings = _modules / "settings"
    settings.mkdir(exist_ok=True)
    (settings / "troubled.py").write_text(_WORKLOAD)
    monkeypatch.syspath_prepend(str(settings))
    return "troubled"
