"""Which tests run beside which, in a run of several processes (`pytest -n 5`, as the make targets have).

Most of the time a test waits: for processes to start, for timers of engines. Two cores are enough for five tests at a time,
as long as not too many of them are whole installations of a dozen processes each: those are judged by what they do in
time. So two of the processes prefer installations, the others everything else; whoever runs out of its own takes of the
others'. Tests of one file stay together in one process, because they share fixtures; installations do not.
"""

from typing import Final

from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

INSTALLATIONS: Final = (
    "tests/lab/drills/test_restart.py",
    "tests/lab/drills/test_pod_restart.py",
    "tests/lab/stack/test_stack.py",
    "tests/lab/drills/test_drills.py",
    "tests/lab/drills/test_supervisor_table.py",
    "tests/lab/stack/test_resume.py",
    "tests/cli/test_demo.py",
    "tests/cli/test_up.py",
)
"""The files whose tests start installations; the longest first, so that no long one is left at the end."""

LONG: Final = (
    "tests/workflows/test_event_pusher.py",
    "tests/workflows/test_fault_manager.py",
    "tests/api/test_unavailable.py",
    "tests/node_manager/test_process.py",
    "tests/workers/test_worker_process.py",
)
"""Other files that take a minute, the longest first: begun late, they would run alone at the end."""

_TOGETHER: Final = "tests/lab/stack/test_stack.py"
"""Its tests share one installation."""

AT_ONCE: Final = 2


class SideBySide(LoadScopeScheduling):
    """xdist's scheduling by file, with installations apart."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return nodeid if file in INSTALLATIONS and file != _TOGETHER else file

    def _assign_work_unit(self, node: WorkerController) -> None:
        number = int(node.gateway.id.removeprefix("gw"))
        self.workqueue.move_to_end(next_scope(list(self.workqueue), prefers_installations=number < AT_ONCE), last=False)
        super()._assign_work_unit(node)


def next_scope(waiting: list[str], *, prefers_installations: bool) -> str:
    """Of what still waits, what a process with this preference does next."""
    installations = [scope for scope in waiting if scope.partition("::")[0] in INSTALLATIONS]
    others = [scope for scope in waiting if scope not in installations]
    installations.sort(key=lambda scope: INSTALLATIONS.index(scope.partition("::")[0]))
    others.sort(key=lambda scope: LONG.index(scope) if scope in LONG else len(LONG))
    own, rest = (installations, others) if prefers_installations else (others, installations)
    return (own or rest)[0]
