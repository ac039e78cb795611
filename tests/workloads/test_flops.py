"""Modelled work against printed figures, and against PyTorch's own counter."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the workloads compute with PyTorch")

from torch.utils.flop_counter import FlopCounterMode

from warplens.workloads.settings import LM_SIZES, VIT_SIZES
from warplens.workloads.token_reduction.choosing import BlockTokens, topk_chain
from warplens.workloads.token_reduction.methods import reductions
from warplens.workloads.transformer_lm import TransformerLM, cross_entropy
from warplens.workloads.vision import VisionTransformer, lm_work, torchprofile_macs, vit_macs


def _topk(size, input_size, share):
    patches, counts = size.patches(input_size), []
    left = dict(zip((3, 6, 9), topk_chain(patches, [share] * 3), strict=True))
    for block in range(size.blocks):
        after = left.get(block, patches)
        counts.append(BlockTokens(patches + 1, patches + 1, after + 1))
        patches = after
    return counts


@pytest.mark.parametrize(
    ("input_size", "share", "printed"),
    [(224, 1.0, 17.5688), (224, 0.1, 5.5533), (448, 1.0, 78.517), (448, 0.1, 24.734)],
)
def test_the_gf_of_the_token_reduction_study_are_macs_as_torchprofile_counts_them(input_size, share, printed):
    size = VIT_SIZES["deit-b16"]
    counts = _topk(size, input_size, share)
    digits = len(str(printed).partition(".")[2])
    assert round(torchprofile_macs(size, input_size, counts) / 1e9, digits) == printed


@pytest.mark.parametrize(
    ("input_size", "share", "gflop"), [(224, 1.0, 35.13), (224, 0.1, 11.10), (448, 1.0, 156.99), (448, 0.1, 49.45)]
)
def test_flops_are_twice_the_macs_of_products(input_size, share, gflop):
    size = VIT_SIZES["deit-b16"]
    assert round(2 * vit_macs(size, input_size, _topk(size, input_size, share)) / 1e9, 2) == gflop


def _counted(run):
    """FLOPs by PyTorch's own counter."""
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def test_a_forward_pass_of_the_language_model():
    with torch.device("meta"):
        model = TransformerLM(LM_SIZES["small"], 128)
        tokens = torch.empty(4, 128, dtype=torch.long)
    assert _counted(lambda: model(tokens)) == lm_work(LM_SIZES["small"], 4, 128, "forward").flops


@pytest.mark.parametrize("name", ["small", "medium", "large", "xl", "2.7B", "10B"])
def test_parameters_of_the_language_model(name):
    with torch.device("meta"):
        model = TransformerLM(LM_SIZES[name], 16)
    assert sum(parameter.numel() for parameter in model.parameters()) == LM_SIZES[name].parameters


def test_forward_and_backward_are_three_times_the_forward_pass():
    model = TransformerLM(LM_SIZES["tiny"], 16)
    tokens = torch.randint(100, (2, 17))
    flops = _counted(lambda: cross_entropy(model(tokens[:, :-1]), tokens[:, 1:]).backward())
    assert flops == lm_work(LM_SIZES["tiny"], 2, 16, "train").flops


@pytest.mark.parametrize("method", ["none", "random", "topk", "evit", "tome", "dynamicvit", "ats"])
def test_a_pass_of_the_vision_transformer_with_each_method(method):
    torch.manual_seed(1)
    size, side, batch = VIT_SIZES["tiny"], 24, 3
    model = VisionTransformer(size, side, reductions(method, size, side, (1, 2), (0.6, 0.5)))
    images, counts = torch.randn(batch, 3, side, side), []
    flops = _counted(lambda: model(images, counts))
    assert flops == 2 * batch * vit_macs(size, side, counts)
