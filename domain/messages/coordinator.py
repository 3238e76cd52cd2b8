"""What a Coordinator serves to the Controller, and what it answers (contracts §4).

A refresh tells a Coordinator which endpoints it may route to. Our Controller numbers each instance's views (`revision`)
and addresses one life of the Coordinator (`coordinator_incarnation`); Motor's senders know neither, for them the identity
of the endpoints decides. The rules themselves are in `coordinator/view.py`.

Requests are strict. Replies are tolerant: a Coordinator may say more than we read.
"""

from enum import StrEnum

from pydantic import StrictBool, model_validator

from domain.address import Host
from domain.model import Incarnation, InstanceId, Port, Rank, Revision, Said, Strict, Tolerant, Word
from domain.topology import Role

REFRESH_PATH = "/instances/refresh"
INSTANCES_PATH = "/instances"
RANK_HEADER = "x-autotomy-rank"
INSTANCE_HEADER = "x-autotomy-instance"


class RefreshEvent(StrEnum):
    """What a refresh does to the instances that it lists."""

    ADD = "add"  # route to these endpoints
    DEL = "del"  # route to none of them any more
    SET = "set"  # the whole view; opens routing after a Coordinator's start
    PAUSE = "pause"  # known, but not routed to
    RESUME = "resume"  # routed to again


class RefreshEndpoint(Strict):
    """One endpoint of an instance. `status` is the sender's remark; it is kept and not judged."""

    id: Rank
    ip: Host
    business_port: Port
    status: Word = "normal"
    headless: StrictBool = False


class RefreshInstance(Strict):
    """One instance's view: `endpoints` by Pod ip, then by endpoint id in decimal. Empty = withdrawn.

    Raises a validation error when a key is not its endpoint's id.
    """

    id: InstanceId
    job_name: Word = ""
    model_name: Word = ""
    role: Role = Role.UNION
    revision: Revision | None = None
    endpoints: dict[Host, dict[Word, RefreshEndpoint]] = {}

    @model_validator(mode="after")
    def _keys_are_ids(self) -> "RefreshInstance":
        for pod_ip, in_pod in self.endpoints.items():
            for key, endpoint in in_pod.items():
                if key != str(endpoint.id):
                    raise ValueError(f"endpoints[{pod_ip!r}][{key!r}].id is {endpoint.id}: key and id must be the same")
        return self

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that this entry would serve, ascending; headless endpoints serve none."""
        return tuple(
            sorted({e.id for in_pod in self.endpoints.values() for e in in_pod.values() if not e.headless}),
        )


class RefreshRequest(Strict):
    """POST /instances/refresh. `coordinator_incarnation` addresses one life of the Coordinator: another refuses it."""

    event: RefreshEvent
    coordinator_incarnation: Incarnation | None = None
    instances: tuple[RefreshInstance, ...]

    @model_validator(mode="after")
    def _served_models_have_names(self) -> "RefreshRequest":
        if self.event not in (RefreshEvent.DEL, RefreshEvent.PAUSE):
            for instance in self.instances:
                if instance.ranks and not instance.model_name:
                    raise ValueError(f"instance {instance.id}: model_name is missing, requests are routed by it")
        return self


class ConflictReason(StrEnum):
    """Why a refresh was answered 409. Nothing at all was done then."""

    INCARNATION = "INCARNATION"  # meant for another life of this Coordinator: it restarted, and routes nothing yet
    DUPLICATE_ID = "DUPLICATE_ID"  # an instance, or a routable rank of one, is listed twice
    IDENTITY_CONFLICT = "IDENTITY_CONFLICT"  # other endpoints than the published ones, without a newer revision


class StaleInstance(Tolerant):
    """An entry that was overtaken: the Coordinator already knows revision `known`."""

    id: InstanceId
    revision: Revision
    known: Revision


class RefreshOutcome(Tolerant):
    """What became of each listed instance, by id, in the order they were listed."""

    applied: tuple[InstanceId, ...] = ()
    unchanged: tuple[InstanceId, ...] = ()
    stale: tuple[StaleInstance, ...] = ()


class RefreshReply(Tolerant):
    """200 to a refresh."""

    status: Word = "success"
    data: RefreshOutcome


class RefreshConflictData(Tolerant):
    reason: ConflictReason
    incarnation: Incarnation | None = None
    """The Coordinator's present incarnation."""


class RefreshConflictReply(Tolerant):
    """409 to a refresh; `reason` and `data.reason` are the same."""

    reason: ConflictReason
    message: Said = ""
    data: RefreshConflictData


class PublishedEndpoint(Tolerant):
    """One endpoint as the Coordinator holds it."""

    id: Rank
    ip: Host
    business_port: Port
    status: Word = "normal"
    headless: StrictBool = False


class PublishedInstance(Tolerant):
    """One instance as the Coordinator holds it; one without endpoints is withdrawn, its revision still counts."""

    id: InstanceId
    job_name: Word = ""
    model_name: Word = ""
    role: Role = Role.UNION
    revision: Revision | None = None
    paused: StrictBool = False
    endpoints: dict[Host, dict[Word, PublishedEndpoint]] = {}

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that requests go to, ascending."""
        if self.paused:
            return ()
        return tuple(
            sorted({e.id for in_pod in self.endpoints.values() for e in in_pod.values() if not e.headless}),
        )


class CoordinatorView(Tolerant):
    """GET /instances: which life this is, whether it routes (`has_view`), and what it holds."""

    incarnation: Incarnation
    has_view: StrictBool
    instances: tuple[PublishedInstance, ...] = ()

    def instance(self, instance_id: int) -> PublishedInstance | None:
        """The instance with this id, or None where the Coordinator never heard of it."""
        return next((instance for instance in self.instances if instance.id == instance_id), None)
