"""How the ids of a draft model go with the target's: they are the same, fewer, or others."""

from __future__ import annotations

from typing import Final

import structlog

from outrider.drafters.translation import Translation
from outrider.errors import CorruptModel, VocabularyMismatch
from outrider.models import (
    DRAFT_VOCABULARY,
    ModelFolder,
    load_text_assets,
    read_draft_vocabulary,
)
from outrider.text import HFTokenizer, check_same_vocabulary, coverage, same_vocabulary
from outrider.types import TargetInfo

__all__ = ["pair", "trimmed"]

_ENOUGH: Final = 0.7
"""Share of a text's tokens that must be common to both vocabularies.

A draft ends at the latest where the target says a token that the draft lacks. With a share of s
that is behind s / (1 - s) tokens on average, 2.3 here; with less, a model is hardly worth its time.
"""

_log = structlog.get_logger("outrider.drafters")


def pair(folder: ModelFolder, target: TargetInfo) -> Translation | None:
    """What lies between a draft model and a target; None if their ids are the same.

    Args:
        folder: the draft model. If it is trimmed, it is for targets with this very tokenizer.
        target: what is drafted for.

    Raises:
        VocabularyMismatch: they do not go together; the message has the numbers.
        CorruptModel: a file of the draft model cannot be read, or contradicts another.
    """
    if target.tokenizer_json is None:
        raise VocabularyMismatch(
            f"draft model {folder.model_id!r} has a tokenizer, but target {target.model_id!r} has "
            "none; use ngram or table:FILE"
        )
    assets = load_text_assets(folder.path)
    ours, theirs = HFTokenizer(target.tokenizer_json), HFTokenizer(assets.tokenizer_json)
    translation = trimmed(folder, theirs)
    if translation is not None:
        check_same_vocabulary(
            ours.token_strings,
            theirs.token_strings,
            target_name=target.model_id,
            draft_name=folder.model_id,
        )
        return translation
    if same_vocabulary(ours.token_strings, theirs.token_strings):
        return None
    translation = Translation.between(
        ours,
        theirs,
        target_size=target.vocab_size,
        draft_size=_row_size(folder),
        target_ends=target.eos_token_ids,
        draft_ends=assets.eos_token_ids,
    )
    _check_enough(translation, ours, folder, target)
    return translation


def trimmed(folder: ModelFolder, tokenizer: HFTokenizer) -> Translation | None:
    """For a draft with fewer ids than its tokenizer, which is its target's; None for any other.

    Raises:
        CorruptModel: its files contradict each other.
    """
    target_ids = read_draft_vocabulary(folder.path)
    if target_ids is None:
        return None
    size = _row_size(folder)
    if target_ids.size != size or target_ids[-1] >= tokenizer.vocab_size:
        raise CorruptModel(
            f"{folder.path / DRAFT_VOCABULARY} has {target_ids.size} ids up to {target_ids[-1]}, "
            f"but config.json says {size} and the tokenizer knows {tokenizer.vocab_size}; export "
            "the draft again"
        )
    return Translation.trimmed(tokenizer, target_ids)


def _check_enough(
    translation: Translation, tokenizer: HFTokenizer, folder: ModelFolder, target: TargetInfo
) -> None:
    shared = set(translation.target_ids[translation.drafted].tolist())
    count, size = translation.drafted.size, tokenizer.vocab_size
    share = coverage(tokenizer, shared)
    if share < _ENOUGH:
        raise VocabularyMismatch(
            f"draft model {folder.model_id!r} and target {target.model_id!r} have different "
            f"tokenizers: they share {count} of the target's {size} tokens, and {share:.0%} of the "
            f"tokens of an ordinary text, where drafting takes {_ENOUGH:.0%}; choose a draft model "
            "of the target's family, or a drafter that needs no model, such as suffix"
        )
    _log.info(
        "draft_vocabulary_translated",
        drafter=folder.model_id,
        target=target.model_id,
        shared_tokens=int(count),
        target_tokens=size,
        share_of_text=round(share, 3),
    )


def _row_size(folder: ModelFolder) -> int:
    from outrider.engine.architecture import read_config  # noqa: PLC0415 # imports torch

    return read_config(folder.path).vocab_size
