#!/usr/bin/env bash
# The command, from outside: what it computes, what it refuses, what it leaves behind.
#
#     test_tool.sh PATH/OF/gdp
set -uo pipefail

gdp=$(realpath "${1:?the path of gdp}")
corpus=$(realpath "$(dirname "${BASH_SOURCE[0]}")")/corpus/safetensors
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 1
# One cache for all calls; it is gone afterwards.
export GDP_CACHE_DIR=$dir/cache
# The thread sanitizer does not see how NVRTC, which it has not compiled, orders its own threads.
echo "race:libnvrtc" >nvrtc.tsan
export TSAN_OPTIONS="${TSAN_OPTIONS:-} suppressions=$dir/nvrtc.tsan"
failures=0

fail() {
    echo "FAILED: $*" >&2
    sed 's/^/    /' out err 2>/dev/null | head -40 >&2
    failures=$((failures + 1))
}

# expect STATUS ARGUMENTS...: runs gdp; its output is in the files out and err.
expect() {
    local wanted=$1 status
    shift
    "$gdp" "$@" >out 2>err </dev/null
    status=$?
    [ $status = "$wanted" ] || fail "gdp $* exited with $status instead of $wanted"
    if [ "$wanted" = 0 ] && [ -s err ]; then fail "gdp $* has something to say on stderr"; fi
}

# refuses STATUS PART ARGUMENTS...: one sentence on stderr with PART in it, and nothing on stdout.
refuses() {
    local wanted=$1 part=$2
    shift 2
    expect "$wanted" "$@"
    [ "$(wc -l <err)" = 1 ] || fail "gdp $*: not one sentence"
    grep -qF -- "$part" err || fail "gdp $*: '$part' is not in the sentence"
    [ ! -s out ] || fail "gdp $*: something on stdout"
}

has() { grep -qF -- "$1" out || fail "'$1' is not in the output of the last command"; }

# ---- help, information

expect 0 --help
has "usage: gdp COMMAND"
expect 0 --version
expect 0 info
has processor
expect 0 info --json
has '"version"'
gpu=no
grep -qF '"arch":	0,' out || gpu=yes
for command in info sample run emit compile verify bench; do
    expect 0 $command --help
    has "usage: gdp $command"
done

# ---- samples: the same seed, the same file

layer="--heads 2 --value-heads 4 --dim-k 32 --dim-v 16 -n 2 --initial-state"
expect 0 sample a.st --tokens 45 --batch 2 $layer
expect 0 sample b.st --tokens 45 --batch 2 $layer
cmp -s a.st b.st || fail "two samples with one seed differ"
expect 0 sample b.st --tokens 45 --batch 2 $layer --seed 1
! cmp -s a.st b.st || fail "two samples with two seeds are equal"
# The packed one shares kernels with the dense one.
expect 0 sample p.st --cu-seqlens 0,0,7,7,50,53 --tokens 60 $layer

# ---- runs: right on one rank and on several, uneven ones and more ranks than tokens included

for file in a p; do
    for ranks in 1 3 64; do
        expect 0 run $file.st --ranks $ranks --backward --verify -o $file.$ranks.st
        has dinitial_state
        has "tokens/s"
        ! grep -q "TOO LARGE" out || fail "an error that is too large, in a run that passed"
    done
    size=$(stat -c %s $file.1.st)
    [ "$(stat -c %s $file.3.st)" = "$size" ] || fail "the outputs on 1 and 3 ranks differ in size"
done
expect 0 run a.st --verify --json --scale 0.5
has '"passed":	true'
expect 0 run a.st --target reference --backward
has reference
expect 0 run a.st --config "chunk=16 segment=1" --threads 1 --verify
has "chunk=16 segment=1"
expect 0 sample f.st --tokens 20 --heads 1 --dim-k 32 --dim-v 16 -n 1 --dtype f32 --no-gate
expect 0 run f.st --ranks 1 --backward --verify -o f1.st
expect 0 run f.st --ranks 3 --backward --verify -o f3.st
head -c 8 f1.st | cmp -s - <(head -c 8 f3.st) || fail "the headers on 1 and 3 ranks differ"
expect 0 sample zero.st --tokens 0 --heads 1 --dim-k 32 --dim-v 16 -n 1 --dtype f32 --no-gate
expect 0 run zero.st --ranks 2 --backward --verify

# The reference compared with itself is exact; a value that is no number is found (do's bytes
# are the last).
expect 0 run a.st --target reference --verify --json
has '"error":	0,'
head -c -4 f.st >nan.st
printf '\377\377\377\377' >>nan.st
expect 1 run nan.st --backward --verify
has "TOO LARGE"

# ---- what is generated, random problems, times

expect 0 emit --kernel forward_scan --dim-k 32 --dim-v 16 -n 2
[ "$(wc -l <out)" -gt 50 ] || fail "the source of forward_scan is short"
cp out first
expect 0 emit --kernel forward_scan --dim-k 32 --dim-v 16 -n 2
cmp -s out first || fail "the source of forward_scan differs from call to call"
refuses 2 "forward_scan" emit --kernel nothing
refuses 2 "--kernel is missing" emit
refuses 2 "sub-tokens" emit --kernel forward_scan -n 16 --chunk 256

expect 0 emit --kernel forward_scan --target cuda --arch sm_90 --dim-k 32 --dim-v 16 -n 2
has __global__
has "arch=90"
cp out first
expect 0 emit --kernel forward_scan --target cuda --arch 90 --dim-k 32 --dim-v 16 -n 2
cmp -s out first || fail "the architectures sm_90 and 90 differ"
expect 0 emit --kernel forward_scan --target cuda --arch 80 --dim-k 32 --dim-v 16 -n 2 --stages 2
has "arch=80"
has "stages=2"
refuses 2 "--arch is 'gpu'" emit --kernel index --target cuda --arch gpu
refuses 2 "--arch is 'sm_90x'" emit --kernel index --target cuda --arch sm_90x
refuses 2 "arch is 90" emit --kernel index --target host --arch 90
refuses 2 "arch=80" emit --kernel index --target cuda --arch 75
refuses 2 "multiple of 16" emit --kernel index --target cuda --arch 90 --dim-k 24
refuses 2 "stages" emit --kernel index --target cuda --arch 90 --stages 1
[ $gpu = yes ] || refuses 3 "arch is 0" emit --kernel index --target cuda

small="--dim-k 16 --dim-v 16"
"$gdp" compile --arch sm_90 $small >out 2>err </dev/null
status=$?
if [ $status = 3 ] && grep -qF NVRTC err; then
    echo "skipped: gdp compile, for there is no NVRTC"
else
    [ $status = 0 ] || fail "gdp compile exited with $status"
    has "forward_scan"
    has "0 default configurations with local memory"
    expect 0 compile --arch sm_90 $small --json
    has '"local_bytes":	0'
    has '"compile_seconds":	0'
    has '"default":	true'
    expect 0 compile --arch 80,sm_90 $small --stages 2 --threads 3
    has "sm_80, K16"
    has "sm_90, K16"
    has "stages=2"
    refuses 2 "arch=80" compile --arch 90,75 $small
    refuses 2 "multiple of 16" compile --arch 90 --dim-k 24
fi
refuses 2 "--arch is 'sm_90,,80'" compile --arch sm_90,,80
refuses 2 "--arch is empty" compile --arch ""
[ $gpu = yes ] || refuses 2 "--arch is missing" compile
GDP_NVRTC=$dir/absent refuses 3 "NVRTC" compile --arch sm_90 $small --dtype f16

expect 0 verify --count 4 --seed 7 --target host
has "4 of 4"
expect 0 bench gdn --tokens 64 --repeat 2 --target host
has "warm start"
expect 0 bench gdn --tokens 64 --repeat 1 --json --target host
has '"name":	"gdn"'

# ---- what is refused: status 2, one sentence, and an output that was there stays as it was

refuses 2 "'nothing' is no command" nothing
refuses 2 "not known" run --nothing a.st
refuses 2 "not known" run -z a.st
refuses 2 "needs a value" run a.st -o
refuses 2 "takes no value" run a.st --verify=1
refuses 2 "argument is missing" run
refuses 2 "one argument too many" run a.st p.st
refuses 2 "--ranks is 'x'" run a.st --ranks x
refuses 2 "--ranks is '0'" run a.st --ranks 0
refuses 2 "--target is 'tpu'" run a.st --target tpu
refuses 2 "--scale is 'nan'" run a.st --scale nan
refuses 2 "--transport is 'tcp'" run a.st --transport tcp
refuses 3 "nccl" run a.st --transport nccl
[ $gpu = yes ] || refuses 3 "target cuda" run a.st --target cuda
[ $gpu = yes ] || refuses 3 "target cuda" verify --target cuda
[ $gpu = yes ] || refuses 3 "target cuda" bench main --target cuda
refuses 2 "--target is reference" bench main --target reference
refuses 2 "--gate is 'x'" bench main --gate x
refuses 2 "--beta is 3" bench main --beta 3
refuses 2 "--config" bench main --config "chunk=x"
refuses 2 "--config" run a.st --config "chunk=x"
refuses 2 "multiple of 8" run a.st --config "chunk=9"
refuses 2 "k: shape[1] is 90" run a.st -n 3
refuses 2 "no workload" bench nothing
refuses 2 "--cu-seqlens" sample c.st --cu-seqlens 0,9,3
refuses 2 "--cu-seqlens ends at 9" sample c.st --cu-seqlens 0,9 --tokens 8
refuses 2 "multiple of heads" sample c.st --heads 2 --value-heads 3
refuses 2 "batch is 2" sample c.st --batch 2 --cu-seqlens 0,9
refuses 2 "--dim-k is '0'" sample c.st --dim-k 0
refuses 2 "cannot be created" sample absent/c.st
[ ! -e c.st ] || fail "a refused sample left a file"

echo before >kept.st
# bad PART FILE: a run from FILE is refused and leaves kept.st alone.
bad() {
    refuses 2 "$1" run "$2" -o kept.st --backward
    [ "$(cat kept.st)" = before ] || fail "a refused run has touched its output"
}
bad "cannot be opened" absent.st
bad "no regular file" .
: >empty.st
bad "0 bytes" empty.st
head -c 1000 a.st >truncated.st
bad "data_offsets" truncated.st
head -c 100 a.st >short.st
bad "header" short.st
for name in q beta; do
    sed "s/\"$name\":{/\"${name^^}\":{/" a.st >renamed.st
    bad "no tensor '$name'" renamed.st
done
sed 's/"do":{/"dO":{/' a.st >renamed.st
bad "no tensor 'do'" renamed.st
sed 's/"num_householder":"2"/"num_householder":"x"/' a.st >renamed.st
bad "num_householder" renamed.st
sed 's/"shape":\[2,45,4,16\]/"shape":[2,45,16,4]/g' a.st >renamed.st
bad "do does not fit" renamed.st
for file in "$corpus"/*; do bad "$(basename "$file")" "$file"; done

# ---- what cannot be written: no file, and no temporary one beside it

mkdir locked
refuses 2 "absent/o.st" run f.st -o absent/o.st
mkdir locked/o.st
refuses 2 "no regular file" run f.st -o locked/o.st
rmdir locked/o.st
if [ "$(id -u)" != 0 ]; then
    chmod a-w locked
    refuses 2 "cannot be created" run f.st -o locked/o.st
fi
[ -z "$(ls -A locked)" ] || fail "a failed run left something behind"
"$gdp" info >/dev/full 2>err && fail "gdp info has not noticed that its output was lost"
leftovers=$(find . -name '*.st.*' ! -name '[ap].*.st')
[ -z "$leftovers" ] || fail "left behind: $leftovers"

[ $failures = 0 ] && echo "the command does what it should"
exit $((failures > 0))
