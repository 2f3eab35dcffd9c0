package throttle

import (
	"context"
	"time"

	"github.com/headway-go/headway/throttle/upstream"
)

// After a pause of unknown length one call goes first, as a probe, and the others wait until a call has gone through; see
// lua/include/upstream/pause.lua. The script that grants a start says whether it is a probe. This process remembers that until
// the answer comes, since no other answer without news is worth a round trip.

// probe remembers that a start of the plan's scope is a probe.
func (h *reportCache) probe(p *compiledScope, begins time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.probes == nil || len(h.probes) >= maxPlans {
		h.probes = map[string]time.Time{}
	}
	h.probes[p.provider+p.path] = begins
	h.probing.Store(true)
}

// probed returns whether an answer may be that of the scope's probe, and when that began: a call that was sent before is none.
func (h *reportCache) probed(p *compiledScope, sent time.Time) (began time.Time, is bool) {
	if !h.probing.Load() {
		return began, false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	began, is = h.probes[p.provider+p.path]
	return began, is && (sent.IsZero() || !sent.Before(began.Add(-pauseGrace)))
}

// endProbe forgets the probe of a scope, unless another one has begun.
func (h *reportCache) endProbe(p *compiledScope, began time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if at, is := h.probes[p.provider+p.path]; is && at.Equal(began) {
		delete(h.probes, p.provider+p.path)
	}
	h.probing.Store(len(h.probes) > 0)
}

// age is how many µs ago the call of an answer was sent, 0 if that is not known.
func age(a upstream.Hint) int64 {
	if a.Sent.IsZero() {
		return 0
	}
	return max(0, time.Since(a.Sent).Microseconds())
}

// returnProbe lets the next call be the probe, if the grant was one.
func (l *Limiter) returnProbe(ctx context.Context, g Grant) error {
	if !g.probe {
		return nil
	}
	_, err := l.sendSignals(ctx, g.plan, []signal{{"back", g.plan.path, [5]int64{g.start}}})
	return err
}
