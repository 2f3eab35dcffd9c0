#!/bin/sh
# fuzz.sh TIME [NAME]: runs every fuzz target of the module for TIME each, or
# those whose name holds NAME. go test fuzzes one target of one package a call and
# links the package anew for each, so they are looked for here and all packages are
# built in one go; a run that finds none fails. Inputs that fail go to the package's
# testdata/fuzz, as with go test.
#
# go test -fuzz would compile everything anew so that the fuzzer sees which code an
# input reaches, the whole standard library included: minutes on two processors. Here
# it sees the code of this module and of the YAML that limits are written in, and the rest is
# what the tests have compiled already.
#
# Go's fuzzer spends up to a minute on making each interesting input smaller, and
# tries no others meanwhile; here it tries a hundred smaller ones.
set -eu

time=$1
name=${2:-}

built=$(mktemp -d)
trap 'rm -rf "$built"' EXIT

# run_target DIR TARGET: fuzzes it, and prints what the fuzzer says.
run_target() {
	cache=$(go env GOCACHE)/fuzz/headway/$1
	{
		cd "$1"
		"$built/$(basename "$1").test" -test.run '^$' -test.fuzz "^$2\$" -test.fuzztime "$time" \
			-test.fuzzminimizetime 100x -test.fuzzcachedir "$cache" 2>&1 && ended=0 || ended=$?
		echo "$ended" >"$built/ended"
	} | tee "$built/said"
	return "$(cat "$built/ended")"
}

# out_of_time: whether the target failed by nothing but the end of its time. Up to
# 1.26 Go's fuzzer may take its own deadline for a failure of the target
# (https://go.dev/issue/75804); then it names no input.
out_of_time() {
	grep -q '^ *context deadline exceeded$' "$built/said" && ! grep -q 'Failing input written' "$built/said"
}

# targets DIR: the fuzz targets of a package whose names hold NAME.
targets() { sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' "$1"/*_test.go | grep -e "$name" || true; }

dirs=
for dir in $(find . -name '*_test.go' -exec grep -l '^func Fuzz' {} + | xargs -n 1 dirname | sort -u); do
	if [ -n "$(targets "$dir")" ]; then
		dirs="$dirs $dir"
	fi
done
if [ -z "$dirs" ]; then
	echo "fuzz: no fuzz target has \"$name\" in its name" >&2
	exit 1
fi
# Each package's program is called after the last name of its directory. Without inlining and DWARF it is compiled in less
# than half of the time.
seen='-d=libfuzzer -l -dwarf=false'
go test -c -gcflags="$(go list -m)/...=$seen" -gcflags="go.yaml.in/yaml/v4/...=$seen" -o "$built/" $dirs

ran=0
for dir in $dirs; do
	for target in $(targets "$dir"); do
		echo "fuzz: $dir $target for $time"
		if ! run_target "$dir" "$target"; then
			out_of_time || exit 1
			echo "fuzz: $target found no input that fails; its time was up at a bad moment"
		fi
		ran=$((ran + 1))
	done
done
echo "fuzz: $ran targets, no failure"
