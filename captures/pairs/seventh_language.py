"""The seventh set: texts, as scripts that work and were never looked at for speed."""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch import Tensor, nn
from torch.nn import functional

from pairs.decoding import rewind, static_cache
from pairs.parts import CUDA, DEVICE, HALF, TINY, adamw, as_graph, compiled, on_device, size, tokens, training
from pairs.registry import AFTER, BEFORE, SEVENTH, Step, healthy, pair


def word_tokenizer(count: int) -> Any:
    """A tokenizer of words that are numbers."""
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *map(str, range(count))]
    tokenizer = Tokenizer(WordLevel({word: index for index, word in enumerate(names)}, "[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )


def written(count: int, words: int) -> list[str]:
    """Texts of so many words."""
    return [" ".join(str((index * 7 + word) % 200) for word in range(words)) for index in range(count)]


@pair(
    "precision", "retrieval", "the model in bfloat16, which is not the default", SEVENTH,
    library="sentence-transformers", inference=True, steps=(1, 1),
)  # fmt: skip
def reranker_as_loaded(variant: str) -> Step:
    """A cross-encoder (BERT, 12 × 768) ranks 256 passages of 250 words in batches of 64, in fp32 as it is loaded."""
    from sentence_transformers import CrossEncoder

    config = transformers.BertConfig(
        vocab_size=204, hidden_size=size(768, 32), num_hidden_layers=size(12, 1), num_attention_heads=size(12, 2),
        intermediate_size=size(3072, 64), num_labels=1,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        transformers.BertForSequenceClassification(config).save_pretrained(folder)
        word_tokenizer(200).save_pretrained(folder)
        model = CrossEncoder(folder, device=str(DEVICE), max_length=size(256, 16))
    if variant == AFTER:
        model.model.to(HALF)
    question = "1 2 3"
    pairs = [(question, text) for text in written(size(256, 4), size(250, 8))]
    return lambda: model.predict(pairs, batch_size=size(64, 2), show_progress_bar=False, convert_to_tensor=True)


@pair(
    "unfused-optimizer", "training", "torch.optim.Adafactor(foreach=True) instead of that of transformers", SEVENTH,
    library="transformers", accept=("launch-overhead",), steps=(2, 1),
)  # fmt: skip
def adafactor_by_tensor(variant: str) -> Step:
    """A T5 of 6 + 6 layers of 512 learns from 16 texts of 256 tokens; transformers' Adafactor goes by tensor."""
    config = transformers.T5Config(
        vocab_size=size(32128, 64), d_model=size(512, 32), d_ff=size(2048, 48), num_layers=size(6, 1),
        num_heads=size(8, 2), dropout_rate=0.0, decoder_start_token_id=0,
    )  # fmt: skip
    model = on_device(lambda: transformers.T5ForConditionalGeneration(config)).train()
    if variant == AFTER:
        optimizer: torch.optim.Optimizer = torch.optim.Adafactor(model.parameters(), lr=1e-3, foreach=True)
    else:
        from transformers.optimization import Adafactor

        optimizer = Adafactor(model.parameters(), lr=1e-3, relative_step=False, scale_parameter=False)
    ids = tokens(config.vocab_size, size(16, 2), size(256, 8))
    labels = tokens(config.vocab_size, size(16, 2), size(64, 4))
    return training(lambda: model(input_ids=ids, labels=labels).loss, optimizer)


@pair(
    "host-stall", "decoding", "the nucleus is found and sampled on the GPU instead of in NumPy", SEVENTH,
    library="transformers", accept=("blocking-copy", "host-sync"), inference=True, steps=(2, 1),
)  # fmt: skip
def sampled_in_numpy(variant: str) -> Step:
    """An OPT of 6 × 1,024 adds two tokens to 16 prompts of 256; NumPy samples them from the scores (top-p)."""
    config = transformers.OPTConfig(
        vocab_size=size(50272, 64), hidden_size=size(1024, 32), ffn_dim=size(4096, 64), num_hidden_layers=size(6, 1),
        num_attention_heads=size(16, 2), word_embed_proj_dim=size(1024, 32), dropout=0.0,
    )  # fmt: skip
    model = on_device(lambda: transformers.OPTForCausalLM(config), HALF).eval()
    prompt = tokens(config.vocab_size, size(16, 2), size(256, 4))
    random = np.random.default_rng(0)

    def on_host(scores: Tensor) -> Tensor:
        chances = scores.float().softmax(-1).cpu().numpy()
        chosen = []
        for row in chances:
            order = np.argsort(-row)
            kept = np.searchsorted(np.cumsum(row[order]), 0.9) + 1
            weights = row[order[:kept]].astype(np.float64)
            chosen.append(random.choice(order[:kept], p=weights / weights.sum()))
        return torch.tensor(chosen, device=DEVICE)[:, None]

    def on_gpu(scores: Tensor) -> Tensor:
        chances, order = scores.float().softmax(-1).sort(-1, descending=True)
        chances[chances.cumsum(-1) - chances > 0.9] = 0
        return order.gather(-1, torch.multinomial(chances, 1))

    sample = on_gpu if variant == AFTER else on_host

    def step() -> Tensor:
        ids, cache = prompt, None
        for _ in range(2):
            said = model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
            ids, cache = sample(said.logits[:, -1]), said.past_key_values
        return ids

    return step


class Shared(nn.Module):
    """Attention of one new token over keys that several heads share."""

    def __init__(self, width: int, heads: int, groups: int, *, repeats: bool) -> None:
        super().__init__()
        self.heads, self.groups, self.repeats = heads, groups, repeats
        self.norm = nn.LayerNorm(width)
        self.query, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.feed = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """X [batch, 1, width]; keys and values [batch, groups, length, width / heads]."""
        q = self.query(self.norm(x)).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        if self.repeats:
            shape = keys.shape
            more = self.heads // self.groups
            keys, values = (
                t[:, :, None].expand(shape[0], shape[1], more, *shape[2:]).reshape(shape[0], self.heads, *shape[2:])
                for t in (keys, values)
            )
        y = functional.scaled_dot_product_attention(q, keys, values, enable_gqa=not self.repeats)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.feed(x)


@pair(
    "unfused-chain", "decoding", "enable_gqa=True instead of keys and values that are repeated for each head", SEVENTH,
    accept=("growing-cache", "scattered-access"), inference=True, steps=(4, 2),
)  # fmt: skip
def keys_repeated_for_heads(variant: str) -> Step:
    """Four layers of 4,096 decode a token of 24 sequences after 4,096; eight groups of keys are copied for 32 heads."""
    width, heads, groups = size(4096, 32), size(32, 4), size(8, 2)
    count, length = size(24, 2), size(4096, 8)
    model = on_device(
        lambda: nn.ModuleList([Shared(width, heads, groups, repeats=variant == BEFORE) for _ in range(size(4, 1))]),
        HALF,
    ).eval()
    kept = [torch.randn(2, count, groups, length, width // heads, device=DEVICE, dtype=HALF).unbind() for _ in model]
    x = torch.randn(count, 1, width, device=DEVICE, dtype=HALF)

    def step() -> Tensor:
        y = x
        for layer, (keys, values) in zip(model, kept, strict=True):
            y = layer(y, keys, values)
        return y

    return step


@pair(
    "host-stall", "training", "texts are tokenized before the training begins", SEVENTH,
    library="transformers", steps=(3, 2),
)  # fmt: skip
def texts_tokenized_in_the_loop(variant: str) -> Step:
    """A RoBERTa of 4 × 512 classifies 64 documents of 1,500 words, tokenized whole in each step and cut to 256."""
    config = transformers.RobertaConfig(
        vocab_size=204, hidden_size=size(512, 32), num_hidden_layers=size(4, 1), num_attention_heads=size(8, 2),
        intermediate_size=size(2048, 48), num_labels=4, pad_token_id=0, max_position_embeddings=512,
    )  # fmt: skip
    model = on_device(lambda: transformers.RobertaForSequenceClassification(config)).train()
    tokenizer, texts = word_tokenizer(200), written(size(64, 2), size(1500, 20))
    labels = tokens(4, len(texts))

    def tokenized() -> Any:
        how = {"truncation": True, "max_length": size(256, 16), "padding": "longest", "return_tensors": "pt"}
        return tokenizer(texts, **how)["input_ids"]

    ready = tokenized().to(DEVICE)

    def loss() -> Tensor:
        ids = ready if variant == AFTER else tokenized().to(DEVICE)
        return model(input_ids=ids, labels=labels).loss

    return training(loss, adamw(model))


class EightBits(nn.Module):
    """A linear layer whose weight is kept in eight bits, and made a bf16 weight each time it is used."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        scale = layer.weight.detach().abs().amax(1, keepdim=True) / 127
        self.register_buffer("weight", (layer.weight.detach() / scale).round().to(torch.int8))
        self.register_buffer("scale", scale)

    def forward(self, x: Tensor) -> Tensor:
        """X [..., in]."""
        return functional.linear(x, self.weight.to(x.dtype) * self.scale)


@pair(
    "unfused-chain", "decoding", "weights are kept in bf16, for which there is memory", SEVENTH,
    library="transformers", accept=("weight-bound",), inference=True, steps=(4, 2),
)  # fmt: skip
def weights_kept_in_eight_bits(variant: str) -> Step:
    """A Mistral of 6 × 4,096 decodes a token of 8 sequences from a CUDA graph; int8 weights become bf16 each time."""
    config = transformers.MistralConfig(
        vocab_size=size(32000, 64), hidden_size=size(4096, 32), intermediate_size=size(14336, 48),
        num_hidden_layers=size(6, 1), num_attention_heads=size(32, 2), num_key_value_heads=size(8, 2),
        sliding_window=None,
    )  # fmt: skip
    model = on_device(lambda: transformers.MistralForCausalLM(config), HALF).eval()
    if variant == BEFORE:
        for module in list(model.model.layers.modules()):
            for name, child in list(module.named_children()):
                if isinstance(child, nn.Linear):
                    setattr(module, name, EightBits(child))
    count, prompt = size(8, 2), size(256, 4)
    groups, head = config.num_key_value_heads, config.hidden_size // config.num_attention_heads
    cache = static_cache(config, count, prompt + 4, groups, head)
    ids = tokens(config.vocab_size, count, 1)

    def token() -> Tensor:
        logits = model(input_ids=ids, past_key_values=cache).logits
        ids.copy_(logits[:, -1:].argmax(-1))
        return ids

    rewind(cache, prompt)
    replay = as_graph(token)

    def step() -> None:
        rewind(cache, prompt)
        replay()

    return step


@pair(
    "launch-overhead", "decoding", "generate() is given all prompts instead of one after the other", SEVENTH,
    library="transformers", accept=("weight-bound", "small-kernels", "host-stall"), inference=True, steps=(1, 1),
)  # fmt: skip
def prompts_one_by_one(variant: str) -> Step:
    """A Granite of 4 × 1,024 writes four tokens to each of eight prompts of 64; generate() is called for each."""
    config = transformers.GraniteConfig(
        vocab_size=size(32000, 64), hidden_size=size(1024, 32), intermediate_size=size(4096, 48),
        num_hidden_layers=size(4, 1), num_attention_heads=size(16, 2), num_key_value_heads=size(4, 2),
        pad_token_id=0, bos_token_id=1, eos_token_id=None,
    )  # fmt: skip
    model = on_device(lambda: transformers.GraniteForCausalLM(config), HALF).eval()
    prompts = tokens(config.vocab_size, size(8, 2), size(64, 4)).clamp(min=2)
    parts = prompts.split(len(prompts) if variant == AFTER else 1)
    return lambda: [
        model.generate(part, attention_mask=torch.ones_like(part), max_new_tokens=4, do_sample=False) for part in parts
    ]


@pair(
    "blocking-copy", "training", "without save_on_cpu(), where activations fit on the GPU", SEVENTH,
    library="transformers", accept=("host-stall", "host-sync"), steps=(1, 1),
)  # fmt: skip
def activations_saved_on_cpu(variant: str) -> Step:
    """An ALBERT of 4 × 1,024 learns from 16 texts of 256 tokens; what backward needs waits in the host's memory."""
    config = transformers.AlbertConfig(
        vocab_size=size(30000, 64), embedding_size=size(128, 16), hidden_size=size(1024, 32),
        intermediate_size=size(4096, 48), num_hidden_layers=size(4, 1), num_attention_heads=size(16, 2),
    )  # fmt: skip
    model = on_device(lambda: transformers.AlbertForMaskedLM(config)).train()
    ids = tokens(config.vocab_size, size(16, 2), size(256, 8))

    def loss() -> Tensor:
        if variant == AFTER:
            return model(input_ids=ids, labels=ids).loss
        with torch.autograd.graph.save_on_cpu():
            return model(input_ids=ids, labels=ids).loss

    return training(loss, adamw(model))


@healthy("time series", SEVENTH, compiles=True, steps=(3, 2))
def healthy_scaled_halves(variant: str) -> Step:
    """Eight compiled layers of 1,536 forecast 32 series of 512 points in fp16, with a gradient scaler, fused AdamW."""
    width = size(1536, 32)
    layers = [
        nn.TransformerEncoderLayer(
            width, size(24, 2), size(6144, 64), dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        for _ in range(size(8, 1))
    ]
    model = on_device(lambda: nn.Sequential(nn.Linear(16, width), *layers, nn.Linear(width, 16))).train()
    compiled(layers)
    optimizer = adamw(model)
    scaler = torch.amp.GradScaler(DEVICE.type, enabled=CUDA)
    x, y = (torch.randn(size(32, 1), size(512, 8), 16, device=DEVICE) for _ in range(2))

    def step() -> None:
        with torch.autocast(DEVICE.type, torch.float16, enabled=CUDA and not TINY):
            loss = functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)

    return step
