package usage

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// "It takes about 100 ns and allocates nothing for who has spent from the scope since
// the last flush", and Record "costs what Spent does".
func TestRecordAllocatesNothing(t *testing.T) {
	r := newRecorder(t, redistest.Client(t), "hw", "app")
	one, by := throttle.Spent{Scope: "p/x", Tasks: 1, Units: 1}, By{Queue: "q", Type: "t"}
	one.Member, by.Member = "p/@a", "p/@a"
	r.Record(one)
	r.Spent("p/x", by, 1)
	if got := testing.AllocsPerRun(100, func() { r.Record(one); r.Spent("p/x", by, 1) }); got != 0 {
		t.Errorf("%v allocations", got)
	}
}

// counted counts commands, and fails them while Redis is away.
type counted struct {
	commands, pipelines atomic.Int64
	away                atomic.Bool
}

func (c *counted) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (c *counted) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (c *counted) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.commands.Add(int64(len(cmds)))
		c.pipelines.Add(1)
		if c.away.Load() {
			return errors.New("away")
		}
		return next(ctx, cmds)
	}
}

// running is a Recorder that runs in a bubble.
func running(t *testing.T, rdb *redis.Client, cfg Config) (r *Recorder, stop func()) {
	t.Helper()
	cfg.App = "app"
	r, err := New(rdb, cfg)
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { r.Run(ctx); close(ended) }()
	return r, func() { cancel(); <-ended }
}

// pass lets time pass in a bubble.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// "While nothing is spent it sends nothing", one pipeline for each provider otherwise,
// however much is spent; and what was spent last is sent when ctx ends.
func TestRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, rdb := redistest.Miniredis(t)
		c := &counted{}
		rdb.AddHook(c)
		r, stop := running(t, rdb, Config{})
		pass(10*time.Minute + time.Second)
		if n := c.commands.Load(); n != 0 {
			t.Errorf("%d commands while nothing is spent", n)
		}
		for range 10_000 {
			r.Spent("p/x", By{Type: "a"}, 1)
			r.Spent("q", By{Type: "a"}, 1)
		}
		if n := c.commands.Load(); n != 0 {
			t.Errorf("%d commands before a flush", n)
		}
		pass(flushEvery)
		// "18 commands for each scope, and 6 for each who spends from it", "3 to 6" for slots of 15 seconds,
		// and six more for a provider.
		const want = 3*(18+3+6) + 2*6
		for _, while := range []time.Duration{0, time.Minute} { // in which nothing is spent
			pass(while)
			if commands, pipelines := c.commands.Load(), c.pipelines.Load(); pipelines != 2 || commands != want {
				t.Errorf("%d commands in %d pipelines, want %d", commands, pipelines, want)
			}
		}
		r.Spent("p/x", By{Type: "last"}, 1)
		stop()
		if got := lines(read(t, rdb, "", "p", time.Hour)); !slices.Equal(got, []string{"app  a 10000/10000", "app  last 1/1"}) {
			t.Errorf("got %q", got)
		}
	})
}

// "Every key has a TTL, of 32 days at most", and there are no more than the time that can be asked for needs.
func TestExpires(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, rdb := redistest.Miniredis(t)
		r, stop := running(t, rdb, Config{})
		defer stop()
		for i := range 48 * 12 { // one unit each five minutes, for two days
			r.Spent("p/x", By{Type: "a"}, 1)
			pass(5 * time.Minute)
			if i%7 != 0 { // each 35 minutes, at any place in a slot
				continue
			}
			// 33 at most for each scope, p and p/x, and one a day, and 28 of the provider's scopes
			if keys := keysOf(t, rdb, "hw"); len(keys) > (33+3)*2+28+3 {
				t.Fatalf("%d keys", len(keys))
			}
		}
		for left := Longest + 2*day; left > 0; left -= day {
			pass(day)
		}
		if n := len(m.Keys()); n != 0 {
			t.Errorf("%d keys are left: %q", n, m.Keys())
		}
	})
}

// A report "costs one round trip with at most 32 commands", and 14 for a day at most; a series "4 commands for a quarter of an hour".
func TestReadCost(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	c := &counted{}
	rdb.AddHook(c)
	for since, most := range map[time.Duration]int64{time.Hour: 14, day: 14, Longest: 32} {
		read(t, rdb, redistest.Prefix(t), "p", since)
		if commands, trips := c.commands.Swap(0), c.pipelines.Swap(0); commands > most || trips != 1 {
			t.Errorf("%s: %d commands in %d round trips", since, commands, trips)
		}
	}
	now := time.Now()
	points, err := Series(t.Context(), rdb, Config{Prefix: redistest.Prefix(t)}, "p", now.Add(-fine.reach+fine.every), now, fine.every)
	if commands, trips := c.commands.Load(), c.pipelines.Load(); err != nil || len(points) < 59 || commands > 4 || trips != 1 {
		t.Errorf("%d points, %v: %d commands in %d round trips", len(points), err, commands, trips)
	}
}

type failures []string

func (f *failures) Failed(kind string) { *f = append(*f, kind) }

// "A fault of Redis loses what was not sent", is told once, counted each time, and keeps nobody up.
func TestFault(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, rdb := redistest.Miniredis(t)
		c := &counted{}
		rdb.AddHook(c)
		var log bytes.Buffer
		var failed failures
		r, stop := running(t, rdb, Config{Observer: &failed, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		spend := func() { r.Spent("p/x", By{Type: "a"}, 7); pass(flushEvery) }
		pass(time.Second)
		spend()
		c.away.Store(true)
		spend()
		pass(time.Minute)
		spend()
		if r.Lost() != 14 || len(failed) != 2 || failed[0] != "usage" || strings.Count(log.String(), "cannot record usage") != 1 {
			t.Errorf("%d units are lost, %q\n%s", r.Lost(), failed, log.String())
		}
		c.away.Store(false)
		spend()
		if strings.Count(log.String(), "recorded again") != 1 || strings.Count(log.String(), "\n") != 2 || !strings.Contains(log.String(), "lost_units=14") {
			t.Errorf("got %s", log.String())
		}
		stop()
		if got := read(t, rdb, "", "p/x", time.Hour).All; got != (Sum{14, 2}) {
			t.Errorf("got %+v", got)
		}
	})
}

// "What cannot have been spent … is lost."
func TestImpossible(t *testing.T) {
	t.Parallel()
	r := newRecorder(t, redistest.Client(t), redistest.Prefix(t), "app")
	for i, c := range []struct {
		scope string
		units int64
		lost  int64
	}{{"", 3, 3}, {"p/*", 0, 1}, {"p", -5, 0}, {"p", mostUnits + 1, mostUnits + 1}, {"p", math.MinInt64, 0}} {
		before := r.Lost()
		r.Spent(c.scope, By{}, c.units)
		if got := r.Lost() - before; got != c.lost || len(r.current.accounts) != 0 {
			t.Errorf("%d: %d units are lost of %+v, %d scopes are known", i, got, c, len(r.current.accounts))
		}
	}
	before := r.Lost()
	r.SpentCosts("p", By{}, policy.Costs{"tokens": -1})
	r.SpentCosts("p", By{}, policy.Costs{"requests": 3, "tokens": mostUnits + 1})
	if got := r.Lost() - before; got != 1+3 || len(r.current.accounts) != 0 {
		t.Errorf("%d are lost", got)
	}
}

// Runs that did not succeed count at their scope and at those above it, of several processes together, in each
// slot that Read reports, and for the day.
func TestEnded(t *testing.T) {
	t.Parallel()
	onAll(t, func(t *testing.T, rdb redis.UniversalClient, prefix string) {
		together := inOneSlot()
		for _, r := range []*Recorder{newRecorder(t, rdb, prefix, "shop"), newRecorder(t, rdb, prefix, "billing")} {
			together(r)
			r.Spent("p/acme", By{Queue: "q"}, 2)
			r.Ended("p/acme", By{}, Ends{Failed: 1})
			r.Ended("p/acme", By{}, Ends{Refused: 1})
			r.Ended("p/other", By{}, Ends{Refused: 2}) // its run was counted before
			r.Ended("p//", By{}, Ends{Failed: 1})
			flush(t, r)
		}
		for _, since := range []time.Duration{time.Hour, day, 31 * day} {
			if got := read(t, rdb, prefix, "p", since); got.Ends != (Ends{2, 6}) || got.All != (Sum{4, 2}) {
				t.Errorf("p in %s: %+v", since, got)
			}
		}
		if got := read(t, rdb, prefix, "p/acme", time.Hour); got.Ends != (Ends{2, 2}) || len(got.Spenders) != 2 {
			t.Errorf("p/acme: %+v", got)
		}
		got, err := Today(t.Context(), rdb, Config{Prefix: prefix}, []string{"p", "none", "p/other"}, time.Now())
		if want := []Runs{{2, Ends{2, 6}}, {}, {0, Ends{0, 4}}}; err != nil || !slices.Equal(got, want) {
			t.Errorf("today %+v, %v; want %+v", got, err, want)
		}
	})
	rdb := redistest.Client(t)
	if got, err := Today(t.Context(), rdb, Config{}, nil, time.Now()); got != nil || err != nil {
		t.Errorf("of no scope: %+v, %v", got, err)
	}
	if _, err := Today(t.Context(), rdb, Config{}, []string{"p//x"}, time.Now()); err == nil {
		t.Error("of what is no scope")
	}
}
