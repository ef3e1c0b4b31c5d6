"""A run is found again by all that decides its result, and removed with nothing of the user's."""

import json
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from torch import nn

from remnant.attacks import ATTACKS
from remnant.auditing import Case, Plan, audit
from remnant.auditing.api import hash_examples, hash_model, key_of
from remnant.bounds import Ledger
from remnant.cli import main, parser
from remnant.cli.cases import read_case
from remnant.cli.reconstruct import DECIDE
from remnant.cli.spec import check_spec
from remnant.cli.target import read_target
from remnant.data import load
from remnant.errors import StoreError
from remnant.models import build, save_weights
from remnant.store import finish, open_run, write_bytes
from remnant.training import SGD, GradientDescent
from remnant.types import Knowledge, Scaling, Target

DIGITS = load("digits")
TRUTH, HOLDOUT, PUBLIC = (DIGITS.take(range(i, i + 3)) for i in (0, 10, 20))
QUICK = Plan(attacks=("kkt",), settings={"kkt": {"starts": 2, "steps": 2}}, control=False)


def network(text="mlp:64-8-10"):
    return build(text, generator=torch.Generator().manual_seed(0))


def target(**changes):
    return replace(Target(model=network(), input_shape=(1, 8, 8)), **changes)


def case(**changes):
    held = {"target": target(), "truth": TRUTH, "holdout": HOLDOUT, "public": PUBLIC, "loss": "ce"}
    return Case(**held | changes)


def renamed(examples):
    return replace(examples, ids=tuple(f"patient {i}" for i in range(len(examples))))


@pytest.fixture
def folder(tmp_path):
    """A model and two files of public data, as a user has them."""
    save_weights(tmp_path / "model.safetensors", dict(network().named_parameters()))
    for name, part in (("train", TRUTH), ("public", PUBLIC), ("holdout", HOLDOUT)):
        np.savez(tmp_path / f"{name}.npz", x=part.inputs.numpy(), y=part.labels.numpy())
    return tmp_path


def test_another_audit_in_the_same_place_is_refused_and_the_same_one_given_back(tmp_path):
    first = audit(target(), TRUTH, holdout=HOLDOUT, public=PUBLIC, out=tmp_path / "a", plan=QUICK)
    again = audit(target(), TRUTH, holdout=HOLDOUT, public=PUBLIC, out=tmp_path / "a", plan=QUICK)
    assert again.to_json() == first.to_json()
    for changes in ({"redacted": True}, {"images": False}, {"control": True}, {"budget": 60.0}):
        with pytest.raises(StoreError, match=f"plan.{next(iter(changes))}"):
            audit(
                target(), TRUTH, holdout=HOLDOUT, public=PUBLIC, out=tmp_path / "a",
                plan=replace(QUICK, **changes),
            )  # fmt: skip
    with pytest.raises(StoreError, match=r"case\.truth"):
        audit(
            target(), renamed(TRUTH), holdout=HOLDOUT, public=PUBLIC, out=tmp_path / "a", plan=QUICK
        )
    assert main(["runs", "remove", str(tmp_path / "a"), "--yes"]) == 0
    assert not (tmp_path / "a").exists()


def test_every_field_of_a_case_is_in_its_key():
    labels = replace(PUBLIC, labels=PUBLIC.labels + 1)
    told = [
        Knowledge(initial=target().weights),
        Knowledge(gradient=target().weights),
        Knowledge(records=3),
        Knowledge(labels=TRUTH.labels),
        Knowledge(public=PUBLIC.inputs),
        Knowledge(public_labels=PUBLIC.labels),
        Knowledge(known=HOLDOUT),
        Knowledge(known=renamed(HOLDOUT)),
        Knowledge(loss="ce"),
        Knowledge(recipe=GradientDescent(lr=0.1, steps=5)),
        Knowledge(recipe=SGD(lr=0.1, epochs=5, batch_size=2)),
    ]
    assert {field.name for field in fields(Knowledge)} <= {
        name for one in told for name, value in vars(one).items() if value is not None
    }
    targets = [
        target(model=network("mlp:64-8-10:elu")),
        target(input_shape=(64,)),
        target(bounds=None),
        target(scaling=Scaling(mean=torch.tensor(0.1))),
        target(scaling=Scaling(std=torch.tensor(0.1))),
        *(target(knowledge=one) for one in told),
    ]
    ledger = Ledger(noise_multiplier=1.0, steps=2)
    cases = [
        case(),
        *(case(target=one) for one in targets),
        *(case(**{name: HOLDOUT.take([0, 1])}) for name in ("holdout", "public")),
        case(truth=TRUTH.take([0, 1])),
        case(truth=renamed(TRUTH)),
        case(truth=replace(TRUTH, bounds=(0.0, 2.0))),
        case(public=labels),
        case(loss="mse"),
        case(ledger=ledger),
        case(ledger=replace(ledger, steps=3)),
        case(delta=1e-6),
    ]
    keys = [json.dumps(key_of(one)) for one in cases]
    assert len(set(keys)) == len(keys)
    assert keys[0] == json.dumps(key_of(case()))


def test_a_key_is_the_same_in_every_process_and_always_json():
    key = key_of({"f": lambda x: x, "far": (0.0, float("inf")), "t": torch.ones(2)})
    assert "0x" not in json.dumps(key, allow_nan=False)
    assert key["far"] == [0.0, "inf"]
    assert hash_examples(TRUTH) == hash_examples(replace(TRUTH, name="another file"))


class Bent(nn.Module):
    """No layer of its own for what it does after the first."""

    def __init__(self, bend, power=1):
        super().__init__()
        self.bend, self.power = bend, power
        self.dense = nn.utils.skip_init(nn.Linear, 4, 2)
        nn.init.ones_(self.dense.weight)
        nn.init.zeros_(self.dense.bias)

    def forward(self, inputs):
        return self.bend(self.dense(inputs)) ** self.power


def test_models_of_equal_weights_differ_by_settings_code_and_buffers():
    class Other(Bent):
        def forward(self, inputs):
            return -super().forward(inputs)

    norms = [nn.Sequential(nn.BatchNorm1d(2)) for _ in range(2)]
    norms[1][0].running_mean += 1
    models = [Bent(torch.relu), Bent(torch.tanh), Bent(torch.relu, 2), Other(torch.relu), *norms]
    assert str(models[0]) == str(models[1])
    assert len({hash_model(one) for one in models}) == len(models)
    assert hash_model(Bent(torch.relu)) == hash_model(Bent(torch.relu).eval())


def kkt(folder, *more):
    given = ["--weights", str(folder / "model.safetensors"), "--steps", "2", "--starts", "2"]
    rest = ["--records", "3", "--shape", "1x8x8", "--out", str(folder / "out"), "--quiet"]
    return main(["reconstruct", "kkt", *given, *rest, *more])


@pytest.mark.parametrize("part", ["x", "y"])
def test_other_public_data_is_another_reconstruction(folder, capsys, part):
    public = ["--public", str(folder / "public.npz")]
    assert kkt(folder, *public) == 0
    assert kkt(folder, *public) == 0  # the same one: given back
    there = {"x": PUBLIC.inputs.numpy(), "y": PUBLIC.labels.numpy()}
    np.savez(folder / "public.npz", **there | {part: there[part][::-1]})
    assert kkt(folder, *public) == 2
    err = capsys.readouterr().err
    assert "expected a run of this spec, got another (public" in err
    assert err.count("\n") == 1
    assert main(["runs", "remove", str(folder / "out"), "--yes"]) == 0
    assert kkt(folder, *public) == 0


def test_every_flag_of_a_reconstruction_is_in_its_spec():
    hashed = {
        "weights", "initial", "gradient", "known", "recipe", "public", "mean", "std",
        "coefficients", "tokenizer",
    }  # fmt: skip
    decided = {*DECIDE, *hashed, "shape", "bounds", "seed", "device"}
    # Data is hashed wherever it was found, and fleets are the same wherever they are trained.
    nothing = {"help", "data_dir", "jobs", "on", "fleets", "out", "quiet", "json", "threads"}
    verbs = parser()._subparsers._group_actions[0].choices
    attacks = verbs["reconstruct"].filled()._subparsers._group_actions[0].choices
    assert list(attacks) == list(ATTACKS)
    for name, verb in attacks.items():
        own = {field.name for field in fields(ATTACKS[name])}
        assert {action.dest for action in verb._actions} <= decided | own | nothing


FACTORY = """
from torch import nn

def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.{}(), nn.Linear(8, 10))
"""


def test_a_models_own_file_is_hashed_wherever_a_target_is_read(folder):
    spec = {
        "weights": folder / "model.safetensors", "model": f"{folder / 'net.py'}:make",
        "data": str(folder / "train.npz"), "holdout": str(folder / "holdout.npz"),
        "public": str(folder / "public.npz"), "shape": "1x8x8",
    }  # fmt: skip
    found = []
    for kind in ("ReLU", "ELU"):
        (folder / "net.py").write_text(FACTORY.format(kind))
        checked = check_spec(spec, "audit")
        found += [read_case(checked)[1], read_target(checked)[1]]
    assert len({hashes["model_file"] for hashes in found}) == 2
    assert found[0] == {**found[2], "model_file": found[0]["model_file"]}
    assert found[1] == {**found[3], "model_file": found[1]["model_file"]}


def test_a_linear_models_whole_file_is_hashed(folder):
    np.savez(folder / "rows.npz", x=TRUTH.inputs.flatten(1).numpy(), y=np.array([0.0, 1.0, 2.0]))
    np.savez(folder / "others.npz", x=PUBLIC.inputs.flatten(1).numpy(), y=np.array([0.0, 1, 2]))
    hashes = []
    for penalty in (0.1, 0.2):
        described = {"family": "linear", "coef": [0.1] * 64, "intercept": 0, "penalty": penalty}
        (folder / "model.json").write_text(json.dumps(described))
        spec = {
            "weights": folder / "model.json", "data": str(folder / "rows.npz"),
            "holdout": str(folder / "others.npz"),
        }  # fmt: skip
        hashes.append(read_case(check_spec(spec, "audit"))[1])
    assert hashes[0]["weights"] == hashes[1]["weights"]
    assert hashes[0]["coefficients"] != hashes[1]["coefficients"]


def done(path, verb="audit", names=("finding.json", "candidates-kkt.safetensors")):
    run = open_run(path, {"verb": verb})
    for name in names:
        write_bytes(run, name, b"x")
    return run


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("name", ["notes.txt", "weights.safetensors", "train.npz", ".hidden"])
def test_a_file_of_the_users_keeps_a_run_from_being_removed(tmp_path, capsys, name, finished):
    run = done(tmp_path / "run")
    if finished:
        finish(run)
    (run.path / name).write_text("mine")
    assert main(["runs", "remove", str(run.path), "--yes"]) == 2
    err = capsys.readouterr().err
    assert f"expected a run's files alone, got also {name}" in err
    assert err.count("\n") == 1
    assert len(list(run.path.iterdir())) == 4
    (run.path / name).unlink()
    assert main(["runs", "remove", str(run.path), "--yes"]) == 0
    assert not run.path.exists()


def test_a_finished_runs_list_tells_its_files_from_others_of_such_names(tmp_path, capsys):
    run = done(tmp_path / "run")
    finish(run)
    (run.path / "table.csv").write_text("mine")
    assert main(["runs", "remove", str(run.path), "--yes"]) == 2
    assert "got also table.csv" in capsys.readouterr().err


def test_a_demo_goes_with_its_page_and_a_killed_search_with_its_lock(tmp_path, capsys):
    demo = done(tmp_path / "demo", "demo", ("weights.safetensors", "curve.svg", "sheet.png"))
    page = done(demo.path / "audit", "demo-page")
    (page.path / "mine.txt").write_text("mine")
    assert main(["runs", "remove", str(demo.path), "--yes"]) == 2
    assert "got also mine.txt" in capsys.readouterr().err
    (page.path / "mine.txt").unlink()
    search = done(tmp_path / "search", "search", ("search.journal", "state-driver.safetensors"))
    (search.path / "search.journal.lock").symlink_to("search.journal")
    assert main(["runs", "remove", str(demo.path), str(search.path), "--yes"]) == 0
    assert not list(tmp_path.iterdir())


def test_a_text_demo_goes_with_its_model_but_not_with_the_users_files(tmp_path, capsys):
    demo = done(tmp_path / "demo", "demo", ("texts.jsonl", "gradient.safetensors"))
    (demo.path / "model").mkdir()
    for name in ("config.json", "notes.txt"):
        (demo.path / "model" / name).write_text("x")
    assert main(["runs", "remove", str(demo.path), "--yes"]) == 2
    assert "got also model" in capsys.readouterr().err
    (demo.path / "model" / "notes.txt").unlink()
    assert main(["runs", "remove", str(demo.path), "--yes"]) == 0
    assert not list(tmp_path.iterdir())
