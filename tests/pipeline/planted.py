"""A small data set with a planted signal, and an experiment on it."""

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
    """Write rows labelled by the colour of the noun; the probed last word is independent of it."""
    rows = [
        {"text": f"The {colour} {noun} {verb}", "label": colour, "group": noun}
        for noun in NOUNS
        for verb in VERBS
        for colour in ("red", "black")
    ]
    pd.DataFrame(rows).to_csv(path, index=False)


def rows_of_sites(values):
    """Rows of results.csv for sites with these (validation, test) accuracies of the task."""
    return pd.DataFrame(
        {
            "probe": "logistic",
            "target": "task",
            "split": split,
            "metric": "accuracy",
            "site": site,
            "head": None,
            "position": "last",
            "value": value,
            "fold": None,
            "main_metric": "accuracy",
        }
        for site, pair in values.items()
        for split, value in zip(("validation", "test"), pair, strict=True)
    )
