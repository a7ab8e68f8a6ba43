"""The tables of a run: from captured rows to the files that the report reads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import safetensors.numpy

from probekit.experiment.activations import ActivationExperiment, AnyExperiment
from probekit.experiment.document import dump_settings
from probekit.files import csv_text
from probekit.pipeline.experiment.prepare import prepare
from probekit.pipeline.experiment.rows import Rows
from probekit.pipeline.experiment.source import ModelSource, Source, load_models
from probekit.pipeline.given.source import read_given
from probekit.pipeline.measure.choices import chosen_sites, save_chosen_sites
from probekit.pipeline.measure.probing import probe_sites
from probekit.pipeline.measure.run_folder import RunFolder
from probekit.pipeline.measure.selected_probe import (
    feature_rows,
    find_selected_probe,
    save_final,
    write_selected_probe,
)
from probekit.pipeline.measure.significance import (
    difference_rows,
    p_value_rows,
    reliability_rows,
    scored,
)
from probekit.pipeline.measure.wrong_rows import write_wrong_rows
from probekit.probes.prober import Prober
from probekit.probes.score.scored import SiteResult
from probekit.probes.targets import HEADLINE
from probekit.results.network import AttentionPrompt
from probekit.results.selection import chosen_row, headline_row
from probekit.results.table import DIFFERENCES, RESULTS, make_table
from probekit.terminal import SILENT, Watcher


def read_source(experiment: AnyExperiment, device: str) -> Source:
    """Return the source of an experiment's rows, checked as far as possible before the model runs.

    Args:
        experiment: the settings.
        device: compute device.

    Raises:
        ProbekitError: one of its subclasses; the message names the key, file or row at fault.
    """
    if isinstance(experiment, ActivationExperiment):
        return read_given(experiment)
    rows = prepare(experiment)
    models = load_models(experiment, device)
    return ModelSource(experiment=experiment, rows=rows, models=models)


def probe_positions(
    source: Source,
    probers: Sequence[Prober],
    folder: RunFolder,
    watcher: Watcher,
    workers: int | None,
) -> list[SiteResult]:
    """Return the results of all sites at each position, then the scores at chosen sites, if any."""
    names, results = [at.text for at in source.rows.positions], []
    for position, (name, prober) in enumerate(zip(names, probers, strict=True)):
        if len(probers) > 1:
            watcher.tell(f"position {name}")
        results += probe_sites(source, position, prober, folder, watcher, workers)
    chosen = chosen_sites(results, dict(zip(names, probers, strict=True)))
    if chosen is not None:
        results.append(save_chosen_sites(chosen, folder, probers[0]))
    return results


def write_scores(
    source: Source, prober: Prober, results: Sequence[SiteResult], folder: RunFolder
) -> pd.DataFrame:
    """Write settings, scores, differences, calibration and test rows; return results.csv."""
    table, differences = _score_tables(source.experiment, results, prober)
    folder.write("config.yaml", dump_settings(source.experiment))
    folder.write("results.csv", csv_text(table))
    folder.write("differences.csv", csv_text(differences))
    folder.write("reliability.csv", csv_text(reliability_rows(results, table, prober)))
    folder.write("test_rows.csv", csv_text(_table_of_test_rows(source.rows, prober)))
    return table


def _score_tables(
    experiment: AnyExperiment, results: Sequence[SiteResult], prober: Prober
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the tables of results.csv and differences.csv."""
    rows = [row for site in results for row in site.rows]
    table = make_table(rows, RESULTS)
    chosen = headline_row(table) if prober.is_nested else chosen_row(table)
    predictions, draws = scored(results, prober.main_metric), experiment.probe.permutations
    for target in ("task", HEADLINE):
        rows += p_value_rows(predictions, prober, draws, target)
    table = make_table(rows, RESULTS)
    differences = (
        []
        if chosen is None
        else difference_rows(predictions, chosen, table, prober, has_p_values=draws > 0)
    )
    return make_table(rows, RESULTS), make_table(differences, DIFFERENCES)


def _table_of_test_rows(of_run: Rows, prober: Prober) -> pd.DataFrame:
    """Return example, group and label of each test row, in the row order of the predictions."""
    rows = prober.test_rows
    examples = of_run.dataset.examples
    return pd.DataFrame(
        {
            "example": [examples[n].id for n in of_run.example[rows]],
            "group": of_run.groups[rows],
            "label": of_run.labels[rows],
        }
    )


def write_details(
    source: Source,
    probers: Sequence[Prober],
    results: Sequence[SiteResult],
    table: pd.DataFrame,
    folder: RunFolder,
    watcher: Watcher = SILENT,
) -> list[AttentionPrompt]:
    """Write the selected probe, sparse features and attention patterns; return the patterns."""
    save_final(folder, table, source.rows)
    chosen = find_selected_probe(source, probers, results, table, folder.path)
    if chosen is not None:
        write_selected_probe(folder, chosen, watcher)
        write_wrong_rows(folder, chosen, results)
    features = feature_rows(source, probers, table)
    if not features.empty:
        folder.write("features.csv", csv_text(features))
    prompts = source.attention_prompts()
    if prompts:
        folder.write("attention.safetensors", _patterns(prompts))
    return prompts


def _patterns(prompts: Sequence[AttentionPrompt]) -> bytes:
    """Return the patterns and head scores of each prompt as a safetensors file."""
    arrays = {str(n): prompt.patterns for n, prompt in enumerate(prompts)}
    for n, prompt in enumerate(prompts):
        arrays |= {f"{n}.{name}": score for name, score in prompt.scores.items()}
    # safetensors writes wrong values for arrays that are not contiguous.
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    content: bytes = safetensors.numpy.save(contiguous)
    return content
