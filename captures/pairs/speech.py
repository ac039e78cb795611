"""Speech models of transformers."""

from __future__ import annotations

import torch
import transformers

from pairs.parts import DEVICE, adamw, on_device, size, training
from pairs.registry import BEFORE, Step, pair


@pair(
    "unfused-attention", "speech", "attn_implementation='sdpa' instead of 'eager'", library="transformers", ranges=False
)
def whisper_eager_attention(variant: str) -> Step:
    """The encoder of Whisper-small, trained on 16 recordings of 30 s (1,500 positions), scores written to memory."""
    config = transformers.WhisperConfig(
        d_model=size(768, 64), encoder_layers=size(12, 2), encoder_attention_heads=size(12, 2),
        encoder_ffn_dim=size(3072, 96), num_mel_bins=80, max_source_positions=size(1500, 50),
    )  # fmt: skip
    config._attn_implementation = "eager" if variant == BEFORE else "sdpa"
    model = on_device(lambda: transformers.models.whisper.modeling_whisper.WhisperEncoder(config)).train()
    sound = torch.randn(size(16, 2), 80, 2 * config.max_source_positions, device=DEVICE)
    return training(lambda: model(sound).last_hidden_state.float().square().mean(), adamw(model))
