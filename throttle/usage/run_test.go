package usage

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
)

// counted counts commands, and fails them while a fault is set.
type counted struct {
	mu                  sync.Mutex
	commands, pipelines int
	fault               error
}

func (c *counted) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (c *counted) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (c *counted) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.mu.Lock()
		c.commands += len(cmds)
		c.pipelines++
		fault := c.fault
		c.mu.Unlock()
		if fault != nil {
			return fault
		}
		return next(ctx, cmds)
	}
}

func (c *counted) sent() (commands, pipelines int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.commands, c.pipelines
}

func (c *counted) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fault = err
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
		if n, _ := c.sent(); n != 0 {
			t.Errorf("%d commands while nothing is spent", n)
		}
		for range 10_000 {
			r.Spent("p/x", By{Type: "a"}, 1)
			r.Spent("q", By{Type: "a"}, 1)
		}
		if n, _ := c.sent(); n != 0 {
			t.Errorf("%d commands before a flush", n)
		}
		pass(flushEvery)
		// "18 commands for each scope, and 6 for each who spends from it", "2 to 6" for slots of 15 seconds,
		// and six more for a provider.
		commands, pipelines := c.sent()
		if want := 3*(18+2+6) + 2*6; pipelines != 2 || commands != want {
			t.Errorf("%d commands in %d pipelines, want %d", commands, pipelines, want)
		}
		pass(time.Minute)
		if n, _ := c.sent(); n != commands {
			t.Errorf("%d commands for nothing", n-commands)
		}
		r.Spent("p/x", By{Type: "last"}, 1)
		stop()
		if got := lines(read(t, rdb, "", "p", time.Hour)); !slices.Equal(got, []string{"app  a 10000/10000", "app  last 1/1"}) {
			t.Errorf("got %q", got)
		}
	})
}

// "Every key has a TTL, of 32 days at most", what is asked for is there, and what was
// spent before is not.
func TestExpires(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, rdb := redistest.Miniredis(t)
		r, stop := running(t, rdb, Config{})
		defer stop()
		began := time.Now()
		units := func(since time.Duration) int64 {
			t.Helper()
			got := read(t, rdb, "", "p", since)
			for _, key := range keysOf(t, rdb, "hw") {
				if strings.Contains(key, ".") && m.TTL(key) <= 0 {
					t.Errorf("%s has no TTL", key)
				}
			}
			return got.All.Units
		}
		for i := range 48 * 12 { // one unit each five minutes, for two days
			r.Spent("p/x", By{Type: "a"}, 1)
			pass(5 * time.Minute)
			if i%7 != 0 { // each 35 minutes, at any place in a slot
				continue
			}
			run := int64(time.Since(began) / (5 * time.Minute))
			for since, slot := range map[time.Duration]time.Duration{15 * time.Minute: 5 * time.Minute, time.Hour: 5 * time.Minute, day: 2 * time.Hour, Longest: day} {
				least, most := min(run, int64(since/(5*time.Minute)))-1, int64((since+slot)/(5*time.Minute))+1
				if got := units(since); got < least || got > most {
					t.Fatalf("after %s, the last %s: %d units, want %d to %d", time.Since(began), since, got, least, most)
				}
			}
			// 33 at most for each scope, p and p/x, and one a day, and 28 of the provider's scopes
			if n := len(m.Keys()); n > (33+3)*2+28+3 {
				t.Fatalf("%d keys", n)
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

// A report "costs one round trip with at most 96 commands", and 42 for a day at most.
func TestReadCost(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	c := &counted{}
	rdb.AddHook(c)
	for since, most := range map[time.Duration]int{time.Hour: 42, day: 42, Longest: 96} {
		before, trips := c.sent()
		read(t, rdb, redistest.Prefix(t), "p", since)
		if n, all := c.sent(); n-before > most || all-trips != 1 {
			t.Errorf("%s: %d commands in %d round trips", since, n-before, all-trips)
		}
	}
}

type failures []string

func (f *failures) Failed(kind string) { *f = append(*f, kind) }

// "A fault of Redis loses what was not sent", is told once, counted each time, and
// keeps nobody up.
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
		c.fail(errors.New("away"))
		spend()
		pass(time.Minute)
		spend()
		if r.Lost() != 14 || len(failed) != 2 || failed[0] != "usage" || strings.Count(log.String(), "cannot record usage") != 1 {
			t.Errorf("%d units are lost, %q\n%s", r.Lost(), failed, log.String())
		}
		c.fail(nil)
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
