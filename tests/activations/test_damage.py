"""All damage to files, accidental or malicious, is detected and never returned as data."""

import copy
import json
import os
import shutil

import numpy as np
import pytest

from probekit.activations.local import LocalFiles, checked
from probekit.activations.records import FORMAT
from probekit.activations.store import ActivationStore
from probekit.activations.upkeep import find_damage, repair_cache, summarize
from probekit.errors import DamagedError, StoreError, StoreMismatchError, UnknownNameError
from probekit.model.weights.files import ArrayHeader, header
from probekit.provenance import digest, seal
from tests.activations.captures import files as bytes_of
from tests.activations.captures import flip_last_bit, record_file, shard_file
from tests.activations.small_store import CONTENT, SITE, SITES, complaints
from tests.stored import each_row

FILES = {
    "spec": lambda folder: folder / "spec.json",
    "layout": lambda folder: folder / "rows.safetensors",
    "record": lambda folder: record_file(folder, SITE, 1),
    "rows": lambda folder: shard_file(folder, SITE, 1),
    "manifest": lambda folder: folder / "manifest.json",
}


@pytest.mark.parametrize("which", FILES)
def test_every_flipped_bit_of_every_file_is_detected(folder, which):
    path = FILES[which](folder)
    whole = path.read_bytes()
    assert complaints(folder) == set()
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1 << (place % 8)
        path.write_bytes(changed)
        assert str(path.relative_to(folder)) in complaints(folder), place
    path.write_bytes(whole)
    assert complaints(folder) == set()


@pytest.mark.parametrize("which", FILES)
def test_every_truncation_is_detected_and_repaired(folder, which):
    path = FILES[which](folder)
    expected = bytes_of(folder)
    whole = path.read_bytes()
    for size in (0, 1, 8, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert str(path.relative_to(folder)) in complaints(folder), size
    if which == "spec":
        path.write_bytes(whole)
        return
    repair_cache(ActivationStore.open(folder))
    CONTENT.write(LocalFiles(folder))
    assert bytes_of(folder) == expected


def test_missing_files_are_detected(folder):
    for which in ("layout", "record", "rows"):
        path = FILES[which](folder)
        path.rename(folder / "aside")
        assert str(path.relative_to(folder)) in complaints(folder)
        (folder / "aside").rename(path)


HEADERS = {
    "absurd length": (2**63).to_bytes(8, "little"),
    "length of the whole": (152).to_bytes(8, "little"),
    "duplicate keys": b'{"rows":{"dtype":"F32"},"rows":{"dtype":"F16"}}',
    "overlap": b'{"rows":{"dtype":"F32","shape":[3,2],"data_offsets":[0,24]},"x":[0,24]}',
    "other shape": header({"rows": ArrayHeader("F32", (2, 3))})[8:],
    "other type": header({"rows": ArrayHeader("I64", (3, 1))})[8:],
}


@pytest.mark.parametrize("damage", HEADERS)
def test_an_unexpected_header_is_never_parsed(folder, damage, refused):
    path = FILES["rows"](folder)
    content = bytearray(path.read_bytes())
    start = 0 if "length" in damage else 8
    content[start : start + len(HEADERS[damage])] = HEADERS[damage]
    path.write_bytes(content[: len(path.read_bytes())])
    for mapped in (True, False):
        refused(ActivationStore.open(folder, mapped=mapped).read, SITE)
    assert str(path.relative_to(folder)) in complaints(folder)


@pytest.mark.parametrize(
    "make",
    [
        lambda path, aside: path.symlink_to(aside),
        lambda path, aside: os.mkfifo(path),
        lambda path, aside: path.mkdir(),
    ],
    ids=["link", "fifo", "folder"],
)
@pytest.mark.parametrize("which", FILES)
def test_what_is_no_file_is_refused_at_once(folder, which, make):
    path = FILES[which](folder)
    aside = folder.parent / "aside"
    path.rename(aside)
    make(path, aside)
    if which not in ("spec", "manifest"):
        with pytest.raises((StoreError, UnknownNameError)):
            ActivationStore.open(folder).read(SITE)
    assert complaints(folder)


def reseal(path, **changes):
    content = json.loads(path.read_text())
    del content["seal"], content["format"]
    path.write_bytes(seal(content | changes, FORMAT))


@each_row("changes")
def test_a_record_that_leads_astray_commits_nothing(folder, changes, refused):
    reseal(FILES["record"](folder), **changes)
    store = ActivationStore.open(folder)
    assert store.missing(SITE) == (1,)
    assert complaints(folder)
    refused(store.read, SITE)
    expected = bytes_of(folder)
    CONTENT.write(LocalFiles(folder))
    assert ActivationStore.open(folder).missing(SITE) == ()
    assert bytes_of(folder) != expected


@each_row("part, changes")
def test_a_spec_that_leads_astray_is_damaged(folder, part, changes):
    path = FILES["spec"](folder)
    reseal(path, **{part: json.loads(path.read_text())[part] | changes})
    with pytest.raises(DamagedError):
        ActivationStore.open(folder).read(SITE)
    assert complaints(folder) in ({"spec.json"}, {"rows.safetensors"})
    assert "damaged" in summarize(folder).what


def test_another_layout_of_the_right_size_gives_no_rows(folder, refused):
    path = FILES["layout"](folder)
    content = bytearray(path.read_bytes())
    order = slice(-8 * 8, -2 * 8)  # before the two sizes of shards
    content[order] = np.frombuffer(bytes(content[order]), np.int64)[::-1].tobytes()
    path.write_bytes(content)
    for mapped in (True, False):
        refused(ActivationStore.open(folder, mapped=mapped).read, SITE)


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "a\\b", "a\0b"])
def test_no_name_leads_out_of_a_cache(folder, name, refused):
    refused(checked, name)
    refused(ActivationStore.open(folder).read, name)


@pytest.mark.parametrize("other", [FORMAT - 1, FORMAT + 1])
@pytest.mark.parametrize("which", ["spec", "record", "manifest"])
def test_a_file_of_another_format_is_refused_and_kept(folder, which, other):
    path = FILES[which](folder)
    path.write_text(json.dumps({"format": other, "content": "of another release"}))
    before = path.read_bytes()
    with pytest.raises(StoreError, match="release that wrote it"):
        find_damage(ActivationStore.open(folder))
    with pytest.raises(StoreError, match=f"format {other}"):
        CONTENT.write(LocalFiles(folder))
    assert path.read_bytes() == before


def test_a_strangers_cache_is_pinned_by_its_root_and_forged_records_are_detected(folder, refused):
    store = ActivationStore.open(folder)
    root = store.manifest().root
    assert np.array_equal(ActivationStore.open(folder, root=root).read(SITE), CONTENT.values[SITE])
    for shard in (0, 1):
        record_file(folder, SITE, shard).unlink()
        store.commit(SITE, shard, CONTENT.values[SITE][store.shards[shard]] + 1)
    refused(ActivationStore.open(folder, root=root).read, SITE)
    store.seal()
    with pytest.raises(StoreMismatchError, match=rf"has the root digest \w+, expected {root}"):
        ActivationStore.open(folder, root=root)


@pytest.mark.parametrize("mapped", [True, False])
def test_a_damaged_shard_is_refused_before_its_first_row_unless_the_disk_is_trusted(folder, mapped):
    flip_last_bit(FILES["rows"](folder))
    damaged = f"{FILES['rows'](folder).name} is damaged: its digest does not match"
    store = ActivationStore.open(folder, mapped=mapped)
    with pytest.raises(DamagedError, match=damaged):
        store.read(SITE)
    with pytest.raises(DamagedError, match=damaged):
        store.read(SITE, store.shards[1], partial=True)
    store.read(SITE, store.shards[0])
    trusting = ActivationStore.open(folder, mapped=mapped, verify=False)
    assert trusting.read(SITE).shape == CONTENT.values[SITE].shape


@pytest.mark.parametrize("mapped", [True, False])
def test_a_shard_is_digested_once_and_never_by_its_writer(folder, monkeypatch, mapped):
    digested = []

    def counting(chunks):
        digested.append(1)
        return digest(chunks)

    monkeypatch.setattr("probekit.activations.store.digest", counting)
    store = ActivationStore.open(folder, mapped=mapped)
    for _ in range(3):
        for shard in store.shards:
            store.read(SITE, shard)
    assert len(digested) == 1 + len(store.shards)  # the first is that of the layout
    store.verify([SITES[1]])
    n_digested = len(digested)
    copy.copy(store).read(SITES[1])  # a copy is made as another process receives it
    shutil.rmtree(folder)
    CONTENT.write(LocalFiles(folder)).read(SITE)
    assert len(digested) == n_digested + 1  # the layout of the new store
