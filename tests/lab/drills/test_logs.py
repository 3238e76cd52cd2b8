"""What other processes write is read as they write it; a torn last line costs nothing."""

import json
import logging
import time
from pathlib import Path

import pytest

from domain.engine import EngineStatus, Instruction
from lab.drills.record import engine_log, view_log
from lab.drills.record.entry_log import read_entries
from lab.drills.record.timeline import Timeline
from lab.oracle.observations import ApplySeen, EngineIdSeen, RebuildSeen, RecoveredSeen, StatusSeen, ViewSeen
from node_manager.looks import Looks
from service.logging import TextLine


def write(path: Path, lines: list[dict[str, object]], tail: str = "") -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + tail, encoding="utf-8")


def engine_lines(rank: int, begin: float) -> list[dict[str, object]]:
    params = {"removed_dp_ranks": [1], "dp_master_ip": "127.0.0.2", "dp_store_port": 29500}
    return [
        {"mono": begin, "event": "start", "rank": rank, "port": 10000 + rank, "host": "127.0.0.2", "worker_pid": 5},
        {"mono": begin + 1, "event": "ready", "rank": rank, "port": 10000 + rank},
        {"mono": begin + 2, "event": "fault_noticed", "rank": rank, "missing": [1], "step": 7},
        {"mono": begin + 2, "event": "status", "rank": rank, "status": "unhealthy", "ft_state": None, "ft_error": None},
        {
            "mono": begin + 3,
            "event": "apply",
            "rank": rank,
            "instruction": "scale_down",
            "params": params,
            "request_id": "r",
            "http": 202,
        },
        {"mono": begin + 4, "event": "recovery_end", "rank": rank, "ok": True, "request_id": "r", "removed": [1], "error": None},
        {"mono": begin + 5, "event": "exit", "rank": rank, "reason": "SIGTERM", "code": 0},
    ]


def test_engine_logs_give_commands_recoveries_identity_and_the_rebuild(tmp_path: Path) -> None:
    write(tmp_path / "engine-0-11.jsonl", engine_lines(0, 10.0), tail='{"mono": 99, "eve')
    write(tmp_path / "engine-0-12.jsonl", [{**line, "mono": 20.0 + n} for n, line in enumerate(engine_lines(0, 20.0)[:2])])
    lives = engine_log.read_lives(tmp_path)
    assert [(life.started_at, life.ready_at, life.ended_at) for life in lives[0]] == [(10.0, 11.0, 15.0), (20.0, 21.0, None)]
    seen = engine_log.observations(lives, {10000: 0})
    apply = ApplySeen(at=13.0, engine=0, request_id="r", instruction=Instruction.SCALE_DOWN, removed=frozenset({1}))
    assert apply in seen
    assert RecoveredSeen(at=14.0, engine=0, request_id="r") in seen
    assert StatusSeen(at=15.0, rank=0, status=EngineStatus.DEAD, final=True) in seen
    assert RebuildSeen(at=15.0, completed_at=21.0, readmitted=frozenset({0})) in seen


@pytest.mark.parametrize(("ids", "answered"), [([0], 0), ([1], 1), ([None], None), ([0, 0], None), ([], None)])
def test_engine_is_who_its_status_says_at_the_endpoint_where_it_listens(
    tmp_path: Path, ids: list[int | None], answered: int | None
) -> None:
    lines = engine_lines(0, 10.0)
    write(tmp_path / "engine-0-11.jsonl", [*lines, {"mono": 12.5, "event": "identity", "rank": 0, "ids": ids}])
    seen = engine_log.observations(engine_log.read_lives(tmp_path), {10000: 2})
    assert [event for event in seen if isinstance(event, EngineIdSeen)] == [EngineIdSeen(at=12.5, rank=2, answered=answered)]
    assert [event.engine for event in seen if isinstance(event, ApplySeen)] == [2]


def test_view_log_gives_what_was_served_of_this_instance(tmp_path: Path) -> None:
    lines: list[dict[str, object]] = [
        {"mono": 1.0, "event": "start", "incarnation": "a", "instance": None, "ranks": [], "outcome": "started"},
        {"mono": 2.0, "event": "set", "instance": 7, "revision": 1, "ranks": [0, 1], "outcome": "applied"},
        {"mono": 3.0, "event": "set", "instance": 8, "revision": 1, "ranks": [0], "outcome": "applied"},
        {"mono": 4.0, "event": "add", "instance": 7, "revision": 1, "ranks": [0, 1], "outcome": "stale"},
        {"mono": 5.0, "event": "del", "instance": 7, "revision": None, "ranks": None, "outcome": "conflict:DUPLICATE_ID"},
        {"mono": 6.0, "event": "del", "instance": 7, "revision": 2, "ranks": [], "outcome": "applied"},
    ]
    write(tmp_path / "views.jsonl", lines)
    read = view_log.read_view_log(tmp_path / "views.jsonl")
    seen = [event for event in view_log.observations("c", read, 7) if isinstance(event, ViewSeen)]
    assert [(view.at, sorted(view.endpoints), view.revision) for view in seen] == [
        (1.0, [], None),
        (2.0, [0, 1], 1),
        (6.0, [], 2),
    ]
    assert view_log.read_view_log(tmp_path / "missing.jsonl") == []


def test_node_manager_log_gives_the_moment_of_each_sighting_whatever_the_wall_clock_says(tmp_path: Path) -> None:
    log = tmp_path / "node-manager-0.log"
    log.write_text(
        "2026-01-31T12:00:00.123Z INFO    node-manager engine status rank=1 status=dead source=process_exit sequence=4 "
        'mono=4711.0815 why="worker process 12 ended"\n'
        "2026-01-31T11:00:00.456Z INFO    node-manager engine status rank=0 status=unhealthy ft_state=recovering "
        "source=engine sequence=5 mono=4713.5\n"
        "2026-01-31T11:00:00.457Z INFO    node-manager reported ranks=[1] answer=ok\n",
        encoding="utf-8",
    )
    entry, other = read_entries("node-manager-0", log)
    assert (entry.rank, entry.status, entry.source, entry.is_evidence) == (1, "dead", "process_exit", True)
    assert (other.rank, other.ft_state) == (0, "recovering")
    assert [entry.at, other.at] == [4711.0815, 4713.5], "the wall clock was put back by an hour between them"


def test_what_a_node_manager_logs_of_an_engine_is_read(tmp_path: Path) -> None:
    handler = logging.FileHandler(tmp_path / "node-manager-0.log")
    handler.setFormatter(TextLine("node-manager 127.0.0.2"))
    logger = logging.getLogger("node_manager.looks")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    before = time.monotonic()
    try:
        entries = Looks(next_sequence=lambda: 17, on_news=lambda _entry: None, dead_after_poll_failures=1)
        entries.nothing_runs(3, "no engine of it is here")
    finally:
        logger.removeHandler(handler)
        handler.close()
    (entry,) = read_entries("node-manager-0", tmp_path / "node-manager-0.log")
    assert (entry.rank, entry.status, entry.source) == (3, "dead", "process_exit")
    assert before - 0.001 <= entry.at <= time.monotonic()


def test_timeline_is_in_order_and_counts_from_the_injection(tmp_path: Path) -> None:
    timeline = Timeline()
    timeline.add(103.0, "engine/1", "status", "dead")
    timeline.add(101.0, "drill", "inject", "SIGKILL")
    timeline.write(tmp_path / "timeline.jsonl", zero=101.0)
    assert [json.loads(line) for line in (tmp_path / "timeline.jsonl").read_text().splitlines()] == [
        {"t": 0.0, "who": "drill", "what": "inject", "value": "SIGKILL"},
        {"t": 2.0, "who": "engine/1", "what": "status", "value": "dead"},
    ]
