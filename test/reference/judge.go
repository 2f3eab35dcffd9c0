package reference

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/headway-go/headway/test/checker"
	"github.com/headway-go/headway/test/countapi"
)

// Spent is a grant under one rule: its start, the end of its run, and its units. Units that were refunded are not in it.
type Spent struct {
	Start, End int64
	Units      int64
}

// Over asks package checker whether starts kept the bound of a rule. The checker knows neither states nor cells, pads or decisions.
// Over returns what is wrong, or "".
func Over(r Rule, list []Spent) string { return OverLate(r, list, 0) }

// OverLate is Over for starts of a token bucket that were seen up to late microseconds closer together than its burst pays for. The
// bucket then keeps burst + limit/(per + late) × (t + late) in any time t. That is at most its bound if t is per or longer.
func OverLate(r Rule, list []Spent, late int64) string {
	if r.Algorithm != TokenBucket {
		late = 0
	}
	text := fmt.Sprintf("name: r, algorithm: %s, limit: %d, burst: %d, rollover: %d", r.Algorithm, r.Limit, max(1, r.Burst), r.Rollover)
	switch r.Algorithm {
	case CalendarQuota:
		text += fmt.Sprintf(", resets: %q, timezone: %s", r.Resets, cmp.Or(r.Timezone, "UTC"))
	case Concurrency:
	default:
		text += fmt.Sprintf(", per: %dµs, opens_on_use: %t", r.Per+late, r.OnUse)
	}
	limits, err := checker.ParseLimits([]byte("limits: {p: {rules: [{" + text + "}]}}"))
	if err != nil {
		return err.Error()
	}
	in := checker.Input{Limits: limits, Jitter: time.Duration(late) * time.Microsecond}
	for _, s := range list {
		if s.Units == 0 || r.Algorithm == Concurrency && s.End <= s.Start {
			continue
		}
		if in.Calls == nil {
			in.Epoch = time.UnixMicro(s.Start)
		}
		since := func(t int64) time.Duration { return time.Duration(t-in.Epoch.UnixMicro()) * time.Microsecond }
		in.Calls = append(in.Calls, countapi.Call{Scope: "p", Cost: s.Units, Arrived: since(s.Start), Departed: since(max(s.Start, s.End))})
	}
	report, err := checker.Check(in)
	if err != nil {
		return err.Error()
	}
	return strings.Join(report.Violations(), "; ")
}
