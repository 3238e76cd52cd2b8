"""One line per event, on stderr, for a person and for a log collector alike.

Every process logs through the standard library; this module only decides the shape: time, level, process, message, then
`key=value` pairs. The pairs are whatever was passed as `extra={...}`:

    log = logging.getLogger(__name__)
    log.info("view applied", extra={"instance": 7, "revision": 4})
    # 2026-01-31T12:00:00.123Z INFO    coordinator view applied instance=7 revision=4

`AUTOTOMY_LOG_LEVEL` (default INFO) sets the level, `AUTOTOMY_LOG_FORMAT=json` writes one JSON object a line instead.
"""

import json
import logging
import os
import sys
import time
from typing import Final

from domain.errors import ConfigError

_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_FORMATS: Final = ("text", "json")
_CHATTY: Final = ("httpx", "httpcore", "uvicorn", "uvicorn.error", "asyncio", "hypothesis")
_STANDARD_ATTRIBUTES: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

_process_name = "autotomy"


def process_name() -> str:
    """The name that this process's log lines carry."""
    return _process_name


def configure_logging(process: str, *, level: str | None = None, form: str | None = None) -> None:
    """Send this process's log to stderr, one line an event; replaces whatever was configured before.

    `process` is the name that the lines carry (`coordinator`, `node-manager 127.0.0.2`). `level` and `form` overrule
    `AUTOTOMY_LOG_LEVEL` and `AUTOTOMY_LOG_FORMAT`. Raises ConfigError when either is not one of the known words.
    """
    chosen_level = _choice("AUTOTOMY_LOG_LEVEL", level, "INFO", _LEVELS)
    chosen_form = _choice("AUTOTOMY_LOG_FORMAT", form, "text", _FORMATS)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLine(process) if chosen_form == "json" else TextLine(process))
    global _process_name
    _process_name = process
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(chosen_level)
    if chosen_level != "DEBUG":
        for name in _CHATTY:
            logging.getLogger(name).setLevel(logging.WARNING)


class TextLine(logging.Formatter):
    """`2026-01-31T12:00:00.123Z INFO    coordinator view applied instance=7`."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        pairs = "".join(f" {key}={_quoted(value)}" for key, value in _pairs(record).items())
        message = record.getMessage().replace("\n", "\\n")
        line = f"{_wall_time(record)} {record.levelname:<7} {self._process} {message}{pairs}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonLine(logging.Formatter):
    """The same line as one JSON object; a traceback becomes its `exception`."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": _wall_time(record),
            "level": record.levelname,
            "process": self._process,
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields |= {key: value for key, value in _pairs(record).items() if key not in fields}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str, ensure_ascii=False)


def _pairs(record: logging.LogRecord) -> dict[str, object]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD_ATTRIBUTES}


def _wall_time(record: logging.LogRecord) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z"


def _quoted(value: object) -> str:
    text = str(value)
    plain = text != "" and not any(character.isspace() or character in '"=' for character in text)
    return text if plain else json.dumps(text, ensure_ascii=False)


def _choice(variable: str, given: str | None, default: str, allowed: tuple[str, ...]) -> str:
    text = given or os.environ.get(variable) or default
    for word in allowed:
        if word.lower() == text.strip().lower():
            return word
    raise ConfigError(f"{variable}={text!r} is not one of {', '.join(allowed)}")
