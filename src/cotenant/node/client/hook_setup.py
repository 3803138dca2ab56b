"""The hook in `cotenant run`: the environment of the program before it starts, and its records afterwards."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from cotenant.errors import CotenantError, WorldError
from cotenant.gate.grant import Kind
from cotenant.hook.record_socket import RecordSocket
from cotenant.hook.records import (
    is_abandoned,
    lock_run_directory,
    mapped_driver,
    process_name,
    process_tree,
    write_task_name,
)
from cotenant.hook.shim import RECORD_VARIABLE, SEALED_VARIABLE, environment, find_driver, find_nvml, make_shim
from cotenant.node.config.file import RunConfig
from cotenant.node.model.tenant import TenantSpec
from cotenant.profile.store import ProfileStore, StoredProfile
from cotenant.runner.clock import unix_ns

if TYPE_CHECKING:
    from cotenant.hook.record import Record
    from cotenant.predict.usage import TaskUse
    from cotenant.profile.profile import Profile

Report: TypeAlias = Callable[[str], None]

NO_DRIVER: Final = (
    "this machine has no CUDA driver; a software GPU stands in for one: cotenant softgpu create --gpu v100"
)
MEASURED_RUNS: Final = 3
_FIRST_CHECK_S: Final = 0.1
_LONGEST_CHECK_S: Final = 2.0
_REMEDY: Final = "it may be linked statically, or load the driver by its path"


class HookedProgram:
    """One program with the hook, from before its start until after its end."""

    def __init__(
        self, config: RunConfig, home: Path, driver: Path, task: str, *, measuring: bool, report: Report
    ) -> None:
        """Create the directory of the hook and of the program's records."""
        self._config = config
        self.driver = driver
        self._report = report
        self._suspects: dict[int, str] = {}
        self._reported: list[int] = []
        self.measuring = measuring
        import tempfile  # noqa: PLC0415  slow to import

        self.home = Path(tempfile.mkdtemp(prefix=f"run-{os.getpid()}-", dir=home))
        self._lock = lock_run_directory(self.home)
        self.records = self.home / "records"
        self.records.mkdir(mode=0o700)
        self._socket = RecordSocket(self.records)
        write_task_name(self.home, config.name or task)
        self.poll_s = _FIRST_CHECK_S

    def variables(self, environ: Mapping[str, str], *, is_tenant: bool = True) -> dict[str, str]:
        """Return the variables to add to the environment of a program, which joins no node unless it is a tenant."""
        return {
            **environment(self._config.hook, self.home / "shim", environ),
            **({} if is_tenant else {"COTENANT_SOCKET": "", "COTENANT_TOKEN": ""}),
            RECORD_VARIABLE: str(self.records),
            SEALED_VARIABLE: "1",
            "COTENANT_MEASURE": str(int(self.measuring)),
            "COTENANT_SAMPLE": str(self._config.sample),
            "COTENANT_UNKNOWN": self._config.unknown,
            "COTENANT_TRACE": str(int(self._config.trace == "on")),
        }

    def close(self) -> None:
        """Remove the directory and the records."""
        import shutil  # noqa: PLC0415  slow to import

        self._socket.close()
        shutil.rmtree(self.home, ignore_errors=True)
        os.close(self._lock)

    def fileno(self) -> int:
        """Return the descriptor that is readable when a process has sent its record; `receive` takes it."""
        return self._socket.fileno()

    def receive(self) -> None:
        """Take the records that processes have sent."""
        self._socket.receive()

    def check(self, pid: int) -> None:
        """Check the running processes for one that uses the driver without the hook."""
        self._socket.receive()
        self.poll_s = min(2 * self.poll_s, _LONGEST_CHECK_S)
        for process in process_tree(pid):
            path = mapped_driver(process, self.driver.resolve(), hooked=self._config.hook == "preload")
            if path and process not in self._suspects:
                self._suspects[process] = f"{process_name(process)} (pid {process}) uses {path}"
                if self._config.hook == "shim":  # preloaded: the hook may still see it
                    self._report_unhooked(process)

    @property
    def has_unhooked(self) -> bool:
        """Return whether a process loaded the driver without the hook."""
        return bool(self._unhooked_pids())

    def _unhooked_pids(self) -> list[int]:
        return [pid for pid in self._suspects if not self._socket.has_record(pid)]

    def _report_unhooked(self, pid: int) -> None:
        if pid not in self._reported:
            self._reported.append(pid)
            self._report(f"{self._suspects[pid]}, and the hook saw nothing of it: {_REMEDY}; its GPU work is not known")

    def collect(self, task: str) -> list[Record]:
        """Return the records of its processes, and report what the hook could not see."""
        records = [record for record in self._socket.read(task) if record.calls or record.unknown]
        for pid in self._unhooked_pids():
            self._report_unhooked(pid)
        names = sorted({name for record in records for name in record.unknown_names})
        if names:
            treatment = "refused" if self._config.unknown == "refuse" else "passed on unseen"
            self._report(f"the driver has newer forms of {', '.join(names)} than the hook supports: {treatment}")
        if any(record.export_tables for record in records) and not any(record.calls for record in records):
            self._report("the program uses private tables of the driver: work through them is not recorded")
        return records


@contextlib.contextmanager
def hooked_program(
    config: RunConfig, home: Path, environ: Mapping[str, str], task: str, store: ProfileStore | None, report: Report
) -> Iterator[HookedProgram | None]:
    """Return the hook for a program; None if it is off or there is no driver to intercept."""
    hooked = _prepare(config, home, environ, task, store, report)
    try:
        yield hooked
    finally:
        if hooked is not None:
            hooked.close()


def _prepare(
    config: RunConfig, home: Path, environ: Mapping[str, str], task: str, store: ProfileStore | None, report: Report
) -> HookedProgram | None:
    if config.hook == "off":
        return None
    driver = find_driver(environ)
    if driver is None:
        return None
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        _remove_abandoned(home)
        hooked = HookedProgram(
            config, home, driver, task, measuring=_is_measuring(config.measure, task, store), report=report
        )
        make_shim(hooked.home / "shim", driver, find_nvml(environ))
        _write_kernel_times(hooked.records, task, store)
        return hooked
    except OSError as error:
        report(f"the hook cannot be installed: {error.strerror} ({error.filename}); the program runs without it")
        return None
    except WorldError as error:
        report(f"{error}; the program runs without it")
        return None


def _remove_abandoned(home: Path) -> None:
    """Remove the directories of runs that were killed."""
    for run in home.glob("run-*-*"):
        if is_abandoned(run):
            import shutil  # noqa: PLC0415  slow to import

            shutil.rmtree(run, ignore_errors=True)


def _is_measuring(measure: str, task: str, store: ProfileStore | None) -> bool:
    if measure in ("always", "never"):
        return measure == "always"
    runs = MEASURED_RUNS if measure == "auto" else int(measure)
    if store is None or not runs:
        return False
    with contextlib.suppress(CotenantError):
        keys = [key for key in store.keys() if key.task == task]  # noqa: SIM118  not a dictionary
        measured = [recording for key in keys for recording in store.recordings(key) if recording.profile.span_ns]
        return len(measured) < runs
    return False


def _write_kernel_times(records: Path, task: str, store: ProfileStore | None) -> None:
    """Write the kernel times of earlier runs next to the records; without them the hook learns anew."""
    with contextlib.suppress(CotenantError):
        keys = [key for key in store.keys() if key.task == task] if store is not None else []  # noqa: SIM118
        stored = [profile for key in keys if store is not None and (profile := store.get(key)) is not None]
        if stored:
            from cotenant.hook.kernel_times import FILE_NAME, encode_kernel_times  # noqa: PLC0415  only if there are profiles

            (records / FILE_NAME).write_bytes(encode_kernel_times(entry.profile for entry in stored))


def with_known_use(spec: TenantSpec, store: ProfileStore | None) -> TenantSpec:
    """Return the spec with the device use that earlier runs of the task recorded."""
    use = known_use(spec.task, store, is_online=spec.kind is Kind.ONLINE)
    return spec if use is None else msgspec.structs.replace(spec, use=use)


def known_use(task: str, store: ProfileStore | None, *, is_online: bool) -> TaskUse | None:
    """Return the device use that earlier runs of a task recorded; None if there is no record.

    Of profiles of several kinds of device, the latest is used: it is most likely of this machine.
    """
    stored: list[StoredProfile] = []
    with contextlib.suppress(CotenantError):
        keys = [key for key in store.keys() if key.task == task] if store is not None else []  # noqa: SIM118
        stored = [entry for key in keys if store is not None and (entry := store.get(key)) is not None]
    if not stored:
        return None
    from cotenant.predict.profile_usage import sms_of, use_of  # noqa: PLC0415  as above

    for entry in sorted(stored, key=lambda entry: entry.recorded_ns, reverse=True):
        use = use_of(entry.profile, sms_of(entry.profile.device), is_online=is_online)
        if use is not None:
            return use
    return None


def profiles_of(records: Iterable[Record], task: str) -> list[Profile]:
    """Return one recording per kind of device for all processes of the program."""
    by_device: dict[str, list[Profile]] = {}
    for record in records:
        if record.profile.timings:
            by_device.setdefault(record.profile.device, []).append(record.profile)
    if not by_device:
        return []
    from cotenant.profile.profile import merge  # noqa: PLC0415  as above

    return [msgspec.structs.replace(merge(parts, task, device), runs=1) for device, parts in by_device.items()]


def store_profiles(profiles: Sequence[Profile], store: ProfileStore | None, report: Report) -> None:
    """Store recordings; a failure does not change the program's exit code."""
    for profile in profiles if store is not None else ():
        assert store is not None
        try:
            store.add(profile, unix_ns())
        except CotenantError as error:
            report(f"the recording is lost: {error}")
