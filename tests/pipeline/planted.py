"""A small data set with a planted signal, an experiment on it, and its runs."""

import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd

from probekit.experiment.loader import load_experiment
from probekit.pipeline.experiment.run import run
from probekit.pipeline.experiment.run_job import work_on
from probekit.results.record import runs_in_progress
from tests.pipeline.texts import text_of

YAML = text_of("planted.yaml")
_NOUNS = "house door river garden letter table ship window horse carriage road hat"
NOUNS = _NOUNS.split()
VERBS = ("was", "is", "stood", "seemed")
MIXED = "data.file=mixed.csv"  # labels that follow no rule, so that every probe has errors
FAST = ("model.random_weights=false", "probe.control_draws=0", "probe.description=false")
# A site without and one with the signal, and what a run needs.
QUICK_SITES = ("blocks.0.hook_resid_pre", "blocks.3.hook_resid_post")
_FEW = ("probe.baselines=[majority]", "probe.C=[0.01]", "attention.texts=[Hi]")
QUICK = (f"capture.sites={list(QUICK_SITES)}", *FAST[:2], *_FEW)


class Planted:
    """The experiment in a folder, and its runs there.

    The file `mixed.csv` has the same rows with permuted labels.
    """

    def __init__(self, folder, cache=None):
        self.folder, self.cache = folder, cache or folder / "cache"
        self.rows = write_rows(folder / "rows.csv")
        labels = np.random.default_rng(2).permutation(self.rows["label"])
        self.rows.assign(label=labels).to_csv(folder / "mixed.csv", index=False)
        (folder / "planted.yaml").write_text(YAML)

    def load(self, *overrides):
        return load_experiment(self.folder / "planted.yaml", overrides)

    def run(self, *overrides, **options):
        experiment = self.load(*overrides)
        return run(experiment, out=self.folder / "runs", cache_root=self.cache, **options)

    def take(self, finished):
        """Copy a finished run of another folder here and return its folder."""
        place = finished.relative_to(finished.parents[1])
        return shutil.copytree(finished, self.folder / "runs" / place)


def helped(start, root, n_workers=1, **options):
    """Return the result of a run and the tasks that each worker did at the same time."""
    with ThreadPoolExecutor() as threads:
        running = threads.submit(start)
        while not runs_in_progress(root) and not running.done():
            time.sleep(0.01)
        workers = [
            threads.submit(list, work_on(root, seed=seed, **options)) for seed in range(n_workers)
        ]
        return running.result(), [worker.result() for worker in workers]


def write_rows(path):
    """Write rows labelled by the colour of the noun; the probed last word is independent of it."""
    rows = [
        {"text": f"The {colour} {noun} {verb}", "label": colour, "group": noun}
        for noun in NOUNS
        for verb in VERBS
        for colour in ("red", "black")
    ]
    table = pd.DataFrame(rows)
    table.to_csv(path, index=False)
    return table
