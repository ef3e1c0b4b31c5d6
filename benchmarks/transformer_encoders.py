"""What comes back of encoders and vision transformers from one float32 gradient, row by row.

    python benchmarks/transformer_encoders.py                    the list of rows
    python benchmarks/transformer_encoders.py vit-3 bert-4x16-mask --seeds 31 32

Weights are random in the layouts of Hugging Face `transformers`; images are random bytes of low
frequency (64 x 64, patches of 16, width 384, 12 blocks), texts are drawn by Zipf's law, begin and
end alike, and the loss looks at 15% masked words (mask), at those of texts of 8 to 16 tokens
(ragged), at all words (words) or at a class (class). `--body DIR` takes pretrained weights.
Exact: records that came back whole, byte for byte or word for word. Times are CPU seconds.
"""

from __future__ import annotations

import argparse
import time

import torch
import transformers
from torch import Tensor, nn

from remnant.attacks import Gradient
from remnant.capturing import capture
from remnant.types import Candidates, Knowledge, Scaling, Target, token_rows

WORDS, BEGIN, END, MASK = 30522, 101, 102, 103
ROWS: dict[str, tuple[str, int, int]] = {  # name: kind, records, length
    **{f"vit-{n}": ("image", n, 0) for n in (1, 2, 3, 4, 8, 12, 16, 20)},
    **{
        f"bert-{n}x16-{kind}": (kind, n, 16)
        for n in (4, 8)
        for kind in ("mask", "ragged", "words", "class")
    },
}
SCALING = Scaling(mean=torch.tensor(0.5), std=torch.tensor(0.5))


def image_case(count: int, seed: int) -> tuple[Target, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randn(count, 3, 16, 16, generator=generator)
    smooth = nn.functional.interpolate(coarse, size=64, mode="bicubic")
    fine = smooth + 0.1 * torch.randn(count, 3, 64, 64, generator=generator)
    images = (255 * (0.5 + 0.25 * fine).clamp(0, 1)).round() / 255
    torch.manual_seed(seed)
    config = transformers.ViTConfig(
        hidden_size=384, num_hidden_layers=12, num_attention_heads=6, intermediate_size=1536,
        image_size=64, patch_size=16, num_labels=10,
    )  # fmt: skip
    config._attn_implementation = "eager"
    model = transformers.ViTForImageClassification(config).eval()
    labels = torch.randint(0, 10, (count,), generator=generator)
    gradient = capture(model, "ce", (SCALING.to_model(images), labels))
    known = Knowledge(gradient=gradient)
    return Target(model=model, input_shape=(3, 64, 64), scaling=SCALING, knowledge=known), images


def text_case(
    kind: str, count: int, length: int, seed: int, body: str | None
) -> tuple[Target, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    often = 1 / torch.arange(1, WORDS - 1000).double()
    texts = 1000 + torch.multinomial(often, count * length, True, generator=generator)
    texts = texts.reshape(count, length)
    texts[:, 0], texts[:, -1] = BEGIN, END
    masked = kind in ("mask", "ragged")
    for row in texts[1:] if kind == "ragged" else ():
        end = int(torch.randint(length // 2, length + 1, (), generator=generator))
        row[end - 1], row[end:] = END, -1
    torch.manual_seed(seed)
    config = transformers.BertConfig(
        hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024,
        vocab_size=WORDS, num_labels=3,
    )  # fmt: skip
    if body is not None:
        config = transformers.BertConfig.from_pretrained(body, num_labels=3)
    config._attn_implementation = "eager"
    if kind == "class":
        model = with_body(transformers.BertForSequenceClassification(config), body)
        inputs, labels = texts, torch.randint(0, 3, (count,), generator=generator)
    else:
        model = with_body(transformers.BertForMaskedLM(config), body)
        hidden = torch.rand(texts.shape, generator=generator) < (0.15 if masked else 0)
        hidden[:, 1] |= masked  # a text without any loss leaves no trace
        hidden &= texts >= 1000
        inputs = texts.masked_fill(hidden, MASK)
        labels = texts.masked_fill(~hidden, -100) if masked else texts
    known = Knowledge(gradient=capture(model, "ce", (inputs, labels)))
    return Target(model=model, input_shape=(512,), bounds=None, knowledge=known), texts


def with_body(model: nn.Module, body: str | None) -> nn.Module:
    """In evaluation mode, with the pretrained weights of a directory under a new head."""
    if body is not None:
        held = transformers.BertModel.from_pretrained(body).state_dict()
        model.bert.load_state_dict(held, strict=False)
    return model.eval()


def exact_of(found: Candidates, truth: Tensor) -> int:
    """Records of the truth that a candidate equals."""
    if not truth.is_floating_point():
        return sum(row in token_rows(found.inputs) for row in token_rows(truth))
    whole = {tuple(row) for row in (found.inputs * 255).round().flatten(1).tolist()}
    return sum(tuple(row) in whole for row in (truth * 255).round().flatten(1).tolist())


def run(name: str, seed: int, body: str | None) -> str:
    kind, count, length = ROWS[name]
    target, truth = (
        image_case(count, seed) if kind == "image" else text_case(kind, count, length, seed, body)
    )
    begun = time.process_time()
    found = Gradient()(target, generator=torch.Generator().manual_seed(seed))
    spent = time.process_time() - begun
    exact, certified = exact_of(found, truth), found.stated.certified or 0
    error = found.figures.get("unexplained")
    counts = f"exact {exact} of {count}, certified {certified}"
    return f"{name} seed {seed}: {counts}, error {error}, {spent:.1f} CPU s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW")
    parser.add_argument("--seeds", type=int, nargs="+", default=[31])
    parser.add_argument("--body", metavar="DIR", help="of a pretrained BERT")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if not options.rows:
        print(*ROWS, sep="\n")
    for name in options.rows:
        for seed in options.seeds:
            print(run(name, seed, options.body), flush=True)


if __name__ == "__main__":
    main()
