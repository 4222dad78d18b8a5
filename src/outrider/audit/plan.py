"""What an audit asks: its prompts and its settings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from outrider.errors import ConfigError

__all__ = ["BUILT_IN_PROMPTS", "AuditPlan", "Prompt", "load_prompts"]

_MAX_FILE_BYTES = 4 * 1024 * 1024
_MAX_PROMPTS = 200
_TABLES = 20_000
_NAME_CHARS = 28


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt.

    Attributes:
        name: how the report calls it.
        body: `prompt` of a plain completion, a text or token ids; None for a chat.
        messages: of a chat; None for a plain completion.
    """

    name: str
    body: str | tuple[int, ...] | None = None
    messages: tuple[Mapping[str, str], ...] | None = None

    @property
    def path(self) -> str:
        """Of the endpoint that takes it, behind `/v1`."""
        return "completions" if self.messages is None else "chat/completions"

    def fields(self) -> dict[str, Any]:
        """The part of a request that it makes."""
        if self.messages is not None:
            return {"messages": list(self.messages)}
        return {"prompt": self.body}


# Most repeat themselves, since drafters that look up the prompt have something to draft there, and
# most of them can be continued in several ways, since a certain continuation tests nothing.
BUILT_IN_PROMPTS: Final = (
    Prompt("story", "Once upon a time, in a village by the sea, there lived a"),
    Prompt(
        "refrain",
        "The wind blew and the rain fell. The wind blew and the snow fell. The wind blew and the",
    ),
    Prompt(
        "code",
        "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    return a - b\n\n\ndef mul(a,",
    ),
    Prompt(
        "records",
        '{"name": "Ann", "age": 31, "city": "Rome"}\n{"name": "Bob", "age": 27, "city": "Oslo"}\n'
        '{"name": "Eve", "age":',
    ),
    Prompt("list", "Colours: red, green, blue, red, green, blue, red, green, yellow, red,"),
    Prompt(
        "dialogue",
        "Q: What is the capital of France?\nA: Paris.\nQ: What is the capital of Japan?\nA: Tokyo."
        "\nQ: What is",
    ),
)


@dataclass(frozen=True, slots=True)
class AuditPlan:
    """The settings of an audit.

    Attributes:
        url: of the server under audit, with or without `/v1`.
        prompts: at least one.
        baseline: of a server of the same model that never speculates; None switches speculation off
            per request, as Outrider allows.
        model, baseline_model: served ids; None takes the only one that the server lists.
        samples: completions per prompt and arm.
        tokens: how many first tokens make an outcome.
        generate: tokens that each sample generates; those past `tokens` only give drafts room.
        greedy_tokens: length of greedy and seeded outputs.
        params: further fields of every sampled and seeded request, such as `temperature`.
        speculation: further fields of Outrider's `speculation` object where it is on.
        copies: most samples asked for in one request (`n`).
        concurrency: requests under way at a time, both arms together.
        alpha: how likely an honest server may be accused, over all prompts together.
        timeout_s: for one request, in seconds.
        api_key: sent as a bearer token.
    """

    url: str
    prompts: tuple[Prompt, ...] = BUILT_IN_PROMPTS
    baseline: str | None = None
    model: str | None = None
    baseline_model: str | None = None
    samples: int = 1000
    tokens: int = 3
    generate: int = 6
    greedy_tokens: int = 64
    params: Mapping[str, Any] = field(default_factory=lambda: {"temperature": 1.0})
    speculation: Mapping[str, Any] = field(default_factory=dict)
    copies: int = 8
    concurrency: int = 4
    alpha: float = 0.01
    timeout_s: float = 120.0
    api_key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not self.prompts:
            raise ConfigError("an audit needs at least one prompt")
        if self.generate < self.tokens:
            raise ConfigError(
                f"{self.generate} tokens are generated per sample and the first {self.tokens} are "
                "compared; generate at least as many"
            )
        if self.baseline is not None and self.speculation:
            given = ", ".join(self.speculation)
            raise ConfigError(
                f"{given} is set per request only where speculation is switched per request; leave "
                "it out beside --baseline"
            )
        if "seed" in self.params or "n" in self.params or "max_tokens" in self.params:
            raise ConfigError("seed, n and max_tokens are the audit's own; leave them out")

    @property
    def tables(self) -> int:
        """Null tables per prompt: enough to see a p-value a tenth of what Holm's method needs."""
        return max(_TABLES, math.ceil(10 * (len(self.prompts) + 1) / self.alpha))


_Id = Annotated[int, msgspec.Meta(ge=0)]


class _Row(msgspec.Struct):
    prompt: str | None = None
    token_ids: Annotated[list[_Id], msgspec.Meta(min_length=1)] | None = None
    turns: Annotated[list[str], msgspec.Meta(min_length=1)] | None = None
    name: str | None = None


def load_prompts(file: Path) -> tuple[Prompt, ...]:
    """Prompts from a JSONL file.

    Each line is an object with one of `prompt` (a text), `token_ids` (a list of ids) or `turns` (a
    list of texts, of which the first is sent as a chat's message), and perhaps a `name`. Other
    fields are ignored.

    Raises:
        ConfigError: the file cannot be read, or a line holds something else.
    """
    try:
        with file.open("rb") as stream:
            content = stream.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot read prompts {file}: {error.strerror}") from None
    if len(content) > _MAX_FILE_BYTES:
        raise ConfigError(
            f"prompts {file} has more than {_MAX_FILE_BYTES} bytes; use a shorter one"
        )
    prompts = [
        _prompt(f"line {number} of {file}", number, line)
        for number, line in enumerate(content.splitlines(), 1)
        if line.strip()
    ]
    if not 1 <= len(prompts) <= _MAX_PROMPTS:
        raise ConfigError(f"{file} has {len(prompts)} prompts; give 1 to {_MAX_PROMPTS}")
    return tuple(prompts)


def _prompt(where: str, number: int, line: bytes) -> Prompt:
    try:
        row = msgspec.json.decode(line, type=_Row)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where} is no prompt: {error}") from None
    given = [kind for kind in (row.prompt, row.token_ids, row.turns) if kind is not None]
    if len(given) != 1:
        raise ConfigError(f"{where} has {len(given)} of prompt, token_ids and turns; give one")
    name = row.name or f"line {number}"
    name = "".join(letter if letter.isprintable() else " " for letter in name)[:_NAME_CHARS]
    if row.turns is not None:
        return Prompt(name, messages=({"role": "user", "content": row.turns[0]},))
    return Prompt(name, row.prompt if row.token_ids is None else tuple(row.token_ids))
