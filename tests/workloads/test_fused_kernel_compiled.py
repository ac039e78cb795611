"""The fused kernel as a GPU gets it, without a GPU. This needs Triton without its interpreter: a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

#: Compute capability 9.0, formats and numbers of patches of the study. Prints one line a kernel: what spilled.
_COMPILED = """
import re, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from warplens.workloads.token_reduction.fused import launch_constants, tiles_for
from warplens.workloads.token_reduction.fused_kernel import select_tokens_kernel as kernel

names = ["weights", "x", "out", "listing", "batch_stride", "head_stride", "token_stride", "patches", "kept"]
for written, bits, patches, fuse in [("fp16", 16, 784, False), ("fp16", 16, 784, True), ("fp32", 32, 196, True)]:
    constants = launch_constants(12, patches, 768, bits, fuse, True, tiles_for(1, patches, fuse, bits // 8))
    warps = constants.pop("num_warps")
    kinds = ["*" + written] * 3 + ["*i64"] + ["i32"] * 5 + ["constexpr"] * len(constants)
    source = ASTSource(kernel, dict(zip([*names, *constants], kinds)), constants)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
    print(written, patches, fuse, "ptx" in made.asm, "atom." in made.asm["ptx"])
"""


def _printed(program):
    settings = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    settings["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[2] / "src"), settings.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=settings, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


def test_it_compiles_for_a_gpu_and_needs_no_atomic_additions():
    assert _printed(_COMPILED) == [
        "fp16 784 False True False", "fp16 784 True True False", "fp32 196 True True False",
    ]  # fmt: skip
