"""Commands report errors before they import torch."""

import json
import os
import subprocess
import sys

from probekit.cli.main import cli

HEAVY = ("torch", "sklearn", "pandas", "scipy", "transformers", "plotly", "joblib", "matplotlib")
FILES = ("missing", "mistaken")
# An invalid command line for each command. They run in this order in one process, so the one that
# imports more is last.
COMMANDS = (
    *(f"{command} {file}.yaml" for command in ("run", "validate", "pretrain") for file in FILES),
    "transfer missing.yaml missing.yaml --out folder",
    *(f"plan {words}" for words in ("missing.yaml", "missing --tokens 10")),
    *(f"cache {words}" for words in ("missing.yaml", "capture mistaken.yaml", "ls")),
    "cache push missing folder",
    "cache import missing.yaml missing",
    *(f"cache {command} missing" for command in ("show", "verify", "repair", "rm", "gc", "pull")),
    "cache export missing --out folder",
    *("init ?", "keys prob", "intervene missing.yaml", "compare missing missing"),
    *(
        f"{command} missing"
        for command in ("sites", "params", "verify", "report", "view", "worker")
    ),
    *(f"{command} --model missing --text a" for command in ("attribution", "lens")),
    "generate --model missing --prompt a --max-new-tokens 1",
    "attention --model missing --text a --out page.html",
    "attention --model missing --scores",
    "patch --model missing --clean a --corrupt b --answer c --wrong d",
    "weights --model missing --out page.html",
    *(f"{command} run_a run_b --out page.txt" for command in ("compare", "report")),
    "report missing missing --out page.html",
    "apply missing --text a --out page.txt",
    "apply missing --text a",
    "export missing --to plain --out probe",
)
UNCHECKED = {"selftest", "experiments", "completion"}  # they have nothing to check

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
        env=os.environ | {"PROBEKIT_CACHE": str(tmp_path / "caches")},
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
