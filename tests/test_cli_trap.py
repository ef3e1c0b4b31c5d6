"""`remnant trap`: a network to send, and the batch back out of its gradient, by commands alone."""

import json

import pytest
import torch
from safetensors.torch import load_file

from remnant.capturing import capture, save_gradient
from remnant.cli import main
from remnant.data import load
from remnant.models import build, load_weights
from seeding import seeded


@pytest.mark.parametrize("activation", ["gelu", "tanh"])
def test_a_network_is_sent_and_its_gradient_read(tmp_path, capsys, activation):
    sent = ["trap", "--inputs", "64", "--width", "300", "--activation", activation]
    assert main([*sent, "--out", str(tmp_path / "sent"), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    model = build(made["model"], generator=seeded()).double()
    load_weights(model, load_file(made["weights"]))
    truth = load("digits").inputs[:3].double() - 0.4
    labels = torch.tensor([1.0, -1.0, 0.5]).double()
    gradient = tmp_path / "gradient.safetensors"
    save_gradient(gradient, capture(model, "mse", (truth, labels)))
    told = ["--model", made["model"], "--weights", made["weights"], "--gradient", str(gradient)]
    more = ["--records", "3", "--loss", "mse", "--residuals", "positive", "--shape", "1x8x8"]
    out = tmp_path / "found"
    assert main(["reconstruct", "gradient", *told, *more, "--out", str(out), "--quiet"]) == 0
    found = load_file(out / "candidates.safetensors")
    order = torch.cdist(truth.flatten(1), found["inputs"].flatten(1).double()).argmin(1)
    torch.testing.assert_close(found["inputs"][order].double(), truth, atol=1e-5, rtol=0)
    torch.testing.assert_close(found["labels"][order].double(), labels, atol=1e-4, rtol=0)


def test_what_cannot_be_sent_is_one_line(tmp_path, capsys):
    place = ["--out", str(tmp_path / "sent")]
    for words, said in ((["--width", "9"], "neurons|wide"), (["--activation", "no"], "activation")):
        assert main(["trap", "--inputs", "64", *words, *place]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert any(word in error for word in said.split("|"))
