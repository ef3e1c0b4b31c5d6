"""Texts out of transformers: what comes back, exactly, from a gradient, checkpoints, an optimizer.

    python benchmarks/transformer_decoders.py --texts tokens.json [--rows gradient,...] [--seed 7]

Models are in the layouts of Hugging Face transformers at random weights. tokens.json is a list of
lists of token ids (GPT-2's, for texts that look like texts); without it tokens are drawn at random,
as frequent as words are. Every row prints how many sequences of the batch came back token by token,
how many others were returned, the certificate's relative error, and CPU seconds of the attack.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from remnant.attacks import ATTACKS
from remnant.capturing import capture
from remnant.types import Examples, Knowledge, Target, token_rows

VOCABULARY = 50257


class Bench:
    """A seed and a source of texts; each row draws anew."""

    def __init__(self, texts: Path | None, seed: int) -> None:
        self.draw = torch.Generator().manual_seed(seed)
        self.flat = None
        if texts is not None:
            self.flat = torch.tensor([t for row in json.loads(texts.read_text()) for t in row])

    def batch(self, count: int, length: int, vocabulary: int = VOCABULARY) -> Tensor:
        if self.flat is not None:
            last = len(self.flat) - length
            starts = torch.randint(0, last, (count,), generator=self.draw).tolist()
            return torch.stack([self.flat[s : s + length] for s in starts]) % vocabulary
        often = 1 / torch.arange(1, vocabulary + 1).double()
        drawn = torch.multinomial(often, count * length, replacement=True, generator=self.draw)
        return drawn.view(count, length)

    def gpt2(
        self, width: int, layers: int, vocabulary: int = VOCABULARY, **more: object
    ) -> nn.Module:
        import transformers

        config = transformers.GPT2Config(
            n_embd=width, n_layer=layers, n_head=max(2, width // 64), vocab_size=vocabulary,
            bos_token_id=None, eos_token_id=None,
            **{"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0} | more,
        )  # fmt: skip
        return self._made(lambda: transformers.GPT2LMHeadModel(config))

    def llama(self, width: int, layers: int, vocabulary: int = VOCABULARY) -> nn.Module:
        import transformers

        config = transformers.LlamaConfig(
            hidden_size=width, num_hidden_layers=layers, num_attention_heads=width // 64,
            num_key_value_heads=max(1, width // 128), intermediate_size=8 * width // 3 // 64 * 64,
            vocab_size=vocabulary, bos_token_id=None, eos_token_id=None,
        )  # fmt: skip
        return self._made(lambda: transformers.LlamaForCausalLM(config))

    def _made(self, make: Callable[[], nn.Module]) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(int(torch.randint(2**31, (), generator=self.draw)))
            return make().eval()


def gradient(model: nn.Module, tokens: Tensor) -> dict[str, Tensor]:
    ids = tuple(map(str, range(len(tokens))))
    labels = torch.zeros(len(tokens))
    return capture(model, "ce", Examples(inputs=tokens, labels=labels, ids=ids, bounds=None))


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def trained(
    model: nn.Module, batches: list[Tensor], kind: str, steps: int, **settings: float
) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = copy.deepcopy(model)
    optimizer = getattr(torch.optim, kind)(model.parameters(), **settings)
    for step in range(steps):
        tokens = batches[step % len(batches)]
        optimizer.zero_grad()
        out = model(input_ids=tokens).logits[:, :-1]
        F.cross_entropy(out.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
    return model.eval(), optimizer


def sums(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    state = optimizer.state
    return {name: state[p]["exp_avg"].clone() for name, p in model.named_parameters()}


def play(name: str, model: nn.Module, tokens: Tensor, **known: object) -> tuple[int, int, bool]:
    """One row: printed, and (right, returned, certified)."""
    target = Target(model=model, input_shape=(1024,), bounds=None, knowledge=Knowledge(**known))
    begun = time.process_time()
    found = ATTACKS["gradient"]()(target, generator=torch.Generator().manual_seed(0))
    seconds = time.process_time() - begun
    rows = token_rows(found.inputs)
    truth = token_rows(tokens)
    right = sum(row in rows for row in truth)
    false = sum(row not in truth for row in rows)
    off = found.figures.get("unexplained")
    named, read = found.figures.get("tokens"), {t for row in truth for t in row[:-1]}
    foreign = set(named or ()) - {token for row in truth for token in row}
    listed = "-" if named is None else f"{len(set(named) & read)}/{len(read)}, {len(foreign)} false"
    print(
        f"| {name} | {right}/{len(truth)} | {false} | {listed} | "
        f"{'-' if off is None else f'{off:.1e}'} | {found.status} | {seconds:.1f} |", flush=True,
    )  # fmt: skip
    if not len(found):
        print(f"|   | {found.reason} |", flush=True)
    return right, false, bool(found.stated.certified)


def rows_gradient(bench: Bench) -> None:
    for count in (16, 24, 25):
        model = bench.gpt2(768, 12)
        tokens = bench.batch(count, 32)
        play(f"GPT-2 d768 12 layers {count}x32", model, tokens, gradient=gradient(model, tokens))
    model, tokens = bench.llama(768, 6, 32000), bench.batch(8, 64, 32000)
    play("Llama d768 6 layers 8x64", model, tokens, gradient=gradient(model, tokens))


def rows_precision(bench: Bench) -> None:
    for width in (256, 768):
        model, tokens = bench.gpt2(width, 4), bench.batch(4, 16)
        for dtype in (torch.float16, torch.bfloat16):
            held = {n: g.to(dtype) for n, g in gradient(model, tokens).items()}
            play(f"GPT-2 d{width} 4x16 {str(dtype)[6:]}", model, tokens, gradient=held)


def rows_noise(bench: Bench) -> None:
    model, tokens = bench.gpt2(128, 2, 5000), bench.batch(4, 16, 5000)
    plain = gradient(model, tokens)
    for share in (1e-3, 1e-2, 1e-1):
        noisy = {
            n: g + share * g.square().mean().sqrt() * torch.randn(g.shape, generator=bench.draw)
            for n, g in plain.items()
        }
        play(f"GPT-2 d128 4x16, noise {share:.1%}", model, tokens, gradient=noisy)
    clipped = {n: g * 0.01 for n, g in plain.items()}
    play("GPT-2 d128 4x16, clipped", model, tokens, gradient=clipped)
    drop = {"resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1}
    model = bench.gpt2(128, 2, 5000, **drop)
    held = gradient(model.train(), tokens)
    play("GPT-2 d128 4x16, dropout 0.1", model.eval(), tokens, gradient=held)
    model = bench.gpt2(128, 2, 5000)
    held = gradient(model, tokens)
    for name in ("transformer.wte.weight", "transformer.wpe.weight"):
        held[name] = torch.zeros_like(held[name])
    play("GPT-2 d128 4x16, embeddings frozen", model, tokens, gradient=held)


def rows_checkpoints(bench: Bench) -> None:
    model, tokens = bench.gpt2(128, 2, 5000), bench.batch(4, 16, 5000)
    for steps, rate in ((1, 1.0), (1, 1e-2), (1, 1e-4), (5, 1e-3), (5, 1e-2)):
        after, _ = trained(model, [tokens], "SGD", steps, lr=rate)
        play(f"GPT-2 d128 4x16, SGD {steps} steps at {rate:g}", after, tokens,
             initial=weights(model))  # fmt: skip
    for steps in (1, 3):
        batches = [bench.batch(2, 16, 5000) for _ in range(steps)]
        after, optimizer = trained(model, batches, "AdamW", steps, lr=5e-5)
        play(f"GPT-2 d128 {steps} of 2x16, exp_avg", after, torch.cat(batches),
             gradient=sums(after, optimizer), initial=weights(model))  # fmt: skip
    model = bench.gpt2(128, 2, 5000, tie_word_embeddings=False)
    batches = [bench.batch(4, 16, 5000) for _ in range(100)]
    after, _ = trained(model, batches, "AdamW", 100, lr=5e-5, weight_decay=0.01)
    play("GPT-2 d128 untied, AdamW 100 of 4x16", after, torch.cat(batches), initial=weights(model))


def rows_nulls(bench: Bench, tries: int = 50) -> None:
    """Each in turn: another batch's gradient, other weights, tokens numbered otherwise."""
    false = dict.fromkeys(("another batch", "other weights", "another tokenizer"), 0)
    sure = dict.fromkeys(false, 0)
    for turn in range(tries):
        model, tokens = bench.gpt2(64, 2, 500), bench.batch(3, 12, 500)
        held = gradient(model, tokens)
        kind = list(false)[turn % 3]
        if kind == "another batch":
            asked, model_ = bench.batch(3, 12, 500), model
        elif kind == "other weights":
            asked, model_ = tokens, bench.gpt2(64, 2, 500)
        else:
            asked, model_ = tokens, copy.deepcopy(model)
            table = model_.transformer.wte.weight.data
            table.copy_(table[torch.randperm(500, generator=bench.draw)])
        right, _, certified = play(f"null: {kind}", model_, asked, gradient=held)
        false[kind] += right
        sure[kind] += certified and kind != "another batch"
    print(f"sequences that were never there, of {tries} tries: {false}; certified: {sure}")


ROWS = {
    "gradient": rows_gradient,
    "precision": rows_precision,
    "noise": rows_noise,
    "checkpoints": rows_checkpoints,
    "nulls": rows_nulls,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--seed", type=int, default=7)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print("| case | sequences | false | tokens | error | status | CPU s |")
    print("|---|---|---|---|---|---|---|")
    for name in given.rows.split(","):
        ROWS[name](Bench(given.texts, given.seed))


if __name__ == "__main__":
    main()
