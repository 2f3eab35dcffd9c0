#!/bin/sh
# fuzz.sh TIME [NAME]: runs every fuzz target of the module for TIME each, or
# those whose name holds NAME. go test fuzzes one target of one package a call,
# so they are looked for here; a run that finds none fails.
set -eu

time=$1
name=${2:-}

targets=$(find . -name '*_test.go' -exec sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' {} + | sort -u)
ran=0
for target in $targets; do
	case $target in *"$name"*) ;; *) continue ;; esac
	for file in $(find . -name '*_test.go' -exec grep -l "^func $target(" {} +); do
		dir=$(dirname "$file")
		echo "fuzz: $dir $target for $time"
		go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" "$dir"
		ran=$((ran + 1))
	done
done
if [ "$ran" = 0 ]; then
	echo "fuzz: no fuzz target has \"$name\" in its name" >&2
	exit 1
fi
echo "fuzz: $ran targets, no failure"
