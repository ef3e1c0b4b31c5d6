"""Checkpoints: a loop that was cut short and gone on with ends with the same bytes."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from remnant.attacks import ATTACKS
from remnant.checkpoints import Keeper, checkpoint, keeping, pack, unpack
from remnant.data import load
from remnant.distill import Distillation, distil, problem
from remnant.kernels import Dense
from remnant.models import build
from remnant.progress import listening
from remnant.solvers.replay.problem import ReplaySettings
from remnant.solvers.replay.run import end_of_run
from remnant.solvers.replay.solve import class_starts, replay
from remnant.store import keeping_states, load_state, open_run, save_state
from remnant.training import DecayTime, GradientDescent, train
from remnant.training.fleet import share
from remnant.types import Knowledge, Scaling, Target
from seeding import seeded
from targets import faces_target


@dataclass(frozen=True)
class Settings:
    lr: float = 0.1
    name: str = "x"


class Cut(Exception):
    pass


def cutting(task, at):
    """A listener that stops the task of that name after so many steps."""
    done = 0

    def listener(name, total):
        def step(amount=1.0, *, note=""):
            nonlocal done
            done += name == task
            if done == at:
                raise Cut

        return step, lambda: None

    return listener


def kept_in(run, loaded):
    """Every state goes to the run's directory, at once; `loaded`: which were found there."""

    def load(name):
        state = load_state(run, name)
        loaded.append(state is not None)
        return state

    return Keeper(load=load, save=lambda name, state: save_state(run, name, state), every=0.0)


def by_attack(name, target, **settings):
    def work():
        found = ATTACKS[name](**settings)(target, generator=seeded(3))
        return [found.inputs, found.confidence, found.reason, dict(found.trace)]

    return work


def leaking(spec, count, *, inputs=60, seed=0):
    """A target whose gradient of a batch is known; float64."""
    model = build(spec, generator=seeded(seed), dtype=torch.float64)
    x = torch.rand(count, inputs, generator=seeded(1), dtype=torch.float64) * 4 - 2
    labels = torch.randint(0, 5, (count,), generator=seeded(2))
    nn.functional.cross_entropy(model(x), labels).backward()
    gradient = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    known = Knowledge(gradient=gradient, records=count, loss="ce", labels=labels)
    return Target(model=model, input_shape=(inputs,), bounds=None, knowledge=known)


def moved(spec, seed=0):
    """A target between two checkpoints: 40 steps on ten digits, in float64."""
    model = build(spec, generator=seeded(seed), dtype=torch.float64)
    initial = {name: p.detach().clone() for name, p in model.named_parameters()}
    examples = load("digits").take(range(10))
    steps = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(40):
        outputs = model(examples.inputs.double().flatten(1))
        steps.zero_grad()
        nn.functional.cross_entropy(outputs, examples.labels).backward()
        steps.step()
    known = Knowledge(initial=initial, records=10, loss="ce")
    return Target(model=model, input_shape=(64,), knowledge=known)


def replayed():
    examples = load("digits")
    model = build("mlp:64-8-10:elu", generator=seeded(1), dtype=torch.float64)
    recipe = GradientDescent(lr=0.2, momentum=0.9, steps=12)
    fixed = examples.take(range(30))
    run = share(model, fixed, recipe, scaling=Scaling(), extra=1, order=seeded(3))
    truth, labels = examples.inputs.double()[100:102, None], examples.labels[100:102, None]
    released = run.named(end_of_run(run, truth, labels))
    found = replay(
        run,
        released,
        starts=class_starts(run.inputs, run.labels, 10),
        settings=ReplaySettings(evaluations=20, label_evaluations=6),
    )
    return [found.records, found.residual, found.trace]


def trained():
    examples = load("digits").take(range(10))
    recipe = DecayTime(lr=0.5, weight_decay=0.02, decay_time=0.6)
    start = build("mlp:64-20-10", generator=seeded())
    done = train(start, examples, recipe, scaling=Scaling(), generator=seeded())
    return [dict(done.final), done.ledger]


def distilled():
    examples = load("digits").take(range(20))
    about = problem(Dense(), examples.inputs, examples.labels % 2)
    found = distil(about, Distillation(images=4, steps=30), generator=seeded())
    return [found.images, found.labels, found.loss, found.trace]


WORK = {
    "distillation": ("distilling (rkip)", 20, lambda: distilled),
    "training": ("training", 30, lambda: trained),
    "kkt": (
        "descent",
        25,
        lambda: by_attack("kkt", moved("mlp:64-20-20-10"), starts=2, steps=40, candidates=6),
    ),
    "kkt paper": (
        "descent on pixels",
        25,
        lambda: by_attack("kkt", moved("mlp:64-20-20-10"), preset="paper", steps=40, lr=0.01),
    ),
    "ntk exact": (
        "searching for records",
        3,
        lambda: by_attack("ntk", faces_target(records=10, width=128)[0], starts=4, patience=3),
    ),
    "ntk smooth": (
        "searching for records",
        3,
        lambda: by_attack("ntk", moved("mlp:64-80-80-10:tanh"), starts=3, patience=3, steps=5),
    ),
    "ntk paper": (
        "descent",
        50,
        lambda: by_attack("ntk", moved("mlp:64-20-20-10"), preset="paper", steps=60),
    ),
    "ntk projected": (
        "projected descent",
        30,
        lambda: by_attack("ntk", moved("mlp:64-20-20-10"), preset="projected", steps=20),
    ),
    "gradient graph": (
        "searching for records",
        3,
        lambda: by_attack("gradient", leaking("mlp:60-64-64-5", 20), walkers=4),
    ),
    "gradient output": (
        "searching for records",
        3,
        lambda: by_attack("gradient", leaking("mlp:60-80-5", 5), walkers=4),
    ),
    "gradient smooth": (
        "searching for records",
        3,
        lambda: by_attack("gradient", leaking("mlp:60-80-80-5:tanh", 8), patience=3),
    ),
    "gradient matching": (
        "gradient matching",
        30,
        lambda: by_attack(
            "gradient", leaking("mlp:60-20-5", 3), preset="matching", steps=20, restarts=2
        ),
    ),
    "replay": ("replay", 13, lambda: replayed),
}


def flat(value):
    if isinstance(value, dict):
        value = [item for pair in sorted(value.items()) for item in pair]
    if isinstance(value, list | tuple):
        return [part for item in value for part in flat(item)]
    return [value]


# Two runs in one process may differ in the last bits where a small solve rounds by the place of its
# workspace in memory (MKL_CBWR=AUTO,STRICT makes them equal).
LAST_BITS = {"ntk smooth": 1e-8}


def assert_same(one, other, within=0.0):
    one, other = flat(one), flat(other)
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        if within and isinstance(a, Tensor):
            assert torch.allclose(a, b, rtol=0, atol=within)
        elif not within:
            assert torch.equal(a, b) if isinstance(a, Tensor) else a == b


@pytest.mark.parametrize("name", WORK)
def test_what_was_cut_short_ends_with_the_same_bytes(tmp_path, name):
    task, at, make = WORK[name]
    work = make()
    whole = work()
    run, loaded = open_run(tmp_path / "run", {}), []
    keeper = kept_in(run, loaded)
    with keeping(keeper), pytest.raises(Cut), listening(cutting(task, at)):
        work()
    assert list(run.path.glob("state-*"))
    loaded.clear()
    with keeping(keeper):
        assert_same(work(), whole, LAST_BITS.get(name, 0.0))
    assert any(loaded)


def test_nobody_keeps_anything_by_default():
    kept = checkpoint("x", torch.ones(3))
    assert kept.state is None
    assert not kept.due()
    kept.save([1])
    assert checkpoint("x", torch.ones(3)).state is None


def test_only_this_very_computation_goes_on(tmp_path):
    run = open_run(tmp_path / "run", {})
    draws = seeded(7)
    given = (Settings(), torch.ones(3), nn.Linear(2, 2))
    with keeping(kept_in(run, [])):
        kept = checkpoint("x", *given, generator=draws)
        drawn = torch.rand(2, generator=draws)
        assert kept.due()
        kept.save({"next": 3, 4: None, "drawn": drawn})
        after = torch.rand(2, generator=draws)
        for other in (
            checkpoint("y", *given, generator=seeded(7)),
            checkpoint("x", *given, generator=seeded(8)),
            checkpoint("x", *given),
            checkpoint("x", Settings(lr=0.2), *given[1:], generator=seeded(7)),
            checkpoint("x", given[0], torch.ones(3).double(), given[2], generator=seeded(7)),
            checkpoint("x", given[0], torch.ones(1, 3), given[2], generator=seeded(7)),
            checkpoint("x", *given[:2], nn.Linear(2, 2), generator=seeded(7)),
        ):
            assert other.state is None
        again = seeded(7)
        state = checkpoint("x", *given, generator=again).state
    assert state["next"] == 3
    assert state[4] is None
    assert torch.equal(state["drawn"], drawn)
    assert torch.equal(torch.rand(2, generator=again), after)


def test_states_are_written_at_intervals_and_removed_when_the_work_is_done(tmp_path, monkeypatch):
    run = open_run(tmp_path / "run", {})
    save_state(run, "other", {"x": torch.ones(1)})
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)

    def states():
        return sorted(p.name for p in run.path.glob("state-within-*"))

    def work(error=None):
        nonlocal now
        kept = checkpoint("x", 1)
        seen = []
        for i in range(8):
            now += 0.5
            if kept.due():
                kept.save([i])
                seen.append(i)
        if error:
            raise error
        return seen, kept.state

    with pytest.raises(KeyboardInterrupt), keeping_states(run):
        work(KeyboardInterrupt())
    assert len(states()) == 1
    with keeping_states(run):
        assert work() == ([3, 7], [7])  # every two seconds; and what was left is found
        assert len(states()) == 1
    assert states() == []
    assert load_state(run, "other") is not None


def test_a_slow_disk_is_written_to_less_often(monkeypatch):
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)

    def save(name, state):
        nonlocal now
        now += 0.1

    with keeping(Keeper(load=lambda name: None, save=save)):
        kept = checkpoint("x")
        now += 2.0
        assert kept.due()
        kept.save([1])
        now += 4.9
        assert not kept.due()
        now += 0.2
        assert kept.due()  # 0.1 s in 5 s


@pytest.mark.parametrize(
    "value",
    [
        torch.arange(6.0).reshape(2, 3).T,
        torch.arange(24).reshape(2, 3, 4).permute(2, 0, 1),
        torch.zeros(0, 4, dtype=torch.float64),
        torch.tensor(3.5, dtype=torch.bfloat16),
        torch.ones(4, 4, dtype=torch.bool)[:, ::2],
        torch.ones(1, 3).expand(5, 3),
    ],
    ids=["transposed", "permuted", "empty", "scalar", "sliced", "expanded"],
)
def test_a_tensor_comes_back_with_its_layout(value):
    back = unpack(pack([value]))[0]
    assert back.dtype == value.dtype
    assert torch.equal(back, value)
    if 0 not in value.stride():
        assert back.stride() == value.stride()
    assert back.data_ptr() % 64 == 0 or not back.numel()


def test_values_survive_exactly():
    tree = {"a": [1, 0.1, float("inf"), None, True, "ü"], 3: {"b": [[], {}]}, "pairs": (1, 2)}
    back = unpack(pack(tree))
    assert back == tree | {"pairs": [1, 2]}
    with pytest.raises(TypeError):
        pack([object()])
