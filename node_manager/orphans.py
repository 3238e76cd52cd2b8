"""Engines that run and that nobody remembers: their NodeManager came back without its journal.

The journal is how a NodeManager finds its engines again (contracts §2), and what it knows that they were told. Without it
neither is known: a command that a round repeats might reach such an engine a second time, and a new engine would meet the
old one at its port. So they are not adopted but ended, which is to say that their ranks are dead; the rest of the group
notices that like any other death.

Each engine carries in its environment whose it is, so that it can be found by what it carries.
"""

from typing import Final

from node_manager.journal import EngineRecord
from service.process_identity import ProcessStat, environment_of, process_table

OWNER_VARIABLE: Final = "AUTOTOMY_ENGINE_OF"
"""`<pod ip>:<port>/<rank>`: the NodeManager that started an engine, and as which rank."""


def owner_mark(pod_ip: str, port: int, rank: int) -> dict[str, str]:
    """What an engine carries."""
    return {OWNER_VARIABLE: f"{pod_ip}:{port}/{rank}"}


def orphaned_engines(pod_ip: str, port: int) -> tuple[EngineRecord, ...]:
    """The engines that a NodeManager at this address has started and that still run, as leftovers: one a session."""
    sessions: dict[int, list[tuple[ProcessStat, int]]] = {}
    for stat in process_table().values():
        rank = None if stat.ended else _rank_of(stat.pid, f"{pod_ip}:{port}")
        if rank is not None:
            sessions.setdefault(stat.session, []).append((stat, rank))
    return tuple(_leftover(session, members) for session, members in sorted(sessions.items()))


def _rank_of(pid: int, owner: str) -> int | None:
    """As which rank of this NodeManager a process runs; None: as none."""
    address, _, rank = environment_of(pid).get(OWNER_VARIABLE, "").partition("/")
    return int(rank) if address == owner and rank.isdecimal() else None


def _leftover(session: int, members: list[tuple[ProcessStat, int]]) -> EngineRecord:
    """The session's leader is the API server; where it has ended, the oldest that is left stands for the tree."""
    ordered = sorted(members, key=lambda member: (member[0].pid != session, member[0].start_ticks))
    (root, rank), *others = ordered
    workers = tuple(str(stat.identity) for stat, _ in others)
    return EngineRecord(identity=str(root.identity), rank=rank, generation=0, workers=workers, leftover=True)
