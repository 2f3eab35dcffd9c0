package policy

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/headway-go/headway/internal/duration"
)

// Breaker is when the calls of a level count as failing, and what follows: nothing starts there for a time, and then some calls go
// as probes. All calls of the level and of those below it count together. The zero Breaker is none; in any other a field of 0 has
// its default. Source: docs/breaker.md
type Breaker struct {
	// Failures is the part of the calls that has to fail, in whole percent: 1 to 100. Defaults to 50.
	Failures int64
	// Of is how many calls there are at least before that part counts: 1 to 1000. Defaults to 20.
	Of int64
	// In is for how long a call counts: 1s to 10m. Defaults to 30s.
	In time.Duration
	// Probe is how many calls may be on their way at once after the wait: 1 to 10. Defaults to 1.
	Probe int64
	// Wait is how long nothing starts at first: 1s to 10m. It doubles with each probe that fails: see Longest. Defaults to 30s.
	Wait time.Duration
	// KeepAttempts says that a task whose call fails uses up no attempt: retry: false.
	KeepAttempts bool
	// Shadow says that the breaker counts and reports, and stops nothing.
	Shadow bool
}

// MatchedBreaker is a breaker at the level at which it counts for a scope.
type MatchedBreaker struct {
	Breaker Breaker
	Scope   Scope  // the prefix of the task's scope whose calls count together
	Pattern string // where the policy has the breaker: payments/*
}

// LongestWait is the longest wait of any breaker.
const LongestWait = 10 * time.Minute

const leastWait = time.Second

var defaultBreaker = Breaker{Failures: 50, Of: 20, In: 30 * time.Second, Probe: 1, Wait: 30 * time.Second}

// numberOfBreaker describes a number of a Breaker and its bounds. Its text ends with unit.
type numberOfBreaker struct {
	name, unit  string
	least, most int64
	of          func(*Breaker) *int64
}

var breakerNumbers = []numberOfBreaker{
	{"failures", "%", 1, wholePart, func(b *Breaker) *int64 { return &b.Failures }},
	{"of", "", 1, 1000, func(b *Breaker) *int64 { return &b.Of }},
	{"probe", "", 1, 10, func(b *Breaker) *int64 { return &b.Probe }},
}

// timeOfBreaker describes a time of a Breaker, from leastWait to LongestWait.
type timeOfBreaker struct {
	name string
	of   func(*Breaker) *time.Duration
}

var breakerTimes = []timeOfBreaker{
	{"in", func(b *Breaker) *time.Duration { return &b.In }},
	{"wait", func(b *Breaker) *time.Duration { return &b.Wait }},
}

// WithDefaults returns b with every default written out; the zero Breaker as it is.
func (b Breaker) WithDefaults() Breaker {
	if b == (Breaker{}) {
		return b
	}
	for _, f := range breakerNumbers {
		if at := f.of(&b); *at == 0 {
			*at = *f.of(&defaultBreaker)
		}
	}
	for _, f := range breakerTimes {
		if at := f.of(&b); *at == 0 {
			*at = *f.of(&defaultBreaker)
		}
	}
	return b
}

// Longest returns how long the wait is at most, however many probes have failed: eight times Wait, and LongestWait. So an API that
// is back is called again soon, and one that is down gets few calls.
func (b Breaker) Longest() time.Duration {
	if b.Wait == 0 {
		return LongestWait
	}
	return min(8*b.Wait, LongestWait)
}

// breaker checks the breaker of a level, and writes its defaults out.
func (c *checker) breaker(t *tree, scope *Source, path string) {
	from := scope.under("breaker")
	if scope != nil && from == nil {
		return
	}
	refuse := func(w written, name, format string, args ...any) {
		if w.good() {
			c.add(w.at, path+"."+name, name+" "+format, args...)
		}
	}
	for _, f := range breakerNumbers {
		n := *f.of(&t.Breaker)
		if w := from.field(f.name, strconv.FormatInt(n, 10)+f.unit, n != 0); n < f.least || n > f.most {
			refuse(w, f.name, "is %s; it must be %d%s to %d%s", w.text, f.least, f.unit, f.most, f.unit)
		}
	}
	for _, f := range breakerTimes {
		d := *f.of(&t.Breaker)
		switch w := from.field(f.name, duration.Format(d), d != 0); {
		case d < leastWait:
			refuse(w, f.name, "is %s; the least is %s", w.text, duration.Format(leastWait))
		case d > LongestWait:
			refuse(w, f.name, "is %s; the most is %s", w.text, duration.Format(LongestWait))
		}
	}
	if shadow := from.field("shadow", "true", t.Breaker.Shadow); t.Breaker.Shadow && t.Breaker.KeepAttempts {
		refuse(shadow, "shadow", "opens nothing, so that every attempt counts; remove it, or retry: false")
	}
	if from != nil && t.Breaker == (Breaker{}) { // fields that say what is the default
		t.Breaker = defaultBreaker
	}
	t.Breaker = t.Breaker.WithDefaults()
	c.breaks = c.breaks || t.Breaker != (Breaker{})
}

// Breaks reports whether any level of the policy has a breaker.
func (p *Policy) Breaks() bool { return p.breaks }

// Breakers returns the breakers on the path of a scope, outermost first, with every default written out. A level has the breaker
// of its own name, or else that of "*"; none is inherited from the level above, whose breaker counts the same calls besides.
func (p *Policy) Breakers(s Scope) (some []MatchedBreaker) {
	if !p.breaks {
		return nil
	}
	p.settings(s, func(t *tree) bool { return t.Breaker != (Breaker{}) }, func(level Scope, t *tree) {
		some = append(some, MatchedBreaker{Breaker: t.Breaker, Scope: level, Pattern: t.path})
	})
	return some
}

// ErrNoBreaker is wrapped by the error for a scope at whose own level no breaker counts.
var ErrNoBreaker = errors.New("no breaker of its own")

// BreakerAt returns the breaker at the level of a scope itself. The error wraps ErrNoBreaker.
func (p *Policy) BreakerAt(s Scope) (MatchedBreaker, error) {
	all := p.Breakers(s)
	switch n := len(all); {
	case n == 0:
		return MatchedBreaker{}, fmt.Errorf("%s has %w", s, ErrNoBreaker)
	case all[n-1].Scope != s:
		return MatchedBreaker{}, fmt.Errorf("%s has %w; that of %s stops it too", s, ErrNoBreaker, all[n-1].Scope)
	default:
		return all[n-1], nil
	}
}
