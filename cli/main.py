"""The `autotomy` command.

Typer's app is built here; each command's work is in a module of its own, imported when the command runs, so that
`--help` answers at once. Exit codes: 0 done, 1 it ran and something is not as it should be, 2 it could not run (one
line on stderr says what to do), 130 Ctrl-C.
"""

import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from cli.instance import IdArgument, UrlOption
from cli.instance import JsonOption as InstanceJsonOption
from cli.instance import app as instance_app
from domain.errors import AutotomyError, ConfigError
from service.leave import leave
from service.variables import refuse_unknown_variables

_PASS_THROUGH: Final[dict[str, Any]] = {
    "ignore_unknown_options": True,
    "allow_extra_args": True,
    "help_option_names": [],
}

app = typer.Typer(
    name="autotomy",
    epilog="New here? `autotomy demo` shows the main job in a minute. `autotomy up` keeps the same installation running.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"max_content_width": 100},
)

app.add_typer(instance_app, name="instance")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"autotomy {version('autotomy')}, temporalio {version('temporalio')}, Python {platform.python_version()}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    show_version: Annotated[  # the option's own callback answers
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show what is installed, and exit.")
    ] = False,
) -> None:
    """Sheds dead data-parallel ranks from expert-parallel LLM inference and keeps the survivors serving."""
    if context.invoked_subcommand != "doctor":  # which has it among its findings
        refuse_unknown_variables()


RunDirOption = Annotated[
    Path | None,
    typer.Option(
        "--run-dir", envvar="AUTOTOMY_RUN_DIR", metavar="DIR", help="Where the stack lives (default: in ~/.local/state)."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON on stdout, everything else on stderr.")]


@app.command()
def demo(
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Where the evidence goes (default: in ~/.local/state).")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the stack up until Ctrl-C, to look around in the Web UI.")] = False,
    json_output: JsonOption = False,
) -> None:
    """Kill one of four ranks, live: the others keep serving.

    Starts its own stack of real processes with simulated engines, sends traffic, kills the worker process of rank 1, shows
    what happens, and stops everything again. 60 s at most.
    """
    from cli.demo import run_demo

    raise typer.Exit(run_demo(out, keep=keep, as_json=json_output))


@app.command()
def up(
    run_dir: RunDirOption = None,
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay, show what happens, stop everything on Ctrl-C.")] = False,
    dp_size: Annotated[int, typer.Option(min=1, max=64, help="Data-parallel ranks of the instance.")] = 4,
    node_managers: Annotated[int, typer.Option(min=1, max=64, help="Pods; the ranks are spread evenly.")] = 2,
    workers: Annotated[int, typer.Option(min=1, max=16, help="Controller workers.")] = 1,
    coordinators: Annotated[int, typer.Option(min=1, max=16, help="Coordinators.")] = 1,
    dialect: Annotated[str, typer.Option(help="The engines' FT API: v1 (can scale down) or legacy (as released vLLM).")] = "v1",
    detection_sec: Annotated[float, typer.Option(help="How long the engines take to notice a dead peer, in seconds.")] = 2.0,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="YAML file whose fault_tolerance_config overrules defaults.")
    ] = None,
    ui_port: Annotated[int | None, typer.Option(help="Port of the Web UI (default: a free one).")] = None,
    temporal_port: Annotated[int | None, typer.Option(help="Port of the Temporal server (default: a free one).")] = None,
    controller_port: Annotated[int | None, typer.Option(help="Port of the Controller API (default: a free one).")] = None,
    coordinator_port: Annotated[int | None, typer.Option(help="Port for OpenAI requests (default: a free one).")] = None,
    json_output: JsonOption = False,
) -> None:
    """Start a whole installation on this machine.

    Temporal server with Web UI, Controller, Pods with simulated engines, Coordinator; what crashes is restarted. It runs in
    the background until `autotomy down`. Where all of it was killed, or stopped with `down --keep`, it is resumed.
    """
    from cli.up import StackWish, run_up

    wish = StackWish(
        dp_size=dp_size,
        node_managers=node_managers,
        workers=workers,
        coordinators=coordinators,
        dialect=dialect,
        detection_sec=detection_sec,
        config=config,
        web_ui_port=ui_port,
        temporal_port=temporal_port,
        controller_port=controller_port,
        coordinator_port=coordinator_port,
    )
    raise typer.Exit(run_up(run_dir, wish, foreground=foreground, as_json=json_output))


@app.command()
def status(
    context: typer.Context,
    run_dir: RunDirOption = None,
    controller_url: UrlOption = None,
    json_output: JsonOption = False,
) -> None:
    """Show what recovery does, who serves, what runs.

    With --controller-url of any installation; the processes are those of a local stack, and left out then.
    """
    from cli.status import run_status

    if _typed(context, "run_dir"):
        if _typed(context, "controller_url"):
            raise ConfigError("--run-dir names a local stack, --controller-url any installation: give one of them")
        controller_url = None  # from the environment: what is typed comes first
    raise typer.Exit(run_status(run_dir, controller_url, as_json=json_output))


def _typed(context: typer.Context, option: str) -> bool:
    """Whether the option stands on the command line, and does not come from the environment."""
    source = context.get_parameter_source(option)
    return source is not None and source.name == "COMMANDLINE"


@app.command()
def plan(
    instance: IdArgument,
    dead: Annotated[str, typer.Option("--dead", metavar="RANKS", help="The ranks that are assumed to die: 1, or 1,2.")],
    controller_url: UrlOption = None,
    json_output: InstanceJsonOption = False,
) -> None:
    """Dry run: what would happen if these ranks died now.

    Which strategy would run and why; gate, survivors, NodeManagers, apply bodies, and how long the leases hold. Nothing is
    touched.
    """
    from cli.plan import run_plan

    run_plan(instance, dead, controller_url, as_json=json_output)


@app.command()
def explain(instance: IdArgument, controller_url: UrlOption = None, json_output: InstanceJsonOption = False) -> None:
    """Why an instance waits, until when, and what comes then."""
    from cli.plan import run_explain

    run_explain(instance, controller_url, as_json=json_output)


@app.command()
def down(
    run_dir: RunDirOption = None,
    keep: Annotated[bool, typer.Option("--keep", help="The next `up` goes on with its databases, journals and ports.")] = False,
    json_output: JsonOption = False,
) -> None:
    """Stop what `up` started, also after a crash."""
    from cli.up import run_down

    raise typer.Exit(run_down(run_dir, keep=keep, as_json=json_output))


@app.command(context_settings=_PASS_THROUGH)
def drill(context: typer.Context) -> None:
    """Run an acceptance scenario (NAME, all, --list)."""
    from cli.single import become

    become("lab.drills", context)


@app.command(context_settings=_PASS_THROUGH)
def bench(context: typer.Context) -> None:
    """Measure speed and idle cost (rounds, idle, heartbeats)."""
    from cli.single import become

    become("lab.bench", context)


@app.command()
def doctor(
    config: Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Configuration to check.")] = None,
    run_dir: RunDirOption = None,
    json_output: JsonOption = False,
) -> None:
    """Check this machine, the configuration, and who answers."""
    from cli.doctor import run_doctor

    raise typer.Exit(run_doctor(config, run_dir, as_json=json_output))


@app.command(context_settings=_PASS_THROUGH)
def api(context: typer.Context) -> None:
    """Run one Controller API process."""
    from cli.single import become

    become("api", context)


@app.command(context_settings=_PASS_THROUGH)
def worker(context: typer.Context) -> None:
    """Run one Controller worker process."""
    from cli.single import become

    become("workers", context)


@app.command(name="node-manager", context_settings=_PASS_THROUGH)
def node_manager(context: typer.Context) -> None:
    """Run one NodeManager process."""
    from cli.single import become

    become("node_manager", context)


@app.command(name="dp-supervisor", context_settings=_PASS_THROUGH)
def dp_supervisor(context: typer.Context) -> None:
    """Run one Pod's rank servers, without a NodeManager."""
    from cli.single import become

    become("dp_supervisor", context)


@app.command(context_settings=_PASS_THROUGH)
def coordinator(context: typer.Context) -> None:
    """Run one Coordinator process."""
    from cli.single import become

    become("coordinator", context)


def carry_out() -> int:
    """Does what the command line says; the exit code."""
    try:
        app()
    except AutotomyError as error:
        print(f"autotomy: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1 if ended.code else 0
    return 0


def main() -> None:
    """The console script's entry point."""
    leave(carry_out())


if __name__ == "__main__":
    main()
