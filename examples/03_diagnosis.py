"""What limits the program, what to do about it, and the experiment that would refute it."""

from pathlib import Path

import warplens
from warplens.diagnosis import diagnose

CAPTURES = Path(warplens.__file__).parent / "data" / "captures"

timeline = warplens.Timeline(warplens.read(CAPTURES / "deit224_bs1_topk0.1.sqlite.xz"))
found = diagnose(timeline, timeline.window("steady"))
print(found.headline)
for finding in found.findings:
    print(f"- {finding.id}: {finding.title}")
    for remedy in finding.remedies[:1]:
        print(f"  do: {remedy.action} ({remedy.how})")
    print(f"  refuted if: {finding.refute}")
