"""The thirty-seventh set: lines of training scripts that are copied from one repository to the next."""

from __future__ import annotations

import timm
import torch
import torchvision
import transformers
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from pairs.parts import DEVICE, HALF, TINY, Block, adamw, compiled, images, mixed, on_device, seeded, size, tokens
from pairs.registry import AFTER, BEFORE, THIRTY_SEVENTH, Step, healthy, pair

__all__: list[str] = []


class TimedBlock(nn.Module):
    """A layer of a diffusion transformer: the time shifts and scales what comes in, and gates what comes out."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.block, self.told = Block(width, heads), nn.Linear(width, 3 * width)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Places [rows, places, width], times [rows, width]."""
        shift, scale, gate = self.told(functional.silu(time))[:, None].chunk(3, -1)
        return x + gate * self.block(x * (1 + scale) + shift)


class Flow(nn.Module):
    """A diffusion transformer over patches of latents, which tells a velocity."""

    def __init__(self, channels: int, width: int, heads: int, depth: int, places: int) -> None:
        super().__init__()
        self.patch, self.places = nn.Linear(4 * channels, width), nn.Parameter(0.02 * torch.randn(places, width))
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.layers = nn.ModuleList(TimedBlock(width, heads) for _ in range(depth))
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, 4 * channels)
        self.register_buffer("waves", torch.exp(-torch.arange(128) / 14.0))

    def forward(self, x: Tensor, times: Tensor) -> Tensor:
        """Latents [rows, channels, side, side] and their times [rows] → velocities."""
        turned = times[:, None] * self.waves
        time = self.time(torch.cat((turned.cos(), turned.sin()), -1))
        half = x.shape[-1] // 2
        x = self.patch(functional.pixel_unshuffle(x, 2).flatten(2).transpose(1, 2)) + self.places
        for layer in self.layers:
            x = layer(x, time)
        x = self.out(self.norm(x)).transpose(1, 2).unflatten(2, (half, half))
        return functional.pixel_shuffle(x, 2)


@pair(
    "host-sync", "diffusion", "sigmas[drawn]: levels of noise by the places that were drawn, not by search",
    THIRTY_SEVENTH, accept=("launch-overhead",), compiles=True, with_stack=True, steps=(2, 1),
)  # fmt: skip
def festival_poster_flow(variant: str) -> Step:
    """A diffusion transformer (8 × 768, layers compiled, mixed precision, fused AdamW) learns from 256 latents.

    The script has get_sigmas() of the well-known examples for flow matching: for each time of the batch it looks for
    its place in the schedule, (schedule == t).nonzero().item(). The places were drawn a line before. The host waits
    for the GPU twice for each latent, while the GPU has nothing but comparisons of a thousand numbers.
    """
    rows, channels, side, width = size(256, 4), size(4, 2), size(32, 8), size(768, 32)
    model = on_device(lambda: Flow(channels, width, size(12, 2), size(8, 1), (side // 2) ** 2)).train()
    compiled(model.layers)
    optimizer = adamw(model)
    seeded(1)
    latents = images(rows, side, channels=channels)
    sigmas = torch.linspace(1.0, 0.001, 1000, device=DEVICE)
    schedule = 1000.0 * sigmas

    def get_sigmas(times: Tensor) -> Tensor:
        steps = [(schedule == time).nonzero().item() for time in times]
        return sigmas[steps]

    def step() -> Tensor:
        drawn = (torch.randn(rows, device=DEVICE).sigmoid() * 1000).long().clamp_(max=999)
        times = schedule[drawn]
        noise = torch.randn_like(latents)
        level = (sigmas[drawn] if variant == AFTER else get_sigmas(times))[:, None, None, None]
        with mixed():
            told = model(torch.lerp(latents, noise, level), times)
        loss = functional.mse_loss(told.float(), noise - latents)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


class Adapted(nn.Module):
    """A linear layer that is frozen, and what is learnt beside it: two matrices of low rank."""

    def __init__(self, base: nn.Linear, rank: int, *, merged: bool) -> None:
        super().__init__()
        self.base, self.merged = base.requires_grad_(False), merged
        like = {"device": base.weight.device, "dtype": base.weight.dtype}
        self.down = nn.Parameter(torch.randn(rank, base.in_features, **like) / base.in_features**0.5)
        self.up = nn.Parameter(0.01 * torch.randn(base.out_features, rank, **like))

    def forward(self, x: Tensor) -> Tensor:
        """The layer and its correction."""
        if self.merged:
            return functional.linear(x, self.base.weight + 2.0 * (self.up @ self.down), self.base.bias)
        return self.base(x) + 2.0 * functional.linear(functional.linear(x, self.down), self.up)


@pair(
    "unused-gradients", "fine-tuning", "base(x) + 2 · up(down(x)) instead of a product with base + 2 · up @ down",
    THIRTY_SEVENTH, library="transformers", accept=("memory-bandwidth", "unfused-chain"), compiles=True, steps=(3, 2),
)  # fmt: skip
def clinic_letter_adapters(variant: str) -> Step:
    """LoRA of rank 16 on a Llama of 12 × 2,048 in bf16, layers compiled, 8 letters of 1,024 tokens.

    As small repositories write it, and loralib for convolutions, each layer adds the product of both matrices to its
    weight, and multiplies with the sum. The backward pass then needs the gradient of the whole weight, as if that were
    learnt, to multiply it with a matrix of rank 16: half as much again as the products of a frozen network. Sums
    and their gradients are as large as the weights: hence the others, too.
    """
    rows, long = size(8, 2), size(1024, 16)
    config = transformers.LlamaConfig(
        vocab_size=size(32_000, 64), hidden_size=size(2048, 32), intermediate_size=size(5632, 64), use_cache=False,
        num_hidden_layers=size(12, 2), num_attention_heads=size(16, 2), num_key_value_heads=size(8, 2),
        max_position_embeddings=size(4096, 64),
    )  # fmt: skip
    model = on_device(lambda: transformers.LlamaForCausalLM(config), HALF).train().requires_grad_(False)
    seeded(1)
    for layer in model.model.layers:
        for part in (layer.self_attn, layer.mlp):
            for name, base in list(part.named_children()):
                if isinstance(base, nn.Linear):
                    setattr(part, name, Adapted(base, size(16, 4), merged=variant == BEFORE))
    compiled(model.model.layers)
    learnt = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(learnt, lr=2e-4, fused=True)
    letters = tokens(config.vocab_size, rows, long + 1)
    given, wanted = letters[:, :-1].contiguous(), letters[:, 1:].flatten()

    def step() -> Tensor:
        scores = model(input_ids=given).logits.flatten(0, 1)
        loss = functional.cross_entropy(scores, wanted)
        loss.backward()
        nn.utils.clip_grad_norm_(learnt, 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


class NonLocal(nn.Module):
    """Each place of a clip sees all others, weighed by a product that is divided by their number (no softmax)."""

    def __init__(self, width: int, frames: int, *, squares: bool) -> None:
        super().__init__()
        self.frames, self.squares = frames, squares
        self.asks, self.keys, self.says = (nn.Conv2d(width, width // 2, 1) for _ in range(3))
        self.out = nn.Sequential(nn.Conv2d(width // 2, width, 1), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        """Maps [clips · frames, width, side, side]."""
        side = x.shape[-1]
        asked, keys, said = (
            part(x).permute(0, 2, 3, 1).reshape(-1, self.frames * side * side, part.out_channels)
            for part in (self.asks, self.keys, self.says)
        )
        if self.squares:
            weights = torch.matmul(asked, keys.transpose(1, 2))
            seen = torch.matmul(weights / weights.shape[-1], said)
        else:
            seen = torch.matmul(asked, torch.matmul(keys.transpose(1, 2), said) / said.shape[1])
        return x + self.out(seen.reshape(-1, side, side, seen.shape[-1]).permute(0, 3, 1, 2))


@pair(
    "unfused-attention", "video", "asked @ (keysᵀ @ said) instead of (asked @ keysᵀ) @ said: nothing lies between",
    THIRTY_SEVENTH, library="torchvision", accept=("memory-bandwidth", "unfused-chain", "tensor-compute"),
    steps=(3, 2),
)  # fmt: skip
def kitchen_action_clips(variant: str) -> Step:
    """A ResNet-50 with four non-local blocks (mixed precision, channels_last, SGD) learns from 16 clips of 8 frames.

    The blocks are of the kind "dot product": weights of 6,272 × 6,272 places are the product of two maps, divided by
    the number of places. Without a softmax the three matrices may be multiplied in the other order, and 256 × 256 is
    all that is written between. The weights are 1.3 GB for each of two blocks, forward and backward: hence
    "memory-bandwidth", too.
    """
    rows, frames, side, kinds = size(16, 2), size(8, 2), size(224, 32), size(106, 5)
    model = on_device(lambda: torchvision.models.resnet50(num_classes=kinds)).train()
    squares = variant == BEFORE
    for name, width, after in (("layer2", 512, (1, 3)), ("layer3", 1024, (2, 5))):
        stage: list[nn.Module] = []
        for place, layer in enumerate(getattr(model, name)):
            stage.append(layer)
            if place in after:
                stage.append(on_device(lambda: NonLocal(width, frames, squares=squares), seed=width + place))  # noqa: B023
        setattr(model, name, nn.Sequential(*stage))
    model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9, weight_decay=1e-4, foreach=True)
    seeded(1)
    clips = images(rows * frames, side).contiguous(memory_format=torch.channels_last)
    named = tokens(kinds, rows)

    def step() -> Tensor:
        with mixed():
            scores = model(clips).unflatten(0, (rows, frames)).mean(1)
        loss = functional.cross_entropy(scores.float(), named)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


@pair(
    "padded-work", "retrieval", "questions and passages go through the encoder apart, each padded to its own longest",
    THIRTY_SEVENTH, library="transformers", compiles=True, steps=(3, 2),
)  # fmt: skip
def cooking_question_retriever(variant: str) -> Step:
    """A BERT (12 × 768, layers compiled, mixed precision, fused AdamW) learns from 128 questions and their passages.

    The tokenizer is called once, with questions + passages: questions of up to 32 words are padded to the 256 of the
    longest passage, so that nearly half of all places are padding. The other passages of a batch are the wrong ones.
    """
    rows, short, long, width = size(128, 3), size(32, 6), size(256, 16), size(768, 32)
    config = transformers.BertConfig(
        vocab_size=size(30_522, 64), hidden_size=width, num_hidden_layers=size(12, 1), pad_token_id=0,
        num_attention_heads=size(12, 2), intermediate_size=size(3072, 64), max_position_embeddings=size(512, 32),
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = on_device(lambda: transformers.BertModel(config, add_pooling_layer=False)).train()
    compiled(model.encoder.layer)
    optimizer = adamw(model)
    seeded(1)

    def texts(least: int, most: int) -> list[Tensor]:
        lengths = [most, *torch.randint(least, most + 1, (rows - 1,)).tolist()]
        return [torch.randint(1, config.vocab_size, (length,)) for length in lengths]

    def padded(parts: list[Tensor]) -> Tensor:
        return pad_sequence(parts, batch_first=True).to(DEVICE)

    questions, passages = texts(short // 3, short), texts(long * 7 // 8, long)
    apart = [padded(questions), padded(passages)]
    together = [padded(questions + passages)]
    right = torch.arange(rows, device=DEVICE)

    def embedded(ids: Tensor) -> Tensor:
        seen = ids != 0
        x = model(input_ids=ids, attention_mask=seen.long()).last_hidden_state
        x = (x * seen[..., None]).sum(1) / seen.sum(1, keepdim=True)
        return functional.normalize(x.float(), dim=-1)

    def step() -> Tensor:
        with mixed():
            parts = [embedded(ids) for ids in (apart if variant == AFTER else together)]
            asked, said = torch.cat(parts).chunk(2)
        loss = functional.cross_entropy(20.0 * asked @ said.T, right)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


@pair(
    "launch-overhead", "federated learning", "the pull to the shared weights is added to gradients by torch._foreach",
    THIRTY_SEVENTH, library="timm", accept=("small-kernels", "unfused-optimizer", "unfused-chain"),
    compiles=True, steps=(2, 1),
)  # fmt: skip
def eye_hospital_round(variant: str) -> Step:
    """A ViT (24 × 384, blocks compiled, mixed precision, SGD) learns at a hospital, from 128 photographs of eyes.

    FedProx asks that weights stay near those of all hospitals. As every tutorial has it, the loss gets a sum over
    parameters, term by term: 296 tensors, each with a difference, a square, a sum and an addition, and their
    gradients, which the host cannot launch as fast as they are done.
    """
    rows, side, kinds, pull = size(128, 2), size(224, 32), size(5, 3), 0.01
    small = {"img_size": 32, "embed_dim": 32, "num_heads": 2} if TINY else {}
    model = on_device(
        lambda: timm.create_model("vit_small_patch16_224", num_classes=kinds, depth=size(24, 2), **small)
    ).train()
    compiled(model.blocks)
    weights = list(model.parameters())
    shared = [weight.detach().clone() for weight in weights]
    optimizer = torch.optim.SGD(weights, lr=0.01, momentum=0.9, fused=True)
    seeded(1)
    eyes = images(rows, side)
    named = tokens(kinds, rows)

    def step() -> Tensor:
        with mixed():
            scores = model(eyes)
        loss = functional.cross_entropy(scores.float(), named)
        if variant == AFTER:
            loss.backward()
            with torch.no_grad():
                away = torch._foreach_sub(weights, shared)
                torch._foreach_add_([weight.grad for weight in weights], away, alpha=pull)
        else:
            away = torch.zeros((), device=DEVICE)
            for weight, first in zip(weights, shared, strict=True):
                away = away + (weight - first).pow(2).sum()
            (loss + pull / 2 * away).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


class Words(nn.Module):
    """Embeddings of words, of which only the last ones, which are new, are learnt."""

    def __init__(self, words: int, new: int, width: int, *, whole: bool) -> None:
        super().__init__()
        self.first, self.whole = words, whole
        table = 0.02 * torch.randn(words + new, width)
        self.table = nn.Parameter(table, requires_grad=whole)
        if whole:
            is_new = (torch.arange(words + new) >= words)[:, None].float()
            self.table.register_hook(lambda gradient: gradient * is_new)
        else:
            self.new = nn.Parameter(table[words:].clone())

    def forward(self, ids: Tensor) -> Tensor:
        """Ids [rows, places] → [rows, places, width]."""
        x = functional.embedding(ids, self.table)
        if self.whole:
            return x
        new = functional.embedding((ids - self.first).clamp_min(0), self.new)
        return torch.where((ids >= self.first)[..., None], new, x)


@pair(
    "scattered-access", "fine-tuning", "new words have a table of their own; that of the others is frozen",
    THIRTY_SEVENTH, library="transformers", accept=("unused-gradients", "memory-bandwidth"), compiles=True,
    steps=(3, 2),
)  # fmt: skip
def game_command_tokens(variant: str) -> Step:
    """A frozen Llama (12 × 2,048, bf16, layers compiled) learns 64 new words and a head from 8 dialogues of 384 tokens.

    The table of 152,000 words was made longer by 64, and a hook of its weight sets the gradients of all others to
    nought. Gradient, hook, norm and AdamW go over all of 311 million numbers in fp32, 1.2 GB each, for 64 rows:
    "unused-gradients", too, and "memory-bandwidth".
    """
    rows, long, kinds = size(8, 2), size(384, 16), size(12, 3)
    words, new, width = size(151_936, 80), size(64, 8), size(2048, 32)
    config = transformers.LlamaConfig(
        vocab_size=8, hidden_size=width, intermediate_size=size(5632, 64), use_cache=False, pad_token_id=0,
        num_hidden_layers=size(12, 2), num_attention_heads=size(16, 2), num_key_value_heads=size(8, 2),
        max_position_embeddings=size(4096, 64), bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    body = on_device(lambda: transformers.LlamaModel(config), HALF).train().requires_grad_(False)
    compiled(body.layers)
    table = on_device(lambda: Words(words, new, width, whole=variant == BEFORE), seed=1)
    head = on_device(lambda: nn.Linear(width, kinds), seed=2)
    learnt = [weight for part in (table, head) for weight in part.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(learnt, lr=1e-3, weight_decay=0.0, fused=True)
    seeded(3)
    ids = tokens(words, rows, long)
    ids[:, ::16] = words + tokens(new, *ids[:, ::16].shape)
    commands = tokens(kinds, rows)

    def step() -> Tensor:
        x = body(inputs_embeds=table(ids).to(HALF)).last_hidden_state[:, -1]
        loss = functional.cross_entropy(head(x.float()), commands)
        loss.backward()
        nn.utils.clip_grad_norm_(learnt, 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


@healthy("tables", THIRTY_SEVENTH, compiles=True, steps=(3, 2))
def healthy_tenancy_table_training(variant: str) -> Step:
    """A transformer over columns (8 × 384, layers compiled, mixed precision, fused AdamW) learns 2,048 rows of 64.

    The table lies on the GPU, where rows are drawn, too. A number becomes a token by a scale and a shift of its
    column, and the mean of all tokens tells the rent. Columns are 64, which suits the kernels of attention.
    """
    rows, columns, width, many = size(2048, 4), size(64, 8), size(384, 32), size(500_000, 64)

    def parts() -> nn.ModuleDict:
        return nn.ModuleDict(
            {
                "scales": nn.Embedding(columns, width),
                "shifts": nn.Embedding(columns, width),
                "layers": nn.Sequential(*(Block(width, size(6, 2)) for _ in range(size(8, 1)))),
                "norm": nn.LayerNorm(width),
                "head": nn.Linear(width, 1),
            }
        )

    model = on_device(parts).train()
    compiled(model["layers"])
    optimizer = adamw(model)
    seeded(1)
    table, rents = torch.randn(many, columns, device=DEVICE), torch.randn(many, device=DEVICE)
    mean = torch.zeros((), device=DEVICE)

    def step() -> Tensor:
        drawn = torch.randint(many, (rows,), device=DEVICE)
        given, wanted = table.index_select(0, drawn), rents.index_select(0, drawn)
        with mixed():
            shifts, scales = (model[name].weight.to(HALF) for name in ("shifts", "scales"))
            x = model["layers"](torch.addcmul(shifts, given.to(HALF)[..., None], scales))
            told = model["head"](model["norm"](x.mean(1))).squeeze(1)
        loss = functional.mse_loss(told.float(), wanted)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return mean.lerp_(loss.detach(), 0.1)

    return step


class Surprise(nn.Module):
    """The negative log-chance of each word."""

    def forward(self, scores: Tensor, words: Tensor) -> Tensor:
        """Scores [places, words], ids [places] → [places]."""
        return functional.cross_entropy(scores.float(), words, reduction="none")


@healthy("reinforcement learning", THIRTY_SEVENTH, library="transformers", compiles=True, steps=(2, 1))
def healthy_theorem_policy_update(variant: str) -> Step:
    """An update of GRPO: a Qwen3 (12 × 1,024, layers compiled, mixed precision, fused AdamW), 16 answers of 512 words.

    Questions have 512 words, too. Old chances were kept when the answers were written; words are told for the places
    of the answers alone; their loss is compiled, and what is logged stays on the GPU.
    """
    rows, asked, told = size(16, 4), size(512, 8), size(512, 8)
    config = transformers.Qwen3Config(
        vocab_size=size(65_536, 64), hidden_size=size(1024, 32), intermediate_size=size(3072, 64), use_cache=False,
        num_hidden_layers=size(12, 2), num_attention_heads=size(16, 2), num_key_value_heads=size(8, 2),
        head_dim=size(64, 16), max_position_embeddings=size(4096, 64), pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model, surprise = on_device(lambda: transformers.Qwen3ForCausalLM(config)).train(), Surprise()
    compiled([*model.model.layers, surprise])
    optimizer = adamw(model)
    seeded(1)
    ids = 3 + tokens(config.vocab_size - 3, rows, asked + told)
    answers = ids[:, asked:].flatten()
    rewards = torch.rand(rows, device=DEVICE).unflatten(0, (2, -1))
    better = ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)).flatten()[:, None]

    def chances() -> Tensor:
        with mixed():
            x = model.model(input_ids=ids).last_hidden_state[:, asked - 1 : -1]
            scores = model.lm_head(x.flatten(0, 1))
        return -surprise(scores, answers).unflatten(0, (rows, told))

    with torch.no_grad():
        old = chances()
    clipped = torch.zeros((), device=DEVICE)

    def step() -> Tensor:
        ratio = (chances() - old).exp()
        bounded = ratio.clamp(0.8, 1.2)
        loss = -torch.minimum(ratio * better, bounded * better).mean()
        clipped.lerp_((ratio != bounded).float().mean(), 0.1)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step
