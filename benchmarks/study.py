"""A study of 30 generated tasks: does the page sort those that require more than words to the top?

`python -m benchmarks.study FOLDER` writes ten tasks of 160 rows that words solve, ten that require
structure and ten of noise, runs a study of them on the bundled network `mini`, and prints the tasks
in the order of the page, with the result of the comparison with the words.
"""

from __future__ import annotations

import argparse
import math
import random
from itertools import cycle, islice
from pathlib import Path

import probekit
from probekit.report.pages.study_page import study_answer
from probekit.results.study import FIRST, StudyResult, by_gain, compared_cells
from scripts.bundled.study import COLUMNS, TASKS
from scripts.bundled.table import rows_as_csv

OF_SORT = 10  # tasks that are solved by words, tasks that require structure, and tasks of noise
SETTINGS = {
    "name": "thirty",
    "question": "Which of 30 generated tasks require more than the words of a text?",
    "model": {"source": "mini", "random_weights": 0},
    "data": {"columns": {"text": "text", "label": "label", "group": "group"}},
    "tokens": {"bos": False, "position": {"at": "last"}},
    "capture": {"sites": ["blocks.[34].hook_resid_post", "ln_final.hook_normalized"]},
    "probe": {
        "folds": 3,
        "C": [0.01, 0.1, 1],
        "baselines": ["majority", "bag_of_words"],
        "control_draws": 0,
        "description": False,
        "permutations": 2000,  # so that p can be small enough for 30 cells
    },
    "split": {"folds": 5},
}


def main() -> None:
    """Write the tasks, run the study and print its cells."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    (folder / "tasks").mkdir(parents=True, exist_ok=True)
    for name, text in tasks().items():
        (folder / "tasks" / f"{name}.csv").write_text(text)
    over = {"data": [str(path) for path in sorted((folder / "tasks").glob("*.csv"))]}
    options = {"out": folder / "runs", "cache_root": folder / "cache", "workers": 1}
    result = probekit.run(SETTINGS, over=over, **options)
    assert isinstance(result, StudyResult)
    print(study_answer(result))
    for _, row in by_gain(compared_cells(result.table, result.rivals, FIRST)).iterrows():
        print(
            f"{row['cell']:25} {row['score']:.2f}, words {row['value']:.2f}, difference "
            f"{row['difference']:+.2f}  {'no test' if math.isnan(row['p']) else row['holm']}"
        )
    print(f"Page: {result.report}")


def tasks() -> dict[str, str]:
    """Return the contents of the CSV file of each task, by name."""
    written = {}
    for sort in ("words", "structure", "noise"):
        kinds = [name for name in TASKS if name.startswith(sort)]
        for number, name in enumerate(islice(cycle(kinds), OF_SORT)):
            rows = TASKS[name](random.Random(f"{name} {number}"))
            written[f"{name}_{number}"] = rows_as_csv(COLUMNS, rows)
    return written


if __name__ == "__main__":
    main()
