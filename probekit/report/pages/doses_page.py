"""Page of a calibrated dose of steering: the loss on plain texts by dose."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import plotly.graph_objects as go

from probekit.amounts import fixed
from probekit.files import csv_text
from probekit.report.elements import page, style
from probekit.report.elements.texts import model_title

NOT_MEASURED = (
    "Only this cost is measured here, on texts that are not about the label. `probekit intervene` "
    "measures the effect of steering on the answer, with intervals and controls."
)
METHOD = (
    "The loss is the mean cross-entropy of the next token, in nats, over all tokens of the texts. "
    "The unit of the dose of a probe is a standard deviation of the projection on its direction; "
    "that of an exported vector is its length. The vector is added at every token.",
)


UNITS = {"sd": "standard deviations"}


def doses_answer(dose: float, doses: pd.DataFrame, factor: float, unit: str) -> str:
    """Return the calibrated dose in a sentence; for the table see `calibrated_doses`."""
    losses = doses.set_index("dose")["loss"]
    return (
        f"A dose of {dose:.3g} {UNITS.get(unit, unit)} reaches the given limit, a loss "
        f"{_rise(factor)} higher: on plain texts it rises from {fixed(losses[0.0], 2)} to "
        f"{fixed(losses[dose], 2)} nats per token."
    )


def _rise(factor: float) -> str:
    return f"{fixed(100 * (factor - 1), 1).removesuffix('.0')} %"


def doses_page(
    dose: float,
    doses: pd.DataFrame,
    factor: float,
    where: str,
    facts: Mapping[str, str],
    unit: str = "sd",
) -> page.Page:
    """Return a page with the loss by dose.

    Args:
        dose: the calibrated dose.
        doses: result of `calibrated_doses`.
        factor: the requested factor of the loss.
        where: label and site of the direction, in words.
        facts: names and values that the page ends with.
        unit: that of the dose.
    """
    figure, words = go.Figure(layout={"template": style.TEMPLATE}), UNITS.get(unit, unit)
    hover = f"%{{x:.3g}} {words}: %{{y:.4g}} nats<extra></extra>"
    look = {"color": style.SERIES_COLOURS[0], "width": 2}
    drawn = doses[doses["factor"] <= max(4.0, 2 * factor)]
    figure.add_scatter(
        x=drawn["dose"], y=drawn["loss"], mode="lines+markers", line=look, hovertemplate=hover
    )
    losses = doses.set_index("dose")["loss"]
    ends = [0, 1.05 * float(drawn["dose"].max())]
    area = {"fillcolor": style.GREY, "opacity": 0.12, "annotation_position": "top left"}
    figure.add_vrect(dose, ends[1], **area, line_width=0, annotation_text="above the limit")
    start = f"no steering: {fixed(losses[0.0], 2)}"
    figure.add_hline(losses[0.0], line=style.CHANCE_LINE, annotation_text=start)
    at = {"x": dose, "y": losses[dose], "ax": -20, "ay": -60, "arrowwidth": 1}
    figure.add_annotation(text=f"{dose:.3g}: loss + {_rise(factor)}", **at, xanchor="right")
    figure.update_xaxes(title_text=f"dose, {words}", range=ends)
    figure.update_yaxes(title_text="loss, nats per token")
    answer = doses_answer(dose, doses, factor, unit)
    part = page.FigurePart(
        "Loss on plain texts by dose",
        page.figure_json(figure),
        "Each point: mean loss of all texts; one pass, no interval. Dashed: the loss without "
        "steering. Grey: doses above the limit.",
        answer,
    )
    files = page.Files([("All doses", "doses.csv", csv_text(doses))])
    return page.Page(
        ("probekit", "steering", model_title(facts["network"])),
        f"How far can one steer {where}?",
        answer,
        [page.PageSection("", [part, files], "first")],
        details=[page.Paragraph(NOT_MEASURED)],
        method=METHOD,
        facts={"": facts},
        aside=[f"n = {facts['texts'].partition(' ')[0]} texts, no interval"],
    )
