"""The pages of runs have no folder of the machine that ran the experiment."""

import base64
import re

from probekit.report.pages.run_page import write_report
from probekit.report.pages.runs_page import load_runs, runs_page
from tests.report.conftest import seal_run

ROOT = "/mnt/ann/my projects/plurals/data"
MODEL = "/srv/models/gpt2-tuned"
CONFIG = f"""name: plural
model:
  source: {MODEL}
data:
  root: /mnt/ann/my projects/plurals/data
  file: nouns.csv
  train: {ROOT}/train.csv
"""


def test_no_folder_of_the_machine_is_on_the_page(make_run, table, record):
    record["model"]["source"] = MODEL
    record["data"]["notes"] = [f"{ROOT}/train.csv has 3 empty lines."]
    record["data"]["findings"][0]["message"] = f"{ROOT}/train.csv, line 3: twice."
    run = make_run(table[table["metric"] == "accuracy"].assign(model=MODEL), record)
    (run / "config.yaml").write_text(CONFIG)
    seal_run(run)
    page = write_report(run).read_text("utf-8")
    csv = base64.b64decode(re.search(r"base64,([^\"]*)", page)[1]).decode()
    for text in (page, csv):
        for part in ("/mnt", "ann/", "/srv", str(run.parent)):
            assert part not in text
    assert "root: …/data" in page
    assert "train: …/train.csv" in page
    assert "…/train.csv, line 3: twice." in page
    assert "…/gpt2-tuned" in page
    assert "…/gpt2-tuned" in csv


def test_no_folder_of_the_machine_is_on_a_page_of_several_runs(write_run, tmp_path, table, record):
    folders, table = [], table[table["metric"] == "accuracy"]
    for key, name in (("a", "gpt2-tuned"), ("b", "gpt2-other")):
        own = record | {"key": key, "model": record["model"] | {"source": f"/srv/models/{name}"}}
        folders.append(write_run(tmp_path / key, table.assign(model=f"/srv/models/{name}"), own))
        config = CONFIG.replace("gpt2-tuned", name).replace("train.csv", f"{name}.csv")
        (folders[-1] / "config.yaml").write_text(config)
        seal_run(folders[-1])
    page = runs_page(load_runs(folders)).partition("<body")[2]
    for part in ("/mnt", "ann/", "/srv", str(tmp_path)):
        assert part not in page
    assert "…/gpt2-tuned.csv" in page
    assert "…/gpt2-other<" in page
