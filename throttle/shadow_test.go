package throttle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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

// shadowsTold gathers what shadow rules said.
type shadowsTold struct {
	mu   sync.Mutex
	list []Shadowed
}

func (s *shadowsTold) add(one Shadowed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, one)
}

// of waits until so many were told, and returns how many had each outcome.
func (s *shadowsTold) of(t *testing.T, n int) map[ShadowOutcome]int {
	t.Helper()
	redistest.WaitFor(t, fmt.Sprint(n, " answers of shadow rules"), bound, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.list) >= n
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	by := map[ShadowOutcome]int{}
	for _, one := range s.list {
		by[one.Outcome]++
	}
	if len(s.list) > n {
		t.Errorf("%d answers, want %d: %v", len(s.list), n, by)
	}
	return by
}

// tellsShadows has the limiter tell what its shadow rules say.
func (b *bench) tellsShadows() *shadowsTold {
	told := &shadowsTold{}
	b.shadows.onShadow = told.add
	return told
}

func shadowLeft(b *bench, scope string) int64 {
	b.t.Helper()
	states, err := b.PeekShadows(context.Background(), scope)
	if err != nil || len(states) != 1 {
		b.t.Fatalf("got %+v, %v", states, err)
	}
	return states[0].Remaining
}

var trial = policy.Rule{Name: "trial", Algorithm: policy.SlidingWindow, Limit: 2, Per: sec, Shadow: true}

// "It decides and counts what it would have done, and stops nothing", beside a rule and
// alone. What it says is nobody's part of a decision.
func TestShadowStopsNothing(t *testing.T) {
	t.Parallel()
	account := policy.Rule{Name: "account", Algorithm: policy.TokenBucket, Limit: 100, Per: sec, Burst: 100}
	for name, rules := range map[string][]policy.Rule{"beside a rule": {account, trial}, "alone": {trial}} {
		for _, verb := range []string{"Decide", "Start", "Wait"} {
			onBothIn(t, name+" "+verb, Config{}, policyOf(t, rules...), func(b *bench) {
				told := b.tellsShadows()
				do := map[string]func(context.Context, Request) (Decision, error){"Decide": b.Decide, "Start": b.Start, "Wait": b.Wait}[verb]
				for range 10 {
					d, err := do(b.t.Context(), Request{Scope: "p/x"})
					if err != nil || !d.Allowed || len(d.Rules) != len(rules)-1 {
						b.t.Fatalf("got %+v, %v", d, err)
					}
				}
				if by := told.of(b.t, 10); by[ShadowAllowed] != 2 || by[ShadowDenied] != 8 {
					b.t.Errorf("got %v", by)
				}
				for _, one := range told.list {
					if one.Rule != "trial" || one.Pattern != "p" || one.Scope != "p" || one.Cost != 1 ||
						one.Limited != (one.Outcome == ShadowDenied) || one.Limited != (one.RetryAfter > 0) {
						b.t.Errorf("told %+v", one)
					}
				}
				if left := shadowLeft(b, "p/x"); left != 0 {
					b.t.Errorf("%d left", left)
				}
			})
		}
	}
}

// "Given back when the real grant is given back", one that took nothing itself too, and one whose start has not come.
func TestShadowIsGivenBack(t *testing.T) {
	t.Parallel()
	account := policy.Rule{Name: "account", Algorithm: policy.TokenBucket, Limit: 100, Per: sec, Burst: 1}
	for name, rules := range map[string][]policy.Rule{"beside a rule": {account, trial}, "alone": {trial}} {
		onBothIn(t, name, Config{}, policyOf(t, rules...), func(b *bench) {
			told := b.tellsShadows()
			d := b.decide(Request{Scope: "p/x"})
			told.of(b.t, 1)
			if left := shadowLeft(b, "p/x"); left != 1 {
				b.t.Fatalf("%d left", left)
			}
			b.giveBack(d.Grant)
			b.giveBack(d.Grant)
			redistest.WaitFor(b.t, "the unit to come back", bound, func() bool { return shadowLeft(b, "p/x") == 2 })
			if len(rules) == 1 {
				return
			}
			b.decide(Request{Scope: "p/x"})
			ahead := b.decide(Request{Scope: "p/x", MaxDelay: MaxDelayLimit})
			if !ahead.Allowed || ahead.Wait == 0 {
				b.t.Fatalf("got %+v", ahead)
			}
			b.giveBack(ahead.Grant)
			if ahead.Grant.shadow.state != shadowRefunded {
				b.t.Error("it is asked about although it was given back")
			}
		})
	}
}

// "Nothing of it is in the path of a decision": where its calls hang, starts do not wait,
// and no more than a bounded number of questions is on its way; the others are told.
func TestShadowDelaysNobody(t *testing.T) {
	t.Parallel()
	rdb, hung := clientOf(t, optionsOf(t)), make(chan struct{})
	open := sync.OnceFunc(func() { close(hung) })
	t.Cleanup(open)
	rdb.AddHook(redistest.Each(func(cmd redis.Cmder, send func() error) error {
		if args := cmd.Args(); strings.Contains(fmt.Sprint(args[min(2, len(args)):]...), "trial") { // not in a script's text, which has that word, too
			<-hung
		}
		return send()
	}))
	told := &shadowsTold{}
	account := policy.Rule{Name: "account", Algorithm: policy.TokenBucket, Limit: 1000, Per: sec, Burst: 1000}
	l := newLimiter(t, rdb, policyOf(t, account, trial), Config{Prefix: redistest.Prefix(t), OnShadow: told.add, Timeout: bound})
	const more = 44
	for range mostShadows + more {
		grantedBy(t, l)
	}
	if by := told.of(t, more); by[ShadowDropped] != more {
		t.Errorf("got %v while its calls hang", by)
	}
	open()
	if by := told.of(t, mostShadows+more); by[ShadowAllowed] == 0 || by[ShadowAllowed]+by[ShadowDenied] != mostShadows {
		t.Errorf("got %v", by)
	}
}

// An outage is nothing to a scope that has shadow rules alone, and degraded starts are not asked about; the log has one line of it.
func TestShadowInAnOutage(t *testing.T) {
	t.Parallel()
	for name, rules := range map[string][]policy.Rule{
		"alone": {trial}, "beside an open rule": {{Name: "open", Algorithm: policy.Concurrency, Limit: 1, OnRedisError: policy.FailOpen}, trial},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb := clientOf(t, &redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
			told, log := &shadowsTold{}, &programs.Output{}
			l := newLimiter(t, rdb, policyOf(t, rules...), Config{OnShadow: told.add, Logger: slog.New(slog.NewTextHandler(log, nil))})
			for range 5 {
				d, err := l.Wait(t.Context(), Request{Scope: "p/x"})
				if err != nil || !d.Allowed || d.Degraded != (len(rules) > 1) {
					t.Fatalf("got %+v, %v", d, err)
				}
				_, lease := l.Lease(t.Context(), d.Grant)
				noError(t, errors.Join(lease.Release(t.Context()), l.Refund(t.Context(), d.Grant)))
			}
			want, lines := 5, 1
			if len(rules) > 1 {
				want, lines = 0, 0
			}
			if by := told.of(t, want); by[ShadowFailed] != want {
				t.Errorf("got %v", by)
			}
			redistest.WaitFor(t, "what is on its way", bound, func() bool { return l.shadows.out.Load() == 0 })
			if got := strings.Count(log.String(), "cannot evaluate shadow rules"); got != lines {
				t.Errorf("%d lines:\n%s", got, log)
			}
		})
	}
}

// A rule may become a shadow, and a shadow a rule, while tasks run: what was spent under the one is spent under the other.
func TestShadowComesAlive(t *testing.T) {
	t.Parallel()
	alive := trial
	alive.Shadow = false
	onBoth(t, Config{}, policyOf(t, trial), func(b *bench) {
		told := b.tellsShadows()
		b.decide(Request{Scope: "p/x"})
		told.of(b.t, 1)
		b.SetPolicy(policyOf(b.t, alive))
		if d := b.decide(Request{Scope: "p/x"}); !d.Allowed || d.Rules[0].Remaining != 0 {
			b.t.Errorf("got %+v", d)
		}
		b.grants(Request{Scope: "p/x"}, sec)
		b.SetPolicy(policyOf(b.t, trial))
		b.grants(Request{Scope: "p/x"}, 0)
		if by := told.of(b.t, 2); by[ShadowDenied] != 1 {
			b.t.Errorf("got %v", by)
		}
		if done, err := b.Reset(t.Context(), "p", ""); err != nil || len(done) != 1 || shadowLeft(b, "p/x") != 2 {
			b.t.Errorf("it was not reset: %v, %v", done, err)
		}
	})
}

// "At most once a minute for each rule": how many starts it would have made wait, if any.
func TestShadowIsTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, rdb := redistest.Miniredis(t)
		log := &programs.Output{}
		text := slog.NewTextHandler(log, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey || a.Key == "longest" {
				return slog.Attr{}
			}
			return a
		}})
		slow := policy.Rule{Name: "slow", Algorithm: policy.SlidingWindow, Limit: 2, Per: 5 * time.Minute, Shadow: true}
		l := newLimiter(t, rdb, policyOf(t, slow), Config{Logger: slog.New(text)})
		start := func() {
			noError(t, allowed(l, "p/x"))
			synctest.Wait()
		}
		start()
		start()
		<-time.After(2 * time.Minute)
		if log.String() != "" {
			t.Errorf("nothing would have waited:\n%s", log)
		}
		for range 70 {
			start()
			<-time.After(1010 * time.Millisecond) // none at the very end of the minute, before it or after
		}
		<-time.After(time.Hour)
		const want = `level=INFO msg="shadow rule would have delayed tasks" rule=p:slow starts=60 would_have_waited=60 within=1m0s
level=INFO msg="shadow rule would have delayed tasks" rule=p:slow starts=10 would_have_waited=10 within=1m0s
`
		if got := log.String(); got != want {
			t.Errorf("got:\n%swant:\n%s", got, want)
		}
	})
}

// "Safe for concurrent use": the race detector is the judge, every start is counted, and all places come free.
func TestShadowConcurrently(t *testing.T) {
	t.Parallel()
	told := &shadowsTold{}
	places := policy.Rule{Name: "places", Algorithm: policy.Concurrency, Limit: 3, Shadow: true}
	l := newLimiter(t, redistest.Client(t), policyOf(t, trial, places), Config{Prefix: redistest.Prefix(t), OnShadow: told.add})
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for n := range 50 {
				d, err := l.Start(ctx, Request{Scope: "p/x"})
				if err != nil || !d.Allowed {
					t.Errorf("got %+v, %v", d, err)
				}
				_, lease := l.Lease(ctx, d.Grant)
				if n%3 == 0 {
					_ = l.Refund(ctx, d.Grant)
				}
				_ = lease.Release(ctx)
			}
		})
	}
	group.Wait()
	told.of(t, 8*50*2)
	redistest.WaitFor(t, "all places to come free", bound, func() bool {
		states, err := l.PeekShadows(ctx, "p/x")
		return err == nil && states[1].Remaining == 3
	})
}
