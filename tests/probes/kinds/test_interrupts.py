"""An interrupt at any moment ends a fit, for every kind of probe."""

import random
import signal
import sys
import warnings

import numpy as np
import pytest

from probekit.probes.kinds.mlp import MlpProbe
from probekit.probes.kinds.registry import KINDS
from probekit.workers import parallel_map
from tests.probes.kinds import planted


@pytest.fixture(autouse=True)
def handler():
    """Make SIGINT raise KeyboardInterrupt, even if the tests were started with it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def fit(kind):
    """Fit the kind on small data."""
    probe = kind.build({"k": 2} if kind.name == "k_sparse" else {}, max_iter=3, folds=2)
    X, y = planted.three_classes(40)
    data = X, (X[:, 0] if kind.task == "regression" else y), np.arange(40)
    if kind.task == "tree":
        data = planted.trees(4, 8, 7)
    elif kind.task == "text":
        data = planted.marked_texts(12)[:3]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return probe.fit(*data)


def interrupted_at(moment, function, *arguments):
    """Call a function, interrupt it at its n-th call or return event; return the event count."""
    seen = 0

    def count(frame, event, argument):
        nonlocal seen
        seen += 1
        if seen == moment:
            sys.setprofile(None)
            signal.raise_signal(signal.SIGINT)

    sys.setprofile(count)
    try:
        function(*arguments)
    finally:
        sys.setprofile(None)
    return seen


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_a_job_of_a_run_ends_as_interrupted(kind):
    def run():
        return list(parallel_map(fit, [kind], workers=1, n_threads=1))

    run()  # imports, which happen once
    n_moments = interrupted_at(None, run)
    assert n_moments > 1000
    generator = random.Random(kind.name)
    for moment in generator.sample(range(50, n_moments - 50), 8):
        with pytest.raises(KeyboardInterrupt):
            interrupted_at(moment, run)


def mlp():
    return MlpProbe(hidden=4, alpha=0.1, max_iter=20)


def test_an_mlp_fit_raises_the_interrupt_that_scikit_learn_catches():
    X, y = planted.xor(60)
    n_moments = interrupted_at(None, mlp().fit, X, y)
    for moment in random.Random(0).sample(range(500, n_moments - 500), 40):
        fresh = mlp()
        with pytest.raises(KeyboardInterrupt):
            interrupted_at(moment, fresh.fit, X, y)
        assert not hasattr(fresh, "layers_")


def test_the_interrupt_keeps_its_class():
    """The exit code after SIGTERM depends on it."""

    class Terminated(KeyboardInterrupt):
        pass

    def terminate(number, frame):
        raise Terminated

    signal.signal(signal.SIGINT, terminate)
    X, y = planted.xor(60)
    middle = interrupted_at(None, mlp().fit, X, y) // 2
    with pytest.raises(Terminated):
        interrupted_at(middle, mlp().fit, X, y)
