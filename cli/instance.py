"""`autotomy instance …`: declare, look at and command instances, by HTTP to the Controller API.

The API's address is `--controller-url`, else the running local stack's, else the configuration's `controller_url`. What the
API refuses is printed as it says it, with exit code 1; an API that does not answer is exit code 2.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import httpx
import typer
import yaml
from rich.table import Table

from cli.screen import print_json, remarks, results
from domain.errors import ConfigError, Transient
from service.settings import load_settings, read_yaml_mapping
from stack.client import Stack
from stack.errors import NoStack
from stack.run_dir import default_run_dir

_TIMEOUT_SEC: Final = 10.0
_INSTANCES: Final = "/controller/instances"

app = typer.Typer(help="Declare, look at and command instances.", no_args_is_help=True, rich_markup_mode=None)

UrlOption = Annotated[
    str | None,
    typer.Option(
        "--controller-url", envvar="AUTOTOMY_CONTROLLER_URL", help="Controller API (default: the running local stack's)."
    ),
]
IdArgument = Annotated[int, typer.Argument(metavar="INSTANCE", min=0, help="Instance id.")]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON on stdout.")]


@app.command()
def declare(
    instance: IdArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The declaration, YAML or JSON.")],
    controller_url: UrlOption = None,
) -> None:
    """Declare an instance: its ranks, Pods and what its engines can do.

    The Controller then starts its engines and publishes it to the Coordinators. The same declaration again changes nothing.
    """
    declaration = read_yaml_mapping(file)
    data = _call("PUT", f"{_INSTANCES}/{instance}", controller_url, declaration)
    results().print(f"instance {instance} is declared; `autotomy instance show {instance}` follows it")
    if data:
        print_json(data)


@app.command(name="list")
def list_instances(controller_url: UrlOption = None, json_output: JsonOption = False) -> None:
    """All instances, with what recovery does and who serves."""
    data = _call("GET", "/controller/fault_tolerance/status", controller_url)
    if json_output:
        print_json(data)
        return
    if data.get("phase") == "DISABLED":
        results().print("DP scale-down is off (enable_dp_scale_down)")
    table = Table(box=None, padding=(0, 2, 0, 0))
    columns = ("instance_id", "phase", "can_serve", "alive_dp_ranks", "dead_committed", "last_error")
    for column in columns:
        table.add_column(column.replace("_", " "))
    for record in data.get("instances", []):
        table.add_row(*("-" if record.get(column) is None else str(record[column]) for column in columns))
    results().print(table)


@app.command()
def show(instance: IdArgument, controller_url: UrlOption = None) -> None:
    """One instance's recovery record, as JSON."""
    print_json(_call("GET", f"/controller/fault_tolerance/status?instance_id={instance}", controller_url))


@app.command()
def declaration(instance: IdArgument, controller_url: UrlOption = None) -> None:
    """One instance's declaration, as YAML."""
    data = _call("GET", f"{_INSTANCES}/{instance}", controller_url)
    typer.echo(yaml.safe_dump(data, sort_keys=False, allow_unicode=True), nl=False)


@app.command()
def reconfigure(
    instance: IdArgument,
    force: Annotated[bool, typer.Option("--force", help="Also when the budget is spent.")] = False,
    controller_url: UrlOption = None,
) -> None:
    """Rebuild the whole instance: stop all engines, start all ranks, serve again."""
    _report(_call("POST", f"{_INSTANCES}/{instance}/reconfigure", controller_url, {"force": force}), "rebuild accepted")


@app.command()
def republish(instance: IdArgument, controller_url: UrlOption = None) -> None:
    """Push the serving view to the Coordinators once more, as a new revision."""
    _report(_call("POST", f"{_INSTANCES}/{instance}/republish", controller_url, {}), "republish accepted")


@app.command()
def remove(instance: IdArgument, controller_url: UrlOption = None) -> None:
    """Withdraw an instance and forget it; its engines are left alone."""
    _report(_call("DELETE", f"{_INSTANCES}/{instance}", controller_url), f"instance {instance} is removed")


def _report(data: Mapping[str, Any], words: str) -> None:
    results().print(words)
    if data:
        print_json(data)


def _controller_url(given: str | None) -> str:
    if given:
        return given.rstrip("/")
    try:
        return Stack.attach(default_run_dir()).addresses.controller_url
    except NoStack:
        return load_settings().controller_url.rstrip("/")


def _call(method: str, path: str, given_url: str | None, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The envelope's `data`. Ends the command with exit code 1 when the API refuses; raises Transient when nobody answers."""
    url = _controller_url(given_url)
    try:
        content = None if body is None else json.dumps(body)
        headers = {"content-type": "application/json"}
        reply = httpx.request(method, url + path, content=content, headers=headers, timeout=_TIMEOUT_SEC, trust_env=False)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise Transient(
            f"the Controller API at {url} does not answer ({error or type(error).__name__}); "
            "name another with --controller-url, or start a local stack with `autotomy up`"
        ) from None
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the declaration holds something that JSON cannot say: {error}") from None
    try:
        envelope = reply.json()
    except ValueError:
        envelope = {"message": reply.text[:200]}
    if reply.status_code != 200:
        remarks().print(f"[red]refused[/red] ({reply.status_code}): {envelope.get('message')}")
        raise typer.Exit(1)
    data = envelope.get("data")
    return data if isinstance(data, dict) else {"value": data} if data is not None else {}
