"""`autotomy plan INSTANCE --dead 1,2` and `autotomy explain INSTANCE`: what would happen, and what is waited for.

Both only ask the Controller API. What it refuses (an unknown instance, a rank that is not there) is printed as it says
it, with exit code 1; an API that does not answer is exit code 2.
"""

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cli.controller import call
from cli.screen import print_json, results
from domain.instance.decision import Action
from domain.instance.plan import PLANNED_REQUEST_ID


def run_plan(instance: int, dead: str, url: str | None, *, as_json: bool) -> None:
    """Print the dry run."""
    from urllib.parse import quote

    found = call("GET", f"/controller/instances/{instance}/plan?dead={quote(dead)}", url, holds=("phase", "decision", "round"))
    if as_json:
        print_json(found)
        return
    screen = results()
    _show_decision(screen, found)
    if found["round"] is None:
        screen.print("No rank would be removed: those that were named were removed before.")
        return
    starts = found["decision"]["action"] == Action.SCALE_DOWN and found["round"]["gate"]["allowed"]
    screen.print()
    screen.print(_table(_round_rows(found["round"], starts=starts)))
    if starts:
        _show_calls(screen, found["round"])


def run_explain(instance: int, url: str | None, *, as_json: bool) -> None:
    """Print what the instance does, why it waits, until when, and what then."""
    found = call("GET", f"/controller/instances/{instance}/explain", url, holds=("phase", "waiting", "text"))
    if as_json:
        print_json(found)
        return
    screen = results()
    waiting = found["waiting"]
    rows = [
        ("phase", found["phase"]),
        ("serves", _ranks(found["serving_ranks"]) if found["can_serve"] else "no"),
        ("runs", found["running"] or "nothing"),
        ("waits for", waiting["reason"] if waiting else "nothing"),
    ]
    if waiting:
        rows.append(("until", _until(waiting["until"], found["left_sec"])))
        rows.append(("then", waiting["then"] or "-"))
    if found["held"] is not None:
        rows.append(("automation", f"held: {found['held']}"))
    screen.print(_table(rows))
    screen.print()
    for sentence in found["text"]:
        screen.print(escape(sentence))


def _until(until: str | None, left_sec: float | None) -> str:
    return "no end of its own" if until is None else f"{until} ({left_sec:g} s left)"


def _show_decision(screen: Console, found: dict[str, Any]) -> None:
    decision = found["decision"]
    rows = [
        ("assumed", f"dead {_ranks(found['dead'])}, unhealthy {_ranks(found['unhealthy'])}"),
        ("phase now", found["phase"]),
        ("decision", f"{decision['action']}, because {decision['reason']}"),
        ("", decision["detail"]),
        ("until", decision["until"]),
        ("then", decision["then"]),
        ("outlook", found["outlook"]),
        ("automation", found["automation_off"] and f"off ({found['automation_off']}): it would be recorded, not done"),
        ("removed before", _ranks(found["removed_already"]) if found["removed_already"] else None),
    ]
    screen.print(_table((name, value) for name, value in rows if value))


def _round_rows(planned: dict[str, Any], *, starts: bool) -> list[tuple[str, str]]:
    """A round's facts; where none starts, only what it would be about."""
    gate, lease, master = planned["gate"], planned["lease"], planned["master"]
    rows = [
        ("gate", "open" if gate["allowed"] else f"refuses: {', '.join(gate['reason_codes'])}"),
        ("survivors", _ranks(planned["survivors"])),
        ("removed_dp_ranks", _ranks(planned["removed_dp_ranks"])),
    ]
    if not starts:
        return rows
    margin, bound = lease["apply_margin_sec"], lease["round_bound_sec"]
    rows += [
        ("master", f"rank {master['rank']}, {master['ip']}:{master['store_port']}" if master else "nobody is left"),
        ("request id", f"{PLANNED_REQUEST_ID} (placeholder; each round has its own)"),
        ("generation", planned["generation"]),
        ("view revisions", f"withdrawn as {planned['withdraw_revision']}, published as {planned['publish_revision']}"),
        ("lease", f"{lease['lease_sec']:g} s = {lease['sum'].rpartition(' = ')[0]}"),
        ("", f"apply only with {margin:g} s of it left; the whole round within {bound:g} s"),
    ]
    if lease["engines_give_up_sec"] is not None:
        rows.append(("engines", f"exit by themselves {lease['engines_give_up_sec']:g} s after their own fault"))
    return rows


def _show_calls(screen: Console, planned: dict[str, Any]) -> None:
    """Who would be guarded, and the apply bodies."""
    screen.print()
    pods = Table("NodeManager", "survivors", "leaving", "guard", box=None, padding=(0, 2, 0, 0))
    for one in planned["participants"]:
        guard = "may be absent" if one["may_be_absent"] else "must answer"
        emptied = ", emptied" if one["emptied"] else ""
        pods.add_row(one["node_manager"], _ranks(one["survivors"]), _ranks(one["leaving"]), guard + emptied)
    screen.print(pods)
    for one in planned["apply"]:
        screen.print()
        screen.print(f"POST {one['node_manager']}/node-manager/fault-tolerance/apply")
        screen.print_json(data=one["body"], indent=None)


def _table(rows: Iterable[tuple[str, object]]) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, escape(str(value)))
    return table


def _ranks(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks)) or "none"
