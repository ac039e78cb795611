"""Classification of kernels by name: category, library, precision, tensor cores.

The category follows from one ordered table of rules. The first rule that matches decides.

A rule looks at up to four texts of a name (see `spelling.NameParts`), and matches where each of its patterns is found:

* `words`: the function in lower-case words. The default: it reads the same in snake case and in camel case.
* `own_words`: the same without namespaces, where one of them has the name of an operation (`fbgemm_gpu`, `fused_mlp`).
* `function`: the function as written, where its exact spelling is known.
* `template`: the template arguments. PyTorch's `elementwise_kernel`, CUTLASS's `Kernel2`, Thrust's `_kernel_agent` do
  not reveal their operation by their own name; it is in the template arguments.

A new kernel gets a rule only if its name proves what it does: `other` is honest, a wrong category misleads. Rules go
from the specific to the general, so a name that mentions two things has its rule above both (`fused_add_rms_norm` is a
normalisation, not an addition). Order is part of the meaning: insert with care, and give each rule a name in the tests.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache

import polars as pl

from warplens.analysis.kernel_names import LIBRARY_NAMES, PRECISIONS, arithmetic_of, library_of
from warplens.profile.columns import column, table
from warplens.profile.schema import once_per_dictionary
from warplens.profile.spelling import NameParts, split_name

#: Kinds of work, in the order of presentation.
CATEGORIES = (
    "gemm",
    "attention",
    "softmax",
    "normalization",
    "elementwise",
    "reduction",
    "gather-scatter",
    "sort-topk",
    "copy-cast",
    "convolution",
    "recurrence",
    "optimizer",
    "communication",
    "random",
    "triton",
    "other",
)

#: The category of kernels that no rule recognises.
OTHER = "other"


@dataclass(frozen=True)
class Rule:
    """A kernel whose name contains all stated patterns belongs to `category`."""

    name: str  #: stable identifier, to explain a classification
    category: str  #: one of `CATEGORIES`
    #: words, function, template, own_words: regular expressions; an empty one always matches
    words: str = ""
    function: str = ""
    template: str = ""
    own_words: str = ""

    @cached_property
    def _patterns(self) -> tuple[tuple[str, re.Pattern[str]], ...]:
        # Compiled when first needed: an import of the package must not pay for a hundred patterns.
        texts = ("words", "function", "template", "own_words")
        stated = ((text, getattr(self, text)) for text in texts)
        return tuple((text, re.compile(pattern)) for text, pattern in stated if pattern)

    def holds(self, parts: NameParts) -> bool:
        """Whether each stated pattern is found."""
        for text, pattern in self._patterns:  # noqa: SIM110  (a generator costs more than the searches)
            if pattern.search(getattr(parts, text)) is None:
                return False
        return True


# Kernels whose own name does not reveal the operation, which is a template argument.
_ELEMENTWISE_CARRIER = r"(^|::|_)elementwise_kernel(_[a-z_]+)?$|kernelPointwiseApply\d"
_CUTLASS_CARRIER = r"(^|::)(Kernel2?|device_kernel)$|^ck_tile::kentry$|^attention_kernel"
_THRUST_CARRIER = r"_kernel_agent$"

# One operation that only moves data, in the list of fused operations that is an Inductor kernel's name.
_INDUCTOR_MOVE = (
    r"(to copy|clone|copy|cat|stack|t|transpose|permute|view|unsafe view|reshape|slice|select|expand|squeeze|unsqueeze"
    r"|split|split with sizes|constant pad nd|unbind|as strided|flip|roll|repeat|alias|contiguous|convert element type)"
)
_XLA_MOVE = r"(copy|transpose|convert|concatenate|(dynamic )?(update )?slice|pad|reverse|bitcast|reshape)"

#: In the order of their precedence.
RULES: tuple[Rule, ...] = (
    # -- triton_<kind>_fused_<operations>_<number>: pointwise, (persistent) reduction, template, split scan, foreach.
    Rule("inductor-attention", "attention", r"^triton \w+ fused .*flex attention|^triton tem .*(attention|sdpa)"),
    Rule("inductor-convolution", "convolution", r"^triton tem .*conv|^triton conv(olution)?\b"),
    # Templates are what Inductor autotunes: products, convolutions, flex attention.
    Rule("inductor-template", "gemm", r"^triton tem\b|^triton (scaled |grouped )*(add|b|badd)?mm\b"),
    Rule("inductor-softmax", "softmax", r"^triton (red|per|mix) fused .*softmax"),
    # An RMS norm written in plain operations keeps its mean and its reciprocal root in the list.
    Rule(
        "inductor-normalization",
        "normalization",
        r"^triton (red|per|mix) fused (?=.*(\b(layer|group|batch|rms|instance) norm\b|\bmean\b.*\brsqrt\b))",
    ),
    Rule("inductor-sort", "sort-topk", r"^triton (red|per|poi) fused .*\b(sort|topk)\b"),
    Rule("inductor-reduction", "reduction", r"^triton (red|per|mix|spl) fused\b"),
    # Several tensors in one kernel come from foreach operations, which optimizers are written with.
    Rule("inductor-foreach", "optimizer", r"^triton for fused\b"),
    Rule(
        "inductor-random",
        "random",
        r"^triton poi fused( (rand|randn|randint|bernoulli|inductor random)( like)?)+( \d+)?$",
    ),
    Rule("inductor-movement", "copy-cast", rf"^triton poi fused( {_INDUCTOR_MOVE})+( \d+)?$"),
    Rule(
        "inductor-gather",
        "gather-scatter",
        r"^triton poi fused .*\b(embedding|gather|scatter|index (select|add|put|copy|fill))\b"
        rf"|^triton poi fused( ({_INDUCTOR_MOVE}|arange))*( index)( {_INDUCTOR_MOVE})*( \d+)?$",
    ),
    Rule("inductor-pointwise", "elementwise", r"^triton poi fused\b"),
    # -- <emitter>_<operations>_fusion and wrapped_<operation>.
    Rule("xla-gemm", "gemm", function=r"^(triton_gemm|(gemm|cublas|cudnn_gemm)_fusion)"),
    # XLA gives this name to every row-wise normalisation that it fuses; a layer norm cannot be told apart.
    Rule("xla-softmax", "softmax", r"^triton softmax( \d+)*$"),
    Rule("xla-reduction", "reduction", r"^((loop|input) .*\breduce\b(?! precision).*\bfusion|wrapped reduce)( \d+)*$"),
    Rule(
        "xla-gather",
        "gather-scatter",
        r"^((loop|input) .*\b(gather|scatter)\b.*\bfusion|wrapped (gather|scatter))( \d+)*$",
    ),
    Rule("xla-random", "random", r"^(loop|input|wrapped) .*\brng\b"),
    Rule("xla-movement", "copy-cast", rf"^((loop|input|wrapped)( {_XLA_MOVE})+|{_XLA_MOVE})( fusion)?( \d+)*$"),
    Rule("xla-sort", "sort-topk", function=r"^sort(_\d+)+(__\d+)?$"),
    Rule("xla-elementwise", "elementwise", r"^((loop|input) .*\bfusion|wrapped [a-z ]+)( \d+)*$"),
    # -- Communication.
    Rule("nccl", "communication", function=r"^(nccl|rccl|msccl)[A-Za-z_]|^oneRankReduce|\bcomm::"),
    Rule("expert-parallel", "communication", function=r"\bdeep_ep\w*::|\b(intra|inter)node(_ll)?::|\bpplx::"),
    Rule(
        "device-initiated",
        "communication",
        r"nvshmem|\bon stream kernel\b|\bsymm(etric)? mem(ory)?\b|\bmscclpp\b|\buserbuffers\b"
        r"|\bmultimem\b|\blamport\b",
    ),
    # An all-reduce of a block or a warp stays within one GPU.
    Rule(
        "collective",
        "communication",
        r"(?<!block )(?<!warp )\b(all ?reduce|all ?gather|reduce ?scatter|all ?(to|2) ?all)"
        r"|\bcross device reduce\b"
        r"|\bmoe a 2 a\b",
    ),
    # -- Recurrences: a state that goes from token to token. cuDNN's and PyTorch's kernels of single cells are the gates
    # between products, and linear attention whose kernels say so stays attention.
    # Products, gates and synchronization of all time steps in one kernel.
    Rule("persistent-rnn", "recurrence", r"^rnn block persist|^persist rnn"),
    # Mamba 1 and 2, Griffin, RWKV, HGRN; no prefix sum, and no look-up in a cache.
    Rule(
        "state-space",
        "recurrence",
        r"\bselective (scan|state update)\b|\bssm scan\b|\bchunk (scan|state)\b|\bstate passing (fwd|bwd|forward)"
        r"|\brg lru\b|\blru (kernel|scan|fwd|bwd)\b|\br?wkv\b|\bhgrn\b",
    ),
    # -- Attention and the kernels around it.
    # Writes tokens to the slots that a table names; `reshape_and_cache_flash` computes no attention.
    Rule(
        "kv-cache-write",
        "gather-scatter",
        r"\band cache\b"
        r"|\bappend paged kv"
        r"|\b(store|write|set|update|append|fill) (\w+ )?kv ?(cache|buffer)"
        r"|\bkv ?cache (store|write|update|append|scatter)",
    ),
    Rule("attention-softmax", "softmax", r"\b(attn|attention) soft ?max"),
    Rule(
        "attention",
        "attention",
        r"attention|attn(?! norm)|fmha|\bsdpa\b|\b[mgx]?mha\b|\b(flash ?)?mla\b|\bxqa\b|\bmqa logits\b"
        r"|\bflash (fwd|bwd|forward|backward|decod\w+|prefill)"
        r"|\b(batch|single) (prefill|decode) with"
        r"|\bmerge states?\b",
    ),
    Rule(
        "attention-in-template",
        "attention",
        function=_CUTLASS_CARRIER,
        template=r"(?i)flash_?att|fmha|attention|\bflash::|(^|[:<_ ])mla",
    ),
    # The passes around a fused attention kernel: cuDNN's, and the Triton ones of vLLM, SGLang and AOTriton.
    Rule(
        "attention-parts",
        "attention",
        r"^cudnn fusion (compute dot do o|convert dq|lean reduction)"
        r"|^fwd (grouped )?kernel stage \d"
        r"|^bwd (kernel (dk dv|dq|dkdv|fuse|one col block)|preprocess)|^fwd kernel split k$"
        r"|^reduce segments$",
    ),
    Rule(
        "linear-attention",
        "attention",
        r"\bdelta rule\b|\bfused recurrent\b|\bretention\b|\b(chunk|parallel) (gla|kda|nsa|gsa|based)\b"
        r"|\bchunk (fwd|bwd) (kernel )?(o|h|dh|dv|dqkwg)\b|\bscaled dot kkt\b|\brecompute w u\b|\bwy repr\b"
        r"|\bsolve tril\b|^merge \d+ x \d+ to \d+ x \d+ inverse|^(fwd|bwd) (none )?diag kernel$"
        r"|^(fwd|bwd) kv (parallel|reduce)$",
    ),
    # -- Optimizers and operations on lists of parameters.
    # FBGEMM fuses the optimizer into the embedding's backward; the scattered rows are the cost.
    Rule("embedding-optimizer", "gather-scatter", function=r"split_embedding|_embedding_\w*codegen"),
    Rule("foreach-copy", "copy-cast", r"\bmulti tensor apply\b", template=r"\bCopy<"),
    # Operations on lists of parameters: optimizer step, gradient clipping, loss scaling.
    Rule("foreach", "optimizer", r"\bmulti tensor\b|\blpnorm cleanup\b|\bamp update scale\b"),
    Rule(
        "optimizer",
        "optimizer",
        r"\badam[wx]?\b|\bpercentile clipping\b|\b(adagrad|adafactor|rmsprop|lamb|lars|lion|sgd)\b|\boptimizer\b",
    ),
    # -- Convolutions.
    Rule(
        "convolution-in-template",
        "convolution",
        function=_CUTLASS_CARRIER + r"|cudnn",
        template=r"(fprop|dgrad|wgrad)|ImplicitGemmConvolution|\bconv::|Conv[123]d|implicit_gemm",
    ),
    Rule("convolution-split-k", "convolution", function=r"cudnn", template=r"ReduceSplitK"),
    Rule(
        "layout-change", "copy-cast", r"\bn(chw|hwc|cdhw|dhwc) (to|add|remove)\b|\bto (folded )?n(chw|hwc|cdhw|dhwc)\b"
    ),
    Rule(
        "convolution",
        "convolution",
        r"\b[a-z]{0,4}conv(olution|olve)?(nd)?\b|\bdepthwise\b|winograd|\b(fprop|dgrad|wgrad)\b"
        r"|\b(im|vol) 2 col\b|\bcol 2 (im|vol)\b",
    ),
    # cuDNN's helpers: offsets, workspaces, and the FFT algorithm.
    Rule(
        "convolution-spelt",
        "convolution",
        function=r"implicit_gemm|(^|_)[shdci](\d+)?cudnn_|\bcask\w*cudnn|cudnn::cnn::|^fft[12]d_[rc]2[rc]_"
        r"|^pointwise_mult_and_sum_complex",
    ),
    Rule("convolution-miopen", "convolution", r"\bigemm (fwd|bwd|wrw)\b"),
    # -- Sampling, and routing of tokens to experts.
    # Draws a token; `TopKTopPSamplingFromProb` only restricts the candidates.
    Rule("sampling", "random", r"\bsampling from\b|\bspeculative sampling\b|multinomial|\bgumbel\b"),
    Rule(
        "topk",
        "sort-topk",
        r"top ?k(?! ?(weight|ids))|\btop p (renorm|mask)|\bmoe fused gate\b|\brouting main kernel\b",
    ),
    # Moves tokens to their experts and back.
    Rule(
        "expert-routing",
        "gather-scatter",
        r"\balign block size\b|\b(expand|shuffle) input rows\b|\bexpert offsets\b|\brow id map\b"
        r"|\bsort chunks by\b|\bfinalize (moe|matmul)\b|\bpermute tokens\b"
        r"|\bmoe (dev routing|dev finalize|permute|unpermute|align|expand|finalize|gather|scatter)\b"
        r"|\bsum bitmatrix\b|\brouting (indices|compute)\b",
    ),
    # -- Softmax and normalisation.
    Rule("softmax", "softmax", r"soft ?max"),
    # A fused loss spends its time on the log-softmax over the vocabulary.
    Rule("cross-entropy", "softmax", r"cross ?entropy"),
    # Moments, gamma and beta are the passes of PyTorch's and Apex's layer norm and group norm.
    Rule(
        "normalization",
        "normalization",
        r"(layer|rms|batch|group|instance|weight|poly|qk|l 2) ?norm|\bwelford\b|\badd norm\b|^norm f \d"
        r"|\bln (fwd|bwd|forward|backward)\b|\bbn (fw|bw|fwd|bwd|inf)\b"
        r"|\browwise moments\b|\bgamma beta\b|\b(fused params|internal gradients) cuda\b"
        r"|\bcu compute (grad input|part grad)",
    ),
    Rule(
        "normalization-in-template",
        "normalization",
        function=rf"{_ELEMENTWISE_CARRIER}|{_CUTLASS_CARRIER}",
        template=r"(?i)(group|batch|layer|rms)_?norm",
    ),
    # -- Products.
    # Stands above products, in whose namespaces these are.
    Rule("repack", "copy-cast", r"\brepack\b|\bpermute cols\b|\bdeep gemm (\w+ )*(transpose|pack)\b"),
    Rule("mask-of-products", "elementwise", r"\bdeep gemm (\w+ )*clean logits\b"),
    Rule("quantized-activation", "elementwise", r"\b(silu|gelu|swiglu) (and )?mul (\w+ )*quant\b"),
    Rule("tensile", "gemm", function=r"^(Custom_)?Cijk_"),
    Rule("nvjet", "gemm", function=r"^nvjet"),
    # Sums the parts of a product that was split along k, or is a dot product.
    Rule("blas-reduction", "gemm", function=r"(?i)split_?k_?reduc|^reduce_1Block_kernel$|^dot_kernel$"),
    Rule("cublaslt-epilogue", "gemm", function=r"epilogue::impl::globalKernel$"),
    Rule("cublas-gemv", "gemm", function=r"(^|::)kernel$", template=r"cublasGemv"),
    Rule(
        "product-preparation",
        "other",
        r"\b(prepare|compute|get|set|setup|build) .*(gemm|mm) (data|args|starts|offsets|problem|pointers|meta)",
    ),
    Rule(
        "product",
        "gemm",
        own_words=r"ge(mm|mv)|mat ?mul|mul ?mat|\b[a-z]?[bm]mm\b|\b(add|badd|scaled|grouped?) ?mm\b|\bwg?mma\b"
        r"|\bmarlin\b|\bmachete\b|\beinsum\b|\bwv split k\b|\b[aw] \d+ [aw] \d+\b(?!.*quant)|\b[bs]gmv\b",
    ),
    Rule("product-of-experts", "gemm", r"^fused moe (kernel|gptq)|\bmoe mm\b|\bfused experts\b"),
    # A layer and its activation, written by hand in one kernel: the layer takes most of the time.
    Rule(
        "product-and-activation",
        "gemm",
        own_words=r"\b(product|linear|mlp|ffn|dense|proj(ection)?)\b"
        r".*\b(d?silu|gelu|swiglu|geglu|reglu|relu|sigmoid|tanh)\b",
    ),
    Rule("product-symmetric", "gemm", r"\b[sdczh]?(syrkx?|herkx?|trmm|symm|hemm)\b|\b(syr|her) 2 k\b"),
    Rule("product-sparse", "gemm", r"\b(csr|bsr|coo|ell)(mm|mv)\b|\bk?sp(mm|mv)\b|\bsddmm\b"),
    Rule("product-in-template", "gemm", function=_CUTLASS_CARRIER, template=r"(?i)gemm|ReduceSplitK|\bmatmul"),
    # -- Uninformative names, by their template arguments.
    Rule("scatter-gather", "gather-scatter", r"\bscatter gather\b"),
    Rule("distribution", "random", r"\bdistribution\b"),
    Rule("curand-in-template", "random", template=r"\bcurand|\brng_config\b"),
    Rule(
        "distribution-in-functor",
        "random",
        function=_ELEMENTWISE_CARRIER,
        template=r"bernoulli|poisson|gamma_cuda|dirichlet|philox",
    ),
    Rule("flip", "copy-cast", function=r"index_elementwise_kernel$", template=r"\bflip"),
    Rule("index-elementwise", "gather-scatter", function=r"index_elementwise_kernel$"),
    Rule(
        "copy-functor",
        "copy-cast",
        function=_ELEMENTWISE_CARRIER,
        template=r"copy_kernel|CopyFunctor|copy_device_to_device",
    ),
    Rule("scatter-functor", "gather-scatter", function=_ELEMENTWISE_CARRIER, template=r"(scatter|gather)_kernel"),
    Rule("elementwise-carrier", "elementwise", function=_ELEMENTWISE_CARRIER),
    Rule("reduce-kernel", "reduction", function=r"(^|::)reduce_kernel$"),
    Rule("thrust-sort", "sort-topk", function=_THRUST_CARRIER, template=r"(?i)sort|__merge|unique"),
    Rule("thrust-select", "gather-scatter", function=_THRUST_CARRIER, template=r"__(copy_if|partition|set_operations)"),
    Rule("thrust-reduction", "reduction", function=_THRUST_CARRIER, template=r"__(reduce|scan|extrema)"),
    Rule(
        "thrust-for",
        "elementwise",
        function=_THRUST_CARRIER,
        template=r"__(parallel_for|transform|uninitialized_fill|for_each|tabulate)",
    ),
    # -- The rest, by words.
    # Stands above sorting, with which FFTs share the word radix.
    Rule("fft", "other", r"\bfft\b|\b[sd]p radix \d|\bcufft\b|\bbluestein\b"),
    # Images that are decoded or resampled.
    Rule("images", "other", r"\b(up|down|re)sampl|\bgrid sampl|\binterpolat|\bnvjpeg|\bbatch warp\b"),
    # A rotation; the embedding in its name is no look-up.
    Rule("rotary", "elementwise", r"\brotary\b|\bm?rope\b"),
    Rule(
        "sort",
        "sort-topk",
        r"\b(arg)?sort|sort\b|\bbitonic\b|\bradix (select|find)|\bselect radix\b|kth ?value|\bmedian\b"
        r"|\bcompute mode\b|\bunique\b|search ?sorted|^at native fill (reverse indices|index and segment)",
    ),
    Rule(
        "stream-compaction",
        "gather-scatter",
        r"\bdevice (select|partition|compact)|\bwrite indices\b|\bnonzero\b|\bmasked select\b",
    ),
    # The terse ones are PyTorch's: embedding backward, and `compute_cuda_kernel` of repeat_interleave.
    Rule(
        "gather-scatter",
        "gather-scatter",
        r"\bgather|\bscatter|embedding|\bindex(ing)? (select|add|put|copy|fill|func|backward)|\bindex ?select"
        r"|\bindex mul\b|\brepeat interleave\b|\bget rows\b|\bbounds check indices\b|\bbucketize\b"
        r"|\bjagged\b|\blinearize index\b"
        r"|\bpermute (1 d|2 d|indices|pooled|multi|sequence|lengths)|\bdense representation\b"
        r"|\bkrn partial|\bpartial segments\b|\bcompute grad weight\b|^compute cuda kernel$",
    ),
    Rule("random", "random", r"\bphilox\b|\bcurand\b|dropout|\bbernoulli\b|\brand(n|int|perm|om)?\b|\brng\b"),
    # A reduction over a window.
    Rule("pooling", "reduction", r"\bpooling\b|\bpool \d d\b|(max|avg|average) ?pool|adaptive ?(average|max)"),
    Rule(
        "activation",
        "elementwise",
        r"\bd?(silu|gelu|swiglu|geglu|reglu|relu|sigmoid|tanh|swish|mish|elu|glu)\b"
        r"|\bactivation\b|\band mul\b|\bgated kernel\b|\b(gdn gating|kda gate)\b|\bdyt (fwd|bwd)\b",
    ),
    # PyTorch's run-time compiled functions end in `_vectorized4_kernel`, those of FlagGems in `_kernel_rank_1`.
    Rule(
        "elementwise",
        "elementwise",
        r"\belement ?wise\b|\bpoint ?wise\b|\b(vectorized|unrolled) ?\d+ kernel$|\b(lstm|gru|rnn) cell\b"
        r"|\bbin bcast\b|\b(unary|binary) op\b|\bkernel rank \d|\belem wise rn\b|\belement mul\b|\bpenalt(y|ies)\b",
    ),
    Rule(
        "copy",
        "copy-cast",
        r"\bcat array\b|\bchunk cat\b|\bconcat|\bmem ?cpy|\bcopy\b|\bcpy\b"
        r"|\btransposes?\b|\b(un)?permute\b|\breorder"
        r"|\bswizzle (row|col)|\bscale swizzle\b|\b(reflection|replication) pad|\broll cuda\b|\bflip\b",
    ),
    # Quantisation and its reverse are casts, the search for a scale included.
    Rule(
        "cast",
        "copy-cast",
        r"\b(up|down)?cast\b|\bconvert|\b(de)?quant(i[sz]e|i[sz]ation|i[sz]ed)?\b|\b(de)?quanti[sz]e"
        r"|\bto (float|half|(mx|nv)?fp|bf|bfloat)\b|\bqparam\b|\bkdequant\b|\breconstruct exllama\b"
        r"|\bshuffle \d bit\b",
    ),
    Rule(
        "scan-and-reduce",
        "reduction",
        r"\breduc(e|tion)\b|\bsums?\b|\bmean\b|\barg ?(max|min)\b|\ba(bs)?max\b|\blogsumexp\b"
        r"|\bnll (loss|criterion)|\bkl ?div\b|\bjsd kernel\b|\btv distance\b|\bkget (col )?row stats\b"
        r"|\bcum(sum|prod)\b|\bscan\b|histogram|\bbincount\b|\bdevice run length",
    ),
    Rule(
        "arithmetic",
        "elementwise",
        r"\b[sdcz]?a[xs]p[by]y?\b|\bvec(tor)? (add|sub|mul|div|scale)\b|\badd bias\b|\bbias add\b"
        r"|\badd residual\b|\bresidual (add|forward)\b|\bmasked? (fill|scale)|\bfill\b|\bmemset\b"
        r"|\bclamp\b|\blerp\b|\btri[ul]\b|\barange\b|\blinspace\b|\bscale ((packed )?tensor|f 32)\b"
        r"|^scal kernel|\btransform kernel$|\bdevice (transform|for)\b|\badjacent difference\b",
    ),
    # Early Inductor only numbered its kernels; the name reveals nothing.
    Rule("triton-unnamed", "triton", r"^triton\b"),
)


@dataclass(frozen=True)
class KernelClass:
    """The classification of a kernel by its name."""

    category: str  #: one of `CATEGORIES`
    #: source of the kernel (`cublas`, `nvjet`, `at-native`, …); None where the name does not show it
    library: str | None
    #: format of the operands, one of `kernel_names.PRECISIONS`; None where the name does not reveal it
    precision: str | None
    tensor_cores: bool | None  #: whether tensor cores do the arithmetic; None where the name does not reveal it
    rule: str | None  #: the rule that gave the category; None for `other` by default


CLASSES = table(
    "what a kernel's name says",
    "One kernel. `warplens.analysis.categories.classify_names`.",
    column("category").but(dtype=pl.Enum(CATEGORIES)),
    column("library").but(dtype=pl.Enum(LIBRARY_NAMES)),
    column("precision").but(dtype=pl.Enum(PRECISIONS)),
    "tensor_cores",
)

#: Cache size for names; only generated code exceeds it.
_NAME_CACHE_SIZE = 65_536


@lru_cache(maxsize=_NAME_CACHE_SIZE)
def classify(name: str) -> KernelClass:
    """The class of a kernel, by its full name; a short name says too little about PyTorch's kernels."""
    parts = split_name(name)
    rule = next((rule for rule in RULES if rule.holds(parts)), None)
    category = OTHER if rule is None else rule.category
    arithmetic = arithmetic_of(parts, category)
    return KernelClass(
        category, library_of(parts), arithmetic.precision, arithmetic.tensor_cores, rule.name if rule else None
    )


def classify_names(frame: pl.DataFrame) -> pl.DataFrame:
    """The class of each row's kernel: the columns of `CLASSES`, in the order of the rows.

    Each distinct name is classified once; a row costs a look-up of its code.

    Args:
        frame: has the dictionary-encoded column `full_name`, as `Trace.kernels` does.
    """
    return class_table(frame["full_name"]).select(pl.all().gather(frame["full_name"].to_physical()))


def categories_of(full_names: pl.Series) -> pl.Series:
    """The category of each of these dictionary-encoded full names, at a quarter of the cost of all classes."""
    return class_table(full_names)["category"].gather(full_names.to_physical())


@once_per_dictionary
def class_table(full_names: pl.Series) -> pl.DataFrame:
    """The class of each text of the dictionary, in its order, whether or not a row has that name."""
    classes = [classify(text) for text in full_names]
    return pl.DataFrame(
        {column: [getattr(kernel_class, column) for kernel_class in classes] for column in CLASSES.names},
        CLASSES.schema,
    )
