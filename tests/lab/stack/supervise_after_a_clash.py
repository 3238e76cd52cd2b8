"""A supervisor whose first plan meets a stranger on the Coordinator's port; run as a process by test_stack.py."""

import asyncio
import socket
import sys
from pathlib import Path

from lab.stack.plan import StackPlan, plan_stack
from lab.stack.ports import PortLease
from lab.stack.run_dir import LaunchOrder, RunDir
from lab.stack.supervisor import Supervisor
from service.process import run_process
from service.process_identity import ProcessIdentity

strangers: list[socket.socket] = []


def plan_into_a_stranger(order: LaunchOrder, run_dir: RunDir, ports: PortLease) -> StackPlan:
    """The first plan's Coordinator port is taken the moment after it was planned."""
    plan = plan_stack(order, run_dir, ports)
    if not strangers:
        port = int(plan.addresses.coordinator_url.rpartition(":")[2])
        strangers.append(socket.create_server(("127.0.0.1", port)))
    return plan


async def main(stop: asyncio.Event) -> None:
    run_dir = RunDir(Path(sys.argv[1]))
    owner = ProcessIdentity.parse(sys.argv[2])
    await Supervisor(run_dir, run_dir.read_order(), owner, planner=plan_into_a_stranger).run(stop)


if __name__ == "__main__":
    sys.exit(run_process("supervisor", main))
