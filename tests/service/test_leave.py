"""A process that had Temporal's SDK ends with its own exit code, and with all that it said."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PROGRAM = """
import atexit, sys
{more}
from service.leave import leave
atexit.register(print, "taken apart")
sys.stdout.write("said")
leave(3)
"""


@pytest.mark.parametrize(
    ("more", "said"),
    [("", "saidtaken apart\n"), ("import temporalio.bridge.runtime", "said")],
    ids=["without the SDK", "with it"],
)
def test_with_the_sdk_the_interpreter_is_not_taken_apart(more: str, said: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(more=more)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, said, "")


def test_nobody_to_read_it_is_no_reason_to_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    program = PROGRAM.format(more="import temporalio.bridge.runtime")
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as left:
        assert left.stdout is not None
        left.stdout.close()
        assert left.wait(30) == 3


def test_every_process_that_knows_temporal_leaves_so() -> None:
    """Whoever ends by `sys.exit` must be one that never loads the SDK."""
    ends = re.compile(r"^ *sys\.exit\((?:main|asyncio)", re.MULTILINE)
    packages = [path for path in ROOT.glob("*/**/*.py") if path.relative_to(ROOT).parts[0] not in ("tests", ".venv")]
    by_exit = [path for path in packages if ends.search(path.read_text())]
    assert by_exit, "nobody at all?"
    for path in by_exit:
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        loads = f"import sys, {module.removesuffix('.__main__') + ('.main' if path.with_name('main.py').exists() else '')}"
        shown = subprocess.run(
            [sys.executable, "-c", f"{loads}; print('temporalio.bridge.runtime' in sys.modules)"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        assert shown.stdout == "False\n", f"{module} ends by sys.exit and loads Temporal's SDK"
