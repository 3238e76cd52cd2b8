"""`autotomy api|worker|…`: become that process, with its own command line and its own `--help`."""

import os
import sys
from collections.abc import Sequence
from typing import NoReturn


def become(module: str, arguments: Sequence[str]) -> NoReturn:
    """Replace this process by `python -m module arguments…`, so that signals and exit code are its own."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.environ["PYTHONSAFEPATH"] = "1"  # the code is what is installed, not what the current directory holds
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])
