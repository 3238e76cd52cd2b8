"""What earlier code decided, today's code decides too: the golden histories replay, and a changed workflow is noticed."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict
from temporalio import workflow
from temporalio.api.common.v1 import Payload

from service.payloads import unpacked
from tests.histories.record import DIRECTORY
from workers.controller_worker import WORKFLOWS
from workers.replay import histories_in, main, replay_file

GOLDEN = histories_in([DIRECTORY])
A_ROUND = DIRECTORY / "ScaleDownRound-completed-COMMITTED.json"


@workflow.defn(name="ScaleDownRound", sandboxed=False)
class ChangedRound:
    """A round that somebody changed without a patch: it begins with a timer."""

    @workflow.run
    async def run(self, order: dict[str, object]) -> None:
        await workflow.sleep(1.0)


def known_types() -> set[str]:
    return {file.name.split("-")[0] for file in GOLDEN}


@pytest.mark.parametrize("file", GOLDEN, ids=lambda file: file.stem)
async def test_golden_history_gives_the_same_commands(file: Path) -> None:
    replayed = await replay_file(file)
    assert replayed.tasks > 0
    assert replayed.failure is None


def test_every_workflow_has_golden_histories_and_the_round_has_one_of_each_kind_of_end() -> None:
    types = {getattr(cls, "__temporal_workflow_definition").name for cls in WORKFLOWS}
    assert known_types() == types
    ends = {file.stem.removeprefix("ScaleDownRound-") for file in GOLDEN if file.name.startswith("ScaleDownRound-")}
    assert ends >= {
        "completed-COMMITTED",
        "completed-COMMITTED-large",
        "failed-APPLY_UNKNOWN",
        "completed-CANCELLED",
        "failed-GATE_REFUSED",
    }


async def test_the_replayer_goes_red_on_a_changed_workflow() -> None:
    changed = [ChangedRound if cls.__name__ == "ScaleDownRound" else cls for cls in WORKFLOWS]
    failure = (await replay_file(A_ROUND, changed)).failure
    assert failure is not None
    assert "Nondeterminism" in failure or "TMPRL1100" in failure


async def test_the_replayer_goes_red_when_two_steps_change_places(tmp_path: Path) -> None:
    history = json.loads(A_ROUND.read_text(encoding="utf-8"))
    scheduled = [
        e["activityTaskScheduledEventAttributes"] for e in history["events"] if "activityTaskScheduledEventAttributes" in e
    ]
    names = [attributes["activityType"]["name"] for attributes in scheduled]
    first, second = names.index("guard"), names.index("apply")
    scheduled[first]["activityType"]["name"], scheduled[second]["activityType"]["name"] = "apply", "guard"
    file = tmp_path / "swapped.json"
    file.write_text(json.dumps(history), encoding="utf-8")
    assert (await replay_file(file)).failure is not None


def test_the_command_says_which_history_does_not_replay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "good.json").write_text(A_ROUND.read_text(encoding="utf-8"), encoding="utf-8")
    assert main([str(tmp_path)]) == 0
    (tmp_path / "broken.json").write_text("no history", encoding="utf-8")
    assert main([str(tmp_path)]) == 1
    told = capsys.readouterr()
    assert "broken.json" in told.err
    last = json.loads(told.out.splitlines()[-1])
    assert (last["histories"], len(last["failures"])) == (2, 1)


def test_nothing_to_replay_is_not_success(tmp_path: Path) -> None:
    assert main([str(tmp_path)]) == 2


def readable(value: Any) -> Iterator[str]:
    """All strings of a history, payloads decoded, and unpacked where they are packed."""
    match value:
        case {"metadata": {"encoding": _}}:
            payload = unpacked(ParseDict(value, Payload()))
            yield payload.data.decode()
        case dict():
            for inner in value.values():
                yield from readable(inner)
        case list():
            for inner in value:
                yield from readable(inner)
        case str():
            yield value


def test_no_golden_history_names_a_machine() -> None:
    for file in GOLDEN:
        for text in readable(json.loads(file.read_text(encoding="utf-8"))):
            assert not re.match(r"(\d+|worker)@", text), f"{file.name} names a process: {text}"
            assert not re.search(r"/[a-z]+/[^ ]*\.py|/tmp/|/home/", text), f"{file.name} holds a path: {text}"
