"""Fits on an accelerator: the scores of the CPU, without float64 and with few waits.

"cpu:1" counts as an accelerator (see `is_accelerator`), so that no other device is needed. A real
one is tested with the environment variable ACCELERATOR=cuda.
"""

import os

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from probekit.accelerators import stream
from probekit.lazy_rows import LazyRows, Sum
from probekit.probes.data import ProbeData
from probekit.probes.kinds import attention_pooled, structural, svm
from probekit.probes.kinds.attention_pooled import AttentionPooledProbe
from probekit.probes.kinds.mlp import MlpProbe
from probekit.probes.kinds.ridge import RidgeProbe, RidgeRegressionProbe
from probekit.probes.kinds.structural import DepthProbe, DistanceProbe, depth_loss, distance_loss
from probekit.probes.kinds.trees import read_trees
from probekit.probes.prober import Prober
from probekit.probes.settings import ProbeSettings, ProbeSpec
from probekit.probes.solve.descent import StoppingRule
from probekit.probes.solve.design import moments
from probekit.probes.solve.layers import AffineLayer, apply_layers
from probekit.probes.solve.solver import Problem, Solver
from probekit.probes.training_rows import TrainingRows
from tests.probes.kinds.planted import marked_texts, trees

FAKE = os.environ.get("ACCELERATOR", "cpu:1")
WAITS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)
KINDS = {name: {} for name in ("logistic", "ridge", "lda", "mass_mean", "nearest_mean", "svm")}
KINDS |= {"mass_mean:covariance": {"covariance": True}, "k_sparse": {"k": (3,)}}


class WithoutFloat64(TorchDispatchMode):
    """Refuses float64, as MPS does, and counts the operations that wait for a device."""

    waits = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        found = operation(*args, **(kwargs or {}))
        self.waits += operation in WAITS
        for value in tree_leaves((args, kwargs, found)):
            if isinstance(value, torch.Tensor) and value.dtype == torch.float64:
                raise TypeError(f"{operation} has a tensor in float64")
        return found


def rows_and_codes(n_samples=300, n_features=12, n_classes=3, mean=30.0):
    """Correlated features far from 0, with labels that are not separable."""
    generator = np.random.default_rng(0)
    mixing = generator.normal(size=(n_features, n_features)) / np.arange(1, n_features + 1) ** 0.5
    rows = generator.normal(size=(n_samples, n_features)) @ mixing
    scores = rows @ generator.normal(size=(n_features, n_classes)) / n_features**0.5
    codes = (scores + generator.gumbel(size=scores.shape)).argmax(axis=1)
    return (rows + mean * generator.normal(size=n_features)).astype(np.float32), codes


def results(X, labels, spec, device):
    """The results of one kind at one site, with a small search."""
    row = np.arange(len(X)).astype(str)
    train, test = np.arange(200), np.arange(200, len(X))
    data = ProbeData(labels.astype(str), row, row, train=train, test=test)
    how = {"C": (0.01, 0.1), "folds": 2, "control_draws": 0, "description": False}
    settings = ProbeSettings(kinds=(spec,), **how)
    return Prober(data, settings.on(device)).site(X)


def on_both(fit):
    """What a function returns for the accelerator and for the CPU."""
    expected = fit("cpu")
    with WithoutFloat64():
        return fit(FAKE), expected


@pytest.fixture
def tight(monkeypatch):
    """Let L-BFGS-B stop so late that two runs agree to 1e-5."""
    monkeypatch.setattr(svm, "TOLERANCE", 1e-6)
    monkeypatch.setattr(attention_pooled, "TOLERANCE", 1e-7)
    monkeypatch.setattr(attention_pooled, "LEAST_PROGRESS", 0.0)


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("name", KINDS)
def test_scores_of_held_out_rows_are_those_of_the_cpu(name, n_classes, tight):
    X, codes = rows_and_codes(n_classes=n_classes)
    spec = ProbeSpec(kind=name.partition(":")[0], **KINDS[name])
    there, cpu = on_both(lambda device: results(X, codes, spec, device))
    (fit,), (expected,) = there.fits.values(), cpu.fits.values()
    assert fit.converged
    assert expected.converged
    assert there.penalties == cpu.penalties
    for predictor, wanted in cpu.predictions.items():
        found = there.predictions[predictor].scores
        spread = max(1.0, wanted.scores.std())
        np.testing.assert_allclose(found / spread, wanted.scores / spread, rtol=0, atol=1e-5)
    for one, other in zip(there.measurements, cpu.measurements, strict=True):
        assert one.value == pytest.approx(other.value, abs=1e-5)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_the_mlp_is_trained_as_by_scikit_learn(n_classes):
    X, codes = rows_and_codes(210, n_classes=n_classes)  # a batch of 200 rows and one of 10
    how = {"hidden": 4, "alpha": 10.0, "max_iter": 100}
    found, expected = on_both(lambda device: MlpProbe(**how, device=device).fit(X, codes))
    assert found.converged_
    assert found.n_iter_ == expected.n_iter_
    wanted = expected.decision_function(X)
    np.testing.assert_allclose(found.decision_function(X), wanted, rtol=0, atol=1e-5)
    with WithoutFloat64():
        assert not MlpProbe(**how | {"max_iter": 5}, device=FAKE).fit(X, codes).converged_


def test_the_attention_pooled_probe_reads_the_same_tokens(tight):
    X, y, texts, _ = marked_texts(60, seed=1)
    X, texts = X[5:].astype(np.float32), texts[5:]  # the first text is shorter
    probes = on_both(lambda at: AttentionPooledProbe(C=1.0, device=at).fit(X, y[5:], texts))
    assert all(probe.converged_ for probe in probes)
    scores, wanted = (probe.decision_function(X, texts) for probe in probes)
    spread = wanted.std()
    np.testing.assert_allclose(scores / spread, wanted / spread, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("gold", "loss"), [("distances", distance_loss), ("depths", depth_loss)])
def test_losses_of_padded_sentences_are_those_of_each(gold, loss):
    X, heads, texts = trees(12, 16, 8)
    both = [(X[tree.rows], getattr(tree, gold)) for tree in read_trees(heads, texts)]
    of_texts = [(rows.astype(np.float32), own.astype(np.float32)) for rows, own in both]
    assert len({len(rows) for rows, _ in of_texts}) > 2
    weight = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32) / 4
    each = [loss(rows @ weight, target) for rows, target in of_texts]
    with WithoutFloat64():
        there = torch.tensor(weight, requires_grad=True, device=FAKE)
        losses = structural._padded_losses(of_texts, FAKE)(there, slice(None))
        (gradient,) = torch.autograd.grad(losses.mean(), there)
    np.testing.assert_allclose(losses.detach().cpu(), [value for value, _ in each], rtol=1e-5)
    slopes = sum(rows.T @ slope for (rows, _), (_, slope) in zip(of_texts, each, strict=True))
    np.testing.assert_allclose(gradient.cpu(), slopes / len(each), rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", [DistanceProbe, DepthProbe])
def test_structural_probes_find_the_planted_trees(kind):
    X, heads, texts = trees(12, 16, 8)
    probes = on_both(lambda device: kind(rank=8, device=device).fit(X, heads, texts))
    assert probes[0].converged_
    # The loss has corners, so that one bit of a row changes the path of the optimiser.
    found, expected = (probe.spearman(X, heads, texts) for probe in probes)
    assert found == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize("n_samples", [10, 200])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_numbers_and_fewer_rows_than_features(n_samples, dtype):
    X, _ = rows_and_codes(n_samples)
    X = X.astype(dtype)
    y = X[:, 0].astype(np.float64) + np.random.default_rng(1).normal(size=n_samples)
    X = X.astype(np.float32) if dtype == np.float16 else X  # scikit-learn widens it
    both = on_both(lambda device: RidgeRegressionProbe(folds=2, device=device).fit(X, y))
    found, wanted = (probe.predict(X) / y.std() for probe in both)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)


def test_rows_of_float16_are_widened_on_the_device():
    X, codes = rows_and_codes()
    rows = LazyRows.of(X.astype(np.float16))
    (block,) = rows.on(FAKE).tensors([slice(0, 9)])
    assert block.dtype == torch.float32
    np.testing.assert_array_equal(block.cpu(), X[:9].astype(np.float16))
    fit, expected = fit_on_both(rows, codes)
    np.testing.assert_allclose(fit.coef * X.std(axis=0), expected.coef * X.std(axis=0), atol=1e-5)


def fit_on_both(rows, codes):
    """The fit of the solver on rows in memory."""
    ones, problem = np.ones(len(codes)), Problem(codes, 0.1)
    return on_both(lambda device: Solver(rows.on(device), [ones]).solve([problem])[0])


def test_a_dual_fit_is_that_of_the_cpu():
    X, codes = rows_and_codes(30, 60)
    fit, expected = fit_on_both(LazyRows.of(X), codes)
    assert fit.converged
    assert np.abs(fit.scores(X) - expected.scores(X)).max() < 1e-5


def test_moments_and_scores_of_features_far_from_0():
    generator = np.random.default_rng(0)
    X = generator.normal(size=(5000, 3)).astype(np.float32)
    X[:, 1] += 3000
    X[:, 2] = 7.1
    counts, everything = generator.integers(3, size=5000) * 1.0, np.ones(5000, dtype=bool)
    rows = LazyRows.of(X)
    there, here = on_both(lambda device: moments(rows.on(device), counts, everything))
    (found, found_spread), (mean, spread) = there, here
    assert spread[2] == found_spread[2] == np.inf
    np.testing.assert_allclose((found - mean)[:2] / spread[:2], 0, atol=1e-7)
    np.testing.assert_allclose(found_spread[:2], spread[:2], rtol=1e-6)
    layer = AffineLayer(np.array([[1.0, 1.0, 0.0]]), np.array([-3000.0]))
    scores, expected = on_both(lambda device: apply_layers((layer,), rows.on(device)))
    np.testing.assert_allclose(scores, expected, rtol=0, atol=2e-6)


def test_a_sum_of_float32_has_the_digits_of_float64():
    parts = np.random.default_rng(0).normal(size=(4000, 2)).astype(np.float32) + 1
    exact, plain, total = parts.astype(np.float64).sum(axis=0), torch.zeros(2), Sum(FAKE)
    with WithoutFloat64():
        for part in torch.from_numpy(parts):
            total.add(part)
            plain += part
    assert np.abs(total.array() / exact - 1).max() < 1e-10
    assert np.abs(plain.numpy() / exact - 1).max() > 1e-7
    assert total.total.dtype == torch.float32


def test_blocks_arrive_in_order():
    blocks = [np.full((2, 1), number, np.float16) for number in range(5)]
    arrived = [block[0].item() for block in stream(iter(blocks), FAKE)]
    assert arrived == [0, 1, 2, 3, 4]
    assert list(stream(iter([]), FAKE)) == []


def test_an_iteration_waits_for_the_device_twice():
    """Once for whether a fit has ended, and once for whether a line search has."""
    X, codes = rows_and_codes()
    waits = []
    for n_iter in (2, 6):
        stopping = StoppingRule(tolerance=0.0, max_iter=n_iter)
        with WithoutFloat64() as mode:
            solver = Solver(LazyRows.of(X).on(FAKE), [np.ones(300)])
            (fit,) = solver.solve([Problem(codes, 1.0)], stopping)
        assert fit.n_iter == n_iter
        waits.append(mode.waits)
    assert waits[1] - waits[0] == 2 * 4


@pytest.mark.parametrize("kind", [svm.SvmProbe, AttentionPooledProbe])
def test_no_more_iterations_than_allowed(kind):
    """L-BFGS-B runs twice, the second time with the iterations that are left."""
    X, codes = rows_and_codes()
    for max_iter in (3, 1000):
        found = kind(C=1.0, max_iter=max_iter, device=FAKE).fit(X, codes)
        assert found.n_iter_ <= max_iter
        assert found.converged_ == (max_iter == 1000)


def test_fits_use_no_tf32_and_restore_the_setting():
    X, codes = rows_and_codes()
    seen = []

    class Products(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
            seen.append(torch.backends.cuda.matmul.fp32_precision)
            return operation(*args, **(kwargs or {}))

    torch.set_float32_matmul_precision("high")
    try:
        with Products():
            RidgeProbe(alpha=1.0, device=FAKE).fit(X, codes)
            results(X, codes, ProbeSpec(kind="logistic"), FAKE)
        assert set(seen) == {"ieee"}
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_an_mlp_is_fitted_on_rows_without_one_of_the_classes():
    """The search of alpha may hold out all rows of a class."""
    X, codes = rows_and_codes()
    X, codes = X[codes != 1], codes[codes != 1]
    layers = []
    for device in ("cpu", FAKE):
        data = TrainingRows(LazyRows.of(X).on(device), codes, np.arange(len(X)))
        (fit,) = MlpProbe(hidden=4, max_iter=20).path(np.array([1.0]), data)
        assert fit.classes.tolist() == [0, 2]
        layers.append(fit.layers)
    there, wanted = (apply_layers(of_device, X) for of_device in layers)
    np.testing.assert_allclose(there, wanted, rtol=0, atol=1e-5)
