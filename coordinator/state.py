"""The one place where a refresh becomes routing: judged, written down, routed by, answered; without an await between."""

import logging
import time
from dataclasses import dataclass
from uuid import uuid4

from coordinator.figures import Figures
from coordinator.routing import Router
from coordinator.view import Conflict, Refreshed, View, ViewedInstance, refresh
from coordinator.view_log import ViewLog
from domain.messages.controller import CoordinatorAnnouncement
from domain.messages.coordinator import CoordinatorView, PublishedEndpoint, PublishedInstance, RefreshRequest

log = logging.getLogger(__name__)


@dataclass(slots=True)
class CoordinatorState:
    """One life of a Coordinator. `router` always routes by `view`."""

    view: View
    router: Router
    figures: Figures
    view_log: ViewLog
    pushed_at: float | None = None
    """When (monotonic) it last took a push."""

    def announcement(self, url: str) -> CoordinatorAnnouncement:
        """How this life announces itself, from `url`."""
        return CoordinatorAnnouncement(
            url=url,
            incarnation=self.view.incarnation,
            has_view=self.router.has_view,
            last_push_sec_ago=None if self.pushed_at is None else time.monotonic() - self.pushed_at,
        )

    def apply(self, request: RefreshRequest) -> Refreshed | Conflict:
        """Apply a refresh; when this returns, every new request is routed by the new view."""
        before, result = self.view, refresh(self.view, request)
        if isinstance(result, Conflict):
            self.figures.refreshes.labels("conflict").inc()
            log.warning("refresh refused", extra={"reason": result.reason, "why": result.message})
        else:
            self.pushed_at = time.monotonic()
            if result.outcome.applied or result.view.opened != before.opened:
                self.view = result.view
                self.router.adopt(result.view)
            self._count_and_log(before, request, result)
        self.view_log.record(self.view, request, result)
        return result

    def _count_and_log(self, before: View, request: RefreshRequest, result: Refreshed) -> None:
        outcome = result.outcome
        for name, count in (("applied", outcome.applied), ("unchanged", outcome.unchanged), ("stale", outcome.stale)):
            self.figures.refreshes.labels(name).inc(len(count))
        if self.view.opened and not before.opened:
            log.info("routing is open", extra={"instances": len(self.view.instances)})
        for instance_id in outcome.applied:
            now = self.view.instances.get(instance_id)
            ranks, revision = (list(now.ranks), now.revision) if now else ([], None)
            shown = {"event": request.event, "instance": instance_id, "revision": revision, "ranks": ranks}
            log.info("view applied", extra=shown)
        for entry in outcome.stale:
            shown = {"event": request.event, "instance": entry.id, "revision": entry.revision, "known": entry.known}
            log.info("stale refresh ignored", extra=shown)

    def published(self) -> CoordinatorView:
        """The view as GET /instances tells it."""
        instances = sorted(self.view.instances.values(), key=lambda instance: instance.id)
        return CoordinatorView(
            incarnation=self.view.incarnation,
            has_view=self.view.opened,
            instances=tuple(_published(instance) for instance in instances),
        )


def _published(instance: ViewedInstance) -> PublishedInstance:
    endpoints: dict[str, dict[str, PublishedEndpoint]] = {}
    for e in instance.endpoints:
        endpoints.setdefault(e.pod_ip, {})[str(e.id)] = PublishedEndpoint(
            id=e.id, ip=e.ip, business_port=e.business_port, status=e.status, headless=e.headless
        )
    return PublishedInstance(
        id=instance.id,
        job_name=instance.job_name,
        model_name=instance.model_name,
        role=instance.role,
        revision=instance.revision,
        paused=instance.paused,
        endpoints=endpoints,
    )


def new_incarnation() -> str:
    """A name for this life: a push that was computed for another one is refused by it."""
    return uuid4().hex
