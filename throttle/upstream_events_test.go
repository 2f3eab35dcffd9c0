package throttle

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/upstream"
)

// eventLines are events of a scope in words, newest first.
func (b *bench) eventLines(scope string) (lines []string) {
	b.t.Helper()
	events, err := b.UpstreamEvents(ctx, scope)
	noError(b.t, err)
	for _, e := range events {
		left := time.Duration(0)
		if !e.Until.IsZero() {
			left = e.Until.Sub(e.At)
		}
		lines = append(lines, fmt.Sprintf("%s %s %s limit %d for %s by %s: %d %s %t %s", e.What, e.Scope, e.Rule, e.Limit, left.Round(sec), e.Answered, e.Status, e.Retry, e.RetryKnown, e.Host))
	}
	return lines
}

// The changes that answers make are kept by level, with the answer, and no answer that changes nothing is one.
func TestUpstreamEvents(t *testing.T) {
	t.Parallel()
	rules := tenants(t, []policy.Rule{bucket(1000, 1000)},
		[]policy.Rule{{Name: "own", Algorithm: policy.SlidingWindow, Limit: 50, Per: 10 * sec}})
	onBoth(t, Config{}, rules, func(b *bench) {
		began := time.UnixMicro(b.now.Load())
		refused := upstream.Hint{Limited: true, Status: 429, Retry: 30 * sec, RetryKnown: true, Host: "api.example:443"}
		b.hear("p/a/x", refused)
		b.hear("p/a/x", refused)
		b.pass(3 * sec)
		b.hear("p/a", upstream.Hint{Quotas: []upstream.Quota{{Unit: "requests", Limit: 20, Remaining: 3, Reset: sec, Window: 10 * sec}}})
		want := []string{
			"limit p/a own limit 20 for 1h0m0s by p/a: 0 0s false ",
			"pause p/a/x  limit 0 for 30s by p/a/x: 429 30s true api.example:443",
		}
		got := b.eventLines("p/a/x")
		if fmt.Sprint(got) != fmt.Sprint(want) {
			b.t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		if got := b.eventLines("p/a"); len(got) != 1 || got[0] != want[0] {
			b.t.Errorf("one level up: %q", got)
		}
		for _, scope := range []string{"p", "p/b", "other"} {
			if got := b.eventLines(scope); len(got) != 0 {
				b.t.Errorf("%s: %q", scope, got)
			}
		}
		events, err := b.UpstreamEvents(ctx, "p/a/x")
		if err != nil || !events[1].At.Equal(began) || !events[0].At.Equal(began.Add(3*sec)) || !events[1].Until.Equal(began.Add(30*sec)) {
			b.t.Errorf("%+v, %v, began at %s", events, err, began)
		}
		b.hear("p/a", upstream.Hint{Limited: true, Status: 503, Retry: 2 * sec, RetryKnown: true})
		if got := b.eventLines("p/a"); len(got) != 3 || !strings.HasPrefix(got[0], "cut p/a own limit 0 for ") || !strings.HasSuffix(got[0], "by p/a: 503 2s true ") {
			b.t.Errorf("after a refusal: %q", got)
		}
	})
}

// "The last 20 of each level, until a day after its newest."
func TestUpstreamEventsAreBounded(t *testing.T) {
	t.Parallel()
	const keptEvents = 20
	onBoth(t, Config{}, tenants(t, []policy.Rule{bucket(1000, 1000)}, nil), func(b *bench) {
		for i := range 3 * keptEvents {
			b.hear("p", turnedDown(time.Duration(i+1)*sec))
			b.pass(time.Duration(i+1)*sec + sec)
		}
		got := b.eventLines("p")
		if len(got) != keptEvents || !strings.Contains(got[0], "1m0s true") && !strings.Contains(got[1], "1m0s true") {
			b.t.Errorf("%d events are kept: %q", len(got), got)
		}
		key := wire.Prefix(b.cfg.Prefix, "p") + "e:"
		if n := b.rdb.ZCard(ctx, key).Val(); n != keptEvents {
			b.t.Errorf("%d are in Redis", n)
		}
		if ttl := b.rdb.PTTL(ctx, key).Val(); ttl <= 23*time.Hour || ttl > 24*time.Hour {
			b.t.Errorf("they stay for %s", ttl)
		}
		b.rdb.ZAdd(ctx, key, redis.Z{Score: 1e18, Member: "{"})
		if got := b.eventLines("p"); len(got) != keptEvents {
			b.t.Errorf("%d events beside one that cannot be read", len(got))
		}
	})
}

// What APIs paused and cut is found from above, scope by scope, as each scope's own state has it.
func TestUpstreamBelow(t *testing.T) {
	t.Parallel()
	rules := tenants(t, []policy.Rule{bucket(1000, 1000)}, []policy.Rule{{Name: "own", Algorithm: policy.SlidingWindow, Limit: 50, Per: 10 * sec}})
	onBoth(t, Config{}, rules, func(b *bench) {
		b.hear("p/a:b", upstream.Hint{Limited: true, Status: 429, Retry: 30 * sec, RetryKnown: true})
		b.hear("p/c", upstream.Hint{Quotas: []upstream.Quota{{Unit: "requests", Limit: 20, Remaining: 3, Reset: sec, Window: 10 * sec}}})
		got, more, err := b.UpstreamBelow(ctx, "p")
		if err != nil || more || len(got.Pauses) != 1 || got.Pauses[0].Scope != "p/a:b" || len(got.Corrections) != 2 {
			b.t.Fatalf("%+v, %v", got, err)
		}
		for _, c := range got.Corrections {
			one, err := b.UpstreamState(ctx, c.Bound.Scope.String())
			if err != nil || len(one.Corrections) != 1 || one.Corrections[0].Limit != c.Limit || !one.Corrections[0].Until.Equal(c.Until) {
				b.t.Errorf("%+v, %v, and from above %+v", one, err, c)
			}
		}
		b.pass(time.Hour)
		if got, more, err = b.UpstreamBelow(ctx, "p"); err != nil || more || len(got.Pauses) > 0 {
			b.t.Errorf("an hour later: %+v, %v", got, err)
		}
	})
}
