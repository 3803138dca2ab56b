"""Run commands as users other than the test's own, which must be root."""

import os
import shutil
import sys
from pathlib import Path

# Other users may not enter the home directory of root, where the interpreter may be installed. In a mount namespace of
# its own, a command finds an empty directory there instead, with the interpreter at its usual path.
_SCRIPT = """
set -e
uid=$1 prefix=$2 blocked=$3 hold=$4
shift 4
if [ -n "$blocked" ]; then
    mount --bind "$prefix" "$hold"
    mount -t tmpfs -o mode=755 none "$blocked"
    mkdir -p "$prefix"
    mount --bind "$hold" "$prefix"
fi
exec setpriv --reuid "$uid" --regid "$uid" --clear-groups "$@"
"""


def can_run_as_others() -> bool:
    """Return whether this test may act as other users, and these may read the project and its packages."""
    tools = all(shutil.which(tool) for tool in ("unshare", "setpriv", "mount"))
    project = _blocked(Path(__file__)) or _blocked(Path(sys.prefix) / "lib")
    return os.geteuid() == 0 and tools and project is None


def as_user(uid: int, command: list[str], hold: Path) -> list[str]:
    """Return the command line that runs a command as this user; `hold` is an empty directory."""
    prefix = Path(sys.base_prefix).resolve()
    blocked = _blocked(prefix / "bin")
    words = [str(uid), str(prefix), str(blocked or ""), str(hold)]
    return ["unshare", "--mount", "sh", "-c", _SCRIPT, "sh", *words, *command]


def _blocked(path: Path) -> Path | None:
    """Return the outermost directory above a path that other users may not enter."""
    parents = reversed(path.resolve().parents)
    return next((parent for parent in parents if not parent.stat().st_mode & 0o001), None)
