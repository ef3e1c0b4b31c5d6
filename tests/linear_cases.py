"""Linear models fitted by their own libraries, and the adversary who misses their last record."""

import numpy as np
import torch

from remnant.models.linear_estimators import from_estimator
from remnant.models.linear_files import linear_target
from remnant.types import Examples


def table(rows=60, features=5, seed=0, classes=2, outputs=1):
    """(x n x d, targets by family): correlated features on different scales, nothing separable."""
    rng = np.random.default_rng(seed)
    mix = rng.normal(size=(features, features)) / np.sqrt(features)
    x = rng.normal(size=(rows, features)) @ mix + rng.normal(size=features)
    weight = rng.normal(size=(features, outputs)) * 0.7
    score = x @ weight + rng.normal(size=(rows, outputs)) * 1.5
    logits = x @ rng.normal(size=(features, classes)) + rng.gumbel(size=(rows, classes)) * 2
    return x, {
        "linear": score if outputs > 1 else score[:, 0],
        "logistic": (score[:, 0] > np.median(score[:, 0])).astype(int),
        "poisson": rng.poisson(np.exp(np.clip(score[:, 0] * 0.4, -2, 2))),
        "gamma": 0.1 + rng.gamma(5.0, 1 / (5 * np.clip(3 + 0.3 * score[:, 0], 1, 6))),
        "multinomial": logits.argmax(1),
    }


def examples(x, y):
    labels = torch.tensor(np.asarray(y))
    ids = tuple(str(i) for i in range(len(x)))
    inputs = torch.tensor(np.asarray(x), dtype=torch.float64)
    return Examples(inputs=inputs, labels=labels, ids=ids, bounds=None)


def target_of(estimator, x, y, missing=1, labels=None, recipe=None, **changes):
    """The adversary who knows x and y but for the last `missing` records; x in the data's scale."""
    model = from_estimator(estimator, **changes)
    known = examples(x[:-missing], y[:-missing])
    return linear_target(
        model, known, records=len(x), labels=labels, recipe=recipe(model) if recipe else None
    )


def relative(found, truth):
    return float(np.linalg.norm(found - truth) / np.linalg.norm(truth))
