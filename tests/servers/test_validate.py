"""`Validate`: logits over the wire, and what is refused."""

from __future__ import annotations

import grpc
import numpy as np
import pytest

from outrider.models import TableModel
from outrider.rpc import target_inference_pb2 as pb

pytestmark = pytest.mark.anyio


async def test_it_tells_the_logits_behind_the_last_tokens(target_server, write_table) -> None:
    async with target_server() as server, server.stub() as stub:
        response = await stub.Validate(
            pb.ValidationRequest(tokens=[0, 3, 1, 4], validation_offset=2)
        )
    model = TableModel.load(write_table("target", context_length=1024))
    wanted = np.array([model.logits([0, 3, 1, 4], length) for length in (2, 3, 4)], np.float32)
    assert response.vocab_size == 5
    assert np.array_equal(np.array(response.flat_logits, np.float32).reshape(3, 5), wanted)


@pytest.mark.parametrize(
    ("tokens", "offset", "told"),
    [
        ([], 0, "tokens has 0 ids and validation_offset is 0"),
        ([1, 2], 2, "tokens has 2 ids and validation_offset is 2"),
        ([1], 2**32 - 1, "validation_offset is 4294967295"),
        ([1, 5], 0, "tokens has token id 5"),
        ([1] * 1025, 0, "tokens has 1025 ids"),
    ],
)
async def test_what_makes_no_sense_is_refused(target_server, tokens, offset, told) -> None:
    async with target_server() as server, server.stub() as stub:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Validate(pb.ValidationRequest(tokens=tokens, validation_offset=offset))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert told in caught.value.details()


async def test_more_rows_than_a_message_holds_are_refused_with_how_many_it_does(
    target_server,
) -> None:
    table = {"vocab_size": 500, "order": 0, "context_length": 200}
    small = {"max_message_bytes": 65_536}
    async with target_server(table=table, server=small) as server, server.stub() as stub:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Validate(pb.ValidationRequest(tokens=[1] * 50, validation_offset=32))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "33 rows of 500 logits are 66000 bytes" in caught.value.details()
        assert "at most 32 rows" in caught.value.details()
        most = await stub.Validate(pb.ValidationRequest(tokens=[1] * 50, validation_offset=31))
        assert len(most.flat_logits) == 32 * 500
