"""Simulated GPUs: tensors in the memory of the CPU that name a device `cuda:N`.

An operation on tensors of two devices fails as it does on real GPUs, and so does reading one
without a copy to the CPU. Numbers are those of the CPU.
"""

import contextlib

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

_TENSOR = torch.Tensor
_COPIES = ("to", "cpu", "cuda", "type_as", "copy_", "record_stream")
_INDEXING = ("__getitem__", "__setitem__", "load_state_dict")  # take indices that are on the CPU


class OnGpu(torch.Tensor):
    """A tensor of a simulated GPU; `gpu` is its device."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        del types
        return _run(function, args, kwargs or {})


class FakeGpus(TorchFunctionMode):
    """Within the block, tensors can be created on the devices `cuda:0`, `cuda:1`, ..."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        del types
        return _run(function, args, kwargs or {})


def _on(value, device):
    """Return a tensor as one of a simulated GPU; as it is if the device is no GPU."""
    if device is None or device.type != "cuda" or not isinstance(value, _TENSOR):
        return value
    moved = value.as_subclass(OnGpu)
    moved.gpu = torch.device("cuda", device.index or 0)
    return moved


def _run(function, args, kwargs):
    with torch._C.DisableTorchFunction():
        return _run_on_cpu(function, args, kwargs)


def _run_on_cpu(function, args, kwargs):
    name = getattr(function, "__name__", "")
    if function == _TENSOR.device.__get__ and isinstance(args[0], OnGpu):
        return args[0].gpu
    tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, _TENSOR)]
    gpus = {one.gpu for one in tensors if isinstance(one, OnGpu)}
    on_cpu = [one for one in tensors if not isinstance(one, OnGpu) and one.ndim]
    device = next(iter(gpus), None)
    plain_args, plain_kwargs = tree_map_only(
        OnGpu, lambda one: one.as_subclass(_TENSOR), (args, kwargs)
    )
    if name == "to":
        wanted, *_ = torch._C._nn._parse_to(*args[1:], **kwargs)
        wanted = device if wanted is None else wanted
        if wanted is None or wanted.type != "cuda":
            return function(*plain_args, **plain_kwargs)
        dtype = torch._C._nn._parse_to(*args[1:], **kwargs)[1] or plain_args[0].dtype
        is_same = args[0].dtype == dtype and getattr(args[0], "gpu", None) == wanted
        return args[0] if is_same else _on(plain_args[0].to(dtype).clone(), wanted)
    if name in ("numpy", "__array__") and gpus:
        raise TypeError("can't convert a cuda tensor to numpy")
    if name == "record_stream":
        return None
    if name not in (*_COPIES, *_INDEXING) and (len(gpus) > 1 or (gpus and on_cpu)):
        raise RuntimeError(f"Expected all tensors on one device: {name} of {gpus} and the CPU")
    if plain_kwargs.get("device") is not None:
        wanted = torch.device(plain_kwargs["device"])
        if wanted.type == "cuda":
            device, plain_kwargs = wanted, plain_kwargs | {"device": "cpu"}
    out = function(*plain_args, **plain_kwargs)
    if name == "cpu":
        return out
    return tree_map_only(_TENSOR, lambda one: _on(one, device), out)
