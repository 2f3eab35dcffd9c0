package throttle

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Whatever value of those who wait is damaged, the order is made anew from the queues, and everybody whose place is
// left has a turn.
func TestTreeIsMadeAnew(t *testing.T) {
	t.Parallel()
	type damage func(b *bench, prefix string)
	set := func(key, field, value string) damage {
		return func(b *bench, prefix string) { must(b.rdb.HSet(ctx, prefix+key, field, value).Err()) }
	}
	other := func(key string) damage {
		return func(b *bench, prefix string) {
			must(b.rdb.Del(ctx, prefix+key).Err())
			must(b.rdb.Set(ctx, prefix+key, "x", 0).Err())
		}
	}
	for name, harm := range map[string]damage{
		"a node": set("!meta", "n/a", "x"), "the provider": set("!meta", "n", ""), "a leaf": set("!meta", "n/a/", "1 2"),
		"the heap": func(b *bench, prefix string) {
			must(b.rdb.ZAdd(ctx, prefix+"!heap", redis.Z{Member: "\x00\x00000000"}).Err())
		},
		"a ticket": func(b *bench, prefix string) {
			must(b.rdb.ZAdd(ctx, prefix+"/a!queue", redis.Z{Score: -1 << 40, Member: "x"}).Err())
		},
		"meta": other("!meta"), "heap": other("!heap"), "schedule": other("!schedule"), "overdue": other("!overdue"),
		"flight": other("!flight"), "parked": other("!parked"), "a queue": other("/c!queue"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBoth(t, Config{Logger: slog.New(slog.DiscardHandler)}, policyOf(t, Rule{Name: "r", Algorithm: SlidingWindow, Limit: 2, Per: time.Second}), func(b *bench) {
				b.grants = true
				for i := range 12 {
					b.decide(Request{Scope: "p/" + string('a'+rune(i%3)), Ticket: fmt.Sprintf("t%d", i)})
				}
				prefix := keyspace(b.cfg.Prefix).provider("p")
				dispatch := func() Dispatched {
					b.t.Helper()
					d, err := b.Dispatch(ctx, DispatchRequest{Provider: "p", Max: 10, All: true})
					if err != nil {
						b.t.Fatal(err)
					}
					return d
				}
				b.now.Add(sec.Microseconds())
				came := len(dispatch().Granted)
				harm(b, prefix)
				for range 8 {
					b.now.Add(sec.Microseconds())
					came += len(dispatch().Granted)
				}
				want := 10
				if name == "a queue" {
					want = 6 // its four come back by themselves
				}
				if came < want {
					b.t.Errorf("%d of %d have come", came, want)
				}
			})
		})
	}
}
