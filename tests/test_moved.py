"""Paths that an earlier README named still work, with a warning that names the new path."""

import importlib

import pytest

MOVED = [
    ("probekit.report.chosen_figures", "confusion_matrix"),
    ("probekit.report.lens_map", "lens_map"),
    ("probekit.pipeline.lenses", "Network"),
    ("probekit.pipeline.lenses", "read_lens"),
]


@pytest.mark.parametrize(("module", "name"), MOVED)
def test_an_old_path_works_and_warns(module, name):
    with pytest.warns(FutureWarning, match=rf"{module}.{name} is now probekit\."):
        assert callable(getattr(importlib.import_module(module), name))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError):
        importlib.import_module("probekit.report.lens_map").no_such_name  # noqa: B018
