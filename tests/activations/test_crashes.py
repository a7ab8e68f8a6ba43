"""Power losses: whatever a disk loses, promised content exists and nothing is wrong."""

import ast
import shutil
from pathlib import Path

import pytest

import probekit.activations.local
import probekit.files
from probekit.activations.local import LocalFiles
from probekit.errors import DamagedError
from tests.activations.disks import ForgetfulDisk, lay_out
from tests.activations.small_store import Content

CONTENT = Content()
MODULES = {
    Path(module.__file__).name: module for module in (probekit.files, probekit.activations.local)
}


def calls_of_sync():
    """Return file and line of every call of a sync in the package."""
    return {
        (name, node.lineno)
        for name, module in MODULES.items()
        for node in ast.walk(ast.parse(Path(module.__file__).read_text()))
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
        lay_out(image, base)
        try:
            CONTENT.check(store_folder(base), done, self.expected)
        finally:
            shutil.rmtree(base)


def crash_everywhere(tmp_path, forget=None):
    """Check every state that a power loss may leave, before each call and at the end."""
    trial = Trial(tmp_path)
    base = tmp_path / "disk"
    base.mkdir()
    disk = ForgetfulDisk(base, forget)
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
        disk = ForgetfulDisk(base, forget)

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
