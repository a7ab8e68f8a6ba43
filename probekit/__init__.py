"""Linear probes for language models: named activations, a verified cache, curves with controls.

Experiments:
    run                run an experiment, return its result
    probe              probe activations of another library, return the result
    validate           check an experiment and its data without running it
    open_run           open the result of an earlier run
    StudyResult        table of a study: one row for each data set and setting
    RunResult          answer, table, figures and warnings of a run
    Experiment         an experiment as in its YAML file
    SavedProbe         a probe fitted by a run, read from its file
    apply_probe        predictions of a saved probe for texts
    apply_over         a saved probe on several networks, such as checkpoints
    LinearProbe        logistic regression as a scikit-learn estimator

Models:
    GPT2               GPT-2 with a tap at every named tensor
    GPT2Config         sizes and switches of a GPT-2
    load_model         pretrained network of any family
    verify_model       compare a checkpoint with transformers, tensor by tensor
    identify           which tensor of a network activations of another library are
    from_transformers  network that shares the tensors of a model of transformers
    Tokenizer          tokenizer of a model, with the characters of each token
    TokenBatch         token ids of several texts, with their mask
    ActivationCache    activations of a forward pass, by name
    Recording          a tap that records the passes of a generation
    ActivationStore    activations on disk, written by a capture
    generate           new tokens after prompts
    KeyValueCache      keys and values of earlier tokens
    StopStrings        ends a generation at certain strings
    explore_attention  interactive page of attention patterns
    attention_figure   attention patterns of heads as a figure for a paper
    pretrain           train a GPT-2 from a recipe

Interventions; `from probekit.interventions import edits` has the edits:
    intervene          run the interventions of an experiment without its probes
    run_edited         logits of a pass with edits of activations
    patch              effects of activations of other texts, by site, head and position
    AnswerMeasure      measure of the answers of a model, such as a logit difference
    causal_test        does a direction detect, steer, silence?
    CauseData          texts, labels, groups and answers for `causal_test`

    __version__        the installed version

Names are imported on first access, so that the command line starts without torch.
"""

import os
import re
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probekit.memory import importing

# Threads of torch that wait for each other do not spin: next to other work that takes ten times as
# long. torch reads this when it is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

if TYPE_CHECKING:
    __version__: str
    from probekit.activations.store import ActivationStore as ActivationStore
    from probekit.analysis.identify import identify as identify
    from probekit.analysis.verification import verify_model as verify_model
    from probekit.experiment.schema import Experiment as Experiment
    from probekit.interventions.causes import CauseData as CauseData
    from probekit.interventions.causes import causal_test as causal_test
    from probekit.interventions.edits import run_edited as run_edited
    from probekit.interventions.measures import AnswerMeasure as AnswerMeasure
    from probekit.interventions.patching import patch as patch
    from probekit.model.families.from_transformers import from_transformers as from_transformers
    from probekit.model.families.gpt2 import GPT2 as GPT2
    from probekit.model.families.gpt2 import GPT2Config as GPT2Config
    from probekit.model.families.table import load_model as load_model
    from probekit.model.generation import KeyValueCache as KeyValueCache
    from probekit.model.generation import Recording as Recording
    from probekit.model.generation import StopStrings as StopStrings
    from probekit.model.generation import generate as generate
    from probekit.model.passes.inputs import TokenBatch as TokenBatch
    from probekit.model.passes.taps import ActivationCache as ActivationCache
    from probekit.model.text.tokenizer import Tokenizer as Tokenizer
    from probekit.pipeline.compare.over import apply_over as apply_over
    from probekit.pipeline.experiment.probe import probe as probe
    from probekit.pipeline.experiment.run import run as run
    from probekit.pipeline.experiment.validate import validate as validate
    from probekit.pipeline.intervene.run import intervene as intervene
    from probekit.pipeline.look.apply import apply_probe as apply_probe
    from probekit.pipeline.look.attention import attention_figure as attention_figure
    from probekit.pipeline.look.attention import explore_attention as explore_attention
    from probekit.pipeline.pretrain import pretrain as pretrain
    from probekit.probes.kinds.logistic import LinearProbe as LinearProbe
    from probekit.probes.saved_probe import SavedProbe as SavedProbe
    from probekit.report.notebooks.run_result import RunResult as RunResult
    from probekit.report.notebooks.run_result import open_run as open_run
    from probekit.results.study import StudyResult as StudyResult

# The module of each public name, read from the imports above, so that there is one list of them.
_IMPORT = re.compile(r"^    from (\S+) import (\w+) as \2$", re.MULTILINE)
_HOME = {name: home for home, name in _IMPORT.findall(Path(__file__).read_text("utf-8"))}
__all__ = ["__version__", *sorted(_HOME)]


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("probekit.provenance").origin().version
    if name not in _HOME:
        raise AttributeError(f"module 'probekit' has no attribute {name!r}")
    with importing():
        return getattr(import_module(_HOME[name]), name)
