"""Folders that are deleted or read-only, a full disk, and clocks that jump."""

import gc
import os
import resource
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest

from probekit.activations.local import LocalFiles
from probekit.activations.store import ActivationStore
from probekit.activations.upkeep import summarize
from probekit.errors import StoreError
from tests.activations.captures import files as bytes_of
from tests.activations.captures import record_file
from tests.activations.small_store import CONTENT, SITE, SITES, Content, complaints


def test_a_folder_deleted_during_the_run_is_reported(tmp_path):
    store = CONTENT.create(LocalFiles(tmp_path / "key"))
    rows = CONTENT.values[SITE][store.shards[0]]

    def deleted_while_written():
        with store.writing([SITE], 0) as writers:
            shutil.rmtree(tmp_path / "key")
            writers[SITE].append(rows)

    with pytest.raises(StoreError, match="No such file"):
        deleted_while_written()
    with pytest.raises(StoreError, match="Cannot write"):
        store.commit(SITES[1], 0, rows)
    assert not (tmp_path / "key").exists()


def as_somebody_else(work):
    """Run in a process without root's right to write anywhere."""
    child = os.fork()
    if not child:
        code = 1
        try:
            if os.getuid() == 0:
                os.setuid(65534)
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_read_only_folder_is_read_and_refuses_writers(folder):
    folder.parent.chmod(0o755)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)

    def work():
        store = ActivationStore.open(folder)
        store.verify()
        assert np.array_equal(store.read(SITE), CONTENT.values[SITE])
        with pytest.raises(StoreError, match=r"Cannot write .*: Permission denied"):
            store.commit(SITE, 0, CONTENT.values[SITE][:3])

    assert as_somebody_else(work) == 0
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755)


def test_a_full_disk_keeps_what_was_committed(tmp_path):
    """A real full disk: a small tmpfs if we may mount one, else a limit on file sizes."""
    content = Content(n_shards=12, n_rows=32, width=64)
    expected = content.expected(tmp_path / "peace")
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(small)]
    is_mounted = os.getuid() == 0 and subprocess.run(mount, check=False).returncode == 0
    done = set()

    def work():
        if not is_mounted:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
        with pytest.raises(
            StoreError, match=r"Cannot write .* An existing file there is unchanged"
        ):
            content.write(LocalFiles(small / "key"), done.add)

    try:
        if is_mounted:
            work()
            assert len(done) > 3
        else:
            assert as_somebody_else(work) == 0
        content.check_readable(small / "key", done)
        assert not list((small / "key").rglob("*/.*"))
        shutil.copytree(small / "key", tmp_path / "key")
    finally:
        if is_mounted:
            gc.collect()  # what an exception still refers to may map a file
            subprocess.run(["umount", str(small)], check=True)
    content.check(tmp_path / "key", done, expected)


@pytest.mark.parametrize("now", [0.0, 4e9])
def test_clocks_that_jump_change_nothing(tmp_path, folder, monkeypatch, now):
    expected = bytes_of(folder)
    for path in folder.rglob("*"):
        os.utime(path, (now, now))
    monkeypatch.setattr(time, "time", lambda: 4e9 - now)
    record_file(folder, SITE, 0).unlink()
    CONTENT.write(LocalFiles(folder))
    assert bytes_of(folder) == expected
    assert complaints(folder) == set()
    assert summarize(folder).age >= 0
