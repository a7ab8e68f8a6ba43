"""A finished study with made numbers: study.csv, study_rivals.csv and study.json."""

import numpy as np
import pandas as pd

from probekit.provenance import digest, seal
from probekit.results.record import FORMAT
from probekit.results.study import (
    RIVAL_COLUMNS,
    STUDY,
    STUDY_COLUMNS,
    STUDY_RECORD,
    STUDY_RIVALS,
    StudyResult,
)
from probekit.results.table import make_table
from probekit.results.verdict import RIVALS

SETTING = "model.source"


def made_cells(n, *, settings=("mini",), seed=0):
    """Return the rows of study.csv of n data sets at each setting.

    Of every four data sets, the first is better than the words by far, in the second the words
    predict the same for all rows, and in the others they are equal to the probe.
    """
    rng, rows = np.random.default_rng(seed), []
    for number in range(n):
        for at, setting in enumerate(settings):
            lead = (0.2, 0.25, 0.0, -0.01)[number % 4] + 0.02 * at + 0.01 * rng.normal()
            score = (0.5 if number % 4 == 1 else 0.7) + lead
            row = {"cell": f"task_{number:03d}-{setting}", "dataset": f"task_{number:03d}"}
            row |= {SETTING: setting, "metric": "accuracy", "score": score, "chance": 0.5}
            row |= {"ci_low": score - 0.05, "ci_high": score + 0.05, "p": 1e-5}
            row |= {"n": 160, "n_groups": 40, "verdict": "yes", "layer": number % 5}
            row |= {"site": f"blocks.{number % 5}.hook_resid_post", "probe": "logistic"}
            row |= {"position": "last", "repeated": 0.0, "folder": f"cells/task_{number:03d}/a1"}
            row |= {"caveats": "", "error": "", "published": 0.72 if number % 3 == 0 else np.nan}
            rows.append(row)
    return pd.DataFrame(rows)


def made_rivals(cells, **changes):
    """Return the rows of study_rivals.csv of these cells, with other columns of some rivals."""
    rows = []
    for cell in cells[cells["error"] == ""].to_dict("records"):
        words = 0.5 if int(cell["dataset"][-3:]) % 4 == 1 else 0.7
        for name in RIVALS:
            value = {"majority": 0.5, "bag_of_words": words}.get(name, 0.6)
            lead = cell["score"] - value
            row = {"cell": cell["cell"], "rival": name, "value": value, "difference": lead}
            row |= {"ci_low": lead - 0.06, "ci_high": lead + 0.06, "is_constant": value == 0.5}
            rows.append(row | {"p": 1e-5 if value == 0.5 or lead > 0.05 else 0.6})
    rivals = make_table(rows, RIVAL_COLUMNS)
    for name, columns in changes.items():
        for column, values in columns.items():
            rivals.loc[rivals["rival"] == name, column] = values
    return rivals


def write_study(folder, cells, rivals=None, *, n_unused=0):
    """Write a study of these cells and return its result."""
    first, second, *others = (column.name for column in STUDY_COLUMNS)
    folder.mkdir(parents=True, exist_ok=True)
    keys = ["data", *([SETTING] if SETTING in cells else [])]
    cells = cells.reindex(columns=[first, second, *keys[1:], *others])
    record = {"study": "made", "question": None, "keys": keys, "n_unused": n_unused, "files": {}}
    rivals = made_rivals(cells) if rivals is None else rivals
    for name, table in {STUDY: cells, STUDY_RIVALS: rivals}.items():
        (folder / name).write_text(text := table.to_csv(index=False))
        record["files"][name] = digest([text.encode()])
    (folder / STUDY_RECORD).write_bytes(seal(record, FORMAT))
    return StudyResult(folder)


def failing(cells, number, error):
    """Return the cells after one of them failed."""
    cells = cells.astype(dict.fromkeys(cells.select_dtypes("number"), float))
    for name in cells.columns.difference(["cell", "dataset", SETTING]):
        cells.loc[number, name] = np.nan if cells[name].dtype == float else ""
    cells.loc[number, "error"] = error
    return cells
