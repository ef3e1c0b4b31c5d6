"""The frozen values that pass between rooms.

    Examples -> (training) -> Target -> (attack) -> Candidates -> (scoring) -> Finding

Shapes in words: `n` records, `m` candidates, `shape` one input, `c` outputs. Every value checks
its shapes when it is made, so that what arrives in a room can be trusted there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn

from remnant.errors import InputError, expected

Weights = Mapping[str, Tensor]
"""One tensor per parameter, named as in the model's state dict."""

FINDING_SCHEMA = "remnant.finding/1"


class Status(StrEnum):
    """How an attack ended. Anything that is not known is inconclusive, never safe."""

    COMPLETE = "complete"  # every record that the evidence counts was found and certified
    PARTIAL = "partial"  # some were found and certified, others were not
    INCONCLUSIVE = "inconclusive"  # the attack ran and proved nothing
    NOT_APPLICABLE = "not applicable"  # an assumption is unmet; `reason` says which


@dataclass(frozen=True, kw_only=True, eq=False)
class Examples:
    """Records: inputs `n x shape` in the data's own scale, labels, ids that never change.

    Labels are `n` integers (classes) or `n` / `n x c` floats (regression targets).
    `bounds` is the box of the data's own scale, (0, 1) for images, None for tables.
    Texts are inputs of whole numbers, n x length tokens, -1 after the end of each.
    `features` are a table's column names, where its file has them.
    """

    inputs: Tensor
    labels: Tensor
    ids: tuple[str, ...]
    bounds: tuple[float, float] | None = (0.0, 1.0)
    name: str = "data"
    features: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        n = len(self.inputs)
        tokens = self.inputs.ndim == 2 and self.inputs.dtype == torch.int64
        if self.inputs.ndim < 2 or not (tokens or self.inputs.is_floating_point()):
            got = f"{self.inputs.dtype} of shape {tuple(self.inputs.shape)}"
            wanted = "floats, n x shape, or n x length tokens (int64)"
            raise InputError(expected(f"{self.name}: inputs", wanted, got))
        if tokens:
            ended = self.inputs < 0
            if bool(ended[:, :1].any()) or bool((ended[:, :-1] & ~ended[:, 1:]).any()):
                wanted = "tokens from 0, -1 only after the end"
                raise InputError(expected(f"{self.name}: inputs", wanted, "others"))
        if self.features and self.shape != (len(self.features),):
            wanted = f"{len(self.features)} features, one a name"
            raise InputError(expected(f"{self.name}: inputs", wanted, self.shape))
        if len(self.labels) != n:
            raise InputError(
                expected(f"{self.name}: labels", f"{n}, one a record", len(self.labels))
            )
        if len(self.ids) != n or len(set(self.ids)) != n:
            got = f"{len(self.ids)}, of which {len(set(self.ids))} differ"
            raise InputError(expected(f"{self.name}: record ids", f"{n} different ones", got))
        if not bool(torch.isfinite(self.inputs).all()):
            raise InputError(
                expected(
                    f"{self.name}: inputs", "finite numbers", "NaN or infinity", "clean the data"
                )
            )

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.inputs.shape[1:])

    @property
    def are_texts(self) -> bool:
        """Whether the inputs are tokens."""
        return not self.inputs.is_floating_point()

    @property
    def classes(self) -> int:
        """The number of classes, or 0 where labels are real numbers."""
        if self.labels.is_floating_point() or len(self) == 0:
            return 0
        return int(self.labels.max()) + 1

    def take(self, index: Tensor | Sequence[int]) -> Examples:
        """The records at `index`, in that order."""
        rows = torch.as_tensor(index, dtype=torch.long)
        return Examples(
            inputs=self.inputs[rows],
            labels=self.labels[rows],
            ids=tuple(self.ids[i] for i in rows.tolist()),
            bounds=self.bounds,
            name=self.name,
            features=self.features,
        )


def token_rows(inputs: Tensor) -> list[list[int]]:
    """The tokens of each of n x length rows, which end before the first negative number."""
    rows = inputs.detach().cpu().flatten(1).round().long().tolist()
    return [row[: next((k for k, token in enumerate(row) if token < 0), len(row))] for row in rows]


@dataclass(frozen=True, kw_only=True, eq=False)
class Scaling:
    """How data becomes a model's input: (data - mean) / std. Both broadcast over `shape`."""

    mean: Tensor = field(default_factory=lambda: torch.zeros(()))
    std: Tensor = field(default_factory=lambda: torch.ones(()))

    def __post_init__(self) -> None:
        if not bool((self.std > 0).all()):
            raise InputError(
                expected("scaling: std", "positive numbers", f"min {float(self.std.min())}")
            )
        # Of data within 0..1, which models take as float32.
        largest = (float(self.mean.abs().max()) + 1) / float(self.std.min())
        if not max(largest, float(self.std.max())) <= torch.finfo(torch.float32).max:
            got = f"values up to {largest:.3g}"
            raise InputError(expected("scaling: mean and std", "finite inputs in float32", got))

    def to_model(self, data: Tensor) -> Tensor:
        return (data - self.mean.to(data)) / self.std.to(data)

    def to_data(self, inputs: Tensor) -> Tensor:
        return inputs * self.std.to(inputs) + self.mean.to(inputs)


@dataclass(frozen=True, kw_only=True, eq=False)
class Knowledge:
    """What the adversary holds besides the released weights. None = unknown."""

    initial: Weights | None = None  # weights before training (another checkpoint, a known seed)
    gradient: Weights | None = None  # one gradient at the model's weights, or some of its tensors
    gradient_of: str = ""  # the optimizer that kept it, in words; then `initial` is before its step
    records: int | None = None  # how many records were trained on
    labels: Tensor | None = None  # their labels
    public: Tensor | None = None  # p x shape, other data of the same kind, in the data's own scale
    public_labels: Tensor | None = None  # p, where they are known too
    known: Examples | None = None  # records trained on; the unknown ones come after them
    loss: str | None = None  # the training loss, by name
    recipe: object | None = None  # the training recipe


@dataclass(frozen=True, kw_only=True, eq=False)
class Target:
    """All that an attack may see: the released model and what the adversary knows."""

    model: nn.Module
    input_shape: tuple[int, ...]
    bounds: tuple[float, float] | None = (0.0, 1.0)
    scaling: Scaling = field(default_factory=Scaling)
    knowledge: Knowledge = field(default_factory=Knowledge)

    def __post_init__(self) -> None:
        if not self.input_shape or min(self.input_shape) < 1:
            raise InputError(expected("target: input shape", "positive sizes", self.input_shape))
        wanted = {name: tuple(p.shape) for name, p in self.model.named_parameters()}
        for kind in ("initial", "gradient"):
            held: Weights | None = getattr(self.knowledge, kind)
            if held is None:
                continue
            some = kind == "gradient" and any(name in held for name in wanted)
            for name, shape in wanted.items():
                if some and name not in held:
                    continue
                got = tuple(held[name].shape) if name in held else "nothing"
                if got != shape:
                    raise InputError(expected(f"target: {kind} weights, {name}", shape, got))
        public = self.knowledge.public
        if public is not None and tuple(public.shape[1:]) != self.input_shape:
            got = tuple(public.shape[1:])
            raise InputError(
                expected("target: public inputs", f"p x {self.input_shape}", f"p x {got}")
            )

    @property
    def weights(self) -> Weights:
        """The released weights, by parameter name."""
        return {name: p.detach() for name, p in self.model.named_parameters()}


@dataclass(frozen=True, kw_only=True, eq=False)
class Evidence:
    """A vector in parameter space that is a weighted sum of parameter gradients at unknown inputs.

    `start` and `end` are the weights between which those gradients were taken (equal for a
    single gradient). float64 throughout: a difference of weights loses digits that it needs.
    `precision` is the relative rounding of the numbers as they were stored.
    """

    vector: Weights
    start: Weights
    end: Weights
    precision: float

    def __post_init__(self) -> None:
        for name, value in self.vector.items():
            for other in (self.start, self.end):
                if tuple(other[name].shape) != tuple(value.shape):
                    got = tuple(other[name].shape)
                    raise InputError(expected(f"evidence: {name}", tuple(value.shape), got))
            if value.dtype != torch.float64:
                raise InputError(expected(f"evidence: {name}", "float64", value.dtype))


@dataclass(frozen=True, kw_only=True)
class Stated:
    """What an attack states of its own result, without the truth: what a verdict is built on.

    Files keep these fields among the `figures`, under the same names, where they are not empty.
    """

    counted: int | None = None  # records that the evidence shows; None = not known
    certified: int | None = None  # records proved to be right; None = the attack proves nothing
    passed: Sequence[bool] = ()  # one a candidate: whether it is certified
    error: Sequence[float | None] = ()  # one a candidate: root mean square, in the model's scale
    targets: Sequence[str] | None = None  # the records sought one at a time, in order, by id

    @classmethod
    def read(cls, figures: Mapping[str, Any]) -> Stated:
        """Out of a file's `figures`, which hold other keys too."""
        return cls(**{key: figures[key] for key in STATED if key in figures})

    def figures(self) -> dict[str, Any]:
        """What a file holds of this."""
        return {key: value for key, value in asdict(self).items() if value not in (None, (), [])}


STATED = tuple(Stated.__dataclass_fields__)


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidates:
    """What an attack returns: `m` inputs in the data's own scale, best first.

    `confidence` (m, 0..1) is computed without truth. `stated` is what a verdict needs, `figures`
    are other numbers about the run, only to be shown (JSON values), `trace` are series worth
    drawing. Nothing in here depends on the clock, so the same seed gives the same bytes.
    """

    inputs: Tensor
    confidence: Tensor
    status: Status
    reason: str
    labels: Tensor | None = None
    stated: Stated = Stated()
    figures: Mapping[str, Any] = field(default_factory=dict)
    trace: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        m = len(self.inputs)
        if self.inputs.ndim < 2:
            raise InputError(expected("candidates: inputs", "m x shape", tuple(self.inputs.shape)))
        if tuple(self.confidence.shape) != (m,):
            raise InputError(expected("candidates: confidence", (m,), tuple(self.confidence.shape)))
        if not self.figures.keys().isdisjoint(STATED):
            got = ", ".join(key for key in self.figures if key in STATED)
            raise InputError(expected("candidates: figures", "no field of Stated", got))
        each = {"labels": self.labels, "passed": self.stated.passed, "error": self.stated.error}
        for name, values in each.items():
            if values is not None and len(values) not in ((m,) if name == "labels" else (0, m)):
                wanted = f"{m}, one a candidate"
                raise InputError(expected(f"candidates: {name}", wanted, len(values)))

    def __len__(self) -> int:
        return len(self.inputs)

    def parts(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON values to keep; `from_parts` makes the candidates of them again."""
        tensors = {"inputs": self.inputs, "confidence": self.confidence}
        if self.labels is not None:
            tensors["labels"] = self.labels
        return tensors, {
            "status": str(self.status),
            "reason": self.reason,
            "figures": {**self.figures, **self.stated.figures()},
            "trace": {name: list(series) for name, series in self.trace.items()},
        }

    @classmethod
    def from_parts(cls, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> Candidates:
        return cls(
            inputs=tensors["inputs"],
            confidence=tensors["confidence"],
            labels=tensors.get("labels"),
            status=Status(about["status"]),
            reason=about["reason"],
            stated=Stated.read(about["figures"]),
            figures={k: v for k, v in about["figures"].items() if k not in STATED},
            trace=about["trace"],
        )


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What was found, as plain JSON values. Only this, and the pictures, reach a report."""

    attack: str
    status: str
    reason: str
    counted: int | None  # what the attack itself says the number of records is
    records: int | None  # trained on; None, like all that needs it, where the truth is not at hand
    recovered: int | None  # above the threshold
    threshold: float | None  # centred correlation
    per_record: Sequence[Mapping[str, Any]]  # id, label, scores, confidence; most exposed first
    nulls: Mapping[str, Mapping[str, Any]]  # the same scores for sets that cannot leak
    summary: Mapping[str, Any]
    figures: Mapping[str, Any] = field(default_factory=dict)
    trace: Mapping[str, Sequence[float]] = field(default_factory=dict)
    schema: str = FINDING_SCHEMA

    @property
    def stated(self) -> Stated:
        """What the attack stated of its result."""
        return Stated.read(self.figures)

    def to_json(self) -> str:
        return json_text(self)

    @classmethod
    def from_json(cls, text: str) -> Finding:
        values = fields_of("finding", text, FINDING_SCHEMA)
        try:
            return cls(**values)
        except TypeError as error:
            raise InputError(f"finding: fields do not fit {FINDING_SCHEMA}: {error}") from None


def finite(value: Any) -> Any:
    """JSON values with None in place of NaN and infinity."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def json_text(value: Any) -> str:
    """The fields of a value as two-space JSON without NaN or infinity (they become null)."""
    return json.dumps(finite(asdict(value)), indent=2, allow_nan=False) + "\n"


def fields_of(what: str, text: str, schema: str) -> dict[str, Any]:
    """The fields in JSON that says it is of that schema."""
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{what}: expected JSON, got a fault at line {error.lineno}") from None
    if not isinstance(values, dict) or values.get("schema") != schema:
        got = values.get("schema") if isinstance(values, dict) else type(values).__name__
        raise InputError(expected(f"{what}: schema", schema, got))
    return values
