"""Files of a serving engine: which request serves a text, and what is refused.

No engine runs here: the files have the forms that vLLM documents, or those of hooks.
"""

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from probekit.activations.forward import make_batches
from probekit.activations.given.served.table import open_tensors
from probekit.activations.requests import read_requests
from probekit.data.positions import RowPlan
from tests.activations.captures import last_and_mean
from tests.stored import each_line

WIDTH, SITES = 5, ("blocks.0.hook_resid_pre", "blocks.3.hook_resid_post")
TEXTS = [np.array(ids) for ids in ([7, 3, 9, 4], [7, 3, 9, 4, 11], [8, 2], [7, 3, 9, 4])]
GENERATED = np.array([90, 91, 92])


def states_of(ids, dtype=torch.float32):
    """Hidden states (n_tokens, 2, WIDTH), as of a causal network: each depends on its prefix."""
    prefix = np.cumsum(np.asarray(ids) * (1 + np.arange(len(ids))))
    grid = torch.from_numpy(prefix)[:, None, None] + torch.arange(2.0 * WIDTH).view(1, 2, WIDTH)
    return torch.sin(grid).to(dtype)


def request(ids, dtype=torch.float32, **more):
    """The tensors of a request as vLLM's `extract_hidden_states` names them."""
    named = {"token_ids": torch.as_tensor(np.asarray(ids)), "hidden_states": states_of(ids, dtype)}
    return named | {name: torch.as_tensor(value).contiguous() for name, value in more.items()}


def write(folder, files, metadata=None):
    for number, tensors in enumerate(files):
        save_file(tensors, folder / f"cmpl-{number}.safetensors", metadata)
    return folder


def rows_of(folder, tokens=TEXTS, layers=("0", "1"), dtype="float32"):
    """Rows of the last token and the mean of each text, by site."""
    plan = last_and_mean(tokens)
    requests = read_requests(folder, WIDTH).choose(tokens, plan)
    assert requests.chosen.keys() == {ids.tobytes() for ids in tokens}
    requests = replace(requests, layers=dict(zip(SITES, layers, strict=True)))
    rows = {site: np.empty((len(plan.example), WIDTH), np.float32) for site in SITES}
    for batch in make_batches(tokens, plan, 8):
        for part in requests.run_batches([batch], plan, SITES, dtype):
            for site, values in part.arrays().items():
                rows[site][batch.rows] = values
    return rows


def expected_rows(tokens=TEXTS, dtype=torch.float32):
    states = [states_of(ids, dtype).float().numpy() for ids in tokens]
    pairs = [np.stack([one[-1], one.mean(0)]) for one in states]
    return dict(zip(SITES, np.concatenate(pairs).swapaxes(0, 1), strict=True))


def by_layer(name):
    def tensors(ids):
        states = states_of(ids)
        layers = {f"{name}3": states[:, 0].contiguous(), f"{name}12": states[:, 1].contiguous()}
        return {"input_ids": torch.as_tensor(ids)} | layers

    return [tensors(ids) for ids in TEXTS]


def in_shards(prefix):
    """Three requests in one file, one in another."""
    files = [{}, {}]
    for number, ids in enumerate(TEXTS):
        named = request(ids)
        name = number % 3 if prefix == "" else f"{prefix}{number}"
        files[number // 3] |= {f"{name}/{key}": tensor for key, tensor in named.items()}
    return files


def chunks(*, all_ids, size=2):
    """Each request in parts of two tokens, in no order, as chunked prefill may write them."""
    files = []
    for number, ids in enumerate(TEXTS):
        for start in range(0, len(ids), size):
            part = slice(start, start + size)
            ids_of_part = ids if all_ids else ids[part]
            tensors = {"token_ids": torch.as_tensor(ids_of_part), "start": torch.tensor(start)}
            tensors["hidden_states"] = states_of(ids)[part].contiguous()
            name = "" if all_ids else f"r{number}/"
            files.append({f"{name}{key}": tensor for key, tensor in tensors.items()})
    return files[::-1]


LAYOUTS = {
    "one file for each request": ([request(ids) for ids in TEXTS], ("0", "1")),
    "generated tokens": ([request([*ids, *GENERATED]) for ids in TEXTS], ("0", "1")),
    "a tensor for each layer": (by_layer("layers."), ("3", "12")),
    "modules of transformers": (by_layer("model.layers."), ("3", "12")),
    "several hidden states": (by_layer("hidden_states."), ("3", "12")),
    "shards with names": (in_shards("chat-"), ("0", "1")),
    "shards with numbers": (in_shards(""), ("0", "1")),
    "chunks with all ids": (chunks(all_ids=True), ("0", "1")),
    "chunks with their ids": (chunks(all_ids=False), ("0", "1")),
    "states after those of the prompt": (
        [
            {"prompt_token_ids": torch.tensor(ids), "layers.0": states_of([*ids, 5])[:, 0].clone()}
            for ids in TEXTS
        ],
        ("0", "0"),
    ),
    "a batch axis": (
        [request(i, token_ids=i[None], hidden_states=states_of(i)[None, :, 0]) for i in TEXTS],
        ("0", "0"),
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_texts_and_requests_are_joined_by_token_ids(name, tmp_path):
    files, layers = LAYOUTS[name]
    found, expected = rows_of(write(tmp_path, files), layers=layers), expected_rows()
    for site, layer in zip(SITES, layers, strict=True):
        rows = expected[SITES[layers.index(layer)]]
        np.testing.assert_allclose(found[site], rows, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_read_exactly(tmp_path, dtype):
    half = getattr(torch, dtype)
    write(tmp_path, [request(ids, half) for ids in TEXTS])
    found, expected = rows_of(tmp_path), expected_rows(dtype=half)
    for site in SITES:  # a mean in float32 is not a number of the type
        assert np.array_equal(found[site][::2], expected[site][::2])


@pytest.mark.parametrize("name", ["", "chat-"])
def test_the_names_of_layers_in_the_metadata_are_those_of_all_requests_of_the_file(tmp_path, name):
    metadata = {"layer_ids": "[9, 24]", "start": "7"}  # a start would be that of one request
    write(tmp_path, in_shards(name), metadata)
    found = rows_of(tmp_path, layers=("9", "24"))
    np.testing.assert_allclose(found[SITES[1]], expected_rows()[SITES[1]], rtol=1e-6, atol=1e-7)


def test_as_many_layers_of_one_token_as_ids_are_no_batch_of_tokens(tmp_path):
    one = request(TEXTS[2], hidden_states=states_of(TEXTS[2])[1:])
    assert one["hidden_states"].shape == (1, len(TEXTS[2]), WIDTH)
    plan = last_and_mean(TEXTS[2:3])
    assert not read_requests(write(tmp_path, [one]), WIDTH).choose(TEXTS[2:3], plan).chosen


def test_sampled_rows_are_read_at_tokens_of_their_own_and_at_the_last(tmp_path):
    plan = last_and_mean(TEXTS)  # all means begin at token 0
    requests = read_requests(write(tmp_path, map(request, TEXTS)), WIDTH).choose(TEXTS, plan)
    states, ids, at = requests.sample(TEXTS, plan, 8)
    assert at[:, -1].tolist() == [len(one) - 1 for one in ids]
    assert set(at[3]) == set(range(len(TEXTS[1])))  # all tokens of the longest mean
    assert set(at[2]) == {len(TEXTS[1]) - 1}
    for row, one in enumerate(ids):
        expected = states_of(np.array(one))[at[row], 1]
        np.testing.assert_allclose(states["1"][row], expected, rtol=1e-6, atol=1e-7)


def test_later_tokens_and_other_requests_are_counted(tmp_path, snapshot):
    # The first text begins the second one, whose request serves both.
    write(tmp_path, [request([*TEXTS[1], *GENERATED]), request(TEXTS[2]), request([50, 51])])
    assert read_requests(tmp_path, WIDTH).choose(TEXTS, last_and_mean(TEXTS)).described == snapshot


def test_the_digest_is_that_of_the_contents_of_used_files(tmp_path):
    plan = last_and_mean(TEXTS)

    def digest(name, files):
        (tmp_path / name).mkdir()
        return read_requests(write(tmp_path / name, files), WIDTH).choose(TEXTS, plan).origin

    files = [request(ids) for ids in TEXTS[:3]]
    first = digest("a", files)
    assert digest("b", [request([50, 51]), *files[::-1]]) == first
    assert digest("c", [request(ids, torch.bfloat16) for ids in TEXTS[:3]]) != first


def test_a_row_of_a_token_without_states_is_not_served(tmp_path):
    states = {"hidden_states": states_of(TEXTS[1])[2:].contiguous()}
    requests = read_requests(write(tmp_path, [request(TEXTS[1], start=2) | states]), WIDTH)
    for position, is_served in ((1, False), (2, True), (4, True)):
        plan = RowPlan(np.array([0]), np.array([position]), np.array([0, 1]))
        assert bool(requests.choose([TEXTS[1]], plan).chosen) == is_served


def why(folder, ids=TEXTS[1]):
    """Raise an error with the reason why no request serves a text."""
    requests = read_requests(folder, WIDTH).choose([ids], last_and_mean([ids]))
    assert not requests.chosen
    raise LookupError(requests.why_unserved(ids))


LONG = TEXTS[1]
UNSERVED = {
    "prefix cache": request(LONG, hidden_states=states_of(LONG)[2:]),
    "prefix cache of BOS": [request(LONG, hidden_states=states_of(LONG)[1:]), request(TEXTS[2])],
    "no state of the last token of each request": [
        request([*ids, 5], hidden_states=states_of(ids)) for ids in TEXTS[1:3]
    ],
    "start, and no state of the last token": request(
        LONG, start=0, hidden_states=states_of(LONG)[:4]
    ),
    "axes of layers and tokens swapped": [
        request(ids, hidden_states=states_of(ids).swapaxes(0, 1)) for ids in (LONG, [4, 5, 6])
    ],
    "axes swapped, no state of the last token": [
        request([*ids, 5], hidden_states=states_of(ids).swapaxes(0, 1)) for ids in (LONG, [4, 5, 6])
    ],
    "axes swapped, one with as many ids as layers": [
        request(ids, hidden_states=states_of(ids).swapaxes(0, 1)) for ids in (LONG, [4, 5])
    ],
    "prefix cache of requests of one length": [
        request([*ids, 5], hidden_states=states_of(ids)[1:]) for ids in (LONG, LONG[::-1])
    ],
    "prefix cache and later tokens": request(
        [*LONG, *GENERATED], hidden_states=states_of([*LONG, *GENERATED])[3:]
    ),
    "no BOS": request(LONG[1:]),
    "a BOS": request([50, *LONG]),
    "the last chunk": request(LONG[3:]),
    "cut": request(LONG[:3]),
    "another text": request([1, 2, 3]),
}


@pytest.mark.parametrize("name", UNSERVED)
def test_the_reason_why_a_text_is_not_served_is_named(name, tmp_path, refused):
    files = UNSERVED[name]
    refused(why, write(tmp_path, files if isinstance(files, list) else [files]))


FAULTS = {
    "no ids": [{"hidden_states": states_of([1, 2])}],
    "more states than ids": [request([1], hidden_states=states_of([1, 2, 3]))],
    "more layers than ids": [request([1], hidden_states=torch.zeros(2, 1, WIDTH))],
    "another width": [request(LONG), request([1, 2], hidden_states=torch.zeros(2, 2, 16))],
    "another shape": [request([1, 2], hidden_states=torch.zeros(2, 1, 1, 1))],
    "integers": [request([1, 2], hidden_states=torch.zeros(2, 2, 5).long())],
    "a chunk without a name": [request([9, 4], start=2)],
    "a gap between chunks": [one for one in chunks(all_ids=False) if one.get("r1/start", 0) != 2],
    "ids under two names": [request(LONG, prompt_token_ids=LONG[:3])],
    "hidden states under two names": [request(LONG) | {"layers.0": states_of(LONG)[:, 0].clone()}],
    "fractions as ids": [request(LONG, token_ids=LONG + 0.7)],
    "one layer twice": [
        {"token_ids": torch.tensor(LONG)}
        | {f"layers.{n}": states_of(LONG)[:, 0].clone() for n in ("7", "07")}
    ],
    "truth values as ids": [request(LONG, token_ids=LONG > 0)],
    "fewer names than layers": [request(LONG, layer_ids=[9])],
    "more names than layers": [request(LONG, layer_ids=[9, 24, 30])],
    "a name twice": [request(LONG, layer_ids=[9, 9])],
    "a negative start": [request(LONG, start=-1)],
    "a start for each token": [request(LONG, start=[0, 1])],
    "states after the last id": [
        request(LONG, start=3, hidden_states=states_of(LONG)[:3])
    ],
    "states after the last id, which is not of the prompt": [
        request(LONG, prompt_len=2, hidden_states=states_of([*LONG, 5]))
    ],
    "NaN": [request(ids, hidden_states=states_of(ids) / (ids[:, None, None] != 9))
            for ids in map(torch.as_tensor, TEXTS)],
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_files_that_cannot_be_used_are_refused(name, tmp_path, refused):
    refused(rows_of, write(tmp_path, FAULTS[name]))


def test_names_of_requests_decide_nothing_without_start(tmp_path):
    """Engines count from 0 in each run."""
    for number, ids in enumerate(TEXTS):
        metadata = {"request_id": "cmpl-0", "start": "0"} if number else {"request_id": "cmpl-0"}
        save_file(request(ids), tmp_path / f"{number}.safetensors", metadata)
    found = rows_of(tmp_path)
    for site, rows in expected_rows().items():
        np.testing.assert_allclose(found[site], rows, rtol=1e-6, atol=1e-7)


def test_a_truncated_file_is_refused(tmp_path, refused):
    write(tmp_path, [request(ids) for ids in TEXTS])
    path = tmp_path / "cmpl-2.safetensors"
    path.write_bytes(path.read_bytes()[:-8])
    refused(read_requests, tmp_path, WIDTH)


@pytest.mark.parametrize("when", ["header", "between", "states"])
def test_a_file_that_changes_during_the_read_is_refused(tmp_path, refused, monkeypatch, when):
    write(tmp_path, [request(TEXTS[2])])

    @contextmanager
    def opened(path):
        with open_tensors(path) as file:
            write(tmp_path, [request([*TEXTS[2], 5])])
            yield file

    found = read_requests(tmp_path, WIDTH).all
    if when == "between":
        write(tmp_path, [request([*TEXTS[2], 5])])
    else:
        monkeypatch.setattr("probekit.activations.requests.open_tensors", opened)
    if when == "header":
        found = read_requests(tmp_path, WIDTH).all
        monkeypatch.setattr("probekit.activations.requests.open_tensors", open_tensors)
    refused(found[0].states, ["0"], np.array([0]))


@each_line("entry")
def test_entries_of_metadata_that_are_no_numbers_are_refused(entry, tmp_path, refused):
    refused(read_requests, write(tmp_path, [request(LONG)], dict([entry.split(": ")])), WIDTH)


def test_hidden_files_and_folders_with_the_name_of_files_are_no_requests(tmp_path, refused):
    (tmp_path / "folder.safetensors").mkdir()
    for name in (".tmp.safetensors", ".unfinished/cmpl-0.safetensors"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"unfinished")
    refused(read_requests, tmp_path, WIDTH)
    write(tmp_path / "folder.safetensors", [request(ids) for ids in TEXTS])
    assert rows_of(tmp_path)[SITES[0]].shape == (8, WIDTH)


def test_pickles_are_not_opened(tmp_path, refused):
    (tmp_path / "data_0.pt").write_bytes(b"anything")
    refused(read_requests, tmp_path, WIDTH)
