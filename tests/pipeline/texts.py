"""Experiment files and tables of tests, which are in the folder `texts`."""

from pathlib import Path


def text_of(name):
    """Return the text of a file."""
    return (Path(__file__).with_name("texts") / name).read_text(encoding="utf-8")
