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
from probekit.report.figures.learning_curve import TICKS
from probekit.report.figures.style import SERIES_COLOURS, TEMPLATE
from probekit.report.pages.parts import FigurePart, figure_json
from probekit.report.pages.template import render
from probekit.results.record import RecordPart, changed_files, check_seal, reading_run_file
from probekit.training.log import LogRow, read_log, read_verified_log
from probekit.training.progress import LOG, STATE, Progress, read_progress

RECIPE = "recipe.yaml"
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
    path = inside(run_dir / LOG)
    # Read before the log: a running process writes the log first, so it covers this progress.
    progress = read_progress(run_dir)
    with reading_run_file(path):
        log = read_verified_log(path, progress.step, progress.log) if progress else read_log(path)
    if not log:
        raise DataError(f"{path} has no step yet. Wait until the run has logged its first step.")
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
    """Return the progress of the run and its latest held-out losses, in sentences."""
    done, passes = log[-1], log[-1].tokens / max(1, record.tokens["train"])
    progress = (
        f"{done.step:,} of {record.steps:,} steps: {done.tokens:,} tokens, "
        f"{passes:.1f} times the training text."
    )
    measured = [row for row in log if not math.isnan(row.held_out_loss)]
    if not measured:
        return f"{progress} No evaluation yet."
    last = measured[-1]
    gap = last.repeated_first - last.repeated_second
    return (
        f"{progress} Held-out loss: {last.held_out_loss:.3f} nats per token, "
        f"{last.held_out_per_character:.4f} nats per character. On repeated random tokens the loss "
        f"is {gap:.2f} nats lower at the second occurrence."
    )


def _figures(log: Sequence[LogRow], measured: Sequence[LogRow]) -> list[FigurePart]:
    losses = FigurePart(
        "Loss",
        figure_json(_figure(log, _LOSSES, "nats per token")),
        "Mean over the tokens that count towards the loss. Batch losses are averaged over adjacent "
        "steps. Held-out text is the end of each text and is never trained on. Repeated rows count "
        "from the second occurrence of their segment; their loss can differ much from that of "
        "text.",
        _words("loss on held-out text", measured, lambda row: row.held_out_loss),
    )
    repeats = FigurePart(
        "Loss on repeated random tokens",
        figure_json(_figure(log, _REPEATS, "nats per token")),
        "Random token sequences that occur twice. The model can predict the second occurrence only "
        "from the first, so a lower loss there indicates induction (Olsson et al. 2022).",
        _words("loss at the second occurrence", measured, lambda row: row.repeated_second),
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
    figure.update_layout(showlegend=len(lines) > 1)
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
