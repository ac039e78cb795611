"""Which library a kernel comes from, by its namespace or the habits of its names."""

from __future__ import annotations

import re
from functools import cache

from warplens.analysis.kernel_names import NameParts

__all__ = ["LIBRARY_NAMES", "library_of"]

#: In the order of precedence: the library, what the function shows of it, or else the template arguments. cuBLAS and
#: cuDNN contain kernels of CUTLASS and xmma: for products that family is named, because it tells which implementation
#: was chosen; cuDNN where its name is there.
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
    ("marlin", r"\b[mM]arlin", ""),
    ("fbgemm", r"\bfbgemm_gpu|\bsplit_embedding|_codegen_", ""),
    ("torchvision", r"^vision::", ""),
    ("cub", r"\bcub::", ""),
    ("thrust", r"\bthrust::", ""),
    (
        "at-native",
        # ncu prints PyTorch's kernels without their namespace, and some stand in the unnamed one.
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

#: All libraries that can be told, sorted.
LIBRARY_NAMES: tuple[str, ...] = tuple(sorted({name for name, _, _ in _LIBRARIES}))


def library_of(parts: NameParts) -> str | None:
    """The library that a kernel's name shows; None where it shows none (hand-written kernels, most Triton ones)."""
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
