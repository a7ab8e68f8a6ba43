"""Given numbers of the output explain a label that is the confidence, and no other one."""

import numpy as np
import pandas as pd
import pytest

from probekit.experiment.loader import load_any_experiment
from probekit.pipeline.engines.table import prepare
from probekit.pipeline.experiment.probe import probe
from tests.pipeline.texts import text_of

N = 400
RNG = np.random.default_rng(0)
ENTROPY = RNG.gamma(4, size=N)
DIRECTION = RNG.normal(size=N)
X = RNG.normal(size=(N, 6)).astype(np.float32)
X[:, 0] += 3 * (ENTROPY - ENTROPY.mean())
X[:, 1] += 3 * DIRECTION
SETTINGS = {"C": [0.1, 1.0], "folds": 3, "description": False, "control_draws": 0}
SETTINGS |= {"permutations": 200, "baselines": ["majority", "output"]}
OUTPUTS = {"entropy": ENTROPY, "margin": RNG.normal(size=N)}


def call(folder, labels, outputs=OUTPUTS):
    options = {"split": {"folds": 4}, "probe": SETTINGS, "workers": 1, "progress": False}
    return probe({"layer_0": X}, labels, out=folder, outputs=outputs, page=False, **options)


def test_a_label_that_is_the_confidence_is_not_better_than_it_and_another_one_is(tmp_path):
    own = call(tmp_path / "own", (np.median(ENTROPY) < ENTROPY).astype(int))
    verdict = own._record.verdict
    doubts, rivals = verdict.doubts, verdict.rivals
    assert rivals["output"].value > 0.95
    assert "output" in doubts
    assert "the network's own confidence" in own.answer
    other = call(tmp_path / "other", (DIRECTION > 0).astype(int))
    assert "output" not in other._record.verdict.doubts
    assert other._record.verdict.rivals["output"].value < 0.6
    assert other._record.verdict.rivals["output"].p_adjusted < 0.001


def test_another_shape_than_a_line_is_the_confidence_too(tmp_path):
    middle = np.abs(ENTROPY - np.median(ENTROPY))
    result = call(tmp_path, (middle < np.median(middle)).astype(int))
    assert result._record.verdict.rivals["output"].value > 0.85


def test_the_run_depends_on_the_numbers_and_a_data_frame_has_the_same(tmp_path):
    labels = (DIRECTION > 0).astype(int)
    one = call(tmp_path, labels)
    assert call(tmp_path, labels, pd.DataFrame(OUTPUTS)).folder == one.folder
    changed = OUTPUTS | {"entropy": ENTROPY + 1}
    assert call(tmp_path, labels, changed).folder != one.folder
    assert "output" not in call(tmp_path, labels, None)._record.verdict.rivals


@pytest.mark.parametrize(
    "outputs",
    [
        {"entropy": ENTROPY[1:]},
        {"entropy": [*ENTROPY[1:], np.nan]},
        {"entropy": ["low"] * N},
        {"entropy": [1e300] * N},
        {"1": [0.5] * N, 1: [0.5] * N},
        ENTROPY,
        {},
    ],
)
def test_columns_that_are_no_numbers_of_the_rows_are_refused(tmp_path, refused, outputs):
    refused(call, tmp_path, (DIRECTION > 0).astype(int), outputs)


@pytest.fixture
def of_files(tmp_path):
    """A function that loads the experiment in files, with the numbers in columns of the rows."""
    (tmp_path / "a").mkdir()
    np.save(tmp_path / "a" / "layer_0.npy", X)
    rows = pd.DataFrame({"label": (np.median(ENTROPY) < ENTROPY).astype(int), **OUTPUTS})
    rows.to_csv(tmp_path / "rows.csv", index=False)
    rows.to_json(tmp_path / "rows.jsonl", orient="records", lines=True, double_precision=15)

    def load(*overrides):
        (tmp_path / "mine.yaml").write_text(text_of("given.yaml"))
        probe = {"C": [0.1], "folds": 3, "description": False, "permutations": 0}
        given = (f"probe={probe}".replace("False", "false"), *overrides)
        return load_any_experiment(tmp_path / "mine.yaml", given)

    return load


def test_columns_of_the_rows_are_numbers_of_the_output(of_files, refused):
    names = "activations.outputs=[entropy, margin]"
    for file in ("csv", "jsonl"):
        engine = prepare(of_files(names, f"data.format={file}", f"data.file=rows.{file}"))
        found = engine.activations.outputs(0)
        for name, column in OUTPUTS.items():
            np.testing.assert_allclose(found[name], column, rtol=1e-12)
        (left_out,) = (one.message for one in engine.design.findings if one.code == "left-out")
        assert "`outputs`" not in left_out
    refused(prepare, of_files("activations.outputs=[entrpy]"))
    refused(of_files, "activations.outputs=[entropy]", "probe.baselines=[majority]")
    (engine,) = (prepare(of_files()),)
    assert engine.activations.outputs(0) is None
    message = next(one.message for one in engine.design.findings if one.code == "left-out")
    assert "the network's own confidence, which needs `outputs`" in message


def test_a_cell_that_is_no_number_is_refused_with_its_line(of_files, tmp_path, refused):
    lines = (tmp_path / "rows.csv").read_text().splitlines()
    for cell in ("high", "1e300"):
        lines[3] = f"1,{cell},0.5"
        (tmp_path / "rows.csv").write_text("\n".join(lines))
        refused(prepare, of_files("activations.outputs=[entropy]"))
