#!/usr/bin/env python3
"""Train the demo model on the UCI handwritten digits and write the demo's files.

    python3 -m venv .venv && .venv/bin/pip install -r requirements.txt
    OMP_NUM_THREADS=1 .venv/bin/python train.py

Written beside this script (or into --out):

    digits.onnx        the network: image [N,1,8,8] float32 (raw pixels 0..16)
                       -> probabilities [N,10]
    images.npy         held-out images, uint8 [900,1,8,8], never trained on
    labels.npy         their digits, uint8 [900]
    probabilities.npy  what onnxruntime answers for them, float32 [900,10]

The network is a plain residual CNN, trained here with numpy alone. Every
3x3 convolution of the body costs the same, so that the chain can be cut into
2, 4 or 8 pieces of equal work, with one tensor crossing between two blocks.

The seed fixes the split, the initial weights and the order of the batches.
The BLAS still decides the order of float additions, so another machine may
get weights that differ in the last digits.
"""
import argparse
import time
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

SEED = 19980701
HELD_OUT = 900
CHANNELS = 32
BLOCKS = 4
CLASSES = 10
SIDE = 8
PIXEL_MAX = 16
BATCH = 32
EPOCHS = 40
PEAK_RATE = 2e-3
WEIGHT_DECAY = 2e-2
LABEL_SMOOTHING = 0.05
LEAST_ACCURACY = 0.97
MOST_BYTES = 1_000_000


# --------------------------------------------------------------------------
# Layers. Activations are [C, N, H, W], so that a convolution is one GEMM.
# --------------------------------------------------------------------------

def patches(x):
    """[C,N,H,W] to the [C*9, N*H*W] matrix of zero-padded 3x3 neighbourhoods."""
    c, n, h, w = x.shape
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    cols = np.empty((c, 9, n, h, w), x.dtype)
    for k in range(9):
        i, j = divmod(k, 3)
        cols[:, k] = padded[:, :, i:i + h, j:j + w]
    return cols.reshape(c * 9, n * h * w)


def scatter(cols, shape):
    """The transpose of `patches`: add every neighbourhood back where it came from."""
    c, n, h, w = shape
    padded = np.zeros((c, n, h + 2, w + 2), cols.dtype)
    cols = cols.reshape(c, 9, n, h, w)
    for k in range(9):
        i, j = divmod(k, 3)
        padded[:, :, i:i + h, j:j + w] += cols[:, k]
    return padded[:, :, 1:-1, 1:-1]


def conv(x, weight, bias):
    """3x3, stride 1, zero padding 1. Returns the output and the patch matrix."""
    cols = patches(x)
    y = weight.reshape(len(weight), -1) @ cols + bias[:, None]
    return y.reshape(len(weight), *x.shape[1:]), cols


def conv_grad(dy, cols, weight, input_shape):
    """Gradients by weight, by bias and (unless input_shape is None) by input."""
    dy = dy.reshape(len(weight), -1)
    dw = (dy @ cols.T).reshape(weight.shape)
    db = dy.sum(axis=1)
    if input_shape is None:
        return dw, db, None
    return dw, db, scatter(weight.reshape(len(weight), -1).T @ dy, input_shape)


def softmax(z):
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


# --------------------------------------------------------------------------
# Network
# --------------------------------------------------------------------------

def initial_params(rng):
    def he(*shape):
        fan_in = int(np.prod(shape[1:]))
        return (rng.standard_normal(shape) * np.sqrt(2 / fan_in)).astype(np.float32)

    def zeros(n):
        return np.zeros(n, np.float32)

    p = {"stem.weight": he(CHANNELS, 1, 3, 3), "stem.bias": zeros(CHANNELS)}
    for b in range(BLOCKS):
        p[f"block{b}.conv1.weight"] = he(CHANNELS, CHANNELS, 3, 3)
        p[f"block{b}.conv1.bias"] = zeros(CHANNELS)
        # Small, so that a block starts near the identity: no normalisation needed.
        p[f"block{b}.conv2.weight"] = he(CHANNELS, CHANNELS, 3, 3) * np.float32(0.25)
        p[f"block{b}.conv2.bias"] = zeros(CHANNELS)
    p["classifier.weight"] = he(CLASSES, CHANNELS)
    p["classifier.bias"] = zeros(CLASSES)
    return p


def loss_and_grads(p, images, labels):
    """Mean cross-entropy (smoothed labels) and its gradients. images: [N,1,8,8] in 0..1."""
    grads, tape = {}, []
    x = images.transpose(1, 0, 2, 3)
    y, stem_cols = conv(x, p["stem.weight"], p["stem.bias"])
    x = np.maximum(y, 0)
    stem_out = x
    for b in range(BLOCKS):
        y1, cols1 = conv(x, p[f"block{b}.conv1.weight"], p[f"block{b}.conv1.bias"])
        h = np.maximum(y1, 0)
        y2, cols2 = conv(h, p[f"block{b}.conv2.weight"], p[f"block{b}.conv2.bias"])
        x = np.maximum(x + y2, 0)
        tape.append((cols1, h, cols2, x))
    pooled = x.mean(axis=(2, 3)).T
    logits = pooled @ p["classifier.weight"].T + p["classifier.bias"]

    n = len(labels)
    probs = softmax(logits)
    target = np.full((n, CLASSES), LABEL_SMOOTHING / CLASSES, np.float32)
    target[np.arange(n), labels] += 1 - LABEL_SMOOTHING
    loss = float(-(target * np.log(probs + 1e-12)).sum() / n)

    d = (probs - target) / np.float32(n)
    grads["classifier.weight"] = d.T @ pooled
    grads["classifier.bias"] = d.sum(axis=0)
    d = (d @ p["classifier.weight"]).T[:, :, None, None] / np.float32(SIDE * SIDE)
    d = np.broadcast_to(d, x.shape)
    for b in reversed(range(BLOCKS)):
        cols1, h, cols2, out = tape[b]
        d = d * (out > 0)
        name = f"block{b}.conv2"
        grads[f"{name}.weight"], grads[f"{name}.bias"], dh = conv_grad(
            d, cols2, p[f"{name}.weight"], h.shape)
        dh = dh * (h > 0)
        name = f"block{b}.conv1"
        grads[f"{name}.weight"], grads[f"{name}.bias"], dx = conv_grad(
            dh, cols1, p[f"{name}.weight"], h.shape)
        d = d + dx
    grads["stem.weight"], grads["stem.bias"], _ = conv_grad(
        d * (stem_out > 0), stem_cols, p["stem.weight"], None)
    return loss, grads


def shifted(images, rng):
    """Move each image by -1, 0 or 1 pixel in x and y, zeros coming in."""
    padded = np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)))
    moves = rng.integers(0, 3, (len(images), 2))
    return np.stack([padded[i, :, y:y + SIDE, x:x + SIDE] for i, (y, x) in enumerate(moves)])


def train(images, labels, rng):
    """AdamW with a warm-up and a cosine decay."""
    p = initial_params(rng)
    m = {k: np.zeros_like(v) for k, v in p.items()}
    v = {k: np.zeros_like(w) for k, w in p.items()}
    per_epoch = len(images) // BATCH
    total = EPOCHS * per_epoch
    step = 0
    start = time.monotonic()
    for epoch in range(EPOCHS):
        order = rng.permutation(len(images))
        losses = []
        for i in range(per_epoch):
            pick = order[i * BATCH:(i + 1) * BATCH]
            loss, grads = loss_and_grads(p, shifted(images[pick], rng), labels[pick])
            losses.append(loss)
            step += 1
            rate = PEAK_RATE * min(step / per_epoch, 0.5 * (1 + np.cos(np.pi * step / total)))
            for k, g in grads.items():
                m[k] += np.float32(0.1) * (g - m[k])
                v[k] += np.float32(0.01) * (g * g - v[k])
                update = (m[k] / (1 - 0.9 ** step)) / (np.sqrt(v[k] / (1 - 0.99 ** step)) + 1e-8)
                if k.endswith("weight"):
                    update = update + WEIGHT_DECAY * p[k]
                p[k] -= (rate * update).astype(np.float32)
        print(f"epoch {epoch + 1:2}/{EPOCHS}  loss {np.mean(losses):.4f}  "
              f"{time.monotonic() - start:.0f} s", flush=True)
    return p


# --------------------------------------------------------------------------
# ONNX
# --------------------------------------------------------------------------

def to_onnx(p):
    from onnx import TensorProto, checker, helper, numpy_helper

    p = dict(p)
    # The network learnt pixels in 0..1. 16 is a power of two, so dividing the
    # weights instead of the pixels is exact, and raw pixels can be fed.
    p["stem.weight"] = p["stem.weight"] / np.float32(PIXEL_MAX)
    nodes = []

    def node(op, inputs, output, **attributes):
        nodes.append(helper.make_node(op, inputs, [output], name=output, **attributes))
        return output

    def conv_node(name, x):
        return node("Conv", [x, f"{name}.weight", f"{name}.bias"], name,
                    kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[1, 1])

    x = node("Relu", [conv_node("stem", "image")], "stem.relu")
    for b in range(BLOCKS):
        h = node("Relu", [conv_node(f"block{b}.conv1", x)], f"block{b}.relu1")
        y = node("Add", [conv_node(f"block{b}.conv2", h), x], f"block{b}.add")
        x = node("Relu", [y], f"block{b}.relu2")
    x = node("GlobalAveragePool", [x], "pool")
    x = node("Flatten", [x], "features", axis=1)
    x = node("Gemm", [x, "classifier.weight", "classifier.bias"], "logits", transB=1)
    nodes.append(helper.make_node("Softmax", [x], ["probabilities"], name="softmax", axis=1))

    graph = helper.make_graph(
        nodes, "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 1, SIDE, SIDE])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["N", CLASSES])],
        [numpy_helper.from_array(np.ascontiguousarray(w), k) for k, w in p.items()])
    model = helper.make_model(graph, producer_name="brigade examples/digits/train.py",
                              opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    model.doc_string = "Handwritten digits, 8x8 pixels with values 0..16. See ATTRIBUTION.md."
    checker.check_model(model, full_check=True)
    return model


def infer(path, images):
    import onnxruntime as ort
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return session.run(["probabilities"], {"image": images.astype(np.float32)})[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)

    digits = load_digits()
    images = digits.images.astype(np.uint8)[:, None]
    labels = digits.target.astype(np.uint8)
    assert np.array_equal(images[:, 0], digits.images) and images.max() == PIXEL_MAX
    train_images, test_images, train_labels, test_labels = train_test_split(
        images, labels, test_size=HELD_OUT, random_state=SEED, stratify=labels)

    rng = np.random.default_rng(SEED)
    params = train(train_images.astype(np.float32) / PIXEL_MAX, train_labels, rng)

    model_path = out / "digits.onnx"
    model_path.write_bytes(to_onnx(params).SerializeToString(deterministic=True))
    np.save(out / "images.npy", test_images)
    np.save(out / "labels.npy", test_labels)

    probabilities = infer(model_path, test_images)
    np.save(out / "probabilities.npy", probabilities)
    right = int((probabilities.argmax(axis=1) == test_labels).sum())
    ordered = np.sort(probabilities, axis=1)
    margin = float((ordered[:, -1] - ordered[:, -2]).min())
    seen = infer(model_path, train_images).argmax(axis=1) == train_labels
    body = 2 * BLOCKS * 2 * 9 * CHANNELS ** 2 * SIDE ** 2
    stem = 2 * 9 * CHANNELS * SIDE ** 2
    files = ["digits.onnx", "images.npy", "labels.npy", "probabilities.npy"]
    size = sum((out / f).stat().st_size for f in files)
    print(f"held out: {right}/{len(test_labels)} = {right / len(test_labels):.4f}   "
          f"trained on: {seen.mean():.4f}   closest call: {margin:.4f}")
    print(f"{(body + stem) / 1e6:.2f} MFLOP an image, {size} bytes in all")
    if right < LEAST_ACCURACY * len(test_labels):
        raise SystemExit(f"accuracy is below {LEAST_ACCURACY}")
    if size > MOST_BYTES:
        raise SystemExit(f"the files are over {MOST_BYTES} bytes")


if __name__ == "__main__":
    main()
