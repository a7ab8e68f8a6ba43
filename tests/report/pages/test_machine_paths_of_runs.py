"""The pages of runs have no folder of the machine that ran the experiment."""

import base64
import re

from probekit.report.pages.run_page import write_report
from probekit.report.pages.runs_page import load_runs, runs_page
from tests.report.conftest import seal_run

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
    csv = base64.b64decode(re.search(r"base64,([^\"]*)", page)[1]).decode()
    several = runs_page(load_runs(runs)).partition("<body")[2]
    for text in (page, csv, several):
        assert not [part for part in (*HIDDEN, str(tmp_path)) if part in text]
    for shown in ("root: …/data", "train: …/gpt2-tuned.csv", "…/gpt2-tuned.csv, line 3: twice."):
        assert shown in page
    assert "…/gpt2-tuned" in csv
    for shown in ("…/gpt2-tuned.csv", "…/gpt2-other<"):
        assert shown in several
