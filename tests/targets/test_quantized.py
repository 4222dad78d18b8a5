"""The quantized engine under all that is above it: outputs that differ in nothing."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Iterator

import pytest
import torch

from outrider.config import load_settings
from outrider.drafters import NgramDrafter
from outrider.drafters.model import ModelDrafter
from outrider.engine import EngineThread, Lane, ModelConfig
from outrider.engine.fourbit import FourBit
from outrider.engine.kernels import PackedLinear, Threads
from outrider.engine.quantize import round_int8
from outrider.engine.quantized import QuantizedDecoder, QuantizedLayer
from outrider.metrics import Metrics
from outrider.pipeline import Pipeline
from outrider.targets.local import LocalTarget
from outrider.types import Capabilities, DrafterInfo, Exactness, SamplingParams
from tests.pipeline.scenes import run
from tests.targets.test_local import alone
from tests.tiny import CONTEXT, VOCAB, tiny_info

pytestmark = pytest.mark.anyio

GREEDY = SamplingParams(temperature=0.0, max_tokens=40)
SEEDED = SamplingParams(temperature=0.8, top_p=0.95, seed=3, max_tokens=40)
NEIGHBOURS = 7


def tiny_quantized(threads: Threads, *, bits: int, num_layers: int = 2) -> QuantizedDecoder:
    """A random Llama of 4-bit or 8-bit weights."""
    config = ModelConfig.from_hf(
        {
            "model_type": "llama",
            "vocab_size": VOCAB,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": num_layers,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": CONTEXT,
            "rms_norm_eps": 1e-5,
        }
    )
    draw = torch.Generator().manual_seed(bits)

    def linear(outputs: int, inputs: int, size: float = 0.3) -> PackedLinear:
        if bits == 8:
            weight = torch.randn(outputs, inputs, generator=draw) * size
            return PackedLinear.int8(*round_int8(weight), None)
        codes = torch.randint(256, (outputs, inputs // 2), generator=draw).to(torch.uint8)
        steps = (torch.rand(outputs, inputs // 32, generator=draw) * size / 4).half()
        return PackedLinear.int4(FourBit(codes, steps, steps * -7.5), None)

    def layer() -> QuantizedLayer:
        return QuantizedLayer(
            attention_norm=torch.ones(64),
            qkv=linear(128, 64),
            output=linear(64, 64),
            mlp_norm=torch.ones(64),
            gate_up=linear(192, 64),
            down=linear(64, 96),
        )

    return QuantizedDecoder(
        config,
        embedding=linear(VOCAB, 64),
        layers=[layer() for _ in range(num_layers)],
        norm=torch.ones(64),
        head=linear(VOCAB, 64, 1.5),
        threads=threads,
    )


@pytest.fixture(scope="module", params=[8, 4], ids=["int8", "int4"])
def decoder(request: pytest.FixtureRequest) -> QuantizedDecoder:
    return tiny_quantized(Threads(2), bits=request.param)


@pytest.fixture
def engine() -> Iterator[EngineThread]:
    engine = EngineThread(threads=1)
    yield engine
    engine.close()


async def pipeline_over(
    engine: EngineThread, decoder: QuantizedDecoder, *, lookahead: int
) -> Pipeline:
    def lane(model: QuantizedDecoder) -> Lane:
        return Lane(engine, model, num_slots=12, max_length=CONTEXT, step_tokens=64)

    exact = Capabilities(batch_invariant=True, max_draft_tokens=16)
    target = LocalTarget(lane(decoder), dataclasses.replace(tiny_info(), capabilities=exact))
    half = DrafterInfo(name="half", deterministic=False, context_length=CONTEXT)
    drafters = {
        "ngram": (ngram := NgramDrafter(), await ngram.describe()),
        "half": (
            ModelDrafter(
                lane(decoder.truncated(1)), half, vocab_size=VOCAB, eos_token_ids=frozenset()
            ),
            half,
        ),
    }
    chosen = {"controller": "fixed", "lookahead": lookahead}
    settings = load_settings(None, {"speculation": chosen})
    return Pipeline(target, await target.describe(), drafters, settings, Metrics())


def prompts(count: int) -> list[tuple[int, ...]]:
    draw = random.Random(0)
    beginning = [draw.randrange(VOCAB) for _ in range(40)]
    return [
        (*beginning, *(draw.randrange(VOCAB) for _ in range(draw.choice([1, 5, 60]))))
        for _ in range(count)
    ]


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
async def test_outputs_are_the_same_to_the_bit_for_every_lookahead_alone_and_in_company(
    engine, decoder, sampling
) -> None:
    asked = prompts(1 + NEIGHBOURS)
    expected = [alone(decoder, prompt, sampling) for prompt in asked]
    assert len(set(expected)) > 1
    for k in (0, 4, 8, 16):
        pipeline = await pipeline_over(engine, decoder, lookahead=k)
        for name in pipeline.drafter_names:

            async def answer(prompt, pipeline=pipeline, name=name) -> tuple[int, ...]:
                session = pipeline.session(prompt, sampling, drafter=name)
                output = await run(pipeline, session)
                assert session.verification()[1:] == (Exactness.IDENTICAL, None)
                return output

            assert await answer(asked[0]) == expected[0]
            assert await asyncio.gather(*map(answer, asked)) == expected
