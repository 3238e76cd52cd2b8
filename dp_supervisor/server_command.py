"""How one rank's server is started: its command line and environment, from COMMAND and the rank's place (see `--help`)."""

import os
import re
from collections.abc import Mapping
from typing import Final

from domain.address import http_url
from domain.errors import ConfigError
from domain.model import Port, Rank, Strict
from dp_supervisor.options import Options

_PLACEHOLDER: Final = re.compile(r"\{(rank|port|local_index|dp_size)\}")
_ASCEND_DEVICES: Final = "ASCEND_RT_VISIBLE_DEVICES"
_CUDA_DEVICES: Final = "CUDA_VISIBLE_DEVICES"
_LOOPBACK: Final = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}
"""Where a server that listens on every interface is looked at."""


class ServerPlan(Strict):
    """One server. `environment` is what it gets on top of the supervisor's own; `url` is where it is looked at."""

    rank: Rank
    port: Port
    command: tuple[str, ...]
    environment: Mapping[str, str]
    url: str


def plan_servers(options: Options, environment: Mapping[str, str] = os.environ) -> tuple[ServerPlan, ...]:
    """All local servers, by rank. Raises `ConfigError` where the environment lists too few devices."""
    return tuple(_plan(options, index, environment) for index in range(options.data_parallel_size_local))


def _plan(options: Options, index: int, environment: Mapping[str, str]) -> ServerPlan:
    rank, port = options.start_rank + index, options.port + index
    values = {"rank": rank, "port": port, "local_index": index, "dp_size": options.data_parallel_size}
    return ServerPlan(
        rank=rank,
        port=port,
        command=_command(options, values),
        environment=_devices(options, index, environment),
        url=http_url(_LOOPBACK.get(options.host or "", options.host or ""), port),
    )


def _command(options: Options, values: Mapping[str, int]) -> tuple[str, ...]:
    used = {name for word in options.command for name in _PLACEHOLDER.findall(word)}
    words = [_PLACEHOLDER.sub(lambda match: str(values[match[1]]), word) for word in options.command]
    for name, flag in (("port", "--port"), ("dp_size", "--data-parallel-size"), ("rank", "--data-parallel-rank")):
        if name not in used:
            words += [flag, str(values[name])]
    if options.host is not None:
        words += ["--host", options.host]
    if options.enable_fault_tolerance is not None:
        words += ["--enable-fault-tolerance" if options.enable_fault_tolerance else "--no-enable-fault-tolerance"]
    return tuple(words)


def _devices(options: Options, index: int, environment: Mapping[str, str]) -> dict[str, str]:
    name = options.device_env or (_ASCEND_DEVICES if environment.get(_ASCEND_DEVICES) else _CUDA_DEVICES)
    each, needed = options.devices_per_rank, options.devices_per_rank * options.data_parallel_size_local
    listed = [device.strip() for device in environment.get(name, "").split(",") if device.strip()]
    if listed and len(listed) < needed:
        raise ConfigError(
            f"{name}={environment[name]} lists {len(listed)} devices, "
            f"{options.data_parallel_size_local} servers with {each} each need {needed}"
        )
    devices = listed or [str(number) for number in range(needed)]
    return {name: ",".join(devices[index * each : (index + 1) * each])}
