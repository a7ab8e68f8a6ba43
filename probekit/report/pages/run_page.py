"""The report of a run: one self-contained HTML page."""

from __future__ import annotations

from base64 import b64encode
from itertools import chain
from pathlib import Path
from typing import Any

import pandas as pd
from safetensors.numpy import load_file

from probekit.errors import DataError
from probekit.files import inside, write_atomic
from probekit.probes.score.metric_table import METRICS
from probekit.report.attention.packing import choose_reduction
from probekit.report.attention.page import SCORE_NAMES, attention_data
from probekit.report.figures.over_training import load_training, step_parts
from probekit.report.figures.style import format_number
from probekit.report.pages.causes.causes_page import write_causes_page
from probekit.report.pages.causes.section import cause_figures, causes_section
from probekit.report.pages.chosen_parts import chosen_parts
from probekit.report.pages.parts import FigurePart, norms_part, reliability_part, result_parts
from probekit.report.pages.template import render
from probekit.report.pages.wrong_examples import WrongExample, WrongRow, load_wrong
from probekit.report.sentences.answer import answer
from probekit.report.sentences.captions import load_bins
from probekit.report.sentences.caveats import caveats
from probekit.report.sentences.method import method, size_words
from probekit.report.sentences.tables import (
    NOT_CONVERGED,
    RULE,
    comparison_table,
    differences_table,
    load_features,
    site_table,
)
from probekit.report.texts import DENSEST, MachinePaths, class_label
from probekit.results.finished_run import date_text, load_config
from probekit.results.judging import other_rivals
from probekit.results.network import AttentionPrompt
from probekit.results.record import (
    MOST_CLASSES,
    ExampleRecord,
    RunRecord,
    check_finished,
    has_causes_alone,
    open_record,
    reading_run_file,
)
from probekit.results.table import DIFFERENCES, load_table, metric_name, placed, read_columns, ticks


def write_report(run_dir: Path) -> Path:
    """Write report.html into the folder of a run and return its path.

    The page of interventions without probes is causes.html. Pages are deterministic: the same
    folder gives the same bytes.

    Raises:
        MissingError: A file of the run is missing.
        DataError: A file of the run cannot be read, or was changed after the run.
        StoreError: The page cannot be written.
    """
    if has_causes_alone(run_dir):
        return write_causes_page(run_dir)
    check_finished(run_dir)
    path = run_dir / "report.html"
    write_atomic(path, report_page(run_dir))
    return path


def run_figures(run_dir: Path) -> list[FigurePart]:
    """Return all figures of a run's page, in the order of the page.

    Raises:
        MissingError: A file of the run is missing.
        DataError: A file of the run cannot be read, or was changed after the run.
    """
    if has_causes_alone(run_dir):
        return cause_figures(run_dir)
    record = open_record(run_dir)
    table = load_table(run_dir / "results.csv")
    figures = _result_figures(run_dir, table, record)
    figures[1:1] = cause_figures(run_dir, _layers(table))
    return figures + ([norms_part(record.norms)] if record.norms else [])


def _layers(table: pd.DataFrame) -> dict[int, str]:
    """Return the labels of the layer axis by depth; {} without single sites."""
    rows = placed(table)
    return {} if rows.empty else ticks(rows)


def _result_figures(run_dir: Path, table: pd.DataFrame, record: RunRecord) -> list[FigurePart]:
    bins = load_bins(run_dir / "reliability.csv")
    reliable = [] if bins is None else [reliability_part(bins, table, record.verdict)]
    figures = result_parts(table, record.verdict, record.control)
    figures[1:1] = step_parts(load_training(run_dir / "training.csv"), record.verdict)
    return [*figures, *reliable, *chosen_parts(run_dir, table, record.verdict)]


def report_page(run_dir: Path) -> str:
    """Return the page of a run as HTML.

    Raises:
        MissingError: A file of the run is missing.
        DataError: A file of the run cannot be read, or was changed after the run.
    """
    config = load_config(run_dir / "config.yaml")
    record = open_record(run_dir)
    sections = [config.get(name) for name in ("model", "activations", "data")]
    paths = MachinePaths.of(*sections, record.model.source)
    record = paths.hide_in(record)
    table = load_table(run_dir / "results.csv")
    figures = _result_figures(run_dir, table, record)
    return render(
        "report.html",
        record=record,
        **_first_screen(run_dir, record),
        figures=[part for part in figures if part.is_open],
        folded_figures=[part for part in figures if not part.is_open],
        number=format_number,
        is_nested=record.verdict.is_nested,
        sites=site_table(table, record.verdict),
        csv=b64encode(paths.hide(_text(run_dir / "results.csv")).encode()).decode(),
        unconverged=NOT_CONVERGED,
        norms=norms_part(record.norms) if record.norms else None,
        attention=_attention(run_dir, record) if record.attention else None,
        causes=causes_section(run_dir, _layers(table)),
        features=load_features(run_dir),
        wrong=load_wrong(run_dir),
        densest=DENSEST,
        label_text=class_label,
        not_drawn=_not_drawn(run_dir, record),
        around_span=_around_span,
        labels=list(dict.fromkeys(chain.from_iterable(record.data.labels.values()))),
        config=paths.hide(_text(run_dir / "config.yaml")),
        facts=_facts(record),
    )


def _first_screen(run_dir: Path, record: RunRecord) -> dict[str, Any]:
    """Return the values of the first screen, and of the sections that explain it."""
    v = record.verdict
    differences = read_columns(run_dir / "differences.csv", DIFFERENCES)
    return {
        "model": record.model.source,
        "date": date_text(record.created),
        "size": size_words(v),
        "metric": metric_name(v.metric),
        "answer": answer(v, record.question),
        "compared": comparison_table(v, record.control),
        "comparison_rule": RULE,
        "other_comparisons": differences_table(other_rivals(differences, v)),
        "warnings": caveats(v, record),
        "method": method(v),
    }


def _not_drawn(run_dir: Path, record: RunRecord) -> str:
    """Return why there are no figures of the selected probe; "" if they are drawn."""
    n_classes = len(record.data.training_labels)
    is_of_classes = METRICS[record.verdict.metric].fits(
        "class", {"scores", "probabilities", "alarms"}
    )
    if not is_of_classes or n_classes <= MOST_CLASSES or (run_dir / "confusion.csv").exists():
        return ""
    return (
        f"The data have {n_classes} classes. Confusion matrix, scatter plots, cosines of "
        f"directions and errors are computed for at most {MOST_CLASSES}."
    )


def _attention(run_dir: Path, record: RunRecord) -> dict[str, Any]:
    prompts = _prompts(run_dir, record)
    return attention_data(prompts, record.model.source, choose_reduction(prompts, strict=False))


def _prompts(run_dir: Path, record: RunRecord) -> list[AttentionPrompt]:
    path = run_dir / "attention.safetensors"
    with reading_run_file(path):
        tensors = load_file(inside(path))
    absent = [str(i) for i in range(len(record.attention)) if str(i) not in tensors]
    if absent:
        raise DataError(
            f"{path} has no tensor {', '.join(absent)} for the prompts of run.json. "
            f"Available tensors: {', '.join(sorted(tensors))}."
        )
    return [
        AttentionPrompt(
            prompt.text,
            tuple(prompt.tokens),
            tensors[str(i)],
            scores={
                name: tensors[f"{i}.{name}"] for name in SCORE_NAMES if f"{i}.{name}" in tensors
            },
        )
        for i, prompt in enumerate(record.attention)
    ]


def _around_span(example: ExampleRecord | WrongExample | WrongRow) -> tuple[str, str, str]:
    """Return the text of an example before, inside and after its span."""
    start, end = example.span or (len(example.text),) * 2
    return example.text[:start], example.text[start:end], example.text[end:]


def _text(path: Path) -> str:
    with reading_run_file(path):
        return inside(path).read_text("utf-8")


def _facts(record: RunRecord) -> dict[str, dict[str, Any]]:
    """Return the names and values of the provenance section, by heading."""
    return {
        "Run": {"run": record.run, "key": record.key, "created": record.created},
        "Model": record.model.model_dump(exclude_none=True),
        "Versions": record.versions,
        "Digests": record.digests,
        "Seeds": record.seeds,
        "Seconds": {step: f"{seconds:,.2f}" for step, seconds in record.seconds.items()},
    }
