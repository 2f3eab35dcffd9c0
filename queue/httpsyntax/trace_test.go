package httpsyntax

import (
	"fmt"
	"strings"
	"testing"
)

const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

// https://www.w3.org/TR/trace-context/#traceparent-header
func TestTraceparent(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		parent: true, parent[:53] + "00": true, "cc" + parent[2:]: true, "01" + parent[2:] + "-more": true,
		"": false, parent + "-more": false, parent[:54]: false, parent + "0": false, "01" + parent[2:] + "more": false,
		"ff" + parent[2:]: false, strings.ToUpper(parent): false, " " + parent: false, parent + "\n": false,
		"00-" + strings.Repeat("0", 32) + parent[35:]:      false,
		parent[:36] + strings.Repeat("0", 16) + "-01":      false,
		parent[:53] + "0g":                                 false,
		"01" + parent[2:] + "-" + strings.Repeat("a", 300): false,
		strings.ReplaceAll(parent, "-", "_"):               false,
		"0" + parent:                                       false, parent[1:]: false, "00-" + parent[4:]: false, parent[:35] + "0" + parent[35:]: false,
	} {
		if got := ValidTraceparent(text); got != want {
			t.Errorf("%q: %t", text, got)
		}
	}
}

// https://www.w3.org/TR/trace-context/#tracestate-header
func TestTracestate(t *testing.T) {
	t.Parallel()
	members := func(n int) string {
		var list []string
		for i := range n {
			list = append(list, fmt.Sprintf("k%d=v", i))
		}
		return strings.Join(list, ",")
	}
	for text, want := range map[string]bool{
		"": true, "vendor=1": true, "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE": true, "a=1 ,\tb=2,,": true, "a=b c": true,
		"fw529a3039@dt=FfZ": true, "0a/b*c_d-e=x": true, members(32): true, "a=" + strings.Repeat("v", 256): true,
		members(33): false, "a=1,a=2": false, "a": false, "a=": false, "=1": false, "A=1": false, "a b=1": false, "_a=1": false, "@a=1": false,
		"a@=1": false, "a@b@c=1": false, "a=b=c": false, "a=é": false, "a=b\x00": false, "a=1\r\nX-Evil: 1": false,
		"a=" + strings.Repeat("v", 257): false, "a=" + strings.Repeat("v", 250) + ",b=" + strings.Repeat("v", 250) + ",c=12345": false,
		strings.Repeat("k", 257) + "=v": false,
	} {
		if got := ValidTracestate(text); got != want {
			t.Errorf("%q: %t", text, got)
		}
	}
}
