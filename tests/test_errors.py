"""Arguments of the wrong type are reported by name, with what is allowed."""

from datetime import date
from pathlib import Path

import numpy as np
import pytest

import probekit
from probekit import Experiment, SavedProbe
from probekit.activations.given.formats import NpyArray
from probekit.data.frames import MemoryData
from probekit.data.readers import read_dataset
from probekit.data.table import Columns
from probekit.errors import ConfigError, path_of
from tests.stored import each_line


def experiment():
    return {
        "name": "x",
        "model": {"source": "mini"},
        "data": {"name": "x", "columns": {"text": "text", "label": "label"}},
        "tokens": {"bos": False, "position": {"at": "last"}},
    }


def test_strings_and_paths_are_paths(tmp_path, refused):
    assert path_of("out", str(tmp_path)) == path_of("out", tmp_path) == tmp_path
    refused(path_of, "out", "a\0b")


OPTIONS = {"out": (3, None), "cache_root": (3,), "workers": ("2", 2.0), "watcher": ("quiet",)}


@pytest.mark.parametrize(
    "option", [{name: value} for name, some in OPTIONS.items() for value in some], ids=str
)
def test_options_of_a_run_are_checked_before_it_begins(option, tmp_path, refused):
    data = [{"text": f"number {row}", "label": "ab"[row % 2]} for row in range(40)]
    refused(probekit.run, experiment(), data=data, **{"out": tmp_path, "progress": False} | option)
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def mini():
    return probekit.GPT2.from_pretrained("mini"), probekit.Tokenizer.from_pretrained("mini")


@each_line("call")
def test_arguments_are_reported_by_name(call, mini, refused):
    model, tokenizer = mini
    refused(eval, call, {"probekit": probekit, "model": model, "tokenizer": tokenizer})


def test_hidden_files_are_not_suggested(tmp_path, refused):
    (tmp_path / ".pre-commit.yaml").write_text("")
    refused(Experiment.from_file, tmp_path / "missing.yaml")


@pytest.mark.parametrize(
    "line", ["{0}: 1", "{0} 1", "? {0}\n: 1", "foo: *{0}", "probe: {{? {0} : 1}}"]
)
def test_a_value_of_a_megabyte_is_cut_in_the_message(tmp_path, line):
    path = tmp_path / "mine.yaml"
    path.write_text(f"name: a\n{line.format('x' * 900_000)}\n")
    with pytest.raises(ConfigError) as caught:
        Experiment.from_file(path)
    assert len(str(caught.value)) < 2500
    assert f"{path}, line 2: " in str(caught.value)


SAVED = SavedProbe.from_arrays(
    [1.0, -1.0], 0.0, classes=["a", "b"], site="blocks.0.hook_resid_pre", model="mini"
)
_CELLS = [{"text": f"row {n}", "label": "ab"[n % 2], "src": "xyz"[n % 3]} for n in range(12)]
_STUDY = "name: x\nmodel: {source: mini}\ndata: {name: x}\ntokens: {bos: false}\n"


def _of_rows(rows, **columns):
    return read_dataset(
        MemoryData(rows, "rows"),
        format="memory",
        name="x",
        columns=Columns(**columns),
        values=("src",),
    )


def _of_header(name):
    file = Path("a.csv")
    file.write_text(f"text,{name}\na,b\n")
    return read_dataset(file, format="csv", columns=Columns(text="text", label="label"))


def _of_message(**keys):
    messages = [{"role": "user", "content": "a"} | keys]
    return _of_rows([{"m": messages, "label": "a"}], messages="m")


def _of_loop():
    Path("one.csv").symlink_to("two.csv")
    Path("two.csv").symlink_to("one.csv")
    data = experiment()["data"] | {"format": "csv", "train": "one.csv", "test": "two.csv"}
    return probekit.run(experiment() | {"data": data}, out="o", progress=False)


def _of_study():
    Path("study.yaml").write_text(f"{_STUDY}nonsense: 1\nover: {{probe.C: [[1], [2]]}}\n")
    return probekit.run("study.yaml", out="o", progress=False)


def _probed(**options):
    layers = {0: np.arange(40.0)[:, None] % 2}
    return probekit.probe(layers, [0, 1] * 20, progress=False, **{"out": "o"} | options)


@each_line("call")
def test_what_cannot_be_used_is_refused_at_the_door(call, tmp_path, monkeypatch, refused):
    monkeypatch.chdir(tmp_path)
    refused(eval, call, globals() | {"date": date})


def test_an_integer_of_numpy_in_a_message_is_kept():
    (example,) = _of_message(turn=np.int64(3)).examples
    assert example.turns[0].others == '{"turn": 3}'


def test_a_text_without_a_label_may_contain_nul():
    dataset = _of_rows([{"text": "a\0b"}], text="text", label="")
    assert dataset.examples[0].text == "a\0b"


@pytest.mark.parametrize("kind", ["f4", "f8", "f2"])
def test_numbers_are_the_same_in_any_order_of_bytes(kind, tmp_path):
    rows = np.random.default_rng(0).normal(size=(5, 3))
    read = []
    for order in "<>":
        np.save(tmp_path / "layer_0.npy", rows.astype(order + kind))
        array = NpyArray(tmp_path / "layer_0.npy")
        read.append(np.concatenate([*array.parts(2)]))
        assert array.dtype == f"float{8 * int(kind[1])}"
    assert read[0].tobytes() == read[1].tobytes()
