"""What kernel names mean.

Three sources that know the answer independently of the rules: a table of well-known names with what they are known to
be; the kernels that PyTorch launched on an H200 for operations that were run one by one; and whole profiles of real
programs, where nearly all of the GPU time must have a name that tells.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import warplens
from tests.analysis.builders import kernel, trace
from tests.shipped import OTHERS
from warplens.analysis.categories import CATEGORIES, CLASSES, RULES, classify, classify_names
from warplens.analysis.kernel_names import PRECISIONS, PRODUCTS
from warplens.profile.spelling import split_name

_DATA = Path(__file__).parent / "data"

#: More time than this without a category, in a program made of library kernels, is a gap in the rules.
_MOST_OTHER_SHARE = 0.02


# Well-known names -----------------------------------------------------------------------------------------------------

_TRUTH = {"yes": True, "no": False, "-": None}


def _well_known() -> list[dict[str, str]]:
    with (_DATA / "kernel_names.tsv").open(encoding="utf-8", newline="") as table:
        return list(csv.DictReader(table, delimiter="\t", quoting=csv.QUOTE_NONE))


@pytest.mark.parametrize("known", _well_known(), ids=lambda known: known["name"][:60])
def test_well_known_kernels_are_what_they_are_known_to_be(known):
    found = classify(known["name"])

    assert found.category == known["category"]
    assert (found.precision or "-") == known["precision"]
    assert found.tensor_cores is _TRUTH[known["tensor_cores"]]


def test_each_rule_decides_the_category_of_a_well_known_kernel():
    deciding = {classify(known["name"]).rule for known in _well_known()}

    assert [rule.name for rule in RULES if rule.name not in deciding] == []


def test_each_rule_has_its_own_name_and_a_declared_category():
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert {rule.category for rule in RULES} <= set(CATEGORIES)


@pytest.mark.parametrize(
    ("name", "library"),
    [
        ("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNN", "nvjet"),
        ("ampere_sgemm_128x64_tn", "cublas"),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float, float, float, float>", "cublaslt"),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>(T1::Params)", "cutlass"),
        ("void Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn_align8>(Params)", "cutlass"),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize64x64x8_stage3_ffma_execute_kernel__5x_cublas", "xmma"),
        ("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_execute_kernel__5x_cudnn", "cudnn"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_4x1x1_kernel0_0", "cudnn"),
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4> >", "flash-attn"),
        ("fmha_cutlassF_bf16_aligned_64x128_rf_sm80", "mem-efficient"),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float> >", "at-native"),
        ("void (anonymous namespace)::softmax_warp_forward<float, float, float, 8, false, false>", "at-native"),
        ("void at_cuda_detail::cub::DeviceScanKernel<long>", "cub"),
        ("void vllm::rms_norm_kernel<c10::BFloat16>", "vllm"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "nccl"),
        ("triton_poi_fused_add_0", "triton"),
        ("loop_add_fusion_3", "xla"),
        ("Cijk_Ailk_Bljk_HHS_BH_MT128x128x16_SE", "tensile"),
        ("my_kernel(float*)", None),
    ],
)
def test_the_library_is_told_by_namespace_or_habit(name, library):
    assert classify(name).library == library


# Spelling -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spellings",
    [
        pytest.param(
            [
                "void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::(anonymous namespace)::"
                "OpaqueType<4u>, unsigned int, 3, 64, 64>(at::native::(anonymous namespace)::OpaqueType<4u>*, int)",
                "void at::native::<unnamed>::CatArrayBatchedCopy<at::native::<unnamed>::OpaqueType<(unsigned int)4>"
                ", unsigned int, (int)3, (int)64, (int)64>(T1 *, T2)",
                "void unnamed>::CatArrayBatchedCopy<unnamed>::OpaqueType<4>, unsigned int, 3, 64, 64>(char *, T2)",
            ],
            id="the unnamed namespace of CUPTI, nsys and ncu",
        ),
        pytest.param(
            [
                "void at::native::vectorized_elementwise_kernel<4, at::native::bfloat16_copy_kernel_cuda("
                "at::TensorIteratorBase&)::{lambda(float)#1}, std::array<char*, 2ul> >(int, std::array<char*, 2ul>)",
                "void at::native::vectorized_elementwise_kernel<(int)4, at::native::bfloat16_copy_kernel_cuda("
                "at::TensorIteratorBase &)::[lambda(float) (instance 1)], std::array<char *, (unsigned long)2>>(int)",
                "void vectorized_elementwise_kernel<8, bfloat16_copy_kernel_cuda(TensorIteratorBase &)"
                "::[lambda(float) (instance 1)], array<char *, 2>>(int, T2, T3)",
            ],
            id="a lambda of CUPTI, nsys and ncu",
        ),
        pytest.param(
            [
                "void ck_tile::kentry<1, ck_tile::Rmsnorm2dFwd<ck_tile::Rmsnorm2dFwdPipelineProblem<__bf16> > >",
                "_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdINS_27Rmsnorm2dFwdPipelineProblemIDF16bEEEEEEvT0_",
            ],
            id="demangled and mangled",
        ),
        pytest.param(["triton_poi_fused_clone_3", "triton_poi_fused_clone_3.kd"], id="the suffix of ROCm"),
    ],
)
def test_a_kernel_is_the_same_however_a_tool_spells_it(spellings):
    category, library, precision, *_ = zip(*(_facts(name) for name in spellings), strict=True)

    assert len(set(category)) == len(set(library)) == len(set(precision)) == 1


def _facts(name: str) -> tuple[str, str | None, str | None]:
    found = classify(name)
    return found.category, found.library, found.precision


def test_the_full_name_decides_and_the_short_one_stands_in_for_it():
    full_name = "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIterator&)>"

    assert classify(full_name).category == "copy-cast"
    assert classify("unrolled_elementwise_kernel").category == "elementwise"


@pytest.mark.parametrize(
    ("name", "function", "template"),
    [
        ("ampere_sgemm_128x64_tn", "ampere_sgemm_128x64_tn", ""),
        ("void f<int, g(a, b<c>)>(int*)", "f", "int, g(a, b<c>)"),
        ("std::enable_if<(((8)>(0)))&&a::exists, void>::type b::kernel<c, 8>(c*)", "b::kernel", "c, 8"),
        ("a::b<c>::kernel(int)", "a::b<c>::kernel", ""),
        ("void f<a::operator()(b) const::{lambda(int)#1}>(int)", "f", "a::operator()(b) const::{lambda(int)#1}"),
        ("void f<a, b", "f", "a, b"),
        (
            "_ZN7cutlass13device_kernelIN5flash13enable_helperIS1_Li128EEEEEvT_",
            "cutlass::device_kernel",
            "flash, enable_helper",
        ),
        ("", "", ""),
    ],
)
def test_a_name_comes_apart_into_function_and_template_arguments(name, function, template):
    parts = split_name(name)

    assert (parts.function, parts.template) == (function, template)


def test_words_are_the_same_in_snake_case_and_camel_case():
    assert split_name("norm::FusedAddRMSNormKernel").words == split_name("norm_fused_add_rms_norm_kernel").words


@example("_Z09223372036854775786")
@example("_Z" + "9" * 5_000)
@given(st.text() | st.text(alphabet="<>(): _Z0123456789NSIEabGemm").map(lambda text: "_ZN" + text))
def test_any_text_gets_an_answer_of_the_declared_kind(name):
    found = classify(name)

    assert found.category in CATEGORIES
    assert found.precision is None or found.precision in PRECISIONS
    assert found.tensor_cores in (True, False, None)


# Operations run one by one on an H200 ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Operation:
    """What PyTorch was asked to do, and the kernels that it launched for it (some of them auxiliary)."""

    kind: str
    format: str | None
    description: str
    kernels: tuple[str, ...]

    @property
    def categories(self) -> set[str]:
        return {classify(name).category for name in self.kernels}


def _operations() -> list[Operation]:
    recorded = json.loads(gzip.decompress((_DATA / "kernel_names_h200.json.gz").read_bytes()))
    names = recorded["names"]
    return [
        Operation(row["kind"], row["format"], row["operation"], tuple(names[index] for index in row["kernels"]))
        for row in recorded["operations"]
    ]


OPERATIONS = _operations()

#: Operations that PyTorch carries out with kernels of another kind, and why that is right.
_DONE_OTHERWISE: dict[str, str] = {
    "addr": "an outer product is a broadcast multiplication",
    "median": "found by selection",
    "unfold": "im2col, the rearrangement of convolutions",
    "amp": "unscales lists of gradients",
    "cross": "a terse name, left as other",
    "conv2d (256, 256, 1, 28) cl1": "a 1×1 convolution over channels-last tensors is a plain product",
    "local response": "composed of pooling and arithmetic",
    "foreach copy": "listed under the copies",
    "randperm": "sorts random keys",
    "unique_consecutive": "a run-length encoding",
}


def _is_done_otherwise(operation: Operation) -> bool:
    return any(operation.description.startswith(start) for start in _DONE_OTHERWISE)


@pytest.mark.parametrize("kind", sorted({operation.kind for operation in OPERATIONS}))
def test_an_operation_launches_a_kernel_of_its_kind(kind):
    lacking = [
        operation.description
        for operation in OPERATIONS
        if operation.kind == kind and kind not in operation.categories and not _is_done_otherwise(operation)
    ]

    assert lacking == []


#: Who may launch kernels of the kinds that are no mere auxiliary of anything.
_LAUNCHED_BY = {
    "gemm": {"gemm", "convolution", "weight_norm", "adafactor"},
    "attention": {"attention"},
    "convolution": {"convolution", "unfold"},
    "softmax": {"softmax"},
    "normalization": {"normalization"},
    "optimizer": {"optimizer", "amp"},
    "communication": set(),
    "triton": set(),
}


@pytest.mark.parametrize("category", _LAUNCHED_BY)
def test_no_operation_of_another_kind_launches_such_kernels(category):
    allowed = _LAUNCHED_BY[category]
    strangers = [
        (operation.kind, operation.description)
        for operation in OPERATIONS
        if category in operation.categories
        and operation.kind not in allowed
        and not any(word in operation.description for word in allowed)
    ]

    assert strangers == []


#: The format of the real and the imaginary part.
_PARTS = {"c64": "fp32", "c128": "fp64"}


def _products() -> Iterator[tuple[Operation, str, Any]]:
    for operation in OPERATIONS:
        if operation.kind in PRODUCTS:
            for name in operation.kernels:
                found = classify(name)
                if found.category in PRODUCTS:
                    yield operation, name, found


def test_the_precision_of_a_product_is_that_of_its_operands_or_unknown():
    wrong = [
        (operation.description, operation.format, found.precision, name[:80])
        for operation, name, found in _products()
        if found.precision not in (None, _PARTS.get(str(operation.format), operation.format))
        # TF32 was allowed for these; where no tensor core is used, the product is a plain fp32 one.
        and not (operation.format == "tf32" and found.precision == "fp32" and not found.tensor_cores)
    ]

    assert wrong == []


def test_the_precision_of_most_products_is_known():
    known = [found.precision is not None for _, _, found in _products()]

    assert sum(known) > 0.85 * len(known)


def test_fp32_products_stay_off_the_tensor_cores_while_tf32_is_not_allowed():
    # The memory-efficient attention is the exception: it computes fp32 with three TF32 products.
    wrong = [
        (operation.description, name[:80])
        for operation, name, found in _products()
        if operation.format in ("fp32", "c64") and found.tensor_cores and found.library != "mem-efficient"
    ]

    assert wrong == []


@pytest.mark.parametrize("format_", ["fp8", "int8"])
def test_8_bit_products_run_on_tensor_cores(format_):
    found = [found for operation, _, found in _products() if operation.format == format_]

    assert found
    assert all(product.tensor_cores for product in found)


# Frames ---------------------------------------------------------------------------------------------------------------


def test_each_row_of_a_frame_gets_the_class_of_its_name():
    names = [known["name"] for known in _well_known()][:40]
    kernels = trace([kernel(i, i + 1, full_name=name) for i, name in enumerate([*names, *reversed(names)])]).kernels

    classes = classify_names(kernels)

    assert classes.schema == CLASSES.schema
    expected = [classify(name) for name in kernels["full_name"].cast(pl.String)]
    for column in CLASSES.names:
        assert classes[column].to_list() == [getattr(found, column) for found in expected]


def test_a_name_of_the_dictionary_that_no_kernel_has_is_harmless():
    dictionary = pl.Enum(["unused", "ampere_sgemm_32x32_nn"])
    kernels = pl.DataFrame({"full_name": pl.Series(["ampere_sgemm_32x32_nn"], dtype=dictionary)})

    assert classify_names(kernels)["category"].to_list() == ["gemm"]


def test_a_frame_without_kernels_gives_a_frame_of_the_same_columns():
    classes = classify_names(trace([]).kernels)

    assert classes.height == 0
    assert classes.schema == CLASSES.schema


# Whole profiles -------------------------------------------------------------------------------------------------------

#: Programs of hand-written kernels (`init_array`, `test2`), whose names rightly say nothing.
_HAND_WRITTEN = {"a100_tiny_2021", "gtx1060_streams_2022"}


def _from_nsys(path: Path) -> pl.DataFrame:
    kernels = warplens.read(path).kernels
    return kernels.select("full_name", (pl.col("end_ns") - pl.col("start_ns")).alias("duration"))


def _from_kineto(path: Path) -> pl.DataFrame:
    raw = path.read_bytes()
    text = gzip.decompress(raw) if path.suffix == ".gz" else raw
    loaded = json.loads(text.decode("utf-8", "replace"))
    events = loaded["traceEvents"] if isinstance(loaded, dict) else loaded
    kernels = [
        (event["name"], float(event.get("dur", 0))) for event in events if event.get("cat") in ("kernel", "Kernel")
    ]
    names = pl.Enum(sorted({name for name, _ in kernels}))
    return pl.DataFrame(kernels, schema={"full_name": pl.String, "duration": pl.Float64}, orient="row").cast(
        {"full_name": names}
    )


_LARGE = ("hta_negative_queue_rank0.json.gz", "hta_trace_diff_control.json.gz", "hta_trace_diff_test.json.gz")


def _profiles() -> list[Any]:
    sources: tuple[tuple[str, str, Callable[[Path], pl.DataFrame]], ...] = (
        ("nsys", "*.sqlite", _from_nsys),
        ("kineto", "*.json*", _from_kineto),
    )
    found = [
        pytest.param(path, read, id=path.name, marks=[pytest.mark.slow] * (path.name in _LARGE))
        for folder, pattern, read in sources
        for path in sorted((OTHERS / folder).glob(pattern))
        if path.name.partition(".")[0] not in _HAND_WRITTEN and not path.name.startswith("not_a")
    ]
    absent = pytest.mark.skip(reason="no folder of real profiles on this machine")
    return found or [pytest.param(None, None, marks=absent)]


@pytest.mark.parametrize(("path", "read"), _profiles())
def test_nearly_all_time_of_real_programs_has_a_category(path, read):
    kernels = read(path)
    if not kernels["duration"].sum():
        pytest.skip("no kernels in this profile")

    timed = kernels.with_columns(classify_names(kernels).get_columns())

    other = timed.filter(pl.col("category") == "other")
    assert other["duration"].sum() <= _MOST_OTHER_SHARE * timed["duration"].sum(), other["full_name"].unique().to_list()
