"""Whether two models speak the same tokens.

A draft is a list of ids, so a drafter is of use only where an id means the same string to both
models.
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from hashlib import sha256
from typing import Final

from outrider.errors import VocabularyMismatch
from outrider.text.tokenizer import Tokenizer

__all__ = ["check_same_vocabulary", "coverage", "fingerprint", "same_vocabulary"]

_SHOWN: Final = 3

# Names that vocabularies give to ids kept free: <unused7>, [PAD151665],
# <|reserved_special_token_3|>, <|dummy_2|>, <|extra_0|>, <|placeholder1|>.
_UNUSED: Final = re.compile(
    r"[<\[]\|?(?:unused|pad|reserved(?:_special)?(?:_token)?|dummy|extra|placeholder)"
    r"[_-]?(?:id_)?(?:token_)?\d+\|?[>\]]",
    re.IGNORECASE,
)

_SAMPLE: Final = """\
The harbour was quiet when the first ferry came in. A dozen people stood at the railing, most \
of them with bicycles, and nobody seemed to be in a hurry. "You should have been here \
yesterday," the old man told us; "the storm took two of the boats, and we're still looking for \
the third." In 1987, he said, it had been worse: about 40% of the fleet was lost within three \
hours, and it took the town more than ten years to recover.

1. Heat the oil in a large pan over medium heat, then add the onion and cook for 5 to 7 minutes.
2. Stir in the garlic and the remaining spices. Don't let them burn!

Therefore, if the function is continuous on a closed interval, it's bounded there, which is what \
we wanted to show: $f(x) \\le M$ for all $x \\in [a, b]$.

import json
from collections import defaultdict


class Inventory:
    \"\"\"Counts items by name.\"\"\"

    def __init__(self, path=None):
        self._counts = defaultdict(int)
        if path is not None:
            with open(path, encoding="utf-8") as file:
                self._counts.update(json.load(file))

    def add(self, name, amount=1):
        if amount < 0:
            raise ValueError(f"amount must not be negative, got {amount}")
        self._counts[name] += amount
        return self._counts[name]

    def most_common(self, n=10):
        return sorted(self._counts.items(), key=lambda pair: (-pair[1], pair[0]))[:n]


for (let i = 0; i < rows.length; i++) {
    const total = rows[i].reduce((a, b) => a + b, 0);
    console.log(`${i}: ${total.toFixed(2)}`);
}

SELECT name, COUNT(*) AS orders FROM customers WHERE created_at >= '2024-01-01' GROUP BY name;

{"id": 42, "tags": ["new", "sale"], "price": 19.99, "active": true}
"""


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
    differing = _differing(target, draft)
    if not differing:
        return
    size = max(len(target), len(draft))
    shown = ", ".join(f"id {token_id}: {a!r} / {b!r}" for token_id, a, b in differing[:_SHOWN])
    more = ", ..." if len(differing) > _SHOWN else ""
    raise VocabularyMismatch(
        f"draft model {draft_name!r} and target {target_name!r} do not share a vocabulary: "
        f"{len(differing)} of {size} ids differ (target / draft: {shown}{more}; sizes "
        f"{_end(target)} / {_end(draft)}); choose a draft model of the target's family, or a "
        "drafter that needs no model, such as ngram"
    )


def same_vocabulary(target: Sequence[str | None], draft: Sequence[str | None]) -> bool:
    """Whether `check_same_vocabulary` takes them for the same."""
    return not _differing(target, draft)


def coverage(tokenizer: Tokenizer, token_ids: Container[int]) -> float:
    """How much of ordinary text a part of a vocabulary says: a share of its tokens, from 0 to 1.

    Taken over a short text, half English prose and half code.

    Args:
        tokenizer: of the whole vocabulary.
        token_ids: the part.
    """
    sample = tokenizer.encode(_SAMPLE, add_special_tokens=False)
    return sum(token_id in token_ids for token_id in sample) / max(len(sample), 1)


def _differing(
    target: Sequence[str | None], draft: Sequence[str | None]
) -> list[tuple[int, str | None, str | None]]:
    """Ids with what they mean to either side, where that is not the same."""
    return [
        (token_id, ours, theirs)
        for token_id in range(max(len(target), len(draft)))
        if (ours := _at(target, token_id)) != (theirs := _at(draft, token_id))
        and not (_is_unused(ours) or _is_unused(theirs))
    ]


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
