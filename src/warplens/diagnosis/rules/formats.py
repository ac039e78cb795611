"""Rules for products and convolutions whose sizes or memory format have no fast kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Final

import numpy as np
import polars as pl

from warplens.analysis.headroom.shapes import first_shape, tensors_of
from warplens.diagnosis.claims import Claims
from warplens.diagnosis.facts import Facts
from warplens.diagnosis.findings import GAIN, PASSES, USUAL, Finding, Remedy, Variant
from warplens.diagnosis.rule import Limit, remembered
from warplens.diagnosis.rules.precision import has_tensor_cores
from warplens.diagnosis.structure import StructureRule, time_beside, time_of
from warplens.profile.schema import Bools, Float64s, texts_where

#: 16-bit formats, which tensor cores read in groups of eight numbers.
_NARROW: Final = ("bf16", "fp16")

#: For batched products of single vectors.
_WHOLE_TENSORS: Final = (
    Remedy(
        "Multiply and sum whole tensors",
        "scores = (a * b).sum(-1)  # instead of torch.einsum('bnd,bnd->bn', a, b), or bmm with one row per product\n"
        "outer = a[..., :, None] * b[..., None, :]  # instead of bmm with an inner dimension of 1",
        f"{GAIN}: one pass over the operands",
    ),
    Remedy(
        "Give each product more rows",
        "scores = a @ items.T  # if products share an operand: one product for all, without expand()",
        "tensor cores are used, and the shared operand is read once",
    ),
)

#: For lengths that cuFFT transforms by Bluestein's algorithm.
_SMOOTH_LENGTHS: Final = Remedy(
    "Transform a length with small prime factors",
    "n = scipy.fft.next_fast_len(2 * length - 1, real=True)  # x and filter of `length` each; or a power of two\n"
    "y = torch.fft.irfft(torch.fft.rfft(x, n) * torch.fft.rfft(filter, n), n)[..., :length]\n"
    "# for convolutions: a shorter n wraps around, and the spectrum of padded data has other frequencies",
    f"{GAIN}: one transform instead of two of more than twice the length",
)

#: Products of fewer pairs of vectors are short, whatever their kernel.
_LEAST_VECTORS: Final = 1024


def _pairs_of_vectors(shapes: str) -> bool:
    """Whether a batched product multiplies many pairs of vectors, as inner or outer products."""
    tensors = [shape for shape in tensors_of(shapes) if len(shape) == 3]
    if len(tensors) < 2:
        return False
    (batch, rows, inner), (*_, columns) = tensors[-2:]  # an addend comes before the two factors
    return batch >= _LEAST_VECTORS and (inner == 1 or rows == columns == 1)


class MisalignedShape(StructureRule):
    """Products whose sizes rule out the fast kernels: operands not aligned to 16 bytes, batches of single vectors."""

    id = "misaligned-shape"
    model = "layout"
    question = "Do sizes keep matrix products off the fast kernels?"
    limiter = "matrix products whose sizes rule out the fast kernels"
    cause = "matrix products or attention whose sizes rule out the fast kernels"
    raised_when = (
        "16-bit products run in kernels for operands that are not aligned to 16 bytes, or batched products have a "
        "single vector on each side, or Fourier transforms have a length with a large prime factor; and it costs 2 %"
    )
    claimed = (
        "the time that well-shaped products with as many FLOPs would save; passes that pad operands for attention; "
        "all but one pass over the operands of products of vectors; four fifths of such transforms"
    )
    headline = "Limited by sizes that the tensor cores cannot use: padding could save {share} of the time"
    transforms: ClassVar = Variant(
        "Fourier transforms have a length with a large prime factor, which needs Bluestein's slow algorithm",
        "Limited by Fourier transforms of lengths with a large prime factor: padding them could save {share} of the "
        "time",
    )
    vectors: ClassVar = Variant(
        "Batched matrix products have one vector on each side, for which no fast kernel exists",
        "Limited by matrix products of single vectors: multiplying and summing whole tensors could save {share} of "
        "the time",
    )
    evidence: ClassVar = {
        "misaligned_per_step": "such products, or kernels of such transforms",
        "size_count": "the size that is not a multiple of 8; only where shapes are recorded",
        "padded_size_count": "the next multiple of 64",
        "flops_of_peak_share": "rate of these products, of the data sheet's peak; only where shapes are recorded",
    }
    refutation = (
        "Pad that size to the next multiple of 64 in a test of the product alone (of vectors: multiply and sum): if it "
        "is not faster, the size is not the cause."
    )
    transform_saved_share = Limit(
        0.8,
        "Bluestein's algorithm makes two transforms of at least twice the length, and multiplies by chirps before, "
        "between and after them: five times the passes of one (L. Bluestein, IEEE Trans. Audio 18, 1970).",
    )
    saved_share = Limit(
        0.8,
        "Kernels for operands aligned to 2 bytes reach a fifth of the rate of aligned ones on Hopper, a third on "
        "Ampere.",
    )

    def share(self, facts: Facts) -> Float64s:
        """Time beyond that of a well-shaped product of as many operations."""
        misaligned, vectors = self._misaligned(facts), self._of_vectors(facts)
        transforms = np.where(facts.program.marked("bluestein"), float(self.transform_saved_share), 0.0)
        if not misaligned.any() and not vectors.any():
            return transforms
        roof = facts.at_roof.select((pl.col("roof_ns") / pl.col("owned_ns")).fill_null(1.0)).to_series().to_numpy()
        # Without a known roof, vectors are taken to be at it, and the usual share of misaligned products is saved.
        saved = np.where(roof < 1.0, 1.0 - roof, self.saved_share)
        shaped = np.where(vectors, np.maximum(1.0 - roof, 0.0), np.where(misaligned, saved, 0.0))
        return np.maximum(shaped + self._pads(facts, misaligned), transforms)

    @remembered
    def _of_vectors(self, facts: Facts) -> Bools:
        """Batched products of single vectors; none if shapes are not recorded."""
        of_vectors, rows = np.zeros(facts.work.height, dtype=np.bool_), np.flatnonzero(facts.program.labelled("gemm"))
        if len(rows) and facts.timeline.has_operators:
            of_vectors[rows] = texts_where(facts.program.shapes().gather(rows), _pairs_of_vectors)
        return of_vectors

    def _pads(self, facts: Facts, misaligned: Bools) -> Float64s:
        """1 for passes that pad operands right before attention, which well-shaped operands do not need."""
        program = facts.program
        share = np.zeros(facts.work.height)
        attention = program.labelled("attention")
        if not misaligned.any() or not attention.any():
            return share
        for run, _ in program.runs_before(program.marked("padding"), attention):
            share[run] = 1.0
        share[misaligned] = 0.0
        return share

    def _misaligned(self, facts: Facts) -> Bools:
        misaligned = facts.program.labelled("gemm", "attention") & facts.program.marked("misaligned")
        if not misaligned.any():
            return misaligned
        return np.asarray(misaligned & facts.program.having("precision", *_NARROW), dtype=np.bool_)

    def find(self, facts: Facts, claims: Claims) -> Finding | None:
        """The finding, if the window has it."""
        claimed = claims.of_work(self.id).to_numpy() > 0
        misaligned, vectors = claimed & self._misaligned(facts), claimed & self._of_vectors(facts)
        transforms = claimed & facts.program.marked("bluestein")
        for which, others, variant, remedies in (
            (transforms, misaligned | vectors, self.transforms, (_SMOOTH_LENGTHS,)),
            (vectors, misaligned, self.vectors, _WHOLE_TENSORS),
        ):
            if time_of(facts.program, which) > time_of(facts.program, others):
                return self.seen(
                    facts,
                    claims,
                    variant=variant,
                    confidence="high",
                    evidence={"misaligned_per_step": int(which.sum()) / facts.steps},
                    # Passes next to them go over the same numbers; the time of one fused pass is unknown.
                    bound_ns=time_of(facts.program, which) + int(time_beside(facts.program, which).sum()),
                    remedies=remedies,
                )
        if not misaligned.any():
            return None
        size, of_size = self._size(facts, misaligned)
        at_peak = facts.at_roof["theoretical_ns"].filter(pl.Series(misaligned))
        misaligned_ns = time_of(facts.program, misaligned)
        known = at_peak.is_not_null().all()
        padded = -(-size // 64) * 64 if size else None
        reason = f": {size:,} is not a multiple of 8" if size else ""
        # Passes next to such a product have rows of the same odd length, and get faster when padded.
        beside = int(time_beside(facts.program, misaligned).sum()) + time_of(
            facts.program, facts.program.marked("padding") & facts.program.marked("generated")
        )
        helped = None if of_size[misaligned].all() else np.where(of_size, self.share(facts), 0.0)
        return self.seen(
            facts,
            claims,
            variant=Variant(f"Matrix products have sizes that the tensor cores cannot use{reason}"),
            confidence="high",
            evidence={
                "misaligned_per_step": int(misaligned.sum()) / facts.steps,
                "size_count": size,
                "padded_size_count": padded,
                "flops_of_peak_share": float(at_peak.sum()) / misaligned_ns if known else None,
            },
            bound_ns=int(misaligned_ns - at_peak.sum()) + beside // 2,
            # Padding one size helps only the products that have it.
            replayed=None if helped is None else facts.replayed(time=helped),
            remedies=(
                Remedy(
                    f"Pad that size to {padded:,}" if padded else "Pad the odd size to a multiple of 64",
                    "nn.Linear(width, 64 * math.ceil(classes / 64))  # extra columns masked\n"
                    "# transformers: model.resize_token_embeddings(pad_to_multiple_of=64); new tokens get scores, too",
                    "these products run at the rate of well-shaped ones",
                ),
                Remedy(
                    "Let the compiler pad",
                    "torch._inductor.config.shape_padding = True  # the default in recent versions\n"
                    "# and torch.compile",
                    "the same, minus one copy where operands are padded in every step",
                ),
            ),
        )

    def _size(self, facts: Facts, misaligned: Bools) -> tuple[int | None, Bools]:
        """The recorded size, no multiple of 8, of most of these products' time; and the products that have it."""
        shapes, own = facts.program.shapes(), facts.program.own_ns
        spent: dict[int, int] = {}
        with_size: dict[int, Bools] = {}
        for text in shapes.filter(pl.Series(misaligned)).drop_nulls().unique().sort():
            rows = misaligned & (shapes == text).fill_null(value=False).to_numpy()
            for size in {size for shape in tensors_of(text) for size in shape if size > 8 and size % 8}:
                spent[size] = spent.get(size, 0) + int(own[rows].sum())
                with_size[size] = with_size[size] | rows if size in with_size else rows
        most = max(spent, key=lambda size: (spent[size], size), default=None)
        return most, misaligned if most is None else with_size[most]


#: Dimensions that convolutions slide over → remedy. PyTorch has such formats for images (4-D) and volumes (5-D) only.
_CHANNELS_LAST: Final[dict[int | None, Remedy]] = {
    1: Remedy(
        "Keep sequences as (batch, length, channels)",
        "nn.Linear(c, d)(x)  # instead of nn.Conv1d(c, d, 1): the same product, without transposes before and after\n"
        "# longer kernels: nn.Conv2d(c, d, (1, k)) on x.unsqueeze(2), both in memory_format=torch.channels_last",
        "no conversions; channels_last does not exist for tensors of three dimensions",
    ),
    2: Remedy(
        "Use channels last for model and images",
        "model = model.to(memory_format=torch.channels_last)\n"
        "x = x.to(device, memory_format=torch.channels_last, non_blocking=True)",
        "no conversions, and higher bandwidth in norms and activations",
    ),
    3: Remedy(
        "Use channels last for model and volumes",
        "model = model.to(memory_format=torch.channels_last_3d)\n"
        "# it fails if the model has nn.Conv2d as well: convert each nn.Conv3d then\n"
        "x = x.to(device, memory_format=torch.channels_last_3d, non_blocking=True)",
        "no conversions, and higher bandwidth in norms and activations",
    ),
}
_CHANNELS_LAST[None] = replace(
    _CHANNELS_LAST[2],
    how=f"{_CHANNELS_LAST[2].how}\n"
    "# volumes: torch.channels_last_3d; sequences: nn.Linear instead of nn.Conv1d(c, d, 1)",
)


#: For a model in channels last whose maps are laid out with channels first before its convolutions.
_KEPT_LAST: Final = (
    Remedy(
        "Keep maps in channels last",
        "x = convolution(x)  # without x.contiguous() before, which lays out x with channels first\n"
        "# for a view: x.flatten(2) or x.reshape(...), which copy only if they must\n"
        "# a shuffle of pixels or channels needs its copy: only the one to channels last can go",
        "no copies there and back",
    ),
)


class MemoryFormat(StructureRule):
    """Convolutions between layout conversions, and norms in the format that is slow for convolutions."""

    id = "memory-format"
    model = "layout"
    question = "Does the memory format of images make convolutions slow?"
    limiter = "conversions of memory format around convolutions"
    cause = "memory format: convolutions and norms in the slow format (NCHW), conversions between formats"
    raised_when = (
        "there are convolutions on a GPU with tensor cores, conversions between formats (also two equal strided copies "
        "right before a channels-last convolution) or channels-first depthwise convolutions take 2 % of the time, and "
        "it costs 2 %"
    )
    claimed = "all of the conversions, and two thirds of channels-first norms and depthwise convolutions"
    headline = (
        "Limited by the memory format: {share} of the time could be saved, in conversions and kernels for the slow one"
    )
    title = "Images are in channels-first format (NCHW), which convolutions on tensor cores do not support"
    sequences: ClassVar = Variant(
        "Sequences are in channels-first format (batch, channels, length), which convolutions convert there and back",
        refutation="Time one layer as nn.Linear over (batch, length, channels), or nn.Conv2d on x.unsqueeze(2), both "
        "in torch.channels_last: if it is not faster, the format is not the limit.",
    )
    volumes: ClassVar = Variant(
        "Volumes are in channels-first format (NCDHW), which convolutions on tensor cores do not support",
        refutation="Run with each nn.Conv3d and the inputs in memory_format=torch.channels_last_3d: if it is not "
        "faster, the format is not the limit.",
    )
    back: ClassVar = Variant(
        "Maps are laid out with channels first, and back again before convolutions, which are in channels last",
        refutation="Leave out x.contiguous() before one convolution: if the two copies before it stay, they do not "
        "convert its input.",
    )
    evidence: ClassVar = {
        "conversions_per_step": "kernels that change the layout",
        "conversions_share": "of the window",
        "channels_first_share": "of the window, norms and depthwise convolutions on channels-first data",
    }
    refutation = (
        "Run with model.to(memory_format=torch.channels_last) and convert the inputs, too: if it is not faster, "
        "the format is not the limit."
    )
    least_conversions_share = Limit(0.02, "Below this share, they belong to the first layer or to an output.")
    least_copied_share = Limit(
        0.8,
        "Of all forward convolutions, without recorded shapes: more have such copies. Channels are shuffled before one "
        "in two, pixels before four of five in a chain of four enlargements.",
    )
    norm_saved_share = Limit(
        0.65,
        "Channels-first batch norms run one block per channel; channels-last ones reach three times the bandwidth.",
    )

    def share(self, facts: Facts) -> Float64s:
        """All of the conversions, and a part of the slow kernels."""
        program = facts.program
        conversions = self._conversions(facts)
        slow = self._slow(facts)
        share = np.zeros(facts.work.height)
        wrong = conversions | (slow & program.labelled("convolution"))
        if (
            not has_tensor_cores(facts)
            or not program.labelled("convolution").any()
            or time_of(program, wrong) < self.least_conversions_share * facts.wall_ns
        ):
            return share
        share[slow] = self.norm_saved_share
        share[conversions] = 1.0
        return share

    def _conversions(self, facts: Facts) -> Bools:
        """Kernels that change the layout, and copies that do so twice."""
        return np.asarray(facts.program.marked("layout-conversion") | self._there_and_back(facts), dtype=np.bool_)

    @remembered
    def _there_and_back(self, facts: Facts) -> Bools:
        """Two equal strided copies right before a channels-last convolution: to channels first, and back.

        PyTorch copies the input of such a convolution to channels last if it is not. Where shapes are recorded, both
        copies have that of the input. Without them, a shuffle of channels or pixels looks the same: its own copy, and
        that to channels last. It comes before a part of the convolutions only.
        """
        program = facts.program
        found = np.zeros(facts.work.height, dtype=np.bool_)
        # A gradient is multiplied with an input of the same size: two tensors, each copied once.
        forward = program.labelled("convolution") & ~program.marked("backward")
        reading = forward & program.marked("channels-last")
        if not reading.any():
            return found
        places = np.flatnonzero(program.in_order(program.is_kernel & ~program.marked("layout-conversion")))
        rows, stretch = program.order[places], np.cumsum(program.breaks)[places]
        copies, reading = (program.labelled("copy-cast") & program.marked("strided"))[rows], reading[rows]
        first = np.flatnonzero(copies[:-2] & copies[1:-1] & reading[2:] & (stretch[2:] == stretch[:-2]))
        first = first[program.launched_as(rows[first]) == program.launched_as(rows[first + 1])]
        if len(first) and facts.timeline.has_operators:
            texts = (program.shapes().gather(rows[first + after]).to_list() for after in range(3))
            shapes = ({first_shape(text) for text in of_input} for of_input in zip(*texts, strict=True))
            first = first[[len(each - {()}) <= 1 for each in shapes]]
        elif len(first) <= self.least_copied_share * int(forward[rows].sum()):
            return found
        found[rows[np.r_[first, first + 1]]] = True
        return found

    def _slow(self, facts: Facts) -> Bools:
        """Channels-first norms and depthwise convolutions; fast depthwise kernels need channels last."""
        program = facts.program
        first = program.marked("channels-first") & program.labelled("normalization", "reduction", "convolution")
        not_slow = program.labelled("convolution")
        if self._dimensions(facts) != 1:  # for sequences, there are no depthwise kernels with channels last
            not_slow = not_slow & ~program.marked("depthwise")
        return np.asarray(first & ~not_slow, dtype=np.bool_)

    @remembered
    def _dimensions(self, facts: Facts) -> int | None:
        """Dimensions of most convolutions: 1 (sequences), 2 (images) or 3 (volumes); None without shapes.

        PyTorch runs convolutions of sequences as those of images of height 1.
        """
        program = facts.program
        if not facts.timeline.has_operators:
            return None
        convolutions = np.flatnonzero(program.labelled("convolution"))
        shapes = program.shapes().gather(convolutions)
        frame = pl.DataFrame({"shapes": shapes, "time": program.own_ns[convolutions]})
        times = dict.fromkeys((1, 2, 3), 0)
        for text, spent in frame.drop_nulls().group_by("shapes").agg(pl.col("time").sum()).iter_rows():
            sides = [shape[2:] for shape in tensors_of(text) if len(shape) in (3, 4, 5)]
            if len(sides) > 1:
                flat = all(len(side) == 1 or (len(side) == 2 and side[0] == 1) for side in sides)
                times[1 if flat else max(map(len, sides))] += spent
        return max(times, key=lambda each: times[each]) if any(times.values()) else None

    def _shown(self, facts: Facts, claims: Claims) -> Finding | None:
        program = facts.program
        conversions, slow = self._conversions(facts), self._slow(facts)
        others = program.labelled(*PASSES, "convolution") & ~conversions & ~slow
        dimensions = self._dimensions(facts)
        in_last = 2 * time_of(program, self._there_and_back(facts)) > time_of(program, conversions | slow)
        return self.seen(
            facts,
            claims,
            variant=self.back if in_last else {1: self.sequences, 3: self.volumes}.get(dimensions or 2, USUAL),
            confidence="medium" if in_last and not facts.timeline.has_operators else "high",
            evidence={
                "conversions_per_step": int(conversions.sum()) / facts.steps,
                "conversions_share": time_of(program, conversions) / facts.wall_ns,
                "channels_first_share": time_of(program, slow) / facts.wall_ns,
            },
            # Kernels on the slow format may get as fast as their roof, which follows from the shapes.
            bound_ns=time_of(program, conversions)
            + int(0.85 * time_of(program, others))
            + int(time_of(program, slow) - facts.at_roof["theoretical_ns"].filter(pl.Series(slow)).sum()),
            remedies=_KEPT_LAST
            if in_last
            else (
                _CHANNELS_LAST[dimensions],
                Remedy(
                    "Compile the model",
                    "model = torch.compile(model)  # chooses layouts for the whole graph, fuses norms and activations",
                    "the same, and fewer passes",
                    compiles=True,
                ),
            ),
        )
