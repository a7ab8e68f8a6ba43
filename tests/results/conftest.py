"""The synthetic run that the tests of the pages use, too."""

from tests.report.conftest import heads, make_patterns, make_run, record, sweep, table, write_run

__all__ = ("heads", "make_patterns", "make_run", "record", "sweep", "table", "write_run")
