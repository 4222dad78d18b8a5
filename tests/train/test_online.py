"""What is served, against the estimate from text alone: the same rules, the same models."""

from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from outrider.models import write_draft_vocabulary
from outrider.pipeline import create_pipeline
from outrider.text import create_tokenizer
from outrider.train.data import source_of
from outrider.train.evaluate import judge, rule_for
from outrider.train.forecast import Tally
from outrider.train.opening import open_candidate
from outrider.train.records import Example, Sampling
from outrider.types import SamplingParams, VerificationMethod
from tests.train.toy import MERGES, VOCAB, toy_settings, toy_target, write_toy

pytestmark = pytest.mark.anyio

LOOKAHEAD = 4
MAX_TOKENS = 160
SESSIONS = 16
NOISE = 0.03
LACKING = range(256 + len(MERGES) // 2, 256 + len(MERGES))
"""Merges that the draft spells in two."""


def write_draft(target: Path, folder: Path) -> Path:
    """The target, a little beside itself, without some of its tokens."""
    shutil.copytree(target, folder)
    model = LlamaForCausalLM.from_pretrained(folder)
    kept = [i for i in range(VOCAB) if i not in LACKING]
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(NOISE * weight.std() * torch.randn_like(weight))
        head = model.lm_head.weight[kept].clone()
        table = model.model.embed_tokens.weight[kept].clone()
    model.config.eos_token_id = None  # the target's counts
    model.resize_token_embeddings(len(kept))
    with torch.no_grad():
        model.lm_head.weight.copy_(head)
        model.model.embed_tokens.weight.copy_(table)
    model.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    assert config["vocab_size"] == len(kept)
    write_draft_vocabulary(folder, np.array(kept))
    return folder


@dataclass(frozen=True)
class Scene:
    """A target and a draft of it."""

    target: Path
    draft: Path


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    folder = tmp_path_factory.mktemp("online")
    target = write_toy(folder / "target")
    return Scene(target, write_draft(target, folder / "draft"))


@dataclass(frozen=True)
class Served:
    """An answer, and the rounds that it took: all but the one of its first token."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]
    rounds: int
    finish: str

    def example(self, number: int) -> Example:
        tokens = np.array([*self.prompt, *self.output], dtype=np.int32)
        nothing = np.zeros((len(self.output), 1), dtype=np.float32)
        return Example(
            id=str(number),
            category="",
            token_ids=tokens,
            generated=np.arange(len(tokens)) >= len(self.prompt),
            support_ids=nothing.astype(np.int32),
            support_logits=nothing,
            logsumexps=nothing,
            finish_reasons=(self.finish,),
        )


async def serve(
    scene: Scene, temperature: float, method: VerificationMethod, count: int
) -> list[Served]:
    """Answers to so many prompts; drawn with seeds where the rule allows for them."""
    settings = toy_settings(scene.target, max_sessions=SESSIONS)
    speculation = settings.speculation.model_copy(
        update={
            "drafts": (str(scene.draft),),
            "controller": "fixed",
            "lookahead": LOOKAHEAD,
            "ahead": "never",
            "verification": method.value,
        }
    )
    pipeline = await create_pipeline(settings.model_copy(update={"speculation": speculation}))
    tokenizer = create_tokenizer(pipeline.info)
    gate = asyncio.Semaphore(SESSIONS)

    async def ask(number: int) -> Served:
        prompt = tuple(
            tokenizer.encode(f"{number} or {number + 1} apples?", add_special_tokens=True)
        )
        params = SamplingParams(
            temperature=temperature,
            max_tokens=MAX_TOKENS,
            seed=None if method.ratio else number,
        )
        async with gate:
            session = pipeline.session(prompt, params)
            async for _ in pipeline.run(session):
                pass
        assert session.stats.failures == 0
        assert session.stats.drafted > 0 or session.output_length < 3
        assert session.finish_reason is not None
        rounds = session.stats.rounds - 1
        return Served(prompt, session.output_ids, rounds, str(session.finish_reason))

    try:
        return await asyncio.gather(*(ask(number) for number in range(count)))
    finally:
        await pipeline.close()


async def estimate(
    scene: Scene, served: list[Served], temperature: float, method: VerificationMethod
) -> Tally:
    """Of the very text that was served, from the text alone."""
    with toy_target(scene.target) as (target, lane):
        info = await target.describe()
        sampling = Sampling(temperatures=(temperature,), max_tokens=MAX_TOKENS)
        source = source_of(info, [], sampling, k=1, holdout=0.0)
        draft = open_candidate(str(scene.draft), info, lane, toy_settings(scene.target))
        rule = rule_for(draft, source, temperature, method, LOOKAHEAD)
        examples = [each.example(number) for number, each in enumerate(served)]
        (tally,) = await judge(examples, range(len(served)), lane, [(draft, rule)])
    return tally


async def test_greedy_rounds_are_exactly_those_that_were_foretold(scene) -> None:
    served = await serve(scene, 0.0, VerificationMethod.MATCHING, 24)
    tally = await estimate(scene, served, 0.0, VerificationMethod.MATCHING)
    assert tally.method is VerificationMethod.GREEDY
    np.testing.assert_array_equal(tally.tokens, [len(each.output) - 1 for each in served])
    np.testing.assert_allclose(tally.rounds[:, LOOKAHEAD], [each.rounds for each in served])
    assert 1.3 < per_round(tally) < 4


async def test_matched_tokens_per_round_are_within_five_percent_of_the_estimate(scene) -> None:
    served = await serve(scene, 1.0, VerificationMethod.MATCHING, 64)
    tally = await estimate(scene, served, 1.0, VerificationMethod.MATCHING)
    assert tally.method is VerificationMethod.MATCHING
    assert per_round(tally) == pytest.approx(found_per_round(served), rel=0.05)
    assert 1.3 < per_round(tally) < 4
    # If rounds began anywhere alike, it would be another number.
    everywhere = tally.starts[:, : LOOKAHEAD + 1].sum() / tally.tokens.sum()
    assert everywhere != pytest.approx(found_per_round(served), rel=0.05)


async def test_block_tokens_per_round_are_within_five_percent_of_the_estimate(scene) -> None:
    # They are drawn anew in every run: with so many, 5% are more than four standard errors.
    served = await serve(scene, 1.0, VerificationMethod.BLOCK, 160)
    tally = await estimate(scene, served, 1.0, VerificationMethod.BLOCK)
    assert tally.method is VerificationMethod.BLOCK
    assert per_round(tally) == pytest.approx(found_per_round(served), rel=0.05)


def per_round(tally: Tally) -> float:
    return float(tally.tokens.sum() / tally.rounds[:, LOOKAHEAD].sum())


def found_per_round(served: list[Served]) -> float:
    tokens = sum(len(each.output) - 1 for each in served)
    return tokens / sum(each.rounds for each in served)
