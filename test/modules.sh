#!/bin/sh
# modules.sh COMMAND FLAG… -- PACKAGE…: runs go COMMAND for the packages, each in its module: go does
# not look below the go.mod of test/bench by itself. Packages are named as seen from the top:
# ./..., ./test/..., ./queue and ./test/bench go where they belong. The second module is run too
# when the first has failed.
set -u

below=./test/bench
name=github.com/headway-go/headway

# place PACKAGE: notes it for the module that has it, or for both.
place() {
	package=$1
	case $package in
	"$name" | "$name"/*) package=.${package#"$name"} ;;
	esac
	package=${package%/}
	case $package in
	"$below" | "$below"/*)
		in_below="$in_below .${package#"$below"}"
		return
		;;
	esac
	in_top="$in_top $package"
	case $package in
	*/...)
		case $below in
		"${package%...}"*) in_below="$in_below ./..." ;;
		esac
		;;
	esac
}

in_top=
in_below=
flags=yes
for word; do
	shift
	if [ "$flags" ] && [ "$word" = -- ]; then
		flags=
	elif [ "$flags" ]; then
		set -- "$@" "$word"
	else
		place "$word"
	fi
done
[ "$in_top$in_below" ] || in_top=.

status=0
if [ "$in_top" ]; then
	go "$@" $in_top || status=$?
fi
if [ "$in_below" ]; then
	(cd "$below" && go "$@" $in_below) || status=$?
fi
exit $status
