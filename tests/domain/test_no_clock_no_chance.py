"""`make check` refuses `domain` and `workflows` a clock, chance and surroundings of their own: a replay would see others."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def refused(file: str, code: str) -> list[str]:
    """What ruff, set as `make check` runs it, refuses by name in a file that would hold this code."""
    command = [sys.executable, "-m", "ruff", "check", "--select", "TID251", "--output-format", "concise"]
    found = subprocess.run(
        [*command, "--stdin-filename", file, "-"], input=code, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert found.returncode in (0, 1), found.stderr
    return [line for line in found.stdout.splitlines() if "TID251" in line]


@pytest.mark.parametrize(
    "code",
    [
        "import time\n",
        "from time import monotonic\n",
        "import datetime\ndatetime.datetime.now()\n",
        "from datetime import UTC, datetime as clock\nclock.now(UTC)\n",
        "from datetime import datetime\ndatetime.utcnow()\n",
        "from datetime import datetime\ndatetime.today()\n",
        "from datetime import date\ntoday = date.today\n",
        "import random\n",
        "from random import choice\n",
        "import secrets\n",
        "import uuid\nuuid.uuid4()\n",
        "from uuid import uuid4\n",
        "import os.path\n",
        "from os import environ\n",
    ],
)
def test_a_planted_one_is_refused(code: str) -> None:
    assert len(refused("domain/round/planted.py", code)) == 1


@pytest.mark.parametrize("file", ["domain/planted.py", "workflows/planted.py", "workflows/parts/planted.py"])
def test_it_is_refused_wherever_decisions_are_made(file: str) -> None:
    assert len(refused(file, "import time\n")) == 1


def test_what_temporal_gives_and_what_only_looks_like_it_is_not() -> None:
    code = (
        "from datetime import UTC, datetime\nfrom temporalio import workflow\n"
        "workflow.now(), workflow.time(), workflow.random(), workflow.uuid4(), datetime.fromtimestamp(0.0, UTC)\n"
    )
    assert refused("workflows/planted.py", code) == []


def test_elsewhere_there_are_clocks() -> None:
    for file in ("activities/planted.py", "node_manager/planted.py", "lab/domain/planted.py", "tests/domain/planted.py"):
        assert refused(file, "import time\n") == []
