"""With fused attention, a method that decides by the class token's weights computes that row, and decides alike."""

import pytest

torch = pytest.importorskip("torch")

from warplens.errors import UsageError
from warplens.workloads.settings import (
    VIT_SIZES,
    TokenReductionCell,
)
from warplens.workloads.token_reduction.methods import reductions
from warplens.workloads.vision import VisionTransformer

SIZE = VIT_SIZES["tiny"]
INPUT = 32


def _model(method, fused):
    torch.manual_seed(1)
    methods = reductions(method, SIZE, INPUT, (1, 2), (0.5, 0.5))
    return VisionTransformer(SIZE, INPUT, methods, fused=fused).double().eval()


@pytest.mark.parametrize("method", ["topk", "evit"])
def test_the_same_tokens_go_on_and_the_scores_are_the_same(method):
    images = torch.randn(3, 3, INPUT, INPUT, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    written_out, fused = _model(method, fused=False), _model(method, fused=True)
    counts = [], []
    with torch.inference_mode():
        expected, found = written_out(images, counts[0]), fused(images, counts[1])
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    # 64 patches: 32 go on, of those 16; what EViT fuses from the rest is a token more each time.
    left = {"topk": [65, 33, 17, 17], "evit": [65, 34, 19, 19]}[method]
    assert [block.leaving for block in counts[1]] == left == [block.leaving for block in counts[0]]
    # The row is not for nothing: one product of the class token's query with every key, where a choice is made.
    more = [b.reduction_macs - a.reduction_macs for a, b in zip(*counts, strict=True)]
    assert more == [0, 65 * SIZE.width, left[1] * SIZE.width, 0]


def test_ats_needs_more_than_that_row():
    with pytest.raises(UsageError, match="ats cuts rows out of the attention weights"):
        TokenReductionCell(method="ats", attention="fused")
