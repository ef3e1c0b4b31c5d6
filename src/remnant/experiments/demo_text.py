"""The demo on texts: sentences out of one gradient of a small language model in GPT-2's layout.

The sentences are scikit-learn's descriptions of its data sets, the tokenizer is trained on them on
the spot, and the model has random weights, as at the first step of training.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as checked_dataclass
from sklearn import datasets

from remnant.attacks import ATTACKS
from remnant.attacks.about import setting
from remnant.auditing import Case, Plan
from remnant.auditing.case import same_length
from remnant.auditing.proof import proved
from remnant.auditing.run import run_audit
from remnant.auditing.strangers import strangers_of
from remnant.capturing import capture
from remnant.data import Split, Tokenizer, read_tokenizer, split
from remnant.data.texts import padded
from remnant.errors import InputError, expected, in_one_line
from remnant.experiments.demo import timed
from remnant.experiments.demo_page import FOLDER
from remnant.models.hf import small_gpt2, write_hf
from remnant.progress import task
from remnant.seeds import generator_for
from remnant.store import (
    Run,
    finish,
    hash_tensors,
    open_run,
    write_candidates,
    write_finding,
    write_weights,
)
from remnant.types import Examples, Finding, Knowledge, Target


@in_one_line("--")
@checked_dataclass(frozen=True, kw_only=True)
class TextDemo:
    """What the gradient is taken of. JSON values only: it is the run's spec."""

    data: str = "text"
    records: Annotated[int, Field(ge=1, le=10**6)] = setting(8, "sentences in the batch")
    width: Annotated[int, Field(ge=1, le=4096)] = setting(256, "numbers that a token becomes")
    depth: Annotated[int, Field(ge=1, le=100)] = setting(4, "blocks of the model")
    seed: int = 0
    page: bool = setting(True, "end in a page")


@dataclass(frozen=True, kw_only=True, eq=False)
class TextData:
    """Sentences as tokens: trained on, held out and public; and the tokenizer, as a file too."""

    sides: Split
    tokenizer: Tokenizer
    file: bytes
    vocabulary: int

    @property
    def hash(self) -> str:
        return hash_tensors({"inputs": self.sides.train.inputs})


def sentences(*, shortest: int = 30, longest: int = 130) -> list[str]:
    """Sentences of scikit-learn's descriptions, in their order: of so many letters, and without the
    signs that tables, references and code have."""
    found = []
    for text in _descriptions():
        for part in re.split(r"(?<=[.!?])\s+(?=[A-Z])", " ".join(text.split())):
            plain = re.fullmatch(r"[A-Z](?:[\w ,;'()]|\b-\b)*[a-z)]\.", part)
            if plain and shortest <= len(part) <= longest:
                found.append(part)
    return list(dict.fromkeys(found))


def _descriptions() -> Iterator[str]:
    """As they lie in the installed package: nothing is fetched."""
    folder = Path(datasets.__file__).parent / "descr"
    for path in sorted(folder.glob("*.rst")):
        yield path.read_text("utf-8")


def text_data(demo: TextDemo, *, vocabulary: int = 1000) -> TextData:
    """Sentences by a byte-pair tokenizer of `vocabulary` tokens that is trained on them."""
    texts = sentences()
    most = (len(texts) - 1) // 2
    if demo.records > most:
        raise InputError(expected("--records", f"at most {most} sentences", demo.records))
    with task("training a tokenizer"), tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tokenizer.json"
        size = _train_tokenizer(texts, vocabulary, file)
        tokenizer, raw = read_tokenizer(file), file.read_bytes()
    rows = padded([tokenizer.encode(text) for text in texts])
    examples = Examples(
        inputs=rows,
        labels=torch.zeros(len(rows), dtype=torch.int64),
        ids=tuple(f"sentence-{i:03d}" for i in range(len(rows))),
        bounds=None,
        name="text",
    )
    sides = split(
        examples, train=demo.records, public=None, holdout=demo.records, seed=demo.seed,
        balanced=False,
    )  # fmt: skip
    return TextData(sides=sides, tokenizer=tokenizer, file=raw, vocabulary=size)


def _train_tokenizer(texts: list[str], vocabulary: int, file: Path) -> int:
    """Written to `file`; how many tokens it has, since little text may not give that many."""
    try:
        import tokenizers
    except ImportError:
        do = "pip install 'remnant[text]'"
        raise InputError(expected("demo --data text", "tokenizers installed", "none", do)) from None
    kinds: Any = tokenizers
    made = kinds.Tokenizer(kinds.models.BPE())
    made.pre_tokenizer = kinds.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = kinds.decoders.ByteLevel()
    trainer = kinds.trainers.BpeTrainer(
        vocab_size=vocabulary,
        initial_alphabet=kinds.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    made.save(str(file))
    return int(made.get_vocab_size())


def text_target(demo: TextDemo, data: TextData, run: Run) -> Target:
    """A model at its first step, and the gradient of the sentences; both are kept as files."""
    longest = max(64, data.sides.train.shape[0])
    seed = int(generator_for(demo.seed, "weights").initial_seed() % 2**31)
    model = small_gpt2(
        vocabulary=data.vocabulary, longest=longest, width=demo.width, layers=demo.depth, seed=seed
    )
    gradient = capture(model, "ce", data.sides.train)
    write_hf(run.path / "model", model)
    (run.path / "model" / "tokenizer.json").write_bytes(data.file)
    write_weights(run, "gradient.safetensors", gradient)
    return Target(
        model=model,
        input_shape=(longest,),
        bounds=None,
        knowledge=Knowledge(gradient=gradient, loss="ce"),
    )


def run_text_demo(demo: TextDemo, data: TextData, run: Run) -> Finding:
    """Everything, stage by stage; returns the finding that it wrote."""
    timings: dict[str, float] = {}
    with timed(timings, "gradient"):
        target = text_target(demo, data, run)
    with timed(timings, "attack"):
        attack = ATTACKS["gradient"]()
        found = attack(target, generator=generator_for(demo.seed, "attack"))
        write_candidates(run, found)
    sides = data.sides
    truth, holdout, public = same_length(sides.train, sides.holdout, sides.public)
    case = Case(
        target=target, truth=truth, holdout=holdout, public=public, loss="ce",
        words=data.tokenizer.pieces,
    )  # fmt: skip
    with timed(timings, "scoring"):
        finding = proved(case, "gradient", found, strangers_of(case), seed=demo.seed)
    if demo.page:
        with timed(timings, "page"):
            stored = open_run(run.path / FOLDER, {"verb": "demo-page", "demo": run.spec_hash})
            command = f"remnant demo --data text --seed {demo.seed}"
            plan = Plan(attacks=("gradient",), seed=demo.seed, command=command)
            if not stored.finished:
                run_audit(case, plan, stored)
    write_finding(run, finding)
    hashes = {"weights": hash_tensors(target.weights), "data": data.hash}
    finish(run, seeds={"seed": demo.seed}, hashes=hashes, timings=timings)
    return finding
