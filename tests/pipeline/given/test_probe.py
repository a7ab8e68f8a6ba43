"""`probekit.probe`: the engine of a run on arrays, and friendly errors."""

import json
import re

import numpy as np
import pandas as pd
import pytest
import torch

from probekit.errors import ConfigError, DataError, ProbekitError
from probekit.experiment.loader import load_any_experiment
from probekit.pipeline.compare.compare import compare
from probekit.pipeline.experiment.validate import validate
from probekit.pipeline.given.probe import probe
from probekit.pipeline.look.apply import apply_probe
from probekit.probes.saved_probe import SavedProbe
from probekit.results.table import load_table, only, placed, ticks

FAST = {"C": [0.1], "folds": 2, "description": False, "permutations": 50, "control_draws": 1}
N = 160
RNG = np.random.default_rng(0)
LABELS = RNG.integers(2, size=N)
TOKENS = [f"word{n % 16}" for n in range(N)]
GROUPS = [f"g{n // 4}" for n in range(N)]
LAYERS = {
    f"layer_{n}": (RNG.normal(size=(N, 6)) + 1.5 * n * LABELS[:, None]).astype(np.float32)
    for n in range(3)
}


OF_TYPES = ["b", "b", 1, *LABELS.tolist()[4:]]
REGRESSION = FAST | {"kinds": [{"kind": "ridge_regression"}]}


def call(folder, layers=LAYERS, labels=LABELS, *, page=False, **options):
    options = {"groups": GROUPS, "probe": FAST, "workers": 1} | options
    return probe(layers, labels, out=folder, page=page, **options)


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return call(folder, tokens=TOKENS, question="Is it decodable?", source="m-70m", page=True)


@pytest.fixture(scope="module")
def nested(tmp_path_factory):
    return call(tmp_path_factory.mktemp("runs"), split={"folds": 2})


def test_the_results_are_those_of_a_run(result):
    table = load_table(result.results)
    assert list(table["site"].unique()) == ["", *LAYERS]
    assert {"task", "control", "majority", "word_identity"} == set(table["target"])
    assert {"accuracy", "p_best", "selectivity"} <= set(table["metric"])
    rows = placed(table)
    assert list(rows["depth"].unique()) == [0, 1, 2]
    assert ticks(rows) == {0: "0", 1: "1", 2: "2"}
    assert set(table["model"]) == {"m-70m"}
    unknown = dict.fromkeys(("n_layers", "n_heads", "d_model", "d_vocab", "n_ctx", "parameters"))
    assert result.record["model"] == {"source": "m-70m", **unknown, "compared_with": {}}


def test_best_is_the_test_score_of_the_choice(result, nested):
    for run, target in ((result, "task"), (nested, "chosen")):
        best, table = run.best, only(run.table, split="test", target=target)
        rows = only(table, site=best.site) if target == "task" else table
        row, p = (only(rows, metric=name).iloc[0] for name in ("accuracy", "p_value"))
        assert (best.value, best.ci_low, best.chance) == tuple(row[["value", "ci_low", "chance"]])
        assert (best.ci_high, best.n) == tuple(row[["ci_high", "n_test"]])
        assert best.site == run.record["verdict"]["best"]["site"] != "layer_0"
        assert 0 < best.p < 0.05
        assert best.p == p["value"] or target == "task"  # of one split it is that of all sites
    assert nested.best.n == N
    assert sum(nested.best.sites.values()) == 2
    assert nested.best.site == max(nested.best.sites, key=nested.best.sites.get)


def test_text_and_page_name_the_layers_and_what_is_left_out(result):
    (curve,) = re.findall(r"Accuracy by layer:\n.*", repr(result))
    assert curve.split()[3:5] == ["0", "1"]
    assert "final norm" not in curve
    page = result.report.read_text()
    assert "networks with random weights and baselines that read the texts are left out" in page
    assert "m-70m" in page
    assert "Is it decodable?" in page


def codes(run):
    return {one["code"]: one["message"] for one in run.record["data"]["findings"]}


def test_without_tokens_there_is_no_word_identity_and_no_control(nested):
    assert not {"control", "word_identity"} & set(nested.table["target"])
    assert "which need `tokens`" in codes(nested)["left-out"]


def test_the_key_depends_on_contents_and_not_on_paths(tmp_path):
    def key(*arguments, **options):
        return call(tmp_path / "runs", *arguments, **options).folder

    same = [LAYERS, {site: torch.from_numpy(rows) for site, rows in LAYERS.items()}]
    for name in ("first", "second"):
        same.append(tmp_path / name)
        same[-1].mkdir()
        for site, rows in LAYERS.items():
            np.save(same[-1] / f"{site}.npy", rows)
    (first,) = {key(layers) for layers in same}
    tensor, texts = torch.from_numpy(LABELS), [str(label) for label in LABELS]
    containers = (LABELS.tolist(), tensor, pd.Series(LABELS), texts)
    assert {key(labels=labels) for labels in containers} == {first}
    changed = (LAYERS | {"layer_0": LAYERS["layer_0"] + 1}, dict(reversed(LAYERS.items())))
    others = [key(layers) for layers in changed]
    others += [key(labels=1 - LABELS), key(tokens=TOKENS)]
    assert len({first, *others}) == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"probe": {"kindz": []}}, "unknown key 'probe.kindz'. Nearest: kinds"),
        ({"probe": {"kinds": [{"kind": "logistc"}]}}, "probe.kinds.0.kind.*Nearest: logistic"),
        ({"split": {"folds": 1}}, "split.folds is 1. It must be at least 2"),
        ({"split": {"tset": 0.2}}, "unknown key 'split.tset'. Nearest: test"),
        ({"split": {"drop_repeated": True}}, "`drop_repeated` compares texts"),
        ({"split": {"word_disjoint": True}}, "`word_disjoint` needs the word of each row"),
        ({"probe": {"kinds": [{"kind": "attention_pooled"}]}}, "reads the tokens of whole texts"),
        ({"probe": {"kinds": [{"kind": "k_sparse", "k": [7]}]}}, "more features than layer_0 has"),
        ({"name": "my run"}, "name is 'my run'"),
        ({"sites": ["layr*"]}, r"No site matches 'layr\*'"),
        ({"positive": "2"}, "positive is '2', which is no training label"),
        ({"labels": LABELS[:9]}, "groups has 160 entries, but labels has 9"),
        ({"labels": LABELS[:9], "groups": None}, "labels has 9 rows, but the activations have 160"),
        ({"labels": np.zeros(N, int)}, "label"),
        ({"labels": LABELS.astype(float)}, r"labels\[0\] is the number .*ridge_regression"),
        ({"labels": [*LABELS[:-1], None]}, r"labels\[159\] is a missing value"),
        ({"labels": [*map(str, LABELS[:-1]), float("nan")]}, r"labels\[159\] is a missing value"),
        ({"labels": LABELS[:, None]}, r"labels has shape \(160, 1\)"),
        ({"labels": "text"}, "labels is of type str"),
        ({"labels": b"01" * (N // 2)}, "labels is of type bytes"),
        ({"position": -1}, "no array has an axis of positions"),
        ({"position": "last"}, "no array has an axis of positions"),
        ({"device": "gpu"}, "--device gpu: .*Available devices: cpu"),
        ({"device": "meta"}, "--device meta: .*Available devices: cpu"),
        ({"question": "\ud800"}, "is not allowed"),
        ({"split": {"folds\0": 2}}, "folds"),
        ({"groups": [None, *GROUPS[1:]]}, r"groups\[0\] is a missing value"),
        ({"groups": ["", *GROUPS[1:]]}, "row 0: The group is empty"),
        ({"groups": ["g"] * N}, "all 160 rows are in one group"),
        ({"tokens": TOKENS[:-1]}, "tokens has 159 entries"),
        ({"tokens": [None] * N}, r"tokens\[0\] is a missing value"),
        ({"split": ["train"] * N}, "the test side has no example"),
        ({"split": ["trian"] * N}, "the split is 'trian'. Allowed: test, train"),
        ({"labels": dict(enumerate(LABELS))}, r"of type dict\..* list\(labels\.values\(\)\)"),
        ({"labels": set(range(N))}, "labels is of type set.* in the order of the rows"),
        ({"labels": frozenset(range(N)), "probe": REGRESSION}, "labels is of type frozenset"),
        ({"labels": frozenset(range(N))}, "labels is of type frozenset"),
        (
            {"labels": set(range(N)), "probe": REGRESSION},
            "labels is of type set.* order of the rows",
        ),
        ({"labels": dict(enumerate(LABELS)), "probe": REGRESSION}, r"list\(labels\.values\(\)\)"),
        ({"groups": dict(enumerate(GROUPS))}, r"list\(groups\.values\(\)\)"),
        ({"tokens": set(TOKENS)}, "tokens is of type set"),
        ({"layers": {"layer_0": {0: 1}}}, "layer_0: the rows are in a dict"),
        (
            {"labels": [True, *OF_TYPES]},
            r"labels\[0\] is True and labels\[3\] is 1, which differ in",
        ),
        ({"groups": ["1", *OF_TYPES]}, r"groups\[0\] is '1' and groups\[3\] is 1, which differ in"),
        ({"groups": [True, *OF_TYPES]}, r"groups\[0\] is True and groups\[3\] is 1, which differ"),
        ({"labels": ["1", *OF_TYPES]}, r"labels\[0\] is '1' and labels\[3\] is 1, which differ in"),
        ({"labels": ["yes"] * N, "probe": REGRESSION}, "the label 'yes' is not a number"),
    ],
)
def test_invalid_calls_are_explained(tmp_path, options, message):
    with pytest.raises(ProbekitError, match=message):
        call(tmp_path, **options)
    assert not list(tmp_path.iterdir())


def test_columns_of_pandas_in_different_orders_are_refused(tmp_path):
    labels, order = pd.Series(LABELS), RNG.permutation(N)
    for options in (
        {"groups": pd.Series(GROUPS)[order]},
        {"layers": {"layer_2": pd.DataFrame(LAYERS["layer_2"]).loc[order]}},
    ):
        with pytest.raises(DataError, match="same index in different orders"):
            call(tmp_path, labels=labels, **options)
    groups = pd.Series(GROUPS).loc[order].reset_index(drop=True)
    call(tmp_path, labels=labels.loc[order].set_axis(range(N, 2 * N)), groups=groups)


def test_numbers_get_a_regression(tmp_path):
    numbers = LABELS + RNG.normal(size=N)
    assert call(tmp_path, labels=numbers, probe=REGRESSION, tokens=TOKENS).best.metric == "r2"


def test_a_given_split_is_used(tmp_path):
    sides = ["test" if n % 16 < 4 else "train" for n in range(N)]
    run = call(tmp_path, split=sides)
    assert run.best.n == sides.count("test")


def test_repeated_rows_and_missing_groups_are_warned_about(tmp_path):
    repeated = {site: np.concatenate([rows, rows]) for site, rows in LAYERS.items()}
    labels = np.concatenate([LABELS, 1 - LABELS])
    found = codes(call(tmp_path, repeated, labels, groups=None))
    assert "Give `groups`" in found["no-groups"]
    assert "have the same activations at all sites as a training row" in found["duplicates-across"]
    assert "160 sets of rows" in found["contradictions"]
    assert "such as row 0 (1) and row 160 (0)." in found["contradictions"]


def test_rows_that_repeat_at_one_site_only_are_no_duplicates(tmp_path):
    found = codes(call(tmp_path, LAYERS | {"layer_0": np.ones((N, 3))}, groups=None))
    assert not {"duplicates-across", "contradictions"} & found.keys()
    assert "3 of 3 at layer_0" in found["constant-features"]


def test_odd_names_are_safe_on_the_page_and_in_files(tmp_path):
    names = ["<b>x</b>", "model/layers/../1", "=1+1", "émile", "con", "a:b*?", "%{x}"]
    layers = dict(zip(names, [LAYERS["layer_2"]] * len(names), strict=True))
    few = FAST | {"permutations": 0, "control_draws": 0}
    run = call(tmp_path / "runs", layers, page=True, probe=few)
    assert set(load_table(run.results)["site"]) == {"", *names}
    assert "<b>x</b>" not in run.report.read_text().split("<body")[1].replace("\\u003c", "")
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    assert all(path.name.isascii() for path in run.folder.rglob("*"))


def test_two_runs_on_given_activations_are_compared(result, tmp_path):
    other = call(tmp_path, tokens=TOKENS, probe=FAST | {"seed": 0, "C": [1.0]})
    comparison = compare(result.folder, other.folder)
    assert len(comparison.rows) > 0


def test_a_saved_probe_predicts_activations_but_no_texts(result):
    saved = SavedProbe.load(result.folder / "probes" / "layer_2" / "logistic")
    assert (saved.predict(LAYERS["layer_2"]) == LABELS.astype(str)).mean() > 0.9
    with pytest.raises(ConfigError, match="fitted on given activations of layer_2"):
        apply_probe(saved, ["A text."], model="mini")


@pytest.fixture
def file(tmp_path):
    """An experiment file with its folder of activations and table of rows."""
    (tmp_path / "acts").mkdir()
    for site, rows in LAYERS.items():
        np.save(tmp_path / "acts" / f"{site}.npy", rows)
    table = {"label": LABELS, "group": GROUPS, "word": TOKENS, "name": [f"n{n}" for n in range(N)]}
    pd.DataFrame(table).to_csv(tmp_path / "rows.csv", index=False)
    path = tmp_path / "mine.yaml"
    path.write_text(
        "name: mine\nactivations: {folder: acts}\n"
        "data:\n  name: mine\n  format: csv\n  file: rows.csv\n"
        "  columns: {label: label, group: group, token: word, id: name}\n"
        f"probe: {json.dumps(FAST)}\n"
    )
    return path


def test_a_file_is_validated(file):
    report = validate(load_any_experiment(file))
    assert report.ok
    assert (report.n_rows, report.n_sites, report.bytes) == (N, 3, N * 3 * 6 * 4)
    assert report.minutes is None


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("activations.folder=none", "--set activations.folder: There is no folder"),
        ("activations.foldr=x", "unknown key 'activations.foldr'"),
        ("activations.folder=null", "activations.folder"),
        ("data.columns.token=wrd", "no column 'wrd'. Nearest: word"),
        ("data.columns.label=lable", "no column 'lable'. Nearest: label"),
        ("data.file=null", "format"),
        ("data.file=other.csv", "other.csv"),
        ("model.source=mini", "`model` and `activations` exclude each other"),
    ],
)
def test_mistakes_in_a_file_are_located(file, override, message):
    with pytest.raises(ProbekitError, match=message):
        validate(load_any_experiment(file, [override]))


def test_row_counts_and_ids_are_compared(file):
    ids = [f"n{n}" for n in range(N)]
    ids[5], ids[6] = ids[6], ids[5]
    (file.parent / "acts" / "rows.csv").write_text("id\n" + "\n".join(ids) + "\n")
    report = validate(load_any_experiment(file))
    assert not report.ok
    assert "the id of row 5 is 'n5', but 'n6' in rows.csv" in report.findings[0].message
    lines = (file.parent / "rows.csv").read_text().splitlines()
    (file.parent / "rows.csv").write_text("\n".join(lines[:-1]) + "\n")
    report = validate(load_any_experiment(file))
    assert "rows.csv has 159 rows, but the activations have 160" in report.findings[0].message
