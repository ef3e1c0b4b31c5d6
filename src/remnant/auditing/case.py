"""What an audit is about: the released target, its records, and data that was never trained on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from remnant.attacks.about import Scene
from remnant.attacks.glm_case import check_labels as check_linear_labels
from remnant.bounds import Ledger
from remnant.data import draw
from remnant.errors import DataError, InputError, expected
from remnant.models.linear_model import LinearModel
from remnant.training import check_labels, loss_named
from remnant.types import Examples, Target
from remnant.untrusted.files import shown


@dataclass(frozen=True, kw_only=True, eq=False)
class Canaries:
    """Records made up for the audit: `planted` were trained on, `unplanted` never."""

    planted: Examples
    unplanted: Examples


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """What is audited: a target, the records that it was trained on, and records of the same kind
    that it was not.

    truth: the records trained on. holdout, public: never trained on, no record in two of the three.
    loss: the training loss by name. ledger: what a differentially private training did, if it was
    one; delta: at which its epsilon is told.
    """

    target: Target
    truth: Examples
    holdout: Examples
    public: Examples
    loss: str
    ledger: Ledger | None = None
    delta: float = 1e-5
    assumed: tuple[str, ...] = ()  # what was guessed for want of being told, in sentences
    words: Callable[[Sequence[int]], list[str]] | None = None  # of texts: tokens to pieces of it
    prepared: str = ""  # how training scaled the records, where an attack brought it to light
    canaries: Canaries | None = None  # the planted ones are among the truth too

    def __post_init__(self) -> None:
        loss_named(self.loss)
        for name in ("truth", "holdout", "public"):
            self._check(f"audit: {name}", getattr(self, name))
        shared: set[bytes] = set()
        for examples in (self.holdout, self.public):
            prints = _prints(examples)
            # Whole numbers and categories coincide, within the set itself too.
            if len(set(prints)) == len(prints):
                shared |= set(prints)
        if shared := shared & set(_prints(self.truth)):
            do = "leave them out: a null must not have been trained on"
            got = f"{len(shared)} of the training set's"
            raise InputError(expected("audit: holdout or public", "other records", got, do))

    def _check(self, what: str, examples: Examples) -> None:
        """Raises unless these records are of the kind of those trained on: not empty, of the
        same shape, and for a table with the same columns in the same order."""
        truth, got = self.truth, examples.shape
        if examples.are_texts or truth.are_texts:
            if got != truth.shape or not examples.are_texts:
                wanted = f"texts in rows of {truth.shape[0]} tokens"
                raise InputError(expected(what, wanted, got))
        elif math.prod(got) != math.prod(self.target.input_shape):
            wanted = f"records of shape {self.target.input_shape}"
            raise InputError(expected(what, wanted, got))
        if not len(examples):
            raise InputError(expected(what, "records", "none"))
        own, theirs = truth.features, examples.features
        if own and theirs and own != theirs:
            k = next(i for i, pair in enumerate(zip(own, theirs, strict=True)) if len({*pair}) > 1)
            wanted = f"the columns of the training data, {shown(own[k])} at {k + 1}"
            do = "give the same columns, and every word of a category in both"
            raise InputError(expected(what, wanted, shown(theirs[k]), do))
        if not all(one.strip() for one in examples.ids):
            row = [bool(one.strip()) for one in examples.ids].index(False)
            do, what = "name it, or leave ids out for all", what.replace(": ", ": ids of ")
            raise InputError(expected(what, "a text each", f"an empty one in row {row}", do))

    @property
    def scene(self) -> Scene:
        """What attacks are told beforehand: nothing of the records but their number and kind."""
        return Scene(
            target=self.target,
            records=len(self.truth),
            loss=self.loss,
            regression=self.truth.labels.is_floating_point(),
            tokens=int((self.truth.inputs[:, 1:] >= 0).sum()) if self.truth.are_texts else None,
        )

    @property
    def own(self) -> Examples:
        """The records trained on, without the canaries among them."""
        planted = set() if self.canaries is None else set(self.canaries.planted.ids)
        return self.truth.take([i for i, name in enumerate(self.truth.ids) if name not in planted])

    @property
    def others(self) -> Examples:
        """Held-out and public records together; ids say which set each is from."""
        twice = torch.equal(self.holdout.inputs.flatten(1), self.public.inputs.flatten(1))
        sets = [self.holdout] if twice else [self.holdout, self.public]
        ids = [f"{k} {one}" for k, part in enumerate(sets) for one in part.ids]
        return replace(together(self.truth, sets, ids), name="strangers", features=())

    @property
    def strangers(self) -> Examples:
        """Records that were never trained on: as many as there are training records, or all there
        are."""
        both = self.others
        n = min(len(self.truth), len(both))
        seeded = torch.Generator().manual_seed(0)
        try:
            return draw(both, n, generator=seeded, balanced=both.classes > 0)
        except DataError:  # too few of some class: then as they come
            return draw(both, n, generator=seeded, balanced=False)


def with_planted(truth: Examples, canaries: Canaries) -> tuple[Examples, Canaries]:
    """The records trained on with the planted canaries among them, once each, and the canaries
    under the ids that they have there."""
    place = {one: i for i, one in enumerate(_prints(truth))}
    planted = canaries.planted
    at = [place.get(one) for one in _prints(planted)]
    new = planted.take([i for i, where in enumerate(at) if where is None])
    ids = tuple(
        name if where is None else truth.ids[where]
        for name, where in zip(planted.ids, at, strict=True)
    )
    whole = together(truth, [truth, new], [*truth.ids, *new.ids])
    return whole, replace(canaries, planted=replace(planted, ids=ids))


def together(like: Examples, sets: Sequence[Examples], ids: Sequence[str]) -> Examples:
    """The records of all sets as one, in the shape and with labels as those of `like`."""

    def joined(name: str) -> Tensor:
        own: Tensor = getattr(like, name)
        parts = [getattr(part, name).to(own).reshape(len(part), *own.shape[1:]) for part in sets]
        return torch.cat(parts)

    return replace(like, inputs=joined("inputs"), labels=joined("labels"), ids=tuple(ids))


def check_labels_of(
    model: nn.Module, loss: str, outputs: Tensor, parts: Mapping[str, Examples]
) -> None:
    """Refuse labels for which the model has no output, of held-out and public records too.

    outputs: the model's for some records. parts: records by what an error is to call them.
    """
    if outputs.ndim != 2:
        return  # a language model: its texts are their own labels
    for name, part in parts.items():
        try:
            if isinstance(model, LinearModel):
                check_linear_labels(model, part.labels)
            else:
                check_labels(loss, outputs[:1].expand(len(part), -1), part.labels)
        except InputError as error:
            raise InputError(f"{name}: {error}") from None


def halves(examples: Examples) -> tuple[Examples, Examples]:
    """The first and the second half of the records, shuffled first, since files are often sorted by
    class."""
    order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(0))
    middle = len(examples) // 2
    return examples.take(order[:middle]), examples.take(order[middle:])


def same_length(*sets: Examples) -> list[Examples]:
    """The sets with rows padded to one length, the longest's, so that they can be compared."""
    rows = widened(*(part.inputs for part in sets))
    return [replace(part, inputs=own) for part, own in zip(sets, rows, strict=True)]


def widened(*rows: Tensor) -> list[Tensor]:
    """Rows of tokens padded to the length of the longest."""
    width = max(part.shape[1] for part in rows)
    return [pad(part, (0, width - part.shape[1]), value=-1) for part in rows]


def _prints(examples: Examples) -> list[bytes]:
    """Each record as bytes, by which records that two sets share are found. Images are rounded
    to half a grey level first, so that near copies count as shared."""
    rows = examples.inputs.flatten(1).double()
    if examples.bounds is not None:
        low, high = examples.bounds
        rows = ((rows - low) / (high - low) * 127).round()
    return [row.tobytes() for row in rows.numpy()]
