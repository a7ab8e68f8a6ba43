"""Several runs on one page, the index of a folder of runs, and no folders of the machine."""

import json
import re
import time

import pandas as pd
import plotly.graph_objects as go
import pytest

from probekit.errors import DataError
from probekit.report.pages.index_page import find_runs, index_page
from probekit.report.pages.run_page import write_report
from probekit.report.pages.runs_page import load_runs, runs_figures, runs_page
from tests.report.conftest import make_record, make_table, seal_run
from tests.report.page_text import text_of, unpacked
from tests.report.sentences.cases import with_p
from tests.stored import changed, drawn, portable

TABLE = make_table()
SITED = TABLE[TABLE["site"] != ""]
SEED = "name: plural\nprobe: {{seed: {}}}\n"
KIND = "name: plural\nprobe: {{kinds: [{{kind: {}}}]}}\n"
OTHER = make_record() | {"key": "b"}
KINDS = pd.concat(
    [
        SITED.assign(probe="mlp:64", value=SITED["value"] - 0.3),
        SITED.assign(position="first", value=SITED["value"] - 0.4),
        TABLE,
    ]
)
TEST = TABLE[TABLE["split"] == "test"]
MLPS = TABLE.assign(site=TABLE["site"].str.replace("hook_resid_post", "hook_mlp_out"))


@pytest.fixture
def two(write_run, tmp_path, hostile):
    weaker = TABLE.assign(value=TABLE["value"] - 0.1)
    return [
        write_run(tmp_path / "plural" / "3f9a0c"),
        write_run(tmp_path / "plural" / "b", weaker, OTHER | {"question": hostile}),
    ]


# Tables, configurations and the second record of both runs.
RUNS = {
    "each has a line, a ring and a row of the map": {},
    "the map has the chosen kind and position of each": {
        "tables": (KINDS, TABLE.assign(probe="svm"))
    },
    "without cross-validation the map has their first kind": {"tables": (TEST, TEST)},
    "without a common kind of site there is no map": {
        "tables": (TABLE, MLPS[MLPS["site"].str.contains("mlp_out|^$")])
    },
    "titles of two experiments": {"record": OTHER | {"run": "verbs"}},
    "titles of a setting, and an answer for each": {
        "tables": (with_p(TABLE, 0.2), with_p(TABLE, 0.0002)),
        "configs": (SEED.format(0), SEED.format(1)),
    },
    "titles of two settings": {
        "configs": ("name: plural\nseed: 0\nC: [1]\n", "name: plural\nseed: 1\nC: [2]\n")
    },
    "a kind in the title is not repeated": {
        "tables": (TABLE, TABLE.assign(probe="svm")),
        "configs": (KIND.format("logistic"), KIND.format("svm")),
    },
}


@pytest.mark.parametrize("name", RUNS)
def test_text_and_figures_are_those_that_are_stored(two, snapshot, name):
    given = RUNS[name]
    before = text_of(runs_page(load_runs(two))) if given else ""
    for folder, config in zip(two, given.get("configs", ()), strict=False):
        (folder / "config.yaml").write_text(config)
    tables = given.get("tables", (None, None))
    for folder, table, record in zip(two, tables, (None, given.get("record")), strict=True):
        seal_run(folder, table, record)
    runs = load_runs(two)
    after = text_of(page := runs_page(runs))
    if not given:
        assert page == runs_page(load_runs(two))
    assert (changed(before, after) if given else after) == snapshot(name="text")
    figures = [drawn(go.Figure(part.figure)) for part in runs_figures(runs)]
    assert "\n\n".join(figures) == snapshot(name="figures")


def test_the_table_of_settings_lists_only_those_that_differ(
    browser, two, write_run, tmp_path, record, hostile, snapshot
):
    digests = record["digests"] | {"weights": "ef" * 32}
    third = write_run(tmp_path / "third", TABLE, record | {"key": "c", "digests": digests})
    config = "name: another\nprobe: {C: [0.001, 0.01, 0.1], seed: 3}\ntokens: {bos: %s}\n"
    (third / "config.yaml").write_text(config % json.dumps(hostile))
    seal_run(third)
    page = tmp_path / "runs.html"
    page.write_text(runs_page(load_runs([*two, third])))
    assert text_of(page.read_text()).partition("## Settings that differ")[2] == snapshot
    browser.open(page, width=360)
    assert browser.evaluate("document.documentElement.scrollWidth") <= 360
    assert browser.trouble == []


@pytest.mark.parametrize("text", ["a: [", "- 1", ""], ids=["cut", "list", "empty"])
def test_unreadable_settings_are_refused(two, text):
    (two[1] / "config.yaml").write_text(text)
    with pytest.raises(DataError, match=r"config\.yaml(?!.*changed)"):
        load_runs([two[0], seal_run(two[1])])


def test_duplicate_runs_and_different_metrics_are_refused(two, write_run, tmp_path, refused):
    refused(load_runs, [two[0], two[0]])
    numbers = TABLE[TABLE["metric"] == "accuracy"].assign(metric="r2", main_metric="r2")
    refused(load_runs, [two[0], write_run(tmp_path / "numbers", numbers, OTHER | {"key": "n"})])


def test_the_index_has_title_state_and_answer_of_each_run(two, tmp_path, snapshot):
    for folder, seed in zip(two, (0, 1), strict=True):
        (folder / "config.yaml").write_text(SEED.format(seed))
        seal_run(folder)
    going = tmp_path / "going" / "1"
    (going / "sites" / "-1").mkdir(parents=True)
    for name in (".started", "sites/a.json", "sites/-1/a.json", "sites/baselines.json"):
        (going / name).write_text("{}")
    (tmp_path / "bad").mkdir()
    changed_record = (two[0] / "run.json").read_text().replace("plural", "other")
    (tmp_path / "bad" / "run.json").write_text(changed_record)
    page = index_page(tmp_path)
    assert "<b>%{x}" not in page
    text = re.sub(r"\d+ s ago", "N s ago", portable(text_of(page), tmp_path))
    assert text.replace(tmp_path.name, "FOLDER") == snapshot
    for state, n in {"finished": 2, "running": 1, "damaged": 1}.items():
        assert page.count(f'class="state {state}"') == n
    assert 'class="state quiet"' in index_page(tmp_path, now=time.time() + 1000)


def test_links_out_of_the_folder_are_ignored(two, tmp_path):
    root = tmp_path / "served"
    root.mkdir()
    (root / "outside").symlink_to(two[0])
    assert find_runs(root) == []
    assert two[0] in find_runs(tmp_path)


ROOT = "/mnt/ann/my projects/plurals/data"
HIDDEN = ("/mnt", "ann/", "/srv")


def machine_run(write_run, folder, table, record, model):
    """A run of a model and of data in folders, which its notes and findings name."""
    own = record | {"key": model, "model": record["model"] | {"source": f"/srv/models/{model}"}}
    own["data"]["notes"] = [f"{ROOT}/{model}.csv has 3 empty lines."]
    own["data"]["findings"][0]["message"] = f"{ROOT}/{model}.csv, line 3: twice."
    rows = table[table["metric"] == "accuracy"].assign(model=f"/srv/models/{model}")
    run = write_run(folder, rows, own)
    (run / "config.yaml").write_text(
        f"name: plural\nmodel:\n  source: /srv/models/{model}\n"
        f"data:\n  root: {ROOT}\n  file: nouns.csv\n  train: {ROOT}/{model}.csv\n"
    )
    return seal_run(run)


def test_no_folder_of_the_machine_is_on_a_page(write_run, tmp_path, table, record):
    runs = [
        machine_run(write_run, tmp_path / name, table, record, name)
        for name in ("gpt2-tuned", "gpt2-other")
    ]
    page = write_report(runs[0]).read_text("utf-8")
    (csv,) = (text for text in unpacked(page) if text.startswith("run,"))
    several = runs_page(load_runs(runs)).partition("<body")[2]
    for text in (page, csv, several):
        assert not [part for part in (*HIDDEN, str(tmp_path)) if part in text]
    for shown in ("root: …/data", "train: …/gpt2-tuned.csv", "…/gpt2-tuned.csv, line 3: twice."):
        assert shown in page
    assert "…/gpt2-tuned" in csv
    for shown in ("…/gpt2-tuned.csv", "…/gpt2-other<"):
        assert shown in several
