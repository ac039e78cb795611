"""Patterns of kernels are found where they are planted, and only there."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import polars as pl
import pytest

from tests.analysis.builders import call, copy, kernel, launch
from tests.analysis.operators.programs import annotation, operator, program
from tests.diagnosis.machine import ADD, BF16_GEMM, FP32_GEMM, FULL_GRID, H200, MS, US, Machine
from tests.diagnosis.programs import STEPS, judged, record, verdict
from warplens.analysis.headroom import headrooms
from warplens.analysis.timeline import Timeline
from warplens.diagnosis import Diagnosis, diagnose
from warplens.diagnosis.facts import gather
from warplens.diagnosis.program import Program

SOFTMAX = "void at::native::cunn_SoftMaxForward<8, float, float, float, at::native::SoftMaxForwardEpilogue>(float*)"
LOG_SOFTMAX = SOFTMAX.replace("SoftMaxForwardEpilogue", "LogSoftMaxForwardEpilogue")
LAYER_NORM = "void at::native::vectorized_layer_norm_kernel<float, float>(int)"
GELU = "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl>(int)"
ODD_GEMM = "void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_tn_align1>(Params)"
VECTOR_PRODUCT = "void gemmk1_kernel<int, float, 256, 5, cublasGemvTensorStridedBatched<const __nv_bfloat16>>(int)"
CONVOLUTION = "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_cudnn"
TO_NHWC = "void cudnn::engines_precompiled::nchwToNhwcKernel<__nv_bfloat16, __nv_bfloat16, float>(int)"
BATCH_NORM = "void at::native::batch_norm_collect_statistics_kernel<c10::BFloat16, float, float, int>(int)"
ROLL = "void roll_cuda_kernel<float>(float const*, float*, long, long, long, long, long, long)"
CAT = "void at::native::CatArrayBatchedCopy_vectorized<at::native::OpaqueType<2u>, unsigned int, 4, 64, 64>(char*)"
FLASH = "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_4x1x1_cga1x1x1_kernel0_0"
PICK = "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*)"
PUT = "void at::native::indexFuncLargeIndex<c10::BFloat16, long, unsigned int, 2, 2, -2, true>(int)"
DIRECT_COPY = "void at::native::elementwise_kernel<128, 4, gpu_kernel_impl_nocast<direct_copy_kernel_cuda>>(int)"
CAST = "void at::native::vectorized_elementwise_kernel<8, at::native::bfloat16_copy_kernel_cuda(int)>(int)"
ISNEGINF = "void at::native::vectorized_elementwise_kernel<4, at::native::isneginf_kernel_impl(int)>(int)"
ARGMAX = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>>>(int)"
DRAWING = "void at::native::distribution_elementwise_grid_stride_kernel<float, 4, uniform_and_transform<float>>(int)"
WHERE = "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<where_kernel_impl>>(int)"
DOUBLE_GEMM = "sm90_xmma_gemm_f64f64_f64f64_f64_nt_n_tilesize64x64x16_stage3_warpsize2x2x1_tensor16x8x16_kernel"
DOUBLE_NORM = "void at::native::vectorized_layer_norm_kernel<double, double>(int)"
ISNAN = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, float, bool, "
    "at::native::CompareEqFunctor<float>>>(int)"
)
IS_END = ISNAN.replace("BinaryFunctor<float, float", "BUnaryFunctor<long, long").replace("<float>", "<long>")
ANY = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<bool, at::native::or_kernel_cuda>>(int)"
FUSED = (
    "void at::native::multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>, FusedAdamMathFunctor<float, 4>>"
)
SELECT = "void at_cuda_detail::cub::DeviceSelectSweepKernel<Policy1000, CountingInputIterator<long>>(int)"
NORM = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::NormTwoOps<float>>>(int)"
LISTS = "void at::native::multi_tensor_apply_kernel<at::native::TensorListMetadata<{}>, at::native::Op{}>(int)"


def attention(machine: Machine) -> None:
    """Products of 100 µs around three passes of 300 µs, four times."""
    for _ in range(4):
        machine.launch(100 * US)
        machine.launch(300 * US, ADD)
        machine.launch(300 * US, SOFTMAX)
        machine.launch(300 * US, ADD)
        machine.launch(100 * US)


def test_passes_between_two_products_with_a_softmax_are_attention_written_out() -> None:
    found = verdict(attention)
    assert found.verdict == "unfused-attention"
    finding = found.findings[0]
    assert finding.evidence["attentions_per_step"] == 4
    assert finding.evidence["passes_per_attention_factor"] == 3
    # The passes are 900 of 1,100 µs, and three quarters of the products go with them.
    assert finding.expected == pytest.approx(1100 / 50, rel=0.1)


def test_attention_written_out_over_an_odd_length_is_told_of_it() -> None:
    def step(machine: Machine, product: str) -> None:
        for _ in range(4):
            machine.launch(100 * US, product)
            for name in (ADD, SOFTMAX, ADD):
                machine.launch(300 * US, name)
            machine.launch(100 * US, product)

    odd, even = (
        verdict(lambda machine, product=product: step(machine, product)).finding("unfused-attention")
        for product in (ODD_GEMM, BF16_GEMM)
    )
    assert odd.evidence["misaligned_per_step"] == 8
    assert "multiples of 8" in odd.remedies[-1].action
    assert "misaligned_per_step" not in even.evidence
    assert not any("multiples of 8" in remedy.action for remedy in even.remedies)


def test_attention_among_other_chains_keeps_the_work_that_compiling_would_take_as_well() -> None:
    """Passes over scores are told of fused attention, and of compiling what lies between the attentions alone."""

    def step(machine: Machine) -> None:
        for _ in range(4):
            machine.launch(300 * US)
            for name in (ADD, ADD, SOFTMAX, CAST, ADD):
                machine.launch(200 * US, name)
            machine.launch(300 * US)
            machine.launch(230 * US, ADD, times=5)

    found = verdict(step)
    chain, written = found.finding("unfused-chain"), found.finding("unfused-attention")
    assert found.verdict == "unfused-attention"
    assert chain.gain < written.gain


def test_the_fused_function_that_writes_its_scores_is_told_what_its_kernels_take() -> None:
    def step(machine: Machine) -> None:
        for _ in range(4):
            machine.launch(600 * US, FP32_GEMM)
            machine.launch(300 * US, SOFTMAX)
            machine.launch(300 * US, ISNEGINF)
            machine.launch(300 * US, WHERE)
            machine.launch(600 * US, FP32_GEMM)

    found = verdict(step)
    assert found.verdict == "unfused-attention"
    assert "falls back" in found.findings[0].title
    assert "SDPBackend.EFFICIENT_ATTENTION" in found.findings[0].remedies[0].how
    assert "bfloat16" in found.findings[0].remedies[0].how
    # The products reach tensor cores, too: more than the 900 of 2,100 µs of the passes goes away.
    assert found.findings[0].expected > 2100 / 300
    assert found.finding("precision") is None
    assert "two products" not in found.findings[0].refute, "the program calls the function already"


def test_narrower_products_are_a_part_of_fused_attention_where_the_rest_is_narrow() -> None:
    """Attention by formula under autocast, without a triangle: its products gain as much from the format alone."""

    def step(machine: Machine) -> None:
        for _ in range(4):
            machine.launch(200 * US, times=2)
            machine.launch(600 * US, FP32_GEMM)
            machine.launch(150 * US, SOFTMAX)
            machine.launch(150 * US, ISNEGINF)
            machine.launch(150 * US, WHERE)
            machine.launch(600 * US, FP32_GEMM)

    found = verdict(step)
    assert found.verdict == "unfused-attention"
    assert found.findings[0].expected > 2050 / (400 + 1200 / 8), "most of the products goes, too"
    assert found.finding("precision") is None


@pytest.mark.parametrize(("passes", "products"), [((SOFTMAX,), 1), ((LAYER_NORM, SOFTMAX), 2)])
def test_layers_with_a_softmax_are_no_attention(passes: tuple[str, ...], products: int) -> None:
    """One product between two softmaxes belongs to no attention, and scores are not normalized before it."""

    def step(machine: Machine) -> None:
        for _ in range(6):
            for name in passes:
                machine.launch(300 * US, name)
            machine.launch(100 * US, ADD)
            machine.launch(200 * US, times=products)

    assert verdict(step).finding("unfused-attention") is None


SPLIT_SUM = "void cublasLt::splitKreduce_kernel<32, 16, int, float, float, float, float, false>(int)"
BIAS_GEMM = "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_bias_TNN"
SOFTMAX_BACKWARD = SOFTMAX.replace("Forward", "Backward")
DRAWN = "triton_per_fused__softmax_add_argmax_eq_sub_view_7"
MEAN = (
    "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<float, at::native::MeanOps<float, float>, float>>(int)"
)


@pytest.mark.parametrize(
    ("before", "softmax", "between", "after", "is_attention"),
    [
        ((BF16_GEMM,), SOFTMAX, (), (BF16_GEMM,), True),
        ((BF16_GEMM, SPLIT_SUM), SOFTMAX, (), (BF16_GEMM,), False),  # a product of few rows
        ((BF16_GEMM,), SOFTMAX, (), (BF16_GEMM, SPLIT_SUM), False),
        ((BIAS_GEMM,), SOFTMAX, (), (BF16_GEMM,), False),  # a linear layer
        ((BF16_GEMM,), SOFTMAX, (CAT,), (BF16_GEMM,), False),  # the product reads other numbers, too
        ((BF16_GEMM,), SOFTMAX, (ARGMAX, ADD), (BF16_GEMM,), False),  # it reads what was drawn
        ((BF16_GEMM,), DRAWN, (), (BF16_GEMM,), False),
    ],
)
def test_categories_drawn_between_layers_are_no_attention(
    before: tuple[str, ...], softmax: str, between: tuple[str, ...], after: tuple[str, ...], is_attention: bool
) -> None:
    """As the latents of a world model, in a profile without shapes."""

    def step(machine: Machine) -> None:
        for _ in range(4):
            for name in (*before, ADD, softmax, *between, ADD, *after):
                machine.launch(100 * US, name, grid=(160, 1, 1))
            machine.launch(30 * US, ADD)
            machine.launch(300 * US)

    assert (verdict(step).finding("unfused-attention") is not None) is is_attention


@pytest.mark.parametrize(
    ("scores", "softmax", "values", "is_attention"),
    [
        ([[64, 128, 32], [64, 32, 128]], [64, 128, 128], [[64, 128, 128], [64, 128, 32]], True),
        ([[64, 128, 32], [64, 32, 128]], [8, 8, 128, 129], [[64, 128, 128], [64, 128, 32]], True),  # a sink is cut off
        ([[128], [16, 32], [32, 128]], [16, 128], [[128], [16, 128], [128, 64]], False),  # linear layers
        ([[16, 1024], [1024, 1024]], [16, 32, 32], [[16, 1024], [1024, 640]], False),
        ([[8, 512, 64], [8, 64, 256]], [512, 8, 2], [[8, 512, 256], [8, 256, 64]], False),  # experts and their router
    ],
)
def test_recorded_shapes_tell_scores_from_other_products(
    scores: list[list[int]], softmax: list[int], values: list[list[int]], is_attention: bool
) -> None:
    """Both products have a batch of heads, and the second one reads what the softmax wrote."""
    works = [
        ("aten::bmm", scores, BF16_GEMM),
        ("aten::_softmax", [softmax, [], []], SOFTMAX),
        ("aten::bmm", values, BF16_GEMM),
        ("aten::add", [[64, 64], [64, 64]], ADD),
    ]
    kernels, calls, ranges, now = [], [], [], 0
    for number in range(1, 25):
        name, shapes, full = works[(number - 1) % 4]
        ranges.append(operator(now, now + 3 * US, name, shapes=json.dumps(shapes)))
        calls.append(launch(now + US, now + 2 * US, number))
        begin, now = now + 5 * US, now + 500 * US
        kernels.append(kernel(begin, now, "kernel", correlation=number, full_name=full, grid=(1056, 1, 1)))
        if number % 8 == 0:
            ranges.append(annotation(now - 4000 * US, now, "step"))
    timeline = program(kernels, calls, ranges)
    assert (diagnose(timeline, timeline.window()).finding("unfused-attention") is not None) is is_attention


def returned_weights(machine: Machine) -> None:
    """`nn.MultiheadAttention` with its default, in training: passes over scores of 3,200 µs, six products of 600 µs.

    Products clear a workspace first. The mean over heads comes after the projection. The gradient of keys comes out
    transposed, and its copy takes 1,000 µs instead of 100. Other work takes 1,700 µs.
    """

    def product(duration: int) -> None:
        machine.clear(1 * US)
        machine.launch(duration)

    product(500 * US)
    product(100 * US)
    for name in (CAST, SOFTMAX, CAST):
        machine.launch(500 * US, name)
    product(100 * US)
    machine.launch(50 * US, DIRECT_COPY)
    product(300 * US)
    machine.launch(200 * US, MEAN)
    machine.launch(100 * US, LAYER_NORM)
    product(500 * US)
    machine.launch(50 * US, DIRECT_COPY)
    product(100 * US)
    product(100 * US)
    for name in (ADD, SOFTMAX_BACKWARD, CAST):
        machine.launch(500 * US, name)
    product(100 * US)
    product(100 * US)
    machine.launch(100 * US, DIRECT_COPY)
    machine.copy(50 * US, 1 << 20, "device-to-device", pinned=True)
    machine.launch(1000 * US, DIRECT_COPY)
    machine.launch(50 * US, LAYER_NORM)


def test_attention_that_returns_its_weights_claims_all_passes_over_them() -> None:
    found = verdict(returned_weights)
    first = found.findings[0]
    assert first.id == "unfused-attention"
    assert first.title.startswith("nn.MultiheadAttention returns its weights")
    assert "need_weights=False" in first.remedies[0].how
    assert first.evidence["passes_per_attention_factor"] == (3 + 1 + 3) / 2
    # The passes, three quarters of six products, and what the transposed copy takes longer than a product.
    claimed = 3200 + 0.75 * 600 + (1000 - 100)
    assert first.evidence["saved_ns"] == pytest.approx(STEPS * claimed * US, rel=0.02)
    assert first.expected is not None
    assert first.bound is not None
    assert first.expected < first.bound


@pytest.mark.parametrize("after", [(LAYER_NORM, MEAN), (MEAN,)])
def test_a_mean_of_other_numbers_is_none_over_heads(after: tuple[str, ...]) -> None:
    """Norms that are written out take means of sums; a mean of activations is shorter than one of the weights."""

    def step(machine: Machine) -> None:
        for _ in range(4):
            machine.launch(100 * US)
            machine.launch(300 * US, SOFTMAX)
            machine.launch(100 * US)
            machine.launch(20 * US, DIRECT_COPY)
            machine.launch(300 * US)
            for name in after:
                machine.launch((150 if len(after) > 1 else 30) * US, name)
            machine.launch(300 * US)

    first = verdict(step).finding("unfused-attention")
    assert first is not None
    assert "need_weights" not in first.remedies[0].how
    assert first.evidence["passes_per_attention_factor"] == 1


def test_the_softmax_of_a_loss_is_none_of_attention() -> None:
    def step(machine: Machine) -> None:
        for _ in range(4):
            machine.launch(1000 * US)
            machine.launch(300 * US, LOG_SOFTMAX)
            machine.launch(1000 * US)

    assert verdict(step).finding("unfused-attention") is None


def test_products_for_operands_aligned_to_two_bytes_have_sizes_that_tensor_cores_do_not_take() -> None:
    def step(machine: Machine) -> None:
        machine.launch(300 * US, times=4)
        machine.launch(900 * US, ODD_GEMM, times=2)

    found = verdict(step)
    assert found.verdict == "misaligned-shape"
    assert found.findings[0].expected == pytest.approx(3000 / (3000 - 0.86 * 1800), rel=0.02), "as measured"


def test_conversions_around_convolutions_are_a_matter_of_memory_format() -> None:
    def step(machine: Machine) -> None:
        for _ in range(8):
            machine.launch(50 * US, TO_NHWC)
            machine.launch(100 * US, CONVOLUTION)
            machine.launch(80 * US, BATCH_NORM)

    found = verdict(step)
    assert found.verdict == "memory-format"
    assert found.findings[0].evidence["conversions_per_step"] == 8


@pytest.mark.parametrize(("sizes", "raised"), [("64x8_64x16_4x1", True), ("128x64_64x8_4x1", False)])
def test_products_of_few_rows_have_narrow_tiles_and_not_few_stages(sizes: str, raised: bool) -> None:
    """cuBLAS names the tile of the result, then the depth of a slice and how many are in flight."""
    found = verdict(lambda machine: machine.launch(40 * US, f"nvjet_sm90_tst_{sizes}_v_bz_TNT", times=40))
    assert (found.finding("weight-bound") is not None) == raised


@pytest.mark.parametrize(
    ("second", "convolution", "others", "raised"),
    [
        (FULL_GRID, CONVOLUTION, 0, True),
        ((2112, 1, 1), CONVOLUTION, 0, False),  # of another size
        (FULL_GRID, CONVOLUTION.replace("fprop", "dgrad"), 0, False),  # of a gradient and of an input
        (FULL_GRID, CONVOLUTION, 1, False),  # a shuffle of channels or pixels
    ],
)
def test_copies_to_channels_first_and_back_are_a_matter_of_memory_format(
    second: tuple[int, int, int], convolution: str, others: int, raised: bool
) -> None:
    """Two equal copies before a convolution in channels last; others are copies of two tensors."""

    def step(machine: Machine) -> None:
        for _ in range(8):
            machine.launch(80 * US, DIRECT_COPY)
            machine.launch(70 * US, DIRECT_COPY, grid=second)
            machine.launch(100 * US, convolution)
            machine.launch(100 * US, ADD, times=others)
            machine.launch(100 * US, convolution, times=others)

    finding = verdict(step).finding("memory-format")
    assert (finding is not None) == raised
    if finding is not None:
        assert finding.confidence == "medium"
        assert finding.evidence["conversions_per_step"] == 16
        assert finding.expected == pytest.approx(250 / 100, rel=0.05)
        assert "channels_last)" not in finding.remedies[0].how, "the model is in channels last already"


@pytest.mark.parametrize("of_others", [CONVOLUTION, CONVOLUTION.replace("nhwckrsc_nhwc_", "")])
@pytest.mark.parametrize("enlargements", [1, 4])
def test_shuffles_of_pixels_before_convolutions_are_no_matter_of_memory_format(
    enlargements: int, of_others: str
) -> None:
    """The first copy shuffles, and has to stay; names of other convolutions need not tell their format."""

    def step(machine: Machine) -> None:
        machine.launch(100 * US, of_others)
        for _ in range(enlargements):
            machine.launch(80 * US, DIRECT_COPY, times=2)
            machine.launch(100 * US, CONVOLUTION)

    assert verdict(step).finding("memory-format") is None


@pytest.mark.parametrize(
    ("sides", "what", "remedy"),
    [
        ([1, 750], "Sequences", "nn.Linear"),  # how PyTorch runs convolutions of sequences
        ([56, 56], "Images", "torch.channels_last)"),
        ([16, 56, 56], "Volumes", "torch.channels_last_3d)"),
    ],
)
def test_the_format_that_is_named_is_one_of_what_convolutions_go_over(sides: list[int], what: str, remedy: str) -> None:
    kernels, calls, ranges, now = [], [], [], 0
    shapes = json.dumps([[64, 256, *sides], [512, 256, *([1] * len(sides))], [], []])
    for number in range(12):
        began = now
        for place, (name, length) in enumerate(((TO_NHWC, 50), (CONVOLUTION, 100))):
            ranges.append(operator(now, now + 3 * US, "aten::cudnn_convolution", shapes=shapes))
            calls.append(launch(now + US, now + 2 * US, 2 * number + place + 1))
            begin, now = now + 5 * US, now + (5 + length) * US
            row = kernel(begin, now, "conv", correlation=2 * number + place + 1, full_name=name, grid=(1056, 1, 1))
            kernels.append(row)
        if number % 4 == 3:
            ranges.append(annotation(began - 3 * 160 * US, now, "step"))
        now += 5 * US
    timeline = program(kernels, calls, ranges)
    finding = diagnose(timeline, timeline.window()).finding("memory-format")
    assert finding.title.startswith(what)
    assert remedy in finding.remedies[0].how


def test_long_chains_between_products_are_unfused_and_short_ones_are_any_networks() -> None:
    def written_out(machine: Machine) -> None:
        for _ in range(6):
            machine.launch(100 * US)
            machine.launch(40 * US, ADD, times=6)

    def usual(machine: Machine) -> None:
        for _ in range(6):
            machine.launch(100 * US)
            machine.launch(40 * US, ADD, times=2)
            machine.launch(40 * US, LAYER_NORM)

    assert verdict(written_out).verdict == "unfused-chain"
    assert verdict(usual).finding("unfused-chain") is None


@pytest.mark.parametrize(("names", "first"), [(("mine",), "below-roof"), (("mine", "yours"), "memory-bandwidth")])
def test_a_kernel_of_ones_own_that_is_called_again_is_no_chain(names: tuple[str, ...], first: str) -> None:
    """It is fused as far as it goes; different ones in a row may be one."""

    def step(machine: Machine) -> None:
        for number in range(6):
            machine.launch(500 * US, f"_{names[number % len(names)]}_gelu_forward")

    assert verdict(step).verdict == first


@pytest.mark.parametrize("name", ["_product_gelu", BF16_GEMM])
def test_nothing_bounds_what_another_format_brings_to_products(name: str) -> None:
    """A product in Triton may be in fp32 off the tensor cores, and one in bfloat16 may be had in fp8."""
    finding = verdict(lambda machine: machine.launch(500 * US, name, times=6)).finding("tensor-compute")
    assert finding.bound is None


def test_attention_that_has_a_finding_of_its_own_is_no_product_without_one() -> None:
    def step(machine: Machine, mask: int) -> None:
        for _ in range(8):
            machine.launch(500 * US)
            machine.launch(20 * US, WHERE, grid=(mask, 1, 1))
            machine.launch(400 * US, FLASH)

    masked, free = (
        verdict(lambda machine, mask=mask: step(machine, mask)).finding("tensor-compute")
        for mask in (2048 * 2048 // 512, 100)
    )
    steps = 6 * 8 * US
    assert masked.evidence["products_ns"] == 500 * steps
    assert free.evidence["products_ns"] == 900 * steps


def test_products_are_all_of_which_a_share_is_on_tensor_cores() -> None:
    def step(machine: Machine) -> None:
        for _ in range(8):
            machine.launch(500 * US)
            machine.launch(400 * US, FLASH)
            machine.launch(100 * US, "void implicit_convolve_sgemm<float, float, 1024, 5, 5, 3, 3, 3, 1>()")

    evidence = verdict(step).finding("tensor-compute").evidence
    steps = 6 * 8 * US
    assert (evidence["products_ns"], evidence["attention_ns"]) == (1000 * steps, 400 * steps)
    assert evidence["on_tensor_cores_share"] == pytest.approx(900 / 1000)


@pytest.mark.parametrize(("side", "padded"), [(4096, False), (4000, True)])
def test_products_of_whole_tiles_are_told_of_no_other_shape_and_their_rate_is_computed(side: int, padded: bool) -> None:
    """2 · 4096³ operations in 0.2 ms are 687 TFLOP/s, of 989."""
    kernels, calls, ranges, now = [], [], [], 0
    for number in range(30):
        if number % 10 == 0:
            ranges.append(annotation(now, now + 2010 * US, "step"))
        product = operator(now, now + 3 * US, "aten::mm", shapes=json.dumps([[side, side]] * 2))
        ranges.append(product | {"input_types": '["c10::BFloat16", "c10::BFloat16"]'})
        calls.append(launch(now + US, now + 2 * US, number + 1))
        begin = now + 5 * US
        now = begin + 200 * US
        kernels.append(kernel(begin, now, "gemm", correlation=number + 1, full_name=BF16_GEMM, grid=FULL_GRID))
        now -= 4 * US
    profile = program(kernels, calls, ranges).trace
    found = judged(replace(profile, capture=replace(profile.capture, devices=(H200,))))
    finding = found.finding("tensor-compute")
    assert any("tiles" in remedy.action for remedy in finding.remedies) is padded
    assert finding.evidence["of_peak_share"] == pytest.approx(2 * side**3 / 200e-6 / 989e12, rel=0.02)
    assert "twice as many rows" in finding.refute


@pytest.mark.parametrize(("compiled", "passes"), [(True, 3), (True, 2), (False, 3)])
def test_three_passes_in_a_row_are_an_omission_where_a_compiler_makes_others(compiled: bool, passes: int) -> None:
    def step(machine: Machine) -> None:
        for _ in range(6):
            machine.launch(300 * US)
            machine.launch(40 * US, "triton_red_fused_add_mean_mul_rsqrt_0" if compiled else LAYER_NORM)
            machine.launch(300 * US)
            machine.launch(40 * US, ADD, times=passes)

    finding = verdict(step).finding("unfused-chain")
    assert (finding is not None) is (compiled and passes == 3)
    if finding is not None:
        assert "not parts" in finding.remedies[0].action


def test_tensors_copied_by_the_copy_engine_are_told_as_those_copied_by_kernels() -> None:
    """`clone()` of contiguous tensors is a copy on the GPU, and no kernel of a chain need be there."""

    def step(machine: Machine) -> None:
        for _ in range(10):
            machine.copy(500 * US, 2**30, "device-to-device", pinned=True)
            machine.launch(300 * US)

    diagnosis = verdict(step)
    assert diagnosis.verdict == "unfused-chain"
    assert "Copies" in diagnosis.findings[0].title
    assert diagnosis.findings[0].bound == pytest.approx(800 / 300, rel=0.01), "without any"


@pytest.mark.parametrize(("copied_us", "found"), [(250, True), (60, False)])
def test_copies_that_only_rearrange_are_told_however_short_their_chains(copied_us: int, found: bool) -> None:
    def step(machine: Machine) -> None:
        for _ in range(10):
            machine.launch(copied_us * US, DIRECT_COPY, times=2)
            machine.launch(300 * US)

    diagnosis = verdict(step)
    assert (diagnosis.verdict == "unfused-chain") is found
    if found:
        assert "between products" in diagnosis.headline
        low, high = diagnosis.findings[0].expected_interval or (0, 0)
        assert low < 800 / 500 < high  # of two copies one may be needed
        assert diagnosis.findings[0].bound == pytest.approx(800 / 300, rel=0.01), "without either"


@pytest.mark.parametrize("trains", [False, True])
def test_casts_before_products_are_needed_where_weights_change(trains: bool) -> None:
    def step(machine: Machine) -> None:
        for _ in range(8):
            machine.launch(200 * US, CAST)
            machine.launch(100 * US)
            machine.launch(20 * US, GELU)
        if trains:
            machine.launch(20 * US, "at::native::layer_norm_backward_kernel<float>")

    found = verdict(step)
    assert (found.verdict == "unfused-chain") is not trains
    if not trains:
        assert found.findings[0].expected == pytest.approx(320 / 120, rel=0.05), "casts go away, and nothing else"


@pytest.mark.parametrize("clears", [False, True])
def test_casts_stand_before_products_that_clear_a_workspace_first(clears: bool) -> None:
    def step(machine: Machine) -> None:
        for _ in range(8):
            machine.launch(200 * US, CAST)
            if clears:
                machine.clear(1 * US)
            machine.launch(100 * US)
            machine.launch(20 * US, GELU, times=4)

    finding = verdict(step).findings[0]
    assert finding.title.startswith("Weights are cast to 16 bits before each product")
    assert "model.to(torch.bfloat16)" in finding.refute
    keeping, compiling, *_ = finding.remedies
    assert (keeping.action, compiling.action) == ("Keep the weights as they are used", "Compile the blocks")
    assert 1.05 < (compiling.gain or 0) < 380 / 300, "the activations are fused, and the casts of the weights stay"


def test_casts_to_another_layout_are_none_of_weights() -> None:
    strided = "void at::native::elementwise_kernel<128, 4, gpu_kernel_impl_nocast<bfloat16_copy_kernel_cuda>>(int)"

    def step(machine: Machine) -> None:
        for _ in range(8):
            machine.launch(100 * US, ADD, times=4)
            machine.launch(200 * US, strided)
            machine.clear(1 * US)
            machine.launch(100 * US)

    finding = verdict(step).findings[0]
    assert not any("weights" in remedy.action for remedy in finding.remedies)


def test_no_compiler_is_told_of_casts_of_weights_alone() -> None:
    def step(machine: Machine) -> None:
        for _ in range(8):
            machine.launch(200 * US, CAST)
            machine.launch(100 * US)

    finding = verdict(step).findings[0]
    assert finding.remedies[0].action == "Keep the weights as they are used"
    assert not any("Compile" in remedy.action for remedy in finding.remedies)


@pytest.mark.parametrize(
    ("passes", "product", "us", "expected"),
    [
        ((DIRECT_COPY, ADD), BF16_GEMM, 60, 420 / 80),  # weights made of others: no more copies, the product stays
        (
            (DIRECT_COPY, DIRECT_COPY),
            FLASH,
            120,
            480 / 50,
        ),  # keys and values of each head: a quarter of attention stays
        ((DIRECT_COPY, DIRECT_COPY), FLASH, 600, None),  # copies of activations are shorter than what reads them
        ((ADD, ADD), BF16_GEMM, 60, None),  # no copy
        ((DIRECT_COPY, DIRECT_COPY), FLASH, 250, 610 / 82.5),  # each is shorter than attention, which reads both
    ],
)
def test_operands_that_are_made_anew_are_told_where_making_them_takes_longer(
    passes: tuple[str, ...], product: str, us: int, expected: float | None
) -> None:
    def step(machine: Machine) -> None:
        for _ in range(8):
            machine.launch(20 * US)
            machine.launch(170 * US, passes[0])
            machine.launch(170 * US, passes[1])
            machine.launch(us * US, product)

    finding = verdict(step).finding("unfused-chain")
    if expected is None:
        assert finding is None
    else:
        assert finding.expected == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize(
    ("mask", "is_one"),
    [
        (2048 * 2048 // 512, True),  # a square
        (8 * 2048 * 2048 // 512, False),  # one for each of eight sequences
        (2048 * 1024 // 512, False),
    ],
)
def test_one_mask_for_all_keeps_fused_attention_at_work_on_hidden_scores(mask: int, is_one: bool) -> None:
    def step(machine: Machine) -> None:
        for _ in range(8):
            machine.launch(100 * US)
            machine.launch(20 * US, WHERE, grid=(mask, 1, 1))
            machine.launch(400 * US, FLASH)

    found = verdict(step).finding("unfused-attention")
    assert (found is not None) is is_one
    if found is not None:
        assert found.expected == pytest.approx(520 / (100 + 0.4 * 400), rel=0.05)
        causal, blocks, none = found.remedies
        assert "only if the mask is causal" in causal.how, "what a mask hides is not recorded"
        assert causal.gain == blocks.gain == none.gain
        assert "in place of the mask" in found.refute


@pytest.mark.parametrize("is_network", [True, False])
def test_float64_is_a_habit_in_networks_and_a_need_in_solvers(is_network: bool) -> None:
    def step(machine: Machine) -> None:
        for _ in range(8):
            machine.launch(400 * US, DOUBLE_GEMM)
            machine.launch(20 * US, DOUBLE_NORM if is_network else ADD)

    timeline = Timeline(record(step))
    window = timeline.window()
    (headroom,) = headrooms(timeline, window)
    assert (headroom.after("precision") < 0.2 * headroom.after("avoidable")) is is_network
    diagnosis = diagnose(timeline, window)
    found = diagnosis.finding("precision")
    assert (found is not None) is is_network
    if found is not None:
        assert found.evidence["float64_ns"] == 6 * 8 * 400 * US
        assert "off_tensor_cores_ns" not in found.evidence, "tensor cores multiply float64 as well"
        assert "off the tensor cores" not in diagnosis.headline


@pytest.mark.parametrize(("compared", "checks"), [(ISNAN, True), (IS_END, False), (ADD, False)])
def test_a_read_back_for_each_tensor_is_a_check_where_numbers_are_compared_with_themselves(
    compared: str, checks: bool
) -> None:
    def step(machine: Machine) -> None:
        for _ in range(24):
            machine.launch(8 * US, GELU)
            machine.launch(4 * US, compared)
            machine.launch(4 * US, ANY)
            machine.item()

    found = verdict(step).finding("host-sync")
    assert ("NaN" in found.title) is checks


def layers(machine: Machine, count: int = 6) -> None:
    for number in range(count):
        machine.launch((40 + number) * US)
        machine.launch(20 * US, GELU)
        machine.launch((50 + number) * US, FLASH)
        machine.launch(15 * US, LAYER_NORM)


def test_the_forward_sequence_inside_the_backward_pass_is_run_again() -> None:
    def step(machine: Machine) -> None:
        with machine.range("forward"):
            layers(machine)
        with machine.range("backward"):
            for _ in range(3):
                layers(machine, 2)
                for _ in range(8):
                    machine.launch(70 * US, BF16_GEMM.replace("TNN", "NTT"))
                    machine.launch(30 * US, "at::native::layer_norm_backward_kernel<float>")

    found = verdict(step)
    assert found.verdict == "recomputation"
    assert found.findings[0].evidence["of_forward_share"] == pytest.approx(1)


def test_work_that_is_run_again_is_where_it_runs_and_not_where_its_launches_delay_others() -> None:
    def step(machine: Machine) -> None:
        with machine.range("forward"):
            layers(machine)
        with machine.range("backward"):
            layers(machine)
            for _ in range(12):
                machine.launch(70 * US, BF16_GEMM.replace("TNN", "NTT"))
                machine.launch(30 * US, "at::native::layer_norm_backward_kernel<float>")

    found = verdict(step, Machine(python_ns=60 * US)).finding("recomputation")
    assert found is not None
    assert [(place.range, place.kind, place.share) for place in found.places] == [("backward", "kernels", 1)]


#: Blocks of kernels that cast and add a weight, and of one that widens its gradient: half as many numbers each.
WEIGHT, WIDENED = (4096, 1, 1), (8192, 1, 1)
WIDEN = "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(int)>(int)"


@pytest.mark.parametrize(
    ("turns", "added", "micro_batches", "is_weight", "found"),
    [
        (8, 7, 1, True, True),
        (3, 2, 1, True, True),
        (2, 1, 1, True, False),  # a network that is run for two inputs
        (8, 0, 1, True, False),  # layers with weights of their own
        (8, 8, 1, True, False),  # gradients that nobody clears
        (2, 2, 4, True, False),  # micro-batches: the first one adds nothing
        (8, 7, 1, False, False),  # a residual stream in 32 bits
    ],
)
def test_weights_that_each_turn_of_a_loop_casts_are_cast_again(
    turns: int, added: int, micro_batches: int, is_weight: bool, found: bool
) -> None:
    """Each turn casts the weights of two layers in 60 µs each, for a product of 40 µs."""

    def step(machine: Machine) -> None:
        for batch in range(micro_batches):
            adds = added if batch or micro_batches == 1 else 0
            with machine.range("forward"):
                for _ in range(2 * turns):
                    machine.launch(60 * US, CAST, grid=WEIGHT)
                    machine.launch(40 * US)
                    machine.launch(10 * US, LAYER_NORM)
            with machine.range("backward"):
                for turn in reversed(range(turns)):
                    for _ in range(2):
                        machine.launch(10 * US, "at::native::layer_norm_backward_kernel<float>")
                        machine.launch(10 * US, CAST, grid=(512, 1, 1) if is_weight else WEIGHT)
                        for transposed in ("NTT", "NNT"):
                            machine.launch(40 * US, BF16_GEMM.replace("TNN", transposed))
                        machine.launch(60 * US, WIDEN, grid=WIDENED)
                        if turn < adds:
                            machine.launch(80 * US, ADD, grid=WEIGHT)
        with machine.range("optimizer"):
            machine.launch(200 * US, FUSED)

    finding = verdict(step).finding("recomputation")
    assert (finding is not None) is found
    if finding is not None:
        assert finding.evidence["weight_uses_per_step"] == turns
        assert finding.evidence["repeated_per_step"] == 2 * 2 * (turns - 1), "two casts of each of two weights"
        assert finding.remedies[0].action.startswith("Enter autocast once")
        needed = 200 + 2 * (turns * (50 + 100) + 120 + (turns - 1) * 40)  # sums go over half of the bytes
        assert finding.expected == pytest.approx(1 + 2 * (turns - 1) * (120 + 40) / needed, rel=0.1)


@pytest.mark.parametrize(("weights", "cast_us"), [((2048, 1024), 30), ((2048,), 300)])
def test_gradients_that_are_added_beside_many_or_large_weights_show_no_loop(
    weights: tuple[int, ...], cast_us: int
) -> None:
    """Something of one size is cast and added in each of eight layers, and most casts, or their time, are of others."""

    def step(machine: Machine) -> None:
        with machine.range("forward"):
            for _ in range(8):
                machine.launch(60 * US, CAST, grid=WEIGHT)
                for weight in weights:
                    machine.launch(cast_us * US, CAST, grid=(weight, 1, 1))
                    machine.launch(40 * US)
        with machine.range("backward"):
            for layer in range(8):
                for weight in weights:
                    machine.launch(10 * US, CAST, grid=(512, 1, 1))
                    machine.launch(40 * US, BF16_GEMM.replace("TNN", "NTT"))
                    machine.launch(30 * US, WIDEN, grid=(2 * weight, 1, 1))
                machine.launch(60 * US, WIDEN, grid=WIDENED)
                if layer:
                    machine.launch(80 * US, ADD, grid=WEIGHT)
        with machine.range("optimizer"):
            machine.launch(200 * US, FUSED)

    assert verdict(step).finding("recomputation") is None


@pytest.mark.parametrize("trains", [False, True])
def test_weight_norm_of_inference_is_folded_into_the_weights(trains: bool) -> None:
    """Convolutions of 60 µs, each with a norm of its weight of 20 µs, launched ahead of the GPU."""

    def step(machine: Machine) -> None:
        for _ in range(20):
            machine.launch(20 * US, "void at::native::weight_norm_fwd_first_dim_kernel<c10::BFloat16, float>(int)")
            machine.launch(60 * US, CONVOLUTION)
        if trains:
            machine.launch(20 * US, "at::native::weight_norm_bwd_first_dim_kernel<c10::BFloat16, float>")
            machine.launch(20 * US, "at::native::layer_norm_backward_kernel<float>")

    finding = verdict(step).finding("recomputation")
    assert (finding is None) is trains
    if finding is not None:
        assert finding.evidence["repeated_per_step"] == 20
        assert "remove_parametrizations" in finding.remedies[0].how
        assert finding.expected == pytest.approx(80 / 60, rel=0.03)


@pytest.mark.parametrize("norm", [BATCH_NORM, BATCH_NORM.replace("collect_statistics", "backward_reduce")])
def test_a_checkpoint_that_ends_before_its_product_is_run_again(norm: str) -> None:
    """What its product reads is needed in the backward pass, its result is not. Other norms are backward work."""

    def unit(machine: Machine, grid: int) -> None:
        for name in (CAT, ADD, norm, DIRECT_COPY, GELU, CAST):
            machine.launch(30 * US, name, grid=(grid, 1, 1))

    def step(machine: Machine) -> None:
        with machine.range("forward"):
            for grid in range(132, 142):
                unit(machine, grid)
                machine.launch(60 * US)
        with machine.range("backward"):
            for grid in reversed(range(132, 142)):
                unit(machine, grid)
                for transposed in ("NTT", "NNT"):
                    machine.launch(70 * US, BF16_GEMM.replace("TNN", transposed))

    found = verdict(step).finding("recomputation")
    assert (found is not None) is (norm == BATCH_NORM)
    if found is not None:
        assert found.evidence["repeated_per_step"] == 60


def test_small_products_between_picked_and_added_rows_are_a_loop_over_experts() -> None:
    def step(machine: Machine) -> None:
        for _ in range(32):
            machine.launch(2 * US, PICK)
            machine.launch(5 * US)
            machine.launch(2 * US, GELU)
            machine.launch(5 * US)
            machine.launch(3 * US, PUT)

    found = verdict(step)
    assert found.verdict == "per-expert-loop"
    first = found.findings[0]
    assert first.evidence["repetitions_per_step"] == pytest.approx(32, abs=1)
    # Of 160 launches 80 remain: rows are sorted, counted and added back.
    assert 1.5 < first.expected < 3.0


def test_a_loop_over_experts_saves_its_own_waits_and_no_long_pause_of_the_host() -> None:
    """The row counts of each part are read back; beside that the host sleeps once."""

    def step(machine: Machine, pause: int) -> None:
        for number in range(64):
            machine.item()
            machine.launch(2 * US, PICK)
            machine.launch(5 * US)
            machine.launch(2 * US, GELU)
            machine.launch(5 * US)
            machine.launch(3 * US, PUT)
            machine.think(pause if number == 32 else 0)

    loop = verdict(lambda machine: step(machine, 0))
    assert loop.verdict == "per-expert-loop"
    waits = loop.finding("host-sync")
    assert waits is None or (waits.expected or 1.0) < 1.05, "only the copies that are read back are left for it"
    paused = verdict(lambda machine: step(machine, 20 * MS))
    assert paused.verdict == "host-stall"
    saved = paused.finding("per-expert-loop")
    assert saved.expected < 1.25, "the loop takes less than 5 ms of the 25 ms"


@pytest.mark.parametrize(("copying", "title"), [(CAT, "by concatenation"), (PICK, "reordered")])
def test_caches_that_are_copied_whole_for_each_attention_grow(copying: str, title: str) -> None:
    """Appended to by concatenation, or their rows changing places for each token."""

    def step(machine: Machine) -> None:
        for _ in range(12):
            machine.launch(20 * US)
            machine.launch(3 * US, ADD, times=3)
            machine.launch(120 * US, copying, times=2)
            machine.launch(60 * US, FLASH)

    found = verdict(step)
    assert found.verdict == "growing-cache"
    assert title in found.findings[0].title
    assert found.findings[0].evidence["concatenations_per_step"] == 24


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        (range(1, 33), ("appended", "Collect results, and concatenate once")),
        (range(1, 13), ("appended", "Collect results, and concatenate once")),
        ([2**n for n in range(8)], None),  # branches that join in ever larger maps
        ([32] * 32, ("of fixed length", "Write into a ring")),
        ([6] * 6, None),  # branches of one size
    ],
)
def test_what_a_loop_appends_or_keeps_is_copied_in_each_turn(
    sizes: Sequence[int], told: tuple[str, str] | None
) -> None:
    def step(machine: Machine) -> None:
        for size in sizes:
            machine.launch(20 * US)
            machine.launch(8 * size * US, CAT, grid=(132 * size, 1, 1))

    finding = verdict(step).finding("growing-cache")
    assert (finding is not None) is (told is not None)
    if finding is not None and told is not None:
        assert told[0] in finding.title
        assert finding.remedies[0].action == told[1]


@pytest.mark.parametrize(("grows", "told"), [(256, True), (0, False), (2_560, False)])
def test_a_cache_that_is_concatenated_slice_by_slice_grows_by_what_each_turn_adds(grows: int, told: bool) -> None:
    """Five dimensions and more: one copy of all that was there before, and one of the new part."""

    def step(machine: Machine) -> None:
        for turn in range(6):
            for _ in range(4):
                machine.launch(20 * US)
                machine.launch(300 * US, DIRECT_COPY, grid=(384_000 + turn * grows, 1, 1))
                machine.launch(3 * US, DIRECT_COPY, grid=(256, 1, 1))
                machine.launch(60 * US, FLASH)

    found = verdict(step)
    assert (found.verdict == "growing-cache") is told
    if told:
        assert found.findings[0].evidence["concatenations_per_step"] == 24


@pytest.mark.parametrize(
    ("copies", "lasting", "title"),
    [
        (["triton_poi_fused__unsafe_view_copy_select_view_1", "triton_poi_fused_copy__2"], 90, "copies a whole cache"),
        (["triton_poi_fused__to_copy_clone_expand_unsqueeze_where_4"] * 2, 90, "each head that shares them"),
        (["triton_poi_fused__to_copy_clone_expand_unsqueeze_where_4"] * 2, 12, None),  # much shorter than attention
        (["triton_poi_fused__to_copy_mul_1", "triton_poi_fused__to_copy"], 90, None),  # casts, which copy nothing
        (["triton_red_fused_native_layer_norm_clone_1", "triton_poi_fused_mul_2"], 90, None),
    ],
)
def test_compiled_code_that_copies_what_attention_reads_is_told(
    copies: list[str], lasting: int, title: str | None
) -> None:
    """A token of a decoder: attention of 100 µs on a cache, everything else but the copies far shorter."""

    def step(machine: Machine) -> None:
        for _ in range(8):
            machine.launch(20 * US)
            for name in copies:
                machine.launch(lasting * US, name)
            machine.launch(100 * US, FLASH)
            machine.launch(20 * US)
            machine.launch(3 * US, "triton_red_fused_add_rms_norm_3", times=3)

    found = verdict(step)
    assert (found.verdict == "growing-cache") is (title is not None)
    if title is not None:
        finding = found.findings[0]
        assert title in finding.title
        assert finding.evidence["copies_per_step"] == 16
        copied, shared = 8 * 2 * lasting, 8 * 72  # µs of 8 × 329
        saved = copied + (shared if "shares" in title else 0)
        assert finding.expected == pytest.approx(2_632 / (2_632 - saved), rel=0.06)  # and the host's begin


def test_copies_for_some_attentions_say_nothing_of_the_others() -> None:
    """A prompt, whose copies are as long as its other passes; then tokens, whose second attention reads in place."""

    def step(machine: Machine) -> None:
        for prompt in (True, *(False,) * 6):
            for _ in range(4):
                machine.launch(20 * US)
                machine.launch((60 if prompt else 3) * US, "triton_red_fused_add_rms_norm_3", times=3)
                machine.launch(90 * US, "triton_poi_fused_clone_expand_unsqueeze_4", times=2)
                machine.launch(100 * US, FLASH)
                machine.launch(3 * US, "triton_red_fused_add_rms_norm_3", times=3)
                machine.launch(200 * US, FLASH)

    finding = verdict(step).finding("growing-cache")
    assert finding is not None
    assert finding.evidence["copies_per_step"] == 48
    saved = 24 * (180 + 72)
    total = 4 * (20 + 180 + 180 + 100 + 9 + 200) + 24 * (20 + 9 + 180 + 100 + 9 + 200)
    assert finding.expected == pytest.approx(total / (total - saved), rel=0.03)


@pytest.mark.parametrize(("rolled", "trains"), [(400, True), (400, False), (30, True)])
def test_a_buffer_that_is_rolled_is_copied_whole_and_shifted_windows_are_not_told(rolled: int, trains: bool) -> None:
    """A network with shifted windows rolls its activations, which takes a few percent of its time."""

    def step(machine: Machine) -> None:
        machine.launch(rolled * US, ROLL)
        machine.launch(100 * US, times=8)
        if trains:
            machine.launch(20 * US, "at::native::layer_norm_backward_kernel<float>")

    finding = verdict(step).finding("growing-cache")
    assert (finding is not None) == (rolled == 400)
    if finding is not None:
        assert "torch.roll" in finding.title
        assert finding.remedies[0].action == "Write into a ring"


INDEX_COPY = "void at::native::index_elementwise_kernel<128, 4, index_copy_kernel_impl<OpaqueType<2>>>(long)"


@pytest.mark.parametrize(("written", "turns", "told"), [(5, 16, True), (60, 16, False), (5, 4, False), (0, 16, False)])
def test_a_tensor_is_copied_whole_for_each_few_rows_that_are_written(written: int, turns: int, told: bool) -> None:
    """index_copy without the underscore. A write that takes half as long as the copy may need a new tensor."""

    def step(machine: Machine) -> None:
        for _ in range(turns):
            machine.launch(100 * US)
            machine.copy(120 * US, 256_000_000, "device-to-device", pinned=True)
            if written:
                machine.launch(written * US, INDEX_COPY)

    finding = verdict(step).finding("growing-cache")
    assert (finding is not None) is told
    if finding is not None:
        assert finding.title.startswith("All of a tensor is copied")
        assert finding.remedies[0].action == "Write in place"
        assert finding.expected == pytest.approx(225 / (225 - 0.92 * 120), rel=0.05)


BLUESTEIN = "void multi_bluestein_fft<unsigned int, 125u, float>(kernel_arguments_t<unsigned int>)"
ARANGE = "void at::native::elementwise_kernel_with_index<int, at::native::arange_cuda_out(at::Tensor&)::lambda>(int)"
MASKED = "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<masked_fill_kernel>>(int)"
CELL = "void at::native::lstm_cell_forward<float, float, int, 1>(int)"


def test_transforms_of_a_length_with_a_large_prime_factor_are_padded() -> None:
    """Bluestein's algorithm takes some five times as long as one transform: 800 of 1,000 µs go away."""

    def step(machine: Machine) -> None:
        machine.launch(250 * US, BLUESTEIN, times=4)
        machine.launch(100 * US, GELU, times=2)

    found = verdict(step)
    assert found.verdict == "misaligned-shape"
    assert "large prime factor" in found.findings[0].title
    assert found.findings[0].expected == pytest.approx(1200 / 400, rel=0.05)


@pytest.mark.parametrize(("layers", "counted", "found"), [(12, True, True), (12, False, False), (2, True, False)])
def test_masks_that_each_layer_makes_of_positions_are_made_once(layers: int, counted: bool, found: bool) -> None:
    """Passes over all pairs follow the positions; a chain that counts none is a network's own arithmetic."""

    def step(machine: Machine) -> None:
        for _ in range(layers):
            if counted:
                machine.launch(2 * US, ARANGE)
            machine.launch(300 * US, GELU)
            machine.copy(200 * US, 64 << 20, "device-to-device", pinned=True)
            machine.launch(300 * US, MASKED)
            machine.launch(40 * US)
            machine.launch(250 * US, FLASH)
            machine.launch(60 * US)
            machine.launch(20 * US, GELU)
            machine.launch(60 * US)

    finding = verdict(step).finding("unfused-chain")
    assert (finding is not None and "makes its attention mask" in finding.title) == found
    if finding is not None and found:
        whole = layers * 1232
        assert finding.expected == pytest.approx(whole / (whole - (layers - 1) * 800), rel=0.05)


@pytest.mark.parametrize(("steps", "found"), [(48, True), (4, False)])
def test_a_recurrence_that_is_launched_step_by_step_is_one_call(steps: int, found: bool) -> None:
    """What stands between the cells of a time step is not launched by one call for all of them."""

    def step(machine: Machine) -> None:
        for _ in range(steps):
            machine.launch(5 * US, times=2)
            machine.launch(3 * US, ADD, times=3)
            machine.launch(3 * US, CELL)
        machine.launch(500 * US)

    finding = verdict(step).finding("launch-overhead")
    told = finding is not None and finding.remedies[0].action == "Run the whole recurrence in one call"
    assert told == found
    if finding is not None and found:
        assert finding.evidence["cells_per_step"] == steps


def test_gradients_of_a_grouped_convolution_are_one_pass_with_a_kernel_for_each_group() -> None:
    def step(machine: Machine) -> None:
        with machine.range("forward"):
            machine.launch(50 * US, times=3)
        with machine.range("backward"):
            machine.launch(60 * US, BF16_GEMM.replace("TNN", "NTT"))
            machine.launch(20 * US, "at::native::layer_norm_backward_kernel<float>")
            machine.launch(20 * US, "void wgrad_alg0_engine<float, 128, 5, 5, 3, 3, 3, false, 512>", times=128)

    assert verdict(step).finding("recomputation") is None


@pytest.mark.parametrize("passes", [1, 2, 3])
def test_losses_that_are_differentiated_one_by_one_go_back_over_one_graph(passes: int) -> None:
    """Twelve equal layers and a head for each loss, and then each loss's way back: two products a layer."""
    heads = [(number + 1, 1, 1) for number in range(passes)]

    def step(machine: Machine) -> None:
        with machine.range("forward"):
            machine.launch(50 * US, times=12)
            for head in heads:
                machine.launch(5 * US, grid=head)
        with machine.range("backward"):
            for head in heads:
                machine.launch(5 * US, BF16_GEMM.replace("TNN", "NTT"), grid=head)
                for _ in range(12):
                    machine.launch(60 * US, BF16_GEMM.replace("TNN", "NTT"))
                    machine.launch(20 * US, "at::native::layer_norm_backward_kernel<float>")
                    machine.launch(60 * US, BF16_GEMM.replace("TNN", "NTN"))

    found = verdict(step).finding("recomputation")
    assert (found is not None) is (passes > 1)
    if found is not None:
        assert found.evidence["backward_passes_per_step"] == pytest.approx(passes, abs=0.1)
        assert found.remedies[0].action == "Differentiate the sum"
        once = 12 * (50 + 140) + 10 * passes
        assert found.expected == pytest.approx((once + (passes - 1) * 12 * 140) / once, rel=0.1)


@pytest.mark.parametrize(
    ("first", "half", "times"), [(True, False, 1), (False, False, 1), (False, True, 1), (False, False, 4)]
)
def test_gradients_that_nobody_clears_are_added_to_those_of_the_last_step(first: bool, half: bool, times: int) -> None:
    """Two of three parts of a step: `first` is the first of its steps' passes, which finds cleared ones; where a part
    is used twice, half of its gradients are added; one that is run `times` times has as many of its first layer, and
    adds all that the first run does not hand over."""
    sizes = [(1, 1, 1), (4, 1, 1)]

    def step(machine: Machine) -> None:
        with machine.range("forward"):
            machine.launch(50 * US, times=24 * times)
        with machine.range("backward"):
            for layer in range(24 * times):
                machine.launch(60 * US, BF16_GEMM.replace("TNN", "NTT"))
                machine.launch(20 * US, "at::native::layer_norm_backward_kernel<float>")
                machine.launch(20 * US, BF16_GEMM.replace("TNN", "NTN"))
                if first or (half and layer % 2) or (times > 1 and layer < 24):
                    continue
                machine.launch(15 * US, ADD)
                machine.launch(2 * US, ADD, grid=sizes[layer % 2])
                if layer % 24 == 23:
                    machine.launch(9 * US, ADD, grid=(77, 1, 1))  # that of the words' or the places' vectors
        with machine.range("optimizer"):
            machine.launch(9 * US, FUSED, grid=(8, 1, 1))

    assert (verdict(step).finding("unused-gradients") is not None) is not (first or half or times > 1)


def test_sequences_with_masks_of_their_own_may_be_padded_and_nothing_is_said_of_how_much() -> None:
    """Eight masks of 640 × 640 before fused attention: a square of them would be one mask for all."""

    def step(machine: Machine) -> None:
        for _ in range(6):
            machine.launch(200 * US)
            machine.launch(10 * US, WHERE, grid=(8 * 640 * 640 // 512, 1, 1))
            machine.launch(90 * US, FLASH)

    found = verdict(step)
    assert (found.verdict, found.verdict_known) == ("padded-work", False)
    assert "train_sampling_strategy='group_by_length'" in found.findings[0].remedies[1].how
    assert found.findings[0].gain is None
    assert any("is_causal=True" in remedy.how for remedy in found.findings[0].remedies)
    assert found.findings[0].severity == "info"
    assert "not recorded" in found.headline


@pytest.mark.parametrize(
    ("mask", "padded"), [([64, 1, 1, 750], True), ([64, 16, 1, 750], True), ([64, 16, 750, 750], False)]
)
def test_a_mask_of_keys_hides_padding_whether_it_is_repeated_for_the_heads_or_not(
    mask: list[int], padded: bool
) -> None:
    """As `nn.MultiheadAttention` repeats a `key_padding_mask`; one of queries and keys for each head is a bias."""
    kernels, calls, ranges, now = [], [], [], 0
    for number in range(1, 13):
        shapes = json.dumps([*[[64, 16, 750, 64]] * 3, mask, [], []])
        ranges.append(operator(now, now + 3 * US, "aten::_scaled_dot_product_cudnn_attention", shapes=shapes))
        calls.append(launch(now + US, now + 2 * US, number))
        begin, now = now + 5 * US, now + 500 * US
        kernels.append(kernel(begin, now, "sdpa", correlation=number, full_name=FLASH, grid=(1056, 1, 1)))
        if number % 4 == 0:
            ranges.append(annotation(now - 2000 * US, now, "step"))
    timeline = program(kernels, calls, ranges)
    assert (diagnose(timeline, timeline.window()).finding("padded-work") is not None) is padded


@pytest.mark.parametrize(
    "name",
    [
        "void at::native::(anonymous namespace)::EmbeddingBag_updateOutputKernel_sum_mean<float, long>(long const*)",
        "void split_embedding_backward_codegen_rowwise_adagrad_unweighted_kernel_cta_per_row_1<float, float>(float*)",
        "void at::native::mbtopk::gatherTopK<float, unsigned int, 2>(at::cuda::detail::TensorInfo<float>)",
        "void at::native::mbtopk::computeBlockDigitCounts<float, unsigned int, unsigned int, 2>(unsigned int*)",
    ],
)
def test_rows_that_are_summed_as_they_are_read_and_selections_are_what_the_remedies_advise(name: str) -> None:
    def step(machine: Machine) -> None:
        machine.launch(100 * US, times=2)
        machine.launch(600 * US, name, times=3)

    assert verdict(step).finding("scattered-access") is None


def decoded(keys: Sequence[int], mask: list[int], queries: int = 1, rest_us: int = 100) -> Timeline:
    """A step for each of these lengths of a cache: other work, an attention of 300 µs, and a choice of the token."""
    kernels, calls, ranges, now, count = [], [], [], 0, 0
    for length in keys:
        begun = now
        tensors = [
            [32, 16, queries, 128],
            *[[32, 16, length, 128]] * 2,
            [length if side < 0 else side for side in mask],
        ]
        for name, shapes, duration in (
            *[(BF16_GEMM, json.dumps([[32, 2048], [2048, 2048]]), rest_us // 2 * US)] * 2,
            (FLASH, json.dumps([*tensors, [], []]), 300 * US),
            (ARGMAX, json.dumps([[32, 32_000], [], []]), 10 * US),
        ):
            count += 1
            ranges.append(operator(now, now + 3 * US, "aten::an_operator", shapes=shapes))
            calls.append(launch(now + US, now + 2 * US, count))
            begin, now = now + 5 * US, now + 5 * US + duration
            kernels.append(kernel(begin, now, "k", correlation=count, full_name=name, grid=FULL_GRID))
        ranges.append(annotation(begun, now, "step"))
    return program(kernels, calls, ranges)


@pytest.mark.parametrize(
    ("keys", "mask", "queries", "rest_us", "told"),
    [
        ([4096] * 4, [32, 1, 1, -1], 1, 100, True),
        ([4096] * 4, [1, 1, 1, -1], 1, 100, True),
        ([4096, 4097, 4098, 4099], [32, 1, 1, -1], 1, 100, False),  # a cache that grows
        ([4096] * 4, [32, 1, 1, 1], 1, 100, False),  # no mask over the keys
        ([4096] * 4, [1, 1, 4, -1], 4, 100, False),  # several queries
        ([256] * 4, [32, 1, 1, -1], 1, 100, False),  # too short to matter
        ([4096] * 4, [32, 1, 1, -1], 1, 2000, False),  # other work takes far longer
    ],
)
def test_masked_places_of_a_cache_of_one_length_are_read_and_nothing_is_said_of_how_many(
    keys: list[int], mask: list[int], queries: int, rest_us: int, *, told: bool
) -> None:
    timeline = decoded(keys, mask, queries, rest_us)
    found = diagnose(timeline, timeline.window())
    finding = found.finding("padded-work")
    assert (finding is not None) == told
    if finding is not None:
        assert (found.verdict, found.verdict_known, finding.severity) == ("padded-work", False, "info")
        assert (finding.evidence["length_count"], finding.evidence["sequences_count"]) == (4096, 32)
        assert finding.evidence["masked_share"] == pytest.approx(300 / 410)
        assert finding.expected is None
        assert finding.bound == pytest.approx(410 / 110, rel=0.1)  # without the attention
        assert "73.2 %" in found.headline


def test_rows_that_are_picked_and_added_for_most_of_the_time_are_scattered_access() -> None:
    def step(machine: Machine) -> None:
        machine.launch(100 * US, times=2)
        machine.launch(300 * US, PICK, times=3)
        machine.launch(300 * US, PUT, times=2)

    assert verdict(step).verdict == "scattered-access"


def test_an_optimizer_by_lists_can_be_fused() -> None:
    def step(machine: Machine) -> None:
        machine.launch(100 * US, times=4)
        for number in range(12):
            machine.launch(60 * US, LISTS.format(number % 3, number))

    found = verdict(step)
    assert found.verdict == "unfused-optimizer"
    assert "foreach" in found.findings[0].title


def test_clipping_a_table_chunk_by_chunk_beside_a_fused_optimizer_is_no_optimizer_by_lists() -> None:
    """The norm of a large tensor, and its scaling, take launches of several sizes: fifteen of each here."""

    def step(machine: Machine) -> None:
        machine.launch(100 * US, times=4)
        for number in range(30):
            machine.launch(30 * US, LISTS.format(1, number // 15), grid=(320 - 10 * number, 1, 1))
        machine.launch(200 * US, "multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata>")

    assert verdict(step).finding("unfused-optimizer") is None


def test_an_optimizer_with_a_group_for_each_tensor_gains_its_launches() -> None:
    def step(machine: Machine) -> None:
        machine.launch(100 * US, times=4)
        for number in range(240):
            machine.launch(2 * US, LISTS.format(number % 6, number % 6))
        machine.launch(2 * US, LISTS.format(1, 9))

    found = verdict(step).finding("unfused-optimizer")
    assert found.evidence["groups_per_step"] == 40, "one operation of something else divides no groups"
    assert found.remedies[0].action == "Put the parameters into few groups"
    assert found.expected > 1.5  # 0.6 of the time of its kernels is 0.1 of the step


def test_the_order_of_rows_in_the_file_changes_no_loop() -> None:
    """Copies have no row among the kernels, and must not count as the first of these."""
    machine = Machine()
    for _ in range(10):
        with machine.step():
            machine.launch(100 * US, times=4)
            machine.launch(5 * US, LISTS.format(1, 0))
            machine.launch(100 * US)
            for number in range(120):
                machine.launch(2 * US, NORM, grid=(1 + number % 7, 1, 1))
                machine.item()
    trace = machine.trace()
    lists_first = replace(trace, kernels=pl.concat([trace.kernels[4:], trace.kernels[:4]]))
    found, other = (judged(recorded) for recorded in (trace, lists_first))
    assert [(finding.id, finding.evidence) for finding in other.findings] == [
        (finding.id, finding.evidence) for finding in found.findings
    ]


@pytest.mark.parametrize(("kinds", "confidence"), [(1, "low"), (2, "medium")])
def test_products_that_take_longer_in_each_step_show_a_falling_clock(kinds: int, confidence: str) -> None:
    machine = Machine()
    for number in range(12):
        with machine.step():
            machine.launch((200 + 12 * number) * US, times=5)
            machine.launch((300 + 18 * number) * US, [BF16_GEMM, FLASH][kinds - 1], times=5 * (kinds - 1))
    found = judged(machine.trace()).finding("slowing-gpu")
    assert found.evidence["last_to_first_factor"] > 1.3
    assert found.confidence == confidence


@pytest.mark.parametrize("falls_at", [4, 6, 9, 12])
def test_a_clock_that_falls_at_one_moment_is_found(falls_at: int) -> None:
    """Before and after it, times vary by a percent. Two slow steps of fourteen may be slow by chance, one way in 91."""
    machine = Machine()
    for number in range(14):
        factor = (1.4 if number >= falls_at else 1.0) * (1 + 0.01 * (number * 5 % 3 - 1))
        with machine.step():
            machine.launch(int(200 * factor) * US, times=5)
            machine.launch(int(300 * factor) * US, FLASH, times=5)
    found = judged(machine.trace()).finding("slowing-gpu")
    assert (found is not None) is (falls_at < 12)
    if found is not None:
        slow = 14 - falls_at
        assert found.evidence["last_to_first_factor"] == pytest.approx(1.4, rel=0.02)
        assert found.expected == pytest.approx((falls_at + 1.4 * slow) / 14, rel=0.02)


def test_growing_work_of_a_training_is_no_falling_clock() -> None:
    """Products keep their grid of one block per multiprocessor; the passes beside them do not."""
    machine = Machine()
    for number in range(12):
        with machine.step():
            for name in (BF16_GEMM, FLASH, FLASH.replace("fprop", "bprop")):
                machine.launch((200 + 12 * number) * US, name, grid=(132, 1, 1), times=5)
                machine.launch((20 + number) * US, ADD, grid=(4096 + 256 * number, 1, 1))
    assert judged(machine.trace()).finding("slowing-gpu") is None


def test_products_of_more_rows_in_each_step_are_no_falling_clock() -> None:
    """Their names and grids stay the same; only the recorded shapes tell."""
    kernels, calls, ranges, now, gpu = [], [], [], 0, 0
    for step in range(12):
        begin, shapes = now, json.dumps([[4096 + 256 * step, 4096], [4096, 4096]])
        for _ in range(5):
            number = len(kernels)
            ranges.append(operator(now, now + 9 * US, "aten::mm", shapes=shapes))
            calls.append(launch(now + US, now + 5 * US, number))
            gpu = max(now + 7 * US, gpu + US)
            kernels.append(kernel(gpu, gpu + (320 + 20 * step) * US, BF16_GEMM, correlation=number, grid=(132, 1, 1)))
            now, gpu = now + 10 * US, gpu + (320 + 20 * step) * US
        ranges.append(annotation(begin, now, f"ProfilerStep#{step}"))
    profile = program(kernels, calls, ranges).trace
    assert judged(profile).finding("slowing-gpu") is None
    ranges = [{**row, "input_shapes": json.dumps([[4096, 4096], [4096, 4096]])} for row in ranges]
    assert judged(program(kernels, calls, ranges).trace).finding("slowing-gpu") is not None


def test_steps_of_random_lengths_do_not_show_a_falling_clock() -> None:
    machine = Machine()
    for length in (220, 330, 150, 290, 400, 180, 260, 280, 190, 420, 390, 200):  # the last third is longer by chance
        with machine.step():
            machine.launch(length * US, times=5)
            machine.launch(2 * length * US, FLASH, times=5)
    assert judged(machine.trace()).finding("slowing-gpu") is None


def test_kinds_of_products_that_slow_differently_do_not_show_a_falling_clock() -> None:
    machine = Machine()
    for number in range(12):
        with machine.step():
            machine.launch((300 + 3 * number) * US, times=5)
            machine.launch((300 + 60 * number) * US, FLASH, times=5)
    assert judged(machine.trace()).finding("slowing-gpu") is None


def test_passes_on_larger_grids_show_that_the_work_grows() -> None:
    machine = Machine()
    for number in range(12):
        with machine.step():
            machine.launch((200 + 12 * number) * US, times=5)
            machine.launch((200 + 12 * number) * US, ADD, grid=(4096 + 256 * number, 1, 1), times=5)
    assert judged(machine.trace()).finding("slowing-gpu") is None


@pytest.mark.parametrize(("length", "idle"), [(180, True), (360, False)])
def test_kernels_near_their_roof_are_not_to_be_counted_where_idle_time_is_what_is_left(length: int, idle: bool) -> None:
    """Products of 137 GFLOP take 180 µs at the practical roof of an H200; the host launches one every 1.15 of them."""
    kernels, calls, ranges, now = [], [], [], 0
    for step in range(6):
        begin = now
        for _ in range(8):
            number, shapes = len(kernels), json.dumps([[4096, 4096], [4096, 4096]])
            ranges.append(operator(now, now + 9 * US, "aten::mm", shapes=shapes))
            calls.append(launch(now + US, now + 5 * US, number))
            begins = now + 7 * US
            kernels.append(kernel(begins, begins + length * US, BF16_GEMM, correlation=number, grid=(132, 1, 1)))
            now += 115 * length * US // 100
        ranges.append(annotation(begin, now - US, f"ProfilerStep#{step}"))
    profile = program(kernels, calls, ranges).trace
    found = judged(replace(profile, capture=replace(profile.capture, devices=(H200,)))).finding("below-roof")
    assert found.evidence["idle_share"] == pytest.approx(0.13, abs=0.01)
    assert ("what is left is its idle time" in found.title) is idle
    assert (found.remedies[0].action == "Find out what the GPU waits for") is idle
    assert any("ncu" in remedy.how for remedy in found.remedies) is (found.evidence["above_roof_share"] >= 0.01)
    assert ("counters" in found.refute) is not idle


def test_nothing_is_critical_without_steps() -> None:
    machine = Machine()
    for name, length in ((BF16_GEMM, 100), (ADD, 300), (SOFTMAX, 310), (LAYER_NORM, 320), (ODD_GEMM, 90)):
        machine.launch(length * US, name)
    assert not judged(machine.trace()).coverage.steps
    assert all(finding.severity != "critical" for finding in judged(machine.trace()).findings)


@pytest.mark.parametrize(("steps", "severity"), [(1, "warning"), (2, "critical")])
def test_what_the_host_did_in_one_step_alone_is_not_critical(steps: int, severity: str) -> None:
    machine = Machine()
    for _ in range(steps):
        with machine.step():
            machine.think(300_000 * US)
            machine.launch(50 * US)
            machine.wait()
    found = judged(machine.trace())
    stall = found.finding("host-stall")
    assert found.coverage.steps == steps
    assert stall.severity == severity


FILL = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul>>(int)"
ADD_USED = "void at::native::(anonymous namespace)::sum_and_scatter<float, long>(long const*, float*, long)"
SGD = LISTS.format(2, 0)


@pytest.mark.parametrize(("used_blocks", "operations"), [(1_000, 1), (1_000, 2), (1_500_000, 1)])
def test_gradients_of_whole_tables_of_which_few_rows_are_used(used_blocks: int, operations: int) -> None:
    """A table of 256 million numbers: filling its gradient takes 220 µs and applying it 800 µs, beside 250 µs.

    Some optimizers apply it in several operations, whose kernels have the same short name.
    """

    def step(machine: Machine) -> None:
        machine.launch(100 * US, times=2)
        machine.launch(220 * US, FILL, grid=(250_000, 1, 1))
        machine.launch(50 * US, ADD_USED, grid=(used_blocks, 1, 1))
        with machine.range("Optimizer.step#SGD.step"):
            for number in range(operations):
                machine.launch(80 * US, LISTS.format(2, number), grid=(400, 1, 1), times=10)
            machine.copy(2 * US, 4, "device-to-device", pinned=True)  # of which no number of threads is known

    found = verdict(step)
    finding = found.finding("scattered-access")
    if used_blocks > 1_000_000:
        assert finding is None
        return
    assert found.verdict == "scattered-access"
    assert finding.evidence["used_rows_share"] < 0.01
    assert finding.expected == pytest.approx((470 + operations * 800) / 250, rel=0.15)
    assert "sparse=True" in finding.remedies[0].how
    assert "tied" in finding.remedies[0].how
    assert "Freeze the table" in finding.refute


@pytest.mark.parametrize("grids", [True, False])
def test_scattered_rows_are_told_beside_gradients_that_cannot_be_judged(grids: bool) -> None:
    """Without grids, how many rows of the gradient are used is unknown; with them, it is most."""

    def step(machine: Machine) -> None:
        machine.launch(100 * US, times=2)
        machine.clear(220 * US)
        machine.launch(50 * US, ADD_USED, grid=(1_500_000, 1, 1))
        machine.launch(300 * US, PICK, times=3)
        machine.launch(300 * US, PUT, times=2)
        with machine.range("Optimizer.step#SGD.step"):
            machine.launch(80 * US, SGD, grid=(400, 1, 1), times=10)

    profile = record(step)
    if not grids:
        sizes = pl.col("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")
        profile = replace(profile, kernels=profile.kernels.with_columns(pl.when(False).then(sizes)))
    finding = judged(profile).finding("scattered-access")
    assert finding.evidence["affected_ns"] == STEPS * 5 * 300 * US
    assert "used_rows_share" not in finding.evidence


def test_rows_that_a_product_takes_and_makes_are_needed_as_they_are() -> None:
    def step(machine: Machine) -> None:
        for _ in range(4):
            machine.launch(600 * US, PICK)
            machine.launch(100 * US, times=2)
            machine.launch(500 * US, PUT)

    assert verdict(step).finding("scattered-access") is None


NARROW = "nvjet_sm90_tst_256x8_64x6_2x1_v_bz_TNT"
A_MATRIX, A_ROW = (16, 2048, 1), (32_768, 1, 1)


@pytest.mark.parametrize(
    ("grid", "product", "product_us", "behind", "copied"),
    [
        (A_MATRIX, NARROW, 37, ADD, True),
        (A_ROW, NARROW, 37, ADD, False),  # rows of activations
        (A_MATRIX, BF16_GEMM, 37, ADD, False),  # many rows for each matrix
        (A_MATRIX, NARROW, 8, ADD, False),  # shorter than reading a copy takes
        (A_MATRIX, NARROW, 90, ADD, False),  # longer
        (A_MATRIX, NARROW, 37, SOFTMAX, False),  # keys and values of attention that is written out
    ],
)
def test_matrices_that_are_copied_for_each_row_are_known_by_their_size_without_shapes(
    grid: tuple[int, int, int], product: str, product_us: int, behind: str, *, copied: bool
) -> None:
    """16 matrices of 2,048² in bf16, three times a layer, the last one also in another layout; products read them."""

    def step(machine: Machine) -> None:
        for _ in range(8):
            machine.launch(40 * US)
            machine.launch(55 * US, PICK, grid, times=3)
            machine.launch(product_us * US, product, times=2)
            machine.launch(2 * US, behind)
            machine.launch(180 * US, DIRECT_COPY, (131_072, 1, 1))
            machine.launch(product_us * US, product)
            machine.launch(2 * US, behind)

    finding = verdict(step).finding("scattered-access")
    if not copied:
        assert finding is None or "A matrix" not in finding.title
        return
    assert verdict(step).findings[0] == finding
    assert finding.title.startswith("A matrix is copied for each row")
    kept = 40 + 3 * 37 + 2 * 2
    assert finding.expected == pytest.approx((kept + 3 * 55 + 180) / kept, rel=0.1)


@pytest.mark.parametrize(("read_back", "sent_bytes"), [(False, 4096), (True, 4096), (False, 4)])
def test_passes_over_inputs_of_their_own_could_be_one_batch(read_back: bool, sent_bytes: int) -> None:
    """If the host reads back the result of a pass, the next one may need it; a single number is no input."""
    apart = not read_back and sent_bytes > 4

    def step(machine: Machine) -> None:
        for _ in range(16):
            machine.copy(2 * US, sent_bytes, pinned=True)
            machine.launch(3 * US, ADD, grid=(4, 1, 1), times=30)
            if read_back:
                machine.item()

    finding = verdict(step).finding("launch-overhead")
    assert finding.evidence.get("passes_per_step") == (16 if apart else None)
    if apart:
        assert "16 equal passes" in finding.remedies[0].how
        # A sixteenth of the launches, and starts on the GPU that are not all as short: at most 16 times as fast.
        assert 8 < finding.expected <= 16


@pytest.mark.parametrize("before", [0, 1, 8])
def test_layers_that_are_sent_tables_behind_the_forward_pass_are_no_passes(before: int) -> None:
    """As those of sharded training, which sends a table of sizes for the gradients of each layer."""

    def step(machine: Machine) -> None:
        for _ in range(before):
            machine.launch(3 * US, grid=(4, 1, 1), times=2)
            machine.launch(3 * US, GELU, grid=(4, 1, 1), times=28)
        for _ in range(8):
            machine.copy(2 * US, 200_000, pinned=True)
            machine.launch(3 * US, grid=(4, 1, 1), times=4)
            machine.launch(3 * US, GELU, grid=(4, 1, 1), times=26)

    passes = verdict(step).finding("launch-overhead").evidence.get("passes_per_step")
    assert passes == (8 if before < 8 else None)


@pytest.mark.parametrize(
    ("joined", "drawn", "cached"),
    [(False, False, False), (True, False, False), (True, True, False), (True, False, True)],
)
def test_passes_whose_results_are_put_together_could_be_one_batch(joined: bool, drawn: bool, cached: bool) -> None:
    """Without that, a pass may need the result of the one before it, as tokens and the times of a sampler do.

    So does a pass that draws what the next one starts from, as a rollout does, or that chooses a token and writes rows
    into the cache that it attends to.
    """

    def step(machine: Machine) -> None:
        for _ in range(8):
            machine.launch(3 * US, PICK, grid=(3, 1, 1))
            for _ in range(6):
                for place, name in enumerate((BF16_GEMM, INDEX_COPY if cached else GELU, FLASH, LAYER_NORM)):
                    machine.launch(3 * US, name, grid=(2 + place, 1, 1))
            machine.launch(3 * US, DRAWING if drawn else SOFTMAX, grid=(5, 1, 1))
            machine.launch(3 * US, ARGMAX, grid=(5, 1, 1))
        if joined:
            machine.launch(3 * US, CAT, grid=(6, 1, 1))

    finding = verdict(step).finding("launch-overhead")
    batch = joined and not drawn and not cached
    assert finding.evidence.get("passes_per_step") == (8 if batch else None)
    assert finding.remedies[0].action.startswith("Run the passes" if batch else "Replay the step")
    if batch:
        assert "if none needs the result" in finding.remedies[0].how
        assert 5 < finding.expected <= 8


@pytest.mark.parametrize(("queries", "passes"), [(64, 8), (1, None)])
def test_passes_that_attend_with_one_query_each_make_the_token_of_the_next(queries: int, passes: int | None) -> None:
    """Steps of eight passes of six layers, each of which ends in a choice, and a concatenation of the results."""
    shapes = json.dumps([[8, 16, queries, 64], *[[8, 16, 512, 64]] * 2, [], []])
    one_pass = [*[BF16_GEMM, FLASH, LAYER_NORM, GELU] * 6, SOFTMAX, ARGMAX]
    kernels, calls, ranges, now = [], [], [], 0
    for _ in range(3):
        begun = now
        for name in (*one_pass * 8, CAT):
            now, number = now + 10 * US, len(kernels) + 1
            ranges.append(operator(now, now + 5 * US, "aten::an_operator", shapes=shapes if name is FLASH else "[]"))
            calls.append(launch(now + US, now + 4 * US, number))
            kernels.append(kernel(now + 5 * US, now + 8 * US, "k", correlation=number, full_name=name, grid=(4, 1, 1)))
        now += 10 * US
        ranges.append(annotation(begun + US, now, "step"))
    timeline = program(kernels, calls, ranges)
    finding = diagnose(timeline, timeline.window()).finding("launch-overhead")
    assert finding.evidence.get("passes_per_step") == passes


HEAD_PRODUCT, SMALL, LARGE = "nvjet_sm90_tst_160x256_64x4_2x1_v_bz_coopA_TNN", (2, 1, 1), (65_536, 1, 1)


@pytest.mark.parametrize(
    ("reader", "grid", "trains", "found"),
    [
        (DIRECT_COPY, SMALL, False, True),
        (DIRECT_COPY, LARGE, False, False),  # all of it is read
        (SOFTMAX, SMALL, False, False),  # a reduction reads more than it writes
        (DIRECT_COPY, SMALL, True, False),
        (None, SMALL, False, False),  # what becomes of the result is not in the profile
    ],
)
def test_a_product_of_which_a_slice_is_copied_is_computed_for_nothing(
    reader: str | None, grid: tuple[int, int, int], trains: bool, found: bool
) -> None:
    def step(machine: Machine) -> None:
        for _ in range(8):
            machine.launch(200 * US)
            machine.launch(20 * US, GELU)
        machine.launch(1600 * US, HEAD_PRODUCT, grid=(132, 1, 1))
        if reader is not None:
            machine.launch(2 * US, reader, grid=grid)
            machine.launch(2 * US, SOFTMAX, grid=SMALL)
        if trains:
            machine.launch(20 * US, "at::native::layer_norm_backward_kernel<float>")

    diagnosis = verdict(step)
    assert (diagnosis.verdict == "unused-results") is found
    if found:
        assert diagnosis.findings[0].expected == pytest.approx(3400 / 1880, rel=0.05)


@pytest.mark.parametrize(("product", "found"), [(HEAD_PRODUCT, True), (FP32_GEMM, False)])
def test_the_size_of_a_result_is_told_by_the_rate_of_its_products_format(product: str, found: bool) -> None:
    """In fp32 the same time makes a fifteenth of the numbers, of which the copy reads more than a slice."""

    def step(machine: Machine) -> None:
        for _ in range(8):
            machine.launch(200 * US)
            machine.launch(20 * US, GELU)
        machine.launch(600 * US, product, grid=(4, 1, 1))
        machine.launch(2 * US, DIRECT_COPY, grid=(16, 1, 1))
        machine.launch(2 * US, SOFTMAX, grid=SMALL)

    assert (verdict(step).finding("unused-results") is not None) == found


@pytest.mark.parametrize(("sliced", "found"), [("aten::slice", True), ("aten::view", False)])
@pytest.mark.parametrize("read", [[16, 2], [16, 512, 4000]])
def test_shapes_tell_whether_more_than_a_slice_of_a_result_is_read(sliced: str, found: bool, read: list[int]) -> None:
    kernels, calls, ranges, now = [], [], [], 0
    for number in range(0, 9, 3):
        began = now
        for place, (name, shapes, length) in enumerate(
            (
                ("aten::mm", [[8192, 64], [64, 64]], 500),
                ("aten::mm", [[8192, 64], [64, 32_000]], 1000),
                ("aten::copy_", [read], 2),
            )
        ):
            if place == 2:
                ranges.append(operator(now, now + US, sliced, shapes=json.dumps([[16, 512, 32_000], [], []])))
                now += US
            ranges.append(operator(now, now + 3 * US, name, shapes=json.dumps(shapes)))
            calls.append(launch(now + US, now + 2 * US, number + place + 1))
            full_name = BF16_GEMM if place < 2 else DIRECT_COPY
            short, begin = "gemm" if place < 2 else "copy", now + 5 * US
            now = begin + length * US
            kernels.append(
                kernel(begin, now, short, correlation=number + place + 1, full_name=full_name, grid=(1056, 1, 1))
            )
        ranges.append(annotation(began, now, "step"))
        now += US
    timeline = program(kernels, calls, ranges)
    finding = diagnose(timeline, timeline.window()).finding("unused-results")
    assert (finding is not None) is (found and read == [16, 2])


SCORES = [16, 512, 32_000]
OF_PLACES = ("aten::add aten::slice", ([[16, 8]], [[16, 512]]), DIRECT_COPY, 2)


@pytest.mark.parametrize(
    ("after", "found"),
    [
        ([OF_PLACES], True),  # of the likeliest word of each place
        ([("aten::topk aten::select", ([[16, 32_000]], [SCORES]), DIRECT_COPY, 2)], True),  # of their chances
        ([("aten::add", [[16, 8]], DIRECT_COPY, 2)], False),  # nothing shows a slice
        ([OF_PLACES, ("aten::add", [[16, 512]], DIRECT_COPY, 2)], False),  # all of them are read
        ([("aten::add aten::slice", ([[16, 400]], [[16, 512]]), DIRECT_COPY, 2)], False),  # most of it
        ([], False),
    ],
)
def test_a_slice_may_be_taken_after_passes_over_all_rows_of_scores(
    after: list[tuple[str, object, str, int]], found: bool
) -> None:
    """The passes are for nothing as well, and so are those of a turn before, after which the model runs again."""
    model = [("aten::mm", [[8192, 64], [64, 64]], BF16_GEMM, 700)]
    scores = [
        ("aten::mm", [[8192, 64], [64, 32_000]], BF16_GEMM, 300),
        ("aten::copy_", [SCORES, SCORES, []], DIRECT_COPY, 100),
        ("aten::_softmax", [SCORES, [], []], SOFTMAX, 100),
        ("aten::argmax", [SCORES, [], []], ARGMAX, 100),
    ]
    finding = _picking([*model, *scores, *after, *model, *scores, *after]).finding("unused-results")
    assert (finding is not None) is found
    if finding is not None:
        assert finding.evidence["unread_products_per_step"] == 2
        assert finding.expected == pytest.approx(1302 / (702 + 0.05 * 600), rel=0.05)


def _picking(work: list[tuple[str, object, str, int]], types: str | None = None) -> Diagnosis:
    """Three steps of this work: operator (and the one around it, after a blank), shapes, kernel and microseconds.

    Shapes are a pair where those of the operator around it are others.
    """
    kernels, calls, ranges, copies, now = [], [], [], [], 0
    for _ in range(3):
        began = now
        for named, given, full_name, length in work:
            name, _, outer = named.partition(" ")
            number, short = len(calls) + 1, full_name.rpartition("::")[2].partition("<")[0]
            shapes, around = given if isinstance(given, tuple) else (given, given)
            if outer:
                ranges.append(operator(now, now + 3 * US, outer, shapes=json.dumps(around)))
            ranges.append(operator(now, now + 3 * US, name, shapes=json.dumps(shapes)) | {"input_types": types})
            calls.append(launch(now + US, now + 2 * US, number))
            begin = now + 5 * US
            now = begin + length * US
            if full_name == READBACK:
                copies.append(copy(begin, now, READBACK, 1 << 25, correlation=number))
                continue
            kernels.append(kernel(begin, now, short, correlation=number, full_name=full_name, grid=FULL_GRID))
        ranges.append(annotation(began, now, "step"))
        now += US
    timeline = program(kernels, calls, ranges, copies=copies)
    return diagnose(timeline, timeline.window())


READBACK = "device-to-host"
GROUPED_CONVOLUTION = "void cudnn::cnn::conv2d_grouped_direct_kernel<false>(int)"
SUM = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(int)"
ROWS_PICKED = "void at::native::vectorized_gather_kernel<16, long>(char*)"
#: 8,192 rows of 256 numbers, 16 rows picked for each of them.
PICKED = ("aten::gather", [[8192, 256], [], [131_072, 256], [], [131_072, 256]], ROWS_PICKED, 300)
OF_PICKED = ("aten::addmm", [[256], [131_072, 256], [256, 256], [], []], BF16_GEMM, 500)
SUMMED = ("aten::sum", [[8192, 16, 256], []], SUM, 200)


ENLARGE = "void at::native::upsample_bilinear2d_nhwc_out_frame<float, float>(float, float, bool)"


@pytest.mark.parametrize(
    ("kinds", "between", "found"),
    [
        (32, (), True),
        (256, (), False),  # as many channels
        (32, (("aten::relu_", [[2, 256, 128, 128]], GELU, 5),), False),  # not linear
        (32, (("aten::cat", [[[2, 256, 128, 128], [2, 64, 128, 128]], []], CAT, 5),), False),  # read whole
    ],
)
def test_maps_are_enlarged_before_a_convolution_that_leaves_few_of_their_channels(
    kinds: int, between: tuple[tuple[str, object, str, int], ...], found: bool
) -> None:
    """The convolution first: an eighth of the channels to enlarge, and a sixteenth of the places to multiply."""
    small, large = [2, 256, 32, 32], [2, 256, 128, 128]
    diagnosis = _picking(
        [
            ("aten::convolution", [small, [256, 256, 3, 3]], CONVOLUTION, 400),
            ("aten::upsample_bilinear2d", [small, [], [], [], []], ENLARGE, 800),
            ("aten::copy_", [large, large, []], CAST, 100),
            *between,
            ("aten::convolution", [large, [kinds, 256, 1, 1]], CONVOLUTION, 100),
        ]
    )
    assert ("enlarged" in diagnosis.headline) is found
    if found:
        saved = 900 * (1 - 1 / 8) + 100 * (1 - 1 / 16)
        assert diagnosis.verdict == "memory-bandwidth"
        assert diagnosis.findings[0].expected == pytest.approx(1420 / (1420 - saved), rel=0.05)  # with 20 µs of gaps


def test_shapes_are_looked_up_as_often_for_many_sizes_of_enlarged_maps_as_for_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded, lookups = Program.recorded, []

    def counted(self: Program, column: Literal["input_shapes", "input_types"]) -> pl.Series:
        lookups.append(column)
        return recorded(self, column)

    monkeypatch.setattr(Program, "recorded", counted)
    counts = []
    for sizes in (2, 20):
        lookups.clear()
        diagnosis = _picking(
            [
                work
                for side in range(32, 32 + sizes)
                for work in (
                    ("aten::upsample_bilinear2d", [[2, 256, side, side], [], []], ENLARGE, 800),
                    ("aten::convolution", [[2, 256, 4 * side, 4 * side], [32, 256, 1, 1]], CONVOLUTION, 100),
                )
            ]
        )
        assert "enlarged" in diagnosis.headline
        counts.append(len(lookups))
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    ("reading", "found"),
    [
        (("aten::mean", [[8192, 64]], DIRECT_COPY, 5), True),
        (("aten::_log_softmax", [[8192, 32_000], [], []], LOG_SOFTMAX, 5), False),
        (("aten::cat", [[[16, 512, 32_000], [16, 512, 32_000]], []], CAT, 5), False),  # in a list of tensors
        (("aten::copy_ aten::slice", [[16, 512, 32_000], [16, 512, 32_000]], DIRECT_COPY, 5), False),
    ],
)
def test_in_training_a_product_whose_result_nothing_reads_is_needless(
    reading: tuple[str, object, str, int], found: bool
) -> None:
    update = ("aten::_fused_adamw_", [[], [], []], FUSED, 50)
    hidden, scores = [[8192, 64], [64, 64]], [[8192, 64], [64, 32_000]]
    work = [("aten::mm", hidden, BF16_GEMM, 700), ("aten::mm", scores, BF16_GEMM, 300), reading, update]
    finding = _picking(work).finding("unused-results")
    assert (finding is not None) is found
    if finding is not None:
        assert "nothing reads" in finding.title
        assert finding.expected == pytest.approx(1055 / 755, rel=0.05)


@pytest.mark.parametrize(
    ("work", "found"),
    [
        ([PICKED, OF_PICKED, SUMMED], True),
        ([PICKED, ("aten::copy_ aten::_to_copy", [[131_072, 256]] * 2, DIRECT_COPY, 200), OF_PICKED, SUMMED], True),
        # As many rows are picked as the table has.
        ([(PICKED[0], [[131_072, 256], [], [131_072, 256], [], []], *PICKED[2:]), OF_PICKED, SUMMED], False),
        # The product may read what was computed before the pick, as the filter of a convolution over distances.
        ([("aten::exp", [[131_072, 256]], GELU, 200), PICKED, OF_PICKED, SUMMED], False),
        ([PICKED, OF_PICKED, ("aten::mul", [[131_072, 256]] * 2, GELU, 200), SUMMED], False),
        # A product of numbers that were picked one by one, and one with a matrix for each group of rows.
        ([(*PICKED[:2], "void at::native::_scatter_gather_elementwise_kernel<128, 8>()", 300), OF_PICKED], False),
        ([PICKED, ("aten::_grouped_mm", [[131_072, 256], [8, 256, 256], [8]], BF16_GEMM, 500), SUMMED], False),
        # A product that reads what an earlier one left.
        (
            [
                ("aten::mm", [[131_072, 64], [64, 256]], BF16_GEMM, 100),
                PICKED,
                ("aten::mm", [[131_072, 256], [256, 128]], BF16_GEMM, 500),
                SUMMED,
            ],
            False,
        ),
        (
            [
                ("aten::convolution", [[131_072, 1, 16], [16, 1, 1]], GROUPED_CONVOLUTION, 100),
                PICKED,
                OF_PICKED,
                SUMMED,
            ],
            False,
        ),
        # Columns of a square table.
        ([("aten::index_select", [[256, 256], [], [131_072]], ROWS_PICKED, 300), OF_PICKED, SUMMED], False),
        # Much wider results take longer to pick than their products take.
        ([PICKED, ("aten::mm", [[131_072, 256], [256, 2048]], BF16_GEMM, 1000), SUMMED], False),
    ],
)
def test_products_of_rows_that_were_picked_are_repeated(
    work: list[tuple[str, object, str, int]], *, found: bool
) -> None:
    finding = _picking(work).finding("recomputation")
    assert (finding is not None) is found
    if finding is not None:
        assert finding.evidence["picked_rows_factor"] == 16
        assert finding.evidence["saved_ns"] == pytest.approx(3 * 500 * US * 15 / 16, rel=0.01)


#: All of 65,536 rows of 128 numbers, of which 4,096 are picked.
CONVERTED = ("aten::copy_ aten::_to_copy", [[65_536, 128], [65_536, 128], []], DIRECT_COPY, 300)
SCALED = ("aten::div", [[65_536, 128], []], GELU, 300)
DRAWN = ("aten::index", [[65_536, 128], []], ROWS_PICKED, 20)
READ = ("aten::mm", [[4096, 128], [128, 128]], BF16_GEMM, 300)
SQUARE = ("aten::mm", [[128, 128], [128, 128]], BF16_GEMM, 300)
CAST_WEIGHT = ("aten::copy_ aten::_to_copy", [[128, 128], [128, 128], []], DIRECT_COPY, 5)
SELECTED = ("aten::index_select", [[65_536, 128], [], [127]], ROWS_PICKED, 20)
ADDED = ("aten::add", [[65_536, 128], [65_536, 128], []], GELU, 300)


@pytest.mark.parametrize(
    ("work", "found"),
    [
        ([CONVERTED, SCALED, DRAWN, READ], True),
        ([CONVERTED, SCALED, DRAWN, READ] * 4, True),  # minibatches
        ([CONVERTED, SCALED, *[DRAWN, READ] * 8], True),
        ([CONVERTED, SCALED, *[DRAWN, READ] * 16], False),  # in all, every row is picked
        ([CONVERTED, SCALED, DRAWN, ("aten::mm", [[49_152, 128], [128, 128]], BF16_GEMM, 300)], False),
        ([CONVERTED, SCALED, DRAWN, READ, ("aten::sum", [[65_536, 128], []], SUM, 100)], False),  # all rows are read
        ([CONVERTED, SCALED, DRAWN, READ, ("aten::add", [[65_536, 128], []], GELU, 300)], False),
        ([CONVERTED, SCALED, DRAWN, READ, ("aten::cat", [[[65_536, 128], [8, 128]], []], DIRECT_COPY, 300)], False),
        ([CONVERTED, SCALED, ("aten::select", *SCALED[1:]), DRAWN, READ], False),  # a slice is read as well
        ([("aten::mul_", *SCALED[1:]), DRAWN, READ], False),  # a table that is kept
        ([("aten::copy_", *CONVERTED[1:]), DRAWN, READ], False),
        ([CONVERTED, SCALED, DRAWN, READ, ("my::kernel", [], GELU, 5)], True),
        # The next product tells how many rows were picked by its first matrix, not by its weight.
        ([CONVERTED, SCALED, DRAWN, ("aten::mm", [[131_072, 128], [128, 128]], BF16_GEMM, 300)], False),
        ([CONVERTED, SCALED, DRAWN, ("aten::addmm", [[128], [131_072, 128], [128, 128]], BF16_GEMM, 300)], False),
        ([CONVERTED, SCALED, DRAWN, ("aten::mm", [[65_536, 127], [127, 128]], BF16_GEMM, 300)], False),  # columns
        ([CONVERTED, SCALED, DRAWN, ("aten::mm", [[128, 128], [128, 131_072]], BF16_GEMM, 300)], False),
        ([CONVERTED, SCALED, DRAWN, CAST_WEIGHT, ("aten::mm", [[131_072, 128], [128, 128]], BF16_GEMM, 300)], False),
        ([CONVERTED, SCALED, DRAWN, CAST_WEIGHT, READ], True),
        ([CONVERTED, SCALED, DRAWN, ("aten::cat", [[[4096, 128]] * 2, []], DIRECT_COPY, 300), READ], False),
        ([CONVERTED, SCALED, DRAWN, ("aten::slice", [[131_072, 128], []], DIRECT_COPY, 1), READ], False),  # in parts
        ([("aten::relu", [[4096, 128]], GELU, 5), CONVERTED, SCALED, DRAWN, READ], False),  # it may read that
        # The dimension of a selection is not recorded: the next product has to tell it.
        ([CONVERTED, SCALED, SELECTED, ("aten::mm", [[65_536, 127], [127, 128]], BF16_GEMM, 300)], False),
        ([CONVERTED, SCALED, SELECTED, SUMMED], False),
        ([CONVERTED, SCALED, (SELECTED[0], [[65_536, 128], [], [4096]], *SELECTED[2:]), READ], True),
        ([CONVERTED, SCALED, (SELECTED[0], [[65_536, 128], [], [128]], *SELECTED[2:]), SQUARE], False),
        # State that is kept out of place, and what is added to it.
        ([SCALED, ADDED, DRAWN, READ], False),
        ([ADDED, DRAWN, READ], False),
        ([SCALED, DRAWN, READ], False),
        ([CONVERTED, ADDED, DRAWN, READ], False),
        ([CONVERTED, SCALED, CONVERTED, DRAWN, READ], False),  # back to the type of the state
        ([CONVERTED, SCALED, DRAWN, READ, DRAWN, READ, ("aten::mul", [[65_536, 128], [65_536, 1]], SUM, 300)], False),
        ([CONVERTED, SCALED, DRAWN, READ, (*CONVERTED[:2], READBACK, 100)], False),  # all rows go to the host
        # Nothing to pick from.
        ([("aten::div", [[0, 128], []], GELU, 5), ("aten::index", [[0, 128], []], ROWS_PICKED, 5), READ], False),
    ],
)
def test_passes_over_rows_that_are_not_picked_are_unread(
    work: list[tuple[str, object, str, int]], *, found: bool
) -> None:
    finding = _picking(work).finding("unused-results")
    assert (finding is not None) is found
    if finding is not None:
        picks = sum(part[0] in (DRAWN[0], SELECTED[0]) for part in work) // sum(part == SCALED for part in work)
        spent = 3 * 300 * US * sum(part in (CONVERTED, SCALED) for part in work)
        assert finding.evidence["read_share"] == picks / 16
        assert finding.evidence["saved_ns"] == pytest.approx(spent * (1 - picks / 16), rel=0.01)


@pytest.mark.parametrize(("source", "found"), [("unsigned char", True), ("float", False)])
def test_a_copy_to_the_same_type_may_be_of_state_that_is_kept(source: str, *, found: bool) -> None:
    diagnosis = _picking([CONVERTED, SCALED, DRAWN, READ], json.dumps(["float", source, "Scalar"]))
    assert (diagnosis.finding("unused-results") is not None) is found


@pytest.mark.parametrize(("launches", "crowded"), [(4, True), (40, False)])
def test_a_host_that_waits_after_every_few_launches_is_told_so_before_its_pace(launches: int, crowded: bool) -> None:
    """Kernels are shorter than their launches: the waits find the GPU idle here, and would not without a profiler."""

    def step(machine: Machine) -> None:
        for _ in range(12):
            machine.launch(4 * US, times=launches)
            machine.wait()

    diagnosis = verdict(step)
    assert diagnosis.verdict == ("host-sync" if crowded else "launch-overhead")
    assert ("never gets ahead" in diagnosis.findings[0].title) is crowded


@pytest.mark.parametrize(("pause", "verdict_"), [(1500, "host-stall"), (0, "launch-overhead")])
def test_one_long_pause_is_named_before_the_pace_of_the_launches_around_it(pause: int, verdict_: str) -> None:
    def step(machine: Machine) -> None:
        machine.think(pause * US)
        machine.launch(3 * US, times=300)
        machine.wait()

    assert verdict(step).verdict == verdict_


FLOAT_COPY = "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(int), float>(int, float)"


@pytest.mark.parametrize(
    ("product_us", "passes", "found"),
    [
        (400, (FLOAT_COPY, FLOAT_COPY, LOG_SOFTMAX), True),
        (4000, (FLOAT_COPY, FLOAT_COPY, LOG_SOFTMAX), False),  # a small part of the step, as in any training
        (400, (LOG_SOFTMAX,), False),  # nothing but the loss itself
    ],
)
def test_scores_that_go_through_memory_beside_their_log_softmax_are_an_unfused_loss(
    product_us: int, passes: tuple[str, ...], found: bool
) -> None:
    def step(machine: Machine) -> None:
        for _ in range(4):
            machine.launch(product_us * US)
            machine.launch(20 * US, GELU)
        for name in passes:
            machine.launch(400 * US, name)
        machine.launch(2 * US, PICK)

    diagnosis = verdict(step)
    assert (diagnosis.verdict == "unfused-chain") is found
    if found:
        assert "loss" in diagnosis.findings[0].title
        assert "cross_entropy" in diagnosis.findings[0].remedies[0].how
        # Both copies go away, and the log-softmax reads half of the bytes.
        assert diagnosis.findings[0].expected == pytest.approx(2880 / (2880 - 800 - 160), rel=0.05)


LONG_SORT = (
    "void at_cuda_detail::cub::detail::radix_sort::DeviceSegmentedRadixSortKernel<at_cuda_detail::cub::detail::radix::"
    "policy_hub<float, long, int>, false>(int)"
)


@pytest.mark.parametrize("behind", [True, False])
def test_passes_over_sorted_numbers_go_with_the_sort(behind: bool) -> None:
    """A selection of the largest counts what a sort moves seven times over; what then follows goes over a few."""

    def step(machine: Machine) -> None:
        for _ in range(4):
            machine.launch(500 * US)
        if not behind:
            machine.launch(200 * US, ADD)
            machine.launch(500 * US)
        machine.launch(350 * US, LONG_SORT, times=4)
        if behind:
            machine.launch(200 * US, ADD)
            machine.launch(500 * US)

    found = verdict(step).finding("scattered-access")
    assert "Select the largest" in found.remedies[0].action
    step_us, sort_us = 2500 + 200 + 1400, 1400
    saved = sort_us * 6 / 7 + (200 if behind else 0)
    assert found.expected == pytest.approx(step_us / (step_us - saved), rel=0.04)


@pytest.mark.parametrize("name", ["float", "unsigned int"])
def test_a_programs_own_sort_is_needed_and_no_scattered_access(name: str) -> None:
    def step(machine: Machine) -> None:
        machine.launch(100 * US, "build_bvh(Node*, unsigned int const*, int)")
        machine.launch(
            300 * US, f"void cub::DeviceRadixSortOnesweepKernel<Policy800, false, {name}, int>(int)", times=4
        )

    assert verdict(step).finding("scattered-access") is None


def test_a_sort_of_integers_counts_only_beside_rows_that_are_gathered() -> None:
    sort = "void at_cuda_detail::cub::DeviceRadixSortOnesweepKernel<Policy800, false, long, long>(int)"

    def step(machine: Machine, gathers: int) -> None:
        machine.launch(100 * US, ADD)
        machine.launch(300 * US, sort, times=4)
        machine.launch(300 * US, PICK, times=gathers)

    assert verdict(lambda machine: step(machine, 0)).finding("scattered-access") is None
    assert verdict(lambda machine: step(machine, 1)).finding("scattered-access") is not None


TF32_CONVOLUTION = "sm90_xmma_fprop_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x32_cudnn"
FP32_ATTENTION = "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float>::Params)"
TF32_GEMM = "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32_stage3_warpsize2x2x1_tensor16x8x8_kernel"


@pytest.mark.parametrize(
    ("others", "found"),
    [
        ((), True),
        ((TF32_GEMM,) * 5, False),  # TF32 of products is a choice
        ((*(TF32_GEMM,) * 5, FP32_GEMM), True),  # unless others have no TF32: they are convolutions of 1×1
        ((*(TF32_GEMM,) * 15, FP32_GEMM), False),  # more than networks have for each other convolution
    ],
)
def test_convolutions_in_the_default_format_between_passes_in_fp32_can_be_narrower(
    others: tuple[str, ...], found: bool
) -> None:
    def step(machine: Machine) -> None:
        for _ in range(8):
            machine.launch(300 * US, TF32_CONVOLUTION)
            machine.launch(100 * US, LAYER_NORM)
            machine.launch(100 * US, ADD)
        for name in others:
            machine.launch(700 * US if name == TF32_GEMM else 50 * US, name)

    diagnosis = verdict(step)
    assert (diagnosis.verdict == "precision") is found
    if found:
        assert diagnosis.findings[0].expected == pytest.approx(1 / 0.6, rel=0.05)
        assert "TF32" not in diagnosis.findings[0].remedies[0].action


@pytest.mark.parametrize(
    ("narrow", "part", "found"),
    [
        (8, 8, True),
        (8, 0, False),  # no such part
        (40, 1, False),  # a head in fp32, of a few percent
        (0, 8, False),  # TF32 is the format of the whole program
    ],
)
def test_products_in_tf32_are_left_out_of_mixed_precision_where_others_have_16_bits(
    narrow: int, part: int, found: bool
) -> None:
    def step(machine: Machine) -> None:
        machine.launch(300 * US, times=narrow)
        for _ in range(part):
            machine.launch(300 * US, TF32_GEMM)
            machine.launch(100 * US, LAYER_NORM)

    diagnosis = verdict(step)
    assert (diagnosis.verdict == "precision") is found
    if found:
        first = diagnosis.findings[0]
        assert "left out of mixed precision" in first.title
        # Half of the passes, and of the products' time what twice the peak saves.
        assert first.expected == pytest.approx(700 / (300 + 300 / 2 / 0.9375 + 50), rel=0.02)
        assert first.bound is not None
        assert first.bound > first.expected


@pytest.mark.parametrize(("name", "saved_us"), [(CAT, 0), (CAST, 6)])
def test_starting_a_product_in_tf32_and_joining_its_operands_take_as_long_in_16_bits(name: str, saved_us: int) -> None:
    """A quarter of a product of 12 µs is starting it, in any format; a cast to its format would go."""

    def step(machine: Machine) -> None:
        machine.launch(12 * US, times=10)
        for _ in range(20):
            machine.launch(12 * US, TF32_GEMM)
            machine.launch(6 * US, name)

    finding = verdict(step, Machine(python_ns=0)).finding("precision")
    assert finding is not None
    recorded_us = 10 * 13 + 20 * (13 + 7)
    claimed_us = 20 * (9 * (1 - 1 / 2 / 0.9375) + saved_us)
    assert finding.evidence["claimed_share"] == pytest.approx(claimed_us / recorded_us, rel=0.03)


def test_products_in_tf32_are_narrowed_with_those_off_the_tensor_cores() -> None:
    """Attention of fp32 numbers has no kernel in TF32, which the program allows; 16 bits double the rate of all."""

    def step(machine: Machine) -> None:
        for _ in range(8):
            machine.launch(300 * US, TF32_GEMM)
            machine.launch(100 * US, FP32_ATTENTION)
            machine.launch(100 * US, LAYER_NORM)

    first = verdict(step).findings[0]
    assert first.id == "precision"
    assert first.title.startswith("Matrix products run in TF32 and fp32")
    assert not any("TF32" in remedy.action for remedy in first.remedies), "it is allowed already"
    # Products at twice the rate, attention at 0.55 of the ratio of the peaks, half of the passes.
    assert first.expected == pytest.approx(500 / (300 / 2 / 0.9375 + 100 / (0.55 * 989 / 67) + 50), rel=0.03)
    assert first.bound == pytest.approx(500 / (120 + 5 + 40), rel=0.03)


@pytest.mark.parametrize("small_us", [3, 200])
def test_a_few_small_products_off_the_tensor_cores_leave_tf32_a_choice(small_us: int) -> None:
    """Of small products, a library may have no kernel in TF32."""

    def step(machine: Machine) -> None:
        machine.launch(200 * US, TF32_GEMM, times=40)
        machine.launch(small_us * US, FP32_GEMM)
        machine.launch(20 * US, ADD, times=20)

    found = verdict(step)
    finding = found.finding("precision")
    assert found.verdict == "below-roof"
    assert finding is None or finding.expected < 1.03


def test_preconditioners_of_an_optimizer_are_no_part_of_the_network() -> None:
    def step(machine: Machine) -> None:
        machine.launch(300 * US, times=40)
        with machine.range("Optimizer.step#SOAP.step"):
            machine.launch(200 * US, TF32_GEMM, times=40)

    assert verdict(step).finding("precision") is None


def test_products_in_32_bits_among_those_in_16_take_their_casts_with_them() -> None:
    """Adapters that are kept in fp32: without them neither casts nor wide passes are made."""

    def step(machine: Machine) -> None:
        for _ in range(10):
            machine.launch(400 * US)
            machine.launch(50 * US, DIRECT_COPY)
            machine.launch(100 * US, FP32_GEMM)
            machine.launch(60 * US, ADD)
            machine.launch(40 * US, CAST)

    found = verdict(step)
    assert found.verdict == "precision"
    # On an H200 products get 0.76 × 989/67 times as fast; half of the sum is left, and no cast.
    assert found.findings[0].expected == pytest.approx(650 / (400 + 100 / (0.76 * 989 / 67) + 30), rel=0.02)


def test_numbers_of_16_bits_that_are_multiplied_in_32_are_not_told_to_have_16() -> None:
    """cuDNN's convolution of any dimensions, which embeds the patches of a video."""
    name = "void implicit_convolveNd_sgemm<{}, 3, 128, 6, 7, 3, 3, 5, 1, false, false, true>(int, int, int)"

    def titles(operands: str) -> tuple[str, str]:
        def step(machine: Machine) -> None:
            machine.launch(400 * US, name.format(operands))
            machine.launch(400 * US, times=3)

        first = verdict(step).findings[0]
        assert first.id == "precision"
        return first.title, first.remedies[0].action

    assert titles("float")[1] == "Compute in bfloat16"
    title, action = titles("__nv_bfloat16")
    assert "16-bit" in title
    assert "as a product" in action


@pytest.mark.parametrize(
    ("operation", "action"),
    [("aten::_cudnn_rnn", "Take the host out of these operators"), (None, "Move that host work")],
)
def test_pauses_inside_of_operators_are_those_of_the_framework(operation: str | None, action: str) -> None:
    kernels, calls, ranges, now = [], [], [], 0
    for _ in range(4):
        began = now
        for place in range(32):
            number, pause = len(kernels) + 1, 400 * US if place % 4 == 0 else 5 * US
            if operation is not None:
                ranges.append(operator(now, now + pause + 10 * US, operation))
            calls.append(launch(now + pause, now + pause + 6 * US, number))
            begin = now + pause + 8 * US
            kernels.append(
                kernel(begin, begin + 10 * US, "k", correlation=number, full_name=BF16_GEMM, grid=(1056, 1, 1))
            )
            now += pause + 15 * US
        ranges.append(annotation(began, now, "step"))
    timeline = program(kernels, calls, ranges)
    finding = diagnose(timeline, timeline.window()).finding("host-stall")
    assert action in finding.remedies[0].action


@pytest.mark.parametrize(
    ("forward_passes", "updates", "adds", "found"),
    [(2, 1, True, 2), (4, 1, True, 4), (1, 1, True, None), (4, 4, True, None), (2, 1, False, None)],
)
def test_micro_batches_could_be_one_batch(forward_passes: int, updates: int, adds: bool, found: int | None) -> None:
    """Gradients are handed over by the first backward pass, and added by the others; an optimizer may follow each.

    Without a forward pass of its own, a backward pass goes over the graph of the one before. Two networks of equal
    sizes add nothing.
    """
    backward_passes = max(forward_passes, 2)

    def step(machine: Machine) -> None:
        for number in range(backward_passes):
            if number < forward_passes:
                with machine.range("forward"):
                    for _ in range(12):
                        machine.launch(3 * US, grid=(4, 1, 1))
                        machine.launch(3 * US, GELU, grid=(4, 1, 1))
            else:
                machine.launch(3 * US, FILL)
            with machine.range("backward"):
                for _ in range(12):
                    machine.launch(3 * US, BF16_GEMM.replace("TNN", "NTT"), grid=(4, 1, 1))
                    machine.launch(3 * US, "at::native::layer_norm_backward_kernel<float>", grid=(4, 1, 1))
                    if number and adds:
                        machine.launch(2 * US, ADD, grid=(2, 1, 1))
            if number >= backward_passes - updates:
                with machine.range("optimizer"):
                    machine.launch(9 * US, FUSED, grid=(8, 1, 1))

    finding = verdict(step).finding("launch-overhead")
    assert finding.evidence.get("passes_per_step") == found
    assert any(remedy.action.startswith("Run the passes") for remedy in finding.remedies) is (found is not None)


def test_a_loop_of_few_kernels_gains_the_same_however_many_make_a_turn() -> None:
    """A graph of one turn would be launched as often as a turn of one kernel; many turns fit into one graph."""
    gains = []
    for kernels in (1, 2, 3):
        machine = Machine()
        for _ in range(600 // kernels):
            for place in range(kernels):
                machine.launch(3 * US, grid=(place + 1, 1, 1))
        finding = judged(machine.trace()).finding("launch-overhead")
        assert finding.remedies[0].action == "Capture many turns of the loop in one CUDA graph"
        gains.append(finding.expected)
    assert 1.3 < min(gains) <= max(gains) < 1.02 * min(gains)


@pytest.mark.parametrize("made", [False, True])
def test_passes_over_images_that_were_there_before_could_be_one_batch(made: bool) -> None:
    """One picture for many questions, or many pictures; not if a pass makes the next image, as in samplers."""
    picture, patches = [1, 3, 1024, 1024], [768, 3, 16, 16]
    work = [("aten::cudnn_convolution", [picture, patches], GROUPED_CONVOLUTION)]
    for _ in range(4):
        work.append(("aten::native_layer_norm", [[1, 4096, 768]], LAYER_NORM))
        work.append(("aten::addmm", [[4096, 768], [768, 768]], BF16_GEMM))
        work.append(("aten::gelu", [[1, 4096, 768]], GELU))
    work.append(("aten::add", [picture if made else [1, 4096, 768]] * 2, ADD))
    kernels, calls, ranges, now = [], [], [], 0
    for _ in range(4):
        began = now
        for place, (operation, shapes, name) in enumerate(work * 5):
            number = len(kernels) + 1
            ranges.append(operator(now, now + 18 * US, operation, shapes=json.dumps(shapes)))
            calls.append(launch(now + 2 * US, now + 8 * US, number))
            begin = now + 10 * US
            # One more block in the first pass: no two passes need to be launched in the same way throughout.
            grid = (1056 + (place == 3), 1, 1)
            kernels.append(kernel(begin, begin + 5 * US, "k", correlation=number, full_name=name, grid=grid))
            now += 30 * US
        ranges.append(annotation(began, now, "step"))
    timeline = program(kernels, calls, ranges)
    finding = diagnose(timeline, timeline.window()).finding("launch-overhead")
    assert finding.evidence.get("passes_per_step") == (None if made else 5)


def test_a_transposed_convolution_is_no_sign_of_training() -> None:
    """cuDNN runs it as the gradient of another's input."""
    transposed = (
        "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816dgrad_optimized_bf16_256x64_32x4_nhwc_align8>"
    )

    def severity_of_chain(name: str) -> str:
        def step(machine: Machine) -> None:
            machine.launch(50 * US, name)
            for _ in range(6):
                machine.launch(100 * US)
                machine.launch(20 * US, ADD, times=4)

        finding = verdict(step).finding("unfused-chain")
        assert finding is not None
        return finding.severity

    # Chains of a third of the time are any network's that trains.
    assert severity_of_chain(transposed) == "critical"
    assert severity_of_chain(transposed.replace("dgrad", "wgrad")) == "info"


def grids(kind: str, token: int) -> tuple[int, int]:
    """Blocks of what belongs to the tokens of a pass, and of the scores of its attention."""
    return {
        "no cache": (16 * (8 + token), 16 * (8 + token)),
        "cache": (16, 16 * (8 + token)),
        "doubling": (16 * 2**token, 16 * 2**token),
        "fixed": (128, 128),
    }[kind]


@pytest.mark.parametrize("a_step", [12, 1])
@pytest.mark.parametrize("kind", ["no cache", "cache", "doubling", "fixed"])
def test_passes_over_a_text_that_grows_by_a_token_each_keep_no_cache(kind: str, a_step: int) -> None:
    """Whether a step is a text or a token."""
    machine = Machine()
    for step in range(12 if a_step == 1 else 4):
        with machine.step():
            for token in range(a_step):
                blocks, scores = grids(kind, token if a_step > 1 else step)
                for _ in range(3):
                    machine.launch(4 * blocks * US, LAYER_NORM, grid=(blocks, 1, 1))
                    machine.launch(8 * blocks * US)
                    machine.launch(scores * US, WHERE, grid=(64 * scores, 1, 1))
                    machine.launch(8 * blocks * US)
                    machine.launch(blocks * US, GELU, grid=(256 * blocks, 1, 1))
                    machine.launch(blocks * US, ADD, grid=(128 * blocks, 1, 1))
    found = judged(machine.trace())
    assert (found.verdict == "recomputation") is (kind == "no cache")
    if kind == "no cache":
        assert "keys and values are not kept" in found.findings[0].title
        assert found.findings[0].evidence["growth_factor"] == pytest.approx(19 / 8, rel=0.01)
        # All but the first pass take what a token takes: 8 tokens and 11 in place of the sum of 8 to 19.
        assert found.findings[0].expected == pytest.approx(sum(range(8, 20)) / 19, rel=0.1)


@pytest.mark.parametrize("shapes", [True, False])
@pytest.mark.parametrize(
    ("texts", "length", "sent", "found"),
    [
        (lambda _: 8, lambda step: 64 + step, 0, True),
        # A loop may send all its tokens again.
        (lambda _: 8, lambda step: 64 + step, 8, True),
        (lambda step: 128 * (step + 1), lambda _: 64, 0, False),
        (lambda _: 8, lambda step: 128 * (step + 1), 0, False),
        # Images, of which one more is sent to each pass.
        (lambda step: step + 1, lambda _: 64, 3_000, False),
    ],
    ids=["text", "text sent again", "batches", "lengths", "images"],
)
def test_larger_batches_and_longer_inputs_are_no_text_without_a_cache(
    texts: Callable[[int], int], length: Callable[[int], int], sent: int, found: bool, shapes: bool
) -> None:
    kernels, calls, ranges, copies, now = [], [], [], [], 0
    for step in range(12):
        began = now
        sizes = [texts(step), length(step), 512]
        rows = math.prod(sizes[:2])
        if sent:
            calls.append(launch(now, now + US, len(calls) + 1))
            copies.append(copy(now + 2 * US, now + 3 * US, size=rows * sent, correlation=len(calls)))
        layer = ((LAYER_NORM, "native_layer_norm", 1), (BF16_GEMM, "mm", 4), (GELU, "gelu", 4))
        for full_name, name, blocks in (*layer, *layer, (ADD, "add", 2)) * 3:
            if shapes:
                of = [[rows, 512], [512, 512]] if name == "mm" else [sizes]
                ranges.append(operator(now, now + 3 * US, f"aten::{name}", shapes=json.dumps(of)))
            calls.append(launch(now + US, now + 2 * US, len(calls) + 1))
            begin, now = now + 5 * US, now + 5 * US + rows * 50
            grid = (rows * blocks, 1, 1)
            kernels.append(kernel(begin, now, name, correlation=len(calls), full_name=full_name, grid=grid))
        ranges.append(annotation(began, now, "step"))
        now += US
    timeline = program(kernels, calls, ranges, copies=copies)
    titles = [finding.title for finding in diagnose(timeline, timeline.window()).findings]
    assert any("keys and values are not kept" in title for title in titles) is found


def _with_turns(turn: Callable[[Machine, int], None], per_step: int) -> Diagnosis:
    """What is said of steps of so many turns, which go on from step to step if each has one."""
    machine = Machine()
    for number in range(STEPS):
        with machine.step():
            for place in range(per_step):
                turn(machine, number if per_step == 1 else place)
    return judged(machine.trace())


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("again", True),
        ("a token per step", True),
        ("in another layout", True),  # keys and values are copied, which is for nothing as well
        ("after a wide pass", False),  # which may make another input
        ("no token", False),  # a loop over other rows of the same table
        ("new input", False),
        ("few rows", False),  # a product for tokens, which reads its weights
        ("one in a turn", False),  # as for the scores of words
        ("not as often", False),
    ],
)
def test_products_over_an_input_that_stays_are_computed_again_for_each_token(kind: str, found: bool) -> None:
    layers = 1 if kind == "one in a turn" else 3
    wide = f"nvjet_sm90_tst_{'24' if kind == 'few rows' else '192'}x192_64x4_1x2_h_bz_coopB_bias_TNN"
    narrow = "nvjet_sm90_tst_24x64_64x16_4x2_h_bz_bias_TNN"

    def turn(machine: Machine, token: int) -> None:
        if kind != "no token":
            machine.launch(3 * US, PICK, grid=(128, 1, 1))
        if kind == "new input":
            machine.copy(5 * US, 1024, pinned=True)
        for _ in range(layers - (kind == "not as often" and token == 3)):
            if kind == "after a wide pass":
                machine.launch(50 * US, GELU, grid=(65_536, 1, 1))
            machine.launch(800 * US, wide, grid=(132, 1, 1))
            if kind == "in another layout":
                machine.launch(100 * US, DIRECT_COPY, grid=(65_536, 1, 1))
            machine.launch(4 * US, LAYER_NORM, grid=(128, 1, 1))
            machine.launch(5 * US, narrow, grid=(88, 1, 1))
            machine.launch(120 * US, FLASH, grid=(2_048, 1, 1))
            machine.launch(5 * US, narrow, grid=(88, 1, 1))
        machine.launch(3 * US, ARGMAX, grid=(128, 1, 1))

    finding = _with_turns(turn, per_step=1 if kind == "a token per step" else 6).finding("recomputation")
    assert (finding is not None) is found
    if finding is not None:
        wide_us = 900 if kind == "in another layout" else 800
        assert finding.title.startswith("Products over an input that stays")
        assert finding.evidence["passes_per_step"] == (1 if kind == "a token per step" else 6)
        others = 6 * (3 * 134 + 6)
        assert finding.expected == pytest.approx((18 * wide_us + others) / (3 * wide_us + others), rel=0.03)
        assert finding.bound >= finding.expected


@pytest.mark.parametrize("kind", ["again", "a token per step", "new input", "one token", "no text"])
def test_an_encoder_whose_input_stays_while_a_text_grows_is_run_again(kind: str) -> None:
    """Not where the host sends something new, where nothing grows, or where the text keeps its size."""

    def turn(machine: Machine, token: int) -> None:
        if kind == "new input":
            machine.copy(20 * US, 1_000_000, pinned=True)
        for _ in range(6):  # layers of the encoder
            machine.launch(20 * US, LAYER_NORM, grid=(512, 1, 1))
            machine.launch(60 * US)
            machine.launch(20 * US, GELU, grid=(2_048, 1, 1))
            machine.launch(60 * US)
            machine.launch(20 * US, ADD, grid=(1_024, 1, 1))
        for _ in range(2 if kind != "no text" else 0):  # and of the decoder
            tokens = token + 1 if kind != "one token" else 1
            machine.launch(5 * US, LAYER_NORM, grid=(16 * tokens, 1, 1))
            machine.launch(5 * US)
            machine.launch(5 * US, GELU, grid=(64 * tokens, 1, 1))
            machine.launch(5 * US)
            machine.launch(5 * US, ADD, grid=(32 * tokens, 1, 1))

    per_step = 1 if kind == "a token per step" else 6
    found = _with_turns(turn, per_step)
    again = kind in ("again", "a token per step")
    assert (found.verdict == "recomputation") is again
    if again:
        first = found.findings[0]
        assert first.title.startswith("The encoder runs again")
        assert first.evidence["passes_per_step"] == per_step
        # All passes but one: of each step, or of all six.
        assert first.evidence["repeated_per_step"] == 5 * 30 * per_step / 6
        # One of six passes of 1,080 µs is left, beside six of 50 µs.
        assert first.expected == pytest.approx((6 * 1_080 + 6 * 50) / (1_080 + 6 * 50), rel=0.05)


@pytest.mark.parametrize(
    ("name", "found", "action"),
    [
        (ADD, True, "Do the work of all turns at once"),
        (LAYER_NORM, True, "Do the work of all turns at once"),
        (ARGMAX, True, "Replay the step from a CUDA graph"),
        (BF16_GEMM, False, ""),
    ],
)
def test_remedy_of_a_loop_of_small_kernels(name: str, found: bool, action: str) -> None:
    """Turns with products may be layers, which need each other, as do turns that search for the largest value."""

    def step(machine: Machine) -> None:
        machine.launch(200 * US, times=3)
        for _ in range(64):
            machine.launch(2 * US, WHERE, grid=(1, 1, 1))
            machine.launch(2 * US, name, grid=(2, 1, 1))
            # Some of what Python does in a turn takes as long as many launches; a graph keeps such pauses.
            machine.think(20 * US if name == ARGMAX else 150 * US)
        machine.launch(200 * US)

    diagnosis = verdict(step)
    assert diagnosis.verdict == ("launch-overhead" if found else "host-stall")
    finding = diagnosis.finding("launch-overhead")
    if found:
        assert finding.evidence["turns_per_step"] == 64
        assert finding.evidence["launches_per_turn_factor"] == 2
        assert finding.remedies[0].action == action
        assert finding.remedies[0].gain == finding.expected
        at_once = next(each for each in finding.remedies if each.action == "Do the work of all turns at once")
        assert (at_once.gain is None) == (name == ARGMAX)
    else:
        assert finding is None or "turns_per_step" not in finding.evidence


def test_places_that_are_filled_one_after_the_other_are_a_loop_over_samples_and_no_optimizer() -> None:
    """Their sizes vary, as those of parameters do, but nothing reads a parameter."""

    def step(machine: Machine) -> None:
        machine.launch(200 * US, times=3)
        for place in range(128):
            machine.launch(2 * US, FILL, grid=(1 + place * 7 % 5, 1, 1))
            machine.think(50 * US)
        machine.launch(200 * US)

    diagnosis = verdict(step)
    assert diagnosis.finding("unfused-optimizer") is None
    finding = diagnosis.finding("launch-overhead")
    assert (finding.evidence["turns_per_step"], finding.evidence["launches_per_turn_factor"]) == (128, 1)


def test_turns_count_kernels_and_copies_apart() -> None:
    """So that no page tells more launches of its turns than of the step, which are its kernels."""

    def step(machine: Machine) -> None:
        machine.launch(200 * US, times=3)
        for _ in range(64):
            machine.launch(2 * US, WHERE, grid=(1, 1, 1))
            machine.launch(2 * US, LAYER_NORM, grid=(2, 1, 1))
            machine.copy(1 * US, 4096, "device-to-device", pinned=True)
            machine.think(30 * US)

    evidence = verdict(step).finding("launch-overhead").evidence
    assert (evidence["turns_per_step"], evidence["launches_per_step"]) == (64, 3 + 2 * 64)
    assert (evidence["launches_per_turn_factor"], evidence["copies_per_turn_factor"]) == (2, 1)


def test_layers_that_gather_rows_in_each_of_equal_passes_are_no_experts() -> None:
    def step(machine: Machine) -> None:
        for _ in range(16):
            for layer in range(6):
                machine.launch(2 * US, PICK, grid=(3 + layer, 1, 1))
                machine.launch(3 * US, ADD, grid=(2, 1, 1))
                machine.launch(5 * US)
                machine.launch(3 * US, PUT)
        machine.launch(3 * US, CAT, grid=(6, 1, 1))

    diagnosis = verdict(step)
    assert diagnosis.verdict == "launch-overhead"
    assert diagnosis.findings[0].evidence["passes_per_step"] == 16


def test_waits_of_a_loop_are_named_before_the_pauses_between_its_items() -> None:
    def step(machine: Machine) -> None:
        machine.launch(100 * US, times=4)
        for _ in range(12):
            machine.launch(3 * US, PICK)
            machine.item()
            machine.think(120 * US)

    diagnosis = verdict(step)
    assert diagnosis.verdict == "host-sync"
    assert diagnosis.findings[1].id == "host-stall"


@pytest.mark.parametrize(
    ("taking", "launches", "looped"),
    [
        (SELECT, (20,), True),
        (ADD, (20,), False),  # a solver that asks whether to stop needs each turn
        (SELECT, (20, 22, 24), False),  # turns that are not alike
        (SELECT, (80,), False),
        (SELECT, (4, 20, *[4] * 28), True),  # short turns are a loop; a long one in each step parts it
    ],
)
def test_long_turns_that_go_on_with_what_a_mask_selects_are_a_loop(
    taking: str, launches: tuple[int, ...], *, looped: bool
) -> None:
    def step(machine: Machine) -> None:
        machine.launch(100 * US, times=4)
        for turn in range(30):
            machine.launch(3 * US, ADD, times=launches[turn % len(launches)])
            machine.item()
            machine.launch(3 * US, taking)
            machine.item()

    found = verdict(step).finding("host-sync")
    turns = 29 if len(launches) > 3 else 30
    kernels, copies = turns * (launches[-1] + 1) - launches[-1], turns * 2
    seen = [found.evidence.get(f"looped_{name}_per_step") for name in ("kernels", "copies")]
    assert seen == ([kernels, copies] if looped else [None, None])


@pytest.mark.parametrize("kinds", [1, 3, 4, 12])
def test_read_backs_after_different_work_are_no_loop(kinds: int) -> None:
    """Twelve values are read in a step, of as many items, or of sizes and offsets of different tables."""

    def step(machine: Machine) -> None:
        machine.launch(200 * US, BF16_GEMM, times=20)
        for number in range(12):
            machine.launch(4 * US, ADD, times=1 + number % kinds)
            machine.item()

    found = verdict(step).finding("host-sync")
    assert found is not None
    is_loop = 11 // kinds >= 3
    assert ("looped_kernels_per_step" in found.evidence) == is_loop
    assert ("Process all items at once" in [remedy.action for remedy in found.remedies]) == is_loop


@pytest.mark.parametrize(("turns", "goes"), [(40, True), (20, False)])
def test_the_backward_pass_of_a_loop_that_reads_back_goes_with_it(turns: int, *, goes: bool) -> None:
    def step(machine: Machine) -> None:
        machine.launch(100 * US, times=4)
        for _ in range(40):
            machine.launch(3 * US, PICK)
            machine.item()
        with machine.range("backward"):
            machine.launch(100 * US, times=4)
            machine.launch(3 * US, NORM, times=turns)

    found = verdict(step).finding("host-sync")
    assert found.evidence["looped_kernels_per_step"] == (39 + turns if goes else 39)
    assert found.evidence["looped_copies_per_step"] == 40


@pytest.mark.parametrize(("kernels", "named"), [(8, "work item by item"), (0, "synchronization")])
def test_a_loop_whose_waits_cost_little_is_named_as_the_limit(kernels: int, named: str) -> None:
    """Eight launches for an item take longer than the wait behind them. No loop is refuted by leaving out its waits."""

    def step(machine: Machine) -> None:
        machine.launch(100 * US, times=4)
        for _ in range(100):
            machine.launch(3 * US, PICK, times=kernels)
            machine.item()

    diagnosis = verdict(step)
    found = diagnosis.findings[0]
    assert found.id == "host-sync"
    assert named in diagnosis.headline
    assert "for one item only" in found.refute
    assert found.evidence["looped_kernels_per_step"] == kernels * 99
    assert found.evidence["looped_copies_per_step"] == 100


@pytest.mark.parametrize(
    ("read", "sent", "remedy"),
    [
        (65_536, 0, "Work on these results"),
        (4, 0, "Move that host work"),  # a loss of four bytes is not what the host is busy with
        (4 << 20, 4 << 20, "Do this work where its data are"),
        (4, 4 << 20, "Prepare the input"),
    ],
)
def test_what_is_copied_before_and_after_a_pause_tells_what_the_host_works_on(
    read: int, sent: int, remedy: str
) -> None:
    def step(machine: Machine) -> None:
        machine.launch(100 * US, times=8)
        machine.copy(10 * US, read, "device-to-host", pinned=False)
        machine.think(3000 * US)
        if sent:
            machine.copy(100 * US, sent, pinned=False)
        machine.launch(100 * US)

    diagnosis = verdict(step)
    assert diagnosis.verdict == "host-stall"
    assert diagnosis.findings[0].remedies[0].action.startswith(remedy)


@pytest.mark.parametrize(("layers", "shares"), [(1, True), (65_535, False)])
def test_a_batch_of_products_of_vectors_has_no_weights_to_share(layers: int, *, shares: bool) -> None:
    """cuBLAS gives each product of a batch a layer of the grid, 65,535 at most: each reads a matrix of its own."""
    diagnosis = verdict(lambda machine: machine.launch(60 * US, VECTOR_PRODUCT, grid=(64, 1, layers), times=40))
    assert (diagnosis.finding("weight-bound") is not None) == shares


def test_rows_of_products_are_not_those_of_a_copy() -> None:
    """Products of a graph have no recorded shapes; only the copy of its input has."""
    kernels, calls, ranges, now = [], [], [], 0
    for number in range(123):
        is_copy = number % 41 == 0
        if is_copy:
            now = kernels[-1]["end_ns"] if kernels else now
            ranges.append(operator(now, now + 3 * US, "aten::copy_", shapes=json.dumps([[1, 16], [1, 16]])))
            ranges.append(annotation(now, now + 41 * 61 * US, "step"))
        calls.append(launch(now + US, now + 2 * US, number + 1))
        begin = max(now + 3 * US, kernels[-1]["end_ns"] + US // 2 if kernels else 0)
        name = DIRECT_COPY if is_copy else VECTOR_PRODUCT
        kernels.append(kernel(begin, begin + 60 * US, "kernel", correlation=number + 1, full_name=name))
        now += 4 * US
    finding = judged(program(kernels, calls, ranges).trace).finding("weight-bound")
    assert "rows_count" not in finding.evidence


@pytest.mark.parametrize(
    ("left", "right", "found"),
    [
        ([65_536, 1, 32], [65_536, 32, 1], True),  # a number of each pair
        ([65_536, 32, 1], [65_536, 1, 32], True),  # an outer product of each
        ([65_536, 8, 32], [65_536, 32, 8], False),
        ([16, 1, 4096], [16, 4096, 1], False),
    ],
)
def test_batched_products_of_single_vectors_are_told_as_what_they_are(
    left: list[int], right: list[int], found: bool
) -> None:
    """Reading 65,536 pairs of vectors of 32 numbers in 16 bits takes a few microseconds at the data sheet's rate."""
    kernels, calls, ranges, now = [], [], [], 0
    for number in range(3):
        begin = now + 5 * US
        ranges.append(operator(now, now + 4 * US, "aten::bmm", shapes=json.dumps([left, right])))
        calls.append(launch(now + US, now + 2 * US, number + 1))
        kernels.append(kernel(begin, begin + 900 * US, "kernel", correlation=number + 1, full_name=VECTOR_PRODUCT))
        ranges.append(annotation(now, begin + 900 * US, "step"))
        now = begin + 910 * US
    profile = program(kernels, calls, ranges).trace
    finding = judged(replace(profile, capture=replace(profile.capture, devices=(H200,)))).finding("misaligned-shape")
    assert (finding is not None) == found
    if finding is not None:
        assert finding.title.startswith("Batched matrix products have one vector")
        assert (finding.expected or 0.0) > 2


@pytest.mark.parametrize(("length", "reads"), [(12, True), (60, False)])
def test_products_that_take_far_longer_than_their_weights_are_not_bound_by_reading_them(
    length: int, reads: bool
) -> None:
    """Weights of 32 MiB are read in 7 µs at the data sheet's rate."""
    kernels, calls, ranges, now = [], [], [], 0
    for number in range(120):
        if number % 40 == 0:
            began = now
        ranges.append(operator(now, now + 3 * US, "aten::mm", shapes=json.dumps([[8, 4096], [4096, 4096]])))
        calls.append(launch(now + US, now + 2 * US, number + 1))
        begin = max(now + 3 * US, kernels[-1]["end_ns"] + US if kernels else 0)
        kernels.append(kernel(begin, begin + length * US, "gemm", correlation=number + 1, full_name=BF16_GEMM))
        now += 4 * US
        if number % 40 == 39:
            now = max(now, kernels[-1]["end_ns"])
            ranges.append(annotation(began, now, "step"))
    profile = program(kernels, calls, ranges).trace
    finding = judged(replace(profile, capture=replace(profile.capture, devices=(H200,)))).finding("weight-bound")
    assert ("bound by reading" in finding.title) == reads
    assert any("Quantize" in remedy.action for remedy in finding.remedies) == reads
    assert (finding.evidence["at_peak_share"] > 0.2) == reads


MUL = "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, float, float, MulFunctor>>(i)"
SPREAD_MUL = (
    "void at::native::elementwise_kernel<128, 2, gpu_kernel_impl_nocast<BinaryFunctor<float, float, float, MulFunctor>>"
)
SPREAD_SUB = "void at::native::elementwise_kernel<128, 2, gpu_kernel_impl_nocast<at::native::CUDAFunctor_add<float>>"
SQUARE = "void at::native::vectorized_elementwise_kernel<4, at::native::pow_tensor_scalar_kernel_impl<float>>(int)"
SUM = (
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, func_wrapper_t<float, sum_functor<float>>>>(i)"
)
ROUND = "void at::native::vectorized_elementwise_kernel<4, at::native::round_kernel_cuda>(int)"

Told = tuple[str, list[list[int]], str, int]


def told(work: Sequence[Told], *, shapes: bool = True) -> Diagnosis:
    """What is said about steps of operators (name, shapes), each of which launches a kernel of so many µs."""
    kernels, calls, ranges, now, busy = [], [], [], 0, 0
    for _ in range(4):
        began = now
        for name, sizes, full_name, length in work:
            number = len(kernels) + 1
            if shapes:
                ranges.append(operator(now, now + 3 * US, name, shapes=json.dumps(sizes)))
            calls.append(launch(now + US, now + 2 * US, number))
            begin = max(now + 4 * US, busy)
            busy = begin + length * US
            # PyTorch's plain kernels have two numbers per thread of 128, others are large enough for all.
            plain = full_name in (SPREAD_MUL, SPREAD_SUB)
            grid = (math.prod(sizes[0]) // 256 if plain else 1056, 1, 1)
            row = kernel(begin, busy, "k", correlation=number, full_name=full_name, grid=grid, block=(128, 1, 1))
            kernels.append(row)
            now += 5 * US
        calls.append(call(now, busy, "cudaStreamSynchronize"))
        now = busy + US
        ranges.append(annotation(began, now, "step"))
    profile = program(kernels, calls, ranges).trace
    return judged(replace(profile, capture=replace(profile.capture, devices=(H200,))))


ROWS, COLUMNS, TERMS = [4096, 1, 64], [1, 4096, 64], [4096, 4096, 64]
PRODUCT: Told = ("aten::mm", [[4096, 64], [64, 4096]], BF16_GEMM, 400)


@pytest.mark.parametrize(
    ("work", "found"),
    [
        ([("aten::mul", [ROWS, COLUMNS], SPREAD_MUL, 2700), ("aten::sum", [TERMS, []], SUM, 1300)], True),
        (
            [
                ("aten::sub", [ROWS, COLUMNS], SPREAD_SUB, 2700),
                ("aten::pow", [TERMS, []], SQUARE, 2000),
                ("aten::sum", [TERMS, []], SUM, 1300),
            ],
            True,
        ),
        # A scale of activations reads as many numbers as it writes.
        (
            [
                ("aten::native_layer_norm", [TERMS], LAYER_NORM, 1300),
                ("aten::mul", [TERMS, [4096, 4096, 1]], SPREAD_MUL, 2700),
                ("aten::sum", [TERMS, []], SUM, 1300),
            ],
            False,
        ),
        # No product has a rounded term.
        (
            [
                ("aten::mul", [ROWS, COLUMNS], SPREAD_MUL, 2700),
                ("aten::round", [TERMS], ROUND, 2000),
                ("aten::sum", [TERMS, []], SUM, 1300),
            ],
            False,
        ),
        # Sums of differences are differences of sums.
        ([("aten::sub", [ROWS, COLUMNS], SPREAD_SUB, 2700), ("aten::sum", [TERMS, []], SUM, 1300)], False),
    ],
)
def test_terms_of_a_product_that_go_through_memory_are_told(work: list[Told], found: bool) -> None:
    diagnosis = told([PRODUCT, *work])
    titles = [finding.title for finding in diagnosis.findings]
    assert any("terms of a product" in title for title in titles) is found
    if found:
        first = diagnosis.findings[0]
        assert (first.id, first.remedies[0].action) == ("unfused-chain", "Let a product of matrices sum up")
        passes = sum(length for *_, length in work)
        assert first.expected == pytest.approx((passes + 400) / (0.04 * passes + 400), rel=0.02)
        assert first.bound is not None
        assert first.bound > first.expected


def test_terms_are_memory_traffic_in_a_program_without_other_products() -> None:
    work = [("aten::mul", [ROWS, COLUMNS], SPREAD_MUL, 2700), ("aten::sum", [TERMS, []], SUM, 1300)]
    first = told([*work, ("aten::relu", [[4096, 4096]], GELU, 200)]).findings[0]
    assert (first.id, first.remedies[0].action) == ("memory-bandwidth", "Let a product of matrices sum up")
    assert first.expected == pytest.approx(4200 / (0.04 * 4000 + 200), rel=0.02)


def test_a_product_of_short_vectors_writes_a_good_part_of_its_terms() -> None:
    """Of three terms each: the sums alone are a third as many numbers."""
    first, second, terms = [8192, 1, 3], [1, 8192, 3], [8192, 8192, 3]
    work = [("aten::mul", [first, second], SPREAD_MUL, 500), ("aten::sum", [terms, []], SUM, 500)]
    finding = told([PRODUCT, *work]).finding("unfused-chain")
    assert finding.expected == pytest.approx(1400 / (400 + 500 / 3), rel=0.02)


@pytest.mark.parametrize(("others", "found"), [([1024, 64], True), ([4096, 4096, 64], False)])
def test_without_shapes_terms_are_known_by_their_number(others: list[int], found: bool) -> None:
    """Activations are as large as what is made of them; terms are far more numbers than anything else."""
    work = [
        ("aten::add", [others], SPREAD_SUB, 2700),
        ("aten::mm", [others], BF16_GEMM, 500),
        ("aten::mul", [TERMS], SPREAD_MUL, 2700),
        ("aten::sum", [TERMS], SUM, 1300),
    ]
    finding = told(work, shapes=False).finding("unfused-chain")
    assert (finding is not None and "terms of a product" in finding.title) is found


EVAL_NORM = (
    "void at::native::batch_norm_transform_input_channels_last_kernel<c10::BFloat16, float, c10::BFloat16, 4>(int)"
)


RELU = "void at::native::vectorized_elementwise_kernel<4, at::native::launch_clamp_scalar(at::TensorIterator&)>(int)"
ADD_NUMBER = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctorOnSelf_add<c10::BFloat16>>(int)"
MIOPEN_NORM = "MIOpenBatchNormFwdInferSpatialEst"
FOLD = "Fold norms into the convolutions before them"
Pass = tuple[str, int]


@pytest.mark.parametrize("norm", [EVAL_NORM, MIOPEN_NORM])
@pytest.mark.parametrize("trains", [False, True])
def test_norms_of_inference_are_part_of_the_convolutions_before_them(norm: str, trains: bool) -> None:
    def step(machine: Machine) -> None:
        for _ in range(8):
            machine.launch(200 * US, GROUPED_CONVOLUTION)
            if trains:  # its statistics change
                machine.launch(50 * US, BATCH_NORM)
            machine.launch(100 * US, norm)
            machine.launch(100 * US, GELU)

    diagnosis = verdict(step)
    finding = diagnosis.finding("unfused-chain")
    folded = finding is not None and finding.remedies[0].action == FOLD
    assert folded is not trains
    if folded:
        assert diagnosis.verdict == "unfused-chain"
        assert finding.expected == pytest.approx(400 / 300, rel=0.03)


def layer(convolution: int, norm: int) -> tuple[Pass, Pass]:
    return (GROUPED_CONVOLUTION, convolution), (EVAL_NORM, norm)


@pytest.mark.parametrize(
    "block",
    [
        # A residual block whose activations are as short as kernels that prepare a norm.
        (*layer(60, 12), (RELU, 8), *layer(60, 12), (RELU, 8), *layer(60, 12), (ADD, 14), (RELU, 8)),
        # x + norm(convolution(x)), without an activation.
        (*layer(60, 20), (ADD, 25)),
        # Maps of three scales are added up, two of which go through a convolution.
        (*layer(100, 20), (RELU, 20), *layer(60, 20), *layer(60, 20), (ADD, 25), (ADD, 25), (RELU, 20)),
        # The shortcut has a convolution.
        (*layer(60, 20), *layer(60, 20), (ADD, 25), (RELU, 20)),
        # The same before a hard swish that is written out.
        (*layer(120, 20), *layer(120, 20), (ADD, 15), (ADD_NUMBER, 15), (RELU, 15)),
        # Two branches that begin with their sum, not with zero.
        (*layer(200, 100), (ADD, 50), *layer(200, 100), (ADD, 50), (GELU, 100)),
    ],
)
def test_only_the_norms_of_layers_in_sequence_are_folded(block: tuple[Pass, ...]) -> None:
    def step(machine: Machine) -> None:
        for _ in range(12):
            for name, length in block:
                machine.launch(length * US, name)

    finding = verdict(step).finding("unfused-chain")
    assert finding.remedies[0].action == FOLD
    every, norms = sum(length for _, length in block), sum(length for name, length in block if name == EVAL_NORM)
    assert finding.expected == pytest.approx(every / (every - norms), rel=0.02)
    assert finding.expected < finding.bound


def test_a_norm_after_a_short_activation_is_not_folded() -> None:
    def step(machine: Machine) -> None:
        for _ in range(12):
            for name, length in ((GROUPED_CONVOLUTION, 60), (RELU, 8), (EVAL_NORM, 20)):
                machine.launch(length * US, name)

    finding = verdict(step).finding("unfused-chain")
    assert finding is None or finding.remedies[0].action != FOLD


MAPS, HALVES = [64, 128, 56, 56], [64, 128, 28, 28]


@pytest.mark.parametrize(
    ("inputs", "sizes", "shapes", "saved"),
    [
        ((MAPS, MAPS), (3, 1), True, 700),  # three norms, two additions and the smaller convolution
        ((MAPS, MAPS), (1, 3), True, 1300),  # the larger one stays, even if the library is slow with the smaller one
        ((MAPS, MAPS), (3, 1), False, 300),
        ((MAPS, HALVES), (3, 1), True, 300),
        ((MAPS, MAPS), (3, 3), True, 300),
    ],
)
def test_branches_are_merged_if_shapes_tell_that_they_are(
    inputs: tuple[list[int], list[int]], sizes: tuple[int, int], shapes: bool, saved: int
) -> None:
    """A block of RepVGG: the norm of its input, and two convolutions with a norm each."""
    weights = ([128, 128, size, size] for size in sizes)
    norm: Told = ("aten::cudnn_batch_norm", [MAPS, [128], [128]], EVAL_NORM, 100)
    convolutions = [
        ("aten::cudnn_convolution", [maps, weight], GROUPED_CONVOLUTION, length)
        for maps, weight, length in zip(inputs, weights, (900, 300), strict=True)
    ]
    addition: Told = ("aten::add", [MAPS, MAPS, []], ADD, 50)
    block = [norm, convolutions[0], norm, convolutions[1], norm, addition, addition, ("aten::gelu", [MAPS], GELU, 100)]
    finding = told(block * 6, shapes=shapes).finding("unfused-chain")
    assert finding.remedies[0].action == FOLD
    assert finding.expected == pytest.approx(1700 / (1700 - saved), rel=0.03)
    assert finding.expected < finding.bound


def test_a_sum_of_branches_that_begins_with_zero_is_told_without_shapes() -> None:
    """Norms, the zero and the sum go; which convolution is left is not known."""

    def step(machine: Machine) -> None:
        for _ in range(12):
            for name, length in (*layer(200, 50), (ADD_NUMBER, 40), *layer(200, 50), (ADD, 60), (GELU, 100)):
                machine.launch(length * US, name)

    finding = verdict(step).finding("unfused-chain")
    assert finding.remedies[0].action == FOLD
    assert finding.expected == pytest.approx(700 / 500, rel=0.03)


def test_kernels_are_launched_alike_by_name_and_number_of_blocks() -> None:
    """Not where the name's number and the grid add up to the same, of a grid as large as CUDA allows."""
    machine = Machine()
    launches = [(GELU, 7), (ADD, 7), (GELU, 7 + 1_000_003), (ADD, 7 + 1_000_003), (GELU, 2**31 - 1), (GELU, 7)]
    for name, blocks in launches:
        machine.launch(10 * US, name, grid=(blocks, 1, 1))
    machine.copy(10 * US, 1_000, pinned=True)
    timeline = Timeline(machine.trace())
    program = gather(timeline, timeline.window("all")).program
    numbers = program.launched_as(program.order).tolist()
    assert numbers[-1] == -1
    assert [numbers.index(number) for number in numbers] == [0, 1, 2, 3, 4, 0, 6]


def test_the_cost_of_a_diagnosis_grows_with_its_work_not_with_its_steps_times_its_work(monkeypatch):
    counted: list[str] = []

    def count(kind: type, name: str) -> None:
        known = getattr(kind, name)
        monkeypatch.setattr(kind, name, lambda *given, **more: (counted.append(name), known(*given, **more))[1])

    def calls(steps: int) -> int:
        machine = Machine()
        for _ in range(steps):
            with machine.step():
                machine.launch(4 * US, ADD, times=30)
                machine.launch(400 * US, BF16_GEMM)
                machine.launch(2 * US, ADD, times=2)
                machine.wait()
        counted.clear()
        judged(machine.trace())
        return len(counted)

    count(Program, "names")
    count(pl.DataFrame, "select")
    assert calls(60) <= calls(20) + 10
