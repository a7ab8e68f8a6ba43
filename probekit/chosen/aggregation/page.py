"""Rules that score whole texts on a page, and how early texts are flagged."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from probekit.amounts import LEVEL, fixed, format_number, joined_names, percent
from probekit.chosen.page import Shown, estimate, estimate_words, sentence, written_table
from probekit.report.elements.page import FigurePart, PageSection, Paragraph, figure_json
from probekit.report.elements.style import CHANCE_LINE, TEMPLATE, plotly_text, series_marker
from probekit.report.elements.table import Column
from probekit.report.elements.texts import class_label
from probekit.report.pages.further_figures import scores_part
from probekit.report.sentences.caveats import Caveat
from probekit.results.table import OF_RULES, metric_name
from probekit.results.verdict import Verdict

CHANCE = 0.5  # of the AUROC

NOTE = (
    "* selected by cross-validation. Scores of {n_texts:,} texts by probes fitted without them, "
    "with 95 % intervals over groups; each rule has its best C. AUROC at equal length: of as many "
    "texts of both labels at each length. Correlation with length: rank correlation within labels."
)


def answers(run: Shown) -> Iterator[Paragraph]:
    """Yield the selected rule and its score at any length and at equal length, if there is one."""
    rules = run.rows("aggregation.csv")
    if rules is None:
        return
    (row,) = (one for _, one in rules.iterrows() if one["is_selected"])
    if np.isnan(row["auroc"]):  # of more than two labels
        score = f"{metric_name(str(row['metric']))} {fixed(row['value'], 2)}, cross-validated"
        yield sentence(f"Texts are scored best by the rule {row['rule']}: {score}.")
        return
    others = rules[~rules["is_selected"]]
    relations = {
        "untested against": others["p"].isna(),
        "significantly worse than": (others["p"] < LEVEL) & (others["difference"] < 0),
        "not shown to be better than": others["p"] >= LEVEL,
    }
    ties = [
        f"{relation} {joined_names(others['rule'][those].tolist())}"
        for relation, those in relations.items()
        if those.any()
    ]
    opening = f"The rule {row['rule']} is selected{', but ' * bool(ties)}{joined_names(ties)}"
    if len(others) > 1 and (others["p"] >= LEVEL).all():
        opening = f"The rule {row['rule']} is not shown to be better than any other"
    scores = [f"{fixed(one['auroc'], 2)} with {one['rule']}" for _, one in others.iterrows()]
    scores.insert(0, f"cross-validated AUROC is {estimate_words(row, 'auroc')} with {row['rule']}")
    yield sentence(
        f"{opening}: on {row['n_texts']:,} training texts, {joined_names(scores)}.",
        is_useless=row["equal_low"] <= CHANCE,
    )
    equal = f" At equal length its AUROC is {estimate_words(row, 'equal')}." * (row["equal"] >= 0)
    yield sentence(f"The rule was selected on these texts, which favours its score.{equal}")


def doubts(v: Verdict) -> Iterator[Caveat]:
    """Yield a warning if the score of a text is correlated with its length."""
    if v.length_of_rule is not None:
        rule, *estimates = v.length_of_rule
        auroc, at_equal_length, within = (format_number(*one) for one in estimates)
        yield Caveat(
            "length-of-rule",
            f"The score of a text by the rule {rule} is correlated with its length (within labels "
            f"{within}). The cross-validated AUROC is {auroc}, at equal length {at_equal_length}: "
            "choose thresholds on texts as long as those that are monitored.",
        )


def sections(run: Shown) -> Iterator[PageSection]:
    """Yield the section with the rules by which the probe may score a text, if there are any."""
    rules = run.rows("aggregation.csv")
    if rules is None:
        return
    metric = metric_name(str(rules["metric"].iloc[0]))
    columns: dict[Column | str, str] = {"rule": "rule", f"{metric}, cross-validated": "value"}
    if rules["n_equal"].notna().any():  # of more labels only the score
        columns |= {title: name for name, title in OF_RULES.items()}
        columns["texts of equal length"] = "n_equal"
    starred = rules["rule"] + np.where(rules["is_selected"], " *", "")
    table = written_table("Rules that score a text", columns, rules.assign(rule=starred))
    note = Paragraph(NOTE.format(n_texts=rules["n_texts"].iloc[0]), "note")
    yield PageSection("Rules that score a text", [table, note])


def screen(run: Shown) -> Iterator[FigurePart]:
    """Yield the scores of the rules, then scores by token and texts predicted, if there are any."""
    rules, flagged = run.rows("aggregation.csv"), run.rows("flagged.csv")
    if rules is None or flagged is None:
        return
    rules = rules.sort_values(["is_selected", "auroc"], ascending=False, kind="stable")
    first, *others = (row for _, row in rules.iterrows())
    yield scores_part(
        "auroc",
        "by rule, cross-validated",
        {row["rule"]: estimate(row, "auroc") for row in (first, *others)},
        {row["rule"]: estimate(row, "difference") for row in others},
        f"{first['n_texts']:,} training texts, scored by probes fitted without them. They also "
        "selected the rule (blue), which favours it. Limits are adjusted for the number of rules.",
        CHANCE,
        f"{first['rule']} minus the other",
    )
    label = class_label(str(run.scores.rows["positive"].iloc[0]))
    yield FigurePart(
        f"Score by token, and texts predicted as {label} so far",
        figure_json(flagged_curves(flagged, label)),
        f"Test texts, by {run.probe}. Above: median score of the texts of a label up to each "
        f"token. Below: share of them that were predicted as {label} at this token or an earlier "
        "one, which for texts of the other label are false alarms.",
        "; ".join(
            f"{class_label(str(name))}: {percent(points['share'].iloc[-1])} of "
            f"{points['n_texts'].iloc[0]:,} texts within {points['tokens'].iloc[-1]:,} tokens"
            for name, points in flagged.groupby("label", sort=False)
        ),
        height=24,
    )


def flagged_curves(rows: pd.DataFrame, positive: str) -> go.Figure:
    """Return median score (above) and share of flagged texts (below) by number of tokens read.

    Args:
        rows: `label`, `tokens`, `score`, `share` and `n_texts` for each label and number of tokens.
        positive: the label that flags a text.
    """
    figure = make_subplots(2, 1, shared_xaxes=True, vertical_spacing=0.06)
    for number, (label, points) in enumerate(rows.groupby("label", sort=False)):
        name, n = plotly_text(class_label(str(label))), points["n_texts"].iloc[0]
        line = {"color": series_marker(number + 1, 8)["color"], "width": 2, "shape": "hv"}
        shared: dict[str, Any] = {"x": points["tokens"].tolist(), "name": f"{name} (n = {n:,})"}
        shared |= {"line": line, "mode": "lines", "legendgroup": name, "col": 1}
        for row, column in enumerate(("score", "share"), 1):
            figure.add_scatter(y=points[column].tolist(), row=row, showlegend=row == 1, **shared)
    figure.add_hline(y=0, line=CHANCE_LINE, row=1)
    figure.update_xaxes(title_text="tokens read", row=2)
    figure.update_yaxes(title_text="median score", row=1)
    figure.update_yaxes(title_text=plotly_text(f"predicted {positive}"), range=[0, 1.04], row=2)
    return figure.update_layout(template=TEMPLATE)
