"""What the README and the examples' headers show must work as printed: YAML files load, commands and flags exist."""

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from node_manager.config import load_config
from service.settings import load_settings

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
YAML = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
SHELL = "\n".join(re.findall(r"```sh\n(.*?)```", README, re.DOTALL))
COMMANDS = sorted({line.split("#")[0].strip() for line in SHELL.splitlines() if line.startswith("autotomy ")})
EXAMPLES = sorted((ROOT / "deploy" / "examples").glob("*.yaml"))
HEADERS = [line for file in EXAMPLES for line in re.findall(r"^#   (autotomy .+)$", file.read_text(encoding="utf-8"), re.M)]


def test_the_controller_file_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AUTOTOMY_")]:
        monkeypatch.delenv(name)
    file = tmp_path / "controller.yaml"
    file.write_text(YAML[0], encoding="utf-8")
    assert load_settings(file).fault_tolerance_config.enable_dp_scale_down_proxy


def test_the_node_manager_file_loads_and_describes_an_engine(tmp_path: Path) -> None:
    file = tmp_path / "node-manager.yaml"
    file.write_text(YAML[1], encoding="utf-8")
    config = load_config(file, {})
    assert config.engine_for(0) is not None
    assert config.registration is not None


@cache
def help_of(*words: str) -> str:
    """What `autotomy WORDS --help` prints."""
    return subprocess.run(
        [sys.executable, "-m", "cli.main", *words, "--help"], capture_output=True, text=True, timeout=120, cwd=ROOT, check=True
    ).stdout


@pytest.mark.parametrize("command", [*COMMANDS, *HEADERS])
def test_every_flag_of_a_command_is_in_its_help(command: str) -> None:
    words = command.split()[1:]
    flags = [word for word in words if word.startswith("--")]
    name = words[:2] if words[0] == "instance" else words[:1]
    shown = help_of(*name)
    for flag in flags:
        assert flag in shown, f"{command}: {flag} is not in its --help"


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\((docs/[^)]+)\)", README))))
def test_every_linked_page_exists(link: str) -> None:
    assert (ROOT / link).is_file()
