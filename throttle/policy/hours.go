package policy

import (
	"slices"
	"sync"
	"time"
)

// hours caches when the rules with the same expression and time zone apply. It is safe for
// concurrent use.
type hours struct {
	key    [2]string // the expression and the time zone
	window Hours

	mu   sync.Mutex
	last hoursSpan // the last result
}

// hoursSpan is an interval in which the hours neither begin nor end, in µs since the epoch.
type hoursSpan struct {
	from, until int64
	holds       bool
}

func (s hoursSpan) has(at int64) bool { return s.from <= at && at < s.until }

// ActiveAt reports whether a rule with Active applies at a time, and the bounds of the interval in
// which the answer stays the same. from is the beginning of the time's minute or earlier.
func (r Rule) ActiveAt(at time.Time) (active bool, from, until time.Time) {
	s := r.hours().around(at)
	return s.holds, time.UnixMicro(s.from), time.UnixMicro(s.until)
}

// NextActiveChange returns the first moment after at when a rule of the policy begins or ends to
// apply; the zero time if all rules always apply. It does no I/O.
func (p *Policy) NextActiveChange(at time.Time) time.Time {
	if len(p.windows) == 0 {
		return time.Time{}
	}
	next := p.windows[0].around(at).until
	for _, h := range p.windows[1:] {
		next = min(next, h.around(at).until)
	}
	return time.UnixMicro(next)
}

// windows caches hours, maxCalendars at most.
var windows struct {
	mu    sync.Mutex
	known map[[2]string]*hours
}

// hours returns the cached hours of the rule.
func (r Rule) hours() *hours {
	key := textOf(r.Active)
	windows.mu.Lock()
	defer windows.mu.Unlock()
	if h := windows.known[key]; h != nil {
		return h
	}
	if windows.known == nil || len(windows.known) >= maxCalendars {
		windows.known = map[[2]string]*hours{}
	}
	h := &hours{key: key, window: r.Active}
	windows.known[key] = h
	return h
}

// around returns the interval around a moment. It begins with the moment's minute or earlier.
func (h *hours) around(at time.Time) hoursSpan {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.last.has(at.UnixMicro()) {
		return h.last
	}
	until := h.window.Changes(at)
	if until.IsZero() {
		until = at.Add(rare)
	}
	h.last = hoursSpan{at.Truncate(time.Minute).UnixMicro(), until.UnixMicro(), h.window.Holds(at)}
	return h.last
}

// allHours returns the hours of a policy's rules, each once, in the order of their expressions.
func (p *Policy) allHours() (all []*hours) {
	p.has(func(r Rule) bool {
		if r.Active != nil {
			if h := r.hours(); !slices.Contains(all, h) {
				all = append(all, h)
			}
		}
		return false
	})
	slices.SortFunc(all, func(a, b *hours) int { return slices.Compare(a.key[:], b.key[:]) })
	return all
}
