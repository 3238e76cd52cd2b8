"""What the resource monitor tells the Controller: hardware faults of cards and nodes (contracts §3, §6)."""

from pydantic import Field, StrictBool

from domain.model import InstanceId, Strict


class HardwareFaultReport(Strict):
    """POST /controller/report_hardware_fault. `npu_name` empty: the whole node. `level`: L1…L6, or MindCluster's word.

    A level that nobody knows, or none, is accepted: it counts as an L6 that cannot be mapped, never as harmless.
    """

    node_name: str = Field(min_length=1, max_length=253)
    fault_code: str = Field(min_length=1, max_length=200)
    npu_name: str = Field(default="", max_length=1000)
    level: str = Field(default="", max_length=100)
    source: str = Field(default="", max_length=200)


class HardwareFaultClear(Strict):
    """POST /controller/clear_hardware_fault: this fault of this card (or node) is gone. `level` and `source` are ignored."""

    node_name: str = Field(min_length=1, max_length=253)
    fault_code: str = Field(min_length=1, max_length=200)
    npu_name: str = Field(default="", max_length=1000)
    level: str = ""
    source: str = ""


class HardwareReply(Strict):
    """Whether anybody had use for it, and which instances were told."""

    accepted: StrictBool
    reason: str
    instances: tuple[InstanceId, ...] = ()
