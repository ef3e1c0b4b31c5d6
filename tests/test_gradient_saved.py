"""Batches out of optimizers that were saved beside the weights, as training scripts save them."""

import json

import pytest
import torch
from torch import nn

from remnant.cli import main
from remnant.models import read_weights
from seeding import seeded

RECORDS, FEATURES = 12, 30


def checkpoint(path, optimizer, steps=1, fresh=False):
    """The last batch, and a checkpoint after so many steps, all on it or each on a fresh one."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.Linear(FEATURES, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU()]
        model = nn.Sequential(*layers, nn.Linear(128, 5))
    generator = seeded()
    inputs = torch.rand(RECORDS, FEATURES, generator=generator)
    labels, descent = torch.arange(RECORDS) % 5, optimizer(model.parameters())
    for _ in range(steps):
        if fresh:
            inputs = torch.rand(RECORDS, FEATURES, generator=generator)
        descent.zero_grad()
        nn.functional.cross_entropy(model(inputs - 0.5), labels).backward()
        descent.step()
    saved = {"model": model.state_dict(), "optimizer": descent.state_dict(), "epoch": 0}
    torch.save(saved, path)
    return inputs


def found_in(path, out):
    """What the command finds when it is given nothing but the checkpoint."""
    words = ["--weights", path, "--shape", FEATURES, "--mean", 0.5, "--std", 1, "--out", out]
    assert main(["reconstruct", "gradient", *map(str, words), "--quiet"]) == 0
    finding = json.loads((out / "finding.json").read_text())
    return finding, read_weights(out / "candidates.safetensors")["inputs"]


ONE_STEP = {
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2),
    "adam with l2": lambda p: torch.optim.Adam(p, lr=1e-2, weight_decay=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-3),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
}


@pytest.mark.parametrize("kind", ONE_STEP)
def test_after_one_step_the_optimizer_is_the_gradient(tmp_path, kind):
    inputs = checkpoint(tmp_path / "c.pt", ONE_STEP[kind])
    finding, found = found_in(tmp_path / "c.pt", tmp_path / "out")
    assert finding["status"] == "complete", finding["reason"]
    assert "the checkpoint's optimizer holds a gradient" in finding["reason"]
    assert float(torch.cdist(inputs, found).min(1).values.max()) < 1e-3


@pytest.mark.parametrize("kind", ["adam", "momentum"])
def test_after_ten_steps_on_one_batch_the_sum_gives_it_back_too(tmp_path, kind):
    """No entry of `exp_avg` was divided by anything, so it keeps the gap that Adam's steps lose."""
    small = {"adam": lambda p: torch.optim.Adam(p, lr=1e-3)}.get(kind, ONE_STEP["momentum"])
    inputs = checkpoint(tmp_path / "c.pt", small, 10)
    finding, found = found_in(tmp_path / "c.pt", tmp_path / "out")
    assert finding["status"] == "complete", finding["reason"]
    distances = torch.cdist(inputs, found)
    assert float(distances.min(1).values.max()) < 1e-4
    labels = read_weights(tmp_path / "out" / "candidates.safetensors")["labels"]
    assert torch.equal(labels[distances.argmin(1)], torch.arange(RECORDS) % 5)


def test_after_five_batches_the_reason_names_adam_and_what_would_help(tmp_path):
    checkpoint(tmp_path / "c.pt", lambda p: torch.optim.Adam(p, lr=1e-2), 5, fresh=True)
    finding, _ = found_in(tmp_path / "c.pt", tmp_path / "out")
    assert finding["status"] == "inconclusive"
    assert "saved after 5 steps" in finding["reason"]
    assert "a checkpoint saved after the first step" in finding["reason"]
