"""Products are exact up to rounding, and differentiable when a gradient is requested."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.func import grad, jacfwd, jvp, vmap

from probekit import products
from probekit.products import GELU, GELU_TANH, RELU, SILU, gram, linear, threads, weighted_sums


@pytest.mark.parametrize("n_rows", [0, 1, 16, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "activation", [None, GELU, GELU_TANH, SILU, RELU], ids=lambda a: a and "-".join(a.onednn)
)
def test_it_is_the_product_of_torch(activation, n_rows, dtype):
    generator = torch.Generator().manual_seed(n_rows)
    x = 4 * torch.randn(n_rows, 2, 37, generator=generator).to(dtype)
    weight, bias = torch.randn(19, 37, generator=generator).to(dtype), torch.arange(19).to(dtype)
    function = torch.nn.Identity() if activation is None else activation.function
    for given in (bias, None):
        found = linear(x, weight, given, activation)
        assert found.shape == (n_rows, 2, 19)
        torch.testing.assert_close(found, function(F.linear(x, weight, given)))


def test_views_are_read_as_what_they_show():
    x = torch.randn(5, 7, 3).transpose(1, 2)[::2]
    weight = torch.randn(7, 4).T
    torch.testing.assert_close(linear(x, weight), F.linear(x, weight))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("n_rows", [0, 1, 50])
@pytest.mark.parametrize("n_threads", [1, 2])
def test_a_gram_matrix_is_the_product_with_itself(n_threads, n_rows, dtype):
    rows = torch.randn(n_rows, 37, generator=torch.Generator().manual_seed(0)).to(dtype)
    for given in (rows, rows.T, rows[:, ::2], rows.clone().requires_grad_()):
        with threads(n_threads):
            found = gram(given)
        torch.testing.assert_close(found, (given.T @ given).detach())


_SHAPES = """
from pathlib import Path
import torch
from probekit.products import linear
def used():
    (line,) = [one for one in Path("/proc/self/status").open() if one.startswith("RssAnon")]
    return int(line.split()[1]) / 1024
weight = torch.ones(64, 64)
linear(weight, weight)
before = used()
for n_rows in range(100, 500):
    linear(torch.ones(n_rows, 64), weight)
print(used() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="not Linux")
def test_kernels_of_many_shapes_do_not_fill_the_memory():
    # In a new process, because the limit is read before the first product.
    run = [sys.executable, "-c", _SHAPES]
    grown = subprocess.run(run, check=True, timeout=60, capture_output=True, text=True).stdout
    assert float(grown) < 100  # MB; 240 without the limit


_FORKED = """
import os, signal, torch
from probekit.products import linear, threads
x = torch.ones(500, 500)
torch.set_num_threads(2)
linear(x, x)
child = os.fork()
if not child:
    signal.alarm(50)
    linear(x, x)
    with threads(2):
        linear(x, x)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


def test_overlapping_blocks_of_threads_leave_the_number_as_it_was():
    first, second = threads(2), threads(3)
    with first:
        second.__enter__()
    assert torch.get_num_threads() == 3  # the first block has ended, the second has not
    second.__exit__(None, None, None)
    assert torch.get_num_threads() == 1


def test_a_forked_process_does_not_wait_for_threads_that_it_has_not():
    subprocess.run([sys.executable, "-c", _FORKED], check=True, timeout=60)


# torch compiles what it needs of forward mode in a way that it has itself deprecated.
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
@pytest.mark.parametrize("is_grad_enabled", [True, False])
@pytest.mark.parametrize("place", [0, 1, 2], ids=["input", "weight", "bias"])
def test_derivatives_are_those_of_torch(place, is_grad_enabled):
    tensors = [torch.randn(shape) for shape in ((4, 3), (2, 3), (2,))]

    def derivatives(product):
        def of_one(value):
            return product(*tensors[:place], value, *tensors[place + 1 :])

        at, along = tensors[place], torch.ones_like(tensors[place])
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(at, along)
            tangent = torch.autograd.forward_ad.unpack_dual(of_one(dual)).tangent
        forward = tangent, jvp(of_one, (at,), (along,))[1], jacfwd(of_one)(at)
        with torch.enable_grad():
            asked = at.clone().requires_grad_()
            return *forward, *torch.autograd.grad(of_one(asked).sum(), asked)

    activated, gelu = partial(linear, activation=GELU_TANH), partial(F.gelu, approximate="tanh")
    pairs = {linear: F.linear, activated: lambda *given: gelu(F.linear(*given))}
    with torch.set_grad_enabled(is_grad_enabled):
        for ours, torch_s in pairs.items():
            for found, expected in zip(derivatives(ours), derivatives(torch_s), strict=True):
                torch.testing.assert_close(found, expected)


def test_a_gradient_through_vmap_exists():
    x, weight = torch.randn(4, 3), torch.randn(2, 3)
    found = grad(lambda x: vmap(lambda row: linear(row, weight))(x).sum())(x)
    torch.testing.assert_close(found, weight.sum(0).expand(4, 3))


def test_without_onednn_it_is_torch_s_own(monkeypatch):
    x, weight = torch.ones(2, 3), torch.ones(4, 3)
    monkeypatch.setattr(products, "_ONEDNN", None)
    assert torch.equal(linear(x, weight), F.linear(x, weight))


@pytest.fixture
def choice_folder(tmp_path, monkeypatch):
    """A user's cache folder of the test, in a process that has not chosen a library."""
    monkeypatch.setattr(products, "user_cache_path", lambda _: tmp_path)
    products._is_mkl_faster.cache_clear()
    yield tmp_path
    products._is_mkl_faster.cache_clear()


needs_both = pytest.mark.skipif(
    products._ONEDNN is None or not torch.backends.mkl.is_available(),
    reason="this torch has only one library",
)


@needs_both
@pytest.mark.parametrize("measured", ["oneDNN", "MKL"])
def test_the_library_is_measured_once_per_machine(choice_folder, monkeypatch, measured):
    monkeypatch.setattr(products, "_measured_library", lambda: measured)
    assert products.library() == "oneDNN"  # nothing is measured yet
    assert products._is_mkl_faster() == (measured == "MKL")
    assert products.library() == measured
    monkeypatch.setattr(products, "_measured_library", pytest.fail)
    products._is_mkl_faster.cache_clear()  # as in another process
    assert products._is_mkl_faster() == (measured == "MKL")


@needs_both
def test_of_two_processes_that_measure_the_first_one_decides(choice_folder, monkeypatch):
    def measured_last():
        products._choice_file().write_bytes(b"oneDNN")
        return "MKL"

    monkeypatch.setattr(products, "_measured_library", measured_last)
    assert not products._is_mkl_faster()
    assert products._choice_file().read_bytes() == b"oneDNN"


@needs_both
def test_without_a_folder_nothing_is_measured(choice_folder, monkeypatch):
    monkeypatch.setattr(products, "_measured_library", pytest.fail)
    (choice_folder / "products").touch()  # a file, where the folder would be
    assert not products._is_mkl_faster()


@needs_both
def test_only_large_products_ask_for_the_faster_library(monkeypatch):
    monkeypatch.setattr(products, "_is_mkl_faster", lambda: True)
    x, weight = torch.randn(1024, 512), torch.randn(1024, 512)
    assert torch.equal(linear(x, weight, None, GELU), F.gelu(F.linear(x, weight)))
    monkeypatch.setattr(products, "_is_mkl_faster", pytest.fail)
    wide = torch.zeros(2**14, 32)
    for rows, matrix in ((x[:1023], weight), (x, weight[:1023]), (x[:, :32], wide)):
        linear(rows, matrix)
    with pytest.raises(pytest.fail.Exception):
        linear(x, weight)


@needs_both
def test_both_libraries_give_the_same_product_and_each_for_any_number_of_threads(monkeypatch):
    x = torch.randn(1024, 512, generator=torch.Generator().manual_seed(0))
    weight = torch.randn(1024, 512, generator=torch.Generator().manual_seed(1))
    found = {}
    for is_mkl in (False, True):
        monkeypatch.setattr(products, "_is_mkl_faster", lambda is_mkl=is_mkl: is_mkl)
        for n_threads in (1, 2, 3):
            with threads(n_threads):
                found[is_mkl, n_threads] = linear(x, weight, None, GELU_TANH)
        for n_threads in (2, 3):
            assert torch.equal(found[is_mkl, 1], found[is_mkl, n_threads])
    torch.testing.assert_close(found[True, 1], found[False, 1], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("function", [GELU, GELU_TANH, SILU])
@pytest.mark.parametrize("shape", [(1024, 1024), (37, 3072), (3, 16385)], ids=str)
def test_activation_functions_give_the_same_for_any_number_of_threads(function, shape):
    """Torch alone rounds elements at the ends of parts in another way (checked with 3 and 5)."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    found = []
    for n_threads in (1, 2, 3, 5, 7):
        with threads(n_threads):
            found.append(function(x))
    assert all(torch.equal(found[0], one) for one in found)
    if shape == (1024, 1024):
        torch.testing.assert_close(found[1], function.function(x), rtol=1e-5, atol=1e-6)


@needs_both
def test_the_measurement_leaves_the_caller_s_torch_as_it_is(monkeypatch):
    monkeypatch.setattr(products, "_FEWEST_ROWS", 16)  # fast
    state, n_threads = torch.get_rng_state(), torch.get_num_threads()
    assert products._measured_library() in ("oneDNN", "MKL")
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == n_threads


@pytest.mark.parametrize("n_rows", [100, 8192, 10_001])
def test_weighted_sums_of_many_rows_are_precise(n_rows):
    generator = torch.Generator().manual_seed(0)
    values, rows = (torch.rand(n, n_rows, generator=generator) for n in (3, 5))
    exact = values.double() @ rows.double().T
    torch.testing.assert_close(weighted_sums(values, rows.T).double(), exact, rtol=3e-7, atol=0)
