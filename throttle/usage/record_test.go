package usage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/inbound"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/roundtrip"
)

// recording is a limiter whose recorder is wired by one line.
func recording(t *testing.T, rdb redis.UniversalClient, rules string) (l *throttle.Limiter, r *Recorder, prefix string) {
	t.Helper()
	prefix = redistest.Prefix(t)
	r = newRecorder(t, rdb, prefix, "shop")
	l, err := throttle.New(rdb, policy.PerHour(rules, 10), throttle.Config{Prefix: prefix, OnSpent: r.Record})
	must(t, err)
	return l, r, prefix
}

// "throttle.Config{OnSpent: recorder.Record} records what requests are granted by Allow, Decide and Wait, and by packages
// roundtrip and inbound. A refund takes it back, Settle corrects it": nothing for those that are denied, or that only look.
func TestRecord(t *testing.T) {
	t.Parallel()
	_, mini := redistest.Miniredis(t)
	for name, rdb := range map[string]redis.UniversalClient{"Redis": redistest.Client(t), "miniredis": mini, "a cluster": redistest.Cluster(t)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, r, prefix := recording(t, rdb, "p")
			ctx := t.Context()
			want := func(step string, sum Sum, lines ...string) {
				t.Helper()
				flush(t, r)
				if got := read(t, rdb, prefix, "p", time.Hour); got.All != sum || !slices.Equal(byUnit(got), lines) {
					t.Errorf("%s: %+v by %q, want %+v by %q", step, got.All, byUnit(got), sum, lines)
				}
			}
			api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") }))
			defer api.Close()
			client := &http.Client{Transport: &roundtrip.Transport{
				Limiter: l, Scope: func(*http.Request) string { return "p/out" },
				Costs:  func(*http.Request) policy.Costs { return policy.Costs{"tokens": 900} },
				Settle: func(*http.Response) (policy.Costs, bool) { return policy.Costs{"requests": 2, "tokens": 120}, true },
			}}
			resp, err := client.Get(api.URL)
			must(t, err)
			_, err = io.Copy(io.Discard, resp.Body)
			must(t, errors.Join(err, resp.Body.Close()))
			want("roundtrip", Sum{2, 1}, "shop  2/1 map[tokens:120]")

			served := inbound.Wrap(http.NotFoundHandler(), l, func(*http.Request) string { return "p/in" })
			served.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil))
			want("inbound", Sum{3, 2}, "shop  3/2 map[tokens:120]")

			if _, err := l.Peek(ctx, throttle.Request{Scope: "p"}); err != nil {
				t.Fatal(err)
			}
			d, err := l.Decide(ctx, throttle.Request{Scope: "p", Cost: 4})
			must(t, err)
			if refused, err := l.Decide(ctx, throttle.Request{Scope: "p", Cost: 9}); err != nil || refused.Allowed {
				t.Fatalf("%+v, %v", refused, err)
			}
			want("Decide", Sum{7, 3}, "shop  7/3 map[tokens:120]")
			must(t, l.Refund(ctx, d.Grant))
			want("Refund", Sum{3, 2}, "shop  3/2 map[tokens:120]")
			if n := r.Lost(); n != 0 {
				t.Errorf("%d units are lost", n)
			}
		})
	}
}

// "It takes about 100 ns and allocates nothing for who has spent from the scope since
// the last flush", and Record "costs what Spent does".
func TestRecordAllocatesNothing(t *testing.T) {
	r := newRecorder(t, redistest.Client(t), "hw", "app")
	one, by := throttle.Spent{Scope: "p/x", Tasks: 1, Units: 1}, By{Queue: "q", Type: "t"}
	r.Record(one)
	r.Spent("p/x", by, 1)
	if got := testing.AllocsPerRun(100, func() { r.Record(one); r.Spent("p/x", by, 1) }); got != 0 {
		t.Errorf("%v allocations", got)
	}
}

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

// byUnit are the spenders of a report with their units.
func byUnit(r Report) (all []string) {
	for _, s := range r.Spenders {
		all = append(all, fmt.Sprintf("%s %s %d/%d %v", s.App, s.Type, s.Units, s.Tasks, s.ByUnit))
	}
	return all
}

// "Requests and each other unit are told apart", at every level, of two processes together,
// one of which costs no units; and where nothing does there is no key of them.
func TestUnitsApart(t *testing.T) {
	t.Parallel()
	_, mini := redistest.Miniredis(t)
	for name, rdb := range map[string]redis.UniversalClient{
		"Redis": redistest.Client(t), "miniredis": mini, "a cluster": redistest.Cluster(t),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			prefix := redistest.Prefix(t)
			shop, older := newRecorder(t, rdb, prefix, "shop"), newRecorder(t, rdb, prefix, "older")
			shop.SpentCosts("p/a/x", By{Type: "a"}, policy.Costs{"tokens": 100})
			shop.SpentCosts("p/a/x", By{Type: "a"}, policy.Costs{"requests": 2, "tokens": 50, "rows": 0})
			shop.SpentCosts("p/a", By{Type: "b"}, policy.Costs{"requests": 0, "rows": 7})
			older.Spent("p/a", By{Type: "a"}, 9)
			older.Spent("q", By{Type: "a"}, 9)
			flush(t, shop)
			shop.SpentCosts("p/a", By{Type: "a"}, policy.Costs{"tokens": 1})
			flush(t, shop)
			flush(t, older)
			for scope, want := range map[string]struct {
				spenders []string
				units    map[string]int64
			}{
				"p":     {[]string{"older a 9/1 map[]", "shop a 4/3 map[tokens:151]", "shop b 0/1 map[rows:7]"}, map[string]int64{"tokens": 151, "rows": 7}},
				"p/a":   {[]string{"older a 9/1 map[]", "shop a 4/3 map[tokens:151]", "shop b 0/1 map[rows:7]"}, map[string]int64{"tokens": 151, "rows": 7}},
				"p/a/x": {[]string{"shop a 3/2 map[tokens:150]"}, map[string]int64{"tokens": 150}},
				"q":     {[]string{"older a 9/1 map[]"}, nil},
			} {
				for _, since := range []time.Duration{time.Minute, Longest} {
					got := read(t, rdb, prefix, scope, since)
					if !slices.Equal(byUnit(got), want.spenders) || !maps.Equal(got.ByUnit, want.units) || got.OtherByUnit != nil {
						t.Errorf("%s: %q, all %v, others %v", scope, byUnit(got), got.ByUnit, got.OtherByUnit)
					}
				}
			}
			start := grains[1].start(time.Now())
			if n := rdb.Exists(t.Context(), grains[1].unitsKey(wire.ScopeKey(prefix, "q"), start)).Val(); n != 0 {
				t.Error("a scope without units has a key of them")
			}
		})
	}
}

// "A slot has 328 sums by unit; of more those of the 8 units of which most was spent", and
// "130 bytes for each unit, and for each unit of each who spends it".
func TestFloodOfUnits(t *testing.T) {
	t.Parallel()
	for name, rdb := range map[string]*redis.Client{"Redis": redistest.Client(t), "miniredis": second(redistest.Miniredis(t))} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			prefix := redistest.Prefix(t)
			fixed := inOneSlot()
			for n := range 5 {
				r := newRecorder(t, rdb, prefix, "app")
				fixed(r)
				r.SpentCosts("p/x", By{Type: "most"}, policy.Costs{"requests": 1000, "tokens": 1_000_000})
				for i := range 100 {
					r.SpentCosts("p/x", By{Type: fmt.Sprint(n, " ", i)}, policy.Costs{"tokens": 10, fmt.Sprint("u", n, "-", i%10): 3})
				}
				if got := r.current.accounts["p/x"].all.units; len(got) != mostKinds {
					t.Errorf("%d units in memory", len(got))
				}
				flush(t, r)
			}
			for _, key := range keysOf(t, rdb, prefix) {
				if !strings.Contains(key, "!units:") {
					continue
				}
				fields := rdb.HLen(t.Context(), key).Val()
				if fields > mostUnitFields {
					t.Errorf("%s has %d fields", key, fields)
				}
				if name == "Redis" {
					if took := rdb.MemoryUsage(t.Context(), key, 0).Val(); took == 0 || took > 130*fields {
						t.Errorf("%d fields take %d bytes", fields, took)
					}
				}
			}
			for _, scope := range []string{"p", "p/x"} {
				got := read(t, rdb, prefix, scope, time.Hour)
				if len(got.ByUnit) != mostKinds || got.ByUnit["tokens"] != 5*(1_000_000+1000) {
					t.Errorf("%s: %v", scope, got.ByUnit)
				}
				if first := got.Spenders[0]; first.Type != "most" || first.ByUnit["tokens"] != 5_000_000 {
					t.Errorf("%s: first is %+v", scope, first)
				}
				sum := got.OtherByUnit["tokens"]
				for _, s := range got.Spenders {
					sum += s.ByUnit["tokens"]
				}
				if sum != got.ByUnit["tokens"] || got.OtherByUnit["tokens"] == 0 {
					t.Errorf("%s: %d tokens of listed and others", scope, sum)
				}
			}
		})
	}
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
}

// What cannot have been spent is lost, and what is no unit is told of nobody.
func TestImpossibleUnits(t *testing.T) {
	t.Parallel()
	rdb, prefix := redistest.Client(t), redistest.Prefix(t)
	r := newRecorder(t, rdb, prefix, "app")
	r.SpentCosts("p", By{}, policy.Costs{"tokens": -1})
	r.SpentCosts("p", By{}, policy.Costs{"requests": 3, "tokens": mostUnits + 1})
	if r.Lost() != 1+3 || len(r.current.accounts) != 0 {
		t.Errorf("%d are lost", r.Lost())
	}
	r.SpentCosts("p", By{Type: "t"}, policy.Costs{"To:kens": 5, "tokens": 1})
	flush(t, r)
	for _, key := range rdb.Keys(t.Context(), prefix+":*!units:*").Val() {
		rdb.HSet(t.Context(), key, "rows", "x", "Rows", 5, "tokens:a/b", 7, "tokens:gone//t", 3, ":app//t", 1, "bytes:app//t", -4)
	}
	got := read(t, rdb, prefix, "p", time.Minute)
	if want := []string{"app t 1/1 map[tokens:1]"}; !slices.Equal(byUnit(got), want) || !maps.Equal(got.ByUnit, map[string]int64{"tokens": 1}) || got.OtherByUnit != nil {
		t.Errorf("got %q, %v, others %v", byUnit(got), got.ByUnit, got.OtherByUnit)
	}
}
