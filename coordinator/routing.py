"""Which endpoint gets the next request: the one of the view with the fewest in flight, in turn among equals. No I/O.

Choosing an endpoint and counting the request on it is one step (`take`): no refresh can come between the two. A refresh
replaces the routable set at once; what is in flight to a removed endpoint runs on and is still counted, nothing new goes
there. Because opening a connection takes a moment, `Slot.still_routed` is asked again just before the first byte leaves.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum

from coordinator.view import View, ViewedEndpoint


class NoSlot(StrEnum):
    """Why there is no endpoint for a request."""

    NO_VIEW = "NO_VIEW"  # after a start: no SET for this life has come yet
    UNKNOWN_MODEL = "UNKNOWN_MODEL"  # no instance serves that model
    WITHDRAWN = "WITHDRAWN"  # instances with that model are known, none has a routable endpoint now
    UNREACHABLE = "UNREACHABLE"  # every routable endpoint refused the connection


@dataclass(slots=True, eq=False)
class Target:
    """One endpoint and how many requests are on it; the same object as long as either lasts."""

    instance_id: int
    endpoint: ViewedEndpoint
    in_flight: int = 0
    routed: bool = True

    @property
    def rank(self) -> int:
        return self.endpoint.id

    @property
    def address(self) -> tuple[str, int]:
        """Where the engine listens: (ip, port)."""
        return self.endpoint.ip, self.endpoint.business_port


@dataclass(frozen=True, slots=True)
class Slot:
    """A request's place on a target; given back when its block ends."""

    target: Target

    @property
    def still_routed(self) -> bool:
        """Whether the view still holds the endpoint."""
        return self.target.routed


@dataclass(slots=True)
class _Model:
    """The targets that serve one model name, and whose turn it is among equally loaded ones."""

    targets: list[Target] = field(default_factory=list)
    turn: int = 0

    def least_loaded(self, without: Iterable[Target]) -> Target | None:
        best, best_at = None, 0
        count = len(self.targets)
        for step in range(count):
            at = (self.turn + step) % count
            target = self.targets[at]
            if target not in without and (best is None or target.in_flight < best.in_flight):
                best, best_at = target, at
        if best is not None:
            self.turn = (best_at + 1) % count
        return best


class Router:
    """The routable part of the view, with the load of each endpoint. For one event loop; nothing here awaits."""

    def __init__(self) -> None:
        self._opened = False
        self._known_models: frozenset[str] = frozenset()
        self._targets: dict[tuple[int, ViewedEndpoint], Target] = {}
        self._models: dict[str, _Model] = {}
        self._any = _Model()

    def adopt(self, view: View) -> None:
        """Route by `view` from now on."""
        routed = [(instance, endpoint) for instance in view.instances.values() for endpoint in instance.routable]
        wanted = {(instance.id, endpoint) for instance, endpoint in routed}
        for key, target in list(self._targets.items()):
            target.routed = key in wanted
            if not target.routed and target.in_flight == 0:
                del self._targets[key]
        models: dict[str, _Model] = {}
        everything = _Model(turn=0)
        for instance, endpoint in routed:
            target = self._targets.setdefault((instance.id, endpoint), Target(instance.id, endpoint))
            models.setdefault(instance.model_name, _Model()).targets.append(target)
            everything.targets.append(target)
        self._opened, self._models, self._any = view.opened, models, everything
        self._known_models = frozenset(i.model_name for i in view.instances.values() if i.model_name)

    @contextmanager
    def take(self, model: str | None, without: Iterable[Target] = ()) -> Iterator[Slot | NoSlot]:
        """A slot on the least-loaded endpoint for `model` (None: any model), counted until the block ends.

        `without` are targets that this request has tried already. Where there is none, the reason comes instead.
        """
        target = self._choose(model, without)
        if isinstance(target, NoSlot):
            yield target
            return
        target.in_flight += 1
        try:
            yield Slot(target)
        finally:
            target.in_flight -= 1
            if not target.routed and target.in_flight == 0:
                self._targets.pop((target.instance_id, target.endpoint), None)

    def _choose(self, model: str | None, without: Iterable[Target]) -> Target | NoSlot:
        if not self._opened:
            return NoSlot.NO_VIEW
        candidates = self._any if model is None else self._models.get(model)
        if candidates is None or not candidates.targets:
            known = model is None or model in self._known_models
            return NoSlot.WITHDRAWN if known else NoSlot.UNKNOWN_MODEL
        return candidates.least_loaded(without) or NoSlot.UNREACHABLE

    @property
    def has_view(self) -> bool:
        """Whether requests are routed at all."""
        return self._opened

    @property
    def models(self) -> tuple[str, ...]:
        """The model names that can be served now, sorted."""
        return tuple(sorted(self._models))

    @property
    def loads(self) -> Mapping[tuple[int, int], int]:
        """Requests in flight by (instance, rank), removed endpoints included while they have some."""
        found: dict[tuple[int, int], int] = {}
        for target in self._targets.values():
            key = (target.instance_id, target.rank)
            found[key] = found.get(key, 0) + target.in_flight
        return found
