package throttle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/programs"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

func failing(p policy.FailurePolicy) policy.Rule {
	return policy.Rule{Name: string(p), Algorithm: policy.SlidingWindow, Limit: 10, Per: sec, OnRedisError: p}
}

// outages is every way in which Redis fails to decide.
func outages(t *testing.T) map[string]redis.UniversalClient {
	t.Helper()
	refused := clientOf(t, &redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, DialerRetries: 1})
	hung := &cable{}
	hung.hung.Store(true)
	opts := hung.through(optionsOf(t))
	opts.MaxRetries, opts.ReadTimeout = -1, 50*ms
	closed := clientOf(t, optionsOf(t))
	_ = closed.Close()
	return map[string]redis.UniversalClient{
		"connection refused": refused,
		"time-out":           clientOf(t, opts),
		"closed client":      closed,
		"OOM":                answering(t, reply("OOM command not allowed when used memory > 'maxmemory'")),
		"READONLY":           answering(t, reply("READONLY You can't write against a read only replica")),
		"NOPERM, no script":  redistest.User(t, []string{"*"}, "ping"),
		"NOPERM, no key":     redistest.User(t, nil),
		"NOAUTH":             answering(t, reply("NOAUTH Authentication required")),
		"LOADING":            answering(t, reply("LOADING Redis is loading the dataset in memory")),
		"MASTERDOWN":         answering(t, reply("MASTERDOWN Link with MASTER is down")),
		"CLUSTERDOWN":        answering(t, reply("CLUSTERDOWN The cluster is down")),
		"BUSY":               answering(t, reply("BUSY Redis is busy running a script")),
		"script error":       answering(t, reply("ERR user_script:1: attempt to index a nil value")),
		"nil":                answering(t, redis.Nil),
		"short array":        answering(t, []any{int64(1)}),
		"long array":         answering(t, slices.Repeat([]any{int64(1)}, 11)),
		"array of text":      answering(t, slices.Repeat([]any{"yes"}, 10)),
		"number":             answering(t, int64(1)),
	}
}

// "When Redis cannot answer, the rule's policy decides: closed (default: the task waits), open, or a local share of the
// limit. Never silently open." A closed rule on the path outweighs the others; Without Heartbeat it is closed.
func TestFailurePolicies(t *testing.T) {
	t.Parallel()
	for outage, rdb := range outages(t) {
		t.Run(outage, func(t *testing.T) {
			t.Parallel()
			for name, test := range map[string]struct {
				rules   []policy.Rule
				members int64
				allowed bool
			}{
				"default":                         {[]policy.Rule{{Name: "r", Algorithm: policy.SlidingWindow, Limit: 10, Per: sec}}, 1, false},
				"closed":                          {[]policy.Rule{failing(policy.FailClosed)}, 1, false},
				"open":                            {[]policy.Rule{failing(policy.FailOpen)}, 0, true},
				"closed outweighs open":           {[]policy.Rule{failing(policy.FailOpen), failing(policy.FailClosed)}, 1, false},
				"closed outweighs share":          {[]policy.Rule{failing(policy.FailShare), failing(policy.FailClosed)}, 1, false},
				"share without Heartbeat":         {[]policy.Rule{failing(policy.FailShare)}, 0, false},
				"share without Heartbeat or open": {[]policy.Rule{failing(policy.FailOpen), failing(policy.FailShare)}, 0, false},
			} {
				l := newLimiter(t, rdb, policyOf(t, test.rules...), Config{Prefix: redistest.Prefix(t), Timeout: sec})
				l.members.Store(test.members)
				d, err := l.Allow(t.Context(), "p/x")
				if d.Allowed != test.allowed || d.Degraded != test.allowed || errors.Is(err, ErrUnavailable) == test.allowed || test.allowed && err != nil {
					t.Errorf("%s: got %+v, %v", name, d, err)
				}
				if _, err := l.Peek(t.Context(), Request{Scope: "p/x"}); !errors.Is(err, ErrUnavailable) {
					t.Errorf("%s: Peek says %v; it asks Redis whatever the policy", name, err)
				}
			}
		})
	}
}

// A key that holds something else is never taken over, nor taken for an empty one (traps T26, T44).
func TestForeignKey(t *testing.T) {
	t.Parallel()
	for _, r := range everyRule {
		for _, foreign := range []string{"list", "set"} {
			b := newBench(t, redistest.Client(t), Config{}, policyOf(t, r))
			key := keyOf(t, b.Limiter, "p/x", 0)
			put := b.rdb.RPush
			if foreign == "set" {
				put = b.rdb.SAdd
			}
			noError(t, put(t.Context(), key, "foreign").Err())
			d, err := b.Allow(t.Context(), "p/x")
			if kind := b.rdb.Type(t.Context(), key).Val(); !errors.Is(err, ErrUnavailable) || d.Allowed || kind != foreign {
				t.Errorf("%s over a %s, now a %s: %+v, %v", r.Algorithm, foreign, kind, d, err)
			}
		}
	}
}

// "Logger gets a line when Redis becomes unavailable and when it is available again": one each, however
// many calls fail, and although some keys answer meanwhile.
func TestOutageIsToldOnce(t *testing.T) {
	t.Parallel()
	log := &programs.Output{}
	open := failing(policy.FailOpen)
	policy := limitsOf(t, map[string]policy.ScopeConfig{"p": {Scopes: map[string]policy.ScopeConfig{"*": {Rules: []policy.Rule{open}}}}})
	bubble(t, Config{Logger: slog.New(slog.NewTextHandler(log, nil))}, policy, nil, func(t *testing.T, w *cable, l *Limiter) {
		ask := func(scope string, degraded bool) {
			t.Helper()
			if d, err := l.Allow(t.Context(), scope); err != nil || d.Degraded != degraded {
				t.Errorf("got %+v, %v; degraded should be %t", d, err, degraded)
			}
		}
		ask("p/x", false)
		for range 3 {
			w.down.Store(true)
			began := time.Now()
			for time.Since(began) < 5*sec {
				ask("p/x", true)
				<-time.After(100 * ms)
			}
			w.down.Store(false)
			<-time.After(2 * sec) // which the client takes to dial again
			ask("p/x", false)
			ask("p/y", false)
		}
		noError(t, l.rdb.RPush(t.Context(), keyOf(t, l, "p/foreign", 0), "x").Err())
		for range 20 {
			ask("p/foreign", true)
			ask("p/x", false)
			<-time.After(200 * ms)
		}
		<-time.After(sec)
		ask("p/x", false)
	})
	said := log.String()
	stopped := strings.Count(said, `level=WARN msg="redis unavailable; applying on_redis_error"`)
	started := strings.Count(said, `level=INFO msg="redis available again; on_redis_error no longer applies" outage=`)
	if stopped != 4 || started != 4 || strings.Count(said, "\n") != 8 {
		t.Errorf("four outages were told in these lines:\n%s", said)
	}
}

func noRetries(opts *redis.Options) { opts.MaxRetries = -1 }

// During an outage a share is spent in this process and no other, under all of its rules or none.
func TestShareDuringOutage(t *testing.T) {
	t.Parallel()
	window := policy.Rule{Name: "window", Algorithm: policy.SlidingWindow, Limit: 9, Per: 10 * sec, OnRedisError: policy.FailShare}
	runs := policy.Rule{Name: "runs", Algorithm: policy.Concurrency, Limit: 5, Lease: 20 * sec, OnRedisError: policy.FailShare}
	open := failing(policy.FailOpen)
	bubble(t, Config{StartTolerance: -1}, policyOf(t, window, runs, open), noRetries, func(t *testing.T, w *cable, l *Limiter) {
		l.members.Store(2)
		w.down.Store(true)
		decide := func(what string, cost int64, want string) Grant {
			t.Helper()
			d, err := l.Decide(t.Context(), Request{Scope: "p/x", Cost: cost})
			binds, _ := d.BindingRule()
			if got := fmt.Sprintf("%t by %s in %s: %s", d.Allowed, binds.Rule, d.RetryAfter, leftOf(d)); err != nil || !d.Degraded || got != want {
				t.Errorf("%s: got %s; want %s; %v", what, got, want, err)
			}
			return d.Grant
		}
		decide("what Redis granted before is not counted", 1, "false by runs in 20s: window 0, runs 0, open 10")
		<-time.After(20 * sec)
		first := decide("the window has four, half of nine", 3, "true by window in 0s: window 1, runs 1, open 10")
		decide("the window has one", 2, "false by window in 10s: window 1, runs 1, open 10")
		second := decide("the last one", 1, "true by window in 0s: window 0, runs 0, open 10")
		<-time.After(10 * sec)
		decide("both places are taken", 1, "false by runs in 10s: window 4, runs 0, open 10")
		_, lease := l.Lease(t.Context(), first)
		noError(t, l.Refund(t.Context(), second))
		decide("a place was given back", 1, "true by runs in 0s: window 3, runs 0, open 10")
		<-time.After(time.Hour)
		decide("a held place lasts, and one that was left does not", 1, "true by runs in 0s: window 3, runs 0, open 10")
		noError(t, errors.Join(lease.Release(t.Context()), lease.Release(t.Context())))
		decide("a place was released", 1, "true by runs in 0s: window 2, runs 0, open 10")
		w.down.Store(false)
		if d, err := l.Allow(t.Context(), "p/x"); err != nil || !d.Allowed || d.Degraded || d.Rules[0].Limit != 9 || d.Rules[1].Remaining != 4 {
			t.Errorf("Redis decides again: %+v, %v", d, err)
		}
	})
}

// "a local share of the limit": the processes that joined are counted, those
// that left or died are not, and one that left has no share itself.
func TestJoin(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, _ := redistest.Miniredis(t)
		pol := policyOf(t, failing(policy.FailShare))
		var limiters [3]*Limiter
		var wires [3]*cable
		var leave [3]context.CancelFunc
		var joined sync.WaitGroup
		for i := range limiters {
			wires[i] = &cable{}
			l := newLimiter(t, clientOf(t, wires[i].through(redistest.MiniredisOptions(m))), pol, Config{Prefix: "joined"})
			limiters[i] = l
			var ctx context.Context
			ctx, leave[i] = context.WithCancel(t.Context())
			joined.Go(func() { l.Heartbeat(ctx) })
		}
		live := func(want ...int64) {
			t.Helper()
			<-time.After(2 * memberBeat)
			synctest.Wait()
			for i, l := range limiters {
				if got := l.members.Load(); got != want[i] {
					t.Errorf("limiter %d counts %d, want %d", i, got, want[i])
				}
			}
		}
		live(3, 3, 3)
		leave[0]()
		live(0, 2, 2)
		wires[1].down.Store(true)
		live(0, 2, 2) // its stay lasts
		<-time.After(memberStay)
		live(0, 2, 1) // and it keeps the count that it last saw
		wires[1].down.Store(false)
		live(0, 2, 2)
		wires[2].down.Store(true)
		d, err := limiters[2].Allow(t.Context(), "p/x")
		if err != nil || d.Rules[0].Limit != 5 {
			t.Errorf("its share is %+v, %v; want half of 10", d, err)
		}
		leave[1]()
		leave[2]()
		synctest.Wait()
		if _, err := limiters[2].Allow(t.Context(), "p/x"); !errors.Is(err, ErrUnavailable) {
			t.Errorf("a process that left has a share: %v", err)
		}
		joined.Wait()
	})
}
