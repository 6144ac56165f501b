"""CUDA C through NVRTC and ptxas: registers per kernel, and no spills.

    python check_ptx.py KERNELS.cu

Runs in an environment with nvidia-cuda-nvrtc-cu12 and nvidia-cuda-nvcc-cu12.
"""

import ctypes
import pathlib
import re
import subprocess
import sys
import sysconfig
import tempfile
import time

ARCHITECTURE = "sm_90"


def compile_to_ptx(nvrtc, text):
    def check(code):
        if code != 0:
            raise SystemExit(f"NVRTC: error {code}")

    program = ctypes.c_void_p()
    check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, b"kernels.cu", 0, None, None))
    options = [f"--gpu-architecture={ARCHITECTURE}".encode(), b"--std=c++17", b"--fmad=false"]
    failed = nvrtc.nvrtcCompileProgram(
        program, len(options), (ctypes.c_char_p * len(options))(*options)
    )
    size = ctypes.c_size_t()
    check(nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size)))
    log = ctypes.create_string_buffer(size.value)
    check(nvrtc.nvrtcGetProgramLog(program, log))
    if failed:
        raise SystemExit(log.value.decode())
    check(nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size)))
    ptx = ctypes.create_string_buffer(size.value)
    check(nvrtc.nvrtcGetPTX(program, ptx))
    return ptx.value


def main():
    packages = pathlib.Path(sysconfig.get_paths()["purelib"]) / "nvidia"
    nvrtc = ctypes.CDLL(str(packages / "cuda_nvrtc" / "lib" / "libnvrtc.so.12"))
    text = pathlib.Path(sys.argv[1]).read_bytes()
    text.decode("ascii")
    start = time.monotonic()
    ptx = compile_to_ptx(nvrtc, text)
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "kernels.ptx"
        source.write_bytes(ptx)
        ptxas = packages / "cuda_nvcc" / "bin" / "ptxas"
        command = [ptxas, "-v", f"-arch={ARCHITECTURE}", source, "-o", source.with_suffix(".cubin")]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    entries = re.findall(r"Compiling entry function '(\w+)'", done.stderr)
    spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", done.stderr)
    registers = [int(n) for n in re.findall(r"Used (\d+) registers", done.stderr)]
    written = text.count(b"__global__")
    if not len(entries) == len(spills) == len(registers) == written:
        raise SystemExit(f"{written} kernels, but ptxas names {len(entries)}\n{done.stderr}")
    spilled = [e for e, s in zip(entries, spills) if s != ("0", "0")]
    if spilled:
        raise SystemExit(f"registers are spilled by {', '.join(spilled)}")
    seconds = time.monotonic() - start
    print(
        f"{len(entries)} kernels for {ARCHITECTURE}, at most {max(registers)} registers, "
        f"no spills ({seconds:.1f} s)"
    )


if __name__ == "__main__":
    main()
