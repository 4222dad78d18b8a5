"""What a target server checks before it believes a gateway."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from outrider.errors import ContextLengthExceeded, RequestError
from outrider.rpc import target_inference_pb2 as pb
from outrider.sampling import validate
from outrider.targets import CacheUse, OpenRequest
from outrider.targets.wire import decode_advance, decode_open
from outrider.types import Draft, TargetInfo

__all__ = ["Checks"]

_MAX_TENANT: Final = 1024
_LOGPROB_BYTES: Final = 24
"""A log probability with its token id in a message, at most, with what surrounds it."""


@dataclass(frozen=True, slots=True)
class Checks:
    """Turns messages into what a target may be asked.

    Attributes:
        info: of the target.
        cache: its memory; None if only its sessions are bounded.
        max_message_bytes: of an answer.
    """

    info: TargetInfo
    cache: CacheUse | None
    max_message_bytes: int

    def open(self, message: pb.Open, session_id: str) -> OpenRequest:
        """The request, checked.

        Raises:
            RequestError, ContextLengthExceeded: the message names the value and the remedy.
        """
        self._check_lengths(message)
        request = decode_open(message, session_id)
        self.token_ids("prompt_ids", request.prompt_ids)
        self.token_ids("output_ids", request.output_ids)
        validate(request.sampling, vocab_size=self.info.vocab_size)
        self._check_logprobs(request)
        near = request.near_draft
        if near is not None and near.drafter not in self.info.drafters:
            raise RequestError(
                f"near_draft names drafter {near.drafter[:200]!r}; this server has "
                f"{', '.join(self.info.drafters) or 'none'}",
                param="near_draft",
            )
        return request

    def advance(self, message: pb.Advance, max_tokens: int) -> Draft:
        """The draft, checked, and cut to what the output of `max_tokens` has room for.

        Raises:
            RequestError: the message names the value and the remedy.
        """
        most = self.info.capabilities.max_draft_tokens
        if len(message.token_ids) > most:
            raise RequestError(
                f"the draft has {len(message.token_ids)} tokens; this target takes at most {most}",
                param="token_ids",
            )
        if message.run > self.info.context_length:
            raise RequestError(
                f"run is {message.run}; the context of this model is {self.info.context_length}",
                param="run",
            )
        draft = decode_advance(message)
        self.token_ids("the draft", draft.token_ids, param="token_ids")
        return draft.clamp(max(max_tokens - message.position - 1, 0))

    def token_ids(self, name: str, token_ids: Collection[int], *, param: str | None = None) -> None:
        """Raise `RequestError` for an id that is none of the model's."""
        # Ids are unsigned on the wire.
        if token_ids and (highest := max(token_ids)) >= self.info.vocab_size:
            raise RequestError(
                f"{name} has token id {highest}; ids of this model lie in "
                f"0..{self.info.vocab_size - 1}",
                param=param or name,
            )

    def _check_lengths(self, message: pb.Open) -> None:
        """Before anything is copied from the message."""
        if not message.prompt_ids:
            raise RequestError("the prompt is empty; send at least one token", param="prompt_ids")
        if len(message.tenant) > _MAX_TENANT:
            raise RequestError(
                f"tenant has {len(message.tenant)} characters; at most {_MAX_TENANT} are taken",
                param="tenant",
            )
        prompt, most = len(message.prompt_ids), message.sampling.max_tokens
        if len(message.output_ids) > most:
            raise RequestError(
                f"output_ids has {len(message.output_ids)} tokens, more than the {most} of "
                "max_tokens",
                param="output_ids",
            )
        wanted = prompt + most
        told = f"the prompt has {prompt} tokens and max_tokens is {most}, together {wanted}"
        if wanted > self.info.context_length:
            raise ContextLengthExceeded(
                f"{told}; this model's context is {self.info.context_length}",
                param="max_tokens" if prompt < self.info.context_length else "prompt",
            )
        if self.cache is not None and wanted > self.cache.tokens:
            raise ContextLengthExceeded(
                f"{told}; this server has cache memory for {self.cache.tokens}: ask for fewer, or "
                "serve with a larger --kv-memory",
                param="max_tokens" if prompt < self.cache.tokens else "prompt",
            )

    def _check_logprobs(self, request: OpenRequest) -> None:
        """The answer to the longest draft has to fit into a message."""
        if (logprobs := request.sampling.logprobs) is None:
            return
        tokens = self.info.capabilities.max_draft_tokens + 1
        most = self.max_message_bytes // (tokens * _LOGPROB_BYTES) // 2 - 1
        if logprobs > most:
            raise RequestError(
                f"logprobs is {logprobs}; at most {most} fit into this server's messages: ask for "
                "fewer, or raise its target_server.max_message_bytes",
                param="logprobs",
            )
