#!/bin/sh
# The first hour on a GPU: parity, determinism, speed, memory, and TRL beside Temper, on one page.
#
#     benchmarks/gpu.sh                                    an 1B Llama with random weights
#     benchmarks/gpu.sh --model 8b --trl OTHER_PYTHON      beside TRL, which OTHER_PYTHON can import
#     benchmarks/gpu.sh --model tiny                       does it work? also without a GPU, a minute
#
# PYTHON names Temper's interpreter. The page is gpu.md, or what --page says.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
PYTHONPATH=$root exec "${PYTHON:-python}" "$root/benchmarks/gpu_page.py" "$@"
