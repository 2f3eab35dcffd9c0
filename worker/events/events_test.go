package events

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/programs"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
	"github.com/headway-go/headway/throttle/upstream"
)

// program is one process that decides and reports events.
type program struct {
	t       *testing.T
	events  *Events
	limiter *throttle.Limiter

	mu     sync.Mutex
	got    []Event
	counts map[string]int
}

func (p *program) Event(kind string)            { p.count(kind) }
func (p *program) EventDelivery(outcome string) { p.count(outcome) }

func (p *program) count(what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts[what]++
}

func (p *program) counted(what string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts[what]
}

func (p *program) seen(kind Kind) (list []Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.got {
		if e.Kind == kind {
			list = append(list, e)
		}
	}
	return list
}

// newProgram has limits and reports until its test ends. Its keys have a prefix, "" for the default.
func newProgram(t *testing.T, rdb *redis.Client, pol *policy.Policy, prefix string, log *slog.Logger, webhook *Webhook) *program {
	t.Helper()
	p := &program{t: t, counts: map[string]int{}}
	cfg := Config{Webhook: webhook, OnEvent: func(e Event) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.got = append(p.got, e)
	}}
	var err error
	p.events, err = New(cfg)
	must(t, err)
	p.events.Bind("shop", prefix, log, p)
	p.limiter, err = throttle.New(rdb, pol, throttle.Config{Prefix: prefix, Observer: p.events})
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.events.Run(ctx, rdb, p.limiter)
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return p
}

func (p *program) spend(scope string, n int) {
	p.t.Helper()
	for range n {
		_, err := p.limiter.Decide(p.t.Context(), throttle.Request{Scope: scope})
		must(p.t, err)
	}
}

// pass lets time pass in a bubble.
func pass(d time.Duration) { <-time.After(d) }

func hourly(t *testing.T, limit int64) *policy.Policy {
	t.Helper()
	p, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{"p": {
		Rules: []policy.Rule{{Name: "second", Algorithm: policy.SlidingWindow, Limit: 1000, Per: time.Second}},
		Scopes: map[string]policy.ScopeConfig{
			"*": {Rules: []policy.Rule{{Name: "hourly", Algorithm: policy.FixedWindow, Limit: limit, Per: time.Hour}}},
		},
	}})
	must(t, err)
	return p
}

// inFakeTime runs a test in a bubble, on a Redis in memory. Its clock begins at midnight UTC.
func inFakeTime(t *testing.T, test func(t *testing.T, rdb *redis.Client)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, rdb := redistest.Miniredis(t)
		t.Cleanup(synctest.Wait)
		test(t, rdb)
	})
}

// The thresholds of a rule are reported once each in its window, and again in the next; a limit by the second is not.
func TestThresholds(t *testing.T) {
	inFakeTime(t, func(t *testing.T, rdb *redis.Client) {
		p := newProgram(t, rdb, hourly(t, 10), "", nil, nil)
		wants := func(after string, want ...int) {
			t.Helper()
			synctest.Wait()
			var got []int
			for _, e := range p.seen(Threshold) {
				got = append(got, e.Percent)
			}
			if !slices.Equal(got, want) {
				t.Errorf("after %s: %d, want %d", after, got, want)
			}
		}
		pass(time.Second) // the window is not fresh
		p.spend("p/a", 4)
		wants("4 of 10")
		p.spend("p/a", 1)
		wants("5 of 10", 50)
		pass(10 * time.Minute)
		p.spend("p/a", 2)
		wants("7 of 10", 50)
		p.spend("p/a", 1)
		wants("8 of 10", 50, 80)
		p.spend("p/a", 5)
		wants("all", 50, 80, 100)
		p.spend("p/b", 10)
		wants("another tenant", 50, 80, 100, 50, 80, 100)
		pass(time.Hour)
		p.spend("p/a", 10)
		wants("the next window", 50, 80, 100, 50, 80, 100, 50, 80, 100)

		first := p.seen(Threshold)[:3]
		hour := time.Now().Truncate(time.Hour)
		if e := first[0]; e.Scope != "p/a" || e.Rule != "hourly" || e.Pattern != "p/*" || e.Used != 5 || e.Limit != 10 || e.Unit != "requests" ||
			e.App != "shop" || e.ID == "" || !e.ResetsAt.Truncate(time.Minute).Equal(hour) || !e.ExhaustedAt.IsZero() {
			t.Errorf("%+v", e)
		}
		// 3 units took ten minutes, and 2 are left.
		if e := first[1]; !e.ExhaustedAt.Equal(e.At.Add(e.At.Sub(first[0].At) * 2 / 3)) {
			t.Errorf("at %s it is exhausted at %s", e.At, e.ExhaustedAt)
		}
		if e := first[2]; !e.ExhaustedAt.Equal(e.At) || !strings.Contains(e.Text, "rule hourly of p/a is exhausted: 10 of 10 requests are used; it is whole again at ") {
			t.Errorf("%+v", e)
		}
	})
}

// Two processes report a threshold once, and none below one that was reported.
func TestOneProcessReports(t *testing.T) {
	t.Parallel()
	rdb, prefix := redistest.Client(t), redistest.Prefix(t)
	a := newProgram(t, rdb, hourly(t, 10), prefix, nil, nil)
	b := newProgram(t, rdb, hourly(t, 10), prefix, nil, nil)
	a.spend("p/a", 4)
	b.spend("p/a", 1)
	redistest.WaitFor(t, "50 %", time.Minute, func() bool { return len(b.seen(Threshold)) == 1 })
	a.spend("p/a", 6)
	redistest.WaitFor(t, "100 %", time.Minute, func() bool { return len(a.seen(Threshold)) == 2 })
	b.spend("p/a", 1)
	c := newProgram(t, rdb, hourly(t, 10), prefix, nil, nil) // started later
	c.spend("p/a", 1)
	c.spend("p/b", 10)
	redistest.WaitFor(t, "100 % of p/b", time.Minute, func() bool { return len(c.seen(Threshold)) == 3 })
	for _, e := range append(a.seen(Threshold), b.seen(Threshold)...) {
		if e.Scope != "p/a" {
			t.Errorf("%+v", e)
		}
	}
	if n := len(a.seen(Threshold)) + len(b.seen(Threshold)); n != 3 {
		t.Errorf("%d events of three thresholds: %+v %+v", n, a.seen(Threshold), b.seen(Threshold))
	}
	for key := range strings.SplitSeq(strings.Join(rdb.Keys(t.Context(), prefix+":{!event:*").Val(), " "), " ") {
		if ttl := rdb.PTTL(t.Context(), key).Val(); ttl <= 0 || ttl > time.Hour {
			t.Errorf("%s lives for %s", key, ttl)
		}
	}
}

// A jump over several thresholds is one event, and what was below is not reported by another process afterwards.
func TestJump(t *testing.T) {
	t.Parallel()
	rdb, prefix := redistest.Client(t), redistest.Prefix(t)
	a := newProgram(t, rdb, hourly(t, 100), prefix, nil, nil)
	b := newProgram(t, rdb, hourly(t, 100), prefix, nil, nil)
	d, err := a.limiter.Decide(t.Context(), throttle.Request{Scope: "p/a", Cost: 100})
	must(t, err)
	redistest.WaitFor(t, "100 %", time.Minute, func() bool { return len(a.seen(Threshold)) == 1 })
	must(t, a.limiter.Refund(t.Context(), d.Grant))
	b.spend("p/a", 60)
	b.spend("p/b", 60)
	redistest.WaitFor(t, "50 % of p/b", time.Minute, func() bool { return len(b.seen(Threshold)) == 1 })
	if e := b.seen(Threshold)[0]; e.Scope != "p/b" || a.seen(Threshold)[0].Percent != 100 {
		t.Errorf("%+v, then %+v", a.seen(Threshold), e)
	}
}

// A pause is reported once until it ends, and a cut once in ten minutes.
func TestUpstream(t *testing.T) {
	inFakeTime(t, func(t *testing.T, rdb *redis.Client) {
		pol, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{"p": {
			Scopes: map[string]policy.ScopeConfig{"*": {Rules: []policy.Rule{{Name: "tenant", Algorithm: policy.SlidingWindow, Limit: 100, Per: time.Second}}}},
		}})
		must(t, err)
		a, b := newProgram(t, rdb, pol, "", nil, nil), newProgram(t, rdb, pol, "", nil, nil)
		refused := func(p *program, wait time.Duration) {
			t.Helper()
			_, err := p.limiter.Report(t.Context(), "p/a", upstream.Hint{Limited: true, Retry: wait, RetryKnown: true})
			must(t, err)
			synctest.Wait()
		}
		refused(a, 5*time.Minute)
		refused(b, 6*time.Minute)
		pauses, cuts := append(a.seen(Pause), b.seen(Pause)...), append(a.seen(Cut), b.seen(Cut)...)
		if len(pauses) != 1 || pauses[0].Scope != "p/a" || pauses[0].Until.Sub(pauses[0].At).Round(time.Second) != 5*time.Minute || pauses[0].Rule != "" {
			t.Errorf("%+v", pauses)
		}
		if len(cuts) != 1 || cuts[0].Scope != "p/a" || cuts[0].Rule != "tenant" || cuts[0].Pattern != "p/*" || cuts[0].Until.IsZero() {
			t.Errorf("%+v", cuts)
		}
		pass(11 * time.Minute)
		refused(b, 5*time.Minute)
		if len(b.seen(Pause)) != 1 || len(b.seen(Cut)) != 1 || b.seen(Pause)[0].Text != "the API of p/a asked to stop calling; it is paused until "+clock(b.seen(Pause)[0].Until) {
			t.Errorf("%+v %+v", b.seen(Pause), b.seen(Cut))
		}
	})
}

// A breaker that opens is reported once in ten minutes, however many probes fail, and so is that it has closed.
func TestBreakerEvents(t *testing.T) {
	inFakeTime(t, func(t *testing.T, rdb *redis.Client) {
		pol, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{"p": {
			Rules: []policy.Rule{{Name: "second", Algorithm: policy.SlidingWindow, Limit: 1000, Per: time.Second}}, Breaker: policy.Breaker{Wait: 30 * time.Second},
		}})
		must(t, err)
		p := newProgram(t, rdb, pol, "", nil, nil)
		for range 2 {
			must(t, p.limiter.OpenBreaker(t.Context(), "p", 0))
			pass(time.Minute)
		}
		must(t, p.limiter.CloseBreaker(t.Context(), "p"))
		synctest.Wait()
		opens, closes := p.seen(Open), p.seen(Closed)
		if len(opens) != 1 || opens[0].Scope != "p" || opens[0].Text != "the breaker of p was opened by hand; it lets a probe go at "+clock(opens[0].Until) {
			t.Errorf("%+v", opens)
		}
		if len(closes) != 1 || closes[0].Text != "the breaker of p has closed; its tasks start again" {
			t.Errorf("%+v", closes)
		}
		for want, e := range map[string]Event{
			"the API of p is down: 14 of 20 calls failed; its breaker is open, and lets a probe go at 1970-01-01T00:00:00Z": {Calls: 20, Failures: 14, Until: time.Unix(0, 0)},
			"the API of p is down: calls fail; its breaker would have opened, and only counts":                              {Shadow: true},
		} {
			if e.Kind, e.Scope = Open, "p"; e.sentence() != want {
				t.Errorf("%s, want %s", e.sentence(), want)
			}
		}
	})
}

// A process whose poll is ten seconds late is an event within twelve, and so is that it polls again.
func TestStalled(t *testing.T) {
	inFakeTime(t, func(t *testing.T, rdb *redis.Client) {
		p := newProgram(t, rdb, hourly(t, 10), "", nil, nil)
		poll := func(providers ...string) {
			for _, one := range providers {
				p.events.DispatcherPolled(one, "*", 0)
			}
		}
		poll("a", "b", "gone")
		p.events.DispatcherPolled("gone", "*", -1)
		p.events.DispatcherPolled("in a minute", "*", time.Minute)
		for range 9 {
			pass(time.Second)
			poll("b")
		}
		if got := p.seen(Stalled); len(got) != 0 {
			t.Fatalf("after nine seconds: %+v", got)
		}
		began := time.Now().Add(-9 * time.Second)
		for range 3 {
			pass(time.Second)
			poll("b")
		}
		synctest.Wait()
		got := p.seen(Stalled)
		if len(got) != 1 || !slices.Equal(got[0].Providers, []string{"a"}) || !got[0].Since.Equal(began) {
			t.Fatalf("%+v", got)
		}
		poll("a", "b")
		pass(2 * time.Second)
		synctest.Wait()
		if got := p.seen(Resumed); len(got) != 1 || !slices.Equal(got[0].Providers, []string{"a"}) || len(p.seen(Stalled)) != 1 {
			t.Errorf("%+v", got)
		}
	})
}

// Processes that have other limits a minute after a change are an event, of one of the others.
func TestMismatch(t *testing.T) {
	inFakeTime(t, func(t *testing.T, rdb *redis.Client) {
		store := policystore.New(rdb, policystore.Config{})
		_, err := store.Import(t.Context(), policystore.Edit{By: "test"}, hourly(t, 10), "", true)
		must(t, err)
		ctx, stop := context.WithCancel(t.Context())
		var ends sync.WaitGroup
		t.Cleanup(ends.Wait)
		t.Cleanup(stop)
		var all []*program
		for range 2 {
			p := newProgram(t, rdb, hourly(t, 10), "", nil, nil)
			all = append(all, p)
			ends.Go(func() { policystore.Follow(ctx, store, p.limiter, policystore.FollowConfig{App: "mail"}) })
		}
		ends.Go(func() { policystore.Announce(ctx, store, policystore.Process{App: "old"}) })
		events := func() []Event { return append(all[0].seen(Mismatch), all[1].seen(Mismatch)...) }
		pass(3 * time.Minute)
		if got := events(); len(got) != 0 {
			t.Fatalf("before any change: %+v", got)
		}
		_, err = store.Import(t.Context(), policystore.Edit{By: "test"}, hourly(t, 20), "", true)
		must(t, err)
		pass(settled + lookAgain + 5*time.Second)
		got := events()
		if len(got) != 1 || got[0].Version != 2 || len(got[0].Behind) != 1 || !strings.HasPrefix(got[0].Behind[0], "old on ") || !strings.HasSuffix(got[0].Behind[0], " with the limits of its start") {
			t.Errorf("%+v", got)
		}
	})
}

// If Redis does not answer, the event is reported all the same, by the webhook too; the log has it.
func TestReportsWithoutRedis(t *testing.T) {
	t.Parallel()
	s := newReceiver(t, func(int, http.ResponseWriter, *http.Request) {})
	gone := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, DialerRetries: 1})
	t.Cleanup(func() { _ = gone.Close() })
	var log programs.Output
	p := newProgram(t, gone, hourly(t, 10), "", slog.New(slog.NewTextHandler(&log, nil)), &Webhook{URL: s.URL, Secret: secret})
	p.pause("p/a")
	p.pause("p/a")
	p.waits("delivered", 1)
	redistest.WaitFor(t, "the event", time.Minute, func() bool { return len(p.seen(Pause)) == 1 && p.counted("pause") == 1 })
	if text := log.String(); !strings.Contains(text, "level=WARN msg=event kind=pause") || strings.Count(text, "\n") != 1 {
		t.Errorf("the log: %s", text)
	}
}

// A function that panics ends nothing, and events that come too fast are counted, here and at a slow receiver.
func TestBounds(t *testing.T) {
	t.Parallel()
	var log programs.Output
	e, err := New(Config{OnEvent: func(Event) { panic("of the user") }})
	must(t, err)
	p := &program{counts: map[string]int{}}
	e.Bind("", "", slog.New(slog.NewTextHandler(&log, nil)), p)
	e.report(t.Context(), nil, noticed{event: Event{Kind: Resumed}})
	if !strings.Contains(log.String(), "Config.OnEvent panicked") {
		t.Errorf("the log: %s", log.String())
	}
	for i := range maxNoticed + 3 {
		e.Upstream(throttle.UpstreamChange{What: "cut", Scope: fmt.Sprint(i)})
	}
	if n := p.counted("lost"); n != 3 {
		t.Errorf("%d lost", n)
	}
	w, err := newWebhook(Webhook{URL: "https://h/", Secret: secret}, &e.process)
	must(t, err)
	for range maxQueued + 3 {
		w.put(Event{})
	}
	if p.counted("dropped") != 3 {
		t.Errorf("%v", p.counts)
	}
}

// The error names each field that is wrong.
func TestConfig(t *testing.T) {
	t.Parallel()
	for want, cfg := range map[string]Config{
		"Thresholds are [0 50]":          {Thresholds: []int{0, 50}},
		"Thresholds are [80 50]":         {Thresholds: []int{80, 50}},
		"Webhook.Secret has 5 character": {Webhook: &Webhook{URL: "https://h/", Secret: "short"}},
		"Webhook.URL is no URL":          {Webhook: &Webhook{URL: "::", Secret: "0123456789abcdef"}},
		"Webhook.AllowHosts":             {Webhook: &Webhook{URL: "https://h/", Secret: "0123456789abcdef", AllowHosts: []string{"a b"}}},
	} {
		_, err := New(cfg)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "short") {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if _, err := New(Config{}); err != nil {
		t.Error(err)
	}
}

// If go-redis has sent the claim of an event twice, this process holds it, and reports the event.
func TestClaimThatWasSentTwice(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	e, err := New(Config{})
	must(t, err)
	e.Bind("", redistest.Prefix(t), nil, nil)
	n := noticed{event: Event{ID: "mine"}, about: "a rule", stays: time.Minute}
	for range 2 {
		if !e.claim(t.Context(), rdb, n) {
			t.Error("its own claim is another's")
		}
	}
	if n.event.ID = "of another process"; e.claim(t.Context(), rdb, n) {
		t.Error("two processes report an event")
	}
}
