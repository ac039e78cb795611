"""More of the thirty-seventh set: serving, scoring, sampling, with lines that one sees in notebooks and services."""

from __future__ import annotations

import tempfile

import timm
import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch import Tensor, nn
from torch.nn import functional

from pairs.parts import CUDA, DEVICE, HALF, TINY, Block, compiled, images, on_device, seeded, size, tokens
from pairs.registry import AFTER, BEFORE, THIRTY_SEVENTH, Step, healthy, pair

__all__: list[str] = []


@pair(
    "blocking-copy", "embedding", "last_hidden_state[:, 0].cpu() instead of last_hidden_state.cpu()[:, 0]",
    THIRTY_SEVENTH, library="transformers", inference=True, compiles=True, steps=(3, 2),
)  # fmt: skip
def hotel_review_vectors(variant: str) -> Step:
    """An XLM-R (12 × 768, bf16, layers compiled) embeds 192 hotel reviews of 256 tokens by their first token.

    As in many notebooks, what the model returned is copied to the host and made an array of NumPy, of which the first
    token of each review is kept. All 49,152 tokens are copied, in fp32, into pageable memory; one in 256 is wanted.
    """
    rows, long = size(192, 3), size(256, 8)
    config = transformers.XLMRobertaConfig(
        vocab_size=size(250_002, 64), hidden_size=size(768, 32), num_hidden_layers=size(12, 1),
        num_attention_heads=size(12, 2), intermediate_size=size(3072, 64), max_position_embeddings=size(514, 16),
        type_vocab_size=1,
    )  # fmt: skip
    model = on_device(lambda: transformers.XLMRobertaModel(config, add_pooling_layer=False), HALF).eval()
    compiled(model.encoder.layer)
    seeded(1)
    ids = 3 + tokens(config.vocab_size - 3, rows, long)

    def step() -> object:
        told = model(input_ids=ids).last_hidden_state
        if variant == AFTER:
            return told[:, 0].float().cpu().numpy()
        return told.float().cpu().numpy()[:, 0]

    return step


@pair(
    "memory-bandwidth", "vision", "panoramas are scaled down first, and normalised afterwards", THIRTY_SEVENTH,
    library="timm", accept=("unfused-chain",), inference=True, steps=(3, 2),
)  # fmt: skip
def street_panorama_naming(variant: str) -> Step:
    """A ViT (12 × 768, bf16) names 48 panoramas of streets, which a decoder leaves on the GPU as bytes, 3,584 × 1,792.

    The transform divides by 255, subtracts the mean, divides by the deviation, and then scales down eightfold. So the
    three passes go over 925 million numbers, of which one in 64 is left. The passes may also be made one by a
    compiler: hence "unfused-chain", too.
    """
    rows, side, kinds = size(48, 2), size(224, 32), size(40, 4)
    small = {"embed_dim": 32, "depth": 1, "num_heads": 2} if TINY else {}
    model = on_device(lambda: timm.create_model(
        "vit_base_patch16_224", num_classes=kinds, img_size=(side, 2 * side), **small
    ), HALF).eval()  # fmt: skip
    seeded(1)
    panoramas = torch.randint(0, 256, (rows, 3, 8 * side, 16 * side), device=DEVICE, dtype=torch.uint8)
    mean = torch.tensor([0.485, 0.456, 0.406], device=DEVICE).view(3, 1, 1)
    deviation = torch.tensor([0.229, 0.224, 0.225], device=DEVICE).view(3, 1, 1)

    def step() -> Tensor:
        x = panoramas.float()
        if variant == AFTER:
            x = functional.avg_pool2d(x, 8)
        x = (x / 255 - mean) / deviation
        if variant == BEFORE:
            x = functional.avg_pool2d(x, 8)
        return model(x.to(HALF)).float().softmax(-1)

    return step


class Filler(nn.Module):
    """A language model of masked diffusion: all places see each other, and words are told for those that are asked."""

    def __init__(self, words: int, width: int, heads: int, depth: int, long: int) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(words, width), nn.Embedding(long, width)
        self.layers = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, ids: Tensor, asked: slice) -> Tensor:
        """Ids [rows, places] → scores [rows, places asked, words]."""
        x = self.table(ids) + self.places.weight
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x[:, asked]))


@pair(
    "unused-results", "generation", "model(ids, block): words are told for the 32 places of the block in hand",
    THIRTY_SEVENTH, accept=("memory-bandwidth", "unfused-chain"), inference=True, compiles=True, steps=(2, 1),
)  # fmt: skip
def bylaw_gap_filling(variant: str) -> Step:
    """A language model of masked diffusion (12 × 1,536, bf16, layers compiled) fills 8 by-laws of 1,024 tokens.

    Gaps are filled block by block, the four surest words of 32 places at a time. As published, the loop tells 126,464
    words for all places, their chances and the likeliest ones, and closes what is outside of the block afterwards.
    Scores and chances are 2 to 4 GB: hence the other findings, too.
    """
    rows, long, words, width, block = size(8, 2), size(1024, 24), size(126_464, 64), size(1536, 32), size(32, 6)
    filled, mask, rounds = size(4, 2), 0, 2
    model = on_device(lambda: Filler(words, width, size(12, 2), size(12, 2), long), HALF).eval()
    compiled(model.layers)
    seeded(1)
    start = long // 2
    asked, all_places = slice(start, start + block), slice(None)
    given = 1 + tokens(words - 1, rows, long)
    given[:, start:] = mask

    def step() -> Tensor:
        ids = given.clone()
        now = ids[:, asked]
        for _ in range(rounds):
            scores = model(ids, asked if variant == AFTER else all_places)
            best = scores.argmax(-1)
            sure = scores.float().softmax(-1).gather(-1, best[..., None])[..., 0]
            if variant == BEFORE:
                best, sure = best[:, asked], sure[:, asked]
            surest = sure.masked_fill(now != mask, -1.0).topk(filled, dim=-1).indices
            now.scatter_(1, surest, best.gather(1, surest))
        return now

    return step


@pair(
    "precision", "anomalies", "the inverse covariances, which NumPy made in float64, are turned to float32",
    THIRTY_SEVENTH, library="timm", accept=("memory-bandwidth",), inference=True, steps=(3, 2),
)  # fmt: skip
def bottling_line_anomalies(variant: str) -> Step:
    """PaDiM: a wide ResNet-50 (bf16, channels_last) looks at 64 bottles; how far is each of 3,136 places from usual?

    Each place has a mean of 550 features and an inverse covariance, which np.linalg.inv made and torch.from_numpy()
    took over: in float64. So features become float64 beside them, and distances are told by products in float64.
    Operands of 7.6 GB are read, too: hence "memory-bandwidth".
    """
    torch.set_float32_matmul_precision("high")
    rows, side, places = size(64, 2), size(224, 32), size(56, 8) ** 2
    parts = (size(78, 4), size(157, 6), size(315, 6))
    body = on_device(lambda: timm.create_model(
        "wide_resnet50_2" if not TINY else "resnet18", features_only=True, out_indices=(1, 2, 3)
    ), HALF).eval().to(memory_format=torch.channels_last)  # fmt: skip
    seeded(1)
    bottles = images(rows, side, HALF).contiguous(memory_format=torch.channels_last)
    chosen = [
        torch.randperm(wide, device=DEVICE)[:part]
        for wide, part in zip(body.feature_info.channels(), parts, strict=True)
    ]
    told = sum(parts)
    usual = torch.randn(places, 1, told, device=DEVICE, dtype=torch.float64)
    inverse = torch.randn(places, told, told, device=DEVICE, dtype=torch.float64).div_(10 * told**0.5)
    inverse.add_(inverse.mT.clone()).diagonal(dim1=1, dim2=2).add_(1.0)
    if variant == AFTER:
        usual, inverse = usual.float(), inverse.float()

    def step() -> Tensor:
        maps = [found[:, part] for found, part in zip(body(bottles), chosen, strict=True)]
        maps = [functional.interpolate(found, maps[0].shape[-2:], mode="nearest") for found in maps]
        off = torch.cat(maps, 1).flatten(2).permute(2, 0, 1).contiguous() - usual
        far = (off @ inverse).mul_(off).sum(-1).clamp_(min=0).sqrt()
        return far.amax(0)

    return step


class Writer(nn.Module):
    """A layer of a decoder: a token sees those before it, then the picture."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.asked, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.looks, self.shown, self.seen = (
            nn.Linear(width, width),
            nn.Linear(width, 2 * width),
            nn.Linear(width, width),
        )
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def picture(self, states: Tensor) -> Tensor:
        """States of a picture [rows, patches, width] → keys and values [2, rows, heads, patches, size]."""
        return self.shown(states).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)

    def forward(self, x: Tensor, kept: Tensor, place: int, picture: Tensor) -> Tensor:
        """Tokens [rows, 1, width]; what is kept of those before is written at a place, and read up to it."""
        q, k, v = self.asked(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        kept[0, :, :, place : place + 1], kept[1, :, :, place : place + 1] = k, v
        read = functional.scaled_dot_product_attention(q, kept[0, :, :, : place + 1], kept[1, :, :, : place + 1])
        x = x + self.out(read.transpose(1, 2).flatten(2))
        q = self.looks(self.norms[1](x)).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        read = functional.scaled_dot_product_attention(q, picture[0], picture[1])
        x = x + self.seen(read.transpose(1, 2).flatten(2))
        return x + self.feed(self.norms[2](x))


@pair(
    "recomputation", "decoding", "each layer's keys and values of the picture are told once, before the first token",
    THIRTY_SEVENTH, inference=True, steps=(2, 1),
)  # fmt: skip
def till_receipt_reading(variant: str) -> Step:
    """A decoder (8 × 1,024, bf16) writes down the first 8 tokens of 128 till receipts, each of 1,024 patches.

    Keys and values of tokens are kept. But each layer also attends to the picture, and makes its keys and values from
    the encoder's states anew for each token, though these never change.
    """
    rows, width, heads, patches, words = size(128, 2), size(1024, 32), size(16, 2), size(1024, 10), size(50_304, 64)
    count, room = size(8, 3), size(64, 8)
    layers = on_device(lambda: nn.ModuleList(Writer(width, heads) for _ in range(size(8, 2))), HALF).eval()
    table = on_device(lambda: nn.Embedding(words, width), HALF, seed=1)
    head = on_device(lambda: nn.Linear(width, words, bias=False), HALF, seed=2)
    seeded(3)
    states = torch.randn(rows, patches, width, device=DEVICE, dtype=HALF)
    kept = torch.zeros(len(layers), 2, rows, heads, room, width // heads, device=DEVICE, dtype=HALF)
    first = torch.zeros(rows, 1, device=DEVICE, dtype=torch.long)

    def step() -> Tensor:
        ids, written = first, []
        pictures = [layer.picture(states) for layer in layers] if variant == AFTER else []
        for place in range(count):
            x = table(ids)
            for number, layer in enumerate(layers):
                picture = pictures[number] if variant == AFTER else layer.picture(states)
                x = layer(x, kept[number], place, picture)
            ids = head(x).argmax(-1)
            written.append(ids)
        return torch.cat(written, 1)

    return step


@pair(
    "host-stall", "serving", "the tokenizer is loaded once, and not for each request", THIRTY_SEVENTH,
    library="transformers", inference=True, compiles=True, with_stack=True, steps=(2, 1),
)  # fmt: skip
def tenant_request_routing(variant: str) -> Step:
    """A service sorts requests of tenants: a RoBERTa (24 × 2,048, bf16, layers compiled), 32 texts at once.

    The function that answers a request begins with from_pretrained(folder): it reads the tokenizer's file of 50,000
    words and builds its tables, each time. The model is loaded once; the tokenizer was thought to cost nothing.
    """
    rows, words, long, kinds = size(32, 3), size(50_000, 80), size(254, 6), size(30, 4)
    config = transformers.RobertaConfig(
        vocab_size=words, hidden_size=size(2048, 32), num_hidden_layers=size(24, 1), pad_token_id=1,
        num_attention_heads=size(32, 2), intermediate_size=size(8192, 64), max_position_embeddings=size(514, 32),
        type_vocab_size=1, num_labels=kinds,
    )  # fmt: skip
    model = on_device(lambda: transformers.RobertaForSequenceClassification(config), HALF).eval()
    compiled(model.roberta.encoder.layer)
    folder = tempfile.TemporaryDirectory()
    names = ["<s>", "<pad>", "</s>", "<unk>", *(f"word{number}" for number in range(words - 4))]
    made = Tokenizer(WordLevel({name: number for number, name in enumerate(names)}, "<unk>"))
    made.pre_tokenizer = Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    ).save_pretrained(folder.name)
    seeded(1)
    drawn = torch.randint(4, words, (rows, long)).tolist()
    texts = [" ".join(names[number] for number in text) for text in drawn]

    def loaded() -> transformers.PreTrainedTokenizerFast:
        return transformers.PreTrainedTokenizerFast.from_pretrained(folder.name)

    once = loaded()

    def step() -> list[int]:
        tokenizer = once if variant == AFTER else loaded()
        ids = tokenizer(texts, return_tensors="pt")["input_ids"].to(DEVICE)
        return model(input_ids=ids).logits.argmax(-1).tolist()

    return step


class Listener(nn.Module):
    """Waves to chances of letters: log-mel spectrograms, two convolutions that halve time twice, layers, a head."""

    def __init__(self, tones: int, width: int, heads: int, depth: int, letters: int) -> None:
        super().__init__()
        self.down = nn.ModuleList([
            nn.Conv1d(tones, width, 3, stride=2, padding=1), nn.Conv1d(width, width, 3, stride=2, padding=1)
        ])  # fmt: skip
        self.layers = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, letters)

    def forward(self, x: Tensor) -> Tensor:
        """Spectrograms [rows, tones, frames] → scores [rows, frames / 4, letters]."""
        for layer in self.down:
            x = functional.gelu(layer(x))
        x = x.transpose(1, 2).contiguous()
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


@healthy("speech", THIRTY_SEVENTH, inference=True, compiles=True, steps=(3, 2))
def healthy_council_meeting_transcripts(variant: str) -> Step:
    """An encoder with CTC (16 × 1,024, bf16, layers compiled) hears 64 pieces of 20 s of meetings of a council.

    Waves lie in pinned memory, with 16 bits; spectrograms are made on the GPU, with a bank of filters that is made
    once. Likeliest letters of all frames are read together, two bytes each.
    """
    rows, long, window, tones = size(64, 2), size(320_000, 3200), 400, size(80, 8)
    model = on_device(lambda: Listener(tones, size(1024, 32), size(16, 2), size(16, 2), size(1024, 12)), HALF).eval()
    compiled(model.layers)
    bank = torch.from_numpy(transformers.audio_utils.mel_filter_bank(
        window // 2 + 1, tones, 0.0, 8000.0, 16_000, norm="slaney", mel_scale="slaney"
    )).float().T.contiguous().to(DEVICE)  # fmt: skip
    seeded(1)
    heard = (3000 * torch.randn(rows, long)).to(torch.int16)
    heard = heard.pin_memory() if CUDA else heard
    hann = torch.hann_window(window, device=DEVICE)

    def step() -> Tensor:
        waves = heard.to(DEVICE, non_blocking=True).float().div_(32_768)
        power = torch.stft(waves, window, 160, window=hann, return_complex=True)[..., :-1].abs().square()
        tone = (bank @ power).clamp_(min=1e-10).log10_()
        return model(tone.to(HALF)).argmax(-1).to(torch.int16).cpu()

    return step


class Caster(nn.Module):
    """Tells how a field of rain changes towards the next hour, from noise, the hours before and a level of noise."""

    def __init__(self, channels: int, width: int, heads: int, depth: int, places: int, times: int) -> None:
        super().__init__()
        self.patch, self.places = nn.Linear(4 * channels, width), nn.Parameter(0.02 * torch.randn(places, width))
        self.times, self.layers = nn.Embedding(times, width), nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, channels)

    def forward(self, x: Tensor, before: Tensor, time: Tensor) -> Tensor:
        """Patches of fields [rows, places, channels], and those of three hours before → how they change."""
        x = self.patch(torch.cat((x, before), -1)) + self.places + time
        for layer in self.layers:
            x = layer(x)
        return self.out(self.norm(x))


@healthy("forecasting", THIRTY_SEVENTH, inference=True, compiles=True, steps=(2, 1))
def healthy_rain_radar_sampling(variant: str) -> Step:
    """Sixteen forecasts of rain: a transformer (12 × 1,152, bf16, layers compiled) goes from noise to rain in 5 steps.

    Forecasts are one batch; fields stay in patches between steps; levels of noise are numbers of Python. Fields are
    rounded to bytes on the GPU and copied into pinned memory.
    """
    rows, places, channels, width, rounds = size(16, 2), size(1024, 9), size(64, 4), size(1152, 32), size(5, 2)
    model = on_device(lambda: Caster(channels, width, size(18, 2), size(12, 2), places, rounds), HALF).eval()
    compiled(model.layers)
    seeded(1)
    noise = torch.randn(rows, places, channels, device=DEVICE)
    before = torch.randn(1, places, 3 * channels, device=DEVICE, dtype=HALF).expand(rows, -1, -1).contiguous()
    told = torch.empty(rows, places, channels, dtype=torch.uint8, pin_memory=CUDA)

    def step() -> Tensor:
        x = noise
        for number in range(rounds):
            x = x + model(x.to(HALF), before, model.times.weight[number]).float() / rounds
        return told.copy_(x.mul(32).add_(128).clamp_(0, 255).to(torch.uint8), non_blocking=True)

    return step
