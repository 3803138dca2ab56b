"""Builds the programs of a cluster from published Go modules, once per version, into the user's cache.

Each folder below `go/` is a Go module of this project that names the programs (`tool`) and pins their versions and
checksums (`go.mod`, `go.sum`). Modules are apart because their programs need different versions of the same libraries.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from cotenant.errors import InvariantError, SetupError, WorldError
from cotenant.runner.clock import monotonic_ns
from cotenant_lab.kubernetes import seccomp

Report = Callable[[str], None]

_HERE: Final = Path(__file__).parent
_REPORT_EVERY_S: Final = 20
_NO_NETWORK: Final = re.compile(r"dial tcp|no such host|i/o timeout|connection refused|TLS handshake timeout")
_TOO_OLD: Final = re.compile(r"requires go >= ([\d.]+)")


class GoModule(NamedTuple):
    """A module below `go/`: the package that gives it its version, its programs by package, and how they are linked."""

    versioned_by: str
    programs: Mapping[str, str]
    version_variables: Sequence[str] = ()
    tags: str = ""
    needs_c: bool = False


_KUBERNETES_VERSION: Final = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
_PLUGINS: Final = "github.com/containernetworking/plugins/plugins"
_CONTAINERD: Final = "github.com/containerd/containerd/v2"

MODULES: Final[Mapping[str, GoModule]] = {
    "kubernetes": GoModule(
        "k8s.io/kubernetes",
        {
            "go.etcd.io/etcd/server/v3": "etcd",
            **{
                f"k8s.io/kubernetes/cmd/{name}": name
                for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kubelet")
            },
        },
        # Without these a program calls itself v0.0.0, and kubectl and kubelet refuse such a server.
        [f"{package}.gitVersion={{version}}" for package in _KUBERNETES_VERSION]
        + [f"{package}.gitMajor={{major}}" for package in _KUBERNETES_VERSION]
        + [f"{package}.gitMinor={{minor}}" for package in _KUBERNETES_VERSION],
    ),
    "containerd": GoModule(
        _CONTAINERD,
        {
            **{f"{_CONTAINERD}/cmd/{name}": name for name in ("containerd", "containerd-shim-runc-v2", "ctr")},
            f"{_PLUGINS}/main/bridge": "bridge",
            f"{_PLUGINS}/ipam/host-local": "host-local",
        },
        [f"{_CONTAINERD}/version.Version={{version}}"],
        tags="no_btrfs no_devmapper no_zfs",
    ),
    "runc": GoModule(
        "github.com/opencontainers/runc", {"github.com/opencontainers/runc": "runc"}, tags="seccomp", needs_c=True
    ),
}
"""The Go modules by the name of their folder."""

CONTROL_PLANE_MODULES: Final = ("kubernetes",)
NODE_MODULES: Final = ("kubernetes", "containerd", "runc")


def cache_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Return where built programs are kept; each module has a folder per version below it."""
    home = environment.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "cotenant" / "kubernetes"


def module_source(name: str) -> Path:
    """Return the folder of a module with its `go.mod` and `go.sum`."""
    return _HERE / "go" / name


def module_version(name: str) -> str:
    """Return the version, with its "v", of the programs that a module builds."""
    text = (module_source(name) / "go.mod").read_text()
    match = re.search(rf"^(?:require)?\s+{re.escape(MODULES[name].versioned_by)} (v[\w.+-]+)", text, re.MULTILINE)
    if match is None:
        raise InvariantError(f"go/{name}/go.mod does not require {MODULES[name].versioned_by}")
    return match[1]


def programs_directory(name: str, cache: Path | None = None) -> Path:
    """Return the folder of a module's programs: its name contains the version and a digest of all that decides them."""
    digest = hashlib.sha256(repr(MODULES[name]).encode())
    for file in ("go.mod", "go.sum"):
        digest.update((module_source(name) / file).read_bytes())
    return (cache or cache_directory()) / f"{name}-{module_version(name)}-{digest.hexdigest()[:8]}"


def build(names: Sequence[str], report: Report, cache: Path | None = None) -> dict[str, Path]:
    """Build the modules that are missing in the cache, and return the path of every program by its name."""
    paths: dict[str, Path] = {}
    for name in names:
        directory = programs_directory(name, cache)
        if not directory.is_dir():
            with _build_lock(directory, name, report):
                if not directory.is_dir():  # the process that held the lock may have built it
                    _build_module(name, directory, report)
        paths |= {program: directory / program for program in MODULES[name].programs.values()}
    return paths


def build_pause(report: Report, cache: Path | None = None) -> Path:
    """Compile the static program that waits as the first process of a pod, and return its path."""
    source = _HERE / "pause.c"
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:8]
    program = (cache or cache_directory()) / f"pause-{digest}"
    if not program.exists():
        if shutil.which("gcc") is None:
            raise SetupError("gcc is not installed: the test cluster compiles its pause program with it")
        program.parent.mkdir(parents=True, exist_ok=True)
        partial = program.with_name(f".{program.name}.{os.getpid()}")
        report("compiling the pause program")
        _run(["gcc", "-static", "-Os", "-s", "-o", str(partial), str(source)], "gcc of pause.c", partial.parent)
        partial.rename(program)
    return program


@contextlib.contextmanager
def _build_lock(directory: Path, name: str, report: Report) -> Iterator[None]:
    directory.parent.mkdir(parents=True, exist_ok=True)
    with (directory.parent / f"{name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(f"waiting for another process that builds {name}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield  # closing the file releases the lock, also when this process is killed


def _build_module(name: str, directory: Path, report: Report) -> None:
    if shutil.which("go") is None:
        raise SetupError("Go is not installed: the test cluster is built from Go modules and needs Go 1.25 or newer")
    module, version = MODULES[name], module_version(name)
    source = module_source(name)
    partial = directory.with_name(f".{directory.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    environment = {**os.environ, "CGO_ENABLED": "1" if module.needs_c else "0"}
    if module.needs_c:
        environment |= seccomp.build_environment(directory.parent, report)
    report(f"building {name} {version} (once; {directory} keeps it)")
    began = monotonic_ns()
    major, minor = version.removeprefix("v").split(".")[:2]
    variables = [text.format(version=version, major=major, minor=minor) for text in module.version_variables]
    flags = ["-mod=readonly", "-trimpath", "-buildvcs=false", "-tags", module.tags]
    flags += ["-ldflags", " ".join(["-s -w", *(f"-X {variable}" for variable in variables)])]
    command = ["go", "build", "-v", *flags, "-o", f"{partial}/", *module.programs]
    _go(command, source, environment, directory.with_name(f"{directory.name}.log"), name, report)
    for package, program in module.programs.items():
        (partial / _default_name(package)).rename(partial / program)
    partial.rename(directory)
    report(f"built {name} {version} in {(monotonic_ns() - began) // 10**9} s")


def _default_name(package: str) -> str:
    """Return the name that `go build` gives a program: the last part of its package that is no major version."""
    parts = package.split("/")
    return parts[-2] if re.fullmatch(r"v\d+", parts[-1]) else parts[-1]


def _go(
    command: Sequence[str], source: Path, environment: Mapping[str, str], log: Path, name: str, report: Report
) -> None:
    """Run `go build -v`, which prints a line per package; report now and then how many packages are done."""
    compiled = 0
    stop = threading.Event()

    def report_often() -> None:
        while not stop.wait(_REPORT_EVERY_S):
            report(f"building {name}: {compiled} packages compiled")

    with (
        log.open("w") as file,
        subprocess.Popen(
            command, cwd=source, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process,
    ):
        threading.Thread(target=report_often, daemon=True).start()
        try:
            for line in process.stdout or ():
                file.write(line)
                compiled += not line.startswith("go: ")
            code = process.wait()
        finally:
            stop.set()
            process.kill()
    if code:
        raise WorldError(_explain_failure(name, log.read_text(), log))


def _explain_failure(name: str, text: str, log: Path) -> str:
    """Return one sentence about a failed build, with what the user can do."""
    lines = [line for line in text.splitlines() if line.strip()]
    if match := _TOO_OLD.search(text):
        return f"the installed Go is too old to build {name}: install Go {match[1]} or newer"
    if failed := next((line for line in lines if _NO_NETWORK.search(line)), ""):
        return f"cannot download the Go modules of {name} ({failed.strip()[:200]}): check the network and GOPROXY"
    if "no space left on device" in text:
        return f"the disk is too full to build {name}: the first build needs about 6 GB"
    failed = next(
        (line for line in lines if ": " in line and not line.startswith("go: downloading")), "no reason given"
    )
    return f"go build of {name} failed ({failed[:200]}): {log} has its output"


def _run(command: Sequence[str], what: str, directory: Path) -> None:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise WorldError(f"{what} failed: {last[:300]}")
