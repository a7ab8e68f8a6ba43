"""A valid experiment file, and the message for an invalid one."""

import pytest

from probekit.errors import ConfigError
from probekit.experiment.loader import load_experiment

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


def refusal(path, overrides=()):
    with pytest.raises(ConfigError) as error:
        load_experiment(path, overrides)
    return str(error.value)
