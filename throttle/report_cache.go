package throttle

import (
	"sync"
	"sync/atomic"
	"time"
)

// reportCachedFor is how long a report is cached before it is sent again: another process may have
// reset it meanwhile.
const reportCachedFor = 5 * time.Second

// A limit is reported again after limitsApart at the earliest, and one that found no room after roomApart.
const (
	limitsApart = time.Second
	roomApart   = 10 * time.Second
)

// reportCache is what this process has told, or was told, so that it says nothing twice: of up to
// maxPlans scopes and rules.
type reportCache struct {
	waiting atomic.Int64 // for a start
	probing atomic.Bool  // there are probes

	mu     sync.Mutex
	pauses map[string]cachedPause // by the key of the scope
	words  map[cachedKey]cachedSignal
	looked map[string]time.Time // at the pauses of scopes, by the same
	probes map[string]time.Time // when the latest probe of a scope began, by the same
	next   chan struct{}        // closed when a pause is heard of; nil where nobody waits for that
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
	numbers [5]int64
	told    time.Time
}

// until tells whether an answer that asks for so long says nothing new.
func (h *reportCache) until(p *compiledScope, now time.Time, wait time.Duration) (until time.Time, told bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	one, known := h.pauses[p.provider+p.path]
	fresh := known && now.Before(one.here) && now.Sub(one.told) < reportCachedFor
	return one.until, fresh && !now.Add(wait-knownPause).After(one.here)
}

// note notes the pause that an answer to the scope's calls asked for: it may count for a level above,
// which those beside the scope have to hear of too.
func (h *reportCache) note(p *compiledScope, one notedSignal) {
	if !one.until.IsZero() {
		at := one.until.Add(-one.left)
		h.pause(p.provider+p.path, one.until, at)
		if one.noted != p.path {
			h.pause(p.provider+one.noted, one.until, at)
		}
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.pauses, p.provider+p.path)
}

// signalResult tells whether a word of a rule, by its key, is worth telling, and takes it for told: other
// numbers at most once in limitsApart, since an API may tell the limits of its parts by turns, and
// the same when so much time has passed.
func (h *reportCache) signalResult(key string, w signal, again time.Duration) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	now, its := time.Now(), cachedKey{key, w.verb}
	one, known := h.words[its]
	if known && now.Sub(one.told) < limitsApart || known && one.numbers == w.numbers && now.Sub(one.told) < again {
		return false
	}
	if h.words == nil || len(h.words) >= maxPlans {
		h.words = map[cachedKey]cachedSignal{}
	}
	h.words[its] = cachedSignal{w.numbers, now}
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

func (h *reportCache) forget(provider, rule string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.words, cachedKey{provider + rule, "adopt"})
	delete(h.words, cachedKey{provider + rule, "rise"})
}
