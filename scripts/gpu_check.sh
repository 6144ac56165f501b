#!/usr/bin/env bash
# What Brigade does on a host with an NVIDIA GPU, in one table.
#
#   scripts/gpu_check.sh --pack DIR    on a machine with Rust: builds the programs, and copies them, models
#                                      and kernels that are compiled ahead into DIR (60 MB at most)
#   DIR/gpu_check.sh                   on the host: neither Rust nor a network is needed; 8 minutes at most
#
# Packing takes the models from $BRIGADE_MODELS (scripts/fetch-models brings them), builds for CUDA 12 and,
# with --cuda-13, for CUDA 13, and compiles kernels for --gpu (sm_90 unless said) where libnvrtc is found.
# The host runs the program whose libraries it has. Exit code 1: a row failed.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# Those that fit into the room: two CNNs, a quantised transformer, a recurrent one, audio.
models=(ppocr-cls ppocr-det minilm-int8 silero-vad basic-pitch)

# A program without its symbols, compressed.
packed() {
  strip -o "$2.raw" "$1" && gzip -9c "$2.raw" >"$2" && rm "$2.raw"
}

pack() {
  local to=$1 versions=(12) gpu=sm_90 nvrtc=''
  shift
  while [ $# -gt 0 ]; do
    case $1 in
      --cuda-13) versions=(13 12) ;;
      --gpu) gpu=${2:?--gpu needs a compute capability}; shift ;;
      *) echo "unknown argument $1" >&2; exit 2 ;;
    esac
    shift
  done
  local from=${BRIGADE_MODELS:-${XDG_CACHE_HOME:-$HOME/.cache}/brigade/models}
  cd "$here/.." && mkdir -p "$to/models" || exit 1
  work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT || exit 1
  to=$(cd "$to" && pwd)
  cp scripts/gpu_check.sh "$to/" || exit 1
  for model in "${models[@]}"; do
    [ -d "$from/$model" ] || { echo "no model $model in $from; scripts/fetch-models brings it" >&2; exit 1; }
    cp -rL "$from/$model" "$to/models/" || exit 1
  done
  for version in "${versions[@]}"; do
    cargo build --release --features "cuda-$version" --bin brigade || exit 1
    local target=${CARGO_TARGET_DIR:-target}
    packed "$target/release/brigade" "$to/brigade-$version.gz" || exit 1
  done
  # The operators' cases, which are a test of the build for CUDA 12.
  local test
  test=$(cargo test --release --no-run --features cuda-12 --test cuda --message-format=json 2>/dev/null |
    grep '"name":"cuda"' | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -1)
  [ -n "$test" ] && packed "$test" "$to/cases-12.gz" || { echo "the tests do not build" >&2; exit 1; }
  # Kernels for hosts that have no compiler of CUDA's.
  for nvrtc in "${XDG_CACHE_HOME:-$HOME/.cache}"/brigade/cuda/lib/python3*/site-packages/nvidia/cuda_nvrtc/lib; do
    [ -d "$nvrtc" ] && export LD_LIBRARY_PATH=$nvrtc${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  done
  for model in "${models[@]}"; do
    for devices in "cuda:0 --fallback cpu:0" "cuda:0,cpu:0 --stages 2"; do
      [ "$model $devices" = "silero-vad cuda:0,cpu:0 --stages 2" ] && continue
      # shellcheck disable=SC2046,SC2086
      "${CARGO_TARGET_DIR:-target}/release/brigade" kernels "$to/models/$model/"*.onnx --gpu "$gpu" \
        --output "$to/kernels" --device $devices --generate 1 $(fed "$model") --quiet ||
        echo "no kernels ahead for $model on ${devices%% *}"
    done
  done
  # What the host's C library has to be.
  objdump -T "${CARGO_TARGET_DIR:-target}/release/brigade" 2>/dev/null | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -1 >"$to/needs"
  local bytes
  bytes=$(du -sb "$to" | cut -f1)
  echo "$to: $((bytes / 1000000)) MB"
  [ "$bytes" -le 60000000 ] || { echo "more than 60 MB" >&2; exit 1; }
}

# A .npy file of whole numbers that are 0, of ROWS by 128.
zeros() { # FILE ROWS
  local header="{'descr': '<i8', 'fortran_order': False, 'shape': ($2, 128), }"
  # The first 10 bytes and the header make a multiple of 64.
  { printf '\x93NUMPY\x01\x00\x76\x00'; printf '%-117s\n' "$header"; head -c $(($2 * 1024)) /dev/zero; } >"$1"
}

# How a model is fed where items are made up: shapes, and what no item may have otherwise.
fed() { # MODEL [ROWS]
  local rows=${2:-}
  case $1 in
    ppocr-cls) echo "--shape x=${rows:-1},3,48,192" ;;
    ppocr-det) echo "--shape x=${rows:-1},3,480,640" ;;
    minilm-int8)
      rows=${rows:-4}
      zeros "$work/zeros-$rows.npy" "$rows"
      echo "--shape input_ids=$rows,128 --shape attention_mask=$rows,128 --bind token_type_ids=$work/zeros-$rows.npy"
      ;;
    silero-vad) echo "--shape input=1,512 --shape state=2,1,128 --bind sr=16000" ;;
    basic-pitch) echo "--shape serving_default_input_2:0=1,43844,1" ;;
  esac
}

if [ "${1-}" = --pack ]; then
  pack "${2:?--pack needs a folder}" "${@:3}"
  exit
fi
[ $# = 0 ] || { sed -n '2,13s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 2; }

cd "$here" || exit 1
ends=$(($(date +%s) + ${BRIGADE_CHECK_SECONDS:-460}))
rows=() failed=0
work=$(mktemp -d) || exit 1
: >"$work/probe" && chmod +x "$work/probe" && "$work/probe" 2>/dev/null || {
  rm -rf "$work"
  work=$(mktemp -d "$here/work.XXXXXX") || exit 1
}
log=$work/log words=${BRIGADE_CHECK_LOG:-$here/gpu_check.log}
: >"$words" 2>/dev/null || words=$work/words
finish() {
  printf '\n'
  printf '%s\n' "${rows[@]}"
  [ $failed = 0 ] || echo "what failed said: $words"
  rm -rf "$work"
}
trap finish EXIT
for program in *.gz; do
  gunzip -c "$program" >"$work/${program%.gz}" && chmod +x "$work/${program%.gz}" || exit 1
done
cases=$work/cases-12

row() { # what, passed|FAILED|left out|told, figure
  [ "$2" = FAILED ] && failed=1 && { echo "== $1"; tail -60 "$log"; } >>"$words" 2>/dev/null
  rows+=("$(printf '%-34s %-9s %s' "$1" "$2" "$3")")
  printf '%s\n' "${rows[-1]}" >&2
}

# Runs a command within the time that is left, and at most so many seconds; its words go to $log.
within() {
  local most=$1 left=$((ends - $(date +%s)))
  shift
  # Nothing was started: that is no failure of what it would have shown.
  [ "$left" -gt 3 ] || return 125
  timeout -k 5 $((left < most ? left : most)) "$@" >"$log" 2>&1
}

# A row for the last command that was no success, by its exit code.
unsuccessful() { # what, exit code
  case $2 in
    125) row "$1" "left out" "no time left" ;;
    124 | 137) row "$1" FAILED "it took too long" ;;
    *) row "$1" FAILED "$(grep -E 'panicked|failed|error:|differ' "$log" | grep -v 'test result' | head -1 | cut -c1-150) (exit code $2)" ;;
  esac
}

figure() { # the number behind a word in $log
  sed -n "s/^$1 *\\([0-9.]*\\).*/\\1/p" "$log" | head -1
}

# Libraries of CUDA: where the linker looks, toolkits, Python's packages.
for folder in /usr/local/cuda*/lib64 /usr/local/cuda*/targets/*/lib \
  $(python3 -c 'import sys; print(*sys.path)' 2>/dev/null | tr ' ' '\n' | sed 's|$|/nvidia/*/lib|'); do
  [ -d "$folder" ] && LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder
done
export LD_LIBRARY_PATH
row "C library" told "here $(ldd --version 2>/dev/null | head -1 | grep -o '[0-9.]*$'), needed $(cat needs 2>/dev/null)"
find_library() {
  { ldconfig -p 2>/dev/null | sed -n 's/.*=> //p'; echo "${LD_LIBRARY_PATH-}" | tr : '\n' | sed 's|$|/*|' |
    while read -r glob; do ls -d $glob 2>/dev/null; done; } | grep -m1 "/$1\$"
}
version=''
for library in libcuda.so.1 libnvrtc.so.12 libnvrtc.so.13 libcublasLt.so.12 libcublasLt.so.13; do
  at=$(find_library "$library")
  row "library $library" told "${at:-not found}"
  [ -n "$at" ] && case $library in *.so.12 | *.so.13) [ -z "$version" ] && version=${library##*.} ;; esac
done
# A driver runs programs for its own version of CUDA and those before it.
of_driver=$(nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: *\([0-9]*\).*/\1/p' | head -1)
[ -n "$of_driver" ] && [ "${version:-0}" -gt "$of_driver" ] && version=$of_driver
version=${version:-12}
[ -x "$work/brigade-$version" ] || version=12
brigade=$work/brigade-$version
row "program" told "for CUDA $version"
# The libraries of that version, where there are others beside them.
mkdir "$work/libraries"
for library in libnvrtc libcublasLt; do
  at=$(find_library "$library.so.$version")
  [ -n "$(find_library "$library.so.$((25 - version))")" ] && [ -n "$at" ] && ln -s "$at" "$work/libraries/$library.so"
done
export LD_LIBRARY_PATH=$work/libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

# Kernels that were compiled ahead, copied so that what is compiled here goes beside them.
export BRIGADE_CUDA_CACHE=${BRIGADE_CUDA_CACHE:-$work/kernels}
mkdir -p "$BRIGADE_CUDA_CACHE"
cp -r kernels/. "$BRIGADE_CUDA_CACHE/" 2>/dev/null

within 60 "$brigade" devices
if ! grep -q '^cuda:0 .*sm_' "$log"; then
  row "device cuda:0" FAILED "$({ grep '^cuda:0' "$log" || tail -1 "$log"; } | cut -c1-150)"
  exit 1
fi
row "device cuda:0" passed "$(sed -n 's/^cuda:0 *//p' "$log" | head -1)"
device=$(grep '^cuda:0' "$log")
capability=$(sed -n 's/.* sm_\([0-9]*\) .*/\1/p' <<<"$device")
precisions=f32
[[ $device != *'no cuBLASLt'* ]] && [ "${capability:-0}" -ge 80 ] && precisions='f32 tf32 bf16'

if [[ $device == *'no NVRTC'* ]]; then
  row "operators' cases" "left out" "no NVRTC here compiles their kernels"
elif within 150 env BRIGADE_ON_STANDIN=1 "$cases" --exact --nocapture --test-threads 1 \
  conformance::every_operator_that_the_device_has_passes_its_cases && grep -q '1 passed' "$log"; then
  row "operators' cases" passed "$(sed -n 's/.*on cuda:0 \([0-9].*\)/\1/p' "$log")"
else
  unsuccessful "operators' cases" $?
fi

for model in "${models[@]}"; do
  file=$(echo "models/$model/"*.onnx)
  for devices in "cuda:0 --fallback cpu:0" "cuda:0,cpu:0 --stages 2"; do
    # Its If runs on no GPU, so that it cannot be cut anywhere.
    [ "$model $devices" = "silero-vad cuda:0,cpu:0 --stages 2" ] && continue
    # shellcheck disable=SC2086
    if within 60 "$brigade" check "$file" --cases "models/$model/cases" --device $devices; then
      row "$model on ${devices%% *}" passed "$(tail -1 "$log")"
    else
      unsuccessful "$model on ${devices%% *}" $?
    fi
  done
done

for model in ppocr-cls ppocr-det minilm-int8; do
  shapes=$(fed $model)
  # shellcheck disable=SC2086
  if within 60 "$brigade" run models/$model/*.onnx $shapes --generate 32 --compare --device cuda:0,cpu:0 --stages 2; then
    row "$model streamed = sequential" passed "$(tail -1 "$log")"
  else
    unsuccessful "$model streamed = sequential" $?
  fi
done

# Stages of about equal time would be best; what is asked is how near to the bound the pipeline comes.
for model in ppocr-det minilm-int8; do
  shapes=$(fed $model)
  # shellcheck disable=SC2086
  if within 60 "$brigade" bench models/$model/*.onnx $shapes --items 100 --rounds 1 \
    --replicas-of-whole 0 --device cuda:0,cpu:0 --stages 2; then
    achieved=$(figure achieved)
    verdict=passed
    awk "BEGIN { exit !(${achieved:-0} < 0.9) }" && verdict=FAILED
    row "$model CPU beside GPU" $verdict "achieved / bound ${achieved:-?} (0.9 asked)"
  else
    unsuccessful "$model CPU beside GPU" $?
  fi
done

for precision in f32 bf16; do
  if [[ $precisions != *$precision* ]]; then
    row "batch of 32 in $precision" "left out" "this GPU, or cuBLASLt's absence, leaves f32 alone"
    continue
  fi
  for model in minilm-int8 ppocr-det; do
    # shellcheck disable=SC2046
    if within 45 "$brigade" bench models/$model/*.onnx $(fed $model 32) --items 12 --rounds 1 \
      --replicas-of-whole 0 --device cuda:0 --fallback cpu:0 --precision cuda:0=$precision; then
      row "$model, batch of 32, $precision" told "$(figure throughput) batches/s"
    else
      unsuccessful "$model, batch of 32, $precision" $?
    fi
  done
done

for precision in $precisions; do
  if within 60 env BRIGADE_ON_STANDIN=1 BRIGADE_GEMM_PRECISION=$precision "$cases" --exact --nocapture --ignored \
    products::gemm_4096 && grep -q '1 passed' "$log"; then
    row "256 products of 4096^3, $precision" told "$(sed -n 's/.*gemm: //p' "$log")"
  else
    unsuccessful "256 products of 4096^3, $precision" $?
  fi
done
if env -u LD_LIBRARY_PATH python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null &&
  within 60 env -u LD_LIBRARY_PATH python3 - <<'P'
import time, torch
for name, dtype, tf32 in (("f32", torch.float32, False), ("tf32", torch.float32, True), ("bf16", torch.bfloat16, False)):
    torch.backends.cuda.matmul.allow_tf32 = tf32
    a, b = (torch.randn(4096, 4096, device="cuda", dtype=dtype) for _ in range(2))
    for _ in range(10): a @ b
    torch.cuda.synchronize(); start = time.perf_counter()
    for _ in range(100): a @ b
    torch.cuda.synchronize()
    print(name, round(100 * 2 * 4096**3 / (time.perf_counter() - start) / 1e12, 1), "TFLOP/s", end="; ")
P
then
  row "PyTorch's product of 4096^3" told "$(tail -1 "$log")"
else
  row "PyTorch's product of 4096^3" "left out" "no PyTorch with CUDA here"
fi

exit $failed
