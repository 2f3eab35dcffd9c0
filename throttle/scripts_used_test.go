package throttle

import (
	"regexp"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/lua"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

// docs/limiter.md: "A limiter sends a script when it is first needed, with the parts for its rules' algorithms alone": of one that
// only allows, Redis gets one text, once, and each other decision is a call by its hash.
func TestOnlyScriptsInUse(t *testing.T) {
	t.Parallel()
	rdb := redistest.NewServer(t).Client(t)
	l, err := New(rdb, policy.PerSecond("p", 100), Config{})
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if err := allowed(l, "p/x"); err != nil {
			t.Fatal(err)
		}
	}
	for command, want := range map[string]string{"evalsha": "5", "eval": "1", "script|load": ""} {
		if got := infoOf(t, rdb, "commandstats", `cmdstat_`+regexp.QuoteMeta(command)+`:calls=(\d+)`); got != want {
			t.Errorf("%s was called %q times, want %q", command, got, want)
		}
	}
	if got := infoOf(t, rdb, "memory", `number_of_cached_scripts:(\d+)`); got != "1" {
		t.Errorf("Redis knows %s scripts, want 1", got)
	}
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
	if got := infoOf(t, rdb, "memory", `number_of_cached_scripts:(\d+)`); got != "2" {
		t.Errorf("Redis knows %s scripts after a settlement, want 2", got)
	}
}

// infoOf returns a field of INFO, empty where it is not there.
func infoOf(t *testing.T, rdb *redis.Client, section, field string) string {
	t.Helper()
	info, err := rdb.Info(t.Context(), section).Result()
	if err != nil {
		t.Fatal(err)
	}
	if m := regexp.MustCompile(field).FindStringSubmatch(info); m != nil {
		return m[1]
	}
	return ""
}
