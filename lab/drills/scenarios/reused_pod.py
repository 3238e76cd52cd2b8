"""Two rounds want one NodeManager, because a Pod's address was given to another instance (acceptance D, 25).

The registry refuses two instances on one Pod, so the second is made as a restored database or a lost registry would make
it: its FaultManager is started with the memory of an instance that used to run at these addresses. It believes its ranks
NORMAL, hears of a fault, and starts a round while the round of the instance that really runs there has the Pods guarded.
The second must be refused and fall back, and its fallback must not stop engines that are not its own; the first goes on
as if nothing had been.
"""

from typing import Final

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from domain.instance.evidence import Evidence
from domain.instance.state import InstanceState, Life, ServingView
from domain.messages.controller import MotorStatus
from domain.messages.fault_manager import REPORT_SIGNAL, TASK_QUEUE, FaultManagerStart, fault_manager_id
from domain.messages.strategy import RoundReason, StrategyKind
from domain.receivers import fault_manager
from domain.runtime import FtPhase
from lab.drills.drill import PODS, Drill, in_place, local_spec
from lab.drills.judge.endings import failed_rounds_aborted, rounds_ended
from lab.drills.judge.processes import kept_pods
from lab.drills.scenarios.scale_down import AFTER_GUARD
from lab.drills.script.scene import Scene
from service.temporal import connect_within
from service.workflow_starts import ensure_running

VICTIM: Final = 1
FORMER: Final = 8
"""The instance that used to run there."""

GENERATION: Final = 50
"""Its generation: far above that of the one that runs there now. The two cannot be compared."""

_WITHIN_SEC: Final = 30.0


async def two_rounds_want_one_pod(scene: Scene) -> None:
    scene.failpoints.hold(AFTER_GUARD)
    scene.kill_workers(VICTIM)
    await scene.failpoints.wait_for(AFTER_GUARD, within_sec=_WITHIN_SEC)
    address, namespace = scene.stack.addresses.temporal_address, scene.stack.addresses.temporal_namespace
    client = await connect_within(_WITHIN_SEC, {"target_host": address, "namespace": namespace})
    scene.step(f"a FaultManager of instance {FORMER} believes the same Pods its own, and hears of a fault")
    await _former_instance(scene, client)
    await _until_failed(scene, client, StrategyKind.SCALE_DOWN, GENERATION + 1)
    await _until_failed(scene, client, StrategyKind.INSTANCE_RECONFIGURATION, GENERATION + 2)
    scene.failpoints.release(AFTER_GUARD)
    await scene.until_shrunk([VICTIM])
    await scene.until_settled()


async def _former_instance(scene: Scene, client: Client) -> None:
    """Start its FaultManager in the middle of its life, and report one rank dead and the others unhealthy, as people can."""
    topology = scene.stack.topology.model_copy(update={"instance_id": FORMER, "job_name": "former"})
    config = scene.stack.spec.effective_config()
    memory = InstanceState(
        instance_id=FORMER,
        topology=topology,
        config=config,
        life=Life.RUNNING,
        phase=FtPhase.NORMAL,
        generation=GENERATION,
        view_revision=1,
        view=ServingView(revision=1, ranks=topology.ranks),
        evidence=Evidence().known_ready(topology.ranks),
        node_managers_started=True,
    )
    state = memory.model_dump_json(exclude_defaults=True)
    start = FaultManagerStart(instance_id=FORMER, topology=topology, config=config, state=state)
    await ensure_running(client, TASK_QUEUE, fault_manager(start))
    handle = client.get_workflow_handle(fault_manager_id(FORMER))
    for rank in topology.ranks:
        status = MotorStatus.DEAD if rank == VICTIM else MotorStatus.UNHEALTHY
        await handle.signal(REPORT_SIGNAL, {"engine_id": rank, "engine_status": status.value})


async def _until_failed(scene: Scene, client: Client, kind: StrategyKind, generation: int) -> None:
    """This strategy of the former instance has failed. Raises NotSeen."""
    handle = client.get_workflow_handle(kind.workflow_id(FORMER, generation))

    async def failed() -> bool:
        try:
            return (await handle.describe()).status is WorkflowExecutionStatus.FAILED
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            return False

    await scene.until(f"{handle.id} has failed", failed, _WITHIN_SEC)
    scene.step(f"{handle.id} has failed")


DRILLS: Final = (
    Drill(
        name="pod-reused",
        summary="While a round has its Pods guarded, a round of another instance wants them: refused, and nothing is touched.",
        spec=local_spec("pod-reused"),
        act=two_rounds_want_one_pod,
        end=in_place((VICTIM,)),
        checks=(kept_pods(*PODS), rounds_ended(RoundReason.COMMITTED, RoundReason.GUARD_REFUSED), failed_rounds_aborted()),
        failpoints={"worker": (AFTER_GUARD,)},
    ),
)
