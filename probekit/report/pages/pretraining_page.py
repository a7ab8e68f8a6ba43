"""The page of a pretraining run: how the losses fell, what was learnt from, what was kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import plotly.graph_objects as go
from pydantic import Field

from probekit.disk import inside
from probekit.errors import DataError
from probekit.provenance import write_atomic
from probekit.report.figures.learning_curve import TICKS
from probekit.report.figures.style import SERIES_COLOURS, TEMPLATE
from probekit.report.pages.parts import FigurePart, figure_json
from probekit.report.pages.template import render
from probekit.results.record import RecordPart, changed_files, check_seal, reading_run_file
from probekit.training.log import LogRow, read_log, read_verified
from probekit.training.progress import LOG, STATE, Progress, read_progress

RECIPE = "recipe.yaml"
POINTS_PER_DECADE = 60  # of lines that have a value at each step


class PretrainRecord(RecordPart):
    """All that the page takes from run.json."""

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
    """A line of a figure: its name, its value in a row of the log, and its dash."""

    name: str
    value: Callable[[LogRow], float]
    dash: str = "solid"
    is_averaged: bool = False


_LOSSES = (
    _Line("batches, repeated rows included", lambda row: row.loss, "dot", is_averaged=True),
    _Line("held-out text", lambda row: row.held_out_loss),
)
_REPEATS = (
    _Line("first time", lambda row: row.repeated_first, "dot"),
    _Line("second time", lambda row: row.repeated_second),
)
_RATE = (_Line("learning rate", lambda row: row.learning_rate),)
_NORM = (_Line("gradient norm", lambda row: row.gradient_norm, is_averaged=True),)


def write_pretraining_report(run_dir: Path) -> Path:
    """Write report.html into the folder of a pretraining run and return its path.

    The run may still be going on; the page shows what its log holds.

    Raises:
        MissingError: A file of the run is not there.
        DataError: A file of the run cannot be read, or its log has no step yet.
        CheckpointError: The state or the log is damaged.
    """
    path = inside(run_dir / LOG)
    progress = read_progress(run_dir)  # before the log, which a running process writes first
    with reading_run_file(path):
        log = read_verified(path, progress.step, progress.log) if progress else read_log(path)
    if not log:
        raise DataError(f"{path} has no step yet.")
    with reading_run_file(run_dir / "run.json"):
        content = inside(run_dir / "run.json").read_bytes()
        record = PretrainRecord.model_validate_json(content)
    check_seal(content, run_dir / "run.json")
    _check_belongs(run_dir, record, progress)
    with reading_run_file(run_dir / RECIPE):
        recipe = inside(run_dir / RECIPE).read_text("utf-8")
    path = run_dir / "report.html"
    write_atomic(path, _page(log, record, recipe))
    return path


def _check_belongs(run_dir: Path, record: PretrainRecord, progress: Progress | None) -> None:
    """Raise DataError if run.json is not that of the recipe and the training state beside it."""
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
            "--out to rewrite the record; the steps that are done are kept."
        )


def _page(log: Sequence[LogRow], record: PretrainRecord, recipe: str) -> str:
    measured = [row for row in log if not math.isnan(row.held_out_loss)]
    return render(
        "pretraining.html",
        record=record,
        answer=_answer(log, record),
        figures=list(_figures(log, measured)),
        folded=list(_folded(log)),
        measured=measured,
        recipe=recipe,
    )


def _answer(log: Sequence[LogRow], record: PretrainRecord) -> str:
    """Return in words how far the run has come."""
    done, passes = log[-1], log[-1].tokens / max(1, record.tokens["train"])
    told = f"{done.step:,} of {record.steps:,} steps: {done.tokens:,} tokens, " + (
        f"{passes:.1f} times those of the texts."
    )
    measured = [row for row in log if not math.isnan(row.held_out_loss)]
    if not measured:
        return f"{told} Nothing was measured yet."
    last = measured[-1]
    gap = last.repeated_first - last.repeated_second
    return (
        f"{told} On held-out text {last.held_out_loss:.3f} nats per token, "
        f"{last.held_out_per_character:.4f} per character. Random tokens cost {gap:.2f} nats less "
        "when they come a second time."
    )


def _figures(log: Sequence[LogRow], measured: Sequence[LogRow]) -> list[FigurePart]:
    losses = FigurePart(
        "Loss",
        figure_json(_figure(log, _LOSSES, "nats per token")),
        "Mean over the tokens that are counted. Batches are averaged over neighbouring steps; held-"
        "out text is the end of each text, never learnt from. A repeated row counts where its "
        "piece comes again, and can cost far more or less than text.",
        _words("loss on held-out text", measured, lambda row: row.held_out_loss),
    )
    repeats = FigurePart(
        "Random tokens, twice",
        figure_json(_figure(log, _REPEATS, "nats per token")),
        "Tokens drawn evenly from the vocabulary, and the same once more. What they cost less the "
        "second time is looked up in the first: induction (Olsson et al. 2022).",
        _words("loss of the second time", measured, lambda row: row.repeated_second),
    )
    return [losses, repeats]


def _folded(log: Sequence[LogRow]) -> list[FigurePart]:
    return [
        FigurePart(
            name[0].upper() + name[1:],
            figure_json(_figure(log, lines, name)),
            caption,
            _words(name, log, lines[0].value),
        )
        for lines, name, caption in (
            (_RATE, "learning rate", "At each step."),
            (_NORM, "gradient norm", "Before it is cut, averaged over neighbouring steps."),
        )
    ]


def _words(name: str, rows: Sequence[LogRow], value: Callable[[LogRow], float]) -> str:
    """Return a line in words: where it begins and ends."""
    if not rows:
        return f"{name}: nothing was measured yet."
    first, last = rows[0], rows[-1]
    return (
        f"{name} by step: {value(first):.4g} at step {first.step:,}, {value(last):.4g} at step "
        f"{last.step:,}."
    )


def _figure(log: Sequence[LogRow], lines: Sequence[_Line], unit: str) -> go.Figure:
    """Return lines over the steps, whose axis is logarithmic."""
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
    figure.update_layout(showlegend=len(lines) > 1)
    return figure


def _measured(log: Sequence[LogRow], line: _Line) -> list[tuple[float, float]]:
    return [(row.step, line.value(row)) for row in log if not math.isnan(line.value(row))]


def _averaged(log: Sequence[LogRow], line: _Line) -> list[tuple[float, float]]:
    """Return the means over neighbouring steps, as many in a decade of steps as in the next."""
    points = []
    for _, group in groupby(log, lambda row: int(POINTS_PER_DECADE * math.log10(row.step))):
        rows = list(group)
        middle = sum(row.step for row in rows) / len(rows)
        points.append((middle, sum(line.value(row) for row in rows) / len(rows)))
    return points
