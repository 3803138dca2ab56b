"""Where do things live? By XDG for a user, in the system's places for root, or where the config says."""

from __future__ import annotations

import fcntl
import grp
import os
import socket
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from cotenant.errors import ConfigError, WorldError
from cotenant.format.config import Config, DirectoriesConfig, decode_config
from cotenant.live.clock import pause

_SOCKET_PATH_LIMIT: Final = 107  # sun_path of a Unix socket address, less its terminating zero
_NAMING_TRIES: Final = 300
_NAMING_S: Final = 0.01


class Places(msgspec.Struct, frozen=True):
    """The two directories of a node and what is in them."""

    runtime: Path
    state: Path

    @property
    def socket(self) -> Path:
        """The node's door."""
        return self.runtime / "node.sock"

    @property
    def lock(self) -> Path:
        """Held by the one node of this directory."""
        return self.runtime / "node.lock"

    @property
    def journal_lock(self) -> Path:
        """Held by the one node that writes this journal."""
        return self.state / "journal.lock"

    @property
    def pages(self) -> Path:
        """The terms pages."""
        return self.runtime / "pages"

    @property
    def clock(self) -> Path:
        """The offset of the node's clock."""
        return self.runtime / "clock"

    @property
    def journal(self) -> Path:
        """The record of every turn."""
        return self.state / "journal"

    @property
    def days(self) -> Path:
        """What is known of the days of programs."""
        return self.state / "days.json"

    @property
    def log(self) -> Path:
        """What a node that was started in the background prints."""
        return self.state / "node.log"


SYSTEM: Final = Places(Path("/run/cotenant"), Path("/var/lib/cotenant"))
"""Root's node, which serves the whole machine."""


def places(config: DirectoriesConfig, environ: Mapping[str, str], uid: int) -> Places:
    """The directories: as configured, else below COTENANT_DIRECTORY, else root's or the user's by XDG."""
    base = environ.get("COTENANT_DIRECTORY", "")
    if base:
        runtime, state = Path(base) / "run", Path(base) / "state"
    elif uid == 0:
        runtime, state = SYSTEM.runtime, SYSTEM.state
    else:
        xdg_runtime = environ.get("XDG_RUNTIME_DIR", "")
        runtime = Path(xdg_runtime) / "cotenant" if xdg_runtime else _in_shared_directory(uid)
        home = environ.get("XDG_STATE_HOME", "") or str(Path(environ.get("HOME", "/")) / ".local/state")
        state = Path(home) / "cotenant"
    if config.runtime:
        runtime = Path(config.runtime)
    if config.state:
        state = Path(config.state)
    found = Places(runtime.absolute(), state.absolute())
    if len(os.fsencode(found.socket)) > _SOCKET_PATH_LIMIT:
        remedy = f"is too long for a socket, choose a directory of at most {_SOCKET_PATH_LIMIT - 10} bytes"
        raise ConfigError("directories.runtime", str(found.runtime), remedy)
    return found


def _in_shared_directory(uid: int) -> Path:
    """The last resort in /tmp, where anybody could have put something under this name before us."""
    path = Path(f"/tmp/cotenant-{uid}")  # noqa: S108  who owns it is looked at
    try:
        found = path.lstat()
    except FileNotFoundError:
        return path
    if found.st_uid != uid or not stat.S_ISDIR(found.st_mode):
        remedy = "is not a directory of yours; set XDG_RUNTIME_DIR, or name one with --runtime"
        raise ConfigError("directories.runtime", str(path), remedy)
    return path


def door_to_use(own: Places, environ: Mapping[str, str], config: DirectoriesConfig) -> Places:
    """Where a program looks for its node: the machine's own node, if it may use it and nothing else was said."""
    said = environ.get("COTENANT_DIRECTORY") or config.runtime or config.state
    if said or not os.access(SYSTEM.socket, os.W_OK):
        return own
    return SYSTEM


def config_file(environ: Mapping[str, str], uid: int, given: str = "") -> tuple[Path, bool]:
    """The config file, and whether it must exist because somebody named it."""
    named = given or environ.get("COTENANT_CONFIG", "")
    if named:
        return Path(named), True
    if uid == 0:
        return Path("/etc/cotenant/config.toml"), False
    home = environ.get("XDG_CONFIG_HOME", "") or str(Path(environ.get("HOME", "/")) / ".config")
    return Path(home) / "cotenant" / "config.toml", False


def load_config(path: Path, *, required: bool) -> Config:
    """The config of a file; the defaults where there is none and none was named."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        if required:
            raise ConfigError("config", str(path), "there is no such file, check the path") from None
        return Config()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ConfigError("config", str(path), f"cannot be read: {reason}") from None
    return decode_config(text, str(path))


def make_directory(path: Path, field: str) -> None:
    """Make it; refuse one that belongs to somebody else. One that was there stays as open as it is."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.stat()
    except OSError as error:
        raise ConfigError(field, str(path), f"cannot be used: {error.strerror}; choose another") from None
    if found.st_uid != os.geteuid():
        raise ConfigError(field, str(path), f"belongs to user {found.st_uid}, choose a directory of your own")
    if found.st_mode & stat.S_IWOTH:
        raise ConfigError(field, str(path), "anybody may write there, choose a directory for cotenant alone")


def close_directory(path: Path, field: str, *, group_id: int = -1) -> None:
    """Make it private, or passable for a group; only for whoever holds its lock, since others may be served there."""
    try:
        path.chmod(0o710 if group_id >= 0 else 0o700)
        if group_id >= 0:
            os.chown(path, -1, group_id)
    except OSError as error:
        raise ConfigError(field, str(path), f"cannot be used: {error.strerror}; choose another") from None


def group_id_of(name: str) -> int:
    """The id of a group, -1 for none."""
    if not name:
        return -1
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise ConfigError("node.group", name, "there is no such group, create it or name another") from None


def take_lock(path: Path, who: str = "a node") -> int:
    """Become the one node (or `who`) of this directory, for as long as the returned descriptor is open."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        _await_name(path)
        holder = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise WorldError(
            f"{who} already runs on {path.parent} (pid {holder}); stop it, or choose others with --runtime and --state"
        ) from None
    line = f"{os.getpid()}\n".encode()
    os.pwrite(descriptor, line, 0)  # never empty between two holders: that would look as if there were none
    os.ftruncate(descriptor, len(line))
    return descriptor


def _await_name(path: Path) -> None:
    """Whoever took a lock writes its number next; until then those who ask for the holder hear that there is none."""
    for _ in range(_NAMING_TRIES):
        if lock_holder(path) is not None:
            return
        pause(_NAMING_S)


def lock_holder(path: Path) -> int | None:
    """The process that took this lock, if it lives. Asking does not try the lock: that could turn a new node away."""
    try:
        pid = int(path.read_text().split("\n", 1)[0])
    except (OSError, ValueError):
        return None
    return pid if Path(f"/proc/{pid}").exists() else None


def listen(path: Path, group_id: int) -> socket.socket:
    """The listening socket, private from its first moment; a stale one of a dead node is replaced."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(before)
    if group_id >= 0:
        os.chown(path, -1, group_id)
        path.chmod(0o660)
    listener.listen(256)
    return listener
