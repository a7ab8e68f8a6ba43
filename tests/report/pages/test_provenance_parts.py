"""The page of a run has no folder of the machine that ran the experiment."""

import base64
import re

import pytest

from probekit.report.pages.provenance_parts import MachinePaths
from probekit.report.pages.run_page import write_report
from probekit.results.record import RunRecord

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
    run = make_run(table.assign(model=MODEL), record)
    (run / "config.yaml").write_text(CONFIG)
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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/data/x/y.csv is short", "…/y.csv is short"),
        ("in\n  /data/x/y.csv", "in\n  …/y.csv"),
        ("root: /data/x", "root: …/x"),
        ("/data/xy and /other/data/x", "/data/xy and /other/data/x"),
    ],
)
def test_only_whole_paths_are_shortened(text, expected):
    assert MachinePaths(("/data/x/y.csv", "/data/x")).hide(text) == expected


def test_relative_names_and_urls_are_not_paths(record):
    config = {"data": {"root": "data", "file": "s3://bucket/x.csv"}, "model": {"source": "mini"}}
    of = MachinePaths.of(config, RunRecord.model_validate(record))
    assert of.paths == ()
    windows = {"data": {"root": r"C:\data\nouns"}, "name": "/not/a/setting/of/files"}
    of = MachinePaths.of(windows, RunRecord.model_validate(record))
    assert of.hide(r"root: C:\data\nouns") == "root: …/nouns"
