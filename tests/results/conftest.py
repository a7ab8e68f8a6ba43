"""The synthetic run that the tests of the pages use, too."""

from tests.report.conftest import make_patterns, make_run, table, write_run

__all__ = ("make_patterns", "make_run", "table", "write_run")
