"""Tiny random models on the real engine, made in milliseconds."""

from __future__ import annotations

import torch

from outrider.engine import Chunk, Decoder, EngineThread, Lane, ModelConfig, TorchDecoder
from outrider.engine.decoder import Layer
from outrider.engine.linear import Linear
from outrider.types import Capabilities, TargetInfo

VOCAB = 48
CONTEXT = 256


def tiny_decoder(seed: int = 0, *, num_layers: int = 2, sharpness: float = 1.0) -> Decoder:
    """A random Llama with float32 weights."""
    config = ModelConfig.from_hf(
        {
            "model_type": "llama",
            "vocab_size": VOCAB,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": num_layers,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": CONTEXT,
            "rms_norm_eps": 1e-5,
        }
    )
    draw = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw) * 0.3

    def layer() -> Layer:
        return Layer(
            attention_norm=torch.ones(32),
            qkv=Linear(random(64, 32)),
            output=Linear(random(32, 32)),
            mlp_norm=torch.ones(32),
            gate_up=Linear(random(96, 32)),
            down=Linear(random(32, 48)),
        )

    return TorchDecoder(
        config,
        embedding=random(VOCAB, 32),
        layers=[layer() for _ in range(num_layers)],
        norm=torch.ones(32),
        head=Linear(random(VOCAB, 32) * sharpness),
    )


def tiny_lane(
    engine: EngineThread, decoder: Decoder, *, num_slots: int = 4, step_tokens: int = 64
) -> Lane:
    return Lane(engine, decoder, num_slots=num_slots, max_length=CONTEXT, step_tokens=step_tokens)


def tiny_info(*, eos: frozenset[int] = frozenset()) -> TargetInfo:
    return TargetInfo(
        model_id="tiny",
        model_hash="tiny",
        vocab_size=VOCAB,
        vocab_fingerprint="tiny",
        eos_token_ids=eos,
        context_length=CONTEXT,
        capabilities=Capabilities(max_draft_tokens=16),
    )


def next_logits(decoder: Decoder, tokens: list[int]) -> torch.Tensor:
    """Logits behind `tokens`, [V], computed from nothing."""
    cache = decoder.new_cache(num_slots=1, max_length=len(tokens))
    (logits,) = decoder.forward([Chunk(cache.allocate(), tokens, 1)], cache)
    return logits[0]
