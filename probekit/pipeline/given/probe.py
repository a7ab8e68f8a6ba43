"""Probing of activations that another library has computed, in one call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from probekit.activations.given.given import Position
from probekit.errors import ConfigError
from probekit.experiment.activations import ActivationExperiment
from probekit.experiment.document import Document
from probekit.experiment.locations import resolve_activations
from probekit.pipeline.experiment.run import run_inputs
from probekit.pipeline.experiment.tables import read_inputs
from probekit.pipeline.given.memory import (
    check_same_order,
    dataset_of,
    label_texts,
    plain_texts,
    token_texts,
)
from probekit.pipeline.given.rows import GivenTable
from probekit.progress import shown_progress
from probekit.report.notebooks.run_result import RunResult
from probekit.terminal import Watcher


def probe(  # noqa: PLR0913  # one call, whose options have defaults
    activations: Any,
    labels: Iterable[Any],
    *,
    groups: Iterable[Any] | None = None,
    tokens: Iterable[Any] | None = None,
    split: Mapping[str, Any] | Iterable[str] | None = None,
    probe: Mapping[str, Any] | None = None,
    sites: Sequence[str] = ("*",),
    position: Position | None = None,
    positive: str | None = None,
    name: str = "activations",
    question: str | None = None,
    source: str = "given activations",
    out: Path | str = "runs",
    device: str = "cpu",
    workers: int | None = None,
    watcher: Watcher | None = None,
    progress: bool = True,
    page: bool = True,
) -> RunResult:
    """Probe activations that another library has computed, and return the results.

    Folds, intervals, tests, tables and page are those of `run`. Networks with random weights and
    baselines that read the texts are left out; the page states it. An interrupted call resumes:
    finished sites are saved, and reused if activations, labels and settings are the same.

    Args:
        activations: mapping from names of sites or layers to arrays of shape (n_rows, n_features),
            NumPy or torch on any device; or the cache of TransformerLens; or the path of a folder
            of .npy, .safetensors, .parquet or .zarr arrays, which are read one site at a time.
        labels: label of each row: text, integer, or with `kind: ridge_regression` any number.
        groups: name of the group of each row. A group is never split between train and test. None
            makes each row its own group.
        tokens: word or token of each row, for the control task and the word-identity baseline.
        split: the section `split` of an experiment, such as `{"folds": 5}`; or "train" or "test"
            for each row.
        probe: the section `probe` of an experiment, such as `{"kinds": [{"kind": "lda"}]}`.
        sites: names or globs of the sites to probe.
        position: for arrays of shape (n_rows, n_positions, n_features): index of the position, the
            same for all rows or one for each.
        positive: label that the metrics of one class refer to.
        name: name of the experiment and of the folder of its runs.
        question: research question, shown in the report.
        source: name of the model that computed the activations, shown in the report.
        out: results folder; the run is written to `<out>/<name>/<key>`.
        device: device that probes are fitted on.
        workers: number of sites probed in parallel; None for one per core.
        watcher: receives progress; None shows it in the notebook, on the terminal or on stderr.
        progress: False shows no progress.
        page: whether to write report.html.

    Raises:
        ConfigError: an option is invalid; the message names the nearest one.
        DataError: the activations or labels cannot be used; the message names the site and the row.

    >>> import numpy as np, tempfile
    >>> rng = np.random.default_rng(0)
    >>> number = rng.integers(2, size=120)
    >>> layers = {n: rng.normal(size=(120, 4)) + 2 * n * number[:, None] for n in range(3)}
    >>> options = {"description": False, "C": [0.1], "folds": 2}
    >>> out = tempfile.mkdtemp()
    >>> result = probe(layers, number, probe=options, out=out, page=False, progress=False)
    >>> result.best.site, round(result.best.value, 1)
    ('layer_2', 1.0)
    """
    arrays = activations if isinstance(activations, dict) else {}
    columns = {"labels": labels, "groups": groups, "tokens": tokens, "split": split}
    check_same_order(columns | {f"activations[{key!r}]": one for key, one in arrays.items()})
    experiment = _experiment(activations, split, probe, sites, name, question, source, positive)
    reads_classes = experiment.probe.reads == "classes"
    names = None if tokens is None else token_texts(tokens)
    sides = None if split is None or isinstance(split, Mapping) else plain_texts("split", split)
    if sides is not None and experiment.split.folds is not None:
        raise ConfigError("`split.folds` requires rows without a given split.")
    table = GivenTable(
        activations,
        dataset_of(
            name,
            label_texts(labels, reads_classes=reads_classes),
            groups=None if groups is None else plain_texts("groups", groups, distinct=True),
            tokens=names,
            sides=sides,
        ),
        names,
        has_groups=groups is not None,
        position=position,
    )
    with shown_progress(watcher, progress=progress) as shown:
        return run_inputs(
            experiment,
            partial(read_inputs, experiment, device, table),
            out=out,
            device=device,
            workers=workers,
            watcher=shown,
            page=page,
        )


def _experiment(
    activations: Any,
    split: Mapping[str, Any] | Iterable[str] | None,
    probe: Mapping[str, Any] | None,
    sites: Sequence[str],
    name: str,
    question: str | None,
    source: str,
    positive: str | None,
) -> ActivationExperiment:
    """Return the settings of a call as an experiment, validated like a file."""
    folder = str(Path(activations).absolute()) if isinstance(activations, str | Path) else None
    values = {
        "name": name,
        "question": question,
        "activations": {"folder": folder, "source": source, "sites": sites},
        "data": {"name": name, "positive": None if positive is None else str(positive)},
        "split": split if isinstance(split, Mapping) else {},
        "probe": {} if probe is None else probe,
    }
    return Document(values).settings(ActivationExperiment, resolve_activations)
