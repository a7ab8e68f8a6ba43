"""Predictions on a page: ROC, scores by label, residuals; and the final probe in other tools."""

from collections.abc import Iterator
from itertools import chain, cycle
from typing import Any

import numpy as np
import pandas as pd
from plotly.subplots import make_subplots

from probekit.amounts import counted, fixed, percent
from probekit.chosen.page import Shown
from probekit.chosen.registry import TEST_ROWS
from probekit.lazy_rows import Floats, Mask
from probekit.probes.exports.table import export_commands
from probekit.probes.saved_probe import SavedProbe
from probekit.probes.score.metric_table import METRICS
from probekit.report.elements.page import FigurePart, Fold, Paragraph, figure_json
from probekit.report.elements.style import (
    CHANCE_LINE,
    GREY,
    SERIES_COLOURS,
    SERIES_MARKERS,
    STACKS,
    TEMPLATE,
    plain_line,
    plotly_text,
    with_margin,
)
from probekit.report.elements.texts import class_label
from probekit.report.figures.line_labels import LineLabel, label_lines
from probekit.results.record import FINAL

MOST_LABELS = 5
# As in planes and projections. The first colour of all is that of the probe.
OF_LABELS = (*SERIES_COLOURS[1:], SERIES_COLOURS[0])
MOST_POINTS = 2000  # rows that are drawn
MOST_STEPS = 200  # of a curve
LOWEST_BELOW = 0.1  # a name below a lower point would be on the axis
BINS = 30
FOLDS = " Scores of all outer folds are pooled; each fold has its own probe."


def screen(run: Shown) -> Iterator[FigurePart]:
    """Yield the scores by label with the thresholds of a monitor, if the run has one."""
    monitor = run.rows("monitor.csv")
    if monitor is not None and (scored := _scored(run)) is not None:
        yield histogram_part(*scored, run, monitor)


def figures(run: Shown) -> Iterator[FigurePart]:
    """Yield the figures of the predictions of the selected probe, row by row, if it has any."""
    monitor = run.rows("monitor.csv")
    if METRICS[run.verdict.metric].fits("number", ()):
        if not (rows := _predicted(run)).empty:
            yield residual_part(rows, run)
    elif (scored := _scored(run)) is not None:
        yield curves_part(*scored, run, monitor)
        if monitor is None:  # else it is on the first screen
            yield histogram_part(*scored, run, monitor)


def _predicted(run: Shown) -> pd.DataFrame:
    """Return the test rows with a prediction of the selected probe."""
    rows = run.rows(TEST_ROWS)
    if rows is None or "guess" not in rows:
        return pd.DataFrame(columns=["truth"])
    return rows[rows["guess"] != ""]


def _scored(run: Shown) -> tuple[Any, dict[str, Floats]] | None:
    """Return the true labels, and by how much each label is ahead; None without such scores."""
    rows = _predicted(run)
    scores = rows.filter(regex="^score_").apply(pd.to_numeric, errors="coerce").dropna()
    labels = [name.removeprefix("score_") for name in scores]
    truth = rows["truth"][scores.index].to_numpy(dtype=str)
    if scores.empty or not 2 <= len(labels) <= MOST_LABELS or len(set(truth)) < 2:
        return None
    detected = {label: ahead(scores.to_numpy(), n) for n, label in enumerate(labels)}
    positive = str(run.scores.rows["positive"].iloc[0]) or labels[-1]
    if len(labels) == 2:  # the curve of the other label has the same points
        detected = {positive: detected[positive]}
    return truth, detected


def ahead(scores: Floats, label: int) -> Floats:
    """Return by how much the score of a label exceeds the highest other one, shape (n_rows,).

    >>> ahead(np.array([[1.0, 3.0], [2.0, -2.0]]), 0).tolist()
    [-2.0, 4.0]
    """
    return np.asarray(scores[:, label] - np.delete(scores, label, axis=1).max(axis=1))


def rates(scores: Floats, is_label: Mask) -> tuple[Floats, Floats, Floats]:
    """Return false positive rate, true positive rate and precision at each threshold, descending.

    Rows of equal scores are above the same thresholds. The first threshold is above all rows.

    >>> fpr, tpr, precision = rates(np.array([3.0, 2, 2, 1]), np.array([True, True, False, False]))
    >>> fpr.tolist(), tpr.tolist(), precision.round(2).tolist()
    ([0.0, 0.0, 0.5, 1.0], [0.0, 0.5, 1.0, 1.0], [1.0, 1.0, 0.67, 0.5])
    """
    order = np.argsort(-scores, kind="stable")
    last = np.flatnonzero(np.append(np.diff(scores[order]) != 0, True))
    hits = np.append(0, np.cumsum(is_label[order])[last])
    alarms = np.append(0, last + 1)
    n = int(is_label.sum())
    precision = np.divide(hits, alarms, out=np.ones(len(hits)), where=alarms > 0)
    return (alarms - hits) / (len(scores) - n), hits / n, precision


def curves_part(truth: Any, detected: dict[str, Floats], run: Shown, monitor: Any) -> FigurePart:
    """Return ROC and precision-recall curves, with the decision and the thresholds of a monitor."""
    figure = make_subplots(1, 2, horizontal_spacing=0.14)
    figure.add_trace(plain_line([0, 1], [0, 1], CHANCE_LINE), row=1, col=1)
    words, of, mode = [], ", each label against the others", "markers"
    if len(detected) == 1:
        of, mode = f" for {class_label(next(iter(detected)))}", "markers+text"
    for number, (label, scores) in enumerate(detected.items()):
        is_label = truth == label
        colour = SERIES_COLOURS[0] if len(detected) == 1 else OF_LABELS[number]
        if len(detected) == 1:
            figure.add_trace(plain_line([0, 1], [is_label.mean()] * 2, CHANCE_LINE), row=1, col=2)
        fpr, tpr, precision = rates(scores, is_label)
        # Of many thresholds some are drawn, the first and the last among them.
        some = np.unique(np.linspace(0, len(fpr) - 1, MOST_STEPS).round().astype(int))
        for col, (x, y, shape) in enumerate(((fpr, tpr, "linear"), (tpr, precision, "vh")), 1):
            line = {"color": colour, "width": 2, "shape": shape}
            look: dict[str, Any] = {"mode": "lines", "line": line, "row": 1, "col": col}
            look |= {"name": plotly_text(class_label(label)), "legendgroup": label}
            look |= {"showlegend": col == 1, "hovertemplate": "%{x:.3f}, %{y:.3f}<extra></extra>"}
            figure.add_scatter(x=x[some].round(4).tolist(), y=y[some].round(4).tolist(), **look)
        # Those that raise the same alarms share a point.
        points = {(scores > 0).tobytes(): ("decision", scores > 0, "circle")}
        for _, row in (pd.DataFrame() if monitor is None else monitor).iterrows():
            name, above = f"threshold for {100 * row['fpr']:g} % FPR", scores > row["threshold"]
            before = points.get(above.tobytes(), ("", above, "diamond"))
            points[above.tobytes()] = (", ".join(filter(None, [before[0], name])), *before[1:])
        for name, above, symbol in points.values():
            x, y = above[~is_label].mean(), above[is_label].mean()
            right = is_label[above].mean() if above.any() else np.nan
            rounded = f"precision {fixed(right, 2)}" if above.any() else "no alarm"
            rounded = f"TPR {fixed(y, 2)}, FPR {fixed(x, 2)}, {rounded}"
            words.append(f"{class_label(label)}, {name}: {rounded}")
            marker = {"color": colour, "symbol": symbol, "size": 10}
            look = {"marker": marker | {"line": {"color": "white", "width": 1}}, "row": 1}
            look |= {"showlegend": False, "cliponaxis": False, "hovertext": words[-1]}
            side = "bottom" if y > LOWEST_BELOW else "top"
            look |= {"hoverinfo": "text", "text": [f" {name} "], "textposition": f"{side} right"}
            figure.add_scatter(x=[x], y=[y], mode=mode, col=1, **look)
            figure.add_scatter(x=[y], y=[right], mode="markers", col=2, **look)
    axes = ("false positive rate", "true positive rate"), ("recall", "precision")
    for col, (across, up) in enumerate(axes, 1):
        figure.update_xaxes(title_text=across, range=[-0.02, 1.02], row=1, col=col)
        figure.update_yaxes(title_text=up, range=[-0.02, 1.04], row=1, col=col)
    figure.update_layout(template=TEMPLATE, showlegend=len(detected) > 1, meta=STACKS)
    marked = "; diamonds: the thresholds of the monitor" if monitor is not None else ""
    return FigurePart(
        "ROC and precision-recall",
        figure_json(figure),
        f"Held-out rows by {run.probe}{of}. Circle: the decision, where the score equals the "
        f"highest other one{marked}. Dashed: scores without information.{pooled(run)}",
        f"{'; '.join(words)}.",
        is_open=False,
    )


def histogram_part(truth: Any, detected: dict[str, Floats], run: Shown, monitor: Any) -> FigurePart:
    """Return histograms of scores by label; of several labels, of the score of the true one."""
    (label, scores), *others = detected.items()
    title = f"score of {class_label(label)} minus that of the other label"
    if others:
        title = "score of the true label minus the highest other one"
        scores = np.array([detected[one][row] for row, one in enumerate(truth)])
        if monitor is not None:  # its threshold is one for the scores of the positive label
            label = str(run.scores.rows["positive"].iloc[0])
            title = f"score of {class_label(label)} minus the highest other one"
            scores = detected[label]
    groups = {class_label(one): scores[truth == one] for one in sorted(set(truth))}
    negatives, lines = run.rows("negatives.csv"), {"decision threshold": 0.0}
    if negatives is not None and monitor is not None:
        groups["negatives of the monitor"] = negatives["score"].to_numpy()
        rates_of = monitor[["fpr", "threshold"]].to_numpy()
        lines |= {f"{100 * rate:g}\u00a0%\u00a0threshold": at for rate, at in rates_of}
    bar = [*lines][:2][-1]  # the first threshold of the monitor, if there is one
    edges = np.histogram_bin_edges([*chain(*groups.values()), *lines.values()], BINS)
    shares = [(np.histogram(own, edges)[0] / len(own)).round(5) for own in groups.values()]
    highest, words = 1.05 * np.max(shares), []
    figure = make_subplots(len(groups), 1, shared_xaxes=True, vertical_spacing=0.04)
    figure.update_xaxes(range=with_margin(edges[0], edges[-1]))
    figure.update_yaxes(range=[0, highest], nticks=3)
    drawn = zip(groups.items(), shares, cycle(OF_LABELS), strict=False)
    for row, ((name, own), share, colour) in enumerate(drawn, 1):
        x, y = np.repeat(edges, 2), np.repeat([0, *share, 0], 2)[1:-1]
        look = {"fill": "toself", "fillcolor": colour, "opacity": 0.6, "name": plotly_text(name)}
        figure.add_trace(plain_line(x, y, {"color": colour, "width": 1}, **look), row=row, col=1)
        above = f"{percent((own > lines[bar]).mean(), 1)} above the".replace(" ", "\u00a0")
        words.append(f"{name}, n = {len(own):,}, {above} {bar}")
        label_lines(figure, [LineLabel(words[-1], highest / 2, colour)], row)
    # Each name is to the left of its line, above those of the lines to its left.
    for level, (at, name) in enumerate(sorted((at, name) for name, at in lines.items())):
        top = 1.18 + 0.18 * level
        line = {"color": GREY, "width": 1.5, "dash": "dash" if at else "solid"}
        figure.add_vline(x=at, line=line, row="all", col=1)
        figure.layout.shapes[-len(groups)].y1 = top  # in the first panel
        place = {"x": at, "y": top, "yref": "y domain", "xanchor": "right", "yanchor": "top"}
        figure.add_annotation(text=f"{name} ", font={"size": 12}, showarrow=False, **place)
    figure.update_xaxes(title_text=plotly_text(title), row=len(groups))
    figure.update_yaxes(title_text="share of rows", row=(len(groups) + 1) // 2)
    figure.update_layout(template=TEMPLATE, margin_t=36 + 16 * len(lines))
    return FigurePart(
        "Scores by label",
        figure_json(figure),
        f"Scores of {counted(len(truth), 'held-out row')} by {run.probe}; the shares of each label "
        f"sum to 1. The decision changes at the solid line.{pooled(run)}",
        f"{'; '.join(words)}.",
        is_open=monitor is not None,
        height=9 + 6.5 * len(groups),
    )


def pooled(run: Shown) -> str:
    """Return the note that scores are those of several probes, or "" if they are of one."""
    return FOLDS if run.verdict.is_nested else ""


def residual_part(rows: pd.DataFrame, run: Shown) -> FigurePart:
    """Return predicted against true values, and residuals against predicted ones."""
    truth, guess = (pd.to_numeric(rows[name]).to_numpy() for name in ("truth", "guess"))
    step, residual = -(-len(truth) // MOST_POINTS), truth - guess
    some = f"{len(truth[::step]):,} of " * (step > 1)
    figure = make_subplots(1, 2, horizontal_spacing=0.14)
    ends = with_margin(min(truth.min(), guess.min()), max(truth.max(), guess.max()))
    figure.add_trace(plain_line(ends, ends, CHANCE_LINE), row=1, col=1)
    figure.add_trace(plain_line(ends, [0, 0], CHANCE_LINE), row=1, col=2)
    marker = {"color": SERIES_COLOURS[0], "symbol": SERIES_MARKERS[0], "size": 5, "opacity": 0.5}
    for col, (x, y) in enumerate(((truth, guess), (guess, residual)), 1):
        look = {"mode": "markers", "marker": marker, "row": 1, "col": col, "showlegend": False}
        look["hovertemplate"] = "%{x:.3g}, %{y:.3g}<extra></extra>"
        figure.add_scatter(x=x[::step].tolist(), y=y[::step].tolist(), **look)
    figure.update_xaxes(title_text="true value", range=ends, row=1, col=1)
    figure.update_yaxes(title_text="predicted value", range=ends, row=1, col=1)
    figure.update_xaxes(title_text="predicted value", row=1, col=2)
    figure.update_yaxes(title_text="true minus predicted", row=1, col=2)
    figure.update_layout(template=TEMPLATE, showlegend=False, meta=STACKS)
    return FigurePart(
        "Predicted and true values",
        figure_json(figure),
        f"{some}{counted(len(truth), 'held-out row')} by {run.probe}. Left: on the dashed line the "
        f"prediction is exact. Right: residuals, true minus predicted.{pooled(run)}",
        f"Predicted against true values. Residuals have mean {fixed(residual.mean(), 3)} and "
        f"standard deviation {fixed(residual.std(), 3)}; true values {fixed(truth.std(), 3)}.",
    )


def details(run: Shown) -> Iterator[Fold]:
    """Yield the commands that apply and export the final probe, if the run has one.

    Raises:
        DataError: a file of the probe cannot be read, or was changed after the run.
    """
    if (run.folder / f"{FINAL}.json").exists():
        lines = export_commands(SavedProbe.load(run.folder / FINAL), f"RUN/{FINAL}")
        apply = f"probekit apply RUN/{FINAL} --text TEXT  # RUN is the folder of this page"
        text = "\n".join([apply, *lines])
        yield Fold("Use the final probe elsewhere", [Paragraph(text, kind="source")])
