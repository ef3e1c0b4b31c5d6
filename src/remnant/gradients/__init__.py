"""The algebra of parameter gradients: weighted sums, Gram matrices, inner products.

A model maps `n x shape` to `n x c`. Every function takes the model's own parameters, or `weights`
in their place; gradients are then taken for the parameters that `weights` names, the others stand
still.
"""

from remnant.gradients.ntk import gram, gram_autograd, kernel_distance
from remnant.gradients.smoothing import SmoothReLU, smoothed
from remnant.gradients.sums import inner_products, weighted_sum

__all__ = [
    "SmoothReLU",
    "gram",
    "gram_autograd",
    "inner_products",
    "kernel_distance",
    "smoothed",
    "weighted_sum",
]
