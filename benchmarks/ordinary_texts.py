"""Models of made-up sentences by transformers and peft, for `ordinary_models`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Fields = dict[str, Any]
WHO = ("the nurse", "a clerk", "my sister", "the miller", "our pilot", "the twins", "a gardener")
DID = ("lost", "found", "painted", "sold", "borrowed", "counted", "buried", "mended")
WHAT = ("nine keys", "a green boat", "the old clock", "two letters", "some bread", "a silver ring")
WHERE = ("in Basel", "by the river", "at noon", "behind the mill", "on Friday", "near the gate")


def descend(model: nn.Module, loss: Callable[[], Tensor], steps: int, lr: float = 1e-3) -> None:
    """AdamW on a loss of all records."""
    optimizer = adamw(model, lr)
    for _ in range(steps):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()


def adamw(model: nn.Module, lr: float = 1e-3) -> Any:
    return torch.optim.AdamW(model.parameters(), lr=lr)


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
    mask = (rows > 0).long()
    wanted = rows.masked_fill(mask == 0, -100)

    def loss() -> Tensor:
        found: Tensor = model(input_ids=rows, attention_mask=mask, labels=wanted).loss
        return found

    descend(model, loss, steps, lr)


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
    seen: Any = {"input_ids": rows, "attention_mask": (rows > 0).long(), "labels": labels}
    descend(model, lambda: model(**seen).loss, 40)
    model.save_pretrained(folder / "model")
    return {"weights": "model", "data": "train.jsonl", "holdout": "test.jsonl"}
