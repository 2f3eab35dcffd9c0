package answers

import (
	"context"
	"time"

	"github.com/headway-go/headway/internal/wire"
)

// A process counts how calls end, and reports the counts of all levels of a provider together: those with failures at once, but
// failuresApart, and others in a tenth of the shortest time for which a breaker among them counts a call.
const (
	failuresApart = 100 * time.Millisecond
	// levelsAtOnce is how many levels one call reports, so that it takes no longer than a millisecond of Redis.
	levelsAtOnce = 100
)

// tally is what a process has counted of a provider's calls since it reported them last.
type tally struct {
	levels map[string]*levelTally // by path
	timer  *time.Timer            // for the next report; nil while none is due
	due    time.Time
	failed time.Time // when failures were reported last
}

type levelTally struct {
	scope           *wire.Scope // the last whose call was counted
	calls, failures int64
	sent            time.Time // of the last failed call
}

// count counts a call at each level of its path that has a breaker, and reports what is due.
func (r *Reporter) count(ctx context.Context, c Call) error {
	if !r.due(c) {
		return nil
	}
	return r.reportCalls(ctx, c.Scope.Prefix)
}

// due counts a call. It returns true if its caller is to report, and otherwise sees that it is done in time.
func (r *Reporter) due(c Call) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	prefix, now := c.Scope.Prefix, time.Now()
	t := r.tallies[prefix]
	if t == nil {
		t = &tally{levels: map[string]*levelTally{}}
		put(&r.tallies, prefix, t)
	}
	in := time.Duration(0)
	for _, b := range c.Scope.Breakers {
		if each := b.Breaker.In / 10; in == 0 || each < in {
			in = each
		}
		t.add(wire.Path(b.Scope.String()), c)
	}
	if c.Failed {
		if in = failuresApart - now.Sub(t.failed); in <= 0 {
			t.failed = now
			return true
		}
	}
	if at := now.Add(in); t.timer == nil || at.Before(t.due) {
		if t.timer != nil {
			t.timer.Stop()
		}
		t.due, t.timer = at, time.AfterFunc(in, func() { _ = r.reportCalls(context.Background(), prefix) })
	}
	return false
}

func (t *tally) add(level string, c Call) {
	l := t.levels[level]
	if l == nil {
		l = &levelTally{}
		put(&t.levels, level, l)
	}
	l.scope, l.calls = c.Scope, l.calls+1
	if c.Failed {
		l.failures, l.sent = l.failures+1, c.Sent
	}
}

// take returns what was counted, and begins anew.
func (r *Reporter) take(prefix string) map[string]*levelTally {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.tallies[prefix]
	if t == nil {
		return nil
	}
	if t.timer != nil {
		t.timer.Stop()
		t.timer = nil
	}
	levels := t.levels
	t.levels = map[string]*levelTally{}
	for _, l := range levels {
		if l.failures > 0 {
			t.failed = time.Now()
		}
	}
	return levels
}

// reportCalls reports what was counted of a provider's calls. What Redis does not take is lost: it opens nothing.
func (r *Reporter) reportCalls(ctx context.Context, prefix string) (err error) {
	var words []wire.Word
	var scopes []*wire.Scope
	for level, l := range r.take(prefix) {
		b, is := breakerAt(l.scope, level)
		if !is {
			continue
		}
		age := int64(0)
		if l.failures > 0 && !l.sent.IsZero() {
			age = max(0, time.Since(l.sent).Microseconds())
		}
		how := wire.Breaker{
			Failures: b.Breaker.Failures, Of: b.Breaker.Of, In: b.Breaker.In.Microseconds(), Probes: b.Breaker.Probe,
			Wait: b.Breaker.Wait.Microseconds(), Shadow: b.Breaker.Shadow,
		}
		words, scopes = append(words, wire.CallsWord(level, how, r.process, l.calls, l.failures, age)), append(scopes, l.scope)
	}
	for len(words) > 0 && err == nil {
		n := min(len(words), levelsAtOnce)
		err = r.reportLevels(ctx, words[:n], scopes[:n])
		words, scopes = words[n:], scopes[n:]
	}
	return err
}

// reportLevels reports the calls of some levels, and notes which of their breakers are open.
func (r *Reporter) reportLevels(ctx context.Context, words []wire.Word, scopes []*wire.Scope) error {
	noted, err := r.send(ctx, scopes[0], words)
	if err != nil {
		return err
	}
	for i, n := range noted {
		level := scopes[i].Prefix + words[i].Name
		switch {
		case n.Full:
		case n.Changed:
			r.opened(ctx, scopes[i], words[i].Name, n, words[i].Numbers[4] == 1)
		case n.Left > 0:
			r.setOpen(level, time.Now().Add(n.Left))
		default:
			r.setOpen(level, time.Time{})
		}
	}
	return nil
}
