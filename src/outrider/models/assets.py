"""What a model's folder says about text: tokenizer, chat template, special tokens."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from outrider.errors import CorruptModel, UnsupportedModel
from outrider.models.draft_vocabulary import DRAFT_VOCABULARY

__all__ = ["TextAssets", "load_text_assets"]

_SPECIAL: Final = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


@dataclass(frozen=True, slots=True)
class TextAssets:
    """The text side of a model; its fields are those of `TargetInfo`.

    Attributes:
        tokenizer_json: contents of `tokenizer.json`. Encoding with `add_special_tokens=True` puts
            `bos_token_id` before a text.
        chat_template: jinja2 source, or None.
        special_tokens: names that chat templates use (`bos_token`, ...) to token strings.
        bos_token_id: the id that the tokenizer puts before a plain prompt; None if it puts none.
        eos_token_ids: ids that end an output.
    """

    tokenizer_json: str = field(repr=False)
    chat_template: str | None = field(repr=False)
    special_tokens: dict[str, str]
    bos_token_id: int | None
    eos_token_ids: frozenset[int]


def load_text_assets(folder: Path) -> TextAssets:
    """Read a Hugging Face model folder's text files.

    The ids that end an output are all that generation_config.json, config.json and the tokenizer
    name. The config.json of a trimmed draft counts in ids of the draft's own, and is left out.

    Raises:
        UnsupportedModel: the folder has a tokenizer, but not as `tokenizer.json`.
        CorruptModel: a file is missing or cannot be read.
    """
    config = _read_json(folder / "tokenizer_config.json")
    special_tokens = _special_tokens(_read_json(folder / "special_tokens_map.json") | config)
    text, tokenizer = _tokenizer(folder)
    bos = _bos_added(tokenizer)
    wanted = special_tokens.get("bos_token")
    if bos is None and config.get("add_bos_token") is True and wanted is not None:
        # transformers honours the setting by rewriting the tokenizer when it loads it; so do we.
        bos = _id_of(tokenizer, wanted)
        if bos is not None:
            text = _with_bos(tokenizer, wanted, bos)
    ends: set[int] = set()
    trimmed = (folder / DRAFT_VOCABULARY).exists()
    for name in (
        ("generation_config.json",) if trimmed else ("generation_config.json", "config.json")
    ):
        named = _read_json(folder / name).get("eos_token_id")
        ends.update(named if isinstance(named, list) else [] if named is None else [named])
    end = _id_of(tokenizer, special_tokens.get("eos_token"))
    if end is not None:
        ends.add(end)
    return TextAssets(text, _chat_template(folder, config), special_tokens, bos, frozenset(ends))


def _tokenizer(folder: Path) -> tuple[str, dict[str, Any]]:
    path = folder / "tokenizer.json"
    if not path.exists():
        for slow in ("tokenizer.model", "vocab.json", "spiece.model"):
            if (folder / slow).exists():
                raise UnsupportedModel(
                    f"{folder} has its tokenizer as {slow} only; write tokenizer.json once with "
                    f"transformers: AutoTokenizer.from_pretrained({str(folder)!r})"
                    f".save_pretrained({str(folder)!r})"
                )
        raise CorruptModel(f"{folder} has no tokenizer.json; get the model's files anew")
    return _read_text(path), _read_json(path)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise
    except (ValueError, OSError) as error:
        raise CorruptModel(f"{path} cannot be read ({error}); get the file anew") from error


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty if there is no such file."""
    try:
        value = json.loads(_read_text(path))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        raise CorruptModel(f"{path} cannot be read ({error}); get the file anew") from error
    if not isinstance(value, dict):
        raise CorruptModel(f"{path} holds no JSON object; get the file anew")
    return value


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    named: dict[str, str] = {}
    for name in _SPECIAL:
        match config.get(name):
            case str(string) | {"content": str(string)}:
                named[name] = string
    return named


def _chat_template(folder: Path, config: dict[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.exists():
        return _read_text(path)
    match config.get("chat_template"):
        case str(template):
            return template
        case [*templates]:
            named = {entry.get("name"): entry.get("template") for entry in templates}
            default = named.get("default")
            return default if isinstance(default, str) else None
        case _:
            return None


def _bos_added(tokenizer: dict[str, Any]) -> int | None:
    """The id that a tokenizer puts before a single text."""
    processor = tokenizer.get("post_processor")
    steps = [] if processor is None else processor.get("processors", [processor])
    for step in steps:
        match step:
            case {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": name}}, *_]}:
                return int(step["special_tokens"][name]["ids"][0])
    return None


def _id_of(tokenizer: dict[str, Any], string: str | None) -> int | None:
    if string is None:
        return None
    for token in tokenizer.get("added_tokens", []):
        if token["content"] == string:
            return int(token["id"])
    vocabulary = tokenizer.get("model", {}).get("vocab", {})
    found = vocabulary.get(string) if isinstance(vocabulary, dict) else None
    return None if found is None else int(found)


def _with_bos(tokenizer: dict[str, Any], string: str, token_id: int) -> str:
    """The tokenizer with a step that puts a token before every text."""
    start = {"SpecialToken": {"id": string, "type_id": 0}}
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    step = {
        "type": "TemplateProcessing",
        "single": [start, first],
        "pair": [start, first, start, second],
        "special_tokens": {string: {"id": string, "ids": [token_id], "tokens": [string]}},
    }
    before = tokenizer.get("post_processor")
    steps = [] if before is None else before.get("processors", [before])
    # A second template would not see the first one's tokens.
    kept = [other for other in steps if other.get("type") != "TemplateProcessing"]
    processor = {"type": "Sequence", "processors": [*kept, step]} if kept else step
    return json.dumps(tokenizer | {"post_processor": processor}, ensure_ascii=False)
