"""Compare estimated latencies of models with published measurements of models and GPUs that were not fitted."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console

from cotenant.profile.estimate.parameters import FITTED, DurationParameters
from cotenant.profile.estimate.stream import EstimatedStream
from cotenant_lab.study.error import ErrorSummary, errors_of, relative
from cotenant_lab.study.models.cases import Case, HostTimes, device_of, read_cases, read_operators, stream_of
from cotenant_lab.study.models.fit import fit_host, fit_parameters
from cotenant_lab.study.models.operators import OperatorError, operator_errors
from cotenant_lab.study.progress import show_parts

TARGETS: Final = {"error_median": 0.20, "error_p90": 0.45, "coverage": 0.8}
_BASELINES: Final = ("flops", "bytes")


class GroupError(msgspec.Struct, frozen=True, kw_only=True):
    """Errors of the judged cases of one source, GPU or share."""

    group: str
    errors: ErrorSummary
    coverage: float
    ratio_median: float
    """Estimated over measured."""


class ModelsReport(msgspec.Struct, frozen=True, kw_only=True):
    """The results of study `models`."""

    cases: int
    fitted: int
    error_median: float
    error_p90: float
    coverage: float
    """Part of the judged latencies within the 90 % intervals."""
    worst_case: str
    by_source: list[GroupError]
    by_gpu: list[GroupError]
    operators: list[OperatorError]
    baselines: dict[str, ErrorSummary]
    """Time proportional to arithmetic, or to bytes, with one factor fitted to the same cases."""
    fitted_errors: ErrorSummary
    hosts: dict[str, HostTimes]
    """Host times of the measuring machines, fitted to the cases that may be fitted."""
    parameters: dict[str, float]
    left_out: list[str]
    met: dict[str, bool]


class Prediction(msgspec.Struct, frozen=True):
    """One case and its estimate."""

    case: Case
    predicted_ms: float
    low_ms: float
    high_ms: float
    flops_ms: float
    bytes_ms: float

    @property
    def error(self) -> float:
        """Return the relative error."""
        return relative(self.predicted_ms, self.case.measured_ms)


def run_models(
    directory: Path, console: Console, report: Callable[[str], None], *, fit: bool = False
) -> tuple[ModelsReport, list[Prediction]]:
    """Run the study with the product's parameters, or with newly fitted ones."""
    cases = read_cases(directory)
    parameters: DurationParameters = FITTED
    if fit:
        parameters = fit_parameters(cases, FITTED, report).parameters
    hosts = {"rapp": fit_host(cases, parameters)}
    with show_parts(console, report, "cases") as progress:
        predictions = []
        for index, case in enumerate(cases):
            predictions.append(_prediction(case, stream_of(case, hosts.get(case.host), parameters)))
            progress("models", index + 1, len(cases))
    return report_of(predictions, operator_errors(read_operators(directory)), hosts, parameters), predictions


def _prediction(case: Case, stream: EstimatedStream) -> Prediction:
    # Orion's sums are device times; all others are latencies.
    estimate = stream.device_ns if case.source == "orion" else stream.latency_ns
    gpu = device_of(case)
    return Prediction(
        case,
        estimate.point / 1e6,
        estimate.low / 1e6,
        estimate.high / 1e6,
        stream.flops / gpu.fp32 * 1e3,
        stream.moved_bytes / gpu.bytes_per_s * 1e3,
    )


def report_of(
    predictions: Sequence[Prediction],
    operators: list[OperatorError],
    hosts: Mapping[str, HostTimes],
    parameters: DurationParameters,
) -> ModelsReport:
    """Summarize the judged cases."""
    judged = [row for row in predictions if not row.case.fitted]
    fitted = [row for row in predictions if row.case.fitted]
    errors = errors_of({row.case.name: row.error for row in judged})
    coverage = _coverage(judged)
    values = {"error_median": errors.median, "error_p90": errors.p90, "coverage": coverage}
    met = {name: values[name] >= goal if name == "coverage" else values[name] <= goal for name, goal in TARGETS.items()}
    return ModelsReport(
        cases=len(judged),
        fitted=len(fitted),
        error_median=errors.median,
        error_p90=errors.p90,
        coverage=coverage,
        worst_case=errors.worst_case,
        by_source=_groups(judged, _source_of),
        by_gpu=_groups(judged, lambda row: row.case.gpu),
        operators=operators,
        baselines={name: _baseline(judged, fitted, name) for name in _BASELINES},
        fitted_errors=errors_of({row.case.name: row.error for row in fitted}),
        hosts=dict(hosts),
        parameters={name: getattr(parameters, name) for name in parameters.__struct_fields__},
        left_out=[
            "RaPP's maxvit_t: the catalogue of networks does not contain it",
            "NeuSight's gpt3_xl and switch models: their sizes are not given with the data",
            "NeuSight's rows of several GPUs, of fused attention and of AMD GPUs",
        ],
        met=met,
    )


def _source_of(row: Prediction) -> str:
    return f"rapp, {row.case.share_pct} % of the SMs" if row.case.source == "rapp" else row.case.source


def _groups(rows: Sequence[Prediction], key: Callable[[Prediction], str]) -> list[GroupError]:
    names = sorted({key(row) for row in rows})
    groups = []
    for name in names:
        own = [row for row in rows if key(row) == name]
        ratio = statistics.median(row.predicted_ms / row.case.measured_ms for row in own)
        groups.append(
            GroupError(
                group=name,
                errors=errors_of({row.case.name: row.error for row in own}),
                coverage=_coverage(own),
                ratio_median=round(ratio, 4),
            )
        )
    return groups


def _coverage(rows: Sequence[Prediction]) -> float:
    inside = sum(row.low_ms <= row.case.measured_ms <= row.high_ms for row in rows)
    return round(inside / max(len(rows), 1), 4)


def _baseline(judged: Sequence[Prediction], fitted: Sequence[Prediction], name: str) -> ErrorSummary:
    """Return the errors of a time proportional to one quantity; its factor is the median of the fitted cases."""
    field = f"{name}_ms"
    factor = statistics.median(row.case.measured_ms / getattr(row, field) for row in fitted)
    return errors_of({row.case.name: relative(factor * getattr(row, field), row.case.measured_ms) for row in judged})
