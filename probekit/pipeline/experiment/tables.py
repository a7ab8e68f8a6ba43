"""The tables of a run: from captured rows to the files that the report reads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import safetensors.numpy

from probekit.experiment.activations import ActivationExperiment, AnyExperiment
from probekit.experiment.loader import dump_experiment
from probekit.files import csv_text
from probekit.pipeline.experiment.prepare import prepare
from probekit.pipeline.experiment.source import ModelSource, Source, load_models
from probekit.pipeline.given.source import read_given
from probekit.pipeline.measure.choices import chosen_sites
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
from probekit.probes.prober import Prober
from probekit.probes.score.scored import SiteResult
from probekit.probes.targets import HEADLINE
from probekit.results.network import AttentionPrompt
from probekit.results.selection import chosen_row, headline_row
from probekit.results.site_results import NESTED_SITE, SavedSiteResults, site_stem
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
        position = chosen.place["position"]
        origin = {"run": folder.path.name, "position": position, "site": NESTED_SITE}
        saved = SavedSiteResults(folder.path, probers[0].truth_of, len(probers[0].data.classes))
        results.append(saved.write(site_stem(NESTED_SITE), origin, chosen))
        folder.note(results[-1].files)
    return results


def write_scores(
    source: Source, prober: Prober, results: Sequence[SiteResult], folder: RunFolder
) -> pd.DataFrame:
    """Write settings, scores, differences, calibration and test rows; return results.csv."""
    rows = [row for site in results for row in site.rows]
    table = make_table(rows, RESULTS)
    chosen = headline_row(table) if prober.is_nested else chosen_row(table)
    predictions = scored(results, prober.main_metric)
    draws = source.experiment.probe.permutations
    for target in ("task", HEADLINE):
        rows += p_value_rows(predictions, prober, draws, target)
    table = make_table(rows, RESULTS)
    differences = []
    if chosen is not None:
        has_p_values = draws > 0
        differences = difference_rows(predictions, chosen, table, prober, has_p_values=has_p_values)
    tested = source.rows.example[prober.test_rows]  # in the row order of the predictions
    test_rows = {
        "example": [source.rows.dataset.examples[n].id for n in tested],
        "group": source.rows.groups[prober.test_rows],
        "label": source.rows.labels[prober.test_rows],
    }
    folder.write("config.yaml", dump_experiment(source.experiment))
    for name, content in (
        ("results", table),
        ("differences", make_table(differences, DIFFERENCES)),
        ("reliability", reliability_rows(results, table, prober)),
        ("test_rows", pd.DataFrame(test_rows)),
    ):
        folder.write(f"{name}.csv", csv_text(content))
    return table


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
        write_selected_probe(folder, chosen, results, watcher)
    features = feature_rows(source, probers, table)
    if not features.empty:
        folder.write("features.csv", csv_text(features))
    prompts = source.attention_prompts()
    if prompts:
        arrays = {str(n): prompt.patterns for n, prompt in enumerate(prompts)}
        for n, prompt in enumerate(prompts):
            arrays |= {f"{n}.{name}": score for name, score in prompt.scores.items()}
        # safetensors writes wrong values for arrays that are not contiguous.
        contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        folder.write("attention.safetensors", safetensors.numpy.save(contiguous))
    return prompts
