"""More of the twenty-second set: vision, sounds, diffusion, scenes."""

from __future__ import annotations

import contextlib

import timm
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

from pairs.parts import CUDA, DEVICE, HALF, adamw, as_graph, compiled, images, on_device, size, tokens, training
from pairs.registry import AFTER, BEFORE, TWENTY_SECOND, Step, healthy, pair


@pair(
    "precision", "self-supervision", "torch.autocast('cuda', torch.bfloat16): bf16=True of the trainer", TWENTY_SECOND,
    library="transformers", accept=("tensor-compute",), steps=(2, 2),
)  # fmt: skip
def masked_images_in_fp32(variant: str) -> Step:
    """A ViT-MAE (12 × 768, decoder 4 × 512) learns to fill in 96 images in fp32, as the trainer has it by default."""
    config = transformers.ViTMAEConfig(
        hidden_size=size(768, 32), intermediate_size=size(3072, 64), num_hidden_layers=size(12, 1),
        num_attention_heads=size(12, 2), decoder_hidden_size=size(512, 32), decoder_intermediate_size=size(2048, 64),
        decoder_num_hidden_layers=size(4, 1), decoder_num_attention_heads=size(16, 2), image_size=size(224, 64),
    )  # fmt: skip
    model = on_device(lambda: transformers.ViTMAEForPreTraining(config)).train()
    x = images(size(96, 2), config.image_size)
    return training(lambda: model(pixel_values=x).loss, adamw(model), mixed=variant == AFTER)


@pair(
    "memory-format", "vision", "model and images in torch.channels_last", TWENTY_SECOND,
    library="timm", accept=("memory-bandwidth",), profiler_steps=True, steps=(3, 3),
)  # fmt: skip
def vovnet_as_images_come(variant: str) -> Step:
    """A VoVNet-39 learns from 96 images of 224 × 224 in mixed precision, in the format that images come in."""
    classes = size(1000, 8)
    model = on_device(lambda: timm.create_model("ese_vovnet39b", num_classes=classes)).train()
    x, labels = images(size(96, 2), size(224, 64)), tokens(classes, size(96, 2))
    if variant == AFTER:
        model, x = model.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    return training(lambda: functional.cross_entropy(model(x), labels), adamw(model))


@pair(
    "unfused-attention", "vision", "without output_attentions=True, so that attention can be 'sdpa'", TWENTY_SECOND,
    library="transformers", accept=("unfused-chain", "memory-bandwidth"), inference=True, steps=(2, 2),
)  # fmt: skip
def attention_kept_for_a_picture(variant: str) -> Step:
    """A ViT-B/16 of transformers describes 16 images of 512² in bf16; all attention is kept, and nobody draws it."""
    config = transformers.ViTConfig(
        hidden_size=size(768, 32), intermediate_size=size(3072, 64), num_hidden_layers=size(12, 2),
        num_attention_heads=size(12, 2), image_size=size(512, 64), patch_size=16,
    )  # fmt: skip
    config._attn_implementation = "eager" if variant == BEFORE else "sdpa"
    model = on_device(lambda: transformers.ViTModel(config, add_pooling_layer=False), HALF).eval()
    x = images(size(16, 2), config.image_size, HALF)
    more = {"output_attentions": True} if variant == BEFORE else {}
    return lambda: model(pixel_values=x, **more).last_hidden_state[:, 0]


class Mish(nn.Module):
    """Mish, as its formula has it."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        """Numbers of any shape."""
        return x * torch.tanh(torch.log(1 + torch.exp(x)))


@pair(
    "unfused-chain", "vision", "nn.Mish() instead of x * tanh(log(1 + exp(x)))", TWENTY_SECOND,
    library="timm", accept=("memory-bandwidth",), inference=True, ranges=False, steps=(3, 3),
)  # fmt: skip
def mish_written_out(variant: str) -> Step:
    """A ResNet-50-D with Mish classifies 128 images in bf16 and channels_last; the activation is a formula."""
    act = Mish if variant == BEFORE else nn.Mish
    model = on_device(lambda: timm.create_model("resnet50d", act_layer=act, num_classes=size(1000, 8)), HALF).eval()
    model = model.to(memory_format=torch.channels_last)
    x = images(size(128, 2), size(224, 64), HALF).contiguous(memory_format=torch.channels_last)
    return lambda: model(x).argmax(-1)


@pair(
    "unfused-chain", "contrastive", "rows are normalised and multiplied instead of broadcast", TWENTY_SECOND,
    library="timm", accept=("memory-bandwidth",), steps=(2, 2),
)  # fmt: skip
def cosines_of_all_with_all(variant: str) -> Step:
    """SimCLR: a ResNet-18 learns from two views of 768 images of 64²; cosine_similarity(z[:, None], z[None], -1)."""
    batch, wide = 2 * size(768, 2), size(256, 8)
    body = on_device(lambda: timm.create_model("resnet18", num_classes=wide)).train()
    body = body.to(memory_format=torch.channels_last)
    x = images(batch, 64).contiguous(memory_format=torch.channels_last)
    partners = (torch.arange(batch, device=DEVICE) + batch // 2) % batch
    own = torch.eye(batch, device=DEVICE) * 1e4

    def likeness(z: Tensor) -> Tensor:
        if variant == BEFORE:
            return functional.cosine_similarity(z[:, None], z[None], dim=-1)
        z = functional.normalize(z, dim=-1)
        return z @ z.T

    return training(lambda: functional.cross_entropy(likeness(body(x)).float() / 0.1 - own, partners), adamw(body))


class Residual(nn.Module):
    """Two convolutions beside a path that goes straight on."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [images, width, height, width]."""
        return x + self.second(functional.relu(self.first(functional.relu(x)), inplace=True))


class Player(nn.Module):
    """IMPALA's network: what it sees, what it does, how good that will be."""

    def __init__(self, width: int, actions: int) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        for wide, narrow in ((width, 4), (2 * width, width), (2 * width, 2 * width)):
            parts += [nn.Conv2d(narrow, wide, 3, padding=1), nn.MaxPool2d(3, 2, 1), Residual(wide), Residual(wide)]
        self.trunk = nn.Sequential(*parts, nn.ReLU(), nn.Flatten())
        self.read = nn.Sequential(nn.Linear(242 * width, 512), nn.ReLU())
        self.acts, self.hopes = nn.Linear(512, actions), nn.Linear(512, 1)

    def state(self, x: Tensor) -> Tensor:
        """What it makes of its pictures."""
        return self.read(self.trunk(x))


@pair(
    "recomputation", "reinforcement learning", "the trunk runs once for chances, entropy and value", TWENTY_SECOND,
    steps=(2, 2),
)  # fmt: skip
def policy_evaluated_three_times(variant: str) -> Step:
    """PPO's loss on 768 pictures of 84² (IMPALA, 64 to 128 channels, bf16): three methods, each runs the network."""
    batch, width, actions = size(768, 2), size(64, 4), 16
    model = on_device(lambda: Player(width, actions)).train().to(memory_format=torch.channels_last)
    x = images(batch, 84, channels=4).contiguous(memory_format=torch.channels_last)
    done, old = tokens(actions, batch)[:, None], torch.full((batch,), -2.77, device=DEVICE)
    gains, returns = torch.randn(2, batch, device=DEVICE)

    def loss() -> Tensor:
        if variant == BEFORE:
            chances = model.acts(model.state(x)).float().log_softmax(-1).gather(1, done)[:, 0]
            all_chances = model.acts(model.state(x)).float().log_softmax(-1)
            hopes = model.hopes(model.state(x)).float()[:, 0]
        else:
            state = model.state(x)
            all_chances, hopes = model.acts(state).float().log_softmax(-1), model.hopes(state).float()[:, 0]
            chances = all_chances.gather(1, done)[:, 0]
        entropy = -(all_chances.exp() * all_chances).sum(-1).mean()
        ratio = (chances - old).exp()
        gained = torch.minimum(ratio * gains, ratio.clamp(0.8, 1.2) * gains).mean()
        return 0.5 * (hopes - returns).square().mean() - gained - 0.01 * entropy

    return training(loss, adamw(model))


class Told(nn.Module):
    """A block of a denoiser: attention to itself, attention to a text, and a gated network."""

    def __init__(self, width: int, text: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(3))
        self.joined, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.asks, self.text, self.heard = nn.Linear(width, width), nn.Linear(text, 2 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 6 * width), nn.Linear(3 * width, width)

    def seen(self, *parts: Tensor) -> Tensor:
        """Attention of queries to keys and values [texts, positions, width]."""
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        return functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        """Latents [images, positions, width], texts [images, words, text]."""
        x = x + self.out(self.seen(*self.joined(self.norms[0](x)).chunk(3, -1)))
        x = x + self.heard(self.seen(self.asks(self.norms[1](x)), *self.text(text).chunk(2, -1)))
        one, two = self.wide(self.norms[2](x)).chunk(2, -1)
        return x + self.narrow(functional.silu(one) * two)


@pair(
    "recomputation", "diffusion", "the prompts are encoded once, before the first step", TWENTY_SECOND,
    library="transformers", accept=("launch-overhead",), compiles=True, inference=True, steps=(2, 2),
)  # fmt: skip
def prompts_encoded_at_each_step(variant: str) -> Step:
    """A denoiser (8 × 1,024, compiled, bf16) takes six steps for 8 images; each encodes the prompts (20 × 1,280)."""
    width, text, batch, words = size(1024, 32), size(1280, 32), size(8, 2), 77
    config = transformers.CLIPTextConfig(
        vocab_size=size(49_408, 64), hidden_size=text, intermediate_size=size(5120, 64), eos_token_id=1,
        num_hidden_layers=size(20, 1), num_attention_heads=size(20, 2), bos_token_id=0, pad_token_id=1,
    )  # fmt: skip
    encoder = on_device(lambda: transformers.CLIPTextModel(config), HALF).eval()
    heads = size(16, 2)
    blocks = on_device(lambda: nn.ModuleList(Told(width, text, heads) for _ in range(size(8, 1))), HALF, 1).eval()
    compiled(blocks)
    ids = tokens(config.vocab_size - 2, batch, words) + 2
    ids[:, -1] = 1
    noise = torch.randn(batch, size(1024, 16), width, device=DEVICE, dtype=HALF)

    def step() -> Tensor:
        x, told = noise, None
        for _ in range(6):
            if variant == BEFORE or told is None:
                told = encoder(input_ids=ids).last_hidden_state
            y = x
            for block in blocks:
                y = block(y, told)
            x = torch.lerp(x, y, 0.1)
        return x

    return step


@pair(
    "host-sync", "speech", "the likeliest letters of all frames are read at once, by tolist()", TWENTY_SECOND,
    accept=("host-stall", "blocking-copy"), inference=True, with_stack=True, steps=(2, 1),
)  # fmt: skip
def letters_read_frame_by_frame(variant: str) -> Step:
    """A CTC model (16 × 1,024, bf16) writes down 8 recordings of 250 frames; doubles are dropped with .item()."""
    width, letters = size(1024, 32), size(64, 8)

    def build() -> nn.Module:
        layer = nn.TransformerEncoderLayer(width, size(16, 2), 4 * width, 0.0, "gelu", batch_first=True)
        encoder = nn.TransformerEncoder(layer, size(16, 1), enable_nested_tensor=False)
        return nn.Sequential(encoder, nn.Linear(width, letters))

    model = on_device(build, HALF).eval()
    frames = torch.randn(size(8, 2), size(250, 8), width, device=DEVICE, dtype=HALF)

    def step() -> list[list[int]]:
        best = model(frames).argmax(-1)
        rows = best if variant == BEFORE else best.tolist()
        told = []
        for row in rows:
            last, text = 0, []
            for letter in row:
                now = letter if isinstance(letter, int) else letter.item()
                if now not in (0, last):
                    text.append(now)
                last = now
            told.append(text)
        return told

    return step


@pair(
    "blocking-copy", "moderation", "both models stay on the GPU, where they fit", TWENTY_SECOND,
    library="transformers", accept=("host-stall", "host-sync"), steps=(2, 1),
)  # fmt: skip
def models_take_turns_on_the_gpu(variant: str) -> Step:
    """A DistilBERT and an ELECTRA (6 × 512, bf16) judge 64 texts of 128 tokens; .to('cpu') makes room for the next."""
    words, width = size(16_384, 64), size(512, 32)
    layers, heads = size(6, 1), size(8, 2)
    small = transformers.DistilBertConfig(
        vocab_size=words, dim=width, hidden_dim=4 * width, n_layers=layers, n_heads=heads
    )
    config = transformers.ElectraConfig(
        vocab_size=words, embedding_size=size(128, 16), hidden_size=width, intermediate_size=4 * width,
        num_hidden_layers=layers, num_attention_heads=heads,
    )  # fmt: skip
    first = on_device(lambda: transformers.DistilBertModel(small), HALF).eval()
    second = on_device(lambda: transformers.ElectraModel(config), HALF, 1).eval()
    ids = tokens(words, size(64, 2), size(128, 8))
    swap = variant == BEFORE
    if swap:
        first.to("cpu")
        second.to("cpu")

    @torch.no_grad()
    def step() -> Tensor:
        told = []
        for model in (first, second):
            if swap:
                model.to(DEVICE)
            told.append(model(input_ids=ids).last_hidden_state[:, 0])
            if swap:
                model.to("cpu")
        return torch.cat(told, -1).float().norm(dim=-1)

    return step


@pair(
    "unused-gradients", "sounds", "torch.no_grad() around the teacher", TWENTY_SECOND,
    library="transformers", accept=("recomputation", "unused-results"), steps=(2, 2),
)  # fmt: skip
def teacher_differentiated(variant: str) -> Step:
    """An AST (4 × 384) learns from 8 sounds what a larger one (12 × 768) sees, which gets gradients, too."""
    frames, mels = size(1024, 32), size(128, 16)

    def tower(layers: int, width: int, heads: int, seed: int) -> nn.Module:
        config = transformers.ASTConfig(
            hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=4 * width,
            max_length=frames, num_mel_bins=mels, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )  # fmt: skip
        return on_device(lambda: transformers.ASTModel(config), seed=seed)

    teacher = tower(size(12, 1), size(768, 32), size(12, 2), 0).eval()
    student = tower(size(4, 1), size(384, 16), size(6, 2), 1).train()
    student.reads = on_device(lambda: nn.Linear(size(384, 16), size(768, 32)), seed=2)
    sounds = torch.randn(size(8, 1), frames, mels, device=DEVICE)
    frozen = torch.no_grad if variant == AFTER else contextlib.nullcontext

    def loss() -> Tensor:
        with frozen():
            wanted = teacher(input_values=sounds).last_hidden_state
        return functional.mse_loss(student.reads(student(input_values=sounds).last_hidden_state), wanted)

    train = training(loss, adamw(student))

    def step() -> None:
        train()
        teacher.zero_grad(set_to_none=True)

    return step


class Field(nn.Module):
    """A NeRF: eight layers on sines and cosines of a place."""

    def __init__(self, width: int, frequencies: int) -> None:
        super().__init__()
        self.register_buffer("scales", 2.0 ** torch.arange(frequencies))
        layers: list[nn.Module] = [nn.Linear(6 * frequencies, width), nn.ReLU(inplace=True)]
        for _ in range(6):
            layers += [nn.Linear(width, width), nn.ReLU(inplace=True)]
        self.layers = nn.Sequential(*layers, nn.Linear(width, 4))

    def forward(self, places: Tensor) -> Tensor:
        """Places [rays, points, 3] → colours and densities [rays, points, 4]."""
        angles = (places[..., None] * self.scales).flatten(-2)
        return self.layers(torch.cat([angles.sin(), angles.cos()], -1))


@pair(
    "scattered-access", "scenes", "torch.randint(count, (4096,)), not torch.randperm(count)[:4096]", TWENTY_SECOND,
    accept=("memory-bandwidth", "unused-results"), steps=(3, 3),
)  # fmt: skip
def pixels_shuffled_to_draw_a_few(variant: str) -> Step:
    """A NeRF (8 × 256, bf16) learns from 4,096 of 96 million pixels; each step shuffles the numbers of all."""
    views, side, batch, points = size(150, 2), size(800, 8), size(4096, 4), size(64, 4)
    model = on_device(lambda: Field(size(256, 16), size(8, 2)))
    count = views * side * side
    colours = torch.randint(0, 256, (count, 3), device=DEVICE, dtype=torch.uint8)
    cameras = torch.randn(views, 3, 4, device=DEVICE)
    depths = torch.linspace(2.0, 6.0, points, device=DEVICE)

    def loss() -> Tensor:
        if variant == BEFORE:
            chosen = torch.randperm(count, device=DEVICE)[:batch]
        else:
            chosen = torch.randint(count, (batch,), device=DEVICE)
        camera, place = cameras[chosen // side**2], chosen % side**2
        plane = torch.stack([place % side, place // side, torch.full_like(place, side)], -1) / side - 0.5
        rays = (camera[:, :, :3] * plane[:, None]).sum(-1)
        told = model(camera[:, None, :, 3] + depths[:, None] * rays[:, None]).float()
        passed = functional.softplus(told[..., 3]) * (4.0 / points)
        shares = torch.exp(passed - passed.cumsum(-1)) * -torch.expm1(-passed)
        seen = (shares[..., None] * told[..., :3].sigmoid()).sum(1)
        return functional.mse_loss(seen, colours[chosen].float() / 255)

    return training(loss, adamw(model))


@healthy("sounds", TWENTY_SECOND, library="timm", compiles=True, steps=(2, 2))
def healthy_sound_training(variant: str) -> Step:
    """A ViT-B/16 learns 528 kinds of sounds from 64 spectra of 128 × 1,024: mixed precision, blocks compiled."""
    shape = (size(128, 32), size(1024, 64))
    name = "vit_base_patch16_224" if CUDA else "vit_tiny_patch16_224"
    kinds = size(528, 8)
    model = on_device(lambda: timm.create_model(name, img_size=shape, in_chans=1, num_classes=kinds)).train()
    compiled(model.blocks)
    x = torch.randn(size(64, 2), 1, *shape, device=DEVICE)
    labels = torch.rand(len(x), kinds, device=DEVICE).round()
    loss = functional.binary_cross_entropy_with_logits
    return training(lambda: loss(model(x).float(), labels), adamw(model))


@healthy("vision", TWENTY_SECOND, library="timm", compiles=True, inference=True, steps=(2, 2))
def healthy_fine_patches(variant: str) -> Step:
    """A ViT-B/8 describes 64 images (785 places each): bf16, blocks compiled, replayed from a CUDA graph."""
    name = "vit_base_patch8_224" if CUDA else "vit_tiny_patch16_224"
    model = on_device(lambda: timm.create_model(name, num_classes=0), HALF).eval()
    compiled(model.blocks)
    x = images(size(64, 1), 224, HALF)
    return as_graph(lambda: model(x))


@healthy("diffusion", TWENTY_SECOND, compiles=True, inference=True, steps=(2, 2))
def healthy_sound_denoising(variant: str) -> Step:
    """A denoiser (8 × 1,536) takes two steps for 8 sounds of 1,024 latents, with and without text: bf16, compiled."""
    width, batch = size(1536, 32), size(8, 1)
    blocks = on_device(lambda: nn.ModuleList(Told(width, width, size(24, 2)) for _ in range(size(8, 1))), HALF).eval()
    compiled(blocks)
    noise = torch.randn(batch, size(1024, 16), width, device=DEVICE, dtype=HALF)
    text = torch.randn(2 * batch, size(64, 4), width, device=DEVICE, dtype=HALF)

    def step() -> Tensor:
        x = noise
        for _ in range(2):
            y = torch.cat([x, x])
            for block in blocks:
                y = block(y, text)
            guided, free = y.chunk(2)
            x = x - 0.1 * torch.lerp(free, guided, 4.0)
        return x

    return step


@healthy("time series", TWENTY_SECOND, compiles=True, inference=True, steps=(3, 3))
def healthy_graphed_forecasts(variant: str) -> Step:
    """A forecaster (6 × 2,048) reads 64 series of 256 patches and 32 known ones: bf16, compiled, in a CUDA graph."""
    width, batch = size(2048, 32), size(64, 2)
    blocks = on_device(lambda: nn.ModuleList(Told(width, width, size(16, 2)) for _ in range(size(6, 1))), HALF).eval()
    head = on_device(lambda: nn.Linear(width, size(64, 8)), HALF, 1).eval()
    compiled(blocks)
    patches = torch.randn(batch, size(256, 8), width, device=DEVICE, dtype=HALF)
    known = torch.randn(batch, size(32, 4), width, device=DEVICE, dtype=HALF)

    def forecast() -> Tensor:
        x = patches
        for block in blocks:
            x = block(x, known)
        return head(x.mean(1))

    return as_graph(forecast)
