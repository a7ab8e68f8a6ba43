"""The types of the package are right: checked in the same run as all others."""

import subprocess
import sys


def test_mypy_finds_nothing(repository):
    command = [sys.executable, "-m", "mypy"]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stdout + done.stderr
