"""Valid files of each kind, and the message for an invalid one."""

import pytest

from probekit.errors import ConfigError
from probekit.experiment.loader import load_any_experiment, load_recipe

GOOD = """\
name: small
model:
  source: mini
data:
  name: rows
  format: csv
  file: rows.csv
tokens:
  bos: false
  position: {at: last}
"""
RECIPE = """\
name: tiny
corpus: {source: books}
model: {n_layer: 2, n_head: 2, n_embd: 16, n_positions: 32}
training: {steps: 10, batch: 4}
"""
GIVEN = """\
name: mine
activations: {folder: a}
data: {name: rows, format: csv, file: rows.csv}
"""


def refusal(path, overrides=(), load=load_any_experiment):
    with pytest.raises(ConfigError) as error:
        load(path, overrides)
    return str(error.value)


def refused_recipe(path, overrides=()):
    return refusal(path, overrides, load_recipe)
