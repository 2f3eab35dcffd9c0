package answers

import (
	"cmp"
	"time"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/throttle/policy"
)

const (
	// cachedFor is how long a report is cached before it is sent again: another process may have reset it meanwhile.
	cachedFor = 5 * time.Second
	// samePause is by how much an answer must put off the end of a pause to be reported: answers that come together say the same
	// in whole seconds.
	samePause = 250 * time.Millisecond
	// A limit is reported again after limitsApart at the earliest, since an API may give the limits of its parts by turns; and
	// one that found no room after roomApart, since each time costs a look for room.
	limitsApart = time.Second
	roomApart   = 10 * time.Second
	// maxCached bounds each map of a Reporter.
	maxCached = 10_000
)

// wordKey is a verb that reports something of a rule, by its ruleKey.
type wordKey struct{ rule, verb string }

type sentWord struct {
	word wire.Word
	at   time.Time
}

func scopeKey(s *wire.Scope) string { return s.Prefix + s.Path }

func ruleKey(s *wire.Scope, b policy.MatchedRule) string { return s.Prefix + wire.RuleName(b) }

// put sets an entry of a map, of which it drops all before it grows beyond maxCached.
func put[K comparable, V any](m *map[K]V, key K, value V) {
	if *m == nil || len(*m) >= maxCached {
		*m = map[K]V{}
	}
	(*m)[key] = value
}

// paused returns until when a scope is paused, and whether an answer that asks for so long says nothing new.
func (r *Reporter) paused(s *wire.Scope, wait time.Duration) (until time.Time, same bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p, now := r.pauses[scopeKey(s)], time.Now()
	same = now.Before(p.ends) && now.Sub(p.heard) < cachedFor && !now.Add(wait-samePause).After(p.ends)
	return p.until, same
}

// isNews reports whether a word about a rule is worth a report, and then takes it for reported. The same word is, after a time.
func (r *Reporter) isNews(rule string, w wire.Word, again time.Duration) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, key := time.Now(), wordKey{rule, w.Verb}
	last, sent := r.words[key]
	if sent && (now.Sub(last.at) < limitsApart || last.word == w && now.Sub(last.at) < again) {
		return false
	}
	put(&r.words, key, sentWord{w, now})
	return true
}

// forgetWords has what is known of a rule reported again.
func (r *Reporter) forgetWords(rule string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.words, wordKey{rule, "adopt"})
	delete(r.words, wordKey{rule, "rise"})
}

// corrected reports whether this process knows that a rule is corrected now.
func (r *Reporter) corrected(rule string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return time.Now().Before(r.corrections[rule])
}

// remember remembers what a word has done.
func (r *Reporter) remember(s *wire.Scope, w wire.Word, n wire.Noted) {
	rule := s.Prefix + w.Name
	switch {
	case n.Full:
		r.mu.Lock()
		defer r.mu.Unlock()
		if key := (wordKey{rule, w.Verb}); !r.words[key].at.IsZero() {
			r.words[key] = sentWord{at: time.Now().Add(roomApart - limitsApart)}
		}
	case w.Pauses() && n.Until.IsZero():
		r.forgetPause(s)
	case w.Pauses():
		r.heard(scopeKey(s), n.Until, n.At)
		if n.Name != s.Path { // there was no room: it counts for a level above
			r.heard(s.Prefix+n.Name, n.Until, n.At)
		}
	case n.Changed && (w.Verb == "cut" || w.Verb == "adopt"):
		r.mu.Lock()
		put(&r.corrections, rule, time.Now().Add(n.Left))
		r.mu.Unlock()
	}
}

// ForgetSent has the next answers reported as if this process had sent nothing before. For tests.
func (r *Reporter) ForgetSent() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pauses, r.words = nil, nil
}

// After a pause of unknown length one call goes first, as a probe, and the others wait until a call has gone through; see
// lua/include/pause.lua. The script that grants a start says whether it is a probe. This process remembers that until the answer
// comes, since no other answer without news is worth a round trip.

// Probe notes that a start of a scope is a probe. With a member of a pool it is noted for that, as its answer is reported: the levels
// that such answers pause are those on the member's path.
func (r *Reporter) Probe(s *wire.Scope, begins time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	put(&r.probes, s.Prefix+cmp.Or(s.MemberPath(), s.Path), begins)
	r.probing.Store(true)
}

// probed reports whether an answer may be that of a scope's probe, and when that began: a call that was sent before is none.
func (r *Reporter) probed(s *wire.Scope, sent time.Time) (began time.Time, is bool) {
	if !r.probing.Load() {
		return began, false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	began, is = r.probes[scopeKey(s)]
	return began, is && (sent.IsZero() || !sent.Before(began.Add(-Grace)))
}

// endProbe forgets the probe of a scope, unless another one has begun.
func (r *Reporter) endProbe(s *wire.Scope, began time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.probes[scopeKey(s)].Equal(began) {
		delete(r.probes, scopeKey(s))
	}
	r.probing.Store(len(r.probes) > 0)
}
