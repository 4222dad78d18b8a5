"""Joint distributions of a table's output tokens: exactly, and as clients of the gateway see them.

The exact side shares no code with the sampler of the product: rows come from the table that was
written, processed by `tests.verify.processing`. Outputs are short enough to enumerate. A server
drafts two tokens a round, and never for the first token; so with four tokens a round judges two of
them and adds a third, and there are all the ways in which a draft can fail.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from outrider.config import load_settings
from outrider.pipeline import create_pipeline
from outrider.types import SamplingParams
from tests.gateway.serving import Gateway, running
from tests.verify.processing import processed

Prefix = tuple[int, ...]
Joint = Mapping[Prefix, float]

PROMPT = (0, 1)
LENGTH = 4
LOOKAHEAD = 2
COPIES = 128
"""Copies in one request: the most that `limits.max_choices` can allow."""

SAMPLES = 5120
"""In each setting, so twice as many for each way of judging drafts."""

LEAST_LIKELY = 1e-5
"""An honest sample goes beyond this in one of 100,000 runs of a test."""

METHODS: Mapping[str, dict[str, Any]] = {
    "plain": {"enabled": False},
    "matching": {"verification": "matching"},
    "token": {"verification": "token"},
    "block": {"verification": "block"},
}
"""Options that say how a request is decoded."""


@dataclass(frozen=True)
class Table:
    """A random table of logits, a row for every context of up to `order` tokens."""

    seed: int
    vocab_size: int = 4
    order: int = 2
    eos: tuple[int, ...] = ()
    rows: dict[Prefix, list[float]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        draw = np.random.default_rng(self.seed)
        for size in range(self.order + 1):
            for context in itertools.product(range(self.vocab_size), repeat=size):
                self.rows[context] = (1.5 * draw.standard_normal(self.vocab_size)).tolist()

    def logits(self, prefix: Prefix) -> list[float]:
        return self.rows[prefix[max(len(prefix) - self.order, 0) :]]

    def write(self, file: Path) -> Path:
        logits = {",".join(map(str, context)): row for context, row in self.rows.items()}
        table = {"vocab_size": self.vocab_size, "order": self.order, "eos": self.eos}
        file.write_text(json.dumps(table | {"logits": logits}))
        return file


def params_of(request: Mapping[str, Any], eos: tuple[int, ...] = ()) -> SamplingParams:
    """The parameters of a request, for the reference; `eos` counts among the stop tokens."""
    given = dict(request)
    given["logit_bias"] = {int(token): bias for token, bias in given.pop("logit_bias", {}).items()}
    words = given.pop("bad_words", ())
    given["bad_words"] = tuple(tuple(map(int, word.split())) for word in words)
    stops = given.pop("stop_token_ids", ())
    return SamplingParams(**given, stop_token_ids=frozenset((*stops, *eos)))


@dataclass(frozen=True)
class Setting:
    """Two tables and what a request asks for."""

    target: Table
    draft: Table
    request: Mapping[str, Any]

    @property
    def params(self) -> SamplingParams:
        return params_of(self.request, self.target.eos)

    def row(self, table: Table, prefix: Prefix, counted: Prefix) -> np.ndarray:
        """The distribution behind `prefix`, with the output `counted` for all that counts it."""
        return processed(table.logits(PROMPT + prefix), PROMPT, counted, self.params)

    def joint(self, counted: Callable[[Prefix], Prefix] = lambda prefix: prefix) -> Joint:
        """Probability of every output."""
        found: dict[Prefix, float] = {}
        unfinished: list[tuple[Prefix, float]] = [((), 1.0)]
        while unfinished:
            prefix, chance = unfinished.pop()
            if len(prefix) == LENGTH or set(prefix[-1:]) & set(self.target.eos):
                found[prefix] = chance
                continue
            row = self.row(self.target, prefix, counted(prefix))
            unfinished += [
                ((*prefix, token), chance * prob) for token, prob in enumerate(row) if prob > 0
            ]
        return found


SETTINGS: Mapping[str, Setting] = {
    "penalties, bias, bad words and top-p": Setting(
        Table(8),
        Table(28),
        {
            "temperature": 1.2,
            "top_p": 0.95,
            "repetition_penalty": 1.5,
            "presence_penalty": 0.7,
            "frequency_penalty": 0.6,
            "logit_bias": {"1": 0.8, "3": -0.4},
            "bad_words": ["2 0"],
        },
    ),
    "temperature, min-p, top-k and the least length before an end": Setting(
        Table(7, eos=(3,)),
        Table(27, eos=(3,)),
        {
            "temperature": 1.6,
            "min_p": 0.08,
            "top_k": 3,
            "repetition_penalty": 1.2,
            "min_tokens": 2,
        },
    ),
}


@asynccontextmanager
async def serving(
    folder: Path, target: Table, drafts: Mapping[str, Table], **speculation: Any
) -> AsyncIterator[Gateway]:
    """A gateway over sockets; `drafts` by the names of their files, behind prompt lookup."""
    specs = [f"table:{table.write(folder / f'{name}.json')}" for name, table in drafts.items()]
    # A busy machine must not turn drafts that are to be judged into none.
    fixed = {"controller": "fixed", "lookahead": LOOKAHEAD, "deadline_ms": 60_000}
    settings = load_settings(
        None,
        {
            "engine": {
                "target": f"table:{target.write(folder / 'target.json')}",
                "max_sessions": COPIES,
            },
            "speculation": {**fixed, "drafts": (*specs, "ngram"), **speculation},
            "limits": {"max_choices": COPIES, "max_running": COPIES},
        },
    )
    pipeline = await create_pipeline(settings)
    async with running(pipeline, settings) as gateway:
        yield gateway


async def complete(gateway: Gateway, **body: Any) -> dict[str, Any]:
    """A completion of `PROMPT` unless told otherwise, with token ids."""
    asked = {"model": "target", "prompt": PROMPT, "return_token_ids": True} | body
    response = await gateway.post("/v1/completions", asked, timeout=120)
    assert response.status_code == 200, response.text
    return response.json()


@dataclass
class Sample:
    """Outputs by how often they came, and what the responses told of drafting."""

    counts: Counter[Prefix] = field(default_factory=Counter)
    methods: set[str] = field(default_factory=set)
    drafted: int = 0
    accepted: int = 0
    failures: int = 0

    def add(self, response: Mapping[str, Any]) -> None:
        self.counts.update(tuple(choice["token_ids"]) for choice in response["choices"])
        told = response["speculation"]
        self.methods.add(told["verification"])
        self.drafted += told["drafted_tokens"]
        self.accepted += told["accepted_tokens"]
        self.failures += told["draft_failures"]


async def draw(gateway: Gateway, setting: Setting, method: str, size: int) -> Sample:
    """At least `size` outputs, from requests of `COPIES` copies, two of them at a time."""
    sample = Sample()
    wanted = iter(range(math.ceil(size / COPIES)))

    async def ask() -> None:
        for _ in wanted:
            body = {"max_tokens": LENGTH, "n": COPIES, "speculation": METHODS[method]}
            sample.add(await complete(gateway, **setting.request, **body))

    await asyncio.gather(ask(), ask())
    return sample


def drafted_for(joint: Mapping[Prefix, Any]) -> Counter[Prefix]:
    """The joint of what follows the first token, for which nothing is drafted."""
    found: Counter[Prefix] = Counter()
    for outcome, weight in joint.items():
        found[outcome[1:]] += weight
    return found
