"""Predict latencies of clients of a server from half of the measurements, and compare with the rest."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from cotenant_lab.data.disb import Client, ClientResult
from cotenant_lab.physics.tenants import Cell, ClientsRun, ServerModel, fit_server, predict, rtx3080
from cotenant_lab.study.error import (
    BEYOND,
    ErrorCheck,
    ErrorSplit,
    ErrorSummary,
    HalfErrors,
    UnexplainedCase,
    errors_of,
    half_errors,
    halves,
    relative,
)

CHECK: Final = "clients of a server"
TARGET: Final = 0.20
_MS: Final = 1e6
_SERIAL: Final = 1.1


class ServerMeasurements(msgspec.Struct, frozen=True, kw_only=True):
    """One serving system: its runs, and latencies of its concurrent clients (ns)."""

    server: str
    runs: list[ClientsRun]
    together_ns: dict[Cell, float]


class ServerPrediction(msgspec.Struct, frozen=True, kw_only=True):
    """A fit, and latencies in ms of the held-out cells."""

    server: str
    fitted: ServerModel
    known: list[Cell]
    predicted: dict[Cell, float]
    measured: dict[Cell, float]
    refitted: dict[Cell, tuple[float, float]]
    """Predicted and measured latencies of the known cells."""


class FitTask(msgspec.Struct, frozen=True, kw_only=True):
    """One fit to compute; fits are independent of each other."""

    measured: ServerMeasurements
    by: str
    seed: int


def measured_of(
    server: str, workloads: Mapping[str, Sequence[Client]], results_by_run: Mapping[str, Sequence[ClientResult]]
) -> ServerMeasurements:
    """Return the clients of the workload file that the result file has."""
    runs = []
    together: dict[Cell, float] = {}
    for name, results in results_by_run.items():
        by_client = {result.client: result for result in results}
        clients = tuple(client for client in workloads[name] if client.name in by_client)
        runs.append(ClientsRun(name, clients, {client.name: by_client[client.name].alone_ns for client in clients}))
        together |= {(name, client.name): float(by_client[client.name].together_ns) for client in clients}
    return ServerMeasurements(server=server, runs=runs, together_ns=together)


def answer(task: FitTask) -> ServerPrediction:
    """Fit to the known half, run the fit on the device model, and return the held-out cells."""
    measured = task.measured
    known = known_cells(measured, task.by, task.seed)
    config = rtx3080()
    fitted = fit_server(measured.runs, {cell: measured.together_ns[cell] for cell in known}, config)
    latencies = predict(measured.runs, fitted, config)
    held_out = [cell for cell in measured.together_ns if cell not in known]
    return ServerPrediction(
        server=measured.server,
        fitted=fitted,
        known=known,
        predicted={cell: latencies[cell] / _MS for cell in held_out},
        measured={cell: measured.together_ns[cell] / _MS for cell in held_out},
        refitted={cell: (latencies[cell] / _MS, measured.together_ns[cell] / _MS) for cell in known},
    )


def known_cells(measured: ServerMeasurements, by: str, seed: int) -> list[Cell]:
    """Return half of the cells, all cells of half of the runs, or none."""
    cells = sorted(measured.together_ns)
    if by == "none":
        return []
    if by == "cell":
        return sorted(halves(cells, seed)[0])
    runs = halves([run.name for run in measured.runs], seed)[0]
    return [cell for cell in cells if cell[0] in runs]


def evaluate_servers(
    measured: Sequence[ServerMeasurements], outcomes: Sequence[ServerPrediction], name: str = CHECK
) -> list[ErrorCheck]:
    """Return a check for all servers and one for each, with those of simpler predictors."""
    checks = []
    every: list[dict[str, dict[str, float]]] = []
    for server_measurements, outcome in zip(measured, outcomes, strict=True):
        guesses = {
            name: _named(server_measurements.server, guess)
            for name, guess in _guesses(server_measurements, outcome).items()
        }
        truth = _named(server_measurements.server, outcome.measured)
        every.append({"truth": truth, **guesses})
        checks.append(_check(f"{name}: {server_measurements.server}", guesses, truth))
    merged = {name: {case: value for part in every for case, value in part[name].items()} for name in every[0]}
    truth = merged.pop("truth")
    return [_check(name, merged, truth), *checks]


def split_of(by: str, seed: int, outcomes: Sequence[ServerPrediction]) -> ErrorSplit:
    """Return the errors of all servers for one split."""
    errors = all_errors(outcomes)
    return ErrorSplit(by=by, seed=seed, median=errors.median, p90=errors.p90)


def errors_of_halves(outcomes: Sequence[ServerPrediction]) -> HalfErrors:
    """Return the errors of all servers, for both halves."""
    return half_errors(
        [(outcome.predicted[cell], outcome.measured[cell]) for outcome in outcomes for cell in outcome.measured],
        [values for outcome in outcomes for values in outcome.refitted.values()],
    )


def all_errors(outcomes: Sequence[ServerPrediction]) -> ErrorSummary:
    """Return the errors of all servers."""
    return errors_of(
        {
            _case(outcome.server, cell): relative(outcome.predicted[cell], outcome.measured[cell])
            for outcome in outcomes
            for cell in outcome.measured
        }
    )


def unexplained(measured: Sequence[ServerMeasurements], outcomes: Sequence[ServerPrediction]) -> list[UnexplainedCase]:
    """Return cells with large errors, the worst first."""
    cases = []
    for server_measurements, outcome in zip(measured, outcomes, strict=True):
        for cell, truth in outcome.measured.items():
            error = relative(outcome.predicted[cell], truth)
            if error > BEYOND:
                cases.append(
                    UnexplainedCase(
                        check=CHECK,
                        case=_case(server_measurements.server, cell),
                        error=round(error, 6),
                        predicted_ms=round(outcome.predicted[cell], 6),
                        measured_ms=round(truth, 6),
                        reason=_reason(server_measurements, cell),
                    )
                )
    return sorted(cases, key=lambda case: (-case.error, case.case))


def _check(name: str, guesses: Mapping[str, Mapping[str, float]], truth: Mapping[str, float]) -> ErrorCheck:
    errors = {
        guess: errors_of({case: relative(values[case], truth[case]) for case in truth})
        for guess, values in guesses.items()
    }
    model = errors.pop("model")
    return ErrorCheck(name=name, errors=model, target=TARGET, met=model.median <= TARGET, baselines=errors)


def _guesses(measured: ServerMeasurements, outcome: ServerPrediction) -> dict[str, dict[Cell, float]]:
    """Return the predictions of the model and of simpler predictors in ms, for the held-out cells."""
    alone = {(run.name, client): ns / _MS for run in measured.runs for client, ns in run.alone_ns.items()}
    slowdowns: dict[str, list[float]] = {}
    model_of = {(run.name, client.name): client.model for run in measured.runs for client in run.clients}
    for cell in outcome.known:
        slowdowns.setdefault(model_of[cell], []).append(measured.together_ns[cell] / _MS / alone[cell])
    guesses = {
        "model": outcome.predicted,
        "no interference": {cell: alone[cell] for cell in outcome.measured},
        "fair time slices": {cell: alone[cell] * _busy(measured, cell) for cell in outcome.measured},
    }
    if slowdowns:
        medians = {model: statistics.median(values) for model, values in slowdowns.items()}
        overall = statistics.median([value for values in slowdowns.values() for value in values])
        guesses["median slowdown of the network"] = {
            cell: alone[cell] * medians.get(model_of[cell], overall) for cell in outcome.measured
        }
    return guesses


def _busy(measured: ServerMeasurements, cell: Cell) -> float:
    """Return the sum of this client and the others, each by its utilization alone."""
    run = next(run for run in measured.runs if run.name == cell[0])
    return 1.0 + sum(
        min(1.0, client.load.rate_per_s * run.alone_ns[client.name] / 1e9) if client.load.kind != "continuous" else 1.0
        for client in run.clients
        if client.name != cell[1]
    )


def _reason(measured: ServerMeasurements, cell: Cell) -> str:
    """Describe what the measurements show: the same model elsewhere, or a slowdown that load does not explain."""
    run = next(run for run in measured.runs if run.name == cell[0])
    slowdown = measured.together_ns[cell] / run.alone_ns[cell[1]]
    if slowdown < 1:
        return "measured faster together than alone"
    if slowdown > _SERIAL * _busy(measured, cell):
        return (
            f"measured {slowdown:.1f} times slower, more than fair slices with all others ({_busy(measured, cell):.1f})"
        )
    model = next(client.model for client in run.clients if client.name == cell[1])
    elsewhere = [
        measured.together_ns[run.name, client.name] / run.alone_ns[client.name]
        for run in measured.runs
        for client in run.clients
        if client.model == model and (run.name, client.name) != cell
    ]
    if elsewhere and math.log(max(elsewhere) / min(elsewhere)) > math.log(3):
        return f"this model's slowdown ranges from {min(elsewhere):.1f} to {max(elsewhere):.1f} over the other runs"
    return "no feature of the measured runs found that the model lacks"


def _named(server: str, values: Mapping[Cell, float]) -> dict[str, float]:
    return {_case(server, cell): value for cell, value in values.items()}


def _case(server: str, cell: Cell) -> str:
    return f"{server} {cell[0]} {cell[1]}"
