#!/usr/bin/env bash
# What can be said about the sources without running them. --format rewrites them instead.
#
# runtime/gdp.h is not formatted by clang-format: a part of it is generated and its tables are
# aligned by hand. The golden files and generated ones are what the generator makes them.
set -euo pipefail
cd "$(dirname "$0")/.."

max_file_lines=400     # of a file in runtime/
max_function_lines=60  # of any function's body
max_line_length=120

shopt -s nullglob
sources=(runtime/*.c runtime/tool/*.c tests/*.c tests/emulator/*.c examples/*.c)
headers=(runtime/*.h runtime/tool/*.h tests/*.h tests/emulator/*.h)
formatted=("${sources[@]}")
for file in "${headers[@]}"; do
    [ "$file" = runtime/gdp.h ] || formatted+=("$file")
done

if [ "${1:-}" = --format ]; then
    clang-format -i "${formatted[@]}"
    exit
fi

status=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT
complain() {
    echo "lint: $*" >&2
    status=1
}

clang-format --dry-run -Werror "${formatted[@]}" 2>"$log" || {
    grep -E 'error:' "$log" | cut -d: -f1 | sort | uniq -c >&2
    complain "clang-format would change these; ./build.sh format"
}

lua5.4 generator/schema_h.lua public runtime/gdp.h --check || complain "runtime/gdp.h is stale"

for file in runtime/*.c runtime/tool/*.c; do
    lines=$(wc -l <"$file")
    [ "$lines" -le $max_file_lines ] || complain "$file has $lines lines, above $max_file_lines"
done

# With the braces of functions in the first column, and of nothing else there.
long=$(awk -v most=$max_function_lines '
    /^\{/ { start = FNR }
    /^\}/ { if (start && FNR - start - 1 > most)
                printf "%s:%d: a function of %d lines\n", FILENAME, start, FNR - start - 1
            start = 0 }' "${sources[@]}")
[ -z "$long" ] || complain "above $max_function_lines lines:"$'\n'"$long"

texts=("${sources[@]}" "${headers[@]}" generator/*.lua templates/*/* build.sh .ci/run tests/*.sh
    CMakeLists.txt cmake/* tests/CMakeLists.txt tests/emulator/CMakeLists.txt
    tests/emulator/cuda/* tests/emulator/kernels.cu ./*.md)
if grep -nE '[[:blank:]]+$' "${texts[@]}"; then complain "blanks at the ends of lines"; fi
if grep -nP '^ *\t' "${texts[@]}"; then complain "tabs"; fi
if awk -v most=$max_line_length 'length > most { print FILENAME ":" FNR; bad = 1 } END { exit !bad }' \
    "${sources[@]}" "${headers[@]}" templates/*/*; then
    complain "lines of more than $max_line_length characters"
fi
for file in build.sh .ci/run tests/*.sh; do bash -n "$file" || complain "$file"; done

if command -v cppcheck >/dev/null; then
    cppcheck --quiet --std=c11 --error-exitcode=1 --inline-suppr --enable=warning,portability \
        -j "$(nproc)" --suppress=missingIncludeSystem -D__GNUC__ -Iruntime runtime/*.c \
        runtime/tool/*.c || complain "cppcheck"
fi

[ $status = 0 ] && echo "lint: nothing to say about ${#sources[@]} sources"
exit $status
