"""Fixtures of experiment files."""

import pytest


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "file.yaml"
        path.write_text(text)
        return path

    return write
