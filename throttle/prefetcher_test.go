package throttle

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/lua"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/wallclock"
)

const fifty = 50 * ms

// way is a client's way to its server: so long there, and so long back. It counts scripts.
type way struct {
	there, back atomic.Int64
	cut         atomic.Bool // nothing comes through
	scripts     atomic.Int64
	settled     atomic.Int64 // of them, what gave back
}

func (w *way) through(_ context.Context, cmds []redis.Cmder, send func() error) error {
	if !runsScript(cmds[0]) {
		return send()
	}
	for _, cmd := range cmds {
		w.scripts.Add(1)
		if cmd.Args()[1] == lua.Settle.SHA() {
			w.settled.Add(1)
		}
	}
	if d := w.there.Load(); d > 0 {
		<-time.After(time.Duration(d))
	}
	if w.cut.Load() {
		return errors.New("cut off")
	}
	err := send()
	if d := w.back.Load(); d > 0 {
		<-time.After(time.Duration(d))
	}
	return err
}

func (w *way) takes(there, back time.Duration) {
	w.there.Store(int64(there))
	w.back.Store(int64(back))
}

// prefetcher is a limiter in a bubble, beside a server whose clock is the bubble's.
type prefetcher struct {
	*Limiter
	t   *testing.T
	rdb redis.UniversalClient
	way *way
}

func newPrefetcher(t *testing.T, rdb redis.UniversalClient, policy *policy.Policy) *prefetcher {
	t.Helper()
	return &prefetcher{newLimiter(t, rdb, policy, Config{}), t, rdb, nil}
}

// prefetching runs a test in a bubble.
func prefetching(t *testing.T, policy *policy.Policy, test func(*prefetcher)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		_, rdb := redistest.Miniredis(t)
		w := &way{}
		rdb.AddHook(hook(w.through))
		p := newPrefetcher(t, rdb, policy)
		p.way = w
		test(p)
		w.takes(0, 0)
		<-time.After(sec) // what is in stock goes back
	})
}

// ask takes one decision, which must be a grant.
func (p *prefetcher) ask(req Request) Decision {
	p.t.Helper()
	d, err := p.Decide(p.t.Context(), req)
	if err != nil || !d.Allowed {
		p.t.Fatalf("%+v: got %+v, %v", req, d, err)
	}
	return d
}

// fill asks, at one moment, until so many units at least are in stock, and returns how many were handed out.
func (p *prefetcher) fill(scope string, least int64) (asked int64) {
	p.t.Helper()
	for p.held(scope) < least {
		if asked++; asked > 1000 {
			p.t.Fatal("nothing is charged ahead")
		}
		p.ask(Request{Scope: scope})
	}
	return asked
}

// held is how many units are in stock.
func (p *prefetcher) held(scope string) int64 {
	p.t.Helper()
	of, err := p.plan(scope)
	if err != nil || of.stock == nil {
		p.t.Fatalf("no stock, %v", err)
	}
	of.stock.mu.Lock()
	defer of.stock.mu.Unlock()
	return of.stock.held()
}

// left is what Redis says that the first rule of a scope has left.
func (p *prefetcher) left(scope string) int64 {
	p.t.Helper()
	d, err := p.Peek(p.t.Context(), Request{Scope: scope})
	noError(p.t, err)
	return d.Rules[0].Remaining
}

// minuteOf is so many units in a minute, some of which are charged ahead.
func minuteOf(limit int64) policy.Rule {
	return policy.Rule{Name: "r", Algorithm: policy.SlidingWindow, Limit: limit, Per: time.Minute, Prefetch: fifty}
}

func prefetchRules(limit int64) map[string]policy.Rule {
	rules := map[string]policy.Rule{
		"sliding": minuteOf(limit),
		"bucket":  {Algorithm: policy.TokenBucket, Limit: limit, Per: 24 * time.Hour, Burst: limit},
		"fixed":   {Algorithm: policy.FixedWindow, Limit: limit, Per: 24 * time.Hour},
		"day":     {Algorithm: policy.Calendar, Limit: limit, Resets: wallclock.MustParse("0 12 * * *", "UTC")},
	}
	for name, r := range rules {
		r.Name, r.Prefetch = name, fifty
		rules[name] = r
	}
	return rules
}
