"""Texts as data: tokens by a tokenizer's file, and one line for whatever is wrong with either."""

import json

import pytest
import torch

from remnant.capturing import capture
from remnant.cli import main
from remnant.cli.spec import TargetSpec
from remnant.cli.target import read_target
from remnant.data import load, load_texts, read_tokenizer
from remnant.errors import RemnantError
from remnant.models import save_weights
from remnant.models.foreign import check_outputs
from remnant.models.tokens import is_causal, longest_of, takes_tokens, vocabulary_of
from remnant.types import token_rows
from seeding import seeded
from text_case import LONGEST, SENTENCES, VOCABULARY, gpt2, tokenizer_file, write_case

transformers = pytest.importorskip("transformers")
pytest.importorskip("tokenizers")
LIMITS = {"vocabulary": VOCABULARY, "longest": LONGEST}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return read_tokenizer(tokenizer_file(tmp_path_factory.mktemp("words") / "tokenizer.json"))


def test_lines_become_tokens_and_words_again(tmp_path, tokenizer):
    (tmp_path / "a.txt").write_text("\n".join(SENTENCES))
    read = load_texts(tmp_path / "a.txt", tokenizer, **LIMITS)
    assert read.are_texts
    assert len(read) == len(SENTENCES)
    assert ["".join(tokenizer.pieces(row)) for row in token_rows(read.inputs)] == list(SENTENCES)
    assert read.ids[1] == "a-00001"
    assert read.take([2]).inputs.shape == (1, read.shape[0])


def test_json_lines_have_fields_labels_and_ids(tmp_path, tokenizer):
    lines = [
        {"said": "Grüße", "label": 3, "id": "x"},
        {"said": "日本", "id": 7},
        {"tokens": [5, 6]},
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    read = load_texts(tmp_path / "a.jsonl", tokenizer, field="said", **LIMITS)
    assert read.ids == ("x", "7", "a-00002")
    assert read.labels.tolist() == [3, 0, 0]
    rows = token_rows(read.inputs)
    assert "".join(tokenizer.pieces(rows[0])) == "Grüße"
    assert rows[2] == [5, 6]
    assert tokenizer.pieces([10**6]) == ["⟨1000000⟩"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.txt", b"", "a text a line, got an empty file"),
        ("a.txt", b"one\n\nthree\n", "line 2: expected a text, got an empty one"),
        ("a.txt", b"\xff\xfe", "UTF-8 text"),
        ("a.txt", b"word " * 200, f"at most {LONGEST} tokens"),
        ("a.jsonl", b'{"tokens": "abc"}\n', "line 1: tokens: expected whole numbers, got 'abc'"),
        ("a.jsonl", b'{"text": "  "}\n', "line 1: expected a text, got an empty one"),
        ("a.jsonl", b'{"words": "a"}\n', "expected a text, got nothing; name it with --text-field"),
        ("a.jsonl", b"[1]\n", "expected an object such as"),
        ("a.jsonl", b'{"tokens": [1, 999]}\n', "below the model's vocabulary, 300, got 999"),
        ("a.jsonl", b'{"tokens": [-4]}\n', "below the model's vocabulary, 300, got -4"),
        ("a.jsonl", b'{"text": "a", "label": -1}\n', "label: expected a class"),
        ("a.jsonl", b'{"text": "a", "id": "../b"}\n', "no path that leads upward"),
        ("a.jsonl", b'{"text": "a", "id": 1}\n{"text": "a", "id": 1}\n', "'1' twice"),
        ("a.npz", b"PK", "texts, a .txt or .jsonl file"),
    ],
)
def test_what_is_no_text_is_one_line(tmp_path, tokenizer, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(RemnantError, match=words):
        load_texts(tmp_path / name, tokenizer, **LIMITS)


def test_texts_need_a_tokenizer_and_a_model_of_tokens(tmp_path):
    (tmp_path / "a.txt").write_text("a\n")
    with pytest.raises(RemnantError, match="give --tokenizer"):
        load_texts(tmp_path / "a.txt", None, **LIMITS)
    with pytest.raises(RemnantError, match="got texts; give a Hugging Face directory"):
        load(tmp_path / "a.txt")
    for content in (b"", b"{}", b'{"version": 3}', b"\xff", b"[[[["):
        (tmp_path / "t.json").write_bytes(content)
        with pytest.raises(RemnantError, match="expected a tokenizer"):
            read_tokenizer(tmp_path / "t.json")


def test_the_captured_gradient_is_that_of_the_librarys_own_loss(tmp_path):
    model, train, _ = write_case(tmp_path)
    assert takes_tokens(model)
    assert (vocabulary_of(model), longest_of(model)) == (VOCABULARY, LONGEST)
    gradient = capture(model, "ce", train)
    here = train.inputs >= 0
    labels = train.inputs.where(here, torch.tensor(-100))
    model(train.inputs.clamp_min(0), attention_mask=here.long(), labels=labels).loss.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(gradient[name], parameter.grad)
    given = capture(model, "ce", (train.inputs, labels))
    torch.testing.assert_close(given["transformer.wte.weight"], gradient["transformer.wte.weight"])
    with pytest.raises(RemnantError, match="expected ce, got mse"):
        capture(model, "mse", train)


def test_encoders_are_told_from_decoders_by_what_they_see():
    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=50, intermediate_size=32, **small)
    masked = transformers.BertForMaskedLM(config).eval()
    tokens = torch.tensor([[3, 4, 5, -1], [6, 7, 8, 9]])
    assert is_causal(gpt2(), tokens)
    assert not is_causal(masked, tokens)
    assert check_outputs(masked, tokens).shape == (2, 4, 50)
    labels = torch.tensor([[-100, 4, -100, -100], [-100, -100, 8, -100]])
    here = tokens >= 0
    masked(tokens.clamp_min(0), attention_mask=here.long(), labels=labels).loss.backward()
    name, parameter = next(iter(masked.named_parameters()))
    torch.testing.assert_close(capture(masked, "ce", (tokens, labels))[name], parameter.grad)


def test_a_classifier_of_texts_and_of_images_is_captured_by_its_logits():
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=50, intermediate_size=32, num_labels=3, **small)
    texts = transformers.BertForSequenceClassification(config).eval()
    rows, labels = torch.tensor([[3, 4, -1], [6, 7, 8]]), torch.tensor([0, 2])
    assert capture(texts, "ce", (rows, labels))["classifier.weight"].shape == (3, 16)
    config = transformers.ViTConfig(image_size=16, patch_size=8, intermediate_size=32, **small)
    images = transformers.ViTForImageClassification(config).eval()
    assert not takes_tokens(images)
    assert check_outputs(images, torch.rand(2, 3, 16, 16)).shape == (2, 2)
    assert "classifier.weight" in capture(images, "ce", (torch.rand(2, 3, 16, 16), labels // 2))


TABLE = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, x):
        return {"logits": self.b(self.a(x.flatten(1)).relu()), "hidden": None}
"""


def test_a_forward_that_returns_a_table_with_logits_is_as_good_as_one_that_returns_them(tmp_path):
    (tmp_path / "net.py").write_text(TABLE)
    names = {"a.weight": (16, 6), "a.bias": (16,), "b.weight": (3, 16), "b.bias": (3,)}
    draws = seeded()
    held = {name: torch.randn(shape, generator=draws) for name, shape in names.items()}
    save_weights(tmp_path / "w.safetensors", held)
    spec = TargetSpec(
        weights=tmp_path / "w.safetensors", model=f"{tmp_path / 'net.py'}:Net", shape="6"
    )
    target, _ = read_target(spec)
    x = torch.rand(4, 6)
    outputs = target.model(x)
    hidden = (x @ held["a.weight"].T + held["a.bias"]).relu()
    torch.testing.assert_close(outputs, hidden @ held["b.weight"].T + held["b.bias"])
    held = ["--weights", str(tmp_path / "w.safetensors"), "--model", f"{tmp_path / 'net.py'}:Net"]
    how = ["--shape", "6", "--records", "2", "--steps", "2", "--starts", "2", "--quiet"]
    # No chain that kkt reads: it says so, after the forward has been tried.
    assert main(["reconstruct", "kkt", *held, *how, "--out", str(tmp_path / "out")]) == 5


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--model", "hf:nowhere"], "a directory with config.json"),
        (["--weights", "{model}", "--mean", "0.5"], "mean of a model of tokens"),
        (["--weights", "{model}", "--tokenizer", "{here}/train.txt"], "expected a tokenizer"),
        (["--weights", "{model}", "--public", "{here}/empty.txt"], "public of a model of tokens"),
        ([], "--weights: expected a value, got none"),
    ],
)
def test_reconstruct_refuses_in_one_line(tmp_path, capsys, flags, words):
    write_case(tmp_path)
    (tmp_path / "empty.txt").write_text("")
    capsys.readouterr()
    flags = [flag.format(model=tmp_path / "model", here=tmp_path) for flag in flags]
    gradient = ["--gradient", str(tmp_path / "gradient.safetensors")]
    out = ["--out", str(tmp_path / "out")]
    assert main(["reconstruct", "gradient", *flags, *gradient, *out]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()
