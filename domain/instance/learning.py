"""How a FaultManager without memory takes an instance over: from what its journals say.

It starts without state when the instance is new, and also after somebody terminated or reset it, or the database was
lost. The NodeManagers' journals, EventPusher and the Coordinators know what happened (design §1). What follows from it:

| what is found | then |
|---|---|
| nothing anywhere | a new instance: it is assembled, generation 1 |
| started, never published, nothing removed | its assembly goes on |
| a strategy that still runs | attached: its progress and end are waited for |
| all answered, no transaction open, exactly the active ranks are published | taken over as it serves |
| anything else | in doubt: rebuilt. It never starts as NORMAL over a shrunk group |
"""

from domain.instance.decision import DecisionReason
from domain.instance.evidence import from_entries
from domain.instance.state import InstanceState, Life
from domain.messages.fault_manager import FreshLookResult, JournalsResult


def seeded(state: InstanceState, journals: JournalsResult) -> InstanceState:
    """Both counters at least as high as the highest seen anywhere, and every rank that was removed anywhere."""
    return state.but(
        generation=max(state.generation, journals.highest_generation),
        view_revision=max(state.view_revision, journals.view_revision),
        dead_committed=tuple(
            sorted({*state.dead_committed, *(rank for rank in journals.dead_committed if rank in state.topology.ranks)})
        ),
    )


def after_journals(state: InstanceState, journals: JournalsResult, looked: FreshLookResult, now: float) -> InstanceState:
    """The state with which a learning FaultManager begins its work."""
    before = state
    state = seeded(state, journals)
    if state.life is not Life.LEARNING:
        return state
    if state.strategy is not None or state.owed is not None:
        return state.but(life=Life.RUNNING)
    nothing_seen = before.generation == 0 and journals.highest_generation == 0 and not journals.started
    if nothing_seen and state.view_revision == 0 and not state.dead_committed:
        return assemble(state)
    settled = journals.complete and not journals.open_request_ids
    if settled and state.view_revision == 0 and not state.dead_committed:
        return assemble(state)
    if settled and set(journals.published_ranks) == set(state.active):
        evidence = state.evidence.known_ready(state.active).merge_all(
            from_entries(looked.last_entries, now), state.dead_committed
        )
        return state.but(evidence=evidence).serving(now)
    return state.but(life=Life.RUNNING).owing(DecisionReason.IN_DOUBT, _doubts(state, journals), now)


def assemble(state: InstanceState) -> InstanceState:
    """Begin, or go on with, the first assembly."""
    return state.but(
        life=Life.ASSEMBLING,
        generation=max(1, state.generation),
        node_managers_started=False,
        evidence=state.evidence.begin_forming(),
    )


def assembled(state: InstanceState, now: float) -> InstanceState:
    """Every rank is ready: the instance serves for the first time."""
    return state.but(evidence=state.evidence.assembled()).serving(now)


def _doubts(state: InstanceState, journals: JournalsResult) -> str:
    doubts = []
    if not journals.complete:
        silent = ", ".join(refusal.peer for refusal in journals.unreachable)
        doubts.append(f"not every journal could be read ({silent or 'nobody said why'})")
    if journals.open_request_ids:
        open_ids = ", ".join(f"{request_id} at {peer}" for peer, request_id in sorted(journals.open_request_ids.items()))
        doubts.append(f"transactions without a verdict: {open_ids}")
    if set(journals.published_ranks) != set(state.active):
        doubts.append(f"published are ranks {list(journals.published_ranks)}, active are {list(state.active)}")
    return "taken over without memory: " + "; ".join(doubts)
