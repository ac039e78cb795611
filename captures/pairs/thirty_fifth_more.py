"""More of the thirty-fifth set: clusters, clips, earthquakes, fruit, heat, portraits, crystals, calls, galaxies."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pairs.parts import CUDA, DEVICE, HALF, Block, as_graph, compiled, images, mixed, on_device, seeded, size, tokens
from pairs.registry import AFTER, BEFORE, THIRTY_FIFTH, Step, healthy, pair
from pairs.twenty_ninth import Kept

__all__: list[str] = []
LAST = torch.channels_last


def pinned(x: Tensor) -> Tensor:
    """In memory that the GPU reads by itself."""
    return x.pin_memory() if CUDA else x


def encoder(given: int, width: int, heads: int, deep: int, out: int) -> nn.Sequential:
    """What is given is projected; layers; a norm; the answer."""
    layers = (Block(width, heads) for _ in range(deep))
    return nn.Sequential(nn.Linear(given, width), *layers, nn.LayerNorm(width), nn.Linear(width, out))


def patches(pictures: Tensor, side: int) -> Tensor:
    """Pictures [rows, colours, height, width] → patches [rows, patches, values]."""
    return functional.pixel_unshuffle(pictures, side).flatten(2).transpose(1, 2)


@pair(
    "host-sync", "clusters", "sums of all clusters by one index_add_, not the mean of a mask's rows for each",
    THIRTY_FIFTH, inference=True, accept=("launch-overhead", "small-kernels", "per-expert-loop"), steps=(2, 1),
)  # fmt: skip
def photo_library_clusters(variant: str) -> Step:
    """A round of k-means over 2 million features of 256 (bf16, on the GPU) with 512 centers.

    The nearest center of all features is found by a product. Then a loop over the clusters takes the mean of
    `x[owner == k]`: how many rows a mask picks has to be known on the host, which waits for the GPU each time. Between
    are small kernels, alike for each cluster: hence the other findings.
    """
    rows, width, count = size(2_097_152, 300), size(256, 8), size(512, 5)
    seeded(1)
    x = torch.randn(rows, width, device=DEVICE, dtype=HALF)
    centers = x[:count].float().clone()

    def step() -> Tensor:
        owner = torch.addmm(-0.5 * centers.square().sum(-1).to(HALF), x, centers.to(HALF).T).argmax(-1)
        if variant == BEFORE:
            for k in range(count):
                mine = x[owner == k]
                if len(mine):
                    centers[k] = mine.mean(0, dtype=torch.float32)
        else:
            many = torch.zeros(count, device=DEVICE).index_add_(0, owner, torch.ones(rows, device=DEVICE))[:, None]
            sums = torch.zeros_like(centers).index_add_(0, owner, x.float())
            centers.copy_(torch.where(many > 0, sums / many.clamp(min=1), centers))
        return centers

    return step


@pair(
    "blocking-copy", "video", "frames[:, ::20].to(device) instead of frames.to(device)[:, ::20]", THIRTY_FIFTH,
    inference=True, compiles=True, accept=("host-stall",), steps=(3, 2),
)  # fmt: skip
def clip_moderation(variant: str) -> Step:
    """A ViT (12 × 768, bf16, layers compiled) judges 8 clips of 300 frames of 224² by each twentieth of them.

    All frames that were decoded are sent (360 MB, bytes, in ordinary memory), and the few are picked on the GPU. The
    host copies them, too, to where the GPU can read them: hence "host-stall".
    """
    clips, frames, every, side, patch = size(8, 2), size(300, 6), size(20, 3), size(224, 32), 16
    kinds = size(12, 3)
    model = on_device(
        lambda: encoder(3 * patch * patch, size(768, 32), size(12, 2), size(12, 1), kinds), HALF
    ).eval()  # fmt: skip
    compiled(layer for layer in model if isinstance(layer, Block))
    seeded(1)
    decoded = torch.randint(0, 256, (clips, frames, 3, side, side), dtype=torch.uint8)

    def step() -> list[list[float]]:
        x = decoded.to(DEVICE)[:, ::every] if variant == BEFORE else decoded[:, ::every].to(DEVICE)
        x = x.flatten(0, 1).to(HALF).div_(127.5).sub_(1)
        told = model(patches(x, patch)).mean(1).unflatten(0, (clips, -1))
        return told.float().sigmoid().amax(1).tolist()

    return step


class Ratio(nn.Module):
    """How much louder a short window is than a long one, both of which end at the same time."""

    def __init__(self, short: int, long: int) -> None:
        super().__init__()
        self.short, self.long = short, long

    def forward(self, sums: Tensor) -> Tensor:
        """Sums so far [channels, times] → the largest ratio of each channel."""
        now = sums[:, self.long :]
        short = (now - sums[:, self.long - self.short : -self.short]) / self.short
        long = (now - sums[:, : -self.long]) / self.long
        return (short / (long + 1e-9)).amax(-1)


@pair(
    "small-kernels", "seismology", "sums within pieces of 3,600, and then over the pieces, instead of one cumsum",
    THIRTY_FIFTH, inference=True, compiles=True, steps=(3, 2),
)  # fmt: skip
def earthquake_catalogue(variant: str) -> Step:
    """Two days of six channels at 100 Hz are searched for earthquakes: STA/LTA, from sums so far in fp64.

    `cumsum(-1)` of six long rows is worked out by six blocks of threads, one for each row, so that most of the GPU has
    nothing to do.
    """
    channels, pieces, piece = size(6, 2), size(4800, 8), size(3600, 30)
    ratio = Ratio(size(100, 5), size(3000, 50))
    compiled([ratio])
    seeded(1)
    x = torch.randn(channels, pieces * piece, device=DEVICE)

    def step() -> list[float]:
        energy = x.double().square_()
        if variant == BEFORE:
            sums = energy.cumsum(-1)
        else:
            sums = energy.unflatten(-1, (pieces, piece)).cumsum(-1)
            sums = (sums + (sums[..., -1].cumsum(-1) - sums[..., -1])[..., None]).flatten(-2)
        return ratio(sums).tolist()

    return step


class Finder(nn.Module):
    """Finds and cuts out: a transformer over patches, a head for boxes, a head for masks."""

    def __init__(self, width: int, heads: int, deep: int, patch: int, channels: int, inner: int, kinds: int) -> None:
        super().__init__()
        self.patch = patch
        self.body = encoder(3 * patch * patch, width, heads, deep, channels)
        self.boxes = nn.Sequential(
            nn.Linear(channels * 49, inner), nn.ReLU(inplace=True), nn.Linear(inner, inner), nn.ReLU(inplace=True),
            nn.Linear(inner, kinds),
        )  # fmt: skip
        layers: list[nn.Module] = []
        for _ in range(4):
            layers += [nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU(inplace=True)]
        self.masks = nn.Sequential(
            *layers, nn.ConvTranspose2d(channels, channels, 2, 2), nn.ReLU(inplace=True), nn.Conv2d(channels, kinds, 1)
        )

    def seen(self, x: Tensor, corners: Tensor, extents: Tensor) -> Tensor:
        """Pictures, and boxes within them [pictures, boxes, 2] twice → what is seen [all boxes, channels, 14, 14]."""
        told = self.body(patches(x, self.patch)).transpose(1, 2).unflatten(2, (x.shape[2] // self.patch, -1))
        spread = (torch.arange(14, device=x.device) + 0.5) / 14
        at = (corners[:, :, None] + extents[:, :, None] * spread[:, None]) * (2 / x.shape[2]) - 1
        across, down = torch.broadcast_tensors(at[:, :, None, :, 0], at[:, :, :, None, 1])
        grid = torch.stack((across, down), -1).flatten(1, 2)
        cut = functional.grid_sample(told.float().contiguous(), grid, align_corners=False)
        cut = cut.unflatten(2, (-1, 14)).permute(0, 2, 3, 4, 1).to(HALF, memory_format=torch.contiguous_format)
        return cut.flatten(0, 1).permute(0, 3, 1, 2)

    def scores(self, cut: Tensor) -> Tensor:
        """What is within boxes → scores of kinds."""
        return self.boxes(functional.avg_pool2d(cut, 2).flatten(1))


@pair(
    "unused-results", "detection", "the head for masks is given the 100 boxes that are kept of each picture, not all",
    THIRTY_FIFTH, inference=True, compiles=True, steps=(3, 2),
)  # fmt: skip
def harvest_robot_masks(variant: str) -> Step:
    """A detector (ViT of 12 × 768, heads of Mask R-CNN, bf16) cuts out fruit in 4 pictures of 800², 1,000 boxes each.

    Both heads are given all boxes, as in training. Then the 100 best boxes of each picture are kept, and nine of ten
    masks are thrown away.
    """
    rows, side, patch, boxes, kept = size(4, 2), size(800, 64), 16, size(1000, 6), size(100, 2)
    kinds = size(16, 3)
    model = on_device(
        lambda: Finder(size(768, 32), size(12, 2), size(12, 1), patch, size(256, 8), size(1024, 16), kinds), HALF
    ).eval()  # fmt: skip
    model.masks.to(memory_format=LAST)
    compiled(layer for layer in model.body if isinstance(layer, Block))
    seeded(1)
    x = images(rows, side, HALF)
    corners = torch.rand(rows, boxes, 2, device=DEVICE) * side * 0.6
    extents = (0.1 + 0.3 * torch.rand(rows, boxes, 2, device=DEVICE)) * side
    first = torch.arange(rows, device=DEVICE)[:, None] * boxes

    def step() -> tuple[Tensor, Tensor]:
        cut = model.seen(x, corners, extents)
        chances, names = model.scores(cut).float().softmax(-1).max(-1)
        best, places = chances.view(rows, boxes).topk(kept)
        places = (places + first).flatten()
        masks = model.masks(cut)[places] if variant == BEFORE else model.masks(cut[places])
        chosen = names[places, None, None, None].expand(-1, 1, *masks.shape[2:])
        return best, masks.gather(1, chosen).float().sigmoid()

    return step


@pair(
    "recomputation", "simulation", "the matrix is factored once (lu_factor), and lu_solve is called at each time",
    THIRTY_FIFTH, inference=True, steps=(2, 1),
)  # fmt: skip
def heat_sink_temperatures(variant: str) -> Step:
    """Heat in a body of 4,096 elements, under 256 loads: six times by an implicit method, in fp32.

    The matrix is the same at all times. But `torch.linalg.solve(matrix, right)` factors it at each of them, which is
    many times the work of the substitution.
    """
    count, loads, times = size(4096, 24), size(256, 3), size(6, 2)
    seeded(1)
    links = torch.rand(count, count, device=DEVICE) / count
    links = links + links.T
    matrix = torch.diag(1 + links.sum(1)) - links
    gained, begun = torch.rand(count, loads, device=DEVICE), torch.rand(count, loads, device=DEVICE)
    factors, pivots = torch.linalg.lu_factor(matrix)

    def step() -> Tensor:
        heat = begun
        for _ in range(times):
            right = heat + 0.1 * (gained - heat.square().square())
            if variant == BEFORE:
                heat = torch.linalg.solve(matrix, right)
            else:
                heat = torch.linalg.lu_solve(factors, pivots, right)
        return heat.amax(0)

    return step


class Twice(nn.Module):
    """Two convolutions; what they are given may be made contiguous first, which a view() once asked for."""

    def __init__(self, given: int, width: int, *, dense: bool) -> None:
        super().__init__()
        self.first = nn.Conv2d(given, width, 3, padding=1, bias=False)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.dense = dense

    def forward(self, x: Tensor) -> Tensor:
        """Maps [rows, channels, height, width]."""
        for convolution in (self.first, self.second):
            if self.dense:
                x = x.contiguous()
            x = functional.relu(convolution(x), inplace=True)
        return x


class Matting(nn.Module):
    """A U-Net that tells how much of each pixel is of the person."""

    def __init__(self, widths: list[int], *, dense: bool) -> None:
        super().__init__()
        self.down = nn.ModuleList(
            Twice(given, width, dense=dense) for given, width in zip((3, *widths[:-1]), widths, strict=True)
        )
        self.up = nn.ModuleList(
            Twice(low + high, high, dense=dense) for high, low in zip(widths[-2::-1], widths[:0:-1], strict=True)
        )
        self.head = nn.Conv2d(widths[0], 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Pictures [rows, 3, height, width]."""
        kept = []
        for index, layer in enumerate(self.down):
            x = layer(functional.max_pool2d(x, 2) if index else x)
            kept.append(x)
        for layer, skipped in zip(self.up, kept[-2::-1], strict=True):
            x = layer(torch.cat((skipped, functional.interpolate(x, scale_factor=2.0, mode="nearest")), 1))
        return self.head(x).sigmoid()


@pair(
    "memory-format", "matting", "without x.contiguous() before each convolution of a model that is channels_last",
    THIRTY_FIFTH, inference=True, accept=("memory-bandwidth", "unfused-chain"), steps=(3, 2),
)  # fmt: skip
def portrait_backgrounds(variant: str) -> Step:
    """A U-Net (64 to 512 channels, bf16, channels_last) takes away the background of 16 portraits of 512².

    Model and pictures are channels_last, as they should be. But `x = x.contiguous()`, left in its block, lays out maps
    with channels first, and each convolution turns them back. Both are passes over memory: hence the other findings.
    """
    rows, side, widths = size(16, 2), size(512, 16), [size(64, 4), size(128, 6), size(256, 8), size(512, 10)]
    model = on_device(lambda: Matting(widths, dense=variant == BEFORE), HALF).eval().to(memory_format=LAST)
    seeded(1)
    x = torch.rand(rows, 3, side, side, device=DEVICE, dtype=HALF).contiguous(memory_format=LAST)

    def step() -> Tensor:
        shares = model(x)
        return torch.lerp(torch.ones_like(x), x, shares).mul_(255).to(torch.uint8)

    return step


class Potential(nn.Module):
    """Kinds and places of atoms → the energy of each crystal."""

    def __init__(self, width: int, heads: int, deep: int, kinds: int, waves: int) -> None:
        super().__init__()
        self.kinds = nn.Embedding(kinds, width)
        self.register_buffer("waves", torch.randn(3, waves))
        self.enter = nn.Linear(2 * waves, width)
        self.layers = nn.Sequential(*(Block(width, heads) for _ in range(deep)), nn.LayerNorm(width))
        self.head = nn.Linear(width, 1)

    def forward(self, places: Tensor, kinds: Tensor) -> Tensor:
        """Places [crystals, atoms, 3], kinds [crystals, atoms]."""
        angles = (places[..., None] * self.waves).sum(-2)
        x = self.enter(torch.cat((angles.sin(), angles.cos()), -1)) + self.kinds(kinds)
        return self.head(self.layers(x)).sum((1, 2))


@pair(
    "unused-gradients", "molecular dynamics", "potential.requires_grad_(False): only places need a gradient",
    THIRTY_FIFTH, steps=(2, 1),
)  # fmt: skip
def crystal_melting_dynamics(variant: str) -> Step:
    """A learned potential (8 × 1,024, mixed precision) moves 64 crystals of 256 atoms: two times of velocity Verlet.

    Forces are what `energy.backward()` leaves in the gradient of the places. The weights are those of a trained
    potential, which were loaded as they are, so that each of them gets a gradient, too.
    """
    rows, atoms, kinds, width = size(64, 2), size(256, 5), 8, size(1024, 32)
    potential = on_device(lambda: Potential(width, size(16, 2), size(8, 2), kinds, size(256, 8))).eval()
    if variant == AFTER:
        potential.requires_grad_(False)
    seeded(1)
    places, speeds = (torch.randn(rows, atoms, 3, device=DEVICE) for _ in range(2))
    names = tokens(kinds, rows, atoms)

    def pulled(where: Tensor) -> Tensor:
        potential.zero_grad(set_to_none=True)
        where = where.detach().requires_grad_()
        with mixed():
            energy = potential(where, names)
        energy.float().sum().backward()
        return -where.grad

    forces = pulled(places)

    def step() -> Tensor:
        nonlocal forces
        for _ in range(2):
            speeds.add_(forces, alpha=5e-4)
            places.add_(speeds, alpha=1e-3)
            forces = pulled(places)
            speeds.add_(forces, alpha=5e-4)
        return places

    return step


@pair(
    "host-stall", "speech", "done.synchronize() instead of time.sleep(0.02) until done.query()", THIRTY_FIFTH,
    inference=True, compiles=True, accept=("host-sync",), with_stack=True, steps=(3, 2),
)  # fmt: skip
def phone_call_transcripts(variant: str) -> Step:
    """An encoder (12 × 1,024, bf16, layers compiled) writes down what is said in 2 × 8 calls of 30 s, by CTC.

    The service asks each 20 ms whether the GPU has the letters, as is good for its other threads. The GPU has them
    within half of that, and waits for the rest.
    """
    rows, times, bands, letters, batches = size(8, 2), size(1500, 12), size(160, 8), size(128, 5), 2
    model = on_device(lambda: encoder(bands, size(1024, 32), size(16, 2), size(12, 1), letters), HALF).eval()
    compiled(layer for layer in model if isinstance(layer, Block))
    seeded(1)
    calls = torch.randn(batches, rows, times, bands, device=DEVICE, dtype=HALF)
    told = pinned(torch.zeros(rows, times, dtype=torch.int64))
    done = torch.cuda.Event() if CUDA else None

    def ready() -> None:
        if done is None:
            return
        if variant == AFTER:
            done.synchronize()
            return
        while not done.query():
            time.sleep(0.02)

    def step() -> list[bytes]:
        said = []
        for batch in calls:
            told.copy_(model(batch).argmax(-1), non_blocking=True)
            if done is not None:
                done.record()
            ready()
            for row in told.numpy():
                runs = row[np.flatnonzero(np.diff(row, prepend=-1))]
                said.append(runs[runs > 0].astype(np.uint8).tobytes())
        return said

    return step


@pair(
    "launch-overhead", "flows", "autograd.grad(v, x, basis, is_grads_batched=True) instead of a loop over dimensions",
    THIRTY_FIFTH, accept=("recomputation", "small-kernels"), steps=(1, 1),
)  # fmt: skip
def galaxy_density_flow(variant: str) -> Step:
    """A continuous flow (an MLP of 4 × 512, TF32) tells how likely 1,024 galaxies of 64 traits are: 2 steps of RK4.

    The divergence is exact: as the reference code has it, a loop over dimensions, each with a backward pass of its own
    over the same graph. They are 64 times a dozen small kernels, launched by the host one after the other: hence the
    other findings.
    """
    rows, traits, width, count = size(1024, 4), size(64, 5), size(512, 16), size(2, 1)
    torch.set_float32_matmul_precision("high")

    def build() -> nn.Module:
        layers: list[nn.Module] = [nn.Linear(traits + 1, width), nn.Tanh()]
        for _ in range(3):
            layers += [nn.Linear(width, width), nn.Tanh()]
        return nn.Sequential(*layers, nn.Linear(width, traits))

    network = on_device(build).requires_grad_(False)
    seeded(1)
    seen = torch.randn(rows, traits, device=DEVICE)
    basis = torch.eye(traits, device=DEVICE)[:, None].expand(-1, rows, -1)

    def slope(x: Tensor, when: float) -> tuple[Tensor, Tensor]:
        x = x.detach().requires_grad_()
        speed = network(functional.pad(x, (0, 1), value=when))
        if variant == BEFORE:
            divergence = torch.zeros(rows, device=DEVICE)
            for trait in range(traits):
                divergence += torch.autograd.grad(speed[:, trait].sum(), x, retain_graph=True)[0][:, trait]
        else:
            changes = torch.autograd.grad(speed, x, basis, is_grads_batched=True)[0]
            divergence = changes.diagonal(dim1=0, dim2=2).sum(-1)
        return speed.detach(), divergence

    def step() -> Tensor:
        x, gained, pace = seen, torch.zeros(rows, device=DEVICE), 1 / count
        for index in range(count):
            one, of_one = slope(x, index * pace)
            two, of_two = slope(x + one * (pace / 2), (index + 0.5) * pace)
            three, of_three = slope(x + two * (pace / 2), (index + 0.5) * pace)
            four, of_four = slope(x + three * pace, (index + 1) * pace)
            x = x + (one + 2 * (two + three) + four) * (pace / 6)
            gained = gained + (of_one + 2 * (of_two + of_three) + of_four) * (pace / 6)
        return gained - 0.5 * x.square().sum(-1)

    return step


@healthy("decoding", THIRTY_FIFTH, inference=True, compiles=True, steps=(3, 2))
def healthy_headline_contrastive_decoding(variant: str) -> Step:
    """An expert (8 × 4,096) and an amateur (4 × 1,024), both bf16 and compiled, write 8 words of 64 headlines.

    A word is the one that the expert finds most likelier than the amateur, of those that the expert finds likely. Keys
    and values are written in place, and all words are in one CUDA graph.
    """
    words, rows, begun, count = size(32_768, 64), size(64, 2), size(120, 5), size(8, 2)
    room = begun + count

    def teller(width: int, heads: int, deep: int, seed: int) -> nn.Module:
        model = on_device(
            lambda: nn.ModuleDict(
                {
                    "names": nn.Embedding(words, width),
                    "layers": nn.ModuleList(Kept(width, heads, rows, room, HALF) for _ in range(deep)),
                    "head": nn.Sequential(nn.LayerNorm(width), nn.Linear(width, words, bias=False)),
                }
            ), HALF, seed,
        ).eval()  # fmt: skip
        compiled(model["layers"])
        return model

    models = teller(size(4096, 32), size(32, 2), size(8, 1), 1), teller(size(1024, 16), size(16, 2), size(4, 1), 2)
    seeded(3)
    first, places = tokens(words, rows, 1), torch.arange(begun, room, device=DEVICE)
    reached = torch.arange(room, device=DEVICE)

    def step() -> Tensor:
        ids, made = first, []
        for index in range(count):
            place = places[index : index + 1]
            real = (reached <= place)[None, None, None]
            chances = []
            for model in models:
                x = model["names"](ids)
                for layer in model["layers"]:
                    x = layer(x, place, real)
                chances.append(functional.log_softmax(model["head"](x)[:, -1], -1, dtype=torch.float32))
            likely = chances[0] >= chances[0].amax(-1, keepdim=True) - 2.3
            ids = (chances[0] - chances[1]).masked_fill(~likely, -torch.inf).argmax(-1, keepdim=True)
            made.append(ids)
        return torch.cat(made, 1)

    return as_graph(step)


@healthy("feature extraction", THIRTY_FIFTH, inference=True, compiles=True, steps=(2, 2))
def healthy_photo_archive_features(variant: str) -> Step:
    """A ViT (24 × 1,024, bf16, layers compiled) makes features of 256 photographs of 224², which go to a file.

    Photographs come as bytes from pinned memory, features are copied into pinned memory; those of the last batch are
    written while the GPU works on this one.
    """
    rows, side, patch, width, kept = size(256, 2), size(224, 32), 16, size(1024, 32), size(1024, 16)
    model = on_device(lambda: encoder(3 * patch * patch, width, size(16, 2), size(24, 1), kept), HALF).eval()
    compiled(layer for layer in model if isinstance(layer, Block))
    seeded(1)
    photos = pinned(torch.randint(0, 256, (rows, 3, side, side), dtype=torch.uint8))
    out = [pinned(torch.zeros(rows, kept, dtype=torch.float16)) for _ in range(2)]
    done = [torch.cuda.Event() if CUDA else None for _ in range(2)]
    folder = tempfile.TemporaryDirectory()
    file = np.memmap(Path(folder.name) / "features", np.float16, "w+", shape=(rows, kept))
    batches = 0

    def step(_alive: object = folder) -> None:
        nonlocal batches
        now, last = batches % 2, (batches + 1) % 2
        x = photos.to(DEVICE, non_blocking=True).to(HALF).div_(127.5).sub_(1)
        made = functional.normalize(model(patches(x, patch)).mean(1).float(), dim=-1)
        out[now].copy_(made.half(), non_blocking=True)
        recorded, before = done[now], done[last]
        if recorded is not None:
            recorded.record()
        if batches:
            if before is not None:
                before.synchronize()
            file[:] = out[last].numpy()
        batches += 1

    return step


@healthy("simulation", THIRTY_FIFTH, inference=True, compiles=True, steps=(2, 1))
def healthy_tide_rollout_evaluation(variant: str) -> Step:
    """A transformer (12 × 1,024, bf16, layers compiled) tells 16 tides of 2,048 cells three hours ahead, hour by hour.

    Errors of all hours are worked out on the GPU, and read once at the end.
    """
    rows, cells, values, hours = size(16, 2), size(2048, 8), size(64, 4), size(3, 2)
    model = on_device(lambda: encoder(values, size(1024, 32), size(16, 2), size(12, 1), values), HALF).eval()
    compiled(layer for layer in model if isinstance(layer, Block))
    seeded(1)
    tides = torch.randn(hours + 1, rows, cells, values, device=DEVICE, dtype=HALF)

    def step() -> list[list[float]]:
        x, errors = tides[0], []
        for true in tides[1:]:
            x = x + model(x)
            errors.append((x - true).float().square().mean((1, 2)).sqrt())
        return torch.stack(errors).tolist()

    return step
