"""One call to the Controller API, as a command makes it."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import httpx
import typer

from cli.screen import print_json, remarks, results
from domain.errors import ConfigError, Transient
from service.settings import load_settings
from stack.client import Stack
from stack.errors import NoStack
from stack.processes import RUN_DIR_VARIABLE
from stack.run_dir import default_run_dir

_TIMEOUT_SEC: Final = 10.0


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
    """Whom to ask, and why it is not a local stack where none was named."""
    if given:
        return given.rstrip("/"), None
    run_dir = os.environ.get(RUN_DIR_VARIABLE)
    try:
        return Stack.attach(Path(run_dir) if run_dir else default_run_dir()).addresses.controller_url, None
    except NoStack as error:
        return load_settings().controller_url.rstrip("/"), str(error)


def call(method: str, path: str, given_url: str | None, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The envelope's `data`. Ends the command with exit code 1 when the API refuses; raises Transient when nobody answers."""
    url, no_stack = _controller_url(given_url)
    try:
        content = None if body is None else json.dumps(body)
        headers = {"content-type": "application/json"}
        reply = httpx.request(method, url + path, content=content, headers=headers, timeout=_TIMEOUT_SEC, trust_env=False)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise Transient(_nobody_answers(url, in_words(error), no_stack)) from None
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the declaration holds something that JSON cannot say: {error}") from None
    try:
        envelope = reply.json()
    except ValueError:
        envelope = {"message": reply.text[:200]}
    if reply.status_code != 200:
        remarks().print(f"[red]refused[/red] ({reply.status_code}): {envelope.get('message')}")
        raise typer.Exit(1)
    data = envelope.get("data")
    return data if isinstance(data, dict) else {"value": data} if data is not None else {}


def _nobody_answers(url: str, why: str, no_stack: str | None) -> str:
    if no_stack is not None:
        return f"{no_stack}, or name a Controller API with --controller-url ({url} does not answer: {why})"
    return (
        f"the Controller API at {url} does not answer ({why}); "
        "name another with --controller-url, or start a local stack with `autotomy up`"
    )
