"""A store of known numbers, written without a model, for tests that write it hundreds of times."""

import contextlib

import numpy as np

from probekit.activations.local import LocalFiles
from probekit.activations.records import MANIFEST, Identity, ShardRecord
from probekit.activations.store import ActivationStore
from probekit.activations.upkeep import find_damage
from probekit.data.positions import RowPlan
from probekit.errors import DamagedError, MissingError
from tests.activations.captures import files as bytes_of

SITES = ("blocks.0.hook_resid_pre", "hook_embed")
TEXTS = {"weights": "w", "tokenizer": "t", "tokens": "s", "rows": "r"}
HOW = {"dtype": "float32", "compute": "float32", "device": "cpu", "torch": "2"}
IDENTITY = Identity(config={"n_layer": 1}, network=1, capture=1, **TEXTS, **HOW)
CREATED, SEALED = "created", "sealed"


class Content:
    """Known rows of a small store, with a given number of shards, rows and columns."""

    def __init__(self, n_shards=2, n_rows=3, width=2, sites=SITES):
        self.sites = sites
        n = n_shards * n_rows
        self.shards = np.split(np.random.default_rng(0).permutation(n), n_shards)
        self.plan = RowPlan(np.arange(n), np.zeros(n, dtype=np.int64), np.arange(n + 1))
        generator = np.random.default_rng(1)
        self.values = {site: generator.normal(size=(n, width)).astype(np.float32) for site in sites}

    def create(self, files):
        return ActivationStore.create(files, IDENTITY, self.plan, self.shards)

    def write(self, files, done=lambda what: None, *, alone=True):
        """Write the missing shards and report everything that is promised to be durable."""
        store = self.create(files)
        done(CREATED)
        with store.files.lock(lambda _: None) if alone else contextlib.nullcontext():
            store.files.sweep()
            for site in self.sites:
                for shard in store.missing(site):
                    with store.writing([site], shard) as writers:
                        for part in np.array_split(self.values[site][self.shards[shard]], 2):
                            writers[site].append(part)
                    done((site, shard))
            store.seal()
            done(SEALED)
        return store

    def expected(self, folder):
        """Return the bytes of a store that was written without faults."""
        self.write(LocalFiles(folder))
        return bytes_of(folder)

    def check(self, folder, done, expected):
        """Require that all reported content exists, nothing is wrong, and writing can resume."""
        self.check_readable(folder, done)
        self.write(LocalFiles(folder))
        assert bytes_of(folder) == expected
        assert not [path for path in folder.rglob(".*") if not path.name.startswith(".lock")]

    def check_readable(self, folder, done):
        """Require that all reported content exists and nothing is wrong."""
        try:
            store = ActivationStore.open(LocalFiles(folder))
        except MissingError:
            assert not done
            return
        store.verify()
        for site in self.sites:
            records = store.records(site)
            for path in (folder / site).glob("0*.json"):
                record = ShardRecord.unpack(path.read_bytes(), path.name)
                assert records.get(record.shard) == record, "a record came before its rows"
            reported = {shard for name, shard in done - {CREATED, SEALED} if name == site}
            assert reported <= records.keys(), "a committed record is lost"
            if records:
                rows = store.rows_at(site)
                assert np.array_equal(store.read(site, rows, partial=True), self.values[site][rows])
        if SEALED in done:
            assert (folder / MANIFEST).exists()
            assert store.is_sealed
            assert store.sites == self.sites


CONTENT = Content()
SITE = SITES[0]


def check_the_first_committer_wins(files):
    """Require that the rows of a second committer, whose last bits differ, are dropped."""
    store = CONTENT.create(files)
    rows = store.shards[1]
    first = CONTENT.values[SITE][rows]
    with store.writing([SITE], 1) as slow:
        slow[SITE].append(first + 1)
        store.commit(SITE, 1, first)
    store.verify()
    assert (store.read(SITE, rows, partial=True) == first).all()
    assert len(store.files.sizes(SITE)) == 2


def complaints(folder):
    """Return the names of the damaged files that `verify` reports."""
    try:
        store = ActivationStore.open(folder)
    except DamagedError:
        return {"spec.json"}
    return {damage.file for damage in find_damage(store)}
