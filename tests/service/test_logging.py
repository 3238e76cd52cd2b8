"""One line per event, with its key=value pairs."""

import json
import logging
import sys

import pytest

from domain.errors import ConfigError
from service.logging import JsonLine, TextLine, configure_logging


def record(message: str, *args: object, **extra: object) -> logging.LogRecord:
    made = logging.getLogger("test").makeRecord("test", logging.INFO, "f.py", 1, message, args, None, extra=extra)
    made.created, made.msecs = 1_700_000_000.25, 250.0
    return made


def test_text_has_time_level_process_message_and_pairs() -> None:
    line = TextLine("coordinator").format(record("view %s", "applied", instance=7, ranks=[0, 2]))
    assert line == '2023-11-14T22:13:20.250Z INFO    coordinator view applied instance=7 ranks="[0, 2]"'


def test_an_event_stays_on_one_line() -> None:
    line = TextLine("p").format(record("first\nsecond", why="a\nb"))
    assert "\n" not in line
    assert line.endswith(r'first\nsecond why="a\nb"')


def test_json_has_the_same_fields() -> None:
    fields = json.loads(JsonLine("worker").format(record("hello", instance=7)))
    assert fields["process"] == "worker"
    assert fields["message"] == "hello"
    assert fields["instance"] == 7


def test_json_carries_the_traceback_as_a_field() -> None:
    try:
        raise ValueError("boom")
    except ValueError:
        made = record("failed")
        made.exc_info = sys.exc_info()
    line = JsonLine("p").format(made)
    assert "\n" not in line
    assert "ValueError: boom" in json.loads(line)["exception"]


@pytest.mark.parametrize("variable", ["AUTOTOMY_LOG_LEVEL", "AUTOTOMY_LOG_FORMAT"])
def test_an_unknown_word_is_refused_with_the_known_ones(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "loud")
    with pytest.raises(ConfigError, match=f"{variable}='loud' is not one of"):
        configure_logging("p")
