"""The systems that are compared, and the configurations in which each is run.

Every round of a configuration is a process of its own, so that load time and memory are measured anew
and no system finds what another left behind.
"""

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# A round that takes longer than this is given up, in seconds.
LONGEST = 300
# What is bound to a constant, so that Brigade can cut these models; the peers are fed it.
BIND = {"silero-vad": "sr=16000", "silero-vad-ifless": "sr=16000"}


@dataclass(frozen=True)
class Config:
    """A way to run a system."""

    system: str
    name: str
    # What of its figures counts: `latency-1t`, `latency-2t`, `throughput`.
    measures: tuple[str, ...]
    flags: tuple[str, ...] = ()


CONFIGS = [
    Config("onnxruntime", "1 thread", ("latency-1t",), ("--threads=1",)),
    Config("onnxruntime", "1 session × 2 threads", ("latency-2t", "throughput"), ("--threads=2",)),
    Config("onnxruntime", "2 sessions × 1 thread", ("throughput",), ("--threads=1", "--sessions=2")),
    Config("openvino", "1 thread", ("latency-1t",), ("--threads=1",)),
    Config("openvino", "2 threads", ("latency-2t",), ("--threads=2",)),
    Config("openvino", "latency hint", ("throughput",), ("--hint=latency",)),
    Config("openvino", "throughput hint", ("throughput",), ("--hint=throughput",)),
    Config("brigade", "1 thread", ("latency-1t",), ("--threads=1", "--in-flight=1")),
    Config("brigade", "2 threads", ("latency-2t",), ("--threads=2", "--in-flight=1")),
    Config("brigade", "2 replicas × 1 thread", ("throughput",), ("--threads=1", "--replicas=0=2")),
    Config("brigade", "2 stages × 1 thread", ("throughput",), ("--threads=1", "--stages=2")),
    Config("brigade", "1 segment × 2 threads", ("throughput",), ("--threads=2",)),
]


@dataclass
class Subject:
    """A model with a case, as it is timed."""

    model: str
    file: Path
    case: Path
    batch: int
    int8: bool = False
    # Whether arithmetic in int8 is switched off.
    no_int8: bool = False
    # Arithmetic operations of an item, in 10^9, by Brigade's cost model.
    gflop: float | None = None
    rounds: dict[tuple[str, str], list[dict[str, Any]]] = field(default_factory=dict)

    def title(self) -> str:
        """How it is called in tables."""
        off = ", int8 off" if self.no_int8 else ""
        return f"{self.model} ({self.case.name}, batch {self.batch}{off})"


def run_round(config: Config, subject: Subject, brigade: Path) -> dict[str, Any]:
    """One round: the figures, or `error`."""
    own = config.system == "brigade"
    command = brigade_command(config, subject, brigade) if own else peer_command(config, subject)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"more than {LONGEST} s"}
    # Exit code 3: the outputs are not what the case expects; the figures are there all the same.
    if done.returncode not in ((0, 3) if own else (0,)):
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return {"error": lines[-1][:200]}
    document = json.loads(done.stdout)
    return brigade_figures(document) if own else document


def peer_command(config: Config, subject: Subject) -> list[str]:
    """The command that times a peer."""
    worker = Path(__file__).with_name("worker.py")
    off = ["--no-int8"] if subject.no_int8 else []
    return [sys.executable, str(worker), config.system, str(subject.file), str(subject.case), *config.flags, *off]


def brigade_command(config: Config, subject: Subject, brigade: Path) -> list[str]:
    """The command that times Brigade."""
    bind = [f"--bind={BIND[subject.model]}"] if subject.model in BIND else []
    off = ["--disable-pass=qdq"] if subject.no_int8 else []
    return [
        *(str(brigade), "bench", str(subject.file), f"--case={subject.case}", *config.flags, *bind, *off),
        *("--rounds=1", "--replicas-of-whole=0", "--json", "--quiet"),
    ]


def brigade_figures(document: dict[str, Any]) -> dict[str, Any]:
    """The figures of a peer's worker, from the document of `brigade bench`."""
    failed = [c for c in document["cases"] if c["status"] != "passed"]
    growth = document["memory"]["growth_bytes"]
    items = document["memory"]["items_bytes"]
    return {
        # One call after the other, by the executor that has no actors, as a peer is called.
        "latency_us": 1e6 / document["sequential_per_s"],
        "throughput_per_s": document["throughput_per_s"],
        "growth_bytes": None if growth is None else max(growth - items, 0),
        "load_s": document["load"]["total_s"],
        "differs": failed[0].get("message") or "it differs" if failed else None,
    }


def gflop_of_an_item(subject: Subject, brigade: Path) -> float | None:
    """Arithmetic operations of an item by the cost model, in 10^9."""
    case = json.loads((subject.case / "case.json").read_text())
    bound = BIND.get(subject.model, "=").split("=")[0]
    inputs = [f"--input={t['name']}={subject.case / t['file']}" for t in case["inputs"] if t["name"] != bound]
    bind = [f"--bind={BIND[subject.model]}"] if subject.model in BIND else []
    command = [str(brigade), "run", str(subject.file), *inputs, *bind, "--sequential", "--profile", "--json", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST, check=False)
    if done.returncode != 0:
        return None
    profile = json.loads(done.stdout)["profile"]
    return sum(n["gflops"] * n["seconds"] for n in profile["nodes"])


def peak_gflops(brigade: Path) -> float:
    """The multiply-add peak of one thread, measured now."""
    command = [str(brigade), "devices", "--measure", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST, check=True)
    return json.loads(done.stdout)["measured"]["gflops"]
