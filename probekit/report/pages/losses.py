"""Training by step on pages: the losses of a pretraining run, and scores at its checkpoints."""

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

import plotly.graph_objects as go

from probekit.amounts import fixed, format_number
from probekit.errors import DataError
from probekit.files import inside, write_atomic
from probekit.report.elements.page import FigurePart, Page, PageSection, figure_json
from probekit.report.elements.style import GREY, SERIES_COLOURS, TEMPLATE, plain_line
from probekit.report.figures import maps
from probekit.report.figures.line_labels import name_traces
from probekit.report.pages import parts
from probekit.report.sentences import captions
from probekit.results.record import RecordPart, read_record, reading_run_file
from probekit.results.scores import Scores
from probekit.results.table import RESULTS, TableColumn, metric_name
from probekit.results.verdict import Verdict
from probekit.training.run_files import LOG, LogRow, read_log, read_progress

LOSSES = "losses.html"
TICKS = [step * 10**power for power in range(7) for step in (1, 2, 5)]
POINTS_PER_DECADE = 30  # for averaged lines, which have a value at each step
# Name of each line, column of the log, dash style, and whether adjacent steps are averaged.
_LINES = (
    ("batches, repeated rows included", "loss", "dot", True),
    ("held-out text", "held_out_loss", "solid", False),
    ("random tokens", "repeated_first", "dash", False),
    ("repeated random tokens", "repeated_second", "dashdot", False),
)


class Plan(RecordPart):
    """Fields of run.json of a pretraining run that pages show."""

    run: str
    steps: int
    vocabulary: int


def write_losses(run_dir: Path) -> Path:
    """Write the page of a pretraining run to losses.html in its folder and return the path.

    Raises:
        MissingError: There is no log or no run.json.
        DataError: The log cannot be read, or it has no step yet.
        CheckpointError: The state or the log is damaged.
        StoreError: The file cannot be written.
    """
    path = run_dir / LOSSES
    write_atomic(path, losses_page(run_dir).html())
    return path


def losses_page(run_dir: Path) -> Page:
    """Return the page of a pretraining run, finished or in progress.

    Raises:
        MissingError: There is no log or no run.json.
        DataError: The log cannot be read, or it has no step yet.
        CheckpointError: The state or the log is damaged.
    """
    path = inside(run_dir / LOG)
    # A running process writes the log before the state. Reading the state first ensures that the
    # log covers it. If there is a state, the log is verified up to it, and later steps are dropped.
    progress = read_progress(run_dir)
    with reading_run_file(path):
        log = read_log(path, progress)
    if not log:
        raise DataError(f"{path} has no step yet. Wait until the run has logged its first step.")
    plan = read_record(run_dir / "run.json", Plan)
    figure, answer = loss_figure(log, plan.vocabulary), loss_answer(log, plan)
    ends = "; ".join(f"{line.name} at step {line.x[-1]:,.0f}" for line in figure.data if line.name)
    caption = (
        "Numbers: the last value of each line. The line of batches is smoothed: each point is the "
        "mean of adjacent steps. "
        "Held-out text is never trained on; the last step is evaluated on all of it, earlier steps "
        "on a part. A loss on repeated random tokens far below that on random ones shows induction "
        "(Olsson et al. 2022); a small difference may be noise."
    )
    part = FigurePart("Loss by step", figure_json(figure), caption, f"{answer} {ends}.", height=36)
    return Page(
        eyebrow=["probekit", "pretraining", run_dir.resolve().name],
        title="How far has training come?",
        answer=answer,
        sections=[PageSection(part.title, [part], "first")],
    )


def loss_answer(log: Sequence[LogRow], plan: Plan) -> str:
    """Return the last held-out loss, or before any that of the last batch, with yardsticks."""
    row = [*log, *(row for row in log if not math.isnan(row.held_out_loss))][-1]
    name, loss = "held-out", row.held_out_loss
    if math.isnan(loss):
        name, loss = "batch", row.loss
    last, guess = log[-1].step, fixed(math.log(plan.vocabulary), 2)
    at = f" at step {row.step:,}" if row.step < last else ""
    return (
        f"After {last:,} of {plan.steps:,} steps, the {name} loss is {fixed(loss, 2)} nats per "
        f"token{at}; the first batch had {fixed(log[0].loss, 2)}, and a uniform guess over "
        f"{plan.vocabulary:,} tokens has {guess}."
    )


def loss_figure(log: Sequence[LogRow], vocabulary: int) -> go.Figure:
    """Return the losses by step, in nats per token, on a logarithmic step axis.

    The log must have a step. A line without any value, such as of a loss that was not measured, is
    left out. The loss of batches is averaged over adjacent steps. Held-out text is never trained
    on; the last step is evaluated on all of it, earlier steps on `validation.rows` rows. A lower
    loss on the repetition of random tokens indicates induction (Olsson et al. 2022).

    >>> rows = [LogRow(step, 64 * step, 0.1, 9 / step, 1.0, 9.0) for step in (1, 2)]
    >>> loss_figure(rows, 8192).data[0].name
    'batches, repeated rows included 4.50'
    """
    figure = go.Figure(layout={"template": TEMPLATE})
    for (name, column, dash, is_averaged), colour in zip(_LINES, SERIES_COLOURS[1:], strict=False):
        points = [(float(row.step), float(getattr(row, column))) for row in log]
        points = [(step, value) for step, value in points if not math.isnan(value)]
        if is_averaged:
            intervals = [list(adjacent) for _, adjacent in groupby(points, _interval)]
            points = [
                (sum(step for step, _ in near) / len(near), sum(y for _, y in near) / len(near))
                for near in intervals
            ]
        if points:
            steps, values = zip(*points, strict=True)
            # Markers of many points would cover the line.
            mode = "lines" if len(points) > POINTS_PER_DECADE else "lines+markers"
            look = {"mode": mode, "line": {"dash": dash, "color": colour, "width": 2}}
            hover = f"{name}<br>step %{{x:,.0f}}: %{{y:.4g}}<extra></extra>"
            label = f"{name} {fixed(values[-1], 2)}"
            figure.add_scatter(x=steps, y=values, name=label, hovertemplate=hover, **look)
    guess, line = math.log(vocabulary), {"color": GREY, "dash": "longdash", "width": 1}
    name, ends = f"uniform guess {fixed(guess, 2)}", [1, max(2, log[-1].step)]
    figure.add_trace(plain_line(ends, [guess, guess], line, name=name))
    figure.update_xaxes(
        title_text="step",
        type="log",
        # In powers of ten, from step 1; up to step 2 at least, so that the axis has a length.
        range=[-0.02, math.log10(max(2, log[-1].step)) + 0.02],
        tickvals=TICKS,
        ticktext=[f"{step:,}" for step in TICKS],
    )
    figure.update_yaxes(title_text="nats per token")
    name_traces(figure)
    return figure


def _interval(point: tuple[float, float]) -> int:
    """Return the number of a point's interval of steps, one of `POINTS_PER_DECADE` a decade."""
    return int(POINTS_PER_DECADE * math.log10(point[0]))


def load_training(path: Path) -> Scores | None:
    """Return the scores of all checkpoints with an integer column `step`; None if no file exists.

    Raises:
        DataError: The file cannot be read, or `step` is missing or not an integer.
    """
    step = TableColumn("step", "training step of the checkpoint", "count")
    return Scores.load(path, (*RESULTS, step)) if path.is_file() else None


def step_parts(training: Scores | None, v: Verdict) -> Iterator[FigurePart]:
    """Yield a map of the main metric by layer and step for each series that has this metric.

    The scores are those of `load_training`; without any there is no map. A series is a line of the
    layer curve.
    """
    if training is None:
        return
    metric = v.metric
    for name, rows in maps.step_tables(training):
        if metric in Scores(rows).metrics:
            cells = maps.map_cells(Scores(rows), metric, "step")
            highest = cells.sort_values("value", kind="stable", na_position="first").iloc[-1]
            yield parts.map_part(
                f"{parts.title(metric)} by layer and step of training · {name}",
                maps.layer_map(cells, "step"),
                "Each column is a checkpoint, labelled with its training step. "
                + captions.map_caption(cells, v),
                f"{metric_name(metric)} by layer and step of training, {cells['step'].nunique()} "
                f"checkpoints, from {format_number(cells['value'].min())} to "
                f"{format_number(highest['value'])}; the highest is at {highest['site']} after "
                f"{highest['step']:,} steps.",
            )
