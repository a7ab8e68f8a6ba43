"""A small data set with a planted answer, and the experiment that finds it."""

import pandas as pd

YAML = """\
name: planted
question: Is the second word readable at the last?
model: {source: mini}
data: {name: planted, format: csv, file: rows.csv, columns: {group: group}}
tokens: {bos: false, position: {at: last}}
capture: {sites: [blocks.0.hook_resid_pre, "blocks.[03].hook_resid_post"]}
probe: {folds: 3, control_draws: 1, C: [0.01, 1]}
attention: {texts: [The red house was]}
"""
NOUNS = (
    "house",
    "door",
    "river",
    "garden",
    "letter",
    "table",
    "ship",
    "window",
    "horse",
    "carriage",
    "road",
    "hat",
)
VERBS = ("was", "is", "stood", "seemed")


def write_rows(path):
    """Colour of the noun as label; the last word, which is probed, says nothing of it."""
    rows = [
        {"text": f"The {colour} {noun} {verb}", "label": colour, "group": noun}
        for noun in NOUNS
        for verb in VERBS
        for colour in ("red", "black")
    ]
    pd.DataFrame(rows).to_csv(path, index=False)
