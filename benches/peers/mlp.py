"""The multi-layer perceptron of benches/mlp.rs as an ONNX model, with a case.

8 × (x · W + b, Relu) with W f32[1024,1024], b f32[32,1024] and x f32[32,1024]: 0.537 GFLOP a batch.
"""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from cases import Case, Named

LAYERS, ROWS, WIDTH = 8, 32, 1024


def write(folder: Path) -> tuple[Path, Case]:
    """Writes the model; gives its path and a case that was computed in f64."""
    random = np.random.default_rng(7)
    nodes, weights = [], []
    x = random.uniform(-1, 1, (ROWS, WIDTH)).astype(np.float32)
    value, expected = "x", x.astype(np.float64)
    for layer in range(LAYERS):
        scale = np.sqrt(6.0 / WIDTH)
        w = (scale * random.uniform(-1, 1, (WIDTH, WIDTH))).astype(np.float32)
        b = (0.1 * random.uniform(-1, 1, (ROWS, WIDTH))).astype(np.float32)
        weights += [numpy_helper.from_array(w, f"w{layer}"), numpy_helper.from_array(b, f"b{layer}")]
        nodes += [
            helper.make_node("MatMul", [value, f"w{layer}"], [f"m{layer}"], f"matmul{layer}"),
            helper.make_node("Add", [f"m{layer}", f"b{layer}"], [f"a{layer}"], f"add{layer}"),
            helper.make_node("Relu", [f"a{layer}"], [f"h{layer}"], f"relu{layer}"),
        ]
        expected = np.maximum(expected @ w.astype(np.float64) + b, 0.0)
        value = f"h{layer}"
    facts = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [ROWS, WIDTH]) for n in ("x", value)]
    graph = helper.make_graph(nodes, "mlp", facts[:1], facts[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = folder / "mlp.onnx"
    onnx.save(model, path)
    output = Named(value, expected.astype(np.float32), rtol=1e-3, atol=1e-5)
    return path, Case("made", [Named("x", x)], [output])
