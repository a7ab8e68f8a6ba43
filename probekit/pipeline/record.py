"""What is written beside a run's numbers: where they came from, in run.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from probekit.activations.capture import Captured
from probekit.data.checks import Finding, by_level, check_dataset
from probekit.data.examples import Dataset
from probekit.data.positions import IntArray
from probekit.experiment.schema import Experiment
from probekit.model.gpt2 import GPT2
from probekit.model.sites import layer_of
from probekit.pipeline.prepare import Prepared
from probekit.probes.curve import Prober
from probekit.probes.data import Reads
from probekit.report.table import chosen_row

SHOWN_PER_LABEL = 2
MOST_SHOWN = 30  # labels of which examples are shown: numbers may all differ
MOST_LOST = 0.05  # above this share of examples without a row, the rest is another data set
LEAST_SEEN = 0.5  # below this share of known words a control says little


def model_facts(experiment: Experiment, model: GPT2) -> dict[str, Any]:
    """Return name and sizes of the probed model."""
    config = model.config
    return {
        "source": experiment.model.source,
        "n_layers": config.n_layer,
        "n_heads": config.n_head,
        "d_model": config.n_embd,
        "d_vocab": config.vocab_size,
        "n_ctx": config.n_positions,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }


def data_facts(prepared: Prepared, probers: Sequence[Prober], card: str | None) -> dict[str, Any]:
    """Return counts by split and label, a few examples, and what was found in the data."""
    dataset, split = prepared.dataset, prepared.split
    rows = {"train": prepared.train, "test": prepared.test}
    examples = {"train": split.train, "test": split.test}
    return {
        "name": dataset.name,
        "n_examples": len(dataset),
        "n_rows": len(prepared.labels),
        "labels": {
            side: _counts(prepared.labels[chosen], probers[0].settings.reads)
            for side, chosen in rows.items()
        },
        "groups": {side: len(np.unique(prepared.groups[r])) for side, r in rows.items()},
        "examples": [
            {"text": e.text, "span": e.span, "label": e.label, "split": side}
            for side, indices in examples.items()
            for e in _a_few(dataset, indices)
        ],
        "notes": list(dataset.notes),
        "findings": [
            {"level": finding.level, "code": finding.code, "message": finding.message}
            for finding in findings(prepared, probers)
        ],
        "card": card,
    }


def findings(prepared: Prepared, probers: Sequence[Prober]) -> tuple[Finding, ...]:
    """Return what was found in the data, in what they lost, and in their words; errors first."""
    found = list(
        check_dataset(
            prepared.dataset, prepared.split, has_classes=probers[0].settings.reads == "classes"
        )
    )
    n_lost = prepared.n_read - len(prepared.dataset)
    if n_lost > MOST_LOST * prepared.n_read:
        told = f"{n_lost:,} of {prepared.n_read:,} examples give no row; the notes say why."
        found.append(Finding("warning", "lost", told))
    prober = min(probers, key=lambda prober: prober.seen_types)
    if prober.settings.control_draws and prober.seen_types < LEAST_SEEN:
        told = (
            f"Of the words of the test rows (at the probed position, or the last before it) "
            f"{prober.seen_types:.0%} stand in the rows that are fitted. The control task cannot "
            "look up new ones, so that selectivity flatters the probe."
        )
        found.append(Finding("warning", "new-words", told))
    return by_level(found)


def best_site(table: pd.DataFrame) -> dict[str, Any] | None:
    """Return the site with the best cross-validated accuracy; test rows have no say in it."""
    row = chosen_row(table)
    if row is None:
        return None
    return {
        "site": row["site"],
        "layer": layer_of(row["site"]),
        "head": None if pd.isna(row["head"]) else int(row["head"]),
        "position": row["position"],
        "chosen_by": "cross-validated accuracy on the training rows",
    }


def digests(prepared: Prepared, captured: Mapping[str, Captured]) -> dict[str, str]:
    """Return the digests of everything that the numbers rest on."""
    return {
        "dataset": prepared.dataset.digest,
        "tokenizer": prepared.tokenizer.digest,
        **{f"weights ({t})": part.store.identity.weights for t, part in captured.items()},
        **{f"activations ({target})": part.root for target, part in captured.items()},
    }


def _counts(labels: Any, read_as: Reads) -> dict[str, int]:
    """Return how many rows have each label; numbers and heads are counted together."""
    if read_as != "classes":
        return {read_as: len(labels)}
    names, counts = np.unique(labels, return_counts=True)
    return {str(name): int(n) for name, n in zip(names, counts, strict=True)}


def _a_few(dataset: Dataset, indices: IntArray) -> list[Any]:
    """Return the first examples of each label, no two of one group."""
    shown: list[Any] = []
    for label in sorted(set(dataset.labels[indices]))[:MOST_SHOWN]:
        of_label = [dataset.examples[n] for n in indices if dataset.labels[n] == label]
        by_group = {example.group: example for example in reversed(of_label)}
        shown += list(reversed(by_group.values()))[:SHOWN_PER_LABEL]
    return shown
