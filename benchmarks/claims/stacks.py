"""Stacks of sites on noise, cascades, and directions fitted on halves of the groups.

`python -m benchmarks.claims.stacks` prints three tables. The first has the mean scores of a stack
and of the best single site, and the share of draws whose difference has p < 0.05: on noise the
scores should be 0.50 and the share at most 0.05. With a signal that is the same at all sites and
noise features of their own, the stack is better, because it averages probes with different errors.
The second is of cascades on data where words show a part of the labels and sites another part. It
has the mean TPR of each stage alone and of the cascades between them, the mean cost of these, and
the FPR on new rows relative to the requested one, which should be about 1. The third has the mean
cosine of a direction with the true one, its mean estimate from halves of the groups, the mean
absolute error of the estimate, and the mean cosine with bootstrap draws of the groups, which is too
high.
"""

import argparse
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

from probekit.chosen.directions.measure import HALVINGS, half_fits
from probekit.chosen.selected_probe import SelectedProbe
from probekit.chosen.stack.measure import tables as stack_tables
from probekit.chosen.stack.page import ALONE
from probekit.lazy_rows import LazyRows
from probekit.probes.data import ProbeData
from probekit.probes.prober import Prober
from probekit.probes.settings import ProbeSettings
from probekit.probes.solve.layers import certainty, unit_rows
from probekit.results.scores import Scores
from probekit.results.table import RESULTS, make_table

SITES, FEATURES = 6, 40
STAGES = ["words", "site", "all sites", "cascade"]


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=200)
    n_draws = parser.parse_args().draws
    print("signal rows groups | stack single | difference p < 0.05, better")
    for signal, (n_rows, n_groups) in product((0.0, 1.0), ((240, 240), (240, 60))):
        rng = np.random.default_rng(0)
        found = np.array([stacked(signal, n_rows, n_groups, rng) for _ in range(n_draws)])
        stack, single, p, difference = found.T
        shares = np.mean(p < 0.05), np.mean((p < 0.05) & (difference > 0))
        scores = f"{stack.mean():.3f} {single.mean():.3f}"
        print(signal, n_rows, n_groups, "|", scores, "| {:.3f} {:.3f}".format(*shares), flush=True)
    print("rows features positives FPR | TPR of words site all cascade | its cost | FPR, relative")
    for n_rows, n_features, share in ((1200, 20, 0.5), (1200, 200, 0.2), (4000, 200, 0.2)):
        rng = np.random.default_rng(0)
        draws = [cascaded(n_rows, n_features, share, rng) for _ in range(min(n_draws, 30))]
        for fpr, found in pd.concat(draws).groupby("fpr"):
            means = found.groupby("stages")[["tpr", "cost", "test_fpr"]].mean().loc[STAGES]
            tpr = " ".join(f"{value:.3f}" for value in means["tpr"])
            relative = " ".join(f"{value:.2f}" for value in means["test_fpr"] / fpr)
            cost = f"{means.loc['cascade', 'cost']:.2f}"
            print(n_rows, n_features, share, fpr, "|", tpr, "|", cost, "|", relative, flush=True)
    print("rows features | cosine with the true direction | estimate, error | bootstrap")
    for n_rows, n_features in product((100, 400, 1600), (10, 100)):
        rng = np.random.default_rng(0)
        found = np.array([halved(n_rows, n_features, rng) for _ in range(n_draws)])
        true, estimate, bootstrap = found.T
        error = f"{estimate.mean():.3f} {np.abs(estimate - true).mean():.3f}"
        means = f"| {true.mean():.3f} | {error} | {bootstrap.mean():.3f}"
        print(n_rows, n_features, means, flush=True)


def stacked(signal: float, n_rows: int, n_groups: int, rng: np.random.Generator) -> list[float]:
    """Return the scores of a stack and of the single site, and p and value of the difference."""
    y = rng.permutation(np.tile(["no", "yes"], n_rows // 2))
    groups = np.arange(n_rows) % n_groups
    in_train = groups < n_groups * 0.7
    shared = signal * (y == "yes")[:, None] + rng.normal(size=(n_rows, 1))
    X = [np.hstack([shared, rng.normal(size=(n_rows, FEATURES))]) for _ in range(SITES)]
    names = groups.astype(str)
    train, test = np.flatnonzero(in_train), np.flatnonzero(~in_train)
    found = tables(ProbeData(y, names, names, train=train, test=test), X)["stack.csv"]
    (row,) = [row for row in found if row["metric"] == "auroc"]
    return [row["value"], row["single"], row["p"], row["difference"]]


def cascaded(n_rows: int, n_features: int, share: float, rng: np.random.Generator) -> pd.DataFrame:
    """Return the rows of cascade.csv for training rows and 10,000 new rows.

    In half of the rows a word shows the label, with errors; the share `share` is positive.
    """
    n = n_rows + 10_000
    is_positive = rng.random(n) < share
    words = rng.choice([f"w{number}" for number in range(300)], size=(n, 6))
    is_worded = rng.random(n) < 0.5
    words[is_worded, 0] = np.where(is_positive ^ (rng.random(n) < 0.1), "good", "bad")[is_worded]
    signal = 2 * is_positive[:, None] + 0.5 * rng.normal(size=(n, 1))
    X = [
        np.hstack([signal + rng.normal(size=(n, 1)), rng.normal(size=(n, n_features))])
        for _ in range(SITES)
    ]
    y, row = np.where(is_positive, "yes", "no"), np.arange(n).astype(str)
    texts = np.array([" ".join(of_row) for of_row in words], dtype=object)
    train, test = np.arange(n_rows), np.arange(n_rows, n)
    data = ProbeData(y, row, row, train, test, texts=texts, positive="yes")
    rows = pd.DataFrame(tables(data, X)["cascade.csv"])
    is_alone = rows["setting"].str.endswith(ALONE)
    names = rows["setting"].replace({"words only": "words", "all sites only": "all sites"})
    return rows.assign(
        stages=names.mask(names.str.startswith("blocks"), "site").where(is_alone, "cascade")
    )


def tables(data: ProbeData, X: list[np.ndarray]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of stack.csv and cascade.csv for sites with these features."""
    settings = ProbeSettings(metric="auroc", control_draws=0, baselines=(), description=False)
    prober, results = Prober(data, settings), []
    sites = [SimpleNamespace(text=f"blocks.{n}.hook_resid_post") for n in range(SITES)]
    for site, x in zip(sites, X, strict=True):
        result = prober.site(x)
        result.place.update(site=site.text, head=None, position="last", main_metric="auroc")
        results.append(result)
    design = SimpleNamespace(positions=[SimpleNamespace(text="last")])
    blocks = {site.text: x for site, x in zip(sites, X, strict=True)}
    source = SimpleNamespace(
        design=design,
        selections=sites,
        axis_sizes={"n_layers": SITES},
        activations=SimpleNamespace(block=lambda site, _: blocks[site.text]),
    )
    table = make_table([row for result in results for row in result.rows], RESULTS)
    scores = Scores.of(table)
    chosen: Any = SelectedProbe(scores, results, source, [prober], None)
    return stack_tables("stack", chosen)


def halved(n_rows: int, n_features: int, rng: np.random.Generator) -> list[float]:
    """Return the cosine of a direction with the true one, its estimate, and that of bootstraps."""
    true = rng.normal(size=n_features)
    true /= np.linalg.norm(true)
    X = rng.normal(size=(n_rows, n_features))
    y = np.where(rng.logistic(size=n_rows) < 2 * X @ true, "yes", "no")
    row = np.arange(n_rows).astype(str)
    data = ProbeData(y, row, row, train=np.arange(n_rows - 20), test=np.arange(n_rows - 20, n_rows))
    prober = Prober(data, ProbeSettings(control_draws=0, baselines=(), description=False))
    spec, result = prober.settings.specs[0], prober.site(X)
    (own,) = [unit_rows(fit.layers[0].weight) for fit in result.fits.values()]
    penalty = result.penalties[spec.text]
    inside = LazyRows.of(X).select(prober.saved_rows.rows)
    fits = half_fits(prober.saved_rows, spec, inside, penalty, HALVINGS)
    _, estimate = certainty(np.stack([unit_rows(fit.layers[0].weight) for fit in fits]))
    rows = prober.saved_rows
    drawn = rng.choice(rows.rows, size=len(rows.rows))
    (codes,) = [rows.column[np.searchsorted(rows.rows, drawn)]]
    (fit,) = rows.fitter(spec).refit(X[drawn], [(codes, penalty)], [np.ones(len(drawn), bool)])
    again = unit_rows(fit[0].layers[0].weight)
    return [float(own[0] @ true), estimate, float(own[0] @ again[0])]


if __name__ == "__main__":
    main()
