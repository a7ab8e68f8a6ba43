"""Commands report errors before they import torch."""

import json
import os
import subprocess
import sys

from probekit.cli.main import cli

HEAVY = ("torch", "sklearn", "pandas", "scipy", "transformers", "plotly", "joblib")
# An invalid command line for each command. They run in this order in one process, so the one that
# imports more is last.
COMMANDS = (
    "run missing.yaml",
    "run mistaken.yaml",
    "validate missing.yaml",
    "validate mistaken.yaml",
    "pretrain missing.yaml",
    "pretrain mistaken.yaml",
    "transfer missing.yaml missing.yaml --out folder",
    "cache missing.yaml",
    "cache capture mistaken.yaml",
    "cache plan missing.yaml",
    "cache plan missing --tokens 10",
    "cache ls",
    "cache show missing",
    "cache verify missing",
    "cache repair missing",
    "cache rm missing",
    "cache gc missing",
    "cache export missing --out folder",
    "cache push missing folder",
    "cache pull missing",
    "init ?",
    "sites missing",
    "params missing",
    "verify missing",
    "generate --model missing --prompt a --max-new-tokens 1",
    "attention --model missing --text a --out page.html",
    "attribution --model missing --text a",
    "heads --model missing",
    "lens --model missing --text a",
    "cause missing.yaml",
    "patch --model missing --clean a --corrupt b --answer c --wrong d",
    "weights --model missing --out page.html",
    "compare run_a run_b --out page.txt",
    "compare missing missing",
    "report run_a run_b --out page.txt",
    "report missing",
    "report missing missing --out page.html",
    "view missing",
    "worker missing",
    "apply missing --text a --out page.txt",
    "apply missing --text a",
)
UNCHECKED = {"selftest", "experiments"}  # they have nothing to check

CODE = """
import json, sys
from click.testing import CliRunner
from probekit.cli.main import cli
heavy, lines = json.loads(sys.argv[1])
loaded = {}
for line in lines:
    before = set(sys.modules)
    result = CliRunner().invoke(cli, line.split())
    assert result.exit_code or line == "cache ls", line
    loaded[line] = sorted((set(sys.modules) - before) & set(heavy))
print(json.dumps(loaded))
"""


def test_errors_are_found_before_heavy_imports(tmp_path):
    (tmp_path / "mistaken.yaml").write_text("name: x\nmodle: mini\n")
    done = subprocess.run(
        [sys.executable, "-c", CODE, json.dumps([HEAVY, COMMANDS])],
        cwd=tmp_path,
        env={
            "PROBEKIT_CACHE": str(tmp_path / "caches"),
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stderr
    loaded = {line: found for line, found in json.loads(done.stdout).items() if found}
    assert loaded == {"apply missing --text a": ["scipy"]}


def test_every_command_has_a_row():
    named = {line.split()[0] for line in COMMANDS} | UNCHECKED
    assert named == set(cli.commands)
    caches = {line.split()[1] for line in COMMANDS if line.startswith("cache ")}
    assert caches - {"missing.yaml"} == set(cli.commands["cache"].commands)
