"""What a kernel's name reveals: its library, the number format of its operands, and the arithmetic unit."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache
from typing import NamedTuple

from warplens.patterns import lazy_pattern
from warplens.profile.spelling import NameParts

#: In order of precedence: library, pattern of the function, or else pattern of the template arguments. cuBLAS and cuDNN
#: contain kernels of CUTLASS and xmma: for products that family is named, because it identifies the implementation;
#: cuDNN where its name appears.
_LIBRARIES: tuple[tuple[str, str, str], ...] = (
    ("nccl", r"^nccl|^oneRankReduce", ""),
    ("rccl", r"^rccl", ""),
    ("msccl", r"^msccl|\bmscclpp\b", ""),
    ("nvshmem", r"nvshmem", ""),
    ("deepep", r"\bdeep_ep", ""),
    ("nvjet", r"^nvjet", ""),
    (
        "cudnn",
        r"cudnn|^cask_|^fft2d_[rc]2[rc]_|^(implicit|explicit|precomputed)_convolve|^convolve_|^[dw]grad_(alg\d_)?engine"
        r"|^(conv|dgrad|wgrad)[12][dD]_|_elementWise_[fb]p|^RNN_blockPersist|^persistRNN|[nN]chwToFolded|^foldedNhwc|^nhwcAdd",
        "",
    ),
    ("xmma", r"(^|_)xmma_", ""),
    (
        "flash-attn",
        r"(^|::)(pytorch_)?flash(_attn\w*)?::|(^|::)flash_(fwd|bwd)_|FlashAttention",
        r"\bflash::|FlashAttn",
    ),
    ("mem-efficient", r"^fmha_cutlass[FB]_", r"PyTorchMemEffAttention|\bAttention(Backward)?Kernel<"),
    ("flashinfer", r"\bflashinfer", ""),
    ("vllm", r"\bvllm::", ""),
    ("sglang", r"\b(sglang|sgl_kernel)", ""),
    ("tensorrt-llm", r"\btensorrt_llm::|^fmhaSm\d+|^bmm_[A-Z]|^fmha_v2_", ""),
    ("transformer-engine", r"\btransformer_engine", ""),
    ("deepgemm", r"\bdeep_gemm::", ""),
    ("nvjpeg", r"\bnvjpeg\w*::", ""),
    ("dali", r"\bdali::", ""),
    ("marlin", r"\b[mM]arlin", ""),
    ("fbgemm", r"\bfbgemm_gpu|\bsplit_embedding|_codegen_", ""),
    ("torchvision", r"^vision::", ""),
    ("cub", r"\bcub::", ""),
    ("thrust", r"\bthrust::", ""),
    (
        "at-native",
        # ncu prints PyTorch's kernels without their namespace, and some are in the anonymous one.
        r"^at::|^c10d?::|^(vectorized_|unrolled_)?elementwise_kernel(_with_index|_manual_unroll)?$|^softmax_warp|^cunn_"
        r"|^CatArrayBatchedCopy|^(sb|mb)topk::|^(bitonic|radix)SortKV|^vectorized_(gather|layer_norm)_kernel"
        r"|^_scatter_gather_elementwise|^reduce_kernel$|^index(_elementwise_kernel$|ing_backward|Select)|^compute_cuda_kernel$"
        r"|^randperm_|_(vectorized|unrolled)\d+_kernel$|^reduction_\w+_kernel$|^multimem_all_reduce_kernel$",
        "",
    ),
    ("cutlass", r"\bcutlass|^kernel_cutlass", r"^cutlass"),
    ("cublaslt", r"\bcublasLt::|^epilogue::impl", ""),
    ("magma", r"^magma", ""),
    ("cusparse", r"\bcusparse::", ""),
    (
        "cublas",
        r"^(maxwell|pascal|volta|turing|ampere|ada|hopper|blackwell)_|^gemv\d?[NT]|gemvx::|^gemm(SN|k1)|^splitKreduce"
        r"|^(dot|scal|reduce_1Block)_kernel|^[sdchz]gemm_largek",
        r"\bcublas",
    ),
    ("cufft", r"^(regular|vector|prime|multi_bluestein)_fft", ""),
    ("tensile", r"^(Custom_)?Cijk_", ""),
    ("ck", r"\bck(_tile)?::", ""),
    ("miopen", r"(?i)^miopen", ""),
    ("xla", r"^(loop|input)_\w*fusion|^wrapped_|^(gemm_)?fusion(_|$)|^triton_(softmax|gemm)|^sort(_\d+)+", ""),
    ("triton", r"^triton_", ""),
)

#: All library names, sorted.
LIBRARY_NAMES: tuple[str, ...] = tuple(sorted({name for name, _, _ in _LIBRARIES}))


def library_of(parts: NameParts) -> str | None:
    """The library that a kernel's name shows; None for hand-written kernels and most Triton ones."""
    for name, function, template in _compiled():
        if function.search(parts.function) or (template and template.search(parts.template)):
            return name
    return None


@cache
def _compiled() -> tuple[tuple[str, re.Pattern[str], re.Pattern[str] | None], ...]:
    return tuple(
        (name, re.compile(function), re.compile(template) if template else None)
        for name, function, template in _LIBRARIES
    )


# --- The number format and the execution unit that a kernel's name reveals ---
#
# The precision is that of the operands of the arithmetic: the multiplied format, not the accumulator's. Where two
# operands differ (fp4 weights with bf16 activations), it is the wider one, in which the product is computed. A name
# that does not reveal it gives None, never a guess: `splitKreduce_kernel<float>` may belong to a product of any format.
# Sources: CUTLASS's documented kernel names (media/docs/cpp/profiler.md), the names in NVIDIA's libraries, and for
# `nvjet`, which is documented nowhere, what cuBLAS 13 launched for products of known formats on an H200.

#: All formats, from the narrowest to the widest.
PRECISIONS = ("fp4", "fp8", "int8", "fp16", "bf16", "tf32", "fp32", "fp64")

#: The categories that multiply matrices. Kernels of other categories use no tensor cores, except those in
#: `_UNKNOWABLE`.
PRODUCTS = ("gemm", "attention", "convolution")
#: Categories of kernels that read, do a few operations per number, and write: memory traffic determines their time.
PASSES = ("elementwise", "reduction", "normalization", "softmax", "copy-cast", "random")
_UNKNOWABLE = ("other", "triton", "recurrence")


#: Names of fp16 products on tensor cores that are summed in fp16, too: `h16816`, `f16f16` of xmma, `hhh` of nvjet.
#: GeForce cards make them twice as fast as those that are summed in fp32.
HALF_SUMS = r"(?:^|_)h(?:884|1688|16816)(?:gemm|cudnn|_)|xmma_\w*_f16f16_f16f16_|^nvjet_(?:sm\d+_)?hhh(?:[a-z]{2})?_"


class Arithmetic(NamedTuple):
    """The format of the operands (one of `PRECISIONS`), and whether tensor cores multiply them; None where unknown."""

    precision: str | None
    tensor_cores: bool | None


def arithmetic_of(parts: NameParts, category: str) -> Arithmetic:
    """The arithmetic that the name of a kernel of this category reveals."""
    if category in PRODUCTS:
        decoded = (decode(parts) for decode in _DECODERS[category])
        return next((arithmetic for arithmetic in decoded if arithmetic is not None), None) or _by_words(parts)
    precision = (
        _storage_format(parts.template) or _storage_format(parts.function) or _storage_format(_pointed_to(parts))
    )
    return Arithmetic(precision, None if category in _UNKNOWABLE else False)


# Spelling -------------------------------------------------------------------------------------------------------------

#: Spellings of formats in types and in names. The bounds exclude `Fp8KVCacheDataType`, `f16816` and the type `ue4m3` of
#: scale factors.
_FORMAT_NAMES = lazy_pattern(
    r"""(?P<fp4>(?i:e2m1|(?:nv|mx)?fp4(?![0-9]))|xf4(?![0-9a-z]))
      | (?P<fp8>(?i:(?<!u)e4m3|e5m2|float8|fp8(?!kv|[0-9]))|(?<![A-Za-z0-9])f8(?![0-9]))
      | (?P<int8>(?<![A-Za-z0-9])(?:s8|i8|int8)(?![0-9])|\bsigned\ char\b)
      | (?P<bf16>(?i:bfloat16|bf16))
      | (?P<fp16>(?i:half_t|c10::half|__half|_float16|(?<![a-z])fp16|(?<![a-z0-9])f16)(?![0-9])
          | \bhalf2?\b|(?<![A-Za-z])float16)
      | (?P<tf32>(?i:tf32|tfloat32))
      | (?P<fp32>(?<![A-Za-z])(?:float[234]?(?![A-Za-z0-9_])|float32)|(?i:(?<![a-z0-9])fp?32)(?![0-9]))
      | (?P<fp64>(?<![A-Za-z])(?:double2?(?![A-Za-z0-9_])|float64)|(?i:(?<![a-z0-9])fp?64)(?![0-9]))
    """,
    re.VERBOSE,
)
#: Types are at the front of a name; the rest of a long one is repetition.
_SEARCHED_LENGTH = 512
_POINTED_TO = lazy_pattern(r"([\w:]+)(?: const)?\s*\*")


def _formats_in(text: str) -> list[str]:
    """The formats named in a text, in order of occurrence."""
    return [match.lastgroup for match in _FORMAT_NAMES.finditer(text, 0, _SEARCHED_LENGTH) if match.lastgroup]


def _storage_format(text: str) -> str | None:
    # int8 is ignored here: masks, quantised caches and NCCL's broadcasts are typed as bytes.
    return _narrowest(format_ for format_ in _formats_in(text) if format_ != "int8")


def _pointed_to(parts: NameParts) -> str:
    return " ".join(_POINTED_TO.findall(parts.parameters, 0, _SEARCHED_LENGTH))


def _narrowest(formats: Iterable[str]) -> str | None:
    # fp16 and bf16 are equally wide: the first one mentioned wins, because `min` keeps the first of equals.
    return min(formats, key=lambda format_: PRECISIONS.index("fp16" if format_ == "bf16" else format_), default=None)


def _widest(formats: Iterable[str | None]) -> str | None:
    return max((format_ for format_ in formats if format_), key=PRECISIONS.index, default=None)


# Naming conventions: each decoder reads one, and returns None for names of other conventions
# ---------------------------

_NVJET = lazy_pattern(r"^nvjet_(?:sm\d+_)?(?P<types>[a-z]{3}|[a-z]{5})_")
#: nvjet_<A><B><compute><C><D>_…, where three letters stand for A = B and C = D.
_NVJET_LETTERS = {"o": "fp4", "q": "fp8", "r": "fp8", "i": "int8", "h": "fp16", "t": "bf16", "s": "tf32", "d": "fp64"}


def _nvjet(parts: NameParts) -> Arithmetic | None:
    if not parts.function.startswith("nvjet"):
        return None
    parsed = _NVJET.match(parts.function)
    operands = "" if parsed is None else parsed["types"][0] if len(parsed["types"]) == 3 else parsed["types"][:2]
    return Arithmetic(_widest(_NVJET_LETTERS.get(letter) for letter in operands), True)


_XMMA = lazy_pattern(r"_c?(?P<stored>[a-z]+\d+(?:m\d)?)c?\w*?_(?P<math>[tb]?[fi]\d+|e\dm\d)\w*?_c?[a-z]+\d+")
_XMMA_FORMATS = {
    "bf16": "bf16",
    "f16": "fp16",
    "tf32": "tf32",
    "f32": "fp32",
    "f64": "fp64",
    "i8": "int8",
    "e4m3": "fp8",
    "e5m2": "fp8",
}


def _xmma(parts: NameParts) -> Arithmetic | None:
    # sm80_xmma_gemm_<stored A><stored C>_<multiplied><accumulated>_<scale>_…_<tensor16x8x8 | warpgroupsize… | ffma>_…
    name = parts.function
    if "xmma_" not in name or "::" in name:
        return None
    match = _XMMA.search(name[name.index("xmma_") :])
    formats = [_XMMA_FORMATS.get(match[group]) for group in ("stored", "math")] if match else []
    precision = _narrowest(format_ for format_ in formats if format_)
    if re.search(r"_[fhd]fma(_|$)", name):
        return Arithmetic(precision, False)
    return Arithmetic(precision, True if re.search(r"_tensor\d|_warpgroupsize|xmma_sparse_", name) else None)


_SHAPED = lazy_pattern(
    r"(?<![A-Za-z0-9])(?P<kind>[shdczi])(?P<shape>\d{3,6}|\d+x\d+x\d+)_?(?P<math>\d+xbf16|[a-z]+\d+)?"
    r"(?:sp)?_?(?:gemm|cudnn|conv|fprop|dgrad|wgrad|syrk|trmm|symm|implicit)"
)
_UNSHAPED = lazy_pattern(r"(?<![a-z0-9])g?(?P<kind>[shdczi])(?:gemm|cudnn)(?![a-z])")
_ERA = lazy_pattern(r"^(?:cudnn_\w*?)?(?P<name>maxwell|pascal|volta|turing|ampere|ada|hopper|blackwell)_")
_OF_KIND = {"s": "fp32", "c": "fp32", "h": "fp16", "d": "fp64", "z": "fp64", "i": "int8"}


def _blas(parts: NameParts) -> Arithmetic | None:
    """cuBLAS, cuDNN and CUTLASS spell the instruction: `ampere_bf16_s16816gemm_bf16_…`, `cutlass_80_simt_sgemm_…`."""
    first = parts.template.partition(",")[0]
    name = first if first.startswith("cutlass") else parts.function
    shaped = _SHAPED.search(name)
    if shaped is not None:
        return Arithmetic(_format_of_instruction(name, shaped), True)
    plain = _UNSHAPED.search(name)
    if plain is None or re.search(r"mma|tensorop", name):
        return None
    precision = _narrowest(_formats_in(name)) or _OF_KIND[plain["kind"]]
    # A hand-written `hgemm` or `dgemm` may still use tensor cores; fp32 has none, unless the name says tf32.
    certain = _ERA.match(name) or "simt" in name or (plain["kind"] == "s" and precision != "tf32")
    return Arithmetic(precision, False if certain else None)


def _format_of_instruction(name: str, shaped: re.Match[str]) -> str | None:
    if (shaped["math"] or "").endswith("xbf16"):
        return "fp32"  # emulated with several bf16 products
    spelled = _narrowest(_formats_in(name))
    if spelled or shaped["kind"] in "hdzi":
        return spelled or _OF_KIND[shaped["kind"]]
    # s884, s1688 and c1688 remain. Without further hints they are fp16 on Volta and Turing, whose tensor cores support
    # no other floating format; since Ampere m16n8k8 is TF32.
    era = _ERA.match(name)
    if (era and era["name"] in ("volta", "turing")) or re.search(r"_7[05]_", name):
        return "fp16"
    return "tf32" if shaped["shape"] == "1688" else None


_TENSILE = lazy_pattern(r"^(?:Custom_)?Cijk_A[a-z]+_B[a-z]+_(?P<type>F8|B8|I8|4xi8|[SDCZHB])")
_TENSILE_FORMATS = {
    "F8": "fp8",
    "B8": "fp8",
    "I8": "int8",
    "4xi8": "int8",
    "H": "fp16",
    "B": "bf16",
    "S": "fp32",
    "C": "fp32",
    "D": "fp64",
    "Z": "fp64",
}


def _tensile(parts: NameParts) -> Arithmetic | None:
    # Cijk_<layouts>_<types>_…: MI16x16x1 names the matrix instruction, TT4_4 the tile of a thread that has none.
    if "Cijk_" not in parts.function:
        return None
    name_match = _TENSILE.match(parts.function)
    matrix = True if re.search(r"_MI\d", parts.function) else False if re.search(r"_TT\d", parts.function) else None
    return Arithmetic(_TENSILE_FORMATS[name_match["type"]] if name_match else None, matrix)


_OPERAND = r"(?:Mx)?(?:E\dm\d|Bfloat16|Fp16)"
_TRTLLM_PRODUCT = lazy_pattern(rf"^(?:bmm|gemm)_\w+?_(?P<a>{_OPERAND})(?P<b>{_OPERAND})?_Fp32_")
_TRITON_PRODUCT = lazy_pattern(r"^_?(?:p_)?matmul_ogs_\w+?_[a-z]+\d\w*?x(?P<a>\w+?)x(?P<b>\w+?)_\d+x")


def _generated(parts: NameParts) -> Arithmetic | None:
    """TensorRT-LLM's `bmm_<C>_<A><B>_<sum>_…`, Triton's `matmul_ogs_<layouts>_<C>x<A>x<B>_…`."""
    for pattern, tensor_cores in ((_TRTLLM_PRODUCT, True), (_TRITON_PRODUCT, None)):
        name_match = pattern.match(parts.function)
        if name_match is not None:
            return Arithmetic(_widest(_narrowest(_formats_in(name_match[side] or "")) for side in "ab"), tensor_cores)
    return None


_MMA_ATOM = lazy_pattern(
    r"(?:SM\d+_|\bMMA_)(?:MMA_)?(?:\d+x\d+x\d+_)?(?:F32|F16|S32|F64)?"
    r"(?P<a>BF16|F16(?!BF16)|TF32|E4M3|E5M2|S8|U8|F64|MXF4)"
)
_ATOM_FORMATS = {
    "MXF4": "fp4",
    "E4M3": "fp8",
    "E5M2": "fp8",
    "S8": "int8",
    "U8": "int8",
    "F16": "fp16",
    "BF16": "bf16",
    "TF32": "tf32",
    "F64": "fp64",
}


def _mma_atom(parts: NameParts) -> Arithmetic | None:
    """CUTLASS 3 spells the instruction as a type: `SM90_64x128x16_F32BF16BF16_SS`."""
    atom = _MMA_ATOM.search(parts.template)
    return None if atom is None else Arithmetic(_ATOM_FORMATS[atom["a"]], True)


def _around_product(parts: NameParts) -> Arithmetic | None:
    """Passes after a product: sums over its parts, epilogues. fp32 partial sums do not reveal the operands' format."""
    is_carrier = parts.function.endswith(("Kernel", "Kernel2"))
    if not re.search(r"(?i)split_?k_?reduc|reduce_?split_?k|epilogue::impl", parts.function) and not (
        is_carrier and "ReduceSplitK" in parts.template
    ):
        return None
    precision = _narrowest(_formats_in(parts.template))
    return Arithmetic(None if precision in ("fp32", "tf32") else precision, False)


# Attention ------------------------------------------------------------------------------------------------------------

_AROUND_ATTENTION = lazy_pattern(r"dot_do_o|convert_dk?[qv]|[cC]ombine|lean_reduction|[mM]erge_?[sS]tate|preprocess")
_AROUND_FLASH_3 = lazy_pattern(r"FlashAttn\w*(Combine|Preprocess|Postprocess)")
_FMHA_CUTLASS = lazy_pattern(r"^fmha_cutlass[FB]_(?P<format>bf16|f16|f32)_\w*sm(?P<architecture>\d+)$")
#: From this architecture on PyTorch's memory-efficient attention multiplies the format on tensor cores, fp32 as three
#: TF32 products (`DefaultGemmType` in its sources).
_FMHA_TENSOR_CORES_SINCE = {"f32": 80, "bf16": 80, "f16": 70}
_FMHA_TRTLLM = lazy_pattern(r"^fmhaSm\d+\w*?_Q(?:kv)?(?P<query>E\dm\d|Bfloat16|Fp16)")
_FLASH = lazy_pattern(r"flash_(fwd|bwd)|FlashAttn|FlashAttention|fmha_v2|(Batch|Single)Prefill")
_ONE_QUERY = lazy_pattern(r"(Batch|Single)DecodeWith|paged_attention_(v\d|kernel)|single_query_cached")


def _attention(parts: NameParts) -> Arithmetic | None:
    name = parts.function
    if _AROUND_ATTENTION.search(name) or _AROUND_FLASH_3.search(parts.template):
        return Arithmetic(_query_format(parts), False)
    memory_efficient = _FMHA_CUTLASS.match(name)
    if memory_efficient is not None:
        since = _FMHA_TENSOR_CORES_SINCE[memory_efficient["format"]]
        return Arithmetic(_query_format(parts), int(memory_efficient["architecture"]) >= since)
    if name.startswith("cudnn_generated"):
        # `f16` stands for either 16-bit format: cuDNN launches the same name for fp16 and for bf16.
        return Arithmetic(_narrowest(set(_formats_in(name)) - {"fp16"}), True if "mma" in name else None)
    trtllm = _FMHA_TRTLLM.match(name)
    if trtllm is not None:
        return Arithmetic(_narrowest(_formats_in(trtllm["query"])), True)
    if _FLASH.search(name) or _FLASH.search(parts.template):
        return Arithmetic(_query_format(parts), True)
    if _ONE_QUERY.search(name):
        return Arithmetic(_query_format(parts), False)  # dot products on the vector units
    return None


def _query_format(parts: NameParts) -> str | None:
    # The query's type comes first; a key-value cache may be narrower, and statistics and scales are always fp32.
    formats = _formats_in(parts.function) or _formats_in(parts.template)
    return next((format_ for format_ in formats if format_ not in ("fp32", "fp64")), formats[0] if formats else None)


# Everything else ------------------------------------------------------------------------------------------------------

_ON_VECTOR_UNITS = lazy_pattern(
    r"gemv|^gemm(SN|k1)|gemvx::|(^|::)kernel$|^dot_kernel$|^reduce_1Block|_engine|winograd|depthwise\d?d?_|convolve|^fft2d|^pointwise_mult_and_sum"
    r"|[cC]ompute\w*Offsets|im2col|col2im|im2vol|vol2col|init_device_workspace|kernel_helper"
)
_SIMT = lazy_pattern(r"OpClassSimt|MmaSimt")
_ON_TENSOR_CORES = lazy_pattern(
    r"(?i)[hiu]?mma(?=_|\d|kernel|gemm)|wgmma|tensorop|tcgen05|mma_tensor_op|marlin|deep_gemm|MainloopSm"
)


def _by_words(parts: NameParts) -> Arithmetic:
    """Arithmetic from the types and words of a product's name, where no convention is known."""
    # A function names its operands first (`fp8_fp4_gemm`); a template may begin with the type of the sum.
    precision = next(iter(_formats_in(parts.function)), None) or _narrowest(_formats_in(parts.template))
    if _ON_VECTOR_UNITS.search(parts.function) or _SIMT.search(parts.template):
        return Arithmetic(precision, False)
    named = _ON_TENSOR_CORES.search(parts.function) or _ON_TENSOR_CORES.search(parts.template)
    return Arithmetic(precision, True if named else None)


_DECODERS: dict[str, tuple[Callable[[NameParts], Arithmetic | None], ...]] = {
    "gemm": (_nvjet, _around_product, _xmma, _blas, _tensile, _generated, _mma_atom),
    "attention": (_attention, _mma_atom),
    "convolution": (_around_product, _xmma, _blas, _mma_atom),
}
