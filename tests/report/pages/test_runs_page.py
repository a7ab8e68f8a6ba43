"""Several runs on one page, the index of a folder of runs, and no folders of the machine."""

import json
import re
import subprocess
import sys

import pandas as pd
import plotly.graph_objects as go
import pytest

from probekit.errors import ConfigError, DataError
from probekit.files import exclusive
from probekit.progress import STAGE, ProgressLines, recorded_stage
from probekit.report.pages.compare_page import load_runs, runs_figures, runs_page
from probekit.report.pages.index_page import entry, find_runs, index_page, read_stage
from probekit.report.pages.run_page import write_report
from tests.cli.test_view import serving
from tests.report.conftest import make_record, make_table, seal_run, write_shown
from tests.report.page_text import packed_texts, text_of
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
def two(tmp_path, hostile):
    weaker = TABLE.assign(value=TABLE["value"] - 0.1)
    return [
        write_shown(tmp_path / "plural" / "3f9a0c"),
        write_shown(tmp_path / "plural" / "b", weaker, OTHER | {"question": hostile}),
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


def test_only_settings_that_differ_are_listed(browser, two, tmp_path, record, hostile, snapshot):
    digests = record["digests"] | {"weights": "ef" * 32}
    third = write_shown(tmp_path / "third", TABLE, record | {"key": "c", "digests": digests})
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


def test_an_invalid_run_says_why_and_is_not_counted(two):
    finding = {"level": "error", "code": "crossing-groups", "message": "Groups are in both."}
    data = OTHER["data"] | {"findings": [finding]}
    for folder, record in zip(two, (None, OTHER | {"data": data}), strict=True):
        seal_run(folder, with_p(TABLE, 0.0002), record)
    valid, invalid = load_runs(two)
    assert (valid.is_above, invalid.is_above) == (True, False)
    assert invalid.answer == "Not valid as it stands: Groups are in both."
    assert "Above chance in 1 of 2 runs" in text_of(runs_page([valid, invalid]))


def test_duplicate_runs_and_different_metrics_are_refused(two, tmp_path, refused):
    refused(load_runs, [two[0], two[0]])
    numbers = TABLE[TABLE["metric"] == "accuracy"].assign(metric="r2", main_metric="r2")
    refused(load_runs, [two[0], write_shown(tmp_path / "numbers", numbers, OTHER | {"key": "n"})])


# A run: it begins a step, reports it, and waits until it is killed or gets an end of file.
RUN = """
import sys
from pathlib import Path
from probekit.files import exclusive
from probekit.progress import recorded_stage
from probekit.terminal import SILENT
folder = Path(sys.argv[1])
sys.argv = ["bin/probekit", "run", "my file.yaml"]
with exclusive(folder, "busy"), recorded_stage(folder, SILENT) as watcher:
    (folder / ".started").touch()
    watcher.progress("probe", 2, 8)
    print(flush=True)
    sys.stdin.read()
    (folder / ".started").unlink()
"""


@pytest.fixture
def begin(tmp_path):
    """A function that starts a process with a run in a folder, and returns both."""

    def begin(name):
        folder, pipe = tmp_path / name / "1", subprocess.PIPE
        command = [sys.executable, "-c", RUN, folder]
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=tmp_path)
        started.append(process)
        process.stdout.readline()
        return folder, process

    started = []
    yield begin
    for process in started:
        process.kill()
        process.communicate()


def test_a_live_run_has_its_stage_and_a_killed_one_the_command_to_resume(begin, tmp_path):
    folder, process = begin("going")
    assert entry(tmp_path, folder).state == "running"
    assert entry(tmp_path, folder).summary == "probe: 2 of 8"
    with pytest.raises(ConfigError, match="busy"), exclusive(folder, "busy"):
        pass
    process.kill()
    process.wait()
    shown = entry(tmp_path, folder)
    assert (shown.state, shown.url) == ("stopped", "")
    resume = f"`probekit run 'my file.yaml'` in {tmp_path}"
    assert shown.summary == f"At probe: 2 of 8. Resume it with {resume}."
    folder, process = begin("going")  # the lock of a killed process is free
    process.communicate()
    assert [path.name for path in folder.iterdir()] == [".lock"]


def test_a_stage_has_the_time_left(tmp_path, monkeypatch):
    clock = iter([90.0, 100.0, 130.0, 130.5])
    monkeypatch.setattr("probekit.progress.time.monotonic", lambda: next(clock))
    shown, stages = ProgressLines(), []
    with recorded_stage(tmp_path, shown) as watcher:
        for step, seconds in {"probe": 200.0, "look": 10.0, "other": None}.items():
            watcher.expect(step, seconds)
        shown.progress = lambda *_: stages.append(shown.left)
        for done in (4, 5, 6):
            watcher.progress("probe", done, 8)
        stage = read_stage(tmp_path)
    # 4 were done before, so that 3 more take 90 s, and the next step 10; before there is a speed,
    # the estimate counts. The last one came too early to be written.
    assert stages == [f"about {n} left" for n in ("4 minutes", "100 seconds", "40 seconds")]
    assert stage[:2] == ("probe: 5 of 8", stages[1])
    for damaged in ("[", "null", "5", "[" * 5000):
        (tmp_path / STAGE).write_text(damaged)
        assert read_stage(tmp_path)[0] == "preparation"


def test_the_index_has_title_state_and_answer_of_each_run(two, begin, tmp_path, snapshot):
    for folder, seed in zip(two, (0, 1), strict=True):
        (folder / "config.yaml").write_text(SEED.format(seed))
        seal_run(folder)
    begin("going")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / ".started").write_text("")
    (tmp_path / "bad").mkdir()
    changed_record = (two[0] / "run.json").read_text().replace("plural", "other")
    (tmp_path / "bad" / "run.json").write_text(changed_record)
    page = index_page(tmp_path)
    assert "<b>%{x}" not in page
    rows = re.findall(r"<tr data-run=.*?</tr>", portable(page, tmp_path), re.DOTALL)
    text = text_of("".join(sorted(rows))).replace(tmp_path.name, "FOLDER")
    assert re.sub(r"\d+ \w+ 20\d\d \d+:\d+", "DATE", text) == snapshot
    for state, n in {"running": 1, "stopped": 1, "damaged": 1}.items():
        assert page.count(f'class="state {state}"') == n


def test_an_answer_that_is_red_on_its_own_page_is_red_in_the_index(tmp_path):
    record = make_record()
    found = {"level": "warning", "code": "crossing-groups", "message": "x"}
    record["data"]["findings"] = [found]
    write_shown(tmp_path / "valid", TABLE)
    write_shown(tmp_path / "invalid", TABLE, record)
    rows = re.findall(r'data-run="(\w+)"(.*?)</tr>', index_page(tmp_path), re.DOTALL)
    assert {name: 'class="words bad"' in row for name, row in rows} == {
        "valid": False,
        "invalid": True,
    }
    page = write_report(tmp_path / "invalid").read_text()
    assert 'class="answer bad"' in page


SHOWN = "[...document.querySelectorAll('tr[data-run]:not([hidden])')].map((r) => r.dataset.run)"
PRESS = "document.querySelectorAll('#runs thead button')[2].click()"
SEARCH = """
search.value = "{}";
search.dispatchEvent(new Event("input"));
document.querySelector("#count").textContent
"""
TICKED = "[...document.querySelectorAll('#runs :checked')].map((box) => box.value)"


def test_runs_are_searched_sorted_and_ticked_while_the_list_is_renewed(browser, two, tmp_path):
    with serving(tmp_path) as server:
        browser.open(f"http://127.0.0.1:{server.server_port}/")
        assert browser.evaluate(SEARCH.format("GPT2 plural/B")) == "1 of 2 runs"
        assert browser.evaluate(SHOWN) == ["plural/b"]
        browser.evaluate("document.querySelector('tr:not([hidden]) input').click()")
        assert browser.evaluate(SEARCH.format("")) == "2 of 2 runs, 1 ticked"
        browser.evaluate(PRESS)  # the best score first, then the worst
        assert browser.evaluate(SHOWN) == ["plural/3f9a0c", "plural/b"]
        browser.evaluate(PRESS)
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / ".started").write_text("")
        browser.settle(3000)
        assert browser.evaluate(SHOWN) == ["plural/b", "plural/3f9a0c", "other"]
        assert browser.evaluate(TICKED) == ["plural/b"]
        browser.evaluate(SEARCH.format("B"))
        browser.call("Page.navigate", url="about:blank")
        browser.back()
        assert browser.evaluate("document.querySelector('#search').value") == "B"
        assert browser.evaluate(TICKED) == ["plural/b"]
        browser.call("Page.navigate", url="about:blank")  # ends the requests for the list


def test_links_out_of_the_folder_are_ignored(two, tmp_path):
    root = tmp_path / "served"
    root.mkdir()
    (root / "outside").symlink_to(two[0])
    assert find_runs(root) == []
    assert two[0] in find_runs(tmp_path)


ROOT = "/mnt/ann/my projects/plurals/data"
HIDDEN = ("/mnt", "ann/", "/srv")


def machine_run(folder, table, record, model):
    """A run of a model and of data in folders, which its notes and findings name."""
    own = record | {"key": model, "model": record["model"] | {"source": f"/srv/models/{model}"}}
    own["data"]["notes"] = [f"{ROOT}/{model}.csv has 3 empty lines."]
    own["data"]["findings"][0]["message"] = f"{ROOT}/{model}.csv, line 3: twice."
    rows = table[table["metric"] == "accuracy"].assign(model=f"/srv/models/{model}")
    run = write_shown(folder, rows, own)
    (run / "config.yaml").write_text(
        f"name: plural\nmodel:\n  source: /srv/models/{model}\n"
        f"data:\n  root: {ROOT}\n  file: nouns.csv\n  train: {ROOT}/{model}.csv\n"
    )
    return seal_run(run)


def test_no_folder_of_the_machine_is_on_a_page(tmp_path, table, record):
    runs = [
        machine_run(tmp_path / name, table, record, name) for name in ("gpt2-tuned", "gpt2-other")
    ]
    page = write_report(runs[0]).read_text("utf-8")
    (csv,) = (text for text in packed_texts(page) if text.startswith("run,"))
    several = runs_page(load_runs(runs)).partition("<body")[2]
    for text in (page, csv, several):
        assert not [part for part in (*HIDDEN, str(tmp_path)) if part in text]
    for shown in ("root: …/data", "train: …/gpt2-tuned.csv", "…/gpt2-tuned.csv, line 3: twice."):
        assert shown in page
    assert "…/gpt2-tuned" in csv
    for shown in ("…/gpt2-tuned.csv", "…/gpt2-other<"):
        assert shown in several
