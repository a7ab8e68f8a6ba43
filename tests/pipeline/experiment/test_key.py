"""No module that makes a run's files is missing from what names its folder."""

import ast
from importlib.util import find_spec
from pathlib import Path

from probekit.pipeline.experiment.key import CODE

# What a run imports and its key need not know.
NOT_CODE = (
    # The identity of the rows, which is in the key, digests their code and the weights.
    "probekit.activations",
    "probekit.model",
    "probekit.products",
    "probekit.training",
    # What it reads from the file is in the key.
    "probekit.experiment",
    # They read and draw what is written; what chooses is in selection.py, and in the key.
    "probekit.report.pages.run_page",
    "probekit.results.record",
    # How things are said, done and written.
    "probekit.disk",
    "probekit.drafts",
    "probekit.errors",
    "probekit.provenance",
    "probekit.sealed",
    "probekit.section",
    "probekit.watcher",
    "probekit.workers",
)


def covers(name, module):
    return module == name or module.startswith(f"{name}.")


def source(module):
    spec = find_spec(module)
    return None if spec is None or spec.origin is None else Path(spec.origin)


def imported(module):
    """The modules of the package that a module imports."""
    for node in ast.walk(ast.parse(source(module).read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) else []
        yield from (name for name in names if covers("probekit", name))


def reached(module):
    """All modules of the package that a module imports, directly or through such as count."""
    found, waiting = set(), [module]
    while waiting:
        found.add(module := waiting.pop())
        if not any(covers(name, module) for name in NOT_CODE):
            waiting += set(imported(module)) - found
    return found


def test_every_module_that_a_run_imports_is_in_its_key_or_excused():
    modules = reached("probekit.pipeline.experiment.run")
    assert len(modules) > 60  # the walk has walked
    unknown = [m for m in modules if not any(covers(name, m) for name in (*CODE, *NOT_CODE))]
    assert not sorted(unknown)


def test_what_is_named_is_there():
    assert [name for name in (*CODE, *NOT_CODE) if source(name) is None] == []
