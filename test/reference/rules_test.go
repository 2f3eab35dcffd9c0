package reference

import (
	"fmt"
	"time"

	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/wallclock"
)

// draw draws the rules, and what they are to the model.
func (h *history) draw(k kind) {
	if k.rules != nil {
		for _, r := range k.rules(h) {
			h.add(r, 0)
		}
		return
	}
	for range 1 + h.rng.IntN(4) {
		h.add(h.anyRule(), h.rng.IntN(3))
	}
}

func (h *history) add(r policy.Rule, level int) {
	r.Name = fmt.Sprintf("r%d", len(h.rules))
	if h.keys != nil {
		r.Rollover = 0 // of which the state is gone two periods later, and the model's is not
	}
	var resets [2]string
	if r.Resets != nil {
		resets = [2]string{r.Resets.Cron(), r.Resets.Zone()}
	}
	h.rules = append(h.rules, bounded{r, level, Rule{
		Algorithm: Algorithm(r.Algorithm), Limit: r.Limit, Per: r.Per.Microseconds(), Burst: r.Burst, Margin: r.Margin.Microseconds(),
		Lease: r.Lease.Microseconds(), Rollover: r.Rollover, Spread: r.Spread, OnUse: r.OpensOnUse,
		Begins: begins[resets], Resets: resets[0], Timezone: resets[1],
	}})
}

func (h *history) anyRule() policy.Rule {
	r := pick(h, bucketRule, slidingRule, fixedRule, openingRule, calendarRule, concurrencyRule)(h)
	if r.Algorithm != policy.Concurrency && h.rng.IntN(3) == 0 {
		r.Unit = "tokens"
	}
	if r.Algorithm != policy.Concurrency && h.rng.IntN(4) == 0 {
		r.Cap = pick[int64](h, 1, 10, 33, 50, 99, 100)
	}
	return r
}

func (h *history) limit() int64 {
	return pick[int64](h, 1, 2, 3, 5, 7, 10, 20, 99, 100, 1000, 1+h.rng.Int64N(100), 1+h.rng.Int64N(100_000))
}

func (h *history) per() time.Duration {
	return pick(h, time.Second, time.Second, time.Minute, time.Hour, 24*time.Hour, 100*time.Millisecond, 333_333*µs, 7*time.Second+µs,
		100*time.Millisecond+time.Duration(h.rng.Int64N(1_000_000))*µs)
}

func (h *history) margin() time.Duration {
	return pick[time.Duration](h, 0, 0, 0, time.Millisecond, 20*time.Millisecond, 1234*µs)
}

// widened gives some rules of long windows a larger margin.
func (h *history) widened(r policy.Rule) policy.Rule {
	if r.Spread || r.Algorithm != policy.Calendar && r.Per < 10*time.Second || h.rng.IntN(3) > 0 {
		return r
	}
	widened := pick(h, time.Millisecond, 50*time.Millisecond, 250*time.Millisecond, 3333*µs)
	r.Margin += widened
	if r.Algorithm == policy.TokenBucket {
		refilled := (r.Limit*widened.Microseconds() + r.Per.Microseconds() - 1) / r.Per.Microseconds()
		r.Burst = max(r.Burst, 2*refilled+2)
	}
	return r
}

func bucketRule(h *history) policy.Rule {
	return h.widened(policy.Rule{
		Algorithm: policy.TokenBucket, Limit: h.limit(), Per: h.per(), Margin: h.margin(),
		Burst: pick[int64](h, 1, 1, 2, 5, 10, 1000, 1+h.rng.Int64N(100)),
	})
}

// marginRule is a bucket whose burst pays for all of its margin, for a part of it or for none.
func marginRule(h *history) policy.Rule {
	return policy.Rule{
		Algorithm: policy.TokenBucket, Limit: h.limit(), Per: h.per(), Margin: pick(h, time.Millisecond, 20*time.Millisecond, 60*time.Millisecond),
		Burst: pick[int64](h, 1, 1, 2, 3, 20),
	}
}

func slidingRule(h *history) policy.Rule {
	return h.widened(policy.Rule{Algorithm: policy.SlidingWindow, Limit: h.limit(), Per: h.per(), Margin: h.margin()})
}

func fixedRule(h *history) policy.Rule {
	return h.widened(policy.Rule{Algorithm: policy.FixedWindow, Limit: h.limit(), Per: h.per(), Margin: h.margin()})
}

func openingRule(h *history) policy.Rule {
	r := fixedRule(h)
	r.OpensOnUse = true
	return r
}

func concurrencyRule(h *history) policy.Rule {
	return policy.Rule{Algorithm: policy.Concurrency, Limit: 1 + h.rng.Int64N(5), Lease: pick(h, time.Second, 30*time.Second, time.Hour)}
}

func calendarRule(h *history) policy.Rule {
	r := policy.Rule{
		Algorithm: policy.Calendar, Limit: h.limit(), Margin: h.margin(), Spread: h.rng.IntN(3) == 0,
	}
	resets, zone := pick(h, "0 0 * * *", "0 * * * *", "*/5 * * * *"), "UTC"
	if h.rng.IntN(2) == 0 {
		r.Rollover = 1 + h.rng.Int64N(3*r.Limit)
	}
	if resets == "0 0 * * *" && h.rng.IntN(2) == 0 {
		zone = "America/Los_Angeles"
	}
	r.Resets = wallclock.MustParse(resets, zone)
	return h.widened(r)
}

// begins has the periods of the calendars by expression and zone, in plain Go.
var begins = map[[2]string]func(int64) (int64, int64){
	{"0 0 * * *", "UTC"}:                 every(24 * time.Hour),
	{"0 * * * *", "UTC"}:                 every(time.Hour),
	{"*/5 * * * *", "UTC"}:               every(5 * time.Minute),
	{"0 0 * * *", "America/Los_Angeles"}: daysOf("America/Los_Angeles"),
}

func every(d time.Duration) func(int64) (int64, int64) {
	n := d.Microseconds()
	return func(t int64) (int64, int64) { return t - t%n, t - t%n + n }
}

func daysOf(zone string) func(int64) (int64, int64) {
	at, err := time.LoadLocation(zone)
	if err != nil {
		panic(err)
	}
	return func(t int64) (int64, int64) {
		y, m, d := time.UnixMicro(t).In(at).Date()
		return time.Date(y, m, d, 0, 0, 0, 0, at).UnixMicro(), time.Date(y, m, d+1, 0, 0, 0, 0, at).UnixMicro()
	}
}
