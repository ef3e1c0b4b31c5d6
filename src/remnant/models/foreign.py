"""A user's own module: code that may do and raise anything, so that it runs behind a guard.

What it raises becomes one line that names it, `sys.exit` too: an exit code is ours to give.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from remnant.errors import InputError, RemnantError, expected, text_of
from remnant.models.tokens import logits_of, outputs_for

USER_MODULES = "_remnant_user_"  # how a model's own file is named once it is imported
OURS = ("torch", "remnant")


@contextmanager
def guarded(doing: str) -> Iterator[None]:
    """Run a user's code: whatever it raises becomes an InputError that begins with `doing`. Only
    Ctrl-C passes."""
    try:
        yield
    except (KeyboardInterrupt, RemnantError):
        raise
    except BaseException as error:
        where = _where(error)
        place = f" ({where})" if where else ""
        raise InputError(f"{doing}: {_brief(error)}{place}") from error


def blamed(error: BaseException) -> InputError | None:
    """The error as one of the user's code, with the line that it came out of; None if it came from
    elsewhere.

    For whoever runs a whole command, since solvers call a user's model from everywhere.
    """
    where = _where(error)
    return None if where is None else InputError(f"model {where}: it raised {_brief(error)}")


def check_module(model: object, what: str) -> nn.Module:
    """The module that a factory returned, if its parameters are numbers that can be set."""
    if not isinstance(model, nn.Module):
        got = f"a {type(model).__name__}"
        raise InputError(expected(what, "a factory that returns an nn.Module", got))
    with guarded(f"{what}: reading its parameters failed"):
        held: dict[str, Any] = dict(model.named_parameters())
        for name, value in (held | dict(model.named_buffers())).items():
            fault = _fault_of(value, parameter=name in held)
            if fault:
                do = "give every layer its sizes, and values on the CPU"
                raise InputError(expected(f"{what}: {name}", "dense real numbers", fault, do))
    if not held:
        raise InputError(expected(what, "a module with parameters", "none"))
    return model


def check_outputs(model: nn.Module, inputs: Tensor, what: str = "--model") -> Tensor:
    """The outputs for a few inputs, n x c: one row of finite real numbers each, or an InputError.

    They must be differentiable too: every attack asks for gradients. Of tokens (whole numbers, see
    `remnant.models.tokens`) a language model has such a row at each place, n x length x c.
    """
    shape = tuple(inputs.shape[1:])
    wanted = f"a model of inputs {shape}" if inputs.is_floating_point() else "a model of tokens"
    with guarded(f"{what}: expected {wanted}, got an error"):
        like = next(p for p in model.parameters() if p.is_floating_point())
        with torch.enable_grad():
            given = inputs.detach()
            given = given.to(like).requires_grad_() if given.is_floating_point() else given
            outputs = outputs_for(model.eval(), given)
        fault = _fault_of_outputs(outputs, len(inputs), given)
    if fault is not None:
        do = "wrap it in a module that returns the logits alone, c of each record"
        raise InputError(expected(f"{what}: forward", "n x c finite real numbers", fault, do))
    assert isinstance(outputs, Tensor)
    return outputs.detach()


def real_outputs(outputs: object, count: int, what: str) -> Tensor:
    """What a forward returned, or its logits, if a loss can be taken of it."""
    outputs = logits_of(outputs)
    if not isinstance(outputs, Tensor) or not outputs.is_floating_point():
        got = f"{outputs.dtype}" if isinstance(outputs, Tensor) else f"a {type(outputs).__name__}"
        raise InputError(expected(f"{what}: forward", f"{count} x c real numbers", got))
    return outputs


def _fault_of_outputs(outputs: object, count: int, inputs: Tensor) -> str | None:
    if not isinstance(outputs, Tensor):
        return f"a {type(outputs).__name__}"
    if outputs.layout != torch.strided or not outputs.is_floating_point():
        return f"{outputs.dtype}, {outputs.layout}"
    ranks = (2,) if inputs.is_floating_point() else (2, 3)
    if outputs.ndim not in ranks or len(outputs) != count or not outputs.shape[-1]:
        return f"the shape {tuple(outputs.shape)} for {count} records"
    if not bool(torch.isfinite(outputs).all()):
        return "NaN or infinity"
    return None if outputs.requires_grad else "outputs without a gradient (no_grad or detach)"


def _fault_of(value: Tensor, *, parameter: bool) -> str | None:
    if isinstance(value, UninitializedParameter | UninitializedBuffer):
        return "a lazy one that has no shape yet"
    if value.device.type != "cpu" or value.layout != torch.strided:
        return f"{value.layout} on {value.device}"
    if value.is_complex() or (parameter and not value.is_floating_point()):
        return f"{value.dtype}"
    return None


def _where(error: BaseException) -> str | None:
    """The innermost line of the user's code that the error came through."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if frame.f_globals.get("__name__", "").startswith(USER_MODULES):
            return f"{frame.f_code.co_filename}, line {line}"
        if _is_foreign_method(frame):
            kind = type(frame.f_locals["self"])
            return f"{kind.__module__}.{kind.__qualname__}"
    return None


def _is_foreign_method(frame: FrameType) -> bool:
    """Whether the frame is a method of a module that belongs neither to PyTorch nor to Remnant."""
    mine = frame.f_locals.get("self")
    return isinstance(mine, nn.Module) and type(mine).__module__.split(".")[0] not in OURS


def _brief(error: BaseException) -> str:
    """An error's kind and the first line of its text, which is the user's code's own."""
    try:
        lines = text_of(error).strip().splitlines()
    except BaseException:  # even that
        lines = []
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
