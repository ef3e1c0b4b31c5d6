"""What the owner can prove, who holds the model and its records: membership, strangers, rows."""

from copy import deepcopy
from dataclasses import replace
from functools import cache

import pytest
import torch

from remnant.auditing.case import Case, halves
from remnant.auditing.explained import explained, known_of_layer, unexplained
from remnant.auditing.preparation import explains_better, prepared
from remnant.auditing.proof import Proof, claims_of, marks, proved
from remnant.auditing.strangers import strangers_of, turned, turns_of
from remnant.auditing.written import written
from remnant.data import load, split
from remnant.errors import InputError
from remnant.models import build
from remnant.training import Adam, DecayTime, GradientDescent, train
from remnant.types import Candidates, Examples, Knowledge, Scaling, Stated, Status, Target
from seeding import seeded

SIDES = split(load("digits"), train=20, public=300, holdout=200, seed=0)
SCALING = Scaling(mean=SIDES.public.inputs.mean(0))
GD = GradientDescent(lr=0.1, momentum=0.9, steps=300, stop_loss=0.02)


def neighbours(of, among):
    """The nearest other record of each class: what a likeness is."""
    distance = torch.cdist(of.inputs.flatten(1), among.inputs.flatten(1))
    distance[of.labels[:, None] != among.labels[None]] = torch.inf
    taken = []
    for row in distance:
        row[taken] = torch.inf
        taken.append(int(row.argmin()))
    left = sorted(set(range(len(among))) - set(taken))
    return among.take(taken), among.take(left)


@cache
def trained(recipe, width):
    model = build(f"mlp:64-{width}-{width}-10", generator=seeded(1))
    return train(model, SIDES.train, recipe, scaling=SCALING, generator=seeded(2))


def case_of(recipe=GD, *, truth=SIDES.train, public=SIDES.public, initial=True, width=60):
    done = trained(recipe, width)
    known = Knowledge(initial=done.initial if initial else None)
    model = deepcopy(done.model)
    target = Target(model=model, input_shape=(1, 8, 8), scaling=SCALING, knowledge=known)
    return Case(target=target, truth=truth, holdout=SIDES.holdout, public=public, loss="ce")


def found_in(case, inputs, *, error=1e-6, passed=True, **stated):
    m = len(inputs)
    return Candidates(
        inputs=inputs,
        confidence=torch.ones(m),
        status=Status.COMPLETE,
        reason="",
        stated=Stated(passed=[passed] * m, error=[error] * m, certified=m * passed, **stated),
    )


DECAYED = replace(GD, weight_decay=0.01)
KNOWN = {
    "sgd": (GD, True, "ntk"),
    "weight decay": (DECAYED, True, "kkt"),
    "stationary": (DecayTime(decay_time=5.0), False, "kkt"),
}


@pytest.mark.parametrize("name", KNOWN)
def test_records_trained_on_explain_the_first_layer_and_their_neighbours_do_not(name):
    recipe, initial, attack = KNOWN[name]
    case = case_of(recipe, initial=initial)
    member = explained(case, attack, strangers_of(case))
    assert member.holds
    assert member.stationary is (name == "stationary")
    like, rest = neighbours(SIDES.train, SIDES.public)
    other = replace(case, truth=like, public=rest)
    assert not explained(other, attack, strangers_of(other)).holds


def test_adam_hides_what_was_trained_on():
    case = case_of(Adam(steps=200))
    assert not explained(case, "ntk", strangers_of(case)).holds


def test_what_tells_nothing_is_not_known():
    case = case_of(initial=False)
    assert explained(case, "ntk", strangers_of(case)) is None
    many = replace(case_of(), truth=SIDES.public.take(range(70)), public=SIDES.holdout)
    assert explained(many, "ntk", strangers_of(many)) is None  # as many as inputs: they span all


def test_a_fast_sum_agrees_with_a_slow_one():
    """The share left by gradients themselves, one row each, by the same least squares."""
    from scipy.optimize import nnls

    case = case_of(DecayTime(decay_time=2.0), initial=False)
    (held,) = known_of_layer(case, "kkt")
    model, rows = case.target.model, []
    weight = dict(model.named_parameters())["1.weight"]
    for x, y in zip(SCALING.to_model(SIDES.train.inputs), SIDES.train.labels, strict=True):
        loss = torch.nn.functional.cross_entropy(model(x[None]), y[None])
        (gradient,) = torch.autograd.grad(loss, weight)
        rows.append(-gradient.flatten().double() / gradient.double().norm())
    _, rest = nnls(torch.stack(rows).T.numpy(), held.matrix.flatten().numpy())
    slow = rest / float(held.matrix.norm())
    assert unexplained(case, held, SIDES.train) == pytest.approx(slow, rel=1e-4)


PREPARED = {
    "mirrored": lambda x: x.flip(-1),
    "rotated by 90 degrees": lambda x: x.rot90(1, (-2, -1)),
    "as negatives": lambda x: 1 - x,
}


@pytest.mark.parametrize("name", PREPARED)
def test_records_that_came_back_in_disguise_are_recognised(name):
    case = case_of()
    back = found_in(case, PREPARED[name](SIDES.train.inputs))
    seen = prepared(case, back, strangers_of(case))
    assert seen.case.prepared == name
    assert torch.equal(seen.strangers.public.inputs, PREPARED[name](SIDES.public.inputs))
    assert claims_of(back, seen.case.truth, seen.strangers).count == len(SIDES.train)


def test_what_came_back_as_it_is_has_no_disguise():
    case = case_of()
    for inputs in (SIDES.train.inputs, SIDES.holdout.inputs[:20]):
        seen = prepared(case, found_in(case, inputs), strangers_of(case))
        assert (seen.case, seen.tries) == (case, 1)


def test_a_record_sought_by_name_is_taken_as_it_is():
    case = case_of()
    mirrored = SIDES.train.inputs.flip(-1)
    back = found_in(case, mirrored, targets=list(SIDES.train.ids))
    assert prepared(case, back, strangers_of(case)).case is case


def test_every_disguise_that_was_tried_counts_as_a_chance():
    case = case_of()
    back = found_in(case, SIDES.train.inputs[:1].flip(-1), error=0.3)  # so wide that chance shows
    seen = replace(case, truth=turned(case.truth, "mirrored"), prepared="mirrored")
    others = strangers_of(case).turned("mirrored")
    alone = claims_of(back, seen.truth, others).chance
    assert 0 < alone < 1
    told = proved(seen, "ntk", back, others, tries=9).summary["proof"]
    assert told["chance"] == pytest.approx(min(1.0, 9 * alone))
    assert told["disguise"] == "mirrored"
    once = proved(seen, "ntk", back, others)  # as it was given, nothing else was tried
    assert once.summary["proof"]["chance"] == pytest.approx(alone)
    assert Proof.read(once) == Proof(**once.summary["proof"]) != Proof()
    sure = found_in(case, SIDES.train.inputs.flip(-1))
    assert prepared(case, sure, strangers_of(case)).tries > len(turns_of(case.truth))


def test_candidates_without_marks_are_not_certified():
    plain = replace(found_in(case_of(), SIDES.train.inputs[:3]), stated=Stated())
    certified, error = marks(plain)
    assert certified.tolist() == [False] * 3
    assert error.isnan().all()


def test_colours_and_flat_squares_are_images_too():
    colours = Examples(inputs=torch.rand(2, 3, 4, 4), labels=torch.zeros(2).long(), ids=("a", "b"))
    order = "in the other order of channels (RGB, BGR)"
    assert torch.equal(turned(colours, order).inputs, colours.inputs.flip(1))
    assert order not in turns_of(SIDES.train)
    flat = replace(SIDES.train, inputs=SIDES.train.inputs.flatten(1))
    back = turned(flat, "transposed").inputs.reshape(-1, 1, 8, 8)
    assert torch.equal(back, SIDES.train.inputs.transpose(-1, -2))
    table = replace(SIDES.train, inputs=torch.rand(20, 7), bounds=None)
    assert not turns_of(table)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"scaling": Scaling()}, "--mean public"),
        ({"scaling": Scaling(mean=torch.tensor(0.3))}, "--mean public"),
    ],
)
def test_a_forgotten_mean_is_named(given, words):
    case = case_of()
    wrong = replace(case, target=replace(case.target, **given))
    assert words in explains_better(wrong, "ntk")
    assert explains_better(case, "ntk") is None


def test_mirrored_data_is_named_by_the_first_layer():
    like = replace(SIDES.train, inputs=SIDES.train.inputs.flip(-1))
    assert "mirrored" in explains_better(case_of(truth=like), "ntk")


def test_near_copies_are_left_out_and_named():
    noise = 0.01 * torch.randn(5, 1, 8, 8, generator=seeded())
    inputs = torch.cat([SIDES.train.inputs[:5] + noise, SIDES.public.inputs[5:]])
    case = case_of(public=replace(SIDES.public, inputs=inputs))
    strangers = strangers_of(case)
    assert len(strangers.examples) == len(case.others) - 5
    assert len(strangers.inputs) == len(case.holdout) + len(case.public) - 5
    assert strangers.notes[0].startswith("5 held-out or public records are near copies")
    assert not strangers_of(case_of()).notes


def test_a_hold_out_of_another_kind_is_named():
    case = case_of()
    unlike = [replace(part, inputs=1 - part.inputs) for part in (SIDES.holdout, SIDES.public)]
    odd = strangers_of(replace(case, holdout=unlike[0], public=unlike[1]))
    assert odd.differ
    assert not strangers_of(case).differ


def test_a_small_hold_out_is_named():
    case = case_of()
    few = replace(case, holdout=SIDES.holdout.take(range(3)), public=SIDES.public.take(range(4)))
    assert "There are 7 held-out and public records for 20" in strangers_of(few).notes[0]


def test_halves_are_shuffled():
    """A file sorted by class would give a hold-out of other classes than the public half."""
    order = SIDES.public.labels.argsort()
    one, two = halves(SIDES.public.take(order))
    assert set(one.labels.tolist()) == set(two.labels.tolist()) == set(range(10))
    assert not set(one.ids) & set(two.ids)


def test_tables_whose_values_coincide_are_not_refused():
    case = case_of()
    twice = torch.cat([SIDES.train.inputs[:2], SIDES.holdout.inputs[2:]])
    with pytest.raises(InputError, match="2 of the training set's"):
        replace(case, holdout=replace(SIDES.holdout, inputs=twice))
    repeated = torch.cat([twice[:2], twice[2:3], twice[2:3], twice[4:]])
    replace(case, holdout=replace(SIDES.holdout, inputs=repeated))


WRITTEN = {
    "rows": lambda w, x: w.copy_(torch.cat([x, w[len(x) :]])),
    "scaled rows": lambda w, x: w.copy_(torch.cat([0.01 * x, w[len(x) :]])),
    "shifted rows": lambda w, x: w.copy_(torch.cat([0.2 * x + 5, w[len(x) :]])),
    "changes": lambda w, x: w.add_(torch.cat([0.1 * x, torch.zeros_like(w[len(x) :])])),
}


# A shift after another mean was taken is no longer the record.
@pytest.mark.parametrize(
    ("how", "centred"),
    [(how, False) for how in WRITTEN] + [(how, True) for how in WRITTEN if how != "shifted rows"],
)
def test_records_that_stand_in_the_weights_are_read(how, centred):
    model = build("mlp:64-40-10", generator=seeded(1))
    initial = {name: p.detach().clone() for name, p in model.named_parameters()}
    inputs = SIDES.train.inputs[:6]
    with torch.no_grad():
        held = (SCALING.to_model(inputs) if centred else inputs).flatten(1)
        WRITTEN[how](model.get_parameter("1.weight"), held)
    target = Target(
        model=model,
        input_shape=(1, 8, 8),
        scaling=SCALING,
        knowledge=Knowledge(initial=initial),
    )
    case = Case(
        target=target,
        truth=SIDES.train,
        holdout=SIDES.holdout,
        public=SIDES.public,
        loss="ce",
    )
    read, finding = written(case, strangers_of(case))
    assert sorted(read.stated.targets) == sorted(SIDES.train.ids[:6])
    assert finding.summary["proof"]["chance"] < 1e-6
    other = replace(case, truth=SIDES.train.take(range(6, 20)))
    assert written(other, strangers_of(other)) is None


def test_a_model_like_any_other_has_no_records_in_its_rows():
    case = case_of(initial=False)
    assert written(case, strangers_of(case)) is None


def test_an_adversary_who_knows_the_others_is_not_compared_with_strangers():
    """What they lack is in every candidate of theirs: likeness to it proves nothing."""
    case = case_of()
    ids = list(SIDES.train.ids[:2])
    near = found_in(case, SIDES.train.inputs[:2] + 0.05, passed=False, targets=ids)
    finding = proved(case, "informed", near, strangers_of(case))
    proof = finding.summary["proof"]
    assert proof["rank_p"] is None
    assert proof["claimed"] == proof["above"] == 0


def test_identical_records_are_all_listed():
    twins = replace(SIDES.train, inputs=SIDES.train.inputs.clone())
    twins.inputs[1] = twins.inputs[0]
    case = case_of(truth=twins)
    back = replace(found_in(case, twins.inputs[:1]), labels=torch.tensor([7]))
    finding = proved(case, "ntk", back, strangers_of(case))
    rows = [row for row in finding.per_record if row["claimed"]]
    assert {row["id"] for row in rows} == set(twins.ids[:2])
    told = {row["id"]: row["found_label"] for row in finding.per_record}
    assert told == dict.fromkeys(twins.ids) | dict.fromkeys(twins.ids[:2], 7)
    assert all(row["correlation"] > 0.99 and row["candidate"] == 0 for row in rows)
    assert finding.summary["proof"]["claimed"] == 2


def test_likenesses_are_compared_only_where_nothing_is_certified():
    case = case_of()
    near = SIDES.train.inputs[:12] + 0.05
    sure = proved(case, "ntk", found_in(case, near), strangers_of(case))
    assert sure.summary["proof"]["rank_p"] is None
    near = torch.cat([near, torch.full_like(near[:1], 0.5)])
    near[-1, ..., 0] = torch.nan  # a candidate that is not finite is left out, the others count
    likely = proved(case, "ntk", found_in(case, near, passed=False), strangers_of(case))
    assert likely.summary["proof"]["rank_p"] < 0.01
    first = [row["claimed"] or row["above"] for row in likely.per_record]
    assert 0 < sum(first) < len(first)
    assert first == sorted(first, reverse=True)


def test_records_whose_pixels_came_back_in_another_order_are_told():
    case = case_of()  # numbers in another order are those of raw pixels: no mean is taken off
    case = replace(case, target=replace(case.target, scaling=Scaling()))
    order = torch.randperm(64, generator=seeded(4))
    mixed = SIDES.train.inputs[:3].flatten(1)[:, order].reshape(-1, 1, 8, 8)
    for back, count in ((mixed, 3), (SIDES.train.inputs[:3], 0)):
        finding = proved(case, "ntk", found_in(case, back), strangers_of(case))
        assert finding.summary["proof"]["reordered"] == count
