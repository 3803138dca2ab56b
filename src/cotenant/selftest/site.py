"""The place where a self-test runs: directories of its own, a node of its own, and the environment of its programs."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from cotenant.errors import ConfigError, CotenantError
from cotenant.hook import shim
from cotenant.hook.record import Record
from cotenant.hook.records import read_records
from cotenant.node.client.connection import list_tenants
from cotenant.node.directories import Directories
from cotenant.runner.clock import pause
from cotenant.softgpu import manage

SOFTWARE_GPU: Final = "soft"
"""The value of `--gpu` with which the self-test starts a software GPU of its own."""
_PRESET: Final = "v100"
_TIMEOUT_S: Final = 120.0
_ANSWER_TRIES: Final = 600
_OWN_VARIABLES: Final = ("COTENANT_", "CUDA_MPS_")


class ProgramFailedError(CotenantError):
    """A program of the self-test failed."""


class SelftestSite:
    """A temporary directory with everything that a self-test needs; removed at the end."""

    def __init__(self, gpu: str) -> None:
        """Use a GPU of this machine by its number, or a software GPU of its own; start nothing yet."""
        if gpu != SOFTWARE_GPU and not (gpu.isascii() and gpu.isdigit()):
            raise ConfigError("--gpu", gpu, f"write the number of a GPU, such as 0, or {SOFTWARE_GPU}")
        self.is_software_gpu = gpu == SOFTWARE_GPU
        self._gpu = gpu
        self._home = Path()
        self._environ: dict[str, str] = {}
        self._driver = Path()
        self._node: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        """Create the directories and, if requested, the software GPU; find the driver."""
        self._home = Path(tempfile.mkdtemp(prefix="cotenant-selftest-"))
        self.directories = Directories(self._home / "run", self._home / "state")
        for directory in (self.directories.runtime, self.directories.state):
            directory.mkdir(mode=0o700)
        clean = {name: value for name, value in os.environ.items() if not name.startswith(_OWN_VARIABLES)}
        try:
            if self.is_software_gpu:
                softgpus = self.directories.runtime / "softgpu"
                manage.create(softgpus, _PRESET, 1)
                self._environ = {**clean, **manage.env(softgpus, base=clean)}
                self._environ["CUDA_VISIBLE_DEVICES"] = "0"
            else:
                self._environ = {**clean, "CUDA_VISIBLE_DEVICES": self._gpu}
            driver = shim.find_driver(self._environ)
            if driver is None:
                raise ConfigError(
                    "--gpu", self._gpu, f"this machine has no NVIDIA driver; install it, or use --gpu {SOFTWARE_GPU}"
                )
            self._driver = driver
        except CotenantError:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Remove everything."""
        self.close()

    def close(self) -> None:
        """End the node and the software GPU, and remove the directories."""
        self.stop_node()
        if self.is_software_gpu:
            manage.destroy(self.directories.runtime / "softgpu")
        shutil.rmtree(self._home, ignore_errors=True)

    # ---- programs without a node -----------------------------------------------------------------------------------

    def run(self, *words: str) -> dict[str, Any]:
        """Run a program without the hook and return its result."""
        return _result(words, self._run(_program(*words), self._environ))

    def run_python(self, code: str) -> dict[str, Any]:
        """Run Python code that prints JSON without the hook and return its result."""
        return _result((), self._run([sys.executable, "-c", code], self._environ))

    def run_hooked(self, mode: str, *words: str, python: str = "") -> tuple[dict[str, Any], list[Record]]:
        """Run a program, or Python code that prints JSON, with the hook; return its result and the hook's records."""
        home = Path(tempfile.mkdtemp(prefix="hook-", dir=self._home))
        records = home / "records"
        records.mkdir()
        shim.make_shim(home / "shim", self._driver)
        variables = {shim.RECORD_VARIABLE: str(records), "COTENANT_MEASURE": "0", "COTENANT_SAMPLE": "2"}
        environ = {**self._environ, **variables, **shim.environment(mode, home / "shim", self._environ)}
        command = [sys.executable, "-c", python] if python else _program(*words)
        result = _result(words, self._run(command, environ))
        return result, list(read_records(records, "selftest"))

    def _run(self, command: Sequence[str], environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                command,
                env=environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            raise ProgramFailedError(f"a program did not end within {_TIMEOUT_S:.0f} s") from None

    # ---- the node and its tenants ----------------------------------------------------------------------------------

    def start_node(self, *flags: str) -> None:
        """Start a node of its own, in place of the one that runs."""
        self.stop_node()
        with (self._home / "node.log").open("w", encoding="utf-8") as log:
            command = self._command("node", *flags)
            node = self._node = subprocess.Popen(
                command, env=self._environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, text=True
            )
        for _ in range(_ANSWER_TRIES):
            if node.poll() is not None:
                raise ProgramFailedError(f"the node did not start: {self.node_log()}")
            with contextlib.suppress(CotenantError):
                list_tenants(self.directories)
                return
            pause(0.05)
        raise ProgramFailedError(f"the node does not answer: {self.node_log()}")

    def stop_node(self) -> None:
        """End the node, if one runs."""
        node, self._node = self._node, None
        if node is not None:
            node.terminate()
            node.wait()

    def node_log(self) -> str:
        """Return the last line that the node printed."""
        lines = (self._home / "node.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else "it printed nothing"

    def run_tenant(self, flags: Sequence[str], *words: str) -> dict[str, Any]:
        """Run a program as a tenant to its end and return its result."""
        return _result(words, self._run(self._command("run", *flags, "--", *_program(*words)), self._environ))

    @contextlib.contextmanager
    def tenant(self, flags: Sequence[str], *words: str) -> Iterator[TenantProcess]:
        """Run a program as a tenant until the end of the block."""
        process = TenantProcess(self._command("run", *flags, "--", *_program(*words)), self._environ)
        try:
            process.await_ready()
            yield process
        finally:
            process.kill()

    def command(self, *words: str) -> None:
        """Run a command of cotenant that must succeed."""
        done = self._run(self._command(*words), self._environ)
        if done.returncode:
            raise ProgramFailedError(f"cotenant {words[0]} failed: {_last_line(done.stderr)}")

    def _command(self, name: str, *words: str) -> list[str]:
        where = ["--runtime-dir", str(self.directories.runtime), "--state-dir", str(self.directories.state)]
        return [sys.executable, "-m", "cotenant", name, *where, *words]


class TenantProcess:
    """A tenant that runs until its input is closed."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        """Start it."""
        self._process = subprocess.Popen(
            command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def await_ready(self) -> None:
        """Wait until its program has begun."""
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], _TIMEOUT_S)
        if not ready or self._process.stdout.readline().strip() != "ready":
            self.kill()
            raise ProgramFailedError("a tenant of the self-test did not begin")

    def finish(self) -> dict[str, Any]:
        """Let it end, and return its result."""
        try:
            output, errors = self._process.communicate(timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise ProgramFailedError(f"a tenant did not end within {_TIMEOUT_S:.0f} s") from None
        done = subprocess.CompletedProcess(self._process.args, self._process.returncode, output, errors)
        return _result(("tenant",), done)

    def kill(self) -> None:
        """End it at once."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


def _program(*words: str) -> list[str]:
    return [sys.executable, "-m", "cotenant.selftest.programs", *words]


def _result(words: Sequence[str], done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    name = words[0] if words else "the program"
    if done.returncode:
        raise ProgramFailedError(f"{name} ended with code {done.returncode}: {_last_line(done.stderr)}")
    try:
        result: dict[str, Any] = msgspec.json.decode(done.stdout.strip().splitlines()[-1])
    except (IndexError, msgspec.DecodeError):
        raise ProgramFailedError(f"{name} printed no result: {_last_line(done.stderr)}") from None
    return result


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it printed no error"
