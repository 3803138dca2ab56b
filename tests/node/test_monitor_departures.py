"""The monitor checks a device once more after a tenant has left it; this needs no device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from cotenant.gate.ledger_file import LiveLedgers, ledger_path
from cotenant.node.daemon.monitor.monitor import DeviceMonitor, MonitorParts
from cotenant.node.daemon.monitor.nvml_sampler import DeviceQuery, DeviceReading
from cotenant.node.daemon.monitor.processes import ProcessTable, identity_of
from cotenant.node.model.gpu import Gpu
from cotenant.node.model.protection import ProtectLimits
from cotenant.runner.background import TaskResult
from tests.support.monitored_node import NO_SUCH_PID, FakeNode, tenant

pytestmark = pytest.mark.live

LINES_USED, FIRST_LINE = 4096 + 8, 4096 + 128
"""Offsets of the number of lines that slot 0 ever used and of the owner of its first line: native/ledger/ledger.h."""


class Devices:
    """A device that responds and lists no processes."""

    def read(self, questions: Sequence[DeviceQuery]) -> list[DeviceReading]:
        return [
            DeviceReading(question.gpu, is_there=True, held_bytes={} if question.held else None)
            for question in questions
        ]


class ImmediateTasks:
    """Done where they are asked for."""

    def submit(self, work: Callable[[], list[DeviceReading]], done: Callable[[Any], None]) -> None:
        done(TaskResult(work()))


def claim(directory: Path, owner: int) -> None:
    """As a process does when it first asks for memory."""
    with ledger_path(directory, 0).open("r+b") as file:
        for place, word in ((LINES_USED, 1), (FIRST_LINE, owner)):
            file.seek(place)
            file.write(word.to_bytes(8, "little"))


def test_process_that_lived_between_two_checks_is_found(tmp_path: Path) -> None:
    known = FakeNode(Gpu("a", 1 << 34), ProtectLimits())
    ledgers = LiveLedgers(tmp_path, 2)
    parts = cast("Any", MonitorParts)(None, ledgers, ProcessTable(), Devices(), ImmediateTasks(), tmp_path)
    watch = DeviceMonitor(known, parts, lambda _: None)
    ledgers.grant(0, 0, 1)
    known.set_tenants(tenant(0))
    watch.wake(watch.next_wakeup() or 0)
    assert ledgers.lines(0) == []
    claim(tmp_path, identity_of(NO_SUCH_PID, 1, 1))
    assert len(ledgers.lines(0)) == 1
    known.set_tenants()  # the only tenant left
    due = watch.next_wakeup()
    assert due is not None
    watch.wake(due)
    assert ledgers.lines(0) == []
    assert watch.next_wakeup() is None
    ledgers.close()
