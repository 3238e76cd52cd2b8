"""What the resource monitor tells the Controller: hardware faults of cards and nodes (contracts §3, §6)."""

from typing import Annotated

from pydantic import AfterValidator, Field, StrictBool

from domain.model import InstanceId, Said, Strict, Word, one_line

NodeName = Annotated[str, Field(min_length=1, max_length=253), AfterValidator(one_line)]
FaultCode = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(one_line)]
CardNames = Annotated[str, Field(max_length=1000), AfterValidator(one_line)]
"""One card ("Ascend910-3"), several with commas between, or none: the whole node."""


class HardwareFaultReport(Strict):
    """POST /controller/report_hardware_fault. `npu_name` empty: the whole node. `level`: L1…L6, or MindCluster's word.

    A level that nobody knows, or none, is accepted: it counts as an L6 that cannot be mapped, never as harmless.
    """

    node_name: NodeName
    fault_code: FaultCode
    npu_name: CardNames = ""
    level: Word = ""
    source: Word = ""


class HardwareFaultClear(Strict):
    """POST /controller/clear_hardware_fault: this fault of this card (or node) is gone. `level` and `source` are ignored."""

    node_name: NodeName
    fault_code: FaultCode
    npu_name: CardNames = ""
    level: Word = ""
    source: Word = ""


class HardwareReply(Strict):
    """Whether anybody had use for it, and which instances were told."""

    accepted: StrictBool
    reason: Said
    instances: tuple[InstanceId, ...] = ()
