"""Linear probes for language models: named activations, a verified cache, curves with controls.

Experiments:
    run                run an experiment, return its result
    probe              probe activations of another library, return the result
    validate           check an experiment and its data without running it
    open_run           open the result of an earlier run
    RunResult          answer, table, figures and warnings of a run
    Experiment         an experiment as in its YAML file
    SavedProbe         a probe fitted by a run, read from its file
    apply_probe        predictions of a saved probe for texts
    LinearProbe        logistic regression as a scikit-learn estimator

Models:
    GPT2               GPT-2 with a tap at every named tensor
    GPT2Config         sizes and switches of a GPT-2
    load_model         pretrained network of any family
    verify_model       compare a checkpoint with transformers, tensor by tensor
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
    pretrain           train a GPT-2 from a recipe

Interventions; `from probekit.interventions import edits` has the edits:
    cause              run the interventions of an experiment without its probes
    run_edited         logits of a pass with edits of activations
    patch              effects of activations of other texts, by site, head and position
    AnswerMeasure      measure of the answers of a model, such as a logit difference
    causes_of          does a direction detect, steer, silence?
    CauseData          texts, labels, groups and answers for `causes_of`

    __version__        the installed version

Names are imported on first access, so that the command line starts without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from probekit.activations.store import ActivationStore
    from probekit.analysis.verification import verify_model
    from probekit.experiment.schema import Experiment
    from probekit.interventions.causes import CauseData, causes_of
    from probekit.interventions.edits import run_edited
    from probekit.interventions.measures import AnswerMeasure
    from probekit.interventions.patching import patch
    from probekit.model.families.gpt2 import GPT2, GPT2Config
    from probekit.model.families.table import from_transformers, load_model
    from probekit.model.generation import StopStrings, generate
    from probekit.model.passes.cache import ActivationCache, Recording
    from probekit.model.passes.context import KeyValueCache
    from probekit.model.passes.inputs import TokenBatch
    from probekit.model.text.tokenizer import Tokenizer
    from probekit.pipeline.experiment.run import run
    from probekit.pipeline.experiment.validate import validate
    from probekit.pipeline.given.probe import probe
    from probekit.pipeline.intervene.of_run import cause
    from probekit.pipeline.look.apply import apply_probe
    from probekit.pipeline.look.attention import explore_attention
    from probekit.pipeline.pretrain import pretrain
    from probekit.probes.kinds.logistic import LinearProbe
    from probekit.probes.saved_probe import SavedProbe
    from probekit.report.notebooks.run_result import RunResult, open_run

__all__ = [
    "GPT2",
    "ActivationCache",
    "ActivationStore",
    "AnswerMeasure",
    "CauseData",
    "Experiment",
    "GPT2Config",
    "KeyValueCache",
    "LinearProbe",
    "Recording",
    "RunResult",
    "SavedProbe",
    "StopStrings",
    "TokenBatch",
    "Tokenizer",
    "__version__",
    "apply_probe",
    "cause",
    "causes_of",
    "explore_attention",
    "from_transformers",
    "generate",
    "load_model",
    "open_run",
    "patch",
    "pretrain",
    "probe",
    "run",
    "run_edited",
    "validate",
    "verify_model",
]

_HOME = {
    "ActivationCache": "probekit.model.passes.cache",
    "ActivationStore": "probekit.activations.store",
    "AnswerMeasure": "probekit.interventions.measures",
    "CauseData": "probekit.interventions.causes",
    "Experiment": "probekit.experiment.schema",
    "GPT2": "probekit.model.families.gpt2",
    "GPT2Config": "probekit.model.families.gpt2",
    "KeyValueCache": "probekit.model.passes.context",
    "LinearProbe": "probekit.probes.kinds.logistic",
    "Recording": "probekit.model.passes.cache",
    "RunResult": "probekit.report.notebooks.run_result",
    "SavedProbe": "probekit.probes.saved_probe",
    "StopStrings": "probekit.model.generation",
    "TokenBatch": "probekit.model.passes.inputs",
    "Tokenizer": "probekit.model.text.tokenizer",
    "apply_probe": "probekit.pipeline.look.apply",
    "cause": "probekit.pipeline.intervene.of_run",
    "causes_of": "probekit.interventions.causes",
    "explore_attention": "probekit.pipeline.look.attention",
    "from_transformers": "probekit.model.families.table",
    "generate": "probekit.model.generation",
    "load_model": "probekit.model.families.table",
    "open_run": "probekit.report.notebooks.run_result",
    "patch": "probekit.interventions.patching",
    "pretrain": "probekit.pipeline.pretrain",
    "probe": "probekit.pipeline.given.probe",
    "run": "probekit.pipeline.experiment.run",
    "run_edited": "probekit.interventions.edits",
    "validate": "probekit.pipeline.experiment.validate",
    "verify_model": "probekit.analysis.verification",
}


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("probekit.provenance").origin().version
    if name not in _HOME:
        raise AttributeError(f"module 'probekit' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
