"""Medians, spreads, ratios, and the table of them in Markdown."""

from collections.abc import Callable, Iterable
from math import exp, log
from statistics import median, quantiles
from typing import Any

from systems import CONFIGS, Config, Subject

SYSTEMS = ["onnxruntime", "openvino", "brigade"]
NAMES = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO", "brigade": "Brigade"}
# Weights above this have a tighter limit on memory, in bytes.
LARGE = 5_000_000


class Cell:
    """The rounds of one figure of one configuration."""

    def __init__(self, values: list[float], config: Config, differs: bool) -> None:
        self.values, self.config, self.differs = values, config, differs
        self.above_peak = False

    @property
    def median(self) -> float:
        """The median over the rounds."""
        return median(self.values)

    def text(self, unit: float, digits: int) -> str:
        """The median, and half of the distance between the quartiles as a share of it."""
        spread = ""
        if len(self.values) > 1:
            low, _, high = quantiles(self.values, n=4, method="inclusive")
            spread = f" ±{50 * (high - low) / self.median:.0f} %" if self.median else ""
        marks = ("!" if self.differs else "") + ("†" if self.above_peak else "")
        return f"{self.median / unit:.{digits}f}{marks}{spread}"


def cell(subject: Subject, config: Config, figure: str) -> Cell | None:
    """The cell of a figure, unless no round has it."""
    rounds = subject.rounds.get((config.system, config.name), [])
    values = [r[figure] for r in rounds if r.get(figure) is not None]
    differs = any(r.get("differs") for r in rounds)
    return Cell(values, config, differs) if values else None


def best(subject: Subject, system: str, measure: str, figure: str, pick: Callable[..., Cell]) -> Cell | None:
    """The best configuration of a system for a measure."""
    ways = [c for c in CONFIGS if c.system == system and measure in c.measures]
    cells = [c for c in (cell(subject, w, figure) for w in ways) if c]
    return pick(cells, key=lambda c: c.median) if cells else None


def geometric_mean(ratios: Iterable[float]) -> float | None:
    """The geometric mean, if there is any ratio."""
    logs = [log(r) for r in ratios if r > 0]
    return exp(sum(logs) / len(logs)) if logs else None


def row_of(cells: dict[str, Cell | None], unit: float, digits: int) -> list[str]:
    """The cells of the three systems as text."""
    return [c.text(unit, digits) if (c := cells[s]) else "–" for s in SYSTEMS]


def markdown(head: list[str], rows: list[list[str]]) -> str:
    """A table."""
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def mark_above_peak(
    cells: dict[str, Cell | None], subject: Subject, peak: float, threads: int, rate: bool
) -> None:
    """Marks cells that no f32 arithmetic on so many threads reaches: those are no bar."""
    if not subject.gflop:
        return
    for found in cells.values():
        if found:
            reached = subject.gflop * (found.median if rate else 1e6 / found.median)
            found.above_peak = reached > threads * peak


def latency(subjects: list[Subject], threads: int, peak: float) -> tuple[str, list[dict[str, Any]]]:
    """The table of latencies, in ms."""
    rows, found = [], []
    for subject in subjects:
        cells = {s: best(subject, s, f"latency-{threads}t", "latency_us", min) for s in SYSTEMS}
        mark_above_peak(cells, subject, peak, threads, rate=False)
        ort, own = cells["onnxruntime"], cells["brigade"]
        ratio = own.median / ort.median if ort and own else None
        found.append({"subject": subject.title(), "ratio": ratio})
        rows.append([subject.title(), *row_of(cells, 1e3, 3), f"{ratio:.2f}" if ratio else "–"])
    ratios = [f["ratio"] for f in found if f["ratio"]]
    head = ["model (case)", *(f"{NAMES[s]} ms" for s in SYSTEMS), "Brigade / ONNX Runtime"]
    text = f"### Latency, {threads} thread(s)\n\n" + markdown(head, rows)
    if ratios:
        text += (
            f"\nBrigade / ONNX Runtime: geometric mean {geometric_mean(ratios):.2f}; at most 1.0 on "
            f"{sum(r <= 1 for r in ratios)} of {len(ratios)}, the worst {max(ratios):.2f}.\n"
        )
    return text, found


def throughput(subjects: list[Subject], peak: float) -> tuple[str, list[dict[str, Any]]]:
    """The table of throughputs on two cores, in items a second: the best way of each system."""
    rows, found = [], []
    for subject in subjects:
        cells = {s: best(subject, s, "throughput", "throughput_per_s", max) for s in SYSTEMS}
        mark_above_peak(cells, subject, peak, 2, rate=True)
        peers = [c for s in SYSTEMS[:2] if (c := cells[s]) and not (c.differs or c.above_peak)]
        own = cells["brigade"]
        bar = max(peers, key=lambda c: c.median, default=None)
        ratio = own.median / bar.median if own and bar else None
        ways = {s: c.config.name for s in SYSTEMS if (c := cells[s])}
        found.append({"subject": subject.title(), "ratio": ratio, "best": ways})
        words = [f"{t} ({ways[s]})" if s in ways else t for s, t in zip(SYSTEMS, row_of(cells, 1, 2), strict=True)]
        rows.append([subject.title(), *words, f"{ratio:.2f}" if ratio else "–"])
    ratios = [f["ratio"] for f in found if f["ratio"]]
    head = ["model (case)", *(f"{NAMES[s]} items/s" for s in SYSTEMS), "Brigade / best peer"]
    text = "### Throughput on two cores, the best configuration of each\n\n" + markdown(head, rows)
    if ratios:
        text += (
            f"\nBrigade / best peer: geometric mean {geometric_mean(ratios):.2f}; at least 1.0 on "
            f"{sum(r >= 1 for r in ratios)} of {len(ratios)}, the worst {min(ratios):.2f}.\n"
        )
    return text, found


def footprint(subjects: list[Subject]) -> tuple[str, list[dict[str, Any]]]:
    """The table of memory growth and load time, of the configuration with one thread."""
    rows, found = [], []
    for subject in subjects:
        grown = {s: best(subject, s, "latency-1t", "growth_bytes", min) for s in SYSTEMS}
        load = {s: best(subject, s, "latency-1t", "load_s", min) for s in SYSTEMS}

        def ratio(cells: dict[str, Cell | None]) -> float | None:
            ort, own = cells["onnxruntime"], cells["brigade"]
            return own.median / ort.median if ort and own and ort.median else None

        memory, loading = ratio(grown), ratio(load)
        large = subject.file.stat().st_size > LARGE
        found.append({"subject": subject.title(), "memory": memory, "load": loading, "large": large})
        words = [f"{r:.2f}" if r else "–" for r in (memory, loading)]
        rows.append([subject.title(), *row_of(grown, 1 << 20, 1), words[0], *row_of(load, 1e-3, 0), words[1]])
    head = ["model (case)", *(f"{NAMES[s]} MiB" for s in SYSTEMS), "Brigade / ORT"]
    head += [*(f"{NAMES[s]} load ms" for s in SYSTEMS), "Brigade / ORT"]
    return "### Growth of memory over the idle process, and load time\n\n" + markdown(head, rows), found
