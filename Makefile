# Everything runs in .venv, which `make` builds from pyproject.toml and constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
# Keep compiled modules in every environment: tests start hundreds of processes.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: quickstart check test nightly fast format lint types tests slow golden hooks data schema gallery docs dist bench clean
.DELETE_ON_ERROR:

quickstart: .venv/installed
	$(BIN)/probekit run experiments/quickstart.yaml

# The quick loop: about a minute on two cores.
check: .venv/installed-dev
	$(MAKE) --jobs 2 --output-sync=target lint types fast

# The full check, which CI runs: about 8 minutes on two cores. One of the tests checks the types.
test: .venv/installed-test
	$(MAKE) lint tests

# What is slow and rarely breaks: tests marked `nightly`, types on Windows, the whole quickstart.
nightly: .venv/installed-test .venv/s3/installed
	$(BIN)/mypy --platform win32 --cache-dir .mypy_cache/win32
	OMP_NUM_THREADS=1 $(BIN)/pytest --nightly -n 2 --dist loadfile
	$(BIN)/probekit run experiments/quickstart.yaml

lint: .venv/installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: .venv/installed-dev
	$(BIN)/mypy

# No test needs captured log records, which cost as much as a tenth of the tests.
fast: .venv/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/pytest -q --fast -p no:logging --cov --cov-report=
	$(BIN)/python -m tests.code_lines

# Of two cores, two processes leave a quarter unused: tests wait for browsers and for other processes.
tests: .venv/installed-test
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 3 --dist loadfile

# Lists the slow tests in tests/slow.txt, and the seconds of each file in tests/durations.txt.
slow: .venv/installed-test
	OMP_NUM_THREADS=1 $(BIN)/pytest -q --write-slow

# Numbers of each part for versions that tests/golden.json does not contain yet.
golden: .venv/installed-test
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.test_golden

hooks: .venv/installed-dev
	$(BIN)/pre-commit install

format: .venv/installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Generated and committed files: the bundled data sets, and the schemas of experiments and recipes.
data: .venv/installed
	$(BIN)/python -m scripts.bundled data

schema: .venv/installed
	$(BIN)/python -m probekit.experiment.loader experiments

# The pictures of README.md and of the gallery, drawn from finished runs.
gallery: .venv/installed-test
	$(BIN)/python -m benchmarks.gallery

# The documentation, with every notebook executed; warnings are errors. It needs no network.
docs: .venv/installed-docs
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs/html

# The wheel and the source archive, with the checks of their metadata and contents.
dist: .dist-venv/installed
	rm -rf dist
	.dist-venv/bin/python -m build
	.dist-venv/bin/twine check --strict dist/*
	.dist-venv/bin/check-wheel-contents dist/*.whl
	.dist-venv/bin/pyroma --min=10 dist/*.tar.gz

bench: .venv/installed-test .bench-venv/installed
	$(BIN)/python -m benchmarks.parity
	$(BIN)/python -m benchmarks.loading
	OMP_WAIT_POLICY=passive $(BIN)/python -m benchmarks.probes
	OMP_WAIT_POLICY=passive $(BIN)/python -m benchmarks.usual
	OMP_WAIT_POLICY=passive $(BIN)/python -m benchmarks.generation
	$(BIN)/python -m benchmarks.capture
	$(BIN)/python -m benchmarks.families
	$(BIN)/python -m benchmarks.store
	$(BIN)/python -m benchmarks.damage
	$(BIN)/python -m benchmarks.patching

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/installed: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

.venv/installed-dev: .venv/installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

.venv/installed-test: .venv/installed-dev
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test]'
	touch $@

.venv/installed-docs: .venv/installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@

# TransformerLens, which requires older packages than probekit.
.bench-venv/installed: benchmarks/peers.txt
	$(PYTHON) -m venv .bench-venv
	.bench-venv/bin/python -m pip install --quiet --requirement benchmarks/peers.txt
	touch $@

.dist-venv/installed: constraints-dist.txt
	$(PYTHON) -m venv .dist-venv
	.dist-venv/bin/python -m pip install --quiet --requirement constraints-dist.txt
	touch $@

# Packages for S3 require an older python-dateutil; one test puts them first on the path.
.venv/s3/installed: constraints-s3.txt | .venv/bin/python
	$(BIN)/python -m pip install --quiet --upgrade --target .venv/s3 --no-deps --requirement constraints-s3.txt
	touch $@

clean:
	rm -rf .venv .bench-venv .dist-venv build dist *.egg-info
