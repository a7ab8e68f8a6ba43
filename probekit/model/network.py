"""Networks with named sites; of those of families, the forward pass around the blocks.

`Network` has what does not depend on what computes a network. Each family derives its own from
`FamilyNetwork`; `probekit.model.families.table` lists them. A `ProvenNetwork` has the same members,
and transformers computes it. The modules of a network (`wte`, `ln_f`, ...) are private to
`probekit.model`.
"""

from __future__ import annotations

import math
import threading
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, cast

import torch
from torch import Tensor, nn

from probekit.accelerators import check_device
from probekit.errors import ConfigError
from probekit.memory import device_text
from probekit.model.config import ModelConfig
from probekit.model.layers.modules import Norm, cross_entropy
from probekit.model.passes import inputs as batches
from probekit.model.passes.context import Context, KeysValues, select_positions
from probekit.model.passes.taps import (
    ActivationCache,
    ForwardStoppedError,
    Tap,
    Taps,
    remember,
    tap_parts,
)
from probekit.model.sites.sites import SitePattern, Sites
from probekit.model.transformer_lens import lacks
from probekit.model.weights.hub import find_model
from probekit.model.weights.sources import at_revision, ignored_keys
from probekit.model.weights.state_dict import as_dtype, weight_readers, write_checkpoint
from probekit.products import linear, to_device

if TYPE_CHECKING:
    from probekit.model.generation import KeyValueCache

Result = TypeVar("Result")
_READING = threading.RLock()  # a part of a network is read and used by one thread at a time
_DRAWN_AT_ONCE = 1 << 16  # numbers of an initial weight, a multiple of 16


class Network(nn.Module):
    """A network with named sites, of a family of the package or computed by transformers.

    Attributes:
        config: sizes and sites.
        has_lens: whether the logits are the unembedding of the normed last stream.
        has_sinks: whether rows of attention patterns sum to less than 1.
    """

    config: ModelConfig
    # Functions that read weights which are not in memory, by name.
    _readers: Mapping[str, Callable[[], Tensor]] = MappingProxyType({})

    def __getattr__(self, name: str) -> Any:
        """Return a parameter or module; names of TransformerLens are refused with ours."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            raise lacks(self, name) from None

    @property
    def sites(self) -> Sites:
        """Names of all sites in the order of the forward pass, with their axes and formulas."""
        return self.config.sites

    @property
    def axis_sizes(self) -> Mapping[str, int]:
        """Size of each axis that does not depend on the input, e.g. `n_layers` and `d_model`."""
        return self.config.axis_sizes

    @property
    def is_in_memory(self) -> bool:
        """Whether all weights are in memory."""
        return not self._readers

    @property
    def devices(self) -> str:
        """Devices of the weights, as in `cuda:0,cuda:1`."""
        weights = self.parameters() if self.is_in_memory else [self]
        return ",".join(dict.fromkeys(str(weight.device) for weight in weights))

    def check_one_device(self) -> None:
        """Raise ConfigError if the weights are spread over several devices."""
        check_device(self.devices)

    @property
    def position_embedding(self) -> Tensor | None:
        """Embedding of every position, shape [n_ctx d_model]; None without learned positions."""
        return None

    def unembed(self, x: Tensor) -> Tensor:
        """Return the logits of the output of `final_norm`, shape [... d_vocab]."""
        return self.capped(self.uncapped_logits(x))

    def capped(self, logits: Tensor) -> Tensor:
        """Return logits after the softcap of the network; unchanged if it has none."""
        return logits

    def forward(
        self,
        tokens: Tensor | batches.TokenBatch,
        mask: Tensor | None = None,
        tap: Tap | None = None,
        sites: SitePattern | Iterable[SitePattern] | None = None,
        *,
        logits: bool = True,
        at: Tensor | None = None,
        past: KeyValueCache | None = None,
    ) -> Tensor | None:
        """Return the logits, shape [batch pos d_vocab], or None with `logits=False`.

        Args:
            tokens: token ids, shape [batch pos], or a `TokenBatch`.
            mask: True at tokens, False at padding, shape [batch pos]. None means the mask of the
                `TokenBatch`, or no padding. Positions count real tokens, so padding on either side
                does not change the result.
            tap: function called at each requested site; returns the value to continue with.
            sites: names, globs or shorthands of the requested sites, or functions of a name. A
                head or neuron is written as `blocks.3.attn.hook_z[head=2]`. None means all sites
                except those computed on request (`attn.hook_result`). Attention is fused unless
                scores or patterns are requested.
            logits: False stops the pass after the last requested site.
            at: positions in each row of `tokens`, shape [batch n_at]. The last block computes its
                queries and its MLP at these positions only. Its sites after keys and values, the
                sites of `ln_final` and the logits then have the axis n_at in place of pos.
            past: cache with the keys and values of earlier tokens. `tokens` continue these tokens,
                and their keys and values are added to it.

        Raises:
            UnknownNameError: a pattern matches no site.
            ConfigError: `sites` without a tap; neither logits nor a site is requested; a site lacks
                the selected head or neuron; or the tap returns another shape or dtype.
            DataError: ids outside the vocabulary; padding without a mask; more tokens than the
                context; a mask with another shape or an empty row; or a `past` of another model or
                batch size.
        """
        request = self._request(tokens, mask, tap, sites, logits, past)
        return cast("Tensor | None", self._compute(*request, logits=logits, at=at, past=past))

    def _request(
        self, tokens: Tensor | batches.TokenBatch, mask: Tensor | None, tap: Tap | None,
        sites: SitePattern | Iterable[SitePattern] | None, logits: bool, past: KeyValueCache | None,
    ) -> tuple[Tensor, Tensor | None, list[str], Tap | None]:  # fmt: skip
        """Return ids, mask, requested sites and a tap at whole sites, by arguments of `forward`."""
        if tap is None and sites is not None:
            raise ConfigError("`sites` was given without `tap`. Pass a tap, or leave `sites` out.")
        parts = self.sites.select(["*"] if sites is None else sites) if tap else ()
        names = list(dict.fromkeys(part.site for part in parts))
        if not logits and not names:
            raise ConfigError(
                "Neither logits nor a site is requested. Pass logits=True, or a tap and sites."
            )
        ids, mask = batches.prepare_tokens(self.config, tokens, mask)
        if mask is None and past is None:
            batches.warn_of_padding(self.config, ids)
        return ids, mask, names, tap_parts(self.sites, tap, parts) if tap else None

    def run_together(
        self,
        passes: Iterable[tuple[Tensor, Tensor | None, Tap, Tensor | None]],
        sites: Sequence[str],
    ) -> Iterator[Sequence[int]]:
        """Run several passes without logits; yield the numbers of those that reached more sites.

        Weights that are not in memory are read once for all passes: these go through one part of
        the network after another. With weights in memory, each pass is run before the next.

        Args:
            passes: tokens, mask, tap and `at` of each pass, as in `forward`.
            sites: names of the requested sites, the same for all passes.
        """
        if self.is_in_memory:
            for number, (tokens, mask, tap, at) in enumerate(passes):
                self(tokens, mask, tap, sites, logits=False, at=at)
                yield (number,)
            return
        steps = [
            self._steps(*self._request(tokens, mask, tap, sites, False, None), logits=False, at=at)
            for tokens, mask, tap, at in passes
        ]
        reached: list[str | None] = [next(one) for one in steps]
        while (part := reached[0]) is not None:
            with self.weights_of(part):
                reached = [next(one, None) for one in steps]
            yield range(len(steps))

    def run_with_cache(
        self,
        tokens: Tensor | batches.TokenBatch,
        sites: SitePattern | Iterable[SitePattern] | None = None,
        mask: Tensor | None = None,
        *,
        logits: bool = True,
        grad: bool = False,
    ) -> tuple[Tensor | None, ActivationCache]:
        """Return the logits, or None with `logits=False`, and the activations at some sites.

        Args:
            tokens: token ids, shape [batch pos], or a `TokenBatch`.
            sites: names, globs or shorthands, heads or neurons such as
                `blocks.3.attn.hook_z[head=2]`, or functions of a name; None means all sites except
                `attn.hook_result`.
            mask: True at tokens, False at padding, shape [batch pos].
            logits: False stops the pass after the last requested site.
            grad: True makes logits and cached values differentiable with respect to every cached
                value, even in a frozen model or under `torch.no_grad()`.

        >>> from probekit import GPT2
        >>> model = GPT2.from_pretrained("mini")
        >>> tokens = torch.tensor([[10, 20, 30]])
        >>> _, cache = model.run_with_cache(tokens, sites=[("pattern", 3)])
        >>> cache["pattern", 3].shape
        torch.Size([1, 4, 3, 3])
        >>> logits, cache = model.run_with_cache(tokens, [("resid_post", 2)], grad=True)
        >>> (gradient,) = torch.autograd.grad(logits[0, -1, 40], cache["resid_post", 2])
        >>> gradient.shape
        torch.Size([1, 3, 256])
        """
        names = [part.text for part in self.sites.select(["*"] if sites is None else sites)]
        values: dict[str, Tensor] = {}
        with torch.set_grad_enabled(grad or torch.is_grad_enabled()):
            out = self(tokens, mask, remember(values, grad=grad), names, logits=logits)
        return out, ActivationCache(values, self.sites)

    def loss(
        self,
        tokens: Tensor | batches.TokenBatch,
        mask: Tensor | None = None,
        *,
        targets: Tensor | None = None,
    ) -> Tensor:
        """Return the mean cross-entropy in nats per target.

        Args:
            tokens: token ids, shape [batch pos], or a `TokenBatch`.
            mask: True at tokens, False at padding, shape [batch pos].
            targets: id to predict at each position, shape [batch pos]; -100 excludes a position.
                None means the next token.

        Raises:
            DataError: the tokens are invalid as in `forward`; or the targets are not int64, differ
                in shape from the tokens, lie outside the vocabulary, or are all excluded.

        >>> from probekit import GPT2
        >>> model = GPT2.from_pretrained("mini")
        >>> model.loss(torch.tensor([[10, 20, 30, 40]])).ndim
        0
        """
        ids, mask = batches.prepare_tokens(self.config, tokens, mask)
        targets = batches.next_tokens(ids, mask) if targets is None else targets
        batches.check_targets(self.config, ids, targets)
        return cast(Tensor, self._loss(ids, mask, targets))


class FamilyNetwork(Network):
    """A decoder-only transformer with a tap at every site; each family derives its network.

    A family defines `CONFIG`, its modules in `_build`, and `embedded`, and overrides `block_inputs`
    if its blocks rotate or have windows. Modules are found by the names in `config.WEIGHTS`.

    The weights are in memory, or each part of the network (`embed`, `blocks.0`, ...) is read when a
    pass reaches it and dropped afterwards. A pass is a generator that yields the name of each part
    before it computes it; `_run` computes one pass, `run_together` several. Weights in memory may
    be spread over several devices, and a pass moves from device to device between blocks.

    Attributes:
        CONFIG: class of the config.
        VERSION: version of the numbers that the family computes. Set a higher one in the family
            when they change, and run `make golden`.
        config: sizes and switches, under the names of the hub's config.json.

    >>> from probekit import GPT2
    >>> network: FamilyNetwork = GPT2.from_pretrained("mini")
    >>> network.sites[:3]
    ('hook_embed', 'hook_pos_embed', 'blocks.0.hook_resid_pre')
    >>> network.axis_sizes["d_model"], network.dtype
    (256, torch.float32)
    """

    CONFIG: ClassVar[type[ModelConfig]]
    VERSION: ClassVar[int] = 1

    def __init__(self, config: Any, seed: int | None = 0) -> None:
        super().__init__()
        self.config = config
        self._device: torch.device | None = None  # of weights that are not in memory
        with torch.device("meta"):
            self._build()
        if seed is not None:
            self.initialise(seed)
        self.eval()  # no dropout until model.train()

    @abstractmethod
    def _build(self) -> None:
        """Make the modules, in the order in which their weights are drawn."""

    def initialise(
        self, seed: int, dtype: torch.dtype | None = None, device: str | Sequence[str] = "cpu"
    ) -> Self:
        """Give the network random weights on a device, or on several, and return it.

        They are drawn one after the other; torch's global generator is not used. See
        `initial_weight`.
        """
        generator = torch.Generator().manual_seed(seed)
        weights = {
            name: initial_weight(self, name, generator, dtype).to(place)
            for name, place in self.places(device).items()
        }
        self.load_state_dict(weights, assign=True)
        return self

    def redrawn(self, seed: int, dtype: torch.dtype | None) -> dict[str, Callable[[], Tensor]]:
        """Return functions that draw the weights of `initialise` again, by name."""

        def read(name: str, start: torch.Generator) -> Tensor:
            return initial_weight(self, name, start.clone_state(), dtype)

        generator = torch.Generator().manual_seed(seed)
        readers: dict[str, Callable[[], Tensor]] = {}
        for name, _ in self.named_parameters():
            readers[name] = partial(read, name, generator.clone_state())
            initial_weight(self, name, generator, dtype)  # the next parameter starts after it
        return readers

    @property
    def device(self) -> torch.device:
        """Device of the weights; if they are spread over several, that of the embedding."""
        return self._device or super().get_parameter(self.config.WEIGHTS.embedding).device

    def places(self, device: str | Sequence[str]) -> dict[str, torch.device]:
        """Return the device of each parameter, by name.

        Of several devices each gets consecutive blocks, in equal shares of bytes. The embedding is
        on the first, the final norm and the unembedding on the last.

        Args:
            device: a device, or several as a list or as in `cuda:0,cuda:1`.
        """
        devices = [torch.device(name) for name in device_text(device).split(",")]
        total, done = sum(parameter.numel() for parameter in self.parameters()), 0.0
        places: dict[str, torch.device] = {}
        for part, group in groupby(self.named_parameters(), lambda item: self._part_of(item[0])):
            sizes = {name: parameter.numel() for name, parameter in group}
            middle = done + sum(sizes.values()) / 2
            done += sum(sizes.values())
            fixed = {"embed": 0, "ln_final": -1, "unembed": -1}
            index = fixed.get(part, int(len(devices) * middle / total))
            places |= dict.fromkeys(sizes, devices[index])
        return places

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights."""
        return super().get_parameter(self.config.WEIGHTS.embedding).dtype

    def get_parameter(self, target: str) -> nn.Parameter:
        """Return a parameter by its name; one that is not in memory is read."""
        parameter = super().get_parameter(target)
        if not parameter.is_meta or self.is_in_memory:
            return parameter
        return nn.Parameter(to_device(self._readers[target](), self.device), requires_grad=False)

    @contextmanager
    def weights_of(self, part: str) -> Iterator[None]:
        """Read the weights of a part that are not in memory; drop them at the end of the block.

        Args:
            part: `embed`, `blocks.0`, ...
        """
        if self.is_in_memory:
            yield
            return
        with _READING:
            weights = {
                name: self.get_parameter(name)
                for name, parameter in self.named_parameters()
                if parameter.is_meta and self._part_of(name) == part
            }
            self.load_state_dict(weights, strict=False, assign=True)
            try:
                yield
            finally:
                dropped = {name: weight.to("meta") for name, weight in weights.items()}
                self.load_state_dict(dropped, strict=False, assign=True)

    def _part_of(self, name: str) -> str:
        """Return the part of the network that a parameter belongs to."""
        names = self.config.WEIGHTS
        if name.startswith(names.layers):
            return f"blocks.{name.removeprefix(names.layers).partition('.')[0]}"
        if name.startswith(f"{names.norm}."):
            return "ln_final"
        return "unembed" if name == names.unembedding else "embed"

    @property
    def token_embedding(self) -> Tensor:
        """Embedding of every token, shape [d_vocab d_model]."""
        return self.get_parameter(self.config.WEIGHTS.embedding)

    @property
    def unembedding(self) -> Tensor:
        """Matrix from the output of the final norm to the logits, shape [d_vocab d_model]."""
        names, is_tied = self.config.WEIGHTS, self.config.tie_word_embeddings
        return self.get_parameter(names.embedding if is_tied else names.unembedding)

    unembedding_bias: ClassVar[None] = None
    has_lens: ClassVar[bool] = True
    has_sinks: ClassVar[bool] = False

    @property
    def blocks(self) -> nn.ModuleList:
        """The blocks, in order.

        Each has `after_attention(resid, tap)`, the part of the block after `hook_resid_mid`, unless
        the network lacks that site.
        """
        return cast(nn.ModuleList, self.get_submodule(self.config.WEIGHTS.layers.rstrip(".")))

    def norms_of(self, layer: int) -> list[Norm]:
        """Return the norms over the residual stream of a block, in the order of the pass."""
        inside = (one for one in self.config.components if one.in_block)
        names = [one.module.format(l=layer) for one in inside if one.axes == ("d_model",)]
        return [cast(Norm, self.get_submodule(name)) for name in names]

    @property
    def last_norm(self) -> Norm:
        """The norm before the unembedding."""
        return cast(Norm, self.get_submodule(self.config.WEIGHTS.norm))

    def head_output(self, layer: int) -> tuple[Tensor, Tensor | None]:
        """Return W_O of the heads of a layer and the bias of their sum.

        The matrix has the shape [d_model (n_heads d_head)], the bias [d_model]; None if there is no
        bias.
        """
        names = self.config.WEIGHTS
        heads = f"{names.layers}{layer}.{names.heads}"
        has_bias = self.get_submodule(heads).bias is not None
        bias = self.get_parameter(f"{heads}.bias") if has_bias else None
        return self.get_parameter(f"{heads}.weight"), bias

    def mlp_output(self, layer: int) -> Tensor:
        """Return W_out of a layer's MLP, shape [d_model d_mlp]."""
        names = self.config.WEIGHTS
        return self.get_parameter(f"{names.layers}{layer}.{names.neurons}.weight")

    def attention_norm_gain(self, layer: int) -> Tensor | None:
        """Return the gain of the norm between the heads of a layer and the residual stream.

        Shape [d_model]; None if the output of attention is added to the stream as it is. The scale
        of the norm is the site `ln1_post.hook_scale`.
        """
        name = self.config.WEIGHTS.after_heads
        with self.weights_of(f"blocks.{layer}"):
            return cast(Norm, self.blocks[layer].get_submodule(name)).gain if name else None

    @abstractmethod
    def embedded(self, tokens: Tensor, context: Context, tap: Taps) -> Tensor:
        """Return the residual stream before the first block, shape [batch pos d_model].

        Args:
            tokens: token ids on the device of the weights, 0 at padding, shape [batch pos].
            context: positions, visibility and cache of the pass.
            tap: taps at all sites.
        """

    def block_inputs(self, context: Context) -> Sequence[tuple[Tensor | None, tuple[Tensor, ...]]]:
        """Return visibility and angles of each block; angles are empty if it does not rotate."""
        return [(context.visible, ())] * len(self.blocks)

    def _blocks(
        self, resid: Tensor, context: Context, tap: Taps, start: int = 0
    ) -> Generator[str, None, Tensor]:
        """Return the residual stream after the last block, from that before block `start`.

        Yields the name of each block before it is computed, for `weights_of`. The stream moves to
        the device of each block.

        Args:
            resid: residual stream, shape [batch pos d_model].
            context: positions, visibility and cache of the pass.
            tap: taps at all sites.
            start: index of the first block that is computed.
        """
        blocks, inputs = self.blocks, self.block_inputs(context)
        for layer in range(start, len(blocks)):
            yield f"blocks.{layer}"
            device = next(blocks[layer].parameters()).device
            if device != context.device:
                context = context.on(device)
                inputs = self.block_inputs(context)
            resid = to_device(resid, device)
            inside = context.of_block(layer, *inputs[layer], is_last=layer == len(blocks) - 1)
            resid = blocks[layer](resid, inside, tap.within(f"blocks.{layer}"))
        return resid

    def _run(self, steps: Generator[str, None, Result]) -> Result:
        """Return the result of a pass, with the weights of one part after another in memory."""
        try:
            part = next(steps)
            while True:
                with self.weights_of(part):
                    part = next(steps)
        except StopIteration as end:
            return cast(Result, end.value)

    def final_norm(self, resid: Tensor, tap: Taps | None = None) -> Tensor:
        """Return the final norm of residuals, shape [... d_model]; its taps are at `ln_final`."""
        resid = to_device(resid, next(self.last_norm.parameters()).device)
        return cast(Tensor, self.last_norm(resid, tap or Taps(None)))

    def uncapped_logits(self, x: Tensor) -> Tensor:
        """Return the logits before a softcap, which are linear in `x`, shape [... d_vocab].

        They equal `unembed(x)` in a network without a softcap of the logits.
        """
        unembedding = self.unembedding
        return linear(to_device(x, unembedding.device), unembedding)

    @classmethod
    def from_pretrained(
        cls,
        source: str | Path,
        dtype: str | torch.dtype | None = None,
        device: str | Sequence[str] = "cpu",
        *,
        revision: str | None = None,
        in_memory: bool = True,
    ) -> Self:
        """Return a pretrained network with frozen parameters; `requires_grad_()` unfreezes them.

        Args:
            source: `mini`, a hub name such as `gpt2-medium` or `org/name@revision`, or a folder
                in the format of the hub (or, for GPT-2, of OpenAI).
            dtype: float32, float16, bfloat16 or float64, for weights and computation; None means
                the dtype of the checkpoint; float16 then becomes float32, because many processors
                are slow in float16 and its range is small.
            device: device of the weights, e.g. `cuda`; several, e.g. `["cuda:0", "cuda:1"]`, each
                hold some of the blocks.
            revision: commit, tag or branch of a model on the hub; the same as `org/name@revision`.
            in_memory: False reads the weights of each block when a pass reaches it, and drops them
                afterwards: for a network larger than memory.

        Raises:
            ConfigError: the dtype is not supported, the device is not available, the name is not
                valid, or a revision of a folder is given.
            OutOfMemoryError: a tensor needs more memory than there is.
            MissingError: no model has this name, or it has no such revision.
            CheckpointError: a file is damaged, or its tensors are not those of this network.
        """
        check_device(device_text(device), several=True)
        weights_dtype = None if dtype is None else as_dtype(dtype)
        source = at_revision(source, revision)
        read = partial(cls.CONFIG.from_folder, ignore=ignored_keys(source))
        folder = find_model(source, check=read, vocabulary=cls.CONFIG.VOCABULARY)
        model = cls(read(folder), seed=None).requires_grad_(False)
        readers = weight_readers(folder, model.config, model.state_dict(), weights_dtype)
        if not in_memory:
            return model.read_when_needed(readers, device)
        # Popped, so that a tensor that is in memory is released once it is copied.
        tensors = {name: readers.pop(name)().to(at) for name, at in model.places(device).items()}
        model.load_state_dict(tensors, assign=True)
        return model

    def read_when_needed(
        self, readers: Mapping[str, Callable[[], Tensor]], device: str | Sequence[str]
    ) -> Self:
        """Read each weight when a pass needs it, and return the network.

        Only the final norm is in memory: it is small, and analyses of the logits use it.

        Args:
            readers: function of each parameter that returns it, all in one dtype, by name.
            device: device of the weights; of several, the first is used.
        """
        device = device_text(device).split(",")[0]
        prefix = f"{self.config.WEIGHTS.norm}."
        norm = {
            name: read().to(device) for name, read in readers.items() if name.startswith(prefix)
        }
        self.to(next(iter(norm.values())).dtype)
        self._readers, self._device = readers, torch.device(device)
        self.load_state_dict(norm, strict=False, assign=True)
        return self

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Set whether gradients of the weights are computed, and return the network.

        Raises:
            ConfigError: weights that are read for each pass cannot be trained.
        """
        if requires_grad and not self.is_in_memory:
            raise ConfigError(
                "Weights that are read for each pass cannot be trained. Load the network with "
                "`in_memory=True`."
            )
        return super().requires_grad_(requires_grad)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write config.json and model.safetensors, which transformers reads, and their digests.

        Raises:
            StoreError: a file cannot be written.
            CheckpointError: the folder has a damaged digests.json.
        """
        weights = {name: self.get_parameter(name) for name in self.state_dict()}
        write_checkpoint(Path(folder), self.config, weights)

    def _compute(self, *request: Any, **how: Any) -> Tensor | None:
        return self._run(self._steps(*request, **how))

    def _steps(
        self, ids: Tensor, mask: Tensor | None, names: Sequence[str], visit: Tap | None, *,
        logits: bool, at: Tensor | None = None, past: KeyValueCache | None = None,
    ) -> Generator[str, None, Tensor | None]:  # fmt: skip
        """Run `forward`; yield the name of each part before it is computed, for `weights_of`."""
        taps = Taps(visit, set(names), stop_when_done=not logits)
        try:
            x = yield from self._to_last_norm(ids, mask, taps, at, past)
            return self.unembed(x)
        except ForwardStoppedError:
            return None

    def _to_last_norm(
        self, tokens: Tensor, mask: Tensor | None, tap: Taps,
        at: Tensor | None = None, past: KeyValueCache | None = None,
    ) -> Generator[str, None, Tensor]:  # fmt: skip
        """Return the output of the final norm; arguments as in `forward`, yields as in `_steps`."""
        if past is not None:
            mask = past.join_mask(self, tokens, mask)
        context = Context.of(tokens, mask, at, self.device, past=past)
        batches.check_context(self.config, context.positions)
        yield "embed"
        resid = self.embedded(to_device(tokens, self.device), context, tap)
        resid = yield from self._blocks(resid, context, tap)
        context.end()
        return self.final_norm(resid, tap.within("ln_final"))

    def resume(
        self,
        resid: Tensor,
        layer: int,
        *,
        after_attention: bool = False,
        mask: Tensor | None = None,
        before: Sequence[KeysValues | None] | None = None,
        at: Tensor | None = None,
        tap: Tap | None = None,
        sites: Iterable[str] = (),
    ) -> Tensor:
        """Return the residual stream after the last block, computed from that at a block.

        Args:
            resid: residual stream before block `layer`, at the positions that are computed, shape
                [batch pos d_model].
            layer: block to start at; the number of blocks means that no block is run.
            after_attention: whether `resid` is the residual stream after the attention of that
                block.
            mask: True at tokens, False at padding, for the positions in `before` and then for
                `resid`, shape [batch key_pos].
            before: keys and values of all earlier positions, by block; None if there are none, and
                for the blocks before `layer`. The keys are those that attention reads:
                `attn.hook_rot_k` where the network has that site.
            at: positions in `resid` that are returned, shape [batch n_at]; None means all.
            tap: function called at each requested site.
            sites: names of the requested sites; empty for none.

        >>> from probekit import GPT2
        >>> model, tokens = GPT2.from_pretrained("mini"), torch.tensor([[5, 6, 7]])
        >>> logits, cache = model.run_with_cache(tokens, [("resid_pre", 3)])
        >>> resid = model.resume(cache["resid_pre", 3], 3)
        >>> torch.allclose(model.final_norm(resid) @ model.unembedding.T, logits, atol=1e-4)
        True

        Raises:
            ConfigError: `sites` without a tap; a requested site is before the start or after the
                blocks; or the blocks are parallel, so that no residual stream is between attention
                and MLP.
        """
        if after_attention and "blocks.0.hook_resid_mid" not in self.sites:
            raise ConfigError(
                f"The blocks of this {self.config.TITLE} are parallel: they have no residual "
                "stream after attention. Start at the next block."
            )
        taps, last = Taps(tap, set(sites)), len(self.blocks) - 1
        if tap is None and taps.pending:
            raise ConfigError("`sites` was given without `tap`. Pass a tap, or leave `sites` out.")
        first = layer + 1 if after_attention else layer  # the first block that is run as a whole
        if at is not None and first > last:  # otherwise the last block selects the positions
            resid = select_positions(resid, at.to(resid.device))
        if after_attention:
            block = cast(Any, self.blocks[layer])
            with self.weights_of(f"blocks.{layer}"):
                resid = to_device(resid, next(block.parameters()).device)
                resid = block.after_attention(resid, taps.within(f"blocks.{layer}"))
        if first <= last:
            # `resid[..., 0]` has the shape of the tokens; their ids are not read.
            context = Context.of(resid[..., 0], mask, at, resid.device, before=before)
            resid = self._run(self._blocks(resid, context, taps, first))
        if taps.pending:
            place = "after the attention of" if after_attention else "at"
            raise ConfigError(
                f"A pass that starts {place} block {layer} does not reach {min(taps.pending)}. "
                "Start at an earlier block, or run the whole network."
            )
        return resid

    def _loss(self, ids: Tensor, mask: Tensor | None, targets: Tensor) -> Tensor:
        x = self._run(self._to_last_norm(ids, mask, Taps(None)))
        return self.mean_loss(x.flatten(0, 1), targets.flatten())

    def mean_loss(self, x: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy of the logits of `x`, shape [n_tokens d_model]."""
        return cross_entropy(x, self.unembedding, targets)


def stream_of(embed: Tensor) -> Tensor:
    """Return embeddings in the dtype of the residual stream, at least float32.

    In half precision, rounding errors would accumulate over the blocks.
    """
    return embed.to(torch.promote_types(embed.dtype, torch.float32))


def embedding(n: int, d_model: int) -> nn.Embedding:
    """Return an embedding that is not initialised.

    nn.Embedding would initialise its weight, which imports torch's compiler on the meta device.
    """
    return nn.Embedding(n, d_model, _weight=torch.empty(n, d_model))


def initial_weight(
    network: FamilyNetwork, name: str, generator: torch.Generator, dtype: torch.dtype | None = None
) -> Tensor:
    """Return the initial value of a parameter of a network, on the CPU.

    Matrices are from a normal distribution, biases are 0, gains 1. The standard deviation is 0.02,
    or `config.initializer_range` if the config has one. For the output maps of the 2 n_layers
    sublayers it is divided by sqrt(2 n_layers).

    Args:
        network: the network; only its config and shapes are used.
        name: name of the parameter.
        generator: generator of the numbers, which are drawn in float32.
        dtype: dtype of the value; None for that of the network.

    Source: Radford et al. 2019, section 2.3, which scales "the weights of residual layers"; the
    standard deviation 0.02 is from the code published with it (model.py). That code draws the
    position embeddings with 0.01 and does not scale by 1 / sqrt(2 n_layer). We use 0.02 for them
    and scale, like `transformers`.

    >>> from probekit import GPT2, GPT2Config
    >>> sizes = {"n_layer": 8, "n_head": 3, "n_embd": 96, "vocab_size": 97, "n_positions": 16}
    >>> network, generator = GPT2(GPT2Config(**sizes), seed=None), torch.Generator()
    >>> names = ("wte.weight", "h.0.mlp.c_proj.weight")
    >>> [round(initial_weight(network, name, generator).std().item(), 3) for name in names]
    [0.02, 0.005]
    """
    config, shape = network.config, nn.Module.get_parameter(network, name).shape
    weight = torch.empty(shape, dtype=dtype or network.dtype)
    if len(shape) == 1:
        # The only vectors called `weight` are those of norms.
        return weight.fill_(network.last_norm.weight_of_gain_1 if name.endswith("weight") else 0.0)
    output_maps = (f"{config.WEIGHTS.heads}.weight", f"{config.WEIGHTS.neurons}.weight")
    depth = 2 * config.n_layers if name.endswith(output_maps) else 1
    std = getattr(config, "initializer_range", 0.02) / math.sqrt(depth)
    # In parts, to save memory. The numbers are those of one draw if no part is below 16.
    starts = range(_DRAWN_AT_ONCE, weight.numel() - 15, _DRAWN_AT_ONCE)
    for part in weight.flatten().tensor_split(list(starts)):
        drawn = torch.empty(part.shape, dtype=torch.float32)
        part.copy_(drawn.normal_(std=std, generator=generator))
    return weight
