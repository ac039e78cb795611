"""DynamicViT in training, in float64: tokens are masked, not dropped, and the choice has a gradient."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch", reason="the workloads compute with PyTorch")

from tests.workloads.models import small_vit
from warplens.errors import UsageError
from warplens.workloads.settings import VIT_SIZES
from warplens.workloads.token_reduction.choosing import TokenState
from warplens.workloads.token_reduction.methods import DynamicViT, Predictor, masked_softmax
from warplens.workloads.vision import VisionTransformer

pytestmark = pytest.mark.usefixtures("float64")
EPSILON = 1e-6


def test_masked_softmax_is_the_formula():
    scores, policy = 3 * torch.randn(2, 2, 5, 5), torch.tensor([[1.0, 0, 1, 1, 0], [1, 1, 1, 0, 0]])
    found = masked_softmax(scores, policy)
    for image in range(2):
        for head in range(2):
            for i in range(5):
                row = scores[image, head, i].tolist()
                terms = [math.exp(row[j] - max(row)) * (1 if i == j else policy[image, j].item()) for j in range(5)]
                expected = [(term + EPSILON / 5) / (sum(terms) + EPSILON) for term in terms]
                assert found[image, head, i].tolist() == pytest.approx(expected, rel=1e-12)


def test_with_nothing_masked_it_is_the_softmax():
    scores = 3 * torch.randn(1, 2, 6, 6)
    found = masked_softmax(scores, torch.ones(1, 6))
    torch.testing.assert_close(found, scores.softmax(-1), rtol=2e-5, atol=2e-7)
    torch.testing.assert_close(found.sum(-1), torch.ones(1, 2, 6))


def test_the_predictor_sees_the_mean_of_what_is_left():
    predictor, patches = Predictor(8), torch.randn(1, 6, 8)
    policy = torch.tensor([[1.0, 0, 1, 1, 0, 0]])
    kept = [0, 2, 3]
    found = predictor(patches, policy)[0, kept]
    torch.testing.assert_close(found, predictor(patches[:, kept])[0])
    torch.testing.assert_close(predictor(patches, torch.ones(1, 6)), predictor(patches))


def test_a_token_is_kept_if_its_drawn_score_is_the_higher_and_never_comes_back():
    method, x = DynamicViT(8, kept=3).train(), torch.randn(2, 7, 8)
    state = TokenState(6, policy=torch.tensor([[1.0, 1, 1, 0, 1, 1, 1], [1, 0, 1, 1, 1, 1, 0]]))
    before = state.policy
    torch.manual_seed(3)
    assert method.before_block(x, state) is x
    torch.manual_seed(3)
    gumbel = -torch.empty(2, 6, 2).exponential_().log()
    scores = method.predictor(x[:, 1:], before[:, 1:])
    expected = [
        [1.0] + [before[i, 1 + j].item() * float(sum_keep >= sum_drop) for j, (sum_keep, sum_drop) in enumerate(rows)]
        for i, rows in enumerate((scores + gumbel).tolist())
    ]
    assert state.policy.tolist() == expected
    assert (state.policy <= before).all()


def test_a_masked_block_gives_the_tokens_that_are_left_what_they_get_without_the_others():
    block = VisionTransformer(VIT_SIZES["tiny"], 20).blocks[0]  # scores near zero: the formula's ε is small beside them
    x = torch.randn(1, 9, VIT_SIZES["tiny"].width)
    policy = torch.tensor([[1.0, 1, 0, 0, 1, 0, 1, 0, 1]])
    left = policy[0].bool()
    masked = block(x, TokenState(8, policy=policy))[:, left]
    torch.testing.assert_close(masked, block(x[:, left], TokenState(8)), rtol=1e-4, atol=1e-4)


def test_in_training_all_tokens_stay_and_the_predictor_learns():
    model, counts = small_vit("dynamicvit").train(), []
    model(torch.randn(2, 3, 20, 20), counts).square().sum().backward()
    assert [block.leaving for block in counts] == [26] * 4
    without = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert without == []
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    counts.clear()
    model.eval()(torch.randn(2, 3, 20, 20), counts)
    assert [block.leaving for block in counts] == [26, 16, 8, 8]


def test_the_gradient_of_the_policy_is_that_of_finite_differences():
    scores = torch.randn(1, 1, 4, 4)
    policy = torch.rand(1, 4).clamp(0.2, 0.8).requires_grad_()
    values = torch.randn(1, 1, 4, 3)
    assert torch.autograd.gradcheck(lambda p: masked_softmax(scores, p) @ values, (policy,))


def test_fused_attention_cannot_be_masked_so():
    with pytest.raises(UsageError, match="masks attention weights"):
        small_vit("dynamicvit", fused=True).train()(torch.randn(1, 3, 20, 20))
