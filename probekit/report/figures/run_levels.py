"""Horizontal reference lines of several runs in one panel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd
import plotly.graph_objects as go

from probekit.probes.targets import HEADLINE
from probekit.report.figures.levels import level_line, levels
from probekit.report.figures.line_labels import LineLabel
from probekit.report.figures.style import LEVELS, fixed, plotly_text

PART = " · "  # between the settings in the title of a run


def draw_run_levels(
    figure: go.Figure, measured: pd.DataFrame, ends: Sequence[float], colours: Mapping[str, str]
) -> list[LineLabel]:
    """Draw the horizontal lines of several runs, and return labels with name and value.

    A label names its run if no other run has the same value. Nested choices have the colour of
    their run instead. Levels of one colour whose rounded values are equal share a label.

    Args:
        figure: The lines are added to it.
        measured: Test rows of a metric, of several runs.
        ends: Left and right end of the lines.
        colours: Colour of each run.
    """
    runs = list(dict.fromkeys(measured["run"]))
    owners: dict[tuple[str, str, str], dict[str, pd.Series]] = {}
    for run in runs:
        for name, row in levels(measured[measured["run"] == run], is_brief=True):
            colour = colours[run] if name == HEADLINE else LEVELS[name].colour
            text = fixed(row["value"], 2)
            owners.setdefault((name, text, colour), {})[run] = row
    labels: dict[tuple[str, str], tuple[list[str], float]] = {}
    for (name, text, colour), rows in owners.items():
        is_common = name == HEADLINE or len(rows) > 1
        whose = "" if is_common else f" of {short_title(next(iter(rows)), runs)}"
        title, style = f"{LEVELS[name].label}{whose}", replace(LEVELS[name], colour=colour)
        for row in {row["value"]: row for row in rows.values()}.values():
            figure.add_trace(
                level_line(style, row, ends).update(name=plotly_text(f"{title} {text}"))
            )
            names, _ = labels.setdefault((text, colour), ([], row["value"]))
        names.append(title)
    return [
        LineLabel(f"{', '.join(names)} {text}", value, colour)
        for (text, colour), (names, value) in labels.items()
    ]


def short_title(run: str, runs: Sequence[str]) -> str:
    """Return the settings in the title of a run that no other run has, or the whole title.

    >>> short_title("last · no folds", ["last · no folds", "last · folds 5"])
    'no folds'
    """
    others = {part for other in runs if other != run for part in other.split(PART)}
    return PART.join(part for part in run.split(PART) if part not in others) or run
