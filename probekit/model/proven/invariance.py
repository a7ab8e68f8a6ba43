"""Tests that values do not change with what must have no effect.

That is rounding, later tokens, other texts of a batch, padding, and a cache of keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor

from probekit.model.proven.doors import (
    AMPLIFIED,
    BLIND,
    LOCAL,
    SHAPES,
    NotProvenError,
    Trace,
    apart_rows,
    eps,
    message_of,
    same,
)
from probekit.model.proven.taps import LENGTHS, SITE_OF, STREAMS, Call, ProvenModel

Run = tuple[Tensor, dict[str, Tensor]]  # logits, and values by site
_SUMMANDS = (*STREAMS, *SITE_OF.values())  # proven in a generation


# ---------------------------------------------------------------------- rounding
def measure_rounding(model: ProvenModel) -> None:
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


def over_limit(model: ProvenModel, name: str, gap: float) -> float:
    """Return a distance divided by the limit of its site; the limit is at most `BLIND`."""
    return gap / min(model.limits[name], BLIND)


# ---------------------------------------------------------------------- equal shapes
def _row_of(run: Run, name: str, text: int, n_texts: int, part: slice) -> Tensor:
    """Return the values at a site of one text of a batch, at some positions."""
    logits, values = run
    x = logits if name == "logits" else values[name]
    if name.endswith("pattern"):
        return x[text, :, part, part]
    rows = x if x.shape[0] == n_texts else x[None]  # experts and OPT flatten the rows
    return rows.reshape(n_texts, -1, *rows.shape[2:])[text, part]


def check_same_shape(model: ProvenModel) -> None:
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
            model.inside(x, call=partial(model.run, x, sites=model.sites)) for x in (one, two)
        ]
        for layer in range(model.n_layers):
            _compare_additions(model, what, layer, traces, len(one), part)
        if model.facts["regroups"] and model.alone is not None:
            _compare_blocks_alone(model, what, (one, two), traces, part)
        a, b = (trace.out for trace in traces)
        pairs = [
            (s, _row_of(a, s, 0, len(one), part), _row_of(b, s, 0, len(one), part)) for s in names
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
        NotProvenError: a mixer, or an MLP without experts, gives equal rows another output, or
            experts one that differs by more than rounding.
    """

    def rows(x: Tensor) -> Tensor:
        return x.reshape(n_texts, -1, model.d_model)[0, part]

    layer = model.layers[number]
    pre, post = zip(*(model.stream(trace, number) for trace in traces), strict=True)
    # Role, name, input and summand of each addition; of a block without any, its ends.
    pairs: list[tuple[str, str, Iterable[Tensor], Iterable[Tensor]]] = []
    if not layer.steps:
        pairs.append(("", "the output", pre, post))
    for index, step in enumerate(layer.steps):
        is_first = index == 0 or bool(layer.parallel)
        read = pre if is_first else tuple(trace.at(*layer.seen[index - 1]) for trace in traces)
        made = [model.summand(trace, number, step) for trace in traces]
        pairs.append((step.role, f"addition {index + 1}", read, made))
    for role, name, sources, results in pairs:
        if not same(*map(rows, sources)) or same(*map(rows, results)):
            continue
        gap, limit = apart_rows(*map(rows, results)), max(LOCAL[pre[0].dtype], 4 * eps(pre[0]))
        is_mixer = role in ("attn", "mixer")
        if is_mixer or gap > limit or not _has_experts(model, traces[0], number):
            where = f"{name} of block {number}, whose input is equal bit by bit"
            raise NotProvenError(f"{what} change {where}, by {gap:.0e}")
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
    worst, gap = max(moved, key=lambda one: over_limit(model, *one))
    model.facts[what] = (over_limit(model, worst, gap), worst)
    if not model.facts.get("regroups") or over_limit(model, worst, gap) > 1:
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


def check_padding(model: ProvenModel) -> None:
    """Compare batches with padding on either side with the single texts, at every site."""
    texts = model.texts()
    singles = [model.run(ids, sites=model.sites) for ids in texts]
    calls = [model.recorded_calls(ids) for ids in texts] if model.alone is not None else []
    for side in ("left", "right"):
        reasons = []
        for with_positions in (True, False) if "position_ids" in model.takes else (False,):
            model.pad_positions[side] = with_positions
            try:
                _check_side(model, side, singles, calls)
            except Exception as error:  # noqa: BLE001 - of the model's code: padding is refused
                reasons.append(message_of(error))
            else:
                break
        else:
            del model.pad_positions[side]
            model.refused[f"padding on the {side}"] = reasons[-1]


def _check_side(model: ProvenModel, side: str, singles: list[Run], calls: list[list[Call]]) -> None:
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
    run, other = (model.run(padded(filler), mask, sites=model.sites) for filler in (7, 11))
    real = [
        slice(n - ids.shape[1], n) if side == "left" else slice(0, ids.shape[1]) for ids in texts
    ]
    gaps: dict[str, float] = {}
    pairs = []
    for i, single in enumerate(singles):
        for name in [*model.sites, "logits"]:
            a = _row_of(run, name, i, len(texts), real[i])
            alone = _row_of(single, name, 0, 1, slice(None))
            gaps[name] = max(apart_rows(a, alone), gaps.get(name, 0.0))
            pairs.append((name, a, _row_of(other, name, i, len(texts), real[i])))
    worst = max(gaps, key=lambda name: over_limit(model, name, gaps[name]))
    if over_limit(model, worst, gaps[worst]) > 1:
        raise NotProvenError(f"values change by {gaps[worst]:.0e} of their size at {worst}")
    _refuse_moves(model, f"ids under padding on the {side}", pairs)
    for i, ids in enumerate(texts if calls else ()):
        feature = f"block with padding on the {side}"

        def streams(name: str, i: int = i) -> Tensor:
            return _row_of(run, name, i, len(texts), real[i])

        if fault := _local_fault(model, feature, ids, streams, calls[i]):
            raise NotProvenError(fault)
    model.facts[f"padding on the {side}"] = (gaps[worst], worst)


# ---------------------------------------------------------------------- generation
def check_generation(model: ProvenModel) -> None:
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
    worst = max(gaps, key=lambda name: over_limit(model, name, gaps[name]))
    if over_limit(model, worst, gaps[worst]) > 1:
        raise NotProvenError(f"values of a generation differ by {gaps[worst]:.0e} at {worst}")
    if model.alone is not None:
        calls = model.recorded_calls(read)
        fault = _local_fault(model, "block in a generation", read, steps.__getitem__, calls)
        if fault:
            raise NotProvenError(f"{fault} in a generation")
    model.facts["generation"] = (gaps[worst], worst)


def check_resume(model: ProvenModel) -> None:
    """Compare blocks that are called alone, with other streams than recorded, with passes."""
    ids, calls = model.texts()[3], model.recorded_calls(model.texts()[3])
    pre, post = ([f"blocks.{n}.{site}" for n in range(model.n_layers)] for site in STREAMS)
    for scale in (1.5, 0.7):

        def scaled(name: str, value: Tensor, scale: float = scale) -> Tensor:
            return value * scale ** (-1) ** pre.index(name) if name in pre else value

        _, whole = model.run(ids, sites=[*pre, *post], tap=scaled)
        for layer, (before, after) in enumerate(zip(pre, post, strict=True)):
            if not same(model.one_block(layer, whole[before], calls), whole[after]):
                raise NotProvenError(f"block {layer} alone gives another stream")
    ends = [pre[0], post[-1]]
    _, whole = model.run(ids, sites=ends, tap=lambda s, v: v * 0.7 if s == pre[0] else v)
    resid = whole[pre[0]].clone()
    for layer in range(model.n_layers):
        resid = model.one_block(layer, resid, calls)
    if not same(resid, whole[post[-1]]):
        raise NotProvenError("blocks alone give another stream")
    model.facts["resume"] = True
