"""How are the days of programs written? One JSON file, of which what is sound is read though the rest is not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

import msgspec

from cotenant.domain.day import PARTS_OF_A_DAY, PROGRAMS_LIMIT, Day, Program, in_order
from cotenant.domain.tenant import COMMAND_LIMIT

FORMAT: Final = "cotenant-days"
VERSION: Final = 1
LIMIT_BYTES: Final = 4 << 20
"""No file that we write is as large: 256 programs with 96 times of day of 100 bytes, and a task that is all escapes."""


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    uid: Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
    task: Annotated[str, msgspec.Meta(min_length=1, max_length=COMMAND_LIMIT)]
    day: Annotated[Day, msgspec.Meta(max_length=PARTS_OF_A_DAY)]

    def __post_init__(self) -> None:
        if not in_order(self.day):
            raise ValueError("the times of a day are out of order")


class _Head(msgspec.Struct, frozen=True):
    """What every version of it says; `programs` are looked at one by one."""

    format: str
    version: int
    parts: int = PARTS_OF_A_DAY
    programs: list[msgspec.Raw] = []


_HEAD: Final = msgspec.json.Decoder(_Head)
_ENTRY: Final = msgspec.json.Decoder(_Entry)


def encode_days(known: Mapping[Program, Day]) -> bytes:
    """As it is kept: the programs that were seen last, in their order, a line each."""
    latest = list(known.items())[-PROGRAMS_LIMIT:]
    lines = b",\n".join(msgspec.json.encode(_Entry(*program, day)) for program, day in latest)
    head = f'{{"format":"{FORMAT}","version":{VERSION},"parts":{PARTS_OF_A_DAY},"programs":[\n'
    return head.encode() + lines + b"\n]}\n"


def decode_days(data: bytes) -> tuple[dict[Program, Day], str]:
    """What is sound of it, and what is wrong with the rest in a few words; empty: nothing."""
    if len(data) > LIMIT_BYTES:
        return {}, "is larger than any that cotenant writes"
    try:
        head = _HEAD.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        return {}, f"is no file of days ({error})"
    if head.format != FORMAT:
        return {}, "is no file of days"
    if head.version != VERSION or head.parts != PARTS_OF_A_DAY:
        return {}, f"was written by another cotenant (version {head.version}, this one knows {VERSION})"
    known: dict[Program, Day] = {}
    wrong, why = 0, ""
    for raw in head.programs:
        try:
            entry = _ENTRY.decode(raw)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            wrong, why = wrong + 1, why or str(error)
        else:
            known[Program(entry.uid, entry.task)] = entry.day
    return known, f"is damaged at {wrong} of {len(head.programs)} programs ({why})" if wrong else ""
