"""The table of formats is complete."""

from typing import get_args

import pytest

from probekit.data.formats import FORMATS, FormatName


def test_every_format_has_a_row():
    assert tuple(FORMATS) == get_args(FormatName)


@pytest.mark.parametrize("format", FORMATS)
def test_readers_and_columns_exist(format):
    assert callable(FORMATS[format].read)
    FORMATS[format].columns_class()
