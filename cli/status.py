"""`autotomy status`: the recovery record of each instance, and the processes of the stack where that is a local one."""

import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import httpx
from pydantic import JsonValue, ValidationError
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cli.controller import call, in_words
from cli.screen import print_json, remarks, results
from domain.errors import Refused
from domain.runtime import RuntimeRecord, Waiting, undecided_deaths
from lab.stack.client import Stack
from lab.stack.record import ProcessRecord, StackAddresses, StackRecord
from lab.stack.run_dir import default_run_dir
from service.json_reader import read_peer_json

_TIMEOUT_SEC = 5.0
_PATH = "/controller/fault_tolerance/status"


def run_status(run_dir: Path | None, controller_url: str | None, *, as_json: bool) -> int:
    """Show it; exit code 1 when a stack's Controller does not answer. Raises NoStack; with `controller_url` as `call` does."""
    if controller_url:
        _show_elsewhere(controller_url, as_json)
        return 0
    stack = Stack.attach(run_dir or default_run_dir())
    record = stack.record
    data, trouble = _controller_says(stack)
    if as_json:
        print_json(_document(stack, record, data, trouble))
    else:
        _show(results(), stack, record, data)
        if trouble is not None:
            remarks().print(f"[red]{trouble}[/red]")
    return 0 if trouble is None else 1


def _show_elsewhere(controller_url: str, as_json: bool) -> None:
    """An installation that is no local stack: there are no processes to show."""
    data = call("GET", _PATH, controller_url, holds=("instances",))
    if as_json:
        print_json(data)
    else:
        show_instances(results(), data)


def _controller_says(stack: Stack) -> tuple[dict[str, JsonValue], str | None]:
    """The status API's data, or what is in the way."""
    url = stack.addresses.controller_url + _PATH
    try:
        reply = httpx.get(url, timeout=_TIMEOUT_SEC, trust_env=False)
        body = read_peer_json(reply.content)
    except (httpx.HTTPError, ValueError) as error:
        return {}, f"the Controller API at {url} does not answer: {in_words(error)}"
    if reply.status_code != 200 or not isinstance(body, dict) or not isinstance(body.get("data"), dict):
        said = body.get("message") if isinstance(body, dict) else reply.text[:200]
        return {}, f"the Controller API answers {reply.status_code}: {said}"
    return body["data"], None


def _document(stack: Stack, record: StackRecord, data: dict[str, JsonValue], trouble: str | None) -> dict[str, object]:
    document: dict[str, object] = {
        "run_id": record.run_id,
        "run_dir": record.run_dir,
        "state": record.state,
        "instances": data.get("instances", []),
        "processes": [process.model_dump(mode="json") for process in record.processes],
        "engines": [engine.model_dump() for engine in stack.engines()],
        "addresses": record.addresses.model_dump(mode="json") if record.addresses is not None else None,
    }
    if "phase" in data:
        document["phase"] = data["phase"]
    if trouble is not None:
        document["error"] = trouble
    return document


def _show(console: Console, stack: Stack, record: StackRecord, data: dict[str, JsonValue]) -> None:
    show_instances(console, data, record.addresses)
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("process", "state", "pid", "restarts", "last exit", "address"):
        table.add_column(heading)
    for process in record.processes:
        table.add_row(*_cells(process))
    for engine in stack.engines():
        pids = (f"{name} {pid}" for name, pid in (("API server", engine.api_pid), ("worker", engine.worker_pid)) if pid)
        table.add_row(f"engine-{engine.rank}", "running" if engine.worker_pid else "dead", ", ".join(pids), "", "", engine.url)
    console.print(table)
    if record.addresses is not None and record.addresses.web_ui_url is not None:
        console.print(f"Web UI {record.addresses.web_ui_url}   logs {record.run_dir}/logs")


def show_instances(console: Console, data: Mapping[str, JsonValue], addresses: StackAddresses | None = None) -> None:
    """What the status API says, for people: a headline and a fact a line for each instance. Raises Refused."""
    if data.get("phase") == "DISABLED":
        console.print("DP scale-down is off (enable_dp_scale_down)")
    instances = data.get("instances")
    for instance in instances if isinstance(instances, list) else []:
        _show_instance(console, _parsed(instance), addresses)


def _parsed(instance: JsonValue) -> RuntimeRecord:
    try:
        return RuntimeRecord.model_validate(instance)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise Refused(
            f"the Controller API answers with a record of another version ({field}: {first['msg']}); take its own version of "
            "this command, or start a local stack anew: `autotomy down`, `autotomy up`"
        ) from None


def _show_instance(console: Console, record: RuntimeRecord, addresses: StackAddresses | None) -> None:
    serves = "serves" if record.can_serve else "does not serve"
    console.print(f"[bold]instance {record.instance_id}[/bold]: {record.phase}, {serves}")
    for line in instance_lines(record, addresses, time.time()):
        console.print(f"  {escape(line)}")


def instance_lines(record: RuntimeRecord, addresses: StackAddresses | None, now: float) -> Iterator[str]:
    """What stands about an instance at `now` (epoch seconds), a fact a line."""
    yield (
        f"alive {list(record.alive_dp_ranks)}, committed dead {list(record.dead_committed)}, "
        f"generation {record.generation}, view revision {record.view_revision}"
    )
    deaths = undecided_deaths(record)
    if deaths is not None:
        yield deaths
    if record.held is not None:
        yield f"automation off: {record.held} (`autotomy instance release {record.instance_id}`)"
    if record.waiting is not None:
        yield f"waits for: {record.waiting.reason}"
        yield f"{_until(record.waiting, now)}then {record.waiting.then}; more: `autotomy explain {record.instance_id}`"
    workflow_id = record.strategy_workflow_id or record.last_strategy_workflow_id
    if workflow_id is not None:
        url = addresses.workflow_url(workflow_id) if addresses is not None else None
        word = "strategy" if record.strategy_workflow_id else "last strategy"
        yield f"{word}: {workflow_id}{f'   {url}' if url else ''}"
    if record.last_error:
        yield f"last error: {record.last_error}"


def _until(waiting: Waiting, now: float) -> str:
    if waiting.until is None:
        return ""
    at = datetime.fromisoformat(waiting.until)
    return f"until {at.astimezone(UTC):%H:%M:%S} UTC ({max(0.0, at.timestamp() - now):.0f} s), "


def _cells(process: ProcessRecord) -> tuple[str, ...]:
    return (
        process.name,
        process.state,
        str(process.pid or "-"),
        str(process.restarts),
        "-" if process.last_exit is None else str(process.last_exit),
        process.url or "",
    )
