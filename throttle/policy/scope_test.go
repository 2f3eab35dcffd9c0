package policy_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/headway-go/headway/internal/diag"
	"github.com/headway-go/headway/throttle/policy"
)

func TestParseScope(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", diag.MaxNameBytes)
	for i, row := range []struct {
		scope string
		names []string
	}{
		0: {"payments/acme/refunds", []string{"payments", "acme", "refunds"}},
		1: {"payments", []string{"payments"}},
		2: {"a/b/c/d/e/f/g/h", []string{"a", "b", "c", "d", "e", "f", "g", "h"}},
		3: {long, []string{long}},
		4: {strings.Repeat(long+"/", 7) + long, slices.Repeat([]string{long}, 8)},
		// "whatever characters ({ } : * space) it contains"
		5:  {"{a}/}{/a:b/a*/** / ", []string{"{a}", "}{", "a:b", "a*", "** ", " "}},
		6:  {"./../...", []string{".", "..", "..."}},
		7:  {"a b/%2F/\\/'\"/#?&=", []string{"a b", "%2F", "\\", "'\"", "#?&="}},
		8:  {"日本/é/e\u0301/\U0001F600", []string{"日本", "é", "e\u0301", "\U0001F600"}},
		9:  {"\u200b/\u202e/\ufffd/\ue000", []string{"\u200b", "\u202e", "\ufffd", "\ue000"}},
		10: {strings.Repeat("é", 64), []string{strings.Repeat("é", 64)}},
	} {
		s, err := policy.ParseScope(row.scope)
		if err != nil {
			t.Errorf("%d: %v", i, err)
			continue
		}
		if s.String() != row.scope || !slices.Equal(s.Names(), row.names) || s.Len() != len(row.names) || s.Provider() != row.names[0] {
			t.Errorf("%d: got %q: %q, %d, %q", i, s, s.Names(), s.Len(), s.Provider())
		}
	}
}

func TestParseScopeFaults(t *testing.T) {
	t.Parallel()
	for scope, want := range map[string]string{
		"":                  `throttle: scope "": is empty; write names divided by '/', such as payments/acme`,
		"/":                 `throttle: scope "/": name 1 is empty; write 1 to 128 bytes`,
		"a//b":              `throttle: scope "a//b": name 2 is empty; write 1 to 128 bytes`,
		"a/*":               `throttle: scope "a/*": name 2 is "*", which stands for every name in limits.yaml; write the name itself`,
		"a/b/c/d/e/f/g/h/i": `throttle: scope "a/b/c/d/e/f/g/h/i": has more than 8 names; join or drop some`,
		"a/b\x00":           `throttle: scope "a/b\x00": name 2 holds the control character U+0000; remove it`,
		"\ufeffa":           `throttle: scope "\ufeffa": name 1 holds the control character U+FEFF; remove it`,
		"a\xff":             `throttle: scope "a\xff": name 1 is not UTF-8 (byte 0xff at offset 1); encode it, in hex for instance`,
		"a/":                `throttle: scope "a/": name 2 is empty; write 1 to 128 bytes`,
	} {
		s, err := policy.ParseScope(scope)
		var fault *policy.ScopeError
		if !errors.As(err, &fault) || fault.Scope != scope || s != (policy.Scope{}) || err.Error() != want {
			t.Errorf("got %q, %v, want %s", s, err, want)
		}
	}
}

// An error is not the place for somebody's whole payload.
func TestScopeErrorIsShort(t *testing.T) {
	t.Parallel()
	_, err := policy.ParseScope(strings.Repeat("x", 1<<20))
	if want := "… (1048576 bytes): name 1 is 1048576 bytes long; the most is 128"; err == nil ||
		!strings.HasSuffix(err.Error(), want) || len(err.Error()) > 1200 {
		t.Errorf("got %.2000v", err)
	}
}

func TestScopePrefix(t *testing.T) {
	t.Parallel()
	s := mustScope(t, "a/bb/ccc")
	for n, want := range map[int]string{-1: "", 0: "", 1: "a", 2: "a/bb", 3: "a/bb/ccc", 4: "a/bb/ccc", 99: "a/bb/ccc"} {
		got := s.Prefix(n)
		if got.String() != want || got.Len() != min(max(n, 0), 3) {
			t.Errorf("Prefix(%d) is %q of %d names, want %q", n, got, got.Len(), want)
		}
	}
	// "two Scopes are == exactly when they are the same path"
	if s.Prefix(2) != mustScope(t, "a/bb") || s == mustScope(t, "a/bb") {
		t.Error("== does not compare paths")
	}
	var zero policy.Scope
	if zero.Prefix(1) != zero || zero.Len() != 0 || zero.Names() != nil || zero.Provider() != "" || zero.String() != "" {
		t.Error("the zero Scope has names")
	}
}

func FuzzParseScope(f *testing.F) {
	for _, seed := range []string{"", "/", "*", "a/b", "a//b", "a/*/b", "é/日本", "a\x00", "\xff", "{a}/b:c", strings.Repeat("x", 129), "a/b/c/d/e/f/g/h/i"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := policy.ParseScope(text)
		if err != nil {
			var fault *policy.ScopeError
			if !errors.As(err, &fault) || fault.Reason == "" || !utf8.ValidString(err.Error()) || strings.ContainsAny(err.Error(), "\n\r\x00") {
				t.Fatalf("got %q", err)
			}
			return
		}
		names := s.Names()
		if s.String() != text || strings.Join(names, "/") != text || s.Len() != len(names) || len(names) > levels {
			t.Fatalf("%q has names %q", text, names)
		}
		for i, name := range names {
			if name == "" || name == "*" || len(name) > diag.MaxNameBytes || !utf8.ValidString(name) || strings.ContainsFunc(name, diag.Invisible) {
				t.Fatalf("name %q was let through", name)
			}
			again, err := policy.ParseScope(s.Prefix(i + 1).String())
			if err != nil || again != s.Prefix(i+1) || again.Provider() != names[0] {
				t.Fatalf("prefix %d of %q: %v", i+1, text, err)
			}
		}
	})
}

// docs/limits-yaml.md: "Each name is one level, whatever it holds, and two names never become the same."
func TestJoinScope(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é/", 100)
	for want, names := range map[string][]string{
		"payments/acme": {"payments", "acme"}, "vendor/acme%2Frefunds": {"vendor", "acme/refunds"}, "vendor/50%25": {"vendor", "50%"},
		"vendor/%2A": {"vendor", "*"}, "vendor/a*": {"vendor", "a*"}, "vendor/a%0Ab%FF é": {"vendor", "a\nb\xff é"}, "vendor/%E2%80%A8": {"vendor", "\u2028"}, "": {"vendor", "", "x"},
	} {
		if got := policy.JoinScope(names...); got != want {
			t.Errorf("%q is %q, want %q", names, got, want)
		}
	}
	seen := map[string]string{}
	for _, name := range []string{"a", "a/b", "a%2Fb", "*", "%2A", "%", "%25", "a\xff", "a%FF", long, long + "x", long[:len(long)-1], strings.Repeat("x", 128), strings.Repeat("x", 129), "\x00", "\ufeff", "\ufffd"} {
		joined := policy.JoinScope("p", name)
		if s, err := policy.ParseScope(joined); err != nil || s.Len() != 2 || seen[joined] != "" {
			t.Errorf("%q is %q, as %q: %v", name, joined, seen[joined], err)
		}
		seen[joined] = name
	}
}
