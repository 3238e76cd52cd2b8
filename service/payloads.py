"""How models travel to Temporal: JSON by pydantic, and compressed where there is much of it.

Temporal refuses a payload of 2 MB, and keeps each in the history. No state of a hundred instances of 320 ranks needs this
(docs/records/0010-one-topology-one-owner.md); what a FaultManager remembers of 4,096 ranks does: over 3 MB of JSON that says
nearly the same again and again, compressed a twentieth of that. Small payloads stay as they are, so that a person can
read them in the Web UI; what anybody sends uncompressed (the stock CLI) is read as well.
"""

import dataclasses
import zlib
from collections.abc import Sequence
from functools import cache
from typing import Final

from temporalio.api.common.v1 import Payload
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DataConverter, PayloadCodec

COMPRESS_FROM_BYTES: Final = 128 * 1024
"""The topology of an instance of 320 ranks, 50 kB, is still readable in the Web UI."""

PACKED: Final = b"binary/zlib"
"""The encoding that a packed payload is marked with."""

_LEVEL: Final = 1
_LARGEST_BYTES: Final = 256 * 1024 * 1024


class LargePayloads(PayloadCodec):
    """Compresses what is large. Raises `ValueError` for one of ours that is damaged."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [_packed(payload) if len(payload.data) >= COMPRESS_FROM_BYTES else payload for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [unpacked(payload) for payload in payloads]


def _packed(payload: Payload) -> Payload:
    return Payload(metadata={"encoding": PACKED}, data=zlib.compress(payload.SerializeToString(), _LEVEL))


def unpacked(payload: Payload) -> Payload:
    """The payload as it was before it was packed, if it was. Raises `ValueError` for one that is damaged."""
    if payload.metadata.get("encoding") != PACKED:
        return payload
    unpacking = zlib.decompressobj()
    try:
        content = unpacking.decompress(payload.data, _LARGEST_BYTES)
    except zlib.error as error:
        raise ValueError(f"a compressed payload is damaged: {error}") from None
    if not unpacking.eof:
        raise ValueError("a compressed payload is cut off or too large")
    return Payload.FromString(content)


@cache
def data_converter() -> DataConverter:
    """The converter of everybody: clients, workers, and whoever reads a history.

    What `LargePayloads` packs may change; what it can unpack may not: a history keeps its payloads as they were written.
    """
    return dataclasses.replace(pydantic_data_converter, payload_codec=LargePayloads())
