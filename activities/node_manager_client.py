"""One NodeManager's HTTP routes (contracts §2), typed: what is sent, what comes back. No repetition here, no judgement."""

from typing import Final

import httpx

from domain.messages.node_manager import (
    FT_PREFIX,
    ApplyReply,
    ApplyRequest,
    EngineRestartReply,
    EngineRestartRequest,
    FinalizeReply,
    FinalizeRequest,
    GuardReply,
    GuardRequest,
    JournalReply,
    PaceRequest,
    PodStatusReply,
    ProbeReply,
    ProbeRequest,
    StartReply,
    StartRequest,
    StatusReply,
    StatusRequest,
    StopReply,
    StopRequest,
)
from domain.model import Tolerant
from domain.topology import NodeManagerAddress
from service.peer import get, post

_PREFIX: Final = "/node-manager"


class Acknowledged(Tolerant):
    """A 200 whose content does not matter."""


class Alive(Tolerant):
    """GET /liveness: in which life the NodeManager answers; there with the feature off, too."""

    incarnation: str


class NodeManagerClient:
    """The routes of the NodeManager at `address`. Each call raises PeerRefused, PeerSilent or ProtocolError."""

    def __init__(self, http: httpx.AsyncClient, address: NodeManagerAddress) -> None:
        self._http = http
        self._url = address.url

    async def status(self, request: StatusRequest, timeout_sec: float) -> StatusReply:
        return await post(self._http, f"{self._url}{FT_PREFIX}/status", request, StatusReply, timeout_sec)

    async def guard(self, request: GuardRequest, timeout_sec: float) -> GuardReply:
        return await post(self._http, f"{self._url}{FT_PREFIX}/guard", request, GuardReply, timeout_sec)

    async def apply(self, request: ApplyRequest, timeout_sec: float) -> ApplyReply:
        return await post(self._http, f"{self._url}{FT_PREFIX}/apply", request, ApplyReply, timeout_sec)

    async def finalize(self, request: FinalizeRequest, timeout_sec: float) -> FinalizeReply:
        return await post(self._http, f"{self._url}{FT_PREFIX}/finalize", request, FinalizeReply, timeout_sec)

    async def probe(self, request: ProbeRequest, timeout_sec: float) -> ProbeReply:
        return await post(self._http, f"{self._url}{FT_PREFIX}/probe", request, ProbeReply, timeout_sec)

    async def pace(self, request: PaceRequest, timeout_sec: float) -> Acknowledged:
        return await post(self._http, f"{self._url}{FT_PREFIX}/pace", request, Acknowledged, timeout_sec)

    async def journal(self, timeout_sec: float) -> JournalReply:
        return await get(self._http, f"{self._url}{FT_PREFIX}/journal", JournalReply, timeout_sec)

    async def liveness(self, timeout_sec: float) -> Alive:
        return await get(self._http, f"{self._url}/liveness", Alive, timeout_sec)

    async def ready(self, timeout_sec: float) -> PodStatusReply:
        return await get(self._http, f"{self._url}{_PREFIX}/status", PodStatusReply, timeout_sec)

    async def start(self, request: StartRequest, timeout_sec: float) -> StartReply:
        return await post(self._http, f"{self._url}{_PREFIX}/start", request, StartReply, timeout_sec)

    async def stop(self, request: StopRequest, timeout_sec: float) -> StopReply:
        return await post(self._http, f"{self._url}{_PREFIX}/stop", request, StopReply, timeout_sec)

    async def engine_restart(self, request: EngineRestartRequest, timeout_sec: float) -> EngineRestartReply:
        return await post(self._http, f"{self._url}{_PREFIX}/engine-restart", request, EngineRestartReply, timeout_sec)
