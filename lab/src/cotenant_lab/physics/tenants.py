"""Clients of different models on one GPU: a request for each model, fitted to their mutual slowdown.

A request is a number of equal kernels on one stream, in one MPS group with all others (they are threads of one server).
Alone it takes the measured time alone. The following must be learned from concurrent clients: how many kernels a
request of each model has (other clients run between two kernels, so the model with many small ones waits longest), and
for all models of a server how wide a kernel is and which fraction of the time alone is kernels, rather than the
server's own work before the first of them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from cotenant.softgpu.costs import hardware
from cotenant.softgpu.sim.device import Device, DeviceConfig, Kernel, Limits, ScriptClient, Step
from cotenant.units.instant import SECOND_NS
from cotenant_lab.data.disb import Client

Cell: TypeAlias = tuple[str, str]
"""Workload and client."""

LAYER_KERNELS: Final = {"vgg19": 24, "resnet152": 155, "densenet201": 400, "inceptionv3": 110, "distilbert": 60}
"""Initial values: layers of the published networks that are kernels. For others see `_first_guess`."""
_UNKNOWN_KERNELS: Final = 100
_KERNELS: Final = (1.0, 1000.0)
_START_WIDTH: Final = 0.7
_TRIES: Final = (
    *((0.75, 1.0), (1.3, 1.0), (0.9, 1.0), (1.1, 1.0)),
    *((1.0, 0.7), (1.0, 1 / 0.7), (1.0, 0.85), (1.0, 1 / 0.85)),
)
_DAMPING: Final = 0.8
_WORTH_IT: Final = 0.01
_ROUNDS: Final = 6  # maximum; the search ends when a round finds nothing better for the known cells
_FIT_SPAN: Final = 20  # multiple of the longest latency alone
_RUN_SPAN: Final = 80


class ClientsRun(msgspec.Struct, frozen=True):
    """Clients that ran together, and the latency of each alone."""

    name: str
    clients: tuple[Client, ...]
    alone_ns: dict[str, int]


class ServerModel(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of a serving system as the device model runs them."""

    kernels: dict[str, float]
    width: float
    kernel_part: float


def rtx3080() -> DeviceConfig:
    """Return the GPU of the measurements: 68 SMs, 760 GB/s (NVIDIA's GA102 whitepaper)."""
    return msgspec.structs.replace(
        hardware("a100"),
        name="NVIDIA GeForce RTX 3080",
        key="rtx3080",
        sm_count=68,
        memory_bytes_per_s=760 * 10**9,
    )


def run_together(run: ClientsRun, server: ServerModel, config: DeviceConfig, span_ns: int) -> dict[str, float]:
    """Return the mean latency of each client, from the later of its arrival and the end of its previous request."""
    kernels, clients, arrivals, launches = [], [], [], 0
    for index, client in enumerate(run.clients):
        alone_ns = run.alone_ns[client.name]
        count = max(1, round(server.kernels.get(client.model, _UNKNOWN_KERNELS)))
        block_ns = max(1, int(server.kernel_part * alone_ns / count))
        first = Step(int((1 - server.kernel_part) * alone_ns), index)
        width = max(1, min(config.sm_count, round(server.width * config.sm_count)))
        kernels.append(Kernel(blocks=width, block_ns=block_ns, blocks_per_sm=1))
        own_arrivals = _arrivals_ns(client, span_ns)
        arrivals.append(own_arrivals)
        launches += count
        clients.append(
            ScriptClient(
                steps=(first, *(Step(0, index),) * (count - 1), Step(0, None, sync=True)),
                repeats=span_ns // alone_ns + 1 if own_arrivals is None else len(own_arrivals),
                arrivals_ns=own_arrivals,
                group_label=1,
            )
        )
    count = len(clients)
    limits = Limits(clients=count, contexts=count, streams=count, events=1, ops=launches + 64, records=64)
    results = Device(config, limits).run(kernels, clients, until_ns=span_ns)
    return {
        client.name: _mean_latency_ns(result.repeat_ends_ns, own_arrivals, span_ns)
        for client, result, own_arrivals in zip(run.clients, results, arrivals, strict=True)
    }


def predict(runs: Sequence[ClientsRun], server: ServerModel, config: DeviceConfig) -> dict[Cell, float]:
    """Predict the latency of every client of every run."""
    return _all_latencies(runs, server, config, _span_ns(runs, _RUN_SPAN))


def fit_server(runs: Sequence[ClientsRun], together_ns: Mapping[Cell, float], config: DeviceConfig) -> ServerModel:
    """Return the server nearest to these latencies; clients that are not among them only add load."""
    models = sorted({client.model for run in runs for client in run.clients})
    first = ServerModel(kernels={model: _first_guess(model) for model in models}, width=_START_WIDTH, kernel_part=1.0)
    if not together_ns:
        return first
    search = _Search(runs, together_ns, config, first)
    for _ in range(_ROUNDS):
        previous = search.best
        while search.take_if_better(search.corrected(search.best, search.errors)):
            pass
        for wider, fuller in _TRIES:
            search.try_neighbour(wider, fuller)
        if search.best == previous:
            break
    return search.best


class _Search:
    """The best server so far, and its log errors by cell.

    A latency is nearly proportional to the number of kernels of its model, so the counts are found by correcting each
    by its model's mean error; width and kernel part by trying neighbours.
    """

    def __init__(
        self, runs: Sequence[ClientsRun], together_ns: Mapping[Cell, float], config: DeviceConfig, first: ServerModel
    ) -> None:
        self._together_ns = together_ns
        self._config = config
        self._model_of = {(run.name, client.name): client.model for run in runs for client in run.clients}
        self._runs = [run for run in runs if any((run.name, client.name) in together_ns for client in run.clients)]
        self._span_ns = _span_ns(runs, _FIT_SPAN)
        self.best = first
        self.errors = self._evaluate(first)

    def take_if_better(self, server: ServerModel) -> bool:
        errors = self._evaluate(server)
        if _squares(errors) >= (1 - _WORTH_IT) * _squares(self.errors):
            return False
        self.best, self.errors = server, errors
        return True

    def try_neighbour(self, wider: float, fuller: float) -> None:
        """Try a server of other width or kernel part, with counts corrected once."""
        server = msgspec.structs.replace(
            self.best, width=min(1.0, self.best.width * wider), kernel_part=min(1.0, self.best.kernel_part * fuller)
        )
        if server != self.best:
            self.take_if_better(self.corrected(server, self._evaluate(server)))

    def corrected(self, server: ServerModel, errors: Mapping[Cell, float]) -> ServerModel:
        counts = dict(server.kernels)
        for model, count in server.kernels.items():
            model_errors = [error for cell, error in errors.items() if self._model_of[cell] == model]
            if model_errors:
                corrected_count = count * math.exp(-_DAMPING * sum(model_errors) / len(model_errors))
                counts[model] = min(_KERNELS[1], max(_KERNELS[0], corrected_count))
        return msgspec.structs.replace(server, kernels=counts)

    def _evaluate(self, server: ServerModel) -> dict[Cell, float]:
        latencies = _all_latencies(self._runs, server, self._config, self._span_ns)
        return {cell: math.log(latencies[cell] / measured) for cell, measured in self._together_ns.items()}


def _squares(errors: Mapping[Cell, float]) -> float:
    return sum(error * error for error in errors.values())


def _all_latencies(
    runs: Sequence[ClientsRun], server: ServerModel, config: DeviceConfig, span_ns: int
) -> dict[Cell, float]:
    return {
        (run.name, client): latency
        for run in runs
        for client, latency in run_together(run, server, config, span_ns).items()
    }


def _span_ns(runs: Sequence[ClientsRun], times: int) -> int:
    return times * max(alone for run in runs for alone in run.alone_ns.values())


def _first_guess(model: str) -> float:
    return float(next((count for name, count in LAYER_KERNELS.items() if model.startswith(name)), _UNKNOWN_KERNELS))


def _arrivals_ns(client: Client, span_ns: int) -> tuple[int, ...] | None:
    """Return arrivals; None: back to back. Random arrivals depend on the client's name."""
    load = client.load
    if load.kind == "continuous":
        return None
    if load.kind == "periodic":
        period_ns = SECOND_NS / load.rate_per_s
        return tuple(round(index * period_ns) for index in range(int(span_ns / period_ns) + 1))
    if load.kind == "trace":
        return tuple(instant for instant in load.arrivals_ns if instant < span_ns) or load.arrivals_ns[:1]
    rng, instant, arrivals = random.Random(client.name), 0.0, []
    while instant < span_ns:
        arrivals.append(round(instant))
        instant += rng.expovariate(load.rate_per_s) * SECOND_NS
    return tuple(arrivals)


def _mean_latency_ns(ends_ns: Sequence[int], arrivals_ns: Sequence[int] | None, span_ns: int) -> float:
    """Return the mean; the whole span, as a lower bound, for a client without an answer."""
    latencies, previous_end_ns = [], 0
    for index, end_ns in enumerate(ends_ns):
        if not 0 < end_ns <= span_ns:
            break
        begin_ns = previous_end_ns if arrivals_ns is None else max(previous_end_ns, arrivals_ns[index])
        latencies.append(end_ns - begin_ns)
        previous_end_ns = end_ns
    return sum(latencies) / len(latencies) if latencies else float(span_ns)
