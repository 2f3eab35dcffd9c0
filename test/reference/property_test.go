package reference

import (
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

func only(f func(*history) policy.Rule) func(*history) []policy.Rule {
	return func(h *history) []policy.Rule { return []policy.Rule{f(h)} }
}

// kinds are the kinds of histories: each algorithm alone, at its extremes, and several on a path.
var kinds = []kind{
	{name: "token bucket", rules: only(bucketRule), ahead: true, refunds: true},
	{name: "sliding window", rules: only(slidingRule), ahead: true, refunds: true},
	{name: "fixed window", rules: only(fixedRule), ahead: true, refunds: true},
	{name: "window on use", rules: only(openingRule), ahead: true, refunds: true},
	{name: "calendar", rules: only(calendarRule), ahead: true, refunds: true},
	{name: "concurrency", rules: only(concurrencyRule), refunds: true},
	{name: "extremes", rules: only(extremeRule)},
	{name: "now or never", rules: only((*history).anyRule)},
	{name: "path, now or never"},
	{name: "path"},
	{name: "path, ahead and refunds", ahead: true, refunds: true},
	{name: "path, asked again, keys expire", ahead: true, refunds: true, expires: true},
}

// extremeRule is a rule whose numbers are large or small for its algorithm: windows shorter than a
// pad, limits that need coarse cells, rates that have to be rounded, rules that are suspended.
func extremeRule(h *history) policy.Rule {
	r := pick(h, bucketRule, bucketRule, slidingRule, fixedRule, openingRule)(h)
	r.Margin = 0
	switch r.Algorithm {
	case policy.TokenBucket:
		r.Limit = pick[int64](h, 0, 1_000_000, 999_983, 1_000_000_007, 1_000_000_000_000, 123_456_789)
		r.Per = pick(h, time.Millisecond, time.Second, 7*time.Second+µs, 24*time.Hour+7*µs, 366*24*time.Hour)
		r.Burst = pick[int64](h, 1, 7, 1000, 1_000_000)
	case policy.SlidingWindow:
		r.Limit = pick[int64](h, 0, 128, 129, 10_000_000, 10_000_001, 1_000_000_000_000)
		r.Per = pick(h, µs, time.Millisecond, 366*24*time.Hour, time.Second)
	default:
		r.Limit = pick[int64](h, 0, 1, 1_000_000_000_000)
		r.Per = pick(h, µs, 2*µs, time.Millisecond, 9999*µs, 366*24*time.Hour)
	}
	return r
}

// run takes steps, up to the first that anything is wrong with, and judges what was granted. It takes
// no more of them when keys could soon expire by the server's own clock, which is real, or when its own
// comes near the year 2255, up to which the scripts' numbers are exact.
func (h *history) run(k kind, steps int) {
	const late = 1<<53 - 2*366*86_400_000_000
	for began := time.Now(); steps > 0 && h.at < late && time.Since(began) < 30*time.Second; steps-- {
		h.step(k)
		if h.keys != nil && h.keys.slow {
			return
		}
		if len(h.objections) > 0 {
			break
		}
	}
	h.judge()
}

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

// number reads an environment variable, as make histories and docs/development.md name them.
func number(t *testing.T, name string, otherwise int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// docs/algorithms.md: "The sections below define each algorithm to the unit and the microsecond. A model that was written from
// this page alone answers as the limiter does". In random histories every answer is the model's; nothing is ever over the rule's
// bound; and a wait is exact: a microsecond before it the same request is denied, and at it it is granted.
func TestDecisionsAreAsThePagesSay(t *testing.T) {
	t.Parallel()
	first, steps := number(t, "HISTORY_SEED", 1), number(t, "HISTORY_STEPS", 0)
	seeds, length := 8, 120
	if testing.Short() {
		seeds = 3
	}
	if steps > 0 {
		seeds, length = max(1, steps/(len(kinds)*1000)), 1000
	}
	servers := []struct {
		name   string
		client func(*testing.T) *redis.Client
		seeds  int
	}{
		{"redis", func(t *testing.T) *redis.Client { return redistest.Client(t) }, seeds},
		{"miniredis", func(t *testing.T) *redis.Client { _, rdb := redistest.Miniredis(t); return rdb }, (seeds + 7) / 8}, // slow
	}
	for _, k := range kinds {
		for _, server := range servers {
			t.Run(k.name+"/"+server.name, func(t *testing.T) {
				t.Parallel()
				prefix, sum := redistest.Prefix(t), counts{}
				for n := range server.seeds {
					h, err := newHistory(t.Context(), server.client(t), prefix+strconv.Itoa(n), uint64(first+n), k)
					if err != nil {
						t.Fatalf("HISTORY_SEED=%d: %v", first+n, err)
					}
					if h.run(k, length); len(h.objections) > 0 {
						t.Fatalf("HISTORY_SEED=%d: %v\n%s", first+n, h.objections, h.describe())
					}
					sum.add(h.counts)
				}
				t.Logf("%+v", sum)
				if server.seeds < 8 {
					return // they are too few to show everything
				}
				if sum.granted == 0 || sum.probed == 0 || k.ahead && sum.ahead == 0 || k.refunds && sum.refunded == 0 {
					t.Errorf("the histories show nothing of one: %+v", sum)
				}
			})
		}
	}
}

// A limiter that is wrong where the model is wrong the same way would agree with it. The judge, package checker, knows the bounds
// alone: under each algorithm it finds a unit too many, or a microsecond too soon.
func TestJudgeFindsOneOver(t *testing.T) {
	t.Parallel()
	const second = 1_000_000
	bucket := Rule{Algorithm: TokenBucket, Limit: 3, Per: second, Burst: 1}
	onUse := Rule{Algorithm: FixedWindow, Limit: 3, Per: second, OnUse: true}
	opened := []Spent{{200_000, 0, 1}, {1_199_999, 0, 2}, {1_200_000, 0, 3}}
	for name, c := range map[string]struct {
		rule       Rule
		before     []Spent
		fine, over Spent // the next
	}{
		"token bucket":             {bucket, []Spent{{0, 0, 1}, {333_334, 0, 1}}, Spent{666_668, 0, 1}, Spent{666_667, 0, 1}},
		"sliding window":           {Rule{Algorithm: SlidingWindow, Limit: 3, Per: second}, []Spent{{0, 0, 1}, {999_999, 0, 2}}, Spent{second, 0, 1}, Spent{999_999, 0, 1}},
		"fixed window":             {Rule{Algorithm: FixedWindow, Limit: 3, Per: second}, []Spent{{999_999, 0, 3}}, Spent{second, 0, 3}, Spent{999_999, 0, 1}},
		"window on use":            {onUse, opened, Spent{2_200_000, 0, 1}, Spent{2_199_999, 0, 1}},
		"calendar":                 {Rule{Algorithm: CalendarQuota, Limit: 3, Rollover: 2, Resets: "0 0 * * *"}, []Spent{{0, 0, 3}}, Spent{86_400 * second, 0, 5}, Spent{86_400 * second, 0, 6}},
		"concurrency":              {Rule{Algorithm: Concurrency, Limit: 2}, []Spent{{0, 10, 1}, {5, 20, 1}}, Spent{10, 30, 1}, Spent{9, 30, 1}},
		"suspended: none, and one": {Rule{Algorithm: TokenBucket, Per: second, Burst: 1}, nil, Spent{}, Spent{0, 0, 1}},
	} {
		if fault := Over(c.rule, append(slices.Clone(c.before), c.fine)); fault != "" {
			t.Errorf("%s: what is just within the bound is objected to: %s", name, fault)
		}
		if fault := Over(c.rule, append(slices.Clone(c.before), c.over)); fault == "" {
			t.Errorf("%s: what is just over the bound is not found", name)
		}
	}
}

// "A run that starts up to the pad after its moment is still within its limits", and "the bound also holds where calls arrive, if
// their transit times differ by no more than the margin": whatever was granted, each call late by up to the pad and the margin,
// keeps the bound: a window's always, a bucket's over per and longer, and where its burst pays for the margin over any time.
func TestLateStartsKeepTheBound(t *testing.T) {
	t.Parallel()
	for name, rule := range map[string]func(*history) policy.Rule{"token bucket": bucketRule, "token bucket with a margin": marginRule, "sliding window": slidingRule, "fixed window": fixedRule, "window on use": openingRule, "calendar": calendarRule} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			late := 0
			for seed := range uint64(2) {
				k := kind{rules: only(rule), ahead: true}
				h, err := newHistory(t.Context(), redistest.Client(t), redistest.Prefix(t), seed+1, k)
				if err != nil {
					t.Fatal(err)
				}
				h.run(k, 300)
				rng := rand.New(rand.NewPCG(seed, 21))
				model := h.rules[0].model
				_, rest := model.slack(h.pad)
				for place, list := range h.spent {
					for i := range list {
						list[i].Start += rng.Int64N(h.pad + model.Margin + 1)
						late++
					}
					fault := OverLate(model, list, rest)
					if fault != "" || len(h.objections) > 0 {
						t.Fatalf("seed %d: %s: %s %v\n%s", seed+1, place, fault, h.objections, h.describe())
					}
				}
			}
			if late == 0 {
				t.Error("nothing was granted")
			}
		})
	}
}
