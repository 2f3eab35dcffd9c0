package main

import (
	"strings"
	"testing"
)

// "No run is longer than -max-timeout of worker": enqueue tells so of the first task with a longer timeout,
// and enqueues it.
func TestLongTimeoutIsTold(t *testing.T) {
	t.Parallel()
	url, _ := private(t)
	limits := file(t, "limits.yaml", appsYAML)
	const told = " is 87600h0m0s, but workers end a run after 10m0s; if their -max-timeout is longer, give it to enqueue too\n"
	http := func(args ...string) outcome {
		return program(t, url, "", append(append([]string{"http", "-limits", limits, "-scope", "search", "-id"}, args...), "http://h")...)
	}
	if got := http("long", "-timeout", "3650d"); got.code != 0 || got.stderr != "enqueue http: the timeout of long"+told {
		t.Errorf("%+v", got)
	}
	if got := http("allowed", "-timeout", "3650d", "-max-timeout", "90000h"); got.code != 0 || got.stderr != "" {
		t.Errorf("%+v", got)
	}
	if got := http("short", "-timeout", "10m"); got.code != 0 || got.stderr != "" {
		t.Errorf("%+v", got)
	}
	lines := ""
	for _, id := range []string{"a", "b"} {
		lines += `{"type":"http","id":"` + id + `","scope":"search","timeout":"3650d","http":{"url":"http://h"}}` + "\n"
	}
	for _, row := range []struct {
		flags string
		times int
	}{{"-dry-run", 1}, {"-json", 1}, {"-remember=1h", 0}} { // they are there already, by then
		got := program(t, url, lines, "batch", "-limits", limits, row.flags, "-")
		if got.code != 0 || strings.Count(got.stderr, told) != row.times {
			t.Errorf("%s: %+v", row.flags, got)
		}
	}
}
