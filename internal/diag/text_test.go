package diag

import (
	"strings"
	"testing"
)

// "the closest within two typing mistakes, within one for words of four letters or fewer"
func TestNearest(t *testing.T) {
	t.Parallel()
	fields := []string{
		"name", "algorithm", "limit", "per", "burst", "lease", "on_redis_error", "margin", "max_wait",
		"resets", "timezone", "rollover", "spread", "unlimited",
	}
	for i, row := range []struct{ word, want string }{
		0: {"limit", "limit"}, 1: {"limits", "limit"}, 2: {"lmit", "limit"}, 3: {"Limit", "limit"}, 4: {"lit", "limit"}, 5: {"li", ""},
		6: {"pre", ""}, 7: {"prer", "per"}, 8: {"pe", "per"}, 9: {"p", ""}, 10: {"nme", "name"}, 11: {"nm", ""},
		12: {"max-wait", "max_wait"}, 13: {"MaxWait", "max_wait"}, 14: {"on-redis-fail", ""}, 15: {"onRedisError", "on_redis_error"},
		16: {"", ""}, 17: {strings.Repeat("x", 1<<20), ""}, 18: {"leese", "lease"}, 19: {"unlimite", "unlimited"},
	} {
		if got := Nearest(row.word, fields); got != row.want {
			t.Errorf("%d: %q is near %q, want %q", i, row.word, got, row.want)
		}
	}
}

func TestMeant(t *testing.T) {
	t.Parallel()
	words := []string{"deny", "fail", "allow"}
	for word, want := range map[string]string{"Deny": "did you mean deny?", "x": "write deny, fail or allow"} {
		if got := Meant(word, words); got != want {
			t.Errorf("%q: %s", word, got)
		}
	}
	for name, want := range map[string]string{"a-B_0": "a.a-B_0", "*": `a."*"`, "": `a.""`} {
		if got := PathTo("a", name); got != want {
			t.Errorf("%q: %s", name, got)
		}
	}
}
