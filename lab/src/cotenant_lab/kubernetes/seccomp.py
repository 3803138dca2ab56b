"""Provides libseccomp for the build of runc: the installed one, or Debian's package unpacked into the cache."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cotenant.errors import SetupError, WorldError

_PACKAGE: Final = "libseccomp-dev"
_REMEDY: Final = f"install the package {_PACKAGE} and pkg-config by hand"


def build_environment(cache: Path, report: Callable[[str], None]) -> dict[str, str]:
    """Return the environment variables with which Go's compiler finds libseccomp.

    Without it runc refuses every pod that asks for the runtime's default seccomp profile.
    """
    if shutil.which("pkg-config") and _succeeds(["pkg-config", "--exists", "libseccomp"]):
        return {}
    root = cache / _PACKAGE
    if not root.is_dir():
        report(f"unpacking Debian's package {_PACKAGE} into the cache")
        _unpack(root)
    library = next(root.glob("usr/lib/*/libseccomp.a"), None)
    if library is None:
        raise SetupError(f"Debian's package {_PACKAGE} has no libseccomp.a: {_REMEDY}")
    # Go calls pkg-config, but does not notice when its answers change, and would reuse objects that name an earlier
    # cache. It does notice these variables; `true` answers that nothing has to be added.
    flags = {"CGO_CFLAGS": f"-O2 -I{root}/usr/include", "CGO_LDFLAGS": f"-L{library.parent} -l:libseccomp.a"}
    return {"PKG_CONFIG": "true", **flags}


def _unpack(root: Path) -> None:
    """Download the package with apt's sources but lists of its own, so that nothing is installed or changed."""
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise SetupError(f"runc needs libseccomp, and {tool} is not there to download it: {_REMEDY}")
    work = root.with_name(f".{root.name}.partial")
    shutil.rmtree(work, ignore_errors=True)
    (work / "lists" / "partial").mkdir(parents=True)
    own_lists = ["-o", f"Dir::State::lists={work}/lists", "-o", "APT::Sandbox::User=root", "-o", "Debug::NoLocking=1"]
    for arguments in (["update"], ["download", _PACKAGE]):
        done = subprocess.run(
            ["apt-get", "--quiet", *own_lists, *arguments], cwd=work, capture_output=True, text=True, check=False
        )
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
            raise WorldError(f"apt-get {arguments[0]} failed ({last[:200]}): check the network, or {_REMEDY}")
    archive = next(work.glob("*.deb"))
    if not _succeeds(["dpkg-deb", "--extract", str(archive), str(work / "root")]):
        raise WorldError(f"dpkg-deb cannot unpack {archive.name}: {_REMEDY}")
    (work / "root").rename(root)
    shutil.rmtree(work)


def _succeeds(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
