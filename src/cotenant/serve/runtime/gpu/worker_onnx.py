"""Executor of ONNX models on a GPU: ONNX Runtime's CUDA provider with tensors bound on the device.

This was never run on a GPU: tests use the same binding on the host, and without the provider the worker reports that it
is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from cotenant.runner.clock import monotonic_ns
from cotenant.serve.model.tensor import Datatype
from cotenant.serve.protocol.oip.tensor import Array
from cotenant.serve.runtime.gpu.device import GpuDevice, device_error, own_device
from cotenant.serve.runtime.gpu.shared_tensors import RunBatch, TensorLocation, TensorMemory, WorkerSetup, write_tensors
from cotenant.serve.runtime.gpu.worker import DeviceLostError
from cotenant.serve.runtime.onnx import means_batches, tensor_specs

CUDA: Final = "CUDAExecutionProvider"
_LOST_ERRORS: Final = ("CUDA failure", "CUDA error", "cudaError")
"""Prefixes of ONNX Runtime's errors after a driver failure; every later call fails as well."""


class BindTarget(NamedTuple):
    """Execution provider and device for bound tensors."""

    provider: str
    device: str
    options: dict[str, str]


def cuda(memory_bytes: int) -> BindTarget:
    """Return the first visible GPU, with the arena limited to the worker's memory."""
    options = {"device_id": "0", "arena_extend_strategy": "kSameAsRequested", "cudnn_conv_algo_search": "HEURISTIC"}
    if memory_bytes:
        options["gpu_mem_limit"] = str(memory_bytes)
    return BindTarget(CUDA, "cuda", options)


class OnnxExecutor:
    """A model in one session on one device."""

    def __init__(self, setup: WorkerSetup, target: BindTarget | None = None) -> None:
        """Load the model; raise ValueError if the provider is missing."""
        try:
            import onnxruntime  # noqa: PLC0415  an optional package, and slow to import
        except ImportError:
            raise ValueError("ONNX Runtime is not installed: pip install onnxruntime-gpu") from None
        self._runtime = onnxruntime
        self._target = cuda(setup.memory_bytes) if target is None else target
        available = onnxruntime.get_available_providers()
        if self._target.provider not in available:
            version, provider_names = onnxruntime.__version__, ", ".join(available)
            problem = f"ONNX Runtime {version} has no {self._target.provider} here, only {provider_names}"
            raise ValueError(f"{problem}: install onnxruntime-gpu, or serve it with --runtime onnx-cpu")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        provider = (self._target.provider, self._target.options)
        self._session = onnxruntime.InferenceSession(setup.path, options, providers=[provider])
        if (
            self._target.provider not in self._session.get_providers()
        ):  # ONNX Runtime falls back to the CPU without an error
            raise ValueError(
                f"{self._target.provider} does not start for {Path(setup.path).name}: check that a GPU is available"
            )
        sides = self._session.get_inputs(), self._session.get_outputs()
        self.inputs, self.outputs = tensor_specs(*sides)
        self.means_batches = means_batches(*sides)
        for spec in (*self.inputs, *self.outputs):
            if spec.datatype in (Datatype.BYTES, Datatype.BF16):
                raise ValueError(f"tensor {spec.name!r} is {spec.datatype.value}, which is supported on cores only")

    def device(self) -> GpuDevice:
        """Query the driver."""
        return own_device() if self._target.device == "cuda" else GpuDevice(0, is_mps=False, name="host")

    def run(
        self, batch: RunBatch, inputs_memory: TensorMemory, outputs_memory: TensorMemory
    ) -> tuple[int, tuple[TensorLocation, ...], int]:
        """Copy to the device, run the session, and copy back; the time covers all of it."""
        inputs = [inputs_memory.tensor(location) for location in batch.tensors]
        began_ns = monotonic_ns()
        try:
            outputs = self._infer(dict(zip(batch.inputs, inputs, strict=True)), batch.outputs)
        except Exception as error:
            if any(message in str(error) for message in _LOST_ERRORS):
                raise DeviceLostError(str(error)) from None
            raise
        took_ns = monotonic_ns() - began_ns
        specs = {spec.name: spec for spec in self.outputs}
        locations, descriptor = write_tensors(
            [specs[name] for name in batch.outputs], [[output] for output in outputs], outputs_memory
        )
        return took_ns, locations, descriptor

    def _infer(self, inputs: Mapping[str, Array], output_names: Sequence[str]) -> Sequence[Array]:
        binding = self._session.io_binding()
        device = self._target.device
        bound_values: list[Any] = []  # bound memory must outlive the run
        for name, array in inputs.items():
            value = self._runtime.OrtValue.ortvalue_from_numpy(array, device, 0)
            bound_values.append(value)
            binding.bind_ortvalue_input(name, value)
        for name in output_names:  # copies come in the order in which outputs were bound
            binding.bind_output(name, device, 0)
        self._session.run_with_iobinding(binding)
        binding.synchronize_outputs()
        outputs: Sequence[Array] = binding.copy_outputs_to_cpu()
        return outputs

    def check(self) -> None:
        """Raise `DeviceLostError` after a driver error, which appears on synchronisation."""
        code = device_error() if self._target.device == "cuda" else 0
        if code:
            raise DeviceLostError(f"the device is lost (CUDA error {code})")
