#!/bin/sh
# compat.sh SERVER… -- PACKAGE…: runs the tests of the packages against each of the servers, which
# are redis-server programs of other makes and versions.
set -u

try='name programs: make compat SERVER="/path/to/valkey-server /path/to/redis-server"; packages called
valkey have one (Debian 13, Fedora, Alpine, Homebrew)'
failed=''
servers=''
while [ $# -gt 0 ] && [ "$1" != -- ]; do
	servers="$servers $1"
	shift
done
shift
if [ -z "$servers" ]; then
	servers=$(command -v valkey-server) || {
		printf 'compat: no SERVER was given, and there is no valkey-server on the PATH\ntry: %s\n' "$try" >&2
		exit 1
	}
fi
for server in $servers; do
	path=$(command -v "$server") || {
		printf 'compat: %s cannot be run\ntry: %s\n' "$server" "$try" >&2
		exit 1
	}
	printf 'compat: %s: %s\n' "$path" "$("$path" --version | cut -c1-60)"
	REDIS_SERVER=$path go test -short -count=1 -p 1 -timeout "${TIMEOUT:-20m}" "$@" || failed="$failed $path"
done
[ -z "$failed" ] || {
	printf 'compat: failed against%s\n' "$failed" >&2
	exit 1
}
