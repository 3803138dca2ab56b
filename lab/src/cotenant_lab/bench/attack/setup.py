"""Setup of bench `attack`: a software GPU, a node, an online service, an unrelated process, and attackers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import msgspec

from cotenant.errors import CotenantError
from cotenant.gate.grant import Kind
from cotenant.hook.shim import find_nvml, make_shim
from cotenant.node import wire
from cotenant.node.client.journal_tail import JournalTail
from cotenant.node.model.log_event import LogEvent
from cotenant.node.model.protection import ExitPhase
from cotenant.node.model.tenant import TenantSpec
from cotenant.node.state.event_log import EventLog
from cotenant.runner.clock import monotonic_ns, pause, stored_clock_offset, unix_ns
from cotenant.softgpu import manage
from cotenant_lab.bench.attack.attacks import Attack, Start
from cotenant_lab.programs.attacker import launcher
from cotenant_lab.programs.site import NodeSite, TenantProgram

PRESET: Final = "a100"
PERIOD_US: Final = 30_000
"""A request every 30 ms."""
KERNELS: Final = 20
KERNEL_NS: Final = 1_000_000
"""A request takes 20 ms on an idle device: long enough that the host's own delays are small in comparison."""
REQUEST_NS: Final = KERNELS * KERNEL_NS
QUOTA_BYTES: Final = 1 << 30
_QUOTA: Final = "1GiB"
NODE_FLAGS: Final = (
    *("--slots", "16", "--watch-period", "200ms", "--calm-samples", "2", "--first-samples", "2"),
    *("--fault-grace", "500ms", "--evict-grace", "3s", "--backoff", "500ms", "--online-first", "5s"),
)
"""Shorter waits than the defaults, because hundreds of attacks run and waiting dominates."""
SOCKETS: Final = ("tenant.sock", "operator.sock", "node.sock")
_OTHER_USER: Final = "65534"
_SLEEP: Final = "import signal; signal.pause()"
_SERVICE: Final = "service"
_SERVED: Final = 5
_SERVING_S: Final = 10.0
_CLEAR_S: Final = 5.0
_LOOK_S: Final = 0.02
_MEMORY_FILES: Final = "/dev/shm"  # noqa: S108  mkstemp creates the file safely


class AttackerProcess:
    """One attacker: its directory, its launcher and its report."""

    def __init__(self, setup: AttackSetup, attack: Attack, number: int, attack_s: float) -> None:
        """Start the attacker; after `start` it works like a well-behaved tenant until `go`."""
        self.attack = attack
        self.name = f"{attack.name}-{number}"
        self.home = setup.home / self.name
        self.home.mkdir()
        self.home.chmod(0o777)
        (self.home / "report").touch()
        (self.home / "report").chmod(0o666)
        (self.home / "facts.json").write_text(json.dumps(setup.facts(self.name, number, attack_s)))
        program = [sys.executable, "-m", "cotenant_lab.programs.attacker", attack.target, str(self.home)]
        command, environ = setup.attacker_command(attack.start, self.name, program)
        with (self.home / "output").open("wb") as output:
            self._launcher = subprocess.Popen(
                [sys.executable, "-S", "-E", launcher.__file__, *command],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def notes(self, what: str = "") -> list[dict[str, Any]]:
        """Return what the attacker reported, or its reports of one kind."""
        lines = (self.home / "report").read_text(errors="replace").splitlines()
        found = []
        for line in lines:
            with contextlib.suppress(ValueError):
                note = json.loads(line)
                if not what or note.get("what") == what:
                    found.append(note)
        return found

    def output(self) -> str:
        """Return the last line that it printed."""
        lines = (self.home / "output").read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def order(self, word: str) -> None:
        """Give an order."""
        (self.home / word).touch()

    def await_note(self, what: str, timeout_s: float) -> bool:
        """Wait until it has reported something of this kind."""
        end_ns = monotonic_ns() + round(timeout_s * 1e9)
        while monotonic_ns() < end_ns and self._launcher.poll() is None:
            if self.notes(what):
                return True
            pause(_LOOK_S)
        return bool(self.notes(what))

    def has_children(self) -> bool:
        """Return whether a process of the attacker runs."""
        with contextlib.suppress(OSError):
            return bool(Path(f"/proc/{self._launcher.pid}/task/{self._launcher.pid}/children").read_text().split())
        return False

    def end(self) -> None:
        """Let it end, and kill what remains after a second."""
        self.order("stop")
        end_ns = monotonic_ns() + 10**9
        while self.has_children() and monotonic_ns() < end_ns:
            pause(_LOOK_S)
        self._launcher.send_signal(signal.SIGTERM)
        self._launcher.wait()


class AttackSetup(NodeSite):
    """Device, node, service and victim in one directory."""

    def __init__(self, home: Path, *, mps: bool) -> None:
        """Prepare the programs without starting them."""
        super().__init__(home, PRESET, [*NODE_FLAGS, "--mps", "on" if mps else "off"])
        self.mps = mps
        self.origin_ns = self.clock.now()
        self._log_in_memory = _log_in_memory(home / "service.log")
        served = ["cotenant_lab.programs.service", str(home / "service.log"), str(PERIOD_US), str(self.origin_ns)]
        served += [str(KERNELS), str(KERNEL_NS)]
        self.service = TenantProgram(self, _SERVICE, ["--online", "--memory", "2GiB"], served)
        self._victim: subprocess.Popen[bytes] | None = None
        self._tail = JournalTail(self.directories.journal, lambda _: None)
        self._event_log: EventLog | None = None
        self._ahead_ns = 0
        self._scheduled_pid = 0

    def start(self) -> None:
        """Start everything, and give every user access to the device."""
        super().start()
        for path in (self.home, self.directories.runtime, self.gpus):
            path.chmod(path.stat().st_mode | 0o055)
        manage.socket_of(self.gpus, 0).chmod(0o666)
        make_shim(self.home / "shim", self.driver, find_nvml(manage.env(self.gpus)))
        (self.home / "shim").chmod(0o755)
        self.service.start()
        self._start_victim()
        self.await_service()
        raise_priority(manage.inspect(self.gpus, 0)["pid"])

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop all programs, the node and the device."""
        self.service.end()
        if self._victim is not None:
            self._victim.kill()
            self._victim.wait()
        self._tail.close()
        super().__exit__(kind, error, traceback)
        self._end_mps()
        if self._log_in_memory is not None:
            self._log_in_memory.unlink(missing_ok=True)

    def _end_mps(self) -> None:
        """End the MPS daemons of this device, which a node that died has left."""
        programs = str(self.gpus / "bin").encode()
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if programs in (process / "cmdline").read_bytes():
                    os.kill(int(process.name), signal.SIGKILL)

    @property
    def driver(self) -> Path:
        """Return the driver of the software GPU."""
        return (self.gpus / "lib" / "libcuda.so.1").resolve()

    # -- attackers -----------------------------------------------------------------------------------------------

    def facts(self, name: str, seed: int, attack_s: float) -> dict[str, object]:
        """Return what an attacker on this machine could find out by itself."""
        spec = TenantSpec(Kind.OFFLINE, 7, name=f"{name}-joined", memory_bytes=QUOTA_BYTES, task=name, gpu="soft:0")
        assert self._victim is not None
        return {
            "seed": seed,
            "attack_s": attack_s,
            "quota_bytes": QUOTA_BYTES,
            "victim_pid": self._victim.pid,
            "runtime": str(self.directories.runtime),
            "gpus": str(self.gpus),
            "driver": str(self.driver),
            "sockets": [str(self.directories.runtime / socket) for socket in SOCKETS],
            "version": wire.VERSION,
            "hook_version": wire.HOOK_VERSION,
            "spec_fields": list(TenantSpec.__struct_fields__),
            "join": msgspec.to_builtins(wire.Join(wire.VERSION, spec)),
        }

    def attacker_command(self, start: Start, name: str, program: list[str]) -> tuple[list[str], dict[str, str]]:
        """Return the command and the environment with which a program becomes an offline tenant."""
        if start is Start.RUN:
            flags = ["--offline", "--memory", _QUOTA, "--name", name, "--task", name, "--gpu", "soft:0"]
            flags += ["--measure", "never", "--grace", "1s"]
            run = [sys.executable, "-m", "cotenant", "run", *self.directory_flags(), *flags]
            return [*run, "--", *program], dict(os.environ)
        environ = {**os.environ, **manage.env(self.gpus), "CUDA_VISIBLE_DEVICES": "0"}
        environ["LD_LIBRARY_PATH"] = f"{self.home / 'shim'}:{environ['LD_LIBRARY_PATH']}"
        environ |= {
            "COTENANT_SOCKET": str(self.directories.runtime / "tenant.sock"),
            "COTENANT_KIND": "offline",
            "COTENANT_MEMORY": _QUOTA,
            "COTENANT_TASK": name,
        }
        before = {
            Start.SELF_JOIN: [],
            Start.OTHER_USER: ["setpriv", "--reuid", _OTHER_USER, "--regid", _OTHER_USER, "--clear-groups"],
            Start.CONTAINER: ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--mount-proc"],
        }[start]
        return [*before, *program], environ

    # -- victim --------------------------------------------------------------------------------------------------

    def _start_victim(self) -> None:
        self._victim = subprocess.Popen([sys.executable, "-S", "-E", "-c", _SLEEP], stdin=subprocess.DEVNULL)

    def has_lost_victim(self) -> bool:
        """Return whether the unrelated process was killed; if so, start another one."""
        assert self._victim is not None
        if self._victim.poll() is None:
            return False
        self._start_victim()
        return True

    # -- state ---------------------------------------------------------------------------------------------------

    @property
    def node_pid(self) -> int:
        """Return the pid of the node if it runs, else 0."""
        return self._node.pid if self._node is not None and self._node.poll() is None else 0

    def node_error(self) -> str:
        """Return the last line that the node wrote."""
        lines = (self.home / "node.err").read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def due(self) -> int:
        """Return the number of the request that is due now."""
        return (self.clock.now() - self.origin_ns) // (PERIOD_US * 1000)

    def served(self, first: int, last: int) -> dict[int, int]:
        """Return the latency of every request of this range that was answered, in nanoseconds."""
        found = {}
        for line in self.service.log.read_text(encoding="utf-8").split("\n")[:-1]:
            number, took_ns = (int(word) for word in line.split())
            if first <= number <= last:
                found[number] = took_ns
        return found

    def due_instants(self, numbers: Iterable[int]) -> dict[int, int]:
        """Return when requests are due."""
        return {number: self.origin_ns + number * PERIOD_US * 1000 for number in numbers}

    def last_served(self) -> int:
        """Return the number of the last request that was answered."""
        return int((self.service.last_line() or "0").split()[0])

    def await_service(self, number: int = 0, timeout_s: float = _SERVING_S) -> bool:
        """Wait until the service has answered this request and is not behind."""
        end_ns = monotonic_ns() + round(timeout_s * 1e9)
        while monotonic_ns() < end_ns:
            last = self.last_served()
            if last >= number and self.due() - last <= _SERVED:
                self._schedule_service()
                return True
            pause(_LOOK_S)
        return False

    def _schedule_service(self) -> None:
        pid = self.service.pid
        if pid and pid != self._scheduled_pid:
            raise_priority(pid)
            self._scheduled_pid = pid

    def change_of_service(self) -> str:
        """Return what happened to the online tenant according to the node; empty if nothing did."""
        try:
            views = [view for view in self.tenants().tenants if view.tenant.name == _SERVICE]
        except CotenantError as error:
            return f"the node does not answer: {error}"
        if not views:
            return "the node has lost the online tenant"
        tenant = views[0].tenant
        if tenant.paused:
            return "the online tenant was paused"
        if tenant.lifecycle.phase is not ExitPhase.RUNNING:
            return f"the online tenant is {tenant.lifecycle.phase.value}"
        is_same = (tenant.grant.priority, tenant.spec.kind, tenant.spec.slo_ns) == (2, Kind.ONLINE, 0)
        return "" if is_same else "the online tenant has other rights"

    def attacker_bytes(self) -> int:
        """Return the device memory of all processes except the service."""
        service = self._scheduled_pid or self.service.pid
        clients = self.counters()["clients"]
        return sum(int(client["counters"]["memory_bytes"]) for client in clients if client["pid"] != service)

    def new_events(self) -> list[tuple[int, LogEvent]]:
        """Return the node's events since the last call, each with its instant on the clock of the reports."""
        found: list[tuple[int, LogEvent]] = []
        with contextlib.suppress(CotenantError, OSError):
            if self._event_log is None:
                self._event_log = EventLog(stored_clock_offset(self.directories.clock))
                self._ahead_ns = unix_ns() - monotonic_ns()  # both at once: the wall clock may be set later
            for turn in self._tail.turns():
                for event in self._event_log.record(turn.now, turn.event, turn.actions):
                    found.append((event.unix_ns - self._ahead_ns, event))
        return found

    def is_clear(self, prepared: str) -> bool:
        """Wait until only the online tenant and a prepared attacker are left; return whether the setup is sound."""
        end_ns = monotonic_ns() + round(_CLEAR_S * 1e9)
        while monotonic_ns() < end_ns and self.node_pid:
            with contextlib.suppress(CotenantError):
                if {view.tenant.name for view in self.tenants().tenants} - {prepared} == {_SERVICE}:
                    return self.is_healthy() and self.await_service()
            pause(_LOOK_S)
        return False


def raise_priority(pid: int) -> None:
    """Give a process real-time priority where that is permitted: the bench measures the device, not the processors."""
    for thread in _threads(pid):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(thread, os.SCHED_RR, os.sched_param(1))


def _threads(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError):
        yield from (int(thread.name) for thread in Path(f"/proc/{pid}/task").iterdir())


def _log_in_memory(log: Path) -> Path | None:
    """Make the service's log a file in memory: otherwise a busy disk delays the service when it writes a line."""
    try:
        descriptor, name = tempfile.mkstemp(prefix="cotenant-attack-", dir=_MEMORY_FILES)
    except OSError:
        return None
    os.close(descriptor)
    log.symlink_to(name)
    return Path(name)
