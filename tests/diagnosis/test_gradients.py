"""Gradients that no optimizer takes are found by the sizes of what is handed over and what is updated."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from tests.analysis.builders import AUTOGRAD_THREAD, call, kernel, launch
from tests.analysis.operators.programs import annotation, operator, program
from tests.diagnosis.machine import BF16_GEMM, US
from warplens.diagnosis import Finding, diagnose

FUSED_ADAM = (
    "void at::native::multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>, FusedAdamMathFunctor<float, 4>>"
)
LARGE = [1024, 1024]  # sixteen blocks of 65,536 numbers
HEAD, BODY, WORDS = [10, 64], [64, 64], [8, 64, 64]
FORWARD, BACKWARD = 100 * US, 200 * US


def found(
    handed: Sequence[Sequence[int]],
    taken: Sequence[Sequence[int]],
    *,
    passes: int = 1,
    blocks: int | None = None,
    by_hand: tuple[str, Sequence[Sequence[int]]] | None = None,
    optimizes: bool = True,
    collective: str = "",
    added: Sequence[int] = (),
    frozen: int = 0,
    read: str = "",
) -> Finding | None:
    """What is said of three steps, each with forward work, backward passes that hand over gradients of these sizes in
    turn, each behind a product of 200 µs, and an optimizer that updates tensors of those sizes.

    With `blocks`, one fused kernel of so many does it, and the sizes of lists are not recorded. `by_hand` are an
    operator outside of the optimizer, and the sizes of its tensors. A `collective` runs behind each backward pass.
    Gradients of the size `added` are added to those of the last pass. Before the last gradient, the pass goes through
    so many `frozen` layers; the operator `read` takes that gradient after the pass.
    """
    kernels, calls, ranges = [], [], []
    now, gpu, number = 0, 0, 0

    def run(length: int, thread: int = 1, name: str = BF16_GEMM, grid: int = 1056) -> None:
        nonlocal now, gpu, number
        number += 1
        begin = max(gpu, now + 2 * US)
        gpu = begin + length
        kernels.append(kernel(begin, gpu, "gemm", correlation=number, full_name=name, grid=(grid, 1, 1)))
        calls.append(launch(now, now + US, number, thread=thread))
        now += 2 * US

    for _ in range(3):
        began = now
        for _ in range(passes):
            ranges.append(operator(now, now + 3 * US, "aten::linear", shapes="[[8, 64]]"))
            run(FORWARD)
            now += 2 * US
            layers = [0] * (len(handed) - 1) + [frozen]
            for before, shape, below in zip([[], *handed], handed, layers, strict=False):
                for _ in range(below):
                    run(BACKWARD, AUTOGRAD_THREAD)
                if len(before) != 1:  # a weight comes from the products of its bias, which is handed over first
                    run(BACKWARD, AUTOGRAD_THREAD)
                name, text = "torch::autograd::AccumulateGrad", json.dumps([shape])
                ranges.append(operator(now, now + US, name, shapes=text, thread=AUTOGRAD_THREAD))
                if shape == added:
                    ranges.append(operator(now + 200, now + 800, "aten::add_", thread=AUTOGRAD_THREAD))
                now += 2 * US
            if collective:
                run(20 * US, AUTOGRAD_THREAD, name=collective)
        for name, taken_by_hand in filter(None, ((read, [handed[-1]]) if read else None, by_hand)):
            ranges.append(operator(now, now + US, name, shapes=json.dumps([taken_by_hand, taken_by_hand, []])))
            now += 2 * US
        if optimizes:
            ranges.append(annotation(now, now + 10 * US, "Optimizer.step#AdamW.step"))
            lists = [taken, taken, []] if blocks is None else [[], [], []]
            ranges.append(operator(now + US, now + 4 * US, "aten::_fused_adamw_", shapes=json.dumps(lists)))
        now += US
        if blocks is None:
            run(5 * US)
        else:
            run(5 * US, name=FUSED_ADAM, grid=blocks)
        ended = max(now + 10 * US, gpu + 5 * US)
        calls.append(call(now, ended, "cudaDeviceSynchronize"))
        now = ended
        ranges.append(annotation(began, now, "step"))
        now += US
    timeline = program(kernels, calls, ranges)
    return diagnose(timeline, timeline.window()).finding("unused-gradients")


def test_a_frozen_part_below_what_is_trained_costs_all_of_its_backward_pass() -> None:
    finding = found([HEAD, BODY, BODY, BODY], [HEAD])
    assert finding.evidence["unused_gradients_per_step"] == 3
    assert finding.evidence["saved_ns"] >= 3 * 3 * BACKWARD
    whole, left = FORWARD + 4 * BACKWARD, FORWARD + BACKWARD
    assert finding.expected == pytest.approx(whole / left, rel=0.1)


def test_a_frozen_part_above_what_is_trained_costs_the_gradients_of_its_weights_alone() -> None:
    finding = found([BODY, BODY, BODY, HEAD], [HEAD])
    assert finding is not None
    whole = FORWARD + 4 * BACKWARD
    assert finding.expected == pytest.approx(whole / (whole - 1.5 * BACKWARD), rel=0.1)
    code = finding.remedies[0].how
    # Under no_grad, what is trained below it would learn nothing.
    assert code.startswith("backbone.requires_grad_(False)")
    assert "only if nothing before it is trained" in code.split("with torch.no_grad()")[0]


def test_few_numbers_may_cost_much_time_as_those_of_convolutions_do() -> None:
    finding = found([LARGE, BODY, BODY, BODY], [LARGE])
    assert finding.evidence["unused_numbers_share"] < 0.02
    whole, left = FORWARD + 4 * BACKWARD, FORWARD + BACKWARD
    assert finding.expected == pytest.approx(whole / left, rel=0.1)


def test_a_single_gradient_that_nobody_clears_is_not_that_of_an_input() -> None:
    """A table of embeddings that is in no optimizer. The gradient of an input is new in each step."""
    handed = [HEAD] * 14 + [LARGE]
    assert found(handed, [HEAD] * 14) is None
    finding = found(handed, [HEAD] * 14, added=LARGE)
    assert finding is not None
    assert finding.evidence["unused_gradients_per_step"] == 1
    whole = FORWARD + 15 * BACKWARD
    assert finding.expected == pytest.approx(whole / (whole - BACKWARD), rel=0.02)
    # The last layer that is trained may compute the gradient of its input for it.
    assert finding.bound == pytest.approx(whole / (whole - 2 * BACKWARD), rel=0.03)


def test_a_pass_through_frozen_layers_to_an_input_whose_gradient_nobody_reads_is_needless() -> None:
    handed = [HEAD] * 14 + [WORDS]
    finding = found(handed, [HEAD] * 14, frozen=7)
    assert finding is not None
    assert "frozen layers" in finding.title
    whole = FORWARD + 22 * BACKWARD
    assert finding.expected == pytest.approx(whole / (whole - 8 * BACKWARD), rel=0.05)
    assert "enable_input_require_grads" in finding.remedies[0].how
    assert found(handed, handed, frozen=7) is None, "a prompt that learns"
    assert found(handed, [HEAD] * 14, frozen=7, read="aten::sign") is None, "an attack on the input"
    assert found(handed, [HEAD] * 14, frozen=1) is None, "the input of a checkpoint"


def test_biases_that_are_not_trained_do_not_make_the_products_of_their_layers_needless() -> None:
    assert found([[65], BODY] * 4, [BODY] * 4) is None


def test_of_two_models_of_equal_sizes_one_is_not_trained() -> None:
    finding = found([HEAD, BODY, HEAD, BODY], [HEAD, BODY])
    assert finding.evidence["unused_numbers_share"] == pytest.approx(0.5)
    whole = FORWARD + 4 * BACKWARD
    assert finding.expected == pytest.approx(whole / (whole - 2 * BACKWARD), rel=0.1)


@pytest.mark.parametrize(
    ("handed", "taken", "passes"),
    [
        ([HEAD, BODY, BODY], [HEAD, BODY, BODY], 1),  # all are trained
        ([HEAD, BODY], [HEAD, BODY], 4),  # gradients of four batches are added up
        ([HEAD, BODY], [[4736]], 1),  # the optimizer updates one flat copy
    ],
)
def test_gradients_that_are_taken_are_not_told(handed: list[list[int]], taken: list[list[int]], passes: int) -> None:
    assert found(handed, taken, passes=passes) is None


@pytest.mark.parametrize(
    ("name", "is_told"), [("aten::_foreach_lerp_", False), ("aten::_foreach_norm", True), ("aten::_foreach_mul_", True)]
)
def test_an_optimizer_that_pytorch_does_not_know_takes_gradients_and_clipping_does_not(
    name: str, is_told: bool
) -> None:
    """Muon blends each gradient into its momentum. A norm, and scaling by it, go over unused gradients as well."""
    assert (found([HEAD, BODY, BODY], [HEAD], by_hand=(name, [BODY, BODY])) is not None) is is_told


def test_an_average_of_one_tensor_does_not_make_the_gradients_of_the_others_unused() -> None:
    """The fused optimizer takes all of them, but the sizes of its lists are not recorded."""
    assert found([LARGE, HEAD, BODY, BODY], [], blocks=19, by_hand=("aten::lerp_", HEAD)) is None
    assert found([LARGE, HEAD, BODY, BODY], [], blocks=16, by_hand=("aten::lerp_", HEAD)) is not None


@pytest.mark.parametrize(("blocks", "unused"), [(32, 0.0), (16, 0.5), (8, 0.75)])
def test_blocks_of_a_fused_optimizer_tell_how_many_gradients_it_takes(blocks: int, unused: float) -> None:
    """Of two gradients of sixteen blocks each."""
    finding = found([LARGE, LARGE], [], blocks=blocks)
    if unused:
        assert finding.evidence["unused_numbers_share"] == pytest.approx(unused)
    else:
        assert finding is None


def test_the_last_gradients_are_unused_if_they_have_the_blocks_that_the_optimizer_does_not_take() -> None:
    """Their part of the pass goes away, not a share of all of it by numbers (here 80 %)."""
    finding = found([[512, 512], LARGE], [], blocks=4)
    assert finding.evidence["unused_numbers_share"] == pytest.approx(0.8)
    whole = FORWARD + 2 * BACKWARD
    assert finding.expected == pytest.approx(whole / (whole - BACKWARD), rel=0.1)


def test_a_part_that_is_handed_over_in_one_piece_is_the_one_that_is_taken() -> None:
    """Its sizes occur in the rest as well; what follows it in the backward pass goes away as a whole."""
    finding = found([HEAD, BODY, BODY, BODY, BODY], [HEAD, BODY])
    whole, left = FORWARD + 5 * BACKWARD, FORWARD + 2 * BACKWARD
    assert finding.evidence["unused_gradients_per_step"] == 3
    assert finding.expected == pytest.approx(whole / left, rel=0.1)


@pytest.mark.parametrize(
    ("collective", "is_told"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", True),
        ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", False),
        ("ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)", False),
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", False),
    ],
)
def test_gradients_that_another_ranks_optimizer_may_take_are_not_told(collective: str, is_told: bool) -> None:
    """Where all ranks sum all gradients, each updates all parameters that it has."""
    assert (found([HEAD, BODY, BODY, BODY], [HEAD], collective=collective) is not None) is is_told


def test_without_an_optimizer_gradients_of_weights_are_unused_if_the_program_reads_that_of_an_input() -> None:
    finding = found([HEAD, BODY, BODY, WORDS], [], optimizes=False, by_hand=("aten::mul", WORDS))
    assert finding.confidence == "low"
    assert finding.title == "The backward pass computes gradients of all weights, though only those of inputs are read"
    assert "torch.autograd.grad" in finding.remedies[0].how
    whole = FORWARD + 4 * BACKWARD
    assert finding.expected == pytest.approx(whole / (whole - 1.5 * BACKWARD), rel=0.1)


@pytest.mark.parametrize(
    "by_hand",
    [
        None,
        ("aten::detach", WORDS),
        ("aten::zero_", WORDS),
        ("aten::ones_like", WORDS),
        ("aten::mul", [8, 1]),
        ("aten::mul", BODY),  # one of two weights of this size
        ("aten::mul", HEAD),  # the first that is handed over: a layer whose gradient is watched
        ("aten::add_", BODY),
        ("aten::_foreach_sub_", [HEAD, BODY, BODY]),
    ],
)
def test_a_backward_pass_that_is_only_timed_is_not_told_to_be_needless(
    by_hand: tuple[str, Sequence[Sequence[int]]] | None,
) -> None:
    """Nothing reads the gradient of an input: it may be a benchmark, one of several micro-batches, or SGD by hand."""
    assert found([HEAD, BODY, BODY, [7], [9], WORDS], [], optimizes=False, by_hand=by_hand) is None


NORM = "void at::native::vectorized_layer_norm_kernel<float, float>(int)"
NORM_BACKWARD = "void at::native::layer_norm_grad_input_kernel_backward<float>(int)"
SUM_OF_COLUMNS = (
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::sum_functor<float>>>(int)"
)
SUM_OF_ROWS = "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<float, at::native::sum_functor<float>>>(int)"
PICKED_BACKWARD = "void at::native::embedding_backward_kernel<float>(int)"


@pytest.mark.parametrize(
    ("learning", "frozen", "end", "told"),
    [
        (2, (BF16_GEMM, NORM_BACKWARD), (), True),
        (2, (SUM_OF_COLUMNS, NORM_BACKWARD), (), False),  # tables, without products in either pass
        (0, (BF16_GEMM, NORM_BACKWARD), (), False),  # only the input learns
        (2, (BF16_GEMM, NORM_BACKWARD), (PICKED_BACKWARD,), False),  # a prompt learns
        (2, (BF16_GEMM, SUM_OF_ROWS, NORM_BACKWARD), (), False),  # biases learn
        (2, (BF16_GEMM, BF16_GEMM, NORM_BACKWARD), (), False),  # all layers learn
    ],
)
def test_without_shapes_frozen_layers_at_the_end_of_a_backward_pass_have_one_product_for_each_of_the_forward_pass(
    learning: int, frozen: tuple[str, ...], end: tuple[str, ...], told: bool
) -> None:
    """Ten layers of two products, of which the last ones learn."""
    forward = [BF16_GEMM, BF16_GEMM, NORM] * 10 if BF16_GEMM in frozen else [BF16_GEMM] * 3 + [NORM, SUM_OF_COLUMNS] * 9
    backward = [BF16_GEMM] * 4 * learning + [NORM_BACKWARD] * learning
    backward += [name for each in frozen for name in ([each] * 2 if each == BF16_GEMM else [each])] * (10 - learning)
    kernels, calls, ranges, now, gpu = [], [], [], 0, 0
    for _ in range(3):
        began = now
        work = [(name, 1) for name in forward] + [(name, AUTOGRAD_THREAD) for name in (*backward, *end)]
        for name, thread in [*work, (FUSED_ADAM, 1)]:
            number, begin = len(calls) + 1, max(gpu, now + 2 * US)
            gpu = begin + (100 if name == BF16_GEMM else 10) * US
            kernels.append(kernel(begin, gpu, name, correlation=number, full_name=name, grid=(1056, 1, 1)))
            calls.append(launch(now, now + US, number, thread=thread))
            now += 2 * US
        calls.append(call(now, gpu + 5 * US, "cudaDeviceSynchronize"))
        now = gpu + 6 * US
        ranges.append(annotation(began, now, "step"))
    timeline = program(kernels, calls, ranges)
    finding = diagnose(timeline, timeline.window()).finding("unused-gradients")
    assert (finding is not None) is told
    if finding is not None:
        assert finding.confidence == "low"
        whole = sum(100 if name == BF16_GEMM else 10 for name in (*forward, *backward, FUSED_ADAM))
        assert finding.expected == pytest.approx(whole / (whole - 8 * 210), rel=0.05)
