"""How quantities and names are written for people."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warplens.report import text as fmt


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0 ns"),
        (7, "7 ns"),
        (999, "999 ns"),
        (1_000, "1.00 µs"),
        (1_234_567, "1.23 ms"),
        (999_949, "1.00 ms"),
        (72_731.34, "72.7 µs"),
        (83_200_000_000, "83.2 s"),
        (-1_500, "−1.50 µs"),
        (12.34, "12.3 ns"),
    ],
)
def test_a_duration_has_three_digits_in_the_unit_that_suits_it(nanoseconds, text):
    assert fmt.duration(nanoseconds) == text


def test_bytes_over_seconds_is_the_bandwidth_beside_them():
    assert fmt.data_size(1_500_000) == "1.50 MB"
    assert fmt.bandwidth(1_500_000 / 0.001) == "1.50 GB/s"


@pytest.mark.parametrize(("part", "text"), [(0, "0.0 %"), (1, "100.0 %"), (0.4213, "42.1 %"), (0.0004, "<0.1 %")])
def test_a_share_that_is_there_never_reads_as_nothing(part, text):
    assert fmt.share(part) == text


def test_counts_are_exact_and_grouped():
    assert fmt.count(7267) == "7,267"
    assert fmt.count(726.74) == "726.7"
    assert fmt.rate(11_140) == "11.1 k/s"


@pytest.mark.parametrize("unknown", [None, float("nan"), float("inf")])
def test_what_is_not_known_is_not_written_as_a_number(unknown):
    assert fmt.value(unknown, "duration_ns") == fmt.MISSING


@given(st.integers(0, 10**18))
def test_rounding_a_duration_moves_it_by_less_than_one_percent(nanoseconds):
    number, unit = fmt.duration(nanoseconds).split(" ")
    shown = float(number.replace(",", "")) * {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9}[unit]
    assert shown == pytest.approx(nanoseconds, rel=0.0051)


@pytest.mark.parametrize(
    ("full", "short"),
    [
        (
            "void at::native::vectorized_elementwise_kernel<(int)4, at::native::FillFunctor<float>, "
            "std::array<char *, (unsigned long)1>>(int, T2, T3)",
            "vectorized_elementwise_kernel<FillFunctor>",
        ),
        (
            "void at::native::elementwise_kernel<(int)128, (int)2, void at::native::gpu_kernel_impl_nocast<"
            "at::native::BinaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float>>>"
            "(at::TensorIteratorBase &, const T1 &)::[lambda(int) (instance 1)]>(int, T3)",
            "elementwise_kernel<MulFunctor>",
        ),
        (
            "void at::native::elementwise_kernel<(int)128, (int)2, void at::native::gpu_kernel_impl_nocast<"
            "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase &)::[lambda() (instance 3)]::operator ()() "
            "const::[lambda() (instance 7)]>(at::TensorIteratorBase &, const T1 &)>(int, T3)",
            "elementwise_kernel<direct_copy_kernel_cuda>",
        ),
        (
            "void at::native::reduce_kernel<(int)512, (int)1, at::native::ReduceOp<float, at::native::MaxOps<float>, "
            "unsigned int, float, (int)4, (int)4>>(T3)",
            "reduce_kernel<MaxOps>",
        ),
        (
            "void at::native::<unnamed>::multi_tensor_apply_kernel<at::native::<unnamed>::TensorListMetadata<(int)2>, "
            "at::native::<unnamed>::UnaryOpFunctor<float, (int)2, (int)1, (int)1>, at::native::Sqrt<float>>(T1, T2)",
            "multi_tensor_apply_kernel<Sqrt>",
        ),
        (
            "void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>(T1::Params)",
            "cutlass_80_simt_sgemm_256x128_8x4_nn_align1",
        ),
        (
            "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<(int)128>, (bool)0>(flash::Flash_fwd_params)",
            "flash_fwd_kernel<…>",
        ),
        (
            "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4_"
            "execute_split_k_kernel__5x_cublas",
            "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_split_k",
        ),
        ("triton_poi_fused__to_copy_add_mul_0", "triton_poi_fused__to_copy_add_mul_0"),
        ("16 more kernels besides matrix products", "16 more kernels besides matrix products"),  # a row of the rest
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<(unsigned long)4096>)", "ncclDevKernel_SendRecv"),
        ("(anonymous namespace)::scale(float*, float)", "scale"),
        ("void reduce_kernel<512, 1, MaxOps<float", "reduce_kernel<MaxOps>"),  # cut short by a profiler
        (
            "std::enable_if<(((8)>(0)))&&vllm::_typeConvert<c10::BFloat16>::exists, void>::type "
            "vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, long)",
            "fused_add_rms_norm_kernel<…>",
        ),
        (  # mangled, as ROCm and some traces leave names
            "_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdINS_27Rmsnorm2dFwdPipelineOnePassINS_27Rmsnorm2dFwdPipelineProblemI",
            "Rmsnorm2dFwd",
        ),
    ],
)
def test_a_kernel_is_named_by_what_tells_it_from_others(full, short):
    assert fmt.shorten_kernel(full) == short


_LOOP = (
    "void at::native::elementwise_kernel<128, {width}, at::native::gpu_kernel_impl<at::native::{functor}<{type}>>>(int)"
)


def test_kernels_that_would_look_alike_are_told_apart_by_what_differs():
    multiply = [("float", 2), ("c10::BFloat16", 2), ("c10::BFloat16", 4)]
    names = [_LOOP.format(functor="MulFunctor", type=kind, width=width) for kind, width in multiply]
    other = _LOOP.format(functor="AddFunctor", type="float", width=2)
    labels = fmt.kernel_labels([*names, other])
    assert list(labels.values()) == [
        "elementwise_kernel<MulFunctor, float, 2>",
        "elementwise_kernel<MulFunctor, BFloat16, 2>",
        "elementwise_kernel<MulFunctor, BFloat16, 4>",
        "elementwise_kernel<AddFunctor>",
    ]


@given(st.lists(st.text(max_size=60), max_size=8))
def test_no_two_kernels_are_called_the_same(names):
    assert len(set(fmt.kernel_labels(names).values())) == len(set(names))


@given(st.text(max_size=300))
def test_any_name_can_be_shortened(name):
    assert len(fmt.shorten_kernel(name, 40)) <= 40
    text, full = fmt.name_and_full(name, None, "kernel")
    assert full is None or full != text


def test_begin_and_tail_of_a_long_name_stay_readable():
    assert fmt.shorten("a" * 60 + "b" * 60, 20) == "a" * 14 + "…" + "b" * 5


def test_a_name_cannot_steer_the_terminal_or_turn_the_text_around():
    assert fmt.printable("a\x1b[2Jb\u202ec\nd") == "a\N{REPLACEMENT CHARACTER}[2Jb\N{REPLACEMENT CHARACTER}c d"


@pytest.mark.parametrize("character", ["\x00", "\x1b", "\ud800", "\ufffe", "\uffff"])
def test_a_printable_name_holds_nothing_that_xml_refuses(character):
    assert fmt.printable(f"a{character}b") == "a\N{REPLACEMENT CHARACTER}b"


@pytest.mark.parametrize("name", ["a b.json", "-a.json", "a\nb.json", "it's \\.json", "b\udcff.json"])
def test_a_path_in_a_command_is_one_line_and_one_word_that_the_shell_turns_into_the_path(name):
    word = fmt.shell_word(name)
    assert word.isprintable()
    if bash := shutil.which("bash"):
        said = subprocess.run([bash, "-c", f"printf %s {word}"], capture_output=True, check=True).stdout
        assert os.fsdecode(said).removeprefix("./") == name
