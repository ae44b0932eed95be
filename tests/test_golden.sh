#!/usr/bin/env bash
# What the generator emits, byte for byte, for one problem class: a change of a template or of the
# engine shows in the diff of tests/golden/. --update rewrites the files.
set -euo pipefail
cd "$(dirname "$0")/.."

lua=${LUA_PROGRAM:-lua5.4}
problem="dim_k=64 dim_v=32 num_householder=2"
kernels=(index chunk_terms forward_scan chunk_backward)

update=0
case ${1:-} in
    "") ;;
    --update) update=1 ;;
    *)
        echo "usage: $0 [--update]" >&2
        exit 2
        ;;
esac

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
status=0
for kernel in "${kernels[@]}"; do
    golden=tests/golden/host_$kernel.c
    "$lua" generator/shell.lua emit "$kernel" "$problem" "target=host" >"$dir/first.c"
    "$lua" generator/shell.lua emit "$kernel" "$problem" "target=host" >"$dir/second.c"
    if ! cmp -s "$dir/first.c" "$dir/second.c"; then
        echo "$kernel: two emissions differ" >&2
        status=1
    elif [ $update = 1 ]; then
        mkdir -p tests/golden
        cp "$dir/first.c" "$golden"
    elif ! diff -u "$golden" "$dir/first.c"; then
        echo "$kernel: not $golden; if that is meant, ./build.sh golden --update" >&2
        status=1
    fi
done
exit $status
