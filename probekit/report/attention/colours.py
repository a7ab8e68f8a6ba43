"""Colour scales of attention: sequential for weights, diverging for differences."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.colors

# Perceptually uniform and monotonic in greyscale. Reversed on dark pages, so that a weight of 0 is
# close to the page background in both themes.
_WEIGHTS = plotly.colors.sequential.tempo
_DIFFERENCES = plotly.colors.diverging.RdBu_r
# Equally light at both ends, dark in the middle.
_DIFFERENCES_IN_THE_DARK = (
    "#b9dcff",
    "#6aa5dc",
    "#34689c",
    "#1f3750",
    "#20262e",
    "#55301f",
    "#96562f",
    "#d98d56",
    "#ffd2b0",
)


def attention_colours() -> dict[str, dict[str, list[list[int]]]]:
    """Return the stops of each colour scale as RGB from 0 to 255, for light and dark pages.

    >>> attention_colours()["weights"]["light"][0]
    [254, 245, 244]
    """
    weights = _stops(_WEIGHTS)
    return {
        "weights": {"light": weights, "dark": weights[::-1]},
        "differences": {
            "light": _stops(_DIFFERENCES),
            "dark": _stops(_DIFFERENCES_IN_THE_DARK),
        },
    }


def _stops(colours: Sequence[str]) -> list[list[int]]:
    # Plotly writes some scales as rgb(...), others as #...
    return [
        [int(c) for c in plotly.colors.unlabel_rgb(colour)]
        if colour.startswith("rgb")
        else list(plotly.colors.hex_to_rgb(colour))
        for colour in colours
    ]
