"""False positive rate of a monitor on texts unlike those that it was trained on.

    python -m benchmarks.monitor_elsewhere

The monitor detects plural subjects. It is trained on the bundled sentences about subjects, and its
thresholds are fixed on singular subjects of another generator, with other nouns and adjectives.
Printed for each rate: the bound, and the rate on 5,000 new texts of that generator, whose groups
(a noun with an adjective) are not among the negatives.
"""

from __future__ import annotations

import tempfile
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

from probekit import SavedProbe, apply_probe, run
from probekit.experiment.locations import bundled_data

NOUNS = (
    "key door house river garden letter ship window horse road cat tree book lamp stone wall boat "
    "bell chair cup coat knife plate spoon box bag ring shoe fence gate bridge tower farm hill"
)
ADJECTIVES = (
    "old new small large red black white green cold warm heavy light rich poor quiet loud dark "
    "bright strange common broken clean dirty sharp round flat"
)
PLACES = "near by behind beyond before above"
EXPERIMENT = """
name: monitor
model: {source: mini, random_weights: 0}
data: {name: subjects, format: csv, file: data.csv, positive: plural, columns: {group: group}}
tokens: {bos: false, position: {at: last}}
capture: {sites: ["blocks.[35].hook_resid_post"]}
probe: {folds: 3, C: [0.01, 0.1], description: false, baselines: [majority], control_draws: 0}
monitor: {negatives: negatives.csv, fpr: [0.01, 0.05, 0.1]}
"""


def singular_subjects(n_texts: int, generator: np.random.Generator) -> pd.DataFrame:
    """Return different texts with a singular subject, and another noun in either number."""
    words = [text.split() for text in (NOUNS, ADJECTIVES, PLACES, NOUNS)]
    parts = list(product(*words, ("", "s")))
    drawn = [parts[number] for number in generator.permutation(len(parts))[:n_texts]]
    texts = [f"The {a} {noun} {place} the {other}{s}" for noun, a, place, other, s in drawn]
    return pd.DataFrame({"text": texts, "group": [f"{noun} {a}" for noun, a, *_ in drawn]})


def main() -> None:
    """Print the table."""
    generator = np.random.default_rng(0)
    texts = singular_subjects(30_000, generator)
    groups = generator.permutation(texts["group"].unique())
    known = texts["group"].isin(groups[: len(groups) // 2])
    new = texts[~known].sample(5000, random_state=0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = pd.read_csv(bundled_data("subject_number")).sample(900, random_state=0)
        data.to_csv(folder / "data.csv", index=False)
        texts[known].groupby("group").head(3).to_csv(folder / "negatives.csv", index=False)
        (folder / "monitor.yaml").write_text(EXPERIMENT)
        result = run(folder / "monitor.yaml", out=folder, cache_root=folder / "cache")
        probe = SavedProbe.load(result.folder / "probes/monitor")
        for row in probe.facts.thresholds:
            read = apply_probe(probe, new["text"].tolist(), threshold=row.fpr)
            # The probe reads the last token.
            alarms = pd.Series([one.answers[-1].alarm for one in read], index=new.index)
            rate = alarms.groupby(new["group"]).mean().mean()
            groups_of = new["group"].nunique()
            print(
                f"requested {row.fpr:.0%}: bound {row.fpr_bound:.2%} from {row.n_groups} groups, "
                f"found {rate:.2%} in {groups_of} new groups"
            )


if __name__ == "__main__":
    main()
