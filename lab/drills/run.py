"""Runs one drill from start to end: an installation, traffic, what happens to it, the judgement, the bundle.

    start the stack → warm up → the drill's script → settle → one completion on each served rank → collect →
    stop the stack → look for what was left behind → judge → write the bundle

The stack belongs to this process: when it dies, whatever way, the stack's supervisor takes everything down. A drill
whose stack does not start, or whose script waits in vain for something that is not the thing judged, still leaves a
bundle; the first "could not run" (exit code 2), the second failed (exit code 1).
"""

import asyncio
import contextlib
import dataclasses
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from domain.errors import AutotomyError
from lab.drills.drill import Drill
from lab.drills.judge.every_drill import judge
from lab.drills.outcome import DrillReport, Figures, PodStop
from lab.drills.record import bundle, engine_log, entry_log, view_log
from lab.drills.record.completions import ask_each
from lab.drills.record.engine_log import read_lives
from lab.drills.record.events import DrillEvent, DrillEventKind, OnDrillEvent, ignore
from lab.drills.record.evidence import Evidence
from lab.drills.record.failed_recoveries import failed_recoveries
from lab.drills.record.figures import count_requests, round_figures, stage_seconds
from lab.drills.record.histories import Histories, Replay, export_histories, replay_histories
from lab.drills.record.observer import NotSeen, Observer, served_ranks
from lab.drills.record.timeline import Timeline
from lab.drills.record.traffic import RequestRecord, TrafficClient
from lab.drills.report.lanes import picture_of
from lab.drills.report.live import follow_engines, tell_requests
from lab.drills.report.page import verdict, write_report
from lab.drills.report.picture import write_picture
from lab.drills.script.failpoints import FailpointDriver
from lab.drills.script.scene import Scene
from lab.stack.client import Stack
from lab.stack.record import EventKind, StackEvent
from lab.stack.run_dir import RunDir
from lab.stack.spec import StackSpec
from service.process_identity import own_identity

WARM_UP_OK: Final = 12
"""Requests that must have succeeded before anything is injected."""

_WARM_UP_SEC: Final = 30.0
_SETTLE_SEC: Final = 3.0
_QUIET_SETTLE_SEC: Final = 0.5


@dataclass(frozen=True)
class DrillOptions:
    """How a drill is run.

    Args:
        out: the bundle's directory; None: a new one below the user's state directory.
        on_event: told what happens, while it happens.
        before_down: awaited while the installation still runs (its Web UI can be looked at).
        requests_per_sec: the client's pace.
    """

    out: Path | None = None
    on_event: OnDrillEvent = ignore
    before_down: Callable[[Stack], Awaitable[None]] | None = None
    requests_per_sec: float = 10.0


async def run_drill(drill: Drill, options: DrillOptions | None = None) -> DrillReport:
    """Run it and write its bundle. Raises ConfigError only, for an unusable `out`."""
    options = options or DrillOptions()
    directory = bundle.prepare(options.out or bundle.default_bundle(drill.name))
    run = _Run(drill, options, directory)
    try:
        report = await run.to_its_end()
    finally:
        shutil.rmtree(run.run_dir, ignore_errors=True)
    write_report(directory, report)
    return report


class _Run:
    """One run; what it has learnt so far."""

    def __init__(self, drill: Drill, options: DrillOptions, directory: Path) -> None:
        self.drill = drill
        self.options = options
        self.directory = directory
        self.run_dir = Path(tempfile.mkdtemp(prefix="autotomy-drill-"))
        self.timeline = Timeline()
        self.requests: list[RequestRecord] = []
        self.failure: str | None = None
        self.could_run = False
        self.histories = Histories()
        self.began_at = time.monotonic()
        self.started_at = datetime.now(UTC).isoformat(timespec="seconds")

    async def to_its_end(self) -> DrillReport:
        async with FailpointDriver() as failpoints:
            spec = self._armed(failpoints)
            try:
                stack = await Stack.launch(
                    spec, self.run_dir, owner=own_identity(), ephemeral=True, on_event=self._on_stack_event
                )
            except AutotomyError as error:
                return self._not_started(error)
            try:
                return await self._with(stack, failpoints)
            finally:
                await asyncio.shield(asyncio.ensure_future(stack.down()))

    def _armed(self, failpoints: FailpointDriver) -> StackSpec:
        armed = {process: failpoints.armed(*names) for process, names in self.drill.failpoints.items()}
        return self.drill.spec.model_copy(update={"failpoints": {**self.drill.spec.failpoints, **armed}})

    async def _with(self, stack: Stack, failpoints: FailpointDriver) -> DrillReport:
        observer = self._observer(stack)
        scene = Scene(stack, observer, self.timeline, failpoints, self.options.on_event)
        observer.on_phase = lambda record: scene.say(DrillEventKind.PHASE, record.phase)
        observer.on_strategy = lambda workflow_id: scene.say(DrillEventKind.WORKFLOW, workflow_id)
        observer.on_view = lambda ranks: scene.say(DrillEventKind.VIEW, ranks=ranks)
        scene.say(DrillEventKind.READY, stack.addresses.web_ui_url or "")
        async with observer.watching(), follow_engines(scene):
            async with self._traffic(scene):
                await self._act(scene)
            evidence = await self._collect(scene)
        if self.options.before_down is not None:
            await self.options.before_down(stack)
        scene.step("stopping the installation")
        down = await stack.down()
        replay = await replay_histories(self.directory / "histories")
        evidence = dataclasses.replace(evidence, orphans=down.orphans, replay=replay)
        return self._report(scene, evidence)

    def _observer(self, stack: Stack) -> Observer:
        addresses = stack.addresses
        return Observer(
            stack.spec.instance_id,
            addresses.controller_url,
            {place.name: place.management_url for place in addresses.coordinators},
            {manager.name: manager.url for manager in addresses.node_managers},
            self.timeline,
        )

    async def _act(self, scene: Scene) -> None:
        """The drill's script; what it waits for in vain is a failure of what is judged, not of the drill."""
        try:
            if self.drill.traffic:
                await scene.until(
                    f"{WARM_UP_OK} successful requests before anything is done",
                    lambda: sum(record.ok for record in self.requests) >= WARM_UP_OK,
                    _WARM_UP_SEC,
                )
            self.could_run = True
            await self.drill.act(scene)
            scene.step("letting it settle")
            await scene.linger(_SETTLE_SEC if self.drill.traffic else _QUIET_SETTLE_SEC)
        except (NotSeen, AutotomyError, ProcessLookupError) as error:
            self.failure = str(error)
            self.timeline.add(time.monotonic(), "drill", "failure", error)
            scene.say(DrillEventKind.STEP, f"not as expected: {error}")

    @contextlib.asynccontextmanager
    async def _traffic(self, scene: Scene) -> AsyncIterator[None]:
        if not self.drill.traffic:
            yield
            return
        scene.step("starting traffic")
        client = TrafficClient(
            scene.stack.addresses.coordinator_url,
            scene.stack.spec.model_name,
            requests_per_sec=self.options.requests_per_sec,
        )
        self.requests = client.records
        stop = asyncio.Event()
        sending = asyncio.create_task(client.run(stop))
        telling = asyncio.create_task(tell_requests(scene, client.records))
        try:
            yield
        finally:
            stop.set()
            telling.cancel()
            await asyncio.gather(sending, telling, return_exceptions=True)

    async def _collect(self, scene: Scene) -> Evidence:
        """Everything that must be read while the installation still runs."""
        scene.step("collecting evidence")
        stack, observer = scene.stack, scene.observer
        views = {name: served_ranks(view, stack.spec.instance_id) for name, view in observer.views.items()}
        served = sorted({rank for ranks in views.values() for rank in ranks})
        completions = await ask_each({rank: stack.engine(rank).url for rank in served}, stack.spec.model_name)
        addresses = stack.addresses
        self.histories = await export_histories(
            addresses.temporal_address, addresses.temporal_namespace, self.directory / "histories"
        )
        lives = read_lives(stack.run_dir.engine_logs)
        entries = [
            entry for manager in addresses.node_managers for entry in entry_log.read_entries(manager.name, Path(manager.log_file))
        ]
        view_lines = {
            place.name: view_log.read_view_log(Path(place.view_log), stack.spec.instance_id) for place in addresses.coordinators
        }
        self.timeline.extend(engine_log.marks(engine_log.all_lines(lives)))
        self.timeline.extend(entry_log.marks(entries))
        for name, lines in view_lines.items():
            self.timeline.extend(view_log.marks(name, lines))
        return Evidence(
            spec=stack.spec,
            topology=stack.topology,
            injections=tuple(scene.episodes),
            ended_at=time.monotonic(),
            lives=lives,
            view_lines=view_lines,
            entries=entries,
            polled=[*observer.events, *observer.sources()],
            journals=dict(observer.journals),
            ft_refused=dict(observer.ft_refused),
            views=dict(observer.views),
            requests=list(self.requests),
            stack_events=stack.events(),
            reports=self.histories.reports,
            completions=completions,
            unchanged_refreshes=scene.unchanged_refreshes,
            workflows=self.histories.files,
            unread=self.histories.missing,
            late_sec=dict(scene.late_sec),
            replay=Replay(),
            orphans=(),
            killed=frozenset(scene.killed),
            stops_asked=dict(scene.stops_asked),
            failed_recoveries=failed_recoveries(self.directory / "histories"),
            last_injection=scene.injected[-1][0] if scene.injected else None,
        )

    def _report(self, scene: Scene, evidence: Evidence) -> DrillReport:
        zero = scene.zero if scene.zero is not None else evidence.ended_at
        checks = judge(self.drill, evidence)
        passed = self.could_run and self.failure is None and all(check.ok for check in checks)
        episodes = evidence.episodes
        last = next((episode for episode in reversed(episodes) if episode.published_at is not None), None)
        report = DrillReport(
            drill=self.drill.name,
            summary=self.drill.summary,
            passed=passed,
            could_run=self.could_run,
            failure=self.failure,
            checks=checks,
            figures=Figures(
                applies_per_engine=_applies_per_engine(evidence),
                dead_committed=evidence.dead_committed,
                published_ranks=evidence.published,
                control_plane_sec=None if last is None or last.control_plane_sec is None else round(last.control_plane_sec, 4),
                stage_sec={} if last is None else stage_seconds(last),
                late_sec={cell: round(late, 4) for cell, late in evidence.late_sec.items() if late is not None},
                requests=count_requests(evidence.requests, evidence.windows),
                orphans=len(evidence.orphans),
                non_default_timers=scene.stack.non_default_timers(),
            ),
            rounds=tuple(round_figures(episode, zero) for episode in episodes if episode.request_id),
            injections=tuple(injection for _, injection in scene.injected),
            target_ranks=tuple(sorted({rank for _, injection in scene.injected for rank in injection.target_ranks})),
            pod_stops=_pod_stops(evidence, zero),
            completions=tuple(evidence.completions),
            orphan_processes=tuple(evidence.orphans),
            workflows=tuple(evidence.workflows),
            started_at=self.started_at,
            took_sec=round(time.monotonic() - self.began_at, 1),
            run_id=scene.stack.run_id,
            bundle=str(self.directory),
        )
        self._write(evidence, report, zero)
        for check in checks:
            scene.say(DrillEventKind.CHECK, check.name, ok=int(check.ok), failed=int(not check.ok))
        scene.say(DrillEventKind.DONE, verdict(report))
        return report

    def _write(self, evidence: Evidence, report: DrillReport, zero: float) -> None:
        bundle.write_evidence(self.directory, evidence, zero)
        bundle.copy_logs(RunDir(self.run_dir), self.directory)
        self.timeline.write(self.directory / "timeline.jsonl", zero)
        write_picture(
            self.directory / "timeline.svg", picture_of(self.drill.name, verdict(report), evidence, self.timeline, zero)
        )

    def _not_started(self, error: AutotomyError) -> DrillReport:
        bundle.copy_logs(RunDir(self.run_dir), self.directory)
        return DrillReport(
            drill=self.drill.name,
            summary=self.drill.summary,
            passed=False,
            could_run=False,
            failure=f"the installation did not start: {error}".replace(str(self.run_dir), str(self.directory)),
            figures=Figures(non_default_timers=self.drill.spec.non_default_timers()),
            started_at=self.started_at,
            took_sec=round(time.monotonic() - self.began_at, 1),
            bundle=str(self.directory),
        )

    def _on_stack_event(self, event: StackEvent) -> None:
        text = f"{event.name} {event.event}".strip()
        self.options.on_event(DrillEvent(kind=DrillEventKind.STACK, mono=event.mono, text=text))


def _applies_per_engine(evidence: Evidence) -> dict[str, int]:
    """Commands that reached each engine, by its own log; engines without any are left out."""
    counts: dict[str, int] = {}
    for line in evidence.applies:
        counts[str(line.rank)] = counts.get(str(line.rank), 0) + 1
    return dict(sorted(counts.items(), key=lambda item: int(item[0])))


def _pod_stops(evidence: Evidence, zero: float) -> tuple[PodStop, ...]:
    """Ends of NodeManagers and Pods since the first injection."""
    ends = (EventKind.EXITED, EventKind.POD_RESTARTED)
    return tuple(
        PodStop(at=round(event.mono - zero, 3), process=event.name, detail=f"{event.event} {event.detail}".strip())
        for event in evidence.stack_events
        if event.event in ends and event.name.startswith(("node-manager", "pod")) and event.mono >= zero
    )
