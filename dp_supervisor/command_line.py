"""Reads the command line: `[FLAG …] -- COMMAND…`.

vLLM has the supervisor's flags and the servers' on one command line. Here the servers' command stands behind `--`, and
the supervisor's flags may stand before it or in it, so that a `vllm serve … --data-parallel-multi-port-external-lb` line
works as it is. Flags that are the supervisor's business are taken out of COMMAND, those that both need are only read.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from domain.errors import ConfigError
from dp_supervisor.options import Options, checked
from dp_supervisor.vllm_config_file import with_config_file

_DESCRIPTION: Final = """\
Starts one server per local data-parallel rank, keeps the Pod alive through in-place recovery, and stops everything when
it has to. COMMAND is how one server is started: `vllm serve MODEL …`, or `python -m lab.simulator …`.
"""

_EPILOG: Final = """\
The flags above may also stand in COMMAND, as on vLLM's own command line; given twice, they must say the same. Those of
a --config FILE in COMMAND (YAML) count as vLLM counts them: COMMAND's own win, and the servers get flags instead of FILE.

Server i of L (i from 0) gets
  command      COMMAND without the flags marked *, then
               --port PORT+i --data-parallel-size N --data-parallel-rank START+i
               and, where given, --host HOST and --enable-fault-tolerance.
               An explicit rank makes vLLM an external-LB server with one local rank, as its own supervisor's are.
  environment  this process's, and DEVICES naming its T*P devices (--tensor-parallel-size T and
               --pipeline-parallel-size P in COMMAND, 1 unless given): number i*T*P and following of those that DEVICES
               lists already, else plain numbers. DEVICES is --device-env, else ASCEND_RT_VISIBLE_DEVICES if that is set,
               else CUDA_VISIBLE_DEVICES.
  process      a session and process group of its own.
START is --data-parallel-start-rank, else NODE_RANK*L. The words {rank} {port} {local_index} {dp_size} in COMMAND are
replaced; where COMMAND has {port}, {rank} or {dp_size}, the flag of that name is not added.

Own HTTP on the supervisor's port, opened when all servers answered /health with 200:
  /ready /readyz  with --enable-fault-tolerance: 200 while at least one rank is healthy
  /health         with --enable-fault-tolerance: 200 until everything is stopped
  /status         every rank: state, pid, port, why (JSON)
Without --enable-fault-tolerance all three are 200 until everything is stopped, and that is when a server exits, answers
/health with anything but 200, or does not answer THRESHOLD times in a row.

Exit codes: 0 stopped by SIGTERM or SIGINT, 1 stopped everything by its rules, 2 could not start.

  autotomy dp-supervisor -dp 8 -dpl 4 --node-rank 1 --enable-fault-tolerance -- vllm serve MODEL --enable-expert-parallel
  autotomy dp-supervisor -- vllm serve MODEL -dp 4 -dpl 4 --data-parallel-multi-port-external-lb --enable-fault-tolerance
"""

_NOT_TOGETHER: Final = {
    "data_parallel_rank": "--data-parallel-rank: the supervisor gives each server its own",
    "data_parallel_external_lb": "--data-parallel-external-lb: the servers are external-LB servers already",
    "data_parallel_hybrid_lb": "--data-parallel-hybrid-lb: one port a rank and a port for all exclude each other",
    "headless": "--headless: each rank has an API server here",
    "grpc": "--grpc: the servers are probed by HTTP",
    "uds": "--uds: the servers are probed at their ports",
    "ssl_keyfile": "--ssl-keyfile: the servers are probed without TLS",
    "ssl_certfile": "--ssl-certfile: the servers are probed without TLS",
    "ssl_ca_certs": "--ssl-ca-certs: the servers are probed without TLS",
}


def parse(arguments: Sequence[str]) -> Options:
    """The whole command line. Raises `ConfigError`; ends the process for `--help` and malformed flags."""
    before, command = _split(arguments)
    given = vars(_own_flags(shown=True).parse_args(before))
    if not command:
        raise ConfigError("nothing to start: put the servers' command behind --, e.g. `-- vllm serve MODEL`")
    rest, in_command = _taken_out(with_config_file(command))
    read = _read_only(rest)
    _refuse_what_excludes(read)
    both = {**{name: value for name, value in read.items() if name in Options.model_fields}, **in_command}
    for name, value in both.items():
        if given.get(name, value) != value:
            flag = "--" + name.replace("_", "-")
            raise ConfigError(f"{flag} is {given[name]} before -- and {value} behind it: say it once")
    values = {**both, **given, "command": tuple(rest)}
    values.pop("data_parallel_multi_port_external_lb", None)
    return checked(values)


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    words = list(arguments)
    if "--" not in words:
        return words, []
    at = words.index("--")
    return words[:at], words[at + 1 :]


def _taken_out(command: Sequence[str]) -> tuple[list[str], dict[str, object]]:
    """COMMAND without the supervisor's flags, and what they said."""
    known, rest = _own_flags(shown=False).parse_known_args([_with_hyphens(word) for word in command])
    return rest, vars(known)


def _read_only(command: Sequence[str]) -> dict[str, object]:
    parser = _parser(shown=False)
    parser.add_argument("--tensor-parallel-size", "-tp", type=int)
    parser.add_argument("--pipeline-parallel-size", "-pp", type=int)
    parser.add_argument("--node-rank", "-r", type=int)
    parser.add_argument("--shutdown-timeout", type=float)
    parser.add_argument("--api-key")
    parser.add_argument("--api-server-count", "-asc", type=int)
    parser.add_argument("--data-parallel-rank", "-dpn", type=int)
    parser.add_argument("--data-parallel-external-lb", "-dpe", action="store_true")
    parser.add_argument("--data-parallel-hybrid-lb", "-dph", action="store_true")
    for flag in ("--headless", "--grpc"):
        parser.add_argument(flag, action="store_true")
    for flag in ("--uds", "--ssl-keyfile", "--ssl-certfile", "--ssl-ca-certs"):
        parser.add_argument(flag)
    return vars(parser.parse_known_args(command)[0])


def _refuse_what_excludes(read: dict[str, object]) -> None:
    for name, why in _NOT_TOGETHER.items():
        if name in read and not (name == "data_parallel_rank" and read[name] is None):
            raise ConfigError(f"{why}; leave it out")
    if read.get("api_server_count", 1) != 1:
        raise ConfigError(f"--api-server-count {read['api_server_count']}: one API server a rank, leave it out")


def _with_hyphens(word: str) -> str:
    """vLLM takes `--data_parallel_size` for `--data-parallel-size`."""
    if not word.startswith("--"):
        return word
    flag, equals, value = word.partition("=")
    return flag.replace("_", "-") + equals + value


def _parser(*, shown: bool) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog="autotomy dp-supervisor",
        usage="autotomy dp-supervisor [FLAG ...] -- COMMAND ...",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        add_help=shown,
        allow_abbrev=False,
    )


def _own_flags(*, shown: bool) -> argparse.ArgumentParser:
    """`shown`: before `--`, where help and our own additions may stand too."""
    parser = _parser(shown=shown)
    group = parser.add_argument_group("the group (vLLM's flags)")
    group.add_argument("--data-parallel-size", "-dp", type=int, metavar="N", help="* ranks in all")
    group.add_argument("--data-parallel-size-local", "-dpl", type=int, metavar="L", help="* ranks here, 2 or more, divides N")
    group.add_argument("--data-parallel-start-rank", "-dpr", type=int, metavar="START", help="* the first rank here")
    group.add_argument(
        "--data-parallel-multi-port-external-lb", "-dpm", action="store_true", help="* accepted: it is what this is"
    )
    group.add_argument(
        "--enable-fault-tolerance", action=argparse.BooleanOptionalAction, help="* the servers', and the rules that go with it"
    )
    if shown:
        group.add_argument("--node-rank", type=int, metavar="NODE_RANK", help="this Pod's number (0)")
    http = parser.add_argument_group("addresses (vLLM's flags)")
    http.add_argument("--host", help="* of the servers and of the supervisor (their default; every interface)")
    http.add_argument("--port", type=int, help="* of the first server, the others follow (8000)")
    http.add_argument("--data-parallel-supervisor-port", type=int, metavar="PORT", help="* the supervisor's own (9256)")
    probe = parser.add_argument_group("probes (vLLM's flags)")
    probe.add_argument("--dp-supervisor-probe-interval-s", type=float, metavar="SEC", help="* pause between two sweeps (5)")
    probe.add_argument("--dp-supervisor-probe-timeout-s", type=float, metavar="SEC", help="* bound of one look (5)")
    probe.add_argument(
        "--dp-supervisor-probe-failure-threshold", type=int, metavar="THRESHOLD", help="* failed sweeps in a row that count (3)"
    )
    if shown:
        ours = parser.add_argument_group("additions")
        ours.add_argument(
            "--shutdown-timeout", type=float, metavar="SEC", help="time for requests under way at SIGTERM; 5 s later: SIGKILL (0)"
        )
        ours.add_argument("--startup-timeout-s", type=float, metavar="SEC", help="until all servers are ready (3600)")
        ours.add_argument("--stock-rules", action="store_true", help="judge as without fault tolerance, though servers have it")
        ours.add_argument("--device-env", metavar="NAME", help="the variable that names a server's devices")
        ours.add_argument("--log-dir", type=Path, metavar="DIR", help="a log file a rank there (default: this process's output)")
    return parser
