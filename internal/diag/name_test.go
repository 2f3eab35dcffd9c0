package diag

import (
	"strings"
	"testing"
)

func TestNameReason(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"a": "", "*": "", "a b{c}:%!": "", "é€😀": "", strings.Repeat("x", 128): "",
		"":                       "is empty; write 1 to 128 bytes",
		strings.Repeat("x", 129): "is 129 bytes long; the most is 128",
		"a/b":                    "holds a '/', which divides names; write another character",
		"é/b":                    "holds a '/', which divides names; write another character",
		"é\xff":                  "is not UTF-8 (byte 0xff at offset 2); encode it, in hex for instance",
		"a\nb":                   "holds the control character U+000A; remove it",
		"a\x7f":                  "holds the control character U+007F; remove it",
		"a\u2028":                "holds the control character U+2028; remove it",
		"a\u2029":                "holds the control character U+2029; remove it",
	} {
		if got := NameReason(name); got != want {
			t.Errorf("%q: got %q, want %q", name, got, want)
		}
	}
}
