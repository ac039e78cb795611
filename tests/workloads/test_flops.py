"""Modelled work against printed figures, against the model of the analyses, and against PyTorch's own counter."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the workloads compute with PyTorch")
pytest.importorskip("polars", reason="the model of the analyses is among tables")

from warplens.studies.grid.cells import MODEL_SIZES, forward_flops, model_size
from warplens.workloads.settings import LM_BATCH, LM_SIZES, VIT_SIZES
from warplens.workloads.token_reduction.choosing import BlockTokens, topk_chain
from warplens.workloads.vision import lm_parameters, lm_work, torchprofile_macs, vit_macs

PARAMETERS = {
    "small": 128_625_408,
    "medium": 423_183_360,
    "large": 969_411_840,
    "xl": 1_998_235_200,
    "2.7B": 3_406_809_600,
}
TERAFLOPS = {
    "small": (0.126, 0.257, 0.534, 1.145),
    "medium": (0.429, 0.871, 1.794, 3.795),
    "large": (0.992, 2.007, 4.111, 8.609),
    "xl": (2.050, 4.140, 8.441, 17.526),
    "2.7B": (3.484, 7.010, 14.192, 29.072),
}


def test_the_five_sizes_have_the_parameters_of_the_assignment():
    assert {name: lm_parameters(LM_SIZES[name]) for name in PARAMETERS} == PARAMETERS


def test_the_pair_of_2026():
    assert lm_parameters(LM_SIZES["xl-2026"]) == PARAMETERS["2.7B"]
    assert round(lm_parameters(LM_SIZES["10B"]) / 1e9, 2) == 12.83


@pytest.mark.parametrize("name", TERAFLOPS)
def test_forward_flops_of_the_assignments_table(name):
    flops = [lm_work(LM_SIZES[name], LM_BATCH, context, "forward").flops for context in (128, 256, 512, 1024)]
    assert tuple(round(amount / 1e12, 3) for amount in flops) == TERAFLOPS[name]


def test_the_workload_and_the_analysis_count_alike():
    for known in MODEL_SIZES:
        name = "xl-2026" if known.name == "xl" and known.d_model == 2560 else known.name
        size = LM_SIZES[name]
        assert (size.d_model, size.d_ff, size.layers, size.heads) == (
            known.d_model, known.d_ff, known.layers, known.heads,
        )  # fmt: skip
    small = model_size("small")
    assert lm_work(LM_SIZES["small"], 4, 512, "forward").flops == forward_flops(small, 4, 512)


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


class TestAgainstPyTorchsCounter:
    @pytest.fixture
    def counted(self):
        pytest.importorskip("torch", reason="counting needs PyTorch")
        from torch.utils.flop_counter import FlopCounterMode

        def count(run):
            with FlopCounterMode(display=False) as counter:
                run()
            return counter.get_total_flops()

        return count

    def test_a_forward_pass_of_the_language_model(self, counted):
        import torch

        from warplens.workloads.transformer_lm import TransformerLM

        with torch.device("meta"):
            model = TransformerLM(LM_SIZES["small"], 128)
            tokens = torch.empty(4, 128, dtype=torch.long)
        assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS["small"]
        assert counted(lambda: model(tokens)) == lm_work(LM_SIZES["small"], 4, 128, "forward").flops

    @pytest.mark.parametrize("name", ["medium", "large", "xl", "2.7B", "10B"])
    def test_parameters_of_the_other_sizes(self, name):
        torch = pytest.importorskip("torch", reason="needs PyTorch")
        from warplens.workloads.transformer_lm import TransformerLM

        with torch.device("meta"):
            model = TransformerLM(LM_SIZES[name], 16)
        assert sum(parameter.numel() for parameter in model.parameters()) == lm_parameters(LM_SIZES[name])

    def test_forward_and_backward_are_three_times_the_forward_pass(self, counted):
        import torch

        from warplens.workloads.transformer_lm import TransformerLM, cross_entropy

        model = TransformerLM(LM_SIZES["tiny"], 16)
        tokens = torch.randint(100, (2, 17))
        flops = counted(lambda: cross_entropy(model(tokens[:, :-1]), tokens[:, 1:]).backward())
        assert flops == lm_work(LM_SIZES["tiny"], 2, 16, "train").flops

    @pytest.mark.parametrize("method", ["none", "random", "topk", "evit", "tome", "dynamicvit", "ats"])
    def test_a_pass_of_the_vision_transformer_with_each_method(self, counted, method):
        import torch

        from warplens.workloads.token_reduction.methods import reductions
        from warplens.workloads.vision import VisionTransformer

        torch.manual_seed(1)
        size, side, batch = VIT_SIZES["tiny"], 24, 3
        model = VisionTransformer(size, side, reductions(method, size, side, (1, 2), (0.6, 0.5)))
        images, counts = torch.randn(batch, 3, side, side), []
        flops = counted(lambda: model(images, counts))
        assert flops == 2 * batch * vit_macs(size, side, counts)
