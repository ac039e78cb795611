"""More of the thirty-third set: anomalies, accumulation, padding, losses by features, scores, replay, attention."""

from __future__ import annotations

import numpy as np
import timm
import torch
import torchvision
import transformers
from torch import Tensor, nn
from torch.nn import functional

from pairs.parts import CUDA, DEVICE, HALF, adamw, compiled, images, mixed, on_device, seeded, size, tokens, training
from pairs.registry import AFTER, BEFORE, THIRTY_THIRD, Step, healthy, pair

__all__: list[str] = []
LAST = torch.channels_last


def pinned(x: Tensor) -> Tensor:
    """In memory that the GPU reads by itself."""
    return x.pin_memory() if CUDA else x


@pair(
    "host-sync", "speech", "torch.autograd.set_detect_anomaly(True) is taken out", THIRTY_THIRD,
    library="transformers", accept=("launch-overhead", "host-stall"), with_stack=True, steps=(2, 1),
)  # fmt: skip
def city_noise_tagging(variant: str) -> Step:
    """An audio spectrogram transformer (12 × 768, mixed precision) learns 64 tags from 20 clips of 10 s.

    Someone looked for a NaN and left autograd's anomaly mode on. It keeps a Python stack for each operation of the
    forward pass, and asks after each one of the backward pass whether a gradient has a NaN, which waits for the GPU.
    Stacks cost the time of the host: hence the other findings.
    """
    rows, bands, moments, kinds = size(20, 2), size(128, 32), size(1024, 48), size(64, 5)
    config = transformers.ASTConfig(
        hidden_size=size(768, 32), num_hidden_layers=size(12, 1), num_attention_heads=size(12, 2),
        intermediate_size=size(3072, 64), num_mel_bins=bands, max_length=moments, num_labels=kinds,
    )  # fmt: skip
    model = on_device(lambda: transformers.ASTForAudioClassification(config)).train()
    optimizer = adamw(model)
    clips = torch.randn(rows, moments, bands, device=DEVICE)
    tags = (torch.rand(rows, kinds, device=DEVICE) < 0.1).float()
    average = torch.zeros((), device=DEVICE)

    def step() -> Tensor:
        x = clips.clone()
        x[:, moments // 4 : moments // 3] = 0.0  # as SpecAugment does
        x[:, :, bands // 2 : bands // 2 + bands // 8] = 0.0
        with torch.autograd.set_detect_anomaly(variant == BEFORE):
            with mixed():
                scores = model(input_values=x).logits
            loss = functional.binary_cross_entropy_with_logits(scores.float(), tags)
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return average.lerp_(loss.detach(), 0.1)

    return step


@pair(
    "launch-overhead", "training", "all 8 proteins at once, without accumulation", THIRTY_THIRD,
    library="transformers", accept=("small-kernels", "weight-bound"), steps=(2, 1),
)  # fmt: skip
def enzyme_family_tuning(variant: str) -> Step:
    """An ESM-2 (10 × 1,280, mixed precision) learns 7 families of enzymes from 8 crops of 512 residues.

    They come as 4 times 2, with gradients accumulated: so it had to be on the card on which the script was written.
    Here most memory is free, and the GPU waits for the launches of kernels too small for it. Small products read all
    weights for few rows, too: hence the other findings.
    """
    parts, rows, room, kinds = size(4, 2), 2, size(512, 12), size(7, 3)
    config = transformers.EsmConfig(
        vocab_size=33, hidden_size=size(1280, 32), num_hidden_layers=size(10, 1), num_attention_heads=size(20, 2),
        intermediate_size=size(5120, 64), max_position_embeddings=1026, position_embedding_type="rotary",
        pad_token_id=1, mask_token_id=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=kinds,
    )  # fmt: skip
    model = on_device(lambda: transformers.EsmForSequenceClassification(config)).train()
    optimizer = adamw(model)
    seeded(1)
    residues, families = 4 + tokens(20, parts * rows, room), tokens(kinds, parts * rows)
    right = torch.zeros((), device=DEVICE, dtype=torch.long)
    count = 1 if variant == AFTER else parts

    def step() -> Tensor:
        for ids, wanted in zip(residues.chunk(count), families.chunk(count), strict=True):
            with mixed():
                scores = model(input_ids=ids).logits
            loss = functional.cross_entropy(scores.float(), wanted) / count
            loss.backward()
            right.add_((scores.detach().argmax(-1) == wanted).sum())
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return right

    return step


@pair(
    "padded-work", "training", 'padding="longest" instead of "max_length": a batch as long as its longest text',
    THIRTY_THIRD, library="transformers", steps=(2, 1),
)  # fmt: skip
def helpdesk_ticket_sorting(variant: str) -> Step:
    """A RoBERTa (12 × 768, mixed precision) learns to sort 64 tickets of some 80 tokens, 200 at most, into 20 queues.

    All were tokenised with padding="max_length": each has 512 places, of which five in six are padding.
    """
    rows, room, longest, kinds = size(64, 3), size(512, 24), size(200, 10), size(20, 3)
    config = transformers.RobertaConfig(
        vocab_size=size(50_265, 64), hidden_size=size(768, 32), num_hidden_layers=size(12, 1),
        num_attention_heads=size(12, 2), intermediate_size=size(3072, 64), max_position_embeddings=room + 2,
        type_vocab_size=1, num_labels=kinds, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, pad_token_id=1,
    )  # fmt: skip
    model = on_device(lambda: transformers.RobertaForSequenceClassification(config)).train()
    optimizer = adamw(model)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: min(1.0, (done + 1) / 500))
    random = np.random.default_rng(0)
    lengths = np.clip(random.lognormal(np.log(longest * 0.36), 0.5, rows), 4, longest).astype(int)
    lengths[0] = longest
    places = room if variant == BEFORE else -(-int(lengths.max()) // 8) * 8
    ids = random.integers(3, config.vocab_size, (rows, room))[:, :places]
    seen = np.arange(places) < lengths[:, None]
    texts, masks = pinned(torch.from_numpy(np.where(seen, ids, 1))), pinned(torch.from_numpy(seen.astype(np.int64)))
    queues = pinned(torch.from_numpy(random.integers(0, kinds, rows)))

    def step() -> Tensor:
        batch = {"input_ids": texts, "attention_mask": masks, "labels": queues}
        batch = {key: value.to(DEVICE, non_blocking=True) for key, value in batch.items()}
        with mixed():
            loss = model(**batch).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


class Residual(nn.Module):
    """A block of EDSR."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(width, width, 3, padding=1)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Features [rows, width, side, side]."""
        return x + 0.1 * self.body(x)


def sharpener(width: int, deep: int) -> nn.Sequential:
    """An EDSR that makes images four times as large."""
    grow = [part for _ in range(2) for part in (nn.Conv2d(width, 4 * width, 3, padding=1), nn.PixelShuffle(2))]
    blocks = [Residual(width) for _ in range(deep)]
    return nn.Sequential(nn.Conv2d(3, width, 3, padding=1), *blocks, *grow, nn.Conv2d(width, 3, 3, padding=1))


class Likeness(nn.Module):
    """How far features of VGG-19 are apart, as in ESRGAN."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.features = torchvision.models.vgg19(weights=None).features[:layers]
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1))
        self.register_buffer("spread", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1))

    def told(self, x: Tensor) -> Tensor:
        """Features of images in [0, 1]."""
        return self.features((x - self.mean) / self.spread)

    def forward(self, made: Tensor, true: Tensor) -> Tensor:
        """Images [rows, 3, side, side], both."""
        if any(weight.requires_grad for weight in self.parameters()):
            return functional.l1_loss(self.told(made).float(), self.told(true).float())
        with torch.no_grad():
            wanted = self.told(true)
        return functional.l1_loss(self.told(made).float(), wanted.float())


@pair(
    "unused-gradients", "restoration", "requires_grad_(False) for VGG, and true images without a graph", THIRTY_THIRD,
    library="torchvision", steps=(4, 2),
)  # fmt: skip
def aerial_photo_sharpening(variant: str) -> Step:
    """An EDSR (16 × 64, channels_last, mixed) learns to make 32 patches of 48² four times as large, judged by VGG-19.

    VGG is in eval mode and in no optimizer, but its weights ask for gradients: they are computed for both images, and
    never used.
    """
    rows, side = size(32, 2), size(48, 12)
    model = on_device(lambda: sharpener(size(64, 8), size(16, 2))).train().to(memory_format=LAST)
    judge = on_device(lambda: Likeness(size(35, 8)), seed=1).eval().to(memory_format=LAST)
    if variant == AFTER:
        judge.requires_grad_(False)
    optimizer = adamw(model)
    true = torch.rand(rows, 3, 4 * side, 4 * side, device=DEVICE).contiguous(memory_format=LAST)
    small = functional.avg_pool2d(true, 4).contiguous(memory_format=LAST)
    quality = torch.zeros((), device=DEVICE)

    def step() -> Tensor:
        with mixed():
            made = model(small)
            loss = 0.01 * functional.l1_loss(made.float(), true) + judge(made, true)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        apart = functional.mse_loss(made.detach().float(), true)
        return quality.lerp_(-10 * apart.log10(), 0.05)

    return step


@pair(
    "blocking-copy", "evaluation", "masks are made and counted on the GPU, and only the counts copied", THIRTY_THIRD,
    library="torchvision", accept=("host-stall",), inference=True, steps=(4, 2),
)  # fmt: skip
def heart_chamber_scoring(variant: str) -> Step:
    """A DeepLabv3 with a ResNet-101 (channels_last, bf16) finds a chamber and its wall in 24 slices of 512²; Dice.

    The scores of all pixels go to the CPU by .cpu(), where masks are made and counted, while the GPU waits. Much of
    that time is the CPU's: hence "host-stall", too.
    """
    rows, side, kinds = size(24, 2), size(512, 64), 2

    def make() -> nn.Module:
        build = torchvision.models.segmentation.deeplabv3_resnet101
        if not CUDA:
            build = torchvision.models.segmentation.deeplabv3_mobilenet_v3_large
        return build(weights=None, weights_backbone=None, num_classes=kinds)

    model = on_device(make, HALF).eval().to(memory_format=LAST)
    seeded(1)
    slices = pinned(torch.randint(0, 256, (rows, 3, side, side), dtype=torch.uint8).contiguous(memory_format=LAST))
    true = torch.randint(0, 2, (rows, kinds, side, side)).float().contiguous(memory_format=LAST)
    if variant == AFTER:
        true = true.to(DEVICE)

    def step() -> list[float]:
        x = slices.to(DEVICE, non_blocking=True).to(HALF).sub_(127.5).div_(58.4)
        chances = model(x)["out"].float().sigmoid()
        if variant == BEFORE:
            chances = chances.cpu()
        masks = (chances > 0.5).float()
        shared, there = (masks * true).sum((0, 2, 3)), (masks + true).sum((0, 2, 3))
        return (2 * shared / there.clamp(min=1)).tolist()

    return step


class Climb(nn.Module):
    """A residual block of IMPALA, activations first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """Features [rows, width, side, side]."""
        return x + self.second(functional.relu(self.first(functional.relu(x))))


def player(side: int, widths: tuple[int, ...], actions: int) -> nn.Sequential:
    """The network of IMPALA: four frames → the value of each action."""
    parts: list[nn.Module] = []
    for before, width in zip((4, *widths), widths, strict=False):
        parts += [nn.Conv2d(before, width, 3, padding=1), nn.MaxPool2d(3, 2, 1), Climb(width), Climb(width)]
        side = (side + 1) // 2
    inside = nn.Linear(widths[-1] * side * side, 512)
    return nn.Sequential(*parts, nn.ReLU(), nn.Flatten(), inside, nn.ReLU(), nn.Linear(512, actions))


@pair(
    "blocking-copy", "reinforcement learning", "frames go as bytes from pinned memory, and are floats on the GPU",
    THIRTY_THIRD, accept=("host-stall",), with_stack=True, steps=(4, 2),
)  # fmt: skip
def arcade_replay_learning(variant: str) -> Step:
    """A double DQN (IMPALA's network, mixed precision) learns from 256 moves of a replay, 4 frames of 84² before each.

    Frames are bytes in the replay, and torch.as_tensor(frames, dtype=torch.float32, device=…) makes floats of them on
    the CPU, which are copied from pageable memory: four times the bytes, by a slow way, while the GPU waits.
    """
    rows, side, actions, room = size(256, 4), size(84, 20), 18, size(20_000, 64)
    widths = (size(32, 4), size(64, 4), size(64, 4))
    online = on_device(lambda: player(side, widths, actions)).train().to(memory_format=LAST)
    target = on_device(lambda: player(side, widths, actions)).eval().requires_grad_(False).to(memory_format=LAST)
    target.load_state_dict(online.state_dict())
    followed, leading = list(target.parameters()), list(online.parameters())
    optimizer = adamw(online)
    random = np.random.default_rng(0)
    frames = random.integers(0, 256, (room, side, side), dtype=np.uint8)
    moves, gains = random.integers(0, actions, room), random.standard_normal(room).astype(np.float32)

    def seen(places: np.ndarray) -> Tensor:
        stacks = frames[places[:, None] + np.arange(-3, 1)]
        if variant == BEFORE:
            x = torch.as_tensor(stacks, dtype=torch.float32, device=DEVICE)
        else:
            x = pinned(torch.from_numpy(stacks)).to(DEVICE, non_blocking=True).float()
        return (x / 255.0).contiguous(memory_format=LAST)

    def step() -> Tensor:
        places = random.integers(3, room - 1, rows)
        now, later = seen(places), seen(places + 1)
        move = pinned(torch.from_numpy(moves[places])).to(DEVICE, non_blocking=True)
        gain = pinned(torch.from_numpy(gains[places])).to(DEVICE, non_blocking=True)
        with mixed():
            with torch.no_grad():
                best = online(later).argmax(1, keepdim=True)
                wanted = gain + 0.99 * target(later).float().gather(1, best)[:, 0]
            told = online(now).float().gather(1, move[:, None])[:, 0]
        loss = functional.smooth_l1_loss(told, wanted)
        loss.backward()
        nn.utils.clip_grad_norm_(leading, 10.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            torch._foreach_lerp_(followed, leading, 0.005)
        return loss.detach()

    return step


class Layer(nn.Module):
    """A layer of a transformer by nn.MultiheadAttention, norms first."""

    def __init__(self, width: int, heads: int, how: dict[str, bool]) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.how = how

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Places [rows, places, width], a mask [places, places]."""
        y = self.norms[0](x)
        y, _ = self.attention(y, y, y, attn_mask=mask, **self.how)
        x = x + y
        return x + self.feed(self.norms[1](x))


class World(nn.Module):
    """A world model over tokens of frames, as IRIS."""

    def __init__(self, words: int, actions: int, frames: int, spots: int, width: int, heads: int, deep: int) -> None:
        super().__init__()
        self.words, self.acts = nn.Embedding(words, width), nn.Embedding(actions, width)
        self.places = nn.Parameter(0.02 * torch.randn(frames * spots, width))
        self.layers = nn.ModuleList(Layer(width, heads, {}) for _ in range(deep))
        self.norm, self.next, self.gain = nn.LayerNorm(width), nn.Linear(width, words), nn.Linear(width, 3)
        self.spots = spots
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(frames * spots))

    def forward(self, ids: Tensor, acts: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens [rows, frames, spots], actions [rows, frames] → scores of the next token, of each frame's reward."""
        x = (self.words(ids) + self.acts(acts)[:, :, None]).flatten(1, 2) + self.places
        for layer in self.layers:
            x = layer(x, self.mask)
        x = self.norm(x)
        return self.next(x), self.gain(x[:, self.spots - 1 :: self.spots])


@pair(
    "unfused-attention", "world model", "need_weights=False and is_causal=True for nn.MultiheadAttention", THIRTY_THIRD,
    accept=("memory-bandwidth",), steps=(2, 1),
)  # fmt: skip
def kitchen_robot_dreaming(variant: str) -> Step:
    """A world model (8 × 512, 8 heads, mixed precision) learns from 16 episodes of 16 frames of 64 tokens, and rewards.

    nn.MultiheadAttention is called as it stands in tutorials: by default it returns weights, too, which nobody reads.
    Hence scores of 1,024 × 1,024 are written, and averaged over heads.
    """
    words, actions, frames, spots, rows = size(512, 32), size(16, 4), size(16, 3), size(64, 4), size(16, 2)
    width, heads, deep = size(512, 32), size(8, 2), size(8, 1)
    model = on_device(lambda: World(words, actions, frames, spots, width, heads, deep)).train()
    if variant == AFTER:
        for layer in model.layers:
            layer.how = {"need_weights": False, "is_causal": True}
    seeded(1)
    ids, acts, gains = tokens(words, rows, frames, spots), tokens(actions, rows, frames), tokens(3, rows, frames)

    def loss() -> Tensor:
        told, gained = model(ids, acts)
        new = functional.cross_entropy(told[:, :-1].flatten(0, 1).float(), ids.flatten(1)[:, 1:].flatten())
        return new + functional.cross_entropy(gained.flatten(0, 1).float(), gains.flatten())

    return training(loss, adamw(model))


class Words(nn.Module):
    """The loss of a language model; what comes next is given."""

    def forward(self, told: Tensor, wanted: Tensor) -> Tensor:
        """Scores [rows, places, words], ids [rows, places]."""
        return functional.cross_entropy(told.flatten(0, 1).float(), wanted.flatten())


@healthy("training", THIRTY_THIRD, library="transformers", compiles=True, steps=(2, 1))
def healthy_court_ruling_pretraining(variant: str) -> Step:
    """A Llama (12 × 2,048) learns from 4 × 4,096 tokens: mixed precision, layers and loss compiled, fused AdamW.

    Texts are packed, so that nothing is padded. The norm of gradients and the loss stay on the GPU, for the log.
    """
    config = transformers.LlamaConfig(
        vocab_size=size(32_000, 64), hidden_size=size(2048, 32), intermediate_size=size(5632, 64), use_cache=False,
        num_hidden_layers=size(12, 1), num_attention_heads=size(16, 4), num_key_value_heads=size(16, 4),
        max_position_embeddings=size(4096, 64),
    )  # fmt: skip
    model, lost = on_device(lambda: transformers.LlamaForCausalLM(config)).train(), Words()
    compiled([*model.model.layers, lost])
    optimizer = adamw(model)
    ids = tokens(config.vocab_size, size(4, 2), size(4096, 12) + 1)
    given, wanted = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    log = torch.zeros(2, device=DEVICE)

    def step() -> Tensor:
        with mixed():
            loss = lost(model(input_ids=given).logits, wanted)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return log.lerp_(torch.stack((loss.detach(), norm)), 0.1)

    return step


class Fewer(nn.Module):
    """Keeps the tokens that are least like the average one."""

    def __init__(self, kept: int) -> None:
        super().__init__()
        self.kept = kept

    def forward(self, x: Tensor) -> Tensor:
        """Tokens [rows, places, width] → [rows, kept, width]."""
        y = functional.normalize(x.float(), dim=-1)
        like = (y * y.mean(1, keepdim=True)).sum(-1)
        best = like.topk(self.kept, dim=1, largest=False, sorted=False).indices
        return x.gather(1, best[..., None].expand(-1, -1, x.shape[-1]))


@healthy("token reduction", THIRTY_THIRD, library="timm", inference=True, compiles=True, steps=(2, 1))
def healthy_herbarium_sheet_naming(variant: str) -> Step:
    """A ViT-L/16 of timm (bf16, compiled) names 2 batches of 64 images of 384²; 576 tokens become 416, 288 and 208.

    Tokens are dropped by topk and gather, in numbers known beforehand: sizes stay the same, and nothing waits. How many
    names are right is counted on the GPU, and read once.
    """
    side, rows, kinds, batches = size(384, 64), size(64, 2), size(1000, 5), 2

    def make() -> nn.Module:
        own = {} if CUDA else {"embed_dim": 32, "depth": 4, "num_heads": 2}
        name = "vit_large_patch16_384"
        plain = {"class_token": False, "global_pool": "avg"}
        return timm.create_model(name, img_size=side, num_classes=kinds, **plain, **own)

    model = on_device(make, HALF).eval()
    fewer = nn.ModuleList(Fewer(kept) for kept in (size(416, 12), size(288, 10), size(208, 8)))
    compiled([*model.blocks, *fewer])
    apart = len(model.blocks) // 4
    given = [(images(rows, side, HALF), tokens(kinds, rows)) for _ in range(batches)]

    def told(x: Tensor) -> Tensor:
        x = model.norm_pre(model._pos_embed(model.patch_embed(x)))
        for index, block in enumerate(model.blocks):
            if index and index % apart == 0:
                x = fewer[index // apart - 1](x)
            x = block(x)
        return model.forward_head(model.norm(x))

    def step() -> int:
        right = torch.zeros((), device=DEVICE, dtype=torch.long)
        for x, names in given:
            right += (told(x).argmax(-1) == names).sum()
        return int(right)

    return step
