"""Whole evaluations at toy size: what is judged, measured, refused."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer import Typer
from typer.testing import CliRunner

from outrider.cli.train_evaluate import evaluate as command
from outrider.errors import ConfigError, TrainingError, UnknownModel
from outrider.sampling import History, TokenSampler
from outrider.train import candidates
from outrider.train.data import make_data, source_of
from outrider.train.evaluate import check_source, evaluate, judge, rule_for, target_rows
from outrider.train.forecast import Verdict
from outrider.train.opening import open_candidate
from outrider.train.prompts import Prompt
from outrider.train.reading import read
from outrider.train.records import Example, Sampling
from outrider.train.store import Examples, Part, read_examples
from outrider.types import SamplingParams, VerificationMethod
from tests.train.toy import toy_settings, toy_target, write_toy

pytestmark = pytest.mark.anyio

PROMPTS = [
    Prompt(f"c{n % 2}", turns=(f"Question {n}", f"And {n}?")) for n in range(6)
]  # two answers each


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="module")
def toy(folder: Path):
    with toy_target(folder) as made:
        yield made


@pytest.fixture(scope="module")
def data(toy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("data")

    async def make() -> None:
        target, lane = toy
        info = await target.describe()
        sampling = Sampling(temperatures=(0.0, 1.0), max_tokens=20)
        source = source_of(info, PROMPTS, sampling, k=8, holdout=1.0)
        await make_data(out, lane, info, source, PROMPTS, streams=3)

    asyncio.run(make())
    return out


def at(examples: Examples, temperature: float) -> list[int]:
    return [n for n, entry in enumerate(examples.entries) if entry.temperature == temperature]


async def opened(toy: Any, folder: Path, *specs: str) -> list[Any]:
    target, lane = toy
    info = await target.describe()
    return [open_candidate(spec, info, lane, toy_settings(folder)) for spec in specs]


async def logits_of(lane: Any, example: Example) -> dict[int, np.ndarray]:
    """A model's rows behind every token of an example."""
    rows: dict[int, np.ndarray] = {}

    def look(place: int, row: Any) -> None:
        rows[place] = row.numpy().copy()

    await read(lane, example.token_ids.tolist(), range(len(example.token_ids)), look)
    return rows


async def evaluated(toy: Any, folder: Path, data: Path, *specs: str, temperature: float = 0.0):
    examples = read_examples(data, Part.HELD_OUT)
    return await evaluate(
        examples,
        at(examples, temperature),
        toy[1],
        await opened(toy, folder, *specs),
        temperature=temperature,
        preferred=VerificationMethod.MATCHING,
        lookahead=3,
        most=5,
    )


async def test_a_draft_that_is_the_target_is_always_accepted_under_every_rule(
    toy, folder, data
) -> None:
    examples = read_examples(data)
    (same,) = await opened(toy, folder, "layers:2")
    for temperature, method in [
        (0.0, VerificationMethod.GREEDY),
        (1.0, VerificationMethod.MATCHING),
        (1.0, VerificationMethod.TOKEN),
        (1.0, VerificationMethod.BLOCK),
    ]:
        rule = rule_for(same, examples.source, temperature, method, 4)
        assert rule.method is method
        places = at(examples, temperature)
        (tally,) = await judge(examples[:], places, toy[1], [(same, rule)])
        later = sum(
            part.stop - part.start - 1
            for place in places
            for part in candidates.answers(examples[place])
        )
        assert tally.tokens.sum() == later > 100
        least = sum(
            -(-(part.stop - part.start - 1) // 5)
            for place in places
            for part in candidates.answers(examples[place])
        )
        # Declared rows are rounded, and none but 256 tokens are kept: next to nothing is lost.
        assert tally.rounds[:, 4].sum() == pytest.approx(least, rel=0.02 if method.ratio else 1e-5)


async def test_a_drafts_tokens_are_looked_at_where_the_target_said_them(toy, folder, data) -> None:
    examples = read_examples(data)
    (draft,) = await opened(toy, folder, "layers:1")
    example = examples[at(examples, 0.0)[0]]
    rule = rule_for(draft, examples.source, 0.0, VerificationMethod.MATCHING, 2)
    prospects = await draft.judge(example, {}, rule)
    rows = await logits_of(draft.lane, example)
    parts = candidates.answers(example)
    assert len(prospects) == len(parts) == 2
    for part, prospect in zip(parts, prospects, strict=True):
        agreed = [
            int(rows[place - 1].argmax()) == example.token_ids[place]
            for place in range(part.start + 1, part.stop)
        ]
        assert prospect.held[:, 1].tolist() == [float(each) for each in agreed]


async def test_coupled_drafts_are_accepted_as_often_as_the_noise_makes_them_agree(
    toy, folder, data
) -> None:
    examples = read_examples(data)
    (draft,) = await opened(toy, folder, "layers:1")
    rule = rule_for(draft, examples.source, 1.0, VerificationMethod.MATCHING, 1)
    example = examples[at(examples, 1.0)[0]]
    rows = await target_rows(toy[1], example, rule.params)
    prospects = await draft.judge(example, rows, rule)
    foretold = np.concatenate([prospect.held[:, 1] for prospect in prospects])
    places = candidates.judged_places(example)
    theirs, ours = await logits_of(toy[1], example), await logits_of(draft.lane, example)
    history = History((0,))
    surprise, variance = 0.0, 0.0
    for chosen in np.argsort([-rows[place].said for place in places])[:8]:
        place, expected = places[chosen], foretold[chosen]
        for key in range(300):
            sampler = TokenSampler(SamplingParams(), key)
            if sampler.sample(theirs[place - 1], history) == example.token_ids[place]:
                agreed = sampler.sample(ours[place - 1], history) == example.token_ids[place]
                surprise += float(agreed) - expected
                variance += expected * (1 - expected)
    assert variance > 20
    assert abs(surprise) < 4 * variance**0.5


async def test_an_evaluation_tells_of_every_draft_and_category(toy, folder, data) -> None:
    found = await evaluated(toy, folder, data, "layers:2", "layers:1", "ngram", "suffix")
    assert [each.name for each in found.drafts] == ["layers:2", "layers:1", "ngram", "suffix"]
    assert found.prompts == 6
    assert {name: prompts for name, (prompts, _) in found.categories.items()} == {"c0": 3, "c1": 3}
    same, other, ngram, _ = found.drafts
    assert same.method is VerificationMethod.GREEDY
    assert same.acceptance == pytest.approx(1.0)
    assert 3 < same.tokens_per_round[3].value <= 4
    assert other.acceptance < 0.9
    for draft in found.drafts:
        assert draft.speedup[0].value == pytest.approx(1.0)
        assert len(draft.speedup) == len(draft.tokens_per_round) == 6
        low, value, high = draft.speedup[2].low, draft.speedup[2].value, draft.speedup[2].high
        assert low <= value <= high
    # A draft that costs as much as the target cannot pay.
    assert same.token_s > 0
    assert same.verdict is not Verdict.PAYS
    assert ngram.token_s == 0 < ngram.round_s
    assert same.against_first is None
    assert other.against_first is not None
    assert found.costs.target_s.shape[1] == 6
    assert (found.costs.target_s > 0).all()


async def test_what_needs_no_model_is_matched_and_sees_the_prompt(toy, folder, data) -> None:
    (replayed,) = await opened(toy, folder, "ngram")
    examples = read_examples(data)
    rule = rule_for(replayed, examples.source, 1.0, VerificationMethod.BLOCK, 4)
    assert rule.method is VerificationMethod.MATCHING
    repeating = replace(
        examples[0],
        token_ids=np.tile([5, 6, 7, 8], 8).astype(np.int32),
        generated=np.arange(32) >= 12,
        finish_reasons=("length",),
    )
    (prospect,) = await replayed.judge(repeating, {}, rule)
    assert len(prospect.drafted) == 19
    # All of the loop is foreseen; and nothing is drafted for the last token of a budget.
    assert prospect.drafted.tolist() == [4] * 15 + [3, 2, 1, 0]
    assert prospect.held[0].tolist() == [1.0] * 5


async def test_data_of_another_target_is_refused(toy, data) -> None:
    info = await toy[0].describe()
    source = read_examples(data).source
    check_source(source, info)
    with pytest.raises(TrainingError, match=r"not of .*give the --target and --dtype"):
        check_source(replace(source, model_hash="other"), info)


async def test_answers_of_one_token_are_nothing_to_judge_by(toy, folder, data) -> None:
    examples = read_examples(data)
    with pytest.raises(TrainingError, match="no answer of two tokens"):
        await evaluate(
            examples,
            [],
            toy[1],
            await opened(toy, folder, "ngram"),
            temperature=0.0,
            preferred=VerificationMethod.MATCHING,
            lookahead=2,
            most=4,
        )


@pytest.mark.parametrize("spec", ["none", "self", "mixed:ngram+suffix", "table:x", "layers:9"])
async def test_what_cannot_be_judged_is_refused_by_name(toy, folder, spec) -> None:
    with pytest.raises(ConfigError, match=f"draft '{spec.replace('+', '.')}'"):
        await opened(toy, folder, spec)


async def test_an_unknown_draft_is_refused(toy, folder) -> None:
    with pytest.raises(UnknownModel, match="nowhere"):
        await opened(toy, folder, "./nowhere")


def run(*args: object):
    app = Typer()
    app.command()(command)
    return CliRunner().invoke(app, [str(each) for each in args], env={"COLUMNS": "100"})


def test_the_command_prints_writes_and_draws(folder, data, tmp_path) -> None:
    result = run(
        data, "--target", folder, "--draft", "layers:1", "--draft", "ngram", "--threads", 1,
        "--lookahead", 2, "--max-lookahead", 3, "--json", tmp_path / "e.json",
        "--plot", tmp_path / "e.svg", "--limit", 4,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "temperature 0:" in result.stdout
    assert "temperature 1:" in result.stdout
    assert "layers:1" in result.stdout
    written = json.loads((tmp_path / "e.json").read_text())["evaluations"]
    assert [each["temperature"] for each in written] == [0.0, 1.0]
    assert [each["prompts"] for each in written] == [4, 4]
    assert [draft["method"] for draft in written[1]["drafts"]] == ["block", "matching"]
    assert len(written[0]["target_step_s"]) == 4
    assert "<svg" in (tmp_path / "e.svg").read_text()[:1000]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--temperature", "0.5"], "holds answers at 0, 1"),
        (["--draft", "ngram"], "name each once"),
        (["--json", "nowhere/e.json"], "there is no folder nowhere"),
    ],
)
def test_the_command_refuses_what_it_cannot_do(folder, data, options, message) -> None:
    result = run(data, "--target", folder, "--draft", "ngram", *options)
    assert isinstance(result.exception, ConfigError)
    assert message in str(result.exception)


def test_the_command_refuses_a_folder_in_which_nothing_is_held_out(folder, tmp_path, toy) -> None:
    async def make() -> None:
        info = await toy[0].describe()
        sampling = Sampling(temperatures=(0.0,), max_tokens=4)
        source = source_of(info, PROMPTS, sampling, k=4, holdout=0.0)
        await make_data(tmp_path, toy[1], info, source, PROMPTS, streams=3)

    asyncio.run(make())
    result = run(tmp_path, "--target", folder, "--draft", "ngram")
    assert "no prompt of" in str(result.exception)
    assert "--all" in str(result.exception)
