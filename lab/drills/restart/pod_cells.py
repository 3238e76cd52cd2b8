"""A whole Pod restarts in the middle of a round: the words, the cells, and how each must end (acceptance C).

`lab.drills.restart.cells` kills processes of ours and leaves the engines alone. Here the Pod goes as a container goes: its
NodeManager and every engine in it are killed in the same moment, and two seconds later it is there again at its address,
registers, and is held, because a fresh engine cannot join a living group. It comes back with its disk, so that it knows
what it was; or as a **new Pod** with an empty one, which knows nothing.

What must come of it follows from where the round stands. The dead rank's Pod changes nothing. A survivors' Pod takes a
rank along:

    before the commands leave     its rank is one more death: absorbed, one command with both (design §4, step 5)
    from there to the commit      a survivor is lost in the middle: fail, abort, rebuild
    after the commit point        the round completes; the new death is a round of its own
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Final

from domain.messages.strategy import RoundReason
from domain.model import Strict
from lab.drills.restart.cells import PLACES, Place, Point, UnknownCell


class PodVictim(StrEnum):
    """Which Pod restarts, and with what it comes back."""

    POD_OF_SURVIVOR = "pod-of-survivor"
    POD_OF_DEAD = "pod-of-dead"
    NEW_POD_OF_SURVIVOR = "new-pod-of-survivor"
    NEW_POD_OF_DEAD = "new-pod-of-dead"

    @property
    def survivors(self) -> bool:
        return self in (PodVictim.POD_OF_SURVIVOR, PodVictim.NEW_POD_OF_SURVIVOR)

    @property
    def loses_its_disk(self) -> bool:
        return self in (PodVictim.NEW_POD_OF_SURVIVOR, PodVictim.NEW_POD_OF_DEAD)


MEANINGS: Final[Mapping[PodVictim, str]] = {
    PodVictim.POD_OF_SURVIVOR: "a survivor's Pod: NodeManager and engine, back with its disk",
    PodVictim.POD_OF_DEAD: "the dead rank's Pod, back with its disk",
    PodVictim.NEW_POD_OF_SURVIVOR: "a survivor's Pod, back with an empty disk",
    PodVictim.NEW_POD_OF_DEAD: "the dead rank's Pod, back with an empty disk",
}

BEFORE_VERIFY: Final = "before-verify"
"""A point that only this table has: the engines have recovered, nobody has asked them for a completion yet."""

_BEFORE_VERIFY: Final = Place(failpoint="worker.verify.before", meaning="recovered, not yet verified")

_ABSORBED: Final = frozenset({Point.BEFORE_GUARD, Point.AFTER_GUARD, Point.APPLY_READY})
_COMMITTED: Final = frozenset({Point.COMMIT_POINT, Point.FINALIZE_RECORDED, Point.BEFORE_ADD, Point.AFTER_ADD})


class PodEnd(StrEnum):
    """How a cell ends."""

    UNTOUCHED = "in place, as if nothing had happened"
    ABSORBED = "in place, one command that removes both ranks"
    ANOTHER_ROUND = "in place, then a second round for the Pod's rank"
    REBUILT = "rebuilt"


class PodCell(Strict):
    """One combination. `at` is a `Point`, or BEFORE_VERIFY."""

    victim: PodVictim
    at: str

    @property
    def place(self) -> Place:
        return _BEFORE_VERIFY if self.at == BEFORE_VERIFY else PLACES[Point(self.at)]

    @property
    def end(self) -> PodEnd:
        if not self.victim.survivors:
            return PodEnd.UNTOUCHED
        if self.at in _ABSORBED:
            return PodEnd.ABSORBED
        return PodEnd.ANOTHER_ROUND if self.at in _COMMITTED else PodEnd.REBUILT

    @property
    def reason(self) -> RoundReason:
        """Why a round that fails fails."""
        if self.at == Point.AFTER_DEL:
            return RoundReason.APPLY_REFUSED
        if self.at == Point.MID_APPLY:  # without its journal nobody knows of an intent: it has no engine to call
            return RoundReason.APPLY_REFUSED if self.victim.loses_its_disk else RoundReason.APPLY_UNKNOWN
        return RoundReason.VERIFY_FAILED if self.at == BEFORE_VERIFY else RoundReason.SURVIVOR_DIED

    @property
    def expected(self) -> str:
        return f"{self.end}, reason {self.reason}" if self.end is PodEnd.REBUILT else self.end

    def __str__(self) -> str:
        return f"--kill {self.victim} --at {self.at}"


def _points() -> tuple[str, ...]:
    """In the order of a round."""
    names = [point.value for point in Point]
    names.insert(names.index(Point.COMMIT_POINT), BEFORE_VERIFY)
    return tuple(names)


POINTS: Final = _points()


def pod_cells() -> Iterator[PodCell]:
    """All combinations, Pod by Pod."""
    for victim in PodVictim:
        for at in POINTS:
            yield PodCell(victim=victim, at=at)


CHOSEN: Final = (
    PodCell(victim=PodVictim.POD_OF_SURVIVOR, at=Point.COMMIT_POINT),
    PodCell(victim=PodVictim.NEW_POD_OF_SURVIVOR, at=Point.APPLY_READY),
    PodCell(victim=PodVictim.NEW_POD_OF_DEAD, at=Point.FINALIZE_RECORDED),
)
"""Each way to end in place, and both disks, for each run of the tests."""


def find_pod_cell(victim: str, at: str) -> PodCell:
    """The combination with these words. Raises UnknownCell."""
    if victim not in set(PodVictim):
        raise UnknownCell(f"--kill {victim!r}: choose one of {', '.join(PodVictim)}")
    if at not in POINTS:
        raise UnknownCell(f"--at {at!r}: choose one of {', '.join(POINTS)}")
    return PodCell(victim=PodVictim(victim), at=at)


def pod_cell_table() -> str:
    """What `restart --list` prints of them."""
    lines = ["whole Pods (--kill):", *(f"  {victim:<26}{MEANINGS[victim]}" for victim in PodVictim)]
    lines += [f"  and one more POINT: {BEFORE_VERIFY}: {_BEFORE_VERIFY.meaning}", ""]
    listed = list(pod_cells())
    lines += [f"{len(listed)} cells and what is expected:"]
    lines += [f"  --kill {cell.victim:<26}--at {cell.at:<20}{cell.expected}" for cell in listed]
    return "\n".join(lines)
