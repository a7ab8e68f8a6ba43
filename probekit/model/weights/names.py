"""Names of a family's tensors in checkpoints, and how they differ from those in the network."""

from __future__ import annotations

from dataclasses import dataclass

HPARAMS = "hparams.json"  # config of OpenAI's original checkpoints of GPT-2

# Sets of files with GPT-2's vocabulary, in order of precedence.
VOCABULARY_FILES = (
    ("vocab.json", "merges.txt"),
    ("encoder.json", "vocab.bpe"),
    ("tokenizer.json",),
)


@dataclass(frozen=True)
class WeightNames:
    """How the checkpoints of a family name and store the tensors of a network.

    Attributes:
        prefix: beginning of the names in checkpoints of the language model, such as `model.`;
            checkpoints of the body alone lack it.
        embedding: name of the token embedding without the prefix.
        unembedding: name of the unembedding, which has no prefix.
        layers: beginning of the names of the tensors of a block, before its index, such as `h.`.
        n_layers: key of config.json with the number of blocks, for messages.
        buffers: regular expression of tensors that are no parameters.
        transposed: regular expression of the linear maps stored as [in, out].
        sizes: keys of config.json that the shapes of tensors show, by tensor, for messages.
        other_names: names that other releases give to a tensor, each with that of the network.
        switches: end of the name of an extra tensor, and the entry of config.json that makes it
            part of the network.
    """

    prefix: str
    embedding: str
    unembedding: str
    layers: str
    n_layers: str
    sizes: tuple[tuple[str, tuple[str, ...]], ...]
    buffers: str = r"(?!)"  # matches nothing
    transposed: str = r"(?!)"
    other_names: tuple[tuple[str, str], ...] = ()
    switches: tuple[tuple[str, str], ...] = ()

    def in_network(self, name: str) -> str:
        """Return the name that a tensor of a checkpoint has in the network.

        >>> from probekit.model.families.neox import WEIGHTS
        >>> WEIGHTS.in_network("gpt_neox.embed_in.weight"), WEIGHTS.in_network("lm_head.weight")
        ('embed_in.weight', 'embed_out.weight')
        """
        short = name.removeprefix(self.prefix)
        return dict(self.other_names).get(short, short)

    def in_checkpoint(self, name: str) -> str:
        """Return the name that a tensor of the network has in a checkpoint.

        >>> from probekit.model.families.neox import WEIGHTS
        >>> WEIGHTS.in_checkpoint("embed_in.weight"), WEIGHTS.in_checkpoint("embed_out.weight")
        ('gpt_neox.embed_in.weight', 'embed_out.weight')
        """
        return name if name == self.unembedding else self.prefix + name
