#!/bin/sh
# modules.sh COMMAND FLAG… -- PACKAGE…: runs go COMMAND for the packages, each in its module: go does
# not look below the go.mod of test/bench, test/browser, throttle/riverlimit, throttle/serve/envoy and worker/oteltask by itself. Packages are named as seen
# from the top: ./..., ./test/..., ./queue and ./test/bench go where they belong. Each module is run,
# also when one before it has failed.
set -u

modules='./test/bench ./test/browser ./throttle/riverlimit ./throttle/serve/envoy ./worker/oteltask'
name=github.com/headway-go/headway

# Each of "$@" is one of: COMMAND and FLAGs, then --, then PACKAGEs. The flags stay in "$@".
packages=
flags=yes
for word; do
	shift
	if [ "$flags" ] && [ "$word" = -- ]; then
		flags=
	elif [ "$flags" ]; then
		set -- "$@" "$word"
	else
		case $word in
		"$name" | "$name"/*) word=.${word#"$name"} ;;
		esac
		packages="$packages ${word%/}"
	fi
done
[ "$packages" ] || packages=.

# within MODULE: the packages that MODULE has, as it names them itself.
within() {
	for package in $packages; do
		case $package in
		"$1" | "$1"/*)
			echo ".${package#"$1"}"
			continue
			;;
		esac
		case $package in
		*/...)
			case $1 in
			"${package%...}"*) echo ./... ;;
			esac
			;;
		esac
	done
}

# top: the packages that no module below has.
top() {
	for package in $packages; do
		for module in $modules; do
			case $package in
			"$module" | "$module"/*) continue 2 ;;
			esac
		done
		echo "$package"
	done
}

status=0
here=$(top)
if [ "$here" ]; then
	go "$@" $here || status=$?
fi
for module in $modules; do
	here=$(within "$module")
	if [ "$here" ]; then
		(cd "$module" && go "$@" $here) || status=$?
	fi
done
exit $status
