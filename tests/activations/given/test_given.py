"""Arrays in memory and on disk: every problem names the site and the row."""

import errno
import os
import pickle
import tempfile
import weakref

import numpy as np
import pytest
import safetensors.torch
import torch
from safetensors.numpy import save_file

from probekit.activations.given import given as given_module
from probekit.activations.given.given import open_activations, placed_sites
from probekit.errors import DataError, StoreError
from tests.stored import each_line

ROWS = np.random.default_rng(0).normal(size=(10, 4)).astype(np.float32)


def with_one(value, dtype=np.float32):
    rows = ROWS.astype(dtype)
    rows[3, 1] = value
    return rows


def names(given):
    return [site.text for site in given.sites]


@pytest.mark.parametrize(
    "activations",
    [
        {"layer_0": ROWS},
        {0: ROWS},
        {"layer_0": torch.from_numpy(ROWS)},
        {"layer_0": torch.from_numpy(ROWS).requires_grad_()},
        {"layer_0": ROWS.astype(np.float64)},
        {"layer_0": np.asfortranarray(ROWS)},
        {"layer_0": ROWS.tolist()},
    ],
)
def test_containers_and_types_do_not_change_the_digest(activations):
    given = open_activations(activations)
    assert given.digest == open_activations({"layer_0": ROWS}).digest
    np.testing.assert_array_equal(given.read("layer_0"), ROWS)


@pytest.mark.parametrize(
    ("change", "dtype"),
    [
        (lambda X: np.column_stack([X, np.full(len(X), 0.1)]), np.float32),
        (lambda X: 1e-300 * X, np.float64),
        (lambda X: 1e-200 * X, np.float64),
        (lambda X: 1e-30 * X, np.float32),
        (lambda X: X + 1e6, np.float64),
    ],
)
def test_float64_is_kept_where_a_varying_feature_needs_it(change, dtype):
    assert open_activations({"a": change(ROWS.astype(np.float64))}).arrays["a"].floats == dtype


def test_numbers_and_names_change_the_digest():
    digests = {
        open_activations(one).digest
        for one in ({"a": ROWS}, {"b": ROWS}, {"a": with_one(0)}, {"a": ROWS.reshape(20, 2)})
    }
    assert len(digests) == 4


def test_bfloat16_and_float16_are_read_exactly():
    for dtype in (torch.bfloat16, torch.float16):
        values = torch.from_numpy(ROWS).to(dtype)
        read = open_activations({"a": values}).read("a")
        np.testing.assert_array_equal(read, values.float().numpy())


def test_bfloat16_in_a_npy_file_has_no_type_of_its_own(tmp_path):
    values = torch.from_numpy(ROWS).bfloat16()
    untyped = values.view(torch.uint16).numpy().view("V2")  # as NumPy saves it for ml_dtypes
    np.save(tmp_path / "a.npy", untyped)
    for given in (open_activations(tmp_path), open_activations({"a": untyped})):
        np.testing.assert_array_equal(given.read("a"), values.float().numpy())
        assert given.arrays["a"].dtype == "bfloat16"


@each_line("activations")
def test_unusable_activations_are_refused(activations, refused):
    refused(open_activations, eval(activations))


def test_globs_choose_sites(refused):
    layers = dict.fromkeys(range(3), ROWS)
    assert names(open_activations(layers, sites=["layer_[12]"])) == ["layer_1", "layer_2"]
    refused(open_activations, layers, sites=["layr_1"])


def test_positions_are_one_for_all_rows_or_one_for_each():
    values = np.random.default_rng(1).normal(size=(6, 5, 3)).astype(np.float32)
    last = open_activations({"a": values}, position=-1).read("a")
    np.testing.assert_array_equal(last, values[:, -1])
    each = [0, 1, 2, 3, 4, -1]
    own = open_activations({"a": values}, position=each).read("a")
    np.testing.assert_array_equal(own, values[np.arange(6), each])


@pytest.mark.parametrize("position", [5, -6, 1.5, [0, 1], [0, 0, 0, 0, 0, 5], "last"])
def test_positions_outside_are_refused(position, refused):
    refused(open_activations, {"a": np.zeros((6, 5, 3), np.float32)}, position=position)


class Cache:
    """Like the ActivationCache of TransformerLens: no Mapping, tensors with a batch axis."""

    def __init__(self, values):
        self.cache_dict = values

    def __getitem__(self, key):
        return self.cache_dict[key]

    def items(self):
        return self.cache_dict.items()


def test_a_cache_of_hook_names_is_placed_like_a_run(refused):
    cache = Cache(
        {
            "blocks.1.hook_resid_post": torch.rand(2, 5, 7),
            "blocks.0.attn.hook_z": torch.rand(2, 5, 3, 7),
            "hook_embed": torch.rand(2, 5, 7),
        }
    )
    refused(open_activations, cache)
    given = open_activations(cache, position=-1)
    assert names(given) == ["hook_embed", "blocks.0.attn.hook_z", "blocks.1.hook_resid_post"]
    assert given.read("blocks.0.attn.hook_z").shape == (2, 21)
    assert given.axis_sizes == {"n_heads": 3, "d_head": 7}


@pytest.fixture
def folder(tmp_path):
    for number in (10, 2):
        np.save(tmp_path / f"layer_{number}.npy", ROWS + number)
    (tmp_path / "notes.txt").write_text("not an array")
    return tmp_path


def test_a_folder_is_read_in_natural_order(folder):
    given = open_activations(folder)
    assert names(given) == ["layer_2", "layer_10"]
    assert given.digest == open_activations({"layer_2": ROWS + 2, "layer_10": ROWS + 10}).digest


def test_a_zarr_group_is_a_folder(tmp_path):
    group = pytest.importorskip("zarr").open_group(str(tmp_path / "acts.zarr"), mode="w")
    group.create_array("layer_0", data=ROWS)
    inside, itself = open_activations(tmp_path), open_activations(tmp_path / "acts.zarr")
    assert names(inside) == names(itself) == ["layer_0"]
    assert inside.digest == itself.digest == open_activations({"layer_0": ROWS}).digest


def test_a_site_in_two_files_is_refused(folder, refused):
    save_file({"layer_2": ROWS}, folder / "more.safetensors")
    refused(open_activations, folder)


def test_no_pickle_is_loaded(tmp_path, refused):
    class Harmful:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "harm"),)

    np.save(tmp_path / "a.npy", np.array([Harmful()], dtype=object), allow_pickle=True)
    refused(open_activations, tmp_path)
    (tmp_path / "a.npy").write_bytes(pickle.dumps(Harmful()))
    with pytest.raises(DataError, match=r"a.npy cannot be read"):
        open_activations(tmp_path)
    assert not (tmp_path / "harm").exists()


def test_links_out_of_the_folder_are_refused(folder, tmp_path_factory):
    secret = tmp_path_factory.mktemp("elsewhere") / "secret.npy"
    np.save(secret, ROWS)
    (folder / "layer_3.npy").symlink_to(secret)
    with pytest.raises(DataError, match=r"layer_3.npy leads out of"):
        open_activations(folder)


def test_a_missing_or_empty_folder_is_named(tmp_path, refused):
    refused(open_activations, tmp_path / "none")
    refused(open_activations, tmp_path)
    (tmp_path / "acts.pt").write_bytes(b"x")
    refused(open_activations, tmp_path)


def test_numbers_that_change_during_a_run_are_noticed(folder, refused):
    rows = open_activations(folder).read("layer_2")
    path = folder / "layer_2.npy"
    np.save(path, ROWS)
    later = path.stat().st_mtime_ns + 10**9  # file systems round the time of a change
    os.utime(path, ns=(later, later))
    refused(lambda: rows[:])


class OnlySlices:
    """An array as h5py gives it, whose rows must be read in order."""

    shape, dtype = ROWS.shape, ROWS.dtype

    def __getitem__(self, place):
        assert isinstance(place, slice)
        return ROWS[place]


@pytest.mark.parametrize("loaded", [0, 2**28])
@pytest.mark.parametrize("by", ["slices", "numpy", "torch", "npy", "safetensors", "bfloat16", "3d"])
def test_rows_are_read_by_their_numbers(tmp_path, monkeypatch, by, loaded):
    monkeypatch.setattr(given_module, "LOADED_BYTES", loaded)
    position, numbers = None, np.array([7, 2, 3, 9])
    expected, as_torch = ROWS, torch.from_numpy(ROWS)
    if by == "bfloat16":
        as_torch = as_torch.bfloat16()
        expected = as_torch.float().numpy()
    if by in ("safetensors", "bfloat16"):
        safetensors.torch.save_file({"a": as_torch, "b": as_torch + 1}, tmp_path / "x.safetensors")
    if by == "npy":
        np.save(tmp_path / "a.npy", ROWS)
    of_memory = {"slices": OnlySlices(), "numpy": ROWS, "torch": as_torch}
    if by == "3d":
        of_memory, position = {"3d": np.stack([ROWS, -ROWS], axis=1)}, [1] * len(ROWS)
        expected = -ROWS
    given = {"a": of_memory[by]} if by in of_memory else tmp_path
    rows = open_activations(given, position=position).read("a")
    assert (rows.shape, rows.dtype) == (ROWS.shape, np.float32)
    np.testing.assert_array_equal(rows[numbers], expected[numbers])
    np.testing.assert_array_equal(rows[2:5], expected[2:5])
    np.testing.assert_array_equal(rows[:], expected)


def test_a_full_disk_is_an_error_and_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    given = open_activations({"a": np.arange(1e6, dtype=np.float32).reshape(2000, 500)})

    def full(_rows, _dtype):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(given_module.np, "ascontiguousarray", full)
    with pytest.raises(StoreError, match=r"Cannot write .*rows.npy: No space left"):
        pickle.dumps(given.arrays)
    assert list(tmp_path.iterdir()) == []


def test_arrays_in_memory_are_pickled_as_files():
    given = open_activations({"a": np.arange(1e6, dtype=np.float32).reshape(2000, 500)})
    content = pickle.dumps(given.arrays)
    assert len(content) < 5000
    assert pickle.dumps(given.arrays) == content  # the file is written once
    (read,) = pickle.loads(content).values()  # noqa: S301  # written above
    np.testing.assert_array_equal(*read.parts(2000), given.read("a"))


def test_equal_rows_have_equal_keys():
    rows = ROWS.copy()
    rows[7] = rows[2]
    rows[5], rows[6] = 0.0, -0.0
    keys = open_activations({"a": rows, "b": np.where(rows == 0, 0, rows)}).row_keys
    assert {(i, j) for i in range(10) for j in range(i) if keys[i] == keys[j]} == {(7, 2), (6, 5)}


def places(*names):
    return [(site.component, site.layer, site.order) for site in placed_sites(names)]


def test_numbers_of_layers_are_found_among_other_numbers():
    assert places("gpt2_l_1", "gpt2_l_10") == [("gpt2_l_*", 1, 0), ("gpt2_l_*", 10, 1)]
    assert places("block.1.sub.0", "block.2.sub.0")[1] == ("block.*.sub.0", 2, 1)
    assert places("only_3") == [("only_*", 3, 0)]
    assert places("gpt2") == [("sites", None, 0)]


def test_two_kinds_of_site_share_the_layers():
    assert places("h.0.mlp", "h.0.attn", "h.1.mlp", "h.1.attn", "h.2.mlp") == [
        ("h.*.mlp", 0, 0),
        ("h.*.attn", 0, 0),
        ("h.*.mlp", 1, 1),
        ("h.*.attn", 1, 1),
        ("h.*.mlp", 2, 2),
    ]
    assert [order for _, _, order in places("a0", "a2", "b0", "b1", "b2")] == [0, 2, 0, 1, 2]


def test_names_without_a_number_join_the_only_line():
    assert places("embed", "l0", "l1", "final") == [
        ("l*", None, 0),
        ("l*", 0, 1),
        ("l*", 1, 2),
        ("l*", None, 3),
    ]


def test_the_given_order_is_kept_if_layers_do_not_ascend():
    given = open_activations(dict.fromkeys(("l9", "l1", "l5"), ROWS))
    assert [(site.text, site.order) for site in given.sites] == [("l9", 0), ("l1", 1), ("l5", 2)]


def test_a_digest_holds_few_parts_of_the_rows_at_once():
    alive, counts = weakref.WeakSet(), []

    class Part(np.ndarray):
        """A part that can be counted while it is in memory; arrays themselves have no hash."""

        __hash__ = object.__hash__

    def parts():
        for _ in range(20):
            part = np.ones((1, 4), np.float32).view(Part)
            alive.add(part)
            counts.append(len(alive))
            yield part

    given_module._digest(given_module.MemoryArray(np.ones((20, 4), np.float32), "a"), parts())
    assert len(counts) == 20
    assert max(counts) <= 3
