"""`probekit.probe`: the engine of a run on arrays, and friendly errors."""

import json
import re

import numpy as np
import pandas as pd
import pytest
import torch

from probekit.errors import ConfigError, OutOfMemoryError
from probekit.experiment.loader import load_any_experiment
from probekit.pipeline.engines.given import GivenEngine
from probekit.pipeline.experiment import plan
from probekit.pipeline.experiment.probe import probe
from probekit.pipeline.experiment.validate import validate
from probekit.pipeline.look.apply import apply_probe
from probekit.probes.prober import Prober
from probekit.probes.saved_probe import SavedProbe
from probekit.results.table import by_depth, load_table, only, ticks
from tests.pipeline.texts import text_of
from tests.stored import portable

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
SERIES, ORDER = pd.Series(LABELS), RNG.permutation(N)
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


def test_the_results_are_those_of_a_run(result, snapshot):
    table = load_table(result.results)
    tested = only(table, split="test")
    assert {
        "sites": table["site"].unique().tolist(),
        "metrics": tested.groupby("target")["metric"].unique().map(list).to_dict(),
        "ticks": ticks(by_depth(table)),
        "model": [result.record["model"], *table["model"].unique()],
    } == snapshot


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


@pytest.mark.parametrize("tokens", [None, TOKENS])
def test_texts_have_their_baselines_and_errors_have_words(tmp_path, tokens):
    texts = [f"{'Is it' if label else 'It is'} {n // 4}" for n, label in enumerate(LABELS)]
    labels = np.where(RNG.random(N) < 0.2, 1 - LABELS, LABELS)
    result = call(tmp_path, labels=labels, texts=texts, tokens=tokens, page=True)
    scores = only(result.table, split="test", metric="accuracy").groupby("target")["value"].max()
    assert scores["majority"] < 0.7 < scores["n_grams"]
    assert {"bag_of_words", "length"} < set(scores.index)
    assert ("control" in scores) is ("word_identity" in scores) is (tokens is not None)
    (warning,) = (codes(result)["left-out"],)
    assert "the texts" not in warning
    # Rows of one text are repeated if the text is the unit, and not if they are its tokens.
    assert ("contradictions" in codes(result)) is (tokens is None)
    rows = result.predictions
    assert rows["text"].tolist() == [texts[n] for n in rows["line"]]
    wrong = json.loads((result.folder / "wrong.json").read_text())["examples"]
    assert wrong
    for one in wrong:
        assert one["text"] == texts[int(one["where"].removeprefix("row "))]
        shown = one["where"].replace(" ", "\N{NO-BREAK SPACE}")
        assert f"· {shown}</span>" in result.report.read_text()


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


@pytest.mark.parametrize("options", text_of("invalid_calls.txt").splitlines())
def test_invalid_calls_are_explained(tmp_path, options, refused):
    refused(eval, f"call(folder, {options})", globals() | {"folder": tmp_path})
    assert not list(tmp_path.iterdir())


def test_an_unknown_device_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"--device meta: .*Available devices: cpu"):
        call(tmp_path, device="meta")


def test_columns_of_pandas_with_different_indices_are_in_the_order_of_the_rows(tmp_path):
    groups = pd.Series(GROUPS).loc[ORDER].reset_index(drop=True)
    call(tmp_path, labels=SERIES.loc[ORDER].set_axis(range(N, 2 * N)), groups=groups)


def test_numbers_get_a_regression_and_a_given_split_is_used(tmp_path):
    numbers = LABELS + RNG.normal(size=N)
    sides = ["test" if n % 16 < 4 else "train" for n in range(N)]
    run = call(tmp_path, labels=numbers, probe=REGRESSION, tokens=TOKENS, split=sides)
    assert (run.best.metric, run.best.n) == ("r2", sides.count("test"))


def test_repeated_rows_and_missing_groups_are_warned_about(tmp_path, snapshot):
    repeated = {site: np.concatenate([rows, rows]) for site, rows in LAYERS.items()}
    labels = np.concatenate([LABELS, 1 - LABELS])
    assert codes(call(tmp_path, repeated, labels, groups=None)) == snapshot
    # Rows that repeat at one site only are no duplicates.
    assert codes(call(tmp_path, LAYERS | {"layer_0": np.ones((N, 3))}, groups=None)) == snapshot


STEP = 1e6 + 0.1 * LABELS  # float32 numbers around 1e6 are 0.06 apart
NEAR = np.column_stack([STEP, RNG.normal(size=N)]).astype(np.float32)
SMALL = {
    "float64": (STEP[:, None], 1.0, ""),
    "float64, equal in float32": (1e9 + 0.1 * LABELS[:, None], 1.0, ""),
    "torch float64": (torch.from_numpy(STEP[:, None]), 1.0, ""),
    "float64 at a position": (np.stack([STEP[:, None], STEP[:, None] * 0], 1), 1.0, ""),
    "float32": (NEAR, None, "1 of 2 at layer_0"),
    "a constant and others": (np.column_stack([NEAR[:, 1], np.ones(N)]), None, ""),
    "constants alone": (np.ones((N, 3)), None, "3 of 3 at layer_0"),
}


@pytest.mark.parametrize("name", SMALL)
def test_small_differences_around_a_large_mean_are_kept_or_warned_of(tmp_path, name):
    rows, score, left_out = SMALL[name]
    options = {"position": 0, "sites": ["layer_0"]} if rows.ndim == 3 else {}
    run = call(tmp_path, LAYERS | {"layer_0": rows}, **options)
    own = only(run.table[run.table["site"] == "layer_0"], target="task", split="test")
    assert score is None or own.loc[own["metric"] == "accuracy", "value"].tolist() == [score]
    messages = codes(run).get("constant-features", "")
    assert left_out in messages
    assert bool(messages) == bool(left_out)
    saved = SavedProbe.load(run.folder / "probes/layer_0/logistic")
    given = rows[:, 0] if rows.ndim == 3 else rows
    assert score is None or (saved.predict(given) == LABELS.astype(str)).all()


def test_float64_that_float32_holds_gives_the_numbers_of_float32(tmp_path):
    one, other = (
        call(tmp_path / kind, {"layer_2": LAYERS["layer_2"].astype(kind)})
        for kind in ("float32", "float64")
    )
    assert one.record["digests"] == other.record["digests"]
    pd.testing.assert_frame_equal(one.table, other.table)


def test_odd_names_are_safe_on_the_page_and_in_files(tmp_path):
    names = ["<b>x</b>", "model/layers/../1", "=1+1", "émile", "con", "a:b*?", "%{x}"]
    layers = dict(zip(names, [LAYERS["layer_2"]] * len(names), strict=True))
    few = FAST | {"permutations": 0, "control_draws": 0}
    run = call(tmp_path / "runs", layers, page=True, probe=few)
    assert set(load_table(run.results)["site"]) == {"", *names}
    assert "<b>x</b>" not in run.report.read_text().split("<body")[1].replace("\\u003c", "")
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    assert all(path.name.isascii() for path in run.folder.rglob("*"))


ERRORS = [MemoryError("Unable to allocate 9 GiB"), MemoryError()]
ERRORS += [RuntimeError("CUDA out of memory: could not allocate 9 GiB")]


@pytest.mark.parametrize("error", ERRORS)
def test_a_site_without_memory_says_what_it_needs_and_what_lowers_it(tmp_path, monkeypatch, error):
    site, done = Prober.site, []

    def exhausted(self, X, **others):
        if done:
            monkeypatch.delattr(GivenEngine, "n_bytes")  # workers have no engine to ask
            raise error
        done.append(X)
        return site(self, X, **others)

    monkeypatch.setattr(Prober, "site", exhausted)
    few = FAST | {"permutations": 0, "control_draws": 0}
    needs = r"probe layer_1 .*allocat.*about \d.*MB.* are available.*--workers 1.*probe.fit_rows"
    with pytest.raises(OutOfMemoryError, match=needs):
        call(tmp_path, probe=few)
    monkeypatch.undo()
    assert len(list(tmp_path.rglob("sites/*layer_0*"))) > 0
    assert call(tmp_path, probe=few).best.value > 0.9


@pytest.mark.parametrize("name", ["layer_{}", "blocks.{}.hook_resid_post"])
def test_the_time_of_given_sites_of_any_name_is_predicted(tmp_path, name, monkeypatch):
    monkeypatch.setattr(plan, "_NUMBERS_OF_SHORT_RUN", 0)
    layers = {name.format(n): rows for n, rows in enumerate(LAYERS.values())}
    assert call(tmp_path, layers).best is not None


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
    path.write_text(text_of("mine.yaml") + f"probe: {json.dumps(FAST)}\n")
    return path


def test_a_file_is_validated(file):
    report = validate(load_any_experiment(file))
    assert report.ok
    assert (report.n_rows, report.n_sites, report.bytes) == (N, 3, N * 3 * 6 * 4)
    assert list(report.seconds) == ["probe"]


MISTAKES = """
activations.folder=none activations.foldr=x activations.folder=null model.source=mini
data.columns.token=wrd data.columns.label=lable data.file=null data.file=other.csv
"""


@pytest.mark.parametrize("override", MISTAKES.split())
def test_mistakes_in_a_file_are_located(file, override, refused):
    refused(lambda: validate(load_any_experiment(file, [override])))


def test_row_counts_and_ids_are_compared(file, snapshot):
    ids = [f"n{n}" for n in range(N)]
    ids[5], ids[6] = ids[6], ids[5]
    (file.parent / "acts" / "rows.csv").write_text("id\n" + "\n".join(ids) + "\n")
    lines = (file.parent / "rows.csv").read_text().splitlines()
    for n_lines in (N + 1, N):
        (file.parent / "rows.csv").write_text("\n".join(lines[:n_lines]) + "\n")
        report = validate(load_any_experiment(file))
        assert not report.ok
        assert portable(report.findings[0].message, file.parent) == snapshot
