"""`python -m lab.bench.light`: the process that plays engines (and, for a `light` order, whole Pods) of many instances.

Its order is a JSON file (`LightOrder`); it prints one line, its control URL, when all addresses are open. The control API:

    POST /fault   {"instance_id", "rank"}   the rank is dead, its peers have noticed → the `Episode`
    POST /reset   {"instance_id"}           fresh engines for every rank
    GET  /episodes                          all episodes so far
    GET  /polls                             status requests that the engines have answered so far
"""

import argparse
import asyncio
import json
import random
from pathlib import Path
from typing import Final

import httpx
from pydantic import JsonValue

from domain.model import InstanceId, Rank, Strict
from domain.topology import Topology
from lab.bench.engine_routes import EngineRoutes
from lab.bench.group import Group
from lab.bench.light_pod import LightPod
from lab.bench.wire import Answer, serve
from service.leave import leave
from service.process import run_process

_HOST: Final = "127.0.0.1"


class LightInstance(Strict):
    """One instance. `reports`: its Pods tell the Controller what they see; without, nobody is told (the bare loop's)."""

    topology: Topology
    reports: bool = True


class LightOrder(Strict):
    """What to play. `pods`: the NodeManagers too; without, engines only, and real NodeManagers ask them."""

    instances: tuple[LightInstance, ...]
    pods: bool
    poll_sec: float
    recovery_sec: float
    controller_url: str


class FaultOrder(Strict):
    instance_id: InstanceId
    rank: Rank


class ResetOrder(Strict):
    instance_id: InstanceId


class Light:
    """All groups of the process, and the control API's handler."""

    def __init__(self, order: LightOrder) -> None:
        self._order = order
        self._groups: dict[int, Group] = {}
        self._servers: list[asyncio.Server] = []

    async def open(self, http: httpx.AsyncClient) -> None:
        """Opens every address. Raises OSError where one is taken."""
        for instance in self._order.instances:
            topology = instance.topology
            group = Group(topology.instance_id, topology.ranks, self._order.recovery_sec)
            self._groups[topology.instance_id] = group
            if self._order.pods:
                await self._open_pods(group, instance, http)
            else:
                group.start(topology.ranks)
                for endpoint in topology.endpoints:
                    routes = EngineRoutes(group, endpoint.id, topology.model_name)
                    self._servers.append(await serve(routes, endpoint.ip, endpoint.business_port))

    async def _open_pods(self, group: Group, instance: LightInstance, http: httpx.AsyncClient) -> None:
        pods = [
            LightPod(
                address=address,
                group=group,
                ranks=instance.topology.ranks_of(address),
                poll_sec=self._order.poll_sec,
                phase_sec=random.uniform(0, self._order.poll_sec),
                http=http,
                controller_url=self._order.controller_url if instance.reports else None,
            )
            for address in instance.topology.managers
        ]

        def tell_all() -> None:
            for pod in pods:
                pod.engines_changed()

        group.on_change = tell_all
        for pod in pods:
            self._servers.append(await serve(pod, pod.address.ip, pod.address.port))

    def __call__(self, method: str, path: str, body: bytes) -> Answer:
        match method, path:
            case "POST", "/fault":
                fault = FaultOrder.model_validate_json(body)
                return Answer(self._groups[fault.instance_id].fail(fault.rank).model_dump(mode="json"))
            case "POST", "/reset":
                group = self._groups[ResetOrder.model_validate_json(body).instance_id]
                group.stop(group.ranks)
                group.start(group.ranks)
                return Answer({})
            case "GET", "/episodes":
                episodes: list[JsonValue] = [
                    one.model_dump(mode="json") for group in self._groups.values() for one in group.episodes
                ]
                return Answer({"episodes": episodes})
            case "GET", "/polls":
                return Answer({"polls": sum(group.polls for group in self._groups.values())})
        return Answer({"error": {"message": f"no route {method} {path}"}}, 404)

    def close(self) -> None:
        for server in self._servers:
            server.close()


def main() -> int:
    """Exit codes as `service.process`."""
    parser = argparse.ArgumentParser(prog="python -m lab.bench.light")
    parser.add_argument("order", type=Path, help="a JSON file, see LightOrder")
    order = LightOrder.model_validate_json(parser.parse_args().order.read_text(encoding="utf-8"))

    async def play(stop: asyncio.Event) -> None:
        light = Light(order)
        limits = httpx.Limits(max_connections=64, max_keepalive_connections=64)
        async with httpx.AsyncClient(timeout=30.0, trust_env=False, limits=limits) as http:
            await light.open(http)
            control = await serve(light, _HOST, 0)
            host, port = control.sockets[0].getsockname()[:2]
            print(json.dumps({"control_url": f"http://{host}:{port}"}), flush=True)
            await stop.wait()
            control.close()
            light.close()

    return run_process("bench-light", play)


if __name__ == "__main__":
    leave(main())
