"""Pages of weights show the values of the file, and errors are reported."""

import base64
import html
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from probekit.errors import ConfigError, MissingError, StoreError
from probekit.model.families.gpt2 import GPT2
from probekit.pipeline.look.weights import write_weights_page
from tests.model.reference import TINY
from tests.report.page_text import figures_of


@pytest.fixture
def tiny(tmp_path):
    GPT2(TINY).save_pretrained(tmp_path / "tiny")
    return tmp_path / "tiny"


@pytest.fixture
def part(tmp_path):
    """A function that writes a file with some tensors."""

    def part(tensors):
        save_file(tensors, tmp_path / "part.safetensors")
        return tmp_path / "part.safetensors"

    return part


@pytest.fixture
def look(tmp_path):
    """A function that returns the figures of a page of weights by title, and its text."""

    def look(source, **options):
        page = write_weights_page(str(source), tmp_path / "page.html", **options).read_text()
        plots = re.findall(
            r'<(?:h3|summary)>(.*?)</.*?(<script type="text/plain".*?</script>)', page, re.S
        )
        # The library after the last heading is no figure.
        named = {html.unescape(title): figures_of(plot) for title, plot in plots}
        return {title: figures[0] for title, figures in named.items() if figures}, page

    return look


def numbers(packed):
    array = np.frombuffer(base64.b64decode(packed["bdata"]), packed["dtype"])
    shape = packed.get("shape")
    return array.reshape([int(n) for n in shape.split(",")]) if shape else array


def test_overview_lists_every_tensor(look, tiny):
    figures, page = look(tiny)
    names = [name.removeprefix("transformer.") for name in load_file(tiny / "model.safetensors")]
    assert len(names) == 52
    assert all(f"<bdi>{name}</bdi>" in page for name in names)
    lines = figures["RMS of the weights by block"]["data"]
    roots = [
        block.mlp.c_fc.weight.square().mean().sqrt().item()
        for block in GPT2.from_pretrained(tiny).h
    ]
    drawn = next(line for line in lines if line["name"] == "mlp.c_fc.weight")
    assert (drawn["y"], drawn["x"]) == (pytest.approx(roots), [0, 1, 2, 3])


def test_position_embeddings_are_shown_in_full_with_columns(look, tiny):
    wpe = load_file(tiny / "model.safetensors")["transformer.wpe.weight"]
    figures, _ = look(tiny, tensor="wpe.weight", columns=(20, 3), corner=5)
    assert np.array_equal(numbers(figures["Heat map of the matrix"]["data"][0]["z"]), wpe)
    curves = figures["Columns 20, 3"]["data"]
    assert np.array_equal(numbers(curves[0]["y"]), wpe[:, 20])
    assert np.array_equal(numbers(curves[1]["y"]), wpe[:, 3])


def test_columns_of_position_embeddings_that_vary_smoothly_are_shown(look, part):
    wpe = np.random.default_rng(0).normal(size=(40, 9)).astype(np.float32)
    wpe[:, (7, 2, 4)] += 3 * np.sin(np.arange(40) / 6)[:, None]
    figures, _ = look(part({"wpe.weight": wpe}), tensor="wpe.weight")
    assert "Columns 2, 4, 7" in figures


def test_attention_matrices_are_shown_as_corner_parts_norms_and_spectra_of_heads(look, tiny):
    weight = load_file(tiny / "model.safetensors")["transformer.h.2.attn.c_attn.weight"]
    figures, _ = look(tiny, tensor="transformer.h.2.attn.c_attn.weight", corner=10)
    corner = figures.pop("Heat map of the first 10 × 10 weights")["data"][0]
    assert np.array_equal(numbers(corner["z"]), weight[:10, :10])
    assert corner["zmin"] == -corner["zmax"] < 0
    spectra = [f"Singular values of W_{name}" for name in ("QK", "OV")]
    assert list(figures) == ["Norm by head", *spectra, "Head 0", "Head 1", "Head 2"]
    query, key, value = figures["Head 1"]["data"]
    for number, part in enumerate((query, key, value)):
        assert np.array_equal(numbers(part["z"]), weight[:10, 21 * number + 7 : 21 * number + 14])
    for title in spectra:
        assert [len(head["y"]) for head in figures[title]["data"]] == [7] * 3
    (output,) = look(tiny, tensor="h.2.attn.c_proj.weight")[0]["Head 2"]["data"]
    rows = load_file(tiny / "model.safetensors")["transformer.h.2.attn.c_proj.weight"][14:21]
    assert np.array_equal(numbers(output["z"]), rows)


def test_file_with_some_tensors_is_accepted(look, part):
    name = "h.1.attn.c_attn.weight"
    file = part({name: np.ones((21, 63), np.float32)})
    with pytest.raises(ConfigError, match="--n-head"):
        look(file, tensor=name)
    figures, _ = look(file, tensor=name, n_head=3)
    assert "Singular values of W_QK" not in figures  # also needs the output matrix of the block
    assert len(figures["Norm by head"]["layout"]["yaxis"]["ticktext"]) == 3


def test_names_with_thousands_of_digits_are_listed(look, part):
    names = [f"h.{number}.weight" for number in ("9" * 5000, "10", "9", "\u00b2")]
    _, page = look(part({name: np.ones((2, 3), np.float32) for name in names}))
    assert page.index("h.9.weight") < page.index("h.10.weight") < page.index("h.9999")


def test_single_shard_is_not_shown_as_the_model(look, tiny):
    first, second = (f"model-0000{n}-of-00002.safetensors" for n in (1, 2))
    names = load_file(tiny / "model.safetensors")
    (tiny / "model.safetensors").rename(tiny / first)
    files = {name: first if "wte" in name else second for name in names}
    (tiny / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    with pytest.raises(MissingError, match=second):
        look(tiny)


@pytest.mark.parametrize("shape", [(), (0,), (0, 4), (2, 3, 4)])
def test_unplottable_tensors_are_listed_only(look, part, shape):
    file = part({"one": np.ones(shape, np.float32), "two": np.ones((2, 2), np.float32)})
    assert "<bdi>one</bdi>" in look(file)[1]
    message = re.escape(f"one has shape {shape}: only vectors and matrices")
    with pytest.raises(ConfigError, match=message):
        look(file, tensor="one")


def test_vectors_are_plotted_over_their_index(look, part, tmp_path):
    torch.save({"ln_f.weight": torch.nn.Parameter(torch.ones(5))}, tmp_path / "part.bin")
    for file, name in (
        (part({"wpe.weight": np.ones(5, np.float32)}), "wpe.weight"),  # a vector has no columns
        (tmp_path / "part.bin", "ln_f.weight"),
    ):
        figures, _ = look(file, tensor=name)
        assert list(figures) == ["All values"]
        assert np.array_equal(numbers(figures["All values"]["data"][0]["y"]), np.ones(5))


def roughness(curves):
    """Return the sum of squared steps along the first axis over that of the values; 2 for noise."""
    inner = curves[1:-1] - curves[1:-1].mean(0)
    return (np.diff(inner, axis=0) ** 2).sum() / (inner**2).sum()


def test_real_tensors_of_gpt2_small_are_shown_and_position_embeddings_are_smooth_waves(
    look, shared
):
    part = shared / "weights/gpt2_small_part"
    figures, _ = look(part, tensor="wpe.weight")
    wpe = load_file(part / "part.safetensors")["wpe.weight"]
    matrix = numbers(figures["Heat map of the matrix"]["data"][0]["z"])
    assert np.array_equal(matrix, wpe)
    curves = [numbers(curve["y"]) for curve in figures["Columns 361, 459, 724"]["data"]]
    assert np.array_equal(np.stack(curves), wpe[:, [361, 459, 724]].T)
    assert roughness(matrix) < 0.01
    assert roughness(matrix.T) > 1.9  # the other axis has no order
    assert max(map(roughness, curves)) < 0.01
    figures, _ = look(part, tensor="h.4.attn.c_attn.weight")
    assert "Head 11" in figures  # the width of GPT-2 small implies the number of heads
    corner = figures["Heat map of the first 300 × 300 weights"]["data"][0]
    assert numbers(corner["z"]).shape == (300, 300)


def test_invalid_options_are_reported(tiny, tmp_path, refused, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for options in (
        {"tensor": "wpe"},
        {"tensor": ""},
        {"tensor": "wpe.weight", "columns": (21,)},
        {"tensor": "wpe.weight", "columns": (-1,)},
        {"tensor": "ln_f.bias", "columns": (1,)},
        {"tensor": "h.0.attn.c_attn.weight", "n_head": 7},
        *({"columns": (1,)}, {"corner": 300}, {"n_head": 3}, {"source": "./nowhere"}),
    ):
        refused(write_weights_page, **{"source": "tiny", "out": Path("page.html")} | options)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def test_an_unwritable_page_is_named(tiny, tmp_path):
    (tmp_path / "page.html").mkdir()
    with pytest.raises(StoreError, match="Cannot write"):
        write_weights_page(str(tiny), tmp_path / "page.html")


def test_half_precision_tensors_are_shown(look, tiny):
    GPT2.from_pretrained(tiny, dtype=torch.bfloat16).save_pretrained(tiny)
    figures, page = look(tiny, tensor="wpe.weight")
    assert numbers(figures["Heat map of the matrix"]["data"][0]["z"]).shape == (23, 21)
    assert "bfloat16" in page
