"""Prompts as token ids, through the target's own chat template, the same for every peer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from outrider.bench.workload import Prompt
from outrider.errors import ConfigError
from outrider.models import load_text_assets
from outrider.text import ChatTemplate, HFTokenizer
from outrider.types import TokenIds

__all__ = ["EncodedPrompt", "encode"]


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt, ready to be sent.

    Attributes:
        source: the file it comes from, without its ending.
        index: its line there, from 0.
        token_ids: up to the beginning of the answer.
    """

    source: str
    index: int
    token_ids: TokenIds


def encode(folder: Path, prompts: Sequence[Prompt], *, longest: int) -> list[EncodedPrompt]:
    """Prompts for the model in `folder`, a Hugging Face folder.

    Args:
        folder: whose tokenizer and template.
        prompts: of which the first turn is asked.
        longest: tokens that a prompt may have.

    Raises:
        ConfigError: a prompt is longer.
        RequestError: the model has no chat template that works.
    """
    assets = load_text_assets(folder)
    tokenizer = HFTokenizer(assets.tokenizer_json)
    template = ChatTemplate(assets.chat_template, assets.special_tokens)
    encoded = []
    for prompt in prompts:
        messages = prompt.question().messages
        text = prompt.text if messages is None else template.render(messages)
        token_ids = tuple(tokenizer.encode(text, add_special_tokens=messages is None))
        if len(token_ids) > longest:
            raise ConfigError(
                f"prompt {prompt.index} of {prompt.source} has {len(token_ids)} tokens, more than "
                f"the {longest} that --context leaves; raise it, or leave the prompt out"
            )
        encoded.append(EncodedPrompt(prompt.source, prompt.index, token_ids))
    return encoded
