"""Networks whose weights are set by hand, so that the use of every direction is known.

The residual stream has pairs of coordinates (+1, -1), which the centring of layer norms keeps. It
is so small in comparison with the epsilon of the layer norms that they only scale: everything else
is linear.

    token `PLAIN[j]`     noise j only
    token `ZERO[j]`      noise j, label 0 along READ and along IDLE
    token `ONE[j]`       noise j, label 1 along READ and along IDLE

The logits of the answers read OUT. The first block's attention copies READ of position 1 into OUT
at the last position, and the noise; position 2 has the label along READ as well, but is never
attended to.
"""

import torch

from probekit.model.families.gpt2 import GPT2, GPT2Config
from probekit.model.passes.inputs import TokenBatch

N_NOISE = 30
PLAIN, ZERO, ONE = (range(start, start + N_NOISE) for start in (0, N_NOISE, 2 * N_NOISE))
NO, YES = 3 * N_NOISE, 3 * N_NOISE + 1  # the answers
N_POS, WIDTH = 5, 24
SIZE = 1e-3  # of the residual stream
LAST = N_POS - 1


def axis(number):
    """A unit vector of the residual stream that layer norm keeps."""
    vector = torch.zeros(WIDTH)
    vector[2 * number], vector[2 * number + 1] = 2**-0.5, -(2**-0.5)
    return vector


READ, IDLE, OUT, PLACE = (axis(number) for number in range(4))
NOISE = torch.stack([axis(number) for number in range(4, 12)])


def hand_set(copies=True):
    """A network that answers by READ of position 1, or with `copies=False` by nothing."""
    config = GPT2Config(
        vocab_size=3 * N_NOISE + 2, n_positions=N_POS, n_embd=WIDTH, n_layer=2, n_head=1,
        n_inner=8, layer_norm_epsilon=0.5, tie_word_embeddings=False,
    )  # fmt: skip
    model = GPT2(config).requires_grad_(False)
    for parameter in model.parameters():
        parameter.zero_()
    generator = torch.Generator().manual_seed(0)
    coordinates = 0.5 * torch.randn(N_NOISE, len(NOISE), generator=generator)
    # The idle direction varies by itself, as every feature does.
    jitter = 0.3 * torch.randn(3, N_NOISE, 2, generator=generator)
    for kind, (tokens, label) in enumerate([(PLAIN, 0), (ZERO, -1), (ONE, 1)]):
        for j, token in enumerate(tokens):
            read, idle = label + jitter[kind, j]
            model.wte.weight[token] = SIZE * (read * READ + idle * IDLE + coordinates[j] @ NOISE)
    gain = config.layer_norm_epsilon**0.5
    for norm in (model.ln_f, *(block.ln_1 for block in model.h)):
        norm.weight += gain
    if copies:
        first = model.h[0].attn
        query, key, value = first.c_attn.weight.view(3, WIDTH, WIDTH)
        # Only position 1 has PLACE: its key wins for every later query.
        model.wpe.weight[1] = SIZE * PLACE
        first.c_attn.bias[:WIDTH] = 1000 / SIZE * WIDTH**0.5 * PLACE
        key += torch.outer(PLACE, PLACE)
        value += torch.outer(OUT, READ) + NOISE.T @ NOISE
        first.c_proj.weight += torch.eye(WIDTH)
        assert not query.any()
    model.lm_head.weight[YES], model.lm_head.weight[NO] = OUT / SIZE, -OUT / SIZE
    return model


def texts(n=120, seed=0, at=(1, 2)):
    """Texts with their label at the positions `at`, its codes, and groups of four rows."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.arange(n) % 2
    ids = torch.randint(N_NOISE, (n, N_POS), generator=generator)
    for position in at:
        ids[:, position] += N_NOISE * (1 + codes)
    batch = TokenBatch(ids, torch.ones_like(ids, dtype=torch.bool), torch.zeros(n, N_POS, 2))
    # Consecutive rows alternate in their label: four of a group share it.
    return batch, codes.numpy(), (torch.arange(n) // 8 * 2 + codes).numpy()
