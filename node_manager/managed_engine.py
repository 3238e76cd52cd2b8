"""One rank's engine as its NodeManager holds it: process tree, client, and the last thing that was seen of it.

An object is one engine incarnation. A new start makes new objects, so nothing that an old engine said or did can be
taken for the new one's.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from domain.engine import RankEntry
from domain.messages.node_manager import StartRequest
from domain.topology import Endpoint
from engine.client import EngineClient
from engine.process import Loss, ProcessTree
from node_manager.config import EngineSpec
from node_manager.journal import EngineRecord


@dataclass
class ManagedEngine:
    """`last_entry` is what the last look showed, None before the first. `mute_polls` counts polls in a row without an answer.

    `stopping` is set when its end is wanted: a loss is no news then.
    """

    rank: int
    spec: EngineSpec
    tree: ProcessTree
    client: EngineClient
    record: EngineRecord
    ft_api_absent: bool = False
    stopping: bool = False
    last_entry: RankEntry | None = None
    last_look: int = 0
    mute_polls: int = 0
    looking: bool = field(default=False, repr=False)

    @property
    def incarnation(self) -> str:
        return self.record.identity

    @property
    def loss(self) -> Loss | None:
        return self.tree.loss

    @property
    def ready(self) -> bool:
        """Whether it was ever ready: `/health` answered 200 once."""
        return self.record.ready


def own_endpoints(endpoints: Iterable[Endpoint], pod_ip: str, port: int) -> tuple[Endpoint, ...]:
    """This Pod's routable endpoints, by rank. Headless ones have no engine API and are none of ours to start or look at."""
    mine = (e for e in endpoints if e.pod_ip == pod_ip and e.node_manager_port in (None, port) and not e.headless)
    return tuple(sorted(mine, key=lambda endpoint: endpoint.id))


def is_mine(start: StartRequest, pod_ip: str, port: int) -> bool:
    """Whether this Pod has a part in the instance, be it a headless one: that is guarded and finalized, no more."""
    return any(e.pod_ip == pod_ip and e.node_manager_port in (None, port) for e in start.endpoints)


def dp_size(start: StartRequest) -> int:
    """The original size of the group: ranks keep their numbers, whoever is gone."""
    return len({endpoint.id for endpoint in start.endpoints if not endpoint.headless})


def placeholder_values(start: StartRequest, endpoint: Endpoint, local_index: int, log_dir: Path) -> Mapping[str, object]:
    """What the words in braces of an engine's command stand for (`config.PLACEHOLDERS`)."""
    return {
        "rank": endpoint.id,
        "ip": endpoint.ip,
        "port": endpoint.business_port,
        "dp_size": dp_size(start),
        "master_ip": start.master_dp_ip,
        "master_port": start.dp_master_port,
        "local_index": local_index,
        "devices": ",".join(endpoint.device_ids) or local_index,
        "log_dir": log_dir,
    }


def compiled_title(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)
