"""Page of a pretraining run: loss curves, all measurements, training texts and recipe."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import plotly.graph_objects as go
from pydantic import Field

from probekit.disk import inside
from probekit.drafts import write_atomic
from probekit.errors import DataError
from probekit.report.figures.line_labels import name_traces
from probekit.report.figures.style import SERIES_COLOURS, TEMPLATE
from probekit.report.pages.parts import FigurePart, figure_json
from probekit.report.pages.template import render
from probekit.report.sentences.pretraining import evaluations, pretraining_answer
from probekit.report.texts.headings import capitalised
from probekit.report.texts.machine_paths import MachinePaths
from probekit.results.finished_run import load_config
from probekit.results.record import (
    RecordPart,
    changed_files,
    check_seal,
    parse_record,
    reading_run_file,
)
from probekit.training.log import LogRow, read_log, read_verified_log
from probekit.training.progress import LOG, RECIPE, STATE, Progress, read_progress

TICKS = [step * 10**power for power in range(7) for step in (1, 2, 5)]
POINTS_PER_DECADE = 60  # for averaged lines, which have a value at each step


class PretrainRecord(RecordPart):
    """Fields of run.json that the page shows."""

    run: str
    steps: int
    tokens_per_step: int
    texts: list[str]
    tokens: dict[str, int]
    characters: dict[str, int]
    vocabulary: int
    parameters: int
    digests: dict[str, str]
    versions: dict[str, str]
    files: dict[str, str] = Field(default_factory=dict)


@dataclass(frozen=True)
class _Line:
    """A line of a figure: its name, its value in a row of the log, and its dash style."""

    name: str
    value: Callable[[LogRow], float]
    dash: str = "solid"
    is_averaged: bool = False


_LOSSES = (
    _Line("batches, repeated rows included", lambda row: row.loss, "dot", is_averaged=True),
    _Line("held-out text", lambda row: row.held_out_loss),
)
_REPEATS = (
    _Line("first occurrence", lambda row: row.repeated_first, "dot"),
    _Line("second occurrence", lambda row: row.repeated_second),
)
_RATE = (_Line("learning rate", lambda row: row.learning_rate),)
_NORM = (_Line("gradient norm", lambda row: row.gradient_norm, is_averaged=True),)


def write_pretraining_report(run_dir: Path) -> Path:
    """Write report.html into the folder of a pretraining run and return its path.

    The run may still be in progress; the page then shows the steps in its log.

    Raises:
        MissingError: A file of the run is missing.
        DataError: A file of the run cannot be read, or its log has no step yet.
        CheckpointError: The state or the log is damaged.
    """
    path = run_dir / "report.html"
    write_atomic(path, pretraining_page(run_dir))
    return path


def pretraining_page(run_dir: Path) -> str:
    """Return the self-contained HTML page of a pretraining run, after checking its files.

    Raises:
        MissingError: A file of the run is missing.
        DataError: A file of the run cannot be read, or its log has no step yet.
        CheckpointError: The state or the log is damaged.
    """
    path = inside(run_dir / LOG)
    # Read before the log: a running process writes the log first, so it covers this progress.
    progress = read_progress(run_dir)
    with reading_run_file(path):
        log = read_verified_log(path, progress.step, progress.log) if progress else read_log(path)
    if not log:
        raise DataError(f"{path} has no step yet. Wait until the run has logged its first step.")
    record = load_pretraining(run_dir)
    _check_belongs(run_dir, record, progress)
    with reading_run_file(run_dir / RECIPE):
        recipe = inside(run_dir / RECIPE).read_text("utf-8")
    paths = MachinePaths.of(load_config(run_dir / RECIPE))
    return _page(log, record, paths.hide(recipe))


def load_pretraining(run_dir: Path) -> PretrainRecord:
    """Return the contents of run.json in the folder of a pretraining run.

    Raises:
        MissingError: The file does not exist.
        DataError: The file cannot be read or was changed.
    """
    path = run_dir / "run.json"
    with reading_run_file(path):
        content = inside(path).read_bytes()
    record = parse_record(content, path, PretrainRecord)
    check_seal(content, path)
    return record


def _check_belongs(run_dir: Path, record: PretrainRecord, progress: Progress | None) -> None:
    """Raise DataError if run.json belongs to another recipe or training state."""
    damages = [f"{name} {what}" for name, what in changed_files(run_dir, record.files)]
    if progress is not None:
        of_state = {"corpus": progress.corpus, "tokens": progress.tokens}
        damages += [
            f"run.json has another digest of the {name} than {STATE}"
            for name, found in of_state.items()
            if record.digests.get(name) != found
        ]
    if damages:
        raise DataError(
            f"{run_dir} is damaged: {'; '.join(damages)}. Run the same recipe again with the same "
            "--out to rewrite the record; completed steps are kept."
        )


METHOD = (
    "Losses are means over the tokens that count towards the loss, in nats, computed in float32.",
    "Held-out text is the end of each text. The last step is evaluated on all of it, earlier steps "
    "on `validation.rows` rows, so the last value is not exactly comparable with the others.",
    "Rows of repeated segments count from the second occurrence of their segment; their loss can "
    "differ much from that of text.",
)


def _page(log: Sequence[LogRow], record: PretrainRecord, recipe: str) -> str:
    measured = evaluations(log)
    losses, *figures = _figures(log, measured)
    return render(
        "pretraining.html",
        record=record,
        answer=pretraining_answer(log, record.steps),
        losses=losses,
        summary=_summary(log, record),
        figures=figures,
        folded=list(_folded(log)),
        measured=measured,
        recipe=recipe,
        method=METHOD,
    )


def _summary(log: Sequence[LogRow], record: PretrainRecord) -> dict[str, str]:
    """Return the main numbers of the run by name, losses in nats per token."""
    passes = log[-1].tokens / max(1, record.tokens["train"])
    progress = {
        "steps": f"{log[-1].step:,} of {record.steps:,}",
        "tokens": f"{log[-1].tokens:,}",
        "passes over the training text": f"{passes:.1f}",
    }
    measured = evaluations(log)
    if not measured:
        return progress
    first, last = measured[0], measured[-1]
    return {
        "held-out loss": f"{last.held_out_loss:.3f}",
        f"at step {first.step:,}": f"{first.held_out_loss:.3f}",
        f"uniform prediction, ln {record.vocabulary:,}": f"{math.log(record.vocabulary):.3f}",
        "held-out loss per character": f"{last.held_out_per_character:.4f}",
        "repeated random tokens, first occurrence": f"{last.repeated_first:.2f}",
        "second occurrence": f"{last.repeated_second:.2f}",
    } | progress


def _figures(log: Sequence[LogRow], measured: Sequence[LogRow]) -> list[FigurePart]:
    losses = FigurePart(
        "Loss",
        figure_json(_figure(log, _LOSSES, "nats per token")),
        "Loss of batches, averaged over adjacent steps, and loss on held-out text, which is never "
        "trained on.",
        _words("loss on held-out text", measured, lambda row: row.held_out_loss),
    )
    repeats = FigurePart(
        "Loss on repeated random tokens",
        figure_json(_figure(log, _REPEATS, "nats per token")),
        "Sequences of random tokens that occur twice. A lower loss at the second occurrence "
        "indicates induction (Olsson et al. 2022).",
        _words("loss at the second occurrence", measured, lambda row: row.repeated_second),
    )
    return [losses, repeats]


def _folded(log: Sequence[LogRow]) -> list[FigurePart]:
    return [
        FigurePart(
            capitalised(name),
            figure_json(_figure(log, lines, name)),
            caption,
            _words(name, log, lines[0].value),
        )
        for lines, name, caption in (
            (_RATE, "learning rate", "Learning rate at each step."),
            (_NORM, "gradient norm", "Norm before clipping, averaged over adjacent steps."),
        )
    ]


def _words(name: str, rows: Sequence[LogRow], value: Callable[[LogRow], float]) -> str:
    """Return the first and last value of a line, as a sentence."""
    if not rows:
        return f"{name}: no evaluation yet."
    first, last = rows[0], rows[-1]
    return (
        f"{name} by step: {value(first):.4g} at step {first.step:,}, {value(last):.4g} at step "
        f"{last.step:,}."
    )


def _figure(log: Sequence[LogRow], lines: Sequence[_Line], unit: str) -> go.Figure:
    """Return a figure of lines by step, on a logarithmic step axis."""
    figure = go.Figure(layout={"template": TEMPLATE})
    for line, colour in zip(lines, SERIES_COLOURS, strict=False):
        points = _averaged(log, line) if line.is_averaged else _measured(log, line)
        figure.add_trace(
            go.Scatter(
                x=[step for step, _ in points],
                y=[value for _, value in points],
                name=line.name,
                mode="lines" if len(points) > POINTS_PER_DECADE else "lines+markers",
                line={"dash": line.dash, "color": colour, "width": 2},
                hovertemplate=f"{line.name}<br>step %{{x:,.0f}}: %{{y:.4g}}<extra></extra>",
            )
        )
    figure.update_xaxes(
        title_text="step",
        type="log",
        range=[-0.02, math.log10(max(2, log[-1].step)) + 0.02],
        tickvals=TICKS,
        ticktext=[f"{step:,}" for step in TICKS],
    )
    figure.update_yaxes(title_text=unit)
    name_traces(figure)
    return figure


def _measured(log: Sequence[LogRow], line: _Line) -> list[tuple[float, float]]:
    return [(row.step, line.value(row)) for row in log if not math.isnan(line.value(row))]


def _averaged(log: Sequence[LogRow], line: _Line) -> list[tuple[float, float]]:
    """Return means over adjacent steps, with at most `POINTS_PER_DECADE` points per decade."""
    points = []
    for _, group in groupby(log, lambda row: int(POINTS_PER_DECADE * math.log10(row.step))):
        rows = list(group)
        mean_step = sum(row.step for row in rows) / len(rows)
        points.append((mean_step, sum(line.value(row) for row in rows) / len(rows)))
    return points
