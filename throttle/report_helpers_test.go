package throttle

import (
	"time"

	"github.com/headway-go/headway/throttle/upstream"
)

// turnedDown is an answer that refuses, and says for how long unless that is 0.
func turnedDown(wait time.Duration) upstream.Hint {
	return upstream.Hint{Limited: true, Retry: wait, RetryKnown: wait > 0}
}

// quotaLeft is an answer of a quota of which so much is left.
func quotaLeft(unit string, remaining int64, reset time.Duration) upstream.Hint {
	return upstream.Hint{Quotas: []upstream.Quota{{Unit: unit, Limit: 100, Remaining: remaining, Reset: reset}}}
}

// anew makes the limiter forget what it has reported, as another process does not know it.
func (b *bench) anew() { b.reports.pauses, b.reports.words = nil, nil }

func (b *bench) report(scope string, a upstream.Hint) ReportResult {
	b.t.Helper()
	b.anew()
	out, err := b.Report(ctx, scope, a)
	noError(b.t, err)
	return out
}
