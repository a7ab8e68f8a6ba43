"""Tensors that enter and leave the modules of a model: recorded, replaced and compared."""

from __future__ import annotations

import math
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from probekit.errors import ProbekitError

Keys = tuple[Any, ...]  # indices and keys that lead to a tensor in nested containers

# Limits of the distance of two rows, divided by the length of the row, by dtype.
# Passes over batches of other shapes round in another order. transformers computes softmax and
# norms in float32, also in a float64 model. Trained networks amplify rounding: the limit of a site
# is at least AMPLIFIED times the measured effect of a rounding error before each block. Above
# BLIND a comparison shows nothing.
SHAPES = {torch.float64: 2e-5, torch.float32: 1e-4, torch.float16: 0.02, torch.bfloat16: 0.1}
AMPLIFIED, BLIND = 8, 0.5
# The same for the sum that one block adds to a given stream. Nothing is amplified there.
LOCAL = {torch.float64: 2e-5, torch.float32: 2e-5, torch.float16: 0.002, torch.bfloat16: 0.005}
# A row that moves by less than this has not changed: experts round in another order.
MOVES = {torch.float64: 1e-4, torch.float32: 1e-4, torch.float16: 0.01, torch.bfloat16: 0.03}


class NotProvenError(ProbekitError, ValueError):
    """A property of a model that a test contradicts; the message names the test."""


def message_of(error: Exception) -> str:
    """Return the message of an error in one line, with its class unless it is one of the proof."""
    if isinstance(error, NotProvenError):
        return str(error)
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:160]}"


def tensors_in(value: Any, path: Keys = (), depth: int = 3) -> Iterator[tuple[Keys, Tensor]]:
    """Yield the path and the tensor of each floating-point tensor in nested containers."""
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield path, value
    elif depth and isinstance(value, tuple | list | dict):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, one in pairs:
            yield from tensors_in(one, (*path, key), depth - 1)


def get_at(value: Any, path: Keys) -> Any:
    """Return the value at a path in nested containers."""
    for key in path:
        value = value[key]
    return value


def put_at(value: Any, path: Keys, new: Any) -> Any:
    """Return a copy of nested containers with another value at a path."""
    if not path:
        return new
    inner = put_at(value[path[0]], path[1:], new)
    if isinstance(value, tuple):
        parts = [inner if i == path[0] else one for i, one in enumerate(value)]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    copy = list(value) if isinstance(value, list) else type(value)(**value)
    copy[path[0]] = inner
    return copy


def input_at(args: tuple[Any, ...], kwargs: dict[str, Any], path: Keys) -> Any:
    """Return the argument at a path, which begins with an index or the name of a keyword."""
    return get_at(args if isinstance(path[0], int) else kwargs, path)


def put_input(
    args: tuple[Any, ...], kwargs: dict[str, Any], path: Keys, new: Tensor
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call with another tensor at a path."""
    if isinstance(path[0], int):
        return put_at(args, path, new), kwargs
    return args, put_at(kwargs, path, new)


def output_logits(out: Any) -> Tensor:
    """Return the logits of the output of a model, shape (batch, pos, d_vocab)."""
    logits: Tensor = out.logits if hasattr(out, "logits") else out[0]
    return logits


def eps(x: Tensor) -> float:
    """Return the relative rounding error of a tensor's dtype."""
    return torch.finfo(x.dtype).eps


def same(x: Tensor, y: Tensor) -> bool:
    """Return whether two tensors are equal bit by bit, whatever the shape of their rows.

    A NaN equals nothing.
    """
    if x.numel() != y.numel() or x.dtype != y.dtype:
        return False
    return torch.equal(x.reshape(-1), y.reshape(-1))


def apart_rows(x: Tensor, y: Tensor) -> float:
    """Return the largest distance of two rows, divided by the length of the row of `y`.

    Lengths are at least a tenth of the median length. Trained networks give the first position,
    and a few coordinates, values a thousand times the others: divided by the root mean square of a
    text, an error in any other row is invisible, and rounding in that one is an error.

    Returns:
        Infinity if a value is not finite.
    """
    x, y = x.detach().float(), y.detach().float()
    if not (torch.isfinite(x).all() and torch.isfinite(y).all()):
        return math.inf
    length = y.norm(dim=-1)
    floor = 0.1 * float(length.median()) + 1e-30
    return float(((x - y).norm(dim=-1) / length.clamp_min(floor)).max())


def close_sum(total: Tensor, y: Tensor, terms: Sequence[Tensor]) -> bool:
    """Return whether a sum equals `y` up to the rounding of its terms, at every coordinate."""
    if not torch.isfinite(y).all():
        return False
    size = y.double().abs() + sum(term.double().abs() for term in terms)
    return bool(((total.double() - y.double()).abs() <= 4 * eps(y) * size).all())


@dataclass
class Event:
    """A tensor that entered or left a module.

    Attributes:
        order: number of the event in the pass; the tensors of one call of a hook share it.
        module: name of the module.
        kind: "in" or "out".
        path: its path in the arguments or in the output.
        value: a copy, because a model may add in place.
    """

    order: int
    module: str
    kind: str
    path: Keys
    value: Tensor


@dataclass
class Trace:
    """The recorded tensors of one pass.

    Attributes:
        events: the tensors, in the order of the pass.
        calls: number of calls of each module.
        spans: order of the beginning and the end of the first call of each module.
        out: what the pass returned.
    """

    events: list[Event] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)
    spans: dict[str, list[int]] = field(default_factory=dict)
    out: Any = None

    def at(self, module: str, kind: str, path: Keys) -> Tensor:
        """Return the first tensor at a path of the inputs or outputs of a module."""
        door = (module, kind, path)
        return next(e.value for e in self.events if (e.module, e.kind, e.path) == door)


def record(
    model: nn.Module, call: Callable[[], Any], keep: Callable[[str, Tensor], bool], within: str = ""
) -> Trace:
    """Return a trace of one pass.

    Args:
        model: the model.
        call: runs the pass.
        keep: whether to record a tensor, given the name of its module.
        within: prefix of the names of the modules that are observed.
    """
    trace, order = Trace(), 0

    def note(name: str, kind: str, *values: Any) -> None:
        nonlocal order
        order += 1
        if kind == "in":
            trace.calls[name] += 1
            trace.spans.setdefault(name, [order, order])
        elif trace.calls[name] == 1:
            trace.spans[name][1] = order
        for value in values:
            for path, tensor in tensors_in(value):
                if keep(name, tensor):
                    copy = tensor.detach().clone()
                    trace.events.append(Event(order, name, kind, path, copy))

    def before(name: str) -> Callable[..., None]:
        return lambda _, args, kwargs: note(name, "in", args, kwargs)

    def after(name: str) -> Callable[..., None]:
        return lambda _, __, out: note(name, "out", out)

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if name.startswith(within):
                enter = module.register_forward_pre_hook(before(name), with_kwargs=True)
                hooks.callback(enter.remove)
                hooks.callback(module.register_forward_hook(after(name)).remove)
        trace.out = call()
    return trace


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch all modules to evaluation, and those that were in training back at the end."""
    training = [module for module in model.modules() if module.training]
    if training:
        model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def has_hook(module: nn.Module) -> bool:
    """Return whether a module has forward hooks; those of transformers only record."""
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    known = ("transformers.", "accelerate.")
    return any(not str(getattr(hook, "__module__", "")).startswith(known) for hook in hooks)


# The attention function of transformers is replaced for the whole process.
ONE_PASS = threading.RLock()
Pair = tuple[Tensor, Tensor | None]  # z, shape (batch, pos, n_heads, d_head), and the pattern


@contextmanager
def attention_through(implementation: str, function: Callable[..., Pair]) -> Iterator[None]:
    """Send the calls of the attention function of transformers through another function.

    Args:
        implementation: eager, sdpa, ...
        function: gets the native function, the module, q, k and v, each of shape
            (batch, n_heads, pos, d_head), the further arguments and the keywords.
    """
    known = import_module("transformers.modeling_utils").ALL_ATTENTION_FUNCTIONS

    def attention(
        module: nn.Module, q: Tensor, k: Tensor, v: Tensor, *args: Any, **kwargs: Any
    ) -> Pair:
        native = before or _eager_attention(module)
        return function(native, module, q, k, v, args, kwargs)

    with ONE_PASS:
        before = known.get(implementation)
        known[implementation] = attention
        try:
            yield
        finally:
            del known[implementation]
            if known.get(implementation) is not before:
                known[implementation] = before


def _eager_attention(module: nn.Module) -> Callable[..., Pair]:
    """Return the eager attention of the file that defines a module."""
    for kind in type(module).__mro__:
        name, file = "eager_attention_forward", sys.modules.get(kind.__module__)
        found: Callable[..., Pair] | None = getattr(file, name, None)
        if found is not None:
            return found
    raise NotProvenError(f"{type(module).__name__} has no eager attention")
