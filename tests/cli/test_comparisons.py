"""`compare`, `transfer` and `report` of several runs: tables, exit codes, streams and new files."""

import shutil

import numpy as np
import pandas as pd
import pytest

from tests.cli.conftest import without_digits
from tests.pipeline.finished import SITES, guesses, made_rows, write_run

HOSTILE = r"a[red]\x1b[2J"
YAML = """\
name: {name}
model: {{source: mini}}
tokens: {{bos: false, position: {{at: last}}}}
data: {{name: {name}, format: csv, file: {name}.csv, columns: {{group: group}}}}
probe: {{folds: 2, control_draws: 0, C: [0.1]}}
split: {{seed: {seed}}}
"""
NOUNS = ("house", "door", "river", "garden", "letter", "table", "ship", "horse")
TRANSFER = "transfer one.yaml two.yaml --out out"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two runs, two whose names have control characters, and two experiments."""
    folder = tmp_path_factory.mktemp("comparisons")
    rows = made_rows()
    same = guesses(rows, 0.6, 1)
    for name, share in {"a": 0.95, "b": 0.6}.items():
        write_run(folder / name, rows, {SITES[0]: same, SITES[1]: guesses(rows, share, 2)})
    few = made_rows(n_groups=4)
    guess = {SITES[0]: np.zeros(len(few), dtype=np.int64)}
    for run, name in {"c": HOSTILE, "d": "b"}.items():
        write_run(folder / run, few, guess, overrides=(f'data.columns.text="{name}"',))
    for seed, (name, colour) in enumerate({"one": "red", "two": "black"}.items()):
        texts = [
            {"text": f"The {colour} {noun} {verb}", "label": "xy"[n % 2], "group": noun}
            for noun in NOUNS
            for n, verb in enumerate(("was", "is", "stood", "seemed"))
        ]
        pd.DataFrame(texts).to_csv(folder / f"{name}.csv", index=False)
        (folder / f"{name}.yaml").write_text(YAML.format(name=name, seed=seed))
    return folder


@pytest.mark.parametrize(
    "line",
    [
        "compare a b --out found.csv",
        "compare a a",
        "compare a b --metric f1",
        "compare a b --out found.pdf",
        "compare c d",
        "report c d --out runs.html",
        "report a b --out runs.html",
        f"{TRANSFER} --site blocks.1.hook_resid_post --kind mass_mean --null-draws 2",
        f"{TRANSFER} --kind logistik",
    ],
)
def test_exit_code_streams_and_new_files_are_those_that_are_stored(
    printed, made, tmp_path, snapshot, line
):
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    text = printed(line)
    assert (without_digits(text) if line.startswith("transfer") else text) == snapshot
