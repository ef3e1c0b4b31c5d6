"""Texts out of one gradient of an encoder, whose tokens have no order."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from remnant.attacks.gradient import Gradient
from remnant.solvers.dense.one_gradient import Layers
from remnant.solvers.sequence.states import count_down_to_rounding
from remnant.training.batch_gradient import batch_gradient
from remnant.types import Candidates, Knowledge, Status, Target, token_rows

transformers = pytest.importorskip("transformers")
WORDS, MASK, LONGEST = 200, 3, 16


def small_bert(seed: int, kind: str = "BertForMaskedLM", width: int = 64) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = transformers.BertConfig(
            hidden_size=width, num_hidden_layers=2, num_attention_heads=4, vocab_size=WORDS,
            intermediate_size=4 * width, max_position_embeddings=LONGEST, num_labels=3,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.1,
        )  # fmt: skip
        config._attn_implementation = "eager"
        model: nn.Module = getattr(transformers, kind)(config).eval()
    return model


class Plain(nn.Module):
    """A classifier of texts around nn.TransformerEncoder, with learned places."""

    def __init__(self, seed: int, *, norm_first: bool, activation: str) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.words, self.places = nn.Embedding(WORDS, 64), nn.Embedding(LONGEST, 64)
            layer = nn.TransformerEncoderLayer(
                64, 4, 256, 0.0, activation, batch_first=True, norm_first=norm_first
            )
            self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = nn.Linear(64, 3)
        self.eval()

    def forward(self, tokens: Tensor) -> Tensor:
        states = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        outputs: Tensor = self.head(self.blocks(states).mean(1))
        return outputs


def some_texts(count: int, seed: int, shortest: int = 8) -> Tensor:
    """Texts of up to 8 tokens that begin alike, as BERT's do, and share words; -1 after the end."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(4, 40, (count, 8), generator=generator)
    rows[:, 0] = 1
    for row in rows[1:]:
        row[int(torch.randint(shortest, 9, (1,), generator=generator)) :] = -1
    return rows


def target_of(model: nn.Module, texts: Tensor, labels: Tensor) -> Target:
    known = Knowledge(gradient=batch_gradient(model, "ce", (texts, labels)))
    return Target(model=model, input_shape=(LONGEST,), bounds=None, knowledge=known)


def attacked(target: Target, seed: int = 0) -> Candidates:
    return Gradient()(target, generator=torch.Generator().manual_seed(seed))


def same_texts(found: Candidates, texts: Tensor) -> bool:
    return sorted(token_rows(found.inputs)) == sorted(token_rows(texts))


def test_ragged_texts_and_classes_come_back() -> None:
    texts, labels = some_texts(3, 1, shortest=4), torch.tensor([2, 0, 1])
    found = attacked(target_of(small_bert(1, "BertForSequenceClassification"), texts, labels))
    assert found.status is Status.COMPLETE, found.reason
    assert same_texts(found, texts)
    assert found.labels is not None
    own = {tuple(row): int(y) for row, y in zip(token_rows(texts), labels, strict=True)}
    assert [own[tuple(row)] for row in token_rows(found.inputs)] == found.labels.tolist()


def test_masked_words_are_put_back() -> None:
    texts = some_texts(3, 2, shortest=6)
    hidden = torch.zeros_like(texts, dtype=torch.bool)
    hidden[:, 2], hidden[1, 4] = True, True
    labels = texts.where(hidden, torch.tensor(-100))
    found = attacked(target_of(small_bert(2), texts.masked_fill(hidden, MASK), labels))
    assert found.status is Status.COMPLETE, found.reason
    assert same_texts(found, texts)


def test_a_loss_at_every_word_gives_the_texts_too() -> None:
    texts = some_texts(3, 3)
    found = attacked(target_of(small_bert(3), texts, texts))
    assert found.status is Status.COMPLETE, found.reason
    assert same_texts(found, texts)


@pytest.mark.parametrize(("norm_first", "activation"), [(True, "gelu"), (False, "relu")])
def test_plain_torch_encoders_give_their_texts(norm_first: bool, activation: str) -> None:
    texts = some_texts(3, 4)
    model = Plain(4, norm_first=norm_first, activation=activation)
    found = attacked(target_of(model, texts, torch.tensor([0, 1, 2])))
    assert found.status is Status.COMPLETE, found.reason
    assert same_texts(found, texts)


def test_nearly_equal_records_are_counted_where_the_spectrum_falls_onto_its_rounding() -> None:
    """As the first tokens of BERT's texts: the widest gap is above them, not below."""
    draw = torch.Generator().manual_seed(7)
    records = torch.randn(12, 41, generator=draw)
    records[9:] = records[8] + 1e-4 * records[9:]
    up, down = torch.randn(160, 12, generator=draw), torch.randn(40, 12, generator=draw)
    layers = Layers(
        first=torch.zeros(160, 41).double(), first_gradient=(up @ records).double(),
        next_weight=torch.zeros(40, 160).double(),
        next_gradient=(down @ torch.randn(12, 161, generator=draw)).double(),
        activation=nn.GELU(), bias=True, last=False, precision=2.0**-24,
    )  # fmt: skip
    assert count_down_to_rounding(layers) == 12
    noisy = replace(layers, first_gradient=torch.randn(160, 41, generator=draw).double())
    noisy = replace(noisy, next_gradient=torch.randn(40, 161, generator=draw).double())
    assert count_down_to_rounding(noisy) is None


def test_nothing_is_certified_of_random_gradients_or_of_another_model() -> None:
    generator = torch.Generator().manual_seed(5)
    for seed in range(50):
        model = small_bert(seed % 5, "BertForSequenceClassification", width=32)
        right = target_of(model, some_texts(2, seed), torch.tensor([0, 1]))
        assert right.knowledge.gradient is not None
        gradient = dict(right.knowledge.gradient)
        if seed % 2:
            model = small_bert(100 + seed, "BertForSequenceClassification", width=32)
        else:
            gradient = {
                name: torch.randn(value.shape, generator=generator) * value.std(correction=0)
                for name, value in gradient.items()
            }
        known = Knowledge(gradient=gradient)
        held = Target(model=model, input_shape=(LONGEST,), bounds=None, knowledge=known)
        found = attacked(held, seed)
        assert found.status is not Status.COMPLETE
        assert not any(found.stated.passed)
