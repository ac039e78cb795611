"""What kernel names mean: one ordered table of rules. The first rule that holds decides the category.

A rule looks at up to three texts of a name (see `kernel_names.NameParts`), and holds where each pattern it states is
found:

* `words`: the function in lower-case words. The default: it reads the same in snake case and in camel case.
* `function`: the function as written, where its exact spelling is what is known of it.
* `template`: the template arguments. PyTorch's `elementwise_kernel`, CUTLASS's `Kernel2`, Thrust's `_kernel_agent` say
  nothing by their own name; what they do stands there.

A new kernel gets a rule only if its name proves what it does: `other` is honest, a wrong category misleads. Rules go
from the specific to the general, so a name that mentions two things has its rule above both (`fused_add_rms_norm` is a
normalisation, not an addition). Order is part of the meaning: insert with care, and give each rule a name in the tests.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from warplens.analysis.kernel_names import NameParts


@dataclass(frozen=True)
class Rule:
    """Whatever all the stated patterns are found in belongs to `category`."""

    name: str  #: stable identifier, for people who ask why a kernel stands where it stands
    category: str  #: one of `categories.CATEGORIES`
    #: words, function, template: regular expressions; an empty one holds always
    words: str = ""
    function: str = ""
    template: str = ""
    why: str = ""  #: the reason, where the pattern alone does not show it

    @cached_property
    def _patterns(self) -> tuple[tuple[str, re.Pattern[str]], ...]:
        # Compiled when first needed: an import of the package must not pay for a hundred patterns.
        stated = (("words", self.words), ("function", self.function), ("template", self.template))
        return tuple((text, re.compile(pattern)) for text, pattern in stated if pattern)

    def holds(self, parts: NameParts) -> bool:
        """Whether each stated pattern is found."""
        for text, pattern in self._patterns:  # noqa: SIM110  (a generator costs more than the searches)
            if pattern.search(getattr(parts, text)) is None:
                return False
        return True


def _any(*alternatives: str) -> str:
    return "|".join(alternatives)


# Kernels whose own name says nothing, because the work is a template argument.
_ELEMENTWISE_CARRIER = r"(^|::|_)elementwise_kernel(_[a-z_]+)?$|kernelPointwiseApply\d"
_CUTLASS_CARRIER = r"(^|::)(Kernel2?|device_kernel)$|^ck_tile::kentry$|^attention_kernel"
_THRUST_CARRIER = r"_kernel_agent$"

# One operation that only moves data, in the list of fused operations that is an Inductor kernel's name.
_INDUCTOR_MOVE = (
    r"(to copy|clone|copy|cat|stack|t|transpose|permute|view|unsafe view|reshape|slice|select|expand|squeeze|unsqueeze"
    r"|split|split with sizes|constant pad nd|unbind|as strided|flip|roll|repeat|alias|contiguous|convert element type)"
)
_XLA_MOVE = r"(copy|transpose|convert|concatenate|(dynamic )?(update )?slice|pad|reverse|bitcast|reshape)"

#: triton_<kind>_fused_<operations>_<number>; kinds: pointwise, (persistent) reduction, template, split scan, foreach.
_INDUCTOR = (
    Rule("inductor-attention", "attention", words=r"^triton \w+ fused .*flex attention|^triton tem .*(attention|sdpa)"),
    Rule("inductor-convolution", "convolution", words=r"^triton tem .*conv|^triton conv(olution)?\b"),
    Rule(
        "inductor-template",
        "gemm",
        words=r"^triton tem\b|^triton (scaled |grouped )*(add|b|badd)?mm\b",
        why="templates are what Inductor autotunes: products, convolutions, flex attention",
    ),
    Rule("inductor-softmax", "softmax", words=r"^triton (red|per|mix) fused .*softmax"),
    Rule(
        "inductor-normalization",
        "normalization",
        words=r"^triton (red|per|mix) fused (?=.*(\b(layer|group|batch|rms|instance) norm\b|\bmean\b.*\brsqrt\b))",
        why="an RMS norm written in plain operations keeps its mean and its reciprocal root in the list",
    ),
    Rule("inductor-sort", "sort-topk", words=r"^triton (red|per|poi) fused .*\b(sort|topk)\b"),
    Rule("inductor-reduction", "reduction", words=r"^triton (red|per|mix|spl) fused\b"),
    Rule(
        "inductor-foreach",
        "optimizer",
        words=r"^triton for fused\b",
        why="several tensors in one kernel come from foreach operations, which optimizers are written with",
    ),
    Rule(
        "inductor-random",
        "random",
        words=r"^triton poi fused( (rand|randn|randint|bernoulli|inductor random)( like)?)+( \d+)?$",
    ),
    Rule("inductor-movement", "copy-cast", words=rf"^triton poi fused( {_INDUCTOR_MOVE})+( \d+)?$"),
    Rule(
        "inductor-gather",
        "gather-scatter",
        words=_any(
            r"^triton poi fused .*\b(embedding|gather|scatter|index (select|add|put|copy|fill))\b",
            rf"^triton poi fused( ({_INDUCTOR_MOVE}|arange))*( index)( {_INDUCTOR_MOVE})*( \d+)?$",
        ),
    ),
    Rule("inductor-pointwise", "elementwise", words=r"^triton poi fused\b"),
)

#: <emitter>_<operations>_fusion and wrapped_<operation>.
_XLA = (
    Rule("xla-gemm", "gemm", function=r"^(triton_gemm|(gemm|cublas|cudnn_gemm)_fusion)"),
    Rule(
        "xla-softmax",
        "softmax",
        words=r"^triton softmax( \d+)*$",
        why="XLA gives this name to every row-wise normalisation that it fuses; a layer norm cannot be told apart",
    ),
    Rule(
        "xla-reduction",
        "reduction",
        words=r"^((loop|input) .*\breduce\b(?! precision).*\bfusion|wrapped reduce)( \d+)*$",
    ),
    Rule(
        "xla-gather",
        "gather-scatter",
        words=r"^((loop|input) .*\b(gather|scatter)\b.*\bfusion|wrapped (gather|scatter))( \d+)*$",
    ),
    Rule("xla-random", "random", words=r"^(loop|input|wrapped) .*\brng\b"),
    Rule("xla-movement", "copy-cast", words=rf"^((loop|input|wrapped)( {_XLA_MOVE})+|{_XLA_MOVE})( fusion)?( \d+)*$"),
    Rule("xla-sort", "sort-topk", function=r"^sort(_\d+)+(__\d+)?$"),
    Rule("xla-elementwise", "elementwise", words=r"^((loop|input) .*\bfusion|wrapped [a-z ]+)( \d+)*$"),
)

_COMMUNICATION = (
    Rule("nccl", "communication", function=r"^(nccl|rccl|msccl)[A-Za-z_]|^oneRankReduce|\bcomm::"),
    Rule("expert-parallel", "communication", function=r"\bdeep_ep\w*::|\b(intra|inter)node(_ll)?::|\bpplx::"),
    Rule(
        "device-initiated",
        "communication",
        words=_any(
            r"nvshmem|\bon stream kernel\b|\bsymm(etric)? mem(ory)?\b|\bmscclpp\b|\buserbuffers\b",
            r"\bmultimem\b|\blamport\b",
        ),
    ),
    Rule(
        "collective",
        "communication",
        words=_any(
            r"(?<!block )(?<!warp )\b(all ?reduce|all ?gather|reduce ?scatter|all ?(to|2) ?all)",
            r"\bcross device reduce\b",
            r"\bmoe a 2 a\b",
        ),
        why="an all-reduce of a block or a warp stays within one GPU",
    ),
)

#: A state that goes from token to token. cuDNN's and PyTorch's kernels of single cells are the gates between products,
#: and linear attention whose kernels say so stays attention.
_RECURRENCE = (
    Rule(
        "persistent-rnn",
        "recurrence",
        words=r"^rnn block persist|^persist rnn",
        why="products, gates and synchronization of all time steps in one kernel",
    ),
    Rule(
        "state-space",
        "recurrence",
        words=_any(
            r"\bselective (scan|state update)\b|\bssm scan\b|\bchunk (scan|state)\b|\bstate passing (fwd|bwd|forward)",
            r"\brg lru\b|\blru (kernel|scan|fwd|bwd)\b|\br?wkv\b|\bhgrn\b",
        ),
        why="Mamba 1 and 2, Griffin, RWKV, HGRN; no prefix sum, and no look-up in a cache",
    ),
)

_ATTENTION = (
    Rule(
        "kv-cache-write",
        "gather-scatter",
        words=_any(
            r"\band cache\b",
            r"\bappend paged kv",
            r"\b(store|write|set|update|append|fill) (\w+ )?kv ?(cache|buffer)",
            r"\bkv ?cache (store|write|update|append|scatter)",
        ),
        why="tokens go to the slots that a table names; `reshape_and_cache_flash` computes no attention",
    ),
    Rule("attention-softmax", "softmax", words=r"\b(attn|attention) soft ?max"),
    Rule(
        "attention",
        "attention",
        words=_any(
            r"attention|attn(?! norm)|fmha|\bsdpa\b|\b[mgx]?mha\b|\b(flash ?)?mla\b|\bxqa\b|\bmqa logits\b",
            r"\bflash (fwd|bwd|forward|backward|decod\w+|prefill)",
            r"\b(batch|single) (prefill|decode) with",
            r"\bmerge states?\b",
        ),
    ),
    Rule(
        "attention-in-template",
        "attention",
        function=_CUTLASS_CARRIER,
        template=r"(?i)flash_?att|fmha|attention|\bflash::|(^|[:<_ ])mla",
    ),
    Rule(
        "attention-parts",
        "attention",
        words=_any(
            r"^cudnn fusion (compute dot do o|convert dq|lean reduction)",
            r"^fwd (grouped )?kernel stage \d",
            r"^bwd (kernel (dk dv|dq|dkdv|fuse|one col block)|preprocess)|^fwd kernel split k$",
            r"^reduce segments$",
        ),
        why="the passes around a fused attention kernel: cuDNN's, and the Triton ones of vLLM, SGLang and AOTriton",
    ),
    Rule(
        "linear-attention",
        "attention",
        words=_any(
            r"\bdelta rule\b|\bfused recurrent\b|\bretention\b|\b(chunk|parallel) (gla|kda|nsa|gsa|based)\b",
            r"\bchunk (fwd|bwd) (kernel )?(o|h|dh|dv|dqkwg)\b|\bscaled dot kkt\b|\brecompute w u\b|\bwy repr\b",
            r"\bsolve tril\b|^merge \d+ x \d+ to \d+ x \d+ inverse|^(fwd|bwd) (none )?diag kernel$",
            r"^(fwd|bwd) kv (parallel|reduce)$",
        ),
    ),
)

_OPTIMIZER = (
    Rule(
        "embedding-optimizer",
        "gather-scatter",
        function=r"split_embedding|_embedding_\w*codegen",
        why="FBGEMM fuses the optimizer into the embedding's backward; the scattered rows are what costs",
    ),
    Rule("foreach-copy", "copy-cast", words=r"\bmulti tensor apply\b", template=r"\bCopy<"),
    Rule(
        "foreach",
        "optimizer",
        words=r"\bmulti tensor\b|\blpnorm cleanup\b|\bamp update scale\b",
        why="operations on lists of parameters: optimizer step, gradient clipping, loss scaling",
    ),
    Rule(
        "optimizer",
        "optimizer",
        words=r"\badam[wx]?\b|\bpercentile clipping\b|\b(adagrad|adafactor|rmsprop|lamb|lars|lion|sgd)\b|\boptimizer\b",
    ),
)

_CONVOLUTION = (
    Rule(
        "convolution-in-template",
        "convolution",
        function=_CUTLASS_CARRIER + r"|cudnn",
        template=r"(fprop|dgrad|wgrad)|ImplicitGemmConvolution|\bconv::|Conv[123]d|implicit_gemm",
    ),
    Rule("convolution-split-k", "convolution", function=r"cudnn", template=r"ReduceSplitK"),
    Rule(
        "layout-change",
        "copy-cast",
        words=r"\bn(chw|hwc|cdhw|dhwc) (to|add|remove)\b|\bto (folded )?n(chw|hwc|cdhw|dhwc)\b",
    ),
    Rule(
        "convolution",
        "convolution",
        words=_any(
            r"\b[a-z]{0,4}conv(olution|olve)?(nd)?\b|\bdepthwise\b|winograd|\b(fprop|dgrad|wgrad)\b",
            r"\b(im|vol) 2 col\b|\bcol 2 (im|vol)\b",
        ),
    ),
    Rule(
        "convolution-spelt",
        "convolution",
        function=r"implicit_gemm|(^|_)[shdci](\d+)?cudnn_|\bcask\w*cudnn|cudnn::cnn::|^fft[12]d_[rc]2[rc]_"
        r"|^pointwise_mult_and_sum_complex",
        why="cuDNN's helpers: offsets, workspaces, and the FFT algorithm",
    ),
    Rule("convolution-miopen", "convolution", words=r"\bigemm (fwd|bwd|wrw)\b"),
)

_ROUTING = (
    Rule(
        "sampling",
        "random",
        words=r"\bsampling from\b|\bspeculative sampling\b|multinomial|\bgumbel\b",
        why="draws a token; `TopKTopPSamplingFromProb` only restricts what it draws from",
    ),
    Rule(
        "topk",
        "sort-topk",
        words=r"top ?k(?! ?(weight|ids))|\btop p (renorm|mask)|\bmoe fused gate\b|\brouting main kernel\b",
    ),
    Rule(
        "expert-routing",
        "gather-scatter",
        words=_any(
            r"\balign block size\b|\b(expand|shuffle) input rows\b|\bexpert offsets\b|\brow id map\b",
            r"\bsort chunks by\b|\bfinalize (moe|matmul)\b|\bpermute tokens\b",
            r"\bmoe (dev routing|dev finalize|permute|unpermute|align|expand|finalize|gather|scatter)\b",
            r"\bsum bitmatrix\b|\brouting (indices|compute)\b",
        ),
        why="moves tokens to their experts and back",
    ),
)

_ROW_WISE = (
    Rule("softmax", "softmax", words=r"soft ?max"),
    Rule(
        "cross-entropy",
        "softmax",
        words=r"cross ?entropy",
        why="a fused loss spends its time on the log-softmax over the vocabulary",
    ),
    Rule(
        "normalization",
        "normalization",
        words=_any(
            r"(layer|rms|batch|group|instance|weight|poly|qk|l 2) ?norm|\bwelford\b|\badd norm\b|^norm f \d",
            r"\bln (fwd|bwd|forward|backward)\b|\bbn (fw|bw|fwd|bwd|inf)\b",
            r"\browwise moments\b|\bgamma beta\b|\b(fused params|internal gradients) cuda\b",
            r"\bcu compute (grad input|part grad)",
        ),
        why="moments, gamma and beta are the passes of PyTorch's and Apex's layer norm and group norm",
    ),
    Rule(
        "normalization-in-template",
        "normalization",
        function=_any(_ELEMENTWISE_CARRIER, _CUTLASS_CARRIER),
        template=r"(?i)(group|batch|layer|rms)_?norm",
    ),
)

_GEMM = (
    Rule(
        "repack",
        "copy-cast",
        words=r"\brepack\b|\bpermute cols\b|\bdeep gemm (\w+ )*(transpose|pack)\b",
        why="stands above products, in whose namespaces these are",
    ),
    Rule("mask-of-products", "elementwise", words=r"\bdeep gemm (\w+ )*clean logits\b"),
    Rule("quantized-activation", "elementwise", words=r"\b(silu|gelu|swiglu) (and )?mul (\w+ )*quant\b"),
    Rule("tensile", "gemm", function=r"^(Custom_)?Cijk_"),
    Rule("nvjet", "gemm", function=r"^nvjet"),
    Rule(
        "blas-reduction",
        "gemm",
        function=r"(?i)split_?k_?reduc|^reduce_1Block_kernel$|^dot_kernel$",
        why="sums the parts of a product that was split along k, or is a dot product",
    ),
    Rule("cublaslt-epilogue", "gemm", function=r"epilogue::impl::globalKernel$"),
    Rule("cublas-gemv", "gemm", function=r"(^|::)kernel$", template=r"cublasGemv"),
    Rule(
        "product-preparation",
        "other",
        words=r"\b(prepare|compute|get|set|setup|build) .*(gemm|mm) (data|args|starts|offsets|problem|pointers|meta)",
    ),
    Rule(
        "product",
        "gemm",
        words=_any(
            r"ge(mm|mv)|mat ?mul|mul ?mat|\b[a-z]?[bm]mm\b|\b(add|badd|scaled|grouped?) ?mm\b|\bwg?mma\b",
            r"\bmarlin\b|\bmachete\b|\beinsum\b|\bwv split k\b|\b[aw] \d+ [aw] \d+\b(?!.*quant)|\b[bs]gmv\b",
        ),
    ),
    Rule("product-of-experts", "gemm", words=r"^fused moe (kernel|gptq)|\bmoe mm\b|\bfused experts\b"),
    Rule("product-symmetric", "gemm", words=r"\b[sdczh]?(syrkx?|herkx?|trmm|symm|hemm)\b|\b(syr|her) 2 k\b"),
    Rule("product-sparse", "gemm", words=r"\b(csr|bsr|coo|ell)(mm|mv)\b|\bk?sp(mm|mv)\b|\bsddmm\b"),
    Rule("product-in-template", "gemm", function=_CUTLASS_CARRIER, template=r"(?i)gemm|ReduceSplitK|\bmatmul"),
)

_FUNCTORS = (
    Rule("scatter-gather", "gather-scatter", words=r"\bscatter gather\b"),
    Rule("distribution", "random", words=r"\bdistribution\b"),
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
    Rule(
        "thrust-select",
        "gather-scatter",
        function=_THRUST_CARRIER,
        template=r"__(copy_if|partition|set_operations)",
    ),
    Rule("thrust-reduction", "reduction", function=_THRUST_CARRIER, template=r"__(reduce|scan|extrema)"),
    Rule(
        "thrust-for",
        "elementwise",
        function=_THRUST_CARRIER,
        template=r"__(parallel_for|transform|uninitialized_fill|for_each|tabulate)",
    ),
)

_BY_WORD = (
    Rule(
        "fft",
        "other",
        words=r"\bfft\b|\b[sd]p radix \d|\bcufft\b|\bbluestein\b",
        why="stands above sorting, with which FFTs share the word radix",
    ),
    Rule(
        "images",
        "other",
        words=r"\b(up|down|re)sampl|\bgrid sampl|\binterpolat|\bnvjpeg|\bbatch warp\b",
        why="images that are decoded or resampled",
    ),
    Rule(
        "rotary",
        "elementwise",
        words=r"\brotary\b|\bm?rope\b",
        why="it rotates; the embedding in its name is no look-up",
    ),
    Rule(
        "sort",
        "sort-topk",
        words=_any(
            r"\b(arg)?sort|sort\b|\bbitonic\b|\bradix (select|find)|\bselect radix\b|kth ?value|\bmedian\b",
            r"\bcompute mode\b|\bunique\b|search ?sorted|^at native fill (reverse indices|index and segment)",
        ),
    ),
    Rule(
        "stream-compaction",
        "gather-scatter",
        words=r"\bdevice (select|partition|compact)|\bwrite indices\b|\bnonzero\b|\bmasked select\b",
    ),
    Rule(
        "gather-scatter",
        "gather-scatter",
        words=_any(
            r"\bgather|\bscatter|embedding|\bindex(ing)? (select|add|put|copy|fill|func|backward)|\bindex ?select",
            r"\bindex mul\b|\brepeat interleave\b|\bget rows\b|\bbounds check indices\b|\bbucketize\b",
            r"\bjagged\b|\blinearize index\b",
            r"\bpermute (1 d|2 d|indices|pooled|multi|sequence|lengths)|\bdense representation\b",
            r"\bkrn partial|\bpartial segments\b|\bcompute grad weight\b|^compute cuda kernel$",
        ),
        why="the terse ones are PyTorch's: embedding backward, and `compute_cuda_kernel` of repeat_interleave",
    ),
    Rule("random", "random", words=r"\bphilox\b|\bcurand\b|dropout|\bbernoulli\b|\brand(n|int|perm|om)?\b|\brng\b"),
    Rule(
        "pooling",
        "reduction",
        words=r"\bpooling\b|\bpool \d d\b|(max|avg|average) ?pool|adaptive ?(average|max)",
        why="a reduction over a window",
    ),
    Rule(
        "activation",
        "elementwise",
        words=_any(
            r"\bd?(silu|gelu|swiglu|geglu|reglu|relu|sigmoid|tanh|swish|mish|elu|glu)\b",
            r"\bactivation\b|\band mul\b|\bgated kernel\b|\b(gdn gating|kda gate)\b|\bdyt (fwd|bwd)\b",
        ),
    ),
    Rule(
        "elementwise",
        "elementwise",
        words=_any(
            r"\belement ?wise\b|\bpoint ?wise\b|\b(vectorized|unrolled) ?\d+ kernel$|\b(lstm|gru|rnn) cell\b",
            r"\bbin bcast\b|\b(unary|binary) op\b|\bkernel rank \d|\belem wise rn\b|\belement mul\b|\bpenalt(y|ies)\b",
        ),
        why="PyTorch's run-time compiled functions end in `_vectorized4_kernel`, those of FlagGems in `_kernel_rank_1`",
    ),
    Rule(
        "copy",
        "copy-cast",
        words=_any(
            r"\bcat array\b|\bchunk cat\b|\bconcat|\bmem ?cpy|\bcopy\b|\bcpy\b",
            r"\btransposes?\b|\b(un)?permute\b|\breorder",
            r"\bswizzle (row|col)|\bscale swizzle\b|\b(reflection|replication) pad|\broll cuda\b|\bflip\b",
        ),
    ),
    Rule(
        "cast",
        "copy-cast",
        words=_any(
            r"\b(up|down)?cast\b|\bconvert|\b(de)?quant(i[sz]e|i[sz]ation|i[sz]ed)?\b|\b(de)?quanti[sz]e",
            r"\bto (float|half|(mx|nv)?fp|bf|bfloat)\b|\bqparam\b|\bkdequant\b|\breconstruct exllama\b",
            r"\bshuffle \d bit\b",
        ),
        why="quantisation and its reverse are casts, the search for a scale included",
    ),
    Rule(
        "scan-and-reduce",
        "reduction",
        words=_any(
            r"\breduc(e|tion)\b|\bsums?\b|\bmean\b|\barg ?(max|min)\b|\ba(bs)?max\b|\blogsumexp\b",
            r"\bnll (loss|criterion)|\bkl ?div\b|\bjsd kernel\b|\btv distance\b|\bkget (col )?row stats\b",
            r"\bcum(sum|prod)\b|\bscan\b|histogram|\bbincount\b|\bdevice run length",
        ),
    ),
    Rule(
        "arithmetic",
        "elementwise",
        words=_any(
            r"\b[sdcz]?a[xs]p[by]y?\b|\bvec(tor)? (add|sub|mul|div|scale)\b|\badd bias\b|\bbias add\b",
            r"\badd residual\b|\bresidual (add|forward)\b|\bmasked? (fill|scale)|\bfill\b|\bmemset\b",
            r"\bclamp\b|\blerp\b|\btri[ul]\b|\barange\b|\blinspace\b|\bscale ((packed )?tensor|f 32)\b",
            r"^scal kernel|\btransform kernel$|\bdevice (transform|for)\b|\badjacent difference\b",
        ),
    ),
    Rule(
        "triton-unnamed",
        "triton",
        words=r"^triton\b",
        why="early Inductor only numbered its kernels; nothing is to be read from that",
    ),
)

#: All rules in the order of their precedence.
RULES: tuple[Rule, ...] = (
    *_INDUCTOR,
    *_XLA,
    *_COMMUNICATION,
    *_RECURRENCE,
    *_ATTENTION,
    *_OPTIMIZER,
    *_CONVOLUTION,
    *_ROUTING,
    *_ROW_WISE,
    *_GEMM,
    *_FUNCTORS,
    *_BY_WORD,
)
