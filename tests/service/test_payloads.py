"""Large payloads travel compressed, small ones readable, foreign ones as they came."""

import tomllib
from pathlib import Path
from typing import Final

import pytest
from temporalio.api.common.v1 import Payload

from service.payloads import COMPRESS_FROM_BYTES, LargePayloads

ROOT: Final = Path(__file__).parents[2]


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


def test_nobody_reads_or_writes_payloads_without_it() -> None:
    """A client, worker or replayer with a converter of its own would fail at the first packed payload."""
    rooms = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["root_packages"]
    files = [file for room in rooms for file in (ROOT / room).rglob("*.py")]
    ours = {file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8") for file in files}
    assert {name for name, text in ours.items() if "pydantic_data_converter" in text} == {"service/payloads.py"}
    assert {name for name, text in ours.items() if "Client.connect(" in text} == {"service/temporal.py"}
    assert {name for name, text in ours.items() if "Replayer(" in text} == {"workers/replay.py"}
    assert "data_converter=data_converter()" in ours["workers/replay.py"]
