"""Records the ATen calls of a PyTorch program under fake tensors: `python -m cotenant.profile.estimate.torch_recorder`.

Prints one JSON object. Exit code 3: PyTorch is not installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import runpy
import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from cotenant.profile.estimate.torch_trace import Trace, TracedCall

NO_TORCH = 3
_LIMIT = 2_000_000
"""Largest number of calls of a trace."""
_HIDDEN = frozenset(
    ("detach", "_local_scalar_dense", "is_same_size", "record_stream", "_has_compatible_shallow_copy_type")
)


class EnoughSteps(BaseException):
    """The program has made its second optimizer step: one whole step was recorded."""


def main(arguments: Sequence[str]) -> int:
    """Record one program."""
    path, function, batch, train = arguments[0], arguments[1], int(arguments[2]), arguments[3] == "1"
    try:
        import torch  # noqa: PLC0415  an optional package
    except ImportError:
        return NO_TORCH
    output = sys.stdout
    sys.stdout = sys.stderr  # what the program prints is not the result
    try:
        recorder = _Recorder(torch)
        trace = (
            recorder.function(path, function, batch, train=train) if function else recorder.script(path, train=train)
        )
    except (Exception, SystemExit) as error:  # noqa: BLE001  any error of the user's program ends here, in one line
        text = " ".join(str(error).split())[:400]
        sys.stderr.write(f"{type(error).__name__}: {text}\n")
        return 1
    output.write(msgspec.json.encode(trace).decode() + "\n")
    return 0


class _Recorder:
    """Runs programs under fake tensors and keeps the calls of the current step."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.calls: list[TracedCall] = []
        self.parameters: dict[int, int] = {}
        self.steps: list[int] = []

    def function(self, path: str, function: str, batch: int, *, train: bool) -> Trace:
        """Trace the module that a function of a file returns, with its example inputs."""
        torch = self.torch
        spec = importlib.util.spec_from_file_location("traced_program", path)
        if spec is None or spec.loader is None:
            raise ValueError(f"{path} is not a Python file")
        with self._fake(), self._mode():
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            build = getattr(module, function, None)
            if build is None:
                raise ValueError(f"{path} has no function {function}")
            built = build(batch)
            model, inputs = built if isinstance(built, tuple) else (built, module.inputs(batch))
            inputs = inputs if isinstance(inputs, (tuple, list)) else (inputs,)
            self._learn_parameters(model)
            sizes = sum(value.numel() * value.element_size() for value in inputs if isinstance(value, torch.Tensor))
            self.calls.clear()
            if train:
                model.train()
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
                for _ in range(2):  # the first step also creates the optimizer's state
                    self.calls.clear()
                    optimizer.zero_grad()
                    self._loss(model(*inputs)).backward()
                    optimizer.step()
            else:
                model.eval()
                with torch.no_grad():
                    model(*inputs)
        return self._trace(self.calls, int(train), sizes)

    def script(self, path: str, *, train: bool) -> Trace:
        """Trace a script until its second optimizer step, or to its end."""
        del train

        def count_steps(optimizer: Any, *_arguments: Any, **_named: Any) -> None:
            self.parameters.update(
                (id(value), value.numel()) for group in optimizer.param_groups for value in group["params"]
            )
            self.steps.append(len(self.calls))
            if len(self.steps) > 1:
                raise EnoughSteps

        hook = self._optimizers().register_optimizer_step_post_hook(count_steps)
        stopped = ""
        with self._fake(), self._mode():
            sys.argv = [path]
            try:
                runpy.run_path(path, run_name="__main__")
            except EnoughSteps:
                stopped = "second optimizer step"
            except SystemExit:
                stopped = "exit"
        hook.remove()
        calls = self.calls
        if len(self.steps) > 1:
            calls = calls[self.steps[0] : self.steps[1]]
        return self._trace(calls, len(self.steps), 0, stopped)

    def _trace(self, calls: list[TracedCall], steps: int, input_bytes: int, stopped: str = "") -> Trace:
        total = sum(self.parameters.values())
        return Trace(list(calls), total, 4 * total, input_bytes, "float32", steps, stopped)

    def _learn_parameters(self, model: Any) -> None:
        self.parameters = {id(value): value.numel() for value in model.parameters()}

    def _optimizers(self) -> Any:
        return importlib.import_module("torch.optim.optimizer")

    def _loss(self, result: Any) -> Any:
        while not isinstance(result, self.torch.Tensor):
            loss = getattr(result, "loss", None)
            values = list(result.values()) if isinstance(result, dict) else result
            result = loss if loss is not None else values[0]
        return result.float().mean()

    def _fake(self) -> Any:
        from torch._subclasses.fake_tensor import (  # noqa: PLC0415
            FakeTensorMode,
        )

        self.torch.cuda.is_available = lambda: False
        self.torch.backends.mha.set_fastpath_enabled(False)  # its fused operator hides the products inside
        for name, module in list(sys.modules.items()):  # on a GPU optimizers update all tensors in a few kernels
            if name.startswith("torch.optim.") and hasattr(module, "_default_to_fused_or_foreach"):
                vars(module)["_default_to_fused_or_foreach"] = lambda *_values, **_named: (False, True)
        self._ignore_devices()
        return FakeTensorMode(allow_non_fake_inputs=True)

    def _ignore_devices(self) -> None:
        """Let modules stay where they are: fake tensors cannot be swapped, and have no data to move."""
        original = self.torch.nn.Module.to

        def to(module: Any, *arguments: Any, **named: Any) -> Any:
            words = [*arguments, *named.values()]
            if any(isinstance(word, (self.torch.dtype, self.torch.Tensor)) for word in words):
                return original(module, *arguments, **named)
            return module

        self.torch.nn.Module.to = to
        self.torch.nn.Module.cuda = lambda module, device=None: module  # noqa: ARG005

    def _mode(self) -> Any:
        from torch.utils._python_dispatch import (  # noqa: PLC0415
            TorchDispatchMode,
        )

        recorder = self

        class Mode(TorchDispatchMode):  # type: ignore[misc]
            """Sees every ATen call."""

            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                """Record the call, and answer what depends on data with a constant."""
                if func.overloadpacket.__name__ == "_local_scalar_dense":
                    return 1.0 if args[0].dtype.is_floating_point else 1
                result = func(*args, **(kwargs or {}))
                recorder.record(func, args, kwargs or {}, result)
                return result

        return Mode()

    def record(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Keep one call."""
        name = func.overloadpacket.__name__
        if name in _HIDDEN or func.namespace == "prim" or len(self.calls) >= _LIMIT:
            return
        tensors = self._tensors((args, kwargs))
        outputs = self._tensors(result)
        if not outputs and not tensors:
            return
        is_view = bool(getattr(func, "is_view", False)) or name in {"_unsafe_view", "lift_fresh", "empty", "empty_like"}
        arguments: dict[str, Any] = {}
        if "convolution" in name:
            integers = [value for value in args if isinstance(value, int) and not isinstance(value, bool)]
            lists = [
                value for value in args if isinstance(value, (list, tuple)) and value and isinstance(value[0], int)
            ]
            strides = lists[1] if name == "convolution_backward" and len(lists) > 1 else lists[0] if lists else [1]
            arguments = {"groups": integers[-1] if integers else 1, "stride": max(strides), "transposed": bool(args[6])}
            if name == "convolution_backward":
                arguments["transposed"] = bool(args[7])
        self.calls.append(
            TracedCall(
                name.rstrip("_") if name.endswith("_") else name,
                [self._described(value) for value in tensors],
                [self._described(value) for value in outputs],
                [id(value) in self.parameters for value in tensors],
                arguments,
                is_view,
            )
        )

    def _described(self, value: Any) -> tuple[list[int], int]:
        return [int(side) for side in value.shape], int(value.element_size())

    def _tensors(self, value: Any) -> list[Any]:
        if isinstance(value, self.torch.Tensor):
            return [value]
        if isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, (list, tuple)):
            return [tensor for each in value for tensor in self._tensors(each)]
        return []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
