"""Hardware faults: what MindCluster says of cards and nodes, and which ranks that means (contracts §6; RFC §4.2).

A fault is one code on one card of one node: the key is (node, code, npu), so one code on two cards is two faults. It is
mapped once, when it comes in: node, all Pods of the instance on it and the card's name give the ranks whose devices hold
that chip. An empty name is the whole node; several names may be comma-joined. What cannot be mapped in full is marked as
*incomplete*: a rank is never guessed, and such a fault takes the original strategy.

Hardware only ever correlates. A fault that was acted on is *handled* and does not fire again until it was cleared; one
that comes back with a higher level is another fault. Reports and clears may arrive late or twice: `received_at` orders
them, per key.
"""

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from pydantic import Field

from domain.model import Rank, Strict
from domain.topology import Endpoint, Topology

_CARD: Final = re.compile(r"(?:Ascend\d+|npu)-(\d+)")
_FAULTS_KEPT: Final = 256
_CLEARS_KEPT: Final = 64


class FaultLevel(StrEnum):
    """How bad it is. L4 and above ask for a recovery, L3 for isolation, L2 may heal by itself, L1 is harmless."""

    L1 = "L1"
    L2 = "L2"
    L3 = "L3"
    L4 = "L4"
    L5 = "L5"
    L6 = "L6"


_LEVELS: Final = {
    **{level.value: level for level in FaultLevel},
    "NotHandleFault": FaultLevel.L1,
    "SubHealthFault": FaultLevel.L1,
    "RestartRequest": FaultLevel.L2,
    "RestartBusiness": FaultLevel.L3,
    "FreeRestartNPU": FaultLevel.L4,
    "RestartNPU": FaultLevel.L5,
    "SeparateNPU": FaultLevel.L6,
    "PreSeparateNPU": FaultLevel.L6,
    "ManuallySeparateNPU": FaultLevel.L6,
}


def fault_level(word: str) -> FaultLevel | None:
    """The level of a word, ours (`L5`) or MindCluster's (`RestartNPU`). None: nobody knows it, which is never harmless."""
    return _LEVELS.get(word.strip())


class Mapping(Strict):
    """The ranks that a fault means. `unmapped`: why the mapping is not complete; empty where it is."""

    ranks: tuple[Rank, ...] = ()
    unmapped: str = ""


def map_fault(topology: Topology, node_name: str, npu_name: str) -> Mapping:
    """Which ranks of an instance a fault of `npu_name` on `node_name` means. Never guesses: says what it could not map."""
    here = [place for place in topology.node_managers if place.node_name == node_name]
    if not here:
        nameless = [str(place.address) for place in topology.node_managers if not place.node_name]
        return Mapping(unmapped=f"it is not known on which nodes the Pods {', '.join(nameless)} are") if nameless else Mapping()
    managers = {place.address for place in here}
    endpoints = [endpoint for endpoint in topology.endpoints if topology.manager_of(endpoint) in managers]
    if not npu_name.strip():
        return Mapping(ranks=_ranks(endpoints))
    return _map_cards(endpoints, npu_name)


def _map_cards(endpoints: list[Endpoint], npu_name: str) -> Mapping:
    names = [name.strip() for name in npu_name.split(",")]
    cards = [_CARD.fullmatch(name) for name in names]
    unknown = [name for name, card in zip(names, cards, strict=True) if card is None]
    chips = {int(card[1]) for card in cards if card is not None}
    hit = _ranks(endpoint for endpoint in endpoints if chips & set(_chips(endpoint)))
    if unknown:
        return Mapping(ranks=hit, unmapped=f"card names that nobody knows: {', '.join(map(repr, unknown))}")
    blind = [endpoint.id for endpoint in endpoints if not endpoint.device_ids or len(_chips(endpoint)) < len(endpoint.device_ids)]
    if blind:
        return Mapping(ranks=hit, unmapped=f"it is not known which devices endpoints {sorted(set(blind))} have")
    return Mapping(ranks=hit)


def _chips(endpoint: Endpoint) -> tuple[int, ...]:
    return tuple(int(device) for device in endpoint.device_ids if device.isascii() and device.isdigit())


def _ranks(endpoints: Iterable[Endpoint]) -> tuple[int, ...]:
    return tuple(sorted({endpoint.id for endpoint in endpoints}))


class HardwareFault(Strict):
    """One standing fault. `ranks` are the mapped ones, all of them only where `unmapped` is empty.

    `received_at` (epoch seconds): when it was first received at this level. `handled`: it was acted on.
    """

    node_name: str
    fault_code: str
    npu_name: str
    level: FaultLevel
    ranks: tuple[Rank, ...] = ()
    unmapped: str = ""
    received_at: float
    last_at: float
    source: str = ""
    handled: bool = False

    @property
    def key(self) -> str:
        return fault_key(self.node_name, self.fault_code, self.npu_name)

    @property
    def mappable(self) -> bool:
        return not self.unmapped

    @property
    def of_whole_node(self) -> bool:
        return not self.npu_name

    def __str__(self) -> str:
        where = self.npu_name or "the whole node"
        ranks = f"ranks {list(self.ranks)}" if self.mappable else f"not mappable: {self.unmapped}"
        return f"{self.level} {self.fault_code} on {self.node_name}, {where} ({ranks})"


def fault_key(node_name: str, fault_code: str, npu_name: str) -> str:
    """A fault's identity: (node, code, npu)."""
    return f"{node_name}/{fault_code}/{npu_name.strip()}"


def mapped_fault(
    topology: Topology, node_name: str, fault_code: str, npu_name: str, level: str, received_at: float, source: str = ""
) -> HardwareFault:
    """A reported fault with its mapping. A level that nobody knows, or none, counts as an L6 that cannot be mapped."""
    known = fault_level(level)
    mapping = map_fault(topology, node_name, npu_name)
    unmapped = mapping.unmapped if known is not None else f"level {level!r} is not known; it counts as L6"
    return HardwareFault(
        node_name=node_name,
        fault_code=fault_code,
        npu_name=npu_name.strip(),
        level=known or FaultLevel.L6,
        ranks=mapping.ranks,
        unmapped=unmapped,
        received_at=received_at,
        last_at=received_at,
        source=source,
    )


class HardwareEvidence(Strict):
    """Every standing fault, and when the last ones were cleared, by key."""

    faults: dict[str, HardwareFault] = Field(default_factory=dict)
    cleared_at: dict[str, float] = Field(default_factory=dict)

    def report(self, fault: HardwareFault) -> "HardwareEvidence":
        """Lay a report over what is known. The same fault again is no news; a higher level makes it a new one."""
        if fault.received_at < self.cleared_at.get(fault.key, 0.0):
            return self
        known = self.faults.get(fault.key)
        if known is None:
            kept = dict(list(self.faults.items())[-(_FAULTS_KEPT - 1) :])
            return self.model_copy(update={"faults": {**kept, fault.key: fault}})
        if fault.received_at < known.last_at:
            return self
        worse = fault.level > known.level or (known.mappable and not fault.mappable)
        began = {} if worse else {"received_at": known.received_at, "handled": known.handled}
        return self._with(fault.model_copy(update=began))

    def clear(self, key: str, received_at: float) -> "HardwareEvidence":
        """The fault is gone; a report of it from before this is not listened to any more."""
        known = self.faults.get(key)
        if known is not None and received_at < known.last_at:
            return self
        faults = {other: fault for other, fault in self.faults.items() if other != key}
        times = {**self.cleared_at, key: max(received_at, self.cleared_at.get(key, 0.0))}
        return self.model_copy(update={"faults": faults, "cleared_at": dict(list(times.items())[-_CLEARS_KEPT:])})

    def handle(self, keys: Iterable[str]) -> "HardwareEvidence":
        """These faults were acted on."""
        wanted = set(keys)
        changed = {
            key: fault.model_copy(update={"handled": fault.handled or key in wanted}) for key, fault in self.faults.items()
        }
        return self.model_copy(update={"faults": changed})

    def standing(self, *levels: FaultLevel) -> tuple[HardwareFault, ...]:
        """The faults of these levels, handled or not, the oldest first."""
        found = [fault for fault in self.faults.values() if fault.level in levels]
        return tuple(sorted(found, key=lambda fault: (fault.received_at, fault.key)))

    def open(self, *levels: FaultLevel) -> tuple[HardwareFault, ...]:
        """Those of them that nobody has acted on yet."""
        return tuple(fault for fault in self.standing(*levels) if not fault.handled)

    def _with(self, fault: HardwareFault) -> "HardwareEvidence":
        return self.model_copy(update={"faults": {**self.faults, fault.key: fault}})


RECOVERY_LEVELS: Final = (FaultLevel.L4, FaultLevel.L5, FaultLevel.L6)


def isolating(hardware: HardwareEvidence, active: Iterable[int]) -> tuple[HardwareFault, ...]:
    """The L3 faults for which the instance is withdrawn until they are cleared: those that may touch an active rank."""
    alive = set(active)
    return tuple(fault for fault in hardware.standing(FaultLevel.L3) if not fault.mappable or alive & set(fault.ranks))
