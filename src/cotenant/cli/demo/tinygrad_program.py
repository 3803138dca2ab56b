"""A training and a service with tinygrad, which `cotenant demo --story framework` runs; it imports no cotenant.

`train DIR STEPS`: one line per step in DIR/losses, with the loss as a hexadecimal number; after every second step a
checkpoint, from which the program continues when it is started again; and at the end DIR/weights.npz.
`serve DIR ANSWERS`: answer fixed questions, in turn, until at least ANSWERS were answered and the standard input has
ended; then DIR/answers.npz, and in DIR/counts how many answers were given and how many differed from an earlier one to
the same question. DIR/ready exists from the first answer on.

The device is tinygrad's: the variable DEV selects it.
"""

from __future__ import annotations

import os
import select
import sys
from pathlib import Path
from typing import Any

import numpy as np
from tinygrad import Tensor, TinyJit
from tinygrad.helpers import Context
from tinygrad.nn.optim import SGD

ROWS, INPUTS, HIDDEN, CLASSES = 64, 32, 64, 4
FIELD_ROWS, FIELD_COLUMNS = 16384, 64
"""A large array whose kernels have many more blocks than a device runs at once: they can be launched in parts."""
CHECKPOINT_STEPS = 2
QUESTIONS = 16
ANSWER_INTERVAL_S = 0.005


def numbers(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def arrays() -> list[Any]:
    """Return the initial weights: three layers, and the scale of the field's columns."""
    shapes = ((INPUTS, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, CLASSES))
    return [numbers(seed, *shape) * np.float32(0.2) for seed, shape in enumerate(shapes)] + [
        np.ones(FIELD_COLUMNS, np.float32)
    ]


def scores(inputs: Tensor, weights: list[Tensor]) -> Tensor:
    hidden = (inputs @ weights[0]).relu()
    return (hidden @ weights[1]).relu() @ weights[2]


def write(path: Path, **values: Any) -> None:
    """Write arrays to a file that a reader finds whole or not at all."""
    temporary = path.with_name(f"{path.name}.new")
    with temporary.open("wb") as file:
        np.savez(file, **values)
    temporary.replace(path)


def train(directory: Path, steps: int) -> None:
    inputs = numbers(10, ROWS, INPUTS)
    labels = Tensor((inputs[:, :8].reshape(ROWS, CLASSES, 2).sum(2)).argmax(1).astype(np.int32))
    x, target = Tensor(inputs), Tensor(numbers(12, FIELD_COLUMNS))
    field = Tensor(numbers(11, FIELD_ROWS, FIELD_COLUMNS))
    saved, log, first, momenta = directory / "checkpoint.npz", directory / "losses", 0, None
    weights = [Tensor(one) for one in arrays()]
    if saved.exists():
        with np.load(saved) as kept:
            first = int(kept["step"])
            weights = [Tensor(kept[f"weight{i}"]) for i in range(len(weights))]
            momenta = [kept[f"momentum{i}"] for i in range(len(weights))]
        log.write_text("".join(line + "\n" for line in log.read_text().splitlines()[:first]))
    optimizer = SGD(weights, lr=0.05, momentum=0.9)
    for buffer, kept_momentum in zip(optimizer.b, momenta or (), strict=False):
        buffer.assign(Tensor(kept_momentum)).realize()
    with log.open("a") as file:
        for step in range(first, steps):
            with Context(TRAINING=1):
                optimizer.zero_grad()
                loss = scores(x, weights).sparse_categorical_crossentropy(labels)
                loss = loss + ((field * weights[3]).tanh() - target).square().mean()
                loss.backward()
                loss.realize(*optimizer.schedule_step())
            file.write(f"{float(loss.numpy()).hex()}\n")
            file.flush()
            if (step + 1) % CHECKPOINT_STEPS == 0 and step + 1 < steps:
                state = {f"weight{i}": one.numpy() for i, one in enumerate(weights)}
                state |= {f"momentum{i}": one.numpy() for i, one in enumerate(optimizer.b)}
                write(saved, step=step + 1, **state)
    write(directory / "weights.npz", **{f"weight{i}": one.numpy() for i, one in enumerate(weights)})


def serve(directory: Path, count: int) -> None:
    weights = [Tensor(one) for one in arrays()]
    questions = [numbers(100 + number, ROWS, INPUTS) for number in range(QUESTIONS)]
    answer = TinyJit(lambda inputs: scores(inputs, weights).softmax().realize())
    answers: list[Any] = []
    given = different = 0
    while given < count or not select.select([sys.stdin], [], [], ANSWER_INTERVAL_S)[0]:
        found = answer(Tensor(questions[given % QUESTIONS]).realize()).numpy()
        if given < QUESTIONS:
            answers.append(found)
        different += found.tobytes() != answers[given % QUESTIONS].tobytes()
        given += 1
        if given == QUESTIONS:
            (directory / "ready").touch()
    write(directory / "answers.npz", **{f"answer{i}": one for i, one in enumerate(answers)})
    (directory / "counts").write_text(f"{given} {different}\n")


if __name__ == "__main__":
    os.umask(0o077)
    {"train": train, "serve": serve}[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))
