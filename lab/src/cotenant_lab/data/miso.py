"""Reader of MISO: duration of a training step on each MIG slice of an A100, and use of the whole GPU.

Source: boringlee24/socc22-miso (MIT).
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from cotenant.errors import ConfigError
from cotenant.units.table_row import REMEDY, number, table_rows, text_of, whole

_COLUMNS: Final = ("model", "batch", "mig_slice", "n_iters", "median_iter_s", "p95_iter_s")
_KINDS: Final = {"util_sm": "busy", "util_mem": "memory_busy", "memory": "memory_mib"}

JobName: TypeAlias = tuple[str, int]
"""Model and batch."""


class Miso(msgspec.Struct, frozen=True):
    """By job; fractions of time as nvidia-smi reported them."""

    step_s: dict[JobName, dict[int, float]]
    """By number of slices of seven."""
    busy: dict[JobName, float]
    memory_busy: dict[JobName, float]
    memory_mib: dict[JobName, int]


def read_miso(steps: bytes, uses_content: bytes, where: str) -> Miso:
    """Read the table of steps and the list of uses; jobs that lack one of them are omitted."""
    step_s: dict[JobName, dict[int, float]] = {}
    for location, (model, batch, mig, _, median, _) in table_rows(steps, _COLUMNS, where):
        slices = whole(mig.partition("g")[0], "mig_slice", location, least=1, most=7)
        job = (model, whole(batch, "batch", location, least=1))
        step_s.setdefault(job, {})[slices] = number(median, "median_iter_s", location, least=1e-9)
    uses = _uses(uses_content, where)
    jobs = [job for job in step_s if 7 in step_s[job] and all(job in uses[kind] for kind in _KINDS.values())]
    return Miso(
        {job: step_s[job] for job in jobs},
        {job: uses["busy"][job] / 100 for job in jobs},
        {job: uses["memory_busy"][job] / 100 for job in jobs},
        {job: round(uses["memory_mib"][job]) for job in jobs},
    )


def _uses(content: bytes, where: str) -> dict[str, dict[JobName, float]]:
    uses: dict[str, dict[JobName, float]] = {kind: {} for kind in _KINDS.values()}
    for line, text in enumerate(text_of(content, where).splitlines(), start=1):
        name, _, values = text.partition(" ")
        kind, _, model = name.rpartition("_")
        if kind not in _KINDS:
            continue
        try:
            by_batch = msgspec.json.decode(values, type=dict[str, float])
        except msgspec.DecodeError as error:
            raise ConfigError("row", str(error), REMEDY, where=f"{where}:{line}") from None
        for batch, value in by_batch.items():
            job = (model, whole(batch, "batch", f"{where}:{line}", least=1))
            uses[_KINDS[kind]][job] = value
    return uses
