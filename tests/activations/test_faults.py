"""Kills, errors, power losses, full disks and jumping clocks: what was promised is kept.

Kills and errors come before and at every disk call, and at random moments. A power loss leaves any
state that a disk may have.
"""

import ast
import errno
import gc
import multiprocessing
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import probekit.activations.local
import probekit.files
from probekit.activations.local import LocalFiles
from probekit.activations.store import ActivationStore
from probekit.activations.upkeep import summarize
from probekit.errors import DamagedError, StoreError
from probekit.files import Disk
from tests.activations import disks, small_store
from tests.activations.captures import files as bytes_of
from tests.activations.captures import record_file
from tests.activations.small_store import CONTENT, SEALED, SITE, SITES


def n_calls(folder):
    """Return the number of disk calls of an undisturbed run."""
    disk = disks.WatchedDisk()
    CONTENT.write(LocalFiles(folder, disk=disk))
    return len(disk.calls)


@pytest.fixture
def expected(tmp_path):
    return CONTENT.expected(tmp_path / "peace")


def in_a_child(work):
    """Start a process that reports its promises through a pipe; return it and the pipe."""
    out, into = os.pipe()
    child = os.fork()
    if child:
        os.close(into)
        return child, out
    try:  # pytest must not continue in the child
        work(lambda what: os.write(into, f"{what!r}\n".encode()))
    finally:
        os._exit(0)


def what_it_told(pipe):
    with os.fdopen(pipe) as report:
        return {ast.literal_eval(line) for line in report}


def in_a_light_process(work, *arguments):
    """Run a function in a process without torch, because its forks take a tenth of the time."""
    process = multiprocessing.get_context("spawn").Process(target=work, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == 0, "see the standard error"


def test_a_kill_before_each_call(tmp_path):
    in_a_light_process(kill_before_each_call, tmp_path)


def kill_before_each_call(tmp_path):
    n_kills, folder, expected = 0, tmp_path / "killed", CONTENT.expected(tmp_path / "peace")
    for at in range(n_calls(tmp_path / "counted")):
        child, pipe = in_a_child(partial(CONTENT.write, LocalFiles(folder, disk=disks.killing(at))))
        done = what_it_told(pipe)
        n_kills += os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
        CONTENT.check(folder, done, expected)
        shutil.rmtree(folder)
    assert n_kills == at + 1 > 100


@pytest.mark.parametrize("for_good", [False, True], ids=["once", "for good"])
@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.ENOSPC])
def test_an_error_at_each_call(tmp_path, expected, code, for_good):
    n_errors = 0
    for at in range(n_calls(tmp_path / "counted")):
        folder, disk = tmp_path / "failed", disks.failing(at, code, for_good=for_good)
        done = set()
        try:
            CONTENT.write(LocalFiles(folder, disk=disk), done.add)
        except StoreError as error:
            n_errors += str(folder) in str(error)
        CONTENT.check(folder, done, expected)
        shutil.rmtree(folder)
    # The rest fell on what is done in passing: removing drafts that got their name, closing.
    assert n_errors > at / 2


def test_a_short_write_at_each_write(tmp_path, expected):
    for at in range(n_calls(tmp_path / "counted")):
        folder = tmp_path / "short"
        CONTENT.write(LocalFiles(folder, disk=disks.writing_short(at)))
        assert bytes_of(folder) == expected
        shutil.rmtree(folder)


@pytest.mark.parametrize("n_wanted", [20, pytest.param(200, marks=pytest.mark.nightly)])
def test_kills_at_random_moments_some_with_two_writers(tmp_path, n_wanted):
    in_a_light_process(kill_at_random_moments, tmp_path, n_wanted)


def kill_at_random_moments(tmp_path, n_wanted):
    content = small_store.Content(n_shards=8, n_rows=16, width=300)
    expected = content.expected(tmp_path / "peace")
    moments = random.Random(5)
    began = time.perf_counter()
    content.write(LocalFiles(tmp_path / "timed"))
    whole = time.perf_counter() - began
    folder = tmp_path / "killed"
    n_kills = n_pairs = 0
    while n_kills < n_wanted or n_pairs < n_wanted / 40:
        pair = moments.random() < 0.4
        work = [
            in_a_child(partial(content.write, LocalFiles(folder), alone=not pair))
            for _ in range(1 + pair)
        ]
        time.sleep(moments.uniform(0, whole))
        done, killed = set(), 0
        for child, pipe in work:
            os.kill(child, signal.SIGKILL)
            killed += os.WIFSIGNALED(os.waitpid(child, 0)[1])  # else it had finished
            done |= what_it_told(pipe)
        n_kills += killed
        n_pairs += killed == 2
        content.check_readable(folder, done)
        if SEALED in done:
            content.check(folder, done, expected)
            shutil.rmtree(folder)
    content.check(folder, set(), expected)


def test_the_first_committer_wins_and_the_others_rows_are_dropped(tmp_path):
    small_store.check_the_first_committer_wins(LocalFiles(tmp_path / "both"))
    assert len(list((tmp_path / "both" / SITE).iterdir())) == 2


def test_a_sync_is_one_of_the_system(tmp_path, monkeypatch):
    """The models of power losses assume that a disk syncs when requested."""
    synced, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda n: (synced.append(os.fstat(n).st_ino), fsync(n)))
    monkeypatch.setattr(sys, "platform", "linux")  # macOS has another call
    disk, path = Disk(), tmp_path / "x"
    descriptor = disk.create(path)
    disk.sync(descriptor)
    disk.close(descriptor)
    disk.sync_folder(tmp_path)
    assert synced == [path.stat().st_ino, tmp_path.stat().st_ino]


def calls_of_sync():
    """Return file and line of every call of a sync in the package."""
    return {
        (path.name, node.lineno)
        for path in (Path(probekit.files.__file__), Path(probekit.activations.local.__file__))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("sync", "sync_folder")
    }


def store_folder(base):
    """Return a cache two folders below an existing one."""
    return base / "caches" / "key"


class Trial:
    """Writes crash states to disk and checks each one once."""

    def __init__(self, folder):
        self.folder = folder
        self.expected = CONTENT.expected(folder / "peace")
        self.seen = set()

    def check(self, image, done):
        """Check the state after a power loss, with `done` promised."""
        key = (repr(image), frozenset(done))
        if key in self.seen:
            return
        self.seen.add(key)
        base = self.folder / "crashed"
        disks.lay_out(image, base)
        try:
            CONTENT.check(store_folder(base), done, self.expected)
        finally:
            shutil.rmtree(base)


def crash_everywhere(tmp_path, forget=None):
    """Check every state that a power loss may leave, before each call and at the end."""
    trial = Trial(tmp_path)
    base = tmp_path / "disk"
    base.mkdir()
    disk = disks.ForgetfulDisk(base, forget)
    done = set()

    def crash():
        for image in disk.states():
            trial.check(image, done)

    disk.on_call = crash
    CONTENT.write(LocalFiles(store_folder(base), disk=disk), done.add)
    crash()
    return trial, disk


def kill_everywhere_then_crash(tmp_path, forget=None):
    """Kill before each call, let another process finish, then lose as much as possible."""
    trial = Trial(tmp_path)
    n_calls = 0
    while True:
        base = tmp_path / "disk"
        base.mkdir()
        disk = disks.ForgetfulDisk(base, forget)

        def die(at=n_calls, disk=disk):
            disk.is_dead = len(disk.calls) > at

        disk.on_call = die
        try:
            CONTENT.write(LocalFiles(store_folder(base), disk=disk))
        except OSError:
            disk.on_call, disk.is_dead = lambda: None, False
        else:
            return n_calls
        done = set()
        disk.on_call = lambda: None
        CONTENT.write(LocalFiles(store_folder(base), disk=disk), done.add)
        trial.check(disk.worst_state(), done)
        shutil.rmtree(base)
        n_calls += 1


def test_a_power_loss_at_any_moment_loses_nothing_promised(tmp_path):
    trial, disk = crash_everywhere(tmp_path)
    assert len(trial.seen) > 150
    assert disk.syncs == calls_of_sync()


def test_a_power_loss_after_a_killed_and_a_finished_run_loses_nothing(tmp_path):
    assert kill_everywhere_then_crash(tmp_path) > 100


@pytest.mark.parametrize("forget", sorted(calls_of_sync()), ids=lambda call: f"{call[0]}:{call[1]}")
def test_no_sync_can_be_left_out(tmp_path, forget):
    def all_trials():
        crash_everywhere(tmp_path, forget)
        shutil.rmtree(tmp_path / "disk")
        kill_everywhere_then_crash(tmp_path, forget)

    # A committed file is lost, or an existing one cannot be used.
    with pytest.raises((AssertionError, DamagedError)):
        all_trials()


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
    content = small_store.Content(n_shards=12, n_rows=32, width=64)
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
        with pytest.raises(StoreError, match=r"Cannot write .* An existing file .*unchanged"):
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
    assert small_store.complaints(folder) == set()
    assert summarize(folder).age >= 0
