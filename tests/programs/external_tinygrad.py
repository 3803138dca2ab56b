"""Train a network and answer with tinygrad on its CUDA backend, and compare with the same arithmetic in numpy."""

from __future__ import annotations

import numpy as np
from tinygrad import Tensor, TinyJit, dtypes
from tinygrad.helpers import Context
from tinygrad.nn.optim import SGD

STEPS, RATE = 20, 0.5
rng = np.random.default_rng(0)
inputs = rng.normal(size=(64, 32)).astype(np.float32)
labels = (inputs[:, :4].sum(1) > 0).astype(np.int32)
first, second = (rng.normal(size=shape).astype(np.float32) * np.float32(0.2) for shape in ((32, 64), (64, 2)))


def reference() -> tuple[list[float], np.ndarray]:
    """Return the losses of gradient descent in double precision, and the answers of the trained network."""
    a, b, losses = first.astype(np.float64), second.astype(np.float64), []
    for _ in range(STEPS):
        hidden = np.maximum(inputs @ a, 0)
        scores = hidden @ b
        probability = np.exp(scores - scores.max(1, keepdims=True))
        probability /= probability.sum(1, keepdims=True)
        losses.append(float(-np.log(probability[np.arange(64), labels]).mean()))
        slope = (probability - np.eye(2)[labels]) / 64
        step = hidden.T @ slope, inputs.T @ ((slope @ b.T) * (hidden > 0))
        a, b = a - RATE * step[1], b - RATE * step[0]
    return losses, np.maximum(inputs @ a, 0) @ b


weights = [Tensor(first), Tensor(second)]
optimizer = SGD(weights, lr=RATE)


@TinyJit
def train(x: Tensor, y: Tensor) -> Tensor:
    with Context(TRAINING=1):
        optimizer.zero_grad()
        loss = ((x @ weights[0]).relu() @ weights[1]).sparse_categorical_crossentropy(y)
        loss.backward()
        return loss.realize(*optimizer.schedule_step())  # the loss before the step


x, y = Tensor(inputs), Tensor(labels)
losses = [float(train(x, y).numpy()) for _ in range(STEPS)]
answers = ((x @ weights[0]).relu() @ weights[1]).numpy()
expected_losses, expected_answers = reference()
print(f"loss {losses[0]:.6f} to {losses[-1]:.6f}; numpy: {expected_losses[0]:.6f} to {expected_losses[-1]:.6f}")
assert np.allclose(losses, expected_losses, rtol=1e-4), (losses, expected_losses)
assert np.allclose(answers, expected_answers, rtol=1e-3, atol=1e-4)
square = rng.normal(size=(64, 64)).astype(np.float16)
product = (Tensor(square) @ Tensor(square)).cast(dtypes.float32).numpy()
assert np.allclose(product, square.astype(np.float32) @ square.astype(np.float32), rtol=1e-2, atol=5e-2)
print("tinygrad computes the results of numpy")
