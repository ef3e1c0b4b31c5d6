"""The trials of a search in Optuna's storage: a journal file, SQLite, or any database by its URL.

A trial is drawn, claimed by the process that drew it, and told once. Numbers come from the storage,
so that processes which share one never run the same trial.
"""

from __future__ import annotations

import json
import secrets
import time
from pathlib import Path
from typing import Any

import torch

from remnant.attacks.about import Axis, Choice, Space
from remnant.errors import InputError, expected
from remnant.seeds import generator_for
from remnant.store import Run, load_state, save_state

JOURNAL = "search.journal"
DRIVER = "driver"  # the attribute of a trial that says which process runs it
REASON = "reason"
RACES = ("IntegrityError", "ProgrammingError", "OperationalError")


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        do = "pip install 'remnant[sweep]'"
        raise InputError(expected("search", "the package optuna", "none", do)) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def open_study(
    name: str, run: Run, storage: str | None, *, maximise: bool, attempts: int = 10
) -> Any:
    """The study of that name, made or found again; several processes may do so at once.

    storage: a database's URL, None for a journal in the run's directory. attempts: to open a
    database that another process is opening too.
    """
    optuna = _optuna()
    for left in reversed(range(attempts)):
        try:
            study = optuna.create_study(
                storage=_storage(optuna, run, storage),
                study_name=name,
                direction="maximize" if maximise else "minimize",
                load_if_exists=True,
            )
            study.get_trials(deepcopy=False)  # all of it can be read
            return study
        except Exception as error:  # whatever a database raises; its text may hold a password
            got = type(error).__name__
        if not left or got not in RACES:
            break
        time.sleep(0.2)  # another process was making the same tables; they are there now
    wanted = "a database, such as sqlite:///search.db or postgresql://HOST/NAME"
    raise InputError(expected("search: storage", wanted, got))


def _storage(optuna: Any, run: Run, storage: str | None) -> Any:
    if storage is not None:
        _make_private(storage)
        return optuna.storages.get_storage(with_driver(storage))
    path = run.path / JOURNAL
    path.touch(mode=0o600)
    mend_journal(path)
    backend = optuna.storages.journal.JournalFileBackend(str(path))
    return optuna.storages.JournalStorage(backend)


def with_driver(storage: str) -> str:
    """`postgresql://` names no driver, and SQLAlchemy's first choice changes with its version."""
    for start in ("postgresql://", "postgres://"):
        if storage.startswith(start):
            return f"postgresql+psycopg2://{storage.removeprefix(start)}"
    return storage


def _make_private(storage: str) -> None:
    """A SQLite file that is not there yet is made its owner's alone; SQLite would ask the umask."""
    path = Path(storage.removeprefix("sqlite:///").partition("?")[0])
    if storage.startswith("sqlite:////") and not path.exists():
        path.touch(mode=0o600)


def mend_journal(path: Path) -> None:
    """Cut off what a kill left torn: all from the first line on that is not a whole record.

    Trials that are lost by it are drawn again, the same, and what they ran is in the run's states.
    """
    whole = 0
    with path.open("rb+") as file:
        for line in file:
            try:
                good = line.endswith(b"\n") and isinstance(json.loads(line), dict)
            except ValueError:
                good = False
            if not good:
                file.truncate(whole)
                return
            whole += len(line)


def driver_of(run: Run) -> str:
    """The name of this run among others that share a database; the same after an interruption."""
    held = load_state(run, DRIVER)
    if held is None:
        held = {"name": torch.frombuffer(bytearray(secrets.token_bytes(8)), dtype=torch.uint8)}
        save_state(run, DRIVER, held)
    return bytes(held["name"].tolist()).hex()


def ours(trial: Any, driver: str, private: bool) -> bool:
    """Whether a trial belongs to this process. private: nobody else uses the storage, so that
    trials without an owner are ours too."""
    owner = trial.user_attrs.get(DRIVER)
    return bool(owner == driver or (private and owner is None))


def claim_batch(
    study: Any, space: Space, driver: str, *, trials: int, batch: int, seed: int, private: bool
) -> dict[int, dict[str, Any]]:
    """The numbers and fields of the trials to run next: a whole batch, begun before or not.

    Two processes that draw at once may go beyond `trials`; the caller ends such a trial unrun.
    """
    there = study.get_trials(deepcopy=False)
    mine = {
        t.number: dict(t.params)
        for t in there
        if t.state.name == "RUNNING" and ours(t, driver, private)
    }
    count = len(there)
    first = min(mine, default=count)
    last = min((first // batch + 1) * batch, trials)
    while count < last:
        trial = _ask(study, space, seed, count)
        trial.set_user_attr(DRIVER, driver)
        mine[trial.number] = dict(trial.params)
        count = trial.number + 1
    return dict(sorted(mine.items()))


def _ask(study: Any, space: Space, seed: int, number: int) -> Any:
    """A trial, drawn from a generator of its own number: an interruption changes nothing."""
    optuna = _optuna()
    drawn = torch.randint(2**31, (), generator=generator_for(seed, f"search {number}"))
    study.sampler = optuna.samplers.TPESampler(seed=int(drawn))
    return study.ask({name: _distribution(optuna, axis) for name, axis in space.axes.items()})


def _distribution(optuna: Any, axis: Axis) -> Any:
    if isinstance(axis, Choice):
        return optuna.distributions.CategoricalDistribution(axis.values)
    if axis.integer:
        return optuna.distributions.IntDistribution(int(axis.low), int(axis.high), log=axis.log)
    return optuna.distributions.FloatDistribution(axis.low, axis.high, log=axis.log)


def tell(study: Any, number: int, value: float | None, reason: str, *, pruned: bool) -> None:
    """Say how a running trial ended; without a value it failed."""
    optuna = _optuna()
    states = optuna.trial.TrialState
    if reason:
        trial = study.get_trials(deepcopy=False)[number]
        optuna.trial.Trial(study, trial._trial_id).set_user_attr(REASON, reason)
    if pruned:
        study.tell(number, state=states.PRUNED)
    elif value is None:
        study.tell(number, state=states.FAIL)
    else:
        study.tell(number, value)


def row_of(trial: Any) -> dict[str, Any]:
    """A trial as it is disclosed."""
    return {
        "number": trial.number,
        "state": trial.state.name.lower(),
        "value": trial.values[0] if trial.values else None,
        "reason": trial.user_attrs.get(REASON, ""),
        "settings": dict(trial.params),
    }


def storage_in(folder: Path, given: str | None) -> str | None:
    """A URL as it is, but a SQLite file's path relative to `folder`."""
    if given is None or not given.startswith("sqlite:///") or given.startswith("sqlite:////"):
        return given
    return f"sqlite:///{(folder / given.removeprefix('sqlite:///')).resolve()}"
