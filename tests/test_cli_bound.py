import json
import math

import numpy as np
import pytest

from remnant.cli import Parser, bound
from remnant.cli.common import carry_out
from remnant.errors import InputError, RemnantError

RUN = ["--noise", "4", "--steps", "20"]


def called(*words):
    top = Parser(prog="remnant")
    bound.add(top.add_subparsers(dest="verb", required=True, parser_class=Parser))
    arguments = top.parse_args(["bound", *map(str, words)])
    return carry_out(arguments)


def figures(capsys, *words):
    assert called(*words, "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_everything_about_a_full_batch_run(capsys):
    words = [*RUN, "--sampling", "1", "--delta", "1e-5", "--prior", "ball:784", "--radius", "0.5"]
    found = figures(capsys, *words)
    assert found["epsilon"] == pytest.approx(4.983, abs=1e-3)
    assert found["epsilon_by_renyi"] == pytest.approx(5.378, abs=1e-3)
    assert found["kappa"]["log"] == pytest.approx(-784 * math.log(2))
    logs = {name: value["log"] for name, value in found["gamma"].items()}
    assert found["kappa"]["log"] < logs["blow-up"] < logs["zcdp"] <= logs["renyi"] < logs["dp"]
    assert called(*words) == 0
    text = capsys.readouterr().out
    assert text.startswith("No attack succeeds with a probability above 4.770e-221.\n")
    assert "9.828e-237" in text
    assert "4.983" in text


def test_dimensions_beyond_floats(capsys):
    found = figures(capsys, *RUN, "--prior", "ball:3072", "--radius", "0.5")
    assert found["kappa"]["value"] == 0
    assert found["gamma"]["blow-up"]["log"] < -2000
    assert called(*RUN, "--prior", "ball:3072", "--radius", "0.5") == 0
    assert "e-925" in capsys.readouterr().out


def test_epsilon_chooses_the_noise(capsys):
    found = figures(capsys, "--epsilon", "4.9833064", "--steps", "20", "--kappa", "0.01")
    assert found["ledger"]["noise_multiplier"] == pytest.approx(4.0, rel=1e-3)
    assert found["gamma"]["blow-up"]["value"] == pytest.approx(0.1135, abs=3e-4)
    assert found["delta"] == 1e-5


def test_epsilon_alone_is_a_promise_too(capsys):
    found = figures(capsys, "--epsilon", "2", "--kappa", "0.01")
    assert found["gamma"] == {"dp": pytest.approx({"log": 2 + math.log(0.01), "value": 0.0738906})}
    found = figures(capsys, "--epsilon", "2", "--delta", "1e-3", "--kappa", "0.01")
    assert found["gamma"]["dp"]["value"] == pytest.approx(0.0748906)
    called("--epsilon", "9", "--kappa", "0.01")
    assert capsys.readouterr().out.startswith("The guarantee rules out nothing: gamma is 1.\n")


def test_what_a_wanted_gamma_takes(capsys):
    words = [*RUN, "--prior", "candidates:100", "--gamma", "0.05"]
    found = figures(capsys, *words)["wanted"]
    again = figures(
        capsys, "--noise", found["noise_multiplier"], "--steps", 20, "--prior", "candidates:100"
    )
    assert again["gamma"]["blow-up"]["value"] == pytest.approx(0.05, rel=1e-3)
    assert again["epsilon"] == pytest.approx(found["epsilon"])
    assert found["pure_epsilon"] == pytest.approx(math.log(5))
    called(*words)
    assert "for gamma 0.05: noise multiplier" in capsys.readouterr().out


def test_sampling_and_adjacency(capsys):
    words = ["--noise", "1", "--steps", "20", "--sampling", "0.125", "--kappa", "0.01"]
    found = figures(capsys, *words)
    assert found["epsilon"] == pytest.approx(4.364, abs=1e-3)
    assert found["gamma"]["blow-up"]["value"] == pytest.approx(0.0608, abs=1e-4)
    replaced = figures(capsys, *words, "--adjacency", "replace-one")
    assert replaced["gamma"]["blow-up"]["value"] == pytest.approx(0.112, abs=1e-3)
    assert replaced["ledger"]["adjacency"] == "replace-one"


def test_gaussian_prior(capsys):
    found = figures(capsys, *RUN, "--prior", "gaussian:2:1", "--radius", "1")
    assert found["kappa"]["value"] == pytest.approx(1 - math.exp(-0.5))


def test_empirical_prior(capsys, tmp_path):
    points = np.random.default_rng(0).random((400, 2))
    np.savez(tmp_path / "draws.npz", x=points, y=np.zeros(400, dtype=int))
    words = [*RUN, "--empirical-prior", tmp_path / "draws.npz"]
    found = figures(capsys, *words, "--distance", "l2", "--radius", "0.1")["kappa"]
    assert found["points"] == 400
    assert found["low"] < math.pi / 100 < found["high"] < found["high_anywhere"]
    assert found["value"] == pytest.approx(found["high_anywhere"])
    same = figures(capsys, *words, "--distance", "mse", "--radius", "0.005")["kappa"]
    assert same["estimate"] == pytest.approx(found["estimate"])
    fewer = figures(capsys, *words, "--radius", "0.1", "--records", "100")["kappa"]
    assert fewer["points"] == 100
    called(*words, "--radius", "0.1")
    assert "measured on 400 draws" in capsys.readouterr().out
    with pytest.raises(InputError, match=r"kappa: expected below 1.*smaller --radius"):
        called(*words, "--radius", "5")


def test_without_a_prior_there_is_accounting(capsys):
    found = figures(capsys, *RUN)
    assert "gamma" not in found
    called(*RUN)
    assert "epsilon at delta 1e-05" in capsys.readouterr().out


def test_quiet_and_out(capsys, tmp_path):
    words = [*RUN, "--kappa", "0.1", "--quiet", "--out", tmp_path / "kept"]
    assert called(*words) == 0
    assert called(*words) == 0  # done before
    assert capsys.readouterr().out == ""
    kept = json.loads((tmp_path / "kept" / "bound.json").read_text())
    assert kept["gamma"]["blow-up"]["value"] == pytest.approx(0.435, abs=1e-3)


def test_what_is_kept_goes_by_what_the_flags_mean(tmp_path):
    words = [*RUN, "--radius", "0.5", "--quiet", "--out", tmp_path / "kept"]
    assert called(*words, "--prior", "ball:784") == 0
    assert called(*words, "--prior", "ball:784:1.0") == 0  # the same ball
    with pytest.raises(RemnantError, match=r"expected a run of this spec, got another \(log_kappa"):
        called(*words, "--prior", "ball:784:2.0")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--noise", "-1", "--steps", "20"], "noise multiplier: expected a number above 0, got"),
        (["--noise", "nan", "--steps", "20"], "noise multiplier: expected a number above 0, got"),
        (["--noise", "4", "--steps", "0"], "steps: expected a whole number, 1 or more, got 0"),
        (["--noise", "4"], "--steps: expected the number of steps"),
        ([*RUN, "--epsilon", "2"], "this flag alone, got --noise and --epsilon"),
        (["--steps", "20"], "--renyi and --rho, got none"),
        (["--epsilon", "-2"], "epsilon: expected a number, 0 or more, got -2"),
        (["--epsilon", "0", "--steps", "3"], "epsilon: expected a number above 0"),
        ([*RUN, "--delta", "0"], "--delta: expected more than 0, got 0"),
        (["--epsilon", "2", "--delta", "1"], "--delta: expected below 1, got 1"),
        ([*RUN, "--sampling", "2"], "sampling rate: expected above 0 and at most 1, got 2"),
        ([*RUN, "--kappa", "0"], "--kappa: expected more than 0, got 0"),
        ([*RUN, "--kappa", "1"], "--kappa: expected below 1, got 1"),
        ([*RUN, "--kappa", "nan"], "--kappa: expected below 1, got nan"),
        ([*RUN, "--kappa", ".1", "--prior", "ball:3"], "alone, got --kappa and --prior"),
        ([*RUN, "--prior", "ball:784"], "--radius: expected a distance beside --prior"),
        ([*RUN, "--prior", "ball:x", "--radius", "1"], "--prior: expected ball:784, gaussian"),
        ([*RUN, "--prior", "cube:3", "--radius", "1"], "--prior: expected ball:784, gaussian"),
        ([*RUN, "--prior", "ball", "--radius", "1"], "--prior: expected ball:784, gaussian"),
        ([*RUN, "--prior", "ball:3", "--radius", "2"], "radius: expected above 0 and below"),
        ([*RUN, "--prior", "ball:3", "--radius", "nan"], "radius: expected above 0 and below"),
        ([*RUN, "--prior", "ball:0", "--radius", ".5"], "dimension: expected a whole number"),
        ([*RUN, "--prior", "candidates:1"], "candidates: expected a whole number, 2 or more"),
        ([*RUN, "--prior", "gaussian:2:-1", "--radius", "1"], "deviation: expected a number"),
        ([*RUN, "--kappa", ".1", "--gamma", ".05"], "gamma: expected above kappa"),
        ([*RUN, "--kappa", ".1", "--gamma", "1"], "--gamma: expected below 1"),
        ([*RUN, "--gamma", ".05"], "--gamma: expected a prior beside it"),
        ([*RUN, "--empirical-prior", "digits"], "--radius: expected a distance"),
        ([*RUN, "--empirical-prior", "no.npz", "--radius", "1"], "no.npz"),
    ],
)
def test_bad_input_is_one_line(words, text):
    with pytest.raises(RemnantError) as error:
        called(*words)
    assert text in str(error.value)
    assert "\n" not in str(error.value)


def test_what_any_mechanism_promises(capsys, tmp_path):
    kappa = ["--kappa", "0.01"]
    renyi = figures(capsys, "--renyi", "8,1.5", *kappa, "--out", tmp_path / "kept")
    assert renyi["gamma"]["renyi"]["log"] == pytest.approx(7 / 8 * (math.log(0.01) + 1.5))
    assert list(renyi["gamma"]) == ["renyi"]
    rho = figures(capsys, "--rho", "0.5", *kappa)
    gap = math.sqrt(math.log(100)) - math.sqrt(0.5)
    assert rho["gamma"]["zcdp"]["log"] == pytest.approx(-(gap**2))
    finite = figures(capsys, "--epsilon", "2", "--prior", "candidates:10")
    assert finite["gamma"]["finite"]["value"] == pytest.approx(math.e**2 / (9 + math.e**2))
    for words in (["--renyi", "8,1.5"], ["--rho", "0.5"]):
        assert called(*words, *kappa) == 0
        assert "No attack succeeds" in capsys.readouterr().out
    back = figures(capsys, "--reverse", "--epsilon", "1", "--gamma", "0.8")
    assert back["delta"] == pytest.approx((math.e + 1) * 0.8 - math.e)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--renyi", "8"], "--renyi"),
        (["--rho", "1", "--steps", "2"], "--rho alone: expected no --steps"),
        (["--epsilon", "1", "--sampling", "0.5"], "--epsilon alone: expected no --sampling"),
        (["--rho", "1", "--noise", "2"], "alone, got --noise and --rho"),
        (["--reverse", "--epsilon", "1"], "--reverse: expected --epsilon and --gamma"),
    ],
)
def test_other_mechanisms_are_told_alone(words, said):
    with pytest.raises(InputError, match=said):
        called(*words)
