"""Process trees with real processes: the gate, the first loss, adoption, and an end that leaves nothing."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from engine.process import Loss, MemberRole, ProcessTree
from service.process_identity import ProcessIdentity, boot_id, open_pidfd, process_table, read_stat
from tests.eventually import eventually

ENGINE = """
import signal, subprocess, sys, time
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "autotomy-sim-worker"])
print("worker", worker.pid, flush=True)
{behaviour}
time.sleep(60)
"""


@dataclass
class Trees:
    """Launches trees whose losses are collected; ends what a test leaves."""

    folder: Path
    losses: list[Loss] = field(default_factory=list)
    ended_roots: list[ProcessIdentity] = field(default_factory=list)
    made: list[ProcessTree] = field(default_factory=list)

    @property
    def log(self) -> Path:
        return self.folder / "engine.log"

    def launch(self, *, argv: list[str] | None = None, behaviour: str = "") -> ProcessTree:
        command = argv or [sys.executable, "-c", ENGINE.format(behaviour=behaviour)]
        tree = ProcessTree.launch(
            command,
            environment=dict(os.environ),
            log_path=self.log,
            on_loss=self.losses.append,
            on_root_end=self.ended_roots.append,
        )
        self.made.append(tree)
        return tree

    def adopt(self, root: ProcessIdentity, workers: tuple[ProcessIdentity, ...]) -> ProcessTree:
        tree = ProcessTree.adopt(root, workers, on_loss=self.losses.append, on_root_end=self.ended_roots.append)
        self.made.append(tree)
        return tree

    async def launched_with_worker(self, behaviour: str = "") -> ProcessTree:
        tree = self.launch(behaviour=behaviour)
        tree.release()
        await eventually(lambda: tree.rescan(process_table()))
        return tree


@pytest.fixture
async def trees(tmp_path: Path) -> AsyncIterator[Trees]:
    trees = Trees(tmp_path)
    yield trees
    for tree in trees.made:
        await tree.terminate(0.0)
        tree.close()


def alive(identity: ProcessIdentity) -> bool:
    pidfd = open_pidfd(identity)
    if pidfd is not None:
        os.close(pidfd)
    return pidfd is not None


async def test_nothing_runs_before_release(trees: Trees) -> None:
    tree = trees.launch(argv=[sys.executable, "-c", "print('ran', flush=True)"])
    assert alive(tree.root)
    assert trees.log.read_text() == ""
    tree.release()
    await eventually(lambda: trees.log.read_text() == "ran\n")
    await eventually(lambda: trees.losses)
    assert trees.losses[0].exit_code == 0


async def test_a_gate_whose_keeper_dies_never_opens(trees: Trees) -> None:
    tree = trees.launch(argv=[sys.executable, "-c", "print('ran', flush=True)"])
    root = tree.root
    tree.close()
    await eventually(lambda: not alive(root))
    assert trees.log.read_text() == ""


async def test_engine_has_its_own_session_and_worker_is_found(trees: Trees) -> None:
    tree = await trees.launched_with_worker()
    stat = read_stat(tree.root.pid)
    assert stat is not None
    assert stat.session == tree.root.pid
    (worker,) = tree.workers
    await eventually(lambda: f"worker {worker.pid}" in trees.log.read_text())
    assert str(worker).startswith(boot_id())


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, -15)])
async def test_killed_api_server_is_a_loss_with_its_signal(trees: Trees, number: signal.Signals, code: int) -> None:
    tree = await trees.launched_with_worker()
    os.kill(tree.root.pid, number)
    await eventually(lambda: trees.losses)
    assert (trees.losses[0].role, trees.losses[0].exit_code) == (MemberRole.ENGINE, code)
    assert number.name in str(trees.losses[0])


async def test_killed_worker_is_a_loss_though_the_api_server_lives(trees: Trees) -> None:
    tree = await trees.launched_with_worker()
    (worker,) = tree.workers
    began = time.monotonic()
    os.kill(worker.pid, signal.SIGKILL)
    await eventually(lambda: trees.losses)
    assert time.monotonic() - began < 5.0
    assert (trees.losses[0].role, trees.losses[0].identity) == (MemberRole.WORKER, worker)
    assert alive(tree.root)


async def test_only_the_first_loss_is_told_and_the_end_of_the_root_apart_from_it(trees: Trees) -> None:
    tree = await trees.launched_with_worker()
    os.kill(tree.workers[0].pid, signal.SIGKILL)
    await eventually(lambda: trees.losses)
    os.kill(tree.root.pid, signal.SIGKILL)
    assert trees.ended_roots == []
    await eventually(lambda: trees.ended_roots == [tree.root])
    await tree.terminate(0.0)
    assert [loss.role for loss in trees.losses] == [MemberRole.WORKER]


async def test_termination_ends_the_whole_tree_also_what_ignores_sigterm(trees: Trees) -> None:
    tree = await trees.launched_with_worker("signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True)")
    await eventually(lambda: "deaf" in trees.log.read_text())
    members = (tree.root, *tree.workers)
    assert await tree.terminate(0.2)
    assert not any(alive(member) for member in members)


async def test_orphaned_workers_of_a_dead_api_server_are_ended(trees: Trees) -> None:
    tree = await trees.launched_with_worker()
    (worker,) = tree.workers
    os.kill(tree.root.pid, signal.SIGKILL)
    await eventually(lambda: trees.losses)
    assert alive(worker)
    assert await tree.terminate(1.0)
    assert not alive(worker)


async def test_a_fork_that_has_not_become_anybody_is_no_worker(trees: Trees) -> None:
    """Between fork and exec a worker's helper carries the worker's own title; its end means nothing."""
    forking = "import os, time\npid = os.fork()\ntime.sleep(60)"
    tree = trees.launch(argv=[sys.executable, "-c", forking, "autotomy-sim-worker"])
    tree.release()
    await eventually(lambda: [s for s in process_table().values() if s.parent == tree.root.pid])
    assert not tree.rescan(process_table())


def start_foreign_engine(log_path: Path) -> "subprocess.Popen[bytes]":
    with log_path.open("wb") as log:
        return subprocess.Popen([sys.executable, "-c", ENGINE.format(behaviour="")], start_new_session=True, stdout=log)


@contextlib.asynccontextmanager
async def foreign_engine(folder: Path) -> AsyncIterator[tuple[ProcessIdentity, ProcessIdentity]]:
    """An engine with one worker that an earlier life of the NodeManager started: not our child to wait for here."""
    engine = start_foreign_engine(folder / "foreign.log")
    try:
        await eventually(lambda: (folder / "foreign.log").read_text().startswith("worker"))
        worker = int((folder / "foreign.log").read_text().split()[1])
        yield ProcessIdentity.of(engine.pid), ProcessIdentity.of(worker)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(engine.pid, signal.SIGKILL)
        engine.wait(10)


async def test_adopted_tree_tells_losses_and_ends_like_an_own_one(trees: Trees) -> None:
    async with foreign_engine(trees.folder) as (root, worker):
        tree = trees.adopt(root, (worker,))
        assert tree.loss is None
        os.kill(worker.pid, signal.SIGKILL)
        await eventually(lambda: trees.losses)
        assert trees.losses[0].role is MemberRole.WORKER
        assert await tree.terminate(1.0)
        assert not alive(root)


async def test_what_ended_before_adoption_is_a_loss_at_once(trees: Trees) -> None:
    async with foreign_engine(trees.folder) as (root, worker):
        os.kill(worker.pid, signal.SIGKILL)
        await eventually(lambda: not alive(worker))
        assert trees.adopt(root, (worker,)).loss is not None


async def test_orphans_are_ended_after_adoption_too(trees: Trees) -> None:
    async with foreign_engine(trees.folder) as (root, worker):
        os.kill(root.pid, signal.SIGKILL)
        await eventually(lambda: not alive(root))
        tree = trees.adopt(root, (worker,))
        assert tree.loss is not None
        assert alive(worker)
        assert await tree.terminate(1.0)
        assert not alive(worker)


async def test_a_remembered_pid_that_is_somebody_else_now_is_never_touched(trees: Trees) -> None:
    async with foreign_engine(trees.folder) as (root, worker):
        earlier = ProcessIdentity(root.boot, root.pid, root.start_ticks - 1)
        other_boot = ProcessIdentity("another-boot", root.pid, root.start_ticks)
        for stranger in (earlier, other_boot):
            tree = trees.adopt(stranger, ())
            assert tree.loss is not None
            assert await tree.terminate(0.0)
        assert alive(root)
        assert alive(worker)
