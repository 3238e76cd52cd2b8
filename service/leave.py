"""The last line of a process that may have used Temporal's SDK."""

import logging
import os
import sys
from typing import Final, NoReturn

_SDK: Final = "temporalio.bridge.runtime"


def leave(code: int) -> NoReturn:
    """Ends this process, with everything said.

    With the SDK loaded (temporalio 1.35) the interpreter does not take itself apart: a thread of the SDK that comes back with
    an answer in that moment makes CPython abort the process ("PyGILState_Release", exit code -6; sdk-python issue 300).
    """
    if _SDK not in sys.modules:
        sys.exit(code)
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # whoever read it is gone
            pass
    os._exit(code)
