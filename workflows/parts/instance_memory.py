"""What a running FaultManager holds in hand: its state, the last decision, and whether something has changed since.

The state is frozen (`domain.instance.state`); it is replaced here and nowhere else, so that every change also wakes the loop.
"""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from domain.instance.decision import Decision
    from domain.instance.situation import Case
    from domain.instance.state import InstanceState
    from domain.messages.fault_manager import FaultManagerStart


def now() -> float:
    """Workflow time in epoch seconds."""
    return workflow.now().timestamp()


class Memory:
    """`changed`: set by whatever replaces the state, cleared by the loop before it judges."""

    def __init__(self, start: FaultManagerStart) -> None:
        self.state = InstanceState.of(start)
        self.decision: Decision | None = None
        self.changed = True

    def become(self, state: InstanceState) -> None:
        self.state = state
        self.changed = True

    def wake(self) -> None:
        self.changed = True

    def collecting_since(self) -> float | None:
        """When the collection began that is under way now (rule 10)."""
        state = self.state
        return Case(state.evidence, state.situation(), state.topology, state.config, now()).collecting_since

    def note_failure(self, errand: str, message: str) -> None:
        """An activity gave no result: shown to people, tried again by the loop."""
        self.become(self.state.but(last_error=f"{errand}: {message}"))
