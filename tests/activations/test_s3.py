"""A real S3-compatible server: moto's, in an environment of its own (`make .venv/s3/installed`)."""

import os
import subprocess
import sys

import pytest


@pytest.mark.nightly
def test_a_store_on_an_s3_server(tmp_path, repository):
    overlay = repository / ".venv" / "s3"
    if not (overlay / "s3fs").is_dir():
        pytest.skip("s3fs and moto are not there: make .venv/s3/installed")
    paths = os.pathsep.join([str(overlay), str(repository)])
    done = subprocess.run(
        [sys.executable, "-m", "tests.activations.s3_session", str(tmp_path)],
        cwd=repository,
        env=os.environ | {"PYTHONPATH": paths},
        timeout=300,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Cannot read s3://elsewhere/key/spec.json" in done.stdout
