"""Stateful test of a store: hypothesis searches for a sequence of events that breaks it."""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from probekit.activations import upkeep
from probekit.activations.local import LocalFiles
from probekit.activations.store import ActivationStore
from probekit.errors import ProbekitError, StoreError
from tests.activations.disks import WatchedDisk
from tests.activations.small_store import SITES, Content

SHARDS = st.integers(0, 2)
SITE = st.sampled_from(SITES)


class Killed(BaseException):
    """Represents the end of a process."""


class DyingDisk(WatchedDisk):
    """A disk that ignores all calls after one, as if its process had ended."""

    def __init__(self, at):
        super().__init__()
        self.at = at
        self.opened = set()

    def around(self, number, name, call, arguments):
        if number >= self.at:
            raise Killed
        result = call(*arguments)
        if name in ("create", "open", "open_lock"):
            self.opened.add(result)
        elif name == "close":
            self.opened.discard(arguments[0])
        return result

    def bury(self):
        """Close the files and locks of a dead process, as the system does."""
        for descriptor in self.opened:
            os.close(descriptor)


class Store(RuleBasedStateMachine):
    """Rows in `kept` must exist; rows damaged since may be missing, but never wrong."""

    def __init__(self):
        super().__init__()
        self.base = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        self.folder = self.base / "key"
        self.content = Content(n_shards=3)
        self.kept = set()
        self.is_damaged = False

    def teardown(self):
        shutil.rmtree(self.base)

    def write(self, site, shard, disk=None):
        store = self.content.create(LocalFiles(self.folder, disk=disk))
        store.commit(site, shard, self.content.values[site][store.shards[shard]])
        self.kept.add((site, shard))
        return store

    @precondition(lambda self: not self.is_damaged)
    @rule(site=SITE, shard=SHARDS)
    def extend(self, site, shard):
        self.write(site, shard)

    @precondition(lambda self: not self.is_damaged)
    @rule(site=SITE, shard=SHARDS, at=st.integers(0, 40))
    def kill(self, site, shard, at):
        disk = DyingDisk(at)
        with contextlib.suppress(Killed):
            self.write(site, shard, disk)
        disk.bury()

    @precondition(lambda self: not self.is_damaged)
    @rule()
    def finish(self):
        self.content.write(LocalFiles(self.folder))
        self.kept = {(site, shard) for site in SITES for shard in range(3)}

    @precondition(lambda self: self.folder.exists() and upkeep.is_cache(LocalFiles(self.folder)))
    @rule(which=st.integers(0, 1000), place=st.integers(0, 10_000), bit=st.integers(0, 7))
    def corrupt(self, which, place, bit):
        paths = sorted(p for p in self.folder.rglob("*") if p.is_file() and p.stat().st_size)
        path = paths[which % len(paths)]
        content = bytearray(path.read_bytes())
        content[place % len(content)] ^= 1 << bit
        path.write_bytes(content)
        self.is_damaged = True

    @precondition(lambda self: self.is_damaged)
    @rule()
    def mend(self):
        self.is_damaged = False
        try:
            store = ActivationStore.open(self.folder)
        except StoreError:  # the spec itself
            upkeep.remove_cache(self.folder)
            self.kept = set()
            return
        if [damage.file for damage in upkeep.repair_cache(store)] == ["rows.safetensors"]:
            # The rest is seen only with the layout, which is made by the next run.
            upkeep.repair_cache(self.content.create(LocalFiles(self.folder)))
        store = ActivationStore.open(self.folder)
        assert upkeep.find_damage(store) == []
        self.kept &= {(site, shard) for site in SITES for shard in store.records(site)}

    @precondition(lambda self: not self.is_damaged and self.folder.exists())
    @rule()
    def collect(self):
        if upkeep.is_cache(LocalFiles(self.folder)):
            upkeep.collect_garbage(self.folder)
            assert not list(self.folder.rglob(".[!l]*"))

    @rule(site=SITE)
    def read(self, site):
        try:
            store = ActivationStore.open(LocalFiles(self.folder))
            rows = store.rows_at(site)
            if not len(rows):
                return
            store.verify([site])
            found = store.read(site, rows, partial=True)
        except ProbekitError:
            assert self.is_damaged or not self.kept
            return
        assert np.array_equal(found, self.content.values[site][rows])

    @invariant()
    def nothing_kept_is_lost(self):
        if self.kept and not self.is_damaged:
            store = ActivationStore.open(LocalFiles(self.folder))
            assert upkeep.find_damage(store) == []
            for site in SITES:
                kept = {shard for name, shard in self.kept if name == site}
                assert kept <= store.records(site).keys()


Store.TestCase.settings = settings(
    max_examples=30,
    stateful_step_count=20,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
TestStore = pytest.mark.nightly(Store.TestCase)
