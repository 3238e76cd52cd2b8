"""From a spec to command lines: names, ports, environments and configuration files of every process.

Pure but for the ports, which are reserved while the plan is made. A plan can be thrown away and made again when
somebody took one of its ports.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from domain.topology import Endpoint, NodeManagerAddress, NodeManagerPlace, ParallelConfig, Topology
from lab.stack.child import ProcessPlan
from lab.stack.environment import base_environment
from lab.stack.ports import PortLease
from lab.stack.processes import PROCESS_VARIABLE
from lab.stack.record import CoordinatorPlace, EnginePlace, NodeManagerRecord, ProcessKind, StackAddresses
from lab.stack.run_dir import LaunchOrder, RunDir
from service.failpoints import VARIABLE as FAILPOINTS_VARIABLE
from service.settings import CONFIG_VARIABLE
from service.temporal import server_command

_HOST: Final = "127.0.0.1"
_NAMESPACE: Final = "default"
_ENGINE_GRACE_SEC: Final = 2.0


@dataclass(frozen=True)
class StackPlan:
    """Everything that is decided before the first process starts."""

    addresses: StackAddresses
    topology: Topology
    processes: tuple[ProcessPlan, ...]


def plan_stack(order: LaunchOrder, run_dir: RunDir, ports: PortLease) -> StackPlan:
    """Decide everything. Raises NoFreePort (a port that was asked for is taken), ConfigError (no temporal program)."""
    draft = _Draft(order, run_dir, ports)
    return StackPlan(draft.addresses, draft.topology, tuple(draft.processes()))


class _Draft:
    """The plan while it is made."""

    def __init__(self, order: LaunchOrder, run_dir: RunDir, ports: PortLease) -> None:
        self._run_id = order.run_id
        self._spec = order.spec
        self._run_dir = run_dir
        self._temporal_port = _port(ports, self._spec.ports.temporal, "the Temporal server")
        self._web_ui_port = _port(ports, self._spec.ports.web_ui, "the Web UI") if self._spec.web_ui else None
        self._worker_ports = [ports.take() for _ in range(self._spec.workers)]
        self._store_port = ports.take_block(self._spec.dp_size)
        self.addresses = self._addresses(ports)
        self.topology = self._topology()

    def processes(self) -> Iterator[ProcessPlan]:
        yield self._temporal()
        yield self._api()
        yield from (self._worker(index) for index in range(self._spec.workers))
        yield from (self._coordinator(place) for place in self.addresses.coordinators)
        yield from (self._node_manager(index, record) for index, record in enumerate(self.addresses.node_managers))

    # --- addresses -----------------------------------------------------------------------------------------------

    def _addresses(self, ports: PortLease) -> StackAddresses:
        controller_port = _port(ports, self._spec.ports.controller, "the Controller API")
        return StackAddresses(
            temporal_address=f"{_HOST}:{self._temporal_port}",
            temporal_namespace=_NAMESPACE,
            web_ui_url=f"http://{_HOST}:{self._web_ui_port}" if self._web_ui_port is not None else None,
            controller_url=f"http://{_HOST}:{controller_port}",
            coordinators=tuple(self._coordinator_place(index, ports) for index in range(self._spec.coordinators)),
            node_managers=tuple(self._node_manager_record(index, ports) for index in range(len(self._spec.pods))),
            engines=tuple(self._engine_place(rank, ports) for rank in self._spec.ranks),
        )

    def _coordinator_place(self, index: int, ports: PortLease) -> CoordinatorPlace:
        name = f"{ProcessKind.COORDINATOR}-{index}"
        fixed = self._spec.ports if index == 0 else None
        inference = _port(ports, fixed.coordinator if fixed else None, "the Coordinator")
        management = _port(ports, fixed.management if fixed else None, "the Coordinator's management")
        return CoordinatorPlace(
            name=name,
            url=f"http://{_HOST}:{inference}",
            management_url=f"http://{_HOST}:{management}",
            view_log=str(self._run_dir.logs / f"{name}-views.jsonl"),
            log_file=str(self._run_dir.log_file(name)),
        )

    def _node_manager_record(self, index: int, ports: PortLease) -> NodeManagerRecord:
        name = f"{ProcessKind.NODE_MANAGER}-{index}"
        return NodeManagerRecord(
            name=name,
            address=NodeManagerAddress(ip=self._spec.pod_ip(index), port=ports.take()),
            ranks=self._spec.pods[index],
            config_file=str(self._run_dir.config / f"{name}.yaml"),
            journal_file=str(self._run_dir.state / f"{name}.sqlite"),
            log_file=str(self._run_dir.log_file(name)),
        )

    def _engine_place(self, rank: int, ports: PortLease) -> EnginePlace:
        pod = self._spec.pod_of(rank)
        return EnginePlace(
            rank=rank,
            name=f"engine-{rank}",
            url=f"http://{self._spec.pod_ip(pod)}:{ports.take()}",
            pod=f"pod-{pod}",
            log_dir=str(self._run_dir.engine_logs),
        )

    def _topology(self) -> Topology:
        spec = self._spec
        managers = self.addresses.node_managers
        return Topology(
            instance_id=spec.instance_id,
            job_name=spec.job_name,
            model_name=spec.model_name,
            role=spec.role,
            parallel_config=ParallelConfig(dp_size=spec.dp_size),
            dp_master_port=self._store_port,
            node_managers=tuple(
                NodeManagerPlace(pod_ip=manager.address.ip, port=manager.address.port, node_name=f"node-{index}")
                for index, manager in enumerate(managers)
            ),
            endpoints=tuple(self._endpoint(engine) for engine in self.addresses.engines),
            ft_capability=spec.engine.capability(),
        )

    def _endpoint(self, engine: EnginePlace) -> Endpoint:
        pod = self._spec.pod_of(engine.rank)
        manager = self.addresses.node_managers[pod].address
        return Endpoint(
            id=engine.rank,
            pod_ip=manager.ip,
            ip=manager.ip,
            business_port=int(engine.url.rpartition(":")[2]),
            device_ids=(str(self._spec.pods[pod].index(engine.rank)),),
            node_manager_port=manager.port,
        )

    # --- processes -----------------------------------------------------------------------------------------------

    def _temporal(self) -> ProcessPlan:
        return self._process(
            ProcessKind.TEMPORAL,
            ProcessKind.TEMPORAL,
            server_command(self._run_dir.state / "temporal.sqlite", _HOST, self._temporal_port, self._web_ui_port),
            url=self.addresses.temporal_address,
            ready_address=(_HOST, self._temporal_port),
        )

    def _api(self) -> ProcessPlan:
        url = self.addresses.controller_url
        command = [sys.executable, "-m", "api", "--host", _HOST, "--port", url.rpartition(":")[2]]
        return self._process(
            ProcessKind.API,
            ProcessKind.API,
            command,
            url=url,
            ready_url=f"{url}/readiness",
            files={self._config_file: self._configuration()},
        )

    def _worker(self, index: int) -> ProcessPlan:
        name, url = f"{ProcessKind.WORKER}-{index}", f"http://{_HOST}:{self._worker_ports[index]}"
        command = [sys.executable, "-m", "workers", "--host", _HOST, "--health-port", str(self._worker_ports[index])]
        return self._process(ProcessKind.WORKER, name, command, url=url, ready_url=f"{url}/readiness")

    def _coordinator(self, place: CoordinatorPlace) -> ProcessPlan:
        command = [sys.executable, "-m", "coordinator", "--host", _HOST, "--port", place.url.rpartition(":")[2]]
        command += ["--management-port", place.management_url.rpartition(":")[2], "--view-log", place.view_log]
        command += ["--controller-url", self.addresses.controller_url]
        return self._process(
            ProcessKind.COORDINATOR,
            place.name,
            command,
            url=place.url,
            ready_url=f"{place.management_url}/instances",
        )

    def _node_manager(self, index: int, record: NodeManagerRecord) -> ProcessPlan:
        return self._process(
            ProcessKind.NODE_MANAGER,
            record.name,
            [sys.executable, "-m", "node_manager", "--config", record.config_file],
            url=record.url,
            ready_url=f"{record.url}/liveness",
            pod=f"pod-{index}",
            files={Path(record.config_file): self._node_manager_configuration(index, record)},
        )

    def _process(
        self,
        kind: ProcessKind,
        name: str,
        command: list[str],
        *,
        url: str | None = None,
        ready_url: str | None = None,
        ready_address: tuple[str, int] | None = None,
        pod: str | None = None,
        files: Mapping[Path, str] | None = None,
    ) -> ProcessPlan:
        return ProcessPlan(
            name=name,
            kind=kind,
            command=tuple(command),
            environment=self._environment(kind, name, pod),
            log_file=self._run_dir.log_file(name),
            url=url,
            ready_url=ready_url,
            ready_address=ready_address,
            pod=pod,
            files=files or {},
        )

    def _environment(self, kind: ProcessKind, name: str, pod: str | None) -> dict[str, str]:
        environment = base_environment(self._run_id, name, pod=pod, run_dir=self._run_dir.path)
        environment["TEMPORAL_ADDRESS"] = self.addresses.temporal_address
        environment["TEMPORAL_NAMESPACE"] = _NAMESPACE
        environment[CONFIG_VARIABLE] = str(self._config_file)
        failpoints = {**self._spec.failpoints.get(kind, {}), **self._spec.failpoints.get(name, {})}
        if failpoints:
            environment[FAILPOINTS_VARIABLE] = ",".join(f"{point}=unix:{path}" for point, path in failpoints.items())
        return {**environment, **self._spec.process_env.get(kind, {}), **self._spec.process_env.get(name, {})}

    # --- configuration files -------------------------------------------------------------------------------------

    @property
    def _config_file(self) -> Path:
        return self._run_dir.config / "autotomy.yaml"

    def _configuration(self) -> str:
        return _yaml({"controller_url": self.addresses.controller_url, "fault_tolerance_config": dict(self._spec.configured())})

    def _node_manager_configuration(self, index: int, record: NodeManagerRecord) -> str:
        config = self._spec.effective_config()
        registration = {"registration": self._registration(index)} if self._spec.registers else {}
        particular = [
            rank for rank in record.ranks if rank in self._spec.engine.rank_arguments or rank in self._spec.engine.rank_env
        ]
        return _yaml(
            {
                "pod_ip": record.address.ip,
                "port": record.address.port,
                "node_name": f"node-{index}",
                "controller_url": self.addresses.controller_url,
                "journal": record.journal_file,
                "log_dir": str(self._run_dir.engine_logs),
                "enable_dp_scale_down_proxy": config.enable_dp_scale_down_proxy,
                "poll_interval_sec": config.dp_scale_down_config.poll_interval_sec,
                "engine_request_timeout_sec": config.dp_scale_down_config.engine_request_timeout_sec,
                "dead_after_poll_failures": config.dead_after_poll_failures,
                "engine_recovery_timeout_sec": self._spec.engine.engine_recovery_timeout_sec,
                "heartbeat_interval_sec": config.heartbeat_interval_sec,
                "engines": [self._engine_entry(None), *(self._engine_entry(rank) for rank in particular)],
                **registration,
            }
        )

    def _registration(self, index: int) -> dict[str, object]:
        """What a Pod says of itself, so that its registration makes the topology of this plan."""
        spec = self._spec
        own = [endpoint for endpoint in self.topology.endpoints if endpoint.id in spec.pods[index]]
        return {
            "job_name": spec.job_name,
            "model_name": spec.model_name,
            "role": spec.role,
            "node_rank": index,
            "nnodes": len(spec.pods),
            "parallel_config": {"dp_size": spec.dp_size},
            "business_ports": [endpoint.business_port for endpoint in own],
            "device_ids": [list(endpoint.device_ids) for endpoint in own],
            "dp_master_port": self._store_port,
            "ft_capability": spec.engine.capability().model_dump(mode="json"),
        }

    def _engine_entry(self, rank: int | None) -> dict[str, object]:
        """How a NodeManager starts a simulated engine; it fills in what stands in braces."""
        engine = self._spec.engine
        if engine.command is not None:
            return {"command": list(engine.command), "environment": {PROCESS_VARIABLE: "engine-{rank}"}}
        command = [sys.executable, "-m", "lab.simulator", "--host", "{ip}", "--port", "{port}"]
        command += ["--served-model-name", self._spec.model_name, "--log-dir", "{log_dir}"]
        command += ["--data-parallel-size", "{dp_size}", "--data-parallel-rank", "{rank}"]
        command += ["--data-parallel-address", "{master_ip}", "--data-parallel-rpc-port", "{master_port}"]
        command += ["--dialect", engine.dialect, "--detection-sec", f"{engine.detection_sec:g}"]
        command += ["--recovery-sec", f"{engine.recovery_sec:g}", "--store-timeout-sec", f"{engine.store_timeout_sec:g}"]
        command += ["--engine-recovery-timeout-sec", f"{engine.engine_recovery_timeout_sec:g}"]
        command += ["--num-experts", str(engine.num_logical_experts)]
        command += ["--num-redundant-experts", str(engine.num_redundant_experts), *engine.arguments]
        environment = {PROCESS_VARIABLE: "engine-{rank}"}
        if rank is None:
            return {"command": command, "environment": environment, "stop_grace_sec": _ENGINE_GRACE_SEC}
        command += engine.rank_arguments.get(rank, ())
        environment |= engine.rank_env.get(rank, {})
        return {"rank": rank, "command": command, "environment": environment, "stop_grace_sec": _ENGINE_GRACE_SEC}


def _port(ports: PortLease, fixed: int | None, purpose: str) -> int:
    return ports.take() if fixed is None else ports.take_exactly(fixed, purpose)


def _yaml(content: Mapping[str, object]) -> str:
    return yaml.safe_dump(json.loads(json.dumps(content)), sort_keys=False, allow_unicode=True)
