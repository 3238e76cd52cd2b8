"""Strategies that do nothing but note their order and run until they are stopped: what a FaultManager under test starts."""

from datetime import timedelta
from typing import Any

from temporalio import workflow


class StandIn:
    """A strategy as far as a FaultManager can tell."""

    def __init__(self) -> None:
        self.stopped = False

    async def live(self, order: dict[str, Any]) -> None:
        called = [workflow.info().workflow_id, order]
        await workflow.execute_activity("note_order", args=called, start_to_close_timeout=timedelta(seconds=10))
        await workflow.wait_condition(lambda: self.stopped)

    @workflow.signal
    def stop(self) -> None:
        self.stopped = True


@workflow.defn(name="ScaleDownRound", sandboxed=False)
class StandInRound(StandIn):
    @workflow.run
    async def run(self, order: dict[str, Any]) -> None:
        await self.live(order)


@workflow.defn(name="InstanceReconfiguration", sandboxed=False)
class StandInRebuild(StandIn):
    @workflow.run
    async def run(self, order: dict[str, Any]) -> None:
        await self.live(order)


@workflow.defn(name="FastRecovery", sandboxed=False)
class StandInFastRecovery(StandIn):
    @workflow.run
    async def run(self, order: dict[str, Any]) -> None:
        await self.live(order)


@workflow.defn(name="EngineRelaunch", sandboxed=False)
class StandInRelaunch(StandIn):
    @workflow.run
    async def run(self, order: dict[str, Any]) -> None:
        await self.live(order)


@workflow.defn(name="TokenReinference", sandboxed=False)
class StandInReinference(StandIn):
    @workflow.run
    async def run(self, order: dict[str, Any]) -> None:
        await self.live(order)


STAND_INS = (StandInRound, StandInRebuild, StandInFastRecovery, StandInRelaunch, StandInReinference)
