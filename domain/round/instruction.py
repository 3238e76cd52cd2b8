"""The one instruction of a scale-down round, as the round sends it and as each NodeManager gets it.

One place says what is in it, so that the dry run (`domain.instance.plan`) shows exactly what a round would send.
"""

from domain.engine import Instruction
from domain.messages.node_manager import ApplyParams, ApplyRequest
from domain.messages.round import ApplyCall
from domain.round import transaction
from domain.round.ledger import RoundLedger
from domain.watch import Question


def scale_down_call(ledger: RoundLedger) -> ApplyCall:
    """Design §4, step 7: the cumulative set, and the lowest survivor as master. Needs a survivor."""
    master = ledger.topology.endpoint(min(ledger.survivors))
    return transaction.instruct(ledger, Instruction.SCALE_DOWN).model_copy(
        update={"removed_dp_ranks": ledger.removed, "master_ip": master.ip, "master_rank": master.id}
    )


def apply_request(call: ApplyCall, group: Question) -> ApplyRequest:
    """The body for one NodeManager, about its own ranks (contracts §2)."""
    return ApplyRequest(
        endpoint_ids=group.ranks,
        instruction=call.instruction,
        params=ApplyParams(removed_dp_ranks=call.removed_dp_ranks, dp_master_ip=call.master_ip, dp_master_rank=call.master_rank),
        request_id=call.request_id,
        generation=call.generation,
        apply_margin_sec=call.apply_margin_sec,
    )
