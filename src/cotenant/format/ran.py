"""What do a software GPU's records say? struct ct_device_record of native/device/device.h, as its server sends them."""

from __future__ import annotations

import struct
from typing import Final

from cotenant.domain.trace import Op, Ran, Turn

RECORD: Final = struct.Struct("<QQIIIBBHQQQQQ")
DONE, OFF, ON = 0, 2, 3
_OPS: Final = {op.value: op for op in Op}


def read_ran(data: bytes) -> tuple[list[Ran], list[Turn]]:
    """What ended, and who was switched out and in; what is neither is passed over."""
    ran: list[Ran] = []
    turns: list[Turn] = []
    whole = len(data) - len(data) % RECORD.size
    for _, tag, client, _, stream, kind, what, _, submit, ready, start, end, delayed in RECORD.iter_unpack(
        data[:whole]
    ):
        if what == DONE and kind in _OPS and start <= end:
            ran.append(Ran(_OPS[kind], tag >> 32, client, stream & 0xFFFF, submit, ready, start, end, delayed))
        elif what in (OFF, ON):
            turns.append(Turn(client, start, what == ON))
    return ran, turns
