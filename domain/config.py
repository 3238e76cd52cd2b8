"""Configuration: names as in the RFC (RFC §7), each with its unit and reason; contradictions are found when it is read.

`FaultToleranceConfig` is a plain model; files and environment are read by `service.settings`. A round keeps the
configuration it started with. NodeManagers read a file of their own (`node_manager.config`); of what stands here they are told
`enable_dp_scale_down_proxy`, `poll_interval_sec`, `fault_poll_interval_sec`, `engine_request_timeout_sec`, and nothing else.
"""

from enum import StrEnum
from typing import Annotated

from pydantic import Field, model_validator

from domain.errors import ConfigError
from domain.model import NotBool, Strict

Seconds = Annotated[float, NotBool, Field(gt=0, le=86_400)]
"""Where a setting says "s" and no range: seconds, above 0, at most a day."""

MAX_LEASE_SEC = 3600.0
"""The longest lease that a NodeManager grants (RFC §6)."""


class FallbackStrategy(StrEnum):
    """What runs when the group cannot shrink in place."""

    INSTANCE_RECONFIGURATION = "InstanceReconfiguration"
    ENGINE_RELAUNCH = "EngineRelaunch"
    SCALE_P2D = "ScaleP2D"


class DpScaleDownConfig(Strict):
    """One scale-down round's times."""

    request_timeout_sec: Annotated[float, NotBool, Field(gt=0, le=60)] = 5.0
    """s, (0, 60]. Controller → NodeManager, one request; part of the lease (RFC §7)."""

    engine_request_timeout_sec: Annotated[float, NotBool, Field(gt=0, le=60)] = 4.0
    """s, (0, 60]. NodeManager → engine, one request; below request_timeout_sec, so that the NodeManager can still answer (▲)."""

    poll_interval_sec: Annotated[float, NotBool, Field(ge=0.02, le=60)] = 1.0
    """s, [0.02, 60]. How often NodeManagers look at their engines while nothing is wrong (RFC §7)."""

    fault_poll_interval_sec: Annotated[float, NotBool, Field(ge=0.02, le=60)] = 0.25
    """s, [0.02, poll_interval_sec]. How often they, and a round, look while evidence is held anywhere in the instance (▲)."""

    execution_deadline_sec: Annotated[float, NotBool, Field(ge=1, le=600)] = 30.0
    """s, [1, 600]. Bound of each of the two waits: for apply-ready, and for recovered (RFC §7)."""

    guard_deadline_sec: Seconds = 15.0
    """s. So long a survivor's NodeManager is asked for its guard; one that stays silent fails the round (design §4, step 4)."""

    coordinator_deadline_sec: Seconds = 15.0
    """s. Bound of each push of a view to all Coordinators. An unconfirmed DEL fails a round before apply; an ADD is pushed on."""

    apply_deadline_sec: Seconds = 15.0
    """s. So long an apply is sent again where a NodeManager could not be reached; it calls each engine once all the same (I1)."""

    verify_deadline_sec: Seconds = 15.0
    """s. Bound of the completion on each rank: before a round's commit point, at the end of a rebuild, a retry, a healing."""

    finalize_deadline_sec: Seconds = 20.0
    """s. So long the verdict is brought to all NodeManagers; then the FaultManager tells the late ones (`pending_finalize`)."""

    dead_confirm_sec: Annotated[float, NotBool, Field(ge=0, le=600)] = 10.0
    """s, [0, 600]. How long a rank whose process runs but whose FT API is mute must stay mute to count as dead (▲ step 5)."""

    verify_inference: bool = True
    """One bounded completion on each survivor before the commit point (▲ step 8)."""

    @property
    def lease_sec(self) -> float:
        """How long a guard holds without renewal: two waits and the requests around them (RFC §5, step 4)."""
        return 2 * self.execution_deadline_sec + 4 * self.request_timeout_sec + max(5.0, self.poll_interval_sec)

    @property
    def round_bound_sec(self) -> float:
        """The longest that a round may take by its own deadlines, without outages of worker and server (I11)."""
        return (
            self.guard_deadline_sec
            + 2 * self.execution_deadline_sec
            + 2 * self.coordinator_deadline_sec
            + self.apply_deadline_sec
            + self.verify_deadline_sec
            + self.finalize_deadline_sec
        )

    @property
    def apply_margin_sec(self) -> float:
        """What must be left of a lease when apply is sent."""
        return self.execution_deadline_sec + self.request_timeout_sec

    @model_validator(mode="after")
    def _consistent(self) -> "DpScaleDownConfig":
        if self.engine_request_timeout_sec >= self.request_timeout_sec:
            raise ValueError(
                f"engine_request_timeout_sec={self.engine_request_timeout_sec} must be below "
                f"request_timeout_sec={self.request_timeout_sec}: the NodeManager has to answer before its caller gives up"
            )
        if self.lease_sec > MAX_LEASE_SEC:
            raise ValueError(
                f"execution_deadline_sec={self.execution_deadline_sec} and request_timeout_sec={self.request_timeout_sec} "
                f"make a lease of {self.lease_sec:g} s, a NodeManager grants at most {MAX_LEASE_SEC:g}"
            )
        if self.fault_poll_interval_sec > self.poll_interval_sec:
            raise ValueError(
                f"fault_poll_interval_sec={self.fault_poll_interval_sec} must not exceed "
                f"poll_interval_sec={self.poll_interval_sec}: a fault is looked at more often, not less"
            )
        return self


_OPTIONS_OF_THE_FEATURE = ("enable_fast_recovery", "wake_idle_survivors", "node_loss_is_death")
"""Without the FT routes of the NodeManagers none of these could do anything."""


class FaultToleranceConfig(Strict):
    """`fault_tolerance_config` of the Controller (RFC §7; ▲ marks ours)."""

    enable_fault_tolerance: bool = True
    """The master switch: with it off the feature is off whatever `enable_dp_scale_down` says (RFC §7)."""

    enable_dp_scale_down: bool = False
    """Shrink in place. Off: the original strategies alone, and NodeManagers' FT routes answer 404 (RFC §6, §7)."""

    enable_dp_scale_up: bool = False
    """After a success, stop the Pods that the round emptied, so that the cluster can supply new ones (RFC §7)."""

    dp_scale_down_config: DpScaleDownConfig = DpScaleDownConfig()
    """The times of one round (RFC §7)."""

    hardware_ft_correlation_window_sec: Seconds = 5.0
    """s. Hardware came first: so long the engines have to perceive it; else the instance is rebuilt (RFC §4.4; rule 9)."""

    software_collection_timeout_sec: Seconds = 60.0
    """s. From the first software evidence; still incomplete then: one fresh look, then a rebuild (RFC §4.4; rule 10). Above the
    engines' communication timeout, or the survivors cannot notice in time."""

    dead_after_poll_failures: Annotated[int, NotBool, Field(ge=1, le=100)] = 1
    """Polls in a row, [1, 100], that an engine may leave unanswered before that is evidence of its death (RFC §4.4). Counted by
    NodeManagers: here it reaches those that `autotomy up` starts; elsewhere set it in node-manager.yaml, under the same name."""

    strategy_center_check_interval_sec: Seconds = 10.0
    """s. While evidence is held, what to do is decided anew at least so often; an idle instance does nothing (design §3)."""

    reconfiguration_budget: Annotated[int, NotBool, Field(ge=1, le=100)] = 3
    """Rebuilds, [1, 100], that may begin within `reconfiguration_window_sec`; then a person has to order the next (design §3)."""

    reconfiguration_window_sec: Seconds = 1800.0
    """s. The sliding window of that budget, and of abandoned rounds (rule 8)."""

    reconfiguration_deadline_sec: Seconds = 600.0
    """s. ▲ Bound of one rebuild: engines stopped, new ones ready, a completion on each."""

    fallback_strategy: FallbackStrategy = FallbackStrategy.INSTANCE_RECONFIGURATION
    """What runs when the group cannot shrink, as the status API shows it (RFC §7). Another value than InstanceReconfiguration is
    not done, so worker and API do not start with it (`refuse_what_is_not_done`)."""

    enable_engine_relaunch: bool = True
    """A software fault with the feature off: new engines first, a rebuild when that failed. Off: a rebuild (rule 1)."""

    enable_fast_recovery: bool = False
    """▲ All active ranks UNHEALTHY and none DEAD: tell the engines to `retry` in place before anything else."""

    fast_recovery_stability_sec: Annotated[float, NotBool, Field(ge=0, le=600)] = 5.0
    """s, [0, 600]. ▲ How long after a retry the ranks must still be healthy."""

    token_reinference_codes: tuple[str, ...] = ("0x00F1FEF5", "0x08520003")
    """Codes, none blank. ▲ L2 faults that the engines heal by themselves, by inferring the lost tokens again."""

    token_reinference_deadline_sec: Seconds = 60.0
    """s. ▲ How long TokenReinference waits for engines to heal by themselves."""

    assembly_timeout_sec: Seconds = 600.0
    """s. ▲ How long Pods that register wait for the others; then those that are still there begin anew."""

    heartbeat_interval_sec: Seconds = 1.0
    """s. How often a NodeManager sends its heartbeat (design §6). Here it bounds `heartbeat_timeout_sec` from below and reaches
    the NodeManagers that `autotomy up` starts; elsewhere set it in node-manager.yaml, under the same name."""

    heartbeat_timeout_sec: Seconds = 30.0
    """s, above `heartbeat_interval_sec`. A Pod that was silent so long is asked, and is lost if it does not answer (rule 11)."""

    set_interval_sec: Seconds = 5.0
    """s. How often every Coordinator gets the whole view (SET), so that whatever was lost is repaired (design §1)."""

    wake_idle_survivors: bool = False
    """▲ A rank is DEAD and nothing runs, so the survivors cannot notice: one bounded completion to each makes them."""

    withdraw_on_first_fault: bool = False
    """▲ Withdraw the view at the first accepted report; it is published again when the evidence clears."""

    observe_only: bool = False
    """▲ Decide and record, touch nothing: for the first weeks beside another recovery. A person's orders count."""

    node_loss_is_death: bool = False
    """▲ A node that lost power reports nothing: with its Pods' heartbeats lost, an L6 fault of the whole node and every
    other active rank UNHEALTHY, its ranks count as DEAD. Off: such a node ends in a rebuild."""

    min_alive_ranks: Annotated[int, NotBool, Field(ge=1, le=4096)] = 1
    """Ranks, [1, 4096]. ▲ Fewer survivors → rebuild instead (rule 8, gate `NO_SURVIVOR`)."""

    @property
    def enable_dp_scale_down_proxy(self) -> bool:
        """Handed to NodeManagers; off → their FT routes answer 404. Nobody configures it (RFC §6)."""
        return self.enable_fault_tolerance and self.enable_dp_scale_down

    @model_validator(mode="after")
    def _consistent(self) -> "FaultToleranceConfig":
        if self.heartbeat_timeout_sec <= self.heartbeat_interval_sec:
            raise ValueError(
                f"heartbeat_timeout_sec={self.heartbeat_timeout_sec} must exceed "
                f"heartbeat_interval_sec={self.heartbeat_interval_sec}"
            )
        if self.enable_dp_scale_up and not self.enable_dp_scale_down:
            raise ValueError("enable_dp_scale_up=true needs enable_dp_scale_down=true: it stops Pods that a round emptied")
        blank = [code for code in self.token_reinference_codes if not code.strip()]
        if blank:
            raise ValueError("token_reinference_codes holds an empty code: it would match faults that name none")
        for option in _OPTIONS_OF_THE_FEATURE:
            if getattr(self, option) and not self.enable_dp_scale_down_proxy:
                raise ValueError(
                    f"{option}=true needs enable_fault_tolerance=true and enable_dp_scale_down=true: it is part of it"
                )
        return self


def whole(config: FaultToleranceConfig) -> FaultToleranceConfig:
    """`config`, as it was sent. Raises `ValueError` where settings were left out: whoever takes a configuration over must
    not take defaults for what nobody said, and switch the feature off by a `{}`."""
    missing = sorted(set(FaultToleranceConfig.model_fields) - config.model_fields_set)
    if missing:
        raise ValueError(f"a configuration is taken over whole; missing: {', '.join(missing)}")
    return config


def refuse_what_is_not_done(config: FaultToleranceConfig) -> None:
    """For processes at their start. Raises ConfigError where a setting asks for what nobody does.

    No part of the model: the histories of workers that took such a setting must still be read.
    """
    if (asked := config.fallback_strategy) is not FallbackStrategy.INSTANCE_RECONFIGURATION:
        raise ConfigError(
            f"fault_tolerance_config.fallback_strategy = {asked.value}: a group that cannot shrink is rebuilt "
            f"({FallbackStrategy.INSTANCE_RECONFIGURATION.value}), nothing else is there; with the feature off "
            "enable_engine_relaunch decides whether engines are relaunched before that"
        )


def config_warnings(config: FaultToleranceConfig, detection_sec: float = 30.0) -> list[str]:
    """What is allowed but probably not meant; for the log and for `autotomy doctor`.

    `detection_sec` is the engines' communication timeout: how long survivors need to notice a dead peer.
    """
    found = []
    if config.software_collection_timeout_sec < detection_sec:
        found.append(
            f"software_collection_timeout_sec={config.software_collection_timeout_sec:g} is below the engines' "
            f"communication timeout of {detection_sec:g} s: instances are rebuilt before the survivors can notice"
        )
    if not config.dp_scale_down_config.verify_inference:
        found.append("verify_inference=false: a round commits on the engines' word alone")
    if config.fallback_strategy is not FallbackStrategy.INSTANCE_RECONFIGURATION:
        found.append(f"fallback_strategy={config.fallback_strategy.value}: worker and API refuse it, only a rebuild is done")
    if config.observe_only:
        found.append("observe_only=true: decisions are recorded and nothing is done; recovery is up to a person")
    if config.hardware_ft_correlation_window_sec > config.software_collection_timeout_sec:
        found.append(
            f"hardware_ft_correlation_window_sec={config.hardware_ft_correlation_window_sec:g} is above "
            f"software_collection_timeout_sec={config.software_collection_timeout_sec:g}, which then ends the wait first"
        )
    return found
