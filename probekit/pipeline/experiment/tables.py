"""The tables of a run: from captured rows to the files that the report reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import safetensors.numpy

from probekit.experiment.activations import ActivationExperiment, AnyExperiment
from probekit.experiment.loader import dump_experiment
from probekit.files import csv_text
from probekit.pipeline.experiment.model_source import ModelSource
from probekit.pipeline.experiment.models import TASK, load_models
from probekit.pipeline.experiment.prepare import prepare, read_card
from probekit.pipeline.experiment.prepared import PreparedRows
from probekit.pipeline.experiment.source import Features, Source
from probekit.pipeline.given.rows import GivenTable, prepare_given
from probekit.pipeline.given.source import GivenSource
from probekit.pipeline.measure.calibration import reliability_rows
from probekit.pipeline.measure.choice_files import save_chosen_sites, save_final
from probekit.pipeline.measure.choices import chosen_sites
from probekit.pipeline.measure.probing import PositionProbing, make_probers, probe_sites
from probekit.pipeline.measure.run_folder import RunFolder
from probekit.pipeline.measure.selected_probe import find_selected_probe, write_selected_probe
from probekit.pipeline.measure.significance import difference_rows, p_value_rows, scored
from probekit.pipeline.measure.sparse_features import feature_rows
from probekit.pipeline.measure.wrong_rows import write_wrong_rows
from probekit.probes.prober import Prober
from probekit.probes.score.scored import SiteResult
from probekit.probes.targets import HEADLINE
from probekit.results.network import AttentionPrompt
from probekit.results.selection import chosen_row, headline_row
from probekit.results.table import DIFFERENCES, RESULTS, make_table
from probekit.terminal import SILENT, Watcher


@dataclass(frozen=True, eq=False)
class RunInputs:
    """Inputs of a run, before any activation is captured.

    Attributes:
        experiment: the settings.
        prepared: examples and rows.
        card: description of the data in Markdown; None if there is none.
        source: origin of the activations.
        probers: one per position.
    """

    experiment: AnyExperiment
    prepared: PreparedRows
    card: str | None
    source: Source
    probers: tuple[Prober, ...]


def read_inputs(
    experiment: AnyExperiment, device: str, given: GivenTable | None = None
) -> RunInputs:
    """Return the inputs of a run, checked as far as possible before the model runs.

    Args:
        experiment: the settings.
        device: compute device.
        given: activations and rows in memory; None to read the files of the experiment.

    Raises:
        ProbekitError: one of its subclasses; the message names the key, file or row at fault.
    """
    card = read_card(experiment.data)
    prepared: PreparedRows
    if isinstance(experiment, ActivationExperiment):
        prepared = rows = prepare_given(experiment, given)
        source: Source = GivenSource(experiment, rows)
    else:
        prepared = texts = prepare(experiment)
        source = ModelSource(experiment, texts, load_models(experiment, device))
    return RunInputs(experiment, prepared, card, source, make_probers(experiment, prepared, device))


def probe_positions(
    inputs: RunInputs,
    features: Features,
    folder: RunFolder,
    watcher: Watcher,
    workers: int | None,
) -> list[SiteResult]:
    """Return the results of all sites at each position, then the scores at chosen sites, if any."""
    prepared, results = inputs.prepared, []
    for at, prober in zip(prepared.positions, inputs.probers, strict=True):
        if len(inputs.probers) > 1:
            watcher.tell(f"position {at.position.text}")
        probing = PositionProbing(
            inputs.experiment, at, features.origin(at), prober, features.readers(at)
        )
        results += probe_sites(probing, prepared.selections, folder, watcher, workers)
    names = [at.position.text for at in prepared.positions]
    chosen = chosen_sites(results, dict(zip(names, inputs.probers, strict=True)))
    if chosen is not None:
        results.append(save_chosen_sites(chosen, folder, inputs.probers[0]))
    return results


def write_scores(
    inputs: RunInputs, results: Sequence[SiteResult], folder: RunFolder
) -> pd.DataFrame:
    """Write settings, scores, differences, calibration and test rows; return results.csv."""
    experiment, prober = inputs.experiment, inputs.probers[0]
    table, differences = _score_tables(experiment, results, prober)
    folder.write("config.yaml", dump_experiment(experiment))
    folder.write("results.csv", csv_text(table))
    folder.write("differences.csv", csv_text(differences))
    folder.write("reliability.csv", csv_text(reliability_rows(results, table, prober)))
    folder.write("test_rows.csv", csv_text(_table_of_test_rows(inputs.prepared, prober)))
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


def _table_of_test_rows(prepared: PreparedRows, prober: Prober) -> pd.DataFrame:
    """Return example, group and label of each test row, in the row order of the predictions."""
    rows = prober.test_rows
    examples = prepared.dataset.examples
    return pd.DataFrame(
        {
            "example": [examples[n].id for n in prepared.example[rows]],
            "group": prepared.groups[rows],
            "label": prepared.labels[rows],
        }
    )


def write_details(
    inputs: RunInputs,
    opened: Features,
    results: Sequence[SiteResult],
    table: pd.DataFrame,
    folder: RunFolder,
    watcher: Watcher = SILENT,
) -> list[AttentionPrompt]:
    """Write the selected probe, sparse features and attention patterns; return the patterns."""
    prepared, probers = inputs.prepared, inputs.probers
    readers = {at.position.text: opened.readers(at)[TASK] for at in prepared.positions}
    save_final(folder, table, prepared)
    chosen = find_selected_probe(prepared, probers, results, table, readers, folder.path)
    if chosen is not None:
        write_selected_probe(folder, chosen, prepared, watcher)
        write_wrong_rows(folder, chosen, prepared, inputs.source, results)
    features = feature_rows(prepared, probers, table, readers)
    if not features.empty:
        folder.write("features.csv", csv_text(features))
    prompts = inputs.source.attention_prompts()
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
