"""How does a worker run an ONNX model on its GPU? By ONNX Runtime's CUDA provider, with tensors bound on the device.

Only ever run without a GPU: there the same binding is done on the host, which tests do, or the provider is missing,
which a worker says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from cotenant.domain.tensor import Datatype
from cotenant.format.tensor import Array
from cotenant.live.clock import monotonic_ns
from cotenant.live.serve.device import Device, lost_by, own_device
from cotenant.live.serve.onnx import means_batches, tensor_specs
from cotenant.live.serve.parcel import Do, Lies, Room, Setup, lay_out
from cotenant.live.serve.worker import DeviceLost

CUDA: Final = "CUDAExecutionProvider"
_GONE: Final = ("CUDA failure", "CUDA error", "cudaError")
"""How ONNX Runtime begins its account of a driver that failed; after one, every other call fails as well."""


class Target(NamedTuple):
    """Where tensors are bound."""

    provider: str
    device: str
    options: dict[str, str]


def cuda(memory_bytes: int) -> Target:
    """The first GPU that this process sees, with the arena held to the worker's memory."""
    options = {"device_id": "0", "arena_extend_strategy": "kSameAsRequested", "cudnn_conv_algo_search": "HEURISTIC"}
    if memory_bytes:
        options["gpu_mem_limit"] = str(memory_bytes)
    return Target(CUDA, "cuda", options)


class OnnxAct:
    """A model in one session on one device."""

    def __init__(self, setup: Setup, target: Target | None = None) -> None:
        """Load it; where the provider is missing, say so."""
        try:
            import onnxruntime  # noqa: PLC0415  an optional package, and slow to import
        except ImportError:
            raise ValueError("ONNX Runtime is not installed: pip install onnxruntime-gpu") from None
        self._runtime = onnxruntime
        self._target = cuda(setup.memory_bytes) if target is None else target
        there = onnxruntime.get_available_providers()
        if self._target.provider not in there:
            said = (
                f"ONNX Runtime {onnxruntime.__version__} has no {self._target.provider} here, only {', '.join(there)}"
            )
            raise ValueError(f"{said}: install onnxruntime-gpu, or serve it with --runtime onnx-cpu")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        provider = (self._target.provider, self._target.options)
        self._session = onnxruntime.InferenceSession(setup.path, options, providers=[provider])
        if self._target.provider not in self._session.get_providers():  # it falls back to cores in silence
            raise ValueError(f"{self._target.provider} does not start for {Path(setup.path).name}: is there a GPU?")
        sides = self._session.get_inputs(), self._session.get_outputs()
        self.inputs, self.outputs = tensor_specs(*sides)
        self.means_batches = means_batches(*sides)
        for spec in (*self.inputs, *self.outputs):
            if spec.datatype in (Datatype.BYTES, Datatype.BF16):
                raise ValueError(f"tensor {spec.name!r} is {spec.datatype.value}, which is served on cores only")

    def device(self) -> Device:
        """As the driver tells this process."""
        return own_device() if self._target.device == "cuda" else Device(0, is_mps=False, name="host")

    def run(self, do: Do, given: Room, made: Room) -> tuple[int, tuple[Lies, ...], int]:
        """To the device, through the session, and back: that is what it took."""
        inputs = [given.seen(one) for one in do.tensors]
        began_ns = monotonic_ns()
        try:
            outputs = self._through(dict(zip(do.inputs, inputs, strict=True)), do.outputs)
        except Exception as error:
            if any(word in str(error) for word in _GONE):
                raise DeviceLost(str(error)) from None
            raise
        took_ns = monotonic_ns() - began_ns
        specs = {one.name: one for one in self.outputs}
        laid, descriptor = lay_out([specs[name] for name in do.outputs], [[one] for one in outputs], made)
        return took_ns, laid, descriptor

    def _through(self, inputs: Mapping[str, Array], wanted: Sequence[str]) -> Sequence[Array]:
        binding = self._session.io_binding()
        device = self._target.device
        held: list[Any] = []  # bound memory must outlive the run
        for name, array in inputs.items():
            value = self._runtime.OrtValue.ortvalue_from_numpy(array, device, 0)
            held.append(value)
            binding.bind_ortvalue_input(name, value)
        for name in wanted:  # copies come in the order in which outputs were bound
            binding.bind_output(name, device, 0)
        self._session.run_with_iobinding(binding)
        binding.synchronize_outputs()
        outputs: Sequence[Array] = binding.copy_outputs_to_cpu()
        return outputs

    def check(self) -> None:
        """A fault elsewhere shows at the next call that waits."""
        code = lost_by() if self._target.device == "cuda" else 0
        if code:
            raise DeviceLost(f"the device is lost to it (CUDA error {code})")
