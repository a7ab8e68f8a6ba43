"""Kills and errors before and at every disk call, and at random moments."""

import errno
import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
from functools import partial

import pytest

from probekit.activations.local import LocalFiles
from probekit.errors import StoreError
from probekit.files import Disk
from tests.activations.captures import files as bytes_of
from tests.activations.disks import WatchedDisk, failing, killing, writing_short
from tests.activations.small_store import (
    CREATED,
    SEALED,
    SITE,
    Content,
    check_that_the_first_committer_wins,
)

CONTENT = Content()


def n_calls(folder):
    """Return the number of disk calls of an undisturbed run."""
    disk = WatchedDisk()
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
        names = {repr(CREATED): CREATED, repr(SEALED): SEALED}
        lines = report.read().splitlines()
    promised = {repr((site, n)): (site, n) for site in Content().sites for n in range(20)}
    return {(names | promised)[line] for line in lines}


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
        child, pipe = in_a_child(partial(CONTENT.write, LocalFiles(folder, disk=killing(at))))
        done = what_it_told(pipe)
        n_kills += os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
        CONTENT.check(folder, done, expected)
        shutil.rmtree(folder)
    assert n_kills == at + 1 > 100


@pytest.mark.parametrize("for_good", [False, True], ids=["once", "for good"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EACCES])
def test_an_error_at_each_call(tmp_path, expected, code, for_good):
    n_errors = 0
    for at in range(n_calls(tmp_path / "counted")):
        folder = tmp_path / "failed"
        done = set()
        try:
            CONTENT.write(LocalFiles(folder, disk=failing(at, code, for_good=for_good)), done.add)
        except StoreError as error:
            n_errors += str(folder) in str(error)
        CONTENT.check(folder, done, expected)
        shutil.rmtree(folder)
    # The rest fell on what is done in passing: removing drafts that got their name, closing.
    assert n_errors > at / 2


def test_a_short_write_at_each_write(tmp_path, expected):
    for at in range(n_calls(tmp_path / "counted")):
        folder = tmp_path / "short"
        CONTENT.write(LocalFiles(folder, disk=writing_short(at)))
        assert bytes_of(folder) == expected
        shutil.rmtree(folder)


@pytest.mark.parametrize("n_wanted", [20, pytest.param(200, marks=pytest.mark.nightly)])
def test_kills_at_random_moments_some_with_two_writers(tmp_path, n_wanted):
    in_a_light_process(kill_at_random_moments, tmp_path, n_wanted)


def kill_at_random_moments(tmp_path, n_wanted):
    content = Content(n_shards=8, n_rows=16, width=300)
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
    check_that_the_first_committer_wins(LocalFiles(tmp_path / "both"))
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
