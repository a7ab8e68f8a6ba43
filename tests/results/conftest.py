"""The synthetic run that the tests of the pages use, too."""

from tests.report.conftest import make_run, table

__all__ = ("make_run", "table")
