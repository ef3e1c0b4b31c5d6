"""A small language model with its tokenizer in a Hugging Face directory, and sentences."""

from pathlib import Path

import torch

from remnant.capturing import capture, save_gradient
from remnant.data import load_texts, read_tokenizer

VOCABULARY, LONGEST = 300, 48
SENTENCES = (
    "The iris data set is perhaps the best known of all.",
    "One class is linearly separable from the other two.",
    "Sepal length is measured in centimetres.",
    "Fisher published it in the year 1936.",
    "A wine has an alcohol content and a hue.",
    "Petal width tells Setosa from Virginica.",
    "Missing attribute values: none whatever.",
    "Each type refers to a kind of iris plant.",
)
OTHERS = (
    "Diabetes progression was measured one year later.",
    "Ten baseline variables were obtained for each patient.",
    "Digits were scanned from forms that thirty people wrote.",
    "A linnerud set has three exercise variables.",
    "The radius is a mean of distances from the centre.",
    "Blood pressure and six serum measurements were taken.",
    "Nonoverlapping blocks of four by four pixels are counted.",
    "Chemical analysis tells three cultivators apart.",
    "Smoothness is the local variation in radius lengths.",
    "Waist and pulse are physiological variables.",
)


def tokenizer_file(path, texts=SENTENCES + OTHERS, vocabulary=VOCABULARY):
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(texts, trainer)
    made.save(str(path))
    return Path(path)


def gpt2(width=64, layers=2, seed=0, vocabulary=VOCABULARY):
    import transformers

    config = transformers.GPT2Config(
        vocab_size=vocabulary, n_positions=LONGEST, n_embd=width, n_layer=layers, n_head=2,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return transformers.GPT2LMHeadModel(config).eval()


def write_case(folder, records=3, width=64, others=8):
    """A directory, train.txt, holdout.txt and gradient.safetensors in `folder`; the model."""
    folder = Path(folder)
    model = gpt2(width)
    model.save_pretrained(folder / "model")
    tokenizer = read_tokenizer(tokenizer_file(folder / "model" / "tokenizer.json"))
    (folder / "train.txt").write_text("".join(f"{text}\n" for text in SENTENCES[:records]))
    (folder / "holdout.txt").write_text("".join(f"{text}\n" for text in OTHERS[:others]))
    train = load_texts(folder / "train.txt", tokenizer, vocabulary=VOCABULARY, longest=LONGEST)
    save_gradient(folder / "gradient.safetensors", capture(model, "ce", train))
    return model, train, tokenizer
