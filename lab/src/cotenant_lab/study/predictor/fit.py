"""Fit the speed models (least squares, boosted trees and a small network) to the errors of the rule.

All three use numpy alone, so that a fit depends on the pairs and the seed and on nothing else.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from cotenant.predict.speed_model import Layers, Linear, Model, Neural, Scale, Trees, with_squares

_RIDGE: Final = 1e-2
_BORDERS: Final = 24
"""Number of quantiles of a feature that may become thresholds."""
_DIGITS: Final = 5
_HUBER: Final = 0.3
"""Logarithmic errors beyond this value have a constant gradient."""


class TreeSettings(msgspec.Struct, frozen=True):
    """Parameters of tree growth."""

    trees: int = 120
    levels: int = 5
    rate: float = 0.12
    firmness: float = 5.0
    """Regularization: a leaf is pulled to 0 as if it had this many pairs without an error."""


class NetworkSettings(msgspec.Struct, frozen=True):
    """Parameters of network training, chosen by pairs on the software GPU that no fit has used."""

    hidden: tuple[int, ...] = (32, 16)
    epochs: int = 200
    networks: int = 3
    batch: int = 64
    rate: float = 3e-3
    decay: float = 2e-3
    """Weight decay."""


def fit_linear(rows: Any, errors: Any) -> Linear:
    """Fit a ridge regression."""
    scale = scale_of(rows)
    columns = with_squares(scale.applied(rows)).astype(np.float64)
    ridge = _RIDGE * len(rows) * np.eye(columns.shape[1])
    weights = np.linalg.solve(columns.T @ columns + ridge, columns.T @ errors)
    return Linear(scale, _nested(weights))


def fit_trees(rows: Any, errors: Any, growth: TreeSettings | None = None) -> Trees:
    """Fit each tree to the residuals; all nodes of a level use the split with the highest gain."""
    rules = growth or TreeSettings()
    borders = [_borders(rows[:, feature]) for feature in range(rows.shape[1])]
    binned = np.stack([np.searchsorted(border, rows[:, index]) for index, border in enumerate(borders)]).astype(
        np.int64
    )
    split_features: list[Any] = [[], []]
    thresholds: list[Any] = [[], []]
    leaves: list[Any] = [[], []]
    for output in range(2):
        residuals = errors[:, output].astype(np.float64)
        for _ in range(rules.trees):
            pulls = np.clip(residuals, -_HUBER, _HUBER)
            features, bins, leaf = _grow(binned, pulls, rules)
            count = np.bincount(leaf, minlength=2**rules.levels)
            values = rules.rate * np.bincount(leaf, pulls, 2**rules.levels) / (count + rules.firmness)
            values = np.round(values, _DIGITS)
            residuals = residuals - values[leaf]
            split_features[output].append(tuple(features))
            chosen = zip(features, bins, strict=True)
            thresholds[output].append(tuple(float(borders[feature][border]) for feature, border in chosen))
            leaves[output].append(tuple(float(value) for value in values))
    return Trees(
        (tuple(split_features[0]), tuple(split_features[1])),
        (tuple(thresholds[0]), tuple(thresholds[1])),
        (tuple(leaves[0]), tuple(leaves[1])),
    )


def _grow(binned: Any, pulls: Any, rules: TreeSettings) -> tuple[list[int], list[int], Any]:
    leaf = np.zeros(len(pulls), dtype=np.int64)
    features, bins = [], []
    for level in range(rules.levels):
        nodes = 2**level
        best, best_split = -1.0, (0, 0)
        for feature in range(len(binned)):
            cells = leaf * (_BORDERS + 1) + binned[feature]
            size = nodes * (_BORDERS + 1)
            sums = np.bincount(cells, pulls, size).reshape(nodes, -1).cumsum(axis=1)
            counts = np.bincount(cells, minlength=size).reshape(nodes, -1).cumsum(axis=1)
            lower, lower_counts = sums[:, :-1], counts[:, :-1]
            upper, upper_counts = sums[:, -1:] - lower, counts[:, -1:] - lower_counts
            gains = (lower**2 / (lower_counts + rules.firmness) + upper**2 / (upper_counts + rules.firmness)).sum(
                axis=0
            )
            border = int(np.argmax(gains))
            if gains[border] > best:
                best, best_split = float(gains[border]), (feature, border)
        features.append(best_split[0])
        bins.append(best_split[1])
        leaf = leaf + ((binned[best_split[0]] > best_split[1]).astype(np.int64) << level)
    return features, bins, leaf


def _borders(values: Any) -> Any:
    """Return quantiles; the last ones repeat if a feature has few values."""
    return np.quantile(values, np.arange(1, _BORDERS + 1) / (_BORDERS + 1)).astype(np.float32)


def fit_neural(rows: Any, errors: Any, seed: int, training: NetworkSettings | None = None) -> Neural:
    """Train networks from different initial weights; their mean has a smaller error than each of them."""
    rules = training or NetworkSettings()
    scale = scale_of(rows)
    inputs = scale.applied(rows).astype(np.float64)
    rng = np.random.default_rng(seed)
    return Neural(scale, tuple(_trained(inputs, errors, rng, rules) for _ in range(rules.networks)))


def _trained(inputs: Any, errors: Any, rng: Any, rules: NetworkSettings) -> Layers:
    """Train with Adam on a Huber loss and a learning rate that decays to zero."""
    sizes = (inputs.shape[1], *rules.hidden, 2)
    weights = [rng.normal(0, np.sqrt(2 / a), (a, b)) for a, b in itertools.pairwise(sizes)]
    biases = [np.zeros(b) for b in sizes[1:]]
    weights[-1] *= 0.1
    state = [[np.zeros_like(parameter), np.zeros_like(parameter)] for parameter in (*weights, *biases)]
    step, steps = 0, rules.epochs * -(-len(inputs) // rules.batch)
    for _ in range(rules.epochs):
        order = rng.permutation(len(inputs))
        for first in range(0, len(inputs), rules.batch):
            batch = order[first : first + rules.batch]
            step += 1
            gradients = _gradients(inputs[batch], errors[batch], weights, biases)
            pace = rules.rate * (1 - step / steps) + 1e-5
            for index, (parameter, loss_gradient) in enumerate(zip((*weights, *biases), gradients, strict=True)):
                gradient = loss_gradient + (rules.decay * parameter if index < len(weights) else 0)
                mean, square = state[index]
                mean += 0.1 * (gradient - mean)
                square += 0.001 * (gradient * gradient - square)
                move = (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)
                np.subtract(parameter, pace * move, out=parameter)
    return tuple((_nested(weight), _nested(bias)) for weight, bias in zip(weights, biases, strict=True))


def _gradients(inputs: Any, targets: Any, weights: Sequence[Any], biases: Sequence[Any]) -> list[Any]:
    signals = [inputs]
    for index, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        output = signals[-1] @ weight + bias
        signals.append(np.maximum(output, 0) if index < len(weights) - 1 else output)
    slope = np.clip(signals[-1] - targets, -_HUBER, _HUBER) / len(inputs)
    weight_slopes, bias_slopes = [], []
    for layer in reversed(range(len(weights))):
        weight_slopes.append(signals[layer].T @ slope)
        bias_slopes.append(slope.sum(axis=0))
        if layer:
            slope = (slope @ weights[layer].T) * (signals[layer] > 0)
    return [*reversed(weight_slopes), *reversed(bias_slopes)]


def scale_of(rows: Any) -> Scale:
    """Return mean and standard deviation of each feature."""
    spread = rows.std(axis=0)
    return Scale(_nested(rows.mean(axis=0)), _nested(np.where(spread > 1e-6, spread, 1.0)))


FITS: Final[dict[str, Callable[[Any, Any, int], Model]]] = {
    "linear": lambda rows, errors, _: fit_linear(rows, errors),
    "boosted trees": lambda rows, errors, _: fit_trees(rows, errors),
    "neural": fit_neural,
}


def _nested(values: Any) -> Any:
    """Convert to tuples with five digits."""
    if np.ndim(values) == 0:
        return float(f"{float(values):.5g}")
    return tuple(_nested(value) for value in values)
