"""The view: what a Coordinator knows of each instance, and the rules by which a refresh may change it. No I/O.

The danger is a message that arrives late. A SET, ADD or DEL computed before a rank died must not bring the rank back, a
DEL that was overtaken by its ADD must not take the survivors away, and a push meant for a Coordinator's former life must
not open a new one. Two marks decide, both set by the sender:

**Revision** (our Controller): +1 at each change of an instance's view. An entry stands for itself: what it means
does not depend on what came before (but for a PAUSE or RESUME that names no endpoints: it keeps the known ones). So with
K the known revision, R the entry's:

    R < K                     stale: ignored, answered with K
    R = K, same content       unchanged
    R = K, other content      409: two senders number the same instance
    R > K, or K unknown       applied

Whatever the order and however often they arrive, the view converges to the highest revision (tests/coordinator).
A withdrawn instance is kept, without endpoints, for its revision's sake.

**Identity** (Motor's senders, which number nothing): the set of (pod_ip, id, ip, business_port, headless). ADD never
changes what is published, DEL must name exactly that and leaves the instance withdrawn (503, not 404), SET is authoritative,
also about what it leaves out: that is forgotten.

A refresh is atomic: every entry is judged against the view before it, and one conflict means that nothing is done.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from domain.messages.coordinator import (
    ConflictReason,
    RefreshEvent,
    RefreshInstance,
    RefreshOutcome,
    RefreshRequest,
    StaleInstance,
)
from domain.topology import Role


@dataclass(frozen=True, slots=True)
class ViewedEndpoint:
    """An endpoint's identity: two are equal if they are the same process at the same place. `status` does not count."""

    pod_ip: str
    id: int
    ip: str
    business_port: int
    headless: bool
    status: str = field(default="normal", compare=False)


@dataclass(frozen=True, slots=True)
class ViewedInstance:
    """One instance as it is known here; without endpoints it is withdrawn."""

    id: int
    job_name: str
    model_name: str
    role: Role
    revision: int | None
    endpoints: tuple[ViewedEndpoint, ...] = ()
    paused: bool = False

    @property
    def routable(self) -> tuple[ViewedEndpoint, ...]:
        """The endpoints that may get requests, by rank."""
        return () if self.paused else tuple(endpoint for endpoint in self.endpoints if not endpoint.headless)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that may get requests, ascending."""
        return tuple(endpoint.id for endpoint in self.routable)

    def means_the_same(self, other: "ViewedInstance") -> bool:
        """Whether both say the same of the instance. Names do not matter where nothing is published."""
        if self.paused or other.paused:
            return self.paused == other.paused
        if not self.endpoints and not other.endpoints:
            return True
        mine = (self.endpoints, self.job_name, self.model_name, self.role)
        return mine == (other.endpoints, other.job_name, other.model_name, other.role)


@dataclass(frozen=True, slots=True)
class View:
    """All instances by id, in one life of the Coordinator. `opened`: a SET for this life has come, so requests are routed."""

    incarnation: str
    opened: bool = False
    instances: Mapping[int, ViewedInstance] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Refreshed:
    """The view after a refresh, and what became of each entry."""

    view: View
    outcome: RefreshOutcome


@dataclass(frozen=True, slots=True)
class Conflict:
    """Why a refresh was refused as a whole."""

    reason: ConflictReason
    message: str


@dataclass(frozen=True, slots=True)
class _Applied:
    """The instance's new state."""

    instance: ViewedInstance


class _Unchanged:
    """The entry says what is known already."""


_Judgement = _Applied | _Unchanged | StaleInstance | Conflict


def refresh(view: View, request: RefreshRequest) -> Refreshed | Conflict:
    """Apply one refresh to a view (contracts §4): either all its entries are judged and applied, or nothing is done."""
    refusal = _misaddressed(view, request) or _duplicate(request)
    if refusal is not None:
        return refusal
    instances = dict(view.instances)
    applied, unchanged, stale = [], [], []
    for entry in request.instances:
        match _judge(request.event, entry, view.instances.get(entry.id)):
            case Conflict() as conflict:
                return conflict
            case StaleInstance() as overtaken:
                stale.append(overtaken)
            case _Unchanged():
                unchanged.append(entry.id)
            case _Applied(instance):
                applied.append(entry.id)
                instances[entry.id] = instance
    if _is_authoritative(request):
        applied += _drop_absent(instances, {entry.id for entry in request.instances})
    opened = view.opened or _opens(request)
    outcome = RefreshOutcome(applied=tuple(applied), unchanged=tuple(unchanged), stale=tuple(stale))
    return Refreshed(View(view.incarnation, opened, MappingProxyType(instances)), outcome)


def _misaddressed(view: View, request: RefreshRequest) -> Conflict | None:
    if request.coordinator_incarnation in (None, view.incarnation):
        return None
    return Conflict(
        ConflictReason.INCARNATION,
        f"this refresh is for incarnation {request.coordinator_incarnation}, this Coordinator is {view.incarnation}",
    )


def _duplicate(request: RefreshRequest) -> Conflict | None:
    for instance_id, count in Counter(entry.id for entry in request.instances).items():
        if count > 1:
            return Conflict(ConflictReason.DUPLICATE_ID, f"instance {instance_id} is listed {count} times")
    for entry in request.instances:
        ranks = Counter(endpoint.id for endpoint in _endpoints(entry) if not endpoint.headless)
        for rank, count in ranks.items():
            if count > 1:
                message = f"instance {entry.id}: rank {rank} has {count} routable endpoints"
                return Conflict(ConflictReason.DUPLICATE_ID, message)
    return None


def _judge(event: RefreshEvent, entry: RefreshInstance, known: ViewedInstance | None) -> _Judgement:
    if entry.revision is not None:
        return _judge_by_revision(event, entry, entry.revision, known)
    match event:
        case RefreshEvent.SET:
            return _judge_authoritative(entry, known)
        case RefreshEvent.ADD:
            return _judge_addition(entry, known)
        case RefreshEvent.DEL:
            return _judge_removal(entry, known)
        case RefreshEvent.PAUSE:
            return _judge_pause(known)
        case RefreshEvent.RESUME:
            return _judge_resumption(entry, known)


def _judge_by_revision(event: RefreshEvent, entry: RefreshInstance, revision: int, known: ViewedInstance | None) -> _Judgement:
    meant = _meant(event, entry)
    if known is not None and not entry.endpoints and event in (RefreshEvent.PAUSE, RefreshEvent.RESUME):
        meant = replace(known, revision=revision, paused=meant.paused)
    if known is None or known.revision is None or revision > known.revision:
        return _Applied(meant)
    if revision < known.revision:
        return StaleInstance(id=entry.id, revision=revision, known=known.revision)
    if meant.means_the_same(known):
        return _Unchanged()
    return Conflict(
        ConflictReason.IDENTITY_CONFLICT,
        f"instance {entry.id}: revision {revision} is known with ranks {list(known.ranks)}, "
        f"this entry has ranks {list(meant.ranks)} or other addresses or names under the same revision",
    )


def _judge_authoritative(entry: RefreshInstance, known: ViewedInstance | None) -> _Judgement:
    meant = _keep_revision(_meant(RefreshEvent.SET, entry), known)
    return _Unchanged() if known is not None and meant.means_the_same(known) else _Applied(meant)


def _judge_addition(entry: RefreshInstance, known: ViewedInstance | None) -> _Judgement:
    meant = _keep_revision(_meant(RefreshEvent.ADD, entry), known)
    if known is None or not known.endpoints:
        return _Applied(meant)
    return _Unchanged() if meant.endpoints == known.endpoints else _differs(entry, known)


def _judge_removal(entry: RefreshInstance, known: ViewedInstance | None) -> _Judgement:
    if known is None or not known.endpoints:
        return _Unchanged()
    if _endpoints(entry) != known.endpoints:
        return _differs(entry, known)
    return _Applied(replace(known, endpoints=(), paused=False))


def _judge_pause(known: ViewedInstance | None) -> _Judgement:
    return _Unchanged() if known is None or known.paused else _Applied(replace(known, paused=True))


def _judge_resumption(entry: RefreshInstance, known: ViewedInstance | None) -> _Judgement:
    """RESUME ends a pause; for an instance that is not known it is an ADD. It may name the endpoints, or not."""
    if known is None:
        return _Applied(_meant(RefreshEvent.RESUME, entry)) if entry.endpoints else _Unchanged()
    if entry.endpoints and _endpoints(entry) != known.endpoints:
        return _differs(entry, known) if known.endpoints else _judge_addition(entry, known)
    return _Applied(replace(known, paused=False)) if known.paused else _Unchanged()


def _meant(event: RefreshEvent, entry: RefreshInstance) -> ViewedInstance:
    """The state that an entry stands for by itself; what a DEL names is not looked at."""
    return ViewedInstance(
        id=entry.id,
        job_name=entry.job_name,
        model_name=entry.model_name,
        role=entry.role,
        revision=entry.revision,
        endpoints=() if event is RefreshEvent.DEL else _endpoints(entry),
        paused=event is RefreshEvent.PAUSE,
    )


def _endpoints(entry: RefreshInstance) -> tuple[ViewedEndpoint, ...]:
    """By rank; equal tuples are equal identity sets."""
    found = (
        ViewedEndpoint(pod_ip, e.id, e.ip, e.business_port, e.headless, e.status)
        for pod_ip, in_pod in entry.endpoints.items()
        for e in in_pod.values()
    )
    return tuple(sorted(found, key=lambda e: (e.id, e.pod_ip, e.ip, e.business_port, e.headless)))


def _keep_revision(meant: ViewedInstance, known: ViewedInstance | None) -> ViewedInstance:
    """A sender without revisions does not make us forget the highest one seen: revisions never go back (I16)."""
    return meant if known is None else replace(meant, revision=known.revision)


def _differs(entry: RefreshInstance, known: ViewedInstance) -> Conflict:
    return Conflict(
        ConflictReason.IDENTITY_CONFLICT,
        f"instance {entry.id}: published are ranks {[e.id for e in known.endpoints]}, "
        f"this entry has ranks {[e.id for e in _endpoints(entry)]} or other addresses",
    )


def _is_authoritative(request: RefreshRequest) -> bool:
    """Motor's SET: the sender knows neither lives nor revisions, so what it leaves out is gone."""
    return (
        request.event is RefreshEvent.SET
        and request.coordinator_incarnation is None
        and all(entry.revision is None for entry in request.instances)
    )


def _opens(request: RefreshRequest) -> bool:
    if request.event is not RefreshEvent.SET:
        return False
    return request.coordinator_incarnation is not None or _is_authoritative(request)


def _drop_absent(instances: dict[int, ViewedInstance], listed: set[int]) -> list[int]:
    absent = [known for known in instances.values() if known.id not in listed]
    dropped = [known for known in absent if known.endpoints or known.revision is None]
    for known in dropped:
        if known.revision is None:
            del instances[known.id]
        else:
            instances[known.id] = replace(known, endpoints=(), paused=False)
    return [known.id for known in dropped]
