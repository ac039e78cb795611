"""More of the twenty-ninth set: robots, organs, songs, weather, noise, streets, cracks, numbers, offers, melodies."""

from __future__ import annotations

import gc
import itertools
import random

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

from pairs.parts import (
    CUDA,
    DEVICE,
    HALF,
    Block,
    adamw,
    as_graph,
    compiled,
    images,
    mixed,
    on_device,
    size,
    tokens,
    training,
)
from pairs.registry import AFTER, BEFORE, TWENTY_NINTH, Step, healthy, pair

__all__: list[str] = []
LAST = torch.channels_last
FP16 = torch.float16 if CUDA else torch.float32


def advantages(rewards: Tensor, values: Tensor, alive: Tensor, *, in_turn: bool) -> Tensor:
    """Generalised advantages [times, robots] of rewards, values [times + 1, robots] and who is alive."""
    if in_turn:
        told, last = torch.zeros_like(rewards), torch.zeros_like(rewards[0])
        for time in reversed(range(len(rewards))):
            delta = rewards[time] + 0.99 * values[time + 1] * alive[time] - values[time]
            last = delta + 0.99 * 0.95 * alive[time] * last
            told[time] = last
        return told
    lost, kept, reach = rewards + 0.99 * values[1:] * alive - values[:-1], 0.99 * 0.95 * alive, 1
    while reach < len(rewards):
        pad = (0, 0, 0, reach)
        lost = lost + kept * functional.pad(lost[reach:], pad)
        kept = kept * functional.pad(kept[reach:], pad)
        reach *= 2
    return lost


class Walker(nn.Module):
    """What a robot does, and what its state is worth."""

    def __init__(self, seen: int, width: int, joints: int) -> None:
        super().__init__()
        self.actor, self.critic = (
            nn.Sequential(nn.Linear(seen, width), nn.ELU(), nn.Linear(width, width), nn.ELU(), nn.Linear(width, outs))
            for outs in (joints, 1)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """States [rows, seen] → actions [rows, joints], worths [rows]."""
        return self.actor(x), self.critic(x)[:, 0]


@pair(
    "launch-overhead", "reinforcement", "advantages are summed by doubling: 8 passes over all times", TWENTY_NINTH,
    accept=("small-kernels",), steps=(2, 1),
)  # fmt: skip
def locomotion_policy_update(variant: str) -> Step:
    """PPO: a network (2 × 256) learns from 2,048 robots and 256 times in 4 minibatches; advantages go back in time.

    Each of their kernels has 2,048 numbers; that these are small says the same.
    """
    times, robots, seen, joints = size(256, 12), size(2048, 4), size(48, 6), size(12, 2)
    model = on_device(lambda: Walker(seen, size(256, 16), joints)).train()
    optimizer = adamw(model)
    x = torch.randn(times + 1, robots, seen, device=DEVICE)
    done, rewards = torch.randn(times, robots, joints, device=DEVICE), torch.randn(times, robots, device=DEVICE)
    alive = (torch.rand(times, robots, device=DEVICE) > 0.01).float()

    def step() -> None:
        with torch.no_grad(), mixed():
            meant, values = model(x.flatten(0, 1))
        values = values.float().view(times + 1, robots)
        old = -(done - meant.float().view(times + 1, robots, joints)[:-1]).square().sum(-1)
        gain = advantages(rewards, values, alive, in_turn=variant == BEFORE)
        wanted = gain + values[:-1]
        gain = (gain - gain.mean()) / (gain.std() + 1e-8)
        parts = (x[:-1].flatten(0, 1), done.flatten(0, 1), old.flatten(), gain.flatten(), wanted.flatten())
        for states, acts, was, better, worth in zip(*(part.chunk(4) for part in parts), strict=True):
            with mixed():
                meant, told = model(states)
            ratio = torch.exp(-(acts - meant.float()).square().sum(-1) - was)
            lost = -torch.minimum(ratio * better, ratio.clamp(0.8, 1.2) * better).mean()
            (lost + 0.5 * functional.mse_loss(told.float(), worth)).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return step


class Residual3d(nn.Module):
    """Two convolutions over a volume, and a way past them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv3d(width, width, 3, padding=1, bias=False), nn.BatchNorm3d(width), nn.ReLU(inplace=True),
            nn.Conv3d(width, width, 3, padding=1, bias=False), nn.BatchNorm3d(width),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """Maps [rows, width, deep, high, wide]."""
        return functional.relu(x + self.body(x))


@pair(
    "blocking-copy", "medicine", "the scan and its labels are on the GPU, where patches are cut out", TWENTY_NINTH,
    accept=("host-stall",), steps=(2, 2),
)  # fmt: skip
def organ_segmentation(variant: str) -> Step:
    """A network over volumes (128 channels) learns 14 organs from 8 patches of 96³ of a scan: channels_last, bf16.

    Patches are cut and made floats on the host, which takes as long as to send them; hence "host-stall", too.
    """
    side, count, width, organs = size(96, 8), size(8, 2), size(128, 8), 14
    shape = (size(320, 16), size(512, 16), size(512, 16))
    model = on_device(
        lambda: nn.Sequential(
            nn.Conv3d(1, width, 4, 4), nn.BatchNorm3d(width), nn.ReLU(inplace=True),
            Residual3d(width), Residual3d(width), nn.ConvTranspose3d(width, organs, 4, 4),
        )
    ).to(memory_format=torch.channels_last_3d).train()  # fmt: skip
    optimizer = adamw(model)
    drawn, places = torch.Generator().manual_seed(0), random.Random(0)
    scan = torch.randint(-1000, 1000, shape, generator=drawn, dtype=torch.int16)
    labels = torch.randint(0, organs, shape, generator=drawn, dtype=torch.uint8)
    if variant == AFTER:
        scan, labels = scan.to(DEVICE), labels.to(DEVICE)

    def step() -> None:
        cuts = []
        for _ in range(count):
            corner = [places.randint(0, full - side) for full in shape]
            cuts.append(tuple(slice(begin, begin + side) for begin in corner))
        x = (torch.stack([scan[cut] for cut in cuts])[:, None].float() / 500.0).to(DEVICE)
        wanted = torch.stack([labels[cut] for cut in cuts]).long().to(DEVICE)
        with mixed():
            loss = functional.cross_entropy(model(x), wanted)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


class Lion(torch.optim.Optimizer):
    """Lion (X. Chen et al., 2023), weight by weight."""

    def __init__(self, params: object, lr: float = 1e-4, decay: float = 0.1) -> None:
        super().__init__(params, {"lr": lr, "decay": decay})

    @torch.no_grad()
    def step(self) -> None:
        """One step."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                if "exp_avg" not in self.state[p]:
                    self.state[p]["exp_avg"] = torch.zeros_like(p)
                kept = self.state[p]["exp_avg"]
                p.mul_(1.0 - group["lr"] * group["decay"])
                told = kept.clone().mul_(0.9).add(p.grad, alpha=0.1).sign_()
                p.add_(told, alpha=-group["lr"])
                kept.mul_(0.99).add_(p.grad, alpha=0.01)


def lion(weights: list[Tensor], kept: list[Tensor], grads: list[Tensor], lr: float, decay: float) -> None:
    """Lion, of all weights; made to be compiled."""
    told = torch._foreach_sign(torch._foreach_add(torch._foreach_mul(kept, 0.9), grads, alpha=0.1))
    torch._foreach_mul_(weights, 1.0 - lr * decay)
    torch._foreach_add_(weights, told, alpha=-lr)
    torch._foreach_mul_(kept, 0.99)
    torch._foreach_add_(kept, grads, alpha=0.01)


class CompiledLion(Lion):
    """Lion in a few kernels."""

    def __init__(self, params: object, lr: float = 1e-4, decay: float = 0.1) -> None:
        super().__init__(params, lr, decay)
        self.update = torch.compile(lion, dynamic=False) if CUDA else lion

    @torch.no_grad()
    def step(self) -> None:
        """One step."""
        for group in self.param_groups:
            weights = [p for p in group["params"] if p.grad is not None]
            for p in weights:
                if "exp_avg" not in self.state[p]:
                    self.state[p]["exp_avg"] = torch.zeros_like(p)
            kept = [self.state[p]["exp_avg"] for p in weights]
            self.update(weights, kept, [p.grad for p in weights], group["lr"], group["decay"])


@pair(
    "unfused-optimizer", "training", "Lion goes over all weights at once, compiled", TWENTY_NINTH,
    accept=("memory-bandwidth", "launch-overhead"), compiles=True, steps=(2, 2),
)  # fmt: skip
def poem_pretraining(variant: str) -> Step:
    """A GPT (8 × 2,048, layers compiled) learns 4 texts of 512 words by Lion, as it is published: mixed precision.

    Lion makes seven passes over each weight; hence "memory-bandwidth", too.
    """
    width, words = size(2048, 32), size(32_768, 64)
    layers = on_device(lambda: nn.Sequential(*(Block(width, size(16, 2), causal=True) for _ in range(size(8, 1)))))
    compiled(layers)
    names = on_device(lambda: nn.Embedding(words, width), seed=1)
    head = on_device(lambda: nn.Sequential(nn.LayerNorm(width), nn.Linear(width, words, bias=False)), seed=2)
    ids = tokens(words, size(4, 2), size(512, 8) + 1)
    make = Lion if variant == BEFORE else CompiledLion
    return training(
        lambda: functional.cross_entropy(head(layers(names(ids[:, :-1]))).flatten(0, 1).float(), ids[:, 1:].flatten()),
        make(nn.ModuleList([layers, names, head]).parameters()),
    )


@pair(
    "scattered-access", "recommendation", "nn.Embedding(sparse=True): only rows that were used have gradients",
    TWENTY_NINTH, accept=("memory-bandwidth",), steps=(3, 2),
)  # fmt: skip
def song_preferences(variant: str) -> Step:
    """A factorisation (12 million listeners, 4 million songs, 64 numbers each) learns from 1,048,576 plays by SGD.

    Gradients of all rows are written and subtracted, though nearly all are nought; hence "memory-bandwidth", too.
    """
    listeners, songs, rows, width = size(12_000_000, 200), size(4_000_000, 100), size(1_048_576, 8), size(64, 8)
    sparse = variant == AFTER
    people = on_device(lambda: nn.Embedding(listeners, width, sparse=sparse))
    tracks = on_device(lambda: nn.Embedding(songs, width, sparse=sparse), seed=1)
    optimizer = torch.optim.SGD([people.weight, tracks.weight], lr=0.05)
    who = tokens(listeners, rows)
    played, skipped = tokens(songs, 2, rows)

    def loss() -> Tensor:
        liked = (people(who) * (tracks(played) - tracks(skipped))).sum(-1)
        return -functional.logsigmoid(liked).mean()

    return training(loss, optimizer, mixed=False)


class Fair(nn.Module):
    """The continuous ranked probability score of an ensemble, without bias."""

    def forward(self, told: Tensor, truth: Tensor) -> Tensor:
        """Forecasts [members, fields, high, wide], what came [fields, high, wide] → a number."""
        members = len(told)
        missed = (told - truth).abs().mean()
        apart = (told[:, None] - told[None, :]).abs().mean() * (members / (members - 1))
        return missed - 0.5 * apart


@pair(
    "unfused-chain", "weather", "the score through torch.compile", TWENTY_NINTH,
    accept=("memory-bandwidth",), compiles=True, steps=(2, 2),
)  # fmt: skip
def ensemble_forecasts(variant: str) -> Step:
    """Twelve members of an ensemble (ViT, 6 × 768, compiled) learn 40 fields of 180 × 360 by the CRPS.

    The score takes each member from each other, in passes over 373 million numbers; hence "memory-bandwidth", too.
    """
    width, fields, members, edge = size(768, 32), size(40, 3), size(12, 3), size(10, 4)
    high, wide = size(180, 8), size(360, 16)
    names, score = on_device(lambda: nn.Conv2d(fields, width, edge, edge)), Fair()
    layers = on_device(lambda: nn.Sequential(*(Block(width, size(12, 2)) for _ in range(size(6, 1)))), seed=1)
    head = on_device(lambda: nn.Sequential(nn.LayerNorm(width), nn.Linear(width, fields * edge * edge)), seed=2)
    compiled(layers)
    if variant == AFTER:
        compiled([score])
    now, later = torch.randn(2, 1, fields, high, wide, device=DEVICE)
    noise = 0.1 * torch.randn(members, (high // edge) * (wide // edge), width, device=DEVICE)

    def loss() -> Tensor:
        told = head(layers(names(now).flatten(2).mT + noise))
        told = functional.pixel_shuffle(told.mT.unflatten(2, (high // edge, wide // edge)), edge)
        return score(told.float(), later[0])

    return training(loss, adamw(nn.ModuleList([names, layers, head])))


class Dilated(nn.Module):
    """A convolution along time, dilated, and a way past it."""

    def __init__(self, width: int, reach: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(width, width, 3, padding=reach, dilation=reach), nn.BatchNorm1d(width), nn.ReLU(inplace=True)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Frames [rows, width, frames]."""
        return x + self.body(x)


@pair(
    "unused-gradients", "speech", "requires_grad_(False) for the network that compares voices", TWENTY_NINTH,
    compiles=True, steps=(2, 2),
)  # fmt: skip
def noise_suppression(variant: str) -> Step:
    """A denoiser (6 convolutions of 256) learns on 16 recordings of 800 frames, as an encoder (8 × 1,024) hears them.

    The encoder is compiled. The optimizer has the weights of the denoiser alone; the gradient has to go through both.
    """
    bands, narrow, width, frames, rows = size(80, 8), size(256, 8), size(1024, 32), size(800, 12), size(16, 2)
    denoiser = on_device(
        lambda: nn.Sequential(
            nn.Conv1d(bands, narrow, 3, padding=1), *(Dilated(narrow, 2**index) for index in range(size(6, 1))),
            nn.Conv1d(narrow, bands, 3, padding=1),
        )
    ).train()  # fmt: skip
    stem = on_device(lambda: nn.Linear(bands, width), seed=1)
    layers = on_device(lambda: nn.Sequential(*(Block(width, size(16, 2)) for _ in range(size(8, 1)))), seed=2)
    hearing = nn.Sequential(stem, layers).eval()
    compiled(layers)
    if variant == AFTER:
        hearing.requires_grad_(False)
    clean = torch.randn(rows, bands, frames, device=DEVICE)
    noisy = clean + 0.3 * torch.randn_like(clean)

    def loss() -> Tensor:
        told = denoiser(noisy)
        with torch.no_grad():
            wanted = hearing(clean.mT)
        return functional.l1_loss(told.float(), clean) + functional.mse_loss(hearing(told.mT).float(), wanted.float())

    return training(loss, adamw(denoiser))


class Overlap:
    """How far what was told and what is there overlap, kind by kind."""

    def __init__(self, kinds: int) -> None:
        self.kinds = kinds

    def each(self, told: Tensor, there: Tensor) -> list[float]:
        """A kind after the other."""
        shares = []
        for kind in range(self.kinds):
            mine, right = told == kind, there == kind
            joint, either = (mine & right).sum().item(), (mine | right).sum().item()
            shares.append(joint / max(either, 1))
        return shares

    def all(self, told: Tensor, there: Tensor) -> list[float]:
        """All kinds at once, from a table of what was told where what is there."""
        table = torch.bincount((there * self.kinds + told).flatten(), minlength=self.kinds**2)
        table = table.view(self.kinds, self.kinds).double()
        joint = table.diagonal()
        return (joint / (table.sum(0) + table.sum(1) - joint).clamp(min=1)).tolist()


@pair(
    "host-sync", "evaluation", "overlaps of all kinds come from one table (bincount), read by one tolist()",
    TWENTY_NINTH, library="transformers", accept=("memory-bandwidth",), inference=True, steps=(2, 1),
)  # fmt: skip
def scene_parsing_validation(variant: str) -> Step:
    """A SegFormer (B1's size, bf16) parses 4 photographs of 512²; of each of 150 kinds the overlap is an item().

    Each kind passes over all pixels as well; hence "memory-bandwidth", too.
    """
    config = transformers.SegformerConfig(
        num_labels=size(150, 7), hidden_sizes=[size(64, 8), size(128, 16), size(320, 32), size(512, 32)],
        depths=[size(2, 1)] * 4, decoder_hidden_size=size(256, 16), num_attention_heads=[1, 2, size(5, 2), size(8, 2)],
    )  # fmt: skip
    model = on_device(lambda: transformers.SegformerForSemanticSegmentation(config), HALF).eval()
    x = images(size(4, 2), size(512, 64), HALF)
    there, metric = tokens(config.num_labels, len(x), *x.shape[2:]), Overlap(config.num_labels)
    measure = metric.each if variant == BEFORE else metric.all

    def step() -> list[float]:
        told = functional.interpolate(model(pixel_values=x).logits, size=x.shape[2:], mode="bilinear")
        return measure(told.argmax(1), there)

    return step


def doubled(narrow: int, wide: int) -> nn.Sequential:
    """Two convolutions with norms."""
    return nn.Sequential(
        nn.Conv2d(narrow, wide, 3, padding=1, bias=False), nn.BatchNorm2d(wide), nn.ReLU(inplace=True),
        nn.Conv2d(wide, wide, 3, padding=1, bias=False), nn.BatchNorm2d(wide), nn.ReLU(inplace=True),
    )  # fmt: skip


class UNet(nn.Module):
    """A U-Net with norms (O. Ronneberger et al., 2015), as repositories have it."""

    def __init__(self, first: int, depth: int) -> None:
        super().__init__()
        widths = [first * 2**index for index in range(depth + 1)]
        self.begin = doubled(3, first)
        self.downs = nn.ModuleList(doubled(a, b) for a, b in itertools.pairwise(widths))
        self.raised = nn.ModuleList(
            nn.ConvTranspose2d(b, a, 2, 2) for a, b in zip(widths[-2::-1], widths[:0:-1], strict=True)
        )
        self.ups = nn.ModuleList(doubled(2 * a, a) for a in widths[-2::-1])
        self.told = nn.Conv2d(first, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Images [rows, 3, high, wide] → scores [rows, 2, high, wide]."""
        kept = [self.begin(x)]
        for down in self.downs:
            kept.append(down(functional.max_pool2d(kept[-1], 2)))
        x = kept.pop()
        for raised, up in zip(self.raised, self.ups, strict=True):
            x = up(torch.cat([kept.pop(), raised(x)], 1))
        return self.told(x)


@pair(
    "memory-format", "inspection", "model and tiles are channels_last", TWENTY_NINTH, inference=True, steps=(3, 2)
)  # fmt: skip
def bridge_inspection(variant: str) -> Step:
    """A U-Net (64 to 1,024 channels, fp16) looks for cracks on 16 tiles of 512² that a drone has taken."""
    model = on_device(lambda: UNet(size(64, 8), size(4, 2)), FP16).eval()
    x = images(size(16, 2), size(512, 32), FP16)
    if variant == AFTER:
        model, x = model.to(memory_format=LAST), x.to(memory_format=LAST)
    return lambda: model(x).argmax(1)


def flush() -> None:
    """Frees what is not needed."""
    gc.collect()
    if CUDA:
        torch.cuda.empty_cache()


@pair(
    "host-stall", "fine-tuning", "flush() is not called after each part of a batch", TWENTY_NINTH,
    library="transformers", accept=("allocator-churn",), with_stack=True, steps=(2, 2),
)  # fmt: skip
def chat_finetuning(variant: str) -> Step:
    """A Llama (6 × 2,048) is tuned on 2 × 4 chats of 512 words; flush() from a notebook follows each part.

    It collects garbage, and gives memory back, which is then asked for anew: hence "allocator-churn", too.
    """
    config = transformers.LlamaConfig(
        vocab_size=size(32_000, 64), hidden_size=size(2048, 32), intermediate_size=size(5632, 64),
        num_hidden_layers=size(6, 1), num_attention_heads=size(16, 2), num_key_value_heads=size(4, 1),
        max_position_embeddings=size(2048, 32), use_cache=False,
    )  # fmt: skip
    model = on_device(lambda: transformers.LlamaForCausalLM(config)).train()
    optimizer = adamw(model)
    parts = tokens(config.vocab_size, 2, size(4, 2), size(512, 8))

    def step() -> None:
        for ids in parts:
            with mixed():
                loss = model(input_ids=ids, labels=ids).loss / len(parts)
            loss.backward()
            del loss
            if variant == BEFORE:
                flush()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


class Kernel(nn.Module):
    """The covariance of places: a Matérn kernel of smoothness 5/2."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Places [rows, 2], [columns, 2] → [rows, columns]."""
        squared = (x[:, None, 0] - y[None, :, 0]) ** 2 + (x[:, None, 1] - y[None, :, 1]) ** 2
        apart = torch.sqrt(5.0 * squared + 1e-30) / 0.3
        return (1.0 + apart + apart * apart / 3.0) * torch.exp(-apart)


@healthy("kriging", TWENTY_NINTH, inference=True, compiles=True, steps=(2, 2))
def healthy_ore_kriging(variant: str) -> Step:
    """The ore between 12,288 drill holes is told by a Gaussian process: kernel compiled, Cholesky in fp64.

    In fp32 the matrix, whose noise is 1e-8 of its diagonal, is not positive any more.
    """
    holes, asked = size(12_288, 32), size(4095, 7)
    kernel = Kernel()
    compiled([kernel])
    drawn = torch.Generator().manual_seed(0)
    where = torch.rand(holes, 2, generator=drawn, dtype=torch.float64).to(DEVICE)
    places = torch.rand(asked, 2, generator=drawn, dtype=torch.float64).to(DEVICE)
    found = torch.sin(6.0 * where[:, :1]) * torch.cos(4.0 * where[:, 1:])

    def step() -> tuple[Tensor, Tensor]:
        matrix = kernel(where, where)
        matrix.diagonal().add_(1e-8)
        root, _ = torch.linalg.cholesky_ex(matrix)
        seen = kernel(where, places)
        solved = torch.linalg.solve_triangular(root, torch.cat([found, seen], 1), upper=False)
        mean = solved[:, 1:].T @ solved[:, :1]
        return mean[:, 0], 1.0 - solved[:, 1:].square().sum(0)

    return step


class Ranker(nn.Module):
    """DLRM: vectors of names from one table, products of all pairs of them, a network."""

    def __init__(self, names: int, fields: int, numbers: int, width: int, hidden: int) -> None:
        super().__init__()
        self.table = nn.Embedding(names, width)
        self.bottom = nn.Sequential(nn.Linear(numbers, hidden), nn.ReLU(), nn.Linear(hidden, width), nn.ReLU())
        pairs = (fields + 1) * fields // 2
        self.top = nn.Sequential(
            nn.Linear((pairs + width + 63) // 64 * 64, hidden), nn.ReLU(),
            nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 8),
        )  # fmt: skip
        self.register_buffer("chosen", self.flat(fields + 1))

    @staticmethod
    def flat(count: int) -> Tensor:
        """Where pairs are in a table of all with all."""
        rows, columns = torch.tril_indices(count, count, -1)
        return rows * count + columns

    def forward(self, ids: Tensor, numbers: Tensor) -> Tensor:
        """Names [rows, fields], numbers [rows, numbers] → [rows, 8]."""
        dense = self.bottom(numbers)
        x = torch.cat([dense[:, None], self.table(ids)], 1)
        told = torch.cat([dense, torch.bmm(x, x.mT).flatten(1)[:, self.chosen]], 1)
        return self.top(functional.pad(told, (0, self.top[0].in_features - told.shape[1])))


@healthy("recommendation", TWENTY_NINTH, inference=True, compiles=True, steps=(3, 3))
def healthy_ad_ranking(variant: str) -> Step:
    """A DLRM (31 fields, one table of 16 million names of 128, bf16) ranks 131,072 ads: compiled, in a CUDA graph."""
    names, fields, rows = size(16_000_000, 100), size(31, 3), size(131_072, 4)
    model = on_device(lambda: Ranker(names, fields, size(16, 8), size(128, 8), size(512, 16)), HALF).eval()
    compiled([model])
    ids = tokens(names, rows, fields)
    numbers = torch.randn(rows, size(16, 8), device=DEVICE, dtype=HALF)
    return as_graph(lambda: model(ids, numbers))


class Singer(nn.Module):
    """Two LSTM cells: what has been sung → what comes next."""

    def __init__(self, notes: int, width: int) -> None:
        super().__init__()
        self.names, self.told = nn.Embedding(notes, width), nn.Linear(width, notes)
        self.cells = nn.ModuleList(nn.Linear(2 * width, 4 * width) for _ in range(2))

    def forward(self, ids: Tensor, kept: list[Tensor], luck: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Notes [rows], states [rows, width] of each cell, luck [rows, notes]."""
        x, new = self.names(ids), []
        for index, cell in enumerate(self.cells):
            hidden, state = kept[2 * index], kept[2 * index + 1]
            enter, forget, fresh, leave = cell(torch.cat([x, hidden], 1)).chunk(4, 1)
            state = forget.sigmoid() * state + enter.sigmoid() * fresh.tanh()
            x = leave.sigmoid() * state.tanh()
            new += [x, state]
        return (self.told(x).float() + luck).argmax(1), new


@healthy("music", TWENTY_NINTH, inference=True, compiles=True, steps=(2, 2))
def healthy_melody_sampling(variant: str) -> Step:
    """Two LSTM cells (1,024, bf16, compiled) draw 64 notes of 2,048 melodies, each from the last: one CUDA graph."""
    notes, width, rows, count = size(512, 16), size(1024, 16), size(2048, 4), size(64, 3)
    model = on_device(lambda: Singer(notes, width), HALF).eval()
    compiled([model])
    first = tokens(notes, rows)
    luck = -torch.log(-torch.log(torch.rand(count, rows, notes, device=DEVICE).clamp(1e-6, 1 - 1e-6)))
    begun = [torch.zeros(rows, width, device=DEVICE, dtype=HALF) for _ in range(4)]

    def step() -> Tensor:
        ids, kept, made = first, begun, []
        for index in range(count):
            ids, kept = model(ids, kept, luck[index])
            made.append(ids)
        return torch.stack(made, 1)

    return as_graph(step)
