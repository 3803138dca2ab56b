"""What the page shows of an inference server: models, queues, batches and goodput, from its Prometheus metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families

from cotenant.errors import CotenantError
from cotenant.runner.clock import monotonic_ns
from cotenant.serve.load.connections import endpoint_of
from cotenant.serve.load.discovery import get

_COUNTERS: Final = {
    "cotenant_serve_offered_total": "offered",
    "cotenant_serve_admitted_total": "admitted",
    "cotenant_serve_in_time_total": "in_time",
    "cotenant_serve_cancelled_total": "cancelled",
    "nv_inference_request_success": "answered",
    "nv_inference_request_success_total": "answered",
    "nv_inference_request_failure": "failed",
    "nv_inference_request_failure_total": "failed",
    "cotenant_serve_run_rows_sum": "rows",
    "cotenant_serve_run_rows_count": "runs",
}
"""Counters, of which the page shows rates."""
_GAUGES: Final = {
    "cotenant_serve_waiting_requests": "waiting",
    "cotenant_serve_active_runs": "active_runs",
    "cotenant_serve_units_in_use": "units_in_use",
    "cotenant_serve_plan_batch": "planned_batch",
    "cotenant_serve_plan_units": "planned_units",
    "cotenant_serve_plan_rate": "planned_rate",
}
_SERVER: Final = {
    "cotenant_serve_units": "units",
    "cotenant_serve_loop_lag_seconds": "loop_lag_s",
    "cotenant_serve_ready": "ready",
    "cotenant_serve_workers": "workers",
}


class ServerView:
    """Reads the metrics of a server repeatedly."""

    def __init__(self, address: str) -> None:
        """`address` is HOST:PORT or a URL."""
        self._address = address
        self._before: tuple[int, dict[str, dict[str, float]]] | None = None

    def reset(self) -> None:
        """Forget earlier readings."""
        self._before = None

    def read(self) -> dict[str, Any]:
        """Return the server as JSON values; `problem` says why there is none."""
        url = self._address if "://" in self._address else f"http://{self._address}"
        try:
            status, body = get(endpoint_of(url), "/metrics")
            if status != 200:
                return self._absent(f"{self._address} answers {status} to a request for its metrics")
            metrics = body.decode("utf-8", "replace")
            return {"problem": "", "address": self._address, **self._view(metrics, monotonic_ns())}
        except CotenantError as error:
            return self._absent(str(error))
        except ValueError as error:
            return self._absent(f"the metrics of {self._address} cannot be read: {error}")

    def _absent(self, problem: str) -> dict[str, Any]:
        return {"problem": problem, "address": self._address, "models": [], "server": {}}

    def _view(self, metrics: str, at_ns: int) -> dict[str, Any]:
        totals: dict[str, dict[str, float]] = {}
        gauges: dict[str, dict[str, Any]] = {}
        server: dict[str, float] = {}
        for family in text_string_to_metric_families(metrics):
            for sample in family.samples:
                if sample.name in _SERVER:
                    server[_SERVER[sample.name]] = sample.value
                if (model := sample.labels.get("model")) is None:
                    continue
                shown = gauges.setdefault(model, {"batches": {}, "refused": {}, "latency": {}})
                if sample.name in _COUNTERS:
                    totals.setdefault(model, {})[_COUNTERS[sample.name]] = sample.value
                elif sample.name in _GAUGES:
                    shown[_GAUGES[sample.name]] = sample.value
                else:
                    _add_labelled(shown, sample.name, sample.labels, sample.value)
        models = [
            {"model": model, **shown, **self._rates(model, totals.get(model, {}), at_ns)}
            for model, shown in sorted(gauges.items())
        ]
        self._before = at_ns, totals
        return {"models": models, "server": server}

    def _rates(self, model: str, totals: Mapping[str, float], at_ns: int) -> dict[str, Any]:
        if self._before is None or model not in self._before[1]:
            return {"totals": dict(totals), "per_s": {}}
        seconds = max(1, at_ns - self._before[0]) / 1e9
        before = self._before[1][model]
        rates = {name: max(0.0, value - before.get(name, 0.0)) / seconds for name, value in totals.items()}
        return {"totals": dict(totals), "per_s": rates}


def _add_labelled(shown: dict[str, Any], name: str, labels: Mapping[str, str], value: float) -> None:
    """Add a sample with a further label: a quantile, a bucket of batch sizes, or a reason."""
    if name == "cotenant_serve_latency_seconds" and "quantile" in labels:
        shown["latency"][labels["quantile"]] = value
    elif name == "cotenant_serve_run_rows_bucket":
        shown["batches"][labels["le"]] = value
    elif name == "cotenant_serve_refused_total":
        shown["refused"][labels["reason"]] = value
    elif name == "cotenant_serve_attainment" and labels.get("of") == "offered":
        shown["attainment"] = value
