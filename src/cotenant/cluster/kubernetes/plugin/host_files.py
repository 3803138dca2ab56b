"""The files that containers mount from the host: the hook of this version, and the drivers of software GPUs.

Each version has a directory of its own, whose files are never changed: a container that runs has mapped them.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import tempfile
from pathlib import Path
from typing import Final

from cotenant import __version__
from cotenant.cluster.kubernetes.plugin.edits import ContainerEdits, ImageCheck, Mount
from cotenant.cluster.progress import PROGRESS_VARIABLE
from cotenant.errors import WorldError
from cotenant.hook.shim import hook_library, image_check
from cotenant.softgpu import manage

DEFAULT_HOME: Final = Path("/usr/local/cotenant")
RUN: Final = "/run/cotenant"
"""The directory of cotenant in a container."""
SOCKET_DIRECTORY: Final = f"{RUN}/socket"
CLAIM_DIRECTORY: Final = f"{RUN}/claim"
SOFTGPU_DIRECTORY: Final = f"{RUN}/softgpu"
GRANT: Final = "grant"
"""The name of the grant in the directory of a claim."""
PROGRESS: Final = "/dev/shm/cotenant-progress"  # noqa: S108  in the container, whose /dev/shm is its own
"""The file in which a program may report its progress. /dev/shm is writable and limited in every container."""
HOLD_ERRORS_MS: Final = 20_000
"""How long the hook keeps an error of the device from a program; the node notices the loss of a GPU and has the pod
evicted well within this time."""
_GLIBC: Final = re.compile(rb"GLIBC_2\.([0-9]+)\x00")
_LIBRARY_DIRECTORIES: Final = {
    "x86_64": ("/usr/lib/x86_64-linux-gnu", "/usr/lib64"),
    "aarch64": ("/usr/lib/aarch64-linux-gnu", "/usr/lib64"),
}
"""Where glibc's loader looks without a cache: on Debian and its relatives, and on Red Hat and its relatives."""


class HostFiles:
    """The directory of this version below a directory of the host."""

    def __init__(self, home: Path = DEFAULT_HOME) -> None:
        """`home` is the path on the host, which is also the path at which this process sees it."""
        self._directory = home / __version__

    def install(self) -> None:
        """Copy the files, unless this version has them already.

        The directory appears complete and at once, so a plugin that is killed meanwhile leaves nothing unfinished.
        """
        if self._directory.exists():
            return
        try:
            self._directory.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            made = Path(tempfile.mkdtemp(prefix=f".{__version__}-", dir=self._directory.parent))
            try:
                self._fill(made)
                made.chmod(0o755)
                made.rename(self._directory)
            except OSError:
                shutil.rmtree(made, ignore_errors=True)
                if not self._directory.exists():  # another plugin was faster
                    raise
        except OSError as error:
            remedy = "mount it writable, or name another with --home"
            raise WorldError(f"cannot write the hook to {self._directory}: {error.strerror}; {remedy}") from None

    def _fill(self, directory: Path) -> None:
        _copy(hook_library(), directory / hook_library().name, 0o755)
        _copy(image_check(), directory / "image-check", 0o755)
        preload = directory / "ld.so.preload"
        preload.write_text(f"{self._directory / hook_library().name}\n")
        preload.chmod(0o644)
        drivers = directory / "softgpu"
        drivers.mkdir(mode=0o755)
        for name in manage.LIBRARY_NAMES:
            _copy(manage.library(name), drivers / name, 0o755)

    def edits(self, tenant_directory: Path, claim_directory: Path, *, softgpu: Path | None) -> ContainerEdits:
        """Return the edits of a container; the paths are of the host.

        The socket and the grant are in mounted directories, because a restart of the node or the plugin replaces them.
        The hook is loaded through /etc/ld.so.preload: an image's LD_LIBRARY_PATH and LD_PRELOAD stay as they are.
        """
        directory = self._directory
        mounts = [
            Mount(str(directory), str(directory)),
            Mount(str(directory / "ld.so.preload"), "/etc/ld.so.preload"),
            Mount(str(tenant_directory), SOCKET_DIRECTORY),
            Mount(str(claim_directory), CLAIM_DIRECTORY),
        ]
        variables = {
            "COTENANT_SOCKET": f"{SOCKET_DIRECTORY}/tenant.sock",
            "COTENANT_GRANT": f"{CLAIM_DIRECTORY}/{GRANT}",
            "COTENANT_REQUIRED": "1",
            "COTENANT_HOLD_ERRORS_MS": str(HOLD_ERRORS_MS),
            PROGRESS_VARIABLE: PROGRESS,
        }
        if softgpu is not None:
            mounts.append(Mount(str(softgpu), SOFTGPU_DIRECTORY))
            mounts += [
                Mount(str(directory / "softgpu" / name), f"{place}/{name}")
                for place in _LIBRARY_DIRECTORIES.get(platform.machine(), ("/usr/lib",))
                for name in manage.LIBRARY_NAMES
            ]
            variables["COTENANT_SOFTGPU"] = SOFTGPU_DIRECTORY
        check = ImageCheck(str(directory / "image-check"), ("image-check", needed_glibc(hook_library())))
        return ContainerEdits(variables, tuple(mounts), check)


def needed_glibc(library: Path) -> str:
    """Return the newest version of glibc's symbols that a library needs."""
    versions = {int(number) for number in _GLIBC.findall(library.read_bytes())}
    return f"GLIBC_2.{max(versions, default=17)}"


def _copy(source: Path, target: Path, mode: int) -> None:
    shutil.copyfile(source, target)
    target.chmod(mode)
    descriptor = os.open(target, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
