"""Large payloads travel compressed, small ones readable, foreign ones as they came."""

import pytest
from temporalio.api.common.v1 import Payload

from service.payloads import COMPRESS_FROM_BYTES, LargePayloads


def payload(size: int) -> Payload:
    return Payload(metadata={"encoding": b"json/plain"}, data=b'"' + b"x" * (size - 2) + b'"')


@pytest.mark.parametrize(("size", "packed"), [(2, False), (COMPRESS_FROM_BYTES - 1, False), (COMPRESS_FROM_BYTES, True)])
async def test_only_large_payloads_are_compressed_and_all_come_back(size: int, packed: bool) -> None:
    codec, before = LargePayloads(), payload(size)
    (sent,) = await codec.encode([before])
    assert (sent != before) is packed
    assert not packed or len(sent.data) < size / 100
    assert await codec.decode([sent]) == [before]


async def test_a_damaged_payload_is_an_error_that_says_so() -> None:
    codec = LargePayloads()
    (sent,) = await codec.encode([payload(COMPRESS_FROM_BYTES)])
    for broken in (b"nonsense", sent.data[:-4]):
        with pytest.raises(ValueError, match=r"damaged|cut off"):
            await codec.decode([Payload(metadata=dict(sent.metadata), data=broken)])
