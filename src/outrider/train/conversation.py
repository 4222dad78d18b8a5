"""A conversation with the target, token by token as it goes: nothing is encoded a second time."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.text import ChatTemplate, Tokenizer
from outrider.train.prompts import Prompt
from outrider.types import FinishReason

__all__ = ["Conversation"]


class Conversation:
    """What was said so far.

    Args:
        prompt: what the user says.
        tokenizer, template: the target's.

    Attributes:
        token_ids: all of them.
        generated: for each, whether the target made it.
        finish_reasons: of the answers so far.
    """

    def __init__(self, prompt: Prompt, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        self.token_ids: list[int] = []
        self.generated: list[bool] = []
        self.finish_reasons: list[str] = []
        self._prompt = prompt
        self._tokenizer = tokenizer
        self._template = template
        self._answers: list[str] = []
        self._rendered = ""  # up to the beginning of the latest answer
        self._end = ""  # what the latest answer ended with, beyond its text

    def ask(self) -> list[int] | None:
        """Token ids that lead from what was said to the next answer.

        None if none do, since the template would write what was said otherwise than it went.

        Raises:
            RequestError: the template refuses the messages, or the text cannot be encoded.
        """
        prompt = self._prompt
        if not prompt.chat:
            return self._tokenizer.encode(prompt.text, add_special_tokens=True)
        messages = [{"role": role, "content": text} for role, text in prompt.opening]
        for said, answer in zip(prompt.turns, self._answers, strict=False):
            messages.append({"role": "user", "content": said})
            messages.append({"role": "assistant", "content": answer})
        messages.append({"role": "user", "content": prompt.turns[len(self._answers)]})
        text = self._template.render(messages)
        if (rest := self._behind(text)) is None:
            return None
        self._rendered = text
        return self._tokenizer.encode(rest, add_special_tokens=False)

    def add(self, asked: Sequence[int], answered: Sequence[int], finish: FinishReason) -> None:
        """Append what `ask` gave, and what the target answered to it."""
        self.token_ids += [*asked, *answered]
        self.generated += [False] * len(asked) + [True] * len(answered)
        self.finish_reasons.append(finish.value)
        self._end = ""
        if finish is FinishReason.STOP:
            *answered, last = answered
            self._end = self._tokenizer.token_strings[last] or ""
        self._answers.append(self._tokenizer.decode(answered))

    def _behind(self, text: str) -> str | None:
        """What the text of the whole conversation adds to what was said, if it begins with that."""
        if not self._answers:
            return text
        for answer in (self._answers[-1], self._answers[-1].strip()):
            said = self._rendered + answer
            if text.startswith(said):
                return text[len(said) :].removeprefix(self._end)
        return None
