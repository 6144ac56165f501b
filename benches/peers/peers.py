#!/usr/bin/env python3
"""Times Brigade beside ONNX Runtime and OpenVINO on the models of tests/models and a perceptron.

    cargo build --release && scripts/fetch-models
    python3 -m venv .venv && .venv/bin/pip install -r benches/peers/requirements.txt
    .venv/bin/python benches/peers/peers.py --out peers.json

In each round the configurations take turns, each in a process of its own; a cell is the median over the
rounds, with half of the distance between the quartiles. `!` marks outputs that are not what the case
expects, `†` more than any f32 arithmetic on these cores could reach: neither is a bar for Brigade.
"""

import argparse
import dataclasses
import json
import os
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

import cases
import mlp
import table
from systems import CONFIGS, Config, Subject, gflop_of_an_item, peak_gflops, run_round

ROOT = Path(__file__).resolve().parents[2]
BATCHES = [1, 8, 32]
MLP = "mlp"


def models_folder() -> Path:
    """Where scripts/fetch-models puts the models."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("BRIGADE_MODELS") or base / "brigade" / "models")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", metavar="ID", help=f"only these; `{MLP}` is the perceptron")
    parser.add_argument("--peer", choices=["onnxruntime", "openvino"], help="beside this peer only")
    parser.add_argument("--rounds", type=int, default=7, help="rounds of each cell (7)")
    parser.add_argument("--batches", type=int, nargs="*", default=BATCHES, metavar="N",
                        help="batch sizes besides the case's own, where the batch is not fixed (1 8 32)")
    parser.add_argument("--quick", action="store_true",
                        help="latency at one thread only, 3 rounds, the cases as they are")
    parser.add_argument("--brigade", type=Path, default=ROOT / "target/release/brigade", metavar="FILE")
    parser.add_argument("--cache", type=Path, default=models_folder(), metavar="DIR",
                        help="where the models are (as scripts/fetch-models)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write all rounds and the tables, as JSON")
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.batches = 3, []
    if not args.brigade.is_file():
        parser.error(f"{args.brigade} is not there: `cargo build --release` makes it, or name another by --brigade")
    if args.rounds < 1:
        parser.error("--rounds must be at least 1")
    return args


def configs(args: argparse.Namespace) -> list[Config]:
    """The configurations that are asked for."""
    chosen = [c for c in CONFIGS if args.peer in (None, c.system) or c.system == "brigade"]
    return [c for c in chosen if "latency-1t" in c.measures] if args.quick else chosen


def subjects_of(model: str, file: Path, case: cases.Case, args: argparse.Namespace, folder: Path) -> list[Subject]:
    """A model with its case, and with further batch sizes where those are not fixed."""
    own = case.batch()
    out = [Subject(model, file, case.write(folder / model), own)]
    if model not in cases.FIXED_BATCH and model != MLP:
        others = [n for n in args.batches if n != own]
        out += [Subject(model, file, case.with_batch(n).write(folder / model), n) for n in others]
    return out


def collect(args: argparse.Namespace, folder: Path) -> list[Subject]:
    """All that is to be timed; models with weights in int8 come once more with int8 arithmetic off."""
    manifest = json.loads((ROOT / "tests/models/manifest.json").read_text())
    index = {e["id"]: e for e in json.loads((args.cache / "index.json").read_text())}
    known = [e["id"] for e in manifest["models"] if e["kind"] == "onnx"] + [MLP]
    unknown = [m for m in args.models or [] if m not in known]
    if unknown:
        sys.exit(f"no model {', '.join(unknown)}; there are {', '.join(known)}")
    out: list[Subject] = []
    for model in [m for m in known if not args.models or m in args.models]:
        if model == MLP:
            file, case = mlp.write(folder)
            out += subjects_of(model, file, case, args, folder)
            continue
        entry = index[model]
        file = args.cache / model / entry["file"]
        case = cases.read(args.cache / model / "cases" / entry["cases"][0])
        found = subjects_of(model, file, case, args, folder)
        if any("int8" in trait for trait in entry["traits"]):
            found = [dataclasses.replace(s, int8=True) for s in found]
            found += [dataclasses.replace(s, no_int8=True, rounds={}) for s in found]
        out += found
    return out


def time_all(subjects: list[Subject], args: argparse.Namespace) -> None:
    """Runs all rounds; the configurations take turns, and who begins changes from round to round."""
    ways = configs(args)
    for number, subject in enumerate(subjects, 1):
        print(f"[{number}/{len(subjects)}] {subject.title()}", file=sys.stderr, flush=True)
        if not subject.int8 or subject.no_int8:
            subject.gflop = gflop_of_an_item(subject, args.brigade)
        for k in range(args.rounds):
            first = k % len(ways)
            for config in ways[first:] + ways[:first]:
                key = (config.system, config.name)
                rounds = subject.rounds.setdefault(key, [])
                # What failed once fails again.
                if any("error" in r for r in rounds):
                    continue
                figures = run_round(config, subject, args.brigade)
                rounds.append(figures)
                for word in ("error", "differs"):
                    if figures.get(word) and k == 0:
                        print(f"  {config.system}, {config.name}: {figures[word]}", file=sys.stderr)


def versions() -> dict[str, str]:
    """What was compared, on what."""
    from importlib.metadata import version

    names = ["onnxruntime", "openvino", "numpy"]
    return {n: version(n) for n in names} | {"machine": platform.platform(), "cores": str(os.cpu_count())}


def report(subjects: list[Subject], args: argparse.Namespace, peak: float) -> tuple[str, dict[str, Any]]:
    """The tables as text, and what they hold."""
    made = {"latency_1_thread": table.latency(subjects, 1, peak)}
    if not args.quick:
        made["latency_2_threads"] = table.latency(subjects, 2, peak)
        made["throughput"] = table.throughput(subjects, peak)
    made["footprint"] = table.footprint(subjects)
    text = f"{args.rounds} rounds; multiply-add peak of one thread {peak:.1f} GFLOP/s\n\n"
    text += "\n".join(t for t, _ in made.values())
    return text, {name: found for name, (_, found) in made.items()}


def main() -> None:
    """The program."""
    args = arguments()
    peak = peak_gflops(args.brigade)
    with tempfile.TemporaryDirectory(prefix="brigade-peers-") as folder:
        subjects = collect(args, Path(folder))
        time_all(subjects, args)
        text, summary = report(subjects, args, peak)
        print(text)
        if args.out:
            rounds = [
                {"subject": s.title(), "gflop": s.gflop, "system": system, "configuration": name, "rounds": r}
                for s in subjects
                for (system, name), r in s.rounds.items()
            ]
            document = {"versions": versions(), "peak_gflops": peak, "summary": summary}
            document |= {"rounds": rounds, "table": text}
            args.out.write_text(json.dumps(document, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
