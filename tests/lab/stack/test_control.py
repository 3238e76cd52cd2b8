"""The supervisor's ear: it understands commands, refuses nonsense, and is found in a deep directory."""

import asyncio
import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from domain.errors import Refused
from lab.stack.control import Command, ControlRefused, Down, Hold, Kill, Reply, Status, SupervisorUnreachable, ask, listening


async def echo(command: Command) -> Reply:
    if isinstance(command, Hold):
        raise ControlRefused("no process 'tabby'", reason="UNKNOWN_PROCESS")
    return Reply(ok=True, pid=4711, message=command.op)


async def test_a_command_is_answered(tmp_path: Path) -> None:
    async with listening(tmp_path, echo):
        reply = await ask(tmp_path, Kill(name="worker-0", signal="SIGSTOP"))
    assert (reply.pid, reply.message) == (4711, "kill")


async def test_a_directory_may_be_deeper_than_a_socket_path_may_be_long(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    async with listening(deep, echo):
        assert (await ask(deep, Status())).ok


async def test_a_refusal_keeps_its_reason(tmp_path: Path) -> None:
    async with listening(tmp_path, echo):
        with pytest.raises(Refused, match="tabby") as caught:
            await ask(tmp_path, Hold(name="tabby"))
    assert caught.value.reason == "UNKNOWN_PROCESS"


@pytest.mark.parametrize("line", [b"nonsense\n", b"{}\n", b'{"op": "dance"}\n', b'{"op": "kill"}\n', b'{"op":"down","x":1}\n'])
async def test_nonsense_is_refused_and_the_next_command_still_works(tmp_path: Path, line: bytes) -> None:
    async with listening(tmp_path, echo):
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "control.sock"))
        writer.write(line)
        refused = json.loads(await reader.readline())
        writer.write(b'{"op": "status"}\n')
        accepted = json.loads(await reader.readline())
        writer.close()
        await writer.wait_closed()
    assert (refused["ok"], refused["reason"]) == (False, "MALFORMED")
    assert accepted["ok"]


async def test_nobody_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(SupervisorUnreachable, match="no supervisor answers in"):
        await ask(tmp_path, Down())


async def test_a_socket_that_a_crash_left_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "control.sock").write_text("left behind")
    async with listening(tmp_path, echo):
        assert (await ask(tmp_path, Status())).ok
    assert not (tmp_path / "control.sock").exists()


def test_an_unknown_signal_is_refused_before_it_is_sent() -> None:
    with pytest.raises(ValidationError, match="SIGTABBY"):
        Kill(name="worker-0", signal="SIGTABBY")
