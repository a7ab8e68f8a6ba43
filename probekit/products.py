"""Matrix products and attention on the fastest code path of this machine, and its threads."""

import math
import os
import platform
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from threading import RLock
from time import thread_time
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from platformdirs import user_cache_path
from threadpoolctl import threadpool_limits
from torch import Tensor
from torch.autograd import forward_ad

from probekit.files import Disk, Draft
from probekit.memory import is_accelerator

# oneDNN's linear layer, which torch.compile also uses. torch's default is MKL, which uses half of
# the vector width on processors other than Intel's. It is 2.3 times slower on an AMD EPYC with
# AVX-512, and faster on one without, where oneDNN's activation functions are slow.
_ONEDNN = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
# oneDNN and torch keep the kernels of so many shapes, half a megabyte each. Batches of texts of all
# lengths would soon fill their default of 1024; one pass needs fewer than ten at a time.
for _variable in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
    os.environ.setdefault(_variable, "64")
# A large product has at least so many rows, weights and outputs, and fewer than most outputs. MKL
# is not used for others: it is slow for unembeddings, and for few rows on several threads; and for
# few rows or narrow matrices its last bits depend on the number of threads.
_FEWEST_ROWS, _FEWEST_WEIGHTS, _FEWEST_OUTPUTS, _MOST_OUTPUTS = 1024, 2**19, 64, 2**14
_CLEARLY_FASTER = 0.9  # MKL's time divided by oneDNN's; noise must not decide between equals
_PID_AT_IMPORT = os.getpid()  # differs in a forked process
if hasattr(os, "register_at_fork"):  # absent on Windows, which has no fork
    os.register_at_fork(after_in_child=partial(torch.set_num_threads, 1))  # see is_forked
_QUERIES_AT_ONCE = 4  # 16 bytes of float32
_SUMMED_ROWS = 4096  # rows that `weighted_sums` sums at once
_LOCK = RLock()
_OPEN: dict[object, int] = {}  # threads before all blocks of `threads`, and of each open block
START_UP = 4.0  # seconds for a new process to import the modules of a job


@dataclass(frozen=True)
class Activation:
    """An activation function that oneDNN can compute within the product before it.

    Attributes:
        function: the same function in torch.
        onednn: oneDNN's name of the function and of its variant.

    >>> GELU_TANH(torch.tensor([-1.0, 0.0, 1.0]))
    tensor([-0.1588,  0.0000,  0.8412])
    """

    function: Callable[[Tensor], Tensor]
    onednn: tuple[str, str]

    def __call__(self, x: Tensor) -> Tensor:
        """Return the function of each element; on a CPU the same for any number of threads."""
        n_threads = torch.get_num_threads()
        if n_threads == 1 or x.numel() <= _OF_ONE_THREAD or x.device.type != "cpu" or is_derived(x):
            return self.function(x)
        # Torch rounds the elements that do not fill a vector at the end of a thread's part in
        # another way. So the parts are whole vectors, and the rest is computed in one thread.
        flat, step = x.flatten(), 2 * _OF_ONE_THREAD * n_threads
        found, n_even = torch.empty_like(flat), len(flat) - len(flat) % step
        for place, size in (slice(n_even), 4 * step), (slice(n_even, None), _OF_ONE_THREAD):
            parts = torch.split(flat[place], size), torch.split(found[place], size)
            for part, target in zip(*parts, strict=True):
                target.copy_(self.function(part))
        return found.view(x.shape)


_OF_ONE_THREAD = 2**14  # elements that torch computes in one thread
GELU = Activation(F.gelu, ("gelu", "none"))
GELU_TANH = Activation(partial(F.gelu, approximate="tanh"), ("gelu", "tanh"))
SILU = Activation(F.silu, ("swish", ""))
RELU = Activation(F.relu, ("relu", ""))


def is_forked() -> bool:
    """Return whether this process was forked (as by multiprocessing.Pool) and must use one thread.

    OpenMP's threads are not copied into a fork, so a parallel product would wait for them forever.
    """
    return os.getpid() != _PID_AT_IMPORT


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: Activation | None = None
) -> Tensor:
    """Return x weight^T + bias, shape [... d_out], equal to `F.linear` up to rounding.

    Args:
        x: shape [... d_in].
        weight: shape [d_out d_in].
        bias: shape [d_out]; None for none.
        activation: function of the sum; None returns the sum itself.

    >>> linear(torch.ones(2, 3), torch.eye(3), torch.arange(3.0))
    tensor([[1., 2., 3.],
            [1., 2., 3.]])
    """
    # The operator of oneDNN has no derivative: its gradient would silently be 0.
    if _ONEDNN is None or is_derived(x, weight, bias) or not _is_for_onednn(x, weight):
        return _linear_of_torch(x, weight, bias, activation)
    return _linear_of_onednn(x, weight, bias, activation)


def _linear_of_torch(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation | None
) -> Tensor:
    """Return activation(x weight^T + bias) by torch, which uses MKL on x86 processors."""
    product = F.linear(x, weight, bias)
    return product if activation is None else activation(product)


def _linear_of_onednn(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation | None
) -> Tensor:
    """Return activation(x weight^T + bias) by oneDNN."""
    assert _ONEDNN is not None
    name, variant = ("none", "") if activation is None else activation.onednn
    return cast(Tensor, _ONEDNN(x, weight, bias, name, [], variant))


def library() -> str:
    """Return the library of large float32 products on this machine: "oneDNN", "MKL" or "torch".

    "torch" means that this torch has no oneDNN, so that all products are its own. Nothing is
    measured: the result is "oneDNN" until the first large product.
    """
    if _ONEDNN is None:
        return "torch"
    with suppress(OSError, RuntimeError):  # no measurement, or no home folder
        if _choice_file().read_bytes() == b"MKL":
            return "MKL"
    return "oneDNN"


def processor() -> str:
    """Return the name of the processor, on which all measured times depend."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text("utf-8").splitlines() if info.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _choice_file() -> Path:
    """Return the file with the faster library of this processor and version of torch.

    It does not depend on the number of threads, because rows must not depend on it.
    """
    kind = f"{processor()} {torch.backends.cpu.get_cpu_capability()} torch {torch.__version__}"
    return user_cache_path("probekit") / "products" / re.sub(r"\W+", "-", kind)


@cache
def _is_mkl_faster() -> bool:
    """Return whether MKL computes the large products; measured once per machine.

    The first process that has measured decides for all. If the user's cache folder cannot be
    written, the result is False without a measurement, so that all processes agree.
    """
    if not torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        return False
    with suppress(OSError, RuntimeError):
        path = _choice_file()
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            with Draft(Disk(), path) as draft:
                draft.write(_measured_library().encode())
                draft.link(path)  # changes nothing if the file exists by now
    return library() == "MKL"


def _measured_library() -> str:
    """Return "MKL" if it computes an MLP clearly faster than oneDNN does, on one thread.

    Takes about half a second. Processor time of this thread is measured, which other work on the
    machine hardly affects.
    """
    shapes = (_FEWEST_ROWS, 768), (1536, 768), (768, 1536)
    # Whatever the caller's defaults are.
    x, up, down = (torch.full(shape, 0.01, dtype=torch.float32, device="cpu") for shape in shapes)
    best: dict[Callable[..., Tensor], float] = {}
    # Whatever the caller's modes are.
    with threads(1), torch.inference_mode(), torch.autocast("cpu", enabled=False):
        for product in (_linear_of_onednn, _linear_of_torch) * 4:
            start = thread_time()
            product(product(x, up, None, GELU_TANH), down, None, None)
            best[product] = min(best.get(product, math.inf), thread_time() - start)
    return "MKL" if best[_linear_of_torch] < _CLEARLY_FASTER * best[_linear_of_onednn] else "oneDNN"


def gram(rows: Tensor) -> Tensor:
    """Return rows^T rows (d, d) for rows (n, d), without a gradient.

    With one CPU thread, numpy computes only half of the symmetric product. With more, its threads
    keep waiting actively afterwards and slow down those of torch.

    >>> gram(torch.tensor([[1.0, 2.0], [0.0, 1.0]]))
    tensor([[1., 2.],
            [2., 5.]])
    """
    rows = rows.detach().contiguous()  # oneDNN refuses views that skip columns
    if rows.device.type != "cpu" or torch.get_num_threads() > 1:
        return linear(rows.T, rows.T)  # linear(x, w) is x w^T
    array = rows.numpy()
    return torch.from_numpy(array.T @ array)


def weighted_sums(values: Tensor, rows: Tensor) -> Tensor:
    """Return values rows (k, d) for values (k, n) and rows (n, d), without a gradient.

    With one CPU thread, numpy is faster than oneDNN for few sums; see `gram` for more threads. Sums
    over many rows are sums of partial ones, which are more precise.

    >>> weighted_sums(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 0.0], [0.0, 5.0]]))
    tensor([[ 3., 10.]])
    """
    if len(rows) > _SUMMED_ROWS:
        whole = len(rows) - len(rows) % _SUMMED_ROWS
        of_parts = values[:, :whole].reshape(len(values), -1, _SUMMED_ROWS).transpose(0, 1)
        parts = of_parts @ rows[:whole].reshape(-1, _SUMMED_ROWS, rows.shape[1])
        return parts.sum(dim=0) + weighted_sums(values[:, whole:], rows[whole:])
    if rows.device.type != "cpu" or torch.get_num_threads() > 1:
        return linear(values, rows.T)
    return torch.from_numpy(values.detach().numpy() @ rows.detach().numpy())


def eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues in ascending order and eigenvectors, on the CPU if MPS lacks them."""
    values, vectors = torch.linalg.eigh(matrix.cpu() if matrix.device.type == "mps" else matrix)
    return values.to(matrix.device), vectors.to(matrix.device)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    visible: Tensor | None,
    *,
    is_causal: bool,
    pdrop: float = 0.0,
    scale: float | None = None,
) -> Tensor:
    """Return softmax(scale q k^T) v, shape [batch n_heads query_pos d_head].

    On a CPU, without dropout and with a mask or causality, the result is bit-identical for any
    number of threads.

    Args:
        q: shape [batch n_heads query_pos d_head].
        k: shape [batch n_heads key_pos d_head].
        v: shape [batch n_heads key_pos d_head].
        visible: True where a query may attend, shape [batch 1 query_pos key_pos], or
            [query_pos key_pos] for every row; None for all.
        is_causal: whether each query attends only to keys up to its own position.
        pdrop: dropout rate.
        scale: factor of the scores; None means 1 / sqrt(d_head).

    >>> q, k = torch.zeros(1, 1, 2, 3), torch.zeros(1, 1, 2, 3)
    >>> attend(q, k, torch.arange(6.0).view(1, 1, 2, 3), None, is_causal=True)[0, 0]
    tensor([[0.0000, 1.0000, 2.0000],
            [1.5000, 2.5000, 3.5000]])
    """
    n_queries = q.shape[2]
    # Without either there is a single query, as in generation; padding would cost it time.
    is_masked = is_causal or visible is not None
    if q.device.type == "cpu" and is_masked and not pdrop:
        # torch gives each thread a slice of a buffer whose length is the number of queries. A
        # slice that is not aligned to 16 bytes is summed in another order, so we pad.
        n_more = -n_queries % _QUERIES_AT_ONCE
        q = F.pad(q, (0, 0, 0, n_more))
        visible = None if visible is None else F.pad(visible, (0, 0, 0, n_more), value=True)
    z = F.scaled_dot_product_attention(
        q, k, v, attn_mask=visible, is_causal=is_causal, dropout_p=pdrop, scale=scale
    )
    return z[:, :, :n_queries]


def _is_for_onednn(x: Tensor, weight: Tensor) -> bool:
    """Return whether oneDNN computes this product: float32 on a CPU, not empty, not for MKL."""
    is_plain = x.device.type == "cpu" and x.dtype == weight.dtype == torch.float32
    if not is_plain or x.numel() == 0:
        return False
    has_many_rows = x.numel() // x.shape[-1] >= _FEWEST_ROWS
    is_large = weight.numel() >= _FEWEST_WEIGHTS
    is_large = is_large and _FEWEST_OUTPUTS <= weight.shape[0] < _MOST_OUTPUTS
    return not (has_many_rows and is_large and _is_mkl_faster())


def is_derived(*tensors: Tensor | None) -> bool:
    """Return whether torch may be differentiating one of these tensors, in any autograd mode."""
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        return True
    # no_grad does not end forward mode, and torch.func tensors hide that they are
    # differentiated. torch has no public API for either check.
    try:
        is_forward = forward_ad._current_level >= 0
        return is_forward or torch._C._functorch.peek_interpreter_stack() is not None
    except AttributeError:  # other torch versions: fall back to F.linear, which is differentiable
        return True


def with_gradient(value: Tensor, of: Tensor) -> Tensor:
    """Return `value` with the gradient of `of`; the two differ only by rounding.

    Args:
        value: any shape.
        of: the same quantity, computed by differentiable operations; same shape, all finite.

    >>> x = torch.tensor(2.0, requires_grad=True)
    >>> y = with_gradient(torch.tensor(4.0), of=x**2)
    >>> y.item(), torch.autograd.grad(y, x)[0].item()
    (4.0, 4.0)
    """
    return value.detach() + (of - of.detach())  # the difference is 0, with the gradient of `of`


def to_device(x: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device, without waiting for a copy to a GPU."""
    return x.to(device, non_blocking=device.type == "cuda")


def put(values: Any, device: str) -> Tensor:
    """Return an array as a tensor on a device; float64 becomes float32 except on the CPU.

    >>> put(np.zeros(2), "cpu:1").dtype
    torch.float32
    """
    array = np.asarray(values)
    if is_accelerator(device) and array.dtype == np.float64:
        array = array.astype(np.float32)
    return torch.tensor(array, device=device)


@contextmanager
def without_tf32() -> Iterator[None]:
    """Compute float32 products on GPUs in float32 in the block, even if the user allows TF32."""
    products = torch.backends.cuda.matmul
    allowed, products.fp32_precision = products.fp32_precision, "ieee"
    try:
        yield
    finally:
        products.fp32_precision = allowed


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Limit all libraries to `number` threads in the block; to one thread in a forked process.

    Blocks in several threads of Python may overlap; after the last one, the number is as before.
    """
    number, block = 1 if is_forked() else number, object()
    with _LOCK:
        _OPEN.setdefault(None, torch.get_num_threads())
        _OPEN[block] = number
        torch.set_num_threads(number)
    try:
        with threadpool_limits(number):
            yield
    finally:
        with _LOCK:
            del _OPEN[block]
            torch.set_num_threads([*_OPEN.values()][-1] if len(_OPEN) > 1 else _OPEN.pop(None))
