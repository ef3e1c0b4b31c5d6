"""`remnant bound`: what a private run promises against any reconstruction."""

from __future__ import annotations

import argparse
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from remnant.cli.common import Answer, add_verb, print_line, print_table, run_of
from remnant.cli.flags import add_fields, given
from remnant.cli.spec import checked, flag
from remnant.errors import InputError, brief, expected

if TYPE_CHECKING:
    from remnant.bounds import Ledger
    from remnant.store import Run

PRIORS = "ball:784, gaussian:784:0.3 or candidates:10"
TITLES = {
    "blow-up": "tight: likelihood ratio (Hayes et al. 2023)",
    "renyi": "from Renyi DP (001, Theorem 2)",
    "zcdp": "from zCDP (001, Corollary 4)",
    "dp": "from epsilon (and delta) alone (001, Corollary 3)",
    "finite": "of one of so many candidates (001, VII-F)",
}
Chance = Annotated[float, Field(gt=0, lt=1)]


class Asked(BaseModel):
    """What was run, what a guess without the model knows, and what is wanted."""

    model_config = ConfigDict(frozen=True)

    noise: float | None = flag("noise multiplier: deviation over clip")
    epsilon: float | None = flag(
        "in place of --noise: with --steps, the noise is chosen for it; without, it is all that is "
        "known"
    )
    renyi: tuple[float, float] | None = flag(
        "order,epsilon, such as 8,1.5: Renyi DP of this order, whatever was run"
    )
    rho: float | None = flag("zero-concentrated DP, whatever was run")
    steps: int | None = flag("noisy gradient steps")
    sampling: float = flag("a record's chance at each step", 1.0)
    delta: Chance | None = flag("of epsilon (with --steps: 1e-05)")
    adjacency: Literal["zero-out", "add-remove", "replace-one"] = flag(
        "which two runs are compared", "zero-out"
    )
    prior: str | None = flag(f"what a guess without the model knows: {PRIORS}")
    radius: float | None = flag("a reconstruction this near counts")
    kappa: Chance | None = flag("in place of a prior: a guess's chance")
    empirical_prior: str | None = flag("draws from the prior: a name or file of data")
    distance: Literal["l2", "l1", "linf", "mse"] = flag("of --radius", "l2")
    records: Annotated[int, Field(ge=2)] = flag("of the draws, at most", 2000)
    data_dir: Path | None = flag("where data files are looked for (or REMNANT_DATA)")
    gamma: Chance | None = flag("the chance to keep to: what does it take?")
    reverse: bool = flag(
        "the delta at --epsilon that follows from --gamma over all pairs of records (Theorem 5)",
        False,
    )


def add(verbs: Any) -> None:
    example = "remnant bound --noise 4 --steps 20 --delta 1e-5 --prior ball:784 --radius 0.5"
    parser = add_verb(verbs, "bound", example, shared=("seed", "out", "quiet", "json"), run=run)
    add_fields(parser, Asked)


def run(arguments: argparse.Namespace) -> Answer:
    asked = checked(Asked, given(arguments, Asked.model_fields))
    if asked.reverse:
        return reverse(asked.epsilon, asked.gamma)
    ledger, found = read_run(asked)
    kappa = read_kappa(asked, arguments.seed)
    if kappa is not None:
        if not kappa["log"] < 0:
            do = "use a smaller --radius"
            raise InputError(expected("kappa", "below 1", "1: a guess is always right", do))
        found["kappa"] = kappa
        found["gamma"] = gammas(ledger, found, kappa["log"])
    if asked.gamma is not None:
        if kappa is None:
            do = "give --prior or --kappa"
            raise InputError(expected("--gamma", "a prior beside it", "none", do))
        found["wanted"] = what_it_takes(ledger, found, kappa["log"], asked.gamma)
    if arguments.out:
        keep(found, {"epsilon": asked.epsilon, "gamma": asked.gamma}, arguments)
    return Answer(figures=found, show=lambda: show(found))


def reverse(epsilon: float | None, gamma: float | None) -> Answer:
    """From robustness back to privacy."""
    from remnant import bounds

    if epsilon is None or gamma is None:
        raise InputError("--reverse: expected --epsilon and --gamma beside it, got neither or one")
    delta = bounds.delta_from_robustness(epsilon, gamma)
    words = f"({epsilon:g}, {delta:.4g})-DP follows (001, Theorem 5)."
    figures = {"epsilon": epsilon, "gamma": gamma, "delta": delta}
    return Answer(figures=figures, show=lambda: print_line(words, style="bold"))


def one_of(asked: Asked, *names: str) -> str | None:
    """Which of these fields was given, None for none; more than one is an error."""
    told = [f"--{name.replace('_', '-')}" for name in names if getattr(asked, name) is not None]
    if len(told) > 1:
        raise InputError(expected(told[0], "this flag alone", " and ".join(told)))
    return told[0] if told else None


def read_run(asked: Asked) -> tuple[Ledger | None, dict[str, Any]]:
    """The ledger of --noise, or of the noise that --epsilon needs; None where a promise is all
    that is known, whatever mechanism made it: epsilon, a point of its Renyi curve, or rho."""
    from remnant import bounds

    kind = one_of(asked, "noise", "epsilon", "renyi", "rho")
    if kind is None:
        wanted = "one of --noise, --epsilon, --renyi and --rho"
        raise InputError(expected("flags", wanted, "none"))
    found: dict[str, Any] = {"ledger": None, "epsilon": asked.epsilon, "delta": asked.delta}
    promised = kind in ("--renyi", "--rho")
    idle = ("steps", "sampling", "adjacency", "delta") if promised else ("sampling", "adjacency")
    for name in idle if promised or asked.steps is None else ():
        if name in asked.model_fields_set:
            raise InputError(expected(f"{kind} alone", f"no --{name}", f"--{name}"))
    if promised:
        if asked.renyi is not None:
            return None, found | {
                "renyi": dict(zip(("order", "epsilon"), asked.renyi, strict=True))
            }
        return None, found | {"rho": asked.rho}
    if asked.steps is None:
        if asked.epsilon is None:
            raise InputError("--steps: expected the number of steps beside --noise, got nothing")
        bounds.from_dp(asked.epsilon, -1.0, asked.delta or 0.0)  # refuses what is no promise
        return None, found
    delta = 1e-5 if asked.delta is None else asked.delta
    ledger = bounds.Ledger(
        noise_multiplier=1.0 if asked.noise is None else asked.noise,
        steps=asked.steps,
        sampling_rate=asked.sampling,
        adjacency=asked.adjacency,
    )
    if asked.epsilon is not None:
        ledger = bounds.noise_for_epsilon(ledger, asked.epsilon, delta)
    return ledger, {
        "ledger": asdict(ledger),
        "epsilon": bounds.epsilon(ledger, delta),
        "delta": delta,
        "epsilon_by_renyi": bounds.epsilon_by_renyi(ledger, delta),
        "rho": bounds.rho(ledger),
    }


def read_kappa(asked: Asked, seed: int) -> dict[str, Any] | None:
    """log kappa and how it came about, or None where no prior was given."""
    one_of(asked, "kappa", "prior", "empirical_prior")
    if asked.kappa is not None:
        return chance(math.log(asked.kappa)) | {"prior": "--kappa"}
    if asked.prior is not None:
        return chance(parse_prior(asked.prior, asked.radius)) | {"prior": asked.prior}
    return None if asked.empirical_prior is None else read_draws(asked, seed)


def parse_prior(text: str, radius: float | None) -> float:
    """log kappa of ball:D, ball:D:SIZE, gaussian:D:DEVIATION or candidates:K."""
    from remnant import bounds

    kind, *numbers = text.split(":")
    try:
        size, *rest = [int(numbers[0]), *map(float, numbers[1:])]
    except (ValueError, IndexError):
        raise InputError(expected("--prior", PRIORS, repr(text))) from None
    if not size <= 2**53:  # more are no floats, nor dimensions of anything
        raise InputError(expected("--prior", "a whole number up to 2**53", brief(text)))
    if kind == "candidates" and not rest:
        return bounds.candidates(int(size))
    if radius is None:
        raise InputError("--radius: expected a distance beside --prior, got nothing")
    if kind == "ball" and len(rest) < 2:
        return bounds.ball(int(size), radius, *rest)
    if kind == "gaussian" and len(rest) == 1:
        return bounds.gaussian(int(size), radius, *rest)
    raise InputError(expected("--prior", PRIORS, repr(text)))


def read_draws(asked: Asked, seed: int) -> dict[str, Any]:
    """kappa of the law behind a dataset: its upper limit for any guess whatever."""
    import numpy as np

    from remnant import bounds
    from remnant.data import load

    radius, distance = asked.radius, asked.distance
    if radius is None or not radius > 0:
        raise InputError(expected("--radius", "a distance beside --empirical-prior", radius))
    draws = load(asked.empirical_prior or "", data_dir=asked.data_dir).inputs
    points = draws.flatten(1).double().numpy()
    if len(points) > asked.records:
        chosen = np.random.default_rng(seed).permutation(len(points))
        points = points[chosen[: asked.records]]
    if distance == "mse":  # the same balls, by another name
        distance, radius = "l2", math.sqrt(radius * points.shape[1])
    kappa = bounds.empirical(points, radius, distance)
    log_kappa = math.log(kappa.high_anywhere)
    return chance(log_kappa) | {"prior": asked.empirical_prior} | asdict(kappa)


def gammas(ledger: Ledger | None, found: dict[str, Any], log_kappa: float) -> dict[str, Any]:
    """Every bound that applies, by its name in TITLES."""
    from remnant import bounds

    logs = {}
    if ledger is not None:
        logs["blow-up"] = bounds.blow_up(ledger, log_kappa)
        logs["renyi"] = bounds.from_renyi(ledger, log_kappa)
    if "rho" in found:
        logs["zcdp"] = bounds.from_zcdp(found["rho"], log_kappa)
    if "renyi" in found:
        logs["renyi"] = bounds.from_renyi_at(**found["renyi"], log_kappa=log_kappa)
    if found["epsilon"] is not None:
        logs["dp"] = bounds.from_dp(found["epsilon"], log_kappa, found["delta"] or 0.0)
        kind, _, size = found["kappa"]["prior"].partition(":")
        if kind == "candidates" and not found["delta"]:
            logs["finite"] = bounds.from_finite_set(found["epsilon"], log_kappa, int(size))
    return {name: chance(value) for name, value in logs.items()}


def what_it_takes(
    ledger: Ledger | None, found: dict[str, Any], log_kappa: float, gamma: float
) -> dict[str, Any]:
    """The most epsilon, and the least noise, that keep to gamma."""
    from remnant import bounds

    log_gamma = math.log(gamma)
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


def keep(found: dict[str, Any], asked: dict[str, Any], arguments: argparse.Namespace) -> None:
    """`bound.json` in --out, for what the flags mean: other words for the same are the same."""
    from remnant.store import finish, write_json

    def work(stored: Run) -> None:
        write_json(stored, "bound.json", found)
        finish(stored, seeds={"seed": arguments.seed})

    known = ("ledger", "delta") if found["ledger"] else ("ledger", "delta", "renyi", "rho")
    means = {name: found[name] for name in known if name in found}
    log_kappa = found["kappa"]["log"] if "kappa" in found else None
    run_of(arguments, {"verb": "bound", "log_kappa": log_kappa, **means, **asked}, work)


def show(found: dict[str, Any]) -> None:
    if "gamma" in found:
        least = min(value["log"] for value in found["gamma"].values())
        promise = f"No attack succeeds with a probability above {as_text(least)}."
        if least >= 0:
            promise = "The guarantee rules out nothing: gamma is 1."
        print_line(promise, style="bold")
    print_table((), lines(found))


def lines(found: dict[str, Any]) -> list[tuple[str, str]]:
    """What the table says: a name and its value in four digits, or as it is told elsewhere."""
    ledger, kappa, needs = (found.get(name) for name in ("ledger", "kappa", "wanted"))
    delta = f" at delta {found['delta']:g}" if found["delta"] else ", pure"
    rows: dict[str, Any] = {}
    if ledger:
        rows["noise multiplier"] = ledger["noise_multiplier"]
        rows["steps, sampling"] = f"{ledger['steps']}, {ledger['sampling_rate']:g}"
        rows["adjacency"] = ledger["adjacency"]
    if found["epsilon"] is not None:
        rows[f"epsilon{delta}"] = found["epsilon"]
    elif "renyi" in found:
        rows[f"Renyi epsilon of order {found['renyi']['order']:g}"] = found["renyi"]["epsilon"]
    else:
        rows["rho of zCDP"] = found["rho"]
    if ledger:
        rows[f"epsilon{delta}, by Renyi DP"] = found["epsilon_by_renyi"]
    if kappa:
        rows["kappa: chance of a guess"] = as_text(kappa["log"])
        if "estimate" in kappa:
            limits = f"{kappa['low']:.4g} to {kappa['high']:.4g}"
            rows[f"  measured on {kappa['points']} draws"] = kappa["estimate"]
            rows[f"  limits at {kappa['confidence']:g}, guessing a draw"] = limits
    for name, value in found.get("gamma", {}).items():
        rows[f"gamma, {TITLES[name]}"] = as_text(value["log"])
    if needs:
        aim = f"for gamma {needs['gamma']:g}"
        if "epsilon" in needs:
            rows[f"{aim}: noise multiplier"] = needs["noise_multiplier"]
            rows[f"{aim}: epsilon{delta}"] = needs["epsilon"]
        rows[f"{aim}: epsilon, pure"] = needs["pure_epsilon"]
    return [(k, v if isinstance(v, str) else f"{v:.4g}") for k, v in rows.items()]
