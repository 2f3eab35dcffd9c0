package throttle

import (
	"strings"
	"testing"

	"github.com/headway-go/headway/lua"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

// docs/limiter.md: "A limiter sends a script when it is first needed, with the parts for its rules' algorithms alone": of one that
// only allows, Redis gets one text, once, and each other decision is a call by its hash.
func TestOnlyScriptsInUse(t *testing.T) {
	t.Parallel()
	rdb := redistest.NewServer(t).Client(t)
	l := newLimiter(t, rdb, policy.PerSecond("p", 100), Config{})
	commands := redistest.Commands(t, rdb, func() {
		for range 5 {
			noError(t, allowed(l, "p/x"))
		}
	})
	if commands["evalsha"] != 5 || commands["eval"] != 1 || commands["script|load"] != 0 {
		t.Errorf("%v", commands)
	}
	scripts := func(want string) {
		t.Helper()
		if info := rdb.Info(t.Context(), "memory").Val(); !strings.Contains(info, "number_of_cached_scripts:"+want+"\r\n") {
			t.Errorf("Redis does not know %s scripts: %s", want, info)
		}
	}
	scripts("1")
	small := lua.Decide.For("S")
	known, err := rdb.ScriptExists(t.Context(), small.SHA()).Result()
	if err != nil || !known[0] || len(small.Source()) >= len(lua.Decide.Source()) {
		t.Errorf("the script for sliding windows is known: %v, %v", known, err)
	}
	// What is needed next comes by itself.
	d, err := l.Decide(t.Context(), Request{Scope: "p/x"})
	if err != nil || !d.Allowed {
		t.Fatal(d, err)
	}
	if _, err := l.Settle(t.Context(), d.Grant, policy.Costs{policy.Requests: 2}); err != nil {
		t.Fatal(err)
	}
	scripts("2")
}
