"""The cases that are timed: the first case of each model, and batches made of its rows.

A case folder holds a `case.json` and a `.npy` file for each tensor (tests/models/README.md). Of a case
that carries state from step to step one step is taken, with the state that the reference had there.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

# The axis of the batch where it is not the first; a scalar has none.
BATCH_AXIS = {"state": 1, "stateN": 1}
# Models whose batch is fixed by their graph.
FIXED_BATCH = {"doc-layout"}
# The step that is taken of a case with steps: in the middle of the speech.
STEP = 27


@dataclass
class Named:
    """A tensor of a case; outputs also have what they are compared by."""

    name: str
    data: np.ndarray
    rtol: float = 0.0
    atol: float = 0.0


@dataclass
class Case:
    """Inputs that are fed once, and the outputs that are expected."""

    name: str
    inputs: list[Named]
    outputs: list[Named]

    def batch(self) -> int:
        """How many rows the batch has."""
        tensor = next(t for t in self.inputs if t.data.ndim > 0)
        return tensor.data.shape[BATCH_AXIS.get(tensor.name, 0)]

    def with_batch(self, rows: int) -> "Case":
        """A batch of so many rows, taken from this one in turn."""

        def cycle(t: Named) -> Named:
            if t.data.ndim == 0:
                return t
            axis = BATCH_AXIS.get(t.name, 0)
            index = np.arange(rows) % t.data.shape[axis]
            return Named(t.name, np.take(t.data, index, axis=axis), t.rtol, t.atol)

        name = f"{self.name}-batch{rows}"
        return Case(name, [cycle(t) for t in self.inputs], [cycle(t) for t in self.outputs])

    def write(self, folder: Path) -> Path:
        """Writes the case folder; gives its path."""
        target = folder / self.name
        target.mkdir(parents=True, exist_ok=True)
        document = {
            "case": self.name,
            "kind": "call",
            "inputs": [self._save(target, "input", k, t) for k, t in enumerate(self.inputs)],
            "outputs": [
                {**self._save(target, "output", k, t), "rtol": t.rtol, "atol": t.atol}
                for k, t in enumerate(self.outputs)
            ],
        }
        (target / "case.json").write_text(json.dumps(document))
        return target

    @staticmethod
    def _save(folder: Path, kind: str, k: int, tensor: Named) -> dict[str, Any]:
        file = f"{kind}.{k}.npy"
        np.save(folder / file, tensor.data)
        return {
            "name": tensor.name,
            "file": file,
            "dtype": str(tensor.data.dtype),
            "shape": list(tensor.data.shape),
        }


def read(folder: Path) -> Case:
    """Reads a case folder; of a case with steps, one step."""
    document = json.loads((folder / "case.json").read_text())

    def load(tensor: dict[str, Any]) -> np.ndarray:
        return np.load(folder / tensor["file"], allow_pickle=False)

    outputs = [
        Named(t["name"], load(t), t.get("rtol", 0.0), t.get("atol", 0.0))
        for t in document["outputs"]
    ]
    inputs = [Named(t["name"], load(t)) for t in document["inputs"]]
    if document["kind"] == "call":
        return Case(document["case"], inputs, outputs)
    by_name = {t.name: t.data for t in outputs}
    # By the name of the input the output that it takes over.
    state: dict[str, str] = document["state"]
    roles = {t["name"]: t.get("role") for t in document["inputs"]}
    for tensor in inputs:
        if roles[tensor.name] == "step":
            tensor.data = tensor.data[STEP]
        elif tensor.name in state:
            tensor.data = by_name[state[tensor.name]][STEP - 1]
    for tensor in outputs:
        tensor.data = tensor.data[STEP]
    return Case(f"{document['case']}-step{STEP}", inputs, outputs)


def differs(case: Case, outputs: dict[str, np.ndarray]) -> str | None:
    """Why the outputs are not what the case expects, if so."""
    for want in case.outputs:
        got = outputs.get(want.name)
        if got is None or got.shape != want.data.shape:
            return f"{want.name}: {'missing' if got is None else got.shape}"
        off = np.abs(got.astype(np.float64) - want.data) - want.rtol * np.abs(want.data)
        if not np.all(off <= want.atol):
            return f"{want.name}: off by {np.nanmax(off):.3g}, {want.atol:.3g} allowed"
    return None
