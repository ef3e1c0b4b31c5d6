"""From what a run spent on privacy to how often any attack can reconstruct a record.

Floats and NumPy only. kappa and gamma are natural logarithms throughout, but where a name says
otherwise: in 784 dimensions they are below 1e-200.
"""

from remnant.bounds.accounting import (
    ADJACENCIES,
    ORDERS,
    Ledger,
    epsilon,
    epsilon_by_renyi,
    noise_for_epsilon,
    renyi_curve,
    rho,
)
from remnant.bounds.blowup import (
    Simulated,
    blow_up,
    chance_in_one_run,
    gaussian_blow_up,
    noise_for_gamma,
    simulated_blow_up,
)
from remnant.bounds.game import Game, orthogonal, orthogonal_success, play, simplex
from remnant.bounds.priors import (
    DISTANCES,
    EmpiricalKappa,
    ball,
    candidates,
    discrete,
    empirical,
    gaussian,
    gaussian_tail,
)
from remnant.bounds.rero import (
    ball_by_dimension,
    delta_from_rero,
    epsilon_for_gamma,
    from_dp,
    from_renyi,
    from_zcdp,
    gaussian_by_dimension,
)
from remnant.bounds.verdict import Verdict, clopper_pearson, compare

__all__ = [
    "ADJACENCIES",
    "DISTANCES",
    "ORDERS",
    "EmpiricalKappa",
    "Game",
    "Ledger",
    "Simulated",
    "Verdict",
    "ball",
    "ball_by_dimension",
    "blow_up",
    "candidates",
    "chance_in_one_run",
    "clopper_pearson",
    "compare",
    "delta_from_rero",
    "discrete",
    "empirical",
    "epsilon",
    "epsilon_by_renyi",
    "epsilon_for_gamma",
    "from_dp",
    "from_renyi",
    "from_zcdp",
    "gaussian",
    "gaussian_blow_up",
    "gaussian_by_dimension",
    "gaussian_tail",
    "noise_for_epsilon",
    "noise_for_gamma",
    "orthogonal",
    "orthogonal_success",
    "play",
    "renyi_curve",
    "rho",
    "simplex",
    "simulated_blow_up",
]
