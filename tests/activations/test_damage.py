"""All damage to files, accidental or malicious, is detected and never returned as data."""

import copy
import dataclasses
import json
import os
import resource
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest

from probekit.activations.files.local import LocalFiles, checked
from probekit.activations.store.layout import ArrayHeader, header
from probekit.activations.store.records import ShardRecord
from probekit.activations.store.store import ActivationStore
from probekit.activations.upkeep.maintenance import find_damage, repair_cache, summarize
from probekit.errors import (
    ConfigError,
    DamagedError,
    StoreError,
    StoreMismatchError,
    UnknownNameError,
)
from probekit.provenance import digest
from probekit.sealed import FORMAT, seal
from tests.activations.captures import files as bytes_of
from tests.activations.captures import record_file, shard_file
from tests.activations.small_store import IDENTITY, SITES, Content

CONTENT = Content()
SITE = SITES[0]


@pytest.fixture
def folder(tmp_path):
    """A finished small store."""
    CONTENT.write(LocalFiles(tmp_path / "key"))
    return tmp_path / "key"


FILES = {
    "spec": lambda folder: folder / "spec.json",
    "layout": lambda folder: folder / "rows.safetensors",
    "record": lambda folder: record_file(folder, SITE, 1),
    "rows": lambda folder: shard_file(folder, SITE, 1),
    "manifest": lambda folder: folder / "manifest.json",
}


def complaints(folder):
    """Return the names of the damaged files that `verify` reports."""
    try:
        store = ActivationStore.open(folder)
    except DamagedError:
        return {"spec.json"}
    return {damage.file for damage in find_damage(store)}


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
def test_an_unexpected_header_is_never_parsed(folder, damage):
    path = FILES["rows"](folder)
    content = bytearray(path.read_bytes())
    start = 0 if "length" in damage else 8
    content[start : start + len(HEADERS[damage])] = HEADERS[damage]
    path.write_bytes(content[: len(path.read_bytes())])
    with pytest.raises(DamagedError, match="header"):
        ActivationStore.open(folder, mapped=True).read(SITE)
    with pytest.raises(DamagedError, match="header"):
        ActivationStore.open(folder, mapped=False).read(SITE)
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
    path.write_bytes(seal(content | changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"site": "../../elsewhere"},
        {"digest": "../../../elsewhere"},
        {"shape": [3, -2]},
        {"shape": [3, 2**62]},
        {"shape": []},
        {"shape": [3, "2"]},
        {"dtype": "I64"},
        {"dtype": "../F32"},
        {"dtype": "F16"},
        {"digest": int("1" * 64)},
        {"shard": 0},
        {"store": "another"},
        {"more": 1},
    ],
    ids=str,
)
def test_a_record_that_leads_astray_commits_nothing(folder, changes):
    path = FILES["record"](folder)
    reseal(path, **changes)
    store = ActivationStore.open(folder)
    assert store.missing(SITE) == (1,)
    assert complaints(folder)
    with pytest.raises(UnknownNameError, match="3 of 6 rows are stored"):
        store.read(SITE)
    expected = bytes_of(folder)
    CONTENT.write(LocalFiles(folder))
    assert ActivationStore.open(folder).missing(SITE) == ()
    assert bytes_of(folder) != expected


@pytest.mark.parametrize(
    ("part", "changes"),
    [
        ("rows", {"rows": "6"}),
        ("rows", {"rows": -6}),
        ("rows", {"rows": 10**30}),
        ("rows", {"shards": 2.0}),
        ("rows", {"shards": 10**12}),
        ("rows", {"positions": None}),
        ("rows", {"digest": None}),
        ("identity", {"dtype": "int8"}),
        ("identity", {"config": []}),
    ],
    ids=str,
)
def test_a_spec_that_leads_astray_is_damaged(folder, part, changes):
    path = FILES["spec"](folder)
    reseal(path, **{part: json.loads(path.read_text())[part] | changes})
    with pytest.raises(DamagedError):
        ActivationStore.open(folder).read(SITE)
    assert complaints(folder) in ({"spec.json"}, {"rows.safetensors"})
    assert "damaged" in summarize(folder).what


def test_another_layout_of_the_right_size_gives_no_rows(folder):
    path = FILES["layout"](folder)
    content = bytearray(path.read_bytes())
    order = slice(-8 * 8, -2 * 8)  # before the two sizes of shards
    content[order] = np.frombuffer(bytes(content[order]), np.int64)[::-1].tobytes()
    path.write_bytes(content)
    for mapped in (True, False):
        with pytest.raises(
            DamagedError, match=r"rows\.safetensors is damaged: it is missing, or not"
        ):
            ActivationStore.open(folder, mapped=mapped).read(SITE)


def test_shards_of_rows_of_several_kinds_are_never_one_array(tmp_path):
    store = CONTENT.create(LocalFiles(tmp_path / "key"))
    rows = [CONTENT.values[SITE][shard] for shard in store.shards]
    with pytest.raises(ConfigError, match="This store holds float32 rows, not float16"):
        store.commit(SITE, 0, rows[0].astype(np.float16))
    store.commit(SITE, 0, rows[0])
    store.commit(SITE, 1, rows[1][:, :1])
    with pytest.raises(DamagedError, match=r"row shapes: \[\(1,\), \(2,\)\]"):
        store.read(SITE)


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "a\\b", "a\0b"])
def test_no_name_leads_out_of_a_cache(folder, name):
    with pytest.raises(DamagedError, match="not a valid file name"):
        checked(name)
    with pytest.raises((DamagedError, UnknownNameError)):
        ActivationStore.open(folder).read(name)


@pytest.mark.parametrize("which", ["spec", "record", "manifest"])
def test_a_file_of_a_future_format_is_refused_and_kept(folder, which):
    path = FILES[which](folder)
    path.write_text(json.dumps({"format": FORMAT + 1, "content": "of tomorrow"}))
    future = path.read_bytes()
    with pytest.raises(StoreError, match="newer one"):
        find_damage(ActivationStore.open(folder))
    with pytest.raises(StoreError, match=f"format {FORMAT + 1}"):
        CONTENT.write(LocalFiles(folder))
    assert path.read_bytes() == future


def test_two_caches_of_the_same_name_are_never_mixed(tmp_path, folder):
    other = dataclasses.replace(IDENTITY, weights="others")
    with pytest.raises(StoreMismatchError, match="weights: stored 'w', expected 'others'"):
        ActivationStore.create(LocalFiles(folder), other, CONTENT.plan, CONTENT.shards)
    moved = Content(n_shards=3, n_rows=2)
    with pytest.raises(StoreMismatchError, match="layout"):
        moved.create(LocalFiles(folder))


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


def test_a_strangers_cache_is_pinned_by_its_root(folder):
    root = ActivationStore.open(folder).manifest().root
    assert np.array_equal(ActivationStore.open(folder, root=root).read(SITE), CONTENT.values[SITE])
    with pytest.raises(StoreMismatchError, match=f"has the root digest {root}, expected abc"):
        ActivationStore.open(folder, root="abc")
    flip_last_bit(FILES["rows"](folder))
    with pytest.raises(DamagedError, match="digest"):
        ActivationStore.open(folder, root=root).read(SITE)


def flip_last_bit(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


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

    monkeypatch.setattr("probekit.activations.store.reader.digest", counting)
    store = ActivationStore.open(folder, mapped=mapped)
    for _ in range(3):
        for shard in store.shards:
            store.read(SITE, shard)
    assert len(digested) == len(store.shards)
    store.verify([SITES[1]])
    n_digested = len(digested)
    copy.copy(store).read(SITES[1])  # a copy is made as another process receives it
    shutil.rmtree(folder)
    CONTENT.write(LocalFiles(folder)).read(SITE)
    assert len(digested) == n_digested


def test_a_forged_record_is_detected(folder):
    root = ActivationStore.open(folder).manifest().root
    values = CONTENT.values[SITE] + 1
    store = ActivationStore.open(folder)
    for shard in (0, 1):
        record_file(folder, SITE, shard).unlink()
        store.commit(SITE, shard, values[store.shards[shard]])
    with pytest.raises(DamagedError, match="differ from the manifest"):
        ActivationStore.open(folder, root=root).read(SITE)
    store.seal()
    with pytest.raises(StoreMismatchError):
        ActivationStore.open(folder, root=root)


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


def test_a_record_says_all_that_its_file_is():
    record = ShardRecord("k", "hook_embed", 0, "F16", (4, 3), "0" * 64)
    assert record.size == len(header({"rows": ArrayHeader("F16", (4, 3))})) + 24
