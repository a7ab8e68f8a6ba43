"""Every kind is a scikit-learn estimator."""

from sklearn.utils.estimator_checks import parametrize_with_checks

from probekit.probes.kinds.k_sparse import KSparseProbe
from probekit.probes.kinds.lda import LdaProbe
from probekit.probes.kinds.mass_mean import MassMeanProbe
from probekit.probes.kinds.mlp import MlpProbe
from probekit.probes.kinds.nearest_mean import NearestMeanProbe
from probekit.probes.kinds.ridge import RidgeProbe, RidgeRegressionProbe
from probekit.probes.kinds.svm import SvmProbe

KINDS = [
    MassMeanProbe(),
    MassMeanProbe(covariance=True),
    NearestMeanProbe(),
    LdaProbe(),
    RidgeProbe(alpha=1.0),
    RidgeProbe(folds=2),
    RidgeRegressionProbe(alpha=1.0),
    RidgeRegressionProbe(folds=2),
    SvmProbe(C=0.1),
    SvmProbe(folds=2),
    KSparseProbe(k=2, C=0.1),
    KSparseProbe(k=2, folds=2),
    MlpProbe(hidden=16, alpha=0.01),
]


@parametrize_with_checks(KINDS)
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)
