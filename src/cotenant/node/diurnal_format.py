"""The file of diurnal profiles: JSON, whose intact entries are read even if others are damaged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

import msgspec

from cotenant.node.model.tenant import COMMAND_LIMIT
from cotenant.predict.diurnal_profile import BINS_PER_DAY, PROGRAMS_LIMIT, DiurnalProfile, Program, in_order

FORMAT: Final = "cotenant-diurnal-profiles"
VERSION: Final = 1
LIMIT_BYTES: Final = 4 << 20
"""Larger than any valid file: 256 programs with 96 intervals of 100 bytes, and a task that is all escapes."""


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    uid: Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
    task: Annotated[str, msgspec.Meta(min_length=1, max_length=COMMAND_LIMIT)]
    day: Annotated[DiurnalProfile, msgspec.Meta(max_length=BINS_PER_DAY)]

    def __post_init__(self) -> None:
        if not in_order(self.day):
            raise ValueError("the intervals of a day are out of order")


class _Head(msgspec.Struct, frozen=True):
    """The fields of every version; `programs` are decoded one by one."""

    format: str
    version: int
    parts: int = BINS_PER_DAY
    programs: list[msgspec.Raw] = []


_HEAD: Final = msgspec.json.Decoder(_Head)
_ENTRY: Final = msgspec.json.Decoder(_Entry)


def encode_profiles(profiles: Mapping[Program, DiurnalProfile]) -> bytes:
    """Return the file with the most recent programs, one line each."""
    latest = list(profiles.items())[-PROGRAMS_LIMIT:]
    lines = b",\n".join(msgspec.json.encode(_Entry(*program, day)) for program, day in latest)
    head = f'{{"format":"{FORMAT}","version":{VERSION},"parts":{BINS_PER_DAY},"programs":[\n'
    return head.encode() + lines + b"\n]}\n"


def decode_profiles(data: bytes) -> tuple[dict[Program, DiurnalProfile], str]:
    """Return the intact profiles and a description of what is wrong with the rest; empty: nothing."""
    if len(data) > LIMIT_BYTES:
        return {}, "is larger than any that cotenant writes"
    try:
        head = _HEAD.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        return {}, f"is not a file of diurnal profiles ({error})"
    if head.format != FORMAT:
        return {}, "is not a file of diurnal profiles"
    if head.version != VERSION:
        return {}, f"has version {head.version}, but this cotenant reads version {VERSION}"
    if head.parts != BINS_PER_DAY:
        return {}, f"divides a day into {head.parts} parts, but this cotenant uses {BINS_PER_DAY}"
    profiles: dict[Program, DiurnalProfile] = {}
    wrong, why = 0, ""
    for raw in head.programs:
        try:
            entry = _ENTRY.decode(raw)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            wrong, why = wrong + 1, why or str(error)
        else:
            profiles[Program(entry.uid, entry.task)] = entry.day
    return profiles, f"is damaged at {wrong} of {len(head.programs)} programs ({why})" if wrong else ""
