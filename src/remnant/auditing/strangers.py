"""Records that were never trained on: what chance alone can do is measured on them.

Held-out and public records together, in the model's scale, less near copies of training records:
those were as good as trained on. Where they differ in kind from the records, or are few, that is
said before any attack runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from remnant.auditing.case import Case
from remnant.auditing.rules import RULES
from remnant.report.sheet import as_image
from remnant.scoring.claims import repeats, rms_distance
from remnant.scoring.ranks import compare
from remnant.scoring.texts import share_right
from remnant.seeds import generator_for
from remnant.types import Examples, Scaling, token_rows


@dataclass(frozen=True, kw_only=True, eq=False)
class Strangers:
    """`inputs`: s x d in the model's scale. `differ`: they are of another kind than the records."""

    examples: Examples
    holdout: Examples  # of them, or all where none is left
    public: Examples
    inputs: Tensor
    scaling: Scaling
    differ: bool
    notes: tuple[str, ...]

    def rows_of(self, examples: Examples | Tensor) -> Tensor:
        """In the model's scale, k x d."""
        inputs = examples.inputs if isinstance(examples, Examples) else examples
        return self.scaling.to_model(inputs.double()).flatten(1)

    def turned(self, how: str) -> Strangers:
        every, holdout, public = (
            turned(part, how) for part in (self.examples, self.holdout, self.public)
        )
        inputs = self.rows_of(every)
        return replace(self, examples=every, holdout=holdout, public=public, inputs=inputs)

    def scaled(self, scaling: Scaling) -> Strangers:
        inputs = scaling.to_model(self.examples.inputs.double()).flatten(1)
        return replace(self, scaling=scaling, inputs=inputs)


TURNS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "mirrored": lambda x: x.flip(-1),
    "upside down": lambda x: x.flip(-2),
    "rotated by 180 degrees": lambda x: x.flip(-1, -2),
    "rotated by 90 degrees": lambda x: x.rot90(1, (-2, -1)),
    "rotated by 270 degrees": lambda x: x.rot90(3, (-2, -1)),
    "transposed": lambda x: x.transpose(-1, -2),
    "in the other order of channels (RGB, BGR)": lambda x: x.flip(1),
}
"""What training may have done to square images, n x c x h x w."""
CHANNELS, NEGATIVE = list(TURNS)[-1], "as negatives"


def turns_of(examples: Examples) -> list[str]:
    """Which turns there are of such records."""
    images = square_images(examples)
    turns = [] if images is None else list(TURNS)
    if images is not None and images.shape[1] != 3:
        turns.remove(CHANNELS)
    return turns if examples.bounds is None else [*turns, NEGATIVE]


def turned(examples: Examples, how: str) -> Examples:
    """The records as training saw them if it did this to them."""
    if how == NEGATIVE:
        inputs = sum(examples.bounds or (0.0, 0.0)) - examples.inputs
    else:
        images = square_images(examples)
        assert images is not None
        inputs = TURNS[how](images).reshape(examples.inputs.shape)
    return replace(examples, inputs=inputs)


def square_images(examples: Examples) -> Tensor | None:
    """n x c x h x w where records are square images, also those that are kept flat."""
    shape = as_image(examples.shape)
    if len(shape) not in (2, 3) or not shape[-1] == shape[-2] > 1:
        return None
    return examples.inputs.reshape(len(examples), -1, *shape[-2:])


def strangers_of(case: Case) -> Strangers:
    """All strangers of a case but near copies, and what is to be said of them."""
    every, scaling = case.others, case.target.scaling
    rows, records = (scaling.to_model(e.inputs.double()).flatten(1) for e in (every, case.truth))
    texts = case.truth.are_texts  # of which only whole ones count, so that kinds do not matter
    far = ~near_texts(every, case.truth) if texts else ~near_copies(rows, records)
    kept = every.take(far.nonzero().flatten())
    copies, left = int((~far).sum()), rows[far]
    differ = not texts and differ_in_kind(case.truth, records, kept, left)
    first = len(case.holdout)
    shared = len(every) == first  # one set, given twice
    return Strangers(
        examples=kept,
        holdout=_kept(case.holdout, far[:first]),
        public=_kept(case.public, far if shared else far[first:]),
        inputs=left,
        scaling=scaling,
        differ=differ,
        notes=tuple(_notes(len(case.truth), len(kept), copies, differ)),
    )


def _kept(examples: Examples, far: Tensor) -> Examples:
    return examples.take(far.nonzero().flatten()) if far.any() else examples


def near_copies(strangers: Tensor, records: Tensor) -> Tensor:
    """s, bool: whether a stranger is far nearer to some record than strangers are to each other."""
    if len(strangers) < 2 or repeats(strangers):
        return torch.zeros(len(strangers), dtype=torch.bool)
    among = rms_distance(strangers, strangers)
    among.fill_diagonal_(torch.inf)
    usual = among.min(1).values.median()
    return rms_distance(strangers, records).min(1).values < RULES.copy_within * usual


def near_texts(strangers: Examples, records: Examples) -> Tensor:
    """s, bool: whether a stranger is nearly a record, token by token."""
    rows, texts = token_rows(strangers.inputs), token_rows(records.inputs)
    near = [max(share_right(text, row) for text in texts) >= RULES.copied_tokens for row in rows]
    return torch.tensor(near, dtype=torch.bool)


def differ_in_kind(truth: Examples, records: Tensor, others: Examples, strangers: Tensor) -> bool:
    """Whether records and strangers can be told apart without any model: half of the strangers are
    taken for candidates, and the other half compared with the records."""
    if len(strangers) < RULES.fewest_strangers:
        return False
    generator = generator_for(0, "kinds")
    order = torch.randperm(len(strangers), generator=generator)
    half, rest = order[: len(order) // 2], order[len(order) // 2 :]
    labels = truth.labels, others.labels[rest]
    ranks = compare(strangers[half], records, strangers[rest], labels=labels, generator=generator)
    if ranks.p is None or ranks.low is None:
        return True  # no class in common
    return min(ranks.p, ranks.low) < RULES.differ_by_chance / 2


def _notes(n: int, count: int, copies: int, differ: bool) -> list[str]:
    said = []
    if copies:
        said.append(
            f"{copies} held-out or public records are near copies of training records: they were "
            "left out of every comparison. Hold out records of other people or things."
        )
    if count < n:
        said.append(
            f"There are {count} held-out and public records for {n} trained on: hold out at least "
            "as many, so that chance can be told apart and a twin can be as hard as this model."
        )
    if differ:
        said.append(
            "Held-out records differ in kind from the training records (another source, scale or "
            "preparation?): resemblance says nothing then, and only certified records count."
        )
    return said
