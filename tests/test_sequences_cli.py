"""Texts out of transformers by the command line: verbs, verdicts, pages, and what is refused."""

import json
import pickle
import shutil

import pytest
import torch
from torch.nn import functional as F

from remnant.cli import main
from remnant.data import load_texts, read_tokenizer
from text_case import LONGEST, SENTENCES, VOCABULARY, gpt2, tokenizer_file, write_case


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    write_case(folder, width=128)
    return folder


def stepped(folder, optimizer_of):
    """A checkpoint one step after the case's model, and the optimizer's state beside it."""
    model = gpt2(128)
    optimizer = optimizer_of(model.parameters())
    tokenizer = read_tokenizer(folder / "model" / "tokenizer.json")
    rows = load_texts(folder / "train.txt", tokenizer, vocabulary=VOCABULARY, longest=LONGEST)
    loss, count = 0.0, 0
    for row in rows.inputs:
        tokens = row[row >= 0][None]
        out = model(tokens).logits[0, :-1]
        loss = loss + F.cross_entropy(out, tokens[0, 1:], reduction="sum")
        count += len(tokens[0]) - 1
    (loss / count).backward()
    optimizer.step()
    model.save_pretrained(folder / "after")
    torch.save(optimizer.state_dict(), folder / "after" / "optimizer.pt")


def texts_of(out):
    lines = [json.loads(line) for line in (out / "texts.jsonl").read_text().splitlines()]
    return sorted(line["text"] for line in lines if line["certified"])


def test_reconstruct_prints_what_it_certifies(case, tmp_path, capsys):
    held = ["--model", f"hf:{case / 'model'}", "--gradient", str(case / "gradient.safetensors")]
    assert main(["reconstruct", "gradient", *held, "--out", str(tmp_path / "out")]) == 0
    assert "gradient: complete; records counted 3, certified 3" in capsys.readouterr().out
    assert texts_of(tmp_path / "out") == sorted(SENTENCES[:3])


def test_two_checkpoints_and_an_optimizer_are_as_good_as_a_gradient(case, tmp_path):
    shutil.copytree(case, tmp_path / "case")
    folder = tmp_path / "case"
    stepped(folder, lambda p: torch.optim.SGD(p, lr=0.1))
    held = ["--weights", f"{folder / 'after'}", "--initial", f"{folder / 'model'}",
            "--tokenizer", f"{folder / 'model'}"]  # fmt: skip
    assert main(["reconstruct", "gradient", *held, "--out", str(tmp_path / "pair")]) == 0
    assert texts_of(tmp_path / "pair") == sorted(SENTENCES[:3])
    stepped(folder, lambda p: torch.optim.AdamW(p, lr=1e-3))
    held = ["--weights", f"{folder / 'after'}", "--tokenizer", f"{folder / 'model'}",
            "--gradient", f"{folder / 'after' / 'optimizer.pt'}"]  # fmt: skip
    assert main(["reconstruct", "gradient", *held, "--out", str(tmp_path / "saved")]) == 0
    assert texts_of(tmp_path / "saved") == sorted(SENTENCES[:3])


def audit(case, out, *more, gradient="gradient.safetensors"):
    held = ["--weights", str(case / "model"), "--gradient", str(case / gradient)]
    data = ["--data", str(case / "train.txt"), "--holdout", str(case / "holdout.txt")]
    return main(["audit", *held, *data, "--out", str(out), *more])


def test_an_audit_is_exposed_and_its_page_shows_or_hides_the_texts(case, tmp_path):
    assert audit(case, tmp_path / "open", "--gate") == 3
    page = (tmp_path / "open" / "report.html").read_text()
    assert SENTENCES[2] in page
    assert audit(case, tmp_path / "hidden", "--gate", "--redact") == 3
    hidden = (tmp_path / "hidden" / "report.html").read_text()
    for sentence in SENTENCES[:3]:
        assert sentence not in hidden


def test_an_audit_of_what_does_not_leak_is_inconclusive_with_a_control_that_leaks(case, tmp_path):
    from remnant.capturing import capture, save_gradient
    from remnant.types import Examples

    other = torch.randint(0, VOCABULARY, (3, 20), generator=torch.Generator().manual_seed(4))
    batch = Examples(inputs=other, labels=torch.zeros(3), ids=("a", "b", "c"), bounds=None)
    save_gradient(case / "other.safetensors", capture(gpt2(128), "ce", batch))
    assert audit(case, tmp_path / "out", "--gate", gradient="other.safetensors") == 4
    finding = json.loads((tmp_path / "out" / "finding.json").read_text())
    played = next(row for row in finding["attacks"] if row["attack"] == "gradient")
    assert played["finding"]["recovered"] == 0
    assert played["control"]["passed"]


def test_preflight_names_a_batch_that_is_too_large(tmp_path, capsys):
    write_case(tmp_path, width=64)
    held = ["--weights", str(tmp_path / "model")]
    gradient = ["--gradient", str(tmp_path / "gradient.safetensors")]
    data = ["--data", str(tmp_path / "train.txt"), "--holdout", str(tmp_path / "holdout.txt")]
    capsys.readouterr()
    assert main(["preflight", *held, *gradient, *data, "--attacks", "gradient"]) == 0
    assert "no fewer than the width, 64" in " ".join(capsys.readouterr().out.split())


def _config(folder):
    stated = json.loads((folder / "model" / "config.json").read_text())
    (folder / "model" / "config.json").write_text(json.dumps(stated | {"n_embd": 64}))


def _pickle(folder):
    (folder / "model" / "model.safetensors").unlink()
    (folder / "model" / "pytorch_model.bin").write_bytes(pickle.dumps({"a": print}))


def _vocabulary(folder):
    texts = [f"{word}s and {word}ing {word}" for word in map(str, range(900))] * 2
    tokenizer_file(folder / "model" / "tokenizer.json", texts, 900)
    (folder / "train.txt").write_text("899s and 898ing 897\n")


def _empty(folder):
    (folder / "train.txt").write_text("\n")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [(_config, "transformer"), (_pickle, "pickle"), (_vocabulary, "vocabulary"), (_empty, "text")],
)
def test_bad_input_is_one_line(case, tmp_path, capsys, spoil, words):
    shutil.copytree(case, tmp_path / "case")
    spoil(tmp_path / "case")
    capsys.readouterr()
    assert audit(tmp_path / "case", tmp_path / "out") == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


def test_the_demo_on_texts_ends_in_a_page(tmp_path, capsys):
    flags = ["--records", "3", "--width", "128", "--depth", "2", "--out", str(tmp_path / "demo")]
    assert main(["demo", "--data", "text", *flags]) == 0
    assert "3 of 3 records recovered" in capsys.readouterr().out
    page = (tmp_path / "demo" / "audit" / "report.html").read_text()
    finding = json.loads((tmp_path / "demo" / "finding.json").read_text())
    assert finding["recovered"] == 3
    assert "exposed" in page
