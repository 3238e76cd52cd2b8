"""With AUTOTOMY_RECORD_HISTORIES set (`make histories`), what these tests made a server record becomes the golden files."""

import os
from collections.abc import AsyncIterator

import pytest
from temporalio.client import Client

from tests.histories.record import record_all


@pytest.fixture(scope="session", autouse=True)
async def golden_histories(temporal_client: Client) -> AsyncIterator[None]:
    yield
    if os.environ.get("AUTOTOMY_RECORD_HISTORIES"):
        written = await record_all(temporal_client)
        print(f"\n{len(written)} golden histories: {', '.join(written)}")
