"""The code that makes a run's files is part of the key that names its folder."""

from probekit.code_digest import closure, digest_code
from probekit.pipeline.experiment.key import CODE


def test_the_code_of_a_run_is_digested_with_all_that_it_imports():
    modules = closure(CODE)
    assert len(modules) > 100
    assert {
        "probekit.pipeline.experiment.key",
        "probekit.data.readers",
        "probekit.probes.kinds.mlp",  # imported by the name in the table of kinds
        "probekit.probes.solve.solver",
        "probekit.results.table",
    } <= modules.keys()
    assert len(digest_code(CODE)) == 64
