#!/usr/bin/env python3
"""Times llama.cpp on the GGUF file of examples/gemma, as that example times Brigade.

    python3 -m venv venv && venv/bin/pip install xllamacpp==2026.10.11549
    venv/bin/python benches/peers/llama.py [--threads N] [--tokens N] [--streams N] [MODEL.gguf]

xllamacpp has llama.cpp in a wheel, built for several instruction sets. Prompts are the example's; with
more than one stream they are in flight at once, which llama.cpp computes as one batch. Prints the tokens
of the prompts and the generated tokens a second, the median of five rounds after one that does not count.
"""
import argparse
import json
import os
import statistics
import threading
import time
from pathlib import Path

PROMPTS = ["1, 2, 3, 4, 5, 6,", "a b c d e f g"]


def default_model():
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    models = Path(os.environ.get("BRIGADE_MODELS") or cache / "brigade" / "models")
    return models / "gemma3-gguf" / "gemma-3-270m-q4_k_m.gguf"


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("model", nargs="?", type=Path, default=default_model())
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--tokens", type=int, default=32)
    p.add_argument("--streams", type=int, default=1)
    p.add_argument("--rounds", type=int, default=5)
    a = p.parse_args()

    import xllamacpp
    params = xllamacpp.CommonParams()
    params.model.path = str(a.model)
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = a.threads
    params.n_parallel = a.streams
    params.n_ctx = 512 * a.streams
    params.verbosity = -1
    server = xllamacpp.Server(params)

    def one(prompt, out):
        # Without its token for the end, so that all generate alike.
        answer = server.handle_completions({"prompt": prompt, "max_tokens": a.tokens, "temperature": 0,
                                            "cache_prompt": False, "ignore_eos": True})
        out.append(answer if isinstance(answer, dict) else json.loads(answer))

    def once():
        answers = []
        begun = time.monotonic()
        if a.streams == 1:
            for prompt in PROMPTS:
                one(prompt, answers)
        else:
            threads = [threading.Thread(target=one, args=(PROMPTS[k % 2], answers)) for k in range(a.streams)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
        took = time.monotonic() - begun
        timings = [answer["timings"] for answer in answers]
        made = sum(t["predicted_n"] for t in timings)
        if a.streams > 1:
            return None, made / took
        prompt_ms, ms = (sum(t[k] for t in timings) for k in ("prompt_ms", "predicted_ms"))
        return sum(t["prompt_n"] for t in timings) / prompt_ms * 1e3, made / ms * 1e3

    once()
    rounds = [once() for _ in range(a.rounds)]
    read = [r for r, _ in rounds if r is not None]
    read = f"{statistics.median(read):8.1f} prompt tokens/s, " if read else ""
    print(f"llama.cpp, {a.threads} threads, {a.streams} streams: {read}"
          f"{statistics.median(m for _, m in rounds):6.2f} generated tokens/s")


if __name__ == "__main__":
    main()
