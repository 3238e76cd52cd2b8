"""The journal: durable, bounded, locked, and closed where it cannot be trusted."""

import contextlib
import os
import sqlite3
import time
from pathlib import Path

import pytest

from domain.errors import ConfigError
from domain.messages.node_manager import FtPacing
from domain.pod.records import Transaction, Verdict
from node_manager.journal import HISTORY, EngineRecord, Journal, JournalError, Standing


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "journal.sqlite"


def reopened(journal: Journal, path: Path) -> Journal:
    journal.close()
    return Journal(path)


def test_what_was_committed_is_there_again(path: Path) -> None:
    journal = Journal(path)
    pacing = FtPacing(
        enable_dp_scale_down_proxy=True, poll_interval_sec=1, fault_poll_interval_sec=0.25, engine_request_timeout_sec=4
    )
    standing = Standing(highest_generation=7, retired=(1,), dead_committed=(1, 3), pacing=pacing)
    engine = EngineRecord(identity="boot:1:2", rank=0, generation=7, workers=("boot:3:4",), ready=True)
    transaction = Transaction(request_id="A", generation=7, verdict=Verdict.COMMITTED, retired=(1,))
    journal.commit(standing=standing, engines=[engine], transactions=[transaction])
    journal = reopened(journal, path)
    assert journal.standing == standing
    assert journal.engines == (engine,)
    assert journal.transaction("A") == transaction
    assert journal.transaction("B") is None
    assert journal.start is None
    journal.commit(gone=[engine.identity])
    journal = reopened(journal, path)
    assert journal.engines == ()
    journal.close()


def test_a_new_journal_numbers_above_the_one_that_was_lost(path: Path) -> None:
    with contextlib.closing(Journal(path)) as journal:
        lost = [journal.next_sequence() for _ in range(3)]
    path.unlink()
    time.sleep(0.01)  # no restart is quicker
    with contextlib.closing(Journal(path)) as journal:
        assert journal.next_sequence() > max(lost)


def test_sequence_numbers_never_come_back(path: Path) -> None:
    journal = Journal(path)
    given: list[int] = []
    for _ in range(3):
        given += [journal.next_sequence() for _ in range(1500)]
        journal = reopened(journal, path)
    journal.close()
    assert given == sorted(set(given))
    assert given[0] > 0, "0 means: never numbered"


def test_history_is_bounded_and_tombstones_stay(path: Path) -> None:
    journal = Journal(path)
    journal.commit(transactions=[Transaction(request_id="open")])
    for number in range(HISTORY + 50):
        settled = Transaction(request_id=f"r-{number}", verdict=Verdict.ABORTED)
        journal.commit(transactions=[settled], calls=[(settled.request_id, 0)])
    assert len(journal.transactions()) == HISTORY + 1
    assert journal.transactions()[0].request_id == "open"
    journal = reopened(journal, path)
    first = journal.transaction("r-0")
    assert first is not None
    assert first.verdict is Verdict.ABORTED
    journal.close()


def test_second_call_of_one_engine_under_one_id_cannot_be_written(path: Path) -> None:
    journal = Journal(path)
    journal.commit(calls=[("A", 0), ("A", 1), ("B", 0)])
    with pytest.raises(JournalError):
        journal.commit(calls=[("A", 1)])
    journal.close()


def test_failed_commit_leaves_nothing_of_itself_and_closes_the_journal(path: Path) -> None:
    journal = Journal(path)
    journal.commit(calls=[("A", 0)])
    with pytest.raises(JournalError):
        journal.commit(standing=Standing(highest_generation=9), calls=[("A", 0)])
    with pytest.raises(JournalError):
        _ = journal.standing
    journal = reopened(journal, path)
    assert journal.standing.highest_generation == 0
    journal.close()


@pytest.mark.parametrize("damage", ["empty", "cut", "garbage", "foreign", "version", "row"])
def test_damaged_journal_fails_closed_and_is_not_replaced(path: Path, damage: str) -> None:
    journal = Journal(path)
    for number in range(50):
        journal.commit(transactions=[Transaction(request_id=f"r-{number}")])
    journal.close()
    spoil(path, damage)
    before = path.read_bytes()
    journal = Journal(path)
    assert journal.broken is not None
    for use in (lambda: journal.standing, lambda: journal.transaction("A"), lambda: journal.commit(standing=Standing())):
        with pytest.raises(JournalError, match=str(path)):
            use()
    journal.close()
    assert path.read_bytes() == before


def spoil(path: Path, damage: str) -> None:
    content = path.read_bytes()
    match damage:
        case "empty":
            path.write_bytes(b"")
        case "cut":
            path.write_bytes(content[: len(content) // 2])
        case "garbage":
            path.write_bytes(content[:4096] + os.urandom(len(content) - 4096))
        case "foreign":
            path.unlink()
            execute(path, "CREATE TABLE something (a)")
        case "version":
            execute(path, "PRAGMA user_version = 99")
        case "row":
            execute(path, 'UPDATE state SET value = \'{"highest_generation": "many"}\'')


def execute(path: Path, statement: str) -> None:
    database = sqlite3.connect(path, isolation_level=None)
    database.execute(statement)
    database.close()


def test_disk_full_fails_closed(path: Path) -> None:
    journal = Journal(path)
    database = journal._database
    assert database is not None
    database.execute("PRAGMA max_page_count = 1")  # SQLite answers "database or disk is full", as on a full disk
    with pytest.raises(JournalError, match="full"):
        fill(journal)
    assert journal.broken is not None
    assert journal.next_sequence() < journal.next_sequence()
    journal.close()


def fill(journal: Journal) -> None:
    for number in range(1000):
        journal.commit(transactions=[Transaction(request_id=f"r-{number}" * 50)])


def test_place_where_no_file_can_be_is_broken_not_a_crash(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    journal = Journal(tmp_path / "file" / "journal.sqlite")
    assert journal.broken is not None
    journal.close()


def test_two_node_managers_on_one_journal_are_refused(path: Path) -> None:
    journal = Journal(path)
    with pytest.raises(ConfigError, match="another NodeManager"):
        Journal(path)
    journal.close()


def test_crash_while_a_new_journal_is_made_leaves_no_half_of_one(path: Path) -> None:
    path.parent.mkdir()
    path.with_name(path.name + ".new").write_bytes(b"half")
    journal = Journal(path)
    assert journal.broken is None
    journal.close()


def _with_three_changes(path: Path) -> None:
    journal = Journal(path)
    for generation in (1, 2, 3):
        journal.commit(standing=journal.standing.model_copy(update={"highest_generation": generation}))
    _die(journal)


def _die(journal: Journal) -> None:
    """As by SIGKILL: nothing is closed, so SQLite takes nothing over from the -wal file into the database."""
    assert journal._database is not None
    assert journal._lock is not None
    os.close(journal._lock)


@pytest.mark.parametrize("damage", ["gone", "empty", "garbage", "cut"])
def test_a_journal_without_its_newest_changes_fails_closed(path: Path, damage: str) -> None:
    _with_three_changes(path)
    copy = path.parent / "copy" / path.name  # the first connection still holds the original
    copy.parent.mkdir()
    for name in (path.name, f"{path.name}.lock", f"{path.name}-wal"):
        (copy.parent / name).write_bytes((path.parent / name).read_bytes())
    wal = copy.with_name(f"{path.name}-wal")
    assert wal.stat().st_size > 0
    match damage:
        case "gone":
            wal.unlink()
        case "empty":
            wal.write_bytes(b"")
        case "garbage":
            wal.write_bytes(os.urandom(wal.stat().st_size))
        case "cut":
            wal.write_bytes(wal.read_bytes()[: wal.stat().st_size // 2])
    journal = Journal(copy)
    assert journal.broken is not None
    assert "-wal file" in journal.broken
    with pytest.raises(JournalError):
        _ = journal.standing
    journal.close()


def test_the_same_journal_with_its_newest_changes_is_whole(path: Path) -> None:
    _with_three_changes(path)
    copy = path.parent / "copy" / path.name
    copy.parent.mkdir()
    for name in (path.name, f"{path.name}.lock", f"{path.name}-wal"):
        (copy.parent / name).write_bytes((path.parent / name).read_bytes())
    with contextlib.closing(Journal(copy)) as journal:
        assert journal.broken is None
        assert journal.standing.highest_generation == 3


def test_a_kill_between_the_change_and_its_number_loses_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(path)
    journal.commit(standing=Standing(highest_generation=1))
    monkeypatch.setattr("node_manager.journal._write_epoch", lambda epoch, lock: None)
    journal.commit(standing=Standing(highest_generation=2))
    monkeypatch.undo()
    journal = reopened(journal, path)
    assert journal.standing.highest_generation == 2
    journal.commit(standing=Standing(highest_generation=3))
    assert reopened(journal, path).standing.highest_generation == 3


@pytest.mark.parametrize("content", [b"", b"garbage", b"00000000000000000003 00000000\n"])
def test_a_journal_whose_lock_file_does_not_tell_fails_closed(path: Path, content: bytes) -> None:
    journal = Journal(path)
    journal.commit(standing=Standing(highest_generation=1))
    journal.close()
    path.with_name(f"{path.name}.lock").write_bytes(content)
    journal = Journal(path)
    assert journal.broken is not None
    assert "lock file" in journal.broken
    journal.close()
