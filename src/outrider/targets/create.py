"""From what a user writes after `--target` to a target."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from outrider.config import Settings
from outrider.models import StageProgress, TableModel, load_text_assets, resolve
from outrider.targets.base import Target
from outrider.targets.table import TableTarget
from outrider.text import HFTokenizer, fingerprint
from outrider.types import Capabilities, TargetInfo

if TYPE_CHECKING:
    from outrider.engine import Lane

__all__ = ["create_target"]

_TABLE = "table:"
_REMOTE = ("grpc:", "grpcs:")


def create_target(
    settings: Settings, *, progress: StageProgress | None = None
) -> tuple[Target, Lane | None]:
    """Build the configured target; fetch and convert its model if need be. Blocks for seconds.

    Returns:
        The target, and the engine's lane that it runs on, for drafters beside it; None if it needs
        no engine.

    Raises:
        ModelError, ConfigError: with the remedy in the message.
    """
    spec = settings.engine.target
    if spec.startswith(_TABLE):
        file = Path(spec.removeprefix(_TABLE))
        target = TableTarget(
            TableModel.load(file),
            model_id=file.stem,
            max_sessions=settings.engine.max_sessions,
            max_context=settings.engine.max_context,
        )
        return target, None
    if spec.startswith(_REMOTE):
        return _create_remote(spec, settings), None
    return _create_local(settings, progress)


def _create_remote(spec: str, settings: Settings) -> Target:
    """A target on other machines; connects when it is first asked for anything."""
    from outrider.rpc.channel import parse_addresses
    from outrider.targets.remote import RemoteTarget
    from outrider.targets.replicas import ReplicatedTarget

    addresses = parse_addresses(spec)
    if len(addresses) == 1:
        return RemoteTarget(addresses[0], settings.peers)
    return ReplicatedTarget(addresses, settings.peers)


def _create_local(settings: Settings, progress: StageProgress | None) -> tuple[Target, Lane]:
    engine = settings.engine
    # Before the engine's libraries are imported: a wrong name should not take seconds to be told.
    folder = resolve(
        engine.target,
        home=settings.home,
        dtype=engine.dtype,
        device=engine.device,
        progress=progress,
    )
    assets = load_text_assets(folder.path)
    tokenizer = HFTokenizer(assets.tokenizer_json)

    from outrider.engine import load_decoder, open_lane
    from outrider.targets.local import LocalTarget

    decoder = load_decoder(folder.path, engine, dtype=folder.dtype)
    lane = open_lane(decoder, engine, None)
    info = TargetInfo(
        model_id=folder.model_id,
        model_hash=folder.model_hash,
        vocab_size=decoder.config.vocab_size,
        vocab_fingerprint=fingerprint(tokenizer.token_strings),
        eos_token_ids=assets.eos_token_ids,
        context_length=lane.cache.max_length,
        dtype=folder.dtype,
        tokenizer_json=assets.tokenizer_json,
        chat_template=assets.chat_template,
        special_tokens=assets.special_tokens,
        bos_token_id=assets.bos_token_id,
        capabilities=Capabilities(batch_invariant=decoder.batch_invariant, max_draft_tokens=64),
    )
    return LocalTarget(lane, info), lane
