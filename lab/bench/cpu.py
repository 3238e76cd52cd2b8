"""What the processes of a stack have cost: CPU seconds and memory, from /proc."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from domain.model import Strict
from lab.stack.client import Stack
from service.process_identity import cpu_sec

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


class Usage(Strict):
    """By process kind (`worker`, `temporal`, …), all processes of a kind together."""

    cpu_sec: dict[str, float]
    memory_mib: dict[str, float]


def usage(stack: Stack) -> Usage:
    """As it is now; a process that is gone counts nothing."""
    cpu: dict[str, float] = {}
    memory: dict[str, float] = {}
    for process in stack.record.processes:
        if process.identity is None:
            continue
        kind = str(process.kind)
        try:
            used = cpu_sec(process.identity.pid)
            pages = int(Path(f"/proc/{process.identity.pid}/statm").read_text().split()[1])
        except OSError:
            continue
        cpu[kind] = cpu.get(kind, 0.0) + used
        memory[kind] = memory.get(kind, 0.0) + pages * _PAGE_BYTES / 2**20
    return Usage(cpu_sec=cpu, memory_mib=memory)


def spent(before: Usage, after: Usage, per: float = 1.0) -> Mapping[str, float]:
    """CPU seconds between two looks, divided by `per`."""
    return {kind: round((sec - before.cpu_sec.get(kind, 0.0)) / per, 4) for kind, sec in after.cpu_sec.items()}
