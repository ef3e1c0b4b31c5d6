"""`gradient`: the adversary holds one gradient of a batch at known weights (002 and past it)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import nn

from remnant.attacks import gradient_sequences
from remnant.attacks.about import (
    HELD,
    LINEAR,
    About,
    Cost,
    Range,
    Scene,
    Space,
    graph_cost,
    pass_seconds,
    reflections,
    setting,
)
from remnant.attacks.behind_front import through_front
from remnant.attacks.folded import folded_model
from remnant.attacks.gradient_batch_norm import (
    STATISTICS,
    in_training,
    recover_through_norm,
    unless_refuted,
    unnormed,
)
from remnant.attacks.ntk_exact import recover_exactly
from remnant.attacks.outcome import (
    in_data_scale,
    model_box,
    nothing,
    seen,
    undo_convolutions,
    vouched,
    with_weights,
)
from remnant.devices import computed_there
from remnant.errors import InputError, expected
from remnant.evidence import one_gradient, summed_gradients
from remnant.models.folding import NORMS
from remnant.solvers.dense.certificate import spread_of
from remnant.solvers.dense.dropout import drops, recover_dropped
from remnant.solvers.dense.one_gradient import BatchRecovery, Layers, recover_batch
from remnant.solvers.dense.rounds import Search
from remnant.solvers.dense.tolerances import TOLERANCES
from remnant.solvers.descent.front import FrontMatching
from remnant.solvers.descent.matching import Matching, match_gradient
from remnant.solvers.layers import Pair, first_pair, labels_from, output_residuals
from remnant.solvers.sequence.families import is_transformer
from remnant.solvers.spans import BLENDS, told_apart
from remnant.solvers.tensor.deep import Deep, read_deep
from remnant.solvers.tensor.span_lm import SpanSettings, recover_span, smooth_count
from remnant.solvers.tensor.two_layer import TensorSettings, tensor_attack
from remnant.training.batch_gradient import batch_gradient
from remnant.types import Candidates, Evidence, Examples, Stated, Status, Target

Preset = Literal["exact", "paper", "matching"]
PRESETS: tuple[Preset, ...] = ("exact", "paper", "matching")
SIGNS = {"unknown": 0, "positive": 1, "negative": -1}
MOVED = (
    "nor more as a sum over several: the batches fill the layer, or the weights moved too far; a "
    "checkpoint saved after the first step would tell more"
)
ITERATIONS = 8000  # reflections of a point at most, for one gradient
SEVERAL = Search(starts=32, iterations=300, patience=12)  # for a sum of gradients
dense_pair = partial(first_pair, after_convolutions=True)
ABOUT = About(
    summary="a batch from one gradient",
    example="--model mlp:784-256-256-10 --weights sent.safetensors "
    "--gradient update.safetensors --shape 1x28x28",
    title="One gradient",
    holds="the model and one gradient of a batch, as a federated client sends it",
    defence="Clip and add noise to each gradient (differential privacy), or aggregate over so "
    "many clients that the batch exceeds half the first layer's width.",
    needs=("weights",),
    takes=(*HELD, "gradient", "initial", "loss", "tokenizer"),
    missing="gradient",
    limit=gradient_sequences.limit,
    stronger="give --gradient, what a client would send (remnant.capture), for federated training",
    spaces={
        "default": Space(
            axes={
                "walkers": Range(low=8, high=128, log=True, integer=True),
                "patience": Range(low=2, high=12, integer=True),
            }
        )
    },
)


@dataclass(frozen=True, kw_only=True)
class Gradient:
    """Reconstruct a batch from its gradient.

    exact: solve the equations of the first two dense layers (or of the only hidden layer, if its
    activation is smooth); convolutions before them are undone afterwards. paper: the tensor
    decomposition of 002, for two-layer networks with Gaussian weights, and for deep ones whose
    first layers pass the batch through (`remnant trap`) or can be undone (the eavesdropper).
    matching: descend on the distance between gradients, for any network, without a certificate.
    """

    about: ClassVar[About] = ABOUT
    preset: Preset = setting("exact", "exact, paper (002) or matching")
    walkers: int = setting(32, "exact: points searched for at a time")
    patience: int = setting(5, "exact: rounds without a new record before giving up")
    source: Literal["head", "layer"] = setting("layer", "paper: dL/da (head) or dL/dW (layer)")
    norm: float | None = setting(None, "paper: the inputs' common norm (default: from the moments)")
    residuals: Literal["unknown", "positive", "negative"] = setting(
        "unknown", "their sign, as under a large output bias: tells x from -x (tanh, sigmoid)"
    )
    steps: int = setting(1000, "of matching, or of images from features")
    restarts: int = setting(1, "of matching")

    def __post_init__(self) -> None:
        if self.preset not in PRESETS:
            raise InputError(expected("preset", " or ".join(PRESETS), repr(self.preset)))
        if self.norm is not None and self.preset != "paper":
            raise InputError(expected(f"norm with preset {self.preset}", "none", self.norm))
        if self.residuals not in SIGNS:
            raise InputError(expected("residuals", " or ".join(SIGNS), repr(self.residuals)))

    @computed_there
    def __call__(self, target: Target, *, generator: torch.Generator) -> Candidates:
        if is_transformer(target.model):
            return gradient_sequences.from_sequences(target, generator)
        if target.knowledge.gradient is None:
            reason = "no gradient is known; give --gradient"
            return nothing(target, Status.NOT_APPLICABLE, reason)
        if not any(bool(g.any()) for g in target.knowledge.gradient.values()):
            return nothing(target, Status.INCONCLUSIVE, "the gradient is zero everywhere")
        evidence = one_gradient(target)
        # Batch norm that is frozen has no gradient, and needs none.
        norms = tuple(f"{n}." for n, m in target.model.named_modules() if isinstance(m, NORMS))
        lacking = [n for n in evidence.start if n not in evidence.vector]
        lacking = [name for name in lacking if not name.startswith(norms)]
        if lacking and self.preset == "exact":
            do = "give the rest, or --preset paper --source head"
            return nothing(target, Status.NOT_APPLICABLE, f"no gradient of {lacking[0]}; {do}")
        if target.knowledge.gradient_of and self.preset == "exact":
            return from_optimizer(target, self.exact, generator)
        solve = {"exact": self.exact, "paper": self.paper, "matching": self.match}[self.preset]
        return solve(target, evidence, generator)

    def why_not(self, scene: Scene) -> str | None:
        if scene.linear:
            return LINEAR
        if is_transformer(scene.target.model):
            return gradient_sequences.why_not(scene)
        return "no gradient was given" if scene.target.knowledge.gradient is None else None

    def cost(self, scene: Scene) -> Cost:
        if is_transformer(scene.target.model):
            return gradient_sequences.cost(scene)
        barren = reflections(2 * SEVERAL.patience)  # as two checkpoints, for a sum of several
        if not scene.target.knowledge.gradient_of:
            points = self.patience * self.walkers * ITERATIONS
            barren = lambda w, n: 6.0 * points * w * n  # noqa: E731
        cost = graph_cost(scene, 6e3, barren)
        if not isinstance(dense_pair(folded_model(scene.target.model)), str):
            return cost
        images = 3 * self.steps * pass_seconds(scene, scene.records)  # behind a front: back twice
        return replace(cost, seconds=cost.seconds + images)

    def twin(self, scene: Scene, strangers: Examples, generator: torch.Generator) -> Target:
        """The gradient of other records at the same weights."""
        target = scene.target
        if is_transformer(target.model) and strangers.are_texts:
            return gradient_sequences.twin(scene, strangers)
        inputs = target.scaling.to_model(strangers.inputs.reshape(-1, *target.input_shape))
        inputs = inputs.to(next(target.model.parameters()))  # tables may be in double precision
        model = copy.deepcopy(target.model).train(in_training(target))
        gradient = batch_gradient(model, scene.loss, (inputs, strangers.labels))
        count = len(strangers)
        held = replace(target.knowledge, gradient=gradient, labels=None, records=count)
        return replace(target, knowledge=held)

    def exact(self, target: Target, evidence: Evidence, generator: torch.Generator) -> Candidates:
        plain = unnormed(target, evidence)
        if plain == "training":
            return recover_through_norm(target, evidence, generator)
        if isinstance(plain, str):
            return nothing(target, Status.INCONCLUSIVE, plain)
        dense = partial(self, generator=generator)
        if plain is not None:
            if any(name.endswith("running_mean") for name in target.knowledge.gradient or {}):
                return through_front(target, evidence, dense, generator, otherwise=STATISTICS)
            found = unless_refuted(target, evidence, self.exact(*plain, generator))
            if found.stated.certified or isinstance(dense_pair(plain[0].model), str):
                return found  # or the dense layers have no batch norm
            otherwise = f"{found.reason}; if it was taken otherwise, {STATISTICS}"
            return replace(found, reason=otherwise)
        pair = dense_pair(target.model)
        if isinstance(pair, str):
            how = FrontMatching(evaluations=self.steps)
            return through_front(target, evidence, dense, generator, otherwise=pair, settings=how)
        deep = read_deep(target.model, evidence.vector)
        if not isinstance(deep, str) and deep.smooth_end:
            return self.one_smooth_layer(target, evidence, deep, generator)
        recovery = self.dense(target, evidence, pair, generator)
        return conclude(target, evidence, recovery, generator)

    def dense(
        self, target: Target, evidence: Evidence, pair: Pair, generator: torch.Generator
    ) -> BatchRecovery:
        """The batch behind two dense layers."""
        first, count = pair.first.affine(evidence.start), target.knowledge.records
        layers = Layers(
            first=first,
            first_gradient=pair.first.affine(evidence.vector),
            next_weight=evidence.start[pair.next.weight],
            next_gradient=pair.next.affine(evidence.vector),
            activation=pair.activation,
            bias=pair.first.bias is not None,
            last=pair.last,
            precision=evidence.precision,
        )
        if isinstance(pair.activation, nn.ReLU) and drops(target.model):
            dropped = recover_dropped(layers, generator=generator, count=count)
            if dropped is not None and dropped.complete:
                return dropped
        search = Search(starts=self.walkers, iterations=ITERATIONS, patience=self.patience)
        recovery = recover_batch(layers, count=count, search=search, generator=generator)
        if count == recovery.counted:
            return recovery
        doubt = "" if count is None else f"; the gradient holds {recovery.counted} of {count} told"
        apart = torch.ones_like(recovery.passed)
        if layers.bias and len(recovery.inputs):
            apart = told_apart(first, recovery.inputs)
        blends = int((recovery.passed & ~apart).sum())
        doubt += f"; {blends} of them {BLENDS}" if blends else ""
        return replace(recovery, passed=recovery.passed & apart, doubt=doubt)

    def one_smooth_layer(
        self, target: Target, evidence: Evidence, deep: Deep, generator: torch.Generator
    ) -> Candidates:
        """One hidden layer with a smooth activation: all records or none are certified, since one
        that is held loosely moves others."""
        network, gradient, precision = deep.network, deep.gradient, evidence.precision
        told = target.knowledge.records
        count = smooth_count(gradient, precision, told)
        if count is None:
            reason = "no gap among the singular values of the gradient tells the number of records"
            return nothing(target, Status.INCONCLUSIVE, f"{reason}; give --records")
        # Right records left up to 2.3 times single precision's rounding, and 0.35 times that of
        # coarser ones, where wrong ones were seen to leave 1.
        tolerance = max(1e-7, min(20 * precision, 2.5e-6), precision / 2)
        found = recover_span(
            network,
            gradient,
            SpanSettings(tolerance=tolerance),
            generator=generator,
            count=count,
            box=None if deep.front or deep.scale != 1 else model_box(target),
            residual_sign=SIGNS[self.residuals],
        )
        inputs, error = deep.to_inputs(found.inputs), (found.error / deep.scale).square()
        sure = found.certified and found.sign_known
        sure &= bool((error < TOLERANCES.sure * spread_of(inputs)).all())
        words = f"{{sure}} of {count} records found and certified without the truth"
        words += f": the equations hold to {found.misfit:.1e}"
        if not found.sign_known:
            words += "; x and -x explain the gradient alike, give --bounds to tell them apart"
        words += "{worst}"
        if told not in (None, count):
            words += f"; the gradient holds {count} of {told} told"
        figures = {"unexplained": found.misfit, "sign_known": found.sign_known}
        return vouched(
            target,
            inputs,
            error,
            torch.full((count,), sure),
            count,
            words,
            labels=labels_from(target, found.residuals, inputs) if sure else None,
            residuals=found.residuals,
            figures=figures | {"found": count},
        )

    def paper(self, target: Target, evidence: Evidence, generator: torch.Generator) -> Candidates:
        read = read_deep(target.model, evidence.vector)
        if isinstance(read, str):
            return nothing(target, Status.NOT_APPLICABLE, read)
        seen = read.gradient.head if self.source == "head" else read.gradient.weights
        if seen is None:
            reason = f"the gradient of the {self.source} was not given; see --source"
            return nothing(target, Status.NOT_APPLICABLE, reason)
        count = target.knowledge.records
        if count is None:
            reason = "the tensor decomposition needs the number of records; give --records"
            return nothing(target, Status.NOT_APPLICABLE, reason)
        # Behind layers the norm is not that of what the last hidden one sees.
        norm = None if self.norm is None or read.front else self.norm * read.scale
        settings = TensorSettings(
            source=self.source, norm=norm, residual_sign=SIGNS[self.residuals]
        )
        found = tensor_attack(read.network, read.gradient, count, settings, generator=generator)
        figures = {"off": found.off, "sign_known": found.sign_known, "read_as": read.kind}
        figures["residuals"] = found.residuals.tolist()
        inputs = read.directions_to_inputs(found.inputs, self.norm)
        labels = labels_from(target, found.residuals[:, None], inputs)
        return Candidates(
            inputs=in_data_scale(target, inputs),
            confidence=torch.full((count,), max(0.0, 1.0 - found.off)),
            labels=labels if found.sign_known else None,
            status=Status.INCONCLUSIVE,
            reason="a tensor decomposition has no certificate; the residual is not evidence",
            stated=Stated(counted=count),
            figures=figures,
        )

    def match(self, target: Target, evidence: Evidence, generator: torch.Generator) -> Candidates:
        known = target.knowledge
        if known.records is None or known.loss is None:
            reason = "matching needs the number of records and the loss; give --records and --loss"
            return nothing(target, Status.NOT_APPLICABLE, reason)
        found = match_gradient(
            target.model,
            known.loss,
            evidence.vector,
            count=known.records,
            input_shape=target.input_shape,
            settings=Matching(steps=self.steps, restarts=self.restarts),
            generator=generator,
            labels=known.labels,
            bounds=model_box(target),
        )
        return Candidates(
            inputs=in_data_scale(target, found.inputs),
            confidence=torch.zeros(known.records),
            labels=found.labels,
            status=Status.INCONCLUSIVE,
            reason="a small distance between gradients is not evidence of a right record",
            stated=Stated(counted=known.records),
            figures={"distance": float(found.loss)},
            trace={"distance": list(found.trace)},
        )


def conclude(
    target: Target, evidence: Evidence, recovery: BatchRecovery, generator: torch.Generator
) -> Candidates:
    """Candidates in the data's own scale, certified ones first."""
    basics = seen(recovery.spectrum, recovery.counted)
    if not len(recovery.inputs):
        if not recovery.spectrum.clear:  # there may be more
            basics["stated"] = Stated(counted=target.knowledge.records)
        return nothing(target, Status.INCONCLUSIVE, recovery.reason, **basics)
    inputs, passed, error, more = undo_convolutions(
        target,
        recovery.inputs,
        recovery.passed,
        recovery.error,
        precision=evidence.precision,
        generator=generator,
    )
    inputs = inputs.reshape(-1, *target.input_shape)
    whole = recovery.complete and not drops(target.model)  # what later layers dropped is not known
    residuals = output_residuals(target.model, evidence, inputs) if whole else None
    again = recovery.resimulation
    figures = {
        "found": len(inputs),
        "rounds": len(recovery.found) - 1,
        "unexplained": None if again is None else max(again.first, again.next),
    }
    return vouched(
        target,
        inputs,
        error,
        passed,
        recovery.counted,
        f"{recovery.reason}{{worst}}{recovery.doubt}{more}",
        confidence=1 - recovery.residual.clamp(0, 1),
        labels=labels_from(target, residuals, inputs),
        residuals=residuals,
        whole=recovery.complete,
        figures=basics["figures"] | figures,
        trace=basics["trace"] | {"found": recovery.found},
    )


def from_optimizer(
    target: Target,
    solve: Callable[[Target, Evidence, torch.Generator], Candidates],
    generator: torch.Generator,
) -> Candidates:
    """What an optimizer saved beside the weights gives away; solve: one gradient.

    After one step Adam's `exp_avg` and SGD's momentum buffer are the batch's gradient, taken at the
    weights before that step, which follow from the same file. After several they are a sum of
    gradients at weights that moved, as the difference of two checkpoints is, but not divided entry
    by entry as Adam's own steps are: the search for two checkpoints reads it.
    """
    held = target.knowledge
    assert held.initial is not None
    single = replace(target, model=with_weights(target.model, held.initial))
    found = solve(single, one_gradient(single), generator)
    if found.status is not Status.COMPLETE:
        several = recover_exactly(target, summed_gradients(target), SEVERAL, generator)
        better = (several.stated.certified or 0) > (found.stated.certified or 0)
        found = several if better else replace(found, reason=f"as one step {found.reason}; {MOVED}")
    whose = f"the checkpoint's optimizer holds a gradient ({held.gradient_of})"
    return replace(found, reason=f"{whose}: {found.reason}")
