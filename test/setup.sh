#!/bin/sh
# setup.sh [-race] [-browser] [-promtool] [-postgres]: installs what the tests need beside Go and is not
# there yet: a redis-server of 6.2 or newer (Valkey is one), with -race a C compiler, which the race
# detector links with on every system but macOS, with -browser a Chromium for the tests of the page,
# with -promtool Prometheus' promtool, and with -postgres a PostgreSQL for the tests of River. It says what it does, and does nothing where all are there.
set -eu

say() { printf 'setup: %s\n' "$*"; }
fail() {
	printf 'setup: %s\ntry: %s\n' "$1" "$2" >&2
	exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }

# as_root COMMAND…: says and runs a command that only root may run.
as_root() {
	if [ "$(id -u)" = 0 ]; then
		say "$*"
		"$@"
	elif have sudo; then
		say "sudo $*"
		sudo "$@"
	else
		fail "only root may run: $*" "run it as root, or install sudo; then make test again"
	fi
}

# manager prints the package manager of this system.
manager() {
	for m in apt-get apk dnf brew; do
		if have "$m"; then
			echo "$m"
			return
		fi
	done
}

# install PACKAGE…: with the package manager there is.
install() {
	case $(manager) in
	apt-get)
		as_root apt-get update -q
		as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@"
		;;
	apk) as_root apk add --no-cache "$@" ;;
	dnf) as_root dnf install -q -y "$@" ;;
	brew)
		say "brew install $*"
		brew install "$@" # brew refuses to run as root
		;;
	*) fail "there is no $missing, and none of apt-get, apk, dnf and brew to install it with" "$remedy" ;;
	esac
}

install_redis() {
	say "the tests need redis-server, and there is none: installing it"
	case $(manager) in
	apt-get) install redis-server ;;
	dnf) install redis || install valkey-compat-redis ;; # Fedora 41 and newer have Valkey alone
	*) install redis ;;
	esac
	have "$server" || fail "redis-server was installed and is still not on the PATH" "$remedy"
	say "if the package has started a server on port 6379: the tests use it for nothing"
}

install_compiler() {
	say "the race detector needs a C compiler, and there is no $missing: installing gcc"
	case $(manager) in
	apt-get) install gcc libc6-dev ;;
	apk) install gcc musl-dev ;;
	*) install gcc ;;
	esac
}

install_browser() {
	say "the tests of the page need Chromium, and there is none: installing it"
	case $(manager) in
	brew) brew install --cask chromium ;;
	*) install chromium ;;
	esac
}

# install_promtool puts promtool into bin/, or on the PATH with all of Prometheus: Debian's package would start a server.
install_promtool() {
	say "the tests of the alert rules need promtool, and there is none: installing it"
	case $(manager) in
	apt-get)
		mkdir -p bin/promtool.deb
		(
			cd bin/promtool.deb
			apt-get download -q prometheus || { as_root apt-get update -q && apt-get download -q prometheus; }
			dpkg-deb -x prometheus_*.deb .
			mv usr/bin/promtool ..
		)
		rm -rf bin/promtool.deb
		;;
	dnf) install golang-github-prometheus ;;
	*) install prometheus ;;
	esac
	have promtool || [ -x bin/promtool ] || fail "Prometheus was installed, and promtool is neither on the PATH nor in bin/" "$remedy"
}

install_postgres() {
	say "the tests of River need PostgreSQL, and there is none: installing it"
	case $(manager) in
	dnf) install postgresql-server ;;
	*) install postgresql ;;
	esac
	have_postgres || fail "PostgreSQL was installed, and initdb is neither on the PATH nor in /usr/lib/postgresql" "$remedy"
	say "if the package has started a server on port 5432: the tests use it for nothing"
}

# have_postgres: whether there is an initdb, where Debian keeps it too.
have_postgres() {
	have initdb || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1
}

# old_redis: whether the server's version is known and below 6.2.
old_redis() {
	version=$("$server" --version 2>/dev/null | sed -n 's/.*v=\([0-9]*\)\.\([0-9]*\).*/\1 \2/p')
	major=${version% *}
	minor=${version#* }
	[ -n "$version" ] && { [ "$major" -lt 6 ] || { [ "$major" -eq 6 ] && [ "$minor" -lt 2 ]; }; }
}

server=${REDIS_SERVER:-redis-server}
missing=redis-server
remedy='install redis-server 6.2 or newer (or Valkey) and put it on the PATH, or name it: REDIS_SERVER=/path/to/redis-server make test'
if ! have "$server"; then
	[ -z "${REDIS_SERVER:-}" ] || fail "REDIS_SERVER names $REDIS_SERVER, which cannot be run" "$remedy"
	install_redis
fi
! old_redis || fail "$server is older than 6.2, which is the oldest that works" "$remedy"
say "$("$server" --version | cut -c1-60)"

race=
browser=
promtool=
postgres=
for word; do
	case $word in
	-race) race=yes ;;
	-browser) browser=yes ;;
	-promtool) promtool=yes ;;
	-postgres) postgres=yes ;;
	*) fail "unknown word $word" "setup.sh [-race] [-browser] [-promtool] [-postgres]" ;;
	esac
done
if [ "$race" ] && [ "$(uname -s)" != Darwin ]; then
	missing=$(go env CC | cut -d' ' -f1)
	remedy='install gcc, or run the tests without the race detector: make test'
	have "$missing" || install_compiler
fi
if [ "$browser" ]; then
	missing=chromium
	remedy='install Chromium and put it on the PATH, or name it: CHROMIUM=/path/to/chromium make test'
	found=
	for name in ${CHROMIUM:+"$CHROMIUM"} chromium chromium-browser google-chrome; do
		if have "$name"; then found=$name; fi
	done
	[ "$found" ] || install_browser
fi
if [ "$promtool" ]; then
	missing=promtool
	remedy="install your system's prometheus, which has promtool, or put promtool into bin/"
	have promtool || [ -x bin/promtool ] || install_promtool
fi
if [ "$postgres" ]; then
	missing=initdb
	remedy="install your system's PostgreSQL server"
	have_postgres || install_postgres
fi
