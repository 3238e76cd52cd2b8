"""An error crosses Temporal and stays what it was."""

import asyncio

import pytest
from pydantic import BaseModel
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError, RetryState, TimeoutType
from temporalio.exceptions import TimeoutError as ActivityTimeout

from activities.attempt import attempt
from activities.errors import from_activity_error, to_application_error
from domain.errors import AutotomyError, ConfigError, OutcomeUnknown, ProtocolError, Refused, Transient
from service.one_exchange import one_exchange_client
from service.peer import PeerRefused, PeerSilent, Silence, get
from tests.activities.attempts import environment
from tests.activities.fake_pods import answer, fake_instance, hang, refuse
from tests.listening import answering


def activity_error(cause: BaseException) -> ActivityError:
    error = ActivityError(
        "activity failed",
        scheduled_event_id=1,
        started_event_id=2,
        identity="worker",
        activity_type="guard",
        activity_id="1",
        retry_state=RetryState.NON_RETRYABLE_FAILURE,
    )
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "family", "may_retry"),
    [
        (Transient("no answer", reason="NO_ANSWER"), Transient, True),
        (Refused("said no", reason="GUARD_HELD"), Refused, False),
        (ProtocolError("nonsense"), Refused, False),
        (ConfigError("wrong"), Refused, False),
        (OutcomeUnknown("perhaps"), OutcomeUnknown, False),
        (PeerSilent("mute", Silence.NO_ANSWER, may_have_heard=True), Transient, True),
    ],
)
def test_family_reason_and_message_survive(error: AutotomyError, family: type[AutotomyError], may_retry: bool) -> None:
    sent = to_application_error(error)
    assert sent.non_retryable is not may_retry
    assert sent.type == error.reason
    came = from_activity_error(activity_error(sent))
    assert type(came) is family
    assert came.reason == error.reason
    assert error.message in came.message
    assert "guard" in came.message


def test_time_over_and_cancellation_are_transient() -> None:
    late = ActivityTimeout("late", type=TimeoutType.SCHEDULE_TO_CLOSE, last_heartbeat_details=[])
    came = from_activity_error(activity_error(late))
    assert (type(came), came.reason) == (Transient, "TIME_OVER")
    assert "schedule to close" in came.message
    assert from_activity_error(activity_error(CancelledError("cancelled"))).reason == "CANCELLED"


def test_a_foreign_failure_is_never_retried() -> None:
    came = from_activity_error(activity_error(ApplicationError("x", type="KeyError")))
    assert (type(came), came.reason) == (Refused, "KeyError")


async def test_a_bug_ends_the_activity_once_and_for_all(caplog: pytest.LogCaptureFixture) -> None:
    async def buggy() -> None:
        async with attempt("buggy"):
            raise KeyError("oops")

    with pytest.raises(ApplicationError) as caught:
        await environment().run(buggy)
    assert caught.value.non_retryable
    assert caught.value.type == "BUG"
    assert "oops" in caplog.text


class Anything(BaseModel):
    incarnation: str


@pytest.mark.parametrize(
    ("behaviour", "kind", "reason"),
    [
        (refuse("GUARD_HELD", holder="x"), PeerRefused, "GUARD_HELD"),
        (refuse("DISABLED", status=404), PeerRefused, "DISABLED"),
        (answer(400, "not json"), PeerRefused, "HTTP_400"),
        (answer(502, "<html>bad gateway</html>"), PeerSilent, "UNAVAILABLE"),
        (refuse("UNAVAILABLE", status=503), PeerSilent, "UNAVAILABLE"),
        (answer(500, "oops"), PeerSilent, "UNAVAILABLE"),
        (answer(200, "not json"), ProtocolError, "MALFORMED_REPLY"),
        (answer(200, '{"incarnation": 7}'), ProtocolError, "MALFORMED_REPLY"),
        (hang(2), PeerSilent, "NO_ANSWER"),
    ],
)
async def test_what_a_peers_answer_means(behaviour: object, kind: type[AutotomyError], reason: str) -> None:
    async with fake_instance() as instance, one_exchange_client() as http:
        instance.pods[0].script("liveness", behaviour)  # type: ignore[arg-type]
        with pytest.raises(kind) as caught:
            await get(http, f"{instance.pods[0].address.url}/liveness", Anything, 0.3)
        assert caught.value.reason == reason


async def test_a_refused_connection_was_never_heard_and_an_unanswered_request_may_have_been() -> None:
    async with fake_instance() as instance, one_exchange_client() as http:
        instance.pods[0].script("liveness", hang(2))
        with pytest.raises(PeerSilent) as mute:
            await get(http, f"{instance.pods[0].address.url}/liveness", Anything, 0.2)
        assert mute.value.may_have_heard
        await instance.pods[1].vanish()
        with pytest.raises(PeerSilent) as gone:
            await get(http, f"{instance.pods[1].address.url}/liveness", Anything, 0.5)
        assert (gone.value.how, gone.value.may_have_heard) == (Silence.REFUSED_CONNECTION, False)


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\nplain"])
async def test_an_answer_that_breaks_off_may_have_been_heard(said: bytes) -> None:
    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        writer.close()

    async with answering(cut) as url, one_exchange_client() as http:
        with pytest.raises(PeerSilent) as caught:
            await get(http, url, Anything, 1.0)
    assert (caught.value.how, caught.value.may_have_heard) == (Silence.BROKEN, True)
