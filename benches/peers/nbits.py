"""ONNX Runtime's products with 4096 x 4096 weights of 4 and 8 bits, for `cargo bench --bench dequant`.

    python benches/peers/nbits.py [--seconds 2]

Blocks of 32 weights with an f32 scale each, integer compute (`accuracy_level` 4). One row: one matrix,
which the last-level cache may hold, and different ones in turn that none holds. Needs `numpy`, `onnx` and
`onnxruntime` (requirements.txt).
"""

import argparse
import time

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

N = 4096
BLOCK = 32
COLD_BYTES = 384 << 20


def model(bits: int, seed: int) -> bytes:
    rng = np.random.default_rng(seed)
    weights = rng.integers(0, 256, (N, N // BLOCK, BLOCK * bits // 8), dtype=np.uint8)
    scales = rng.random((N, N // BLOCK), dtype=np.float32) * 0.01
    node = helper.make_node(
        "MatMulNBits",
        ["x", "w", "scales"],
        ["y"],
        domain="com.microsoft",
        K=N,
        N=N,
        bits=bits,
        block_size=BLOCK,
        accuracy_level=4,
    )
    graph = helper.make_graph(
        [node],
        "nbits",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["M", N])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["M", N])],
        [onnx.numpy_helper.from_array(weights, "w"), onnx.numpy_helper.from_array(scales, "scales")],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return made.SerializeToString()


def session(bits: int, threads: int, seed: int) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    return ort.InferenceSession(model(bits, seed), options, providers=["CPUExecutionProvider"])


def measure(sessions: list, x: np.ndarray, seconds: float) -> tuple[float, float]:
    for s in sessions:
        s.run(None, {"x": x})
    times, begin = [], time.perf_counter()
    while len(times) < 15 or time.perf_counter() - begin < seconds:
        s = sessions[len(times) % len(sessions)]
        start = time.perf_counter()
        s.run(None, {"x": x})
        times.append(time.perf_counter() - start)
    return min(times), float(np.median(times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.5, help="time for each row")
    arguments = parser.parse_args()
    print(f"onnxruntime {ort.__version__}, MatMulNBits {N} x {N}, blocks of {BLOCK}")
    x = np.random.default_rng(0).random((32, N), dtype=np.float32) - 0.5
    for bits in (4, 8):
        size = N * N * bits // 8 + N * N // BLOCK * 4
        count = -(-COLD_BYTES // size)
        for threads in (1, 2):
            sessions = [session(bits, threads, i) for i in range(count)]
            for place, some in (("in cache", sessions[:1]), ("beyond it", sessions)):
                best, median = measure(some, x[:1], arguments.seconds)
                print(
                    f"{bits} bits, 1 row, {threads} threads, {place:10}"
                    f"{best * 1e6:9.0f} us best {median * 1e6:9.0f} us median"
                    f" {size / best / 1e9:6.1f} GB/s best {size / median / 1e9:6.1f} median"
                )
            best, median = measure(sessions[:1], x, arguments.seconds)
            print(
                f"{bits} bits, 32 rows, {threads} threads          "
                f"{best * 1e6:9.0f} us best {median * 1e6:9.0f} us median"
                f" {64 * N * N / best / 1e9:6.1f} GFLOP/s best {64 * N * N / median / 1e9:6.1f} median"
            )
            del sessions


if __name__ == "__main__":
    main()
