"""Every benchmark of this environment can be started."""

from importlib import import_module
from pathlib import Path

import pytest

from benchmarks.claims.__main__ import PARTS
from benchmarks.claims.table import SECTIONS

FOLDER = Path(__file__).parents[1] / "benchmarks"
IN_OTHER_ENVIRONMENTS = {"peers", "patching_peer"}  # of TransformerLens
NAMES = sorted({path.stem for path in FOLDER.glob("*.py")} - IN_OTHER_ENVIRONMENTS)


@pytest.mark.parametrize("name", NAMES)
def test_it_can_be_imported(name):
    module = import_module(f"benchmarks.{name}")
    assert module.__doc__


def test_every_part_of_the_claims_has_a_section_of_the_page():
    assert PARTS.keys() == SECTIONS.keys()
