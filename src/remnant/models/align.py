"""Fit weights from elsewhere to a model: by name, or by the order of their shapes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from remnant.errors import WeightsError, expected
from remnant.types import Weights

Shapes = dict[str, tuple[int, ...]]


def load_weights(model: nn.Module, weights: Weights, *, what: str = "weights") -> None:
    """Copy `weights` into the model's parameters and buffers; nothing changes on an error."""
    aligned = align(model, weights, what=what)
    state = state_of(model)
    for name, value in model.named_buffers():
        if name in state and name not in aligned and value.is_floating_point():
            do = "save the whole state dict, buffers too"
            raise WeightsError(expected(f"{what}: {name}", tuple(value.shape), "nothing", do))
    with torch.no_grad():
        for name, value in aligned.items():
            state[name].copy_(value)


def align(
    model: nn.Module, weights: Weights, *, what: str = "weights", some: bool = False
) -> dict[str, Tensor]:
    """`weights` under the model's own names, in its order: every parameter, and buffers found.

    Names decide where they match, a common beginning aside. Otherwise the order decides, where
    the shapes in turn are the model's: so a plain nn.Sequential without Flatten or a class with
    fc1 and fc2 loads into the `mlp:` of its widths. A gradient needs no buffers, so none is
    demanded here. Values keep their dtype. some: parameters may be missing, where the rest have the
    model's own names.
    """
    wanted: Shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    # And buffers, and second names of tied parameters.
    every: Shapes = wanted | {name: tuple(b.shape) for name, b in state_of(model).items()}
    here, there = _bare(every), _bare(weights)
    if all(name in weights for name in wanted):  # tied names left out may leave a common beginning
        here, there = {name: name for name in every}, {name: name for name in weights}
    held = {bare: name for name, bare in there.items()}
    source = {name: held[bare] for name, bare in here.items() if bare in held}
    taken = {there for name, there in source.items() if name not in wanted}
    floats = [n for n, value in weights.items() if value.is_floating_point() and n not in taken]
    if all(name in source for name in wanted):
        used = {source[name] for name in wanted}
        over = [f"{name} {tuple(weights[name].shape)}" for name in floats if name not in used]
        if over:
            raise WeightsError(unmatched(what, {"left over": over}, do=_hint(weights)))
    elif some and weights and all(name in wanted for name in weights):
        source = {name: name for name in weights}
    else:
        source |= _by_order(weights, floats, wanted, what)
    found = {name: weights[source[name]].detach() for name in every if name in source}
    for name, value in found.items():
        if tuple(value.shape) != every[name]:
            do = _hint(weights)
            raise WeightsError(expected(f"{what}: {name}", every[name], tuple(value.shape), do))
        if name in wanted and not value.is_floating_point():
            raise WeightsError(expected(f"{what}: {name}", "floats", value.dtype))
    return found


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name, tied ones under each.

    As `state_dict` has them, which a user's module may have replaced by anything.
    """
    state: dict[str, Tensor] = {}
    for at, module in model.named_modules(remove_duplicate=False):
        passing = module._non_persistent_buffers_set
        held = {**module._parameters, **module._buffers}
        for name, value in held.items():
            if value is not None and name not in passing:
                state[f"{at}.{name}" if at else name] = value.detach()
    return state


def infer_model(weights: Weights) -> str | None:
    """The `mlp:` that a stack of dense weights implies, None where they are something else.

    Weights say nothing of activations: the string names none.
    """
    for names in _orders(list(weights)):
        widths: list[int] = []
        biased: list[bool] = []
        for name in names:
            shape = tuple(weights[name].shape)
            if len(shape) == 2 and (not widths or shape[1] == widths[-1]):
                widths.extend(shape[::-1] if not widths else shape[:1])
                biased.append(False)
            elif widths and not biased[-1] and shape == (widths[-1],):
                biased[-1] = True
            else:
                break
        else:
            if widths and min(widths) > 0 and len(set(biased)) == 1:
                return f"mlp:{'-'.join(map(str, widths))}{'' if biased[0] else ':nobias'}"
    return None


def _bare(names: Iterable[str]) -> dict[str, str]:
    """Each name without the leading components that all of them share (`module.`, `net.`)."""
    bare = {name: name for name in names}
    while len({name.partition(".")[0] for name in bare.values()}) == 1:
        if not all("." in name for name in bare.values()):
            break
        bare = {name: rest.partition(".")[2] for name, rest in bare.items()}
    return bare


def _by_order(weights: Weights, names: list[str], wanted: Shapes, what: str) -> dict[str, str]:
    """Which of `names` stands for which parameter, where the shapes in turn are the same."""
    shapes, orders = {name: tuple(weights[name].shape) for name in names}, _orders(names)
    for order in orders:
        if [shapes[name] for name in order] == list(wanted.values()):
            if names == sorted(names):
                _refuse_guess(order, shapes, wanted, what)
            return dict(zip(wanted, order, strict=True))
    do, lacking = _hint(weights), [name for name in wanted if name not in weights]
    if 2 * len(lacking) < len(wanted):  # the names are the model's, but not all of them
        left = {"missing": lacking, "left over": [name for name in names if name not in wanted]}
        raise WeightsError(unmatched(what, left, do=do))
    for (name, shape), theirs in zip(wanted.items(), orders[0], strict=False):
        if shapes[theirs] != shape:
            got = f"{shapes[theirs]} ({theirs})"
            raise WeightsError(expected(f"{what}: {name}", shape, got, do))
    tensors = f"{len(wanted)} tensors, one a parameter"
    raise WeightsError(expected(what, tensors, len(names), do))


def _orders(names: list[str]) -> list[list[str]]:
    """The orders worth trying: the file's own, then by number with a weight before its bias.

    safetensors keeps no order: names are read as sorted text, 10 before 2, bias before weight.
    So sorted text is not taken for an order.
    """

    def natural(name: str) -> tuple[list[tuple[int, str]], bool, str]:
        layer, _, leaf = name.rpartition(".")
        parts = re.split(r"([0-9]+)", layer)
        key = [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]
        return key, leaf != "weight", leaf

    ordered = sorted(names, key=natural)
    return [ordered] if names == sorted(names) else [names, ordered]


def _refuse_guess(order: list[str], shapes: Shapes, names: Iterable[str], what: str) -> None:
    """Sorted names order layers of one shape only where numbers tell them apart."""
    seen: dict[tuple[int, ...], str] = {}
    for name in order:
        other = seen.setdefault(shapes[name], name)
        if len(shapes[name]) > 1 and re.sub("[0-9]+", "#", other) != re.sub("[0-9]+", "#", name):
            wanted = f"names that say which of {other} and {name} comes first"
            do = f"name them as the model does: {', '.join(names)}"
            raise WeightsError(expected(what, wanted, f"{shapes[name]} twice", do))


def unmatched(what: str, names: Mapping[str, Iterable[str]], *, most: int = 3, do: str = "") -> str:
    """The error's sentence for names of weights that do not match a model's, by how they do not.

    It names the first `most` of each and counts the rest.
    """
    said = []
    for how, held in names.items():
        listed = sorted(held)
        more = f" and {len(listed) - most} more" if len(listed) > most else ""
        if listed:
            said.append(f"{how} {', '.join(listed[:most])}{more}")
    return expected(what, "the weights of this model", "; ".join(said), do)


def _hint(weights: Weights) -> str:
    looks = infer_model(weights)
    return f"these weights look like {looks}" if looks else "give the model that they belong to"
