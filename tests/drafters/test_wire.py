from __future__ import annotations

from dataclasses import fields

import msgspec
import pytest

from outrider.drafters.wire import ProposeRequest, Sampling
from outrider.types import SamplingParams

EVERYTHING = SamplingParams(
    temperature=0.5,
    top_k=3,
    top_p=0.9,
    min_p=0.1,
    repetition_penalty=1.1,
    presence_penalty=0.2,
    frequency_penalty=0.3,
    logit_bias={5: 1.5},
    bad_words=((1, 2), (3,)),
    allowed_token_ids=frozenset({1, 2, 3}),
    min_tokens=2,
    max_tokens=20,
    stop_token_ids=frozenset({7}),
    ignore_eos=True,
)


def test_all_that_shapes_a_draft_travels() -> None:
    named = {field.name for field in fields(SamplingParams)}
    # What is told of the output, and the seed, which has become the noise key.
    assert named - set(Sampling.__struct_fields__) == {"logprobs", "logprobs_mode", "seed"}
    assert Sampling().params() == SamplingParams()


@pytest.mark.parametrize("codec", [msgspec.json, msgspec.msgpack])
def test_parameters_come_back_as_they_were(codec) -> None:
    request = ProposeRequest(
        tokens=[1], num_tokens=2, noise_key=2**64 - 1, sampling=Sampling.of(EVERYTHING)
    )
    back = codec.decode(codec.encode(request), type=ProposeRequest)
    assert back == request
    assert back.sampling.params() == EVERYTHING


def test_a_later_request_of_a_session_takes_few_bytes() -> None:
    request = ProposeRequest(
        session_id="0123456789ab:0123456789abcdef", base=10_000, tokens=[50_000] * 5, num_tokens=8
    )
    assert len(msgspec.msgpack.encode(request)) < 120
