package throttle

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/throttle/upstream"
)

// reportCachedFor is how long a report is cached before it is sent again: another process may have reset it meanwhile.
const reportCachedFor = 5 * time.Second

// A limit is reported again after limitsApart at the earliest, and one that found no room after roomApart.
const (
	limitsApart = time.Second
	roomApart   = 10 * time.Second
)

// reportCache is what this process has told, or was told, so that it says nothing twice: of up to maxCached scopes and rules.
type reportCache struct {
	waiting atomic.Int64 // for a start
	probing atomic.Bool  // there are probes

	mu          sync.Mutex
	pauses      map[string]cachedPause // by the key of the scope
	words       map[cachedKey]cachedSignal
	looked      map[string]time.Time // at the pauses of scopes, by the same
	probes      map[string]time.Time // when the latest probe of a scope began, by the same
	corrections map[string]time.Time // until when rules are corrected, by their keys
	next        chan struct{}        // closed when a pause is heard of; nil where nobody waits for that
}

type cachedPause struct {
	until time.Time // by the Redis server's clock
	here  time.Time // the same by the clock of this process
	told  time.Time
	at    time.Time // when it was in force, by the Redis server's clock
}

// cachedKey is a verb that tells of a rule, by its key.
type cachedKey struct{ rule, verb string }

type cachedSignal struct {
	word wire.Word
	told time.Time
}

// until tells whether an answer that asks for so long says nothing new.
func (h *reportCache) until(p *plan, now time.Time, wait time.Duration) (until time.Time, told bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	one, known := h.pauses[p.Prefix+p.Path]
	fresh := known && now.Before(one.here) && now.Sub(one.told) < reportCachedFor
	return one.until, fresh && !now.Add(wait-knownPause).After(one.here)
}

// note notes the pause that an answer to the scope's calls asked for: it may count for a level above,
// which those beside the scope have to hear of too.
func (h *reportCache) note(p *plan, one wire.Noted) {
	if !one.Until.IsZero() {
		h.pause(p.Prefix+p.Path, one.Until, one.At)
		if one.Name != p.Path {
			h.pause(p.Prefix+one.Name, one.Until, one.At)
		}
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.pauses, p.Prefix+p.Path)
}

// isNews tells whether a word of a rule, by its key, is worth telling, and takes it for told: other numbers at most once in limitsApart,
// since an API may tell the limits of its parts by turns, and the same when so much time has passed.
func (h *reportCache) isNews(key string, w wire.Word, again time.Duration) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	now, its := time.Now(), cachedKey{key, w.Verb}
	one, known := h.words[its]
	if known && now.Sub(one.told) < limitsApart || known && one.word == w && now.Sub(one.told) < again {
		return false
	}
	h.words = bounded(h.words)
	h.words[its] = cachedSignal{w, now}
	return true
}

// unsaid notes that there was no room for what was told of a rule, by its key: it is told again with an
// answer that comes in roomApart or later, since each time costs a look for room.
func (h *reportCache) unsaid(key, verb string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if its := (cachedKey{key, verb}); !h.words[its].told.IsZero() {
		h.words[its] = cachedSignal{told: time.Now().Add(roomApart - limitsApart)}
	}
}

// maxCached bounds what a cache of this package keeps.
const maxCached = 10_000

// bounded returns a map that has room.
func bounded[K comparable, V any](m map[K]V) map[K]V {
	if m == nil || len(m) >= maxCached {
		return map[K]V{}
	}
	return m
}

// correct notes that a rule, by its key, is corrected for a time.
func (h *reportCache) correct(key string, left time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.corrections = bounded(h.corrections)
	h.corrections[key] = time.Now().Add(left)
}

// corrected reports whether this process has heard that a rule of a plan is corrected now.
func (h *reportCache) corrected(p *plan, rule int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Now().Before(h.corrections[p.Prefix+wire.RuleName(p.Rules[rule])])
}

func (h *reportCache) forget(provider, rule string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.words, cachedKey{provider + rule, "adopt"})
	delete(h.words, cachedKey{provider + rule, "rise"})
}

// After a pause of unknown length one call goes first, as a probe, and the others wait until a call has gone through; see
// lua/include/pause.lua. The script that grants a start says whether it is a probe. This process remembers that until
// the answer comes, since no other answer without news is worth a round trip.

// probe remembers that a start of the plan's scope is a probe.
func (h *reportCache) probe(p *plan, begins time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.probes = bounded(h.probes)
	h.probes[p.Prefix+p.Path] = begins
	h.probing.Store(true)
}

// probed returns whether an answer may be that of the scope's probe, and when that began: a call that was sent before is none.
func (h *reportCache) probed(p *plan, sent time.Time) (began time.Time, is bool) {
	if !h.probing.Load() {
		return began, false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	began, is = h.probes[p.Prefix+p.Path]
	return began, is && (sent.IsZero() || !sent.Before(began.Add(-pauseGrace)))
}

// endProbe forgets the probe of a scope, unless another one has begun.
func (h *reportCache) endProbe(p *plan, began time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if at, is := h.probes[p.Prefix+p.Path]; is && at.Equal(began) {
		delete(h.probes, p.Prefix+p.Path)
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
