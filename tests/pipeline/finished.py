"""Finished runs that contain predictions only, as read by `compare`; no model is needed."""

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd

from probekit.experiment.document import dump_settings
from probekit.experiment.loader import load_experiment
from probekit.files import csv_text
from probekit.probes.score.metrics import ClassPredictions
from probekit.probes.score.scored import Measurement, Predictor, SiteResult
from probekit.provenance import digest
from probekit.results.judging import judge
from probekit.results.record import pack_record
from probekit.results.scores import Scores
from probekit.results.site_results import SavedSiteResults, site_stem
from probekit.results.table import DIFFERENCES, RESULTS, load_table, make_table
from tests.pipeline.texts import text_of

FILES = ("config.yaml", "results.csv", "differences.csv", "predictions.csv")
SITES = ("blocks.0.hook_resid_post", "blocks.1.hook_resid_post")
LABELS = ("no", "yes")


def made_rows(n_groups=60, rows_of_group=4, prefix="g"):
    """Return rows with alternating labels, and with names of examples and groups."""
    n = n_groups * rows_of_group
    examples = [f"{prefix}{row}" for row in range(n)]
    groups = [f"{prefix}{row // rows_of_group}" for row in range(n)]
    labels = [LABELS[row % 2] for row in range(n)]
    return pd.DataFrame({"id": examples, "group": groups, "truth": labels})


def guesses(rows, share, seed):
    """Return predictions with about `share` correct, correlated within each group."""
    generator = np.random.default_rng(seed)
    groups = rows["group"].unique()
    level = dict(zip(groups, generator.normal(0, 0.1, len(groups)), strict=True))
    right = generator.random(len(rows)) < share + rows["group"].map(level).to_numpy()
    truth = (rows["truth"] == "yes").to_numpy(dtype=np.int64)
    return np.where(right, truth, 1 - truth)


def write_run(folder, rows, guess_of_site, *, probe="logistic", overrides=(), labels=LABELS):
    """Write a run with the guesses (n_test,) at each site, and return its folder."""
    folder = Path(folder)
    folder.mkdir(parents=True)
    (folder / "experiment.yaml").write_text(text_of("made.yaml"))
    experiment = load_experiment(folder / "experiment.yaml", overrides)
    position = experiment.tokens.position.text
    truth = np.searchsorted(np.array(labels), rows["truth"].to_numpy(dtype=str))
    majority = {"baselines": np.zeros_like(truth)} if experiment.probe.baselines else {}
    saved = SavedSiteResults(folder, truth_of=None, n_classes=2)  # the truth is only for reading
    table = []
    for site, guess in (majority | guess_of_site).items():
        is_site = site != "baselines"
        who = Predictor(probe, "task") if is_site else Predictor("none", "majority")
        score = float((guess == truth).mean())
        n = {"n_train": 10, "n_test": len(rows), "n_groups": rows["group"].nunique()}
        values = dict.fromkeys(("value", "ci_low", "ci_high"), score) | {"chance": 0.5, "seed": 0}
        measured = [
            Measurement(**who._asdict(), split=split, metric="accuracy", **values, **n)
            for split in (("test", "validation") if is_site else ("test",))
        ]
        predictions = {who: ClassPredictions(truth, guess, len(labels))}
        origin = {"run": folder.name, "position": position, "site": site}
        saved.write(site_stem(site), origin, SiteResult(measured, predictions))
        names = {"run": "made", "model": "mini", "dataset": "made", "position": position}
        names |= {"main_metric": "accuracy"}
        names |= {"site": site, "view": "raw", "component": "resid_post"} if is_site else {}
        table += [names | asdict(one) for one in measured]
    (folder / "results.csv").write_text(csv_text(make_table(table, RESULTS)))
    (folder / "differences.csv").write_text(csv_text(make_table([], DIFFERENCES)))
    (folder / "predictions.csv").write_text(csv_text(rows))
    (folder / "config.yaml").write_text(dump_settings(experiment))
    write_record(folder, labels)
    return folder


def write_record(folder, labels=LABELS, dataset="same"):
    """Write run.json with the digests of the current files."""
    paths = [*(folder / name for name in FILES), *sorted((folder / "sites").iterdir())]
    names = (path.relative_to(folder).as_posix() for path in paths)
    sizes = {"n_layers": 2, "n_heads": 1, "d_model": 4, "d_vocab": 9, "n_ctx": 8, "parameters": 1}
    counts = dict.fromkeys(("train", "test"), dict.fromkeys(labels, 5))
    data = {"name": "made", "n_examples": 9, "n_rows": 9, "labels": counts}
    data["groups"] = {"train": 3, "test": 3}
    table = load_table(folder / "results.csv")
    record = {"run": "made", "key": folder.name, "question": None, "created": "now", "data": data}
    record |= {"verdict": judge(Scores.of(table), make_table([], DIFFERENCES)).model_dump()}
    record |= {"model": {"source": "mini"} | sizes, "digests": {"dataset": dataset}}
    record |= {"files": {name: digest([(folder / name).read_bytes()]) for name in names}}
    record |= {"versions": {"numpy": "2"}}
    (folder / "run.json").write_bytes(pack_record(record))
