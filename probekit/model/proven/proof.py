"""The proof of the names of a model's activations: searched by values, tested on several texts.

model = prove(AutoModelForCausalLM.from_pretrained(FOLDER, attn_implementation="eager"))
model.sites      # name -> kind of each proven activation
model.refused    # site or feature -> why it is not proven
logits, cache = model.run(ids, sites=["blocks.2.hook_resid_mid"])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import nullcontext
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from probekit.model.proven.additions import Step, times
from probekit.model.proven.doors import (
    AMPLIFIED,
    BLIND,
    LOCAL,
    MOVES,
    SHAPES,
    NotProvenError,
    Trace,
    apart_rows,
    attention_through,
    close_sum,
    eps,
    evaluating,
    logits_of,
    same,
)
from probekit.model.proven.search import (
    explain_missing,
    find_attention,
    find_blocks,
    find_head,
    find_linears,
    find_sublayers,
    name_sites,
)
from probekit.model.proven.taps import LENGTHS, SITE_OF, STREAMS, Call, ProvenModel
from probekit.terminal import SILENT, Watcher

SLOPE_STEPS = (1e-3, 1e-4, 1e-2, 0.1)  # lengths of steps, divided by the size of the values
WRITTEN = (0.5, 8.0)  # sizes of written noise; half precision rounds the small one away
SLOPE_AGREEMENT = 0.05  # largest relative difference of a gradient and a finite difference
_SUMMANDS = (*STREAMS, *SITE_OF.values())  # proven in a generation


def prove(
    model: nn.Module, *, sites: Collection[str] | None = None, watcher: Watcher = SILENT
) -> ProvenModel:
    """Return a model of transformers with the names of its proven activations.

    Nothing is believed: what a test contradicts is no site, and `refused` has the reason. If even
    the residual stream is not proven, there are no sites, and `refused["all"]` has the reason. The
    modes of all modules (training or evaluation) are restored.

    Args:
        model: a loaded model of transformers.
        sites: names or kinds of sites, such as hook_mlp_out, to prove in addition to the residual
            stream; None for all. Fewer sites take less time.
        watcher: receives the progress.
    """
    proven = ProvenModel(model)
    parts: list[Callable[[], None]] = [
        lambda: _test_passes(proven),
        lambda: _test_chain(proven),
        lambda: _test_head(proven),
        lambda: find_sublayers(proven),
        lambda: _find_sites(proven, sites),
        lambda: _measure_rounding(proven),
        lambda: _test_writes(proven, report),
        lambda: _test_same_shape(proven),
        lambda: _test_padding(proven),
        lambda: _attempt(proven, "generation", _test_generation),
        lambda: _attempt(proven, "resume", _test_resume),
        lambda: _attempt(proven, "gradients", _test_gradients),
    ]

    def report(fraction: float) -> None:
        watcher.progress("proof", parts.index(part) + fraction, len(parts))

    try:
        with evaluating(proven.model), torch.no_grad():
            for part in parts:
                report(0)
                part()
    except NotProvenError as error:
        proven.refused["all"], proven.sites = str(error), {}
    except Exception as error:  # noqa: BLE001 - of the model's code: the model is refused
        proven.refused["all"], proven.sites = _in_words(error), {}
    watcher.progress("proof", len(parts), len(parts))
    return proven


def _in_words(error: Exception) -> str:
    if isinstance(error, NotProvenError):
        return str(error)
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:160]}"


def _attempt(model: ProvenModel, feature: str, test: Callable[[ProvenModel], None]) -> None:
    """Run the test of a feature, and note why it is refused if the test fails."""
    try:
        test(model)
    except Exception as error:  # noqa: BLE001 - of the model's code: the feature is refused
        model.refused[feature] = _in_words(error)


# ---------------------------------------------------------------------- passes, blocks, unembedding
def _test_passes(model: ProvenModel) -> None:
    """Test that passes over token ids alone are repeatable, finite and causal."""
    _refuse_patches(model)
    ids = model.texts()[0]
    try:
        out, again = (model.call(ids) for _ in range(2))
    except Exception as error:
        raise NotProvenError(f"a pass over token ids alone fails: {_in_words(error)}") from error
    if not hasattr(out, "logits"):
        raise NotProvenError("the model returns no logits; load it with AutoModelForCausalLM")
    logits = out.logits
    if not torch.isfinite(logits).all():
        raise NotProvenError("logits are not finite")
    if not torch.equal(logits, again.logits):
        raise NotProvenError("two passes over the same text differ")
    if logits.shape[1] != ids.shape[1]:
        raise NotProvenError(f"logits have {logits.shape[1]} positions for {ids.shape[1]} tokens")
    other = ids.clone()
    other[0, -1] = ids[0, 0] + 1
    changed = logits_of(model.call(other))
    if apart_rows(changed[:, :-1], logits[:, :-1]) > MOVES[logits.dtype]:
        raise NotProvenError("not causal: earlier logits depend on the last token")


def _refuse_patches(model: ProvenModel) -> None:
    """Refuse forwards and hooks that the files of the model's classes do not show.

    Hooks of transformers only record; those of accelerate load weights that are offloaded.

    Raises:
        NotProvenError: a module has a forward of its own, a hook, or weights that are not loaded.
    """
    for name, module in model.modules.items():
        title, is_loaded = name or "the model", hasattr(module, "_hf_hook")
        if "forward" in vars(module) and not is_loaded:
            raise NotProvenError(f"{title} has a forward of its own. Remove it.")
        for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values()):
            home = str(getattr(hook, "__module__", ""))
            if not home.startswith(("transformers.", "accelerate.")):
                raise NotProvenError(f"{title} has a forward hook. Remove it.")
        if not is_loaded and any(one.is_meta for one in module.parameters(recurse=False)):
            raise NotProvenError(f"{title} has weights on the meta device, which are not loaded")


def _test_chain(model: ProvenModel) -> None:
    """Test on every text that the output of each block is the input of the next."""
    find_blocks(model)
    model.facts["blocks"] = f"{model.list_name} ({model.n_layers})"
    for ids in model.texts():
        trace = model.inside(ids)
        for layer in range(1, model.n_layers):
            if not same(model.stream(trace, layer - 1)[1], model.stream(trace, layer)[0]):
                before = f"the output of block {layer - 1}"
                raise NotProvenError(f"{before} is not the input of block {layer}")


def _test_head(model: ProvenModel) -> None:
    try:
        find_head(model)
    except NotProvenError as error:
        model.refused["lens"] = str(error)
    model.facts["logits"] = "lens" not in model.refused


def _find_sites(model: ProvenModel, wanted: Collection[str] | None) -> None:
    """List the sites to prove: all that were found, or the wanted ones and the streams."""
    attending = find_attention(model)
    model.facts["attention"] = sorted(attending)
    name_sites(model, attending)
    find_linears(model)
    explain_missing(model)
    if wanted is not None:
        chosen = {*wanted, *STREAMS}
        model.sites = {k: v for k, v in model.sites.items() if chosen & {k, v}}


# ---------------------------------------------------------------------- rounding
def _measure_rounding(model: ProvenModel) -> None:
    """Measure the effect of a rounding error before each block on every site."""
    ids, names = model.texts()[2], list(model.sites)
    logits, cache = model.run(ids, sites=names)
    generator = torch.Generator().manual_seed(9)

    def wobble(name: str, value: Tensor) -> Tensor:
        if not name.endswith("resid_pre"):
            return value
        signs = torch.randint(0, 2, value.shape, generator=generator) * 2 - 1
        return value * (1 + eps(value) * signs.to(value.device, value.dtype))

    moved, other = model.run(ids, sites=names, tap=wobble)
    gaps = {name: apart_rows(other[name], cache[name]) for name in names}
    gaps["logits"] = apart_rows(moved, logits)
    base = SHAPES[cache[names[0]].dtype]
    model.limits = {name: max(base, AMPLIFIED * gap) for name, gap in gaps.items()}
    model.facts["rounding"] = max((gap, name) for name, gap in gaps.items())


def _over_limit(model: ProvenModel, name: str, gap: float) -> float:
    """Return a distance divided by the limit of its site; the limit is at most `BLIND`."""
    return gap / min(model.limits[name], BLIND)


# ---------------------------------------------------------------------- writes
def _test_writes(model: ProvenModel, report: Callable[[float], None]) -> None:
    """Keep the sites at which a written value has exactly the effect that its name describes.

    Streams and summands are written in all blocks at once (streams: in every second one): every
    addition is checked in the changed pass, up to the logits. Sites inside a sublayer are written
    in all blocks at once, too, and their effect is compared with that of each block alone.

    Raises:
        NotProvenError: a site of the residual stream is refused.
    """
    ids, failed = model.texts()[3], {}
    clean, base = model.run(ids, sites=model.sites)
    calls = model.recorded_calls(ids) if model.alone is not None else None
    kinds = list(dict.fromkeys(model.sites.values()))
    for number, kind in enumerate(kinds):
        names = [name for name, one in model.sites.items() if one == kind]
        is_inner, has_sums = ".hook_" in kind, all(layer.steps for layer in model.layers)
        if is_inner and calls is not None:
            groups = [[name] for name in _not_written(model, ids, names, base, clean, calls)]
        elif is_inner or not model.facts["logits"] or not has_sums:
            groups = [[name] for name in names]
        else:
            groups = [names[::2], names[1::2]] if kind in STREAMS else [names]
        for done, group in enumerate(filter(None, groups)):  # the list grows
            report((number + done / len(groups)) / len(kinds))
            if reason := _write_fault(model, ids, group, base, clean):
                if len(group) > 1:
                    groups += [[name] for name in group]
                else:
                    failed[group[0]] = reason
    for name, reason in failed.items():
        del model.sites[name]
        model.refused[name] = reason
    if bad := [name for name in failed if name.endswith(STREAMS)]:
        raise NotProvenError(f"{bad[0]}: {failed[bad[0]]}")


def _goals(names: Iterable[str], base: Mapping[str, Tensor], size: float) -> dict[str, Tensor]:
    """Return values to write: those of a pass plus noise of a multiple of their size."""
    generator, goals = torch.Generator().manual_seed(5), {}
    for name in names:
        value = base[name]
        noise = torch.randn(value.shape, generator=generator).to(value.device)
        rms = value.float().square().mean().sqrt()
        goals[name] = value + size * (noise * rms).to(value.dtype)
    return goals


def _written(model: ProvenModel, ids: Tensor, goals: Mapping[str, Tensor]) -> Trace:
    """Return a recorded pass in which sites have other values."""

    def visit(name: str, value: Tensor) -> Tensor:
        return goals[name].to(value.dtype).clone() if name in goals else value

    through: Any = nullcontext()
    if any(".attn." in name for name in goals):
        through = attention_through(model.implementation, model.attend(visit))
    with through:
        return model.inside(ids, lambda: model.hooks(goals.keys(), visit))


def _not_written(
    model: ProvenModel,
    ids: Tensor,
    names: list[str],
    base: Mapping[str, Tensor],
    clean: Tensor,
    calls: list[Call],
) -> list[str]:
    """Write sites inside a sublayer in all blocks; return those that must be tested one by one.

    A write must change the output of its own block, compared with the block alone without it. The
    effect of this output on later blocks is proven by the writes of streams. Every sum must hold.
    """
    again, _ = model.run(ids, sites=names, tap=lambda _, value: value.clone())
    is_pattern = names[0].endswith("pattern")  # z is computed again
    if not _is_unchanged(model, again, clean, exact=not is_pattern):
        return names
    left = dict.fromkeys(names)
    kind = model.sites[names[0]]
    for size in WRITTEN:
        trace = _written(model, ids, _goals(names, base, size))
        for layer in range(model.n_layers):
            pre, post = model.stream(trace, layer)
            is_chained = layer == 0 or same(model.stream(trace, layer - 1)[1], pre)
            if model.broken_sum(trace, layer) or not is_chained or not torch.isfinite(post).all():
                return names
            name = f"blocks.{layer}.{kind}"
            if name in left and not same(model.one_block(layer, pre, calls), post):
                del left[name]
        if model.facts["logits"] and not _is_unembedded(model, post, trace):
            return names
        if not left:
            break
    return list(left)


def _is_unchanged(model: ProvenModel, logits: Tensor, clean: Tensor, *, exact: bool) -> bool:
    """Return whether logits are those of the clean pass, bit by bit or within rounding."""
    if exact:
        return torch.equal(logits, clean)
    return _over_limit(model, "logits", apart_rows(logits, clean)) < 1


def _is_unembedded(model: ProvenModel, post: Tensor, trace: Trace) -> bool:
    """Return whether the logits of a pass are the unembedding of its last stream."""
    logits = logits_of(trace.out)
    return apart_rows(model.unembed(post), logits) < 4 * eps(logits)


def _step_of(model: ProvenModel, layer: int, kind: str) -> Step | None:
    """Return the addition of a block that has a site of this kind, if there is one."""
    return next((one for one in model.layers[layer].steps if SITE_OF.get(one.role) == kind), None)


def _write_fault(
    model: ProvenModel, ids: Tensor, names: list[str], base: Mapping[str, Tensor], clean: Tensor
) -> str:
    """Return why values written at sites of one kind do not have their effect; empty if they do."""
    kind = model.sites[names[0]]
    layers = {int(name.split(".")[1]): name for name in names}
    steps = [_step_of(model, layer, kind) for layer in layers]
    again, _ = model.run(ids, sites=names, tap=lambda _, value: value.clone())
    is_computed = any(step and (step.scale != "1" or step.places[1:]) for step in steps)
    is_computed |= kind in ("hook_resid_mid", "attn.hook_pattern")
    if not _is_unchanged(model, again, clean, exact=not is_computed):
        gap = apart_rows(again, clean)
        return f"writing the value that is there changes the logits by {gap:.0e}"
    for size in WRITTEN:
        goals = _goals(names, base, size)
        trace = _written(model, ids, goals)
        if not torch.equal(logits_of(trace.out), clean):
            return _effect_fault(model, trace, kind, {n: goals[s] for n, s in layers.items()})
    return "a written value does not reach the logits"


def _effect_fault(model: ProvenModel, trace: Trace, kind: str, goals: Mapping[int, Tensor]) -> str:
    """Return what does not hold in a pass with written values; empty if all does.

    Args:
        model: the model.
        trace: the pass.
        kind: kind of the site.
        goals: written value by block.
    """
    for layer in range(model.n_layers):
        pre, post = model.stream(trace, layer)
        is_chained = layer == 0 or same(model.stream(trace, layer - 1)[1], pre)
        if not is_chained and not (kind == "hook_resid_pre" and layer in goals):
            return f"after a write, block {layer} does not read the output of block {layer - 1}"
        is_end = kind == "hook_resid_post" and layer in goals
        if not is_end and (broken := model.broken_sum(trace, layer)):
            return f"after a write, {broken}"
        if layer in goals and (fault := _goal_fault(model, trace, layer, kind, goals[layer])):
            return fault
    if model.facts["logits"] and not _is_unembedded(model, post, trace):
        return "after a write, the logits do not follow from the last block"
    return ""


def _goal_fault(model: ProvenModel, trace: Trace, layer: int, kind: str, goal: Tensor) -> str:
    """Return why a recorded pass does not have a written value; empty if it does.

    Args:
        model: the model.
        trace: the pass with the written value.
        layer: the block in which it was written.
        kind: kind of the site.
        goal: the written value.
    """
    step = _step_of(model, layer, kind)
    pre, post = model.stream(trace, layer)
    if kind in STREAMS and not same(pre if kind == "hook_resid_pre" else post, goal):
        return "the block does not have the written value"
    if step:
        rows, factors = goal.reshape(-1, model.d_model), model.factors(layer)
        values = model.outputs(trace, step)
        parts = [times(v, factors[p.scale]) for v, p in zip(values, step.places, strict=True)]
        terms = [rows, *(parts if len(parts) > 1 else ())]
        if not close_sum(step.added(values, factors), rows, terms):
            return "the written value is not what is added"
    if kind == "hook_resid_mid":
        mid = trace.at(*model.layers[layer].seen[0]).reshape(goal.shape)
        if not close_sum(mid, goal, [goal, pre.reshape(goal.shape)]):
            return "the stream between attention and MLP is not the written value"
    return ""


# ---------------------------------------------------------------------- equal shapes
def _row_of(
    cache: Mapping[str, Tensor],
    logits: Tensor,
    name: str,
    text: int,
    n_texts: int,
    positions: slice,
) -> Tensor:
    """Return the values at a site of one text of a batch, at some positions."""
    x = logits if name == "logits" else cache[name]
    if name.endswith("pattern"):
        return x[text, :, positions, positions]
    rows = x if x.shape[0] == n_texts else x[None]  # experts and OPT flatten the rows
    return rows.reshape(n_texts, -1, *rows.shape[2:])[text, positions]


def _test_same_shape(model: ProvenModel) -> None:
    """Change what must have no effect, in passes of equal shape: later tokens and other texts.

    Equal shapes round equally, so no value may change by a bit, unless experts are regrouped. The
    test of padding against single texts only detects errors larger than rounding, in bfloat16
    hardly any.

    Raises:
        NotProvenError: a value changes.
    """
    ids, names = model.texts()[2], [*model.sites, "logits"]
    n, model.facts["regroups"] = ids.shape[1], []
    batch = torch.cat([ids, ids.flip(1), ids.roll(5, 1)])
    others = torch.cat([ids, ids.roll(3, 1), ids.roll(9, 1).flip(1)])
    later = torch.cat([ids[:, : n - 3], ids[:, :3]], 1)
    tests = {
        "later tokens": (ids, later, slice(0, n - 3)),
        "other texts of a batch": (batch, others, slice(0, n)),
    }
    for what, (one, two, part) in tests.items():
        traces = [
            model.inside(x, call=lambda x=x: model.run(x, sites=model.sites)) for x in (one, two)
        ]
        for layer in range(model.n_layers):
            _compare_additions(model, what, layer, traces, len(one), part)
        if model.facts["regroups"] and model.alone is not None:
            _compare_blocks_alone(model, what, (one, two), traces, part)
        (la, a), (lb, b) = (trace.out for trace in traces)
        pairs = [
            (s, _row_of(a, la, s, 0, len(one), part), _row_of(b, lb, s, 0, len(one), part))
            for s in names
        ]
        _refuse_moves(model, what, pairs)


def _compare_blocks_alone(
    model: ProvenModel, what: str, ids: tuple[Tensor, Tensor], traces: list[Trace], part: slice
) -> None:
    """Call each block alone on the streams of two passes that are equal in the first text.

    After experts have regrouped rows, the streams of later blocks differ by rounding, so that a
    mixer that depends on what has changed is only noticed with equal streams.
    """
    calls = [model.recorded_calls(one) for one in ids]
    for layer in range(model.n_layers):
        one, two = (model.stream(trace, layer)[0] for trace in traces)
        equal = two.clone()
        equal[0, part] = one[0, part]
        alone = [
            model.inside(x, call=partial(model.one_block, layer, r, c), block=model.block(layer))
            for x, r, c in zip(ids, (one, equal), calls, strict=True)
        ]
        _compare_additions(model, what, layer, alone, len(one), part)


def _compare_additions(
    model: ProvenModel, what: str, number: int, traces: list[Trace], n_texts: int, part: slice
) -> None:
    """Note whether a block has experts that regroup rows, and so round them differently.

    It has the weights of experts, and an MLP gives the same rows another output by a bit. A mixer
    whose rows are equal bit by bit must give equal rows. Of a block whose additions are not proven,
    only the whole is compared.

    Args:
        model: the model.
        what: the change between the passes, which must have no effect.
        number: number of the block.
        traces: the two passes.
        n_texts: number of texts of a pass.
        part: positions of the first text that must be equal.

    Raises:
        NotProvenError: a mixer, or an MLP without experts, gives equal rows another output.
    """

    def rows(x: Tensor) -> Tensor:
        return x.reshape(n_texts, -1, model.d_model)[0, part]

    layer = model.layers[number]
    pre, post = zip(*(model.stream(trace, number) for trace in traces), strict=True)
    # What is read and what is made, of each addition; of a block without, its ends.
    pairs: list[tuple[str, str, Iterable[Tensor], Iterable[Tensor]]] = []
    if not layer.steps:
        pairs.append(("", "the output", pre, post))
    for index, step in enumerate(layer.steps):
        is_first = index == 0 or bool(layer.parallel)
        read = pre if is_first else [trace.at(*layer.seen[index - 1]) for trace in traces]
        made = [model.summand(trace, number, step) for trace in traces]
        pairs.append((step.role, f"addition {index + 1}", read, made))
    for role, name, read, made in pairs:
        if not same(*map(rows, read)) or same(*map(rows, made)):
            continue
        if role in ("attn", "mixer") or not _has_experts(model, traces[0], number):
            where = f"{name} of block {number}, whose input is equal bit by bit"
            raise NotProvenError(f"{what} change {where}")
        if number not in model.facts["regroups"]:
            model.facts["regroups"].append(number)


def _has_experts(model: ProvenModel, trace: Trace, layer: int) -> bool:
    """Return whether a block has weights of three axes, or modules that do not run exactly once."""
    name = model.block(layer)
    stacked = (p.ndim == 3 and min(p.shape) > 1 for p in model.modules[name].parameters())
    counts = (trace.calls[k] for k in model.modules if k.startswith(f"{name}."))
    return any(stacked) or any(count > 1 for count in counts)


def _refuse_moves(model: ProvenModel, what: str, pairs: list[tuple[str, Tensor, Tensor]]) -> None:
    """Compare values of two passes of equal shape, given as site, first and second value.

    Raises:
        NotProvenError: a value changes, or by more than regrouped experts explain.
    """
    moved = [(s, apart_rows(y, x)) for s, x, y in pairs if not torch.equal(x, y)]
    if not moved:
        model.facts[what] = "bitwise"
        return
    worst, gap = max(moved, key=lambda one: _over_limit(model, *one))
    model.facts[what] = (_over_limit(model, worst, gap), worst)
    if not model.facts.get("regroups") or _over_limit(model, worst, gap) > 1:
        raise NotProvenError(f"{what} change {worst} by {gap:.0e}")


# ---------------------------------------------------------------------- padding
def _local_fault(
    model: ProvenModel,
    feature: str,
    ids: Tensor,
    streams: Callable[[str], Tensor],
    calls: list[Call],
) -> str:
    """Return which block, called alone on the streams of another pass, adds something else.

    Args:
        model: the model.
        feature: name of the fact that gets the largest difference.
        ids: one text, shape (1, pos).
        streams: returns the values of the other pass at a site.
        calls: arguments of the blocks in a pass over this text alone.
    """
    gaps = []
    for layer in range(model.n_layers):
        names = (f"blocks.{layer}.{site}" for site in STREAMS)
        x, theirs = (streams(name).reshape(1, ids.shape[1], -1) for name in names)
        ours = model.one_block(layer, x, calls).double()
        floor = 0.5 * eps(x) / LOCAL[x.dtype] * ours.norm(dim=-1)
        size = (ours - x.double()).norm(dim=-1) + floor
        gap = ((theirs.double() - ours).norm(dim=-1) / size.clamp_min(1e-30)).max()
        gaps.append((float(gap) if torch.isfinite(gap) else math.inf, layer))
    worst, layer = max(gaps)
    model.facts[feature] = max(worst, model.facts.get(feature, 0.0))
    return f"what block {layer} adds changes by {worst:.0e}" if worst > LOCAL[x.dtype] else ""


def _test_padding(model: ProvenModel) -> None:
    """Compare batches with padding on either side with the single texts, at every site."""
    texts = model.texts()
    singles = [model.run(ids, sites=model.sites) for ids in texts]
    calls = [model.recorded_calls(ids) for ids in texts] if model.alone is not None else []
    for side in ("left", "right"):
        reasons = []
        for with_positions in (True, False) if "position_ids" in model.takes else (False,):
            model.pad_positions[side] = with_positions
            try:
                _test_side(model, side, singles, calls)
            except Exception as error:  # noqa: BLE001 - of the model's code: padding is refused
                reasons.append(_in_words(error))
            else:
                break
        else:
            del model.pad_positions[side]
            model.refused[f"padding on the {side}"] = reasons[-1]


def _test_side(
    model: ProvenModel,
    side: str,
    singles: list[tuple[Tensor, dict[str, Tensor]]],
    calls: list[list[Call]],
) -> None:
    """Test padding on one side.

    Args:
        model: the model.
        side: left or right.
        singles: logits and values of each text alone.
        calls: arguments of the blocks in a pass over each text alone, if blocks run alone.

    Raises:
        NotProvenError: a value changes by more than rounding, or ids under the padding change it.
    """
    texts, n = model.texts(), max(LENGTHS)

    def padded(filler: int | None) -> Tensor:
        """Return the batch with this id as padding; the mask if there is none."""
        rows = []
        for ids in texts:
            fill = torch.full((1, n - ids.shape[1]), filler or 0, device=ids.device)
            real = torch.ones_like(ids) if filler is None else ids
            rows.append(torch.cat([fill, real] if side == "left" else [real, fill], 1))
        return torch.cat(rows)

    mask = padded(None)
    logits, cache = model.run(padded(7), mask, sites=model.sites)
    other_logits, other = model.run(padded(11), mask, sites=model.sites)
    real = [
        slice(n - ids.shape[1], n) if side == "left" else slice(0, ids.shape[1]) for ids in texts
    ]
    gaps, pairs = {}, []
    for i, (single_logits, single) in enumerate(singles):
        for name in [*model.sites, "logits"]:
            a = _row_of(cache, logits, name, i, len(texts), real[i])
            alone = _row_of(single, single_logits, name, 0, 1, slice(None))
            gaps[name] = max(apart_rows(a, alone), gaps.get(name, 0.0))
            pairs.append((name, a, _row_of(other, other_logits, name, i, len(texts), real[i])))
    worst = max(gaps, key=lambda name: _over_limit(model, name, gaps[name]))
    if _over_limit(model, worst, gaps[worst]) > 1:
        raise NotProvenError(f"values change by {gaps[worst]:.0e} of their size at {worst}")
    _refuse_moves(model, f"ids under padding on the {side}", pairs)
    for i, ids in enumerate(texts if calls else ()):
        feature = f"block with padding on the {side}"

        def streams(name: str, i: int = i) -> Tensor:
            return _row_of(cache, logits, name, i, len(texts), real[i])

        if fault := _local_fault(model, feature, ids, streams, calls[i]):
            raise NotProvenError(fault)
    model.facts[f"padding on the {side}"] = (gaps[worst], worst)


# ---------------------------------------------------------------------- generation, resumption
def _test_generation(model: ProvenModel) -> None:
    """Compare the values of a generation with those of one pass over the whole text."""
    ids, names = model.texts()[1], [s for s, kind in model.sites.items() if kind in _SUMMANDS]
    options = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "use_cache": True}

    def generate() -> Tensor:
        mask = torch.ones_like(ids)
        new: Tensor = model.model.generate(ids, attention_mask=mask, pad_token_id=7, **options)
        return new

    new, steps = model.run(None, sites=names, via=generate)
    read = new[:, :-1]
    _, whole = model.run(read, sites=names)
    gaps = {s: apart_rows(steps[s].reshape(whole[s].shape), whole[s]) for s in names}
    worst = max(gaps, key=lambda name: _over_limit(model, name, gaps[name]))
    if _over_limit(model, worst, gaps[worst]) > 1:
        raise NotProvenError(f"values of a generation differ by {gaps[worst]:.0e} at {worst}")
    if model.alone is not None:
        calls = model.recorded_calls(read)
        fault = _local_fault(model, "block in a generation", read, steps.__getitem__, calls)
        if fault:
            raise NotProvenError(f"{fault} in a generation")
    model.facts["generation"] = (gaps[worst], worst)


def _test_resume(model: ProvenModel) -> None:
    """Compare blocks that are called alone, with other streams than recorded, with passes."""
    ids, last = model.texts()[3], model.n_layers - 1
    calls = model.recorded_calls(ids)
    pre, post = ([f"blocks.{n}.{site}" for n in range(last + 1)] for site in STREAMS)
    for scale in (1.5, 0.7):

        def scaled(name: str, value: Tensor, scale: float = scale) -> Tensor:
            return value * scale ** (-1) ** pre.index(name) if name in pre else value

        _, whole = model.run(ids, sites=[*pre, *post], tap=scaled)
        for layer, (before, after) in enumerate(zip(pre, post, strict=True)):
            if not same(model.one_block(layer, whole[before], calls), whole[after]):
                raise NotProvenError(f"block {layer} alone gives another stream")
    ends = [pre[0], post[-1]]
    _, whole = model.run(ids, sites=ends, tap=lambda s, v: v * 0.7 if s == pre[0] else v)
    if not same(model.resume(whole[pre[0]].clone(), 0, calls), whole[post[-1]]):
        raise NotProvenError("blocks alone give another stream")
    model.facts["resume"] = True


# ---------------------------------------------------------------------- gradients
def _test_gradients(model: ProvenModel) -> None:
    """Compare gradients at the sites of each kind with finite differences."""
    texts, first = model.texts(), "blocks.0.hook_resid_post"
    dtype = model.run(texts[1], sites=[first], logits=False)[1][first].dtype
    if dtype not in (torch.float32, torch.float64):
        model.refused["gradients"] = "not tested in half precision"
        return
    slopes = [_Slopes(model, texts[i]) for i in (3, 1)]
    failed: dict[str, str] = {}
    for kind in dict.fromkeys(model.sites.values()):
        names = [name for name, one in model.sites.items() if one == kind]
        # One agreement is enough: near a kink, as in a choice of experts, no step is small enough,
        # and the effect of a small step can be below the rounding of the logits.
        for of_text, size in product(slopes, SLOPE_STEPS):
            if not (fault := of_text.fault(names, size)):
                break
        else:
            failed[kind] = fault
    model.facts["gradients"] = not failed
    if failed:
        model.refused["gradients"] = "; ".join(f"{kind}: {why}" for kind, why in failed.items())


class _Slopes:
    """Gradients of a random projection of the logits of one text at all sites."""

    def __init__(self, model: ProvenModel, ids: Tensor) -> None:
        def leaf(_: str, value: Tensor) -> Tensor:
            return value if value.requires_grad else value.detach().requires_grad_()

        self.model, self.ids = model, ids
        with torch.enable_grad():
            logits, values = model.run(ids, sites=model.sites, grad=True, tap=leaf)
            generator = torch.Generator().manual_seed(3)
            self.weight = torch.randn(logits.shape, generator=generator).to(logits.device)
            found = torch.autograd.grad(
                (logits * self.weight).sum(), list(values.values()), allow_unused=True
            )
        self.slopes = dict(zip(values, found, strict=True))
        self.sizes = {name: float(value.detach().norm()) for name, value in values.items()}

    def fault(self, names: list[str], size: float) -> str:
        """Return how gradients differ from the effect of a step at all these sites, if they do.

        Args:
            names: the sites.
            size: length of the step, divided by the size of the values.
        """
        step, expected = {}, 0.0
        for name in names:
            slope = self.slopes[name]
            if slope is None or not slope.any():  # a write there changes the logits
                return f"the logits have no gradient at {name}"
            length = self.sizes[name] * size / len(names)
            step[name] = slope / slope.norm().clamp_min(1e-30) * length
            expected += float((slope.double() * step[name]).sum())
        up, down = (
            self.model.run(self.ids, sites=names, tap=lambda s, v, sign=sign: v + sign * step[s])[0]
            for sign in (1, -1)
        )
        measured = float(((up.double() - down.double()) * self.weight).sum() / 2)
        if abs(measured - expected) < SLOPE_AGREEMENT * abs(expected):
            return ""
        return f"gradient {expected:.3g}, finite difference {measured:.3g}"
