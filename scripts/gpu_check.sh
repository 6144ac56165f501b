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
# Those that fit into the room, a CNN, transformers, recurrent and quantised ones among them.
models=(ppocr-cls ppocr-det minilm-int8 silero-vad smart-turn basic-pitch magika)

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
    "${CARGO_TARGET_DIR:-target}/release/brigade" kernels "$to/models/$model/"*.onnx --gpu "$gpu" --output "$to/kernels" --device cuda:0 \
      --fallback cpu:0 $(input_of "$to/models" "$model") --quiet || echo "no kernels ahead for $model"
  done
  local bytes
  bytes=$(du -sb "$to" | cut -f1)
  echo "$to: $((bytes / 1000000)) MB"
  [ "$bytes" -le 60000000 ] || { echo "more than 60 MB" >&2; exit 1; }
}

# What a model is fed where items are made up: its shapes.
input_of() {
  case $2 in
    ppocr-cls) echo --generate 1 --shape x=1,3,48,192 ;;
    ppocr-det) echo --generate 1 --shape x=1,3,480,640 ;;
    minilm-int8) echo --generate 1 --shape input_ids=4,128 --shape attention_mask=4,128 --shape token_type_ids=4,128 ;;
    *) echo --generate 1 ;;
  esac
}

if [ "${1-}" = --pack ]; then
  pack "${2:?--pack needs a folder}" "${@:3}"
  exit
fi
[ $# = 0 ] || { sed -n '2,13s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 2; }

cd "$here" || exit 1
ends=$(($(date +%s) + ${BRIGADE_CHECK_SECONDS:-460}))
rows=() failed=0 work=$(mktemp -d)
log=$work/log
trap 'rm -rf "$work"' EXIT
for program in *.gz; do
  gunzip -c "$program" >"$work/${program%.gz}" && chmod +x "$work/${program%.gz}" || exit 1
done
cases=$work/cases-12

row() { # what, passed|FAILED|left out|told, figure
  [ "$2" = FAILED ] && failed=1
  rows+=("$(printf '%-34s %-9s %s' "$1" "$2" "$3")")
  printf '%s\n' "${rows[-1]}" >&2
}

# Runs a command within the time that is left, and at most so many seconds; its words go to $log.
within() {
  local most=$1 left=$((ends - $(date +%s)))
  shift
  [ "$left" -gt 3 ] || return 124
  timeout $((left < most ? left : most)) "$@" >"$log" 2>&1
}

why() { # of the last command
  [ "$1" = 124 ] && echo "no time left" || grep -v '^ *$' "$log" | tail -1 | cut -c1-150
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
version=${version:-12}
[ -x "$work/brigade-$version" ] || version=12
brigade=$work/brigade-$version
row "program" told "for CUDA $version"

# Kernels that were compiled ahead, copied so that what is compiled here goes beside them.
export BRIGADE_CUDA_CACHE=${BRIGADE_CUDA_CACHE:-$work/kernels}
mkdir -p "$BRIGADE_CUDA_CACHE"
cp -r kernels/. "$BRIGADE_CUDA_CACHE/" 2>/dev/null

within 60 "$brigade" devices
if ! grep -q '^cuda:0 .*sm_' "$log"; then
  row "device cuda:0" FAILED "$(grep '^cuda:0' "$log" | cut -c1-150)"
  exit 1
fi
row "device cuda:0" passed "$(sed -n 's/^cuda:0 *//p' "$log" | head -1)"
has_bf16=1
grep '^cuda:0' "$log" | grep -q 'no cuBLASLt' && has_bf16=0

if within 150 env BRIGADE_ON_STANDIN=1 "$cases" --exact --nocapture --test-threads 1 \
  conformance::every_operator_that_the_device_has_passes_its_cases; then
  row "operators' cases" passed "$(sed -n 's/^on cuda:0 //p' "$log")"
else
  row "operators' cases" FAILED "$(why $?)"
fi

for model in "${models[@]}"; do
  file=$(echo "models/$model/"*.onnx)
  for devices in "cuda:0 --fallback cpu:0" "cuda:0,cpu:0 --stages 2"; do
    # shellcheck disable=SC2086
    if within 60 "$brigade" check "$file" --cases "models/$model/cases" --device $devices; then
      row "$model on ${devices%% *}" passed "$(tail -1 "$log")"
    else
      row "$model on ${devices%% *}" FAILED "$(why $?)"
    fi
  done
done

for model in ppocr-cls ppocr-det minilm-int8; do
  shapes=$(input_of models $model | sed 's/--generate 1//')
  # shellcheck disable=SC2086
  if within 60 "$brigade" run models/$model/*.onnx $shapes --generate 32 --compare --device cuda:0,cpu:0 --stages 2; then
    row "$model streamed = sequential" passed "$(tail -1 "$log")"
  else
    row "$model streamed = sequential" FAILED "$(why $?)"
  fi
done

# Stages of about equal time would be best; what is asked is how near to the bound the pipeline comes.
for model in ppocr-det minilm-int8; do
  shapes=$(input_of models $model | sed 's/--generate 1//')
  # shellcheck disable=SC2086
  if within 60 "$brigade" bench models/$model/*.onnx $shapes --items 200 --rounds 3 --device cuda:0,cpu:0 --stages 2; then
    achieved=$(figure achieved)
    verdict=passed
    awk "BEGIN { exit !(${achieved:-0} < 0.9) }" && verdict=FAILED
    row "$model CPU beside GPU" $verdict "achieved / bound ${achieved:-?} (0.9 asked)"
  else
    row "$model CPU beside GPU" FAILED "$(why $?)"
  fi
done

for precision in f32 bf16; do
  if [ $precision = bf16 ] && [ $has_bf16 = 0 ]; then
    row "batch of 32 in bf16" "left out" "without cuBLASLt products are in f32 alone"
    continue
  fi
  for case in "minilm-int8 --shape input_ids=32,128 --shape attention_mask=32,128 --shape token_type_ids=32,128" \
    "ppocr-det --shape x=32,3,480,640"; do
    model=${case%% *}
    # shellcheck disable=SC2086
    if within 45 "$brigade" bench models/$model/*.onnx ${case#* } --items 60 --rounds 3 --device cuda:0 \
      --fallback cpu:0 --precision cuda:0=$precision; then
      row "$model, batch of 32, $precision" told "$(figure throughput) batches/s"
    else
      row "$model, batch of 32, $precision" FAILED "$(why $?)"
    fi
  done
done

for precision in f32 tf32 bf16; do
  if within 60 env BRIGADE_ON_STANDIN=1 BRIGADE_GEMM_PRECISION=$precision "$cases" --exact --nocapture --ignored \
    products::gemm_4096; then
    row "16 products of 4096^3, $precision" told "$(sed -n 's/^gemm //p' "$log")"
  else
    row "16 products of 4096^3, $precision" FAILED "$(why $?)"
  fi
done
if python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
  within 60 python3 - <<'P'
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
  row "PyTorch's product of 4096^3" told "$(tail -1 "$log")"
else
  row "PyTorch's product of 4096^3" "left out" "no PyTorch with CUDA here"
fi

printf '\n'
printf '%s\n' "${rows[@]}"
exit $failed
