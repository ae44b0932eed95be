#!/usr/bin/env bash
# Everything a person does with the project, each from a bare Debian onwards. `./build.sh` alone lists it.
set -euo pipefail
cd "$(dirname "$0")"

jobs=$(nproc 2>/dev/null || echo 2)

usage() {
    cat <<'END'
usage: ./build.sh COMMAND

  run               build, then a small packed problem, forward and backward over 4 ranks, checked
  build             the library, the command build/gdp and the tests
  test [FILTER]     the tests; FILTER: a regular expression of their names
  asan [FILTER]     the tests with the address and undefined-behaviour sanitizers
  tsan [FILTER]     the tests with the thread sanitizer
  gpucheck          CUDA kernels under compute-sanitizer: memcheck, racecheck, synccheck, initcheck
  lint              format, lengths, freshness of generated text, cppcheck
  format            rewrite the C sources in the project's format
  bench [ARGS]      gdp bench
  golden [--update] compare (or rewrite) the emitted sources that the repository keeps
  install [PREFIX]  install to PREFIX, by default /usr/local
END
}

# Installs the Debian packages among the arguments that are missing.
need() {
    local missing=() package
    command -v dpkg-query >/dev/null || return 0 # not Debian: CMake names what it misses
    for package in "$@"; do
        if [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" != installed ]; then
            case $package in
                # Debian 13 has pkgconf in the place of pkg-config.
                pkg-config) command -v pkg-config >/dev/null && continue ;;
            esac
            missing+=("$package")
        fi
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    local as_root=()
    if [ "$(id -u)" != 0 ]; then
        if ! sudo -n true 2>/dev/null; then
            echo "Packages are missing. Run this, then again what you ran:" >&2
            echo "    sudo apt-get update && sudo apt-get install -y ${missing[*]}" >&2
            exit 3
        fi
        as_root=(sudo -n)
    fi
    echo "installing ${missing[*]}" >&2
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -qq >&2
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2
}

need_build() {
    need gcc g++ libc6-dev cmake ninja-build pkg-config lua5.4 liblua5.4-dev libcmocka-dev \
        libcjson-dev libxxhash-dev
}

# build_in DIR [CMAKE OPTION...]
build_in() {
    local dir=$1 log
    shift
    log=$(mktemp)
    if ! cmake -S . -B "$dir" -G Ninja "$@" >"$log" 2>&1; then
        cat "$log" >&2
        rm -f "$log"
        return 1
    fi
    rm -f "$log"
    ninja -C "$dir" -j "$jobs" --quiet
}

# Runs the tests of a build folder; the last line is their count.
test_in() {
    local dir=$1 filter=${2:-} log status=0
    log=$(mktemp)
    (cd "$dir" && ctest --output-on-failure -j "$jobs" ${filter:+-R "$filter"}) 2>&1 |
        tee "$log" || status=$?
    # "97% tests passed, 1 tests failed out of 31"
    awk '/tests passed, .* tests failed out of/ {
            for (i = 1; i <= NF; i++) if ($i == "failed") failed = $(i - 2)
            total = $NF
        }
        END { if (!total) print "no test ran"
              printf "%d passed, %d failed\n", total - failed, failed
              exit !total }' "$log" || status=1
    rm -f "$log"
    return $status
}

do_run() {
    need_build
    build_in build
    local dir
    dir=$(mktemp -d)
    # shellcheck disable=SC2064
    trap "rm -rf '$dir'" EXIT
    # Five documents; four ranks cut three of them.
    build/gdp sample "$dir/sample.safetensors" --batch 1 --tokens 8192 --heads 2 --value-heads 4 \
        --dim-k 128 --dim-v 64 --num-householder 3 --dtype bf16 \
        --cu-seqlens 0,700,3100,3164,6600,8192
    build/gdp run "$dir/sample.safetensors" --backward --ranks 4 --verify
}

do_sanitized() {
    local name=$1 sanitizers=$2 filter=${3:-}
    need_build
    build_in "build-$name" -DGDP_SANITIZE="$sanitizers" -DCMAKE_BUILD_TYPE=None \
        -DCMAKE_C_FLAGS="-O1 -g"
    test_in "build-$name" "$filter"
}

# The kernels of a small grid of problems under each of CUDA's checkers, on a machine with a GPU.
do_gpucheck() {
    local tool
    need_build
    build_in build
    export GDP_TEST_SMALL=1
    build/tests/test_cuda # fills the kernel cache
    for tool in memcheck racecheck synccheck initcheck; do
        compute-sanitizer --tool "$tool" --error-exitcode 1 build/tests/test_cuda
    done
}

do_install() {
    need_build
    build_in build
    cmake --install build ${1:+--prefix "$1"}
    if [ -z "${1:-}" ] && [ "$(id -u)" = 0 ]; then ldconfig; fi
}

command=${1:-help}
[ $# -eq 0 ] || shift
case $command in
    run) do_run ;;
    build)
        need_build
        build_in build
        ;;
    test)
        need_build
        build_in build
        test_in build "${1:-}"
        ;;
    asan) do_sanitized asan address,undefined "${1:-}" ;;
    tsan) do_sanitized tsan thread "${1:-}" ;;
    lint)
        need lua5.4 clang-format cppcheck
        bash tests/lint.sh
        ;;
    format)
        need clang-format
        bash tests/lint.sh --format
        ;;
    bench)
        need_build
        build_in build
        build/gdp bench "$@"
        ;;
    golden)
        need lua5.4
        bash tests/test_golden.sh "$@"
        ;;
    gpucheck) do_gpucheck ;;
    install) do_install "$@" ;;
    help | -h | --help) usage ;;
    *)
        usage >&2
        exit 2
        ;;
esac
