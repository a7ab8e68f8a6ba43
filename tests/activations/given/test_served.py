"""Files of other programs, made by their own writers, have the same rows as those of vLLM."""

import base64
import fcntl
import json
import os
import re
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import save, save_file

from probekit.activations.given.served.table import FORMATS
from probekit.activations.requests import read_requests
from probekit.errors import ConfigError, DataError, MissingError
from tests.activations.test_requests import TEXTS, WIDTH, expected_rows, rows_of, states_of

LIBRARIES = "PROBEKIT_LIBRARIES"  # folders of packages that no extra has


@pytest.fixture
def other_packages(monkeypatch):
    """Folders with packages that write files, in an environment variable, can be imported."""
    folders = os.environ.get(LIBRARIES, "")
    if not folders:
        pytest.skip(f"{LIBRARIES} names no folders of vllm_lens, transformer_lens and nnsight")
    before = set(sys.modules)
    for folder in folders.split(os.pathsep):
        monkeypatch.syspath_prepend(folder)
    yield
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in {"vllm_lens", "transformer_lens", "nnsight"}:
            del sys.modules[name]


def padded(side):
    """Ids, attention mask and hidden states of a batch; padding has NaN."""
    longest = max(map(len, TEXTS))
    ids, mask = np.zeros((2, len(TEXTS), longest), dtype=np.int64)
    states = np.full((len(TEXTS), longest, 2, WIDTH), np.nan, dtype=np.float32)
    for row, text in enumerate(TEXTS):
        own = slice(longest - len(text), None) if side == "left" else slice(len(text))
        ids[row, own], mask[row, own], states[row, own] = text, 1, states_of(text)
    return ids, mask, states


def of_numpy(folder, side="right"):
    ids, mask, states = padded(side)
    layers = {f"layers.{n}": states[:, :, n] for n in (0, 1)}
    np.savez(folder / "cache.npz", tokens=ids, attention_mask=mask, **layers)


def of_llama_cpp(folder):
    gguf = pytest.importorskip("gguf")
    for number, ids in enumerate(TEXTS):
        writer = gguf.GGUFWriter(folder / f"{number}.gguf", "dump")
        writer.add_tensor("inp_tokens", ids.astype(np.int32))
        for layer in (0, 1):
            writer.add_tensor(f"l_out-{layer}", states_of(ids)[:, layer].contiguous().numpy())
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def of_data_set(folder):
    datasets = pytest.importorskip("datasets")
    columns = {"text": list(map(str, TEXTS)), "input_ids": TEXTS}
    columns["hidden_states"] = [states_of(ids).numpy() for ids in TEXTS]
    shape = datasets.Array3D((None, 2, WIDTH), "float32")
    kinds = {"text": datasets.Value("string"), "hidden_states": shape}
    kinds["input_ids"] = datasets.List(datasets.Value("int64"))
    data = datasets.Dataset.from_dict(columns, features=datasets.Features(kinds))
    data.save_to_disk(folder / "data")


def of_sglang(folder):
    """Responses of `/generate`, with hidden states of the prompt and of a generated token."""
    for number, ids in enumerate(TEXTS):
        states = states_of([*ids, 5])
        rows = [states[: len(ids)].flatten(1).tolist(), states[-1].flatten().tolist()]
        info = {"input_token_logprobs": [[-1.0, int(one), None] for one in ids]}
        info |= {"hidden_states": rows, "cached_tokens": 0}
        response = {"text": "a", "output_ids": [5, 9], "meta_info": info}
        (folder / f"{number}.json").write_text(json.dumps(response))


def lens_response(serialize, ids, dtype=torch.float32):
    stream = states_of(ids, dtype).movedim(1, 0).contiguous()
    choice = {"prompt_token_ids": ids.tolist(), "token_ids": [5], "text": "a"}
    return {"choices": [choice], "activations": serialize({"residual_stream": stream})}


def of_safetensors_zstd(folder):
    zstandard = pytest.importorskip("zstandard")
    for number, ids in enumerate(TEXTS):
        content = save({"token_ids": torch.tensor(ids), "hidden_states": states_of(ids)})
        place = folder / f"{number}.safetensors.zst"
        place.write_bytes(zstandard.ZstdCompressor().compress(content))


WRITERS = {
    "a batch of NumPy": of_numpy,
    "padding on the left": lambda folder: of_numpy(folder, "left"),
    "llama.cpp": of_llama_cpp,
    "a data set": of_data_set,
    "SGLang": of_sglang,
    "Zstandard": of_safetensors_zstd,
}


@pytest.mark.parametrize("name", WRITERS)
def test_each_format_has_the_rows_of_its_texts(name, tmp_path):
    WRITERS[name](tmp_path)
    found, expected = rows_of(tmp_path), expected_rows()
    for site, rows in expected.items():
        np.testing.assert_allclose(found[site], rows, rtol=1e-6, atol=1e-6)


@pytest.mark.usefixtures("other_packages")
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_responses_of_vllm_lens_are_read(tmp_path, packed, dtype):
    lens = pytest.importorskip("vllm_lens._helpers._serialize")
    zstandard = pytest.importorskip("zstandard")
    responses = [lens_response(lens.serialize_activations, ids, dtype) for ids in TEXTS]
    content = "\n".join(map(json.dumps, responses)).encode()
    if packed:
        content = zstandard.ZstdCompressor().compress(content)
    (tmp_path / ("responses.jsonl" + ".zst" * packed)).write_bytes(content)
    for site, rows in rows_of(tmp_path).items():
        expected = expected_rows(dtype=dtype)[site]
        np.testing.assert_allclose(rows, expected, rtol=1e-6, atol=1e-6)


def stored(array):
    """A tensor as vLLM-Lens documents its entries, before it used Zstandard."""
    data = base64.b64encode(array.tobytes()).decode()
    return {"data": data, "dtype": str(array.dtype), "shape": list(array.shape)}


def test_responses_of_vllm_lens_without_compression_are_read(tmp_path):
    def serialize(tensors):
        return {name: stored(one.numpy()) for name, one in tensors.items()}

    responses = [lens_response(serialize, ids) for ids in TEXTS]
    (tmp_path / "all.json").write_text(json.dumps(responses))
    for site, rows in rows_of(tmp_path).items():
        np.testing.assert_allclose(rows, expected_rows()[site], rtol=1e-6, atol=1e-6)


@pytest.fixture
def gpt2(tmp_path):
    """A small GPT-2 of transformers, its folder, ids of two texts and their hidden states."""
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    from tests.model.text.test_hub_tokenizer import byte_level

    sizes = {"n_embd": 12, "n_layer": 2, "n_head": 2, "vocab_size": 330, "n_positions": 20}
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=1)).eval()
    folder = tmp_path / "model"
    model.save_pretrained(folder)
    encoder, bos, eos = byte_level()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=encoder, bos_token=bos, eos_token=eos)
    tokenizer.save_pretrained(folder)
    ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    with torch.no_grad():
        states = model(ids, output_hidden_states=True).hidden_states
    return model, folder, ids, states


def check_cache(folder, ids, first, layer="blocks.0.hook_resid_post"):
    """Check that requests of a batch have the hidden states after the first block."""
    requests = {tuple(one.ids): one for one in read_requests(folder, 12).all}
    assert set(requests) == set(map(tuple, ids.tolist()))
    for row, own in enumerate(ids.tolist()):
        (states,) = requests[tuple(own)].states([layer], np.arange(3))
        torch.testing.assert_close(states, first[row], atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures("other_packages")
@pytest.mark.parametrize("ending", ["safetensors", "npz", "pt"])
def test_caches_of_transformer_lens_are_read(gpt2, tmp_path, ending):
    bridge = pytest.importorskip("transformer_lens.model_bridge").TransformerBridge
    _, folder, ids, states = gpt2
    _, cache = bridge.boot_transformers(str(folder)).run_with_cache(ids)
    place = tmp_path / "requests"
    place.mkdir()
    content = {"tokens": ids} | cache.cache_dict
    path = place / f"cache.{ending}"
    if ending == "npz":
        np.savez(path, **{name: one.detach().numpy() for name, one in content.items()})
    elif ending == "safetensors":
        save_file({name: one.contiguous().clone() for name, one in content.items()}, path)
    else:
        torch.save(content, path)
        with pytest.raises(MissingError, match="is a pickle") as caught:
            read_requests(place, 12)
        lines = [line.strip() for line in str(caught.value).splitlines()[1:3]]
        exec("\n".join(lines), {})  # the two lines of the message
    check_cache(place, ids, states[1])


@pytest.mark.usefixtures("other_packages")
def test_saved_outputs_of_nnsight_are_read(gpt2, tmp_path):
    nnsight = pytest.importorskip("nnsight")
    model, _, ids, states = gpt2
    traced = nnsight.NNsight(model)
    with traced.trace(ids):
        first = traced.transformer.h[0].output.save()
        second = traced.transformer.h[1].output.save()
        logits = traced.lm_head.output.save()
    place = tmp_path / "requests"
    place.mkdir()
    saved = {"input_ids": ids, "transformer.h.0.output": first, "transformer.h.1.output": second}
    save_file(saved | {"logits": logits}, place / "traced.safetensors")
    check_cache(place, ids, states[1], "0")
    check_cache(place, ids, logits, "logits")


def test_vectors_of_a_data_set_are_those_of_the_last_tokens(tmp_path):
    datasets = pytest.importorskip("datasets")
    vectors = [states_of(ids)[-1, 1].tolist() for ids in TEXTS]
    columns = {"input_ids": [ids.tolist() for ids in TEXTS], "hidden_states": vectors}
    datasets.Dataset.from_dict(columns).save_to_disk(tmp_path / "data")
    requests = read_requests(tmp_path, WIDTH)
    for ids in TEXTS:
        (one,) = [one for one in requests.of_text(ids) if len(one.ids) == len(ids)][:1]
        (states,) = one.states(["0"], np.array([len(ids) - 1]))
        torch.testing.assert_close(states, states_of(ids)[-1:, 1])
        assert not one.has([0])


def test_a_file_that_an_engine_still_writes_is_refused(tmp_path):
    """vLLM holds a lock of NAME.safetensors.lock until it has written the file, and leaves it."""
    of_safetensors = {"token_ids": torch.tensor(TEXTS[0]), "hidden_states": states_of(TEXTS[0])}
    save_file(of_safetensors, tmp_path / "a.safetensors")
    with (tmp_path / "b.safetensors.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(DataError, match=r"b\.safetensors is still being written"):
            read_requests(tmp_path, WIDTH)
    assert len(read_requests(tmp_path, WIDTH).all) == 1


DAMAGE = {
    "truncated": lambda content: content[: len(content) // 2],
    "empty": lambda _: b"",
    "other bytes": lambda content: b"\xff" * len(content),
    "swapped bytes": lambda content: content[::-1],
}


@pytest.mark.parametrize("fault", [*DAMAGE, "a folder", "a pipe", "no permission"])
@pytest.mark.parametrize("name", WRITERS)
def test_damaged_files_are_refused_by_name(name, fault, tmp_path):
    WRITERS[name](tmp_path)
    paths = [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".lock"]
    path = max(paths, key=lambda path: (path.stat().st_size, path.name))
    if fault in DAMAGE:
        path.write_bytes(DAMAGE[fault](path.read_bytes()))
    elif fault == "no permission":
        path.chmod(0)
        if os.access(path, os.R_OK):
            pytest.skip("this user reads files without permission")
    else:
        path.unlink()
        (path.mkdir if fault == "a folder" else lambda: os.mkfifo(path))()
    if fault == "a folder" and len(paths) > 1 and path.suffix != ".arrow":
        left = read_requests(tmp_path, WIDTH).all  # the folder is no file
        assert sum(len(one.parts) for one in left) == len(TEXTS) - 1
        return
    with pytest.raises((DataError, FileNotFoundError) if fault == "a folder" else DataError,
                       match=re.escape(str(tmp_path))):  # fmt: skip
        rows_of(tmp_path)


@pytest.mark.parametrize("row", [row for row in FORMATS if row.needs], ids=lambda row: row.needs)
def test_a_missing_package_is_named_with_its_extra(row, tmp_path, monkeypatch):
    folder = tmp_path / "data" if row.file == "data_set" else tmp_path
    folder.mkdir(exist_ok=True)
    (folder / ("a" * row.ending.startswith(".") + row.ending)).write_bytes(b"x")
    monkeypatch.setattr("probekit.activations.given.served.table.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=rf"needs the package {row.needs}.*\[{row.needs}\]"):
        read_requests(tmp_path, WIDTH)


def faulty(name, array):
    def write(folder):
        of_numpy(folder)
        arrays = dict(np.load(folder / "cache.npz"))
        np.savez(folder / "cache.npz", **(arrays | {name: array(arrays[name])}))

    return write


def of_other_order(dtype):
    def write(folder):
        of_numpy(folder)
        arrays = dict(np.load(folder / "cache.npz"))
        kinds = {"i": np.dtype("int64"), "f": np.dtype(dtype)}
        np.savez(
            folder / "cache.npz",
            **{
                key: one.astype(kinds[one.dtype.kind].newbyteorder(">"))
                for key, one in arrays.items()
            },
        )

    return write


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_the_order_of_bytes_changes_no_number(dtype, tmp_path):
    of_other_order(dtype)(tmp_path)
    for site, rows in rows_of(tmp_path).items():
        np.testing.assert_allclose(rows, expected_rows()[site], rtol=2e-3, atol=2e-3)


def response(**changes):
    def write(folder):
        def serialize(tensors):
            return {name: stored(one.numpy()) for name, one in tensors.items()}

        found = lens_response(serialize, TEXTS[1])
        found["activations"]["residual_stream"] |= changes
        (folder / "a.json").write_text(json.dumps(found))

    return write


def text(name, content):
    return lambda folder: (folder / name).write_text(content)


def vectors(**columns):
    def write(folder):
        datasets = pytest.importorskip("datasets")
        datasets.Dataset.from_dict(columns).save_to_disk(folder / "data")

    return write


def outside(folder):
    vectors(input_ids=[[7, 3]], hidden_states=[[1.0] * WIDTH])(folder)
    path = folder / "data" / "state.json"
    path.write_text(path.read_text().replace("data-00000", "../../data-00000"))


FAULTS = {
    "fewer rows than requests": (faulty("layers.0", lambda x: x[:3]), "of 4 requests of 5 tokens"),
    "a mask with a gap": (faulty("attention_mask", lambda x: x - np.eye(4, 5, 1, int)), "padding"),
    "a mask of another shape": (faulty("attention_mask", lambda x: x[:, :3]), r"shape \(4, 3\)"),
    "pickled objects": (faulty("tokens", lambda x: x.astype(object)), "pickled Python objects"),
    "integers as states": (faulty("layers.1", lambda x: np.ones_like(x, "i4")), "I32"),
    "another type": (response(dtype="object"), "type 'object'"),
    "another shape": (response(shape=[2, 4, WIDTH]), "has 200 bytes"),
    "a huge shape": (response(shape=[2, 10**9, 10**9]), "has 200 bytes"),
    "a negative shape": (response(shape=[2, -5, -WIDTH]), "has 200 bytes"),
    "no base64": (response(data="###"), "cannot be read"),
    "another JSON": (text("a.json", "{}"), "is no response of vLLM-Lens"),
    "deep JSON": (text("a.json", "[" * 100_000), "cannot be read"),
    "half a line": (text("a.jsonl", '{"activations": '), "cannot be read"),
    "other columns": (vectors(a=["x"], hidden_states=[[1.0]]), "has the columns a, hidden_states"),
    "no rows": (vectors(input_ids=[], hidden_states=[]), "cannot be read|has no rows"),
    "a null": (vectors(input_ids=[[1], [2]], hidden_states=[[1.0] * WIDTH, None]), "row 1 .* null"),
    "a file elsewhere": (outside, "leads out of"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_files_with_other_contents_are_refused(fault, tmp_path):
    write, words = FAULTS[fault]
    write(tmp_path)
    with pytest.raises(DataError, match=words):
        read_requests(tmp_path, WIDTH)


def test_a_compressed_file_that_unpacks_to_far_more_is_refused(tmp_path):
    zstandard = pytest.importorskip("zstandard")
    packed = zstandard.ZstdCompressor().compress(b" " * 2**28)
    (tmp_path / "a.json.zst").write_bytes(packed)
    with pytest.raises(DataError, match=r"unpacks from .* Allowed: up to 10,000 times"):
        read_requests(tmp_path, WIDTH)
