"""What InstanceRegistry is told and asked. What it knows is `domain.registration.RegistryState`."""

from enum import StrEnum

from domain.config import FaultToleranceConfig
from domain.messages.registration import Admission, RegisterRequest
from domain.model import InstanceId, Strict
from domain.topology import Topology

INSTANCE_REGISTRY_ID = "instance-registry"
INSTANCE_REGISTRY_WORKFLOW = "InstanceRegistry"

INSTANCES_QUERY = "instances"
"""To InstanceRegistry → `domain.registration.RegistryState`."""

DECLARE_UPDATE = "declare"
"""To InstanceRegistry, one `DeclareCall` → `RegistryReply`."""

REGISTER_UPDATE = "register"
"""To InstanceRegistry, one `RegisterCall` → `RegisterResult`: a Pod takes its seat."""

REMOVE_UPDATE = "remove"
"""To InstanceRegistry, one `RemoveCall` → `RegistryReply`."""


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
