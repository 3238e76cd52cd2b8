"""One call to the Controller API, as a command makes it."""

import json
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

import httpx
import typer
from pydantic import TypeAdapter, ValidationError
from rich.markup import escape

from cli.screen import print_json, remarks, results
from domain.errors import ConfigError, ProtocolError, Transient
from lab.stack.client import Stack
from lab.stack.errors import NoStack
from lab.stack.processes import RUN_DIR_VARIABLE
from lab.stack.run_dir import default_run_dir
from service.json_reader import read_peer_json
from service.settings import HttpUrl, load_settings

_TIMEOUT_SEC: Final = 10.0
_URL: Final = TypeAdapter[str](HttpUrl)


def report(data: Mapping[str, Any], words: str, *, as_json: bool = False) -> None:
    """One line for people, or what the API answered as JSON."""
    if as_json:
        print_json(data)
    else:
        results().print(words, markup=False, soft_wrap=True)


def in_words(error: Exception) -> str:
    """What is wrong with a connection, without the kernel's number for it."""
    return re.sub(r"\[Errno -?\d+\] ", "", str(error)) or type(error).__name__


def _controller_url(given: str | None) -> tuple[str, str | None]:
    """Whom to ask, and why it is not a local stack where none was named. Raises ConfigError for what is no URL."""
    if given:
        try:
            _URL.validate_python(given)
        except ValidationError:
            raise ConfigError(f"--controller-url {given!r}: write http://host:port") from None
        return given.rstrip("/"), None
    run_dir = os.environ.get(RUN_DIR_VARIABLE)
    try:
        return Stack.attach(Path(run_dir) if run_dir else default_run_dir()).addresses.controller_url, None
    except NoStack as error:
        return load_settings().controller_url.rstrip("/"), str(error)


def call(
    method: str, path: str, given_url: str | None, body: Mapping[str, Any] | None = None, *, holds: Collection[str] = ()
) -> dict[str, Any]:
    """The envelope's `data`, which has the fields `holds`. Ends the command with exit code 1 when the API refuses.

    Raises Transient when nobody answers, ProtocolError when somebody else does, ConfigError for what cannot be asked.
    """
    url, no_stack = _controller_url(given_url)
    try:
        content = None if body is None else json.dumps(body)
        headers = {"content-type": "application/json"}
        reply = httpx.request(method, url + path, content=content, headers=headers, timeout=_TIMEOUT_SEC, trust_env=False)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise Transient(_nobody_answers(url, in_words(error), no_stack)) from None
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the declaration holds something that JSON cannot say: {error}") from None
    message, data = _envelope(reply, url)
    if reply.status_code != 200:
        remarks().print(f"[red]refused[/red] ({reply.status_code}): {escape(message)}")
        raise typer.Exit(1)
    if missing := [name for name in holds if name not in data]:
        raise ProtocolError(f"{url} answers without {', '.join(missing)}: it is of another version than this command")
    return data


def _envelope(reply: httpx.Response, url: str) -> tuple[str, dict[str, Any]]:
    """Message and data of `service.http`'s envelope. Raises ProtocolError for anything else, whatever its status."""
    try:
        said = read_peer_json(reply.content)
    except ValueError:
        said = None
    if isinstance(said, dict) and "code" in said and isinstance(data := said.get("data"), dict):
        return str(said.get("message")), data
    raise ProtocolError(f"{url} answers, but not as a Controller API (status {reply.status_code}); check --controller-url")


def _nobody_answers(url: str, why: str, no_stack: str | None) -> str:
    if no_stack is not None:
        return f"{no_stack}, or name a Controller API with --controller-url ({url} does not answer: {why})"
    return (
        f"the Controller API at {url} does not answer ({why}); "
        "name another with --controller-url, or start a local stack with `autotomy up`"
    )
