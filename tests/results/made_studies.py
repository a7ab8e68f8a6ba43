"""A finished study with made numbers: study.csv and study.json."""

import numpy as np
import pandas as pd

from probekit.provenance import digest, seal
from probekit.results.record import FORMAT
from probekit.results.study import STUDY, STUDY_COLUMNS, STUDY_RECORD, StudyResult
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
            words, majority = (0.5 if number % 4 == 1 else 0.7), 0.5
            row = {"cell": f"task_{number:03d}-{setting}", "dataset": f"task_{number:03d}"}
            row |= {SETTING: setting, "metric": "accuracy", "score": words + lead, "chance": 0.5}
            row |= {"ci_low": words + lead - 0.05, "ci_high": words + lead + 0.05, "p": 1e-5}
            row |= {"n": 160, "n_groups": 40, "verdict": "yes", "layer": number % 5}
            row |= {"site": f"blocks.{number % 5}.hook_resid_post", "probe": "logistic"}
            row |= {"position": "last", "repeated": 0.0, "folder": f"cells/task_{number:03d}/a1"}
            row |= {"caveats": "", "error": "", "published": 0.72 if number % 3 == 0 else np.nan}
            for name in RIVALS:
                value = {"majority": majority, "bag_of_words": words}.get(name, 0.6)
                own = row["score"] - value
                p = 1e-5 if value == majority or own > 0.05 else 0.6
                row |= {name: value, f"{name}_difference": own, f"{name}_p": p}
                row |= {f"{name}_low": own - 0.06, f"{name}_high": own + 0.06}
            rows.append(row)
    return pd.DataFrame(rows)


def write_study(folder, cells, *, name="made", n_unused=0):
    """Write a study of these cells and return its result."""
    first, second, *others = (column.name for column in STUDY_COLUMNS)
    folder.mkdir(parents=True, exist_ok=True)
    keys = ["data", *([SETTING] if SETTING in cells else [])]
    text = cells.reindex(columns=[first, second, *keys[1:], *others]).to_csv(index=False)
    (folder / STUDY).write_text(text)
    record = {"study": name, "question": None, "keys": keys, "n_unused": n_unused}
    record["files"] = {STUDY: digest([text.encode()])}
    (folder / STUDY_RECORD).write_bytes(seal(record, FORMAT))
    return StudyResult(folder)


def failing(cells, number, error):
    """Return the cells after one of them failed."""
    cells = cells.astype(dict.fromkeys(cells.select_dtypes("number"), float))
    for name in cells.columns.difference(["cell", "dataset", SETTING]):
        cells.loc[number, name] = np.nan if cells[name].dtype == float else ""
    cells.loc[number, "error"] = error
    return cells
