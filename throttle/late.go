package throttle

import (
	"context"
	"sync"
	"time"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/lua"
)

// lates reports runs that began late, those of a provider together: what comes while a call is under way goes out with the next. So
// a busy machine, where most runs are late, is not made busier by a call for each. It is safe for concurrent use.
type lates struct {
	mu sync.Mutex
	// next holds what the next call of each provider reports, by the prefix of its keys. A provider with a call under way has an
	// entry, nil if there is nothing else to report.
	next map[string]*lateRuns
}

// lateRuns is what one call reports.
type lateRuns struct {
	reports []wire.Report
	rules   []int // how many rules each has
	sent    chan struct{}
	err     error
	stale   []bool // whose rules are out of date: nothing was done
}

// mostLates is how many runs one call reports at most: a script takes some 10 µs for each.
const mostLates = 64

// ReportBegun reports that the run of a grant began after its latest start (see StartOf): its units then count from that moment, so
// that they leave no window too soon. It does nothing for other grants. Costs one round trip, which runs of a provider that are
// reported at the same time share. The error wraps ErrUnavailable; the charge then stays.
func (l *Limiter) ReportBegun(ctx context.Context, g Grant, at time.Time) error {
	start, latest := l.StartOf(g)
	if !at.After(latest) || latest.IsZero() || l.clock() != "" {
		return nil
	}
	late := at.Sub(start)
	ctx = context.WithoutCancel(ctx)
	p, err := l.planOf(g)
	if err != nil {
		return nil //nolint:nilerr // a scope that no rule counts any more
	}
	batch, i := l.addLate(ctx, p, l.reportOf(p, g, "late", late.Microseconds(), nil))
	<-batch.sent
	if err = batch.err; err == nil && batch.stale[i] {
		_, _, err = l.report(ctx, g, "late", late.Microseconds(), nil, true)
	}
	if err != nil {
		return wire.Unavailable(ctx, "report a late run of", g.scope, err)
	}
	return nil
}

// StartOf returns when a grant starts by this process's clock, and the latest time at which a run counts as begun at its start: later
// by Config.StartTolerance. Both are zero if Redis did not grant the start. It does no I/O.
func (l *Limiter) StartOf(g Grant) (start, latest time.Time) {
	if g.Zero() || g.local || g.plan == nil {
		return start, latest
	}
	start = g.plan.clock.ToLocal(time.UnixMicro(g.start))
	return start, start.Add(l.cfg.StartTolerance + g.leeway)
}

// addLate adds a run to the next call for its provider. i is its place in the call.
func (l *Limiter) addLate(ctx context.Context, p *plan, report wire.Report) (batch *lateRuns, i int) {
	a := &l.lates
	a.mu.Lock()
	defer a.mu.Unlock()
	batch, sends := a.next[p.Prefix]
	if batch == nil {
		batch = &lateRuns{sent: make(chan struct{})}
		if a.next == nil {
			a.next = map[string]*lateRuns{}
		}
		a.next[p.Prefix] = batch
	}
	batch.reports, batch.rules = append(batch.reports, report), append(batch.rules, len(p.Rules))
	if !sends {
		go l.sendLates(ctx, p)
	}
	return batch, len(batch.reports) - 1
}

// sendLates reports what there is of a plan's provider, until nothing is left.
func (l *Limiter) sendLates(ctx context.Context, p *plan) {
	a := &l.lates
	for {
		a.mu.Lock()
		batch := a.next[p.Prefix]
		if batch == nil {
			delete(a.next, p.Prefix)
			a.mu.Unlock()
			return
		}
		a.next[p.Prefix] = nil
		a.mu.Unlock()
		waits := false
		for from := 0; from < len(batch.reports) && batch.err == nil; from += mostLates {
			to := min(from+mostLates, len(batch.reports))
			var some bool
			some, batch.err = l.sendLate(ctx, p, batch, from, to)
			waits = waits || some
		}
		close(batch.sent)
		if waits {
			l.list.Wake(p.Scope.Scope.Provider())
		}
	}
}

// sendLate makes one call.
func (l *Limiter) sendLate(ctx context.Context, p *plan, batch *lateRuns, from, to int) (waits bool, err error) {
	reply, err := wire.Call(ctx, l.rdb, l.cfg.Timeout, lua.Settle, p.Prefix, wire.SettleArgs(l.clock(), batch.reports[from:to]...)...)
	if err != nil {
		return false, err
	}
	_, waits, settled, err := wire.ReadSettles(reply, batch.rules[from:to]...)
	if err != nil {
		return false, err
	}
	for _, s := range settled {
		batch.stale = append(batch.stale, s.Status == wire.Outdated)
	}
	return waits, nil
}
