package throttle

import (
	"context"
	"time"
)

// A start that was granted for longer ahead than pauseGrace is looked after once more, so long
// before it comes, by a look that others may share who spend from the scope. So no start begins
// more than pauseGrace after its API's pause was told, whoever told it.
const (
	pauseLook  = 100 * time.Millisecond
	looksApart = 50 * time.Millisecond
)

// untilStart waits for a granted start. It is over at once where this process hears that an
// API has paused the scope, or one above it, since the start was granted.
func (l *Limiter) untilStart(ctx context.Context, req *Request, d *Decision) (paused bool, err error) {
	left := time.Until(d.begins)
	if left > 0 {
		l.reports.waiting.Add(1)
		defer l.reports.waiting.Add(-1)
	}
	if left > 0 && req.OnWait != nil {
		defer req.OnWait(left)()
	}
	look, before := d.Wait > pauseGrace, l.beforeStart(req, d)
	for {
		heard, overtaken := l.reports.since(d)
		left = time.Until(d.begins)
		if !overtaken && req.BeforeStart != nil && left <= before && ctx.Err() == nil {
			req.BeforeStart()
			req.BeforeStart = nil
			continue
		}
		if overtaken || left <= 0 {
			return overtaken, ctx.Err()
		}
		if look && left <= pauseLook {
			look = false
			l.lookAtPauses(d.under)
		}
		if look {
			left -= pauseLook
		}
		if req.BeforeStart != nil {
			left = min(left, time.Until(d.begins)-before)
		}
		if err := sleepUntil(ctx, left, heard); err != nil {
			return false, err
		}
	}
}

// beforeStart returns how long before a start its BeforeStart is called: a slow round trip, and some time for a busy
// machine.
func (l *Limiter) beforeStart(req *Request, d *Decision) time.Duration {
	if req.BeforeStart == nil || d.under == nil {
		return 0
	}
	return d.under.clock(&l.skews).roundTrip() + l.cfg.StartTolerance
}

// lookAtPauses asks what pauses there are of a plan's scope and of those above it, and has those
// heard of them who wait. It is asked once for all who want to know in the same moment, and
// nobody is held up by it: where Redis does not answer, starts are as they were granted.
func (l *Limiter) lookAtPauses(p *compiledScope) {
	if !l.reports.looks(p) {
		return
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), l.cfg.Timeout)
		defer cancel()
		levels := p.paths()
		fields := make([]string, len(levels))
		for i, level := range levels {
			fields[i] = "P" + level
		}
		values, err := l.rdb.HMGet(ctx, upstreamKey(p.provider), fields...).Result()
		if err != nil {
			return
		}
		at := l.serverTime(p.provider)
		for i, v := range values {
			v := text(v)
			if len(v) < pauseLength {
				continue
			}
			if until := pauseOver(v); until.After(at) {
				l.reports.pause(p.provider+levels[i], until, at)
				l.emptyBelow(p.provider, levels[i])
			}
		}
	}()
}

// deniedByPause notes a denial for an API's pause: where that is not known here, those who wait
// for a start are told of it.
func (l *Limiter) deniedByPause(p *compiledScope) {
	if l.reports.waiting.Load() > 0 && l.reports.unknown(p) {
		l.lookAtPauses(p)
	}
}

// paths are those of the plan's scope and of those above it, outermost first.
func (p *compiledScope) paths() (all []string) {
	for i := range p.path {
		if p.path[i] == '/' {
			all = append(all, p.path[:i])
		}
	}
	return append(all, p.path)
}

// since tells whether a pause was heard of after a start was granted that is before its end,
// and returns what is closed when another one is. Whatever was decided later knew of the pause;
// when an attempt was that is answered once more, nobody knows.
func (h *reportCache) since(d *Decision) (next <-chan struct{}, overtaken bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.next == nil {
		h.next = make(chan struct{})
	}
	if len(h.pauses) == 0 || d.Degraded || d.At.IsZero() {
		return h.next, false
	}
	start := d.At.Add(d.Wait - d.overdue)
	for _, level := range d.under.paths() {
		one, known := h.pauses[d.under.provider+level]
		// By the server's clock an old pause would seem to be told later, and to hold on, since that
		// clock has stepped back: so it is also to be in force by one that nobody sets.
		holds := d.begins.Before(one.here.Add(pauseGrace))
		if known && holds && (d.replayed || !one.at.Before(d.At)) && one.until.After(start) {
			return h.next, true
		}
	}
	return h.next, false
}

// pause notes a pause of a scope, by its key, that was in force at a time of the server's, and
// tells those who wait for a start.
func (h *reportCache) pause(key string, until, at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.pauses == nil || len(h.pauses) >= maxPlans {
		h.pauses = map[string]cachedPause{}
	}
	now := time.Now()
	h.pauses[key] = cachedPause{until: until, here: now.Add(until.Sub(at)), told: now, at: at}
	if h.next != nil {
		close(h.next)
		h.next = nil
	}
}

// looks says that it is time for a look at the pauses of a plan's scope, and takes it for made.
func (h *reportCache) looks(p *compiledScope) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	now, key := time.Now(), p.provider+p.path
	if at, known := h.looked[key]; known && now.Sub(at) < looksApart {
		return false
	}
	if h.looked == nil || len(h.looked) >= maxPlans {
		h.looked = map[string]time.Time{}
	}
	h.looked[key] = now
	return true
}

// unknown says that no pause is known for which the plan's scope may have been denied.
func (h *reportCache) unknown(p *compiledScope) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, level := range p.paths() {
		if one, known := h.pauses[p.provider+level]; known && time.Now().Before(one.here) {
			return false
		}
	}
	return true
}
