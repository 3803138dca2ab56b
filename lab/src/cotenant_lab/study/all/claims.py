"""The claims of four papers, as the study of each paper reports them.

Each study's report is read as JSON, whether it was just made or read from a file; only the fields that are needed here
are decoded. Results are shown as they are, met or missed.
"""

from __future__ import annotations

from typing import Final

import msgspec

from cotenant.errors import ConfigError
from cotenant_lab.study.claim import StudyClaim

LABS: Final = ("baselines", "fikit", "arkgpu", "dstack", "muxflow")
"""Studies in the order in which they run; `baselines` has no claims, and judges what others are compared with."""


class StudySummary(msgspec.Struct, frozen=True, kw_only=True):
    """One study: how it was run, and its own targets."""

    lab: str
    seed: int
    quick: bool
    met: dict[str, bool]


class AllReport(msgspec.Struct, frozen=True, kw_only=True):
    """The claims of all studies."""

    lab: str = "all"
    claims: list[StudyClaim]
    claims_total: int
    claims_reached: int
    claims_unexplained: int
    """Claims that are not reached, without a reason."""
    labs: list[StudySummary]


class _Report(msgspec.Struct):
    lab: str
    seed: int
    quick: bool
    claims: list[StudyClaim]
    met: dict[str, bool]


def read_report(lab: str, content: bytes, where: str) -> tuple[StudySummary, list[StudyClaim]]:
    """Return a study's summary and claims from its report as `--json` printed it."""
    try:
        report = msgspec.json.decode(content, type=_Report)
    except msgspec.DecodeError as error:
        remedy = f"is not a report of this version ({error}); run `cotenant-lab study {lab} --json` again"
        raise ConfigError("--reuse", lab, remedy, where=where) from None
    if report.lab != lab:
        remedy = f"is a report of study {report.lab}; run `cotenant-lab study {lab} --json` again"
        raise ConfigError("--reuse", lab, remedy, where=where)
    return StudySummary(lab=lab, seed=report.seed, quick=report.quick, met=report.met), report.claims


def all_report(studies: list[tuple[StudySummary, list[StudyClaim]]]) -> AllReport:
    """Count the claims of all studies."""
    claims = [claim for _, own in studies for claim in own]
    return AllReport(
        claims=claims,
        claims_total=len(claims),
        claims_reached=sum(claim.reached for claim in claims),
        claims_unexplained=sum(not claim.reached and not claim.reason for claim in claims),
        labs=[summary for summary, _ in studies],
    )
