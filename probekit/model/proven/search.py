"""Search for the parts of a model by values: blocks, unembedding, additions, attention, maps."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from probekit.model.proven.additions import Layer, Step, find_additions
from probekit.model.proven.doors import (
    MOVES,
    Keys,
    NotProvenError,
    Pair,
    Trace,
    apart_rows,
    attention_through,
    eps,
    get_at,
    input_at,
    output_logits,
    put_at,
    put_input,
    record,
    same,
)
from probekit.model.proven.taps import HEAD_SITES, SITE_OF, STREAMS, Hooks, ProvenModel

# Times the size of a row: a head that attends elsewhere shows little of a small change.
NUDGES = (1, 8, 64)
Maps = dict[str, tuple[Tensor, Tensor]]  # input and output of modules, by name
ROUNDED_ROW = 1e-6  # of rows of a pattern, which sum to 1; transformers computes them in float32


# ---------------------------------------------------------------------- blocks
def find_blocks(model: ProvenModel) -> None:
    """Find the list of blocks, and the path of the stream in their arguments and outputs.

    Its members run once, in order, and the output of each is the input of the next one bit by bit.
    Of several lists, the one with `num_hidden_layers` members has preference, then the one with
    most parameters.

    Raises:
        NotProvenError: no list is like this.
    """
    ids = model.texts()[0]
    members = {
        name: [f"{name}.{i}" for i in range(len(module))]
        for name, module in model.modules.items()
        if isinstance(module, nn.ModuleList) and len(module)
    }
    watched = {name for names in members.values() for name in names}
    trace = record(model.model, lambda: model.call(ids), lambda k, t: k in watched and t.ndim >= 2)
    doors: dict[tuple[str, str], dict[Keys, Tensor]] = defaultdict(dict)
    for event in trace.events:
        doors[event.module, event.kind].setdefault(event.path, event.value)
    found, reasons = {}, []
    for name, names in members.items():
        if not any(trace.calls[one] for one in names):
            continue
        try:
            found[name] = _stream_of(trace, doors, names, ids.shape[1])
        except NotProvenError as error:
            reasons.append(f"{name}: {error}")
    # Lists inside a block are no lists of blocks.
    for name in list(found):
        if any(name.startswith(f"{other}.") for other in found):
            del found[name]
    if not found:
        raise NotProvenError("; ".join(reasons[:3]) or "no list of blocks is run")
    expected = getattr(model.config, "num_hidden_layers", None)
    likely = [name for name in found if len(members[name]) == expected] or list(found)

    def n_parameters(name: str) -> int:
        return sum(p.numel() for p in model.modules[name].parameters())

    model.list_name = max(likely, key=n_parameters)
    model.out_path, model.in_path, model.d_model = found[model.list_name]
    model.n_layers = len(members[model.list_name])
    size = getattr(model.config, "hidden_size", model.d_model)
    if size != model.d_model:
        raise NotProvenError(
            f"the stream has {model.d_model} features, hidden_size is {size}: several streams or "
            "another width"
        )
    if expected not in (None, model.n_layers):
        model.facts["note"] = f"{model.n_layers} blocks, num_hidden_layers {expected}"


def _stream_of(
    trace: Trace, doors: dict[tuple[str, str], dict[Keys, Tensor]], names: list[str], n: int
) -> tuple[Keys, Keys, int]:
    """Return the paths of the stream in the outputs and arguments of blocks, and its width.

    Raises:
        NotProvenError: the modules are not run as blocks.
    """
    counts = [trace.calls[name] for name in names]
    if set(counts) != {1}:
        raise NotProvenError(f"blocks are run {min(counts)} to {max(counts)} times in a pass")
    outs, ins = ([doors[name, kind] for name in names] for kind in ("out", "in"))
    pairs = list(zip(outs[:-1], ins[1:], strict=True))
    if pairs:
        links = (
            (o, i)
            for o in outs[0]
            for i in ins[1]
            if i in ins[0] and all(o in a and i in b and same(a[o], b[i]) for a, b in pairs)
        )
    else:  # a single block
        links = ((o, i) for i in ins[0] for o in outs[0] if ins[0][i].shape == outs[0][o].shape)
    link = next(links, None)
    if link is None:
        raise NotProvenError("the output of a block is not the input of the next")
    out_path, in_path = link
    shapes = {tuple(one[out_path].shape) for one in outs} | {
        tuple(one[in_path].shape) for one in ins
    }
    first = min(shapes)
    if len(shapes) > 1 or len(first) != 3 or first[:2] != (1, n):
        raise NotProvenError(
            f"the stream has shape {first} for {n} tokens, not (batch, pos, d_model)"
        )
    starts = [trace.spans[name][0] for name in names]
    if starts != sorted(starts):
        raise NotProvenError("blocks are not run in order")
    return out_path, in_path, first[2]


# ---------------------------------------------------------------------- final norm and unembedding
def find_head(model: ProvenModel) -> None:
    """Find the final norm and the unembedding, and what scales or caps their results.

    Raises:
        NotProvenError: the logits are not the unembedding of the normed last stream.
    """
    ids, last = model.texts()[0], model.block(model.n_layers - 1)
    n, prefix = ids.shape[1], f"{model.list_name}."

    def keep(name: str, tensor: Tensor) -> bool:
        is_row = tensor.ndim >= 2 and tensor.shape[-2] == n
        return is_row and (name == last or not name.startswith(prefix))

    trace = record(model.model, lambda: model.call(ids), keep)
    logits, resid = output_logits(trace.out), trace.at(last, "out", model.out_path)
    end = trace.spans[last][1]
    later = [e for e in trace.events if e.order > end and _is_leaf(model.modules[e.module])]
    embedding = getattr(model.model, "get_output_embeddings", lambda: None)()
    heads = [k for k, m in model.modules.items() if m is embedding and embedding is not None]
    width = logits.shape[-1]
    heads += [e.module for e in later if e.kind == "out" and e.value.shape[-1] == width]
    if not heads:
        raise NotProvenError("no unembedding is found")
    model.head, model.n_vocab = heads[0], width
    read, made = (
        [e.value for e in trace.events if e.module == model.head and e.kind == kind]
        for kind in ("in", "out")
    )
    if len(read) != 1 or len(made) != 1:
        raise NotProvenError(f"{model.head} is run {trace.calls[model.head]} times")
    x, reader = resid, next((e for e in later if e.kind == "in" and same(e.value, resid)), None)
    if reader is not None and reader.module != model.head:
        model.norm, model.norm_path = reader.module, reader.path
        x = next(e.value for e in later if e.module == model.norm and e.kind == "out")
    model.before_head = _link(model, x, read[0], "the final norm and the unembedding")
    model.after_head = _link(model, made[0][..., :width], logits, "the unembedding and the logits")
    for text in model.texts():
        trace = record(model.model, partial(model.call, text), lambda k, _: k == last)
        logits = output_logits(trace.out)
        gap = apart_rows(model.unembed(trace.at(last, "out", model.out_path)), logits)
        if not gap <= 4 * eps(logits):
            raise NotProvenError(f"head(norm(last block)) differs from the logits by {gap:.0e}")
    parts = (model.norm, model.before_head[0], model.head, model.after_head[0])
    model.facts["head"] = " ".join(map(str, parts))


def _is_leaf(module: nn.Module) -> bool:
    return next(module.children(), None) is None


def _link(model: ProvenModel, x: Tensor, y: Tensor, between: str) -> tuple[str, float, float]:
    """Return how `y` follows from `x`: a description, a factor and a soft cap (0 for none).

    Raises:
        NotProvenError: they are neither equal nor scaled and capped by numbers of the config.
    """
    if x.shape == y.shape:
        if torch.equal(x.to(y.dtype), y) or torch.equal(x, y.to(x.dtype)):
            return "* 1", 1.0, 0.0
        numbers = {"1": 1.0, **model.numbers}
        size = eps(y) * y.abs()
        for name, c in numbers.items():
            if ((x * c - y).abs() <= size).all():
                return f"* {name}", c, 0.0
        for name, c in numbers.items():
            for cap, k in numbers.items():
                if ((k * torch.tanh(x * c / k) - y).abs() <= 4 * size).all():
                    return f"* {name}, capped at {cap}", c, k
    raise NotProvenError(f"an unknown operation is between {between}")


# ---------------------------------------------------------------------- additions and their roles
def find_sublayers(model: ProvenModel) -> None:
    """Find the additions of each block with the first text; all other texts must have the same.

    Also finds whether blocks can be called alone.
    """
    texts = model.texts()
    traces = [model.inside(ids) for ids in texts]
    model.alone = _calls_alone(model, texts[0], traces[0])
    for number in range(model.n_layers):
        pre, post = (t.reshape(-1, model.d_model) for t in model.stream(traces[0], number))
        name, factors = model.block(number), model.factors(number)
        model.layers.append(find_additions(traces[0], name, pre, post, factors))
        for trace in traces[1:]:
            if broken := model.broken_sum(trace, number, exact=True):
                model.layers[number] = Layer(reason=f"on another text, {broken}")
        if model.layers[number].steps:
            try:
                _find_roles(model, traces[0], number)
            except NotProvenError as error:
                model.layers[number] = Layer(reason=str(error))
    for number, layer in enumerate(model.layers):
        modules = [place.module for step in layer.steps for place in step.places]
        model.doors |= {model.block(number), *modules, *(door[0] for door in layer.seen)}


def _calls_alone(model: ProvenModel, ids: Tensor, trace: Trace) -> Any:
    """Return the arguments of the blocks in a pass; None if a block alone gives another stream."""
    try:
        calls = model.recorded_calls(ids)
        for number in range(model.n_layers):
            pre, post = model.stream(trace, number)
            if not same(model.one_block(number, pre, calls), post):
                return None
    except Exception:  # noqa: BLE001 - any error of the model's code: passes of the whole model are used
        return None
    return calls


def _find_roles(model: ProvenModel, clean: Trace, number: int) -> None:
    """Tell mixers, which read earlier positions, from MLPs, which read only their own.

    One row of the stream before an addition is changed. Of each role, the first addition has the
    name; the per-layer embeddings of Gemma 3n are a second "MLP".

    Raises:
        NotProvenError: a summand reads later positions or not the stream before it, or the block
            is not parallel.
    """
    layer, pre = model.layers[number], model.stream(clean, number)[0]
    row = pre.shape[1] // 2
    # The size of this row: the first may be a thousand times larger.
    size = pre[0, row].float().square().mean().sqrt()
    for index, step in enumerate(layer.steps):
        source = None if index == 0 or layer.parallel else layer.steps[index - 1]
        old = model.summand(clean, number, step)
        for times_size in NUDGES:
            noise = _noise(model, number, times_size * size)
            nudged = _nudged(model, number, source, row, noise, pre)
            later, reads_later = _moves(old, model.summand(nudged, number, step), row)
            step.role = "mixer" if reads_later else "mlp"
            if step.role == "mixer":
                break
        if later is None:
            raise NotProvenError(f"summand {index + 1} does not read the stream before it")
        # The largest move of later rows by an MLP, and the least by a mixer.
        low, high = model.facts.get("roles", (0.0, float("inf")))
        is_mlp = step.role == "mlp"
        model.facts["roles"] = (max(low, later), high) if is_mlp else (low, min(high, later))
    if layer.parallel:
        for one, other in (layer.steps, layer.steps[::-1]):
            moved = _nudged(model, number, one, row, _noise(model, number, size), pre)
            if not same(model.summand(moved, number, other), model.summand(clean, number, other)):
                raise NotProvenError("parallel by its sum, but one summand reads the other")
    roles = [step.role for step in layer.steps]
    for index, step in enumerate(layer.steps):
        if step.role in roles[:index]:
            step.role = ""


def _moves(old: Tensor, new: Tensor, row: int) -> tuple[float | None, bool]:
    """Return how far later rows of a summand move if one row changes, and whether it reads them.

    The distance is None if no row moves.

    Raises:
        NotProvenError: earlier rows move.
    """
    old = old.double()
    gaps = (old - new.double()).norm(dim=1)
    length = old.norm(dim=1)
    own = gaps / length.clamp_min(0.1 * float(length.median()) + 1e-30)
    if not torch.isfinite(own).all():
        raise NotProvenError("a summand is not finite after a small change")
    if (own[:row] > MOVES[new.dtype]).any():
        raise NotProvenError("a summand reads later positions")
    later = float(own[row + 1 :].max())
    all_later = bool(gaps[row + 1 :].all()) and not gaps[:row].any()
    return (later if gaps.any() else None), later > MOVES[new.dtype] or all_later


def _noise(model: ProvenModel, seed: int, size: Tensor | float) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(model.d_model, generator=generator).to(model.device) * size


def _nudged(
    model: ProvenModel, number: int, step: Step | None, row: int, noise: Tensor, pre: Tensor
) -> Trace:
    """Return a pass in which one row of the stream before a block, or of a summand, is changed.

    Args:
        model: the model.
        number: number of the block.
        step: the addition that has the summand; None for the stream before the block.
        row: the position.
        noise: what is added to the row.
        pre: the stream before the block in the clean pass.
    """
    ids = model.texts()[0]

    def moved(x: Tensor, over: Any = 1.0) -> Tensor:
        rows = x.clone().reshape(ids.numel(), -1)
        rows[row] += (noise / over).to(x.dtype)
        return rows.reshape(x.shape)

    def at_input(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x = input_at(args, kwargs, model.in_path)
        return put_input(args, kwargs, model.in_path, moved(x))

    def hooks() -> Hooks:
        if step is None:
            block = model.modules[model.block(number)]
            yield block.register_forward_pre_hook(at_input, with_kwargs=True)
            return
        place, factors = step.places[-1], model.factors(number)
        over: Any = factors[place.scale]
        over = over * factors[step.scale]
        yield model.modules[place.module].register_forward_hook(
            lambda _, __, out: put_at(out, place.path, moved(get_at(out, place.path), over))
        )

    calls = model.alone
    if calls is None:
        return model.inside(ids, hooks)
    return model.inside(
        ids, hooks, lambda: model.one_block(number, pre, calls), model.block(number)
    )


# ---------------------------------------------------------------------- attention
def find_attention(model: ProvenModel) -> set[int]:
    """Find the blocks that call the attention function of transformers; z must be pattern @ v.

    Returns:
        The blocks with attention, those without proven heads included.
    """
    reasons: dict[int, str] = {}
    attending: dict[int, str] = {}
    names = {id(m): k for k, m in model.modules.items() if k.startswith(f"{model.list_name}.")}
    calls: list[tuple[str, Tensor, Tensor, Pair]] = []

    def watch(native: Any, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, *more: Any) -> Pair:
        z, pattern = native(module, q, k, v, *more[0], **more[1])
        if id(module) in names:
            calls.append((names[id(module)], q, v.clone(), (z.clone(), pattern)))
        return z, pattern

    for ids in model.texts():
        calls.clear()
        clean = output_logits(model.call(ids))
        with attention_through(model.implementation, watch):
            if not torch.equal(clean, output_logits(model.call(ids))):
                model.refused["patterns"] = "the attention function changes the logits"
                return set()
        counts = Counter(model.layer_of(name) for name, *_ in calls)
        for name, q, v, pair in calls:
            layer = model.layer_of(name)
            attending[layer] = name
            fault = f"{counts[layer]} attentions in a block" if counts[layer] != 1 else ""
            if fault := fault or _pattern_fault(model, q, v, pair, ids.shape[1]):
                reasons[layer] = fault
    model.attention = {k: name for k, name in attending.items() if k not in reasons}
    if reasons:
        counted = Counter(reasons.values()).items()
        model.refused["patterns"] = "; ".join(f"{why} ({n} layers)" for why, n in counted)
    elif attending and model.implementation != "eager":
        model.refused["patterns"] = "load the model with attn_implementation='eager'"
    elif not attending:
        why = "no block calls the attention function of transformers"
        model.refused["patterns"] = why
        return _pattern_outputs(model)
    return set(attending)


def _pattern_fault(model: ProvenModel, q: Tensor, v: Tensor, pair: Pair, n: int) -> str:
    """Return why z and pattern of one attention are not what their names say; empty if they are."""
    z, pattern = pair
    if model.implementation != "eager":
        is_z = z.shape[:2] == (1, n) and z.shape[-1] == v.shape[-1]
        return "" if is_z else f"z has shape {list(z.shape)}"
    if pattern is None or pattern.shape != (1, q.shape[1], n, n):
        shape = None if pattern is None else list(pattern.shape)
        return f"pattern has shape {shape} for {n} tokens"
    values = v.repeat_interleave(q.shape[1] // v.shape[1], 1)
    if not _mixes(pattern.to(v.dtype), values, z):
        return "z is not pattern @ v"
    if (pattern < 0).any() or pattern.triu(1).any():
        return "pattern is negative or not causal"
    rows, rounding = pattern.double().sum(-1), 4 * max(eps(pattern), ROUNDED_ROW)
    if float(rows.max()) > 1 + rounding:
        return "rows of the pattern sum to more than 1"
    if float(rows.min()) < 1 - rounding:
        least = float(rows.min())
        sinks = f"sum to less than 1 (down to {least:.2f}): attention sinks take the rest"
        model.facts["pattern rows"] = sinks
    return ""


def _mixes(pattern: Tensor, v: Tensor, z: Tensor) -> bool:
    """Return whether z is pattern @ v, within the rounding of its own terms."""
    made = (pattern @ v).transpose(1, 2)
    if torch.equal(made, z):
        return True
    size = (pattern.double().abs() @ v.double().abs()).transpose(1, 2)
    limit = (4 if eps(z) < 1e-4 else 0.5) * eps(z) * size
    return made.shape == z.shape and bool(((made.double() - z.double()).abs() <= limit).all())


def _pattern_outputs(model: ProvenModel) -> set[int]:
    """Return the blocks with an output that has the form of a pattern.

    It only distinguishes attention from other mixers.
    """
    ids, prefix = model.texts()[0], f"{model.list_name}."
    n = ids.shape[1]

    def is_pattern(name: str, t: Tensor) -> bool:
        if not name.startswith(prefix) or t.ndim != 4 or t.shape[-2:] != (n, n):
            return False
        is_one = (t.double().sum(-1) - 1).abs().max() < 1e-2
        return bool(is_one) and not bool(t.triu(1).any())

    trace = record(model.model, lambda: model.call(ids), is_pattern)
    return {model.layer_of(event.module) for event in trace.events if event.kind == "out"}


# ---------------------------------------------------------------------- names
def name_sites(model: ProvenModel, attending: Iterable[int]) -> None:
    """List the sites that the found structure has, before any of them is proven.

    Args:
        model: the model.
        attending: numbers of the blocks with attention.
    """
    for number, layer in enumerate(model.layers):
        names = [*STREAMS]
        for step in layer.steps:
            if step.role == "mixer" and number in attending and len(step.places) == 1:
                step.role = "attn"
            names += [SITE_OF[step.role]] if step.role else []
        roles = [step.role for step in layer.steps[:2]]
        if not layer.parallel and roles in (["attn", "mlp"], ["mixer", "mlp"]):
            names.append("hook_resid_mid")
        if number in model.attention:
            is_eager = model.implementation == "eager"
            names += [f"attn.{one}" for one in HEAD_SITES if is_eager or one != "hook_pattern"]
        model.sites |= {f"blocks.{number}.{name}": name for name in names}


def explain_missing(model: ProvenModel) -> None:
    """Note for each usual site of a block that was not found why it is missing."""
    heads = model.refused.get("patterns", "this block has no attention")
    for number, layer in enumerate(model.layers):
        mixer = "mixer" if any(step.role == "mixer" for step in layer.steps) else "attn"
        reasons = {
            SITE_OF[mixer]: "no summand reads other positions",
            "hook_mlp_out": "no summand reads only its own position",
            "hook_resid_mid": "attention and MLP are not added one after the other",
            "mlp.hook_post": "no linear module is found whose output is that of the MLP",
            **{f"attn.{site}": heads for site in HEAD_SITES},
        }
        for site, reason in reasons.items():
            name = f"blocks.{number}.{site}"
            if name not in model.sites:
                is_inner = site.startswith("attn.")
                model.refused[name] = reason if is_inner else layer.reason or reason


# ---------------------------------------------------------------------- output maps
def find_linears(model: ProvenModel) -> None:
    """Find the output maps of heads and neurons.

    It is a linear module that has z or neurons as its input, and whose output is the summand, or
    the input of the norm that makes the summand.
    """
    ids, prefix = model.texts()[0], f"{model.list_name}."
    zs: dict[str, Tensor] = {}
    names = {f"blocks.{number}.attn.hook_z" for number in model.attention}

    def keep_z(name: str, value: Tensor) -> Tensor:
        if name in names:
            zs[name] = value
        return value

    with attention_through(model.implementation, model.attend(keep_z)):
        trace = record(model.model, lambda: model.call(ids), lambda k, _: k.startswith(prefix))
    maps: Maps = {}
    inputs: dict[str, Tensor] = {}
    for event in trace.events:
        if event.kind == "in" and event.path == (0,):
            inputs[event.module] = event.value
        elif event.kind == "out" and event.path == () and event.module in inputs:
            maps[event.module] = inputs[event.module], event.value
    for number, layer in enumerate(model.layers):
        for step in layer.steps:
            z = zs.get(f"blocks.{number}.attn.hook_z") if step.role == "attn" else None
            if len(step.places) > 1 or (step.role != "mlp" and z is None):
                continue
            name = _output_map(model, trace, number, step, maps, z)
            key = number, "post" if z is None else "z"
            if not name:
                continue
            model.linears[key] = name
            if same(maps[name][1], model.outputs(trace, step)[0]):
                model.direct.add(key)
            if z is None:
                model.sites[f"blocks.{number}.mlp.hook_post"] = "mlp.hook_post"


def _output_map(
    model: ProvenModel, trace: Trace, number: int, step: Step, maps: Maps, z: Tensor | None
) -> str:
    """Return the name of the output map of an addition of one place; empty if none is proven.

    Args:
        model: the model.
        trace: a pass over the first text.
        number: number of the block.
        step: the addition.
        maps: input and output of each module.
        z: the input of the map, if it must be that of heads.
    """
    place, shape = step.places[0], model.texts()[0].shape
    added = trace.at(place.module, "out", place.path)
    normed = [
        e.value
        for e in trace.events
        if e.module == place.module and e.kind == "in" and e.value.shape == added.shape
    ]

    def by_weight(name: str) -> bool:
        weight: Any = getattr(model.modules[name], "weight", None)
        has = weight is not None and weight.ndim == 2 and weight.is_floating_point()
        has = has and not hasattr(weight, "__tensor_flatten__")  # quantised: it may round the input
        return has and _is_leaf(model.modules[name])

    inside = [k for k in maps if k.startswith(f"{model.block(number)}.") and trace.calls[k] == 1]
    # Modules with a weight first, then adapters and modules whose weights are elsewhere.
    for name in sorted(inside, key=by_weight, reverse=True):
        module, (x, y) = model.modules[name], maps[name]
        if isinstance(module, nn.ModuleList) or not any(same(y, one) for one in (added, *normed)):
            continue
        if z is None:
            if x.shape[:-1] != shape:
                continue
        elif not same(z, x):
            continue
        if _is_product(module, x, y) if by_weight(name) else _is_affine(module, x, y):
            return name
    return ""


def _is_product(module: Any, x: Tensor, y: Tensor) -> bool:
    """Return whether `y` is the weight of a module times `x`; that of a Conv1D is transposed."""
    weight, bias = module.weight, getattr(module, "bias", None)
    shape = tuple(weight.shape)
    is_turned = shape == (x.shape[-1], y.shape[-1]) and shape[0] != shape[1]
    weight = weight.T if is_turned or type(module).__name__ == "Conv1D" else weight
    if weight.shape[-1] != x.shape[-1]:
        return False
    made = F.linear(x, weight, bias).double()
    gap = (made - y.double()).abs().max() / y.double().square().mean().sqrt().clamp_min(1e-30)
    return bool(gap < 64 * eps(y))


def _is_affine(module: Any, x: Tensor, y: Tensor) -> bool:
    """Return whether a module, called alone, is an affine map and not the identity."""
    if same(x, y):
        return False
    generator = torch.Generator().manual_seed(2)
    noise = torch.randn(x.shape, generator=generator).to(x.device, x.dtype)
    u = noise * x.square().mean(-1, keepdim=True).sqrt()  # else rounding hides short rows
    try:
        fx, fu, both, zero = (module(one) for one in (x, u, x + u, x * 0))
    except Exception:  # noqa: BLE001 - of the model's code: it takes other arguments
        return False
    return same(fx, y) and apart_rows(both - fu, fx - zero) < max(8 * eps(y), 1e-4)
