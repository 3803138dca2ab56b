"""Decode the records of a software GPU: struct ct_device_record of native/device/device.h."""

from __future__ import annotations

import struct
from typing import Final

from cotenant.trace.recording import ContextSwitch, DeviceOp, DeviceOpKind

RECORD: Final = struct.Struct("<QQIIIBBHQQQQQ")
DONE, OFF, ON = 0, 2, 3
_OPS: Final = {op.value: op for op in DeviceOpKind}


def decode_device_records(data: bytes) -> tuple[list[DeviceOp], list[ContextSwitch]]:
    """Return the finished operations and the context switches; other records are skipped."""
    ops: list[DeviceOp] = []
    switches: list[ContextSwitch] = []
    whole_bytes = len(data) - len(data) % RECORD.size
    for _, tag, client, _, stream, kind, outcome, _, submit, ready, start, end, delayed in RECORD.iter_unpack(
        data[:whole_bytes]
    ):
        if outcome == DONE and kind in _OPS and start <= end:
            ops.append(DeviceOp(_OPS[kind], tag >> 32, client, stream & 0xFFFF, submit, ready, start, end, delayed))
        elif outcome in (OFF, ON):
            switches.append(ContextSwitch(client, start, outcome == ON))
    return ops, switches
