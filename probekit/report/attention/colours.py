"""The colours of attention: from nothing to all for weights, around 0 for differences."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.colors

# Perceptually uniform, and light to dark in greyscale. On a dark page it is turned round, so that
# weights of 0 lie near the page in both.
_WEIGHTS = plotly.colors.sequential.tempo
_DIFFERENCES = plotly.colors.diverging.RdBu_r
# As light at both ends, dark in the middle.
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
    """Return the stops of each scale as red, green, blue from 0 to 255, for light and dark pages.

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
    # plotly writes some scales as rgb(...), others as #...
    return [
        [int(c) for c in plotly.colors.unlabel_rgb(colour)]
        if colour.startswith("rgb")
        else list(plotly.colors.hex_to_rgb(colour))
        for colour in colours
    ]
