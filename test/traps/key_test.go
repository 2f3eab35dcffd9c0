package traps

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/headway-go/headway/lua"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// everyVerb goes through all that a limiter does, at a moment when no window is about to end.
func everyVerb(w *world, rdb redis.UniversalClient, policy *policy.Policy) {
	w.Helper()
	w.at(0)
	l, err := throttle.New(rdb, policy, throttle.Config{Prefix: w.prefix, StartTolerance: time.Second}) // however late, no start is decided anew
	if err != nil {
		w.Fatal(err)
	}
	ctx := context.Background()
	id := 0
	req := func() throttle.Request {
		id++
		return throttle.Request{Scope: "p/x", ID: fmt.Sprint("attempt ", id)}
	}
	check := func(what string, err error) {
		if err != nil {
			w.Errorf("%s: %v", what, err)
		}
	}
	d, err := l.Decide(ctx, req())
	check("decide", err)
	check("give back", l.Refund(ctx, d.Grant))
	_, err = l.Peek(ctx, req())
	check("peek", err)
	_, err = l.Start(ctx, req())
	check("start", err)
	d, err = l.Wait(ctx, req())
	check("wait", err)
	held, lease := l.Lease(ctx, d.Grant)
	check("hold", held.Err())
	check("release", lease.Release(ctx))
	for range 3 {
		_, err = l.Decide(ctx, req())
		check("refuse", err)
	}
}

// errorsOf returns what the server counts as errors, by their first word.
func errorsOf(t *testing.T, rdb *redis.Client) string {
	t.Helper()
	info, err := rdb.Info(context.Background(), "errorstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(info) {
		if name, ok := strings.CutPrefix(line, "errorstat_"); ok && !strings.HasPrefix(name, "NOSCRIPT:") {
			lines = append(lines, strings.TrimSpace(name))
		}
	}
	return strings.Join(lines, " ")
}

// Each script is one that Redis understands, in each of its
// forms, and none of what a limiter does is an error to the server: a refusal
// least of all.
func TestEveryScriptRuns(t *testing.T) {
	t.Parallel()
	t.Run("loads", func(t *testing.T) {
		t.Parallel()
		onBoth(t, func(w *world) {
			for _, s := range lua.All() {
				if sha, err := w.rdb.ScriptLoad(context.Background(), s.Source()).Result(); err != nil || sha != s.SHA() {
					w.Errorf("%s: %s, %v", s.Name, sha, err)
				}
			}
		})
	})
	t.Run("runs", func(t *testing.T) {
		t.Parallel()
		server := redistest.NewServer(t)
		rdb := server.Client(t)
		w := newWorld(t, rdb, nil)
		everyVerb(w, w.rdb, w.policy(kinds(3, 60*sec)...))
		for _, rule := range kinds(3, 60*sec) {
			w.anew()
			everyVerb(w, w.rdb, w.policy(rule))
		}
		if got := errorsOf(t, rdb); got != "" {
			t.Errorf("the server counts errors: %s", got)
		}
	})
}

// A reply is whole numbers and nothing else, so that none of it
// turns into nil on the way.
func TestWholeNumbers(t *testing.T) {
	t.Parallel()
	onBoth(t, func(w *world) {
		seen := &spy{}
		w.rdb.AddHook(seen)
		everyVerb(w, w.rdb, w.policy(kinds(3, 60*sec)...))
		calls := seen.calls
		if len(calls) < 8 {
			w.Errorf("only %d calls were seen", len(calls))
		}
		for _, args := range calls {
			reply, err := w.rdb.Do(context.Background(), args...).Result() // the same once more, unread
			parts, ok := reply.([]any)
			if !ok {
				parts = []any{reply}
			}
			for _, part := range parts {
				if _, ok := part.(int64); !ok || err != nil {
					w.Errorf("%T %v in %v; %v", part, part, reply, err)
				}
			}
		}
	})
}

// A Redis user whose patterns are exactly the keys that the
// calls declare may do all that a limiter does, and with one of them less it
// may not.
func TestOnlyDeclaredKeys(t *testing.T) {
	t.Parallel()
	for name, rules := range map[string][]policy.Rule{
		"all": kinds(3, 60*sec), "bucket": {bucket(3, 60*sec, 3)}, "sliding": {sliding(3, 60*sec)},
		"fixed": {fixed(3, 60*sec)}, "places": {places(3, 60*sec)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := onReal(t)
			seen := &spy{}
			w.rdb.AddHook(seen)
			everyVerb(w, w.rdb, w.policy(rules...))
			keys := seen.keys()
			forget := func() { w.rdb.Del(context.Background(), keys...) }
			forget()
			user := redistest.User(t, redistest.Literal(keys...))
			user.AddHook(w.clock)
			everyVerb(w, user, w.policy(rules...))
			for i, key := range keys {
				if strings.Contains(key, "@") {
					continue
				}
				forget()
				fewer := redistest.User(t, redistest.Literal(slices.Delete(slices.Clone(keys), i, i+1)...))
				if _, err := w.limiterOn(fewer, w.policy(rules...)).Allow(context.Background(), "p/x"); err == nil {
					t.Errorf("%s is declared and was not needed", key)
				}
			}
		})
	}
}

// hostile are names that could be taken for something else: for a part of
// another name, a hash tag, a pattern, an escape, an end of the key.
var hostile = []string{
	"a", "A", "b", "a:b", "a:b:c", "a%2Fb", "a%2fb", "a%", "%61", "a b", " ", "a\u00a0b", "{", "}", "{}", "{a}", "}{", "a{b}c",
	"**", "?", "[ab]", "[^a]", `\`, `\*`, "@", "a@b", "#", "'", `"`, "$1", ";", "|", "&", "<b>", "\u00e9", "e\u0301",
	"日本", "😀", "\u200b", "\u202e", "held", "a:held", "members", "policy", "hw", "-1", "0", "nil", "null", "true", strings.Repeat("x", 128),
}

// No two levels, names or rules share a key or a count, and all
// keys of a provider share its slot.
func TestNamesStayApart(t *testing.T) {
	t.Parallel()
	t.Run("keys", func(t *testing.T) {
		t.Parallel()
		w := onReal(t)
		owner, scopes := map[string]string{}, map[string]bool{}
		for _, provider := range hostile {
			for _, path := range []string{"", "/a", "/a:b", "/a/b", "/a%2Fb", "/{a}", "/*a", "/" + provider} {
				scope := provider + path
				if scopes[scope] {
					continue
				}
				scopes[scope] = true
				for _, rule := range []string{"r", "a:r", "held", "r:held"} {
					for _, key := range keysOf(w, scope, rule) {
						if other := owner[key]; other != "" {
							t.Errorf("%q is the key of %s and of %s", key, scope+" "+rule, other)
						}
						owner[key] = scope + " " + rule
						tag := key[strings.IndexByte(key, '{')+1:]
						if tag[:strings.IndexByte(tag, '}')] == "" {
							t.Errorf("%q has an empty hash tag", key)
						}
					}
				}
			}
		}
		if len(owner) < 1000 {
			t.Errorf("only %d keys", len(owner))
		}
	})
	t.Run("counts", func(t *testing.T) {
		t.Parallel()
		onBoth(t, func(w *world) {
			policy := w.parsed(`limits: {p: {scopes: {"*": {rules: [{name: r, algorithm: fixed-window, limit: 2, per: 1h}],
				scopes: {"*": {rules: [{name: r, algorithm: sliding-window, limit: 1, per: 1h}]}}}}}}`)
			w.at(0)
			l := w.limiterOn(w.rdb, policy)
			for _, name := range hostile {
				for range 2 {
					if d := l.decide(throttle.Request{Scope: "p/" + name}); !d.Allowed {
						w.Errorf("p/%s was charged for another", name)
					}
				}
			}
			for _, name := range hostile {
				if d := l.decide(throttle.Request{Scope: "p/" + name}); d.Allowed {
					w.Errorf("p/%s has more than its own", name)
				}
			}
		})
	})
}

// keysOf returns the keys that a decision names for a rule at the end of scope,
// attempt ids left out.
func keysOf(w *world, scope, rule string) []string {
	w.Helper()
	node := policy.ScopeConfig{Rules: []policy.Rule{{Name: rule, Algorithm: policy.FixedWindow, Limit: 1, Per: hour}}}
	names := strings.Split(scope, "/")
	for i := len(names) - 1; i > 0; i-- {
		node = policy.ScopeConfig{Scopes: map[string]policy.ScopeConfig{names[i]: node}}
	}
	policy, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{names[0]: node})
	if err != nil {
		w.Fatalf("%q: %v", scope, err)
	}
	seen := &spy{}
	rdb := redis.NewClient(&redis.Options{
		Addr: "127.0.0.1:1", MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	defer func() { _ = rdb.Close() }()
	rdb.AddHook(seen)
	rdb.AddHook(answering{})
	l := w.limiterOn(rdb, policy)
	l.decide(throttle.Request{Scope: scope})
	return slices.DeleteFunc(seen.keys(), func(key string) bool {
		return strings.Contains(key, "}@") || strings.HasSuffix(key, "}!upstream") // a provider has one for all
	})
}

// answering is a hook that grants every decision under one rule, without a server.
type answering struct{}

func (answering) DialHook(next redis.DialHook) redis.DialHook { return next }
func (answering) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error {
		if c, ok := cmd.(*redis.IntSliceCmd); ok {
			c.SetVal([]int64{1, 0, 0, 0, 0, 0, 0, 0, 0, 0})
		}
		return nil
	}
}

func (answering) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// A cluster decides on every level of a path in one call.
func TestOneSlot(t *testing.T) {
	t.Parallel()
	rdb := redistest.Cluster(t)
	w := newWorld(t, redistest.Client(t), nil)
	policy := w.parsed(`
limits:
  "{a} b":
    rules: [{name: account, algorithm: sliding-window, limit: 9, per: 1h}]
    scopes:
      "*":
        rules:
          - {name: tenant, algorithm: token-bucket, limit: 9, per: 1h, burst: 9}
          - {name: parallel, algorithm: concurrency, limit: 9}
        scopes: {"}{": {rules: [{name: "x:y", algorithm: fixed-window, limit: 2, per: 1h}]}}
`)
	seen := &spy{}
	rdb.AddHook(seen)
	l := w.limiterOn(rdb, policy)
	for i := range 4 {
		d := l.decide(throttle.Request{Scope: "{a} b/te{n}ant/}{", ID: fmt.Sprintf("{%d}", i)})
		if len(d.Rules) != 4 || d.Allowed != (i < 3) {
			t.Errorf("call %d: %+v", i, d)
		}
		if i == 0 {
			l.giveBack(d)
		}
	}
	slots := map[int64]bool{}
	for _, key := range seen.keys() {
		slots[rdb.ClusterKeySlot(context.Background(), key).Val()] = true
	}
	if len(slots) != 1 {
		t.Errorf("%q are in %d slots", seen.keys(), len(slots))
	}
}

// An attempt id is a name, also where it looks like a number, a
// time, a pattern or a key.
func TestIdsAreNames(t *testing.T) {
	t.Parallel()
	forEach(t, kinds(40, 60*sec), func(w *world, rule policy.Rule) {
		w.at(0)
		l := w.limiter(rule)
		for i, id := range hostile[:40] {
			d := l.decide(throttle.Request{ID: id})
			if !d.Allowed || d.Rules[0].Remaining != int64(39-i) {
				w.Errorf("%q: %+v", id, d)
			}
		}
		for _, id := range hostile[:40] {
			if d := l.decide(throttle.Request{ID: id}); !d.Allowed || d.Rules[0].Remaining != 0 {
				w.Errorf("%q again: %+v", id, d)
			}
		}
		if l.take(1).Allowed {
			w.Error("one more")
		}
	})
}

// What a rule keeps is small, whatever its limit and however its
// calls come.
func TestBoundedMemory(t *testing.T) {
	t.Parallel()
	most := map[policy.Algorithm]int64{policy.TokenBucket: 120, policy.SlidingWindow: 1024, policy.FixedWindow: 120}
	server := redistest.NewServer(t)
	for _, rule := range append(rates(100, 60*sec), rates(1_000_000, 60*sec)...) {
		w := newWorld(t, server.Client(t), nil)
		w.prefix = "hw" // as it is by default: the name is part of what a key takes
		l := w.limiter(rule)
		admitted := int64(0)
		for i := range 1500 {
			w.at(time.Duration(i) * 41 * ms)
			cost := 1 + int64(i%7)*rule.Limit/5000
			if l.take(cost).Allowed {
				admitted += cost
			}
		}
		if admitted < rule.Limit*9/10 {
			t.Errorf("%d of %d were used: the test did not fill it", admitted, rule.Limit)
		}
		key := "hw:{p}:" + rule.Name
		if size := w.rdb.MemoryUsage(context.Background(), key).Val(); size == 0 || size > most[rule.Algorithm] {
			t.Errorf("%s of %d takes %d bytes, want %d at most", key, rule.Limit, size, most[rule.Algorithm])
		}
		w.rdb.FlushAll(context.Background())
	}
}

// A decision costs the same commands whatever else Redis keeps.
func TestSameWork(t *testing.T) {
	t.Parallel()
	rdb := redistest.NewServer(t).Client(t)
	w := newWorld(t, rdb, nil)
	w.at(0)
	l := w.limiter(kinds(5, 60*sec)...)
	l.admitted(2)
	work := func() map[string]int {
		commands := redistest.Commands(t, rdb, func() { l.admitted(10) })
		delete(commands, "pexpire") // one more when a millisecond has passed
		return commands
	}
	w.anew()
	l = w.limiter(kinds(5, 60*sec)...)
	before := work()
	pipe := rdb.Pipeline()
	for i := range 20_000 {
		pipe.Set(context.Background(), fmt.Sprintf("%s:{p}/tenant%d:sliding", w.prefix, i), "x", hour)
	}
	if _, err := pipe.Exec(context.Background()); err != nil {
		t.Fatal(err)
	}
	w.anew()
	l = w.limiter(kinds(5, 60*sec)...)
	if after := work(); fmt.Sprint(after) != fmt.Sprint(before) || before["evalsha"] != 10 {
		t.Errorf("%v beside 20,000 keys, and %v beside none", after, before)
	}
}

// N callers on one key are N calls at most, fewer where they share one, and none is
// refused while units are left: nobody tries again because somebody else was quicker.
func TestOneRoundTrip(t *testing.T) {
	t.Parallel()
	rdb := redistest.NewServer(t).Client(t)
	w := newWorld(t, rdb, nil)
	w.at(0)
	l := w.limiter(rates(300, 60*sec)...)
	l.take(1) // so that the script is known
	commands := redistest.Commands(t, rdb, func() {
		if got := attack(w, []limiter{l, l}, 299); got != 299 {
			t.Errorf("%d of 299 were admitted", got)
		}
	})
	if calls := commands["evalsha"] + commands["eval"]; calls == 0 || calls > 299 {
		t.Errorf("%v for 299 decisions", commands)
	}
}
