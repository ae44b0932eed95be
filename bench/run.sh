#!/usr/bin/env bash
# Builds and runs the benchmarks of this machine: gdp bench, and where there are a GPU, PyTorch and FLA
# the comparison with FLA on the same GPU.
#
#     bench/run.sh [NAME ...]     workloads; all
set -euo pipefail
cd "$(dirname "$0")/.."

./build.sh build
build/gdp info
echo
build/gdp bench "$@"

python=${PYTHON:-python3}
if ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
    echo "not compared with FLA: $python finds no PyTorch with a GPU"
elif ! "$python" -c 'import fla.ops.gated_delta_product' 2>/dev/null; then
    echo "not compared with FLA: $python cannot import it (pip install fla-core flash-linear-attention)"
else
    "$python" bench/peer_fla.py "$@"
fi
