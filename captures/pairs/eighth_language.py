"""The eighth set: texts, speech and tables, each with a habit that a review of an ordinary script finds."""

from __future__ import annotations

import copy
import random
from collections import deque

import numpy as np
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

from pairs.parts import DEVICE, HALF, adamw, compiled, on_device, size, tokens, training
from pairs.registry import AFTER, BEFORE, EIGHTH, Step, healthy, pair


def opt(layers: int, width: int, heads: int, vocabulary: int) -> transformers.OPTConfig:
    """An OPT without dropout."""
    return transformers.OPTConfig(
        vocab_size=vocabulary, hidden_size=width, ffn_dim=4 * width, num_hidden_layers=layers,
        num_attention_heads=heads, word_embed_proj_dim=width, dropout=0.0, max_position_embeddings=1024,
    )  # fmt: skip


def said(model: nn.Module, ids: Tensor) -> Tensor:
    """The logarithm of the chance of each text [texts]."""
    scores = model(input_ids=ids).logits[:, :-1]
    return (
        -functional.cross_entropy(scores.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        .unflatten(0, (len(ids), -1))
        .sum(1)
    )


@pair(
    "unused-gradients", "preference tuning", "torch.no_grad() around the reference model", EIGHTH,
    library="transformers", accept=("recomputation",), steps=(2, 1),
)  # fmt: skip
def reference_with_gradients(variant: str) -> Step:
    """DPO of an OPT (6 × 1,024) on 16 pairs of 384 tokens; the reference model, never changed, is differentiated."""
    config = opt(size(6, 1), size(1024, 32), size(16, 2), size(32000, 64))
    policy = on_device(lambda: transformers.OPTForCausalLM(config)).train()
    reference = copy.deepcopy(policy)
    wanted, unwanted = (tokens(config.vocab_size, size(16, 2), size(384, 8)) for _ in range(2))
    texts = torch.cat([wanted, unwanted])

    def loss() -> Tensor:
        now = said(policy, texts)
        with torch.set_grad_enabled(variant == BEFORE):
            then = said(reference, texts)
        better, worse = (now - then).float().chunk(2)
        return -functional.logsigmoid(0.1 * (better - worse)).mean()

    return training(loss, adamw(policy))


@pair(
    "launch-overhead", "speech", "the recordings in one batch instead of one by one", EIGHTH,
    library="transformers", accept=("small-kernels", "per-expert-loop"), inference=True, steps=(1, 1),
)  # fmt: skip
def recordings_one_by_one(variant: str) -> Step:
    """A Wav2Vec2-BERT (4 × 768) writes down 12 recordings of 8 seconds; the evaluation calls it for each."""
    config = transformers.Wav2Vec2BertConfig(
        vocab_size=64, hidden_size=size(768, 32), num_hidden_layers=size(4, 1), num_attention_heads=size(12, 2),
        intermediate_size=size(3072, 64), add_adapter=False,
    )  # fmt: skip
    model = on_device(lambda: transformers.Wav2Vec2BertForCTC(config), HALF).eval()
    sounds = torch.randn(size(12, 2), size(400, 16), 160, device=DEVICE, dtype=HALF)

    def step() -> Tensor:
        parts = [sounds] if variant == AFTER else [sound[None] for sound in sounds]
        return torch.cat([model(input_features=part).logits.argmax(-1) for part in parts])

    return step


def distance(one: list[int], other: list[int]) -> int:
    """Levenshtein's distance, in Python."""
    row = list(range(len(other) + 1))
    for index, left in enumerate(one, 1):
        before, row[0] = row[0], index
        for column, right in enumerate(other, 1):
            before, row[column] = row[column], min(row[column] + 1, row[column - 1] + 1, before + (left != right))
    return row[-1]


@pair(
    "host-stall", "speech", "errors are counted when the model is evaluated, not in each training step", EIGHTH,
    library="transformers", accept=("blocking-copy", "host-sync"), steps=(2, 1),
)  # fmt: skip
def errors_counted_in_each_step(variant: str) -> Step:
    """A HuBERT (4 × 512) learns from 16 recordings of five seconds by CTC; Python counts wrong letters each step."""
    config = transformers.HubertConfig(
        vocab_size=40, hidden_size=size(512, 32), num_hidden_layers=size(4, 1), num_attention_heads=size(8, 2),
        intermediate_size=size(2048, 64), conv_dim=(size(512, 16),) * 7, num_conv_pos_embeddings=size(128, 16),
        mask_time_prob=0.0, layerdrop=0.0, ctc_zero_infinity=True,
    )  # fmt: skip
    model = on_device(lambda: transformers.HubertForCTC(config)).train()
    sounds = torch.randn(size(16, 1), size(80_000, 8_000), device=DEVICE)
    labels = tokens(38, len(sounds), size(60, 4)) + 1
    right = labels.tolist()

    def loss() -> Tensor:
        result = model(input_values=sounds, labels=labels)
        if variant == BEFORE:
            for frames, letters in zip(result.logits.argmax(-1).tolist(), right, strict=True):
                merged = [now for last, now in zip([0, *frames], frames, strict=False) if now not in (0, last)]
                distance(merged, letters)
        return result.loss

    return training(loss, adamw(model))


@pair(
    "host-stall", "retrieval", "the index is kept on the GPU and searched by torch.topk", EIGHTH,
    library="transformers", accept=("blocking-copy", "host-sync"), inference=True, steps=(2, 1),
)  # fmt: skip
def index_searched_by_numpy(variant: str) -> Step:
    """A BERT (6 × 384) embeds 32 questions; NumPy finds 4 of 60,000 passages for each; a BERT (6 × 768) reads them."""

    def bert(layers: int, width: int, heads: int) -> nn.Module:
        config = transformers.BertConfig(
            vocab_size=size(30522, 64),
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=4 * width,
        )
        return on_device(lambda: transformers.BertModel(config, add_pooling_layer=False), HALF).eval()

    encoder, reader = bert(size(6, 1), size(384, 32), size(12, 2)), bert(size(6, 1), size(768, 32), size(12, 2))
    count = size(60_000, 64)
    passages = torch.randn(count, size(384, 32), device=DEVICE)
    texts = tokens(size(30522, 64), count, size(128, 8))
    questions = tokens(size(30522, 64), size(32, 2), size(24, 4))
    on_host = passages.cpu().numpy()

    def step() -> Tensor:
        asked = encoder(input_ids=questions).last_hidden_state[:, 0].float()
        if variant == AFTER:
            found = (asked @ passages.T).topk(4).indices.flatten()
        else:
            scores = asked.cpu().numpy() @ on_host.T
            found = torch.from_numpy(np.argpartition(-scores, 4, axis=1)[:, :4].flatten()).to(DEVICE)
        return reader(input_ids=texts[found]).last_hidden_state[:, 0]

    return step


@pair(
    "host-stall", "reinforcement learning", "the transitions are kept in tensors on the GPU", EIGHTH,
    accept=("blocking-copy",), steps=(3, 2),
)  # fmt: skip
def replay_from_a_list(variant: str) -> Step:
    """A DQN learns from 256 transitions of 4 × 84 × 84 pixels, drawn from a deque and stacked by NumPy."""
    count, kept, side = size(256, 4), size(4000, 16), 84
    random.seed(0)
    frames = np.random.default_rng(0).integers(0, 255, (64, 4, side, side), dtype=np.uint8)
    memory = deque(
        (frames[index % 64].copy(), index % 6, float(index % 3), frames[(index + 1) % 64].copy(), index % 50 == 0)
        for index in range(kept)
    )
    columns = [torch.as_tensor(np.array(column), device=DEVICE) for column in zip(*memory, strict=True)]
    online = on_device(
        lambda: nn.Sequential(
            nn.Conv2d(4, 32, 8, 4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, 2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(3136, 512),
            nn.ReLU(),
            nn.Linear(512, 6),
        )
    )
    target = copy.deepcopy(online)

    def drawn() -> list[Tensor]:
        if variant == AFTER:
            chosen = torch.randint(0, kept, (count,), device=DEVICE)
            return [column[chosen] for column in columns]
        batch = zip(*random.sample(memory, count), strict=True)
        return [torch.as_tensor(np.array(column), device=DEVICE) for column in batch]

    def loss() -> Tensor:
        state, action, reward, following, is_last = drawn()
        value = online(state.float() / 255).gather(1, action.long()[:, None]).squeeze(1)
        with torch.no_grad():
            best = target(following.float() / 255).amax(1)
            wanted = reward.float() + 0.99 * best * (~is_last).float()
        return functional.smooth_l1_loss(value.float(), wanted.float())

    return training(loss, adamw(online))


@pair(
    "unused-results", "reranking", "logits_to_keep=1: of the scores, only those of the last position are read", EIGHTH,
    library="transformers", inference=True, steps=(3, 2),
)  # fmt: skip
def scores_of_all_positions(variant: str) -> Step:
    """An XGLM (6 × 1,024, 256,008 words) says yes or no to 16 passages of 512 tokens, by the scores at their ends."""
    config = transformers.XGLMConfig(
        vocab_size=size(256_008, 64), d_model=size(1024, 32), ffn_dim=size(4096, 64), num_layers=size(6, 1),
        attention_heads=size(16, 2), dropout=0.0, attention_dropout=0.0,
    )  # fmt: skip
    model = on_device(lambda: transformers.XGLMForCausalLM(config), HALF).eval()
    ids = tokens(config.vocab_size, size(16, 2), size(512, 8)).clamp(min=3)
    kept = 1 if variant == AFTER else 0
    return lambda: model(input_ids=ids, use_cache=False, logits_to_keep=kept).logits[:, -1, :2].float().softmax(-1)


@pair(
    "unfused-chain", "preference tuning", "cross_entropy on the bf16 scores, without copies of them in fp32", EIGHTH,
    library="transformers", accept=("scattered-access",), inference=True, steps=(3, 2),
)  # fmt: skip
def chances_of_all_words(variant: str) -> Step:
    """GRPO asks an OPT (4 × 1,024, 128,256 words) how likely 8 answers of 1,024 tokens were: log_softmax, gather."""
    config = opt(size(4, 1), size(1024, 32), size(16, 2), size(128_256, 64))
    model = on_device(lambda: transformers.OPTForCausalLM(config), HALF).eval()
    ids = tokens(config.vocab_size, size(8, 2), size(1024, 8))

    def step() -> Tensor:
        scores = model(input_ids=ids, use_cache=False).logits
        if variant == AFTER:
            return -functional.cross_entropy(scores.flatten(0, 1), ids.flatten(), reduction="none").float()
        return scores.float().log_softmax(-1).gather(-1, ids[..., None])

    return step


@pair(
    "launch-overhead", "recommendation", "one table with an offset a feature instead of a table each", EIGHTH,
    accept=("small-kernels", "per-expert-loop", "scattered-access"), inference=True, steps=(6, 3),
)  # fmt: skip
def table_by_table(variant: str) -> Step:
    """A DeepFM scores 4,096 candidates by 26 features, each with a table of 100,000 × 32 of its own."""
    features, rows, width, count = size(26, 3), size(100_000, 50), size(32, 8), size(4096, 4)
    tables = on_device(lambda: nn.ModuleList([nn.Embedding(rows, width) for _ in range(features)]), HALF)
    whole = torch.cat([table.weight.detach() for table in tables])
    offsets = torch.arange(features, device=DEVICE) * rows
    deep = on_device(
        lambda: nn.Sequential(
            nn.Linear(features * width, size(1024, 16)), nn.ReLU(), nn.Linear(size(1024, 16), size(512, 8)), nn.ReLU(),
            nn.Linear(size(512, 8), 1),
        ),
        HALF,
    )  # fmt: skip
    chosen = tokens(rows, count, features)

    def step() -> Tensor:
        if variant == AFTER:
            x = functional.embedding(chosen + offsets, whole)
        else:
            x = torch.stack([table(chosen[:, index]) for index, table in enumerate(tables)], 1)
        total = x.sum(1)
        crossed = 0.5 * (total.square() - x.square().sum(1)).sum(-1, keepdim=True)
        return (deep(x.flatten(1)) + crossed).sigmoid()

    return step


@healthy("fine-tuning", EIGHTH, library="transformers, peft", compiles=True, steps=(3, 2))
def healthy_adapters(variant: str) -> Step:
    """LoRA of rank 32 on a Llama of 6 × 3,072 in bf16, 8 × 1,024 tokens, layers compiled; the base has no gradients."""
    import peft

    config = transformers.LlamaConfig(
        vocab_size=size(8192, 64), hidden_size=size(3072, 32), intermediate_size=size(8192, 64),
        num_hidden_layers=size(6, 1), num_attention_heads=size(24, 2), num_key_value_heads=size(8, 2), use_cache=False,
    )  # fmt: skip

    def build() -> nn.Module:
        how = peft.LoraConfig(r=size(32, 2), target_modules="all-linear", lora_dropout=0.0)
        return peft.get_peft_model(transformers.LlamaForCausalLM(config), how)

    model = on_device(build, HALF).train()
    compiled(model.base_model.model.model.layers)
    learned = nn.ParameterList([weight for weight in model.parameters() if weight.requires_grad])
    ids = tokens(config.vocab_size, size(8, 1), size(1024, 8))
    return training(lambda: model(input_ids=ids, labels=ids).loss, adamw(learned), mixed=False)


@healthy("training", EIGHTH, compiles=True, steps=(2, 1))
def healthy_accumulation(variant: str) -> Step:
    """Eight compiled layers of 1,536 add up gradients of four batches of 16 × 1,024, as many as the optimizer needs."""
    width = size(1536, 32)
    layers = [
        nn.TransformerEncoderLayer(
            width, size(12, 2), size(6144, 64), dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        for _ in range(size(8, 1))
    ]
    model = on_device(lambda: nn.Sequential(*layers)).train()
    compiled(layers)
    optimizer = adamw(model)
    batches = torch.randn(size(4, 2), size(16, 1), size(1024, 8), width, device=DEVICE, dtype=HALF)

    def step() -> None:
        for batch in batches:
            with torch.autocast(DEVICE.type, HALF, enabled=HALF is torch.bfloat16):
                value = model(batch).square().mean()
            value.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step
