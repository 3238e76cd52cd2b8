"""The clock of leases: CLOCK_BOOTTIME, together with the name of the boot that it belongs to.

It counts on while the machine sleeps, and nobody can set it: a wall clock that jumps moves no lease. After a reboot it
starts again at zero, so a time of another boot is comparable with nothing; the engines of that boot are gone too.
"""

import time
from collections.abc import Callable

from domain.pod.records import BootTime
from service.process_identity import boot_id


def boot_time() -> BootTime:
    """Now."""
    return BootTime(boot=boot_id(), sec=time.clock_gettime(time.CLOCK_BOOTTIME))


Clock = Callable[[], BootTime]
"""The seam for tests: `boot_time`, or a clock that they turn themselves."""
