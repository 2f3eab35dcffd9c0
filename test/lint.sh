#!/bin/sh
# lint.sh VERSION: everything that is checked without running the code. It uses
# golangci-lint where that version of it is installed, and builds it otherwise.
set -u

version=$1
modules='. test/bench test/browser throttle/riverlimit throttle/serve/envoy worker/oteltask'
failed=0

# linter prints a golangci-lint of that version, if there is one.
linter() {
	for bin in golangci-lint "$(go env GOBIN)/golangci-lint" "$(go env GOPATH)/bin/golangci-lint"; do
		if [ "$("$bin" version --short 2>/dev/null)" = "$version" ]; then
			echo "$bin"
			return
		fi
	done
}

echo "lint: gofmt"
unformatted=$(gofmt -l .) || failed=1
if [ -n "$unformatted" ]; then
	printf 'not formatted: %s\n' $unformatted
	echo "try: make fmt"
	failed=1
fi

for module in $modules; do
	echo "lint: go mod tidy in $module"
	(cd "$module" && go mod tidy -diff) || failed=1
done

bin=$(linter)
if [ -n "$bin" ]; then
	echo "lint: $bin $version"
else
	echo "lint: golangci-lint $version is not installed; go builds it, once"
	bin="go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v$version"
fi
for module in $modules; do
	(cd "$module" && nice $bin run ./...) || failed=1 # it takes all processors, and what runs beside it is judged by its times
done
exit $failed
