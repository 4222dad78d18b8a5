"""What the measuring scripts share: prompts from JSONL files, and one decoded answer."""

from __future__ import annotations

import json
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from outrider.pipeline import Pipeline, Session
from outrider.text import ChatTemplate, Tokenizer, create_tokenizer
from outrider.types import SamplingParams, TokenIds, VerificationMethod


@dataclass(frozen=True, slots=True)
class Prompt:
    """The first turn of one line of a JSONL file (`turns`, and perhaps `category`)."""

    source: str
    index: int
    category: str
    text: str


def read_prompts(files: list[Path], limit: int | None) -> list[Prompt]:
    """The prompts of all files; with a limit, that many of each, evenly spread."""
    prompts = []
    for file in files:
        rows = [json.loads(line) for line in file.read_text().splitlines() if line.strip()]
        step = max(1, len(rows) // limit) if limit else 1
        picked = list(enumerate(rows))[::step][:limit]
        prompts += [
            Prompt(file.stem, index, row.get("category", file.stem), row["turns"][0])
            for index, row in picked
        ]
    return prompts


class Chat:
    """Turns a prompt's text into token ids, as the gateway would for a chat."""

    def __init__(self, pipeline: Pipeline) -> None:
        info = pipeline.info
        self.tokenizer: Tokenizer = create_tokenizer(info)
        self._template = ChatTemplate(info.chat_template, info.special_tokens)

    def encode(self, prompt: Prompt) -> TokenIds:
        rendered = self._template.render([{"role": "user", "content": prompt.text}])
        return tuple(self.tokenizer.encode(rendered, add_special_tokens=False))


async def decode(
    pipeline: Pipeline,
    prompt_ids: TokenIds,
    sampling: SamplingParams,
    drafter: str | None,
    verification: VerificationMethod | None = None,
) -> Session:
    """The finished session of one answer; without a drafter it is decoded plainly."""
    session = pipeline.session(
        prompt_ids,
        sampling,
        enabled=drafter is not None,
        drafter=drafter,
        verification=verification,
    )
    async with aclosing(pipeline.run(session)) as steps:
        async for _ in steps:
            pass
    return session


def decode_speed(session: Session) -> float | None:
    """(n - 1) / (t_last - t_first) in tokens per second; None if there was only one token."""
    if session.first_token_at is None or session.last_token_at is None:
        return None
    elapsed = session.last_token_at - session.first_token_at
    return (session.output_length - 1) / elapsed if session.output_length > 1 else None
