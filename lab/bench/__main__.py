"""`python -m lab.bench`, called by `autotomy bench`: measures and prints. Exit codes: 0 measured, 2 could not run."""

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from typing import Final

import httpx

from domain.errors import AutotomyError, ConfigError
from lab.bench.figures import Spread
from lab.bench.heartbeats import HeartbeatReport, bench_heartbeats
from lab.bench.idle import IdleReport, bench_idle
from lab.bench.rounds import RoundsReport, bench_rounds
from lab.bench.site import Shape
from service.arguments import count, seconds
from service.leave import leave

_POLL_SEC: Final = (0.02, 60.0)
"""What the configuration takes (`domain.config`)."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, measure, print."""
    given = _parser().parse_args(arguments)
    try:
        if given.what == "rounds":
            report = asyncio.run(bench_rounds(_shape(given), given.rounds, _say))
            print(report.model_dump_json() if given.json else _rounds_text(report), flush=True)
        elif given.what == "heartbeats":
            beats = asyncio.run(bench_heartbeats(_shape(given), given.seconds, _say))
            print(beats.model_dump_json() if given.json else _heartbeats_text(beats), flush=True)
        else:
            idle = asyncio.run(bench_idle(_shape(given), given.seconds, _say))
            print(idle.model_dump_json() if given.json else _idle_text(idle), flush=True)
    except AutotomyError as error:
        print(f"autotomy bench: {error}", file=sys.stderr)
        return 2
    except httpx.HTTPError as error:
        print(f"autotomy bench: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="autotomy bench", description="How fast rounds are, and what idling costs.")
    kinds = parser.add_subparsers(dest="what", required=True)
    rounds = kinds.add_parser("rounds", help="ranks fail, rounds answer; the same rounds without Temporal beside them")
    _add_shape(rounds, ranks=8, node_managers=2, instances=1, poll=0.25)
    rounds.add_argument("--rounds", type=count, metavar="N", default=20, help="faults per instance (default: %(default)s)")
    rounds.add_argument("--no-bare", action="store_true", help="leave out the rounds without Temporal, and their Pods")
    idle = kinds.add_parser("idle", help="polls, CPU, history and memory while nothing happens")
    _add_shape(idle, ranks=8, node_managers=2, instances=100, poll=1.0)
    idle.add_argument(
        "--seconds", type=seconds, metavar="SEC", default=30.0, help="how long each look lasts (default: %(default)s)"
    )
    beats = kinds.add_parser("heartbeats", help="Pods register at once and then live: the API's CPU and memory, and no history")
    beats.add_argument("--node-managers", type=count, metavar="N", default=40, help="of one instance (default: %(default)s)")
    beats.add_argument("--ranks-per-pod", type=count, metavar="N", default=8, help="default: %(default)s")
    beats.add_argument("--seconds", type=seconds, metavar="SEC", default=300.0, help="of heartbeats (default: %(default)s)")
    beats.add_argument("--json", action="store_true", help="JSON as the last line of stdout")
    return parser


def _add_shape(parser: argparse.ArgumentParser, *, ranks: int, node_managers: int, instances: int, poll: float) -> None:
    parser.add_argument("--ranks", type=count, metavar="N", default=ranks, help="per instance (default: %(default)s)")
    parser.add_argument(
        "--node-managers", type=count, metavar="N", default=node_managers, help="per instance (default: %(default)s)"
    )
    parser.add_argument(
        "--instances", type=count, metavar="N", default=instances, help="more than one: --light (default: %(default)s)"
    )
    parser.add_argument(
        "--poll", type=_poll, metavar="SEC", default=poll, help="s between looks at an engine (default: %(default)s)"
    )
    parser.add_argument("--light", action="store_true", help="play the NodeManagers in one process, too")
    parser.add_argument("--json", action="store_true", help="JSON as the last line of stdout")


def _poll(text: str) -> float:
    shortest, longest = _POLL_SEC
    poll_sec = seconds(text)
    if not shortest <= poll_sec <= longest:
        raise argparse.ArgumentTypeError(f"{text!r} is not within {shortest:g}..{longest:g} s")
    return poll_sec


def _shape(given: argparse.Namespace) -> Shape:
    if given.what == "heartbeats":
        if given.seconds < 1:
            raise ConfigError(f"--seconds {given.seconds:g}: a heartbeat comes once a second, so at least 1")
        ranks = given.node_managers * given.ranks_per_pod
        return Shape(ranks=ranks, node_managers=given.node_managers, poll_sec=1.0, light=True)
    if given.ranks < 2:
        raise ConfigError(f"--ranks {given.ranks}: one rank has no survivors, so at least 2")
    if given.ranks % given.node_managers:
        raise ConfigError(f"{given.ranks} ranks cannot be spread evenly over {given.node_managers} NodeManagers")
    if given.what == "rounds" and given.instances > 1 and not given.light:
        raise ConfigError("more than one instance needs --light")
    return Shape(
        ranks=given.ranks,
        node_managers=given.node_managers,
        instances=given.instances,
        poll_sec=given.poll,
        light=given.light,
        bare=not getattr(given, "no_bare", False),
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _rounds_text(report: RoundsReport) -> str:
    figures, setup = report.figures, report.setup
    lines = [
        f"{setup.instances} × {setup.ranks} ranks in {setup.node_managers} Pods ({'light' if setup.light else 'real'} "
        f"NodeManagers), polls every {setup.poll_sec:g} s, {figures.rounds} rounds; "
        f"{setup.cpus} CPUs, load {setup.load_before:g} → {setup.load_after:g}",
        "",
        f"{'seconds':<22}{'p50':>9}{'p95':>9}{'p99':>9}{'most':>9}",
        *_rows(
            {
                "our share": figures.control_plane_sec,
                "the bare loop's": figures.bare_loop_sec,
                "Temporal, API, decision": figures.temporal_sec,
                "fault to published": figures.in_place_sec,
            }
        ),
        "",
        *_rows(figures.stage_sec),
        "",
        f"ratio to the bare loop {figures.ratio}, without poll waits {figures.ratio_without_poll_waits}; "
        f"commands per engine and fault: {figures.commands_per_engine}",
        "CPU seconds a round: " + ", ".join(f"{kind} {seconds:.3f}" for kind, seconds in figures.cpu_sec.items()),
    ]
    return "\n".join(lines)


def _idle_text(report: IdleReport) -> str:
    figures, setup = report.figures, report.setup
    pods = f"{setup.ranks} ranks in {setup.node_managers} Pods"
    lines = [
        f"{setup.seconds:g} s each, polls every {setup.poll_sec:g} s; "
        f"{setup.cpus} CPUs, load {setup.load_before:g} → {setup.load_after:g}",
        *(
            f"{pods}, feature {word}: {cost.status_polls:g} status polls a second, "
            f"{100 * cost.node_manager_cpu_share:.2f} % of a CPU per NodeManager"
            for word, cost in (("on", figures.on), ("off", figures.off))
        ),
        f"{setup.instances} idle instances: FaultManagers' histories grew by {figures.fault_manager_events} events at most, "
        f"EventPusher's by {figures.event_pusher_events_an_hour:g} an hour",
        f"worker {figures.worker_mib:.0f} MiB, {figures.worker_mib_per_1000:.0f} MiB per 1,000 instances",
        "CPU: " + ", ".join(f"{kind} {100 * share:.1f} %" for kind, share in figures.cpu_share.items()),
    ]
    return "\n".join(lines)


def _heartbeats_text(report: HeartbeatReport) -> str:
    figures, setup = report.figures, report.setup
    lines = [
        f"{setup.node_managers} Pods × {setup.ranks_per_pod} ranks, a heartbeat every {setup.interval_sec:g} s, "
        f"{setup.seconds:g} s; {setup.cpus} CPUs, load {setup.load_before:g} → {setup.load_after:g}",
        f"all registered after {figures.registered_sec:.2f} s, all served after {figures.serving_sec:.2f} s",
        f"{figures.heartbeats} heartbeats taken, {figures.refused} not",
        f"API: {100 * figures.api_cpu_share:.1f} % of a CPU, {figures.api_cpu_ms_per_heartbeat:.2f} ms a heartbeat, "
        f"{figures.api_mib_before:.0f} → {figures.api_mib_after:.0f} MiB (at most {figures.api_mib_most:.0f})",
        "CPU: " + ", ".join(f"{kind} {100 * share:.1f} %" for kind, share in figures.cpu_share.items()),
        "history events added: " + ", ".join(f"{one} {events}" for one, events in figures.history_growth.items()),
        "",
        f"{'seconds':<22}{'p50':>9}{'p95':>9}{'p99':>9}{'most':>9}",
        *_rows({"a heartbeat's answer": figures.latency_sec}),
    ]
    return "\n".join(lines)


def _rows(spreads: Mapping[str, Spread | None]) -> list[str]:
    return [
        f"{name:<24}{one.p50:>7.3f}{one.p95:>9.3f}{one.p99:>9.3f}{one.most:>9.3f}"
        for name, one in spreads.items()
        if one is not None
    ]


if __name__ == "__main__":
    leave(main())
