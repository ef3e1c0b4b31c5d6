"""From what a run spent on privacy to how often any attack can reconstruct a record.

Floats and NumPy only. kappa and gamma are natural logarithms throughout, but where a name says
otherwise: in 784 dimensions they are below 1e-200.
"""

from remnant.bounds.accounting import (
    ORDERS,
    Ledger,
    epsilon,
    epsilon_by_renyi,
    noise_for_epsilon,
    renyi_curve,
    rho,
)
from remnant.bounds.priors import (
    ball,
    candidates,
    empirical,
    gaussian,
)
from remnant.bounds.robustness import (
    blow_up,
    chance_in_one_run,
    delta_from_robustness,
    epsilon_for_gamma,
    from_dp,
    from_finite_set,
    from_renyi,
    from_renyi_at,
    from_zcdp,
    gaussian_blow_up,
    noise_for_gamma,
)
from remnant.bounds.verdict import Verdict, clopper_pearson, compare

__all__ = [
    "ORDERS",
    "Ledger",
    "Verdict",
    "ball",
    "blow_up",
    "candidates",
    "chance_in_one_run",
    "clopper_pearson",
    "compare",
    "delta_from_robustness",
    "empirical",
    "epsilon",
    "epsilon_by_renyi",
    "epsilon_for_gamma",
    "from_dp",
    "from_finite_set",
    "from_renyi",
    "from_renyi_at",
    "from_zcdp",
    "gaussian",
    "gaussian_blow_up",
    "noise_for_epsilon",
    "noise_for_gamma",
    "renyi_curve",
    "rho",
]
