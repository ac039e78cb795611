"""The language model and its optimizer in float64 against the definition, number by number."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the workloads compute with PyTorch")

from tests.workloads import slow
from warplens.workloads.settings import LM_SIZES, LMSize
from warplens.workloads.transformer_lm import (
    NORM_EPSILON,
    ROPE_THETA,
    ReferenceAdamW,
    RMSNorm,
    RotaryEmbedding,
    SwiGLU,
    TransformerLM,
    cross_entropy,
    scaled_dot_product_attention,
    softmax,
)

pytestmark = pytest.mark.usefixtures("float64")
SIZE = LMSize(d_model=8, d_ff=12, layers=2, heads=2, vocabulary=11)


def _close(tensor, numbers):
    torch.testing.assert_close(tensor.detach(), torch.tensor(numbers, dtype=torch.float64), rtol=1e-10, atol=1e-12)


def test_softmax_is_that_of_the_definition_and_survives_large_scores():
    x = torch.randn(7) * 300
    _close(softmax(x), slow.softmax(x.tolist()))


def test_rms_norm():
    norm, x = RMSNorm(8), torch.randn(8)
    norm.weight.data.normal_()
    _close(norm(x), slow.rms_norm(x.tolist(), norm.weight.tolist(), NORM_EPSILON))


def test_rms_norm_computes_in_fp32_and_gives_back_the_type_that_came():
    norm = RMSNorm(4).to(torch.bfloat16)
    assert norm(torch.full((4,), 1e20, dtype=torch.bfloat16)).dtype == torch.bfloat16
    half = RMSNorm(4).to(torch.float16)
    # The squares overflow fp16; in fp32 they do not.
    assert torch.isfinite(half(torch.full((4,), 3e4, dtype=torch.float16))).all()


def test_swiglu():
    layer, x = SwiGLU(6, 10), torch.randn(6)
    w1, w2, w3 = (linear.weight.tolist() for linear in (layer.w1, layer.w2, layer.w3))
    _close(layer(x), slow.swiglu(x.tolist(), w1, w2, w3))


def test_rotary_embedding_turns_pairs_and_concatenates_halves():
    rope = RotaryEmbedding(5, 6).double()
    x = torch.randn(1, 1, 5, 6)
    expected = [slow.rotated(x[0, 0, position].tolist(), position, ROPE_THETA) for position in range(5)]
    torch.testing.assert_close(rope(x, torch.arange(5))[0, 0], torch.tensor(expected), rtol=1e-6, atol=1e-6)


def test_a_score_of_rotated_vectors_depends_on_their_distance_alone():
    rope = RotaryEmbedding(32, 8)
    q, k = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)

    def score(at_q, at_k):
        return (rope(q, torch.tensor([at_q])) * rope(k, torch.tensor([at_k]))).sum()

    torch.testing.assert_close(score(3, 1), score(20, 18), rtol=1e-5, atol=1e-5)


def test_attention_of_each_head():
    q, k, v = torch.randn(3, 1, 2, 5, 4)
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    out = scaled_dot_product_attention(q, k, v, mask)
    for head in range(2):
        _close(out[0, head], slow.causal_attention(*(t[0, head].tolist() for t in (q, k, v))))
    torch.testing.assert_close(out, torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))


def test_a_whole_pass_is_the_definition_applied_block_by_block():
    model = TransformerLM(SIZE, 6)
    tokens = torch.randint(SIZE.vocabulary, (1, 6))
    x = [model.embedding.weight[token].tolist() for token in tokens[0]]
    for block in model.blocks:
        attention, ffn = block.attention, block.feed_forward
        normed = [slow.rms_norm(row, block.norm1.weight.tolist(), NORM_EPSILON) for row in x]
        q, k, v = (
            [slow.linear(row, project.weight.tolist()) for row in normed]
            for project in (attention.q, attention.k, attention.v)
        )
        merged = [[] for _ in x]
        for head in range(SIZE.heads):
            part = slice(head * SIZE.d_head, (head + 1) * SIZE.d_head)
            turned = [[slow.rotated(row[part], i, ROPE_THETA) for i, row in enumerate(rows)] for rows in (q, k)]
            for row, out in zip(merged, slow.causal_attention(*turned, [row[part] for row in v]), strict=True):
                row.extend(out)
        attended = [slow.linear(row, attention.output.weight.tolist()) for row in merged]
        x = [[a + b for a, b in zip(*pair, strict=True)] for pair in zip(x, attended, strict=True)]
        normed = [slow.rms_norm(row, block.norm2.weight.tolist(), NORM_EPSILON) for row in x]
        fed = [slow.swiglu(row, *(w.weight.tolist() for w in (ffn.w1, ffn.w2, ffn.w3))) for row in normed]
        x = [[a + b for a, b in zip(*pair, strict=True)] for pair in zip(x, fed, strict=True)]
    normed = [slow.rms_norm(row, model.norm.weight.tolist(), NORM_EPSILON) for row in x]
    logits = [slow.linear(row, model.head.weight.tolist()) for row in normed]
    torch.testing.assert_close(model(tokens)[0].detach(), torch.tensor(logits), rtol=1e-6, atol=1e-6)


def test_a_token_changes_no_logits_before_it():
    model = TransformerLM(SIZE, 8)
    tokens = torch.randint(SIZE.vocabulary, (2, 8))
    changed = tokens.clone()
    changed[:, 5] = (tokens[:, 5] + 1) % SIZE.vocabulary
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :5], after[:, :5], rtol=0, atol=0)
    assert not torch.allclose(before[:, 5:], after[:, 5:])


def test_weights_are_drawn_as_the_definition_says():
    model = TransformerLM(LM_SIZES["tiny"], 8)
    weight = model.blocks[0].feed_forward.w1.weight
    sigma = (2 / sum(weight.shape)) ** 0.5
    assert weight.abs().max() <= 3 * sigma
    assert weight.std().item() == pytest.approx(sigma, rel=0.1)
    assert model.embedding.weight.abs().max() <= 3
    assert (model.norm.weight == 1).all()
    assert not any(name.endswith("bias") for name, _ in model.named_parameters())


def test_the_loss_is_cross_entropy():
    logits, targets = torch.randn(2, 3, 11), torch.randint(11, (2, 3))
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    torch.testing.assert_close(cross_entropy(logits, targets), expected)


def test_gradients_are_those_of_finite_differences():
    model = TransformerLM(LMSize(4, 4, 1, 1, vocabulary=5), 3)
    tokens = torch.randint(5, (1, 4))
    parameters = {name: parameter.detach().clone().requires_grad_() for name, parameter in model.named_parameters()}

    def loss(*values):
        named = dict(zip(parameters, values, strict=True))
        return cross_entropy(torch.func.functional_call(model, named, (tokens[:, :-1],)), tokens[:, 1:])

    assert torch.autograd.gradcheck(loss, tuple(parameters.values()), fast_mode=True, atol=1e-4)


def test_adamw_takes_the_steps_of_the_definition():
    p = torch.nn.Parameter(torch.randn(3))
    start, gradients = p.detach().clone(), torch.randn(4, 3)
    optimizer = ReferenceAdamW([p], lr=0.1, betas=(0.8, 0.95), eps=1e-8, weight_decay=0.2)
    for gradient in gradients:
        p.grad = gradient.clone()
        optimizer.step()
    expected = [
        slow.adamw(start[i].item(), gradients[:, i].tolist(), 0.1, (0.8, 0.95), 1e-8, 0.2) for i in range(len(start))
    ]
    _close(p, expected)


def test_adamw_agrees_with_pytorchs_but_for_where_epsilon_stands():
    ours, theirs = (torch.nn.Parameter(torch.ones(4)) for _ in range(2))
    optimizers = ReferenceAdamW([ours]), torch.optim.AdamW([theirs], weight_decay=0.01)
    for _ in range(3):
        gradient = torch.randn(4)
        for p, optimizer in zip((ours, theirs), optimizers, strict=True):
            p.grad = gradient.clone()
            optimizer.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)


def test_adamw_skips_parameters_without_gradient():
    p = torch.nn.Parameter(torch.ones(2))
    ReferenceAdamW([p]).step()
    assert p.tolist() == [1.0, 1.0]


def test_the_model_compiles_without_breaks():
    torch.set_default_dtype(torch.float32)
    model = TransformerLM(LM_SIZES["tiny"], 8)
    tokens = torch.randint(100, (2, 8))
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(tokens), model(tokens))
