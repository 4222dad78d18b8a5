"""Prompts: chats through the template, texts through the tokenizer, token ids as they are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from outrider.errors import RequestError
from outrider.gateway.neutral import refuse_unsupported
from outrider.gateway.schemas import ROLES, Message, Prediction
from outrider.gateway.service import Service
from outrider.types import TokenIds

__all__ = ["chat_prompt", "encode", "off_loop", "prediction_ids", "split_prompt"]

_LARGE_CHARS = 8192

_T = TypeVar("_T")


async def chat_prompt(service: Service, messages: Sequence[Message]) -> TokenIds:
    """Token ids of a chat, up to the beginning of the answer. Raises `RequestError`."""
    if not messages:
        raise RequestError("messages is empty; send at least one message", param="messages")
    plain = [_message(message, index) for index, message in enumerate(messages)]
    size = sum(len(message["content"]) for message in plain)
    text = await off_loop(size, lambda: service.template.render(plain))
    return await encode(service, text, False, "messages")


async def off_loop(size: int, work: Callable[[], _T]) -> _T:
    """Do `work` in a thread if its input is large, so that running streams do not wait for it.

    Args:
        size: of the input, in characters or tokens.
        work: safe to run in a thread.
    """
    return work() if size <= _LARGE_CHARS else await asyncio.to_thread(work)


async def encode(
    service: Service, text: str, special: bool, param: str, *, size: int | None = None
) -> TokenIds:
    """Token ids of a text.

    Args:
        service: whose tokenizer.
        text: of any length.
        special: put around it what the model wants around a plain prompt.
        param: the field that the text came in.
        size: characters of all texts of the request; None if this is the only one.

    Raises:
        RequestError: the text cannot be encoded.
    """

    def work() -> TokenIds:
        return tuple(service.tokenizer.encode(text, add_special_tokens=special))

    try:
        return await off_loop(size or len(text), work)
    except RequestError as error:
        error.param = error.param or param
        raise


async def prediction_ids(service: Service, prediction: Prediction | None) -> TokenIds:
    """Token ids of a predicted output; none if nothing is predicted.

    Raises:
        RequestError: it is malformed, or longer than any output can be.
    """
    if prediction is None:
        return ()
    if prediction.type != "content":
        raise RequestError(
            f"prediction.type is {prediction.type[:80]!r}; the only type is 'content'",
            param="prediction.type",
        )
    text = "".join(_texts(prediction.content, "prediction"))
    ids = await encode(service, text, False, "prediction")
    context = service.pipeline.info.context_length
    if len(ids) > context:
        raise RequestError(
            f"the prediction has {len(ids)} tokens; this model's context is {context}: send less",
            param="prediction",
        )
    return ids


def split_prompt(prompt: str | list[str | int | list[int]]) -> list[str | TokenIds]:
    """The prompts of a plain completion, one by one. Raises `RequestError` for a mixture."""
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise RequestError("prompt is empty; send a text or token ids", param="prompt")
    token_ids = [part for part in prompt if isinstance(part, int)]
    texts = [part for part in prompt if isinstance(part, str)]
    lists = [tuple(part) for part in prompt if isinstance(part, list)]
    if len(token_ids) == len(prompt):
        return [tuple(token_ids)]
    if len(texts) == len(prompt):
        return list(texts)
    if len(lists) == len(prompt):
        return list(lists)
    raise RequestError(
        "prompt mixes texts, token ids and lists; send a text, a list of texts, token ids, or "
        "lists of token ids",
        param="prompt",
    )


def _message(message: Message, index: int) -> dict[str, Any]:
    """A message as chat templates take it: the content one text, nothing that is null."""
    where = f"messages[{index}]"
    if message.role not in ROLES:
        raise RequestError(
            f"{where}.role is {message.role[:80]!r}; use one of {', '.join(ROLES)}",
            param=f"{where}.role",
        )
    refuse_unsupported(message, f"{where}.")
    if message.content is None and message.role != "assistant":
        raise RequestError(f"{where}.content is missing; send a text", param=f"{where}.content")
    content = "\n".join(_texts(message.content or "", where))
    plain: dict[str, Any] = {"role": message.role, "content": content}
    if message.name is not None:
        plain["name"] = message.name
    if message.tool_call_id is not None:
        plain["tool_call_id"] = message.tool_call_id
    return plain


def _texts(content: str | list[dict[str, Any]], where: str) -> list[str]:
    """The texts of the parts of some content."""
    if isinstance(content, str):
        return [content]
    texts: list[str] = []
    for number, part in enumerate(content):
        place = f"{where}.content[{number}]"
        if part.get("type") != "text":
            raise RequestError(
                f"{place}.type is {str(part.get('type'))[:80]!r}, which this model does not take; "
                "send parts of type 'text'",
                param=f"{place}.type",
                code="unsupported_value",
            )
        text = part.get("text")
        if not isinstance(text, str) or part.keys() - {"type", "text"}:
            raise RequestError(
                f'{place} is not {{"type": "text", "text": "..."}}; send just these two fields',
                param=place,
            )
        texts.append(text)
    return texts
