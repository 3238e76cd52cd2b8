"""What `status` and `plan` print of a record and of a dry run."""

import pytest

from cli import plan as plan_command
from cli.status import instance_lines
from domain.instance.decision import Action
from domain.instance.plan import PLANNED_REQUEST_ID, plan
from domain.runtime import Waiting
from lab.stack.record import StackAddresses
from tests.domain.instance_factories import T0, config, serving_state


def addresses() -> StackAddresses:
    url = "http://127.0.0.1:1026"
    return StackAddresses(
        temporal_address="127.0.0.1:7233",
        temporal_namespace="default",
        web_ui_url="http://127.0.0.1:8233",
        controller_url=url,
        coordinators=(),
        node_managers=(),
        engines=(),
    )


def test_a_wait_is_two_lines_for_people() -> None:
    waiting = Waiting(reason="INCOMPLETE: ranks [0]", until="2026-01-01T10:20:30.000Z", then="the instance is rebuilt")
    lines = list(instance_lines(serving_state().record(waiting, T0), None, 1767262800.0))
    assert lines[1] == "waits for: INCOMPLETE: ranks [0]"
    assert lines[2] == "until 10:20:30 UTC (30 s), then the instance is rebuilt; more: `autotomy explain 7`"


def test_a_hold_is_shown_though_nothing_is_waited_for() -> None:
    lines = list(instance_lines(serving_state(held="maintenance").record(None, T0), None, T0))
    assert "automation off: maintenance (`autotomy instance release 7`)" in lines
    assert not any(line.startswith("waits") for line in lines)


def test_the_last_strategy_is_shown_with_its_page_in_the_web_ui() -> None:
    record = serving_state(last_strategy="scale-down-7-2").record(None, T0)
    url = "http://127.0.0.1:8233/namespaces/default/workflows/scale-down-7-2"
    assert f"last strategy: scale-down-7-2   {url}" in list(instance_lines(record, addresses(), T0))


@pytest.mark.parametrize("starts", [True, False])
def test_a_plan_shows_a_rounds_calls_only_where_a_round_would_start(
    starts: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state = serving_state() if starts else serving_state(config=config(min_alive_ranks=4))
    found = plan(state, (1,), T0).model_dump(mode="json")
    assert (found["decision"]["action"] == Action.SCALE_DOWN) is starts
    monkeypatch.setattr(plan_command, "call", lambda *_, **__: found)
    plan_command.run_plan(7, "1", None, as_json=False)
    shown = capsys.readouterr().out
    assert "survivors" in shown
    for word in (f"{PLANNED_REQUEST_ID} (placeholder", "lease", "view revisions", "NodeManager", "POST "):
        assert (word in shown) is starts, shown
