"""One rank's server as its supervisor holds it: the process tree, the client, and the last look at it."""

import logging
import os
from collections.abc import Callable
from pathlib import Path

from domain.engine import EngineStatus
from domain.errors import ProtocolError, Transient
from domain.secrecy import shown_command
from dp_supervisor.rules import Rules, ServerState
from dp_supervisor.server_command import ServerPlan
from engine.client import EngineClient
from engine.process import Loss, ProcessTree, code_text
from service.process_identity import ProcessIdentity, ProcessStat

log = logging.getLogger(__name__)

_MEANING = {
    EngineStatus.HEALTHY: ServerState.HEALTHY,
    EngineStatus.UNHEALTHY: ServerState.RECOVERING,
    EngineStatus.DEAD: ServerState.DEAD,
}


class RankServer:
    """One start of one server. `why` explains the last look where it was not a good one."""

    def __init__(self, plan: ServerPlan, client: EngineClient, *, log_dir: Path | None, on_exit: Callable[["RankServer"], None]):
        """Starts it. Raises `OSError` where that cannot be done."""
        self.plan = plan
        self.look: ServerState | None = None
        self.why = ""
        self._client = client
        self._on_exit = on_exit
        self._exited = False
        self._ending = False
        self._was_healthy = False
        self._tree = ProcessTree.launch(
            plan.command,
            environment={**os.environ, **plan.environment},
            log_path=log_dir / f"rank-{plan.rank}.log" if log_dir is not None else None,
            on_loss=self._on_loss,
            on_root_end=self._on_root_end,
        )
        self._tree.release()
        log.info("server started", extra={"rank": plan.rank, "pid": self.pid, "command": shown_command(plan.command)})

    @property
    def rank(self) -> int:
        return self.plan.rank

    @property
    def pid(self) -> int:
        return self._tree.root.pid

    @property
    def exited(self) -> bool:
        return self._exited

    async def look_health(self, timeout_sec: float) -> ServerState:
        """Whether `/health` answers 200: its API server runs and its engine process lives, no more."""
        try:
            status = await self._client.health(timeout_sec)
        except (Transient, ProtocolError) as error:
            return self._see(ServerState.SILENT if isinstance(error, Transient) else ServerState.WRONG, error.message)
        return self._see(ServerState.HEALTHY if status == 200 else ServerState.WRONG, f"/health answered {status}")

    async def look_status(self, timeout_sec: float) -> ServerState:
        """What the rank says of itself. A word that nobody knows is a wrong answer: nothing can be concluded from it."""
        try:
            entry = await self._client.status(timeout_sec)
        except (Transient, ProtocolError) as error:
            return self._see(ServerState.SILENT if isinstance(error, Transient) else ServerState.WRONG, error.message)
        words = " ".join(filter(None, [entry.status, entry.ft_state, entry.fault_info, entry.ft_error]))
        look = _MEANING[EngineStatus(entry.status)] if entry.status in _MEANING else ServerState.WRONG
        return self._see(look, f"the rank says: {words}")

    async def look_by(self, rules: Rules, timeout_sec: float) -> ServerState:
        """The look that these rules judge."""
        if self._exited:
            return self._see(ServerState.EXITED, self.why)
        return await (self.look_health if rules is Rules.STOCK else self.look_status)(timeout_sec)

    def find_workers(self, table: dict[int, ProcessStat]) -> None:
        """Learns of worker processes that are not known yet, so that none outlives the server."""
        self._tree.rescan(table)

    async def end(self, grace_sec: float) -> bool:
        """Ends the whole tree: SIGTERM, `grace_sec`, SIGKILL. True when nothing of it is left."""
        self._ending = True
        gone = await self._tree.terminate(grace_sec)
        if not gone:
            log.error("processes of a server are left", extra={"rank": self.rank, "pid": self.pid})
        return gone

    def close(self) -> None:
        """Stops watching."""
        self._tree.close()

    def _see(self, look: ServerState, why: str) -> ServerState:
        if self._exited:  # also when it went in the middle of the look
            look, why = ServerState.EXITED, self.why
        if look is not self.look:
            expected = look is ServerState.HEALTHY or not self._was_healthy  # it takes its time to start
            level = logging.INFO if expected and look is not ServerState.EXITED else logging.WARNING
            log.log(
                level, "rank seen", extra={"rank": self.rank, "look": look, "why": "" if look is ServerState.HEALTHY else why}
            )
        self.look, self.why = look, "" if look is ServerState.HEALTHY else why
        self._was_healthy = self._was_healthy or look is ServerState.HEALTHY
        return look

    def _on_loss(self, loss: Loss) -> None:
        level = logging.INFO if self._ending else logging.WARNING
        log.log(level, "process ended", extra={"rank": self.rank, "what": str(loss)})

    def _on_root_end(self, root: ProcessIdentity) -> None:
        code = self._tree.exit_code
        self._exited = True
        self.why = f"server process {root.pid} ended" + (f" with {code_text(code)}" if code is not None else "")
        self._on_exit(self)
