"""Self-test of this machine: four checks whose correct results are known.

parity   every tensor of the bundled model equals that of transformers
padding  padding changes no activation of a text
signal   a planted signal is decoded at every site that has it and by every kind of probe
noise    no kind of probe decodes labels that are independent of the features
"""

import string
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import binom, norm

from probekit.analysis.verification import verify_model
from probekit.experiment.schema import Experiment
from probekit.files import csv_text, write_atomic
from probekit.lazy_rows import Floats
from probekit.model.families.gpt2 import GPT2, GPT2Config
from probekit.model.sites.catalogue import describe, layer_of
from probekit.model.text.tokenizer import Tokenizer
from probekit.pipeline.experiment.run import run
from probekit.probes.data import ProbeData
from probekit.probes.prober import Prober
from probekit.probes.score.scored import SiteResult
from probekit.probes.settings import ProbeSettings, ProbeSpec
from probekit.terminal import SILENT, Watcher
from probekit.training.corpus import train_vocabulary

RELATIVE = 1e-4  # largest difference of activations in float32, relative to the largest activation
# False alarm rate of the check of noise over the choice of seeds. The seeds are fixed, so that a
# check gives the same verdict in every run.
ALARM = 1e-3
COVERAGE = 0.93  # of a 95 % interval with about a hundred groups, at least
FOUR_ERRORS = 0.045  # four standard errors of an accuracy near 0.85 on a thousand rows

WIDTH = 12  # number of planted features
CARRIERS = 4  # number of features with a non-zero weight in the direction
OFFSET = 3.0  # mean of every feature, which a probe must absorb in its bias
LABELS = np.array(["no", "yes"])  # by code
KIND_SPECS = (
    *(
        ProbeSpec(kind=name)
        for name in ("logistic", "ridge", "lda", "svm", "mass_mean", "nearest_mean")
    ),
    ProbeSpec(kind="mass_mean", covariance=True),
    ProbeSpec(kind="k_sparse", k=(CARRIERS,)),
    ProbeSpec(kind="mlp", hidden=16),
)

SIGNAL_LAYER = 2  # of four, from 0: the only block whose attention writes to the residual stream
FIRST_LETTERS = ("X", "Y")
N_IDS = 258  # <|endoftext|>, the bytes and the one merge that a vocabulary needs


@dataclass(frozen=True)
class CheckResult:
    """Expected and actual result of one check of a site or of a kind of probe."""

    check: str
    kind: str
    expected: str
    found: str
    ok: bool


def selftest(*, quick: bool = False, watcher: Watcher = SILENT) -> list[CheckResult]:
    """Return the verdicts of all checks.

    Args:
        quick: fit fewer probes to noise, so that only large errors are detected.
        watcher: receives progress before each check.
    """
    checks = (parity(), padding(), planted_signal(), pure_noise(4 if quick else 20))
    verdicts: list[CheckResult] = []
    for done, check in enumerate(checks):  # generators: a check is computed when it is read
        watcher.progress("selftest", done, len(checks))
        verdicts += check
    watcher.progress("selftest", len(checks), len(checks))
    return verdicts


def parity() -> Iterator[CheckResult]:
    """Check that the tensors of the bundled model equal those of transformers."""
    for one in verify_model("mini"):
        expected = f"difference within {one.tolerance:g}"
        yield CheckResult("parity", one.site, expected, f"{one.relative:.1g}", one.agrees)


def padding() -> Iterator[CheckResult]:
    """Check that padding on either side changes no activation of a text by more than rounding.

    The sites are those with one position axis, so attention patterns are not compared.
    """
    model = _tiny_model()
    with TemporaryDirectory() as folder:
        tokenizer = _tiny_tokenizer(Path(folder))
    texts, sites = _random_words(8), [s for s in model.sites if "pos" in describe(s).axes]
    for side in ("left", "right"):
        batch = tokenizer.batch(texts, bos=False, side=side)
        _, together = model.run_with_cache(batch, sites)
        gap = 0.0
        for row, text in enumerate(texts):
            _, alone = model.run_with_cache(tokenizer.batch([text], bos=False), sites)
            for site in sites:
                expected_value = alone[site][0]
                difference = (together[site][row, batch.mask[row]] - expected_value).abs().max()
                gap = max(gap, float(difference / expected_value.abs().max()))
        expected = f"difference below {RELATIVE:g}"
        yield CheckResult("padding", f"{side} padding", expected, f"{gap:.1g}", gap < RELATIVE)


def planted_signal() -> Iterator[CheckResult]:
    """Check that a signal is decoded at the sites that have it, and by each kind of probe.

    The first letter of a text is decoded at the output of the attention that writes it, and later
    in the residual stream; elsewhere the accuracy is 0.5. For rows with a planted direction, each
    kind of probe reaches the best possible accuracy, and its direction, if it has a single one, is
    the planted one.
    """
    with TemporaryDirectory() as name:
        folder = Path(name)
        out, cache = folder / "runs", folder / "cache"
        finished = run(first_letter(folder), out=out, cache_root=cache, workers=1, page=False)
        table = finished.table
    is_shown = (table["target"] == "task") & (table["split"] == "test")
    rows = table[is_shown & (table["metric"] == "accuracy")]
    for site, accuracy in zip(rows["site"], rows["value"], strict=True):
        layer = layer_of(site)
        assert layer is not None
        if site.endswith("attn_out"):  # attention of the other blocks writes 0
            has_signal = layer == SIGNAL_LAYER
        else:
            n_before = layer if site.endswith("resid_pre") else layer + 1  # blocks before the site
            has_signal = n_before > SIGNAL_LAYER
        ok = accuracy > 0.95 if has_signal else abs(accuracy - 0.5) < 0.1
        expected = "over 0.95" if has_signal else "within 0.1 of 0.5"
        yield CheckResult("planted layer", site, expected, f"{accuracy:.3f}", ok)
    X, data, direction = planted_direction(3000, seed=0)
    best = float(norm.cdf(1))  # the boundary is one standard deviation from each mean
    for spec in KIND_SPECS:
        result = _probed(spec, X, data)
        accuracy, _, _ = _test_accuracy(result)
        expected, ok = f"within {FOUR_ERRORS} of {best:.3f}", abs(accuracy - best) < FOUR_ERRORS
        yield CheckResult("planted direction", spec.text, expected, f"{accuracy:.3f}", ok)
        first, *later = result.fits[spec.text].layers
        if later:  # it has no single direction
            continue
        weight = first.weight[0]
        cosine = float(weight @ direction / np.linalg.norm(weight))
        expected, ok = "cosine over 0.99", cosine > 0.99
        yield CheckResult("planted direction", spec.text, expected, f"{cosine:.4f}", ok)


def pure_noise(n_samples: int) -> Iterator[CheckResult]:
    """Check that the confidence intervals of each kind contain 0.5 in most samples of noise."""
    # Fewer have a probability below ALARM, if each interval contains 0.5 with probability COVERAGE.
    least = int(binom.ppf(ALARM, n_samples, COVERAGE))
    for spec in KIND_SPECS:
        scores = []
        for seed in range(n_samples):
            X, data = noise_rows(450, seed)
            scores.append(_test_accuracy(_probed(spec, X, data)))
        n_covered = sum(low <= 0.5 <= high for _, low, high in scores)
        mean = np.mean([accuracy for accuracy, _, _ in scores])
        expected = f"at least {least} of {n_samples} intervals contain 0.5"
        found = f"{n_covered}, mean {mean:.3f}"
        yield CheckResult("noise", spec.text, expected, found, n_covered >= least)


def _probed(spec: ProbeSpec, X: Floats, data: ProbeData) -> SiteResult:
    """Return the result of one kind of probe, with settings that make its fits fast."""
    settings = ProbeSettings(
        kinds=(spec,), C=(1e-2, 1.0), folds=3, control_draws=0, description=False
    )
    return Prober(data, settings).site(X)


def _test_accuracy(result: SiteResult) -> tuple[float, float, float]:
    """Return the accuracy of the task on the test rows, and the limits of its interval."""
    key = ("accuracy", "test", "task")
    (one,) = [m for m in result.measurements if (m.metric, m.split, m.target) == key]
    return one.value, one.ci_low, one.ci_high


def planted_direction(n_rows: int, seed: int) -> tuple[Floats, ProbeData, Floats]:
    """Return rows of two classes two standard deviations apart, their data, and the direction.

    >>> X, data, direction = planted_direction(300, seed=0)
    >>> X.shape, int(np.count_nonzero(direction))
    ((300, 12), 4)
    """
    generator = np.random.default_rng(seed)
    direction = np.zeros(WIDTH)
    direction[generator.permutation(WIDTH)[:CARRIERS]] = generator.choice([-1, 1], CARRIERS)
    direction /= np.linalg.norm(direction)
    codes = (generator.random(n_rows) < 0.5).astype(int)
    X = generator.normal(size=(n_rows, WIDTH)) + OFFSET + np.outer(2.0 * codes - 1, direction)
    return X, _rows_apart(LABELS[codes]), direction


def noise_rows(n_rows: int, seed: int) -> tuple[Floats, ProbeData]:
    """Return rows and labels that are independent of them.

    >>> noise_rows(30, seed=0)[0].shape
    (30, 12)
    """
    generator = np.random.default_rng(seed)
    codes = (generator.random(n_rows) < 0.5).astype(int)
    return generator.normal(size=(n_rows, WIDTH)) + OFFSET, _rows_apart(LABELS[codes])


def _rows_apart(y: NDArray[np.str_]) -> ProbeData:
    """Return data whose rows are groups of their own; the first two thirds are for training."""
    rows, n_train = np.arange(len(y)), int(2 / 3 * len(y))
    names = rows.astype(str)
    return ProbeData(y, groups=names, types=names, train=rows[:n_train], test=rows[n_train:])


def first_letter(folder: Path) -> Experiment:
    """Return an experiment on texts whose label, the first letter, is probed at the last token.

    Attention is the only way from one position to another, and only block `SIGNAL_LAYER` uses it:
    it averages feature 0, which the first letter sets, and writes the mean to feature 1. The two
    texts of a group differ only in their first letter, so that earlier sites of the last token, and
    the attention of other blocks, have equal rows for both labels: any probe has an accuracy of 0.5
    there, up to rounding.
    """
    model, tokenizer = _tiny_model(), _tiny_tokenizer(folder)
    weights = model.state_dict()  # the parameters themselves, not copies
    weights["wte.weight"][:, :2] = weights["wpe.weight"][:, :2] = 0
    for letter, value in zip(FIRST_LETTERS, (6.0, -6.0), strict=True):
        weights["wte.weight"][int(tokenizer.encode(letter, bos=False).ids[0]), 0] = value
    for layer in range(model.config.n_layer):
        weights[f"h.{layer}.attn.c_proj.weight"].zero_()
        weights[f"h.{layer}.mlp.c_proj.weight"][:2] = 0  # no MLP writes to features 0 and 1
    qkv = weights[f"h.{SIGNAL_LAYER}.attn.c_attn.weight"]
    qkv.zero_()  # queries and keys of 0 give all keys the same weight
    # The rows are queries, keys and values: the first value reads feature 0.
    qkv[2 * model.config.n_embd, 0] = 1
    weights[f"h.{SIGNAL_LAYER}.attn.c_proj.weight"][1, 0] = 50  # it is written to feature 1
    model.save_pretrained(folder)
    pairs = product(_random_words(60), FIRST_LETTERS)
    rows = [{"text": letter + word, "label": letter, "group": word} for word, letter in pairs]
    write_atomic(folder / "rows.csv", csv_text(pd.DataFrame(rows)))
    data = {"name": "planted", "format": "csv", "root": str(folder), "file": "rows.csv"}
    probe = {"C": [1.0], "folds": 3, "control_draws": 0, "baselines": []}
    sites = [f"blocks.*.hook_{name}" for name in ("resid_pre", "attn_out", "resid_post")]
    network = {"source": str(folder), "random_weights": 0}
    values = {"name": "selftest", "model": network, "capture": {"sites": sites}}
    values["tokens"] = {"bos": False, "position": {"at": "last"}}
    values["data"] = data | {"columns": {"group": "group"}}
    values["probe"] = probe | {"description": False, "permutations": 0}
    return Experiment.model_validate(values)


def _tiny_model() -> GPT2:
    """Return a GPT-2 with large random weights, so that all of its sites depend on the tokens."""
    of_sizes = partial(GPT2Config, n_layer=4, n_head=3, n_embd=21, n_inner=11, n_positions=16)
    # A model may have more tokens than its vocabulary has ids.
    config = of_sizes(vocab_size=N_IDS + 1, initializer_range=0.5)
    return GPT2(config, seed=0).requires_grad_(False)


def _tiny_tokenizer(folder: Path) -> Tokenizer:
    """Write a vocabulary of bytes to a folder and return its tokenizer."""
    train_vocabulary(["zz"] * 2, N_IDS, folder)
    return Tokenizer.from_pretrained(folder)


def _random_words(n_words: int) -> list[str]:
    """Return random strings of 3 to 11 letters."""
    generator = np.random.default_rng(0)
    lengths = generator.integers(3, 12, size=n_words)
    return ["".join(generator.choice(list(string.ascii_lowercase), size=n)) for n in lengths]
