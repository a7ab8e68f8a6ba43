"""Simulated GPUs: tensors in the memory of the CPU that name a device `cuda:N`.

An operation on tensors of two devices fails as it does on real GPUs, and so does reading one
without a copy to the CPU. A copy to the CPU that is not waited for contains NaN until an event
after it, on the same stream, is synchronised. Numbers are those of the CPU.
"""

import contextlib
from typing import ClassVar
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

_TENSOR = torch.Tensor
_FROM_SEVERAL = ("type_as", "expand_as", "copy_", "__getitem__", "__setitem__")


class OnGpu(torch.Tensor):
    """A tensor of a simulated GPU; `gpu` is its device."""

    def record_stream(self, stream):
        assert isinstance(stream, Stream)

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        del types
        return _run(function, args, kwargs or {})


class Stream:
    """A stream for copies; they are made when an event after them is synchronised."""

    current: ClassVar[list["Stream"]] = []  # of `torch.cuda.stream` blocks, inner ones last

    def __init__(self, device=None):
        self.device, self.copies, self.waited_for = device, [], []

    def wait_stream(self, other):
        self.waited_for.append(other)

    def wait_event(self, event):
        """Copies to a simulated GPU are made at once."""

    def record_event(self):
        copies, event = list(self.copies), mock.Mock()

        @torch.inference_mode()
        def synchronize():
            for target, source in copies:
                target.copy_(source)

        event.synchronize = synchronize
        return event


class _Mode(TorchFunctionMode):
    """Creates tensors on simulated GPUs."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        del types
        return _run(function, args, kwargs or {})


@contextlib.contextmanager
def fake_gpus(n=2, memory=1 << 40):
    """Simulate n GPUs of this memory in the block."""
    gpus = {
        "device_count": lambda: n,
        "is_available": lambda: True,
        "mem_get_info": lambda _: (memory, memory),
        "memory_reserved": lambda _: 0,
        "memory_allocated": lambda _: 0,
        "Stream": Stream,
        "current_stream": Stream,
        "stream": _within,
    }
    with contextlib.ExitStack() as stack:
        for name, value in gpus.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, value))
        yield stack.enter_context(_Mode())


@contextlib.contextmanager
def _within(stream):
    Stream.current.append(stream)
    yield
    Stream.current.pop()


def _on(value, device):
    """Return a tensor as one of a simulated GPU; as it is if the device is no GPU."""
    if device is None or device.type != "cuda" or not isinstance(value, _TENSOR):
        return value
    moved = value.as_subclass(OnGpu)
    moved.gpu = torch.device("cuda", device.index or 0)
    if moved.gpu.index >= torch.cuda.device_count():
        raise RuntimeError("CUDA error: invalid device ordinal")
    return moved


def _device_of(value):
    """Return the device of a tensor."""
    return value.gpu if isinstance(value, OnGpu) else value.device


def _moved(args, kwargs, device):
    """Return `Tensor.to` of a tensor on a device, for another device, dtype or tensor."""
    value, plain = args[0], args[0].as_subclass(_TENSOR)
    if isinstance(other := args[-1], _TENSOR) and len(args) > 1:
        args = (value, _device_of(other), other.dtype)
    wanted, dtype, is_async, _ = torch._C._nn._parse_to(*args[1:], **kwargs)
    wanted, dtype = wanted or device, dtype or value.dtype
    if wanted is None or wanted.type != "cuda":
        if device is None or wanted.type != "cpu" or not is_async:
            return plain.to(wanted or plain.device, dtype)
        late = torch.full_like(plain, torch.nan)
        Stream.current[-1].copies.append((late, plain))
        return late
    is_there = value.dtype == dtype and device == wanted
    return value if is_there else _on(plain.to(dtype).clone(), wanted)


def _run(function, args, kwargs):
    with torch._C.DisableTorchFunction():
        name = getattr(function, "__name__", "")
        if function == _TENSOR.device.__get__:
            return _device_of(args[0])
        tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, _TENSOR)]
        gpus = {one.gpu for one in tensors if isinstance(one, OnGpu)}
        on_cpu = [one for one in tensors if not isinstance(one, OnGpu) and one.ndim]
        device = next(iter(gpus), None)
        if name == "to":
            return _moved(args, kwargs, device)
        if function is torch.autograd.grad:  # of the tensors themselves
            gradients = function(*args, **kwargs)
            return tuple(
                _on(one, _device_of(of)) for one, of in zip(gradients, args[1], strict=True)
            )
        if name in ("numpy", "__array__") and gpus:
            raise TypeError("can't convert a cuda tensor to numpy")
        if name not in _FROM_SEVERAL and (len(gpus) > 1 or (gpus and on_cpu)):
            raise RuntimeError(f"Expected all tensors on one device: {name} of {gpus} and the CPU")
        args, kwargs = tree_map_only(OnGpu, lambda one: one.as_subclass(_TENSOR), (args, kwargs))
        kwargs.pop("pin_memory", None)
        if kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "cuda":
            device, kwargs = torch.device(kwargs["device"]), kwargs | {"device": "cpu"}
        out = function(*args, **kwargs)
        return out if name == "cpu" else tree_map_only(_TENSOR, lambda one: _on(one, device), out)
