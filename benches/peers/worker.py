"""Times one configuration of a peer in a process of its own, and prints a JSON document.

    worker.py ENGINE MODEL CASE_FOLDER --threads N --sessions N [--hint latency|throughput] [--no-int8]

Latency is of one call after the other; throughput of all sessions (OpenVINO: of all the requests that
its hint asks for) at once. Memory is how much this process grew from before the model was read.
"""

import argparse
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import cases

Run = Callable[[], dict[str, np.ndarray]]


def resident_bytes() -> int:
    """What this process holds in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def onnxruntime_sessions(args: argparse.Namespace, feed: dict[str, np.ndarray]) -> Callable[[], Run]:
    """Opens sessions of ONNX Runtime, each with a pool of its own."""
    import onnxruntime as ort

    ort.set_default_logger_severity(3)

    def session() -> Run:
        options = ort.SessionOptions()
        options.intra_op_num_threads = args.threads
        options.inter_op_num_threads = 1
        if args.no_int8:
            options.add_session_config_entry("session.disable_quant_qdq", "1")
        opened = ort.InferenceSession(args.model, options, providers=["CPUExecutionProvider"])
        names = [o.name for o in opened.get_outputs()]
        return lambda: dict(zip(names, opened.run(names, feed), strict=True))

    return session


def openvino_model(args: argparse.Namespace) -> Any:
    """Compiles the model for the CPU at f32."""
    import openvino as ov

    config: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32"}
    if args.hint:
        config["PERFORMANCE_HINT"] = args.hint.upper()
    else:
        config |= {"INFERENCE_NUM_THREADS": args.threads, "NUM_STREAMS": args.sessions}
    if args.no_int8:
        # Weights that are kept in int8 are multiplied in f32; what is quantised by
        # QuantizeLinear is left as it is written.
        config["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = "0"
    return ov.Core().compile_model(args.model, "CPU", config)


def openvino_sessions(args: argparse.Namespace, feed: dict[str, np.ndarray]) -> Callable[[], Run]:
    """Opens requests of one compiled model of OpenVINO."""
    import openvino  # noqa: F401  (before memory is looked at)

    compiled: list[Any] = []

    def session() -> Run:
        if not compiled:
            compiled.append(openvino_model(args))
            if args.hint == "throughput":
                args.sessions = compiled[0].get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")
        request = compiled[0].create_infer_request()
        outputs = [(next(iter(o.get_names())), o.get_names(), k) for k, o in enumerate(compiled[0].outputs)]

        def run() -> dict[str, np.ndarray]:
            request.infer(feed, share_inputs=True)
            return {
                name: request.get_output_tensor(k).data
                for _, names, k in outputs
                for name in names
            }

        return run

    return session


ENGINES = {"onnxruntime": onnxruntime_sessions, "openvino": openvino_sessions}


def latencies(run: Run, seconds: float) -> list[float]:
    """The times of single calls, one after the other."""
    out: list[float] = []
    until = time.perf_counter() + seconds
    while len(out) < 3 or time.perf_counter() < until:
        began = time.perf_counter()
        run()
        out.append(time.perf_counter() - began)
    return out


def throughput(runs: list[Run], seconds: float) -> float:
    """Calls a second of all sessions at once, each on a thread."""
    counts = [0] * len(runs)
    gate = threading.Barrier(len(runs) + 1)
    stop = threading.Event()

    def work(k: int) -> None:
        gate.wait()
        while not stop.is_set():
            runs[k]()
            counts[k] += 1

    threads = [threading.Thread(target=work, args=(k,), daemon=True) for k in range(len(runs))]
    for thread in threads:
        thread.start()
    gate.wait()
    began = time.perf_counter()
    time.sleep(seconds)
    # At least some calls of each, however slow the model is.
    while min(counts) < 3:
        time.sleep(0.01)
    done, took = sum(counts), time.perf_counter() - began
    stop.set()
    for thread in threads:
        thread.join()
    return done / took


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Loads, checks and times the configuration."""
    case = cases.read(args.case)
    feed = {t.name: t.data for t in case.inputs}
    session = ENGINES[args.engine](args, feed)
    idle = resident_bytes()
    began = time.perf_counter()
    runs = [session()]
    runs[0]()
    load_s = time.perf_counter() - began
    while len(runs) < args.sessions:
        runs.append(session())
    for _ in range(2):
        for run in runs:
            run()
    grown = resident_bytes() - idle
    times = latencies(runs[0], args.seconds) if len(runs) == 1 else []
    rate = throughput(runs, args.seconds) if len(runs) > 1 else len(times) / sum(times)
    return {
        "latency_us": 1e6 * median(times) if times else None,
        "throughput_per_s": rate,
        "growth_bytes": grown,
        "load_s": load_s,
        # Of a call like those that were timed, after them.
        "differs": cases.differs(case, runs[-1]()),
    }


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("engine", choices=sorted(ENGINES))
    parser.add_argument("model")
    parser.add_argument("case", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--sessions", type=int, default=1)
    parser.add_argument("--hint", choices=["latency", "throughput"])
    parser.add_argument("--no-int8", action="store_true")
    parser.add_argument("--seconds", type=float, default=0.5)
    print(json.dumps(measure(parser.parse_args())))


if __name__ == "__main__":
    main()
