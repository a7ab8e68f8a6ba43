"""The interventions of a run, after its probes; or alone, without any probe."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from probekit.errors import ConfigError
from probekit.experiment.loader import make_text_experiment
from probekit.experiment.schema import Experiment
from probekit.files import exclusive
from probekit.pipeline.experiment.prepare import read_card
from probekit.pipeline.experiment.record import run_key
from probekit.pipeline.experiment.source import TASK, ModelSource, Source
from probekit.pipeline.experiment.tables import read_source
from probekit.pipeline.intervene.run import needs_probes, write_causes
from probekit.pipeline.measure.run_folder import RunFolder
from probekit.progress import shown_progress
from probekit.report.pages.causes.causes_page import write_causes_page
from probekit.results.causes import CauseTables
from probekit.terminal import Watcher


def intervene(
    source: Source, table: pd.DataFrame | None, folder: RunFolder, watcher: Watcher
) -> None:
    """Write the tables of the interventions of a run; nothing without interventions."""
    if not isinstance(source, ModelSource) or not source.experiment.interventions:
        return
    write_causes(source.experiment, source.rows, source.models[TASK], table, folder, watcher)


def cause(
    experiment: Experiment | Mapping[str, Any] | str | Path,
    *,
    data: Any = None,
    out: Path | str = "runs",
    device: str = "cpu",
    watcher: Watcher | None = None,
    progress: bool = True,
) -> CauseTables:
    """Run the interventions of an experiment without its probes, and return their tables.

    The tables are in the folder `causes` of the run, and the page is causes.html. Every
    edit at a site is saved when it is complete, so that an interrupted run resumes there, and
    `probekit.run` does not repeat it.

    Args:
        experiment: an experiment, the path of its file, or nested dicts with the keys of a file.
        data: rows in memory; see `run`.
        out: results folder; the tables are written to `<out>/<name>/<key>/causes`.
        device: device that the model runs on.
        watcher: receives progress; None shows it in the notebook, on the terminal or on stderr.
        progress: False shows no progress.

    Raises:
        ConfigError: the experiment has no interventions, or edits the site that probes choose.
        ProbekitError: one of its subclasses; the message names the problem and its location.
    """
    experiment = make_text_experiment(experiment)
    experiment = experiment if data is None else experiment.with_data(data)
    if not experiment.interventions:
        raise ConfigError(
            f"The experiment {experiment.name} has no interventions. Add the sections "
            "`interventions` and `measure`, as in experiments/causes.yaml."
        )
    if needs_probes(experiment):
        raise ConfigError(
            "The interventions edit the site that the probes choose (`sites: chosen`), so that "
            "the probes are needed. Use `probekit run`, or name the sites."
        )
    with shown_progress(watcher, progress=progress) as shown:
        card = read_card(experiment.data)
        source = read_source(experiment, device)
        path = Path(out) / experiment.name / run_key(source, card)
        with exclusive(path, _BUSY.format(path)):
            folder = RunFolder(path, datetime.now(UTC).isoformat(timespec="seconds"))
            intervene(source, None, folder, shown)
            folder.finish()
    write_causes_page(path)
    return CauseTables.open(path)


_BUSY = "Another process is running this experiment in {}. Wait for it to end, or give another out."
