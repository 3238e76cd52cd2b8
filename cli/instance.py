"""`autotomy instance …`: declare, look at and command instances, by HTTP to the Controller API.

The API's address is `--controller-url`, else the running local stack's, else the configuration's `controller_url`. What the
API refuses is printed as it says it, with exit code 1; an API that does not answer, or is none, is exit code 2.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

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
    json_output: JsonOption = False,
) -> None:
    """Declare an instance: its ranks, Pods and what its engines can do.

    The Controller then starts its engines and publishes it to the Coordinators. The same declaration again changes nothing.
    """
    from cli.controller import call, report
    from domain.errors import ConfigError
    from service.settings import read_yaml_mapping

    declaration = read_yaml_mapping(file, "declaration")
    if not declaration:
        raise ConfigError(f"declaration {file} is empty; deploy/compose/instance.yaml is a complete one")
    data = call("PUT", f"{_INSTANCES}/{instance}", controller_url, declaration)
    report(data, f"instance {instance} is declared; `autotomy instance show {instance}` follows it", as_json=json_output)


@app.command(name="list")
def list_instances(controller_url: UrlOption = None, json_output: JsonOption = False) -> None:
    """All instances, with what recovery does and who serves."""
    from rich.markup import escape
    from rich.table import Table

    from cli.controller import call
    from cli.screen import print_json, results

    data = call("GET", "/controller/fault_tolerance/status", controller_url, holds=("instances",))
    if json_output:
        print_json(data)
        return
    if data.get("phase") == "DISABLED":
        results().print("DP scale-down is off (enable_dp_scale_down)")
    table = Table(box=None, padding=(0, 2, 0, 0))
    columns = ("instance_id", "phase", "can_serve", "alive_dp_ranks", "dead_committed", "held", "last_error")
    for column in columns:
        table.add_column("automation" if column == "held" else column.replace("_", " "))
    for record in data["instances"]:
        table.add_row(*(escape(_cell(record, column)) for column in columns))
    results().print(table)


def _cell(record: Mapping[str, Any], column: str) -> str:
    value = record.get(column)
    if column == "held":
        return "on" if value is None else f"off: {value}"
    return "-" if value is None else str(value)


@app.command()
def show(instance: IdArgument, controller_url: UrlOption = None, json_output: JsonOption = False) -> None:
    """One instance: what recovery does, who serves, what it waits for."""
    from cli.controller import call
    from cli.screen import print_json, results
    from cli.status import show_instances

    data = call("GET", f"/controller/fault_tolerance/status?instance_id={instance}", controller_url, holds=("phase",))
    if json_output:
        print_json(data)
    else:
        show_instances(results(), data if "instances" in data else {"instances": [data]})


@app.command()
def declaration(instance: IdArgument, controller_url: UrlOption = None, json_output: JsonOption = False) -> None:
    """One instance's declaration, as YAML: what `declare` takes."""
    import yaml

    from cli.controller import call
    from cli.screen import print_json

    data = call("GET", f"{_INSTANCES}/{instance}", controller_url)
    if json_output:
        print_json(data)
        return
    typer.echo(yaml.safe_dump(data, sort_keys=False, allow_unicode=True), nl=False)


@app.command()
def reconfigure(
    instance: IdArgument,
    force: Annotated[bool, typer.Option("--force", help="Also when the budget is spent.")] = False,
    controller_url: UrlOption = None,
    json_output: JsonOption = False,
) -> None:
    """Rebuild the whole instance: stop all engines, start all ranks, serve again."""
    from cli.controller import call, report

    data = call("POST", f"{_INSTANCES}/{instance}/reconfigure", controller_url, {"force": force})
    report(data, f"instance {instance} is going to be rebuilt; `autotomy explain {instance}` follows it", as_json=json_output)


@app.command()
def republish(instance: IdArgument, controller_url: UrlOption = None, json_output: JsonOption = False) -> None:
    """Push the serving view to the Coordinators once more, as a new revision."""
    from cli.controller import call, report

    data = call("POST", f"{_INSTANCES}/{instance}/republish", controller_url, {})
    report(data, f"instance {instance}: {data.get('message') or 'its view is pushed again'}", as_json=json_output)


@app.command()
def hold(
    instance: IdArgument,
    why: Annotated[str, typer.Option("--why", metavar="TEXT", help="Shown to everybody who asks what it waits for.")] = "",
    controller_url: UrlOption = None,
    json_output: JsonOption = False,
) -> None:
    """Automation off: what is decided is recorded and not done, until `release`.

    A strategy that runs goes on to its end, and a rebuild that a person orders is done all the same.
    """
    from cli.controller import call, report

    data = call("POST", f"{_INSTANCES}/{instance}/hold", controller_url, {"why": why})
    words = data.get("message") or "the automation is off"
    report(data, f"instance {instance}: {words}; `autotomy instance release {instance}` switches it on", as_json=json_output)


@app.command()
def release(instance: IdArgument, controller_url: UrlOption = None, json_output: JsonOption = False) -> None:
    """Automation on: what stands by now is decided on, and acted on."""
    from cli.controller import call, report

    data = call("POST", f"{_INSTANCES}/{instance}/release", controller_url, {})
    report(data, f"instance {instance}: {data.get('message') or 'the automation is on'}", as_json=json_output)


@app.command()
def remove(instance: IdArgument, controller_url: UrlOption = None, json_output: JsonOption = False) -> None:
    """Withdraw an instance and forget it; its engines are left alone."""
    from cli.controller import call, report

    data = call("DELETE", f"{_INSTANCES}/{instance}", controller_url)
    report(data, f"instance {instance} is removed", as_json=json_output)


@app.command()
def terminate(
    instance: IdArgument,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it is recorded.")] = "terminated by an operator",
    controller_url: UrlOption = None,
    json_output: JsonOption = False,
) -> None:
    """Withdraw an instance, stop its engines, and forget it."""
    from cli.controller import call, report

    body = {"instance_id": instance, "reason": reason}
    data = call("POST", "/controller/terminate_instance", controller_url, body)
    report(data, f"instance {instance} is withdrawn and forgotten, its engines are stopped", as_json=json_output)
