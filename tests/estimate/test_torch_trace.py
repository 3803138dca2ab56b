"""PyTorch programs traced with fake tensors (`make test-torch`; skipped where PyTorch is not installed)."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from cotenant.errors import ConfigError, WorldError
from cotenant.profile.estimate.devices import GPUS
from cotenant.profile.estimate.model_files import is_model, model_name, read_model
from cotenant.profile.estimate.operator import Family
from cotenant.profile.estimate.stream import StreamOptions, estimate_stream
from cotenant.profile.estimate.torch_trace import PYTHON_VARIABLE, TracedCall, operator_of_call

has_torch = importlib.util.find_spec("torch") is not None or PYTHON_VARIABLE in os.environ
needs_torch = pytest.mark.skipif(not has_torch, reason="PyTorch is not installed; run `make test-torch`")

MODULE = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 32, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(32)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.out = nn.Linear(32, 10)

    def forward(self, x):
        x = torch.relu(self.norm(self.conv(x))).flatten(2).transpose(1, 2)
        x, _ = self.attention(x, x, x)
        return self.out(x.mean(1))


def build(batch):
    return Net(), (torch.randn(batch, 3, 16, 16),)
"""
SCRIPT = """
import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).to(device)
optimizer = torch.optim.Adam(model.parameters())
for step in range(1000):
    x, y = torch.randn(32, 64, device=device), torch.randint(0, 10, (32,), device=device)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(loss.item())
"""


@pytest.fixture
def module(tmp_path: Path) -> str:
    path = tmp_path / "net.py"
    path.write_text(MODULE)
    return f"{path}:build"


@needs_torch
@pytest.mark.slow
def test_a_module_has_the_arithmetic_of_its_layers(module: str) -> None:
    one, two = (read_model(module, batch, {}, train=False) for batch in (1, 2))
    assert one.parameters == 32 * 27 + 64 + 4 * 32 * 32 + 4 * 32 + 330
    flops = [sum(op.flops for op in model.operators if op.gemm is not None) for model in (one, two)]
    assert flops[1] == pytest.approx(2 * flops[0])
    conv = 2 * 256 * 32 * 27
    projections = 4 * 2 * 256 * 32 * 32
    scores = 2 * 2 * 256 * 256 * 32
    assert flops[0] == pytest.approx(conv + projections + scores + 2 * 32 * 10)
    assert not [op.type for op in one.operators if op.family is Family.UNSUPPORTED]


@needs_torch
@pytest.mark.slow
def test_a_training_step_of_a_module_has_its_backward_pass(module: str) -> None:
    forward, step = (read_model(module, 4, {}, train=train) for train in (False, True))
    times = [
        estimate_stream("net", model, GPUS["a100"], StreamOptions(train=model.backward_traced)).flops
        for model in (forward, step)
    ]
    assert 2 * times[0] < times[1] < 4 * times[0]
    assert any("backward" in op.type for op in step.operators)
    assert any(op.family is Family.OPTIMIZER for op in step.operators)


@needs_torch
@pytest.mark.slow
def test_a_script_is_traced_for_one_step(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    model = read_model(str(path), 1, {}, train=True)
    assert model.backward_traced
    assert model.parameters == 64 * 256 + 256 + 2560 + 10
    products = [op for op in model.operators if op.gemm is not None]
    assert 5 <= len(products) <= 6  # two forward, two for weights, one or two for inputs


@needs_torch
@pytest.mark.slow
def test_errors_of_a_program_are_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_text("import torch\nraise ValueError('no\\ndata')\n")
    with pytest.raises(ConfigError, match="ValueError: no data") as refused:
        read_model(str(path), 1, {}, train=True)
    assert "\n" not in str(refused.value)
    path.write_text(MODULE)
    with pytest.raises(ConfigError, match="no function other"):
        read_model(f"{path}:other", 1, {}, train=False)


@pytest.mark.skipif(has_torch, reason="PyTorch is installed")
def test_without_pytorch_the_extra_is_named(module: str) -> None:
    with pytest.raises(WorldError, match=r"cotenant\[torch\]"):
        read_model(module, 1, {}, train=False)


def test_names_of_models() -> None:
    assert [is_model(name) for name in ("a.onnx", "a.py", "a.py:f", "a.csv", "a.json.gz")] == [True] * 3 + [False] * 2
    assert [model_name(name) for name in ("x/a.onnx", "x/a.py", "x/a.py:f")] == ["a", "a", "a-f"]
    with pytest.raises(ConfigError, match="does not exist"):
        read_model("missing.onnx", 1, {}, train=False)


@pytest.mark.parametrize(
    "call, family, flops",
    [
        (TracedCall("addmm", [([8], 4), ([4, 16], 4), ([16, 8], 4)], [([4, 8], 4)]), Family.MATMUL, 2 * 4 * 8 * 16),
        (TracedCall("bmm", [([3, 4, 16], 4), ([3, 16, 8], 4)], [([3, 4, 8], 4)]), Family.MATMUL, 2 * 3 * 4 * 8 * 16),
        (TracedCall("relu", [([4, 8], 4)], [([4, 8], 4)]), Family.POINTWISE, 32),
        (TracedCall("view", [([4, 8], 4)], [([32], 4)], view=True), Family.VIEW, 32),
        (TracedCall("vendor_op", [([4, 8], 4)], [([4, 8], 4)]), Family.UNSUPPORTED, 32),
        (
            TracedCall("convolution", [([2, 3, 8, 8], 4), ([16, 3, 3, 3], 4)], [([2, 16, 8, 8], 4)], [], {"groups": 1}),
            Family.CONVOLUTION,
            2 * 2 * 64 * 16 * 27,
        ),
    ],
)
def test_calls_become_operators(call: TracedCall, family: Family, flops: int) -> None:
    operator = operator_of_call(call, 0)
    assert (operator.family, operator.flops) == (family, flops)
