"""Which kernels the GPU time of the steady steps went to."""

from pathlib import Path

import warplens
from warplens.analysis.kernels import kernel_statistics

CAPTURES = Path(warplens.__file__).parent / "data" / "captures"

timeline = warplens.Timeline(warplens.read(CAPTURES / "deit224_bs1_baseline.sqlite.xz"))
window = timeline.window("steady")
for kernel in kernel_statistics(timeline, window, by="category").head(5).iter_rows(named=True):
    print(f"{kernel['category']:<16} {kernel['calls']:>5} calls  {kernel['share']:6.1%} of the GPU time")
