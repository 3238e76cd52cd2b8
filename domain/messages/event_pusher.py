"""What EventPusher is told and keeps, and what its one looping activity is told.

EventPusher knows the Coordinators and, per instance, the newest view revision. It pushes SET: at once where something
changed, and every `set_interval_sec`, so that whatever was lost is repaired in seconds (design §1).
"""

from pydantic import Field

from domain.address import Host
from domain.messages.coordinator import RefreshInstance
from domain.model import InstanceId, Port, Rank, Revision, Strict
from domain.runtime import RejectedSignal
from domain.topology import Role, Topology

EVENT_PUSHER_ID = "event-pusher"
EVENT_PUSHER_WORKFLOW = "EventPusher"

RECORD_VIEWS_UPDATE = "record_views"
"""To EventPusher, one `ViewsRecord` → `RecordedViews`."""

COORDINATORS_QUERY = "coordinators"
"""Of EventPusher → `Coordinators`."""

ANNOUNCE_UPDATE = "announce_coordinator"
"""To EventPusher, one `CoordinatorRecord` → `Coordinators`; as a signal of the same name too."""

FORGET_SIGNAL = "forget_instance"
"""To EventPusher, one `ForgetInstance`: it was deleted; its view, withdrawn before, is listed for an hour more."""

FORGET_AFTER_SEC = 60.0
"""A Coordinator that neither announced itself nor answered for so long is forgotten (design §4, step 6 ▲)."""

KEEP_WITHDRAWN_SEC = 3600.0
"""How long a deleted instance stays listed in SET, without endpoints (contracts §4)."""


class ViewRecord(Strict):
    """An instance's newest view revision, as EventPusher is told it before its first push leaves.

    `ranks` empty = withdrawn (listed in SET with `endpoints: {}`). A lower or equal revision than known changes nothing.
    """

    topology: Topology
    revision: Revision
    ranks: tuple[Rank, ...]


class CoordinatorRecord(Strict):
    """A Coordinator as it announced itself. `last_answer_at` (epoch seconds): announcement or acknowledged push."""

    url: str
    incarnation: str
    has_view: bool
    last_answer_at: float


class Coordinators(Strict):
    """Who is to hear of a view, and the highest revision of it that EventPusher knows; the reply of its query `coordinators`."""

    coordinators: tuple[CoordinatorRecord, ...] = ()
    known_revision: Revision = 0


class KnownView(Strict):
    """One instance's entry in SET, as EventPusher keeps it: what of `RefreshInstance` differs from endpoint to endpoint, no more.

    EventPusher keeps and hands on all of them with each change, and Temporal takes no payload of 2 MB: a hundred instances of
    320 ranks are 2.9 MB as entries, and 0.4 MB like this. `ports`: by Pod ip and rank, where a served engine listens;
    none = withdrawn. `elsewhere`: the addresses of engines that listen at another one than their Pod's. `forget_at` (epoch
    seconds): set when the instance was deleted; it is listed, without endpoints, until then.
    """

    id: InstanceId
    job_name: str
    model_name: str
    role: Role
    revision: Revision
    ports: dict[Host, dict[int, Port]] = Field(default_factory=dict)
    elsewhere: dict[int, Host] = Field(default_factory=dict)
    forget_at: float | None = None

    @property
    def entry(self) -> RefreshInstance:
        """As Coordinators are told it."""
        endpoints = {
            pod_ip: {
                str(rank): {"id": rank, "ip": self.elsewhere.get(rank, pod_ip), "business_port": port}
                for rank, port in ports.items()
            }
            for pod_ip, ports in self.ports.items()
        }
        said = {name: getattr(self, name) for name in ("id", "job_name", "model_name", "role", "revision")}
        return RefreshInstance.model_validate({**said, "endpoints": endpoints})

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that are served, ascending."""
        return tuple(sorted(rank for ports in self.ports.values() for rank in ports))


class ViewsRecord(Strict):
    """Update `record_views`: newest views by instance id, told before their first push leaves.

    A lower or equal revision than known changes nothing.
    """

    views: dict[int, KnownView]


class RecordedViews(Strict):
    """Its reply: who must hear of them, and the highest revision known of each instance that was named."""

    coordinators: tuple[CoordinatorRecord, ...] = ()
    revisions: dict[int, Revision]


class EventPusherState(Strict):
    """All that EventPusher carries over continue-as-new. Keys are Coordinator urls and instance ids."""

    set_interval_sec: float = 5.0
    coordinators: dict[str, CoordinatorRecord] = Field(default_factory=dict)
    views: dict[int, KnownView] = Field(default_factory=dict)
    rejected: tuple[RejectedSignal, ...] = ()


class ForgetInstance(Strict):
    """Signal `forget_instance`: it was deleted; its view, withdrawn before, is listed for an hour more."""

    instance_id: InstanceId


class PushLoopCall(Strict):
    """Activity `push_set_loop`: SET to every Coordinator now and then every `set_interval_sec`, until cancelled."""

    coordinators: tuple[CoordinatorRecord, ...]
    views: tuple[KnownView, ...]
    set_interval_sec: float
    request_timeout_sec: float = 5.0
    until: float | None = None


class PushLoopResult(Strict):
    """Why the loop ended: Coordinators to be forgotten, or `until` (epoch seconds) has come.

    `answered`: when each Coordinator last acknowledged a SET (epoch seconds), by url.
    """

    forgotten: tuple[str, ...] = ()
    answered: dict[str, float] = Field(default_factory=dict)
