"""What the API's routes share: the way to Temporal, the short memory, the settings, the figures."""

import asyncio
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import CollectorRegistry, Counter

from api.cache import Instances
from api.errors import ApiReason
from api.gateway import Gateway
from api.pulse import Pulse
from api.strangers import Strangers
from domain.config import FaultToleranceConfig
from domain.messages.fault_manager import FaultManagerStart
from domain.messages.node_manager import FtPacing
from domain.receivers import Receiver, fault_manager
from domain.registration import RegisteredInstance
from domain.topology import Topology
from service.http import HttpError
from service.metrics import NAMESPACE

_LABEL: Final = ("outcome",)
_UPDATES_AT_ONCE: Final = 5


class Figures:
    """Counters of what came in, by what became of it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.reports = Counter("api_reports", "Fault reports.", _LABEL, namespace=NAMESPACE, registry=registry)
        self.heartbeats = Counter("api_heartbeats", "Heartbeats.", _LABEL, namespace=NAMESPACE, registry=registry)
        self.announcements = Counter("api_announcements", "Coordinators' words.", namespace=NAMESPACE, registry=registry)


@dataclass(frozen=True)
class Api:
    """Stateless but for caches: any number of these may run beside each other."""

    gateway: Gateway
    instances: Instances
    config: FaultToleranceConfig
    figures: Figures
    pulse: Pulse = field(default_factory=Pulse)
    strangers: Strangers = field(default_factory=Strangers)
    registering: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_UPDATES_AT_ONCE))
    """A workflow takes ten updates at a time; when all Pods of a cluster register at once, the others wait here."""

    async def topology(self, instance_id: int) -> Topology:
        """An instance's topology. Raises HttpError 404, 503."""
        topology = await self.instances.find(instance_id)
        if topology is None:
            raise unknown(instance_id)
        return topology

    async def instance(self, instance_id: int) -> RegisteredInstance:
        """The same without its topology."""
        instance = await self.instances.registered(instance_id)
        if instance is None:
            raise unknown(instance_id)
        return instance

    def fault_manager(self, topology: Topology) -> Receiver:
        """An instance's FaultManager, and with what one that was terminated starts again."""
        return fault_manager(FaultManagerStart(instance_id=topology.instance_id, topology=topology, config=self.config))

    def pacing(self) -> FtPacing:
        """What NodeManagers are told of the configuration."""
        times = self.config.dp_scale_down_config
        return FtPacing(
            enable_dp_scale_down_proxy=self.config.enable_dp_scale_down_proxy,
            poll_interval_sec=times.poll_interval_sec,
            fault_poll_interval_sec=times.fault_poll_interval_sec,
            engine_request_timeout_sec=times.engine_request_timeout_sec,
        )


def unknown(instance_id: int, status: int = 404) -> HttpError:
    """There is no such instance."""
    return HttpError(status, ApiReason.UNKNOWN_INSTANCE, f"there is no instance {instance_id}")
