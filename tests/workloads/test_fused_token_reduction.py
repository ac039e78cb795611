"""The fused token reduction against plain Python: the same tokens, in the same order, whatever is tied."""

from __future__ import annotations

import math
import struct

import pytest

torch = pytest.importorskip("torch", reason="the workloads compute with PyTorch")
hypothesis = pytest.importorskip("hypothesis", reason="hypothesis is not installed")

from hypothesis import given
from hypothesis import strategies as st

from tests.workloads import slow
from tests.workloads.models import small_vit
from warplens.errors import UsageError
from warplens.workloads.token_reduction.choosing import Attended, EViT, TokenState, TopK
from warplens.workloads.token_reduction.fused import FusedEViT, FusedTopK, Tiles, select_tokens, tiles_for

pytestmark = pytest.mark.usefixtures("interpreter")


def _attention(batch, heads, tokens, dtype=torch.float64, seed=0):
    """Peaked as in trained models, different in each image; two queries are enough."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(batch, heads, 2, tokens, dtype=torch.float64, generator=generator)
    return logits.softmax(-1).to(dtype)


def _tokens(batch, tokens, width, dtype=torch.float64, seed=1):
    return torch.randn(batch, tokens, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(
        dtype
    )


def _fp32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def _scores_of_a_gpu(weights):
    """PyTorch's reduction on a GPU in plain Python: four running sums in fp32, times 1 / heads, rounded at the end."""
    heads = weights.shape[1]
    rows = []
    for image in weights[:, :, 0, 1:].tolist():
        row = []
        for of_token in zip(*image, strict=True):
            sums = [0.0] * 4
            for head, value in enumerate(of_token):
                sums[head % 4] = _fp32(sums[head % 4] + value)
            total = sums[0]
            for more in sums[1:]:
                total = _fp32(total + more)
            row.append(_fp32(total * _fp32(1 / heads)))
        rows.append(row)
    return torch.tensor(rows, dtype=torch.float32).to(weights.dtype)


def _ranking(scores):
    """Patch tokens, the highest score first; of equal ones, the first in the image: Python's sort is stable."""
    return [sorted(range(len(row)), key=lambda token: -row[token]) for row in scores.tolist()]


def _expected(weights, x, kept, fuse):
    """Image by image, in float64 from the slow reference."""
    method = slow.evit if fuse else slow.topk
    attention = weights.double().tolist()
    return torch.tensor([method(x[i].tolist(), attention[i], kept) for i in range(len(x))], dtype=torch.float64)


@pytest.mark.parametrize("fuse", [False, True])
@pytest.mark.parametrize(
    ("batch", "heads", "patches", "width", "kept"),
    [
        (2, 3, 1, 4, 1),
        (3, 2, 5, 8, 2),
        (2, 12, 49, 40, 13),
        (1, 12, 196, 20, 20),
        (1, 5, 196, 20, 196),
        (1, 2, 300, 1030, 1),
    ],
)
def test_in_float64_it_is_the_reference(batch, heads, patches, width, kept, fuse):
    weights, x = _attention(batch, heads, 1 + patches), _tokens(batch, 1 + patches, width)
    found, _ = select_tokens(weights, x, kept, fuse=fuse)
    torch.testing.assert_close(found, _expected(weights, x, kept, fuse), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("method", ["topk", "evit"])
@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_the_methods_agree_with_those_of_many_launches(method, share):
    weights, x = _attention(3, 4, 38), _tokens(3, 38, 12)
    eager, fused = {"topk": (TopK, FusedTopK), "evit": (EViT, FusedEViT)}[method]
    states = TokenState(37), TokenState(37)
    attended = Attended(weights, x, x)
    rows = [kind(share).between(x, attended, state) for kind, state in zip((eager, fused), states, strict=True)]
    torch.testing.assert_close(rows[1], rows[0], rtol=1e-12, atol=1e-14)
    assert torch.equal(states[1].kept[0], states[0].kept[0])
    fused(share, visualisation=False).between(x, attended, states[1])
    assert len(states[1].kept) == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("heads", [1, 3, 6, 12, 16])
def test_scores_are_rounded_as_pytorch_rounds_them_on_a_gpu(dtype, heads):
    weights, x = _attention(2, heads, 90, dtype), _tokens(2, 90, 4, dtype)
    _, listing = select_tokens(weights, x, 89, listing=True)
    assert listing.tolist() == _ranking(_scores_of_a_gpu(weights))


def test_in_fp16_many_scores_are_equal_and_the_first_token_is_ahead():
    """Attention that is nearly uniform, as with random weights: 784 scores share a few dozen numbers."""
    logits = 0.02 * torch.randn(1, 4, 2, 785, generator=torch.Generator().manual_seed(3))
    weights, x = logits.softmax(-1).half(), _tokens(1, 785, 4, torch.float16)
    scores = _scores_of_a_gpu(weights)
    assert len(set(scores[0].tolist())) < 200
    _, listing = select_tokens(weights, x, 79, listing=True)
    assert listing[:, :79].tolist() == [row[:79] for row in _ranking(scores)]
    assert (listing[:, 79:] == -1).all()


@given(data=st.data())
def test_any_shape_and_any_ties_give_the_first_of_the_best(data):
    heads = data.draw(st.sampled_from([1, 2, 4]))  # means of these are exact: ties are ties in any arithmetic
    patches, batch = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 2))
    kept, width = data.draw(st.integers(1, patches)), data.draw(st.integers(1, 9))
    dtype = data.draw(st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]))
    level = st.integers(-2, 3).map(lambda n: n / 4)
    count = batch * heads * (1 + patches)
    numbers = data.draw(st.lists(level, min_size=count, max_size=count))
    weights = torch.tensor(numbers, dtype=torch.float64).view(batch, heads, 1, 1 + patches).to(dtype)
    x = torch.arange(batch * (1 + patches) * width).remainder(97).view(batch, 1 + patches, width).to(dtype)
    tiles = Tiles(data.draw(st.sampled_from([4, 16, 32])), data.draw(st.sampled_from([1, 4])))
    found, listing = select_tokens(weights, x, kept, fuse=True, listing=True, tiles=tiles)
    ranking = _ranking(weights.double()[:, :, 0, 1:].mean(1))
    assert listing[:, :kept].tolist() == [row[:kept] for row in ranking]
    expected = _expected(weights, x.double(), kept, fuse=True)
    assert torch.equal(found[:, :-1].double(), expected[:, :-1])
    # Sums of multiples of 1/16 below 2^11 are exact in fp32; the fused token is rounded once.
    if dtype != torch.bfloat16:  # which the interpreter truncates
        assert torch.equal(found[:, -1], expected[:, -1].to(dtype))


def test_a_score_that_is_no_number_is_the_highest_and_every_row_is_written():
    weights, x = _attention(1, 2, 20, torch.float32), _tokens(1, 20, 4, torch.float32)
    weights[0, 0, 0, 7] = math.nan
    weights[0, :, 0, 12] = math.inf
    weights[0, :, 0, 3] = -math.inf
    weights[0, :, 0, 9], weights[0, :, 0, 5] = 0.0, -0.0
    found, listing = select_tokens(weights, x, 19, listing=True)
    assert listing[0, :2].tolist() == [6, 11]
    assert listing[0, -3:].tolist() == [4, 8, 2]
    assert torch.equal(found[0, 1:], x[0, 1:][listing[0]])


def test_a_kept_token_that_overflowed_does_not_spoil_the_fused_one():
    weights, x = _attention(1, 2, 20, torch.float32), _tokens(1, 20, 4, torch.float32)
    best = int(weights[0, :, 0, 1:].mean(0).argmax())
    x[0, 1 + best] = math.inf
    found, _ = select_tokens(weights, x, 1, fuse=True)
    assert found[0, 1].isinf().all()
    assert found[0, 2].isfinite().all()


def test_attention_of_any_strides_and_tokens_that_are_not_packed_will_do():
    weights, x = _attention(2, 4, 31), _tokens(2, 31, 6)
    plain, _ = select_tokens(weights, x, 9, fuse=True)
    turned = weights.permute(3, 2, 0, 1).contiguous().permute(2, 3, 1, 0)
    spread = torch.stack((x, x), dim=2)[:, :, 0]
    assert not turned.is_contiguous()
    assert not spread.is_contiguous()
    assert torch.equal(select_tokens(turned, spread, 9, fuse=True)[0], plain)


@pytest.mark.parametrize("method", ["topk", "evit"])
def test_the_vision_transformer_gives_the_same_scores_with_either(method):
    plain, fused = small_vit(method), small_vit(f"{method}-fused")
    images, counts, fused_counts = torch.randn(2, 3, 20, 20).double(), [], []
    with torch.inference_mode():
        torch.testing.assert_close(fused(images, fused_counts), plain(images, counts))
    assert fused_counts == counts


def test_what_it_cannot_do_is_refused_with_what_to_do():
    weights, x = _attention(1, 2, 9), _tokens(1, 9, 4)
    with pytest.raises(UsageError, match=r"no gradient.*without -fused"):
        select_tokens(weights, x.clone().requires_grad_(), 3)
    with torch.no_grad():
        select_tokens(weights, x.clone().requires_grad_(), 3)
    for kept in (0, 9):
        with pytest.raises(UsageError, match="cannot be kept of 8"):
            select_tokens(weights, x, kept)
    with pytest.raises(UsageError, match="same images"):
        select_tokens(weights[..., :-1], x, 3)
    with pytest.raises(UsageError, match="floating-point"):
        select_tokens(weights.long(), x, 3)
    with pytest.raises(ValueError, match="fused attention does not give"):
        FusedTopK(0.5).between(x, Attended(None, x, x), TokenState(8))


@pytest.mark.parametrize("method", ["topk-fused", "evit-fused"])
def test_beside_fused_attention_the_class_tokens_row_is_enough(method):
    models = [small_vit(method, fused=fused) for fused in (False, True)]
    images = torch.randn(2, 3, 20, 20).double()
    with torch.inference_mode():
        torch.testing.assert_close(models[1](images), models[0](images))


def test_without_a_gpu_and_an_interpreter_one_line_says_so(monkeypatch):
    monkeypatch.setattr("warplens.workloads.token_reduction.fused.kernel.INTERPRETED", False)
    with pytest.raises(UsageError, match="needs a GPU, and the tokens are on cpu"):
        select_tokens(_attention(1, 2, 9), _tokens(1, 9, 4), 3)
    monkeypatch.setattr("warplens.workloads.token_reduction.fused.kernel", None)
    with pytest.raises(UsageError, match="triton is not installed"):
        select_tokens(_attention(1, 2, 9), _tokens(1, 9, 4), 3)


def test_programs_grow_when_there_are_more_than_a_gpu_can_work_on_at_once():
    assert tiles_for(1, 196, fuse=False, element_bytes=2) == Tiles(16, 4)
    assert tiles_for(16, 784, fuse=False, element_bytes=2) == Tiles(32, 8)
    assert tiles_for(16, 784, fuse=True, element_bytes=4) == Tiles(16, 8)


@pytest.mark.parametrize("method", ["topk-fused", "evit-fused"])
def test_torch_compile_takes_it_into_one_graph_with_the_model(method):
    model = small_vit(method).float()
    images = torch.randn(2, 3, 20, 20)
    with torch.inference_mode():
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=False)
        torch.testing.assert_close(compiled(images), model(images))
