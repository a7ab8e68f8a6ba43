"""A model of ONNX: matrix products and ReLUs, in float32, from `activations` to `scores`."""

from __future__ import annotations

import json

from probekit.probes.exports.vector import in_float32
from probekit.probes.saved_probe import SavedProbe

OPSET, IR_VERSION = 13, 8  # old versions, which all later runtimes read


def onnx_file(probe: SavedProbe, name: str) -> tuple[bytes, str]:
    """Return the file of a probe and code that uses it."""
    from onnx import TensorProto, helper, numpy_helper

    nodes, arrays, last = [], [], "activations"
    for number, layer in enumerate(probe.layers):
        parts = [f"{part}.{number}" for part in ("weight", "bias")]
        for part, values in zip(parts, layer, strict=True):
            arrays.append(numpy_helper.from_array(in_float32(values), part))
        is_last = number == len(probe.layers) - 1
        out = "scores" if is_last else f"hidden.{number}"
        nodes.append(helper.make_node("Gemm", [last, *parts], [out], transB=1))
        if not is_last:
            nodes.append(helper.make_node("Relu", [out], [last := f"active.{number}"]))
    ends = [("activations", probe.n_features), ("scores", len(probe.layers[-1].bias))]
    read, written = (
        [helper.make_tensor_value_info(end, TensorProto.FLOAT, ["rows", width])]
        for end, width in ends
    )
    graph = helper.make_graph(nodes, "probe", read, written, arrays)
    opset = helper.make_opsetid("", OPSET)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION)
    facts = {"classes": probe.classes} | probe.facts.model_dump(mode="json")
    helper.set_model_props(model, {"probekit": json.dumps(facts)})
    code = f"""
import numpy as np
import onnxruntime
session = onnxruntime.InferenceSession("{name}")
(scores,) = session.run(["scores"], {{"activations": np.asarray(X, np.float32)}})
"""
    content: bytes = model.SerializeToString()
    return content, code
