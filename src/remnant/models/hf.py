"""A Hugging Face directory as an nn.Module: config.json says what it is, safetensors hold it.

Nothing is fetched and no code of the directory runs: the architecture must be one of the installed
`transformers`, which is imported only here and only when asked for. `transformers` itself turns
the names in the files into the names of its modules, which differ since its version 5.
"""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from remnant.errors import InputError, RemnantError, WeightsError, expected
from remnant.models.align import unmatched
from remnant.models.weights import read_tensors
from remnant.untrusted.files import json_file, shown

CONFIG = "config.json"
ADAPTER = "adapter_config.json"


def read_hf(directory: str | os.PathLike[str], *, strict: bool = True) -> nn.Module:
    """The module in evaluation mode that `save_pretrained` wrote to a directory.

    An adapter by `peft` is merged into its base, the directory that it names. strict: weights that
    are missing or left over are an error; without it, what is missing keeps random values (a new
    head on a pretrained body). Attention is computed step by step ("eager"), because attacks
    differentiate it twice.
    """
    source = Path(directory)
    if (source / ADAPTER).is_file():
        return _adapted(source)
    if not (source / CONFIG).is_file():
        got = f"a folder without {CONFIG}" if source.is_dir() else "none"
        raise WeightsError(expected(f"{source}", f"a directory with {CONFIG}", got))
    stated = json_file(source / CONFIG, WeightsError)
    weights = _stored(source)
    with _quiet_library() as transformers:
        return _loaded(transformers, source, stated, weights, strict).eval()


def small_gpt2(*, vocabulary: int, longest: int, width: int, layers: int, seed: int) -> nn.Module:
    """A language model in GPT-2's layout with random weights, in evaluation mode: `layers` blocks
    of `width` numbers a token, without dropout. The global random state stays as it is."""
    with _quiet_library() as transformers, torch.random.fork_rng():
        torch.manual_seed(seed)
        config = transformers.GPT2Config(
            vocab_size=vocabulary, n_positions=longest, n_embd=width, n_layer=layers,
            n_head=next(heads for heads in (4, 2, 1) if width % heads == 0),
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None, eos_token_id=None,
        )  # fmt: skip
        config._attn_implementation = "eager"
        model: nn.Module = transformers.GPT2LMHeadModel(config).eval()
    return model


def write_hf(directory: str | os.PathLike[str], model: Any) -> None:
    """A directory as `read_hf` reads it: configuration and safetensors."""
    with _quiet_library():
        model.save_pretrained(directory)


def _loaded(
    transformers: Any,
    source: Path,
    stated: dict[str, Any],
    weights: dict[str, Tensor],
    strict: bool,
) -> nn.Module:
    """The architecture that `stated` names, filled with `weights`."""
    kind = _architecture(transformers, source, stated, len(weights))
    wide = torch.float32
    for value in weights.values():
        wide = torch.promote_types(wide, value.dtype) if value.is_floating_point() else wide
    with _any_fault(f"{source}: {stated['model_type']}", "weights of its config.json"):
        # Names with an underscore steer the library (kernels to fetch): they describe no model.
        plain = {key: value for key, value in stated.items() if not key.startswith("_")}
        config = transformers.CONFIG_MAPPING[stated["model_type"]].from_dict(plain)
        with torch.device("meta"):
            size = sum(p.numel() for p in kind(config).parameters())
        _check_size(source, size, weights)
        model, info = kind.from_pretrained(
            None,
            config=config,
            state_dict=weights,
            attn_implementation="eager",
            dtype=wide,
            ignore_mismatched_sizes=True,  # they are told below, by name
            output_loading_info=True,
        )
    if info["mismatched_keys"]:
        name, got, own = min(info["mismatched_keys"])  # a set: the first by name, always the same
        raise WeightsError(expected(f"{source}: {name}", tuple(own), tuple(got)))
    if strict and (info["missing_keys"] or info["unexpected_keys"]):
        left = {"missing": info["missing_keys"], "left over": info["unexpected_keys"]}
        raise WeightsError(unmatched(f"{source}", left))
    found: nn.Module = model
    return found


def _stored(source: Path) -> dict[str, Tensor]:
    """All tensors of model.safetensors, or of the parts that its index lists."""
    index = source / "model.safetensors.index.json"
    if not index.is_file() or (source / "model.safetensors").is_file():
        for name in ("model.safetensors", "pytorch_model.bin", "model.bin"):
            if (source / name).is_file():
                return read_tensors(source / name)
        raise WeightsError(expected(f"{source}", "model.safetensors or its index", "neither"))
    places = json_file(index, WeightsError).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise WeightsError(expected(f"{index}", "a weight_map of names to files", shown(places)))
    for part in places.values():
        if not isinstance(part, str) or Path(part).name != part or not part.isprintable():
            raise WeightsError(expected(f"{index}", "names of files beside it", shown(part)))
    held: dict[str, Tensor] = {}
    for part in sorted(set(places.values())):
        held |= read_tensors(source / part)
    lost = [name for name in places if name not in held]
    if lost:
        raise WeightsError(unmatched(f"{index}", {"missing": lost}))
    return held


def _architecture(transformers: Any, source: Path, stated: dict[str, Any], tensors: int) -> Any:
    """The class of the installed transformers that the configuration names. What would run or fetch
    code is refused, and layers that so many tensors cannot fill."""
    what, named = f"{source / CONFIG}", stated.get("architectures")
    if not isinstance(stated.get("model_type"), str):
        raise WeightsError(
            expected(f"{what}: model_type", "a name", shown(stated.get("model_type")))
        )
    if stated.get("quantization_config") is not None:
        do = "save the model dequantised"
        raise WeightsError(expected(what, "plain weights", "quantised ones", do))
    for name, value in stated.items():
        if "layer" in name and type(value) is int and value > tensors:
            wanted = f"at most one a tensor, {tensors}"
            raise WeightsError(expected(f"{what}: {name[:40]}", wanted, shown(value)))
    first = named[0] if isinstance(named, list) and named else None
    kind = getattr(transformers, first, None) if isinstance(first, str) else None
    known = isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)
    if not known or stated["model_type"] not in transformers.CONFIG_MAPPING:
        do = "code of the hub is never run; give --model file.py:factory and its weights"
        wanted = f"an architecture of transformers {transformers.__version__}"
        got = f"{shown(first)} of {shown(stated['model_type'])}"
        raise WeightsError(expected(what, wanted, got, do))
    return kind


def _check_size(source: Path, size: int, weights: dict[str, Tensor], *, most: int = 10) -> None:
    """A model `most` times as large as its weights is not theirs: said before memory is taken."""
    held = sum(value.numel() for value in weights.values())
    if size > most * held:
        wanted = f"a model of its weights, {held} numbers"
        raise WeightsError(expected(f"{source / CONFIG}", wanted, f"one of {size}"))


def _adapted(source: Path) -> nn.Module:
    """The adapter in `source` merged into its base."""
    stated = json_file(source / ADAPTER, WeightsError)
    base = stated.get("base_model_name_or_path")
    if not isinstance(base, str) or not (Path(base) / CONFIG).is_file():
        do = f"write the base model's directory into {ADAPTER}"
        got = f"the name {shown(base)}"
        raise WeightsError(expected(f"{source / ADAPTER}", "a base on this disk", got, do))
    model = read_hf(base, strict=False)
    weights = read_tensors(source / "adapter_model.safetensors")
    with _quiet_library(), _any_fault(f"{source}", "an adapter that fits its base"):
        peft = _installed("peft")
        kind = peft.mapping.PEFT_TYPE_TO_CONFIG_MAPPING[stated["peft_type"]]
        # Its own start is replaced at once; some are computed from data or fetched.
        plain = stated | {"inference_mode": True, "init_lora_weights": True}
        plain = {key: plain[key] for key in plain if key in kind.__dataclass_fields__}
        whole = peft.PeftModel(model, kind(**plain))
        result = peft.set_peft_model_state_dict(whole, weights)
        missing = [name for name in result.missing_keys if ".lora_" in name]
        if missing or result.unexpected_keys:
            left = {"missing": missing, "left over": result.unexpected_keys}
            raise WeightsError(unmatched(f"{source}", left))
        merged: nn.Module = whole.merge_and_unload()
    return merged.eval().requires_grad_()


@contextmanager
def _any_fault(what: str, wanted: str) -> Iterator[None]:
    """These libraries raise anything for a configuration that is off: it becomes one line."""
    try:
        yield
    except RemnantError:
        raise
    except Exception as error:
        said = " ".join(str(error).split())[:200] or type(error).__name__
        raise WeightsError(expected(what, wanted, f"a fault ({said})")) from error


def _installed(name: str) -> Any:
    """A library that only these files need."""
    try:
        return importlib.import_module(name)
    except ImportError:
        what, do = "a Hugging Face directory", "pip install 'remnant[text]'"
        raise InputError(expected(what, f"{name} installed", "none", do)) from None


@contextmanager
def _quiet_library() -> Iterator[Any]:
    """transformers, offline and without its bars and reports; as it was again afterwards."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when the library is first imported
    transformers = _installed("transformers")
    log = transformers.utils.logging
    level, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity(log.CRITICAL)
    log.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its own parts that it will rename
            yield transformers
    finally:
        log.set_verbosity(level)
        if bars:
            log.enable_progress_bar()
