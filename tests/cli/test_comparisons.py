"""`compare` and `transfer`: tables, exit codes and streams."""

import re

import numpy as np
import pandas as pd
import pytest

from tests.pipeline.finished import SITES, guesses, made_rows, write_run


@pytest.fixture
def runs(tmp_path):
    rows = made_rows()
    same = guesses(rows, 0.6, 1)
    return [
        write_run(tmp_path / name, rows, {SITES[0]: same, SITES[1]: guesses(rows, share, 2)})
        for name, share in (("a", 0.95), ("b", 0.6))
    ]


def test_compare_lists_significant_differences(call, runs, tmp_path):
    code, out, _ = call("compare", *runs, "--out", tmp_path / "found.csv")
    assert code == 0
    lines = out.splitlines()
    (held,) = [line for line in lines if re.search(r"(?<!not) significant\s*$", line)]
    assert held.startswith(f"{SITES[1]} last logistic")
    assert lines[:3] == ["made", "a: run 1", "b: run 2"]
    assert "1 of " in lines[-3]
    assert lines[-2].startswith("run 1 is better: accuracy 0.95 for run 1, 0.64 for run 2")
    assert lines[-1].endswith("found.csv")
    assert len(pd.read_csv(tmp_path / "found.csv")) == len(
        [line for line in lines if line.rstrip().endswith(("significant", "equal"))]
    )


def test_compare_exits_with_the_code_of_its_error(call, runs, tmp_path):
    code, out, err = call("compare", runs[0], runs[0])
    assert (code, out) == (2, "")
    assert "same folder" in err
    assert call("compare", runs[0], tmp_path / "none")[0] == 3
    assert call("compare", *runs, "--metric", "f1")[0] == 2
    assert call("compare", *runs, "--out", "found.pdf")[0] == 2
    (runs[1] / "results.csv").write_text("changed")
    assert call("compare", *runs)[0] == 2


def test_names_cannot_control_the_terminal(call, tmp_path):
    rows = made_rows(n_groups=4)
    guess = {SITES[0]: np.zeros(len(rows), dtype=np.int64)}
    names = {"a": r"a[red]\x1b[2J", "b": "b"}
    runs = [
        write_run(tmp_path / folder, rows, guess, overrides=(f'data.columns.text="{name}"',))
        for folder, name in names.items()
    ]
    for command in (("compare",), ("report", "--out", tmp_path / "runs.html")):
        code, out, _ = call(command[0], *runs, *command[1:])
        assert code == 0
        assert "\x1b" not in out
        assert "text a[red]<U+001B>[2J" in out


def test_report_of_several_runs_prints_an_answer_for_each(call, runs, tmp_path):
    code, out, _ = call("report", *runs, "--out", tmp_path / "runs.html")
    assert code == 0
    *answers, path = out.splitlines()
    assert answers == [
        f"run {run}: Not tested against chance: {score} of held-out rows at block 1, chance 50 %, "
        "best of 2 sites in cross-validation."
        for run, score in ((1, "95 % [95, 95]"), (2, "64 % [64, 64]"))
    ]
    assert path == str(tmp_path / "runs.html")


def test_transfer_prints_the_matrix_and_then_the_page_path(call, tmp_path):
    for seed, (name, colour) in enumerate({"one": "red", "two": "black"}.items()):
        rows = [
            {"text": f"The {colour} {noun} {verb}", "label": "xy"[n % 2], "group": noun}
            for noun in ("house", "door", "river", "garden", "letter", "table", "ship", "horse")
            for n, verb in enumerate(("was", "is", "stood", "seemed"))
        ]
        pd.DataFrame(rows).to_csv(tmp_path / f"{name}.csv", index=False)
        (tmp_path / f"{name}.yaml").write_text(
            f"name: {name}\nmodel: {{source: mini}}\ntokens: {{bos: false, position: {{at: last}}}}"
            f"\ndata: {{name: {name}, format: csv, file: {name}.csv, columns: {{group: group}}}}\n"
            "probe: {folds: 2, control_draws: 0, C: [0.1]}\n"
            f"split: {{seed: {seed}}}\n"
        )
    files = [tmp_path / "one.yaml", tmp_path / "two.yaml"]
    options = ["--site", "blocks.1.hook_resid_post", "--kind", "mass_mean", "--null-draws", "2"]
    folders = ("--cache", tmp_path / "cache", "--out", tmp_path / "out")
    code, out, err = call("transfer", *files, *options, *folders)
    assert code == 0, err
    lines = out.splitlines()
    assert lines[0] == "blocks.1.hook_resid_post mass_mean"
    assert lines[1].startswith("accuracy, trained on (down)")
    assert sum(line.startswith("cosine, ") for line in lines) == 2
    assert lines[-1] == str(tmp_path / "out" / "transfer.html")
    assert "capture one: 32 of 32" in err
    assert re.search(r"warning: Test rows of two that are in a group of .*: \d of 8\. On", err)
    code, _, err = call("transfer", *files, "--kind", "logistik", "--out", tmp_path / "out")
    assert code == 2
    assert "Nearest: logistic" in err
