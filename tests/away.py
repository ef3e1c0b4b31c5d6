"""A device that is not there: tensors on it compute on the CPU, and refuse company from the CPU.

`torch.zeros(2, device=AWAY)` holds real numbers, so that whatever is computed there comes out as on
the CPU, while an operation that mixes in a tensor of the CPU raises, as on a GPU. So do the other
things that a GPU does not do: numpy, a generator of the CPU, least squares of matrices that lack
rank. AWAY is called "meta" because that is a device on which autograd works on every machine.
"""

from contextlib import contextmanager

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

AWAY = torch.device("meta")
aten = torch.ops.aten
JOINS = (aten.cat.default, aten.stack.default)
INDEXED = (aten.index.Tensor, aten.index_put.default, aten.index_put_.default)


def is_list(index):
    return isinstance(index, list)


def indices(some):
    return torch.tensor(some, dtype=None if some else torch.long)


class Away(Tensor):
    """A tensor that says it lives on AWAY; `held` is where its numbers are."""

    @staticmethod
    def __new__(cls, held):
        return Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=AWAY,
        )

    def __init__(self, held):
        # The dispatcher, which is passed by now, unpacks autograd's zeros that take no memory.
        self.held = held.new_zeros(held.shape) if held._is_zerotensor() else held

    def __repr__(self):
        return f"Away({self.held})"

    @property
    def data(self):
        return Tensor.data.__get__(self)

    @data.setter
    def data(self, other):
        Tensor.data.__set__(self, other)
        self.held = other.held

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is Tensor.tolist:
            return args[0].held.tolist()
        if func in (Tensor.numpy, Tensor.__array__):
            raise TypeError("can't convert a tensor of another device to numpy: use .cpu()")
        if func in (Tensor.__getitem__, Tensor.__setitem__):  # lists never pass the dispatcher
            args = (args[0], tree_map_only(list, indices, args[1], is_leaf=is_list), *args[2:])
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return away(func, args, kwargs or {})


class Pretending(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return away(func, args, kwargs or {})


class Making(TorchFunctionMode):
    """What is made of Python's numbers never passes the dispatcher on its way to a device."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in (torch.tensor, torch.as_tensor, torch.asarray):
            device = torch.device(kwargs.get("device") or torch.get_default_device())
            if device == AWAY:
                return func(*args, **{**kwargs, "device": "cpu"}).to(AWAY)
        if func is Tensor.new_tensor and isinstance(args[0], Away):
            return func(args[0].held, *args[1:], **kwargs).to(AWAY)
        return func(*args, **kwargs)


@contextmanager
def pretending():
    """AWAY is there inside the block."""
    swapping = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)  # else `held` would stay behind
    try:
        with Pretending(), Making():
            yield
    finally:
        torch.__future__.set_swap_module_params_on_conversion(swapping)


def away(func, args, kwargs):
    given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    there = [t for t in given if isinstance(t, Away)]
    device = kwargs.get("device")
    goes = bool(there) if device is None else torch.device(device) == AWAY
    if there or goes:
        check(func, args, kwargs, given, there)
    if device is not None:
        kwargs = {**kwargs, "device": torch.device("cpu") if goes else device}
    if there and torch.Tag.inplace_view in func.tags:  # squeeze_ changes the outer shape too
        with no_dispatch():
            func(*args, **kwargs)
    inner = {id(t.held): t for t in there}
    args, kwargs = tree_map_only(Away, lambda t: t.held, (args, kwargs))
    found = func(*args, **kwargs)
    if not goes:
        return found
    return tree_map_only(Tensor, lambda t: inner[id(t)] if id(t) in inner else Away(t), found)


def check(func, args, kwargs, given, there):
    if func in INDEXED:  # indices may live anywhere, values of one number too
        given = [t for t in tree_leaves((args[:1], args[2:])) if isinstance(t, Tensor)]
    copies = func in (aten.copy_.default, aten._to_copy.default)
    alone = [t for t in given if not isinstance(t, Away) and (t.ndim or func in JOINS)]
    if there and alone and not copies:
        raise RuntimeError(f"{func}: expected all tensors on one device, got one of the CPU")
    if kwargs.get("generator") is not None:
        raise RuntimeError(f"{func}: expected a generator of the device, got one of the CPU")
    if func is aten.linalg_lstsq.default:
        raise RuntimeError(f"{func}: only full rank on a GPU")
