"""Reader of iGniter: latency of models alone by share of the SMs, and of pairs with split shares, on a V100.

Source: icloud-ecnu/igniter (no licence: figures are read, never copied). Latencies are single runs of TensorRT
under MPS with SM percentages. A pair has two models; the second has the rest of the SMs.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from cotenant.units.table_row import number, table_rows, whole

_SOLO: Final = ("model", "batch", "sm_share_pct", "latency_ms", "throughput", "l2cache", "dram")
_PAIRS: Final = (
    "model_a",
    "model_b",
    "batch_a",
    "batch_b",
    "sm_share_a_pct",
    "latency_a_ms",
    "latency_b_ms",
)

Program: TypeAlias = tuple[str, int]
"""Model and batch."""


class Alone(msgspec.Struct, frozen=True):
    """One program alone at one share of the SMs."""

    latency_ms: float
    dram_pct: float | None
    """Use of the memory bandwidth; None: not measured."""


class SplitPair(msgspec.Struct, frozen=True):
    """Two programs with split shares of the SMs: the second has what the first leaves."""

    first: Program
    second: Program
    first_share_pct: int
    first_ms: float
    second_ms: float


def read_alone(content: bytes, where: str) -> dict[Program, dict[int, Alone]]:
    """Return the programs alone, by share."""
    programs: dict[Program, dict[int, Alone]] = {}
    for location, (model, batch, share, latency, _, _, dram) in table_rows(content, _SOLO, where):
        program = (model, whole(batch, "batch", location, least=1))
        pct = whole(share, "sm_share_pct", location, least=1, most=100)
        programs.setdefault(program, {})[pct] = Alone(
            number(latency, "latency_ms", location, least=0.0),
            number(dram, "dram", location, least=0.0) if dram else None,
        )
    return programs


def read_pairs(content: bytes, where: str) -> list[SplitPair]:
    """Return the pairs in the order of the file."""
    return [
        SplitPair(
            (model_a, whole(batch_a, "batch_a", location, least=1)),
            (model_b, whole(batch_b, "batch_b", location, least=1)),
            whole(share, "sm_share_a_pct", location, least=1, most=99),
            number(latency_a, "latency_a_ms", location, least=0.0),
            number(latency_b, "latency_b_ms", location, least=0.0),
        )
        for location, (model_a, model_b, batch_a, batch_b, share, latency_a, latency_b) in table_rows(
            content, _PAIRS, where
        )
    ]
