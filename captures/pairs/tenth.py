"""The tenth set: what reviews of real scripts find; split at random from the eleventh, and read first."""

from __future__ import annotations

import itertools

import torch
import torch_geometric.nn as geometric
import transformers
from torch import Tensor, nn
from torch.nn import functional

from pairs.decoding import rewind, static_cache
from pairs.parts import DEVICE, HALF, adamw, as_graph, on_device, size, tokens, training
from pairs.registry import AFTER, BEFORE, TENTH, Step, pair


@pair(
    "host-sync", "embedding", "one mean over all texts, weighted by the attention mask", TENTH,
    library="transformers", accept=("launch-overhead",), inference=True, steps=(2, 1),
)  # fmt: skip
def pooled_text_by_text(variant: str) -> Step:
    """An XLM-R (6 × 768) embeds 128 texts of up to 128 tokens; the mean over a text's own tokens is taken in a loop."""
    config = transformers.XLMRobertaConfig(
        vocab_size=size(50000, 64), hidden_size=size(768, 32), num_hidden_layers=size(6, 1),
        num_attention_heads=size(12, 2), intermediate_size=size(3072, 64),
    )  # fmt: skip
    model = on_device(lambda: transformers.XLMRobertaModel(config, add_pooling_layer=False), HALF).eval()
    count, most = size(128, 2), size(128, 8)
    ids = tokens(config.vocab_size - 4, count, most) + 4
    mask = (torch.arange(most, device=DEVICE) < torch.randint(most // 2, most, (count, 1), device=DEVICE)).long()

    def step() -> Tensor:
        hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
        if variant == BEFORE:
            means = []
            for text, present in zip(hidden, mask, strict=True):
                length = int(present.sum())
                means.append(text[:length].mean(0))
            pooled = torch.stack(means)
        else:
            weights = mask[..., None].to(hidden.dtype)
            pooled = (hidden * weights).sum(1) / weights.sum(1)
        return functional.normalize(pooled.float(), dim=-1)

    return step


@pair(
    "unfused-optimizer", "fine-tuning", "AdamW(fused=True)", TENTH,
    library="transformers", accept=("launch-overhead",), steps=(2, 1),
)  # fmt: skip
def optimizer_not_fused(variant: str) -> Step:
    """A Qwen2 (4 × 3,072) is fine-tuned on 2 × 256 tokens in mixed precision; AdamW as torch makes it by default."""
    config = transformers.Qwen2Config(
        vocab_size=size(32000, 64), hidden_size=size(3072, 32), intermediate_size=size(12_288, 64),
        num_hidden_layers=size(4, 1), num_attention_heads=size(24, 2), num_key_value_heads=2, use_cache=False,
        tie_word_embeddings=True,
    )  # fmt: skip
    model = on_device(lambda: transformers.Qwen2ForCausalLM(config)).train()
    ids = tokens(config.vocab_size, 2, size(256, 8))
    how = {"weight_decay": 0.01} if variant == BEFORE else {"weight_decay": 0.01, "fused": True}
    return training(lambda: model(input_ids=ids, labels=ids).loss, adamw(model, **how))


@pair(
    "host-sync", "tagging", "scores of all spans are copied once instead of .item() for each", TENTH,
    library="transformers", accept=("host-stall",), inference=True, steps=(2, 1),
)  # fmt: skip
def spans_decoded_one_by_one(variant: str) -> Step:
    """A DeBERTa-like tagger finds spans of 25 kinds in 16 texts of 256 words; each span's score is taken by .item()."""
    config = transformers.ElectraConfig(
        vocab_size=size(30522, 64), embedding_size=size(768, 32), hidden_size=size(768, 32),
        num_hidden_layers=size(6, 1), num_attention_heads=size(12, 2), intermediate_size=size(3072, 64),
    )  # fmt: skip
    model = on_device(lambda: transformers.ElectraModel(config), HALF).eval()
    width, kinds, widest = config.hidden_size, size(25, 3), size(12, 2)
    head = on_device(lambda: nn.Linear(width, kinds * widest), HALF).eval()
    ids = tokens(config.vocab_size, size(16, 2), size(256, 8))

    def step() -> list[tuple[int, int, int, int, float]]:
        scores = head(model(input_ids=ids).last_hidden_state).unflatten(-1, (widest, kinds)).float().sigmoid()
        least = scores.flatten().kthvalue(scores.numel() - size(400, 5)).values
        text, begin, length, kind = torch.where(scores > least)
        rows = list(zip(text.tolist(), begin.tolist(), length.tolist(), kind.tolist(), strict=True))
        if variant == BEFORE:
            found = [(*row, scores[row].item()) for row in rows]
        else:
            values = scores[text, begin, length, kind].tolist()
            found = [(*row, value) for row, value in zip(rows, values, strict=True)]
        return sorted(found, key=lambda row: -row[-1])

    return step


class Crossed(nn.Module):
    """Wide columns and a deep network over embedded features (arXiv:1606.07792)."""

    def __init__(self, features: int, words: int, width: int) -> None:
        super().__init__()
        self.words = words
        self.table, self.wide = nn.Embedding(features * words, width), nn.Embedding(features * words, 1)
        self.register_buffer("offsets", torch.arange(features) * words, persistent=False)
        sizes = (features * width, 1024, 512, 256)
        layers = [m for a, b in itertools.pairwise(sizes) for m in (nn.Linear(a, b), nn.ReLU())]
        self.deep = nn.Sequential(*layers, nn.Linear(sizes[-1], 1))

    def forward(self, ids: Tensor) -> Tensor:
        """The score of each row [rows]."""
        ids = ids + self.offsets
        return (self.deep(self.table(ids).flatten(1)) + self.wide(ids).sum(1)).squeeze(1)


@pair(
    "host-stall", "recommendation", "the area under the curve is computed once an epoch, not in each step", TENTH,
    accept=("blocking-copy", "host-sync"), steps=(2, 1),
)  # fmt: skip
def areas_in_each_step(variant: str) -> Step:
    """A wide-and-deep model learns from 16,384 clicks; scikit-learn computes the training AUC after each step."""
    from sklearn.metrics import log_loss, roc_auc_score

    words = size(20_000, 10)
    model = on_device(lambda: Crossed(26, words, size(16, 4))).train()
    ids = tokens(words, size(16_384, 32), 26)
    clicks = (torch.arange(len(ids), device=DEVICE) % 4 == 0).float()
    optimizer = adamw(model)
    history: list[float] = []

    def step() -> None:
        with torch.autocast(DEVICE.type, torch.bfloat16):
            scores = model(ids)
        functional.binary_cross_entropy_with_logits(scores.float(), clicks).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if variant == BEFORE:
            truth, chances = clicks.cpu().numpy(), scores.detach().float().sigmoid().cpu().numpy()
            history.append(float(roc_auc_score(truth, chances)) + float(log_loss(truth, chances)))

    return step


class Molecules(nn.Module):
    """Graph isomorphism layers, and a number for each graph."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.atoms = nn.Embedding(20, width)
        self.layers = nn.ModuleList(
            geometric.GINConv(nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)))
            for _ in range(layers)
        )
        self.out = nn.Linear(width, 1)

    def forward(self, atoms: Tensor, edges: Tensor, graph: Tensor, graphs: int) -> Tensor:
        """The property of each graph [graphs, 1]."""
        x = self.atoms(atoms)
        for layer in self.layers:
            x = layer(x, edges).relu()
        return self.out(geometric.global_mean_pool(x, graph, graphs))


@pair(
    "launch-overhead", "graph", "the molecules go in one batch, as PyG's DataLoader makes it", TENTH,
    library="torch-geometric", accept=("small-kernels",), inference=True, steps=(1, 1),
)  # fmt: skip
def molecules_one_by_one(variant: str) -> Step:
    """A GIN (4 × 256) predicts a property of 32 molecules of 24 atoms; a loop calls it for each."""
    count, atoms = size(32, 2), 24
    model = on_device(lambda: Molecules(size(256, 16), size(4, 1))).eval()
    kinds = tokens(20, count, atoms)
    edges = torch.randint(0, atoms, (count, 2, 52), device=DEVICE)
    alone = torch.zeros(atoms, dtype=torch.long, device=DEVICE)
    joined = (edges + atoms * torch.arange(count, device=DEVICE)[:, None, None]).transpose(0, 1).flatten(1).contiguous()
    graph = torch.arange(count, device=DEVICE).repeat_interleave(atoms)

    def step() -> Tensor:
        if variant == BEFORE:
            found = [model(kind, edge, alone, 1) for kind, edge in zip(kinds, edges, strict=True)]
            return torch.cat(found)
        return model(kinds.flatten(), joined, graph, count)

    return step


@pair(
    "host-sync", "speech synthesis", "one gather for all texts by their summed durations", TENTH,
    accept=("launch-overhead",), inference=True, steps=(2, 1),
)  # fmt: skip
def lengths_set_text_by_text(variant: str) -> Step:
    """A FastSpeech (4 + 4 × 384) speaks 48 texts of 96 sounds; each text's sounds are repeated and padded in a loop."""
    width, texts, sounds, lasting = size(384, 32), size(48, 2), size(96, 6), 6

    def stack() -> nn.Module:
        layer = nn.TransformerEncoderLayer(width, size(6, 2), 4 * width, 0.0, batch_first=True, norm_first=True)
        return nn.TransformerEncoder(layer, size(4, 1), enable_nested_tensor=False)

    encoder, decoder = on_device(stack, HALF).eval(), on_device(stack, HALF, 1).eval()
    out = on_device(lambda: nn.Linear(width, 80), HALF).eval()
    x = torch.randn(texts, sounds, width, device=DEVICE, dtype=HALF)
    moved = torch.randint(-3, 4, (texts, sounds // 2), device=DEVICE)
    durations = lasting + torch.stack([moved, -moved], -1).flatten(1)
    frames = torch.arange(lasting * sounds, device=DEVICE).expand(texts, -1).contiguous()

    def step() -> Tensor:
        hidden = encoder(x)
        if variant == BEFORE:
            rows = [torch.repeat_interleave(text, lasts, dim=0) for text, lasts in zip(hidden, durations, strict=True)]
            longer = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        else:
            place = torch.searchsorted(durations.cumsum(1), frames, right=True).clamp(max=sounds - 1)
            longer = hidden.gather(1, place[..., None].expand(-1, -1, width))
        return out(decoder(longer))

    return step


class Sliced(nn.Module):
    """A block whose attention goes slice by slice over images and heads, or by the fused function."""

    def __init__(self, width: int, heads: int, slices: int) -> None:
        super().__init__()
        self.heads, self.slices = heads, slices
        self.norm, self.norm_feed = nn.LayerNorm(width), nn.LayerNorm(width)
        self.joined, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """What is added to all positions [images, positions, width]."""
        images, positions, width = x.shape
        parts = self.joined(self.norm(x)).view(images, positions, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = parts.unbind()
        if self.slices:
            q, k, v = (part.reshape(images * self.heads, positions, -1) for part in (q, k, v))
            seen, count = torch.empty_like(q), len(q) // self.slices
            for begin in range(0, len(q), count):
                part = slice(begin, begin + count)
                scores = torch.bmm(q[part], k[part].transpose(1, 2)) * q.shape[-1] ** -0.5
                seen[part] = torch.bmm(scores.softmax(-1), v[part])
            seen = seen.view(images, self.heads, positions, -1)
        else:
            seen = functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(seen.transpose(1, 2).reshape(images, positions, width))
        return x + self.feed(self.norm_feed(x))


@pair(
    "unfused-attention", "diffusion", "without enable_attention_slicing(): fused attention needs no slices", TENTH,
    inference=True, steps=(2, 1),
)  # fmt: skip
def attention_in_slices(variant: str) -> Step:
    """Six blocks (640, 10 heads) of a latent denoiser look at 8 images of 4,096 positions; attention goes in slices."""
    width, heads = size(640, 32), size(10, 2)
    slices = size(16, 2) if variant == BEFORE else 0
    model = on_device(lambda: nn.Sequential(*(Sliced(width, heads, slices) for _ in range(size(6, 1)))), HALF).eval()
    x = torch.randn(size(8, 2), size(4096, 16), width, device=DEVICE, dtype=HALF)
    return lambda: model(x)


@pair(
    "launch-overhead", "prefill", "merge_and_unload() before the model is used", TENTH,
    library="transformers", accept=("small-kernels",), inference=True, steps=(2, 1),
)  # fmt: skip
def adapters_not_merged(variant: str) -> Step:
    """A Llama (12 × 1,024) with LoRA of rank 16 in all layers scores 4 texts of 128 tokens; the adapters stay apart."""
    import peft

    config = transformers.LlamaConfig(
        vocab_size=size(32000, 64), hidden_size=size(1024, 32), intermediate_size=size(2816, 64),
        num_hidden_layers=size(12, 1), num_attention_heads=size(16, 2), use_cache=False,
    )  # fmt: skip

    def build() -> nn.Module:
        how = peft.LoraConfig(r=size(16, 2), target_modules="all-linear", lora_dropout=0.05)
        return peft.get_peft_model(transformers.LlamaForCausalLM(config), how)

    model = on_device(build, HALF).eval()
    if variant == AFTER:
        model = model.merge_and_unload().eval()
    ids = tokens(config.vocab_size, size(4, 1), size(128, 8))
    return lambda: model(input_ids=ids, logits_to_keep=1).logits


@pair(
    "scattered-access", "decoding", "the nucleus is sought among the 64 likeliest words, by topk", TENTH,
    library="transformers", accept=("unfused-chain", "memory-bandwidth"), inference=True, steps=(2, 1),
)  # fmt: skip
def nucleus_of_all_words(variant: str) -> Step:
    """A Qwen2 (4 × 2,048, 151,936 words) adds a token to 128 texts from a CUDA graph; all words are sorted (top-p)."""
    config = transformers.Qwen2Config(
        vocab_size=size(151_936, 256), hidden_size=size(2048, 32), intermediate_size=size(6144, 64),
        num_hidden_layers=size(4, 1), num_attention_heads=size(16, 2), num_key_value_heads=2,
    )  # fmt: skip
    model = on_device(lambda: transformers.Qwen2ForCausalLM(config), HALF).eval()
    batch, prompt = size(128, 2), size(512, 8)
    cache = static_cache(config, batch, prompt + 8, 2, config.hidden_size // config.num_attention_heads)
    rewind(cache, prompt)
    ids = tokens(config.vocab_size, batch, 1)
    logits = as_graph(lambda: model(input_ids=ids, past_key_values=cache).logits)

    def step() -> None:
        rewind(cache, prompt)
        scores = logits()[:, -1].float() / 0.8
        if variant == BEFORE:
            ordered, words = scores.sort(-1, descending=True)
        else:
            ordered, words = scores.topk(size(64, 8), -1)
        chances = ordered.softmax(-1)
        chances = chances.masked_fill(chances.cumsum(-1) - chances > 0.9, 0.0)
        ids.copy_(words.gather(-1, torch.multinomial(chances, 1)))

    return step
