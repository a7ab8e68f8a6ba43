"""The proof of the names of a model's activations: searched by values, tested on several texts.

model = prove(AutoModelForCausalLM.from_pretrained(FOLDER, attn_implementation="eager"))
model.sites      # name -> kind of each proven activation
model.refused    # site or feature -> why it is not proven
logits, cache = model.run(ids, sites=["blocks.2.hook_resid_mid"])
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import nullcontext
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from probekit.model.proven.additions import Step, times
from probekit.model.proven.doors import (
    MOVES,
    NotProvenError,
    Trace,
    apart_rows,
    attention_through,
    close_sum,
    eps,
    evaluating,
    has_hook,
    message_of,
    output_logits,
    same,
)
from probekit.model.proven.invariance import (
    check_generation,
    check_padding,
    check_resume,
    check_same_shape,
    measure_rounding,
    over_limit,
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
from probekit.model.proven.taps import SITE_OF, STREAMS, Call, ProvenModel
from probekit.terminal import SILENT, Watcher

SLOPE_STEPS = (1e-3, 1e-4, 1e-2, 0.1)  # lengths of steps, divided by the size of the values
WRITTEN = (0.5, 8.0)  # sizes of written noise; half precision rounds the small one away
SLOPE_AGREEMENT = 0.05  # largest relative difference of a gradient and a finite difference


def prove(
    model: nn.Module, *, sites: Collection[str] | None = None, watcher: Watcher = SILENT
) -> ProvenModel:
    """Return a model of transformers with the names of its proven activations.

    A site that fails a test is removed, and `refused` has the reason. If even the residual stream
    is not proven, there are no sites, and `refused["all"]` has the reason. The modes of all modules
    (training or evaluation) are restored.

    Args:
        model: a loaded model of transformers.
        sites: names or kinds of sites, such as hook_mlp_out, to prove in addition to the residual
            stream; None for all. Fewer sites take less time.
        watcher: receives the progress.
    """
    proven = ProvenModel(model)
    parts: list[Callable[[], None]] = [
        lambda: _check_passes(proven),
        lambda: _check_chain(proven),
        lambda: _attempt(proven, "lens", find_head),
        lambda: find_sublayers(proven),
        lambda: _find_sites(proven, sites),
        lambda: measure_rounding(proven),
        lambda: _check_writes(proven, report),
        lambda: check_same_shape(proven),
        lambda: check_padding(proven),
        lambda: _attempt(proven, "generation", check_generation),
        lambda: _attempt(proven, "resume", check_resume),
        lambda: check_gradients(proven),
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
        proven.refused["all"], proven.sites = message_of(error), {}
    watcher.progress("proof", len(parts), len(parts))
    return proven


def _attempt(model: ProvenModel, feature: str, test: Callable[[ProvenModel], None]) -> None:
    """Run the test of a feature, and note why it is refused if the test fails."""
    try:
        test(model)
    except Exception as error:  # noqa: BLE001 - of the model's code: the feature is refused
        model.refused[feature] = message_of(error)


# ---------------------------------------------------------------------- passes, blocks, unembedding
def _check_passes(model: ProvenModel) -> None:
    """Test that passes over token ids alone are repeatable, finite and causal."""
    refuse_patches(model)
    ids = model.texts()[0]
    try:
        out, again = (model.call(ids) for _ in range(2))
    except Exception as error:
        raise NotProvenError(f"a pass over token ids alone fails: {message_of(error)}") from error
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
    changed = output_logits(model.call(other))
    if apart_rows(changed[:, :-1], logits[:, :-1]) > MOVES[logits.dtype]:
        raise NotProvenError("not causal: earlier logits depend on the last token")


def refuse_patches(model: ProvenModel) -> None:
    """Refuse forwards and hooks that the files of the model's classes do not show.

    A forward of accelerate moves its inputs to the device of the weights.

    Raises:
        NotProvenError: a module has a forward of its own, a hook, or weights that are not loaded;
            or modules or the kind of attention are not those that were there at first.
    """
    names = {name for name, one in model.model.named_modules() if model.modules.get(name) is one}
    if names != model.modules.keys():
        changed = min(model.modules.keys() - names, default="its list of modules")
        raise NotProvenError(f"{changed} was replaced after the proof")
    if model.implementation != (getattr(model.config, "_attn_implementation", None) or "eager"):
        raise NotProvenError("the implementation of attention was changed after the proof")
    for name, module in model.modules.items():
        title = name or "the model"
        if "forward" in vars(module) and not hasattr(module, "_hf_hook"):
            raise NotProvenError(f"{title} has a forward of its own. Remove it.")
        if has_hook(module):
            raise NotProvenError(f"{title} has a forward hook. Remove it.")
        if any(one.is_meta for one in module.parameters(recurse=False)):
            raise NotProvenError(f"{title} has weights on the meta device, which are not loaded")


def _check_chain(model: ProvenModel) -> None:
    """Test on every text that the output of each block is the input of the next."""
    find_blocks(model)
    model.facts["blocks"] = f"{model.list_name} ({model.n_layers})"
    for ids in model.texts():
        trace = model.inside(ids)
        for layer in range(1, model.n_layers):
            if not same(model.stream(trace, layer - 1)[1], model.stream(trace, layer)[0]):
                before = f"the output of block {layer - 1}"
                raise NotProvenError(f"{before} is not the input of block {layer}")


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


# ---------------------------------------------------------------------- writes
def _check_writes(model: ProvenModel, report: Callable[[float], None]) -> None:
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
        elif is_inner or "lens" in model.refused or not has_sums:
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
        if "lens" not in model.refused and not _is_unembedded(model, post, trace):
            return names
        if not left:
            break
    return list(left)


def _is_unchanged(model: ProvenModel, logits: Tensor, clean: Tensor, *, exact: bool) -> bool:
    """Return whether logits are those of the clean pass, bit by bit or within rounding."""
    if exact:
        return torch.equal(logits, clean)
    return over_limit(model, "logits", apart_rows(logits, clean)) < 1


def _is_unembedded(model: ProvenModel, post: Tensor, trace: Trace) -> bool:
    """Return whether the logits of a pass are the unembedding of its last stream."""
    logits = output_logits(trace.out)
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
        if not torch.equal(output_logits(trace.out), clean):
            return _effect_fault(model, trace, kind, {n: goals[s] for n, s in layers.items()})
    return "a written value does not reach the logits"


def _effect_fault(model: ProvenModel, trace: Trace, kind: str, goals: Mapping[int, Tensor]) -> str:
    """Return the first fault of a pass with written values; empty if there is none.

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
    if "lens" not in model.refused and not _is_unembedded(model, post, trace):
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


# ---------------------------------------------------------------------- gradients
def check_gradients(model: ProvenModel) -> None:
    """Compare gradients at the sites of each kind with finite differences, or note a refusal."""
    model.refused.pop("gradients", None)
    _attempt(model, "gradients", _compare_gradients)


def _compare_gradients(model: ProvenModel) -> None:
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
        up, _ = self.model.run(self.ids, sites=names, tap=lambda s, v: v + step[s])
        down, _ = self.model.run(self.ids, sites=names, tap=lambda s, v: v - step[s])
        measured = float(((up.double() - down.double()) * self.weight).sum() / 2)
        if abs(measured - expected) < SLOPE_AGREEMENT * abs(expected):
            return ""
        return f"gradient {expected:.3g}, finite difference {measured:.3g}"
