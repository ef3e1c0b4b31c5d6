"""Shadow models by the thousand: chunks that fit a memory limit, spread over workers, kept.

A fleet lives in a folder named by the hash of all that decides it: the model and its starting
weights, the fixed records, the differing ones, the recipe, the scaling, the seed, the precision
and the versions of what computes it. A folder that is there is believed only if its file has the
hash that was written down and one of its models, drawn anew each time, comes out the same when it
is trained again: code that changed without its version changing is caught.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

import remnant.store as store
from remnant.auditing.api import key_of
from remnant.errors import StoreError, expected
from remnant.seeds import generator_for
from remnant.store import Run
from remnant.sweep.executors import Outcome, map_tasks
from remnant.training.fleet import MEMORY, chunk_size, share
from remnant.training.shadows import Fleet, training_by

FLEET_FILE = "fleet.safetensors"


def fleet_spec(fleet: Fleet) -> dict[str, Any]:
    """All that decides the weights of a fleet."""
    model = copy.deepcopy(fleet.model)
    for name, start in (fleet.initial or {}).items():
        model.get_parameter(name).data = start.detach()
    whole = key_of(replace(fleet, model=model, initial=None))
    return {"verb": "fleet", "fleet": whole, "versions": store.versions()}


def spread_fleet(
    fleet: Fleet, *, cache: str | Path, on: str | None = None, memory: int = MEMORY, most: int = 128
) -> dict[str, Tensor]:
    """The weights of all models (K x shape each), from the cache if they are there and right.

    memory: bytes that one worker may fill with a chunk, roughly. most: models in a chunk, so that
    workers share a fleet and a kill costs little. Chunks that are done survive a
    kill. A cached fleet that is stale or damaged is an error and not trained over.
    """
    spec = fleet_spec(fleet)
    run = store.open_run(Path(cache) / f"fleet-{store.spec_hash(spec)[:16]}", spec)
    if run.finished:
        return check_fleet(fleet, run)
    size = min(most, _chunk(fleet, memory))
    specs = [
        {"fleet": run.spec_hash, "begin": at, "end": min(at + size, len(fleet)), "memory": memory}
        for at in range(0, len(fleet), size)
    ]
    outcomes = map_tasks(train_part, specs, run=run, on=on, shared=fleet, name="training fleet")
    weights = _joined(outcomes)
    chunks = {"chunk": str(size), "memory": str(memory)}
    store.write_bytes(run, FLEET_FILE, safetensors.torch.save(weights, metadata=chunks))
    store.finish(run, seeds={"order": fleet.order_seed})
    return weights


@contextmanager
def spreading(cache: str | Path, on: str | None) -> Iterator[None]:
    """Spread and keep the fleets that attacks inside the block ask for."""
    with training_by(lambda fleet: spread_fleet(fleet, cache=cache, on=on)):
        yield


def train_part(spec: Mapping[str, Any], fleet: Fleet) -> Any:
    """Train one chunk of a fleet, in a worker."""
    weights = fleet.train(slice(spec["begin"], spec["end"]), spec["memory"])
    return spec["end"] - spec["begin"], weights


def check_fleet(fleet: Fleet, run: Run, agree: float = 1e-4) -> dict[str, Tensor]:
    """The cached weights, or an error if they are not what training would give now.

    That the file is the one that was written is known since the run was opened. agree: how far it
    may be off, as a share of the largest weight: other processors round otherwise.
    """
    path = run.path / FLEET_FILE
    do = f"remove {run.path}, and it is trained again"
    with safetensors.safe_open(path, "pt") as kept:
        chunks = {name: int(value) for name, value in kept.metadata().items()}
        weights = {name: kept.get_tensor(name) for name in kept.keys()}  # noqa: SIM118
    drawn = torch.Generator()
    drawn.seed()  # another model each time: what one look misses the next may see
    one = int(torch.randint(len(fleet), (), generator=drawn))
    # With its whole chunk: alone it would round otherwise, which a ReLU that switches makes large.
    begin = one - one % chunks["chunk"]
    again = fleet.train(slice(begin, begin + chunks["chunk"]), chunks["memory"])
    for name, values in again.items():
        value = values[one - begin].cpu()
        off = float((weights[name][one] - value).abs().max())
        if not off <= agree * max(float(value.abs().max()), 1e-12):
            got = f"model {one} off by {off:.1e} in {name}"
            raise StoreError(
                expected(f"{path}", "what training gives now", f"a stale one: {got}", do)
            )
    return weights


def _chunk(fleet: Fleet, memory: int) -> int:
    order = generator_for(fleet.order_seed, "chunk")  # only the batch's size matters here
    run = share(
        fleet.model,
        fleet.fixed,
        fleet.recipe,
        scaling=fleet.scaling,
        order=order,
        dtype=torch.float32,
    )
    return min(len(fleet), chunk_size(run, memory))


def _joined(outcomes: Sequence[Outcome]) -> dict[str, Tensor]:
    for outcome in outcomes:
        if outcome.error is not None:
            raise StoreError(outcome.error)
    first = outcomes[0].tensors
    return {name: torch.cat([outcome.tensors[name] for outcome in outcomes]) for name in first}
