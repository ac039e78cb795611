"""The thirty-ninth set: vision, generated images and actions, pictures with text, speech."""

from __future__ import annotations

import contextlib
import math
from types import SimpleNamespace

import torch
import transformers
from timm.models.vision_transformer import Attention, Mlp, VisionTransformer
from timm.models.vision_transformer import Block as TimmBlock
from torch import Tensor, nn
from torch.nn import functional

from pairs.parts import (
    DEVICE,
    HALF,
    adamw,
    as_graph,
    compiled,
    images,
    mixed,
    on_device,
    seeded,
    size,
    tokens,
)
from pairs.registry import AFTER, BEFORE, THIRTY_NINTH, Step, healthy, pair

__all__: list[str] = []


def unwatched(model: nn.Module) -> None:
    """Leaves out the library's hooks for hidden states, which nobody asks for here, and at which compilers stop."""
    for part in model.modules():
        if isinstance(part, transformers.PreTrainedModel):
            part._output_capturing_hooks_installed = True


class Denoising(nn.Module):
    """A block of DiT: attention and MLP, whose norms are shifted, scaled and gated by what is asked for."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.near, self.far = (nn.LayerNorm(width, elementwise_affine=False, eps=1e-6) for _ in range(2))
        self.attention = Attention(width, num_heads=heads, qkv_bias=True)
        self.feed = Mlp(width, 4 * width, act_layer=lambda: nn.GELU(approximate="tanh"))
        self.asked = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x: Tensor, asked: Tensor) -> Tensor:
        """Places [rows, places, width], conditions [rows, width]."""
        shift, scale, gate, shift_feed, scale_feed, gate_feed = self.asked(asked)[:, None].chunk(6, dim=-1)
        x = x + gate * self.attention(self.near(x) * (1 + scale) + shift)
        return x + gate_feed * self.feed(self.far(x) * (1 + scale_feed) + shift_feed)


def waves_of(time: Tensor, width: int) -> Tensor:
    """Sines and cosines of times [rows] → [rows, width]."""
    speeds = torch.exp(-math.log(10_000) * torch.arange(width // 2, device=time.device) / (width // 2))
    angles = 1000 * time[:, None].float() * speeds
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


class Painter(nn.Module):
    """DiT with patches of 2 × 2 latents, asked for one of some kinds, or (the last) for none of them."""

    def __init__(self, side: int, width: int, depth: int, heads: int, kinds: int, channels: int = 4) -> None:
        super().__init__()
        self.side, self.width, self.channels = side // 2, width, channels
        self.first, self.last = nn.Linear(4 * channels, width), nn.Linear(width, 4 * channels)
        self.places = nn.Parameter(0.02 * torch.randn(self.side**2, width))
        self.kinds = nn.Embedding(kinds + 1, width)
        self.time = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(Denoising(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)

    def forward(self, latents: Tensor, time: Tensor, kinds: Tensor, watch: int = 0) -> tuple[Tensor, Tensor]:
        """Latents [rows, channels, side, side] → their velocity, and the places after the watched block."""
        rows = len(latents)
        x = latents.unflatten(3, (self.side, 2)).unflatten(2, (self.side, 2))
        x = self.first(x.permute(0, 2, 4, 1, 3, 5).reshape(rows, self.side**2, -1)) + self.places
        asked = self.time(waves_of(time, self.width).to(x.dtype)) + self.kinds(kinds)
        watched = x
        for index, block in enumerate(self.blocks):
            x = block(x, asked)
            if index == watch:
                watched = x
        x = self.last(self.norm(x)).view(rows, self.side, self.side, self.channels, 2, 2)
        return x.permute(0, 3, 1, 4, 2, 5).reshape(latents.shape), watched


@pair(
    "recomputation", "multimodal", "the descriptions are embedded once a folder: get_text_features before the loop",
    THIRTY_NINTH, library="transformers", inference=True, compiles=True, steps=(3, 2),
)  # fmt: skip
def museum_photo_labels(variant: str) -> Step:
    """CLIP (ViT-B/16, layers compiled, bfloat16) matches a folder of 768 photos with 2,000 descriptions of 32 tokens.

    Photos come in batches of 128, and each batch goes through `model(input_ids=…, pixel_values=…)`, as the example of
    the model card does. That embeds the same descriptions again for each batch: six times a folder, which takes as long
    as the photos themselves.
    """
    rows, batches, labels, long = size(128, 3), size(6, 2), size(2000, 5), size(32, 8)
    side, words = size(224, 32), size(49_408, 100)
    config = transformers.CLIPConfig(
        text_config={
            "vocab_size": words, "hidden_size": size(512, 32), "intermediate_size": size(2048, 64),
            "num_hidden_layers": size(12, 2), "num_attention_heads": size(8, 2), "projection_dim": size(512, 32),
            "eos_token_id": words - 1, "bos_token_id": words - 2, "pad_token_id": words - 1,
        },
        vision_config={
            "hidden_size": size(768, 32), "intermediate_size": size(3072, 64), "num_hidden_layers": size(12, 2),
            "num_attention_heads": size(12, 2), "image_size": side, "patch_size": 16, "projection_dim": size(512, 32),
        },
        projection_dim=size(512, 32),
    )  # fmt: skip
    model = on_device(lambda: transformers.CLIPModel(config), HALF).eval()
    unwatched(model)
    # Newer versions have the layers one level higher.
    towers = [getattr(tower, "text_model", getattr(tower, "vision_model", tower)) for tower in
              (model.text_model, model.vision_model)]  # fmt: skip
    compiled(layer for tower in towers for layer in tower.encoder.layers)
    seeded(1)
    photos = [images(rows, side, HALF) for _ in range(batches)]
    told = tokens(words - 2, labels, long)
    told[:, 0], told[:, -1] = words - 2, words - 1

    def once() -> list[Tensor]:
        text = functional.normalize(pooled(model.get_text_features(input_ids=told)), dim=-1)
        scale = model.logit_scale.exp()
        best = []
        for batch in photos:
            seen = functional.normalize(pooled(model.get_image_features(pixel_values=batch)), dim=-1)
            best.append((scale * seen @ text.T).softmax(dim=-1).topk(5).indices)
        return best

    def each() -> list[Tensor]:
        return [
            model(input_ids=told, pixel_values=batch).logits_per_image.softmax(dim=-1).topk(5).indices
            for batch in photos
        ]

    return once if variant == AFTER else each


def pooled(features: Tensor | transformers.utils.ModelOutput) -> Tensor:
    """Features of CLIP, which newer versions of the library wrap."""
    return features if isinstance(features, Tensor) else features.pooler_output


@pair(
    "host-sync", "vision", "outputs go to the CPU before post_process_object_detection and the loop over the boxes",
    THIRTY_NINTH, library="transformers", accept=("host-stall", "blocking-copy"), inference=True, compiles=True,
    with_stack=True, steps=(3, 2),
)  # fmt: skip
def harvest_crate_boxes(variant: str) -> Step:
    """YOLOS-base (layers compiled, bfloat16) finds crates in 8 pictures of 800 × 1344 for a tracker.

    The tracker wants weak boxes, too, so about 40 of 100 remain for each picture. They are written down as the
    library's example does it: for each box `box.tolist()`, `score.item()`, `label.item()`, of tensors on the GPU. Three
    waits a box, a thousand for a batch, while the GPU has nothing to do. Copied at first, the outputs cost two waits.
    """
    rows, high, wide, kinds, boxes = size(8, 2), size(800, 32), size(1344, 64), size(91, 5), size(100, 6)
    config = transformers.YolosConfig(
        hidden_size=size(768, 32), num_hidden_layers=size(12, 2), num_attention_heads=size(12, 2),
        intermediate_size=size(3072, 64), image_size=[high, wide], patch_size=16, num_detection_tokens=boxes,
        use_mid_position_embeddings=False, num_labels=kinds, attn_implementation="sdpa",
    )  # fmt: skip
    model = on_device(lambda: transformers.YolosForObjectDetection(config), HALF).eval()
    seeded(1)
    nn.init.normal_(model.vit.embeddings.detection_tokens)
    unwatched(model)
    compiled(model.vit.encoder.layer)
    processor = transformers.YolosImageProcessor()
    pictures = images(rows, wide, HALF)[:, :, :high].contiguous()
    sizes = [(high, wide)] * rows

    def found() -> SimpleNamespace:
        outputs = model(pixel_values=pictures)
        return SimpleNamespace(logits=outputs.logits.float(), pred_boxes=outputs.pred_boxes.float())

    least = found().logits.softmax(-1)[..., :-1].amax(-1).flatten().quantile(0.6).item()

    def step() -> list[tuple[int, float, list[float]]]:
        outputs = found()
        if variant == AFTER:
            outputs = SimpleNamespace(logits=outputs.logits.cpu(), pred_boxes=outputs.pred_boxes.cpu())
        written = []
        for result in processor.post_process_object_detection(outputs, threshold=least, target_sizes=sizes):
            for score, label, box in zip(result["scores"], result["labels"], result["boxes"], strict=True):
                corners = [round(corner, 2) for corner in box.tolist()]
                written.append((label.item(), round(score.item(), 3), corners))
        return written

    return step


class Organs(nn.Module):
    """A ViT whose places each tell the organs of their own 16 × 16 pixels."""

    def __init__(self, side: int, width: int, depth: int, heads: int, kinds: int) -> None:
        super().__init__()
        self.body = VisionTransformer(
            img_size=side, patch_size=16, in_chans=1, embed_dim=width, depth=depth, num_heads=heads, num_classes=0
        )
        self.head, self.side = nn.Linear(width, 256 * kinds), side // 16

    def forward(self, slices: Tensor) -> Tensor:
        """Slices [rows, 1, side, side] → scores [rows, kinds, side, side]."""
        seen = self.head(self.body.forward_features(slices)[:, 1:]).transpose(1, 2)
        return functional.pixel_shuffle(seen.unflatten(2, (self.side, self.side)), 16)


@pair(
    "memory-bandwidth", "vision", "Dice gathers probabilities of the true organs instead of multiplying with F.one_hot",
    THIRTY_NINTH, library="timm", accept=("unfused-chain",), compiles=True,
    steps=(3, 2),
)  # fmt: skip
def torso_organ_outlines(variant: str) -> Step:
    """A ViT-B/16 (blocks compiled, mixed precision, fused AdamW) outlines 105 organs in 16 slices of 512 × 512.

    The loss is cross entropy and Dice, which is written as in segmentation_models_pytorch: the true organs become
    F.one_hot (3.5 GB of int64), permuted, converted to float, multiplied with and added to the probabilities (where the
    permuted operand is read against its order). One value in 105 is not zero. Gathered probabilities and counts give
    the same Dice, without any tensor of that size but the probabilities.
    """
    rows, side, kinds = size(16, 2), size(512, 32), size(105, 5)
    model = on_device(lambda: Organs(side, size(768, 32), size(12, 2), size(12, 2), kinds)).train()
    compiled(model.body.blocks)
    optimizer = adamw(model)
    seeded(1)
    slices, organs = images(rows, side, channels=1), tokens(kinds, rows, side, side)
    firsts = kinds * torch.arange(rows, device=DEVICE)[:, None]

    def sums_of_all(chances: Tensor) -> tuple[Tensor, Tensor]:
        chances, true = chances.flatten(2), functional.one_hot(organs.flatten(1), kinds).permute(0, 2, 1)
        true = true.type_as(chances)
        return (chances * true).sum((0, 2)), (chances + true).sum((0, 2))

    def sums_of_true(chances: Tensor) -> tuple[Tensor, Tensor]:
        right = chances.gather(1, organs[:, None]).flatten()
        bins, empty = (organs.flatten(1) + firsts).flatten(), right.new_zeros(rows * kinds)
        both = empty.index_add(0, bins, right).view(rows, kinds).sum(0)
        counts = empty.index_add(0, bins, torch.ones_like(right)).view(rows, kinds).sum(0)
        return both, chances.sum((0, 2, 3)) + counts

    def step() -> Tensor:
        with mixed():
            scores = model(slices)
            both, total = (sums_of_true if variant == AFTER else sums_of_all)(scores.softmax(1, dtype=torch.float32))
            loss = functional.cross_entropy(scores, organs) + 1 - (2 * both / total.clamp(min=1e-7)).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


@pair(
    "precision", "diffusion", "the frozen encoder runs under torch.autocast(bfloat16), as the model that learns",
    THIRTY_NINTH, library="timm", compiles=True, steps=(3, 2),
)  # fmt: skip
def alpine_scene_painter(variant: str) -> Step:
    """SiT-L/2 learns to paint 48 scenes of 256 × 256 with REPA: a block should resemble a frozen DINOv2 (ViT-B/14).

    The painter learns in mixed precision (blocks compiled, fused AdamW). The encoder is called before, under no_grad,
    but also outside of autocast, so that its matrix products are of 32 bits, without tensor cores. It is a tenth of the
    work, and takes half of the step. In bfloat16 it is a few ms.
    """
    rows, side, kinds = size(48, 2), size(32, 8), size(1000, 10)
    width, watched, places = size(768, 32), size(7, 1), size(224, 56)
    painter = on_device(lambda: Painter(side, size(1024, 32), size(24, 3), size(16, 2), kinds)).train()
    match = on_device(
        lambda: nn.Sequential(
            nn.Linear(size(1024, 32), size(2048, 48)), nn.SiLU(), nn.Linear(size(2048, 48), size(2048, 48)), nn.SiLU(),
            nn.Linear(size(2048, 48), width),
        )
    ).train()  # fmt: skip
    encoder = on_device(
        lambda: VisionTransformer(
            img_size=places, patch_size=14, embed_dim=width, depth=size(12, 2), num_heads=size(12, 2), num_classes=0,
            init_values=1e-5,
        ),
        seed=1,
    ).eval()  # fmt: skip
    encoder.requires_grad_(False)
    compiled([*painter.blocks, *encoder.blocks])
    optimizer = adamw(nn.ModuleList([painter, match]))
    seeded(2)
    latents, scenes = images(rows, side, channels=4), images(rows, places)
    noise, asked, times = torch.randn_like(latents), tokens(kinds, rows), torch.rand(rows, device=DEVICE)

    def step() -> Tensor:
        with torch.no_grad(), mixed() if variant == AFTER else contextlib.nullcontext():
            seen = encoder.forward_features(scenes)[:, 1:].float()
        with mixed():
            part = times[:, None, None, None]
            velocity, inner = painter((1 - part) * latents + part * noise, times, asked, watched)
            alike = functional.cosine_similarity(match(inner).float(), seen, dim=-1).mean()
            loss = functional.mse_loss(velocity.float(), noise - latents) - 0.5 * alike
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


@pair(
    "padded-work", "speech", "padding=\"longest\" instead of padding=\"max_length\"", THIRTY_NINTH,
    library="transformers", compiles=True, steps=(3, 2),
)  # fmt: skip
def tram_stop_commands(variant: str) -> Step:
    """Wav2Vec2-large (layers compiled, mixed precision, fused AdamW) learns intents from 16 commands of 2 to 8 s.

    The feature extractor was called with padding="max_length", max_length=20 s, as in tutorials. So every batch has
    20 s of each command, most of them zeros behind an attention mask, and all layers work on them. Padded to the
    longest command of the batch, the tensors are 8 s long, and the loss is the same.
    """
    rows, most, long = size(16, 2), size(320_000, 8_000), size(128_000, 4_000)
    config = transformers.Wav2Vec2Config(
        hidden_size=size(1024, 32), num_hidden_layers=size(24, 2), num_attention_heads=size(16, 2),
        intermediate_size=size(4096, 64), feat_extract_norm="layer", do_stable_layer_norm=True, conv_bias=True,
        conv_dim=(size(512, 16),) * 7, num_conv_pos_embedding_groups=size(16, 2), num_conv_pos_embeddings=size(128, 4),
        hidden_dropout=0.0, attention_dropout=0.0, activation_dropout=0.0, feat_proj_dropout=0.0, final_dropout=0.0,
        layerdrop=0.0, apply_spec_augment=False, mask_time_prob=0.0, num_labels=size(64, 4),
        classifier_proj_size=size(256, 16), attn_implementation="sdpa",
    )  # fmt: skip
    model = on_device(lambda: transformers.Wav2Vec2ForSequenceClassification(config)).train()
    model.freeze_feature_encoder()
    unwatched(model)
    compiled(model.wav2vec2.encoder.layers)
    optimizer = adamw(model)
    seeded(1)
    lengths = torch.linspace(long // 4, long, rows, device=DEVICE).long()
    mask = (torch.arange(most, device=DEVICE) < lengths[:, None]).long()
    heard, intents = torch.randn(rows, most, device=DEVICE) * mask, tokens(size(64, 4), rows)
    if variant == AFTER:
        mask, heard = mask[:, :long].contiguous(), heard[:, :long].contiguous()

    def step() -> Tensor:
        with mixed():
            loss = model(heard, attention_mask=mask, labels=intents).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


@pair(
    "small-kernels", "diffusion", "the guided and the free prediction are one batch of two: one call a step",
    THIRTY_NINTH, inference=True, compiles=True, steps=(2, 1),
)  # fmt: skip
def postcard_sketch_sampler(variant: str) -> Step:
    """DiT-L/2 paints one picture of 256 × 256 in 8 steps: bfloat16, blocks compiled, all of it in one CUDA graph.

    Classifier-free guidance was written as two calls of the model for each step, with the kind and without. Each has
    256 places, which fill a fraction of the GPU, and reads all weights. One call with both as a batch takes little
    longer than either.
    """
    side, kinds, steps = size(32, 8), size(1000, 10), size(8, 2)
    painter = on_device(lambda: Painter(side, size(1024, 32), size(24, 2), size(16, 2), kinds), HALF).eval()
    compiled(painter.blocks)
    seeded(1)
    noise = images(1, side, HALF, channels=4)
    asked, free = torch.full((1,), 7, device=DEVICE), torch.full((1,), kinds, device=DEVICE)
    both = torch.cat([asked, free])
    times = torch.linspace(1, 0, steps + 1, device=DEVICE, dtype=HALF)

    def step() -> Tensor:
        latents = noise
        for index in range(steps):
            time = times[index : index + 1]
            if variant == BEFORE:
                guided, plain = painter(latents, time, asked)[0], painter(latents, time, free)[0]
            else:
                guided, plain = painter(latents.expand(2, -1, -1, -1), time.expand(2), both)[0].chunk(2)
            latents = latents - (plain + 4 * (guided - plain)) / steps
        return latents

    return as_graph(step)


class Policy(nn.Module):
    """Moves of a robot, denoised; cameras and joints say what for."""

    def __init__(self, side: int, seen: int, width: int, depth: int, moves: int, joints: int) -> None:
        super().__init__()
        self.eyes = VisionTransformer(
            img_size=side, patch_size=16, embed_dim=seen, depth=size(12, 2), num_heads=size(6, 2), num_classes=0
        )
        self.width, self.known = width, nn.Linear(2 * seen + joints, width)
        self.first, self.last = nn.Linear(joints, width), nn.Linear(width, joints)
        self.places = nn.Parameter(0.02 * torch.randn(moves, width))
        self.time = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(Denoising(width, size(12, 2)) for _ in range(depth))
        self.norm = nn.LayerNorm(width)

    def look(self, views: Tensor, joints: Tensor) -> Tensor:
        """Views [2, 3, side, side] and joints [1, joints] → what is known [1, width]."""
        return self.known(torch.cat([self.eyes(views).reshape(1, -1), joints], dim=-1))

    def forward(self, moves: Tensor, time: Tensor, known: Tensor) -> Tensor:
        """The noise in the moves [1, moves, joints]."""
        x = self.first(moves) + self.places
        asked = self.time(waves_of(time, self.width).to(x.dtype)) + known
        for block in self.blocks:
            x = block(x, asked)
        return self.last(self.norm(x))


@pair(
    "launch-overhead", "robotics", "the plan is captured as a CUDA graph (as mode=\"reduce-overhead\" does)",
    THIRTY_NINTH, library="timm", accept=("host-stall",), inference=True, compiles=True, steps=(3, 2),
)  # fmt: skip
def kitchen_arm_planner(variant: str) -> Step:
    """A diffusion policy plans 16 moves of an arm: ViT-S/16 sees two cameras, 8 blocks denoise the moves 16 times.

    Everything is of batch 1 (one arm), in bfloat16, and its blocks are compiled in the default mode. That fuses
    kernels, but launches each of the 1,700 from the host, and checks guards for 140 blocks: the GPU works for 2 to 3 µs
    a kernel and waits longer for the next. Shapes never change, so one graph replays all of it.
    """
    side, width, depth, moves, joints, steps = size(224, 32), size(768, 32), size(8, 2), 16, 14, size(16, 3)
    policy = on_device(lambda: Policy(side, size(384, 32), width, depth, moves, joints), HALF).eval()
    compiled([*policy.eyes.blocks, *policy.blocks])
    seeded(1)
    views, state = images(2, side, HALF), torch.randn(1, joints, device=DEVICE, dtype=HALF)
    start = torch.randn(1, moves, joints, device=DEVICE, dtype=HALF)
    times = torch.linspace(1, 0, steps + 1, device=DEVICE, dtype=HALF)

    def step() -> Tensor:
        known, plan = policy.look(views, state), start
        for index in range(steps):
            plan = plan - policy(plan, times[index : index + 1], known) / steps
        return plan

    return as_graph(step) if variant == AFTER else step


class Clips(nn.Module):
    """A ViT over tubes of 2 frames × 16 × 16 pixels."""

    def __init__(self, frames: int, side: int, width: int, depth: int, heads: int, kinds: int) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(3 * 2 * 16 * 16, width), nn.Linear(width, kinds)
        self.places = nn.Parameter(0.02 * torch.randn(frames // 2 * (side // 16) ** 2, width))
        self.blocks = nn.ModuleList(TimmBlock(width, heads, qkv_bias=True) for _ in range(depth))
        self.norm = nn.LayerNorm(width)

    def forward(self, clips: Tensor) -> Tensor:
        """Clips [rows, frames, 3, side, side] → scores of kinds."""
        x = clips.unflatten(4, (-1, 16)).unflatten(3, (-1, 16)).unflatten(1, (-1, 2))
        x = self.first(x.permute(0, 1, 4, 6, 2, 3, 5, 7).flatten(4).flatten(1, 3)) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x.mean(1)))


@healthy("vision", THIRTY_NINTH, library="timm", compiles=True, steps=(3, 2))
def swimming_stroke_clips(variant: str) -> Step:
    """A video ViT-B (tubes of 2 × 16 × 16) learns strokes from 24 clips of 16 frames: nothing is to be mended.

    Mixed precision, compiled blocks, fused attention over 1,568 places, fused AdamW, and clips already on the GPU.
    """
    rows, frames, side, kinds = size(24, 2), size(16, 4), size(224, 32), size(400, 5)
    model = on_device(lambda: Clips(frames, side, size(768, 32), size(12, 2), size(12, 2), kinds)).train()
    compiled(model.blocks)
    optimizer = adamw(model)
    seeded(1)
    clips = torch.randn(rows, frames, 3, side, side, device=DEVICE, dtype=HALF)
    strokes = tokens(kinds, rows)

    def step() -> Tensor:
        with mixed():
            loss = functional.cross_entropy(model(clips), strokes, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


@healthy("diffusion", THIRTY_NINTH, inference=True, compiles=True, steps=(3, 2))
def gallery_poster_sampler(variant: str) -> Step:
    """DiT-L/2 paints one poster of 1024 × 1024 in 4 steps: nothing is to be mended.

    Both predictions of the guidance are one batch of 2 × 4,096 places, in bfloat16, with compiled blocks and fused
    attention, and all steps are one CUDA graph.
    """
    side, kinds, steps = size(128, 8), size(1000, 10), size(4, 2)
    painter = on_device(lambda: Painter(side, size(1024, 32), size(24, 2), size(16, 2), kinds), HALF).eval()
    compiled(painter.blocks)
    seeded(1)
    noise, asked = images(1, side, HALF, channels=4), torch.tensor([7, kinds], device=DEVICE)
    times = torch.linspace(1, 0, steps + 1, device=DEVICE, dtype=HALF)

    def step() -> Tensor:
        latents = noise
        for index in range(steps):
            told = painter(latents.expand(2, -1, -1, -1), times[index].expand(2), asked)[0]
            guided, plain = told.chunk(2)
            latents = latents - (plain + 4 * (guided - plain)) / steps
        return latents

    return as_graph(step)
