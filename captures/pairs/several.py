"""Programs with several habits at once, as customers run them: each fix is a variant of its own."""

from __future__ import annotations

import copy
import io
import itertools
from collections.abc import Iterable, Iterator

import numpy as np
import timm
import torch
import torchvision
import transformers
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import functional as pictures

from pairs.parts import DEVICE, HALF, TINY, Block, as_graph, mixed, on_device, size, tokens
from pairs.registry import Step, mends, several

__all__: list[str] = []


@several(
    "training",
    {
        "padding": "texts are padded to the longest of the batch (704), not to max_length (1,024)",
        "checkpointing": "without gradient_checkpointing_enable(), for which there is memory",
        "vocabulary": "resize_token_embeddings(…, pad_to_multiple_of=64): 32,064 words, not 32,001",
        "fused": "AdamW with fused=True",
    },
    library="transformers", steps=(2, 1),
)  # fmt: skip
def contract_llama_tuning(variant: str) -> Step:
    """A Llama (6 × 2,048, 32,001 words: one was added for padding) is tuned on 8 contracts of 350 to 704 words.

    Mixed precision, all weights are trained. Texts are padded to 1,024 words, though the longest has 704. Layers are
    run twice (gradient checkpointing), though memory is ample. The odd number of words makes rows of the scores that
    are not aligned. AdamW is PyTorch's default, which passes over all weights several times.
    """
    padding = size(32_000, 64)  # the id of the added word
    config = transformers.LlamaConfig(
        vocab_size=padding, hidden_size=size(2048, 32), intermediate_size=size(5504, 64), use_cache=False,
        num_hidden_layers=size(6, 2), num_attention_heads=size(16, 2), num_key_value_heads=size(16, 2),
        max_position_embeddings=size(2048, 64), tie_word_embeddings=False,
    )  # fmt: skip
    model = on_device(lambda: transformers.LlamaForCausalLM(config)).train()
    multiple = 64 if mends(variant, "vocabulary") else None
    model.resize_token_embeddings(padding + 1, pad_to_multiple_of=multiple, mean_resizing=False)
    with torch.no_grad():  # the same weights, however many words were added
        model.model.embed_tokens.weight[padding:] = 0.0
        model.lm_head.weight[padding:] = 0.0
    if not mends(variant, "checkpointing"):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    fused = True if mends(variant, "fused") else None
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, fused=fused)

    lengths = [5, 9] if TINY else [350, 410, 480, 704, 390, 655, 520, 600]
    longest = max(lengths) if mends(variant, "padding") else size(1024, 16)
    drawn = torch.Generator().manual_seed(0)
    ids = torch.full((len(lengths), longest), padding)
    for row, length in enumerate(lengths):
        ids[row, :length] = torch.randint(0, padding, (length,), generator=drawn)
    ids = ids.to(DEVICE)
    mask = (ids != padding).long()
    labels = ids.masked_fill(mask == 0, -100)[:, 1:].flatten()

    def step() -> Tensor:
        with mixed():
            told = model(input_ids=ids, attention_mask=mask).logits[:, :-1, : padding + 1]
        loss = functional.cross_entropy(told.flatten(0, 1).float(), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


class Adapted(nn.Module):
    """A linear layer with an adapter of low rank (LoRA)."""

    def __init__(self, narrow: int, wide: int, rank: int) -> None:
        super().__init__()
        self.base = nn.Linear(narrow, wide)
        self.lora_a = nn.Parameter(torch.randn(rank, narrow) / narrow**0.5)
        self.lora_b = nn.Parameter(0.01 * torch.randn(wide, rank))

    def forward(self, x: Tensor) -> Tensor:
        """[…, narrow] → […, wide]."""
        return self.base(x) + 2.0 * functional.linear(functional.linear(x, self.lora_a), self.lora_b)


class AdaptedLayer(nn.Module):
    """A layer of a language model with adapters on its attention."""

    def __init__(self, width: int, heads: int, rank: int, *, host_mask: bool) -> None:
        super().__init__()
        self.heads, self.host_mask = heads, host_mask
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.asked, self.out = Adapted(width, 3 * width, rank), Adapted(width, width, rank)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Places [rows, places, width]."""
        q, k, v = self.asked(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.host_mask:
            places = x.shape[1]
            mask = torch.triu(torch.full((places, places), float("-inf")), diagonal=1).to(x.device)
            seen = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask.to(q.dtype))
        else:
            seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.feed(self.norms[1](x))


@several(
    "training",
    {
        "precision": "mixed precision (autocast to bfloat16) instead of fp32",
        "frozen": "requires_grad_(False) for all weights but those of the adapters",
        "answers": "scores and loss for the places of the answers only",
        "mask": "is_causal=True instead of a mask that each layer makes on the host and copies",
    },
    steps=(2, 1),
)  # fmt: skip
def support_lora_tuning(variant: str) -> Step:
    """Adapters of rank 16 in a language model (8 × 1,536, 32,000 words) learn 4 dialogues of 512 words, in plain torch.

    Everything is in fp32 (PyTorch's default, without TF32). The optimizer has the adapters only, but gradients of all
    weights are computed. Scores are made for all 512 places, while only the last 64, the answer, have labels. Each
    layer makes its causal mask on the host and copies it.
    """
    width, words, rows, room, answer = size(1536, 32), size(32_000, 64), size(4, 2), size(512, 16), size(64, 4)
    host_mask = not mends(variant, "mask")
    model = on_device(
        lambda: nn.ModuleDict(
            {
                "names": nn.Embedding(words, width),
                "layers": nn.Sequential(
                    *(AdaptedLayer(width, size(12, 2), size(16, 2), host_mask=host_mask) for _ in range(size(8, 2)))
                ),
                "norm": nn.LayerNorm(width),
                "head": nn.Linear(width, words, bias=False),
            }
        )
    ).train()
    if mends(variant, "frozen"):
        for name, weight in model.named_parameters():
            weight.requires_grad_("lora" in name)
    adapters = [weight for name, weight in model.named_parameters() if "lora" in name]
    optimizer = torch.optim.AdamW(adapters, lr=1e-4, fused=True)
    ids = tokens(words, rows, room)
    labels = ids.clone()
    labels[:, :-answer] = -100

    def loss() -> Tensor:
        hidden, wanted = model["norm"](model["layers"](model["names"](ids)))[:, :-1], labels[:, 1:]
        if mends(variant, "answers"):
            hidden, wanted = hidden[:, -answer:], wanted[:, -answer:]
        return functional.cross_entropy(model["head"](hidden).flatten(0, 1).float(), wanted.flatten())

    def step() -> Tensor:
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=mends(variant, "precision")):
            value = loss()
        value.backward()
        optimizer.step()
        model.zero_grad(set_to_none=True)
        return value.detach()

    return step


MEAN, SPREAD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def photograph(drawn: np.random.Generator, high: int, wide: int) -> Image.Image:
    """Something with the structure of a photograph: coarse noise, made large."""
    coarse = drawn.integers(0, 256, (high // 8, wide // 8, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((wide, high), Image.Resampling.BICUBIC)


class Photographs(Dataset):
    """Files of JPEG, decoded and made small when they are asked for."""

    def __init__(self, count: int, high: int, wide: int, side: int, *, floats: bool) -> None:
        drawn = np.random.default_rng(0)
        self.side, self.floats, self.files = side, floats, []
        for _ in range(count):
            file = io.BytesIO()
            photograph(drawn, high, wide).save(file, format="JPEG", quality=90)
            self.files.append(file.getvalue())

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = Image.open(io.BytesIO(self.files[index])).convert("RGB")
        image = image.resize((self.side, self.side), Image.Resampling.BILINEAR)
        if self.floats:
            return pictures.normalize(pictures.to_tensor(image), MEAN, SPREAD), index % 7
        return pictures.pil_to_tensor(image), index % 7


def endless(loader: Iterable[list[Tensor]]) -> Iterator[list[Tensor]]:
    """Batches, epoch after epoch."""
    while True:
        yield from loader


@several(
    "vision",
    {
        "workers": "DataLoader(num_workers=8, persistent_workers=True) instead of num_workers=0",
        "normalise": "images are sent as uint8 and normalised on the GPU",
        "average": "the average of the weights by one torch._foreach_lerp_",
    },
    library="timm", steps=(2, 1),
)  # fmt: skip
def bird_swin_training(variant: str) -> Step:
    """A Swin-T (mixed precision, fused AdamW) learns from a DataLoader: 32 photographs (JPEG, 300 × 400) a step.

    Decoding runs in the training process (num_workers=0). Images become floats and are normalised on the host, image by
    image, and are copied as floats. An average of the weights is kept by a loop over the entries of state_dict(): some
    kernels for each.
    """
    side = 224
    small = {"embed_dim": 24, "depths": (1, 1, 1, 1), "num_heads": (1, 2, 2, 4)} if TINY else {}
    model = on_device(
        lambda: timm.create_model("swin_tiny_patch4_window7_224", num_classes=7, drop_path_rate=0.0, **small)
    ).train()
    average = copy.deepcopy(model).eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    workers = size(8, 2) if mends(variant, "workers") else 0
    photographs = Photographs(size(512, 8), 300, 400, side, floats=not mends(variant, "normalise"))
    loader = DataLoader(
        photographs, batch_size=size(32, 2), num_workers=workers, persistent_workers=workers > 0, drop_last=True
    )
    batches = endless(loader)
    mean, spread = (torch.tensor(values, device=DEVICE).view(3, 1, 1) for values in (MEAN, SPREAD))

    @torch.no_grad()
    def follow(decay: float = 0.999) -> None:
        if mends(variant, "average"):
            torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 1.0 - decay)
            return
        now = model.state_dict()
        for name, value in average.state_dict().items():
            if value.is_floating_point():
                value.copy_(value * decay + now[name] * (1.0 - decay))

    def step() -> Tensor:
        x, kinds = (part.to(DEVICE) for part in next(batches))
        if x.dtype == torch.uint8:
            x = (x.float().div(255.0) - mean) / spread
        with mixed():
            loss = functional.cross_entropy(model(x).float(), kinds)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        follow()
        return loss.detach()

    return step


@several(
    "vision",
    {
        "resize": "frames are sent as they are and made small on the GPU",
        "graph": "the model is replayed from a CUDA graph",
        "empty_cache": "without torch.cuda.empty_cache() after each frame",
        "read": "scores and kinds are read by one tolist() each",
    },
    library="timm", inference=True, steps=(2, 1),
)  # fmt: skip
def doorbell_vit(variant: str) -> Step:
    """A ViT-B/16 (bf16) tells what 4 frames of cameras (1,080 × 1,920) show, one after the other, as they come.

    Each frame becomes floats and is made small on the host. The model runs with one image, in eager mode: its kernels
    are shorter than their launches. After each frame the cache of the allocator is emptied. The ten best kinds and
    their scores are read by item().
    """
    high, wide, side = size(1080, 270), size(1920, 480), 224
    small = {"embed_dim": 32, "depth": 2, "num_heads": 2} if TINY else {}
    model = on_device(lambda: timm.create_model("vit_base_patch16_224", **small), HALF).eval()
    drawn = np.random.default_rng(0)
    frames = [np.asarray(photograph(drawn, high, wide)) for _ in range(size(4, 2))]
    near = DEVICE if mends(variant, "resize") else "cpu"
    mean, spread = (torch.tensor(values, device=near).view(3, 1, 1) for values in (MEAN, SPREAD))
    slot = torch.zeros(1, 3, side, side, device=DEVICE, dtype=HALF)
    if mends(variant, "graph"):
        with torch.no_grad():
            recognise = as_graph(lambda: model(slot))
    else:
        recognise = lambda: model(slot)  # noqa: E731

    def small_frame(frame: Tensor) -> Tensor:
        x = frame.permute(2, 0, 1)[None].float().div(255.0)
        x = functional.interpolate(x, (side, side), mode="bilinear", antialias=True, align_corners=False)
        return (x - mean) / spread

    def step() -> list[dict[int, float]]:
        told = []
        for frame in frames:
            slot.copy_(small_frame(torch.from_numpy(frame).to(near)))
            scores, kinds = recognise().float().softmax(-1)[0].topk(10)
            if mends(variant, "read"):
                told.append(dict(zip(kinds.tolist(), scores.tolist(), strict=True)))
            else:
                told.append({kinds[place].item(): scores[place].item() for place in range(10)})
            if not mends(variant, "empty_cache"):
                torch.cuda.empty_cache()
        return told

    return step


@several(
    "embedding",
    {
        "half": "the model in bfloat16 instead of fp32",
        "longest": "sentences are padded to the longest of them, not to max_length",
        "pooling": "the mean over words by a product with the mask, not by a boolean index for each sentence",
        "one_copy": "all vectors are copied to the host at once",
    },
    library="transformers", inference=True, steps=(2, 1),
)  # fmt: skip
def ticket_embeddings(variant: str) -> Step:
    """A service with BERT-base gives the vectors of 64 tickets of 18 to 112 words.

    The model is in fp32, as it was loaded. Tickets are padded to 256 words. Means over the words of a ticket are taken
    one by one, with a boolean mask as an index, which waits for the GPU each time. Vectors are copied row by row.
    """
    config = transformers.BertConfig(
        vocab_size=size(30_522, 64), hidden_size=size(768, 32), num_hidden_layers=size(12, 2),
        num_attention_heads=size(12, 2), intermediate_size=size(3072, 64),
    )  # fmt: skip
    dtype = HALF if mends(variant, "half") else torch.float32
    model = on_device(lambda: transformers.BertModel(config, add_pooling_layer=False), dtype).eval()
    drawn = torch.Generator().manual_seed(0)
    most = size(112, 12)
    lengths = torch.randint(most // 6, most, (size(64, 3),), generator=drawn).tolist()
    lengths[5 % len(lengths)] = most
    tickets = [torch.randint(5, config.vocab_size, (length,), generator=drawn) for length in lengths]

    def step() -> list[np.ndarray]:
        room = max(len(ticket) for ticket in tickets) if mends(variant, "longest") else size(256, 32)
        ids = torch.zeros(len(tickets), room, dtype=torch.long)
        for row, ticket in enumerate(tickets):
            ids[row, : len(ticket)] = ticket
        ids = ids.to(DEVICE)
        mask = (ids != 0).long()
        hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state.float()
        if mends(variant, "pooling"):
            vectors = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        else:
            vectors = torch.stack([row[here.bool()].mean(0) for row, here in zip(hidden, mask, strict=True)])
        vectors = functional.normalize(vectors, dim=-1)
        if mends(variant, "one_copy"):
            return list(vectors.cpu().numpy())
        return [vector.cpu().numpy() for vector in vectors]

    return step


@several(
    "generation",
    {
        "cache": "keys and values are kept (past_key_values): later calls get the new word alone",
        "last_scores": "logits_to_keep=1: scores for the last place only",
        "penalty": "repeated words are punished by gather and scatter for all rows, not row by row",
    },
    library="transformers", inference=True, steps=(2, 1),
)  # fmt: skip
def product_text_generation(variant: str) -> Step:
    """A Qwen3 (14 × 1,024, 151,936 words, bf16) writes 6 words to each of 8 prompts of 1,024, in a hand-written loop.

    Each word runs the model over everything so far, without a cache. Scores of all places are computed and those of the
    last are kept. The penalty on repetition goes row by row, each with unique(), which waits for the GPU.
    """
    config = transformers.Qwen3Config(
        vocab_size=size(151_936, 128), hidden_size=size(1024, 32), intermediate_size=size(3072, 64),
        num_hidden_layers=size(14, 2), num_attention_heads=size(16, 2), num_key_value_heads=size(8, 1),
        head_dim=size(128, 16), max_position_embeddings=size(4096, 64), tie_word_embeddings=True,
    )  # fmt: skip
    model = on_device(lambda: transformers.Qwen3ForCausalLM(config), HALF).eval()
    prompts, strength = tokens(config.vocab_size, size(8, 2), size(1024, 12)), 1.2
    kept_scores = 1 if mends(variant, "last_scores") else 0

    def punish(scores: Tensor, ids: Tensor) -> Tensor:
        if mends(variant, "penalty"):
            said = scores.gather(1, ids)
            return scores.scatter(1, ids, torch.where(said < 0, said * strength, said / strength))
        for row in range(len(ids)):
            words = ids[row].unique()
            said = scores[row, words]
            scores[row, words] = torch.where(said < 0, said * strength, said / strength)
        return scores

    def step() -> Tensor:
        ids, past = prompts, None
        for _ in range(size(6, 4)):
            if mends(variant, "cache"):
                asked = ids if past is None else ids[:, -1:]
                told = model(input_ids=asked, past_key_values=past, use_cache=True, logits_to_keep=kept_scores)
                past = told.past_key_values
            else:
                told = model(input_ids=ids, use_cache=False, logits_to_keep=kept_scores)
            scores = punish(told.logits[:, -1].float(), ids)
            ids = torch.cat([ids, scores.argmax(-1, keepdim=True)], 1)
        return ids

    return step


class Patches(nn.Module):
    """A layer of a transformer for diffusion (W. Peebles, S. Xie, 2023), which looks at a text, too."""

    def __init__(self, width: int, heads: int, *, fused: bool) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        self.norms = nn.ModuleList(nn.LayerNorm(width, elementwise_affine=False) for _ in range(3))
        self.asked, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.query, self.told, self.merged = (
            nn.Linear(width, width),
            nn.Linear(width, 2 * width),
            nn.Linear(width, width),
        )
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))
        self.shifts = nn.Linear(width, 6 * width)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Heads [rows, heads, places, part]."""
        if self.fused:
            return functional.scaled_dot_product_attention(q, k, v)
        scores = (q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5
        return scores.softmax(dim=-1) @ v

    def forward(self, x: Tensor, text: Tensor, time: Tensor) -> Tensor:
        """Patches [rows, places, width], words [rows, words, width], time [rows, width]."""
        shift, scale, gate, shift_feed, scale_feed, gate_feed = self.shifts(time)[:, None].chunk(6, -1)
        y = self.norms[0](x) * (1 + scale) + shift
        q, k, v = self.asked(y).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + gate * self.out(self.attend(q, k, v).transpose(1, 2).flatten(2))
        q = self.query(self.norms[1](x)).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.told(text).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.merged(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + gate_feed * self.feed(self.norms[2](x) * (1 + scale_feed) + shift_feed)


class Denoiser(nn.Module):
    """Tells the noise in a latent picture."""

    def __init__(self, width: int, heads: int, depth: int, side: int, words: int, *, fused: bool) -> None:
        super().__init__()
        self.side, self.width = side, width
        self.names, self.text = nn.Conv2d(4, width, 2, 2), nn.Linear(words, width)
        self.places = nn.Parameter(0.02 * torch.randn(1, (side // 2) ** 2, width))
        self.time = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.blocks = nn.ModuleList(Patches(width, heads, fused=fused) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 16)

    def forward(self, x: Tensor, time: Tensor, text: Tensor) -> Tensor:
        """Latents [rows, 4, side, side], times [rows], words [rows, words, …] → noise like the latents."""
        pace = torch.exp(torch.arange(self.width // 2, device=x.device) * (-9.2 / (self.width // 2)))
        angles = time[:, None].float() * pace
        now = self.time(torch.cat([angles.cos(), angles.sin()], -1).to(x.dtype))
        text, y = self.text(text), self.names(x).flatten(2).mT + self.places
        for block in self.blocks:
            y = block(y, text, now)
        return functional.pixel_shuffle(self.head(self.norm(y)).mT.unflatten(2, (self.side // 2, self.side // 2)), 2)


@several(
    "diffusion",
    {
        "attention": "scaled_dot_product_attention instead of softmax between two products",
        "text_once": "the prompt is encoded before the loop, not in each step of it",
        "schedule": "coefficients are read once by tolist() before the loop, not by item() in each step",
        "guidance": "with and without the prompt in one call of two rows",
    },
    library="transformers", inference=True, steps=(2, 1),
)  # fmt: skip
def poster_diffusion(variant: str) -> Step:
    """A transformer (8 × 1,024, 4,096 patches, bf16) takes the noise out of one picture in 6 steps, with guidance.

    Attention is a product, a softmax and a product, so that scores are written to memory. The encoder of the prompt
    (T5, 12 × 2,048, 256 words) runs in each step, though its result is the same. Coefficients of the schedule are on
    the GPU and read by item() in each step. The picture with the prompt and that without it are two calls.
    """
    width, side, room = size(1024, 32), size(128, 8), size(256, 6)
    config = transformers.T5Config(
        vocab_size=size(32_128, 64), d_model=size(2048, 32), d_kv=size(64, 8), d_ff=size(5120, 64),
        num_layers=size(12, 2), num_heads=size(32, 4), feed_forward_proj="gated-gelu", tie_word_embeddings=False,
    )  # fmt: skip
    encoder = on_device(lambda: transformers.T5EncoderModel(config), HALF).eval()
    fused = mends(variant, "attention")
    model = on_device(
        lambda: Denoiser(width, size(16, 2), size(8, 2), side, config.d_model, fused=fused), HALF, 1
    ).eval()  # fmt: skip
    ids = tokens(config.vocab_size, 2, room)
    noise = torch.randn(1, 4, side, side, device=DEVICE, dtype=HALF)
    kept = torch.cos(torch.linspace(1.4, 0.05, size(6, 3) + 1, device=DEVICE)) ** 2
    times = list(range(950, 0, -950 // size(6, 3)))[: size(6, 3)]

    def told(x: Tensor, time: int, text: Tensor) -> tuple[Tensor, Tensor]:
        when = torch.full((2,), time, device=DEVICE)
        if mends(variant, "guidance"):
            with_text, without = model(torch.cat([x, x]), when, text).chunk(2)
            return with_text, without
        return model(x, when[:1], text[:1]), model(x, when[:1], text[1:])

    def step() -> Tensor:
        x = noise
        text = encoder(input_ids=ids).last_hidden_state if mends(variant, "text_once") else None
        known = kept.tolist() if mends(variant, "schedule") else None
        for place, time in enumerate(times):
            words = encoder(input_ids=ids).last_hidden_state if text is None else text
            with_text, without = told(x, time, words)
            guess = without + 5.0 * (with_text - without)
            now, later = (kept[place].item(), kept[place + 1].item()) if known is None else known[place : place + 2]
            clean = ((x - (1 - now) ** 0.5 * guess) / now**0.5).clamp(-4, 4)
            x = later**0.5 * clean + (1 - later) ** 0.5 * guess
        return x

    return step


@several(
    "speech",
    {
        "features": "the feature extractor runs on the GPU (device='cuda')",
        "attention": "attn_implementation='sdpa' instead of 'eager'",
        "batch": "all clips in one call of the model",
        "read": "chances of the languages are read by one tolist()",
    },
    library="transformers", inference=True, steps=(2, 1),
)  # fmt: skip
def call_language_whisper(variant: str) -> Step:
    """A Whisper of the size large-v3-turbo (32 layers of 1,280 listen, 4 write; bf16) tells the languages of 6 calls.

    Spectra of the 30-second clips are made on the host. Attention is "eager", which writes all scores to memory. Clips
    go through the model one by one. The chance of each of 100 languages is read by item(), for each clip.
    """
    attention = "sdpa" if mends(variant, "attention") else "eager"
    config = transformers.WhisperConfig(
        vocab_size=size(51_866, 256), num_mel_bins=128, d_model=size(1280, 32), encoder_layers=size(32, 2),
        decoder_layers=size(4, 1), encoder_attention_heads=size(20, 2), decoder_attention_heads=size(20, 2),
        encoder_ffn_dim=size(5120, 64), decoder_ffn_dim=size(5120, 64), attn_implementation=attention,
        pad_token_id=0, bos_token_id=0, eos_token_id=0, decoder_start_token_id=1, use_cache=False,
    )  # fmt: skip
    model = on_device(lambda: transformers.WhisperForConditionalGeneration(config), HALF).eval()
    extractor = transformers.WhisperFeatureExtractor(feature_size=128)
    drawn = np.random.default_rng(0)
    clips = [0.1 * drawn.standard_normal(480_000).astype(np.float32) for _ in range(size(6, 2))]
    where = DEVICE.type if mends(variant, "features") else "cpu"
    first, languages = size(50_259, 100), size(100, 9)
    names = [f"language {index}" for index in range(languages)]

    def chances(features: Tensor) -> Tensor:
        start = torch.full((len(features), 1), 1, device=DEVICE)
        scores = model(input_features=features, decoder_input_ids=start).logits[:, -1]
        return scores[:, first : first + languages].float().softmax(-1)

    def step() -> list[dict[str, float]]:
        features = extractor(clips, sampling_rate=16_000, return_tensors="pt", device=where).input_features
        features = features.to(DEVICE, HALF)
        if mends(variant, "batch"):
            told = chances(features)
        else:
            told = torch.cat([chances(clip) for clip in features.split(1)])
        if mends(variant, "read"):
            return [dict(zip(names, row, strict=True)) for row in told.tolist()]
        return [{name: row[index].item() for index, name in enumerate(names)} for row in told]

    return step


@several(
    "segmentation",
    {
        "classes": "the best class of each pixel is found on the GPU, and classes are copied, not scores",
        "areas": "shared areas of all classes by one bincount, not by masks for each class",
        "channels_last": "model and frames are channels_last",
        "auxiliary": "without the auxiliary head, whose result nothing reads",
    },
    library="torchvision", inference=True, steps=(2, 1),
)  # fmt: skip
def street_segmentation(variant: str) -> Step:
    """A DeepLabV3 (ResNet-101, 19 classes, bf16) is evaluated on 2 street scenes of 512 × 1,024.

    Scores of all classes are copied to the host at full size, and the best class is found there. Intersection and union
    are found class by class with masks of numpy. The model is in the default memory format. Its auxiliary head, which
    only training needs, runs, too.
    """
    high, wide, kinds, count = size(512, 64), size(1024, 96), 19, 2
    build = small_deeplab if TINY else torchvision.models.segmentation.deeplabv3_resnet101
    model = on_device(
        lambda: build(weights=None, weights_backbone=None, num_classes=kinds, aux_loss=True), HALF
    ).eval()  # fmt: skip
    if mends(variant, "auxiliary"):
        model.aux_classifier = None
    x = torch.randn(count, 3, high, wide, device=DEVICE, dtype=HALF)
    if mends(variant, "channels_last"):
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    truth = np.random.default_rng(0).integers(0, kinds, (count, high, wide), dtype=np.uint8)

    def step() -> list[float]:
        scores = model(x)["out"].float()
        found = (
            (scores.argmax(1).cpu() if mends(variant, "classes") else scores.cpu().argmax(1)).numpy().astype(np.uint8)
        )
        if mends(variant, "areas"):
            table = np.bincount((truth.astype(np.int64) * kinds + found).ravel(), minlength=kinds**2).reshape(
                kinds, kinds
            )
            shared = table.diagonal()
            both = table.sum(0) + table.sum(1) - shared
            return (shared / both.clip(1)).tolist()
        ratios = []
        for kind in range(kinds):
            here, wanted = found == kind, truth == kind
            ratios.append(float((here & wanted).sum() / max((here | wanted).sum(), 1)))
        return ratios

    return step


def small_deeplab(**how: object) -> nn.Module:
    """For trying the program without a GPU."""
    return torchvision.models.segmentation.deeplabv3_mobilenet_v3_large(**how)


class Experts(nn.Module):
    """A mixture of experts, of which each word has two."""

    def __init__(self, width: int, wide: int, count: int, *, sorted_words: bool, loads_by_item: bool) -> None:
        super().__init__()
        self.count, self.sorted_words, self.loads_by_item, self.load = count, sorted_words, loads_by_item, None
        self.router = nn.Linear(width, count, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, wide, bias=False), nn.GELU(), nn.Linear(wide, width, bias=False))
            for _ in range(count)
        )

    def forward(self, places: Tensor) -> Tensor:
        """Words [rows, places, width]."""
        x = places.flatten(0, 1)
        weights, chosen = self.router(x).float().softmax(-1).topk(2)
        weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype)
        if self.loads_by_item:
            self.load = [(chosen == index).float().mean().item() for index in range(self.count)]
        else:
            self.load = (chosen[..., None] == torch.arange(self.count, device=x.device)).float().mean((0, 1))
        out = torch.zeros_like(x)
        if self.sorted_words:
            kinds, order = chosen.flatten().sort(stable=True)
            counts = (kinds[:, None] == torch.arange(self.count, device=x.device)).sum(0).tolist()
            parts = x[order // 2].split(counts)
            told = torch.cat([expert(part) for expert, part in zip(self.experts, parts, strict=True)])
            out.index_add_(0, order // 2, (told * weights.flatten()[order, None]).to(out.dtype))
            return out.view_as(places)
        for index, expert in enumerate(self.experts):
            rows, slots = torch.where(chosen == index)
            told = expert(x[rows]) * weights[rows, slots, None]
            out.index_add_(0, rows, told.to(out.dtype))
        return out.view_as(places)


class Lion(torch.optim.Optimizer):
    """Lion (X. Chen et al., 2023), as it is usually copied, or with one call for all weights."""

    def __init__(self, weights: Iterable[nn.Parameter], rate: float, *, together: bool) -> None:
        super().__init__(weights, {"lr": rate, "decay": 0.1})
        self.together = together

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """One step."""
        for group in self.param_groups:
            rate, shrink = group["lr"], 1.0 - group["lr"] * group["decay"]
            weights = [weight for weight in group["params"] if weight.grad is not None]
            for weight in weights:
                if not self.state[weight]:
                    self.state[weight]["mean"] = torch.zeros_like(weight)
            if self.together:
                slopes, means = [weight.grad for weight in weights], [self.state[weight]["mean"] for weight in weights]
                torch._foreach_mul_(weights, shrink)
                torch._foreach_add_(weights, torch._foreach_sign(torch._foreach_lerp(means, slopes, 0.1)), alpha=-rate)
                torch._foreach_lerp_(means, slopes, 0.01)
                continue
            for weight in weights:
                slope, mean = weight.grad, self.state[weight]["mean"]
                weight.mul_(shrink)
                weight.add_(mean.clone().mul_(0.9).add(slope, alpha=0.1).sign_(), alpha=-rate)
                mean.mul_(0.99).add_(slope, alpha=0.01)


@several(
    "experts",
    {
        "sorted_words": "words are sorted by expert and split, with one wait for each layer, not one for each expert",
        "optimizer": "Lion with torch._foreach_… instead of a loop over all weights",
        "loads": "loads of the experts stay on the GPU instead of an item() for each",
    },
    steps=(2, 1),
)  # fmt: skip
def news_expert_training(variant: str) -> Step:
    """A language model (6 × 768, 32 experts of 1,024 in each layer, top 2) learns 8 texts of 512 words with Lion.

    Mixed precision. Words of an expert are found by torch.where, expert by expert, which waits for the GPU and takes a
    gather and a scatter each. Lion is the usual hand-written one: some kernels for each of 440 weights. The load of
    each expert is logged by item().
    """
    width, words, experts, rows, room = size(768, 32), size(32_000, 64), size(32, 4), size(8, 2), size(512, 12)
    how = {"sorted_words": mends(variant, "sorted_words"), "loads_by_item": not mends(variant, "loads")}

    def layer() -> Block:
        block = Block(width, size(12, 2), causal=True)
        block.feed = Experts(width, size(1024, 48), experts, **how)
        return block

    model = on_device(
        lambda: nn.ModuleDict(
            {
                "names": nn.Embedding(words, width),
                "layers": nn.Sequential(*(layer() for _ in range(size(6, 2)))),
                "norm": nn.LayerNorm(width),
                "head": nn.Linear(width, words, bias=False),
            }
        )
    ).train()
    optimizer = Lion(model.parameters(), 1e-5, together=mends(variant, "optimizer"))
    ids = tokens(words, rows, room + 1)
    log: list[object] = []

    def step() -> Tensor:
        with mixed():
            told = model["head"](model["norm"](model["layers"](model["names"](ids[:, :-1]))))
            loss = functional.cross_entropy(told.flatten(0, 1).float(), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        log[:] = itertools.chain(log[-60:], (part.feed.load for part in model["layers"]))
        return loss.detach()

    return step
