"""Hugging Face directories: what transformers and peft saved comes back, and nothing runs."""

import json
import subprocess
import sys

import pytest
import torch
from torch import nn

from remnant.errors import WeightsError
from remnant.models.hf import read_hf

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")
SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}


def bert():
    config = transformers.BertConfig(vocab_size=50, max_position_embeddings=16, **SMALL)
    return transformers.BertForSequenceClassification(config).eval()


def gpt2():
    config = transformers.GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2, n_positions=16)
    return transformers.GPT2LMHeadModel(config).eval()


def vit():
    config = transformers.ViTConfig(image_size=16, patch_size=8, **SMALL)
    return transformers.ViTForImageClassification(config).eval()


def same_outputs(one, other):
    tokens = torch.arange(6)[None]
    image = torch.linspace(0, 1, 3 * 16 * 16).reshape(1, 3, 16, 16)
    given = image if "ViT" in type(one).__name__ else tokens
    with torch.no_grad():
        torch.testing.assert_close(one(given).logits, other(given).logits)


@pytest.mark.parametrize("make", [bert, gpt2, vit])
@pytest.mark.parametrize("size", ["1GB", "10KB"])
def test_a_saved_model_comes_back(tmp_path, make, size):
    torch.manual_seed(0)
    model = make()
    model.save_pretrained(tmp_path, max_shard_size=size)
    assert size == "1GB" or len(list(tmp_path.glob("*.safetensors"))) > 1
    read = read_hf(tmp_path)
    assert not read.training
    for (name, value), (other, theirs) in zip(
        model.state_dict().items(), read.state_dict().items(), strict=True
    ):
        assert name == other
        assert torch.equal(value, theirs)
    same_outputs(model, read)


def test_attention_can_be_differentiated_twice(tmp_path):
    model = bert()
    model.save_pretrained(tmp_path)
    read = read_hf(tmp_path).double()
    gradients = torch.autograd.grad(
        read(torch.arange(6)[None]).logits.sum(), list(read.parameters()), create_graph=True
    )
    sum(g.square().sum() for g in gradients).backward()


@pytest.mark.parametrize("make", [bert, gpt2])
def test_an_adapter_is_merged_into_its_base(tmp_path, make):
    torch.manual_seed(0)
    model = make()
    model.save_pretrained(tmp_path / "base")
    kind = "SEQ_CLS" if make is bert else "CAUSAL_LM"
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=3, lora_alpha=8, task_type=kind))
    with torch.no_grad():
        for name, value in adapted.named_parameters():
            if "lora_" in name:
                value.normal_()
    adapted.save_pretrained(tmp_path / "adapter")
    config = tmp_path / "adapter" / "adapter_config.json"
    stated = json.loads(config.read_text()) | {"base_model_name_or_path": str(tmp_path / "base")}
    config.write_text(json.dumps(stated))
    same_outputs(adapted.merge_and_unload(), read_hf(tmp_path / "adapter"))
    config.write_text(json.dumps(stated | {"base_model_name_or_path": "someone/else"}))
    with pytest.raises(WeightsError, match="a base on this disk"):
        read_hf(tmp_path / "adapter")


def test_missing_and_left_over_weights_are_listed(tmp_path):
    model = bert()
    weights = model.state_dict()
    del weights["classifier.weight"]
    model.save_pretrained(tmp_path, state_dict=weights | {"other.weight": torch.ones(2)})
    with pytest.raises(WeightsError, match=r"missing classifier.weight; left over other.weight"):
        read_hf(tmp_path)
    assert isinstance(read_hf(tmp_path, strict=False), nn.Module)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_type": "nobody"}, "an architecture of transformers"),
        ({"architectures": ["Trainer"]}, "an architecture of transformers"),
        ({"architectures": ["Made"], "auto_map": {"AutoModel": "x.Made"}}, "never run"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
        ({"num_hidden_layers": 10**9}, "at most one a tensor"),
        ({"vocab_size": 10**9}, "a model of its weights"),
        ({"hidden_size": 17}, "a fault"),
        ({"intermediate_size": 33}, "layer.0.intermediate.dense.bias"),
    ],
)
def test_a_configuration_that_is_off_is_one_line(tmp_path, change, said):
    bert().save_pretrained(tmp_path)
    stated = json.loads((tmp_path / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps(stated))
    with pytest.raises(WeightsError, match=said):
        read_hf(tmp_path)


def test_an_index_leads_to_files_beside_it_alone(tmp_path):
    bert().save_pretrained(tmp_path, max_shard_size="10KB")
    path = tmp_path / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    first = next(iter(index["weight_map"]))
    index["weight_map"][first] = "../other.safetensors"
    path.write_text(json.dumps(index))
    with pytest.raises(WeightsError, match="names of files beside it"):
        read_hf(tmp_path)


def test_transformers_is_imported_only_when_asked_for():
    code = "import remnant.models.hf, sys; assert 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
