"""`audit.yaml`: what is audited and how. Unknown keys are refused, every fault is said at once."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from remnant.errors import InputError, expected
from remnant.scoring.score import THRESHOLD

LARGEST = 2**20  # bytes of a spec; anything larger is not one
AttackName = Literal["ntk", "gradient", "kkt", "informed", "glm"]
DEEPEST = 20  # levels of lists and mappings; a spec has three
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


Text = Annotated[str, Field(min_length=1, max_length=4096)]
Numbers = Annotated[Text, BeforeValidator(numbers)]


class Privacy(BaseModel):
    """The ledger of a differentially private training; `train_private`'s own names do as well."""

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
    def not_what_holds_it(cls, values: Any) -> Any:
        """A whole ledger of `train_private` or all of `bound.json` holds these fields deeper."""
        for key in ("privacy", "ledger"):
            if isinstance(values, dict) and key in values:
                raise ValueError(f"only what stands under {key} in it")
        return values


class AuditSpec(BaseModel):
    """The fields of `audit.yaml`; the flags of `remnant audit` have the same names."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    weights: Path
    data: Text
    model: Text | None = None
    initial: Path | None = None
    gradient: Path | None = None
    recipe: Path | None = None
    targets: Annotated[int, Field(ge=1)] | tuple[Text, ...] | None = None
    holdout: Text | None = None
    public: Text | None = None
    loss: Text | None = None
    mean: Numbers | None = None
    std: Numbers | None = None
    bounds: Numbers | None = None
    shape: Text | None = None
    records: Annotated[int, Field(ge=1)] | None = None
    privacy: Privacy | None = None
    data_dir: Path | None = None
    attacks: tuple[AttackName, ...] | None = None
    settings: dict[AttackName, dict[str, Any]] = Field(default_factory=dict)
    threshold: Annotated[float, Field(gt=0, lt=1)] = THRESHOLD
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    budget: Annotated[float, BeforeValidator(seconds), Field(gt=0, allow_inf_nan=False)] | None = (
        None
    )
    images: bool = True
    redact: bool = False


def read_spec(path: Path) -> AuditSpec:
    """The spec in a YAML file. Paths in it are relative to its folder."""
    values = _yaml(path)
    if not isinstance(values, dict):
        raise InputError(expected(f"{path}", "fields such as weights: and data:", "something else"))
    folder = path.parent
    for key in ("weights", "initial", "gradient", "recipe", "data_dir"):
        if isinstance(values.get(key), str):
            values[key] = str(folder / Path(values[key]).expanduser())
    for key in ("data", "holdout", "public"):
        name = values.get(key)
        if isinstance(name, str) and name and _exists(folder / name):
            values[key] = str(folder / name)
    if isinstance(values.get("model"), str):
        file, colon, factory = values["model"].rpartition(":")
        if colon and file.endswith(".py") and _exists(folder / file):
            values["model"] = f"{folder / file}:{factory}"
    return check_spec(values, str(path))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that no file system holds
        return False


def check_spec(values: Mapping[str, Any], where: str) -> AuditSpec:
    """A valid spec, or one error that names every fault."""
    try:
        return AuditSpec(**values)
    except ValidationError as error:
        raise InputError(f"{where}: {'; '.join(_faults(error))}") from None
    except TypeError:  # a key that is not text
        raise InputError(expected(where, "names as keys", "something else")) from None


def _faults(error: ValidationError) -> list[str]:
    """A sentence a fault; the keys that there are stand once for all that are none of them."""
    faults, unknown = [], defaultdict(list)
    for fault in error.errors():
        place = ".".join(str(part) for part in fault["loc"]) or "spec"
        if fault["type"] == "extra_forbidden":
            unknown[Privacy if len(fault["loc"]) > 1 else AuditSpec].append(place)
        else:
            faults.append(_fault(fault, place))
    for kind, places in unknown.items():
        got = "an unknown key" if len(places) == 1 else "unknown keys"
        wanted = f"one of {', '.join(kind.model_fields)}"
        faults.append(expected(", ".join(places), wanted, got))
    return faults


def _fault(fault: Any, place: str) -> str:
    if fault["type"] == "missing":
        return f"{place}: expected a value, got none"
    got = repr(fault["input"])
    short = got if len(got) <= 60 else got[:57] + "..."
    return f"{place}: expected {_wanted(fault['msg'])}, got {short}"


def _wanted(message: str) -> str:
    for start in ("Input should be ", "Value error, "):
        message = message.removeprefix(start)
    return message[0].lower() + message[1:]


def _check_plain(path: Path, text: str) -> None:
    """No aliases, which can stand for any size, and no depths, which take the parser minutes."""
    depth = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise InputError(expected(f"{path}", "plain YAML", "an alias", "write the value out"))
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise InputError(expected(f"{path}", "plain YAML", f"more than {DEEPEST} levels"))


def _yaml(path: Path) -> Any:
    try:
        if path.exists() and not path.is_file():
            raise InputError(expected(f"{path}", "a file", "a folder, a device or a pipe"))
        with path.open("rb") as file:
            raw = file.read(LARGEST + 1)
        if len(raw) > LARGEST:
            raise InputError(expected(f"{path}", f"at most {LARGEST} bytes", "more"))
        text = raw.decode("utf-8")
        _check_plain(path, text)
        return yaml.safe_load(text)
    except OSError as error:
        raise InputError(expected(f"{path}", "a file", error.strerror)) from None
    except UnicodeDecodeError:
        raise InputError(expected(f"{path}", "UTF-8 text", "other bytes")) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        got = f"a fault at line {mark.line + 1}" if mark else "a fault"
        raise InputError(expected(f"{path}", "YAML", got)) from None
