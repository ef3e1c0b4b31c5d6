"""Texts out of gradients, checkpoints and optimizers of small causal transformers, exactly."""

import copy
import dataclasses

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from remnant.attacks import ATTACKS
from remnant.attacks.about import Scene
from remnant.capturing import capture
from remnant.data.texts import padded
from remnant.errors import WeightsError
from remnant.models.optimizers import read_optimizer
from remnant.solvers.sequence.certificate import compare, gradient_of
from remnant.solvers.sequence.families import is_transformer, read_layout
from remnant.solvers.sequence.labels import alike_flows, counts_of
from remnant.solvers.sequence.recover import Held, moved_rows
from remnant.solvers.sequence.tolerances import Tolerances
from remnant.types import Examples, Knowledge, Status, Target, token_rows
from text_case import gpt2

VOCABULARY = 300


def llama(width=64, seed=0, **more):
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=width, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=160, max_position_embeddings=48,
        bos_token_id=None, eos_token_id=None, **more,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return transformers.LlamaForCausalLM(config).eval()


def untied(width=64, seed=0):
    import transformers

    config = gpt2(width).config
    config.tie_word_embeddings = False
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return transformers.GPT2LMHeadModel(config).eval()


class Plain(nn.Module):
    """A language model around nn.TransformerEncoder, as tutorials build it."""

    def __init__(self, width=64, norm_first=True, causal=True):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.place = nn.Parameter(0.1 * torch.randn(48, width))
        layer = nn.TransformerEncoderLayer(
            width, 4, 160, dropout=0.0, batch_first=True, norm_first=norm_first
        )
        end = nn.LayerNorm(width) if norm_first else None
        self.blocks = nn.TransformerEncoder(layer, 2, norm=end, enable_nested_tensor=False)
        self.head, self.causal = nn.Linear(width, VOCABULARY, bias=False), causal

    def forward(self, tokens):
        length = tokens.shape[1]
        states = self.embed(tokens) * 2.0 + self.place[:length]
        mask = nn.Transformer.generate_square_subsequent_mask(length) if self.causal else None
        return self.head(self.blocks(states, mask=mask))


def plain(seed=0, **more):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Plain(**more).eval()


def texts(count=3, length=12, seed=1, ragged=False, vocabulary=VOCABULARY):
    draw = torch.Generator().manual_seed(seed)
    rows = torch.randint(0, vocabulary, (count, length), generator=draw).tolist()
    return [row[: length - 2 * i] if ragged else row for i, row in enumerate(rows)]


def examples(rows):
    inputs = padded(rows)
    ids = tuple(f"t{i}" for i in range(len(rows)))
    return Examples(inputs=inputs, labels=torch.zeros(len(rows)), ids=ids, bounds=None)


def attacked(model, **known):
    target = Target(model=model, input_shape=(48,), bounds=None, knowledge=Knowledge(**known))
    return ATTACKS["gradient"]()(target, generator=torch.Generator().manual_seed(0))


def found_in(candidates):
    return sorted(token_rows(candidates.inputs))


def weights(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def test_noise_at_every_place_leaves_texts_as_long_as_the_positions():
    model, rows = plain(), texts()
    draw = torch.Generator().manual_seed(3)
    gradient = {
        name: g + 1e-3 * g.std() * torch.randn(g.shape, generator=draw)
        for name, g in capture(model, "ce", examples(rows)).items()
    }
    found = attacked(model, gradient=gradient)
    assert found.status is Status.INCONCLUSIVE
    assert found.inputs.shape[1] <= 49


@pytest.mark.parametrize(
    "make", [gpt2, untied, llama, plain, lambda: plain(norm_first=False), lambda: gpt2(seed=5)]
)
def test_ragged_texts_come_back_from_one_gradient(make):
    model, rows = make(), texts(ragged=True)
    found = attacked(model, gradient=capture(model, "ce", examples(rows)))
    assert found.status is Status.COMPLETE, found.reason
    assert found_in(found) == sorted(rows)
    assert found.stated.counted == found.stated.certified == 3
    assert found.figures["unexplained"] < 1e-5


def test_repeated_texts_shared_beginnings_and_one_inside_another_are_counted():
    model, first = gpt2(), texts(1)[0]
    rows = [first, first, [*first[:6], 7, 8, 9], first[:4]]
    found = attacked(model, gradient=capture(model, "ce", examples(rows)))
    assert found.status is Status.COMPLETE, found.reason
    assert found_in(found) == sorted(rows)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_coarse_gradients_are_certified_at_their_own_rounding(dtype):
    model, rows = gpt2(128), texts()
    gradient = {n: g.to(dtype) for n, g in capture(model, "ce", examples(rows)).items()}
    found = attacked(model, gradient=gradient)
    assert found.status is Status.COMPLETE, found.reason
    assert found_in(found) == sorted(rows)
    assert 1e-5 < found.figures["unexplained"] < torch.finfo(dtype).eps


def test_smoothing_prompts_without_loss_and_other_means_are_told_by_what_fits():
    model, rows = gpt2(), texts(ragged=True)

    def loss(outputs, labels):
        kept = [F.cross_entropy(out[2 : len(row) - 1], torch.tensor(row[3:]), label_smoothing=0.1)
                for out, row in zip(outputs, rows, strict=True)]  # fmt: skip
        return torch.stack(kept).sum() * 3.0  # by sequence, the first tokens without a loss

    gradient = capture(model, loss, (padded(rows), padded(rows)))
    found = attacked(model, gradient=gradient)
    assert found.status is Status.COMPLETE, found.reason
    assert found_in(found) == sorted(rows)
    assert found.figures["smoothing"] == pytest.approx(0.1, abs=1e-3)


def test_more_prefixes_than_the_width_say_so_and_leave_the_set_of_tokens():
    model, rows = untied(), texts(8, 12)
    found = attacked(model, gradient=capture(model, "ce", examples(rows)))
    assert found.status is Status.INCONCLUSIVE
    assert len(found) == 0
    assert "as the model is wide (64)" in found.reason
    assert set(found.figures["tokens"]) == {t for row in rows for t in row[:-1]}


def test_what_the_gradient_was_not_taken_at_certifies_nothing():
    model, rows = gpt2(), texts()
    gradient = capture(model, "ce", examples(rows))
    for other in (gpt2(seed=9), _renumbered(model)):
        found = attacked(other, gradient=gradient)
        assert found.status is Status.INCONCLUSIVE
        assert not any(found.stated.passed)
        assert not set(map(tuple, found_in(found))) & set(map(tuple, rows))


def _renumbered(model):
    """The model as another tokenizer would have numbered its tokens."""
    other = copy.deepcopy(model)
    order = torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        table = other.transformer.wte.weight
        table.copy_(table[order])
    return other


def test_one_wrong_token_is_not_certified():
    model, rows = gpt2(128), texts(8, 30)
    gradient = capture(model, "ce", examples(rows))
    right = compare(gradient, gradient_of(model, alike_flows([tuple(r) for r in rows]), 0.0))
    rows[3][17] = (rows[3][17] + 1) % VOCABULARY
    wrong = compare(gradient, gradient_of(model, alike_flows([tuple(r) for r in rows]), 0.0))
    assert right.error < 1e-5
    assert wrong.error > 3e-2


def trained(model, batches, kind, steps, **settings):
    model = copy.deepcopy(model)
    optimizer = getattr(torch.optim, kind)(model.parameters(), **settings)
    for step in range(steps):
        tokens = torch.tensor(batches[step % len(batches)])
        optimizer.zero_grad()
        out = model(input_ids=tokens).logits[:, :-1]
        F.cross_entropy(out.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
    return model.eval(), optimizer


@pytest.mark.parametrize(("steps", "rate"), [(1, 1.0), (1, 1e-3), (4, 1e-3)])
def test_two_checkpoints_give_the_batch_between_them(steps, rate):
    model, rows = gpt2(), texts()
    after, _ = trained(model, [rows], "SGD", steps, lr=rate)
    found = attacked(after, initial=weights(model))
    assert found.status is Status.COMPLETE, found.reason
    assert found_in(found) == sorted(rows)
    if steps > 1:
        assert found.figures["steps"] == steps


def test_a_saved_optimizer_gives_the_batch_and_the_weights_before_it(tmp_path):
    model, rows = gpt2(), texts()
    after, optimizer = trained(model, [rows], "AdamW", 1, lr=1e-3, weight_decay=0.1)
    torch.save({"optimizer": optimizer.state_dict()}, tmp_path / "optimizer.pt")
    saved = read_optimizer(tmp_path / "optimizer.pt", after)
    gradient, before = saved.gradient, saved.before
    for name, value in weights(model).items():
        assert torch.allclose(before[name], value, atol=1e-6)
    found = attacked(after, gradient=gradient, initial=before)
    assert found.status is Status.COMPLETE, found.reason
    assert found_in(found) == sorted(rows)


def test_three_steps_in_an_optimizer_give_all_batches_without_a_certificate(tmp_path):
    model = gpt2(128)
    batches = [texts(2, 12, seed=20 + i) for i in range(3)]
    after, optimizer = trained(model, batches, "AdamW", 3, lr=5e-5)
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    gradient = read_optimizer(tmp_path / "optimizer.pt", after).gradient
    found = attacked(after, gradient=gradient, initial=weights(model))
    assert found.status is Status.INCONCLUSIVE
    assert found_in(found) == sorted(row for batch in batches for row in batch)


def test_an_optimizer_with_groups_is_read_by_shapes_and_others_are_refused(tmp_path):
    model, rows = gpt2(), texts()
    own = dict(model.named_parameters())
    groups = [
        {"params": [p for p in own.values() if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in own.values() if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-3)
    for name, value in capture(model, "ce", examples(rows)).items():
        own[name].grad = value
    optimizer.step()
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    gradient = read_optimizer(tmp_path / "optimizer.pt", model).gradient
    for name, parameter in own.items():
        assert torch.allclose(gradient[name], 0.1 * parameter.grad, atol=1e-9)
    with pytest.raises(WeightsError, match="a state for each of the model's"):
        read_optimizer(tmp_path / "optimizer.pt", gpt2(layers=3))
    torch.save(weights(model), tmp_path / "weights.pt")
    assert read_optimizer(tmp_path / "weights.pt", model) is None


def test_adamw_leaves_the_exact_set_of_tokens_where_embeddings_are_not_tied():
    model = untied()
    batches = [texts(4, 12, seed=40 + i, vocabulary=120) for i in range(5)]
    after, _ = trained(model, batches, "AdamW", 30, lr=1e-4, weight_decay=0.1)
    found = attacked(after, initial=weights(model))
    assert set(found.figures["tokens"]) == {t for b in batches for row in b for t in row[:-1]}
    tied, _ = trained(gpt2(), batches, "AdamW", 3, lr=1e-4, weight_decay=0.1)
    after = weights(tied)
    change = {name: w.double() - after[name].double() for name, w in weights(gpt2()).items()}
    held = Held(model=gpt2(), vector=change, precision={}, whose="", change=True)
    layout = dataclasses.replace(read_layout(gpt2()), tied=False)
    assert moved_rows(held, layout) is None  # the output layer moves every row


def test_layouts_are_recognised_or_say_which_part_was_not():
    import transformers

    assert read_layout(gpt2()).kind == "decoder"
    assert read_layout(llama()).key_heads == 2
    assert read_layout(plain()).name == "nn.TransformerEncoder"
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
             "intermediate_size": 64}  # fmt: skip
    bert = transformers.BertForMaskedLM(transformers.BertConfig(**small, vocab_size=50))
    assert (read_layout(bert).kind, read_layout(bert).tied) == ("encoder", True)
    vit = transformers.ViTForImageClassification(transformers.ViTConfig(**small, image_size=32))
    assert read_layout(vit).kind == "vision"
    other = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**small, vocab_size=50))
    assert "model.layers.0.self_attn.q_norm.weight" in read_layout(other)
    assert not is_transformer(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    gemma = transformers.GemmaForCausalLM(
        transformers.GemmaConfig(**small, vocab_size=50, head_dim=16, num_key_value_heads=1)
    ).eval()
    found = attacked(gemma, gradient=weights(gemma))
    assert found.status is Status.NOT_APPLICABLE
    assert "acts otherwise" in found.reason


def test_the_twin_leaks_and_the_preflight_speaks():
    model, rows = gpt2(), texts()
    target = Target(model=model, input_shape=(48,), bounds=None)
    scene = Scene(target=target, records=3, loss="ce")
    attack = ATTACKS["gradient"]()
    assert attack.why_not(scene) == "no gradient was given, and no initial weights"
    twin = attack.twin(scene, examples(rows), torch.Generator())
    found = attack(twin, generator=torch.Generator())
    assert found_in(found) == sorted(rows)
    assert attack.cost(scene).seconds > 0


def test_counts_are_whole_or_one_each():
    assert counts_of([1.0, 2.01, 0.99], Tolerances()) == [1, 2, 1]
    assert counts_of([1.0, 1.5], Tolerances()) == [1, 1]
