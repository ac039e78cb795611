"""The thirty-second set: photographs on phones, flow, fields, long texts, rooms, catalogues, surgery, explanations."""

from __future__ import annotations

import math
from collections.abc import Iterable

import timm
import torch
import torchvision
import transformers
from timm.utils.model import reparameterize_model
from torch import Tensor, nn
from torch.nn import functional
from torchvision.models.optical_flow._utils import make_coords_grid, upsample_flow

from pairs.parts import CUDA, DEVICE, HALF, Block, adamw, images, mixed, on_device, seeded, size, tokens, training
from pairs.registry import AFTER, BEFORE, THIRTY_SECOND, Step, pair

__all__: list[str] = []
LAST = torch.channels_last


@pair(
    "unfused-chain", "vision", "reparameterize_model(model), once, before the first photograph", THIRTY_SECOND,
    library="timm", accept=("memory-bandwidth",), inference=True, steps=(2, 1),
)  # fmt: skip
def phone_photo_tagging(variant: str) -> Step:
    """A FastViT-SA12 of timm (bf16, channels_last) tags 256 photographs of 256².

    The model still has the branches it was trained with: parallel convolutions, each with a batch norm, whose maps are
    added. They are one convolution, once merged. Each pass goes over memory: hence "memory-bandwidth", too.
    """
    rows, side, kinds = size(256, 2), size(256, 64), size(1000, 7)
    name = "fastvit_sa12" if CUDA else "fastvit_t8"
    model = on_device(lambda: timm.create_model(name, num_classes=kinds)).eval()
    if variant == AFTER:
        with torch.device(DEVICE):
            model = reparameterize_model(model)
    model = model.to(device=DEVICE, dtype=HALF, memory_format=LAST)
    seeded(1)
    x = images(rows, side, HALF).contiguous(memory_format=LAST)
    return lambda: model(x).float().sigmoid().topk(5).indices


@pair(
    "unused-gradients", "adaptation", "weights other than those of the norms need no gradient", THIRTY_SECOND,
    library="timm", steps=(2, 1),
)  # fmt: skip
def fogged_camera_adaptation(variant: str) -> Step:
    """A ResNet-50 of timm (channels_last, mixed precision) adapts to fog in 128 images of 224², as TENT.

    The entropy of what it says is lowered by the scales and shifts of the batch norms alone. The optimizer has only
    those, but nobody froze the rest, so the gradients of all convolutions are worked out and thrown away.
    """
    rows, side, kinds = size(128, 2), size(224, 64), size(1000, 7)
    name = "resnet50" if CUDA else "resnet10t"
    model = on_device(lambda: timm.create_model(name, num_classes=kinds)).train().to(memory_format=LAST)
    own: list[nn.Parameter] = []
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.track_running_stats, module.running_mean, module.running_var = False, None, None
            own += module.parameters(recurse=False)
    if variant == AFTER:
        model.requires_grad_(requires_grad=False)
        for weight in own:
            weight.requires_grad_(requires_grad=True)
    optimizer = torch.optim.SGD(own, lr=2.5e-4, momentum=0.9, foreach=True)
    x = images(rows, side).contiguous(memory_format=LAST)

    def step() -> Tensor:
        with mixed():
            scores = model(x)
        said = scores.float().log_softmax(-1)
        loss = -(said.exp() * said).sum(-1).mean()
        loss.backward()
        optimizer.step()
        model.zero_grad(set_to_none=True)
        return scores.argmax(-1)

    return step


def last_flow(model: nn.Module, first: Tensor, second: Tensor, updates: int) -> Tensor:
    """RAFT, whose last flow alone is brought to the size of the images."""
    high, wide = first.shape[-2] // 8, first.shape[-1] // 8
    model.corr_block.build_pyramid(*model.feature_encoder(torch.cat((first, second))).chunk(2))
    seen, room = model.context_encoder(first), model.update_block.hidden_state_size
    hidden, context = seen.split([room, seen.shape[1] - room], 1)
    hidden, context = hidden.tanh(), context.relu()
    begun = make_coords_grid(len(first), high, wide).to(DEVICE)
    now = begun
    for _ in range(updates):
        alike = model.corr_block.index_pyramid(centroids_coords=now)
        hidden, change = model.update_block(hidden, context, alike, now - begun)
        now = now + change
    return upsample_flow(flow=now - begun, up_mask=model.mask_predictor(hidden))


@pair(
    "unused-results", "optical flow", "only the last flow is brought to full size", THIRTY_SECOND,
    library="torchvision", inference=True, steps=(2, 1),
)  # fmt: skip
def dashcam_optical_flow(variant: str) -> Step:
    """RAFT of torchvision (large, mixed precision, channels_last) tells the flow of 6 pairs of 384 × 1,024.

    The model returns the flow after each of 12 updates, brought to full size by a learned mask, as training asks for.
    Here the last one is read. Correlations are in fp32, as in the code of its authors.
    """
    rows, high, wide, updates = size(6, 1), size(384, 128), size(1024, 128), size(12, 3)
    make = torchvision.models.optical_flow.raft_large
    model = on_device(lambda: make(weights=None)).eval().to(memory_format=LAST)
    correlated = model.corr_block.build_pyramid

    def in_fp32(left: Tensor, right: Tensor) -> None:
        with torch.autocast(DEVICE.type, enabled=False):
            correlated(left.float(), right.float())

    model.corr_block.build_pyramid = in_fp32
    first, second = (
        torch.rand(rows, 3, high, wide, device=DEVICE).mul(2).sub(1).contiguous(memory_format=LAST) for _ in range(2)
    )

    def step() -> Tensor:
        with mixed():
            if variant == BEFORE:
                return model(first, second, num_flow_updates=updates)[-1]
            return last_flow(model, first, second, updates)

    return step


def convolved(wide: int, out: int, side: int) -> nn.Sequential:
    """A convolution, a batch norm and a ReLU."""
    return nn.Sequential(
        nn.Conv2d(wide, out, side, padding=side // 2, bias=False), nn.BatchNorm2d(out), nn.ReLU(inplace=True)
    )


class Pyramid(nn.Module):
    """The decoder of UPerNet."""

    def __init__(self, widths: list[int], width: int, kinds: int) -> None:
        super().__init__()
        self.sides = (1, 2, 3, 6)
        self.pools = nn.ModuleList(convolved(widths[-1], width, 1) for _ in self.sides)
        self.deepest = convolved(widths[-1] + len(self.sides) * width, width, 3)
        self.across = nn.ModuleList(convolved(wide, width, 1) for wide in widths[:-1])
        self.smooth = nn.ModuleList(convolved(width, width, 3) for _ in widths[:-1])
        self.joined = convolved(len(widths) * width, width, 3)
        self.head = nn.Conv2d(width, kinds, 1)

    @staticmethod
    def scaled(x: Tensor, like: Tensor) -> Tensor:
        """A map, scaled to the size of another."""
        return functional.interpolate(x, size=like.shape[-2:], mode="bilinear", align_corners=False)

    def forward(self, maps: list[Tensor]) -> Tensor:
        """Maps, the largest first → scores of kinds, as large as the first."""
        pooled = [
            self.scaled(pool(functional.adaptive_avg_pool2d(maps[-1], side)), maps[-1])
            for side, pool in zip(self.sides, self.pools, strict=True)
        ]
        ways = [across(x) for across, x in zip(self.across, maps[:-1], strict=True)]
        ways.append(self.deepest(torch.cat((maps[-1], *pooled), 1)))
        for index in range(len(ways) - 2, -1, -1):
            ways[index] = ways[index] + self.scaled(ways[index + 1], ways[index])
        smooth = [smooth(x) for smooth, x in zip(self.smooth, ways[:-1], strict=True)]
        smooth.append(ways[-1])
        return self.head(self.joined(torch.cat([smooth[0]] + [self.scaled(x, smooth[0]) for x in smooth[1:]], 1)))


@pair(
    "precision", "segmentation", "the decoder is in mixed precision, as the rest", THIRTY_SECOND,
    library="timm", steps=(2, 1),
)  # fmt: skip
def field_boundary_training(variant: str) -> Step:
    """A ConvNeXt-T of timm and the decoder of UPerNet (512, channels_last) learn from 8 tiles of 512², mixed precision.

    Autocast is switched off for the decoder, since a loss was NaN once: most of the arithmetic is in it.
    """
    rows, side, kinds, width = size(8, 2), size(512, 64), size(6, 3), size(512, 16)
    name, taken = ("convnext_tiny", (0, 1, 2, 3)) if CUDA else ("resnet10t", (1, 2, 3, 4))
    body = on_device(lambda: timm.create_model(name, features_only=True, out_indices=taken)).train()
    decoder = on_device(lambda: Pyramid(body.feature_info.channels(), width, kinds), seed=1).train()
    body, decoder = body.to(memory_format=LAST), decoder.to(memory_format=LAST)
    x = images(rows, side).contiguous(memory_format=LAST)
    wanted = tokens(kinds, rows, side, side)

    def loss() -> Tensor:
        maps = body(x)
        if variant == BEFORE:
            with torch.autocast(DEVICE.type, enabled=False):
                scores = decoder([one.float() for one in maps])
        else:
            scores = decoder(maps)
        scores = functional.interpolate(scores.float(), size=(side, side), mode="bilinear", align_corners=False)
        return functional.cross_entropy(scores, wanted)

    return training(loss, adamw(nn.ModuleList([body, decoder])))


class Duality(nn.Module):
    """A layer of Mamba-2, worked out in chunks."""

    def __init__(self, width: int, heads: int, state: int, chunk: int, *, products: bool) -> None:
        super().__init__()
        inner = 2 * width
        self.heads, self.chunk, self.products = heads, chunk, products
        self.parts = [inner, inner + 2 * state, heads]
        self.inside = [inner, state, state]
        self.norm, self.last = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(inner, eps=1e-5)
        self.enter = nn.Linear(width, sum(self.parts), bias=False)
        self.taps = nn.Conv1d(inner + 2 * state, inner + 2 * state, 4, groups=inner + 2 * state, padding=3)
        self.decay = nn.Parameter(torch.arange(1, heads + 1).float().log())
        self.bias, self.skip = nn.Parameter(torch.zeros(heads)), nn.Parameter(torch.ones(heads))
        self.leave = nn.Linear(inner, width, bias=False)

    def ends(self, v: Tensor, b: Tensor, total: Tensor) -> Tensor:
        """What a chunk adds to the state [rows, chunks, heads, narrow, state]."""
        v = v * (total[:, :, -1:] - total).exp().to(v.dtype)[..., None]
        if self.products:
            return v.permute(0, 1, 3, 4, 2) @ b[:, :, None]
        return (v[..., None] * b[:, :, :, None, None]).sum(2)

    def read(self, states: Tensor, c: Tensor) -> Tensor:
        """What the places of a chunk read from the state before it [rows, chunks, places, heads, narrow]."""
        if self.products:
            return (states @ c[:, :, None].transpose(-1, -2)).permute(0, 1, 4, 2, 3)
        return (states[:, :, None] * c[:, :, :, None, None]).sum(-1)

    def forward(self, x: Tensor) -> Tensor:
        """Places [rows, places, width]."""
        room = x.shape[1]
        gate, y, pace = self.enter(self.norm(x)).split(self.parts, -1)
        y = functional.silu(self.taps(y.transpose(1, 2))[..., :room].transpose(1, 2))
        u, b, c = (part.unflatten(1, (-1, self.chunk)) for part in y.split(self.inside, -1))
        u = u.unflatten(-1, (self.heads, -1))
        pace = functional.softplus((pace + self.bias).float()).unflatten(1, (-1, self.chunk))
        total = (-self.decay.float().exp() * pace).cumsum(2)
        v = u * pace.to(u.dtype)[..., None]
        # Within a chunk.
        steps = total.permute(0, 1, 3, 2)
        kept = (steps[..., None] - steps[..., None, :]).tril().exp().tril().to(v.dtype)
        near = ((c @ b.transpose(-1, -2))[:, :, None] * kept) @ v.permute(0, 1, 3, 2, 4)
        # From chunk to chunk.
        states = self.ends(v, b, total)
        sums = functional.pad(total[:, :, -1].cumsum(1), (0, 0, 1, 0)).transpose(1, 2)
        over = (sums[:, :, :-1, None] - sums[:, :, None, 1:]).tril(-1).exp().tril(-1).to(v.dtype)
        before = (over @ states.transpose(1, 2).flatten(3)).transpose(1, 2).unflatten(-1, states.shape[-2:])
        far = self.read(before, c) * total.exp().to(v.dtype)[..., None]
        y = near.permute(0, 1, 3, 2, 4) + far + u * self.skip[:, None]
        return x + self.leave(self.last(y.flatten(3).flatten(1, 2) * functional.silu(gate)))


@pair(
    "memory-bandwidth", "prefill", "states are written and read by products of matrices", THIRTY_SECOND,
    accept=("unfused-chain",), inference=True, steps=(2, 1),
)  # fmt: skip
def contract_clause_reading(variant: str) -> Step:
    """A Mamba-2 (8 × 1,024, 32 heads, state of 64, bf16) reads 4 contracts of 2,048 tokens in chunks of 64.

    What a chunk adds to the state, and what its places read from it, is a product of broadcast tensors that is summed,
    so 2 GB are written and read for what a product of matrices keeps inside. A chain of a product and a sum: hence
    "unfused-chain", too.
    """
    width, words, room, products = size(1024, 32), size(50_280, 64), size(2048, 16), variant == AFTER

    def make() -> nn.Module:
        chunk, heads, state = size(64, 4), size(32, 4), size(64, 8)
        return nn.Sequential(*(Duality(width, heads, state, chunk, products=products) for _ in range(size(8, 2))))

    layers = on_device(make, HALF).eval()
    names = on_device(lambda: nn.Embedding(words, width), HALF, 1)
    ids = tokens(words, size(4, 2), room)
    return lambda: functional.linear(functional.rms_norm(layers(names(ids))[:, -1], (width,)), names.weight)


class Neighbours(nn.Module):
    """A layer of an encoder whose places attend to those near to them."""

    def __init__(self, width: int, heads: int, reach: int, *, chunked: bool) -> None:
        super().__init__()
        self.heads, self.reach, self.chunked = heads, reach, chunked
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.asked, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def cut(self, x: Tensor) -> Tensor:
        """Keys or values [rows, places, heads, narrow] → for each chunk, it and both next to it."""
        reach = self.reach
        x = functional.pad(x, (0, 0, 0, 0, reach, reach)).unfold(1, 3 * reach, reach)
        return x.permute(0, 1, 2, 4, 3).flatten(0, 1)

    def forward(self, x: Tensor, near: Tensor) -> Tensor:
        """Places [rows, places, width], and who attends to whom: of all, or within chunks [rows · chunks, 1, …]."""
        q, k, v = self.asked(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).unbind(2)
        if self.chunked:
            q = q.unflatten(1, (-1, self.reach)).flatten(0, 1).transpose(1, 2)
            seen = functional.scaled_dot_product_attention(q, self.cut(k), self.cut(v), attn_mask=near)
            seen = seen.transpose(1, 2).flatten(2).unflatten(0, (len(x), -1)).flatten(1, 2)
        else:
            q, k, v = (part.transpose(1, 2) for part in (q, k, v))
            seen = functional.scaled_dot_product_attention(q, k, v, attn_mask=near).transpose(1, 2).flatten(2)
        x = x + self.out(seen)
        return x + self.feed(self.norms[1](x))


def who_is_near(rows: int, room: int, reach: int, *, chunked: bool) -> Tensor:
    """True where a place attends to another: no more than `reach` from it."""
    places = torch.arange(room, device=DEVICE)
    if not chunked:
        return (places[:, None] - places).abs().le(reach)[None, None]
    asking = places.unflatten(0, (-1, reach))[:, :, None]
    asked = (torch.arange(3 * reach, device=DEVICE) - reach + places[::reach, None])[:, None]
    near = (asking - asked).abs().le(reach) & asked.ge(0) & asked.lt(room)
    return near[:, None].repeat(rows, 1, 1, 1)


@pair(
    "padded-work", "encoding", "chunks of 512 places attend to themselves and to both next to them", THIRTY_SECOND,
    accept=("unfused-attention", "memory-bandwidth"), inference=True, steps=(2, 1),
)  # fmt: skip
def court_ruling_encoding(variant: str) -> Step:
    """An encoder (8 × 1,024, bf16) embeds 2 rulings of 8,192 tokens; each attends to 512 on either side.

    The window is a mask of 8,192 × 8,192 over fused attention: seven eighths of the scores are worked out to be
    masked. A remedy is another kernel of attention; and the mask is read, too: hence the other findings.
    """
    width, rows, room, reach = size(1024, 32), 2, size(8192, 32), size(512, 4)
    chunked = variant == AFTER

    def make() -> nn.Module:
        return nn.ModuleList(Neighbours(width, size(16, 2), reach, chunked=chunked) for _ in range(size(8, 1)))

    layers = on_device(make, HALF).eval()
    names = on_device(lambda: nn.Embedding(size(50_000, 64), width), HALF, 1)
    seeded(2)
    ids = tokens(size(50_000, 64), rows, room)
    near = who_is_near(rows, room, reach, chunked=chunked)

    def step() -> Tensor:
        x = names(ids)
        for layer in layers:
            x = layer(x, near)
        return functional.normalize(x.float().mean(1), dim=-1)

    return step


def corners(places: Tensor, side: int) -> Iterable[tuple[Tensor, Tensor]]:
    """Places [many, 3] in a grid → the index of each corner around them [many], its weight [many]."""
    low = places.floor().clamp(0, side - 2)
    share, low = places - low, low.long()
    for corner in range(8):
        index, weight = torch.zeros_like(low[:, 0]), torch.ones_like(share[:, 0])
        for axis in range(3):
            high = corner >> axis & 1
            index = index * side + low[:, axis] + high
            weight = weight * (share[:, axis] if high else 1 - share[:, axis])
        yield index, weight


@pair(
    "scattered-access", "3-D", "the grid is stored cell by cell: [cells, channels]", THIRTY_SECOND,
    accept=("memory-bandwidth",), inference=True, steps=(2, 1),
)  # fmt: skip
def room_walkthrough_rendering(variant: str) -> Step:
    """A grid of 192³ cells with 28 numbers each (density, spherical harmonics) is looked through by 16,384 rays × 128.

    The grid is stored as [channels, cells], as maps are, so the 28 numbers of a cell are 28 MB apart, and each read
    fetches a sector for four bytes of it: hence "memory-bandwidth", too.
    """
    side, rays, samples, channels = size(192, 8), size(16_384, 4), size(128, 5), 28
    grid = torch.randn(side**3, channels, device=DEVICE)
    if variant == BEFORE:
        grid = grid.T.contiguous()
    origin = torch.rand(rays, 1, 3, device=DEVICE) * (side - 1)
    target = torch.rand(rays, 1, 3, device=DEVICE) * (side - 1)
    ahead = functional.normalize(target - origin, dim=-1)[:, 0]
    x, y, z = ahead.unbind(-1)
    bands = [torch.full_like(x, 0.28), y, z, x, x * y, y * z, 3 * z * z - 1, x * z, x * x - y * y]
    basis = torch.stack(bands, -1)[:, None, None]
    far = (target - origin).norm(dim=-1, keepdim=True) / samples

    def step() -> Tensor:
        pace = torch.linspace(0, 1, samples, device=DEVICE)[:, None]
        places = (origin + pace * (target - origin)).flatten(0, 1)
        if variant == AFTER:
            told = torch.zeros(len(places), channels, device=DEVICE)
            for index, weight in corners(places, side):
                told.addcmul_(grid[index], weight[:, None])
        else:
            told = torch.zeros(channels, len(places), device=DEVICE)
            for index, weight in corners(places, side):
                told.addcmul_(grid[:, index], weight)
            told = told.T
        told = told.unflatten(0, (rays, samples))
        dense = 0.1 * told[..., 0].relu() * far[..., 0]
        passed = (-(dense.cumsum(1) - dense)).exp()
        colours = (told[..., 1:].unflatten(-1, (3, 9)) * basis).sum(-1).sigmoid()
        return ((passed * (1 - (-dense).exp()))[..., None] * colours).sum(1)

    return step


@pair(
    "unused-results", "retrieval", "the tower of images alone is asked", THIRTY_SECOND,
    library="transformers", inference=True, steps=(2, 1),
)  # fmt: skip
def catalogue_duplicate_search(variant: str) -> Step:
    """A CLIP (ViT-B/32, bf16) embeds 512 photographs of a shop, to find those of the same thing.

    The whole model is called with the titles, since its processor makes both; only image_embeds is read.
    """
    width, rows = size(512, 32), size(512, 3)
    config = transformers.CLIPConfig(
        text_config={
            "vocab_size": size(49_408, 64), "hidden_size": width, "intermediate_size": 4 * width,
            "num_hidden_layers": size(12, 1), "num_attention_heads": size(8, 2),
            "max_position_embeddings": size(77, 8), "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 1,
        },
        vision_config={
            "hidden_size": size(768, 32), "intermediate_size": size(3072, 64), "num_hidden_layers": size(12, 1),
            "num_attention_heads": size(12, 2), "image_size": size(224, 32), "patch_size": size(32, 16),
        },
        projection_dim=width,
    )  # fmt: skip
    model = on_device(lambda: transformers.CLIPModel(config), HALF).eval()
    x = images(rows, size(224, 32), HALF)
    ids = 3 + tokens(size(49_408, 64) - 3, rows, size(77, 8))
    ids[:, -1] = 2

    def step() -> Tensor:
        if variant == BEFORE:
            own = model(input_ids=ids, pixel_values=x).image_embeds
        else:
            own = model.visual_projection(model.vision_model(pixel_values=x).pooler_output)
            own = own / own.norm(dim=-1, keepdim=True)
        alike = own @ own.T
        return alike.fill_diagonal_(-1.0).topk(2).indices

    return step


@pair(
    "recomputation", "video", "each frame is encoded once, and windows are cut from what was told", THIRTY_SECOND,
    library="transformers", inference=True, steps=(2, 1),
)  # fmt: skip
def surgery_phase_recognition(variant: str) -> Step:
    """A DINOv2 (ViT-B/14, bf16) sees the frames of a surgery, and 4 layers tell the phase of windows of 16 frames.

    104 frames are 12 windows, 8 frames apart; each window is encoded by itself, so that most frames are seen twice.
    """
    length, apart = size(16, 4), size(8, 2)
    config = transformers.Dinov2Config(
        hidden_size=size(768, 32), num_hidden_layers=size(12, 1), num_attention_heads=size(12, 2), mlp_ratio=4,
        image_size=size(224, 28), patch_size=14,
    )  # fmt: skip
    model = on_device(lambda: transformers.Dinov2Model(config), HALF).eval()
    width = config.hidden_size
    layers = on_device(lambda: nn.Sequential(*(Block(width, size(12, 2)) for _ in range(size(4, 1)))), HALF, 1).eval()
    head = on_device(lambda: nn.Linear(width, 7), HALF, 2)
    seeded(3)
    video = images(size(104, 8), config.image_size, HALF)

    def encoded(frames: Tensor) -> Tensor:
        return model(pixel_values=frames).last_hidden_state[:, 0]

    def step() -> Tensor:
        if variant == BEFORE:
            windows = video.unfold(0, length, apart).movedim(-1, 1)
            seen = encoded(windows.flatten(0, 1)).unflatten(0, (-1, length))
        else:
            seen = encoded(video).unfold(0, length, apart).transpose(1, 2)
        return head(layers(seen).mean(1)).softmax(-1)

    return step


@pair(
    "unused-gradients", "explanation", "torch.autograd.grad(said, inputs) instead of said.backward()", THIRTY_SECOND,
    library="transformers", steps=(2, 1),
)  # fmt: skip
def claim_explanation_service(variant: str) -> Step:
    """A BERT (large, bf16) judges 32 claims of 384 tokens, and gradients at the words say what it heeded.

    backward() works out the gradients of all weights, too, which are thrown away.
    """
    config = transformers.BertConfig(
        vocab_size=size(30_528, 64), hidden_size=size(1024, 32), num_hidden_layers=size(24, 2), num_labels=5,
        num_attention_heads=size(16, 2), intermediate_size=size(4096, 64), max_position_embeddings=size(512, 16),
    )  # fmt: skip
    model = on_device(lambda: transformers.BertForSequenceClassification(config), HALF).eval()
    ids = tokens(config.vocab_size, size(32, 2), size(384, 8))

    def step() -> Tensor:
        words = model.get_input_embeddings()(ids).detach().requires_grad_()
        scores = model(inputs_embeds=words).logits
        said = scores.float().amax(-1).sum()
        if variant == BEFORE:
            said.backward()
            slope = words.grad
            model.zero_grad(set_to_none=True)
        else:
            (slope,) = torch.autograd.grad(said, words)
        assert slope is not None
        heeded = (slope * words.detach()).float().sum(-1).abs()
        return heeded / heeded.sum(-1, keepdim=True).clamp(min=math.ulp(1.0))

    return step
