"""A tiny Nsight Systems export whose every number can be counted by hand.

Four equal steps, 1 ms apart, each 900 µs long and annotated `step`. In each, inside `forward_pass`, one copy of
1,000,000 bytes to the GPU (10 µs), a matrix product (100 µs) and a softmax (50 µs), one after the other, launched by
calls of 5 µs; then the host waits for the GPU.
"""

from __future__ import annotations

from pathlib import Path

from tests.readers.exports import SECRET, Export

STEPS = 4
STEP_NS = 900_000
GEMM_NS = 100_000
SOFTMAX_NS = 50_000
COPY_NS = 10_000
COPY_BYTES = 1_000_000
GEMM = "ampere_sgemm_128x64_tn"
SOFTMAX = "softmax_warp_forward"
SOFTMAX_FULL = "void softmax_warp_forward<float, float, float, 8, true>(float *, const float *, int, int, int)"


def write_export(path: Path, extra_kernel_name: str | None = None, *, annotated: bool = True) -> Path:
    """Write the export.

    Args:
        path: the file to make.
        extra_kernel_name: the name of one more kernel in every step (1 µs), after the others.
        annotated: whether the export has annotated ranges.
    """
    export = Export()
    export.row("META_DATA_EXPORT", name="EXPORT_SCHEMA_VERSION", value="3.20.3")
    export.row("TARGET_INFO_SYSTEM_ENV", globalVid=0, devStateName="", name="Environment", nameEnum=0, value=SECRET)
    export.row("TARGET_INFO_GPU", id=0, cuDevice=0, name="NVIDIA H200", busLocation="0000:01:00.0")
    for step in range(STEPS):
        _write_step(export, 1_000_000 * (step + 1), 10 * step, extra_kernel_name)
    if not annotated:
        del export.tables["NVTX_EVENTS"]
    return export.write(path)


def _write_step(export: Export, begin: int, correlation: int, extra_kernel_name: str | None) -> None:
    def kernel(start: int, length: int, name: str, number: int, full_name: str | None = None) -> None:
        names = {"demangledName": export.string(full_name or name), "dynamicSharedMemory": 0, "gridX": 1}
        export.kernel(begin + start, begin + start + length, name, correlation + number, **names)

    for start, end, name in ((0, STEP_NS, "step"), (10_000, 400_000, "forward_pass")):
        export.range(begin + start, begin + end, None, textId=export.string(name))
    for start, end, name, number in (
        (20_000, 25_000, "cudaMemcpyAsync_v3020", 1),
        (50_000, 55_000, "cudaLaunchKernel_v7000", 2),
        (60_000, 65_000, "cudaLaunchKernel_v7000", 3),
        (70_000, 235_000, "cudaDeviceSynchronize_v3020", 4),
    ):
        export.call(begin + start, begin + end, name, correlation + number)
    export.copy(
        begin + 30_000, begin + 30_000 + COPY_NS, correlation=correlation + 1, bytes=COPY_BYTES, srcKind=1, dstKind=2
    )
    kernel(60_000, GEMM_NS, GEMM, 2)
    kernel(170_000, SOFTMAX_NS, SOFTMAX, 3, SOFTMAX_FULL)
    if extra_kernel_name is not None:
        export.call(begin + 240_000, begin + 245_000, "cudaLaunchKernel_v7000", correlation + 5)
        kernel(250_000, 1_000, extra_kernel_name, 5)
