"""What InstanceRegistry is told and asked, and what it carries over continue-as-new."""

from enum import StrEnum

from pydantic import Field

from domain.config import FaultToleranceConfig
from domain.messages.fault_manager import Removal
from domain.messages.registration import RegisterRequest
from domain.model import InstanceId, Strict
from domain.registration import Admission, Assembly
from domain.runtime import RejectedSignal
from domain.topology import NodeManagerAddress, Topology

INSTANCE_REGISTRY_ID = "instance-registry"
INSTANCE_REGISTRY_WORKFLOW = "InstanceRegistry"

INSTANCES_QUERY = "instances"
"""To InstanceRegistry → `RegistryView`."""

DECLARE_UPDATE = "declare"
"""To InstanceRegistry, one `DeclareCall` → `RegistryReply`. Its `instances` query gives the `RegistryView`."""

REGISTER_UPDATE = "register"
"""To InstanceRegistry, one `RegisterCall` → `RegisterResult`: a Pod takes its seat."""

REMOVE_UPDATE = "remove"
"""To InstanceRegistry, one `RemoveCall` → `RegistryReply`."""


class RegisteredInstance(Strict):
    """An instance in InstanceRegistry, with its declaration's version (for the API's caches)."""

    topology: Topology
    version: int


class RegistryView(Strict):
    """`assemblies`: instances whose Pods are coming. `lives`: per instance and "ip:port", the NodeManager incarnation that
    belongs to the group. `job_ids`: the number that a job_name had last."""

    instances: tuple[RegisteredInstance, ...] = ()
    assemblies: tuple[Assembly, ...] = ()
    lives: dict[int, dict[str, str]] = Field(default_factory=dict)
    job_ids: dict[str, int] = Field(default_factory=dict)
    version: int = 0


class RegisterCall(Strict):
    """Update `register` of InstanceRegistry. `config` is what the instance's FaultManager starts with.

    `joining`: the instance is assembled already and is being rebuilt, so this life of the Pod may join the group.
    """

    request: RegisterRequest
    config: FaultToleranceConfig
    joining: bool = False


class RegisterResult(Strict):
    """What became of a `register`; `version` is the registry's."""

    instance_id: InstanceId
    admission: Admission
    message: str
    version: int


class DeclareCall(Strict):
    """Update `declare` of InstanceRegistry. `config` is what the instance's FaultManager starts with."""

    topology: Topology
    config: FaultToleranceConfig


class RemoveCall(Strict):
    """Update `remove` of InstanceRegistry: the instance is withdrawn and forgotten, its FaultManager ends.

    `stop_engines`: its NodeManagers are told to stop their engines too; otherwise they are left alone.
    """

    instance_id: InstanceId
    reason: str = ""
    stop_engines: bool = False


class RegistryOutcome(StrEnum):
    DECLARED = "DECLARED"
    UNCHANGED = "UNCHANGED"  # the same declaration is there already
    CONFLICT = "CONFLICT"  # another declaration is there: a topology never changes while the instance lives
    REMOVED = "REMOVED"
    UNKNOWN = "UNKNOWN"  # there is no such instance


class RegistryReply(Strict):
    """What became of a `declare` or `remove`; `version` is the registry's, it grows with each change."""

    outcome: RegistryOutcome
    message: str
    version: int


class RegistryStart(Strict):
    """Input of `InstanceRegistry`; the fields are carried over continue-as-new, a first start gives none.

    `to_start`: instances whose FaultManager is to be started, and until when it is tried (epoch seconds). `to_end`: those
    whose FaultManager has not been told yet to take them down; `ending`: their NodeManagers, which are not free before that.
    """

    instances: tuple[RegisteredInstance, ...] = ()
    version: int = 0
    configs: dict[int, FaultToleranceConfig] = Field(default_factory=dict)
    to_start: dict[InstanceId, float] = Field(default_factory=dict)
    to_end: dict[InstanceId, Removal] = Field(default_factory=dict)
    ending: dict[InstanceId, tuple[NodeManagerAddress, ...]] = Field(default_factory=dict)
    rejected_signals: tuple[RejectedSignal, ...] = ()
    assemblies: tuple[Assembly, ...] = ()
    lives: dict[int, dict[str, str]] = Field(default_factory=dict)
    job_ids: dict[str, int] = Field(default_factory=dict)
