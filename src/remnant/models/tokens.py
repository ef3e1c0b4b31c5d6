"""Models whose inputs are tokens: how a batch of ragged lengths is given to them, what comes out.

A batch is n x length whole numbers, one row a sequence, -1 after its end. Outputs are the logits:
n x length x vocabulary of a language model, n x classes of a classifier.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from remnant.models.stack import first_with_weights


def logits_of(outputs: object) -> object:
    """What a forward returned, or its `logits`, where it is a table or a ModelOutput with them."""
    if isinstance(outputs, Mapping) and "logits" in outputs:
        return outputs["logits"]
    held = None if isinstance(outputs, Tensor) else getattr(outputs, "logits", None)
    return held if isinstance(held, Tensor) else outputs


def give_logits(model: nn.Module) -> nn.Module:
    """The same model; called, it returns the logits alone, whatever its forward returns."""
    plain = isinstance(model, nn.Sequential)  # of layers, which return tensors
    if not plain and _only_logits not in model._forward_hooks.values():
        model.register_forward_hook(_only_logits)
    return model


def _only_logits(module: nn.Module, given: object, outputs: object) -> object:
    return logits_of(outputs)


def giving_logits(model: nn.Module, inputs: Tensor) -> nn.Module:
    """The model itself, if it returns a tensor for the inputs; else a copy that gives logits."""
    like = next(model.parameters())
    with torch.no_grad():
        outputs = model(inputs.to(like) if inputs.is_floating_point() else inputs.clamp_min(0))
    return model if isinstance(outputs, Tensor) else give_logits(copy.deepcopy(model))


def takes_tokens(model: nn.Module) -> bool:
    """Whether a model's inputs are tokens: a Hugging Face one says so, another begins with them."""
    named = getattr(model, "main_input_name", None)
    if isinstance(named, str):
        return named == "input_ids"
    return isinstance(first_with_weights(model), nn.Embedding)


def vocabulary_of(model: nn.Module) -> int:
    """How many different tokens the model takes; 0 where it takes none."""
    if isinstance(getattr(model, "main_input_name", None), str):
        embedding = model.get_input_embeddings()  # type: ignore[operator]
    else:
        embedding = next((m for m in model.modules() if isinstance(m, nn.Embedding)), None)
    return int(embedding.num_embeddings) if isinstance(embedding, nn.Embedding) else 0


def longest_of(model: nn.Module, *, otherwise: int = 1024) -> int:
    """The most tokens of one sequence, by the model's configuration; `otherwise` if it is silent.

    RoBERTa's and its like count positions from behind the padding token, so two are never used.
    """
    config = getattr(model, "config", None)
    for name in ("max_position_embeddings", "n_positions"):
        held = getattr(config, name, None)
        if isinstance(held, int) and held > 0:
            shifted = "roberta" in str(getattr(config, "model_type", ""))
            return held - 2 if shifted and held > 2 else held
    return otherwise


def outputs_for(model: nn.Module, inputs: Tensor) -> object:
    """The logits for inputs: numbers as they are, tokens with a mask where the model takes one.

    Past the end of a sequence stands the model's padding token, and the mask is 0 there.
    """
    if inputs.is_floating_point():
        return logits_of(model(inputs))
    here = inputs >= 0
    padding = getattr(getattr(model, "config", None), "pad_token_id", None)
    tokens = inputs.where(here, inputs.new_tensor(padding if isinstance(padding, int) else 0))
    if "attention_mask" in inspect.signature(model.forward).parameters:
        return logits_of(model(tokens, attention_mask=here.long()))
    return logits_of(model(tokens))


def is_causal(model: nn.Module, tokens: Tensor) -> bool:
    """Whether a language model sees only what came before: a changed last token (of the longest row
    of `tokens`) then leaves all other outputs as they are."""
    row = tokens[(tokens >= 0).sum(1).argmax()]
    row = row[row >= 0]
    if len(row) < 2:
        return True
    other = row.clone()
    other[-1] = (other[-1] + 1) % max(2, vocabulary_of(model))
    mode = model.training
    with torch.no_grad():
        model.eval()
        outputs = outputs_for(model, torch.stack([row, other]))
        model.train(mode)
    if not isinstance(outputs, Tensor) or outputs.ndim != 3:
        return False
    return torch.allclose(outputs[0, :-1], outputs[1, :-1], atol=1e-5, rtol=1e-4)
