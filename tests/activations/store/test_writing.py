"""What a store takes: rows of its own kind, shape and identity, and all of a shard."""

import dataclasses

import numpy as np
import pytest

from probekit.activations.files.local import LocalFiles
from probekit.activations.store.layout import ArrayHeader, header
from probekit.activations.store.records import ShardRecord
from probekit.activations.store.store import ActivationStore
from probekit.errors import (
    ConfigError,
    DamagedError,
    StoreMismatchError,
    UnknownNameError,
)
from tests.activations.small_store import CONTENT, IDENTITY, SITE, SITES, Content


def test_two_caches_of_the_same_name_are_never_mixed(tmp_path, folder):
    other = dataclasses.replace(IDENTITY, weights="others")
    with pytest.raises(StoreMismatchError, match="weights: stored 'w', expected 'others'"):
        ActivationStore.create(LocalFiles(folder), other, CONTENT.plan, CONTENT.shards)
    moved = Content(n_shards=3, n_rows=2)
    with pytest.raises(StoreMismatchError, match="layout"):
        moved.create(LocalFiles(folder))


def test_shards_of_rows_of_several_kinds_are_never_one_array(tmp_path):
    store = CONTENT.create(LocalFiles(tmp_path / "key"))
    rows = [CONTENT.values[SITE][shard] for shard in store.shards]
    with pytest.raises(ConfigError, match="This store holds float32 rows, not float16"):
        store.commit(SITE, 0, rows[0].astype(np.float16))
    store.commit(SITE, 0, rows[0])
    store.commit(SITE, 1, rows[1][:, :1])
    with pytest.raises(DamagedError, match=r"row shapes: \[\(1,\), \(2,\)\]"):
        store.read(SITE)


def test_a_shard_takes_its_rows_and_no_others(tmp_path):
    store = CONTENT.create(LocalFiles(tmp_path / "key"))
    rows = CONTENT.values[SITE][:3]

    def write(parts):
        with store.writing([SITE], 0) as writers:
            for part in parts:
                writers[SITE].append(part)

    for parts in ([rows[:2]], [rows, rows[:1]], [rows[:1], rows[1:, :1]], [rows.astype("f8")], []):
        with pytest.raises(ConfigError):
            write(parts)
    assert store.missing(SITE) == (0, 1)
    assert not list(tmp_path.rglob("*.safetensors.*"))


def test_a_partial_cache_is_read_only_on_request(tmp_path):
    store = CONTENT.create(LocalFiles(tmp_path / "key"))
    rows = store.shards[1]
    store.commit(SITE, 1, CONTENT.values[SITE][rows])
    with pytest.raises(UnknownNameError, match=r"3 of 6 rows are stored \(50%\)"):
        store.read(SITE)
    assert sorted(rows) == store.rows_at(SITE).tolist()
    assert np.array_equal(store.read(SITE, partial=True), CONTENT.values[SITE][np.sort(rows)])
    assert np.array_equal(store.read(SITE, rows, partial=True), CONTENT.values[SITE][rows])
    with pytest.raises(UnknownNameError, match="50%"):
        store.read(SITE, store.shards[0], partial=True)
    with pytest.raises(UnknownNameError):
        store.read(SITES[1], partial=True)


def test_a_record_says_all_that_its_file_is():
    record = ShardRecord("k", "hook_embed", 0, "F16", (4, 3), "0" * 64)
    assert record.size == len(header({"rows": ArrayHeader("F16", (4, 3))})) + 24
