"""Valid files of each kind."""

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
