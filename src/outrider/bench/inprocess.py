"""Answers of a pipeline in this process, step by step."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from outrider.bench.answer import Answer, Chunk, Counting, Drafts, check_length
from outrider.bench.recording import Clock
from outrider.bench.workload import Question
from outrider.errors import ConfigError
from outrider.pipeline import Pipeline, Session
from outrider.text import ChatTemplate, Tokenizer, create_tokenizer
from outrider.types import FinishReason, SamplingParams, TokenIds, VerificationMethod

__all__ = ["Encoder", "PipelineSubject", "decode"]


class _Speculation(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    enabled: bool | UnsetType = UNSET
    max_lookahead: int | UnsetType = UNSET
    drafter: str | UnsetType = UNSET
    verification: VerificationMethod | UnsetType = UNSET


class _Fields(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Of a request, spelled as over HTTP."""

    temperature: float | UnsetType = UNSET
    top_k: int | UnsetType = UNSET
    top_p: float | UnsetType = UNSET
    min_p: float | UnsetType = UNSET
    repetition_penalty: float | UnsetType = UNSET
    presence_penalty: float | UnsetType = UNSET
    frequency_penalty: float | UnsetType = UNSET
    min_tokens: int | UnsetType = UNSET
    max_tokens: int | UnsetType = UNSET
    seed: int | UnsetType = UNSET
    ignore_eos: bool | UnsetType = UNSET
    speculation: _Speculation = msgspec.field(default_factory=_Speculation)


class Encoder:
    """Turns questions into token ids as the gateway does, and answers back into text."""

    def __init__(self, pipeline: Pipeline) -> None:
        info = pipeline.info
        self.tokenizer: Tokenizer = create_tokenizer(info)
        self._template = ChatTemplate(info.chat_template, info.special_tokens)

    def encode(self, question: Question) -> TokenIds:
        """Raises `RequestError` if the model has no chat template, or cannot read the text."""
        if question.messages is None:
            return tuple(self.tokenizer.encode(question.text, add_special_tokens=True))
        rendered = self._template.render(question.messages)
        return tuple(self.tokenizer.encode(rendered, add_special_tokens=False))


async def decode(pipeline: Pipeline, session: Session, clock: Clock) -> list[Chunk]:
    """Run `session` to its end; when its tokens came."""
    chunks = []
    async with aclosing(pipeline.run(session)) as steps:
        async for step in steps:
            chunks.append(Chunk(clock(), len(step.token_ids)))
    return chunks


class PipelineSubject:
    """One pipeline, and what it is asked with.

    Args:
        pipeline: whom to ask; may be shared.
        fields: of every request, spelled as over HTTP.
        label: what it is, on one line.
        clock: for times of arrival.

    Raises:
        ConfigError: a field is unknown, or its value has no meaning.
    """

    def __init__(
        self, pipeline: Pipeline, fields: Mapping[str, Any], label: str, clock: Clock
    ) -> None:
        self.label = label
        # Nothing is reused between tenants, so none finds what another configuration left.
        self._tenant = f"bench-{uuid.uuid4().hex}"
        self._pipeline = pipeline
        self._encoder = Encoder(pipeline)
        self._clock = clock
        try:
            checked = msgspec.structs.asdict(msgspec.convert(fields, _Fields))
        except msgspec.ValidationError as error:
            known = ", ".join(_Fields.__struct_fields__)
            raise ConfigError(
                f"a request's field does not fit a pipeline in this process: {error}; it knows "
                f"{known}"
            ) from None
        self._speculation = _given(msgspec.structs.asdict(checked.pop("speculation")))
        self._sampling = SamplingParams(**_given(checked))

    async def ask(self, question: Question) -> Answer:
        """One answer. Its clock starts when its tokens are ready to be read.

        Raises:
            RequestError: the request has no meaning here.
            Overloaded: there is no room.
            TargetFailed: the target failed.
        """
        prompt_ids = self._encoder.encode(question)
        session = self._pipeline.session(
            prompt_ids, self._sampling, tenant=self._tenant, **self._speculation
        )
        asked_at = self._clock()
        chunks = await decode(self._pipeline, session, self._clock)
        check_length(session.output_length, self._sampling.max_tokens, "the pipeline")
        visible = session.output_ids
        if session.finish_reason is FinishReason.STOP:
            visible = visible[:-1]
        stats = session.stats
        return Answer(
            asked_at=asked_at,
            chunks=tuple(chunks),
            tokens=session.output_length,
            counting=Counting.STEPS,
            text=self._encoder.tokenizer.decode(visible),
            finish_reason=session.finish_reason,
            prompt_tokens=len(prompt_ids),
            cached_tokens=session.cached_tokens,
            drafts=Drafts(stats.drafted, stats.accepted, stats.rounds),
        )


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not UNSET}
