"""What one gradient says about the records behind a smooth layer that a dense layer follows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from remnant.solvers.batch.resimulate import slope_at


@dataclass(frozen=True, kw_only=True, eq=False)
class SmoothProblem:
    """Two layers around a smooth activation, seen from n records' coordinates y."""

    activation: nn.Module
    t: Tensor  # w x n, orthonormal columns
    to_record: Tensor  # n x (d+1), takes y to x~; n x d without a bias in the first layer
    bias: bool
    features: Tensor  # (w+1) x n or w x n, orthonormal columns: holds [f(t), 1] or f(t)
    a: Tensor  # w x n, the duals' frame
    p: Tensor  # w x n, the signals' frame
    inverse1: Tensor  # n x n
    size: float  # a root-mean-square that t cannot be far below

    @property
    def one(self) -> Tensor | None:
        """n: y . one = 1 for records, if the first layer has a bias."""
        return self.to_record[:, -1] if self.bias else None

    def images(self, t: Tensor) -> Tensor:
        """k x (w+1): what has to lie in the frame of the features."""
        with torch.no_grad():
            values: Tensor = self.activation(t)
        if len(self.features) == len(self.t):
            return values
        return torch.cat([values, torch.ones_like(values[:, :1])], dim=1)

    def slopes(self, t: Tensor) -> Tensor:
        """k x (w+1): their derivatives by t."""
        slope = slope_at(self.activation, t)
        if len(self.features) == len(self.t):
            return slope
        return torch.cat([slope, torch.zeros_like(slope[:, :1])], dim=1)

    def outside(self, images: Tensor) -> Tensor:
        """Their part outside the frame of the features."""
        return images - (images @ self.features) @ self.features.T

    def any_size(self) -> Tensor:
        """The features' frame with the image of t = 0 added: holds a record's at any small size.

        f(c t) is about f(0) + c (f(t) - f(0)), a combination of the record's image and that of 0.
        """
        zero = self.images(torch.zeros(1, len(self.t), dtype=self.t.dtype))
        if float(zero.abs().max()) == 0:
            return self.features
        frame: Tensor = torch.linalg.qr(torch.cat([self.features, zero.T], dim=1))[0]
        return frame
