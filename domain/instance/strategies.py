"""What there is to know about each strategy, one row each: the one place that all code which meets strategies asks.

| fact | asked by |
|---|---|
| `kind`: the workflow id's first part; `order`, `report`: its models | its workflow, the look-up |
| `workflow`: the name under which `workflows.strategies` defines it; `bound_sec` | the FaultManager, when it starts one |
| `action`: the decision that starts it (`decision.py`); `outlook`: what a person who plans is told of it | the loop, the plan |
| `preemptible`: it may be stopped for something worse, until it commits (rule 2) | `RunningStrategy` |
| `transaction`: it guards NodeManagers under a request id of its own | start, progress |
| `stops_engines`: while it runs the instance has no group; started twice, or found running, the rebuild goes on | attach |
| `begin`, `ended`, `lost`: what its start, its end and its silence do to the instance's state | `strategy_life.py` |

How to add one is docs/adding-a-strategy.md.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from domain.config import FaultToleranceConfig
from domain.instance.decision import Action, Decision
from domain.instance.state import InstanceState, RunningStrategy
from domain.instance.strategy_end import (
    after_fast_recovery,
    after_rebuild,
    after_reinference,
    after_round,
    lost_in_the_middle,
    lost_rebuild,
    lost_wait,
)
from domain.instance.strategy_start import (
    begin_fast_recovery,
    begin_rebuild,
    begin_reinference,
    begin_relaunch,
    begin_round,
)
from domain.messages.strategy import (
    FastRecoveryOrder,
    FastRecoveryReport,
    ReconfigurationOrder,
    ReconfigurationReport,
    ReinferenceOrder,
    ReinferenceReport,
    RelaunchOrder,
    RelaunchReport,
    RoundOrder,
    RoundReport,
    StrategyKind,
    StrategyOrder,
    StrategyReport,
)

OrderT = TypeVar("OrderT", bound=StrategyOrder)
ReportT = TypeVar("ReportT", bound=StrategyReport)

_OUTAGE_SLACK_SEC = 3600.0
"""Outages of worker and server count into a workflow's execution time: the last bound is generous."""


@dataclass(frozen=True, kw_only=True)
class Strategy(Generic[OrderT, ReportT]):
    """One row; the module's docstring says what each fact is for.

    `bound_sec`: how long it may take without outages, the sum of its deadlines (I11). `begin` gets the strategy as it will
    run and gives its order; `ended` and `lost` get the state in which it runs no more.
    """

    kind: StrategyKind
    workflow: str
    action: Action
    order: type[OrderT]
    report: type[ReportT]
    bound_sec: Callable[[FaultToleranceConfig], float]
    preemptible: bool
    transaction: bool
    stops_engines: bool
    outlook: str
    begin: Callable[[InstanceState, RunningStrategy, Decision, float], tuple[InstanceState, OrderT]]
    ended: Callable[[InstanceState, RunningStrategy, ReportT, float], InstanceState]
    lost: Callable[[InstanceState, RunningStrategy, str, float], InstanceState]

    def running(self, state: InstanceState, now: float, unique: str = "") -> RunningStrategy:
        """It as the next generation. `unique` (32 hex digits) makes a transaction's request id."""
        generation = state.generation + 1
        return RunningStrategy(
            kind=self.kind,
            workflow_id=self.kind.workflow_id(state.instance_id, generation),
            generation=generation,
            view_revision=state.view_revision,
            phase_before=state.phase,
            started_at=now,
            bound_at=now + self.bound_sec(state.config),
            isolated=state.isolated,
            stoppable=self.preemptible,
            last_word_at=now,
            request_id=f"{self.kind}-{unique}" if self.transaction and unique else None,
        )

    def start(self, state: InstanceState, decision: Decision, unique: str, now: float) -> tuple[InstanceState, OrderT]:
        """The state in which it runs, and the order that its workflow is started with."""
        return self.begin(state, self.running(state, now, unique), decision, now)

    def end(self, state: InstanceState, strategy: RunningStrategy, report: StrategyReport, now: float) -> InstanceState:
        """What its report means. Raises TypeError for one of another strategy."""
        if not isinstance(report, self.report):
            raise TypeError(f"{strategy.workflow_id} cannot end with a {type(report).__name__}")
        return self.ended(state, strategy, report, now)

    def execution_bound_sec(self, config: FaultToleranceConfig) -> float:
        """The last bound of its workflow, for the case that nothing else ended it."""
        return 2 * self.bound_sec(config) + _OUTAGE_SLACK_SEC


def _new_engines_bound_sec(config: FaultToleranceConfig) -> float:
    times = config.dp_scale_down_config
    return config.reconfiguration_deadline_sec + times.verify_deadline_sec + times.coordinator_deadline_sec


SCALE_DOWN: Final = Strategy(
    kind=StrategyKind.SCALE_DOWN,
    workflow="ScaleDownRound",
    action=Action.SCALE_DOWN,
    order=RoundOrder,
    report=RoundReport,
    bound_sec=lambda config: config.dp_scale_down_config.round_bound_sec,
    preemptible=True,
    transaction=True,
    stops_engines=False,
    outlook="the survivors go on serving in place",
    begin=begin_round,
    ended=after_round,
    lost=lost_in_the_middle,
)

FAST_RECOVERY: Final = Strategy(
    kind=StrategyKind.FAST_RECOVERY,
    workflow="FastRecovery",
    action=Action.FAST_RECOVERY,
    order=FastRecoveryOrder,
    report=FastRecoveryReport,
    bound_sec=lambda config: config.dp_scale_down_config.round_bound_sec + config.fast_recovery_stability_sec,
    preemptible=True,
    transaction=True,
    stops_engines=False,
    outlook="all active ranks retry in place; if that fails, the instance is rebuilt",
    begin=begin_fast_recovery,
    ended=after_fast_recovery,
    lost=lost_in_the_middle,
)

INSTANCE_RECONFIGURATION: Final = Strategy(
    kind=StrategyKind.INSTANCE_RECONFIGURATION,
    workflow="InstanceReconfiguration",
    action=Action.RECONFIGURE,
    order=ReconfigurationOrder,
    report=ReconfigurationReport,
    bound_sec=_new_engines_bound_sec,
    preemptible=False,
    transaction=False,
    stops_engines=True,
    outlook="all engines are stopped, all ranks start anew",
    begin=begin_rebuild,
    ended=after_rebuild,
    lost=lost_rebuild,
)

ENGINE_RELAUNCH: Final = Strategy(
    kind=StrategyKind.ENGINE_RELAUNCH,
    workflow="EngineRelaunch",
    action=Action.ENGINE_RELAUNCH,
    order=RelaunchOrder,
    report=RelaunchReport,
    bound_sec=_new_engines_bound_sec,
    preemptible=True,
    transaction=False,
    stops_engines=True,
    outlook="new engines for the ranks that were not removed; if that fails, the instance is rebuilt",
    begin=begin_relaunch,
    ended=after_rebuild,
    lost=lost_in_the_middle,
)

TOKEN_REINFERENCE: Final = Strategy(
    kind=StrategyKind.TOKEN_REINFERENCE,
    workflow="TokenReinference",
    action=Action.TOKEN_REINFERENCE,
    order=ReinferenceOrder,
    report=ReinferenceReport,
    bound_sec=lambda config: config.token_reinference_deadline_sec + config.dp_scale_down_config.verify_deadline_sec,
    preemptible=False,
    transaction=False,
    stops_engines=False,
    outlook="the engines get time to heal by themselves; nothing is touched",
    begin=begin_reinference,
    ended=after_reinference,
    lost=lost_wait,
)

STRATEGIES: Final[dict[StrategyKind, Strategy[Any, Any]]] = {
    strategy.kind: strategy
    for strategy in (SCALE_DOWN, FAST_RECOVERY, INSTANCE_RECONFIGURATION, ENGINE_RELAUNCH, TOKEN_REINFERENCE)
}
"""Every kind has its row."""

STARTED_BY: Final[dict[Action, Strategy[Any, Any]]] = {strategy.action: strategy for strategy in STRATEGIES.values()}
"""The actions that start a strategy; ScaleP2D has none yet."""
