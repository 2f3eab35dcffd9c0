#!/bin/sh
# fuzz.sh TIME [NAME]: runs every fuzz target of the module for TIME each, or
# those whose name holds NAME. go test fuzzes one target of one package a call and
# links the package anew for each, so they are looked for here and each package is
# built once; a run that finds none fails. Inputs that fail go to the package's
# testdata/fuzz, as with go test.
set -eu

time=$1
name=${2:-}

root=$(pwd)
built=$(mktemp -d)
trap 'rm -rf "$built"' EXIT
ran=0
for dir in $(find . -name '*_test.go' -exec grep -l '^func Fuzz' {} + | xargs -n 1 dirname | sort -u); do
	targets=$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' "$dir"/*_test.go | grep -e "$name" || true)
	[ -n "$targets" ] || continue
	go test -c -fuzz=. -o "$built/fuzz.test" "$dir"
	for target in $targets; do
		echo "fuzz: $dir $target for $time"
		(cd "$dir" && "$built/fuzz.test" -test.run '^$' -test.fuzz "^$target\$" -test.fuzztime "$time" \
			-test.fuzzcachedir "$(cd "$root" && go env GOCACHE)/fuzz/headway/$dir")
		ran=$((ran + 1))
	done
done
if [ "$ran" = 0 ]; then
	echo "fuzz: no fuzz target has \"$name\" in its name" >&2
	exit 1
fi
echo "fuzz: $ran targets, no failure"
