"""The supervisor as the Pods' init: orphans become its children, and it reaps them.

An engine whose NodeManager was killed has no parent any more. In a Pod, init adopts and reaps it; here the supervisor
does (PR_SET_CHILD_SUBREAPER), wherever it runs, also in a container whose PID 1 reaps nothing. Without it a dead engine
would linger as a zombie and its pid would look alive.
"""

import contextlib
import ctypes
import os
from pathlib import Path
from typing import Final

_PR_SET_CHILD_SUBREAPER: Final = 36


def become_subreaper() -> None:
    """From now on, descendants that lose their parent become children of this process. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def reap_adopted(own: frozenset[int]) -> None:
    """Reap children that have exited, but for those in `own`, which somebody else waits for."""
    for pid in _children() - own:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def _children() -> set[int]:
    found: set[int] = set()
    for listing in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended meanwhile
            found |= {int(word) for word in listing.read_text(encoding="ascii").split()}
    return found
