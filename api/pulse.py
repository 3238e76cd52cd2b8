"""Whose heartbeats stay away, and is the Pod really gone?

When a Pod was last heard is known in this process only, and this process may be one API of several, or have started a
moment ago: silence here proves nothing. So before a NodeManager is called lost it is asked itself, at its own address
(`GET /liveness`). It is lost where it gives no answer, and where a fresh one answers that belongs to no instance although
its instance lives: its engines went with its former life.

What comes of it is lifecycle information for the FaultManager (`node_manager_lost`, `node_manager_back`), never evidence
against a rank. The FaultManager's record says whom it holds for lost, and it is told only what differs: nobody is told
twice, whichever API speaks, and an API that forgot everything takes back what another one said.
"""

import time
from collections.abc import Callable, Iterable

from domain.messages.node_manager import LivenessReply
from domain.registration import RegisteredInstance
from domain.runtime import FtPhase
from domain.topology import NodeManagerAddress


class Pulse:
    """When each Pod was last heard. `now` is a monotonic clock, in seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._heard_at: dict[tuple[int, NodeManagerAddress], float] = {}
        self._ever_heard: set[tuple[int, NodeManagerAddress]] = set()
        self._told_at: dict[tuple[int, NodeManagerAddress, bool], float] = {}

    def heard(self, instance_id: int, manager: NodeManagerAddress) -> None:
        """It lives, by a heartbeat or because it answered."""
        self._heard_at[instance_id, manager] = self._now()
        self._ever_heard.add((instance_id, manager))

    def ever_heard(self, instance_id: int, manager: NodeManagerAddress) -> bool:
        """Whether this process knows that it was ever there."""
        return (instance_id, manager) in self._ever_heard

    def may_tell(self, instance_id: int, manager: NodeManagerAddress, *, lost: bool, again_after_sec: float) -> bool:
        """Whether to say this (again). Two APIs of which one cannot reach a Pod contradict each other, but not every second."""
        key, now = (instance_id, manager, lost), self._now()
        if now - self._told_at.get(key, float("-inf")) < again_after_sec:
            return False
        self._told_at[key] = now
        return True

    def overdue(self, instance: RegisteredInstance, timeout_sec: float) -> tuple[NodeManagerAddress, ...]:
        """Those that were silent for so long. One that was never heard counts as heard when it was first looked for."""
        now = self._now()
        silent = []
        for manager in instance.managers:
            heard_at = self._heard_at.setdefault((instance.instance_id, manager), now)
            if now - heard_at > timeout_sec:
                silent.append(manager)
        return tuple(silent)

    def keep_only(self, instance_ids: Iterable[int]) -> None:
        """Instances that were removed are forgotten."""
        kept = set(instance_ids)
        self._heard_at = {key: at for key, at in self._heard_at.items() if key[0] in kept}
        self._ever_heard = {key for key in self._ever_heard if key[0] in kept}
        self._told_at = {key: at for key, at in self._told_at.items() if key[0] in kept}


def is_lost(answer: LivenessReply | None, instance_id: int, phase: FtPhase) -> bool:
    """What a NodeManager's answer (None: there was none) means for its instance. While it is assembled or rebuilt, its
    Pods may be without a start command."""
    if answer is None:
        return True
    if "instance_id" not in answer.model_fields_set or phase is FtPhase.RECONFIGURING:
        return False
    return answer.instance_id != instance_id
