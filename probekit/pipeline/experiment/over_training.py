"""The same experiment at each checkpoint of a pretraining run, or of a model on the hub."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import pandas as pd

from probekit.experiment.activations import AnyExperiment
from probekit.experiment.schema import AttentionSection, Experiment
from probekit.results.table import only
from probekit.training.run_files import find_checkpoints


class _Run(Protocol):
    @property
    def table(self) -> pd.DataFrame: ...


class RunOne(Protocol):
    """Function that runs the experiment of one checkpoint."""

    def __call__(self, experiment: Experiment) -> _Run:
        """Return a run with its table of results."""


# The map by step shows only scores; controls and statistics are computed at the last checkpoint.
_LEFT_OUT: Mapping[str, Any] = {
    "control_draws": 0,
    "baselines": (),
    "description": False,
    "learning_steps": 0,
    "permutations": 0,
}


def over_training(
    experiment: AnyExperiment, last: pd.DataFrame, run_one: RunOne
) -> pd.DataFrame | None:
    """Return the task's rows at each checkpoint, with the column `step`; None without checkpoints.

    Args:
        experiment: the experiment; its `model.source` is the last checkpoint.
        last: results at the last checkpoint.
        run_one: runs the experiment of an earlier checkpoint.

    Raises:
        MissingError: a checkpoint does not exist.
    """
    if not isinstance(experiment, Experiment):
        return None
    model = experiment.model
    if model.checkpoints is None:
        return None
    with experiment.at("model"):
        sources: Mapping[int, str | Path] = model.steps_on_hub
        if model.path is not None:
            sources = find_checkpoints(Path(model.path))
    *earlier, latest = sorted(model.checkpoints or sources)
    tables = [run_one(_at(experiment, step, sources[step])).table for step in earlier]
    rows = [
        only(table, target="task").assign(step=step)
        for step, table in zip([*earlier, latest], [*tables, last], strict=True)
    ]
    return pd.concat(rows, ignore_index=True)


def _at(experiment: Experiment, step: int, source: str | Path) -> Experiment:
    """Return the experiment with the model of a checkpoint, without controls and edits."""
    model = {"source": str(source), "path": None, "checkpoints": None, "random_weights": 0}
    return experiment.model_copy(
        update={
            "name": f"step-{step}",
            "model": experiment.model.model_copy(update=model),
            "probe": experiment.probe.model_copy(update=_LEFT_OUT),
            "attention": AttentionSection(),
            "interventions": (),
            "measure": (),
        }
    )
