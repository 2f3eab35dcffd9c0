package throttle

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/reference"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/wallclock"
)

// tally is what one rule has let start. The bounds of the rules are those of test/reference.
type tally struct {
	rule    policy.Rule
	ids     []string
	starts  []reference.Spent
	changed bool
}

// look has the bound begin anew where the rule is another.
func (s *tally) look(rule policy.Rule) {
	if s.rule != rule {
		*s = tally{rule: rule, changed: true}
	}
}

// take adds a grant, and says how it breaks the rule's bound, if it does.
func (s *tally) take(id string, units, start int64) string {
	s.ids = append(s.ids, id)
	s.starts = append(s.starts, reference.Spent{Start: start, End: start + s.rule.Lease.Microseconds(), Units: units})
	if s.changed && s.rule.OpensOnUse {
		return "" // when its window opened is not known
	}
	r := modelOf(s.rule)
	if r.Algorithm == reference.CalendarQuota {
		r.Begins = func(t int64) (int64, int64) { return periodOf(s.rule, t) }
	}
	if s.rule.Algorithm == policy.SlidingWindow || s.rule.OpensOnUse {
		r.Per += s.rule.Margin.Microseconds()
	}
	return reference.Over(r, s.starts)
}

// modelOf is a rule as test/reference has it, without its margin.
func modelOf(r policy.Rule) reference.Rule {
	return reference.Rule{
		Algorithm: reference.Algorithm(r.Algorithm), Limit: r.Limit, Per: r.Per.Microseconds(), Burst: r.Burst,
		Rollover: r.Rollover, OnUse: r.OpensOnUse,
	}
}

// drop takes a grant back.
func (s *tally) drop(id string, now int64) {
	for i := range s.ids {
		if s.ids[i] == id {
			s.starts[i].Units, s.starts[i].End = 0, min(s.starts[i].End, max(s.starts[i].Start, now))
		}
	}
}

// rename has a grant be another attempt's.
func (s *tally) rename(from, to string) {
	for i := range s.ids {
		if s.ids[i] == from {
			s.ids[i] = to
		}
	}
}

// calendars are those of histories, each with how many minutes a period has, and in which of them it begins.
var calendars = []struct {
	resets, timezone string
	minutes, phase   int64
}{
	{"* * * * *", "UTC", 1, 0},
	{"*/2 * * * *", "UTC", 2, 0},
	{"1-59/2 * * * *", "UTC", 2, 1},
	{"1-59/2 * * * *", "Asia/Kathmandu", 2, 0}, // 5:45 ahead
	{"*/3 * * * *", "UTC", 3, 0},
}

func periodOf(r policy.Rule, t int64) (begins, ends int64) {
	for _, c := range calendars {
		if r.Resets.Cron() == c.resets && r.Resets.Zone() == c.timezone {
			length, phase := c.minutes*60e6, c.phase*60e6
			begins = t - (t-phase)%length
			return begins, begins + length
		}
	}
	panic("no such calendar: " + r.Resets.Cron())
}

// drawing draws what a history is made of.
type drawing struct{ *rand.Rand }

func (r drawing) one(of ...int64) int64 { return of[r.IntN(len(of))] }

// rule draws a rule. Windows are short beside the histories and limits small beside the costs, so that most of them bind.
func (r drawing) rule(name string) policy.Rule {
	rule := policy.Rule{Name: name, Per: us(r.one(250_000, 1_000_000, 2_000_000, 10_000_000, 60_000_000)), Limit: r.one(1, 2, 3, 7, 20)}
	rule.Algorithm = []policy.Algorithm{policy.TokenBucket, policy.TokenBucket, policy.SlidingWindow, policy.FixedWindow, policy.Concurrency, policy.Calendar}[r.IntN(6)]
	switch rule.Algorithm {
	case policy.TokenBucket:
		rule.Burst = r.one(1, 2, 5, 20)
	case policy.SlidingWindow:
		if r.IntN(3) == 0 {
			rule.Limit = r.one(129, 300)
		}
	case policy.Concurrency:
		return policy.Rule{Name: name, Algorithm: policy.Concurrency, Limit: r.one(1, 2, 5), Lease: us(r.one(1_000_000, 5_000_000, 30_000_000))}
	case policy.Calendar:
		of := calendars[r.IntN(len(calendars))]
		rule.Resets, rule.Per = wallclock.MustParse(of.resets, of.timezone), 0
		rule.Rollover, rule.Spread = r.one(0, 0, 1, 5, 30), r.IntN(3) == 0
		if r.IntN(6) == 0 {
			rule.Margin = 7500 * time.Millisecond
		}
		return rule
	}
	if r.IntN(6) == 0 {
		rule.Margin = rule.Per / 8
	}
	rule.OpensOnUse = rule.Algorithm == policy.FixedWindow
	return rule
}

// fault is what a history found wrong. It travels as a panic.
type fault string

func fail(format string, args ...any) { panic(fault(fmt.Sprintf(format, args...))) }

func must(err error) {
	if err != nil && !errors.Is(err, redis.Nil) {
		fail("%v", err)
	}
}

var ctx = context.Background()

// historySeed is HISTORY_SEED, or drawn.
func historySeed(t *testing.T) uint64 {
	t.Helper()
	if s := os.Getenv("HISTORY_SEED"); s != "" {
		seed, err := strconv.ParseUint(s, 10, 64)
		noError(t, err)
		return seed
	}
	return rand.Uint64N(1 << 40)
}
