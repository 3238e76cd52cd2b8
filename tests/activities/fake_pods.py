"""An instance whose NodeManagers are real HTTP servers with scripted behaviour, for tests of activities and workflows.

Each Pod listens on 127.0.0.1 and a free port of its own. Untouched it does what a good NodeManager does: guards, applies
once per request id, lets its engines recover `recovery_sec` later, takes verdicts. A test scripts one route of one Pod for
its next requests (`pod.script("apply", refuse("GUARD_HELD"))`), or changes what its engines say. Everything that reaches a
Pod is kept in `pod.seen`.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response

from domain.config import DpScaleDownConfig, FaultToleranceConfig
from domain.engine import FtCapability
from domain.messages.node_manager import FT_PREFIX
from domain.messages.strategy import RoundOrder
from domain.runtime import FtPhase
from domain.topology import Endpoint, NodeManagerAddress, NodeManagerPlace, ParallelConfig, Topology
from service.http import bind, create_app, failure
from tests.listening import listening

Behaviour = Callable[[dict[str, Any]], Awaitable[Response | None]]
"""What a Pod does with one request's body; None = what it would do anyway."""

CAPABILITY = FtCapability(enabled=True, scale_down_supported=True, external_lb=True, eplb_enabled=True, num_redundant_experts=32)


def refuse(reason: str, status: int = 502, **data: Any) -> Behaviour:
    """A refusal in the envelope."""

    async def behave(_body: dict[str, Any]) -> Response:
        return failure(status, reason, f"scripted: {reason}", **data)

    return behave


def hang(seconds: float) -> Behaviour:
    """Do it, but answer late."""

    async def behave(_body: dict[str, Any]) -> None:
        await asyncio.sleep(seconds)

    return behave


def answer(status: int, text: str) -> Behaviour:
    """Anything else that HTTP allows."""

    async def behave(_body: dict[str, Any]) -> Response:
        return Response(text, status_code=status)

    return behave


class FakePod:
    """One NodeManager and its engines."""

    def __init__(self, instance: "FakeInstance", ranks: Iterable[int]) -> None:
        self.instance = instance
        self.ranks = tuple(ranks)
        self.incarnation = uuid.uuid4().hex
        self.engines: dict[int, dict[str, Any]] = {rank: healthy(rank) for rank in self.ranks}
        self.seen: list[tuple[str, dict[str, Any]]] = []
        self.guard: str | None = None
        self.applied: dict[str, dict[str, Any]] = {}
        self.verdicts: dict[str, bool] = {}
        self.retired: set[int] = set()
        self.generation = 0
        self.started: dict[str, Any] | None = None
        self._scripts: dict[str, list[Behaviour]] = {}
        self._listening = AsyncExitStack()
        self.address = NodeManagerAddress(ip="127.0.0.1", port=1)

    # --- what tests do ------------------------------------------------------------------------------------------

    def script(self, route: str, *behaviours: Behaviour) -> None:
        """The next requests to this route (`guard`, `status`, …) meet these behaviours, one each."""
        self._scripts.setdefault(route, []).extend(behaviours)

    def bodies(self, route: str) -> list[dict[str, Any]]:
        """What this route was asked, in order."""
        return [body for seen, body in self.seen if seen == route]

    async def listen(self) -> None:
        sock = bind("127.0.0.1", 0 if self.address.port == 1 else self.address.port)
        self.address = NodeManagerAddress(ip="127.0.0.1", port=int(sock.getsockname()[1]))
        await self._listening.enter_async_context(listening(self._app(), sock))

    async def vanish(self) -> None:
        """Nobody listens there any more; `listen` brings it back."""
        await self._listening.aclose()

    # --- what NodeManagers do -----------------------------------------------------------------------------------

    def _app(self) -> FastAPI:
        app = create_app("fake NodeManager")
        routes: dict[str, tuple[str, str, Callable[[dict[str, Any]], Any]]] = {
            "status": ("POST", f"{FT_PREFIX}/status", self._status),
            "guard": ("POST", f"{FT_PREFIX}/guard", self._guard),
            "apply": ("POST", f"{FT_PREFIX}/apply", self._apply),
            "finalize": ("POST", f"{FT_PREFIX}/finalize", self._finalize),
            "probe": ("POST", f"{FT_PREFIX}/probe", self.probe),
            "pace": ("POST", f"{FT_PREFIX}/pace", lambda body: body),
            "journal": ("GET", f"{FT_PREFIX}/journal", self._journal),
            "start": ("POST", "/node-manager/start", self._start),
            "stop": ("POST", "/node-manager/stop", self._stop_engines),
            "engine_restart": ("POST", "/node-manager/engine-restart", self._engine_restart),
            "ready": ("GET", "/node-manager/status", lambda _body: {"status": self.started is not None}),
            "liveness": ("GET", "/liveness", lambda _body: {"incarnation": self.incarnation}),
        }
        for name, (method, path, handler) in routes.items():
            app.add_api_route(path, self._route(name, handler), methods=[method], response_model=None)
        return app

    def _route(self, name: str, handler: Callable[[dict[str, Any]], Any]) -> Callable[[Request], Awaitable[Any]]:
        async def route(request: Request) -> Any:
            body = await request.json() if request.method == "POST" else {}
            self.seen.append((name, body))
            scripts = self._scripts.get(name)
            scripted = await scripts.pop(0)(body) if scripts else None
            return scripted if scripted is not None else handler(body)

        return route

    def _status(self, body: dict[str, Any]) -> Any:
        entries = {str(rank): self.engines[rank] for rank in body["endpoint_ids"] if rank in self.engines}
        return {"engines": entries, "node_manager_incarnation": self.incarnation}

    def _guard(self, body: dict[str, Any]) -> Any:
        if body["request_id"] in self.verdicts:
            return failure(502, "VERDICT_KNOWN", "finalized already")
        if self.guard not in (None, body["request_id"]):
            return failure(502, "GUARD_HELD", f"{self.guard} owns the Pod", holder=self.guard)
        self.guard = body["request_id"]
        return {"status": "guarded", "expires_in_sec": body["lease_sec"], "lapsed": False}

    def _apply(self, body: dict[str, Any]) -> Any:
        known = self.applied.get(body["request_id"])
        if known is None:
            if self.guard != body["request_id"]:
                return failure(502, "NOT_GUARDED", "no live guard of this id")
            self.applied[body["request_id"]] = body
            self.instance.on_apply(body)
        elif known["endpoint_ids"] != body["endpoint_ids"] or known["params"] != body["params"]:
            return failure(502, "BODY_DIFFERS", "another body under the same id")
        return {"status": "accepted", "engines": {str(rank): {"http": 202} for rank in body["endpoint_ids"]}}

    def _finalize(self, body: dict[str, Any]) -> Any:
        verdict = self.verdicts.setdefault(body["request_id"], body["commit"])
        if verdict is not body["commit"]:
            return failure(502, "VERDICT_DIFFERS", "the other verdict is recorded")
        if self.guard == body["request_id"]:
            self.guard = None
        if verdict:
            self.retired |= set(body["retired_endpoint_ids"])
        return {"status": "committed" if verdict else "aborted"}

    def probe(self, body: dict[str, Any]) -> Any:
        """One completion on each of the body's ranks."""
        ok = {rank: self.engines[rank]["status"] == "healthy" for rank in body["endpoint_ids"]}
        results = {str(r): {"ok": yes, "http": 200 if yes else 503, "finish_reason": "length"} for r, yes in ok.items()}
        return {"engines": results}

    def _journal(self, _body: dict[str, Any]) -> Any:
        return {
            "incarnation": self.incarnation,
            "instance_id": self.instance.instance_id if self.started else None,
            "highest_generation": self.generation,
            "retired_ranks": sorted(self.retired),
            "dead_committed": sorted(self.retired),
            "guard": {
                "request_id": self.guard,
                "generation": self.generation,
                "expires_in_sec": 1.0,
                "live": True,
                "applied": self.guard in self.applied,
            }
            if self.guard
            else None,
            "transactions": [
                {"request_id": rid, "verdict": self.verdicts.get(rid)}
                for rid in {*self.applied, *([self.guard] if self.guard else [])}
            ],
        }

    def _start(self, body: dict[str, Any]) -> Any:
        self.started, self.generation = body, body["generation"]
        lives = {
            rank: f"{self.incarnation}:{rank}:{self.generation}" for rank in self.ranks if rank not in body["dead_committed"]
        }
        self.engines |= {rank: healthy(rank, incarnation=life) for rank, life in lives.items()}
        return {"status": "started", "incarnation": self.incarnation, "engines": {str(r): life for r, life in lives.items()}}

    def _engine_restart(self, body: dict[str, Any]) -> Any:
        if body["generation"] < self.generation:
            return failure(502, "OLD_GENERATION", f"generation {self.generation} was seen here")
        self.engines = {rank: exited(rank) for rank in self.ranks}
        return {"status": "stopped", "incarnation": self.incarnation}

    def _stop_engines(self, body: dict[str, Any]) -> Any:
        if body.get("incarnation") not in (None, self.incarnation):
            return {"status": "ignored", "incarnation": self.incarnation}
        before, self.incarnation = self.incarnation, uuid.uuid4().hex
        self.engines = {rank: exited(rank) for rank in self.ranks}
        return {"status": "stopping", "incarnation": before}


def entry(rank: int, status: str, **fields: Any) -> dict[str, Any]:
    base = {
        "id": rank,
        "status": status,
        "source": "engine",
        "process": "running",
        "incarnation": f"boot:{rank}:1",
        "sequence": 1,
    }
    return {**base, **fields}


def healthy(rank: int, **fields: Any) -> dict[str, Any]:
    return entry(rank, "healthy", **fields)


def unhealthy(rank: int, **fields: Any) -> dict[str, Any]:
    return entry(rank, "unhealthy", **fields)


def exited(rank: int, **fields: Any) -> dict[str, Any]:
    return entry(rank, "dead", source="process_exit", process="exited", **fields)


class FakeInstance:
    """Pods of one instance; after an apply at all Pods with survivors its engines recover `recovery_sec` later."""

    def __init__(self, instance_id: int, pods: Iterable[Iterable[int]] = ((0, 1), (2, 3))) -> None:
        self.instance_id = instance_id
        self.recovery_sec: float | None = 0.1
        self.pods = [FakePod(self, ranks) for ranks in pods]
        self._told: dict[str, set[int]] = {}

    def pod_of(self, rank: int) -> FakePod:
        return next(pod for pod in self.pods if rank in pod.ranks)

    def kill(self, *ranks: int) -> None:
        """These ranks' processes are gone, the others have noticed."""
        for pod in self.pods:
            for rank in pod.ranks:
                if rank not in pod.retired:
                    pod.engines[rank] = exited(rank) if rank in ranks else unhealthy(rank)

    def on_apply(self, body: dict[str, Any]) -> None:
        """The recovery is a collective: it begins when every survivor was told the same."""
        told = self._told.setdefault(body["request_id"], set())
        told |= set(body["endpoint_ids"])
        ranks = {rank for pod in self.pods for rank in pod.ranks if rank not in pod.retired}
        if told == ranks - set(body["params"]["removed_dp_ranks"]) and self.recovery_sec is not None:
            asyncio.get_running_loop().call_later(self.recovery_sec, self.recover, sorted(told))

    def recover(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            self.pod_of(rank).engines[rank] = healthy(rank)

    def topology(self) -> Topology:
        count = sum(len(pod.ranks) for pod in self.pods)
        return Topology(
            instance_id=self.instance_id,
            job_name="job",
            model_name="model",
            parallel_config=ParallelConfig(dp_size=count),
            dp_master_port=29500,
            node_managers=tuple(NodeManagerPlace(pod_ip="127.0.0.1", port=pod.address.port) for pod in self.pods),
            endpoints=tuple(
                Endpoint(id=r, pod_ip="127.0.0.1", ip="127.0.0.1", business_port=10000 + r, node_manager_port=pod.address.port)
                for pod in self.pods
                for r in pod.ranks
            ),
            ft_capability=CAPABILITY,
        )

    def order(self, *pending: int, generation: int = 1, **fields: Any) -> RoundOrder:
        base: dict[str, Any] = {
            "instance_id": self.instance_id,
            "generation": generation,
            "request_id": f"scale-down-{uuid.uuid4().hex}",
            "pending_ranks": pending,
            "dead_committed": (),
            "phase_before": FtPhase.NORMAL,
            "topology": self.topology(),
            "config": fast_config(),
            "published_ranks": tuple(range(4)),
            "view_revision": 1,
        }
        return RoundOrder(**{**base, **fields})

    def applies(self) -> list[dict[str, Any]]:
        return [body for pod in self.pods for body in pod.applied.values()]


def fast_config(*, scale_up: bool = False, **scale_down: Any) -> FaultToleranceConfig:
    """Scale-down on, with bounds that suit a test."""
    fast: dict[str, Any] = {
        "request_timeout_sec": 1.0,
        "engine_request_timeout_sec": 0.8,
        "poll_interval_sec": 0.2,
        "fault_poll_interval_sec": 0.1,
        "execution_deadline_sec": 3.0,
        "guard_deadline_sec": 1.5,
        "coordinator_deadline_sec": 2.0,
        "apply_deadline_sec": 1.5,
        "verify_deadline_sec": 1.5,
        "finalize_deadline_sec": 2.0,
        "dead_confirm_sec": 0.3,
    }
    return FaultToleranceConfig(
        enable_dp_scale_down=True,
        enable_dp_scale_up=scale_up,
        dp_scale_down_config=DpScaleDownConfig(**{**fast, **scale_down}),
        reconfiguration_deadline_sec=10.0,
    )


@asynccontextmanager
async def fake_instance(pods: Iterable[Iterable[int]] = ((0, 1), (2, 3))) -> AsyncIterator[FakeInstance]:
    """An instance with an id of its own, all Pods listening."""
    instance = FakeInstance(time.monotonic_ns() % 1_000_000_007, pods)
    async with AsyncExitStack() as stack:
        for pod in instance.pods:
            await pod.listen()
            stack.push_async_callback(pod.vanish)
        yield instance
