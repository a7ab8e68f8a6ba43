"""The report of a run: one self-contained HTML page."""

from __future__ import annotations

from base64 import b64encode
from itertools import chain
from pathlib import Path
from typing import Any

import pandas as pd
from safetensors.numpy import load_file

from probekit.disk import inside
from probekit.drafts import write_atomic
from probekit.errors import DataError
from probekit.report.attention.codes import choose_reduction
from probekit.report.attention.page import SCORE_NAMES, attention_data
from probekit.report.figures.over_training import load_training, step_parts
from probekit.report.figures.style import format_number, format_p
from probekit.report.pages.chosen_parts import WrongExample, WrongRow, chosen_parts, load_wrong
from probekit.report.pages.parts import FigurePart, norms_part, reliability_part, result_parts
from probekit.report.pages.template import render
from probekit.report.sentences.answer import answer
from probekit.report.sentences.choice import OLD_FOLDS
from probekit.report.sentences.confidence import load_bins
from probekit.report.sentences.feature_table import load_features
from probekit.report.sentences.sites_table import UNCONVERGED, site_table
from probekit.report.sentences.warnings import warnings
from probekit.report.texts.paint import DENSEST
from probekit.results.attention import AttentionPrompt
from probekit.results.differences import (
    SIGNIFICANT,
    RivalDifference,
    load_differences,
    rival_differences,
)
from probekit.results.metrics import metric_name
from probekit.results.record import (
    OLD_RECORD,
    Control,
    ExampleRecord,
    RunRecord,
    check_run,
    open_record,
    reading_run_file,
)
from probekit.results.selection import chosen_row, is_nested, main_metric
from probekit.results.settings import load_config
from probekit.results.table import load_table


def write_report(run_dir: Path) -> Path:
    """Write report.html into the folder of a run and return its path.

    The page is deterministic: the same folder gives the same bytes.

    Raises:
        MissingError: A file of the run is missing.
        DataError: A file of the run cannot be read, or was changed after the run.
        StoreError: The page cannot be written.
    """
    check_run(run_dir)
    path = run_dir / "report.html"
    write_atomic(path, report_page(run_dir))
    return path


def run_figures(run_dir: Path) -> list[FigurePart]:
    """Return all figures of a run's page, in the order of the page.

    Raises:
        MissingError: A file of the run is missing.
        DataError: A file of the run cannot be read, or was changed after the run.
    """
    record = open_record(run_dir)
    table = load_table(run_dir / "results.csv")
    figures = _result_figures(run_dir, table, record.control)
    return figures + ([norms_part(record.norms)] if record.norms else [])


def _result_figures(run_dir: Path, table: pd.DataFrame, control: Control) -> list[FigurePart]:
    bins = load_bins(run_dir / "reliability.csv")
    reliable = [] if bins is None else [reliability_part(bins, table)]
    figures = result_parts(table, control)
    figures[1:1] = step_parts(load_training(run_dir / "training.csv"))
    return [*figures, *reliable, *chosen_parts(run_dir, table)]


OLD_STATISTICS = (
    "An older version of probekit wrote this run: its intervals come from a bootstrap over groups, "
    "and its p-values compare with the best constant guess and are adjusted by Holm's method. The "
    "captions describe the present methods. Run the experiment again to use them."
)


def report_page(run_dir: Path) -> str:
    """Return the page of a run as HTML.

    Raises:
        MissingError: A file of the run is missing.
        DataError: A file of the run cannot be read, or was changed after the run.
    """
    record = open_record(run_dir)
    table = load_table(run_dir / "results.csv")
    header = (run_dir / "results.csv").read_text().partition("\n")[0].split(",")
    differences = load_differences(run_dir / "differences.csv")
    comparisons = rival_differences(table, differences)
    chosen = chosen_row(table)
    figures = _result_figures(run_dir, table, record.control)
    return render(
        "report.html",
        record=record,
        answer=answer(table, comparisons),
        warnings=[
            *warnings(table, record, comparisons),
            *([] if record.is_sealed else [OLD_RECORD]),
            *_old_folds(run_dir, table),
            *([] if "null" in header else [OLD_STATISTICS]),
        ],
        figures=[part for part in figures if part.is_open],
        folded_figures=[part for part in figures if not part.is_open],
        comparisons=comparisons,
        lacks_differences=differences is None and chosen is not None,
        difference_cell=_difference,
        number=format_number,
        p_text=format_p,
        significant=SIGNIFICANT,
        answer_is_chosen=chosen is not None,
        is_nested=is_nested(table),
        sites=site_table(table),
        metric=metric_name(main_metric(table)),
        csv=b64encode(inside(run_dir / "results.csv").read_bytes()).decode(),
        unconverged=UNCONVERGED,
        norms=norms_part(record.norms) if record.norms else None,
        attention=_attention(run_dir, record) if record.attention else None,
        features=load_features(run_dir),
        wrong=load_wrong(run_dir),
        densest=DENSEST,
        around_span=_around_span,
        labels=list(dict.fromkeys(chain.from_iterable(record.data.labels.values()))),
        config=_config(run_dir / "config.yaml"),
        facts=_facts(record),
    )


def _old_folds(run_dir: Path, table: pd.DataFrame) -> list[str]:
    """Return the warning about a nested cross-validation that an older release ran; else []."""
    config = load_config(run_dir / "config.yaml")
    folds = (config.get("split") or {}).get("folds")
    return [OLD_FOLDS] if folds is not None and not is_nested(table) else []


def _difference(one: RivalDifference) -> tuple[str, str]:
    """Return a difference with an explicit sign, and its interval, as text."""
    value, _, interval = format_number(one.difference, one.ci_low, one.ci_high).partition(" ")
    return ("+" if one.difference > 0 else "") + value, interval


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


def _facts(record: RunRecord) -> dict[str, dict[str, Any]]:
    """Return the names and values of the provenance section, by heading."""
    return {
        "Run": {"run": record.run, "key": record.key, "created": record.created},
        "Model": record.model.model_dump(),
        "Versions": record.versions,
        "Digests": record.digests,
        "Seeds": record.seeds,
        "Seconds": {step: f"{seconds:,.2f}" for step, seconds in record.seconds.items()},
    }


def _config(path: Path) -> str:
    with reading_run_file(path):
        return inside(path).read_text("utf-8")
