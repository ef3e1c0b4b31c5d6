"""Images out of one gradient of a vision transformer: its tokens are patches, in no order.

Each image is a class token and its patches, which a strided convolution embeds; the places are
learned. The first block's states (`read_states`) give every patch up to the number that its norm
hides, the gradient of the convolution gives the space that all patches lie in, and so a state tells
its place and its patch by least squares. Attention tells which patches are of one image
(`stood_together`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from remnant.solvers.numerics import best_fit
from remnant.solvers.sequence.layouts import Layout, centred, normed
from remnant.solvers.sequence.states import States, Unordered, read_states, stood_together
from remnant.types import Evidence, Weights


@dataclass(frozen=True, kw_only=True, eq=False)
class Patches:
    """How a layout embeds patches. weight: width x (channels height width of a patch)."""

    weight: Tensor
    bias: Tensor
    places: Tensor  # (1 + patches) x width, the class token's first
    token: Tensor  # width: the class token
    shape: tuple[int, int, int]

    @property
    def count(self) -> int:
        return len(self.places) - 1

    def states(self, patches: Tensor, places: Tensor) -> Tensor:
        """What the blocks are given for patches (k x entries) at places (k, from 1)."""
        return patches @ self.weight.T + self.bias + self.places[places]


def patches_of(layout: Layout, weights: Weights) -> Patches | str:
    """How patches are embedded, or which part was not recognised."""
    convolution, table, token = layout.patches, layout.positions, layout.class_token
    if convolution is None or convolution.bias is None or weights[convolution.weight].ndim != 4:
        return "images, but no convolution with a bias that embeds their patches was recognised"
    if table is None or token is None:
        return "images, but no learned places with a class token were recognised"
    kernel = weights[convolution.weight]
    return Patches(
        weight=kernel.flatten(1),
        bias=weights[convolution.bias],
        places=weights[table].reshape(-1, layout.width),
        token=weights[token].flatten(),
        shape=(kernel.shape[1], kernel.shape[2], kernel.shape[3]),
    )


def recover_images(
    model: nn.Module,
    layout: Layout,
    evidence: Evidence,
    shape: tuple[int, ...],
    *,
    generator: torch.Generator,
) -> Unordered:
    """The batch of images (of that shape) behind one gradient, as far as it was found."""
    patches = patches_of(layout, evidence.start)
    if isinstance(patches, str):
        return _none(shape, patches)
    channels, high, wide = patches.shape
    grid = [size // side for size, side in zip(shape[1:], (high, wide), strict=False)]
    if len(shape) != 3 or shape[0] != channels or grid[0] * grid[1] != patches.count:
        wanted = f"{patches.count} patches of {channels} x {high} x {wide}"
        return _none(shape, f"an image has {wanted} in this model, which {shape} does not give")
    alone = one_image(layout, evidence, patches)
    if alone is not None:
        return Unordered(
            inputs=whole(alone[None], patches, grid), counted=1, reason="1 image, by least squares"
        )
    states = read_states(model, layout, evidence, generator=generator)
    if isinstance(states, str):
        return _none(shape, states)
    counted, rest = divmod(states.counted, patches.count + 1)
    if rest:
        each = f"{states.counted} tokens, which are no whole images of {patches.count + 1}"
        return _none(shape, each)
    found, places = locate(evidence, layout, patches, states, counted)
    records = together(evidence.start, layout, patches, states, found, places)
    images = torch.stack([found[record[1:]] for record in records]) if records else found[:0]
    return Unordered(
        inputs=whole(images.reshape(len(records), patches.count, -1), patches, grid),
        counted=counted,
        reason=f"{len(records)} of {counted} images put together from {len(states)} of "
        f"{states.counted} tokens",
    )


def one_image(layout: Layout, evidence: Evidence, patches: Patches) -> Tensor | None:
    """The patches of a single image, or None where there are more: the gradient at each patch is
    that of its place, and the convolution's gradient is their products with the patches."""
    assert layout.patches is not None
    assert layout.positions is not None
    gradient = evidence.vector[layout.patches.weight].flatten(1)
    signals = evidence.vector[layout.positions].reshape(-1, layout.width)[1:].T
    if len(signals) <= signals.shape[1]:
        return None
    found = best_fit(signals, gradient)
    left = (signals @ found - gradient).norm() / gradient.norm()
    # Rounding, against all that a second image adds: nothing lies between.
    return found if float(left) < evidence.precision**0.5 else None


def locate(
    evidence: Evidence, layout: Layout, patches: Patches, states: States, counted: int
) -> tuple[Tensor, Tensor]:
    """Patches (T x entries, 0 for class tokens) and places (T) that the states fit best."""
    assert layout.patches is not None
    gradient = evidence.vector[layout.patches.weight].flatten(1)
    right = torch.linalg.svd(gradient, full_matrices=False)[2]
    span = right[: counted * patches.count].T  # entries x r: all patches lie in it
    frame = centred((patches.weight @ span).T).T  # width x r
    shifted = centred(patches.places + patches.bias)
    outside = torch.linalg.qr(frame)[0]
    outside = torch.eye(layout.width, dtype=frame.dtype) - outside @ outside.T
    off = torch.cdist(states.before @ outside, shifted @ outside)  # T x (1 + patches)
    off[:, 0] = (states.before - centred(patches.places[:1] + patches.token)).norm(dim=1)
    places = off.argmin(1)
    inner = best_fit(frame, (states.before - shifted[places]).T)
    return (span @ inner).T * (places > 0)[:, None], places


def together(
    weights: Weights,
    layout: Layout,
    patches: Patches,
    states: States,
    found: Tensor,
    places: Tensor,
) -> list[list[int]]:
    """Tokens (rows of `found`) of each image, the class token first."""
    inputs = patches.states(found, places)
    inputs[places == 0] = patches.places[0] + patches.token
    first = {0: int((places == 0).int().argmax())}  # the class token is the same in all images
    own = torch.tensor([first.get(place, i) for i, place in enumerate(places.tolist())])
    kinds, kind = own.unique(return_inverse=True)
    read = normed(weights, layout.blocks[0].attention_norm, inputs[kinds])
    records = stood_together(layout, weights, read, places[kinds], kind, states.gathered)
    return [kinds[list(r)].tolist() for r in records if len(r) == patches.count + 1]


def whole(patches: Tensor, embedding: Patches, grid: list[int]) -> Tensor:
    """Images (k x channels x height x width) of k x count x entries patches, row by row."""
    channels, high, wide = embedding.shape
    parts = patches.reshape(-1, *grid, channels, high, wide).permute(0, 3, 1, 4, 2, 5)
    return parts.reshape(-1, channels, grid[0] * high, grid[1] * wide)


def _none(shape: tuple[int, ...], reason: str) -> Unordered:
    return Unordered(inputs=torch.zeros(0, *shape).double(), counted=None, reason=reason)
