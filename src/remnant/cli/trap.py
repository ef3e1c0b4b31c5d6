"""`remnant trap`: the network that a malicious server sends, so that one gradient of it tells the
batch (002, section 4.2). For an owner who wants to see what a client would give away."""

from __future__ import annotations

import argparse
from typing import Any

from remnant.cli.common import Answer, add_verb, print_line, print_place, run_of
from remnant.cli.flags import whole


def add(verbs: Any) -> None:
    example = "remnant trap --inputs 784 --width 3000 --hidden 2 --activation gelu --out sent"
    parser = add_verb(verbs, "trap", example, shared=("seed", "out", "quiet", "json"), run=run)
    size = whole(1, 2**31)
    parser.add_argument("--inputs", type=size, required=True, help="numbers of a record")
    words = "neurons of each hidden layer (default: 3000): the error falls with its square root"
    parser.add_argument("--width", type=size, default=3000, help=words)
    parser.add_argument("--hidden", type=size, default=2, help="hidden layers (default: 2)")
    words = "relu, leaky, gelu (default), silu, softplus, or a one-to-one tanh, sigmoid or elu"
    parser.add_argument("--activation", default="gelu", help=words)
    words = "of the output (default: 30): large, it keeps residuals away from 0, of one sign"
    parser.add_argument("--bias", type=float, default=30.0, help=words)


def run(arguments: argparse.Namespace) -> Answer:
    from remnant.models import build, save_weights, trap
    from remnant.seeds import generator_for
    from remnant.store import finish

    given = vars(arguments)
    asked = {name: given[name] for name in ("inputs", "width", "hidden", "activation", "bias")}
    sizes = [asked["inputs"], *[asked["width"]] * asked["hidden"], 1]
    text = f"mlp:{'-'.join(map(str, sizes))}:{asked['activation']}"
    generator = generator_for(arguments.seed, "trap")
    build(text, generator=generator_for(arguments.seed, "size"))  # a typing error is refused here
    sent = trap(
        asked["inputs"], asked["width"], asked["hidden"], generator=generator,
        activation=asked["activation"], output_bias=asked["bias"],
    ).model  # fmt: skip
    spec = {"verb": "trap", "seed": arguments.seed, **asked}

    def work(stored: Any) -> None:
        save_weights(stored.path / "weights.safetensors", sent.state_dict())
        finish(stored, seeds={"seed": arguments.seed})

    stored = run_of(arguments, spec, work)
    weights = stored.path / "weights.safetensors"
    figures = {"model": text, "weights": str(weights)}

    def show() -> None:
        print_line(text, style="bold")
        told = f"--model {text} --weights {weights} --gradient FILE --records N --loss mse"
        more = " --residuals positive" if asked["bias"] > 1 else ""
        print_line(
            "a client's gradient of it: remnant.capture(model, 'mse', (inputs, targets))",
            f"then: remnant reconstruct gradient {told}{more}",
        )
        print_place(stored, ("weights.safetensors",))

    return Answer(figures=figures, show=show)
