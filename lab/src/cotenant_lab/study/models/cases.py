"""Measured latencies of whole models, each with the stream that the estimate gives for it.

Fitted: Orion's V100 kernels, BERT-large on V100, T4, L4 and P4 (NeuSight), every second model of RaPP, and one TensorRT
engine per arithmetic on A100. Everything else is judged: other models, and P100, A100, H100, RTX 3090 and TITAN RTX.
"""

from __future__ import annotations

import csv
import functools
import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from cotenant.errors import ConfigError
from cotenant.profile.estimate.devices import GPUS, Gpu, find_gpu, part_of
from cotenant.profile.estimate.kernels import Precision
from cotenant.profile.estimate.onnx_operators import ModelOperators, model_operators
from cotenant.profile.estimate.parameters import FITTED, DurationParameters
from cotenant.profile.estimate.stream import EstimatedStream, StreamOptions, estimate_stream
from cotenant.units.table_row import REMEDY, number, table_rows
from cotenant_lab.data.rapp import read_surface
from cotenant_lab.networks.catalogue import has_network, image_network
from cotenant_lab.networks.transformers import TRANSFORMERS, transformer
from cotenant_lab.study.data_files import measurement_bytes, missing_data

_NEUSIGHT_GPUS: Final = {
    "NVIDIA_A100-PCIE-40GB": "a100-pcie",
    "NVIDIA_A100_80GB_PCIe": "a100-80-pcie",
    "NVIDIA_H100_80GB_HBM3": "h100",
    "NVIDIA_L4": "l4",
    "Tesla_P100-PCIE-16GB": "p100",
    "Tesla_P4": "p4",
    "Tesla_T4": "t4",
    "Tesla_V100-PCIE-32GB": "v100-pcie",
}
_FIT_GPUS: Final = ("v100-pcie", "t4", "l4", "p4")
_ORION: Final = (
    ("resnet50", 4, False),
    ("resnet101", 4, False),
    ("mobilenetv2", 4, False),
    ("resnet50", 32, True),
    ("resnet101", 32, True),
    ("mobilenetv2", 32, True),
    ("mobilenetv2", 64, True),
    ("mobilenetv2", 96, True),
)
RAPP_SHARES: Final = (10, 50, 100)
"""Percent of the SMs at which RaPP's latencies are compared; the time quota is 100 %."""
_TRT_FITTED: Final = ("A100_fp16", "A100_qat-residual_")


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One measured latency."""

    source: str
    model: str
    gpu: str
    batch: int
    measured_ms: float
    fitted: bool
    tokens: int = 0
    train: bool = False
    head: bool = True
    mode: str = "eager"
    precision: str = ""
    graph: bool = False
    share_pct: int = 100
    host: str = ""
    """The machine whose host time is fitted; empty: the measurement does not depend on it."""
    label: str = ""

    @property
    def name(self) -> str:
        """Return a unique name."""
        kind = "train" if self.train else "infer"
        share = f" {self.share_pct}% SMs" if self.share_pct < 100 else ""
        return f"{self.source} {self.model} {kind} b{self.batch} {self.gpu}{share}{self.label}"


class HostTimes(msgspec.Struct, frozen=True):
    """Host times of a measuring machine."""

    operator_ns: float
    request_ns: float


def read_cases(directory: Path) -> list[Case]:
    """Return all cases of the data sets."""
    return [*_orion(directory), *_rapp(directory), *_neusight(directory), *_tensorrt(directory)]


@functools.lru_cache(maxsize=512)
def operators_of(model: str, batch: int, tokens: int, *, head: bool) -> ModelOperators:
    """Return the operators of a network of the catalogue."""
    graph = transformer(model, tokens, head=head) if tokens else image_network(model)[0]
    return model_operators(graph, batch, {}, model)


def device_of(case: Case) -> Gpu:
    """Return the GPU of a case, or the part of it that the measured program could use."""
    gpu = GPUS[case.gpu]
    return gpu if case.share_pct == 100 else part_of(gpu, max(round(gpu.sms * case.share_pct / 100), 1))


def stream_of(case: Case, host: HostTimes | None = None, parameters: DurationParameters = FITTED) -> EstimatedStream:
    """Return the estimate of a case, with the host times of its machine or the product's own."""
    options = StreamOptions(
        mode="fused" if case.mode == "fused" else "eager",
        precision=Precision(case.precision) if case.precision else None,
        train=case.train,
        graph=case.graph,
        host_ns=host.operator_ns if host is not None else 0.0,
        request_ns=host.request_ns if host is not None else 0.0,
    )
    operators = operators_of(case.model, case.batch, case.tokens, head=case.head)
    return estimate_stream(case.model, operators, device_of(case), options, parameters=parameters)


def _orion(directory: Path) -> Iterator[Case]:
    names = {"mobilenetv2": "mobilenet_v2"}
    for model, batch, train in _ORION:
        path = directory / "orion" / "model_kernels" / f"{model}_{batch}_{'fb1' if train else 'fwd'}.csv"
        rows = measurement_bytes(path).decode("utf-8", "replace").splitlines()[1:]
        total_ms = sum(float(row.rsplit(",", 1)[1]) for row in rows if row.strip()) / 1e6
        yield Case(
            source="orion",
            model=names.get(model, model),
            gpu="v100",
            batch=batch,
            measured_ms=total_ms,
            fitted=True,
            train=train,
        )


def _rapp(directory: Path) -> Iterator[Case]:
    path = directory / "rapp" / "v100_latency_ms_by_sm_quota_batch.csv.gz"
    surface = read_surface(measurement_bytes(path), str(path))
    models = [model for model in sorted({model for model, _ in surface}) if has_network(model)]
    for (model, batch), quotas in sorted(surface.items()):
        for share in RAPP_SHARES:
            latency = quotas.get(100, {}).get(share)
            if latency is None or model not in models:
                continue
            yield Case(
                source="rapp",
                model=model,
                gpu="v100",
                batch=batch,
                measured_ms=latency,
                fitted=models.index(model) % 2 == 0,
                share_pct=share,
                host="rapp",
            )


def _neusight(directory: Path) -> Iterator[Case]:
    path = directory / "neusight" / "e2e_latency_ms.csv"
    columns = ("gpu", "workload(model-phase-seq-batch)", "num_layer", "e2e_ms", "fw_ms", "bwall_ms")
    for location, (gpu, workload, _, latency, _, _) in table_rows(measurement_bytes(path), columns, str(path)):
        parts = workload.split("-")
        if gpu not in _NEUSIGHT_GPUS or len(parts) != 4 or parts[0] not in TRANSFORMERS:
            continue
        model, phase, tokens, batch = parts
        yield Case(
            source="neusight",
            model=model,
            gpu=_NEUSIGHT_GPUS[gpu],
            batch=int(batch),
            measured_ms=number(latency, "e2e_ms", location, least=1e-3, most=1e7),
            fitted=model == "bert_large" and _NEUSIGHT_GPUS[gpu] in _FIT_GPUS,
            tokens=int(tokens),
            train=phase == "train",
            head=not (model == "bert_large" and phase == "inf"),
        )


class _Summary(msgspec.Struct):
    latency: list[float] = msgspec.field(name="Latency")


class _Information(msgspec.Struct):
    device: str = msgspec.field(name="Selected Device")


class _Metadata(msgspec.Struct):
    summary: _Summary = msgspec.field(name="performance_summary")
    information: _Information = msgspec.field(name="device_information")


def _tensorrt(directory: Path) -> Iterator[Case]:
    folder = directory / "trt_engine_explorer"
    paths = sorted(folder.glob("*.metadata.json"))
    if not paths:
        raise missing_data(folder)
    for path in paths:
        try:
            content = msgspec.json.decode(measurement_bytes(path), type=_Metadata)
        except msgspec.DecodeError as error:
            raise ConfigError("file", str(error), REMEDY, where=str(path)) from None
        name = path.name
        model = "resnet18" if "pytorch" in name else "resnet50" if "tensorflow" in name else "mobilenet_v2"
        precision = "int8" if "qat" in name else "fp16" if "fp16" in name else ""
        yield Case(
            source="tensorrt",
            model=model,
            gpu=find_gpu(content.information.device, "Selected Device").key,
            batch=1 if model == "mobilenet_v2" else 32,
            measured_ms=content.summary.latency[3],
            fitted=any(part in name for part in _TRT_FITTED),
            mode="fused",
            precision=precision,
            graph=True,
            label=f" {name.split('.onnx')[0].rsplit('_', 2)[-2]} {precision or 'fp32'}",
        )


class OperatorCase(msgspec.Struct, frozen=True, kw_only=True):
    """One operator that NeuSight timed alone."""

    gpu: str
    workload: str
    operator: str
    family: str
    inputs: tuple[tuple[int, ...], ...]
    output: tuple[int, ...]
    measured_ms: float


def read_operators(directory: Path) -> list[OperatorCase]:
    """Return the timed forward operators of BERT and GPT-2 whose kind and shapes are known."""
    import gzip  # noqa: PLC0415  only this reader needs it

    path = directory / "neusight" / "bert_gpt2_per_op_latency_ms.csv.gz"
    try:
        text = gzip.decompress(measurement_bytes(path)).decode()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise ConfigError("file", str(error), REMEDY, where=str(path)) from None
    cases = []
    for row in csv.DictReader(io.StringIO(text)):
        inputs = tuple(
            tuple(shape) for shape in msgspec.json.decode(row["input_shapes"].encode(), type=list[list[int]])
        )
        output = tuple(int(side) for side in row["output_shape"].strip("()").split(",") if side.strip())
        family = _operator_family(row["op"], inputs, output)
        if row["gpu"] in _NEUSIGHT_GPUS and family and math.prod(output) > 1:
            cases.append(
                OperatorCase(
                    gpu=_NEUSIGHT_GPUS[row["gpu"]],
                    workload=row["workload"],
                    operator=row["op"],
                    family=family,
                    inputs=inputs,
                    output=output,
                    measured_ms=float(row["fw_ms"]),
                )
            )
    return cases


def _operator_family(name: str, inputs: tuple[tuple[int, ...], ...], output: tuple[int, ...]) -> str:
    """Return what an operator is, by its name in the traced module; empty: it is a view or takes no device time."""
    if name.startswith("matmul") and len(inputs) == 2:
        return "bmm"
    if name.startswith("addmm"):
        return "addmm"
    if any(word in name for word in ("query", "key", "value", "_dense", "lm_head", "decoder")) and inputs:
        return "linear"
    if "norm" in name.lower() or "_ln_" in name:
        return "normalization"
    if name.startswith("softmax"):
        return "softmax"
    words = ("add", "mul", "truediv", "where", "tanh", "pow", "gelu")
    if name.split("_", maxsplit=1)[0] in words and len(output) >= 3 and math.prod(output) >= 1 << 16:
        return "pointwise"
    return ""
