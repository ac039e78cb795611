"""Vision, video, time series and ranking of the fourth set: written without a look at the rules of the diagnosis."""

from __future__ import annotations

import itertools

import numpy as np
import timm
import torch
import torchvision
import transformers
from timm.models.mlp_mixer import MlpMixer
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional

from pairs.held_vision import UNet
from pairs.parts import CUDA, DEVICE, HALF, TINY, adamw, as_graph, compiled, images, on_device, size, tokens, training
from pairs.registry import AFTER, BEFORE, FOURTH, Step, healthy, pair

LAST = torch.channels_last


@pair(
    "host-sync", "contrastive", "torch.nn.utils.get_total_norm instead of .item() for each gradient", FOURTH,
    library="transformers", steps=(3, 2), with_stack=True,
)  # fmt: skip
def clip_norms_by_item(variant: str) -> Step:
    """CLIP (6 + 6 layers of 512) on 48 pairs of image and text; the log's gradient norm is added up in Python."""
    vision = {"hidden_size": size(512, 32), "num_hidden_layers": size(6, 1), "num_attention_heads": size(8, 2)}
    text, ends = dict(vision), {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = transformers.CLIPConfig(
        vision_config={**vision, "intermediate_size": size(2048, 48), "image_size": size(224, 32), "patch_size": 16},
        text_config={**text, "intermediate_size": size(2048, 48), "vocab_size": size(16384, 64), **ends},
        projection_dim=size(512, 32),
    )
    model = on_device(lambda: transformers.CLIPModel(config)).train()
    batch, count = size(48, 2), size(77, 8)
    ids, pixels = tokens(size(16384, 64), batch, count), images(batch, size(224, 32))
    optimizer = adamw(model)
    log: list[float] = []

    def step() -> None:
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=CUDA):
            loss = model(input_ids=ids, pixel_values=pixels, return_loss=True).loss
        loss.backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        if variant == BEFORE:
            log.append(sum(g.norm().item() ** 2 for g in gradients) ** 0.5)
        else:
            log.append(torch.nn.utils.get_total_norm(gradients).item())
        optimizer.step()
        optimizer.zero_grad()

    return step


@pair(
    "host-sync", "time series", "without torch.autograd.set_detect_anomaly(True)", FOURTH,
    library="transformers", accept=("launch-overhead", "host-stall"), steps=(3, 2),
)  # fmt: skip
def forecast_anomaly_mode(variant: str) -> Step:
    """PatchTST (3 × 256) forecasts 64 × 7 series; the detection of NaNs in gradients was left on."""
    config = transformers.PatchTSTConfig(
        num_input_channels=7, context_length=size(512, 32), prediction_length=size(96, 4), patch_length=size(16, 8),
        patch_stride=size(16, 8), d_model=size(256, 16), num_hidden_layers=size(3, 1), num_attention_heads=size(8, 2),
        ffn_dim=size(512, 16), loss="mse",
    )  # fmt: skip
    model = on_device(lambda: transformers.PatchTSTForPrediction(config)).train()
    past = torch.randn(size(64, 2), config.context_length, 7, device=DEVICE)
    future = torch.randn(size(64, 2), config.prediction_length, 7, device=DEVICE)
    train = training(lambda: model(past_values=past, future_values=future).loss, adamw(model))

    def step() -> None:
        with torch.autograd.set_detect_anomaly(variant == BEFORE):
            train()

    return step


@pair("precision", "vision", "model and images to bfloat16", FOURTH, library="timm", inference=True, steps=(3, 2))
def mixer_inference_fp32(variant: str) -> Step:
    """MLP-Mixer B/16 on 128 images in fp32, as the weights are loaded."""
    dtype = torch.float32 if variant == BEFORE else HALF
    name = "mixer_b16_224" if CUDA else "mixer_s32_224"
    model = on_device(lambda: timm.create_model(name, num_classes=size(1000, 16)), dtype).eval()
    batch = images(size(128, 1), 224, dtype)
    return lambda: model(batch)


class Ranking(nn.Module):
    """The dense part of a DLRM: interactions of 26 features and 13 numbers, and the layers above them."""

    def __init__(self, width: int, *, padded: bool) -> None:
        super().__init__()
        self.padded = padded
        inputs = width + 27 * 27 + (7 if padded else 0)
        self.below = nn.Sequential(nn.Linear(16, 512), nn.ReLU(), nn.Linear(512, width), nn.ReLU())
        sizes = [inputs, size(1024, 32), size(1024, 32), size(512, 16)]
        layers: list[nn.Module] = []
        for wide, narrow in itertools.pairwise(sizes):
            layers += [nn.Linear(wide, narrow), nn.ReLU()]
        self.above = nn.Sequential(*layers, nn.Linear(sizes[-1], 8))

    def forward(self, numbers: Tensor, features: Tensor) -> Tensor:
        """Numbers [users, 16], features [users, 26, width]."""
        dense = self.below(numbers)
        every = torch.cat([dense[:, None], features.to(dense.dtype)], 1)
        products = torch.bmm(every, every.transpose(1, 2)).flatten(1)
        x = torch.cat([dense, products], 1)
        return self.above(functional.pad(x, (0, 7)) if self.padded else x)


@pair(
    "misaligned-shape", "recommendation", "interactions padded from 857 to 864 columns", FOURTH, steps=(4, 2),
)  # fmt: skip
def dlrm_857_interactions(variant: str) -> Step:
    """The dense part of a DLRM learns from 65,536 users; 128 + 27 × 27 interactions go into its first upper layer."""
    users, width = size(65536, 4), 128
    model = on_device(lambda: Ranking(width, padded=variant == AFTER)).train()
    numbers, features = torch.randn(users, 16, device=DEVICE), torch.randn(users, 26, width, device=DEVICE, dtype=HALF)
    labels = tokens(8, users)
    return training(lambda: functional.cross_entropy(model(numbers, features), labels), adamw(model))


@pair(
    "memory-format", "segmentation", "model and images to channels_last", FOURTH,
    library="torchvision", inference=True, steps=(3, 2),
)  # fmt: skip
def deeplab_nchw(variant: str) -> Step:
    """DeepLabV3 (ResNet-50) on 16 images of 512 × 512 in bf16, in the format that images come in."""
    model = on_device(
        lambda: torchvision.models.segmentation.deeplabv3_resnet50(weights=None, weights_backbone=None, num_classes=21),
        HALF,
    ).eval()
    batch = images(size(16, 1), size(512, 64), HALF)
    if variant == AFTER:
        model, batch = model.to(memory_format=LAST), batch.to(memory_format=LAST)
    return lambda: model(batch)["out"]


class Segmenter(nn.Module):
    """A small ViT and a head that gives scores for each pixel."""

    def __init__(self, side: int, classes: int) -> None:
        super().__init__()
        self.side = side
        self.vit = VisionTransformer(
            img_size=side, embed_dim=size(384, 32), depth=size(4, 1), num_heads=size(6, 2), num_classes=0,
            class_token=False, global_pool="",
        )  # fmt: skip
        self.head = nn.Linear(size(384, 32), classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores [batch, classes, side, side] of x [batch, 3, side, side]."""
        y = self.head(self.vit(x)).transpose(1, 2)
        y = y.unflatten(2, (self.side // 16, self.side // 16))
        return functional.interpolate(y.contiguous(), size=(self.side, self.side), mode="bilinear")


def focal(scores: Tensor, labels: Tensor) -> Tensor:
    """Focal loss as the paper writes it (arXiv:1708.02002, equation 5), over classes in dimension 1."""
    chances = torch.softmax(scores.float(), 1)
    wanted = functional.one_hot(labels, scores.shape[1]).movedim(-1, 1).to(chances.dtype)
    chance = (chances * wanted).sum(1).clamp(1e-7, 1 - 1e-7)
    return (-0.25 * (1 - chance) ** 2 * torch.log(chance)).mean()


@pair(
    "unfused-chain", "segmentation", "the loss through torch.compile", FOURTH,
    library="timm", compiles=True, steps=(3, 2), with_stack=True,
)  # fmt: skip
def focal_loss_by_hand(variant: str) -> Step:
    """A ViT of 4 × 384 segments 16 images of 512 × 512 into 21 classes; its focal loss is written out in fp32."""
    side, classes, batch = size(512, 32), 21, size(16, 1)
    model = on_device(lambda: Segmenter(side, classes)).train()
    loss = torch.compile(focal, dynamic=False) if variant == AFTER and not TINY else focal
    pictures, labels = images(batch, side), tokens(classes, batch, side, side)
    return training(lambda: loss(model(pictures), labels), adamw(model))


@pair(
    "host-stall", "segmentation", "torch.bincount on the GPU instead of numpy.bincount", FOURTH,
    library="torchvision", accept=("host-sync", "blocking-copy"), inference=True, steps=(3, 2), with_stack=True,
)  # fmt: skip
def confusion_on_host(variant: str) -> Step:
    """LR-ASPP is evaluated on 24 images of 512 × 512 a step; NumPy counts the confusions of each pixel."""
    classes, side, batch = 21, size(512, 64), size(24, 1)
    model = on_device(
        lambda: torchvision.models.segmentation.lraspp_mobilenet_v3_large(weights_backbone=None, num_classes=classes),
        HALF,
    ).eval()
    model = model.to(memory_format=LAST)
    pictures = images(batch, side, HALF).to(memory_format=LAST)
    labels = tokens(classes, batch, side, side)
    labels_here = labels.cpu().numpy()
    on_device_total = torch.zeros(classes * classes, dtype=torch.long, device=DEVICE)
    total = np.zeros(classes * classes, dtype=np.int64)

    def step() -> None:
        chosen = model(pictures)["out"].argmax(1)
        if variant == BEFORE:
            both = labels_here * classes + chosen.cpu().numpy()
            total[:] += np.bincount(both.ravel(), minlength=classes * classes)
        else:
            both_there = (labels * classes + chosen).flatten()
            on_device_total.add_(torch.bincount(both_there, minlength=classes * classes))

    return step


@pair(
    "host-stall", "video", "frames go to the GPU as bytes and are normalised there", FOURTH,
    library="torchvision", accept=("blocking-copy",), inference=True, steps=(3, 2),
)  # fmt: skip
def frames_normalised_on_host(variant: str) -> Step:
    """R3D-18 on 16 clips of 16 frames of 112 × 112; the host makes floats of the frames and normalises them."""
    model = on_device(lambda: torchvision.models.video.r3d_18(weights=None), HALF).eval()
    model = model.to(memory_format=torch.channels_last_3d)
    frames = torch.randint(0, 256, (size(16, 1), 3, size(16, 4), size(112, 32), size(112, 32)), dtype=torch.uint8)
    shape = (1, 3, 1, 1, 1)
    mean, spread = torch.tensor([0.43, 0.39, 0.38]).view(shape), torch.tensor([0.23, 0.22, 0.22]).view(shape)
    if CUDA and variant == AFTER:
        frames = frames.pin_memory()
    mean_there, spread_there = mean.to(DEVICE), spread.to(DEVICE)

    def step() -> Tensor:
        if variant == BEFORE:
            clips = ((frames.float() / 255 - mean) / spread).to(DEVICE)
        else:
            clips = (frames.to(DEVICE, non_blocking=True).float() / 255 - mean_there) / spread_there
        return model(clips.to(HALF).contiguous(memory_format=torch.channels_last_3d))

    return step


@healthy("vision", FOURTH, library="timm", compiles=True, steps=(3, 2))
def healthy_mixer_training(variant: str) -> Step:
    """An MLP-Mixer of 8 × 1,024 with 256 images in mixed precision, blocks compiled, fused AdamW."""
    model = on_device(
        lambda: MlpMixer(
            num_classes=size(1000, 16), img_size=size(224, 32), patch_size=size(14, 16), num_blocks=size(8, 1),
            embed_dim=size(1024, 32),
        )
    ).train()  # fmt: skip
    compiled(model.blocks)
    batch, labels = images(size(256, 2), size(224, 32)), tokens(size(1000, 16), size(256, 2))
    return training(lambda: functional.cross_entropy(model(batch), labels), adamw(model))


@healthy("diffusion", FOURTH, compiles=True, inference=True, steps=(3, 2))
def healthy_unet_sampling(variant: str) -> Step:
    """A U-Net of 256, 512 and 1,024 channels denoises 32 latents of 64 × 64: channels_last, compiled, from a graph."""
    model = on_device(lambda: UNet(size(256, 8)), HALF).eval().to(memory_format=LAST)
    compiled([model])
    noise = images(size(32, 1), size(64, 16), HALF, channels=4).to(memory_format=LAST)
    time = torch.randn(noise.shape[0], 256, device=DEVICE, dtype=HALF)
    return as_graph(lambda: noise - 0.1 * model(noise, time))
