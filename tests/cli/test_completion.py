"""Tab completion of a shell, and the summaries in the help."""

import os
import shutil
import subprocess

import pytest

from probekit.cli.main import cli
from tests.cli.test_cli import PROBEKIT

# Line that is completed, up to its last word -> the words that are offered, or how the shell itself
# completes a path.
COMPLETED = {
    "val": "validate",
    "run qui": "quickstart quick.yml",
    "run folder": "dirnames",
    "run folder/": "folder/own.yaml",
    "run quickstart --wor": "--workers",
    "cache pu": "pull push",
    "cache quicks": "quickstart",
    "cache nonsense --he": "--help",
    "sites gpt2-": "gpt2-medium gpt2-large gpt2-xl",
    "lens --model mi": "mini",
    "weights --out w": "default",
}
SCRIPT = """
compopt() { paths="$2"; }
eval "$(probekit completion bash)"
while read -r line; do
    COMP_WORDS=(probekit $line) COMP_CWORD=$(wc -w <<< "$line") COMPREPLY=() paths=
    _probekit_completion probekit
    echo "${COMPREPLY[*]:-$paths}"
done
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_bash_completes_commands_options_experiments_files_and_models(tmp_path):
    (tmp_path / "folder").mkdir()
    for name in ("quick.yml", "quick.csv", "folder/own.yaml", "folder/notes.txt"):
        (tmp_path / name).touch()
    path = f"{PROBEKIT.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", SCRIPT],
        input="".join(f"{line}\n" for line in COMPLETED),
        cwd=tmp_path,
        env=os.environ | {"PATH": path, "HF_HUB_CACHE": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert dict(zip(COMPLETED, done.stdout.splitlines(), strict=True)) == COMPLETED
    assert done.stderr == ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_ends_with_where_to_save_it(call, monkeypatch, shell):
    done = call("completion", shell)
    *script, comment = done.stdout.splitlines()
    assert comment.startswith("# Save as ")
    monkeypatch.setenv("_PROBEKIT_COMPLETE", f"{shell}_source")
    assert call().stdout.split() == " ".join(script).split()


@pytest.mark.parametrize("group", [(), ("cache",)])
def test_every_command_has_one_line_in_the_help(call, monkeypatch, group):
    monkeypatch.setenv("COLUMNS", "80")
    lines = call(*group, "--help").stdout.splitlines()
    for name, command in (cli.commands["cache"] if group else cli).commands.items():
        sentence = command.help.partition("\n")[0].removesuffix(".")
        (line,) = (line for line in lines if line.startswith(f"  {name} "))
        assert line.removeprefix(f"  {name}").strip().removesuffix(".") == sentence
