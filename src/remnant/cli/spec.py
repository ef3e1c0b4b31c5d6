"""What a file or flags say: a target, and how it is attacked or audited.

`TargetSpec` describes a target, `AttackSpec` one of `remnant reconstruct`, `AuditSpec` an audit and
its target. Unknown keys are refused, every fault is said at once; flags are made from the fields.
Nothing here imports torch before a value is checked, so that `--help` is quick.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from remnant.errors import InputError, brief, did_you_mean, expected, fault_line
from remnant.untrusted.files import exists


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How large a spec may be: beyond these a file is no spec, or takes the parser seconds.

    size: in bytes. levels: lists and mappings inside each other; a spec has three. values: as many
    ids as a user lists. letters: of one value; the longest path that Linux takes.
    """

    size: int = 2**20
    levels: int = 20
    values: int = 20_000
    letters: int = 4096


LIMITS = Limits()
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def seconds(value: Any) -> Any:
    """90, "90s", "10m" or "1.5h" in seconds."""
    if isinstance(value, str):
        found = re.fullmatch(r"\s*([0-9]{1,9}(?:\.[0-9]{1,6})?)\s*([smh]?)\s*", value)
        if not found:
            raise ValueError("a time such as 90s, 10m or 1.5h")
        return float(found[1]) * _UNITS[found[2] or "s"]
    return value


def numbers(value: Any) -> Any:
    """A number, or a list of them, as the text that the flags take."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list) and all(type(v) in (int, float) for v in value):
        return ",".join(map(repr, value))
    return value


def attack_name(name: str) -> str:
    """A name of the table of attacks."""
    from remnant.attacks import ATTACKS

    if name not in ATTACKS:
        known = {"known": ", ".join(ATTACKS), "hint": did_you_mean(name, ATTACKS)}
        raise PydanticCustomError("attack", "one of {known}", known)
    return name


def threshold() -> float:
    """The correlation of a recovered record, unless told otherwise."""
    from remnant.scoring.score import THRESHOLD

    return THRESHOLD


def number_or_ids(value: Any) -> Any:
    """How many records, or their ids, out of the text of a flag."""
    if not isinstance(value, str):
        return value
    return int(value) if value.isdecimal() and len(value) < 19 else tuple(value.split(","))


def parts(mark: str) -> BeforeValidator:
    """A flag's text as its parts."""
    return BeforeValidator(lambda v: v.lower().split(mark) if isinstance(v, str) else v)


def rising(value: tuple[float, float] | None) -> tuple[float, float] | None:
    if value is not None and not value[0] < value[1]:
        raise ValueError("two rising numbers such as 0,1")
    return value


Finite = Annotated[float, Field(allow_inf_nan=False)]
AttackName = Annotated[str, AfterValidator(attack_name)]
Text = Annotated[str, Field(min_length=1, max_length=LIMITS.letters)]
Numbers = Annotated[Text, BeforeValidator(numbers)]


def flag(words: str, default: Any = None) -> Any:
    """A field that may be left out, and what `--help` says of it."""
    return Field(default, description=words)


class Privacy(BaseModel):
    """The ledger of a differentially private training; the names in `train`'s ledger do too."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    noise: Annotated[
        float,
        Field(
            gt=0, allow_inf_nan=False, validation_alias=AliasChoices("noise", "noise_multiplier")
        ),
    ]
    steps: Annotated[int, Field(ge=1)]
    sampling: Annotated[
        float, Field(gt=0, le=1, validation_alias=AliasChoices("sampling", "sampling_rate"))
    ] = 1.0
    clip: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    adjacency: Literal["zero-out", "add-remove", "replace-one"] = "zero-out"

    @model_validator(mode="before")
    @classmethod
    def refuse_whole_ledger(cls, values: Any) -> Any:
        """A whole ledger of `train` or all of `bound.json` holds these fields deeper."""
        for key in ("privacy", "ledger"):
            if isinstance(values, dict) and key in values:
                raise ValueError(f"only what stands under {key} in it")
        return values


class TargetSpec(BaseModel):
    """A released model and what else an adversary may hold, each field a flag of the same name."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    weights: Path = Field(
        description="the released weights: safetensors, a state dict or a Lightning checkpoint, a "
        "Hugging Face directory; of a linear model its coefficients as JSON or npz, or a skops file"
    )
    model: Text | None = flag(
        "mlp:..., cnn:..., hf:DIR (its weights too) or file.py:factory (only that file "
        "is imported); a plain dense stack needs none"
    )
    tokenizer: Path | None = flag(
        "of a model of texts: tokenizer.json (default: its directory's own)"
    )
    initial: Path | None = flag("the weights before training")
    gradient: Path | None = flag("a captured gradient: one tensor per parameter, named alike")
    recipe: Path | None = flag("how it was trained, as YAML or JSON")
    public: Text | None = flag("records like them that were not trained on: a name, file or folder")
    loss: Text | None = flag("the training loss, if it is known: ce, mse, ...")
    mean: Numbers | None = flag(
        "subtracted from the data: numbers, a safetensors file, or 'public'"
    )
    std: Numbers | None = flag("by which the data was divided after that")
    bounds: Annotated[tuple[Finite, Finite] | None, parts(","), AfterValidator(rising)] = flag(
        "smallest and largest value of the data, such as 0,1"
    )
    shape: Annotated[
        Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(max_length=8)] | None, parts("x")
    ] = flag("of one record, such as 1x28x28")
    records: Annotated[int, Field(ge=1, le=10**9)] | None = flag("their number, if it is known")
    data_dir: Path | None = flag("where data is looked for (or REMNANT_DATA)")

    @model_validator(mode="before")
    @classmethod
    def directory_has_weights(cls, values: Any) -> Any:
        """hf:DIR names the weights as well."""
        model = values.get("model") if isinstance(values, dict) else None
        if isinstance(model, str) and model.startswith("hf:") and values.get("weights") is None:
            return {**values, "weights": model.removeprefix("hf:")}
        return values


class AttackSpec(TargetSpec):
    """The target of `remnant reconstruct`: what an adversary may know of the records besides."""

    coefficients: Path | None = flag("of a linear model: JSON, npz or skops, in place of weights")
    known: Text | None = flag("all records but the unknown ones: a name, file or folder")
    labels: Annotated[tuple[Annotated[int, Field(ge=0, lt=2**31)], ...] | None, parts(",")] = flag(
        "of the records sought, in any order, such as 3,1,1 (classes)"
    )
    label: Finite | None = flag("the missing record's, if it is known")
    refit: bool = flag("search through the solver, if need be", False)

    @model_validator(mode="before")
    @classmethod
    def coefficients_as_weights(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("coefficients") is not None:
            return {**values, "weights": values["coefficients"], "coefficients": None}
        return values


class AuditSpec(TargetSpec):
    """The fields of `audit.yaml`; the flags of `remnant audit` have the same names."""

    data: Text = Field(description="the records trained on: a name, file or folder")
    text_field: Text | None = flag("of JSON lines: what a text stands under (default: text)")
    holdout: Text | None = flag(
        "records like them that were not trained on: a name, file or folder"
    )
    canaries: Path | None = flag("records of `remnant canaries` that were added to the training")
    targets: Annotated[
        Annotated[int, Field(ge=1)] | tuple[Text, ...] | None, BeforeValidator(number_or_ids)
    ] = flag("records left out in turn for who knows all others: a number, or ids as a,b")
    privacy: Privacy | None = None
    attacks: tuple[AttackName, ...] | None = flag(
        "some of them, such as ntk,kkt (default: all that apply)"
    )
    settings: dict[AttackName, dict[str, Any]] = Field(default_factory=dict)
    threshold: Annotated[float, Field(gt=0, lt=1)] = Field(
        default_factory=threshold, description="correlation of a recovered record"
    )
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    budget: Annotated[float, BeforeValidator(seconds), Field(gt=0, allow_inf_nan=False)] | None = (
        flag("the most time for attacks, such as 10m")
    )
    images: bool = flag("leave originals and reconstructions out of the results", True)
    redact: bool = flag("blur the originals", False)


def is_linear(weights: Path) -> bool:
    """Whether a file holds a linear model: coefficients, or an estimator in skops' format."""
    return weights.suffix.lower() in (".json", ".npz", ".skops") and not weights.is_dir()


def read_spec(path: Path) -> AuditSpec:
    """The spec in a YAML file. Paths in it are relative to its folder."""
    return check_spec(read_fields(path), str(path))


# Fields that are paths, and those that name a file or something else.
PATHS = ("weights", "initial", "gradient", "recipe", "data_dir", "tokenizer", "canaries")
NAMED = ("data", "holdout", "public", "mean", "std")


def read_fields(path: Path) -> dict[str, Any]:
    """The fields of a YAML file, unchecked, paths as they are seen from here. A field may be a list
    of such values, as in a sweep."""
    return {key: _placed(path.parent, key, value) for key, value in read_yaml(path).items()}


def _placed(folder: Path, key: str, value: Any) -> Any:
    if isinstance(value, list) and key in (*PATHS, *NAMED, "model"):
        return [_placed(folder, key, item) for item in value]
    if not isinstance(value, str) or not value:
        return value
    if key in PATHS:
        return str(folder / _home(value))
    if key == "model" and value.startswith("hf:"):
        return f"hf:{folder / _home(value[3:])}"
    file, colon, factory = value.rpartition(":") if key == "model" else (value, "", "")
    named = file.endswith(".py") if key == "model" else key in NAMED
    return f"{folder / file}{colon}{factory}" if named and exists(folder / file) else value


def _home(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError:  # ~nobody: a file may be called so
        return Path(text)


Spec = TypeVar("Spec", bound=BaseModel)
UNKNOWN = "extra_forbidden"  # as pydantic says of a key that there is none of


def check_spec(values: Mapping[str, Any], where: str, flags: Collection[str] = ()) -> AuditSpec:
    """A valid spec of an audit, or one error that names every fault. flags: as of `checked`."""
    from remnant.attacks.made import make_attack

    spec = checked(AuditSpec, values, f"{where}: ", flags)
    for name, settings in spec.settings.items():
        make_attack(name, settings)  # before anything is read or written
    return spec


def checked(
    kind: type[Spec],
    values: Mapping[str, Any],
    where: str = "",
    flags: Collection[str] | None = None,
) -> Spec:
    """The values as a spec, or one error that names every fault: of flags first, then after `where`
    the others'. flags: the fields that flags gave; None = all of them."""

    def flag_of(place: tuple[int | str, ...]) -> str:
        name = str(place[0]) if place else ""
        told = bool(name) and (flags is None or name in flags)
        return f"--{name.replace('_', '-')}" if told else ""

    try:
        return kind(**values)
    except ValidationError as error:
        named = [(flag_of(f["loc"]), f) for f in error.errors() if f["type"] != UNKNOWN]
        wrong = [fault_line(fault, flag) for flag, fault in named if flag]
        faults = [fault_line(fault) for flag, fault in named if not flag]
        unknown = [fault["loc"] for fault in error.errors() if fault["type"] == UNKNOWN]
        for depth, fields in ((1, kind.model_fields), (2, Privacy.model_fields)):
            keys = [".".join(map(str, loc)) for loc in unknown if len(loc) == depth]
            if keys:  # what there is stands once for all that is none of it
                got = "an unknown key" if len(keys) == 1 else "unknown keys"
                hint = did_you_mean(keys[0].rpartition(".")[2], fields)
                wanted = f"one of {', '.join(fields)}"
                faults.append(expected(", ".join(keys), wanted, got, hint))
        faults[:1] = [f"{where}{fault}" for fault in faults[:1]]
        raise InputError("; ".join(wrong + faults)) from None
    except TypeError:  # a key that is not text
        raise InputError(expected(where, "names as keys", "something else")) from None


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Texts, numbers, true, false and null, as JSON has them; what looks like a date is a text."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [
            (tag, pattern) for tag, pattern in kinds if not tag.endswith((":timestamp", ":merge"))
        ]
        for first, kinds in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def _check_plain(path: Path, text: str) -> None:
    """Before values are made: no tags, which name types; no aliases, which can stand for any size;
    no depths, lengths and numbers of values that take the parser long."""
    depth = 0
    for count, event in enumerate(yaml.parse(text, _Loader)):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        got = (
            "an alias" if isinstance(event, yaml.AliasEvent)
            else f"the tag {brief(event.tag)}" if getattr(event, "tag", None) is not None
            else f"more than {LIMITS.levels} levels" if depth > LIMITS.levels
            else f"more than {LIMITS.values} values" if count > LIMITS.values
            else f"a value of more than {LIMITS.letters} letters"
            if isinstance(event, yaml.ScalarEvent) and len(event.value) > LIMITS.letters
            else ""
        )  # fmt: skip
        if got:
            raise InputError(expected(f"{path}", "plain YAML", got, "write each value out"))


def read_yaml(path: Path) -> dict[str, Any]:
    """The fields that a small file of plain YAML holds."""
    try:
        if path.exists() and not path.is_file():
            raise InputError(expected(f"{path}", "a file", "a folder, a device or a pipe"))
        with path.open("rb") as file:
            raw = file.read(LIMITS.size + 1)
        if len(raw) > LIMITS.size:
            raise InputError(expected(f"{path}", f"at most {LIMITS.size} bytes", "more"))
        text = raw.decode("utf-8")
        _check_plain(path, text)
        values = yaml.load(text, _Loader)
    except OSError as error:
        raise InputError(expected(f"{path}", "a file", error.strerror)) from None
    except UnicodeDecodeError:
        raise InputError(expected(f"{path}", "UTF-8 text", "other bytes")) from None
    except (yaml.YAMLError, ValueError, LookupError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        got = f"a fault at line {mark.line + 1}" if mark else "a fault"
        raise InputError(expected(f"{path}", "YAML", got)) from None
    if not isinstance(values, dict):
        raise InputError(expected(f"{path}", "fields such as weights: and data:", "something else"))
    if not all(isinstance(key, str) for key in values):
        raise InputError(expected(f"{path}", "names as keys", "something else"))
    return values
