"""A loop of the NodeManager that fails by a bug fails its readiness, is begun again, and takes no other with it.

And what once ended one of them: an engine's words that no encoding can write.
"""

import pytest

from tests.engine.fake_engine import FakeEngine
from tests.eventually import eventually
from tests.node_manager.controller import FakeController
from tests.node_manager.pod import Pod, reason


async def test_a_loop_that_fails_is_begun_again_and_readiness_names_it(
    pod: Pod, controller: FakeController, fakes: list[FakeEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    await pod.started(controller)
    assert (await pod.http.get("/readiness")).status_code == 200
    planted = True

    async def raises_once() -> object:
        nonlocal planted
        if planted:
            planted = False
            raise RuntimeError("planted")
        monkeypatch.undo()
        return await pod.node.reporter._deliver()

    monkeypatch.setattr(pod.node.reporter, "_deliver", raises_once)
    fakes[1].entry = {"status": "unhealthy"}
    await eventually(controller.says(1, 2), what="the report, by the loop's next life")
    assert not planted
    answer = await pod.http.get("/readiness")
    assert (answer.status_code, reason(answer)) == (503, "LOOP_FAILED")
    assert "reports to the Controller: RuntimeError: planted" in answer.json()["message"]
    assert (await pod.http.get("/liveness")).status_code == 200


async def test_a_look_that_fails_by_a_bug_is_no_secret(
    pod: Pod, controller: FakeController, monkeypatch: pytest.MonkeyPatch
) -> None:
    await pod.started(controller)

    async def raises(_engine: object, _timeout_sec: float) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(pod.node.looks, "poll", raises)

    async def unready() -> bool:
        answer = await pod.http.get("/readiness")
        return answer.status_code == 503 and "looks at rank 0: RuntimeError: planted" in answer.json()["message"]

    await eventually(unready, what="readiness that names the look")


@pytest.mark.parametrize(
    "words", [b"rank died \\ud83d", b"rank died \xff", b"rank\\u0000died"], ids=["half-pair", "no-utf-8", "nul"]
)
async def test_an_engine_whose_words_cannot_be_written_is_reported_all_the_same(
    pod: Pod, controller: FakeController, fakes: list[FakeEngine], words: bytes
) -> None:
    await pod.started(controller)
    fakes[1].status_raw = (
        b'{"schema_version":1,"total_engines":1,"engines":[{"id":1,"status":"unhealthy","fault_info":"' + words + b'"}]}'
    )
    await eventually(controller.says(1, 2), what="the unhealthy rank's report")
    fakes[1].status_raw = None
    await eventually(controller.says(1, 0), what="and the next one")
    assert (await pod.http.get("/readiness")).status_code == 200


@pytest.mark.parametrize("body", [b"[" * 200_000, b'{"schema_version":' + b"9" * 6_000 + b"}"], ids=["deep", "digits"])
async def test_a_status_that_cannot_be_read_is_a_protocol_error_and_no_bug(
    pod: Pod, controller: FakeController, fakes: list[FakeEngine], body: bytes
) -> None:
    await pod.started(controller)
    fakes[1].status_raw = body
    await eventually(controller.says(1, 2, "protocol_error"), what="the protocol error's report")
    assert (await pod.http.get("/readiness")).status_code == 200
