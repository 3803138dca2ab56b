"""The directories and files of a node: by XDG for a user, system directories for root, or as configured."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from cotenant.errors import ConfigError, WorldError
from cotenant.node.config.file import Config, DirectoriesConfig, decode_config
from cotenant.runner.clock import pause

_SOCKET_PATH_LIMIT: Final = 107  # sun_path of a Unix socket address, less its terminating zero
_HOLDER_TRIES: Final = 300
_HOLDER_WAIT_S: Final = 0.01


class Directories(msgspec.Struct, frozen=True):
    """The runtime and state directories of a node, and the files in them."""

    runtime: Path
    state: Path

    @property
    def tenant_socket(self) -> Path:
        """The Unix socket at which everybody may join and see its own tenants."""
        return self.runtime / "tenant.sock"

    @property
    def tenant_directory(self) -> Path:
        """A directory with a link to the tenant socket and nothing else, to be mounted in containers.

        A container that has mounted the socket itself would keep the socket of a node that has ended.
        """
        return self.runtime / "tenant"

    @property
    def operator_socket(self) -> Path:
        """The Unix socket at which operators may do everything."""
        return self.runtime / "operator.sock"

    @property
    def token_key(self) -> Path:
        """The key of the tokens of tenants, in a directory that only the node's user may enter."""
        return self.runtime / "private" / "token.key"

    @property
    def revoked_tokens(self) -> Path:
        """The tokens of pods that were revoked."""
        return self.runtime / "private" / "revoked.json"

    @property
    def lock(self) -> Path:
        """The lock of the node that uses the runtime directory."""
        return self.runtime / "node.lock"

    @property
    def journal_lock(self) -> Path:
        """The lock of the node that writes the journal."""
        return self.state / "journal.lock"

    @property
    def clock(self) -> Path:
        """The offset of the node's clock."""
        return self.runtime / "clock"

    @property
    def journal(self) -> Path:
        """The journal of the node."""
        return self.state / "journal"

    @property
    def diurnal(self) -> Path:
        """The diurnal profiles of programs."""
        return self.state / "diurnal.json"

    @property
    def calibrations(self) -> Path:
        """What sharing each device costs, by its UUID."""
        return self.state / "calibration.json"

    @property
    def log(self) -> Path:
        """The log of a node that was started in the background."""
        return self.state / "node.log"


SYSTEM: Final = Directories(Path("/run/cotenant"), Path("/var/lib/cotenant"))
"""The directories of root's node, which serves the whole machine."""


def resolve_directories(config: DirectoriesConfig, environ: Mapping[str, str], uid: int) -> Directories:
    """Return the configured directories, else those below COTENANT_DIRECTORY, else root's, else the user's by XDG."""
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
    directories = Directories(runtime.absolute(), state.absolute())
    if len(os.fsencode(directories.operator_socket)) > _SOCKET_PATH_LIMIT:
        remedy = f"is too long for a socket, choose a directory of at most {_SOCKET_PATH_LIMIT - 14} bytes"
        raise ConfigError("directories.runtime", str(directories.runtime), remedy)
    return directories


def _in_shared_directory(uid: int) -> Path:
    """Return a directory in /tmp; raise `ConfigError` if another user owns that name."""
    path = Path(f"/tmp/cotenant-{uid}")  # noqa: S108  the owner is checked
    try:
        status = path.lstat()
    except FileNotFoundError:
        return path
    if status.st_uid != uid or not stat.S_ISDIR(status.st_mode):
        remedy = "is not a directory of yours; set XDG_RUNTIME_DIR, or name one with --runtime-dir"
        raise ConfigError("directories.runtime", str(path), remedy)
    return path


def client_directories(own: Directories, environ: Mapping[str, str], config: DirectoriesConfig) -> Directories:
    """Return the directories of the node that a program uses.

    This is root's node if its tenant socket is writable, and if neither the environment nor the config names another.
    """
    is_configured = environ.get("COTENANT_DIRECTORY") or config.runtime or config.state
    if is_configured or not os.access(SYSTEM.tenant_socket, os.W_OK):
        return own
    return SYSTEM


def own_directories(named: Directories, environ: Mapping[str, str], uid: int) -> Directories:
    """Return the directories for a user's own files: those named, unless they are of another user's node."""
    try:
        is_own = named.runtime.stat().st_uid == uid
    except FileNotFoundError:
        is_own = True
    except OSError:
        is_own = False
    if is_own:
        return named
    others = {name: value for name, value in environ.items() if name != "COTENANT_DIRECTORY"}
    return resolve_directories(DirectoriesConfig(), others, uid)


def config_file(environ: Mapping[str, str], uid: int, given: str = "") -> tuple[Path, bool]:
    """Return the path of the config file, and whether it must exist because it was named explicitly."""
    path = given or environ.get("COTENANT_CONFIG", "")
    if path:
        return Path(path), True
    if uid == 0:
        return Path("/etc/cotenant/config.toml"), False
    home = environ.get("XDG_CONFIG_HOME", "") or str(Path(environ.get("HOME", "/")) / ".config")
    return Path(home) / "cotenant" / "config.toml", False


def load_config(path: Path, *, required: bool) -> Config:
    """Return the config of a file; the defaults if the file is missing and not required."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        if required:
            raise ConfigError("config", str(path), "there is no such file; check the path") from None
        return Config()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ConfigError("config", str(path), f"cannot be read: {reason}") from None
    return decode_config(text, str(path))


def make_directory(path: Path, field: str) -> None:
    """Create a directory; refuse one of another user. The mode of an existing directory stays."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
    except OSError as error:
        raise ConfigError(field, str(path), f"cannot be used: {error.strerror}; choose another") from None
    if status.st_uid != os.geteuid():
        raise ConfigError(field, str(path), f"belongs to user {status.st_uid}; choose a directory of your own")
    if status.st_mode & stat.S_IWOTH:
        raise ConfigError(field, str(path), "is writable by everyone; choose a directory that only cotenant uses")


def restrict_directory(path: Path, field: str, mode: int = 0o700) -> None:
    """Set the mode of a directory; the caller must hold its lock."""
    try:
        path.chmod(mode)
    except OSError as error:
        raise ConfigError(field, str(path), f"cannot be used: {error.strerror}; choose another") from None


def take_lock(path: Path, holder_name: str = "a node") -> int:
    """Take the lock of a directory; it is held while the returned descriptor is open.

    `holder_name` is the subject of the error message if another process holds the lock.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise WorldError(f"cannot open the lock {path}: {error.strerror}; repair its directory") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        _await_holder(path)
        holder = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise WorldError(
            f"{holder_name} already runs on {path.parent} (pid {holder}); "
            "stop it, or choose others with --runtime-dir and --state-dir"
        ) from None
    line = f"{os.getpid()}\n".encode()
    # The file is never empty between two holders, so that a reader always finds a holder.
    try:
        os.pwrite(descriptor, line, 0)
        os.ftruncate(descriptor, len(line))
    except OSError as error:
        os.close(descriptor)
        raise WorldError(f"cannot write the lock {path}: {error.strerror}; free space in its directory") from None
    return descriptor


def _await_holder(path: Path) -> None:
    """Wait until the holder of a lock has written its process number."""
    for _ in range(_HOLDER_TRIES):
        if lock_holder(path) is not None:
            return
        pause(_HOLDER_WAIT_S)


def lock_holder(path: Path) -> int | None:
    """Return the living process that holds a lock. The lock itself is not tried: that could make a new node fail."""
    try:
        pid = int(path.read_text().split("\n", 1)[0])
    except (OSError, ValueError):
        return None
    return pid if Path(f"/proc/{pid}").exists() else None


def verified_lock_holder(path: Path) -> int | None:
    """Return the process that holds a lock by the kernel's own table; None if no process that wrote its number does.

    The number in the file alone is not enough to signal a process: after a crash another process may have the same.
    """
    pid = lock_holder(path)
    try:
        inode = path.stat().st_ino
        locks = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    # 1: FLOCK  ADVISORY  WRITE 3110 fe:00:9977876 0 EOF
    fields = [line.split() for line in locks]
    holders = [
        int(words[4])
        for words in fields
        if len(words) >= 6 and words[1] == "FLOCK" and words[5].rpartition(":")[2] == str(inode)
    ]
    return pid if pid in holders else None


def listen(path: Path, mode: int, group_id: int = -1) -> socket.socket:
    """Return a listening socket with this mode and group; the stale socket of a dead node is replaced.

    Nobody else can connect before the mode is set.
    """
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(before)
    try:
        os.chown(path, -1, group_id)
    except PermissionError:  # not a group of the node's user: the credentials of a peer decide alone
        mode |= 0o006
    path.chmod(mode)
    listener.listen(256)
    return listener


def link_socket(path: Path, directory: Path) -> None:
    """Create a link to a socket in a directory that everybody may enter, or replace the link to an earlier socket."""
    try:
        directory.mkdir(mode=0o755, exist_ok=True)
        directory.chmod(0o755)
        temporary = directory / f".{path.name}"
        temporary.unlink(missing_ok=True)
        os.link(path, temporary)
        temporary.replace(directory / path.name)
        temporary.unlink(missing_ok=True)  # a rename between two links to the same file leaves both
    except OSError as error:
        raise WorldError(f"cannot link {path} in {directory}: {error.strerror}; repair the directory") from None
