"""A Hugging Face directory as an nn.Module: config.json says what it is, safetensors hold it.

Nothing is fetched and no code of the directory runs: the architecture must be one of the installed
`transformers`, which is imported only here and only when asked for. `transformers` itself turns
the names in the files into the names of its modules, which differ since its version 5.
"""

from __future__ import annotations

import os
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from remnant.errors import InputError, WeightsError, expected
from remnant.models.align import unmatched
from remnant.models.weights import read_tensors
from remnant.untrusted import json_file, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

CONFIG = "config.json"
ADAPTER = "adapter_config.json"


def read_hf(
    directory: str | os.PathLike[str],
    *,
    base: str | os.PathLike[str] | nn.Module | None = None,
    strict: bool = True,
) -> nn.Module:
    """The module in evaluation mode that `save_pretrained` wrote to a directory.

    An adapter by `peft` is merged into its base: `base` is that module or its directory, by default
    the directory that the adapter names. strict: weights that are missing or left over are an
    error; without it, what is missing keeps random values (a new head on a pretrained body).
    Attention is computed step by step ("eager"), because attacks differentiate it twice.
    """
    source = Path(directory)
    if (source / ADAPTER).is_file():
        return _adapted(source, base, strict)
    if not (source / CONFIG).is_file():
        got = f"a folder without {CONFIG}" if source.is_dir() else "none"
        raise WeightsError(expected(f"{source}", f"a directory with {CONFIG}", got))
    stated = json_file(source / CONFIG, WeightsError)
    weights = _stored(source)
    with _quiet_library() as transformers:
        model = _loaded(transformers, source, stated, weights, strict)
    return model.eval()


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
    _check_config(source, stated, len(weights))
    kind = _architecture(transformers, source, stated)
    wide = torch.float32
    for value in weights.values():
        wide = torch.promote_types(wide, value.dtype) if value.is_floating_point() else wide
    try:
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
    except (InputError, WeightsError):
        raise
    except Exception as error:  # the library raises anything for a configuration that is off
        what, wanted = f"{source}: {stated['model_type']}", "weights of its config.json"
        raise WeightsError(expected(what, wanted, _fault(error))) from error
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
    whole, index = source / "model.safetensors", source / "model.safetensors.index.json"
    if whole.is_file():
        return read_tensors(whole)
    if not index.is_file():
        for name in ("pytorch_model.bin", "model.bin"):
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


def _check_config(source: Path, stated: dict[str, Any], tensors: int) -> None:
    """Refuse what would run or fetch code, and sizes that the weights cannot have."""
    if not isinstance(stated.get("model_type"), str):
        got = shown(stated.get("model_type"))
        raise WeightsError(expected(f"{source / CONFIG}: model_type", "a name", got))
    if stated.get("quantization_config") is not None:
        do = "save the model dequantised"
        raise WeightsError(expected(f"{source / CONFIG}", "plain weights", "quantised ones", do))
    for name, value in stated.items():
        if "layer" in name and type(value) is int and value > tensors:
            wanted = f"at most one a tensor, {tensors}"
            raise WeightsError(expected(f"{source / CONFIG}: {name[:40]}", wanted, shown(value)))


def _architecture(transformers: Any, source: Path, stated: dict[str, Any]) -> Any:
    """The class of the installed transformers that the configuration names."""
    named = stated.get("architectures")
    name = named[0] if isinstance(named, list) and named else None
    kind = getattr(transformers, name, None) if isinstance(name, str) else None
    known = isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)
    if not known or stated["model_type"] not in transformers.CONFIG_MAPPING:
        do = "code of the hub is never run; give --model file.py:factory and its weights"
        wanted = f"an architecture of transformers {transformers.__version__}"
        got = f"{shown(name)} of {shown(stated['model_type'])}"
        raise WeightsError(expected(f"{source / CONFIG}", wanted, got, do))
    return kind


def _check_size(source: Path, size: int, weights: dict[str, Tensor], *, most: int = 10) -> None:
    """A model `most` times as large as its weights is not theirs: said before memory is taken."""
    held = sum(value.numel() for value in weights.values())
    if size > most * held:
        wanted = f"a model of its weights, {held} numbers"
        raise WeightsError(expected(f"{source / CONFIG}", wanted, f"one of {size}"))


def _adapted(
    source: Path, base: str | os.PathLike[str] | nn.Module | None, strict: bool
) -> nn.Module:
    """The adapter in `source` merged into its base."""
    stated = json_file(source / ADAPTER, WeightsError)
    if base is None:
        named = stated.get("base_model_name_or_path")
        if not isinstance(named, str) or not (Path(named) / CONFIG).is_file():
            do = "give the base model's directory too"
            got = f"the name {shown(named)}"
            raise WeightsError(expected(f"{source / ADAPTER}", "a base on this disk", got, do))
        base = named
    model = base if isinstance(base, nn.Module) else read_hf(base, strict=False)
    weights = read_tensors(source / "adapter_model.safetensors")
    with _quiet_library():
        peft = _installed("peft")
        try:
            kind = peft.mapping.PEFT_TYPE_TO_CONFIG_MAPPING[stated["peft_type"]]
            # Its own start is replaced at once; some are computed from data or fetched.
            plain = stated | {"inference_mode": True, "init_lora_weights": True}
            plain = {key: plain[key] for key in plain if key in kind.__dataclass_fields__}
            whole = peft.PeftModel(model, kind(**plain))
            result = peft.set_peft_model_state_dict(whole, weights)
            missing = [name for name in result.missing_keys if ".lora_" in name]
            if strict and (missing or result.unexpected_keys):
                left = {"missing": missing, "left over": result.unexpected_keys}
                raise WeightsError(unmatched(f"{source}", left))
            merged: nn.Module = whole.merge_and_unload()
        except WeightsError:
            raise
        except Exception as error:  # the library raises anything for a configuration that is off
            wanted = "an adapter that fits its base"
            raise WeightsError(expected(f"{source}", wanted, _fault(error))) from error
    return merged.eval().requires_grad_()


def _installed(name: str) -> Any:
    """A library that only these files need."""
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError:
        do = "pip install 'remnant[text]'"
        raise InputError(
            expected("a Hugging Face directory", f"{name} installed", "none", do)
        ) from None


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


def _fault(error: Exception) -> str:
    """A library's error in one short line."""
    return f"a fault ({' '.join(str(error).split())[:200] or type(error).__name__})"
