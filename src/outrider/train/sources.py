"""Whether data may train a draft for a target, and which data it is."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from outrider.errors import TrainingError
from outrider.train.plan import Target
from outrider.train.store import Examples, Source

__all__ = ["check_sources", "digest_data"]


def check_sources(sources: Sequence[Source], folders: Sequence[Path], target: Target) -> None:
    """See to it that all data is of `target`.

    Raises:
        TrainingError: it is not; the message names the folder, and what it is of.
    """
    for source, folder in zip(sources, folders, strict=True):
        if source.vocab_fingerprint != target.vocab_fingerprint:
            raise TrainingError(
                f"the data in {folder} is of {source.model_id}, which has another tokenizer than "
                f"{target.model_id}; make data with the target that the draft is for"
            )
        if source.model_hash != target.model_hash:
            raise TrainingError(
                f"the data in {folder} is of {source.model_id} ({source.dtype}, hash "
                f"{source.model_hash[:12]}), not of {target.model_id} ({target.dtype}, hash "
                f"{target.model_hash[:12]}); give the same --target and --dtype as it was made with"
            )


def digest_data(folders: Sequence[Examples]) -> str:
    """Which data this is: where it comes from, and how much there is of each conversation."""
    digest = sha256()
    for examples in folders:
        digest.update(examples.source.to_json().encode())
        digest.update(examples.num_tokens.tobytes() + examples.num_generated.tobytes())
    return digest.hexdigest()[:16]
