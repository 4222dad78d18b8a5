"""Fields of requests that this version does not support: which of their values ask for nothing."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Struct

from outrider.errors import RequestError

__all__ = ["refuse_unsupported"]

_NEUTRAL: Final[dict[str, tuple[Any, ...]]] = {
    "length_penalty": (1,),
    "best_of": (1,),
    "use_beam_search": (False,),
    "response_format": ({"type": "text"},),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "audio": (),
    "modalities": (["text"],),
    "moderation": (),
    "reasoning_effort": (),
    "store": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "echo": (False,),
    "suffix": ("",),
    "stream_options.include_obfuscation": (False,),
    "tool_calls": ([],),
}
"""The values, beside null, with which a field of this version asks for nothing."""


def refuse_unsupported(request: Struct, path: str = "") -> None:
    """Raise `RequestError` for the first field of `request` that asks for what is not supported.

    Args:
        request: a request or a part of one.
        path: where the part lies, with its dot, such as `messages[0].`.
    """
    for name in request.__struct_fields__:
        neutral = _NEUTRAL.get(name, _NEUTRAL.get(path + name))
        value = getattr(request, name)
        if neutral is None or value is None or any(_same(value, same) for same in neutral):
            continue
        if name == "best_of" and _same(value, getattr(request, "n", None)):
            continue  # the best n of n
        allowed = "null" if not neutral else f"{_json(neutral[0])} or null"
        raise RequestError(
            f"{path}{name} is {_json(value)}, which this version does not support; "
            f"leave it out or send {allowed}",
            param=path + name,
            code="unsupported_value",
        )


def _same(value: Any, neutral: Any) -> bool:
    return bool(value == neutral) and isinstance(value, bool) == isinstance(neutral, bool)


def _json(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 80 else f"{text[:77]}..."
