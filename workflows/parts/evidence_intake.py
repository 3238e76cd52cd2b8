"""What reaches a FaultManager as a plain signal, from our API, from strategies, or from anybody with the `temporal` CLI.

`take_signal` gives the next state, in which a refused signal is recorded with its reason (`workflows.parts.signal_intake`).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeGuard

from temporalio.common import RawValue

from domain.engine import EngineStatus
from domain.hardware import HardwareEvidence, fault_key, mapped_fault
from domain.instance.evidence import Merge, Report, arrival, from_motor, from_operator, from_pod
from domain.instance.state import InstanceState, Life
from domain.instance.strategy_life import took_end, took_progress
from domain.messages.controller import MotorStatus, SoftwareFaultReport
from domain.messages.fault_manager import (
    CLEAR_HARDWARE_SIGNAL,
    CLEAR_SIGNAL,
    CONFIG_SIGNAL,
    END_SIGNAL,
    NODE_MANAGER_BACK_SIGNAL,
    NODE_MANAGER_LOST_SIGNAL,
    PROGRESS_SIGNAL,
    REPORT_HARDWARE_SIGNAL,
    REPORT_SIGNAL,
    TERMINATE_SIGNAL,
    InstanceRemoval,
    NodeManagerWord,
)
from domain.messages.node_manager import PodReport
from domain.messages.resource_monitor import HardwareFaultClear, HardwareFaultReport
from domain.messages.strategy import StrategyEnd, StrategyProgress
from domain.runtime import RejectedSignal, rejected_signal
from domain.topology import NodeManagerAddress
from workflows.parts.signal_intake import Inputs, SignalRefused, parsed, take_in, whole_config

ENDING_LIMIT_SEC: Final = 180.0
"""How long the deletion of an instance may take: withdrawal and stop; then the FaultManager ends all the same."""

Handler = Callable[[InstanceState, Inputs, float], InstanceState]


def take_signal(state: InstanceState, name: str, raw: Sequence[RawValue], now: float) -> InstanceState:
    """The state after one signal, at `now` (epoch seconds). Never raises: what cannot be used is recorded as refused."""
    handlers = {known: partial(_applied, handler, state, now) for known, handler in _HANDLERS.items()}
    taken = take_in(name, raw, handlers, now)
    return state.rejecting(taken) if isinstance(taken, RejectedSignal) else taken


def _applied(handler: Handler, state: InstanceState, now: float, inputs: Inputs) -> InstanceState:
    return handler(state, inputs, now)


def _on_report(state: InstanceState, inputs: Inputs, now: float) -> InstanceState:
    body, received_at = _stamped(inputs, now)
    return _merged(state, REPORT_SIGNAL, _reports(state, body, received_at), body, now)


def _stamped(inputs: Inputs, now: float) -> tuple[dict[str, Any], float]:
    """A report, bare or wrapped with the time at which the API received it, and when it counts as received."""
    body = inputs.mapping()
    if "report" not in body:
        return body, now
    wrapped, stamp = body["report"], body.get("received_at")
    if not isinstance(wrapped, dict):
        raise SignalRefused("report must be a JSON object")
    received_at = float(stamp) if isinstance(stamp, (int, float)) and not isinstance(stamp, bool) else None
    return wrapped, arrival(received_at, now)


def _on_hardware(state: InstanceState, inputs: Inputs, now: float) -> InstanceState:
    body, received_at = _stamped(inputs, now)
    report = parsed(HardwareFaultReport, body)
    nodes = [place.node_name for place in state.topology.node_managers]
    if report.node_name not in nodes and all(nodes):
        raise SignalRefused(f"instance {state.instance_id} has no Pod on node {report.node_name!r}")
    fault = mapped_fault(
        state.topology, report.node_name, report.fault_code, report.npu_name, report.level, received_at, report.source
    )
    return _with_hardware(state, state.evidence.hardware.report(fault))


def _on_hardware_cleared(state: InstanceState, inputs: Inputs, now: float) -> InstanceState:
    body, received_at = _stamped(inputs, now)
    clear = parsed(HardwareFaultClear, body)
    key = fault_key(clear.node_name, clear.fault_code, clear.npu_name)
    return _with_hardware(state, state.evidence.hardware.clear(key, received_at))


def _with_hardware(state: InstanceState, hardware: HardwareEvidence) -> InstanceState:
    return state.but(evidence=state.evidence.model_copy(update={"hardware": hardware}))


def _on_lost(state: InstanceState, inputs: Inputs, now: float) -> InstanceState:
    manager = _manager(state, inputs)
    return state.but(lost_node_managers=(*(one for one in state.lost_node_managers if one != manager), manager))


def _on_back(state: InstanceState, inputs: Inputs, now: float) -> InstanceState:
    manager = _manager(state, inputs)
    return state.but(lost_node_managers=tuple(one for one in state.lost_node_managers if one != manager))


def _manager(state: InstanceState, inputs: Inputs) -> NodeManagerAddress:
    told = inputs.parsed(NodeManagerWord).node_manager
    if told not in state.topology.managers:
        raise SignalRefused(f"instance {state.instance_id} has no NodeManager {told}")
    return told


def _reports(state: InstanceState, body: dict[str, Any], received_at: float) -> tuple[Report, ...]:
    """The three forms: ours, Motor's, and the short one of a person."""
    if "reports" in body:
        pod = parsed(PodReport, body)
        _require_instance(state, pod.instance_id)
        return from_pod(pod, received_at)
    if "pod_ip" in body:
        single = parsed(SoftwareFaultReport, body)
        _require_instance(state, single.instance_id)
        return (from_motor(single, received_at),)
    rank, status = body.get("engine_id"), body.get("engine_status")
    if not _is_integer(rank) or not _is_integer(status) or status not in tuple(MotorStatus):
        raise SignalRefused('takes {"engine_id": <rank>, "engine_status": 0 healthy | 1 dead | 2 unhealthy}')
    return (from_operator(rank, MotorStatus(status).status, received_at),)


def _on_clear(state: InstanceState, inputs: Inputs, now: float) -> InstanceState:
    body = inputs.mapping()
    rank = body.get("engine_id")
    if not _is_integer(rank):
        raise SignalRefused('takes {"engine_id": <rank>}')
    return _merged(state, CLEAR_SIGNAL, (from_operator(rank, EngineStatus.HEALTHY, now),), body, now)


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _require_instance(state: InstanceState, instance_id: int) -> None:
    if instance_id != state.instance_id:
        raise SignalRefused(f"is about instance {instance_id}, this is {state.instance_id}")


def _merged(state: InstanceState, name: str, reports: tuple[Report, ...], body: object, now: float) -> InstanceState:
    for report in reports:
        refusal = _refusal(state, report)
        if refusal is None:
            evidence, merge = state.evidence.merge(report, state.dead_committed)
            state = state.but(evidence=evidence)
            if merge is Merge.PROCESS_EXITED and report.sequence is None:
                refusal = f"the process of rank {report.rank}'s engine is gone, which is final until a rebuild"
        if refusal is not None:
            state = state.rejecting(rejected_signal(name, refusal, repr(body), now))
    return state


def _refusal(state: InstanceState, report: Report) -> str | None:
    """A Pod speaks for its own ranks only; the API checks the same against its cache."""
    if report.rank not in state.topology.ranks:
        return f"instance {state.instance_id} has no rank {report.rank}"
    owner = state.topology.manager_of_rank(report.rank)
    if report.node_manager not in (None, str(owner), owner.ip):
        return f"rank {report.rank} belongs to NodeManager {owner}, not to {report.node_manager}"
    return None


def _on_progress(state: InstanceState, inputs: Inputs, now: float) -> InstanceState:
    progress = inputs.parsed(StrategyProgress)
    _require_instance(state, progress.instance_id)
    return took_progress(state, progress, now)


def _on_end(state: InstanceState, inputs: Inputs, now: float) -> InstanceState:
    """While the FaultManager still learns, the end waits: it is judged with what the journals know."""
    end = inputs.parsed(StrategyEnd)
    _require_instance(state, end.instance_id)
    if state.life is Life.LEARNING and state.strategy is None:
        return state.but(deferred_ends=(*state.deferred_ends, end)[-4:])
    return took_end(state, end, now)


def _on_config(state: InstanceState, inputs: Inputs, now: float) -> InstanceState:
    """From now on; a running strategy keeps the one that it was ordered with."""
    config = whole_config(inputs)
    return state if config == state.config else state.but(config=config, pace_told=None)


def _on_terminate(state: InstanceState, inputs: Inputs, now: float) -> InstanceState:
    """Ends an instance, so it is taken only as it is meant: with both of its fields."""
    removal = inputs.parsed(InstanceRemoval)
    if removal.model_fields_set != set(InstanceRemoval.model_fields):
        raise SignalRefused('takes {"reason": "…", "stop_engines": true | false}')
    if state.life is Life.ENDING:
        return state
    ended_by = f"the instance was deleted: {removal.reason}" if removal.reason else "the instance was deleted"
    return state.withdrawn(now).but(
        life=Life.ENDING, terminate_at=now + ENDING_LIMIT_SEC, stop_engines=removal.stop_engines, last_error=ended_by
    )


_HANDLERS: Final[dict[str, Handler]] = {
    REPORT_SIGNAL: _on_report,
    CLEAR_SIGNAL: _on_clear,
    REPORT_HARDWARE_SIGNAL: _on_hardware,
    CLEAR_HARDWARE_SIGNAL: _on_hardware_cleared,
    NODE_MANAGER_LOST_SIGNAL: _on_lost,
    NODE_MANAGER_BACK_SIGNAL: _on_back,
    PROGRESS_SIGNAL: _on_progress,
    END_SIGNAL: _on_end,
    CONFIG_SIGNAL: _on_config,
    TERMINATE_SIGNAL: _on_terminate,
}
