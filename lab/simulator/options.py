"""The command line of one rank.

Flags that vLLM has keep vLLM's name and meaning; the others are settings of the stand-in (times that a real engine
takes from its hardware, and the knobs of ``misbehaviour``). Everything is checked here, so that the processes start
from a value object that is known to make sense.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lab.simulator.misbehaviour import KNOBS, Misbehaviour

Dialect = Literal["v1", "legacy"]

DESCRIPTION = """\
One data-parallel rank of a SIMULATED engine. This is a stand-in, not vLLM: there is no model and no accelerator, and
its answers are made-up text that names the rank and the group epoch. It has real processes to kill (this API server
and a child whose command line contains `autotomy-sim-worker`), a group that really steps together over sockets, and
vLLM's fault-tolerance API. Start one of these per rank; none is ready before all have met at the store of rank 0.
"""

EPILOG = (
    "Misbehaviour (--misbehave NAME[=VALUE][,...] at the start, or later\n"
    'POST /simulator/misbehave {"knobs": "NAME[=VALUE],..."}, which replaces what was set; "" ends it):\n'
    + "\n".join(f"  {name:<22}{meaning}" for name, meaning in KNOBS.items())
    + """

To make it mute or dead use real signals: SIGKILL the worker (a dead rank), SIGSTOP the API server (an FT API that does
not answer while the engine works on), SIGSTOP the worker (looks dead to its peers; finds its own communication timeout
when it continues).

Other endpoints of the stand-in: GET /simulator/state. Log: <log-dir>/engine-<rank>-<pid>.jsonl.
"""
)


@dataclass(frozen=True)
class Options:
    """One rank's settings; durations in the unit that the name ends with."""

    host: str
    port: int
    model: str
    api_key: str | None
    rank: int
    size: int
    tensor_parallel_size: int
    store_host: str
    store_port: int
    dialect: Dialect
    fault_tolerance: bool
    engine_recovery_timeout_sec: float
    detection_sec: float
    recovery_sec: float
    store_timeout_sec: float
    startup_sec: float
    startup_timeout_sec: float
    step_ms: float
    token_ms: float
    num_experts: int
    num_redundant_experts: int
    log_dir: Path
    misbehaviour: Misbehaviour


def parse(arguments: Sequence[str] | None = None) -> Options:
    """Read the command line; a contradiction ends the process with status 2 and a sentence that names the flag."""
    parser = _parser()
    given = parser.parse_args(arguments)
    _check(parser, given)
    return Options(
        host=given.host,
        port=given.port,
        model=given.served_model_name,
        api_key=given.api_key,
        rank=given.data_parallel_rank,
        size=given.data_parallel_size,
        tensor_parallel_size=given.tensor_parallel_size,
        store_host=given.data_parallel_address,
        store_port=given.data_parallel_rpc_port,
        dialect=given.dialect,
        fault_tolerance=given.enable_fault_tolerance,
        engine_recovery_timeout_sec=given.engine_recovery_timeout_sec,
        detection_sec=given.detection_sec,
        recovery_sec=given.recovery_sec,
        store_timeout_sec=given.store_timeout_sec,
        startup_sec=given.startup_sec,
        startup_timeout_sec=given.startup_timeout_sec,
        step_ms=given.step_ms,
        token_ms=given.step_ms if given.token_ms is None else given.token_ms,
        num_experts=given.num_experts,
        num_redundant_experts=given.num_redundant_experts,
        log_dir=given.log_dir,
        misbehaviour=given.misbehave,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lab.simulator",
        usage="python -m lab.simulator [FLAG ...]",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    http = parser.add_argument_group("HTTP")
    http.add_argument("--host", default="127.0.0.1", help="this rank's own address; peers use it too (default: %(default)s)")
    http.add_argument(
        "--port", type=_whole(0, 65535), default=8000, help="opens when the engine is ready; 0 = any (default: %(default)s)"
    )
    http.add_argument(
        "--model",
        "--served-model-name",
        dest="served_model_name",
        default="simulated",
        help="the name that /v1/models shows (default: %(default)s)",
    )
    http.add_argument("--api-key", help="/v1/... then wants `Authorization: Bearer KEY` (default: no key)")

    group = parser.add_argument_group("data parallel group")
    group.add_argument("--data-parallel-size", "-dp", type=_whole(1, 1024), default=1, help="ranks (default: %(default)s)")
    group.add_argument("--data-parallel-rank", type=_whole(0, 1023), default=0, help="this rank (default: %(default)s)")
    group.add_argument("--data-parallel-address", default="127.0.0.1", help="address of rank 0's store (default: %(default)s)")
    group.add_argument(
        "--data-parallel-rpc-port",
        "--dp-master-port",
        type=_whole(1, 65535),
        default=29500,
        help="port of rank 0's store (default: %(default)s)",
    )
    group.add_argument(
        "--tensor-parallel-size", "-tp", type=_whole(1, 1024), default=1, help="only the mask's length: EP = DP x TP"
    )

    fault = parser.add_argument_group("fault tolerance")
    fault.add_argument(
        "--enable-fault-tolerance",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="the FT API; off: 404, and a fault ends the engine",
    )
    fault.add_argument(
        "--dialect",
        choices=("v1", "legacy"),
        default="v1",
        help="of the FT API; legacy knows `retry` only (default: %(default)s)",
    )
    fault.add_argument(
        "--detection-sec",
        type=_positive,
        default=30.0,
        metavar="SEC",
        help="communication timeout of a step (default: %(default)s)",
    )
    fault.add_argument(
        "--recovery-sec",
        type=_not_negative,
        default=1.0,
        metavar="SEC",
        help="work between the two meetings of a recovery (default: %(default)s)",
    )
    fault.add_argument(
        "--store-timeout-sec", type=_positive, default=30.0, metavar="SEC", help="bound of each meeting (default: %(default)s)"
    )
    fault.add_argument(
        "--engine-recovery-timeout-sec",
        type=_positive,
        default=120.0,
        metavar="SEC",
        help="not recovered so long after its own fault, the engine exits (default: %(default)s)",
    )
    fault.add_argument("--num-experts", type=_whole(1, 1_000_000), default=64, help="logical experts L (default: %(default)s)")
    fault.add_argument(
        "--num-redundant-experts",
        type=_whole(0, 1_000_000),
        default=192,
        help="redundant slots R; losing d of N ranks needs R >= L*d/(N-d) (default: %(default)s)",
    )

    pace = parser.add_argument_group("pace")
    pace.add_argument(
        "--step-ms", type=_positive, default=20.0, metavar="MS", help="one step of the group (default: %(default)s)"
    )
    pace.add_argument("--token-ms", type=_positive, metavar="MS", help="one token of a request (default: a token a step)")
    pace.add_argument(
        "--startup-sec",
        type=_not_negative,
        default=0.0,
        metavar="SEC",
        help="before it joins the group, as loading weights would (default: %(default)s)",
    )
    pace.add_argument(
        "--startup-timeout-sec",
        type=_positive,
        default=600.0,
        metavar="SEC",
        help="not all ranks met so long after: exit (default: %(default)s)",
    )

    other = parser.add_argument_group("stand-in")
    other.add_argument("--log-dir", type=Path, default=Path(), metavar="DIR", help="for its own log (default: here)")
    other.add_argument(
        "--misbehave",
        type=_misbehaviour,
        default=Misbehaviour(),
        metavar="NAME[=VALUE],...",
        help="break the contract, see below",
    )
    return parser


def _check(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    if given.data_parallel_rank >= given.data_parallel_size:
        parser.error(
            f"--data-parallel-rank {given.data_parallel_rank} is not below --data-parallel-size {given.data_parallel_size}"
        )
    if given.host in ("0.0.0.0", "::", ""):
        parser.error(f"--host {given.host!r}: give this rank's own address, peers and the store use it")


def _whole(lowest: int, highest: int) -> _Whole:
    return _Whole(lowest, highest)


class _Whole:
    def __init__(self, lowest: int, highest: int) -> None:
        self._lowest, self._highest = lowest, highest

    def __call__(self, text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if not self._lowest <= value <= self._highest:
            raise argparse.ArgumentTypeError(f"{value} is not within {self._lowest}..{self._highest}")
        return value


def _positive(text: str) -> float:
    value = _not_negative(text)
    if value == 0:
        raise argparse.ArgumentTypeError("0 is too short")
    return value


def _not_negative(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not 0 <= value < 1e9:
        raise argparse.ArgumentTypeError(f"{text} is negative or out of range")
    return value


def _misbehaviour(text: str) -> Misbehaviour:
    try:
        return Misbehaviour.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
