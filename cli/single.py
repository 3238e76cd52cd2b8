"""`autotomy api|worker|…`: become that process, with its own command line and its own `--help`."""

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import typer


def become(module: str, context: typer.Context) -> NoReturn:
    """Replace this process by `python -m module …`, so that signals and exit code are its own."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.environ["PYTHONSAFEPATH"] = "1"  # the code is what is installed, not what the current directory holds
    os.execv(sys.executable, [sys.executable, "-m", module, *words_after(context.info_name or module, sys.argv)])


def words_after(command: str, argv: Sequence[str]) -> Sequence[str]:
    """What was typed behind the command's name: Click's own list has lost a `--`, which means something to some."""
    return argv[argv.index(command, 1) + 1 :]
