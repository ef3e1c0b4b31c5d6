"""Reference networks from strings, Linearisedd models, safe reading of a user's weights."""

from remnant.models.activations import ACTIVATIONS, Cubic, Floor, activation
from remnant.models.align import align, infer_model, load_weights
from remnant.models.build import build
from remnant.models.linearised import Linearised
from remnant.models.malicious import Trap, trap
from remnant.models.spec import ModelSpec, parse_model
from remnant.models.weights import read_weights, save_weights

__all__ = [
    "ACTIVATIONS",
    "Cubic",
    "Floor",
    "Linearised",
    "ModelSpec",
    "Trap",
    "activation",
    "align",
    "build",
    "infer_model",
    "load_weights",
    "parse_model",
    "read_weights",
    "save_weights",
    "trap",
]
