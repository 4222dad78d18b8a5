"""Whether two models speak the same tokens.

A draft is a list of ids, so a drafter is of use only where an id means the same string to both
models.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256
from typing import Final

from outrider.errors import VocabularyMismatch

__all__ = ["check_same_vocabulary", "fingerprint"]

_SHOWN: Final = 3

# Names that vocabularies give to ids kept free: <unused7>, [PAD151665],
# <|reserved_special_token_3|>, <|dummy_2|>, <|extra_0|>, <|placeholder1|>.
_UNUSED: Final = re.compile(
    r"[<\[]\|?(?:unused|pad|reserved(?:_special)?(?:_token)?|dummy|extra|placeholder)"
    r"[_-]?(?:id_)?(?:token_)?\d+\|?[>\]]",
    re.IGNORECASE,
)


def fingerprint(token_strings: Sequence[str | None]) -> str:
    """sha256, in hex, over the token strings in order of id.

    Ids without a string at the end do not count.
    """
    digest = sha256()
    for string in token_strings[: _end(token_strings)]:
        # The length first, so that no two lists run together to the same bytes.
        data = b"" if string is None else string.encode("utf-8", "surrogatepass")
        digest.update(b"-" if string is None else b"%d:" % len(data))
        digest.update(data)
    return digest.hexdigest()


def check_same_vocabulary(
    target: Sequence[str | None],
    draft: Sequence[str | None],
    *,
    target_name: str,
    draft_name: str,
) -> None:
    """Refuse a draft model whose ids mean other strings than the target's.

    Ids that a vocabulary keeps free (`<unused7>`) match anything, and vocabularies may differ in
    length by ids without a string or kept free. Every other difference counts.

    Args:
        target: the target's token strings by id, None where an id has none.
        draft: the draft model's.
        target_name: how to name the target in the message.
        draft_name: likewise for the draft model.

    Raises:
        VocabularyMismatch: with the number of differing ids and the first of them.
    """
    size = max(len(target), len(draft))
    differing = [
        (token_id, ours, theirs)
        for token_id in range(size)
        if (ours := _at(target, token_id)) != (theirs := _at(draft, token_id))
        and not (_is_unused(ours) or _is_unused(theirs))
    ]
    if not differing:
        return
    shown = ", ".join(f"id {token_id}: {a!r} / {b!r}" for token_id, a, b in differing[:_SHOWN])
    more = ", ..." if len(differing) > _SHOWN else ""
    raise VocabularyMismatch(
        f"draft model {draft_name!r} and target {target_name!r} do not share a vocabulary: "
        f"{len(differing)} of {size} ids differ (target / draft: {shown}{more}; sizes "
        f"{_end(target)} / {_end(draft)}); choose a draft model of the target's family, or a "
        "drafter that needs no model, such as ngram"
    )


def _at(strings: Sequence[str | None], token_id: int) -> str | None:
    return strings[token_id] if token_id < len(strings) else None


def _is_unused(string: str | None) -> bool:
    return string is not None and _UNUSED.fullmatch(string) is not None


def _end(strings: Sequence[str | None]) -> int:
    """Length without the ids at the end that have no string."""
    end = len(strings)
    while end and strings[end - 1] is None:
        end -= 1
    return end
