import re
import sys
from importlib.metadata import version

import probekit
from probekit.distribution import PACKAGE, origin, origin_warnings


def test_version_shows_distribution_folder_and_versions(call):
    done = call("--version")
    assert done.code == 0
    first, package, python, torch = done.stdout.splitlines()
    assert first == f"{origin().name} {probekit.__version__}"
    assert re.fullmatch(r"[\w-]+ \d+\.\d+\.\d+", first)
    assert package.split(maxsplit=1) == ["package", str(PACKAGE)]
    assert python.split() == ["Python", "{}.{}.{}".format(*sys.version_info)]
    assert torch.split() == ["torch", version("torch")]


def test_a_package_of_no_distribution_is_reported(call):
    """In an environment that has it installed there is no warning; in another one there is."""
    warnings = call("--version").stderr.splitlines()
    assert warnings == [f"Warning: {warning}." for warning in origin_warnings()]
    assert bool(warnings) or origin().is_installed
