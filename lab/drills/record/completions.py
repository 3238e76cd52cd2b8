"""One completion on each served rank, asked of its own engine: the proof that inference works there."""

import asyncio
import json
from collections.abc import Mapping

import httpx

from lab.drills.outcome import Completion
from lab.drills.record.traffic import RequestFailed, named_rank, read_whole

_TIMEOUT_SEC = 10.0


async def ask_each(urls: Mapping[int, str], model: str) -> tuple[Completion, ...]:
    """Ask every rank's engine at once; `urls` by rank. An engine that gives none is not ok, with the reason."""
    async with httpx.AsyncClient(timeout=_TIMEOUT_SEC, trust_env=False) as client:
        return tuple(await asyncio.gather(*(_ask(client, rank, url, model) for rank, url in sorted(urls.items()))))


async def _ask(client: httpx.AsyncClient, rank: int, url: str, model: str) -> Completion:
    body = {"model": model, "prompt": f"are you rank {rank}", "max_tokens": 2}
    try:
        response = await client.post(
            f"{url}/v1/completions", content=json.dumps(body), headers={"content-type": "application/json"}
        )
        if response.status_code != 200:
            return _failed(rank, f"HTTP {response.status_code}: {response.text[:200]}")
        answer = read_whole(response.content)
    except (httpx.HTTPError, RequestFailed) as error:
        return _failed(rank, str(error) or type(error).__name__)
    ok = answer.finish_reason not in (None, "abort")
    detail = "" if ok else f"finish_reason {answer.finish_reason}"
    return Completion(rank=rank, ok=ok, answered_by=named_rank(answer.text), text=answer.text, detail=detail)


def _failed(rank: int, why: str) -> Completion:
    return Completion(rank=rank, ok=False, answered_by=None, text="", detail=why)
