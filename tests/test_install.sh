#!/usr/bin/env bash
# test_install.sh readme|install SOURCE_DIR BUILD_DIR
#
# readme: the example in README.md is examples/forward.c, compiles against the build and runs.
# install: the installed library is found and used as people do: pkg-config from C, shared and
# static; find_package from C++, shared and static; and nothing but gdp_* can be seen of it.
set -euo pipefail

if [ $# != 3 ]; then
    echo "usage: $0 readme|install SOURCE_DIR BUILD_DIR" >&2
    exit 2
fi
part=$1 source_dir=$2 build=$3
cmake=${CMAKE:-cmake}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

fail() {
    echo "$*" >&2
    exit 1
}

# Runs a program and looks for the line that the example prints.
expect_line() {
    local out
    out=$("$@") || fail "$1 failed: $out"
    [[ $out =~ ^libgdp\ [0-9]+\.[0-9]+\.[0-9]+:\ o\[63,\ 0,\ 0\]\ =\ -?[0-9] ]] ||
        fail "$1 printed: $out"
    echo "$out"
}

# Global symbols of a library that are not ours.
expect_only_ours() {
    local symbols others
    symbols=$(nm --defined-only "$@" | awk 'NF == 3 { print $3 }')
    grep -q '^gdp_forward$' <<<"$symbols" || fail "$*: gdp_forward is not there"
    others=$(grep -v '^gdp_' <<<"$symbols" || true)
    [ -z "$others" ] || fail "$*: more than gdp_* can be seen: $others"
}

test_readme() {
    awk '/^```c$/ { inside = 1; next } /^```$/ { inside = 0 } inside' \
        "$source_dir/README.md" >"$dir/readme.c"
    diff -u "$source_dir/examples/forward.c" "$dir/readme.c" ||
        fail "README.md does not show examples/forward.c"
    ${CC:-cc} -std=c11 -Wall -Wextra -Werror -I "$source_dir/runtime" "$dir/readme.c" \
        -o "$dir/readme" -L "$build" -Wl,-rpath,"$build" -lgdp
    expect_line "$dir/readme"
}

test_install() {
    local prefix=$dir/prefix lib example=$source_dir/examples/forward.c
    "$cmake" --install "$build" --prefix "$prefix" >"$dir/log" || fail "$(cat "$dir/log")"
    lib=$(dirname "$(find "$prefix" -name libgdp.a)")
    expect_only_ours -D "$lib/libgdp.so"
    expect_only_ours -g "$lib/libgdp.a"
    readelf -d "$lib/libgdp.so" | grep -q 'SONAME.*\[libgdp\.so\.0\]' || fail "the soname is wrong"
    if readelf -d "$lib/libgdp.so" | grep NEEDED | grep -E 'lua|cuda|nvrtc|nccl|cjson|xxhash'; then
        fail "libgdp.so needs a library that it should not"
    fi
    if [ -x "$build/gdp" ]; then
        "$prefix/bin/gdp" info >"$dir/log" 2>&1 || fail "gdp info: $(cat "$dir/log")"
    fi

    # The installed tree may be moved.
    mv "$prefix" "$dir/moved"
    lib=$dir/moved${lib#"$prefix"}
    prefix=$dir/moved
    export PKG_CONFIG_PATH=$lib/pkgconfig
    [ "$(pkg-config --modversion gdp)" = "$(sed -n 's/^Version: //p' "$lib/pkgconfig/gdp.pc")" ] ||
        fail "pkg-config finds another gdp"
    # shellcheck disable=SC2046
    ${CC:-cc} -std=c11 -Wall -Wextra -Werror "$example" -o "$dir/shared" \
        $(pkg-config --cflags --libs gdp) -Wl,-rpath,"$lib"
    expect_line "$dir/shared"
    # shellcheck disable=SC2046
    ${CC:-cc} -std=c11 -Wall -Wextra -Werror "$example" -o "$dir/static" $(pkg-config --cflags gdp) \
        "$lib/libgdp.a" $(pkg-config --static --libs-only-l gdp | sed 's/-lgdp//')
    expect_line "$dir/static"

    mkdir "$dir/consumer"
    cp "$example" "$dir/consumer/forward.cc"
    cat >"$dir/consumer/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.20)
project(consumer CXX)
set(CMAKE_CXX_STANDARD 17)
find_package(gdp 0.1 REQUIRED)
add_executable(shared forward.cc)
target_link_libraries(shared gdp::gdp)
add_executable(static forward.cc)
target_link_libraries(static gdp::gdp_static)
END
    "$cmake" -S "$dir/consumer" -B "$dir/consumer/build" -G Ninja \
        -DCMAKE_PREFIX_PATH="$prefix" >"$dir/log" 2>&1 || fail "$(cat "$dir/log")"
    "$cmake" --build "$dir/consumer/build" >"$dir/log" 2>&1 || fail "$(cat "$dir/log")"
    expect_line "$dir/consumer/build/shared"
    expect_line "$dir/consumer/build/static"
}

case $part in
    readme) test_readme ;;
    install) test_install ;;
    *) fail "no such part: $part" ;;
esac
