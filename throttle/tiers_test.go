package throttle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/waitlist"
	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/test/programs"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

// tieredPolicy has a free tier of one start an hour, which "*" has too, and a gold one of many.
func tieredPolicy(t *testing.T) *policy.Policy {
	t.Helper()
	rules := func(limit int64) policy.ScopeConfig {
		return policy.ScopeConfig{Rules: []policy.Rule{{Name: "tenant", Algorithm: policy.SlidingWindow, Limit: limit, Per: time.Hour}}}
	}
	p, err := policy.New("", map[string]policy.ScopeConfig{"p": {
		Tiers: map[string]policy.ScopeConfig{"gold": rules(1000), "free": rules(1)}, Scopes: map[string]policy.ScopeConfig{"*": rules(1)},
	}})
	redistest.Must(t, err)
	return p
}

// source is a database of tiers that can fail.
type source struct {
	mu    sync.Mutex
	tiers map[string]string
	err   error
	asked atomic.Int64
}

func (s *source) set(name, tier string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tiers[name], s.err = tier, err
}

func (s *source) tierOf(_ context.Context, name policy.Scope) (string, error) {
	s.asked.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tiers[name.String()], s.err
}

// troubles counts what a limiter reports.
type troubles struct {
	NoObserver
	mu  sync.Mutex
	all []TierTrouble
}

func (o *troubles) TierTrouble(t TierTrouble) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all = append(o.all, t)
}

func (o *troubles) take() (all []TierTrouble) {
	o.mu.Lock()
	defer o.mu.Unlock()
	all, o.all = o.all, nil
	return all
}

// offline is a client that is never used.
func offline(t *testing.T) redis.UniversalClient {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// limitOf returns the limit of a tenant's rule, as the limiter has compiled it.
func limitOf(t *testing.T, l *Limiter, scope string) int64 {
	t.Helper()
	s, err := l.scopes.Of(scope)
	redistest.Must(t, err)
	return s.Rules[0].Rule.Limit
}

// "It is asked once for each name, and again after TierTTL in the background. If it fails, the last tier that it returned counts, and
// Logger and Observer are told", once a minute in the log.
func TestTierOf(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, seen, log := &source{tiers: map[string]string{"p/acme": "gold"}}, &troubles{}, &programs.Output{}
		l, err := New(offline(t), tieredPolicy(t), Config{TierOf: db.tierOf, Observer: seen, Logger: slog.New(slog.NewTextHandler(log, nil))})
		redistest.Must(t, err)
		pass := func(d time.Duration) { <-time.NewTimer(d).C }
		want := func(what, scope string, limit, asked int64) {
			t.Helper()
			got := limitOf(t, l, scope)
			synctest.Wait() // for what it asks in the background
			if got != limit || db.asked.Swap(0) != asked {
				t.Errorf("%s: %s has the limit %d, want %d, after %d questions", what, scope, got, limit, asked)
			}
		}
		want("first", "p/acme", 1000, 1)
		want("again", "p/acme", 1000, 0)
		want("below", "p/acme/refunds", 1000, 0)
		want("no tier", "p/other", 1, 1)
		db.set("p/acme", "free", nil)
		pass(time.Minute)
		want("out of date", "p/acme", 1000, 1)
		want("then", "p/acme", 1, 0)
		want("below, then", "p/acme/refunds", 1, 0)
		db.set("p/acme", "gold", nil)
		pass(time.Minute)
		want("out of date", "p/acme", 1, 1)

		db.set("p/acme", "", errors.New("the database is down"))
		pass(time.Minute)
		want("while it fails", "p/acme", 1000, 1)
		want("at once again", "p/acme", 1000, 0)
		want("a new name", "p/new", 1, 0) // which nobody waits for
		if all := seen.take(); len(all) != 1 || all[0].Name != "p/acme" || all[0].Tier != "gold" || all[0].Err == nil {
			t.Errorf("reported %+v", all)
		}
		pass(tierRetry + time.Second)
		want("it still fails", "p/acme", 1000, 1)
		if n := strings.Count(log.String(), "cannot ask for the tier"); n != 1 || !strings.Contains(log.String(), "the database is down") {
			t.Errorf("logged %d times:\n%s", n, log)
		}
		db.set("p/new", "gold", nil)
		pass(tierRetry + time.Second)
		want("a new name, when it is back", "p/new", 1, 1)
		want("then", "p/new", 1000, 0)

		seen.take()
		db.set("p/odd", "platinum", nil)
		want("an unknown tier", "p/odd", 1, 1)
		if all := seen.take(); len(all) != 1 || all[0].Unknown != "platinum" || all[0].Tier != "" {
			t.Errorf("reported %+v", all)
		}
	})
}

// A source that hangs delays one caller for a second, and the others not at all.
func TestTierOfHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, err := New(offline(t), tieredPolicy(t), Config{TierOf: func(ctx context.Context, _ policy.Scope) (string, error) {
			<-ctx.Done()
			return "", ctx.Err()
		}})
		redistest.Must(t, err)
		began := time.Now()
		for i := range 100 {
			limitOf(t, l, fmt.Sprint("p/", i))
		}
		if took := time.Since(began); took != tierBound {
			t.Errorf("100 names took %s", took)
		}
		synctest.Wait()
	})
}

// "100,000 tenants with tiers cost no more memory than their names": an entry costs no more than a name in a set of names. "100,000 names are
// kept", and no more.
func TestTiersMemory(t *testing.T) {
	l, err := New(offline(t), tieredPolicy(t), Config{TierOf: func(_ context.Context, name policy.Scope) (string, error) {
		return []string{"", "gold", "free"}[len(name.String())%3], nil
	}})
	redistest.Must(t, err)
	names := make([]policy.Scope, maxTiers)
	for i := range names {
		names[i], err = policy.ParseScope(fmt.Sprintf("p/customer-%06d", i))
		redistest.Must(t, err)
	}
	held := func(fill func()) int64 {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		fill()
		runtime.GC()
		runtime.ReadMemStats(&after)
		return int64(after.HeapAlloc) - int64(before.HeapAlloc) //nolint:gosec // less than that
	}
	set := map[string]string{}
	base := held(func() {
		for _, name := range names {
			set[strings.Clone(name.String())] = ""
		}
	})
	cost := held(func() {
		for _, name := range names {
			l.tiers.tier(name)
		}
	})
	t.Logf("%d names: %d bytes with their tiers, %d in a map of texts by name", len(names), cost, base)
	runtime.KeepAlive(names)
	if runtime.KeepAlive(set); cost > base {
		t.Errorf("%d names cost %d bytes with their tiers, and %d in a map of texts", len(names), cost, base)
	}
	more, err := policy.ParseScope("p/one-more")
	redistest.Must(t, err)
	l.tiers.tier(more)
	if len(l.tiers.known) > maxTiers {
		t.Errorf("%d names are kept", len(l.tiers.known))
	}
}

// A name that is asked for again since its place went to others has the tier that it has then, where it was compiled before as well.
func TestForgottenTier(t *testing.T) {
	t.Parallel()
	for _, then := range []string{"", "free"} {
		db := &source{tiers: map[string]string{"p/acme": "gold"}}
		l, err := New(offline(t), tieredPolicy(t), Config{TierOf: db.tierOf})
		redistest.Must(t, err)
		if limit := limitOf(t, l, "p/acme"); limit != 1000 {
			t.Fatalf("gold: the limit is %d", limit)
		}
		for i := range maxTiers * 20 { // any of them goes
			name, err := policy.ParseScope(fmt.Sprint("p/", i))
			redistest.Must(t, err)
			l.tiers.mu.Lock()
			l.tiers.put(name, knownTier{})
			_, is := l.tiers.known["p/acme"]
			l.tiers.mu.Unlock()
			if !is {
				break
			}
		}
		db.set("p/acme", then, nil)
		if limit := limitOf(t, l, "p/acme"); limit != 1 {
			t.Errorf("then %q: the limit is %d", then, limit)
		}
	}
}

// A time to live of for ever is one.
func TestTierIsKeptForEver(t *testing.T) {
	t.Parallel()
	for _, ttl := range []time.Duration{100 * 365 * 24 * time.Hour, math.MaxInt64} {
		synctest.Test(t, func(t *testing.T) {
			db := &source{tiers: map[string]string{"p/acme": "gold"}}
			l, err := New(offline(t), tieredPolicy(t), Config{TierOf: db.tierOf, TierTTL: ttl})
			redistest.Must(t, err)
			for range 10 {
				limitOf(t, l, "p/acme")
				<-time.NewTimer(time.Hour).C
			}
			if n := db.asked.Load(); n != 1 {
				t.Errorf("%s: asked %d times", ttl, n)
			}
		})
	}
}

// A TierOf that panics has failed, in the goroutine of a caller and in the background, where a panic would end the process.
func TestTierOfPanics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		seen, panics := &troubles{}, false
		l, err := New(offline(t), tieredPolicy(t), Config{Observer: seen, TierOf: func(context.Context, policy.Scope) (string, error) {
			if panics {
				panic("no database")
			}
			return "gold", nil
		}})
		redistest.Must(t, err)
		limitOf(t, l, "p/acme")
		panics = true
		<-time.NewTimer(2 * time.Minute).C
		if limit := limitOf(t, l, "p/acme"); limit != 1000 {
			t.Errorf("the limit is %d", limit)
		}
		synctest.Wait()
		if all := seen.take(); len(all) != 1 || all[0].Tier != "gold" || !strings.Contains(fmt.Sprint(all[0].Err), "no database") {
			t.Errorf("in the background: %+v", all)
		}
		<-time.NewTimer(2 * tierRetry).C
		if limit := limitOf(t, l, "p/new"); limit != 1 || len(seen.take()) != 1 {
			t.Errorf("a new name has the limit %d", limit)
		}
	})
}

// A RenewTiers whose context ends says nothing of TierOf: other names are asked for.
func TestRenewTiersEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		slow := true
		l, err := New(offline(t), tieredPolicy(t), Config{TierOf: func(ctx context.Context, _ policy.Scope) (string, error) {
			if slow {
				<-ctx.Done()
			}
			return "gold", ctx.Err()
		}})
		redistest.Must(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), tierBound/10)
		defer cancel()
		if err := l.RenewTiers(ctx, "p", "p/acme"); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		slow = false
		for _, scope := range []string{"p/acme", "p/new"} {
			if limit := limitOf(t, l, scope); limit != 1000 {
				t.Errorf("%s has the limit %d", scope, limit)
			}
		}
	})
}

// A task that waits for an hour under the free tier starts at once when its name has the gold one, whichever process is told, and
// without that when the process that looks after the tasks asks again. Grants and spent units stay.
func TestWaitingTaskGetsItsTier(t *testing.T) {
	t.Parallel()
	for name, names := range map[string][]string{"told": {"p/acme"}, "found": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb, db := redistest.Client(t), &source{tiers: map[string]string{"p/acme": "free", "p/other": "free"}}
			prefix := redistest.Prefix(t)
			process := func() *Limiter {
				l, err := New(rdb, tieredPolicy(t), Config{TierOf: db.tierOf, TierTTL: time.Second, Prefix: prefix})
				redistest.Must(t, err)
				return l
			}
			joins, serves := process(), process()
			dispatches := func() []waitlist.Granted {
				t.Helper()
				d, err := serves.Waitlist().Dispatch(t.Context(), waitlist.Request{Provider: "p", Lead: 20 * time.Millisecond, Max: 10, Serves: []wire.Weighted{{Queue: "q", Weight: 1}}})
				redistest.Must(t, err)
				return d.Granted
			}
			var tasks []waitlist.Waiter
			for _, scope := range []string{"p/acme", "p/acme/refunds", "p/other"} {
				for i := range 3 {
					tasks = append(tasks, waitlist.Waiter{Scope: scope, Queue: "q", ID: fmt.Sprint(scope, i)})
				}
			}
			_, err := joins.Waitlist().Join(t.Context(), tasks)
			redistest.Must(t, err)
			if got := dispatches(); len(got) != 2 {
				t.Fatalf("%d tasks of two tenants started under a limit of one each", len(got))
			}
			if got := dispatches(); len(got) != 0 {
				t.Fatalf("%d more started", len(got))
			}
			woken := make(chan string, 10)
			defer serves.Waitlist().OnWake(func(provider string) { woken <- provider })()
			db.set("p/acme", "gold", nil)
			redistest.WaitFor(t, "the tier", 10*time.Second, func() bool {
				redistest.Must(t, serves.RenewTiers(t.Context(), "p", names...))
				return limitOf(t, serves, "p/acme") == 1000
			})
			redistest.Must(t, serves.RenewTiers(t.Context(), "p", names...))
			if got := dispatches(); len(got) != 5 {
				t.Errorf("%d of 5 tasks started", len(got))
			}
			if got := <-woken; got != "p" {
				t.Errorf("woken for %s", got)
			}
			if got := dispatches(); len(got) != 0 {
				t.Errorf("%d more started", len(got))
			}
		})
	}
}

// A database that does not answer is not asked for each name below which tasks wait, one after the other.
func TestRenewTiersGivesUp(t *testing.T) {
	t.Parallel()
	db := &source{tiers: map[string]string{}}
	l, err := New(redistest.Client(t), tieredPolicy(t), Config{TierOf: db.tierOf, TierTTL: time.Second, Prefix: redistest.Prefix(t)})
	redistest.Must(t, err)
	var tasks []waitlist.Waiter
	for i := range 100 {
		tasks = append(tasks, waitlist.Waiter{Scope: fmt.Sprint("p/t", i), Queue: "q", ID: "x"})
	}
	for part := range slices.Chunk(tasks, 50) {
		_, err := l.Waitlist().Join(t.Context(), part)
		redistest.Must(t, err)
	}
	db.set("", "", errors.New("no connection"))
	var asked int64
	redistest.WaitFor(t, "tiers that are due", 10*time.Second, func() bool {
		before := db.asked.Load()
		redistest.Must(t, l.RenewTiers(t.Context(), "p"))
		asked = db.asked.Load() - before
		return asked > 0
	})
	if asked > tierCalls {
		t.Errorf("asked for %d names", asked)
	}
}

// BenchmarkTiers measures what a decision pays for tiers, and what it costs to compare the rules of 20,000 waiting scopes.
func BenchmarkTiers(b *testing.B) {
	const scopes = 20_000
	rdb := redistest.Client(b)
	rules := policy.ScopeConfig{Rules: []policy.Rule{{Name: "tenant", Algorithm: policy.SlidingWindow, Limit: 1, Per: time.Hour}}}
	names := map[string]policy.ScopeConfig{"*": rules}
	for name, tiers := range map[string]map[string]policy.ScopeConfig{"none": nil, "tiers": {"gold": rules}} {
		p, err := policy.New("", map[string]policy.ScopeConfig{"p": {Scopes: names, Tiers: tiers}})
		redistest.Must(b, err)
		l, err := New(rdb, p, Config{TierOf: (&source{}).tierOf, Prefix: redistest.Prefix(b)})
		redistest.Must(b, err)
		b.Run("rules of a scope/"+name, func(b *testing.B) {
			for b.Loop() {
				_, err := l.scopes.Of("p/acme")
				redistest.Must(b, err)
			}
		})
		if !p.Tiered() {
			continue
		}
		var tasks []waitlist.Waiter
		for i := range scopes {
			tasks = append(tasks, waitlist.Waiter{Scope: fmt.Sprint("p/t", i), Queue: "q", ID: "x"})
		}
		_, err = l.Waitlist().Join(b.Context(), tasks)
		redistest.Must(b, err)
		for _, changed := range []int{1, 1000} {
			var names []string
			for i := range changed {
				names = append(names, fmt.Sprint("p/t", i))
			}
			b.Run(fmt.Sprintf("renew 20000 scopes/%d names", changed), func(b *testing.B) {
				for b.Loop() {
					redistest.Must(b, l.RenewTiers(b.Context(), "p", names...))
				}
			})
		}
	}
}
