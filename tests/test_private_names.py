"""Private names of other libraries that we use still exist."""

import ast
import sys
from importlib.metadata import version
from pathlib import Path
from pkgutil import resolve_name

import pytest
import torch
import torch.nn.functional as F
from torch.func import grad

import probekit
from probekit import products
from probekit.activations.object_store import creates_atomically

# Name -> what the package does without it; a test takes each of these ways.
PRIVATE = {
    "torch.ops.mkldnn._linear_pointwise": "products.linear uses F.linear, slower on some CPUs",
    "torch.autograd.forward_ad._current_level": "products.linear uses F.linear",
    "torch._C._functorch.peek_interpreter_stack": "products.linear uses F.linear",
    "fsspec.asyn.AsyncFileSystem._pipe_file": "an object store gets one writer at a time",
    "transformers.PreTrainedConfig._attn_implementation": "attention counts as eager",
    "joblib.externals.loky.ProcessPoolExecutor": "parallel_map runs all jobs in its own process",
}
UNKNOWN = "?"  # the owner of a name that only a value has


@pytest.mark.parametrize("name", PRIVATE)
def test_the_private_name_still_exists(name):
    if "mkldnn" in name and not torch.backends.mkldnn.is_available():
        pytest.skip("this torch was built without oneDNN")
    library = name.partition(".")[0]
    try:
        resolve_name(name)
    except AttributeError:
        pytest.fail(f"{library} {version(library)} has no {name}. Now {PRIVATE[name]}.")


def foreign_names(tree):
    """Return the imports of a file from other libraries: local name to full name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                full = alias.name if alias.asname else alias.name.partition(".")[0]
                yield alias.asname or full, full
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def private_uses(path):
    """Return the full names of private objects of other libraries used in a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    known = dict(foreign_names(tree))
    used = set(known.values())
    for node in ast.walk(tree):
        match node:
            case ast.Attribute():
                used.add(full_name(node, known))
            case ast.Call(ast.Name("getattr"), [where, ast.Constant(str(name)), *_]):
                if name.startswith("_"):
                    used.add(f"{full_name(where, known) or UNKNOWN}.{name}")
    return {name for name in used if is_private(name)}


def full_name(node, known):
    """Return the dotted name of an attribute of another library, else an empty string."""
    if isinstance(node, ast.Name):
        return known.get(node.id, "")
    above = full_name(node.value, known) if isinstance(node, ast.Attribute) else ""
    return above and f"{above}.{node.attr}"


def is_private(name):
    first, *rest = name.split(".")
    if first == "probekit" or first in sys.stdlib_module_names:
        return False
    return "externals" in rest or any(p.startswith("_") and not p.endswith("__") for p in rest)


def test_no_other_private_name_is_used():
    files = Path(probekit.__file__).parent.rglob("*.py")
    used = {name: path for path in files for name in private_uses(path)}
    used = {name: path for name, path in used.items() if not is_part_of_known(name)}
    assert not used, "add them to PRIVATE, each with a way to do without it"


def is_part_of_known(name):
    if name.startswith(UNKNOWN):
        return any(known.endswith(name.removeprefix(UNKNOWN)) for known in PRIVATE)
    return any(f"{known}.".startswith(f"{name}.") for known in PRIVATE)


@pytest.mark.parametrize(
    ("where", "name"),
    [
        (torch.autograd.forward_ad, "_current_level"),
        (torch._C._functorch, "peek_interpreter_stack"),
    ],
)
def test_torch_s_product_is_used_if_derivatives_cannot_be_detected(monkeypatch, where, name):
    x, weight = torch.randn(4, 3), torch.randn(2, 3)
    with monkeypatch.context() as without:
        without.delattr(where, name)
        without.setattr(products, "_ONEDNN", None if products._ONEDNN is None else pytest.fail)
        with torch.no_grad():
            assert torch.equal(products.linear(x, weight), F.linear(x, weight))
    found = grad(lambda x: products.linear(x, weight).sum())(x)
    torch.testing.assert_close(found, weight.sum(0).expand(4, 3))


def test_an_asynchronous_store_without_its_private_method_is_not_trusted_with_two_writers():
    class Store:
        async_impl = True

    assert not creates_atomically(Store())
