"""Why token reduction, which does two thirds less arithmetic, does not make one image faster."""

import warplens

answer = warplens.compare("demo:deit224_bs1_baseline", "demo:deit224_bs1_topk0.1")
print(answer.headline)
for part in answer.frame.sort("change_ns", descending=True).head(3).iter_rows(named=True):
    print(f"{part['group']}: {part['part']}: {part['change_ns'] / 1e6:+.3f} ms a step")
