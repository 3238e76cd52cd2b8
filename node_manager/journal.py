"""What a NodeManager must still know after it was killed: SQLite on the Pod's disk, written before each effect.

Three kinds of knowledge, each a strict model stored as JSON:

* the *standing*: highest generation, guard, retired and committed ranks, the reserved sequence numbers; and the *start*
  command under which the engines run;
* the *transactions*, one a request id, and which engine was called under which id (a primary key: a second call under
  one id cannot even be written down);
* the *engines*: who they are, so that they can be found again.

Every change is one SQLite transaction with `synchronous=FULL`: when `commit` returns, it is on disk. A journal that
cannot be read or written **fails closed**: it stays `broken` and every use raises `JournalError`. It is never created
anew over one that was there, because an empty journal would allow a second apply. (A new one is made complete under
another name first, so that no crash leaves a half-made one behind.)

SQLite opens a database whose `-wal` file is empty, damaged or gone without a word, as what it was some time ago. So each
change has a number, its *epoch*: in the database, and then, once that is on disk, in the lock file beside it. A database that
is behind the lock file is an older truth, and broken.
"""

import contextlib
import fcntl
import logging
import os
import re
import sqlite3
import time
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from domain.errors import ConfigError, Refused
from domain.messages.node_manager import FtPacing, NodeManagerReason, StartRequest
from domain.model import Strict
from domain.pod.records import PodStanding, Transaction

log = logging.getLogger(__name__)

HISTORY: Final = 200
"""How many settled transactions are kept in full; of older ones the verdict stays."""

SEQUENCE_BLOCK: Final = 1000
_EPOCH: Final = re.compile(rb"(\d{20}) ([0-9a-f]{8})\n\Z")
"""The lock file's content: the epoch, and its CRC-32."""

_APPLICATION_ID: Final = 0x4155544F  # "AUTO"
_SCHEMA_VERSION: Final = 2
_SCHEMA: Final = """
CREATE TABLE state (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE transactions (position INTEGER PRIMARY KEY AUTOINCREMENT, request_id TEXT NOT NULL UNIQUE, settled INTEGER NOT NULL,
                           record TEXT NOT NULL);
CREATE TABLE tombstones (request_id TEXT PRIMARY KEY, record TEXT NOT NULL);
CREATE TABLE engine_calls (request_id TEXT NOT NULL, rank INTEGER NOT NULL, PRIMARY KEY (request_id, rank));
CREATE TABLE engines (identity TEXT PRIMARY KEY, record TEXT NOT NULL);
"""


class JournalError(Refused):
    """The journal cannot be read or written; nothing that depends on it is done."""

    default_reason = NodeManagerReason.JOURNAL.value


class Standing(PodStanding):
    """The single values. `sequence_ceiling`: every sequence number below it may have been used; 0 never is."""

    pacing: FtPacing | None = None
    sequence_ceiling: int = 1


class EngineRecord(Strict):
    """One engine that was launched. `leftover`: to be ended, a newer start or a stop came."""

    identity: str
    rank: int
    generation: int
    workers: tuple[str, ...] = ()
    ready: bool = False
    leftover: bool = False


class Journal:
    """Used from one thread. `standing`, `start` and `engines` are what the disk holds."""

    def __init__(self, path: Path) -> None:
        """Opens or creates. A journal that cannot be used is `broken` from the start. Raises `ConfigError` if another
        NodeManager has it open."""
        self._path = path
        self._broken: str | None = None
        self._database: sqlite3.Connection | None = None
        self._lock: int | None = None
        self._standing = Standing()
        self._start: StartRequest | None = None
        self._engines: dict[str, EngineRecord] = {}
        self._next_sequence = 1
        self._epoch = 0
        with self._failing_closed("open"):
            self._open()

    @property
    def broken(self) -> str | None:
        """Why the journal cannot be used, or None."""
        return self._broken

    @property
    def standing(self) -> Standing:
        self._check()
        return self._standing

    @property
    def start(self) -> StartRequest | None:
        """The start command that holds, or None: idle."""
        self._check()
        return self._start

    @property
    def engines(self) -> tuple[EngineRecord, ...]:
        self._check()
        return tuple(self._engines.values())

    def transaction(self, request_id: str) -> Transaction | None:
        """The transaction of this id; of one that is long over, its tombstone."""
        with self._reading() as database:
            for table in ("transactions", "tombstones"):
                row = database.execute(f"SELECT record FROM {table} WHERE request_id = ?", (request_id,)).fetchone()
                if row is not None:
                    return Transaction.model_validate_json(row[0])
        return None

    def transactions(self) -> tuple[Transaction, ...]:
        """All that are kept in full, oldest first."""
        with self._reading() as database:
            rows = database.execute("SELECT record FROM transactions ORDER BY position").fetchall()
            return tuple(Transaction.model_validate_json(row[0]) for row in rows)

    def commit(
        self,
        *,
        standing: Standing | None = None,
        start: StartRequest | None = None,
        forget_start: bool = False,
        transactions: Iterable[Transaction] = (),
        calls: Iterable[tuple[str, int]] = (),
        engines: Iterable[EngineRecord] = (),
        gone: Iterable[str] = (),
    ) -> None:
        """All of it on disk, or nothing and `JournalError`.

        `calls`: (request id, rank) that are about to be made. `gone`: identities of engines to forget.
        """
        engines, gone = tuple(engines), tuple(gone)
        with self._writing() as database:
            if standing is not None:
                _put(database, "standing", standing)
            if start is not None:
                _put(database, "start", start)
            if forget_start:
                database.execute("DELETE FROM state WHERE name = 'start'")
            for transaction in transactions:
                _put_transaction(database, transaction)
            database.executemany("INSERT INTO engine_calls VALUES (?, ?)", calls)
            rows = [(record.identity, record.model_dump_json()) for record in engines]
            database.executemany("INSERT OR REPLACE INTO engines VALUES (?, ?)", rows)
            database.executemany("DELETE FROM engines WHERE identity = ?", [(identity,) for identity in gone])
        self._standing = standing or self._standing
        self._start = None if forget_start else start or self._start
        self._engines.update({record.identity: record for record in engines})
        for identity in gone:
            self._engines.pop(identity, None)

    def next_sequence(self) -> int:
        """A number greater than any that was given out before, in earlier lives too. Numbers may be left out.

        It goes on counting over a journal that broke meanwhile: reports of faults are still wanted then.
        """
        if self._next_sequence >= self._standing.sequence_ceiling and self._broken is None:
            ceiling = self._next_sequence + SEQUENCE_BLOCK
            with contextlib.suppress(JournalError):
                self.commit(standing=self._standing.model_copy(update={"sequence_ceiling": ceiling}))
        self._next_sequence += 1
        return self._next_sequence - 1

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _open(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = _locked(self._path)
        if not self._path.exists():
            os.ftruncate(self._lock, 0)
            _create(self._path)
            log.info("new journal", extra={"path": self._path})
        database = self._database = sqlite3.connect(self._path, isolation_level=None, timeout=5.0)
        _verify(database)
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        values = dict(database.execute("SELECT name, value FROM state").fetchall())
        self._epoch = int(values["epoch"])
        _check_epoch(self._epoch, self._lock)
        self._standing = Standing.model_validate_json(values["standing"])
        self._start = StartRequest.model_validate_json(values["start"]) if "start" in values else None
        for (record,) in database.execute("SELECT record FROM engines").fetchall():
            engine = EngineRecord.model_validate_json(record)
            self._engines[engine.identity] = engine
        for (record,) in database.execute("SELECT record FROM transactions").fetchall():
            Transaction.model_validate_json(record)
        self._next_sequence = self._standing.sequence_ceiling

    def _check(self) -> None:
        if self._broken is not None:
            raise JournalError(f"journal {self._path} {self._broken}; nothing is done until a person has looked at it")

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        self._check()
        assert self._database is not None
        with self._failing_closed("read"):
            yield self._database
        self._check()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        self._check()
        assert self._database is not None
        with self._failing_closed("written"):
            with _one_transaction(self._database):
                yield self._database
                _put_epoch(self._database, self._epoch + 1)
            self._epoch += 1
            assert self._lock is not None
            _write_epoch(self._epoch, self._lock)
        self._check()

    @contextlib.contextmanager
    def _failing_closed(self, what: str) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError, ValidationError, ValueError, KeyError) as error:
            self._broken = f"cannot be {what}: {' '.join(str(error).split())}"
            log.critical(
                "journal is broken, all fault-tolerance commands are refused", extra={"path": self._path, "why": self._broken}
            )


@contextlib.contextmanager
def _one_transaction(database: sqlite3.Connection) -> Iterator[None]:
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            database.execute("ROLLBACK")
        raise


def _put(database: sqlite3.Connection, name: str, value: Strict) -> None:
    database.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", (name, value.model_dump_json()))


def _put_epoch(database: sqlite3.Connection, epoch: int) -> None:
    database.execute("INSERT OR REPLACE INTO state VALUES ('epoch', ?)", (str(epoch),))


def _write_epoch(epoch: int, lock: int) -> None:
    digits = b"%020d" % epoch
    os.pwrite(lock, b"%s %08x\n" % (digits, zlib.crc32(digits)), 0)
    os.fdatasync(lock)


def _check_epoch(epoch: int, lock: int) -> None:
    """Raises `ValueError` where the database is older than what was written last, or nobody can tell.

    It may be one ahead: a NodeManager was killed between the two writes.
    """
    content = os.pread(lock, 64, 0)
    if not content and epoch == 0:
        return  # just created
    found = _EPOCH.match(content)
    if found is None or zlib.crc32(found[1]) != int(found[2], 16):
        raise ValueError("its lock file does not tell which change was the last one, so nobody knows whether it is whole")
    if epoch < int(found[1]):
        raise ValueError(
            f"it holds {epoch} of {int(found[1])} changes: what is missing stood in its -wal file, which is gone or damaged"
        )


def _put_transaction(database: sqlite3.Connection, transaction: Transaction) -> None:
    database.execute(
        "INSERT INTO transactions (request_id, settled, record) VALUES (?, ?, ?) "
        "ON CONFLICT (request_id) DO UPDATE SET settled = excluded.settled, record = excluded.record",
        (transaction.request_id, transaction.verdict is not None, transaction.model_dump_json()),
    )
    if transaction.verdict is not None:
        _shorten_history(database)


def _shorten_history(database: sqlite3.Connection) -> None:
    """Old settled transactions become tombstones; open ones stay, whatever their age."""
    rows = database.execute(
        "SELECT position, record FROM transactions WHERE settled ORDER BY position DESC LIMIT -1 OFFSET ?", (HISTORY,)
    ).fetchall()
    for position, record in rows:
        old = Transaction.model_validate_json(record)
        tombstone = Transaction(request_id=old.request_id, generation=old.generation, verdict=old.verdict)
        database.execute("INSERT OR REPLACE INTO tombstones VALUES (?, ?)", (old.request_id, tombstone.model_dump_json()))
        database.execute("DELETE FROM transactions WHERE position = ?", (position,))
        database.execute("DELETE FROM engine_calls WHERE request_id = ?", (old.request_id,))


def _verify(database: sqlite3.Connection) -> None:
    """Raises where the file is not a whole journal of ours."""
    application = database.execute("PRAGMA application_id").fetchone()[0]
    version = database.execute("PRAGMA user_version").fetchone()[0]
    if application != _APPLICATION_ID:
        raise ValueError("it is not a NodeManager's journal, or was cut off")
    if version != _SCHEMA_VERSION:
        raise ValueError(f"it has schema version {version}, this NodeManager knows {_SCHEMA_VERSION}")
    verdict = database.execute("PRAGMA quick_check(1)").fetchone()[0]
    if verdict != "ok":
        raise ValueError(f"it is damaged: {verdict}")


def _create(path: Path) -> None:
    """A whole, empty journal under another name, then renamed: there is never half of one."""
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(draft, isolation_level=None)) as database:
        database.executescript(_SCHEMA)
        _put(database, "standing", Standing(sequence_ceiling=_first_sequence()))
        _put_epoch(database, 0)
        database.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        database.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")
    draft.rename(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _first_sequence() -> int:
    """Above what a journal that was lost here can have given out: a look tells its number, not in which life it was taken.

    The wall clock serves as a number that grows, no more: stepped back, it makes the news of a Pod that lost its disk look
    old for as long; within a journal the numbers only ever go up.
    """
    return int(time.time() * 1000)


def _locked(path: Path) -> int:
    """Two NodeManagers on one journal would each believe their own half of it."""
    lock = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise ConfigError(f"journal {path} is in use by another NodeManager; give each its own") from None
    except OSError:
        os.close(lock)
        raise
    return lock
