"""Features behind the training of a lone output layer."""

import pytest
import torch

from remnant.solvers.dense.output_run import recover_output_run


def tuned(n, c, d, steps, lr, seed):
    """Weights before, their change in single precision, features and labels."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(c, d, generator=generator, dtype=torch.float64) / d**0.5
    bias = 0.1 * torch.randn(c, generator=generator, dtype=torch.float64)
    features = torch.randn(n, d, generator=generator, dtype=torch.float64).relu()
    labels = torch.randint(c, (n,), generator=generator)
    weight, bias = weight.float().double(), bias.float().double()
    w, b = weight.clone().requires_grad_(), bias.clone().requires_grad_()
    for _ in range(steps):
        loss = torch.nn.functional.cross_entropy(features @ w.T + b, labels)
        slopes = torch.autograd.grad(loss, [w, b])
        with torch.no_grad():
            w -= lr * slopes[0]
            b -= lr * slopes[1]
    ends = w.detach().float().double(), b.detach().float().double()
    change = torch.cat([ends[0] - weight, (ends[1] - bias)[:, None]], 1)
    return weight, bias, change, features, labels


@pytest.mark.parametrize(("steps", "lr"), [(10, 0.05), (1, 0.5)])
def test_features_of_a_tuned_head_are_exact_and_its_steps_need_not_be_told(steps, lr):
    weight, bias, change, features, labels = tuned(4, 10, 24, steps, lr, 3)
    found = recover_output_run(
        weight, bias, change, precision=2.0**-24, generator=torch.Generator().manual_seed(0)
    )
    assert found.exact, found.residual
    far = torch.cdist(found.inputs, features).min(1)
    assert sorted(far.indices.tolist()) == [0, 1, 2, 3]
    assert far.values.max() < 1e-3
    assert found.labels.tolist() == labels[far.indices].tolist()


def test_a_change_that_is_no_training_of_the_head_alone_is_told():
    weight, bias, change, *_ = tuned(4, 10, 24, 10, 0.05, 3)
    noise = torch.randn(4, 25, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    bent = change + 0.05 * (change @ torch.linalg.pinv(noise)) @ noise
    found = recover_output_run(
        weight, bias, bent, precision=2.0**-24, generator=torch.Generator().manual_seed(0), count=4
    )
    assert isinstance(found, str) or not found.exact
