package throttle

import (
	"context"
	"slices"
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
	next map[string][]*lateRun
}

// lateRun is one run to report.
type lateRun struct {
	report wire.Report
	rules  int           // how many it has
	sent   chan struct{} // closed once the rest is known
	stale  bool          // its rules are out of date: nothing was done
	err    error
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
	run := &lateRun{report: l.reportOf(p, g, "late", late.Microseconds(), nil), rules: len(p.Rules), sent: make(chan struct{})}
	l.addLate(ctx, p, run)
	<-run.sent
	if err = run.err; run.stale {
		_, _, err = l.report(ctx, g, "late", late.Microseconds(), nil, true)
	}
	if err != nil {
		return wire.Unavailable(ctx, "report a late run of", g.scope, err)
	}
	return nil
}

// StartOf returns when a grant starts by this process's clock, and the latest time at which a run counts as begun at its start:
// later by half of Config.StartTolerance. The other half is for what delays the run after that, unseen. Both are zero if Redis did
// not grant the start. It does no I/O.
func (l *Limiter) StartOf(g Grant) (start, latest time.Time) {
	if g.Zero() || g.local || g.plan == nil {
		return start, latest
	}
	start = g.plan.clock.ToLocal(time.UnixMicro(g.start))
	return start, start.Add(l.cfg.StartTolerance/2 + g.leeway)
}

// addLate adds a run to the next call for its provider.
func (l *Limiter) addLate(ctx context.Context, p *plan, run *lateRun) {
	a := &l.lates
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.next == nil {
		a.next = map[string][]*lateRun{}
	}
	runs, sends := a.next[p.Prefix]
	if a.next[p.Prefix] = append(runs, run); !sends {
		go l.sendLates(ctx, p)
	}
}

// sendLates reports what there is of a plan's provider, until nothing is left.
func (l *Limiter) sendLates(ctx context.Context, p *plan) {
	a := &l.lates
	for {
		a.mu.Lock()
		runs := a.next[p.Prefix]
		if a.next[p.Prefix] = nil; runs == nil {
			delete(a.next, p.Prefix)
			a.mu.Unlock()
			return
		}
		a.mu.Unlock()
		for some := range slices.Chunk(runs, mostLates) {
			l.sendLate(ctx, p, some)
		}
	}
}

// sendLate makes one call.
func (l *Limiter) sendLate(ctx context.Context, p *plan, runs []*lateRun) {
	reports, rules := make([]wire.Report, len(runs)), make([]int, len(runs))
	for i, run := range runs {
		reports[i], rules[i] = run.report, run.rules
	}
	var waits bool
	var settled []wire.Done
	reply, err := wire.Call(ctx, l.rdb, l.cfg.Timeout, lua.Settle, p.Prefix, wire.SettleArgs(l.clock(), reports...)...)
	if err == nil {
		_, waits, settled, err = wire.ReadSettles(reply, rules...)
	}
	for i, run := range runs {
		run.err, run.stale = err, err == nil && settled[i].Status == wire.Outdated
		close(run.sent)
	}
	if waits {
		l.list.Wake(p.Scope.Scope.Provider())
	}
}
