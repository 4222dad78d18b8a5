"""Chat templates: messages to the text of a prompt, as transformers renders them.

A template comes with the model and is run in jinja2's immutable sandbox; what it makes is bounded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from outrider.errors import RequestError

__all__ = ["MAX_PROMPT_CHARS", "ChatTemplate"]

MAX_PROMPT_CHARS: Final = 16 * 2**20
"""Longest text in characters that a template may make; longer than any context a model has."""

_RESERVED: Final = frozenset({"messages", "add_generation_prompt"})


class ChatTemplate:
    """A model's chat template, compiled once.

    Args:
        source: jinja2 source, or None for a model that has no chat form.
        special_tokens: names that templates use (`bos_token`, ...) to token strings.
    """

    def __init__(self, source: str | None, special_tokens: Mapping[str, str]) -> None:
        self._special_tokens = dict(special_tokens)
        self._template: jinja2.Template | None = None
        self._broken: str | None = None
        if source is None:
            self._broken = (
                "this model has no chat template; use /v1/completions with a plain prompt instead"
            )
            return
        try:
            self._template = _environment().from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            # The model still serves plain completions, so only chat requests hear of it.
            self._broken = (
                f"the model's chat template cannot be compiled ({_words(error)}); "
                "use /v1/completions with a plain prompt instead"
            )

    @property
    def available(self) -> bool:
        """The model has a template and it compiles."""
        return self._template is not None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        add_generation_prompt: bool = True,
        **extra: Any,
    ) -> str:
        """The prompt's text; encode it with `add_special_tokens=False`.

        Args:
            messages: in the chat API's form, `{"role": ..., "content": ...}`, contents as plain
                strings unless the template knows more.
            add_generation_prompt: end with the beginning of the assistant's answer.
            extra: further variables for the template (`tools`, `enable_thinking`, ...).

        Raises:
            RequestError: no template, or it fails on these messages or refuses them in words of its
                own.
        """
        if self._template is None:
            raise RequestError(self._broken or "", param="messages", code="no_chat_template")
        if clash := _RESERVED & extra.keys():
            raise RequestError(
                f"{min(clash)!r} cannot be a chat template variable; it has its own field",
                param="chat_template_kwargs",
            )
        variables = {"tools": None, "documents": None, **self._special_tokens, **extra}
        try:
            return _bounded(
                self._template.generate(
                    messages=messages, add_generation_prompt=add_generation_prompt, **variables
                )
            )
        except (
            Exception
        ) as error:  # a template is a program: whatever it raises, it refused these messages
            raise RequestError(
                f"the model's chat template refused the messages: {_words(error)}", param="messages"
            ) from error


class _Sandbox(ImmutableSandboxedEnvironment):
    """Also keeps a template from making a huge value out of small ones."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(
        self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any
    ) -> Any:
        if operator == "**":
            raise SecurityError("powers are not available in chat templates")
        size = 1
        for factor in (left, right):
            if isinstance(factor, str | list | tuple):
                size *= len(factor)
            elif isinstance(factor, int):
                size *= abs(factor)
        if size > MAX_PROMPT_CHARS and not (
            isinstance(left, int | float) and isinstance(right, int | float)
        ):
            raise SecurityError("a repeated value is too long")
        return super().call_binop(context, operator, left, right)


class _GenerationTag(Extension):
    """`{% generation %}` marks an assistant's own words for training; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 # the attribute's form is jinja2's, which never changes it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> jinja2.Environment:
    environment = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    globals_: dict[str, Callable[..., Any]] = {
        "raise_exception": _raise_exception,
        "strftime_now": lambda form: datetime.now().strftime(form),
    }
    environment.globals.update(globals_)
    del environment.globals["lipsum"]
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models were trained on it, not escaped for HTML as jinja2's own filter does."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _bounded(pieces: Any) -> str:
    made: list[str] = []
    length = 0
    for piece in pieces:
        length += len(piece)
        if length > MAX_PROMPT_CHARS:
            raise SecurityError(f"the prompt would be longer than {MAX_PROMPT_CHARS:,} characters")
        made.append(piece)
    return "".join(made)


def _words(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
