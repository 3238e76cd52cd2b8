"""Every failpoint that the code has is in docs/restarts.md, and every process has some; none is in workflow code."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PARTS = ("activities", "node_manager", "coordinator", "api")
CALL = re.compile(r'(?:failpoint|_pause)\(f?"([^"]+)"')
EFFECT = re.compile(r'attempt\("(\w+)"(?: if [^"]+ else "(\w+)")?')
EFFECTS_BY_VARIABLE = {"look_apply_ready", "look_recovered", "finalize", "abort", "publish", "withdraw"}


def sources(part: str) -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / part).glob("*.py")))


def names(part: str) -> set[str]:
    return {name for name in CALL.findall(sources(part)) if "{" not in name}


def effects() -> set[str]:
    return {name for found in EFFECT.findall(sources("activities")) for name in found if name} | EFFECTS_BY_VARIABLE


def test_every_failpoint_is_documented() -> None:
    told = (ROOT / "docs" / "restarts.md").read_text(encoding="utf-8")
    missing = [name for part in PARTS for name in names(part) if f"`{name}`" not in told]
    missing += [effect for effect in effects() if f"`{effect}`" not in told]
    assert not missing


def test_every_process_that_changes_something_has_failpoints() -> None:
    assert len(effects()) > 15
    assert len(names("node_manager")) > 8
    assert "coordinator.refresh.after" in names("coordinator")
    assert re.search(r'f"api\.\{effect\}\.after"', sources("api"))


def test_no_failpoint_is_in_workflow_code_or_in_rules() -> None:
    for part in ("workflows", "domain"):
        assert "failpoint" not in sources(part)
