"""What travels per round: a few bytes a token, and nothing that grows with the context."""

from __future__ import annotations

import pytest

from outrider.rpc import target_inference_pb2 as pb
from outrider.targets.wire import encode_advance, encode_verification
from outrider.types import Draft, FinishReason, Verification

VOCAB = 150_000
FAR = 2**31
"""A position far into a long output, in an epoch and a round as late."""


@pytest.mark.parametrize("count", [0, 1, 5, 16, 64])
def test_a_round_asks_with_at_most_eight_bytes_a_token_and_64(count) -> None:
    draft = Draft(tuple(VOCAB - 1 - index for index in range(count)))
    action = pb.Action(session=2**64 - 1, advance=encode_advance(FAR, FAR, FAR, draft, FAR))
    assert pb.DecodeRequest(actions=[action]).ByteSize() <= 64 + 8 * count


@pytest.mark.parametrize("count", [0, 1, 5, 16, 64])
def test_a_step_answers_with_at_most_eight_bytes_a_token_and_64(count) -> None:
    answer = Verification(
        round_id=FAR,
        position=FAR,
        token_ids=(VOCAB - 1,) * (count + 1),
        drafted=count,
        accepted=count,
        finish_reason=FinishReason.LENGTH,
        step_s=10.0,
        batch_size=256,
        batch_tokens=4096,
    )
    event = pb.Event(session=2**64 - 1, verified=encode_verification(answer))
    assert pb.DecodeResponse(events=[event]).ByteSize() <= 64 + 8 * (count + 1)
