"""What a running installation tells about itself: `stack.json` and `events.jsonl` in its run directory.

`stack.json` is the state: every address, port, pid and log file, rewritten in one piece at each change. `events.jsonl`
is the story: one line whenever a process started, exited, came back, or the installation as a whole moved on; it drives
progress displays and goes into evidence bundles. Both are written by the supervisor alone and read by everybody.
"""

from enum import StrEnum

from domain.model import Strict
from domain.topology import NodeManagerAddress, Topology
from service.process_identity import ProcessIdentity


class ProcessKind(StrEnum):
    TEMPORAL = "temporal"
    WORKER = "worker"
    API = "api"
    NODE_MANAGER = "node-manager"
    COORDINATOR = "coordinator"
    WATCHER = "watcher"  # cleans up after a SIGKILLed supervisor


class ProcessState(StrEnum):
    STARTING = "starting"  # not spawned yet
    RUNNING = "running"
    BACKING_OFF = "backing_off"  # exited, comes back by itself
    HELD = "held"  # exited, comes back when released
    STOPPED = "stopped"  # the stack is going down


class StackState(StrEnum):
    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"  # could not get ready; `failure` says why; being torn down
    STOPPING = "stopping"
    STOPPED = "stopped"


class ProcessRecord(Strict):
    """One supervised process. `pid` and `incarnation` are those of its current life, None between two lives."""

    name: str
    kind: ProcessKind
    state: ProcessState = ProcessState.STARTING
    pid: int | None = None
    incarnation: str | None = None
    restarts: int = 0
    last_exit: int | None = None
    """Exit code of the life before, negative for a signal."""

    url: str | None = None
    log_file: str
    command: tuple[str, ...]

    @property
    def identity(self) -> ProcessIdentity | None:
        return ProcessIdentity.parse(self.incarnation) if self.incarnation is not None else None


class CoordinatorPlace(Strict):
    name: str
    url: str
    management_url: str
    view_log: str
    log_file: str


class NodeManagerRecord(Strict):
    name: str
    address: NodeManagerAddress
    ranks: tuple[int, ...]
    config_file: str
    journal_file: str
    log_file: str

    @property
    def url(self) -> str:
        return self.address.url


class EnginePlace(Strict):
    """Where a rank's engine listens. `log_files` of its lives are found by `Stack.engine_logs`."""

    rank: int
    name: str
    url: str
    pod: str
    log_dir: str


class StackAddresses(Strict):
    """Where everything listens; fixed once the processes were planned."""

    temporal_address: str
    temporal_namespace: str = "default"
    web_ui_url: str | None
    controller_url: str
    coordinators: tuple[CoordinatorPlace, ...]
    node_managers: tuple[NodeManagerRecord, ...]
    engines: tuple[EnginePlace, ...]

    @property
    def coordinator_url(self) -> str:
        """The (first) Coordinator's inference address."""
        return self.coordinators[0].url

    @property
    def management_url(self) -> str:
        """The (first) Coordinator's management address."""
        return self.coordinators[0].management_url

    def workflow_url(self, workflow_id: str) -> str | None:
        """The Web UI's page of a workflow; None without a Web UI."""
        if self.web_ui_url is None:
            return None
        return f"{self.web_ui_url}/namespaces/{self.temporal_namespace}/workflows/{workflow_id}"


class StackRecord(Strict):
    """`stack.json`."""

    schema_version: int = 1
    name: str
    run_id: str
    state: StackState
    failure: str | None = None
    run_dir: str
    started_at: str
    supervisor_pid: int
    supervisor_incarnation: str
    owner_pid: int | None = None
    instance_id: int
    addresses: StackAddresses | None = None
    topology: Topology | None = None
    """What was declared to the Controller."""

    processes: tuple[ProcessRecord, ...] = ()
    non_default_timers: dict[str, float] = {}

    @property
    def was_not_told_to_end(self) -> bool:
        """Whether, by the last that its supervisor wrote, it was starting or serving."""
        return self.state in (StackState.STARTING, StackState.READY)

    @property
    def supervisor(self) -> ProcessIdentity:
        return ProcessIdentity.parse(self.supervisor_incarnation)


class EventKind(StrEnum):
    PLANNED = "planned"
    STARTED = "started"
    ANSWERS = "answers"  # a process answers its readiness probe for the first time
    EXITED = "exited"
    RESTARTED = "restarted"
    POD_RESTARTED = "pod_restarted"
    SIGNALLED = "signalled"
    HELD = "held"
    RELEASED = "released"
    DECLARED = "declared"
    PUBLISHED = "published"  # the Coordinator's view changed while the stack waits for all ranks
    REPLANNED = "replanned"  # somebody took a port
    READY = "ready"
    FAILED = "failed"
    OWNER_GONE = "owner_gone"
    STOPPING = "stopping"
    STOPPED = "stopped"


class StackEvent(Strict):
    """One line of `events.jsonl`. `mono` is `time.monotonic()`, one clock for all processes of the machine."""

    mono: float
    time: str
    event: EventKind
    name: str = ""
    pid: int | None = None
    detail: str = ""
