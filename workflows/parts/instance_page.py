"""What a person sees of a FaultManager in Temporal's Web UI: its page, and the attributes by which it is found."""

from collections import Counter
from typing import Any, Final

from temporalio import workflow
from temporalio.common import SearchAttributeKey, SearchAttributeUpdate

from workflows.parts.instance_memory import Memory, now
from workflows.parts.strategy_page import code

with workflow.unsafe.imports_passed_through():
    from domain.engine import EngineStatus
    from domain.runtime import RuntimeRecord, undecided_deaths

_LISTED_RANKS: Final = 32

_INSTANCE_ID = SearchAttributeKey.for_int("InstanceId")
_FT_PHASE = SearchAttributeKey.for_keyword("FtPhase")
_DEAD_RANKS = SearchAttributeKey.for_keyword_list("DeadRanks")
_SERVING_PUBLISHED = SearchAttributeKey.for_bool("ServingPublished")


def show(memory: Memory) -> None:
    """Bring the page up to date; the attributes only where they changed, for each change is an event in history."""
    record = memory.state.record(memory.state.waiting(memory.decision), now())
    workflow.set_current_details(page(record))
    updates = _attribute_updates(record, memory.state.search_attributes or ())
    if updates:
        workflow.upsert_search_attributes(updates)


def _attribute_updates(record: RuntimeRecord, usable: tuple[str, ...]) -> list[SearchAttributeUpdate[Any]]:
    shown = workflow.info().typed_search_attributes
    updates: list[SearchAttributeUpdate[Any]] = []
    dead = [str(rank) for rank in record.dead_committed]
    if _INSTANCE_ID.name in usable and shown.get(_INSTANCE_ID) != record.instance_id:
        updates.append(_INSTANCE_ID.value_set(record.instance_id))
    if _FT_PHASE.name in usable and shown.get(_FT_PHASE) != record.phase.value:
        updates.append(_FT_PHASE.value_set(record.phase.value))
    if _DEAD_RANKS.name in usable and list(shown.get(_DEAD_RANKS) or ()) != dead:
        updates.append(_DEAD_RANKS.value_set(dead) if dead else _DEAD_RANKS.value_unset())
    if _SERVING_PUBLISHED.name in usable and shown.get(_SERVING_PUBLISHED) != record.serving_published:
        updates.append(_SERVING_PUBLISHED.value_set(record.serving_published))
    return updates


def page(record: RuntimeRecord) -> str:
    """The instance at a glance, in Markdown."""
    serving = "serving" if record.can_serve else "not serving"
    lines = [
        f"## Instance {record.instance_id}: {record.phase}, {serving}",
        "",
        f"- alive ranks {list(record.alive_dp_ranks)}; removed {list(record.dead_committed)}",
        f"- generation {record.generation}, view revision {record.view_revision}",
    ]
    deaths = undecided_deaths(record)
    if deaths is not None:
        lines.append(f"- **{deaths}**")
    if record.pending_removed_ranks:
        lines.append(f"- being removed: {list(record.pending_removed_ranks)}")
    if record.strategy_workflow_id:
        lines.append(f"- strategy: `{record.strategy_workflow_id}`")
    if record.waiting is not None:
        until = f" until {record.waiting.until}" if record.waiting.until else ""
        then = f", then: {record.waiting.then}" if record.waiting.then else ""
        lines.append(f"- **waiting**{until}: {record.waiting.reason}{then}")
    if record.held is not None:
        lines.append(f"- **automation off**: {record.held} (until `autotomy instance release {record.instance_id}`)")
    lines.extend(f"- hardware: {fault}" for fault in record.hardware_faults)
    if record.lost_node_managers:
        lines.append(f"- not heard of: {', '.join(record.lost_node_managers)}")
    if record.budget is not None:
        lines.append(f"- rebuilds: {record.budget.used} of {record.budget.allowed} in {record.budget.window_sec:g} s")
    if record.pending_finalize:
        lines.append(f"- verdict not yet acknowledged by: {', '.join(record.pending_finalize)}")
    if record.last_error:
        lines.append(f"- last error: {record.last_error}")
    return "\n".join([*lines, "", *_rank_table(record), *_stage_table(record), *_rejections(record)])


def _rank_table(record: RuntimeRecord) -> list[str]:
    """Every rank of a small group; of a large one those that are not plainly healthy, and how many say what."""
    words = record.engine_statuses
    if not words:
        return []
    small = len(words) <= _LISTED_RANKS
    told = [(rank, entry) for rank, entry in words.items() if small or entry.status != EngineStatus.HEALTHY]
    rows = [
        f"| {code(rank)} | {code(entry.status)} | {code(entry.source)} | {code(entry.ft_state or '')} | {entry.incarnation} |"
        for rank, entry in told[:_LISTED_RANKS]
    ]
    table = ["| rank | last word | source | ft_state | engine |", "|---|---|---|---|---|", *rows, ""] if rows else []
    if len(rows) < len(words):
        counts = Counter(str(entry.status) for entry in words.values())
        table += ["all ranks: " + ", ".join(f"{count} {status}" for status, count in sorted(counts.items())), ""]
    return table


def _stage_table(record: RuntimeRecord) -> list[str]:
    if not record.stage_times:
        return []
    rows = [f"| {code(stage)} | {seconds:.3f} |" for stage, seconds in record.stage_times.items()]
    return ["| stage of the last strategy | s |", "|---|---|", *rows, ""]


def _rejections(record: RuntimeRecord) -> list[str]:
    if not record.rejected_signals:
        return []
    return ["Refused:", "", *(f"- {one.at} `{one.name}`: {one.reason}" for one in record.rejected_signals[-5:]), ""]
