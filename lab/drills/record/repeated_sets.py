"""How often a Coordinator was told what it knew already: the periodic SET, counted where it arrives.

A view log leaves out refreshes that changed nothing; that they came, and changed nothing, is in the Coordinator's
counters (`/metrics`).
"""

import re
from collections.abc import Mapping
from typing import Final

import httpx

_COUNTER: Final = re.compile(
    r'^autotomy_coordinator_refresh_entries_total\{outcome="unchanged"\} (?P<count>[0-9.e+]+)$', re.MULTILINE
)
_TIMEOUT_SEC: Final = 5.0


async def unchanged_refreshes(coordinators: Mapping[str, str]) -> dict[str, float]:
    """Per Coordinator (name → management address) the entries so far that changed nothing; none told counts as 0."""
    async with httpx.AsyncClient(timeout=_TIMEOUT_SEC, trust_env=False) as client:
        return {name: await _count(client, url) for name, url in coordinators.items()}


async def _count(client: httpx.AsyncClient, url: str) -> float:
    try:
        found = _COUNTER.search((await client.get(f"{url}/metrics")).text)
    except httpx.HTTPError:
        return 0.0
    return float(found["count"]) if found else 0.0
