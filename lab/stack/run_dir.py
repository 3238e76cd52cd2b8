"""The directory of one installation: what was asked for, what became of it, its logs and what must survive a crash.

spec.json     what was asked for (`LaunchOrder`), written by whoever starts the stack
stack.json    what there is now (`lab.stack.record`), written by the supervisor
events.jsonl  what happened, one line an event
control.sock  the supervisor's ear (`lab.stack.control`)
kept          its installation was stopped by `down --keep`: the next `up` resumes it
lock          held by the supervisor while it lives: one supervisor a directory
config/       the configuration files of the processes
state/        the server's database, the NodeManagers' journals
logs/         one file a process, `engines/` for the engines' own logs
"""

import errno
import fcntl
import os
import shutil
from pathlib import Path
from typing import Final

from pydantic import Field, ValidationError

from domain.errors import ConfigError, Refused
from domain.model import Strict
from lab.stack.record import StackRecord
from lab.stack.spec import StackSpec

STATE_HOME_VARIABLE: Final = "XDG_STATE_HOME"


class RunDirInUse(Refused):
    """Another supervisor lives in that directory."""

    default_reason = "RUN_DIR_IN_USE"


class LaunchOrder(Strict):
    """`spec.json`: what a supervisor is told."""

    run_id: str = Field(min_length=8)
    spec: StackSpec
    ephemeral: bool = False
    """Remove the run directory too when the owner died and can no longer do it."""

    ports: tuple[int, ...] | None = None
    """What was drawn when it was planned, in that order: a resumed installation listens where the one before did. None: it
    was never planned."""

    resumed: bool = False
    """Go on with what is in `state/`, and with the engines that still run."""


def default_run_dir(name: str = "local") -> Path:
    """`$XDG_STATE_HOME/autotomy/<name>`, by default below `~/.local/state`."""
    home = os.environ.get(STATE_HOME_VARIABLE)
    return (Path(home) if home else Path.home() / ".local" / "state") / "autotomy" / name


class RunDir:
    """The files of one installation."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    def __str__(self) -> str:
        return str(self.path)

    @property
    def spec_file(self) -> Path:
        return self.path / "spec.json"

    @property
    def record_file(self) -> Path:
        return self.path / "stack.json"

    @property
    def lock_file(self) -> Path:
        return self.path / "lock"

    @property
    def kept_file(self) -> Path:
        return self.path / "kept"

    @property
    def events_file(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def engine_logs(self) -> Path:
        return self.logs / "engines"

    @property
    def state(self) -> Path:
        return self.path / "state"

    @property
    def config(self) -> Path:
        return self.path / "config"

    def log_file(self, process: str) -> Path:
        """What a process says on stdout and stderr, over all its lives."""
        return self.logs / f"{process}.log"

    def create(self) -> None:
        """Make the directory and its parts, for this user alone. Raises ConfigError where that is not possible."""
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            for part in (self.logs, self.engine_logs, self.state, self.config):
                part.mkdir(exist_ok=True)
        except OSError as error:
            raise self.unusable(error) from None

    def unusable(self, error: OSError) -> ConfigError:
        """What is said of a directory in which nothing can live."""
        why = os.strerror(errno.ENOTDIR) if isinstance(error, FileExistsError) else error.strerror
        return ConfigError(f"run directory {self.path}: {why}; choose another with --run-dir")

    def clear(self) -> None:
        """Remove what an earlier installation left: its story, its logs, its databases. The caller knows it is gone."""
        for file in (self.record_file, self.spec_file, self.events_file, self.kept_file):
            file.unlink(missing_ok=True)
        for part in (self.logs, self.state, self.config):
            shutil.rmtree(part, ignore_errors=True)
        self.create()

    def lock(self) -> int:
        """Become the one supervisor of this directory, until the returned descriptor is closed.

        Raises RunDirInUse, ConfigError where there can be no lock, FileNotFoundError where there is no directory.
        """
        try:
            descriptor = os.open(self.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self.unusable(error) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise self.in_use() from None
        return descriptor

    def in_use(self) -> RunDirInUse:
        """What is said to whoever wants to start a second stack here."""
        return RunDirInUse(f"a stack already runs in {self.path}; stop it with `autotomy down --run-dir {self.path}`")

    def is_locked(self) -> bool:
        """Whether a supervisor lives here. Raises ConfigError where none can."""
        try:
            os.close(self.lock())
        except RunDirInUse:
            return True
        except FileNotFoundError:
            return False
        return False

    def read_record(self) -> StackRecord | None:
        """What the supervisor last wrote; None if there never was one. Raises ConfigError for a file that is not ours."""
        try:
            return StackRecord.model_validate_json(self.record_file.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self.unusable(error) from None
        except ValidationError as error:
            raise ConfigError(f"{self.record_file} cannot be read: {error.errors()[0]['msg']}; remove the directory") from None

    def write_record(self, record: StackRecord) -> None:
        """Replace `stack.json` in one piece: a reader sees the old one or the new one."""
        _write_whole(self.record_file, record.model_dump_json(indent=2))

    def read_order(self) -> LaunchOrder:
        """What the supervisor of this directory is to start. Raises ConfigError."""
        try:
            return LaunchOrder.model_validate_json(self.spec_file.read_bytes())
        except (OSError, ValidationError) as error:
            raise ConfigError(f"{self.spec_file} cannot be read: {error}") from None

    def write_order(self, order: LaunchOrder) -> None:
        """Say what is to be started. Raises ConfigError where that cannot be written."""
        try:
            _write_whole(self.spec_file, order.model_dump_json(indent=2))
        except OSError as error:
            raise ConfigError(
                f"{self.spec_file} cannot be written: {error.strerror}; make room or choose another directory with --run-dir"
            ) from None


def _write_whole(path: Path, text: str) -> None:
    scratch = path.with_suffix(".new")
    try:
        scratch.write_text(text, encoding="utf-8")
        scratch.replace(path)
    except OSError:
        scratch.unlink(missing_ok=True)
        raise
