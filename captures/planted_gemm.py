"""A bfloat16 matrix product of 8192 x 8192 x 8192 by cuBLAS: the healthy kernel that fills the tensor cores.

Like `planted_kernels.cu`, it runs the product once unprofiled and once between cudaProfilerStart and Stop.
"""

from __future__ import annotations

import argparse

import torch
from common import now, recorded, synchronize

SIZE = 8192


def main() -> None:
    """Runs the product, or with --times prints how long it takes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", action="store_true", help="print milliseconds instead of being profiled")
    options = parser.parse_args()
    torch.manual_seed(0)  # random numbers, not zeros: the power that the products draw depends on them
    left, right = (torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    left @ right
    if not options.times:
        with recorded():
            left @ right
        return
    synchronize()
    begin = now()
    for _ in range(10):
        left @ right
    synchronize()
    seconds = (now() - begin) / 10
    print(f"{'matrix product':<22} {seconds * 1e3:8.3f} ms   {2 * SIZE**3 / seconds / 1e12:.0f} TFLOP/s")


if __name__ == "__main__":
    main()
