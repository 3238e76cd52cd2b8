"""What happens to an instance: faults of engines and of hardware, lost heartbeats, time, and persons with their orders."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from domain.engine import EntrySource
from domain.hardware import mapped_fault
from domain.instance.decision import DecisionReason
from domain.instance.learning import after_journals, assembled
from domain.instance.state import InstanceState
from domain.instance.state import Life as PartOfLife
from domain.messages.fault_manager import FreshLookResult, JournalsResult
from domain.messages.strategy import StrategyKind
from domain.runtime import SERVING_PHASES
from domain.topology import Topology
from tests.domain.instance_factories import D, H, U, config, topology
from tests.domain.life_judge import ALL_RANKS, Life, rarely

SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"min_alive_ranks": 2, "reconfiguration_budget": 1},
    {"enable_fast_recovery": True, "wake_idle_survivors": True},
    {"withdraw_on_first_fault": True, "node_loss_is_death": True},
    {"enable_dp_scale_down": False},
)
REBUILDING = (StrategyKind.INSTANCE_RECONFIGURATION,)


def with_devices(plain: Topology) -> Topology:
    """Rank r has the cards 2r and 2r+1; each Pod is on a node of its own. The engines can retry."""
    assert plain.ft_capability is not None
    places = [place.model_copy(update={"node_name": f"node-{place.pod_ip}"}) for place in plain.node_managers]
    endpoints = [e.model_copy(update={"device_ids": (str(2 * e.id), str(2 * e.id + 1))}) for e in plain.endpoints]
    capability = plain.ft_capability.model_copy(update={"retry_supported": True})
    changes = {"node_managers": tuple(places), "endpoints": tuple(endpoints), "ft_capability": capability}
    return plain.model_copy(update=changes)


class Faults(Life):
    """The rules of the world outside."""

    @initialize(changes=st.sampled_from(SETTINGS))
    def assemble(self, changes: dict[str, Any]) -> None:
        self.settings = config(**changes)
        new = InstanceState(instance_id=7, topology=with_devices(topology()), config=self.settings)
        assembling = after_journals(new, JournalsResult(complete=True), FreshLookResult(), self.now)
        assert assembling.life is PartOfLife.ASSEMBLING
        self.state = assembling.but(node_managers_started=True)
        for rank in ALL_RANKS:
            self.hear(rank, H)
        self.become(assembled(self.here, self.now))

    @rule(rank=st.sampled_from(ALL_RANKS), status=st.sampled_from([H, U, D]))
    def a_rank_reports(self, rank: int, status: Any) -> None:
        self.hear(rank, status)

    @rule(rank=st.sampled_from(ALL_RANKS))
    def a_process_ends(self, rank: int) -> None:
        self.hear(rank, D, EntrySource.PROCESS_EXIT)

    @rule(rank=st.sampled_from(ALL_RANKS))
    def a_rank_dies_under_traffic(self, rank: int) -> None:
        """What a real loss looks like: one dies, its peers notice."""
        for other in ALL_RANKS:
            if other == rank or self.here.evidence.of(other).status is not D:
                self.hear(other, D if other == rank else U)

    @rule()
    def everybody_notices_something(self) -> None:
        for rank in ALL_RANKS:
            self.hear(rank, U)

    @rule()
    def everybody_is_healthy_again(self) -> None:
        for rank in ALL_RANKS:
            self.hear(rank, H)

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def an_old_report_comes_again(self, data: st.DataObject) -> None:
        self.merge(data.draw(st.sampled_from(self.sent[-12:])))

    @rule(
        node=st.sampled_from(["node-10.0.0.1", "node-10.0.0.2", "another"]),
        code=st.sampled_from(["0x80E01801", "0x00F1FEF5"]),
        card=st.sampled_from(["", "Ascend910-0", "Ascend910-3", "card 5"]),
        level=st.sampled_from(["L1", "L2", "L3", "L5", "L6", "SomethingNew"]),
    )
    def hardware_fails(self, node: str, code: str, card: str, level: str) -> None:
        fault = mapped_fault(self.here.topology, node, code, card, level, self.now)
        self._hardware(self.here.evidence.hardware.report(fault))

    @precondition(lambda self: self.state is not None and self.state.evidence.hardware.faults)
    @rule(data=st.data())
    def hardware_is_mended(self, data: st.DataObject) -> None:
        hardware = self.here.evidence.hardware
        self._hardware(hardware.clear(data.draw(st.sampled_from(sorted(hardware.faults))), self.now))

    def _hardware(self, hardware: Any) -> None:
        self.become(self.here.but(evidence=self.here.evidence.model_copy(update={"hardware": hardware})))

    @rule(lost=st.sampled_from([(), (), (), (0,), (1,), (0, 1)]))
    def heartbeats_come_and_go(self, lost: tuple[int, ...]) -> None:
        managers = self.here.topology.managers
        self.become(self.here.but(lost_node_managers=tuple(managers[n] for n in lost)))

    @rule(seconds=st.sampled_from([0.5, 4.0, 5.0, 20.0, 59.5, 61.0, 600.0, 2000.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(force=st.booleans(), really=rarely)
    def a_person_orders_a_rebuild(self, force: bool, really: bool) -> None:
        """As the FaultManager's update does it."""
        if not really:
            return
        state = self.here
        rebuilding = state.strategy is not None and state.strategy.kind in REBUILDING
        if rebuilding or (not force and (state.strategy is not None or state.budget_spent)):
            return
        why = DecisionReason.FORCED if force else DecisionReason.ORDERED
        ordered = state.but(owed=why, owed_detail="by a person")
        self.become(ordered if state.strategy is not None else ordered.owing(why, "by a person", self.now))

    @rule()
    def a_person_doubts_the_view(self) -> None:
        state = self.here
        if state.strategy is None and state.phase in SERVING_PHASES and state.view.ranks:
            self.become(state.republishing())

    @rule(held=st.sampled_from([None, None, None, "by a person"]))
    def a_person_holds_or_releases(self, held: str | None) -> None:
        self.become(self.here.but(held=held))

    @rule()
    def coordinators_confirm(self) -> None:
        self.become(self.here.but(view=self.here.view.model_copy(update={"confirmed": True})))
