"""A store takes and returns exactly the committed rows; damage is refused or rewritten."""

import dataclasses
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from probekit.activations.local import LocalFiles
from probekit.activations.store import ActivationStore
from probekit.activations.upkeep import collect_garbage
from probekit.errors import StoreError, UnknownNameError
from probekit.model.families.gpt2 import GPT2
from tests.activations.captures import SITES as MODEL_SITES
from tests.activations.captures import files, flip_last_bit, record_file, run, shard_file
from tests.activations.small_store import CONTENT, IDENTITY, SITE, SITES, Content
from tests.model.reference import TINY


def test_what_a_killed_writer_left_half_written_is_swept(tmp_path, model):
    store = run(tmp_path, model).store
    left = [store.folder / name for name in (".rows.safetensors.a9b8", f"{MODEL_SITES[0]}/.0.x1y2")]
    for path in left:
        path.write_bytes(b"half")
    with store.files.draft(f"{MODEL_SITES[0]}/alive") as alive:
        alive.write(b"a living writer holds the lock of its file")
        run(tmp_path, model, sites=(*MODEL_SITES, "blocks.1.hook_mlp_out"))
        assert not any(path.exists() for path in left)
        store.files.publish(alive, f"{MODEL_SITES[0]}/alive")


DAMAGES = {
    "truncated": lambda rows, record: rows.write_bytes(rows.read_bytes()[:-7]),
    "lost": lambda rows, record: rows.unlink(),
    "record lost": lambda rows, record: record.unlink(),
    "record broken": lambda rows, record: record.write_text("{"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_shard_is_recomputed(tmp_path, model, damage):
    first = run(tmp_path, model)
    expected = files(first.store.folder)
    paths = (of(first.store.folder, MODEL_SITES[3], 2) for of in (shard_file, record_file))
    DAMAGES[damage](*paths)
    with pytest.raises(UnknownNameError, match="does not contain all of"):
        first.store.read(MODEL_SITES[3])
    again = run(tmp_path, model)
    assert again.computed == 1
    assert files(again.store.folder) == expected


def test_one_flipped_bit_is_detected_and_its_file_named(tmp_path, model):
    store = run(tmp_path, model).store
    store.verify()
    flip_last_bit(shard_file(store.folder, MODEL_SITES[-1], 1))
    message = r"1 damaged file: .*hook_resid_post/00001\.\w+\.safetensors"
    with pytest.raises(StoreError, match=message):
        store.verify()
    with pytest.raises(StoreError, match=message):  # no run takes such rows for numbers
        run(tmp_path, model)
    # Nor one that resumes the site after a kill.
    record_file(store.folder, MODEL_SITES[-1], 2).unlink()
    with pytest.raises(StoreError, match=message):
        run(tmp_path, model)


def test_rows_of_another_site_or_store_are_recomputed(tmp_path, model):
    store = run(tmp_path, model).store
    expected = files(store.folder)
    first, second = (store.folder / site for site in (MODEL_SITES[0], MODEL_SITES[-1]))
    first.rename(tmp_path / "aside")
    second.rename(first)
    (tmp_path / "aside").rename(second)
    assert run(tmp_path, model).computed == 2 * len(store.shards)
    other = run(tmp_path, GPT2(TINY, seed=8)).store
    shutil.rmtree(first)
    shutil.copytree(other.folder / MODEL_SITES[0], first)
    assert run(tmp_path, model).computed == len(store.shards)
    assert expected.items() <= files(store.folder).items()
    collect_garbage(store.folder)  # files of the other writers
    assert files(store.folder) == expected


@pytest.mark.parametrize("content", ["{", "[]", "[" * 100_000, None])
def test_a_damaged_manifest_is_rewritten(tmp_path, model, content):
    path = run(tmp_path, model).store.folder / "manifest.json"
    whole = path.read_bytes()
    path.unlink() if content is None else path.write_text(content)
    assert run(tmp_path, model).computed == 0
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    "rows",
    [[True, False], [0.0], [-1], [10**6], [[0]], ["a"], [None], [[0], [1, 2]], "0", slice(0, 2)],
)
def test_rows_are_read_by_number_only(folder, rows, refused):
    store = ActivationStore.open(str(folder), mapped=False)
    assert np.array_equal(store.read(SITE, [4, 0, 5]), CONTENT.values[SITE][[4, 0, 5]])
    refused(store.read, SITE, rows)
    assert len(store.read(SITE, [])) == 0
    with pytest.raises(UnknownNameError, match="Nearest: hook_embed"):
        store.read("hook_embd")


def test_two_caches_of_the_same_name_are_never_mixed(tmp_path, folder, refused):
    other = dataclasses.replace(IDENTITY, weights="others", dtype="float16")
    refused(ActivationStore.create, LocalFiles(folder), other, CONTENT.plan, CONTENT.shards)
    refused(Content(n_shards=3, n_rows=2).create, LocalFiles(folder))


def test_shards_of_rows_of_several_kinds_are_never_one_array(tmp_path, refused):
    store = CONTENT.create(LocalFiles(tmp_path / "key"))
    rows = [CONTENT.values[SITE][shard] for shard in store.shards]
    store.commit(SITE, 0, rows[0])
    store.commit(SITE, 1, rows[1][:, :1])
    refused(store.read, SITE)


def test_a_shard_takes_its_rows_and_no_others(tmp_path):
    store = CONTENT.create(LocalFiles(tmp_path / "key"))
    rows = CONTENT.values[SITE][:3]

    def write(parts):
        with store.writing([SITE], 0) as writers:
            for part in parts:
                writers[SITE].append(part)

    for parts in ([rows[:2]], [rows, rows[:1]], [rows[:1], rows[1:, :1]], [rows.astype("f8")], []):
        with pytest.raises(AssertionError):
            write(parts)
    assert store.missing(SITE) == (0, 1)
    assert not list(tmp_path.rglob("*.safetensors.*"))


@pytest.mark.parametrize("mapped", [True, False])
def test_every_finite_bfloat16_is_stored_and_read_exactly(tmp_path, mapped):
    numbers = torch.from_numpy(np.arange(2**16).astype(np.uint16)).view(torch.bfloat16)
    finite = numbers[numbers.isfinite()].reshape(2, -1, 64)  # with subnormals and -0.0
    content = Content(n_rows=finite.shape[1])
    identity = dataclasses.replace(IDENTITY, dtype="bfloat16")
    files = LocalFiles(tmp_path / "key", mapped=mapped)
    store = ActivationStore.create(files, identity, content.plan, content.shards)
    for shard, rows in enumerate(finite.float().numpy()):
        store.commit(SITE, shard, rows)
    read = ActivationStore.open(files).read(SITE, np.concatenate(content.shards))
    expected = finite.float().numpy().reshape(read.shape)
    assert np.array_equal(read.view(np.uint32), expected.view(np.uint32))
    shard = load_file(shard_file(store.folder, SITE, 0))["rows"]  # as any other tool reads it
    assert torch.equal(shard.view(torch.int16), finite[0].view(torch.int16))
    with pytest.raises(AssertionError, match="not rounded to bfloat16"):
        store.commit(SITE, 0, np.full((finite.shape[1], 64), 0.1, np.float32))


def test_a_partial_cache_is_read_only_on_request(tmp_path, refused):
    store = CONTENT.create(LocalFiles(tmp_path / "key"))
    rows = store.shards[1]
    store.commit(SITE, 1, CONTENT.values[SITE][rows])
    refused(store.read, SITE)
    assert sorted(rows) == store.rows_at(SITE).tolist()
    assert np.array_equal(store.read(SITE, partial=True), CONTENT.values[SITE][np.sort(rows)])
    assert np.array_equal(store.read(SITE, rows, partial=True), CONTENT.values[SITE][rows])
    refused(store.read, SITE, store.shards[0], partial=True)
    refused(store.read, SITES[1], partial=True)
