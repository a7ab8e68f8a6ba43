"""The order of the steps: prepare, capture, probe, look, report."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import safetensors.numpy

from probekit.activations.capture import Captured
from probekit.activations.files.local import Location
from probekit.csv_files import csv_text
from probekit.disk import exclusive
from probekit.experiment.loader import dump_experiment, load_experiment
from probekit.experiment.schema import Experiment
from probekit.pipeline.capture.captures import Models, capture_models, load_models
from probekit.pipeline.experiment.features import FeatureReader
from probekit.pipeline.experiment.key import run_key
from probekit.pipeline.experiment.norms import residual_norms
from probekit.pipeline.experiment.over_training import over_training
from probekit.pipeline.experiment.prepare import Prepared, prepare, read_card
from probekit.pipeline.experiment.record import (
    best_site,
    data_facts,
    digests,
    model_facts,
    table_of_test_rows,
)
from probekit.pipeline.look.attention_patterns import attention_prompt
from probekit.pipeline.measure.calibration import reliability_rows
from probekit.pipeline.measure.chosen import find_chosen, write_chosen
from probekit.pipeline.measure.probing import make_probers, probe_sites
from probekit.pipeline.measure.run_folder import RunFolder
from probekit.pipeline.measure.significance import (
    difference_rows,
    p_value_rows,
    scored,
)
from probekit.pipeline.measure.sparse_features import feature_rows
from probekit.probes.curve import Prober
from probekit.provenance import versions, write_atomic
from probekit.report.pages.run_page import write_report
from probekit.results.attention import AttentionPrompt
from probekit.results.columns import DIFFERENCES, RESULTS, make_table
from probekit.results.record import pack_record
from probekit.results.selection import chosen_row
from probekit.results.site_results import SiteResult
from probekit.watcher import SILENT, Watcher

_BUSY = (
    "Another process is running this experiment in {}. Wait for it to end: the same command then "
    "reuses its results. Or give another --out."
)


@dataclass(frozen=True)
class RunResult:
    """What a run left behind.

    Attributes:
        folder: `<out>/<name>/<key>`, with config.yaml, run.json and the files below.
        table: the rows of results.csv.
        results: the path of results.csv.
        report: the path of report.html, None if no page was asked for.
        record: the contents of run.json.
    """

    folder: Path
    table: pd.DataFrame
    results: Path
    report: Path | None
    record: Mapping[str, Any]


@dataclass
class _Clock:
    """Seconds spent in each step."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[name] = round(time.perf_counter() - start, 3)


def run(
    experiment: Experiment | str | Path,
    *,
    out: Path | str = "runs",
    cache_root: Location | None = None,
    device: str = "cpu",
    workers: int | None = None,
    watcher: Watcher = SILENT,
    page: bool = True,
) -> RunResult:
    """Run an experiment and return what it left behind.

    A second run of the same experiment captures and fits nothing again; an interrupted one goes on
    where it was: captured shards and probed sites are kept.

    Args:
        experiment: an experiment, or the path of its file.
        out: folder that gets `<name>/<key>`.
        cache_root: folder of the activation caches, None for the user's own.
        device: where the model computes.
        workers: how many sites are probed at once, each in a process where that pays; None for one
            a core. The numbers are the same for any.
        watcher: hears how far the work has come.
        page: whether report.html is written.

    Raises:
        ConfigError: another process is running the same experiment in the same folder.
        ProbekitError: one of its subclasses, whose message says what was wrong and where.
    """
    with ExitStack() as locks:
        return _run(
            experiment,
            locks,
            out=out,
            cache_root=cache_root,
            device=device,
            workers=workers,
            watcher=watcher,
            page=page,
        )


def _run(
    experiment: Experiment | str | Path,
    locks: ExitStack,
    *,
    out: Path | str,
    cache_root: Location | None,
    device: str,
    workers: int | None,
    watcher: Watcher,
    page: bool,
) -> RunResult:
    """Run an experiment; its folder stays locked until `locks` are released."""
    if not isinstance(experiment, Experiment):
        experiment = load_experiment(experiment)
    clock = _Clock()
    created = datetime.now(UTC).isoformat(timespec="seconds")
    with clock.step("prepare"):
        prepared = prepare(experiment)
        card = read_card(experiment.data)
        models = load_models(experiment, device)
        # Before the long work, as it checks the rows.
        probers = make_probers(experiment, prepared, device)
        key = run_key(experiment, prepared, models, card)
        # Before the long work, so that an unusable folder is an error at once.
        path = Path(out) / experiment.name / key
        locks.enter_context(exclusive(path, _BUSY.format(path)))
        folder = RunFolder(path, created)
    with clock.step("capture"):
        captured = capture_models(
            experiment, prepared, models, cache_root=cache_root, watcher=watcher
        )
    with clock.step("probe"):
        at_once = workers if device == "cpu" else 1  # one accelerator is not shared
        found = _probe(experiment, prepared, probers, captured, folder, watcher, at_once)
    with clock.step("compare"):
        table, differences = _conclude(experiment, found, probers[0])
        folder.write("config.yaml", dump_experiment(experiment))
        folder.write("results.csv", csv_text(table))
        folder.write("differences.csv", csv_text(differences))
        folder.write("reliability.csv", csv_text(reliability_rows(found, table, probers[0])))
        folder.write("test_rows.csv", csv_text(table_of_test_rows(prepared, probers[0])))
    with clock.step("checkpoints"):
        earlier = partial(
            run, out=folder.path / "checkpoints", cache_root=cache_root, device=device
        )
        training = over_training(experiment, table, partial(earlier, watcher=watcher, page=False))
        if training is not None:
            folder.write("training.csv", csv_text(training))
    with clock.step("look"):
        readers = _readers(experiment, prepared, captured["task"])
        chosen = find_chosen(prepared, probers, found, table, readers, folder.path)
        if chosen is not None:
            write_chosen(folder, chosen, prepared, models["task"])
        features = feature_rows(prepared, probers, table, readers)
        if not features.empty:
            folder.write("features.csv", csv_text(features))
        prompts = _attention(experiment, prepared, models)
        if prompts:
            folder.write("attention.safetensors", _patterns(prompts))
        norms = residual_norms(models["task"], prepared)
    record = {
        "run": experiment.name,
        "key": key,
        "question": experiment.question,
        "created": created,
        "model": model_facts(experiment, models["task"]),
        "data": data_facts(prepared, probers, card),
        "best": best_site(table),
        "attention": [{"text": p.text, "tokens": list(p.tokens)} for p in prompts],
        "norms": norms,
        "versions": versions(),
        "digests": digests(prepared, captured),
        "C_grid": list(experiment.probe.C),
        "control_by": experiment.probe.control_by,
        "seeds": {
            "split": experiment.split.seed,
            "probe": experiment.probe.seed,
            "random_weights": experiment.model.random_seed,
        },
        "caches": {target: str(part.store.folder) for target, part in captured.items()},
        "seconds": clock.seconds,
        "files": folder.digests(),
    }
    write_atomic(folder.path / "run.json", pack_record(record))
    folder.finish()
    report = write_report(folder.path) if page else None
    return RunResult(folder.path, table, folder.path / "results.csv", report, record)


def _probe(
    experiment: Experiment,
    prepared: Prepared,
    probers: Sequence[Prober],
    captured: Mapping[str, Captured],
    folder: RunFolder,
    watcher: Watcher,
    workers: int | None,
) -> list[SiteResult]:
    """Return what was found at every site, position by position."""
    found = []
    for at, prober in zip(prepared.positions, probers, strict=True):
        if len(probers) > 1:
            watcher.tell(f"position {at.position.text}")
        readers = {
            target: FeatureReader.of(part.store, at.rows, experiment, prepared.config)
            for target, part in captured.items()
        }
        here = experiment.with_position(at.position)
        found += probe_sites(here, prober, readers, prepared.selections, folder, watcher, workers)
    return found


def _readers(
    experiment: Experiment, prepared: Prepared, part: Captured
) -> dict[str, FeatureReader]:
    """Return what reads the trained model's features at each position."""
    return {
        at.position.text: FeatureReader.of(part.store, at.rows, experiment, prepared.config)
        for at in prepared.positions
    }


def _conclude(
    experiment: Experiment, found: Sequence[SiteResult], prober: Prober
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the tables of results.csv and differences.csv."""
    rows = [row for site in found for row in site.rows]
    table = make_table(rows, RESULTS)
    chosen = chosen_row(table)
    answers = scored(found, prober.main_metric)
    rows += p_value_rows(answers, prober, experiment.probe.permutations)
    ahead = [] if chosen is None else difference_rows(answers, chosen, prober)
    return (
        make_table(rows, RESULTS),
        make_table(ahead, DIFFERENCES),
    )


def _attention(experiment: Experiment, prepared: Prepared, models: Models) -> list[AttentionPrompt]:
    return [
        attention_prompt(models["task"], prepared.tokenizer, text, bos=experiment.tokens.bos)
        for text in experiment.attention.texts
    ]


def _patterns(prompts: list[AttentionPrompt]) -> bytes:
    """Return the patterns and head scores of each prompt as a safetensors file."""
    arrays = {str(n): prompt.patterns for n, prompt in enumerate(prompts)}
    for n, prompt in enumerate(prompts):
        arrays |= {f"{n}.{name}": score for name, score in prompt.scores.items()}
    # safetensors writes the wrong numbers of an array that is not contiguous.
    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    content: bytes = safetensors.numpy.save(whole)
    return content
