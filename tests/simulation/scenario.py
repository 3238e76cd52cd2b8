"""What a seed makes of the world: its size, its times, how bad the network is, and what goes wrong when.

Everything here is drawn once, from the seed, before the world begins; what happens packet by packet is drawn from the
same generator as the world goes on.
"""

from dataclasses import dataclass
from enum import StrEnum
from random import Random

from domain.config import DpScaleDownConfig, FaultToleranceConfig


class Death(StrEnum):
    """How a rank dies, or seems to."""

    WORKER = "worker"  # its worker process is killed: `dead`, the API server answers on
    PROCESS = "process"  # the whole engine exits
    MUTE = "mute"  # it hangs: the process runs, its FT API never answers again
    POWER = "power"  # its Pod's node loses power; only where the Pod holds no other rank
    REBORN = "reborn"  # it died, and another process has taken its place
    FALSE_ALARM = "false alarm"  # it was reported dead and lives


class Trouble(StrEnum):
    """What else goes wrong, at a random time of the round."""

    NODE_MANAGER_CRASH = "a NodeManager crashes and restarts"
    CRASH_IN_APPLY = "a NodeManager crashes between two steps of an apply"
    CRASH_IN_FINALIZE = "a NodeManager crashes between two steps of a finalize"
    WORKER_CRASH = "the controller worker dies; its activities start anew"
    WORKER_STALL = "the worker is given up and its activities start anew, but it works on"
    LATE_DEATH = "one more rank dies"
    SHORT_MUTE = "a survivor's FT API is mute for a while"
    NONSENSE = "an engine answers for another rank"
    COORDINATOR_RESTART = "a Coordinator restarts empty"
    RESTART_AT_PUSH = "a Coordinator restarts just before the round pushes a view"
    STOP = "somebody pre-empts the round"
    COMPETITOR = "another request id wants a NodeManager"
    STALE_COMMANDS = "commands of an older round arrive late"
    ENGINE_REFUSES = "an engine answers apply with 400"
    RECOVERY_FAILS = "the engines cannot recover: too few experts"
    PORT_FAILS = "an activity ends without an answer"
    SURVIVOR_REBORN = "a survivor is replaced by a fresh process while it recovers"


@dataclass(frozen=True)
class Event:
    """One trouble, `after_sec` from the round's start; `which` picks its victim, `for_sec` is how long it lasts."""

    trouble: Trouble
    after_sec: float
    which: int
    for_sec: float


@dataclass(frozen=True)
class Network:
    """Chances per message, and the longest delay."""

    lose: float
    duplicate: float
    delay_sec: float


@dataclass(frozen=True)
class RoundPlan:
    """One round's fault: who dies how, how long until the report, and the troubles around it."""

    pending: int
    death: Death
    reported_after_sec: float
    detection_sec: float
    troubles: tuple[Event, ...]


@dataclass(frozen=True)
class Scenario:
    """A world, as a seed makes it."""

    seed: int
    dp_size: int
    per_pod: int
    coordinators: int
    config: FaultToleranceConfig
    network: Network
    recovery_sec: float
    store_timeout_sec: float
    engine_recovery_timeout_sec: float
    rounds: tuple[RoundPlan, ...]

    @property
    def calm(self) -> bool:
        """Nothing but the faults themselves goes wrong: then every round has to succeed."""
        quiet = self.network.lose == 0 and self.network.delay_sec < 0.1
        return quiet and not any(plan.troubles or plan.death is Death.FALSE_ALARM for plan in self.rounds)


def scenario(seed: int) -> Scenario:
    """The world of this seed."""
    rng = Random(seed)
    dp_size = rng.choice((2, 3, 4, 4, 6, 8))
    calm = rng.random() < 0.15
    losing = 0.0 if calm else rng.choice((0.0, 0.02, 0.1, 0.25))
    network = Network(
        lose=losing,
        duplicate=0.0 if calm else rng.choice((0.0, 0.05, 0.3)),
        delay_sec=rng.choice((0.002, 0.05) if calm else (0.002, 0.05, 0.6)),
    )
    return Scenario(
        seed=seed,
        dp_size=dp_size,
        per_pod=rng.choice((1, 2, 2, 3)),
        coordinators=rng.choice((1, 2)),
        config=_config(rng),
        network=network,
        recovery_sec=rng.uniform(0.1, 2.0),
        store_timeout_sec=rng.uniform(4.0, 12.0),
        engine_recovery_timeout_sec=rng.choice((40.0, 120.0)),
        rounds=tuple(_round_plan(rng, calm) for _ in range(rng.choice((1, 2, 3)))),
    )


def _config(rng: Random) -> FaultToleranceConfig:
    request_timeout_sec = rng.choice((0.5, 1.0, 2.0))
    return FaultToleranceConfig(
        enable_dp_scale_down=True,
        enable_dp_scale_up=rng.random() < 0.3,
        min_alive_ranks=rng.choice((1, 1, 1, 2)),
        dp_scale_down_config=DpScaleDownConfig(
            request_timeout_sec=request_timeout_sec,
            engine_request_timeout_sec=request_timeout_sec * 0.8,
            fault_poll_interval_sec=rng.choice((0.25, 0.5, 1.0)),
            execution_deadline_sec=rng.choice((6.0, 10.0, 20.0)),
            guard_deadline_sec=rng.choice((3.0, 6.0)),
            coordinator_deadline_sec=rng.choice((3.0, 6.0)),
            apply_deadline_sec=rng.choice((3.0, 6.0)),
            verify_deadline_sec=rng.choice((3.0, 6.0)),
            finalize_deadline_sec=rng.choice((4.0, 8.0)),
            dead_confirm_sec=rng.choice((1.0, 3.0)),
            verify_inference=rng.random() < 0.8,
        ),
    )


def _round_plan(rng: Random, calm: bool) -> RoundPlan:
    death = rng.choice(
        (Death.WORKER, Death.WORKER, Death.PROCESS, Death.MUTE, Death.POWER, Death.REBORN)
        if calm
        else (*Death, Death.WORKER, Death.WORKER, Death.PROCESS)
    )
    count = 0 if calm else rng.choice((0, 1, 1, 2, 4))
    return RoundPlan(
        pending=rng.choice((1, 1, 1, 2)),
        death=death,
        reported_after_sec=rng.uniform(0.05, 3.0),
        detection_sec=rng.uniform(0.1, 3.0),
        troubles=tuple(_event(rng) for _ in range(count)),
    )


ARMED = (Trouble.CRASH_IN_APPLY, Trouble.CRASH_IN_FINALIZE, Trouble.RESTART_AT_PUSH)
"""Troubles that are set up at the beginning and wait for their moment; so they may be drawn more often."""


def _event(rng: Random) -> Event:
    trouble = rng.choice((*Trouble, *ARMED, *ARMED))
    return Event(
        trouble=trouble,
        after_sec=0.0 if trouble in ARMED else rng.choice((rng.uniform(0.0, 1.0), rng.uniform(0.0, 6.0), rng.uniform(0.0, 20.0))),
        which=rng.randrange(1000),
        for_sec=rng.choice((0.05, rng.uniform(0.0, 3.0), rng.uniform(0.0, 15.0))),
    )
