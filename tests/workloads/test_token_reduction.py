"""Every token reduction method in float64 against a slow reference on plain lists, image by image; token counts that
follow from shares against the chains that the study's documents print.
"""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch", reason="the workloads compute with PyTorch")

from tests.workloads import slow
from tests.workloads.models import small_vit
from warplens.errors import UsageError
from warplens.workloads.registry import OFF
from warplens.workloads.settings import VIT_SIZES, TokenReductionCell, ViTSize
from warplens.workloads.token_reduction.choosing import (
    Attended,
    EViT,
    RandomChoice,
    TokenState,
    TopK,
    compounded_chain,
    merges,
    most_merges,
    topk_chain,
)
from warplens.workloads.token_reduction.methods import ATS, CachedTopK, DynamicViT, RowTopK, ToMe
from warplens.workloads.vision import NORM_EPSILON, Attention

pytestmark = pytest.mark.usefixtures("float64")
BATCH, HEADS, D_HEAD, WIDTH = 3, 2, 4, 8
METHODS = ["random", "topk", "topk-rows", "evit", "tome", "dynamicvit", "ats"]


def _inputs(tokens):
    """Tokens, and an attention over them such as trained models have: peaked, different in each image."""
    x = torch.randn(BATCH, tokens, WIDTH)
    weights = (3 * torch.randn(BATCH, HEADS, tokens, tokens)).softmax(dim=-1)
    return x, Attended(weights, *torch.randn(2, BATCH, HEADS, tokens, D_HEAD))


def _kept(tokens, share):
    """Patches that go on: a share of all but the class token, rounded up."""
    return max(1, math.ceil(share * (tokens - 1) - 1e-9))


def _close(tensor, numbers):
    torch.testing.assert_close(tensor, torch.tensor(numbers), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("tokens", [5, 17, 18])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.7, 1.0])
class TestChoosing:
    def test_topk_keeps_what_the_class_token_attends_to_most_best_first(self, tokens, share):
        x, attended = _inputs(tokens)
        found = TopK(share).between(x, attended, TokenState(tokens - 1))
        for image in range(BATCH):
            _close(found[image], slow.topk(x[image].tolist(), attended.weights[image].tolist(), _kept(tokens, share)))

    def test_other_layouts_of_topk_hold_the_same_rows(self, tokens, share):
        x, attended = _inputs(tokens)
        plain = TopK(share).between(x, attended, TokenState(tokens - 1))
        for other in (RowTopK(share), CachedTopK(share)):
            assert torch.equal(other.between(x, attended, TokenState(tokens - 1)), plain)

    def test_evit_adds_the_rest_weighted_by_attention_as_one_token(self, tokens, share):
        x, attended = _inputs(tokens)
        found = EViT(share).between(x, attended, TokenState(tokens - 1))
        for image in range(BATCH):
            _close(found[image], slow.evit(x[image].tolist(), attended.weights[image].tolist(), _kept(tokens, share)))

    def test_a_random_choice_keeps_as_many_different_tokens_and_the_class_token(self, tokens, share):
        x, attended = _inputs(tokens)
        found, kept = RandomChoice(share).between(x, attended, TokenState(tokens - 1)), _kept(tokens, share)
        assert found.shape == (BATCH, kept + 1, WIDTH)
        for image in range(BATCH):
            rows = [x[image].tolist().index(row) for row in found[image].tolist()]
            assert rows[0] == 0
            assert len(set(rows)) == kept + 1


def test_a_random_choice_takes_every_token_equally_often():
    x = torch.arange(9.0).view(1, 9, 1).expand(2000, -1, -1)
    found = RandomChoice(0.25).between(x, Attended(None, x, x), TokenState(8))
    often = torch.bincount(found[:, 1:].flatten().long(), minlength=9)
    assert often[0] == 0
    # 2 of 8 tokens, 2000 times: 500 each, with a standard deviation of 19.
    assert (often[1:] - 500).abs().max() < 5 * 19


def test_the_visualisation_lists_what_was_kept_padded_to_what_there_was():
    x, attended = _inputs(11)
    state = TokenState(10)
    TopK(0.3).between(x, attended, state)
    (kept,) = state.kept
    assert kept.shape == (BATCH, 10)
    assert (kept[:, 3:] == -1).all()
    best = attended.weights[:, :, 0, 1:].mean(1).topk(3).indices
    assert (kept[:, :3] == best).all()


@pytest.mark.parametrize("tokens", [4, 9, 16])
@pytest.mark.parametrize("merged", [1, 3, 100])
@pytest.mark.parametrize("sized", [False, True])
def test_tome_merges_the_most_similar_pairs_weighted_by_size(tokens, merged, sized):
    x, attended = _inputs(tokens)
    sizes = torch.randint(1, 5, (BATCH, tokens)).double() if sized else None
    state = TokenState(tokens - 1, sizes=sizes)
    found = ToMe(merged, D_HEAD).between(x, attended, state)
    for image in range(BATCH):
        before = sizes[image].tolist() if sized else [1.0] * tokens
        expected, new_sizes = slow.tome(x[image].tolist(), before, attended.keys[image].tolist(), merged)
        _close(found[image], expected)
        _close(state.sizes[image], new_sizes)


def test_tome_keeps_the_class_token_first_and_every_patch_in_some_token():
    x, attended = _inputs(17)
    state = TokenState(16)
    found = ToMe(8, D_HEAD).between(x, attended, state)
    torch.testing.assert_close(found[:, 0], x[:, 0])
    assert (state.sizes.sum(dim=1) == 17).all()
    torch.testing.assert_close((found * state.sizes.unsqueeze(-1)).sum(1), x.sum(1))


def test_a_merged_token_attracts_as_much_attention_as_its_copies_would():
    attention = Attention(ViTSize(4, WIDTH, 1, HEADS, 2), fused=False, ranges=OFF)
    x = torch.randn(1, 4, WIDTH)
    copies = x[:, [0, 1, 1, 1, 2, 3, 3]]
    state = TokenState(3, sizes=torch.tensor([[1.0, 3.0, 1.0, 2.0]]))
    merged, _, _ = attention(x, state, None)
    spread, _, _ = attention(copies, TokenState(6), None)
    torch.testing.assert_close(merged, spread[:, [0, 1, 4, 5]])


@pytest.mark.parametrize("tokens", [6, 17])
@pytest.mark.parametrize("points", [1, 4, 15])
def test_ats_samples_along_the_cumulated_significance(tokens, points):
    _, attended = _inputs(tokens)
    state = TokenState(tokens - 1)
    rows = ATS(points).queries(attended, state)
    expected = [
        slow.ats(attended.weights[image].tolist(), attended.values[image].tolist(), points) for image in range(BATCH)
    ]
    assert rows.shape[1] == max(len(chosen) for chosen in expected)
    for image, chosen in enumerate(expected):
        assert rows[image][state.valid[image]].tolist() == chosen
        assert (rows[image][~state.valid[image]] == 0).all()


def test_dynamicvit_keeps_what_its_predictor_scores_highest():
    method = DynamicViT(WIDTH, kept=4).eval()
    x = torch.randn(BATCH, 10, WIDTH)
    found = method.before_block(x, TokenState(9))
    norm, enter, _ = method.predictor.enter
    first, _, second, _, third, _ = method.predictor.judge
    for image in range(BATCH):
        features = []
        for patch in x[image, 1:].tolist():
            normed = slow.layer_norm(patch, norm.weight.tolist(), norm.bias.tolist(), norm.eps)
            features.append(slow.gelu(slow.linear(normed, enter.weight.tolist(), enter.bias.tolist())))
        half = WIDTH // 2
        whole = [sum(row[c] for row in features) / len(features) for c in range(half, WIDTH)]
        scores = []
        for row in features:
            hidden = row[:half] + whole
            for layer in (first, second):
                hidden = slow.gelu(slow.linear(hidden, layer.weight.tolist(), layer.bias.tolist()))
            scores.append(slow.softmax(slow.linear(hidden, third.weight.tolist(), third.bias.tolist()))[0])
        best = sorted(range(9), key=lambda patch: -scores[patch])[:4]
        _close(found[image], [x[image, 0].tolist(), *(x[image, 1 + patch].tolist() for patch in best)])


@pytest.mark.parametrize("method", METHODS[1:])
def test_an_image_gives_the_same_scores_alone_and_in_a_batch(method):
    model, images = small_vit(method), torch.randn(4, 3, 20, 20)
    alone = torch.cat([model(image[None]) for image in images])
    torch.testing.assert_close(model(images), alone)


@pytest.mark.parametrize("method", ["topk", "evit", "random"])
def test_keeping_everything_is_no_reduction(method):
    images = torch.randn(2, 3, 20, 20)
    kept, plain = small_vit(method, (1.0, 1.0)), small_vit("none")
    plain.load_state_dict(kept.state_dict())
    # EViT's fused token of nothing is zero, and is attended to: it changes the scores.
    if method == "evit":
        assert not torch.allclose(kept(images), plain(images))
    else:
        torch.testing.assert_close(kept(images), plain(images))


def test_without_reduction_it_is_the_transformer_of_pytorch():
    size = VIT_SIZES["tiny"]
    model, images = small_vit("none"), torch.randn(2, 3, 20, 20)
    x = torch.nn.functional.conv2d(images, *model.patch_embedding.parameters(), stride=size.patch).flatten(2).mT
    x = torch.cat((model.class_token.expand(2, -1, -1), x), 1) + model.position
    for block in model.blocks:
        layer = torch.nn.TransformerEncoderLayer(
            size.width, size.heads, 4 * size.width, dropout=0, activation="gelu", layer_norm_eps=NORM_EPSILON,
            batch_first=True, norm_first=True,
        )  # fmt: skip
        layer.self_attn.in_proj_weight.data = block.attention.qkv.weight.data
        layer.self_attn.in_proj_bias.data = block.attention.qkv.bias.data
        layer.self_attn.out_proj.load_state_dict(block.attention.proj.state_dict())
        layer.linear1.load_state_dict(block.mlp[0].state_dict())
        layer.linear2.load_state_dict(block.mlp[2].state_dict())
        layer.norm1.load_state_dict(block.norm1.state_dict())
        layer.norm2.load_state_dict(block.norm2.state_dict())
        x = layer(x)
    torch.testing.assert_close(model(images), model.head(model.norm(x)[:, 0]))


def test_fused_attention_computes_the_same():
    images = torch.randn(2, 3, 20, 20)
    for method in ("none", "tome", "dynamicvit"):
        torch.testing.assert_close(small_vit(method, fused=True)(images), small_vit(method)(images))


def test_tokens_of_each_block_are_counted():
    expected = {
        # 25 patches, shares 0.6 and 0.5 at blocks 1 and 2
        "none": [26, 26, 26, 26],
        "topk": [26, 16, 9, 9],
        "random": [26, 16, 9, 9],
        "evit": [26, 17, 10, 10],  # ⌈0.6 · 25⌉ + fused = 16 patches, ⌈0.5 · 16⌉ + fused = 9
        "tome": [26, 16, 9, 9],  # 10 of at most 12, then 7 of at most 7
        "dynamicvit": [26, 16, 8, 8],  # ⌊25 · 0.6⌋ = 15, ⌊25 · 0.3⌋ = 7
    }
    for method, leaving in expected.items():
        counts = []
        small_vit(method)(torch.randn(1, 3, 20, 20), counts)
        assert [block.leaving for block in counts] == leaving, method


def test_ats_leaves_at_most_its_points_and_computes_the_queries_of_those_alone():
    counts = []
    small_vit("ats")(torch.randn(3, 3, 20, 20), counts)
    assert counts[1].entering == 26
    assert counts[1].asking == counts[1].leaving <= 16
    assert counts[2].asking == counts[2].leaving <= 9


def test_a_cached_choice_takes_the_places_of_the_first_pass():
    cached, (x, attended), (other, others_attention) = CachedTopK(0.5), _inputs(9), _inputs(9)
    cached.between(x, attended, TokenState(8))
    places = attended.weights[:, :, 0, 1:].mean(dim=1).topk(4, dim=1).indices
    rows = other[:, 1:].gather(1, places.unsqueeze(-1).expand(-1, -1, WIDTH))
    assert torch.equal(cached.between(other, others_attention, TokenState(8))[:, 1:], rows)


@pytest.mark.parametrize("method", METHODS)
def test_gradients_reach_every_weight_that_the_scores_depend_on(method):
    model = small_vit(method)
    model(torch.randn(2, 3, 20, 20)).sum().backward()
    without = {name for name, parameter in model.named_parameters() if parameter.grad is None}
    # In inference a predictor only chooses, and choosing has no gradient.
    assert all("predictor" in name for name in without)


@pytest.mark.parametrize("method", ["topk", "evit"])
def test_with_fused_attention_the_class_tokens_row_chooses_the_same_tokens(method):
    images = torch.randn(3, 3, 32, 32)
    written_out, fused = (small_vit(method, (0.5, 0.5), 32, fused=fused) for fused in (False, True))
    counts = [], []
    with torch.inference_mode():
        expected, found = written_out(images, counts[0]), fused(images, counts[1])
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    # 64 patches: 32 go on, of those 16; what EViT fuses from the rest is a token more each time.
    left = {"topk": [65, 33, 17, 17], "evit": [65, 34, 19, 19]}[method]
    assert [block.leaving for block in counts[1]] == left == [block.leaving for block in counts[0]]
    # The row is not for nothing: one product of the class token's query with every key, where a choice is made.
    more = [b.reduction_macs - a.reduction_macs for a, b in zip(*counts, strict=True)]
    assert more == [0, 65 * VIT_SIZES["tiny"].width, left[1] * VIT_SIZES["tiny"].width, 0]


def test_ats_needs_more_than_that_row():
    with pytest.raises(UsageError, match="ats cuts rows out of the attention weights"):
        TokenReductionCell(method="ats", attention="fused")


@pytest.mark.parametrize(
    ("patches", "share", "chain"),
    [
        (196, 0.1, [20, 2, 1]),
        (196, 0.25, [49, 13, 4]),
        (196, 0.5, [98, 49, 25]),
        (196, 0.7, [138, 97, 68]),
        (196, 0.9, [177, 160, 144]),
        (784, 0.1, [79, 8, 1]),
    ],
)
def test_topk_keeps_a_share_of_what_there_is_rounded_up(patches, share, chain):
    assert topk_chain(patches, [share] * 3) == chain


def test_dynamicvit_keeps_a_share_of_what_there_was_rounded_down():
    assert compounded_chain(196, [0.7] * 3) == [137, 96, 67]
    assert compounded_chain(196, [0.1] * 3) == [19, 1, 1]


def test_tome_aims_at_what_topk_drops_and_merges_at_most_half():
    assert merges(196, [0.1] * 3) == [176, 18, 1]
    left = 197
    chain = []
    for wanted in merges(196, [0.1] * 3):
        left -= min(wanted, most_merges(left))
        chain.append(left)
    assert chain == [99, 81, 80]
