"""An audit as JSON: there and back, against its published schema, and faults in one line."""

import json
import math
from dataclasses import fields, replace
from importlib.resources import files

import pytest

from audits import audit
from remnant.bundle import AUDIT_SCHEMA, Attacked, Audit, Control
from remnant.errors import InputError
from remnant.types import FINDING_SCHEMA, Finding


def schema(name):
    return json.loads(files("remnant").joinpath("schemas", f"{name}-1.json").read_text())


def validator():
    jsonschema = pytest.importorskip("jsonschema")
    referencing = pytest.importorskip("referencing")
    parts = [schema("audit"), schema("finding")]
    resources = [(p["$id"], referencing.Resource.from_contents(p)) for p in parts]
    registry = referencing.Registry().with_resources(resources)
    jsonschema.Draft202012Validator.check_schema(parts[0])
    jsonschema.Draft202012Validator.check_schema(parts[1])
    return jsonschema.Draft202012Validator(parts[0], registry=registry)


def test_there_and_back():
    whole, _, _ = audit()
    again = Audit.from_json(whole.to_json())
    assert again.to_json() == whole.to_json()
    assert isinstance(again.attacks[0].finding, Finding)
    assert again.attacks[1].control == whole.attacks[1].control
    assert not again.attacks[1].control.passed
    assert again.attacks[2].finding is None


def test_fields_that_came_later_may_be_missing():
    values = json.loads(audit()[0].to_json())
    for name in ("membership", "privacy", "notes"):
        del values[name]
    assert Audit.from_json(json.dumps(values)).to_json() == audit()[0].to_json()


def test_no_nan_reaches_the_file():
    whole, _, _ = audit()
    odd = replace(whole, target={"loss": math.nan, "deep": [{"x": math.inf}]})
    assert json.loads(odd.to_json())["target"] == {"loss": None, "deep": [{"x": None}]}


def test_a_real_audit_fits_the_schema():
    whole, _, _ = audit()
    check = validator()
    check.validate(json.loads(whole.to_json()))
    check.validate(json.loads(replace(whole, images=False, originals=None).to_json()))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("verdict",), "safe"),
        (("attacks", 0, "finding", "status"), "fine"),
        (("attacks", 0, "finding", "per_record", 0, "candidate"), -1),
        (("attacks", 1, "control", "recovered"), None),
        (("preflight", 0, "applies"), "yes"),
        (("unknown",), 1),
    ],
)
def test_the_schema_refuses_what_is_wrong(path, value):
    check = validator()
    values = json.loads(audit()[0].to_json())
    at = values
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    assert not check.is_valid(values)


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        (Audit, lambda: schema("audit")),
        (Attacked, lambda: schema("audit")["$defs"]["attacked"]),
        (Control, lambda: schema("audit")["$defs"]["control"]),
        (Finding, lambda: schema("finding")),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_schema_names_every_field(kind, place):
    names = {f.name for f in fields(kind)}
    assert set(place()["properties"]) == set(place()["required"]) == names


def test_the_schema_is_of_this_version():
    assert schema("audit")["properties"]["schema"]["const"] == AUDIT_SCHEMA
    assert schema("finding")["properties"]["schema"]["const"] == FINDING_SCHEMA


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda v: v.update(schema="remnant.audit/9"), "expected remnant.audit/1, got remnant.aud"),
        (lambda v: v.pop("attacks"), "fields do not fit"),
        (lambda v: v.update(exposed="all"), "exposed: "),
        (lambda v: v.update(advice=[1]), "advice.0: "),
        (lambda v: v.update(target=[]), "target: "),
        (lambda v: v.update(sentence=3), "sentence: "),
        (lambda v: v.update(more=1), "fields do not fit"),
        (lambda v: v["attacks"][0].pop("finding"), "fields do not fit"),
        (lambda v: v["attacks"][0].update(finding={}), "fields do not fit"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(change, words):
    values = json.loads(audit()[0].to_json())
    change(values)
    with pytest.raises(InputError, match=words) as caught:
        Audit.from_json(json.dumps(values))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null"])
def test_what_is_no_audit_is_refused(text):
    with pytest.raises(InputError, match="audit: "):
        Audit.from_json(text)
