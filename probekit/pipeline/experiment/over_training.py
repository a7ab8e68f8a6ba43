"""An experiment over the checkpoints of a pretraining run: the same probes, step by step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import pandas as pd

from probekit.experiment.schema import AttentionSection, Experiment
from probekit.results.table import only
from probekit.training.kept import find_checkpoints


class _Ran(Protocol):
    @property
    def table(self) -> pd.DataFrame: ...


class RunOne(Protocol):
    """Runs the experiment of one checkpoint."""

    def __call__(self, experiment: Experiment) -> _Ran:
        """Return a run with its table of results."""


# The map shows scores alone: what stands beside them is measured at the last checkpoint.
_LEFT_OUT: Mapping[str, Any] = {
    "control_draws": 0,
    "baselines": (),
    "description": False,
    "learning_steps": 0,
    "permutations": 0,
}


def over_training(
    experiment: Experiment, last: pd.DataFrame, run_one: RunOne
) -> pd.DataFrame | None:
    """Return the task's rows at each checkpoint, with the column `step`; None without checkpoints.

    Args:
        experiment: whose `model.source` is its last checkpoint.
        last: the results at that.
        run_one: runs the experiment of each checkpoint before it.

    Raises:
        MissingError: a checkpoint is not there.
    """
    model = experiment.model
    if model.checkpoints is None or model.path is None:
        return None
    with experiment.at("model", "path"):
        found = find_checkpoints(Path(model.path))
    *earlier, latest = sorted(model.checkpoints or found)
    tables = [run_one(_at(experiment, step, found[step])).table for step in earlier]
    rows = [
        only(table, target="task").assign(step=step)
        for step, table in zip([*earlier, latest], [*tables, last], strict=True)
    ]
    return pd.concat(rows, ignore_index=True)


def _at(experiment: Experiment, step: int, folder: Path) -> Experiment:
    """Return the experiment on the model of one checkpoint, without what the map does not show."""
    alone = {"source": str(folder), "path": None, "checkpoints": None, "random_weights": False}
    return experiment.model_copy(
        update={
            "name": f"step-{step}",
            "model": experiment.model.model_copy(update=alone),
            "probe": experiment.probe.model_copy(update=_LEFT_OUT),
            "attention": AttentionSection(),
        }
    )
