"""Records as tests need them."""

from __future__ import annotations

from typing import Any

import msgspec

from outrider.bench.baselines.records import AnswerRecord, SettingRecord

__all__ = ["SETTING", "answered"]

SETTING = SettingRecord(
    target="big.gguf",
    draft="small.gguf",
    threads=2,
    max_tokens=8,
    cpu="a processor",
    peers={"llama.cpp": ["llama-cpp-python==1"], "outrider": []},
)

_ANSWER = AnswerRecord(
    group="g",
    mode="plain",
    plain=None,
    source="edits",
    prompt=0,
    tokens=11,
    decoded=10,
    decode_s=1.0,
    ttft_s=0.5,
    wall_s=1.5,
    prompt_tokens=20,
    memory_bytes=2_000_000_000,
    load=0.1,
    token_ids=(1, 2, 3),
)


def answered(mode: str, prompt: int = 0, **changes: Any) -> AnswerRecord:
    return msgspec.structs.replace(_ANSWER, mode=mode, prompt=prompt, **changes)
