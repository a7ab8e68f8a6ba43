"""The stack of all sites on a page, with cost and true positive rate of a cascade."""

from collections.abc import Iterator

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from probekit.amounts import LEVEL, fixed, format_difference, format_number, percent
from probekit.chosen.page import (
    TEST_RATES,
    TESTED,
    Columns,
    Shown,
    estimate,
    sentence,
    written_table,
)
from probekit.probes.score.metric_table import METRICS
from probekit.report.elements.page import FigurePart, Fold, PageSection, Paragraph, figure_json
from probekit.report.elements.style import GREY, TEMPLATE, error_bars, plotly_text, series_marker
from probekit.report.elements.table import ResultTable
from probekit.report.figures.line_labels import name_traces
from probekit.report.pages.further_figures import scores_part
from probekit.report.sentences.answer import p_words, size_words

STACK = (
    "The stack is a probe of the scores of all {n_sites} sites. Scores of its training rows are "
    "those of probes that were not fitted on the row. The single site was chosen by "
    "cross-validation, without the test rows. A better stack need not read more than one site "
    "contains: the mean of several probes has less noise than one of them."
)
STACK_COLUMNS: Columns = {"metric": "metric", "stack": "value", "best single site": "single"}
ALONE = " only"  # ends the setting of a cascade with a single stage
CASCADE = (
    "Each stage (words of the text, the best single site, all sites) passes the rows close to its "
    "alarm threshold on to the next one. Cost: mean share of the network's blocks that is computed "
    "for a test row; words cost nothing. Each setting has one threshold, which allows the false "
    "positive rate (FPR) on training rows. Settings are chosen on held-out scores of these rows: "
    "each adds the most true positives (TPR) per cost to the one before it. The same rows fix "
    "settings and thresholds: with few negatives, the test FPR may be higher than requested."
)
CASCADE_COLUMNS: Columns = {"setting": "setting", "requested FPR": "fpr", "cost": "cost"}


def answers(run: Shown) -> Iterator[Paragraph]:
    """Yield whether all sites together are better than the best one, if there is a stack."""
    rows = run.rows("stack.csv")
    if rows is None:
        return
    row, metric = rows.iloc[0], METRICS[str(rows["metric"].iloc[0])]
    relation = "not significantly better than"
    if row["p"] < LEVEL:
        relation = "better than" if metric.sign * row["difference"] > 0 else "worse than"
    test = "too few groups for a test" if np.isnan(row["p"]) else p_words(row["p"])
    best = run.verdict.best
    yield sentence(
        f"All {row['n_sites']} sites together are {relation} the best one"
        f"{f', {best.place}' if best else ''}: {metric.title} "
        f"{fixed(row['value'], 3)} and {fixed(row['single'], 3)}, difference "
        f"{format_difference(*estimate(row, 'difference'))}, {test}.",
        is_useless=relation == "worse than",
    )


def sections(run: Shown) -> Iterator[PageSection]:
    """Yield the section with the scores of the stack, if there is one."""
    rows = run.rows("stack.csv")
    if rows is not None:
        note = Paragraph(STACK.format(n_sites=rows["n_sites"].iloc[0]), "note")
        rows = rows.rename(columns={"ci_low": "value_low", "ci_high": "value_high"})
        table = written_table("Table of the stack of all sites", {**STACK_COLUMNS, **TESTED}, rows)
        yield PageSection("Stack of all sites", [table, note])


def screen(run: Shown) -> Iterator[FigurePart]:
    """Yield the scores of the stack and the best site, and the TPR by cost of a cascade."""
    stack, v = run.rows("stack.csv"), run.verdict
    if stack is not None and v.score is not None and v.best is not None:
        row, best = stack.iloc[0], f"best site: {v.best.place}"
        together = [row["value"], row["ci_low"], row["ci_high"]]
        yield scores_part(
            v.metric,
            "of all sites together and of the best one",
            {
                f"all {row['n_sites']} sites": together,
                best: [row["single"], v.score.ci_low, v.score.ci_high],
            },
            {"all minus best": estimate(row, "difference")},
            f"{size_words(v)}. The best site has the best cross-validated score.",
            v.score.chance,
        )
    rows = run.rows("cascade.csv")
    if rows is None:
        return
    listed = [
        f"{row['setting']} (FPR {100 * row['fpr']:g} %): share {fixed(row['cost'], 2)}, TPR "
        f"{format_number(row['tpr'])}"
        for _, row in rows.iterrows()
    ]
    yield FigurePart(
        "True positive rate by share of the network",
        figure_json(cascade_figure(rows)),
        f"{CASCADE} Texts: shares of the rows that words pass on to the site, and the site to all "
        "sites. Bars: 95 % intervals over groups.",
        f"True positive rate by share of the network: {'; '.join(listed)}.",
    )


def curves(run: Shown) -> Iterator[PageSection]:
    """Yield the section with the settings of a cascade, if there is one."""
    rows = run.rows("cascade.csv")
    if rows is not None:
        fold = Fold("Settings of the cascade", [cascade_table(rows)])
        yield PageSection("Cascade of words, one site and all sites", [fold])


def cascade_table(rows: pd.DataFrame) -> ResultTable:
    """Return cost and rates of the settings of a cascade, given the rows of cascade.csv."""
    return written_table("Table of the cascade", {**CASCADE_COLUMNS, **TEST_RATES}, rows)


def cascade_figure(rows: pd.DataFrame) -> go.Figure:
    """Return the figure of TPR by cost of a cascade, a line for each false positive rate.

    Dotted lines are at the costs of the stages alone.

    Args:
        rows: rows of cascade.csv.
    """
    figure = go.Figure(layout={"template": TEMPLATE, "showlegend": False})
    for number, (fpr, points) in enumerate(rows.groupby("fpr", sort=False)):
        marker = series_marker(number, 8)
        ends = points.rename(columns={"tpr_low": "ci_low", "tpr_high": "ci_high"})
        figure.add_scatter(
            x=points["cost"].tolist(),
            y=points["tpr"].tolist(),
            error_y=error_bars(ends, "tpr", 1),
            name=f"FPR {100 * float(str(fpr)):g} %",
            mode="lines+markers" if number else "lines+markers+text",
            text=[
                f"{percent(row['passed_1'])}, {percent(row['passed_2'])}"
                * (not row["setting"].endswith(ALONE))
                for _, row in points.iterrows()
            ],
            textposition="bottom right",
            line={"color": marker["color"], "width": 2},
            marker=marker,
            hovertext=[
                f"<b>{plotly_text(row['setting'])}</b><br>share of the network: {row['cost']:.2f}"
                f"<br>TPR: {format_number(row['tpr'], row['tpr_low'], row['tpr_high'])}<br>"
                f"test FPR: {format_number(row['test_fpr'])}"
                for _, row in points.iterrows()
            ],
            hoverinfo="text",
        )
    alone = rows[rows["setting"].str.endswith(ALONE)].drop_duplicates("setting")
    # The best site may need as many blocks as all sites.
    for cost in sorted(set(alone["cost"].tolist())):
        settings = alone["setting"][alone["cost"].eq(cost)]
        stages = ", ".join(setting.removesuffix(ALONE) for setting in settings)
        figure.add_vline(
            x=cost,
            line={"color": GREY, "dash": "dot", "width": 1},
            annotation_text=plotly_text(stages),
            annotation_position="bottom right" if cost < 0.5 else "bottom left",
            annotation_yshift=16 * (0 < cost < 1),  # above those at the ends
        )
    figure.update_xaxes(title_text="share of the network, mean of test rows", range=[-0.03, 1.03])
    figure.update_yaxes(title_text="true positive rate", range=[0, 1.04])
    name_traces(figure)
    return figure
