"""Worker versions: a worker that has one gets tasks once its version is current (docs/changing-workflows.md).

Workflows move on to the current version at their next task (auto-upgrade): a FaultManager lives as long as its instance and
would otherwise hold an old version for ever. So a changed workflow needs a patch all the same; what versions give is the
moment of the change, its share of the work (ramp), and the way back. The behaviour is given here and not in a decorator:
there it would hold for workers without a version too, and those would never be given a task.
"""

from typing import Final

from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.worker import WorkerDeploymentConfig

DEPLOYMENT: Final = "autotomy"


def deployment_config(
    build_id: str,
    deployment: str = DEPLOYMENT,
    behavior: VersioningBehavior = VersioningBehavior.AUTO_UPGRADE,
) -> WorkerDeploymentConfig:
    """For a worker of this version; `behavior` holds for all its workflows."""
    return WorkerDeploymentConfig(
        version=WorkerDeploymentVersion(deployment_name=deployment, build_id=build_id),
        use_worker_versioning=True,
        default_versioning_behavior=behavior,
    )
