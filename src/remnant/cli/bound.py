"""`remnant bound`: what a private run promises against any reconstruction."""

from __future__ import annotations

import argparse
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from remnant.cli.common import (
    Answer,
    add_data_dir,
    add_verb,
    check_seed,
    print_line,
    print_table,
)
from remnant.errors import InputError, brief, expected

if TYPE_CHECKING:
    from remnant.bounds import Ledger

PRIORS = "ball:784, gaussian:784:0.3 or candidates:10"
TITLES = {
    "blow-up": "tight: likelihood ratio (Hayes et al. 2023)",
    "renyi": "from Renyi DP (001, Theorem 2)",
    "zcdp": "from zCDP (001, Corollary 4)",
    "dp": "from epsilon (and delta) alone (001, Corollary 3)",
    "finite": "of one of so many candidates (001, VII-F)",
}


def add(verbs: Any) -> None:
    parser = add_verb(
        verbs,
        "bound",
        "remnant bound --noise 4 --steps 20 --delta 1e-5 --prior ball:784 --radius 0.5",
        shared=("seed", "out", "quiet", "json"),
        run=run,
    )
    ran = parser.add_argument_group("what was run")
    ran.add_argument("--noise", type=float, help="noise multiplier: deviation over clip")
    ran.add_argument(
        "--epsilon",
        type=float,
        help="in place of --noise: with --steps, the noise is chosen for it; without, it is all "
        "that is known",
    )
    ran.add_argument("--renyi", metavar="A,EPS", help="Renyi DP of this order, whatever was run")
    ran.add_argument("--rho", type=float, help="zero-concentrated DP, whatever was run")
    ran.add_argument("--steps", type=int, help="noisy gradient steps")
    ran.add_argument("--sampling", type=float, default=1.0, help="a record's chance at each step")
    ran.add_argument("--delta", type=float, help="of epsilon (with --steps: 1e-05)")
    ran.add_argument(
        "--adjacency",
        choices=("zero-out", "add-remove", "replace-one"),
        default="zero-out",
        help="which two runs are compared",
    )
    guess = parser.add_argument_group("what a guess without the model knows")
    guess.add_argument("--prior", help=PRIORS)
    guess.add_argument("--radius", type=float, help="a reconstruction this near counts")
    guess.add_argument("--kappa", type=float, help="in place of a prior: a guess's chance")
    guess.add_argument("--empirical-prior", metavar="DATA", help="draws from it: a name or file")
    guess.add_argument("--distance", choices=("l2", "l1", "linf", "mse"), default="l2")
    guess.add_argument("--records", type=int, default=2000, help="of the draws, at most")
    add_data_dir(parser)
    parser.add_argument("--gamma", type=float, help="the chance to keep to: what does it take?")
    words = "the delta at --epsilon that follows from --gamma over all pairs of records (Theorem 5)"
    parser.add_argument("--reverse", action="store_true", help=words)


def run(arguments: argparse.Namespace) -> Answer:
    check_seed(arguments)
    if arguments.reverse:
        return reverse(arguments)
    ledger, found = read_run(arguments)
    kappa = read_kappa(arguments)
    if kappa is not None:
        found["kappa"] = kappa
        found["gamma"] = gammas(ledger, found, kappa["log"])
        if arguments.gamma is not None:
            found["wanted"] = wanted(ledger, found, kappa["log"], arguments.gamma)
    elif arguments.gamma is not None:
        raise InputError(
            expected("--gamma", "a prior beside it", "none", "give --prior or --kappa")
        )
    if arguments.out:
        keep(found, arguments)
    return Answer(figures=found, show=lambda: show(found))


def reverse(arguments: argparse.Namespace) -> Answer:
    """From robustness back to privacy."""
    from remnant import bounds

    epsilon, gamma = arguments.epsilon, arguments.gamma
    if epsilon is None or gamma is None:
        raise InputError("--reverse: expected --epsilon and --gamma beside it, got neither or one")
    found = {
        "epsilon": epsilon,
        "gamma": gamma,
        "delta": bounds.delta_from_robustness(epsilon, gamma),
    }
    words = f"({epsilon:g}, {found['delta']:.4g})-DP follows (001, Theorem 5)."
    return Answer(figures=found, show=lambda: print_line(words, style="bold"))


def read_run(arguments: argparse.Namespace) -> tuple[Ledger | None, dict[str, Any]]:
    """The ledger of --noise, or of the noise that --epsilon needs; None if epsilon is all."""
    from remnant import bounds

    given, delta = arguments.epsilon, arguments.delta
    other = [name for name in ("renyi", "rho") if getattr(arguments, name) is not None]
    if other:
        return None, read_other(arguments, other)
    if (arguments.noise is None) == (given is None):
        got = "neither" if given is None else "both"
        wanted = "one of --noise, --epsilon, --renyi and --rho"
        raise InputError(expected("flags", wanted, got))
    if arguments.steps is None:
        if given is None:
            raise InputError("--steps: expected the number of steps beside --noise, got nothing")
        bounds.from_dp(given, -1.0, 0.0 if delta is None else _chance("--delta", delta))
        return None, {"ledger": None, "epsilon": given, "delta": delta}
    delta = 1e-5 if delta is None else _chance("--delta", delta)
    ledger = bounds.Ledger(
        noise_multiplier=1.0 if arguments.noise is None else arguments.noise,
        steps=arguments.steps,
        sampling_rate=arguments.sampling,
        adjacency=arguments.adjacency,
    )
    if given is not None:
        ledger = bounds.noise_for_epsilon(ledger, given, delta)
    return ledger, {
        "ledger": asdict(ledger),
        "epsilon": bounds.epsilon(ledger, delta),
        "delta": delta,
        "epsilon_by_renyi": bounds.epsilon_by_renyi(ledger, delta),
        "rho": bounds.rho(ledger),
    }


def read_other(arguments: argparse.Namespace, given: list[str]) -> dict[str, Any]:
    """What a mechanism of any kind promises: a point of its Renyi curve, or rho."""
    used = [n for n in ("noise", "epsilon", "steps") if getattr(arguments, n) is not None]
    if len(given + used) > 1:
        flags = " and ".join(f"--{name}" for name in (*given, *used))
        raise InputError(expected("flags", f"--{given[0]} alone", flags))
    found: dict[str, Any] = {"ledger": None, "epsilon": None, "delta": None}
    if given == ["rho"]:
        return found | {"rho": arguments.rho}
    try:
        order, epsilon = map(float, arguments.renyi.split(","))
    except ValueError:
        raise InputError(expected("--renyi", "order,epsilon as 8,1.5", arguments.renyi)) from None
    return found | {"renyi": {"order": order, "epsilon": epsilon}}


def read_kappa(arguments: argparse.Namespace) -> dict[str, Any] | None:
    """log kappa and how it came about, or None where no prior was given."""
    given = [
        flag
        for flag in ("kappa", "prior", "empirical_prior")
        if getattr(arguments, flag) is not None
    ]
    if not given:
        return None
    if len(given) > 1:
        flags = " and ".join(f"--{flag.replace('_', '-')}" for flag in given)
        raise InputError(expected("prior", "one", flags))
    if arguments.kappa is not None:
        return _known(math.log(_chance("--kappa", arguments.kappa)), {"prior": "--kappa"})
    if arguments.prior is not None:
        return _known(parse_prior(arguments.prior, arguments.radius), {"prior": arguments.prior})
    return read_draws(arguments)


def _known(log_kappa: float, details: dict[str, Any]) -> dict[str, Any]:
    if not log_kappa < 0:
        do = "use a smaller --radius"
        raise InputError(expected("kappa", "below 1", "1: a guess is always right", do))
    return chance(log_kappa) | details


def parse_prior(text: str, radius: float | None) -> float:
    """log kappa of ball:D, ball:D:SIZE, gaussian:D:DEVIATION or candidates:K."""
    from remnant import bounds

    kind, *numbers = text.split(":")
    try:
        whole, *rest = [int(numbers[0]), *map(float, numbers[1:])]
    except (ValueError, IndexError):
        raise InputError(expected("--prior", PRIORS, repr(text))) from None
    if not whole <= 2**53:  # more are no floats, nor dimensions of anything
        raise InputError(expected("--prior", "a whole number up to 2**53", brief(text)))
    if kind == "candidates" and not rest:
        return bounds.candidates(int(whole))
    if radius is None:
        raise InputError("--radius: expected a distance beside --prior, got nothing")
    if kind == "ball" and len(rest) < 2:
        return bounds.ball(int(whole), radius, *rest)
    if kind == "gaussian" and len(rest) == 1:
        return bounds.gaussian(int(whole), radius, *rest)
    raise InputError(expected("--prior", PRIORS, repr(text)))


def read_draws(arguments: argparse.Namespace) -> dict[str, Any]:
    """kappa of the law behind a dataset: its upper limit for any guess whatever."""
    import numpy as np

    from remnant import bounds
    from remnant.data import load

    if arguments.radius is None:
        raise InputError("--radius: expected a distance beside --empirical-prior, got nothing")
    if arguments.records < 2:
        raise InputError(expected("--records", "2 or more", arguments.records))
    draws = load(arguments.empirical_prior, data_dir=arguments.data_dir).inputs
    points = draws.flatten(1).double().numpy()
    if len(points) > arguments.records:
        chosen = np.random.default_rng(arguments.seed).permutation(len(points))
        points = points[chosen[: arguments.records]]
    distance, radius = arguments.distance, arguments.radius
    if distance == "mse":  # the same balls, by another name
        if not radius >= 0:
            raise InputError(expected("--radius", "a number above 0", radius))
        distance, radius = "l2", math.sqrt(radius * points.shape[1])
    kappa = bounds.empirical(points, radius, distance)
    log_kappa = math.log(kappa.high_anywhere)
    return _known(log_kappa, {"prior": arguments.empirical_prior} | asdict(kappa))


def gammas(ledger: Ledger | None, found: dict[str, Any], log_kappa: float) -> dict[str, Any]:
    """Every bound that applies, by its name in TITLES."""
    from remnant import bounds

    logs = {}
    if ledger is not None:
        logs["blow-up"] = bounds.blow_up(ledger, log_kappa)
        logs["renyi"] = bounds.from_renyi(ledger, log_kappa)
        logs["zcdp"] = bounds.from_zcdp(bounds.rho(ledger), log_kappa)
    elif "rho" in found:
        logs["zcdp"] = bounds.from_zcdp(found["rho"], log_kappa)
    elif "renyi" in found:
        logs["renyi"] = bounds.from_renyi_at(**found["renyi"], log_kappa=log_kappa)
    if found["epsilon"] is not None:
        logs["dp"] = bounds.from_dp(found["epsilon"], log_kappa, found["delta"] or 0.0)
        kind, _, size = found["kappa"].get("prior", "").partition(":")
        if kind == "candidates" and not found["delta"]:
            logs["finite"] = bounds.from_finite_set(found["epsilon"], log_kappa, int(size))
    return {name: chance(value) for name, value in logs.items()}


def wanted(
    ledger: Ledger | None, found: dict[str, Any], log_kappa: float, gamma: float
) -> dict[str, Any]:
    """The most epsilon, and the least noise, that keep to gamma."""
    from remnant import bounds

    log_gamma = math.log(_chance("--gamma", gamma))
    if log_gamma <= log_kappa:
        least = f"above kappa = {as_text(log_kappa)}, the chance of a guess without the model"
        raise InputError(expected("--gamma", least, f"{gamma:g}"))
    needed: dict[str, Any] = {
        "gamma": gamma,
        "pure_epsilon": bounds.epsilon_for_gamma(log_kappa, log_gamma),
    }
    if ledger is not None:
        enough = bounds.noise_for_gamma(ledger, log_kappa, log_gamma)
        needed["noise_multiplier"] = enough.noise_multiplier
        needed["epsilon"] = bounds.epsilon(enough, found["delta"])
    return needed


def chance(log_value: float) -> dict[str, Any]:
    """A probability for JSON; `value` is 0 where it is too small for a float, `log` never is."""
    return {"log": log_value, "value": math.exp(log_value)}


def as_text(log_value: float) -> str:
    """Four digits of a probability, however small: 1.57e-237."""
    if log_value > math.log(1e-3):
        return f"{math.exp(log_value):.4g}"
    exponent = math.floor(log_value / math.log(10))
    return f"{math.exp(log_value - exponent * math.log(10)):.3f}e{exponent}"


def _chance(flag: str, value: float) -> float:
    if not 0 < value < 1:
        raise InputError(expected(flag, "a number between 0 and 1", value))
    return value


def keep(found: dict[str, Any], arguments: argparse.Namespace) -> None:
    """`bound.json` in --out, for what the flags mean: other words for the same are the same."""
    from remnant.store import finish, open_run, write_json

    asked = {"epsilon": arguments.epsilon, "gamma": arguments.gamma, "delta": found["delta"]}
    log_kappa = found["kappa"]["log"] if "kappa" in found else None
    asked |= {
        name: found[name] for name in ("renyi", "rho") if name in found and not found["ledger"]
    }
    spec = {"verb": "bound", "ledger": found["ledger"], "log_kappa": log_kappa, **asked}
    stored = open_run(arguments.out, spec)
    if not stored.finished:
        write_json(stored, "bound.json", found)
        finish(stored, seeds={"seed": arguments.seed})


def show(found: dict[str, Any]) -> None:
    if "gamma" in found:
        least = min(value["log"] for value in found["gamma"].values())
        promise = (
            f"No attack succeeds with a probability above {as_text(least)}."
            if least < 0
            else "The guarantee rules out nothing: gamma is 1."
        )
        print_line(promise, style="bold")
    print_table((), lines(found))


def lines(found: dict[str, Any]) -> list[tuple[str, str]]:
    """What the table says."""
    ledger, kappa = found["ledger"], found.get("kappa")
    delta = f" at delta {found['delta']:g}" if found["delta"] else ", pure"
    rows = []
    if ledger:
        rows.append(("noise multiplier", f"{ledger['noise_multiplier']:.4g}"))
        rows.append(("steps, sampling", f"{ledger['steps']}, {ledger['sampling_rate']:g}"))
        rows.append(("adjacency", ledger["adjacency"]))
    if found["epsilon"] is not None:
        rows.append((f"epsilon{delta}", f"{found['epsilon']:.4g}"))
    elif "renyi" in found:
        order, value = found["renyi"]["order"], found["renyi"]["epsilon"]
        rows.append((f"Renyi epsilon of order {order:g}", f"{value:.4g}"))
    else:
        rows.append(("rho of zCDP", f"{found['rho']:.4g}"))
    if ledger:
        rows.append((f"epsilon{delta}, by Renyi DP", f"{found['epsilon_by_renyi']:.4g}"))
    if kappa:
        rows.append(("kappa: chance of a guess", as_text(kappa["log"])))
        if "estimate" in kappa:
            limits = f"{kappa['low']:.4g} to {kappa['high']:.4g}"
            rows.append((f"  measured on {kappa['points']} draws", f"{kappa['estimate']:.4g}"))
            rows.append((f"  limits at {kappa['confidence']:g}, guessing a draw", limits))
    for name, value in found.get("gamma", {}).items():
        rows.append((f"gamma, {TITLES[name]}", as_text(value["log"])))
    if "wanted" in found:
        needs = found["wanted"]
        aim = f"for gamma {needs['gamma']:g}"
        if "epsilon" in needs:
            rows.append((f"{aim}: noise multiplier", f"{needs['noise_multiplier']:.4g}"))
            rows.append((f"{aim}: epsilon{delta}", f"{needs['epsilon']:.4g}"))
        rows.append((f"{aim}: epsilon, pure", f"{needs['pure_epsilon']:.4g}"))
    return rows
