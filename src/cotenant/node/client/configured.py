"""Whether an operator configured the node of this machine, so that `cotenant run` must not start one in its place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from cotenant.node.directories import SYSTEM, Directories
from cotenant.node.model.event import NodeSettings

UNIT: Final = "cotenant-node.service"
SYSTEM_CONFIG: Final = Path("/etc/cotenant/config.toml")
_SYSTEM_UNITS: Final = tuple(
    Path(directory) for directory in ("/etc/systemd/system", "/run/systemd/system", "/usr/lib/systemd/system")
)
_USER_UNITS: Final = tuple(Path(directory) for directory in ("/etc/systemd/user", "/usr/lib/systemd/user"))


def operator_remedy(
    directories: Directories,
    environ: Mapping[str, str],
    uid: int,
    *,
    system: Directories = SYSTEM,
    system_config: Path = SYSTEM_CONFIG,
    system_units: Iterable[Path] = _SYSTEM_UNITS,
    user_units: Iterable[Path] = _USER_UNITS,
) -> str:
    """Return what to do instead of starting a node in these directories; empty: none is configured for them.

    A node in directories that the user named is the user's own, whatever the machine has.
    """
    if environ.get("COTENANT_DIRECTORY"):
        return ""
    unit = next((path / UNIT for path in system_units if (path / UNIT).exists()), None)
    if directories == system or (uid != 0 and _is_default(directories, environ, uid)):
        if unit is not None:
            return (
                f"this machine's node is a service ({unit}) and is not running; {_ask(uid, f'systemctl start {UNIT}')}"
            )
        if system_config.exists():
            command = "cotenant node"
            return f"this machine's node is configured in {system_config} and is not running; {_ask(uid, command)}"
    if uid != 0 and _is_default(directories, environ, uid):
        config_home = environ.get("XDG_CONFIG_HOME", "") or str(Path(environ.get("HOME", "/")) / ".config")
        for path in (Path(config_home) / "systemd" / "user", *user_units):
            if (path / UNIT).exists():
                return f"your node is a service ({path / UNIT}) and is not running; run: systemctl --user start {UNIT}"
    return ""


def _ask(uid: int, command: str) -> str:
    if uid == 0:
        return f"run: {command}"
    return f"ask its operator to run `{command}`, or use a node of your own with --runtime-dir and --state-dir"


def _is_default(directories: Directories, environ: Mapping[str, str], uid: int) -> bool:
    """Return whether these are the directories of a user that named none."""
    xdg_runtime = environ.get("XDG_RUNTIME_DIR", "")
    shared = Path(f"/tmp/cotenant-{uid}")  # noqa: S108  only compared
    return directories.runtime in (Path(xdg_runtime) / "cotenant" if xdg_runtime else None, shared)


def is_operators_node(settings: NodeSettings | None, auto_idle_exit_ns: int) -> bool:
    """Return whether the last node of a journal was started by an operator and not by `cotenant run`.

    A node that `cotenant run` starts ends after an idle time of its own choice.
    """
    return settings is not None and settings.idle_exit_ns != auto_idle_exit_ns
