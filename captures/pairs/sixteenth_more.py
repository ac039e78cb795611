"""The sixteenth set: common habits and reported ones; written with the seventeenth, split at random."""

from __future__ import annotations

import itertools
import random

import numpy as np
import timm
import torch
import torchvision
import transformers
from torch import Tensor, nn
from torch.nn import functional

from pairs.fourteenth import Block
from pairs.parts import CUDA, DEVICE, HALF, TINY, adamw, compiled, images, on_device, size, tokens, training
from pairs.registry import AFTER, BEFORE, SIXTEENTH, Step, healthy, pair


@pair(
    "memory-format", "video", "model and clips in torch.channels_last_3d", SIXTEENTH,
    library="torchvision", accept=("unfused-chain",), steps=(3, 3),
)  # fmt: skip
def clips_as_they_come(variant: str) -> Step:
    """A ResNet of 18 layers in three dimensions learns from 16 clips of 16 × 112 × 112 in mixed precision."""
    model = on_device(lambda: torchvision.models.video.r3d_18(num_classes=100)).train()
    clips = torch.randn(size(16, 1), 3, size(16, 4), size(112, 32), size(112, 32), device=DEVICE)
    if variant == AFTER:
        model, clips = model.to(memory_format=torch.channels_last_3d), clips.to(memory_format=torch.channels_last_3d)
    labels = tokens(100, len(clips))
    return training(lambda: functional.cross_entropy(model(clips).float(), labels), adamw(model))


@pair(
    "precision", "segmentation", "torch.backends.cudnn.allow_tf32 left True, as it is by default", SIXTEENTH,
    library="torchvision", accept=("tensor-compute",), steps=(3, 3),
)  # fmt: skip
def maps_without_tf32(variant: str) -> Step:
    """An FCN with a ResNet-50 learns from 8 maps of 320 × 320 in fp32; a line at the top forbids convolutions TF32."""
    made = torchvision.models.segmentation.fcn_resnet50
    model = on_device(lambda: made(weights_backbone=None, num_classes=21)).train()
    side = size(320, 64)
    x, labels = images(size(8, 2), side), tokens(21, size(8, 2), side, side)
    learn = training(lambda: functional.cross_entropy(model(x)["out"], labels), adamw(model), mixed=False)

    def step() -> None:
        torch.backends.cudnn.allow_tf32 = variant == AFTER
        learn()
        torch.backends.cudnn.allow_tf32 = True

    return step


@pair(
    "host-stall", "event vision", "events go to the GPU, where index_add_ counts them", SIXTEENTH,
    library="timm", accept=("blocking-copy",), steps=(3, 3),
)  # fmt: skip
def events_counted_by_numpy(variant: str) -> Step:
    """A ResNet-18 learns from 16 windows of 40,000 events; np.add.at counts them in ten pictures of 128 × 128 each."""
    windows, events, bins, side = size(16, 2), size(40_000, 100), 10, size(128, 32)
    model = on_device(lambda: timm.create_model("resnet18", num_classes=10, in_chans=bins)).train()
    labels, optimizer = tokens(10, windows), adamw(model)
    random_numbers = np.random.default_rng(0)
    places = random_numbers.integers(0, bins * side * side, (windows, events))
    kept = torch.from_numpy(places)
    kept = kept.pin_memory() if CUDA else kept

    def counted() -> Tensor:
        if variant == BEFORE:
            pictures = np.zeros((windows, bins * side * side), np.float32)
            for picture, place in zip(pictures, places, strict=True):
                np.add.at(picture, place, 1.0)
            return torch.from_numpy(pictures).to(DEVICE).view(windows, bins, side, side)
        sent = kept.to(DEVICE, non_blocking=True)
        sent = sent + torch.arange(windows, device=DEVICE)[:, None] * (bins * side * side)
        empty = torch.zeros(windows * bins * side * side, device=DEVICE)
        return empty.index_add_(0, sent.flatten(), torch.ones_like(empty[:1]).expand(sent.numel())).view(
            windows, bins, side, side
        )

    def step() -> None:
        x = counted()
        training(lambda: functional.cross_entropy(model(x).float(), labels), optimizer)()

    return step


@pair(
    "recomputation", "segmentation", "get_image_embeddings once, image_embeddings= in each call", SIXTEENTH,
    library="transformers", inference=True, accept=("launch-overhead",), steps=(3, 3),
)  # fmt: skip
def picture_encoded_for_each_click(variant: str) -> Step:
    """A SAM (12 × 768, bf16) cuts out what five clicks on a picture of 1,024 × 1,024 point at, one click a call."""
    vision = {
        "hidden_size": size(768, 32), "num_hidden_layers": size(12, 2), "num_attention_heads": size(12, 2),
        "image_size": size(1024, 64), "global_attn_indexes": [2, 5, 8, 11] if not TINY else [1],
        "mlp_dim": size(3072, 64), "window_size": size(14, 2),
    }  # fmt: skip
    prompt = {"image_size": size(1024, 64)} | ({"image_embedding_size": 4} if TINY else {})
    config = transformers.SamConfig(vision_config=vision, prompt_encoder_config=prompt)
    model = on_device(lambda: transformers.SamModel(config), HALF).eval()
    picture = images(1, size(1024, 64), HALF)
    clicks = torch.rand(5, 1, 1, 1, 2, device=DEVICE, dtype=HALF) * size(1024, 64)

    def step() -> list[Tensor]:
        told = {"pixel_values": picture}
        if variant == AFTER:
            told = {"image_embeddings": model.get_image_embeddings(picture)}
        return [model(**told, input_points=click, multimask_output=False).pred_masks for click in clicks]

    return step


class VolumeNet(nn.Module):
    """A small U-Net in three dimensions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.down = self.stage(1, width), nn.Conv3d(width, 2 * width, 2, 2)
        self.deep, self.up = self.stage(2 * width, 2 * width), nn.ConvTranspose3d(2 * width, width, 2, 2)
        self.last, self.out = self.stage(2 * width, width), nn.Conv3d(width, 4, 1)

    @staticmethod
    def stage(into: int, out: int) -> nn.Module:
        """Two convolutions."""
        return nn.Sequential(
            nn.Conv3d(into, out, 3, padding=1), nn.ReLU(), nn.Conv3d(out, out, 3, padding=1), nn.ReLU()
        )

    def forward(self, x: Tensor) -> Tensor:
        """Volumes [batch, 1, depth, height, width] → scores of four tissues."""
        wide = self.first(x)
        return self.out(self.last(torch.cat([wide, self.up(self.deep(self.down(wide)))], 1)))


@pair(
    "blocking-copy", "medical images", "volume and sums of scores stay on the GPU, where they fit", SIXTEENTH,
    accept=("host-stall",), inference=True, steps=(3, 3),
)  # fmt: skip
def windows_to_and_fro(variant: str) -> Step:
    """A U-Net (32 channels, bf16, channels last) slides over a scan of 128 × 256 × 256, which is kept on the host."""
    shape, window = (size(128, 16), size(256, 32), size(256, 32)), size(128, 16)
    net = on_device(lambda: VolumeNet(size(32, 2)), HALF).eval().to(memory_format=torch.channels_last_3d)
    where = torch.device("cpu") if variant == BEFORE else DEVICE
    scan = torch.randn(1, 1, *shape).to(where, HALF)
    begins = [range(0, max(length - window, 0) + 1, window // 2) for length in shape]

    def step() -> Tensor:
        sums = torch.zeros(1, 4, *shape, device=where, dtype=HALF)
        for z, y, x in itertools.product(*begins):
            place = (slice(None), slice(None), slice(z, z + window), slice(y, y + window), slice(x, x + window))
            part = scan[place].to(DEVICE).contiguous(memory_format=torch.channels_last_3d)
            sums[place] += net(part).to(where)
        return sums

    return step


class Packed(nn.Module):
    """Attention within each of several texts that stand in one row; each layer asks how long the longest is."""

    def __init__(self, width: int, heads: int, *, asks: bool) -> None:
        super().__init__()
        self.heads, self.asks = heads, asks
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.joined, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, ends: Tensor, longest: int) -> Tensor:
        """Tokens [tokens, width] → the same shape."""
        if self.asks:
            longest = int((ends[1:] - ends[:-1]).max().item())
        q, k, v = (part.unflatten(-1, (self.heads, -1)) for part in self.joined(self.before(x)).chunk(3, -1))
        if CUDA:
            from torch.nn.attention.varlen import varlen_attn

            seen = varlen_attn(q.contiguous(), k.contiguous(), v.contiguous(), ends, ends, longest, longest)
        else:
            seen = v
        x = x + self.out(seen.flatten(1))
        return x + self.feed(self.between(x))


@pair(
    "host-sync", "vision-language", "the longest is asked once for all layers", SIXTEENTH,
    accept=("launch-overhead",), inference=True, steps=(3, 3),
)  # fmt: skip
def longest_asked_in_each_layer(variant: str) -> Step:
    """Twenty-four layers (1,024) see 32 pictures of 64 to 400 patches packed in a row, in bf16; each asks the GPU."""
    width = size(1024, 16)
    layers = on_device(lambda: nn.ModuleList(
        Packed(width, size(16, 2), asks=variant == BEFORE) for _ in range(size(24, 2))
    ), HALF).eval()  # fmt: skip
    lengths = random.Random(0).choices(range(64, 400), k=size(32, 2))
    ends = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=DEVICE)
    x = torch.randn(sum(lengths), width, device=DEVICE, dtype=HALF)

    def step() -> Tensor:
        longest = int((ends[1:] - ends[:-1]).max().item())
        y = x
        for layer in layers:
            y = layer(y, ends, longest)
        return y

    return step


@pair(
    "unfused-chain", "detection", "nn.BatchNorm2d in eval(), its weights frozen", SIXTEENTH,
    library="torchvision", accept=("memory-bandwidth", "precision"), steps=(3, 3),
)  # fmt: skip
def norms_frozen_by_hand(variant: str) -> Step:
    """A ResNet-50 learns from 8 images of 640 × 640 in mixed precision and channels last, with FrozenBatchNorm2d."""
    frozen = torchvision.ops.FrozenBatchNorm2d
    norm = frozen if variant == BEFORE else nn.BatchNorm2d
    model = on_device(lambda: torchvision.models.resnet50(num_classes=91, norm_layer=norm)).train()
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.eval().requires_grad_(False)
    model = model.to(memory_format=torch.channels_last)
    x = images(size(8, 1), size(640, 64)).to(memory_format=torch.channels_last)
    labels = tokens(91, len(x))
    return training(lambda: functional.cross_entropy(model(x).float(), labels), adamw(model))


@pair(
    "precision", "video", "patches cut out by reshape and a product instead of nn.Conv3d", SIXTEENTH,
    accept=("tensor-compute",), compiles=True, inference=True, steps=(3, 3),
)  # fmt: skip
def clips_cut_up_by_conv3d(variant: str) -> Step:
    """Blocks (12 × 1,024) describe 8 clips in bf16, whose patches a Conv3d cuts out; the next come by a stream."""
    width, clips = size(1024, 16), size(8, 1)
    patches = on_device(lambda: nn.Conv3d(3, width, (2, 16, 16), (2, 16, 16)), HALF).eval()
    blocks = on_device(lambda: nn.ModuleList(Block(width, size(16, 2)) for _ in range(size(12, 1))), HALF).eval()
    compiled(blocks)
    shape = (clips, 3, size(16, 2), size(224, 32), size(224, 32))
    source = torch.randint(0, 256, shape, dtype=torch.uint8, pin_memory=CUDA)
    stream = torch.cuda.Stream() if CUDA else None
    waiting = [source.to(DEVICE)]

    def described(frames: Tensor) -> Tensor:
        x = frames.to(HALF).div_(127.5).sub_(1.0)
        if variant == BEFORE:
            x = patches(x).flatten(2).transpose(1, 2).contiguous()
        else:
            x = x.unflatten(4, (-1, 16)).unflatten(3, (-1, 16)).unflatten(2, (-1, 2))
            x = x.permute(0, 2, 4, 6, 1, 3, 5, 7).flatten(4).flatten(1, 3)
            x = functional.linear(x, patches.weight.flatten(1), patches.bias)
        for block in blocks:
            x = block(x)
        return x.mean(1)

    def step() -> Tensor:
        frames = waiting.pop()
        if stream is None:
            waiting.append(source.to(DEVICE))
        else:
            torch.cuda.current_stream().wait_stream(stream)
            with torch.cuda.stream(stream):
                waiting.append(source.to(DEVICE, non_blocking=True))
            frames.record_stream(torch.cuda.current_stream())
        return described(frames)

    return step


class TwoStreams(nn.Module):
    """A block of a text-to-image transformer: picture and text have weights of their own and attend together."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width, elementwise_affine=False) for _ in range(4))
        self.joined = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(2))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.feed = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width)) for _ in range(2)
        )
        self.change = nn.ModuleList(nn.Linear(width, 6 * width) for _ in range(2))

    def forward(self, picture: Tensor, text: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        """Places and words [prompts, …, width], time [prompts, width] → the same shapes."""
        changes = [change(functional.silu(time))[:, None].chunk(6, -1) for change in self.change]
        streams = [picture, text]
        joined = [
            self.joined[i](self.norms[i](x) * (1 + changes[i][0]) + changes[i][1]).unflatten(-1, (3, self.heads, -1))
            for i, x in enumerate(streams)
        ]
        q, k, v = torch.cat(joined, 1).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        parts = seen.split([picture.shape[1], text.shape[1]], 1)
        result = []
        for i, x in enumerate(streams):
            y = x + changes[i][2] * self.out[i](parts[i])
            result.append(y + changes[i][3] * self.feed[i](self.norms[2 + i](y) * (1 + changes[i][4]) + changes[i][5]))
        return result[0], result[1]


@healthy("diffusion", SIXTEENTH, compiles=True, inference=True, steps=(3, 3))
def healthy_text_to_image(variant: str) -> Step:
    """Six blocks of two streams (1,536) denoise a picture of 4,096 places with and without its text: bf16, compiled."""
    width = size(1536, 16)
    blocks = on_device(lambda: nn.ModuleList(TwoStreams(width, size(24, 2)) for _ in range(size(6, 1))), HALF).eval()
    compiled(blocks)
    picture = torch.randn(2, size(4096, 16), width, device=DEVICE, dtype=HALF)
    text, time = (torch.randn(2, *shape, width, device=DEVICE, dtype=HALF) for shape in ((size(256, 4),), ()))

    def step() -> Tensor:
        x, words = picture, text
        for block in blocks:
            x, words = block(x, words, time)
        return x[:1] + 4 * (x[1:] - x[:1])

    return step
