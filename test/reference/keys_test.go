package reference

import (
	"errors"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/throttle"
)

// expiring has the keys of a history expire by its clock, and looks at them after each answer.
type expiring struct {
	rdb     *redis.Client
	pattern string
	at      int64                    // up to when keys have expired
	ends    map[string]int64         // when a key expires, by the history's clock
	set     map[string]time.Duration // its time to live as it was last set here
	values  map[string]string
	asked   time.Time
	slow    bool
}

// stall is how long a call may take without a key expiring by the server's own clock, which is real: a history that
// was slower once ends there.
const stall = 200 * time.Millisecond

func newExpiring(rdb *redis.Client, root string, at int64) *expiring {
	return &expiring{rdb: rdb, pattern: "hw:{" + root + "}*", at: at, asked: time.Now(), ends: map[string]int64{}, set: map[string]time.Duration{}, values: map[string]string{}}
}

// expire deletes what has expired by now, and has the rest live as long as it would.
func (e *expiring) expire(h *history) {
	e.slow = e.slow || time.Since(e.asked) > stall
	e.at, e.asked = h.at, time.Now()
	_, err := e.rdb.Pipelined(h.ctx, func(pipe redis.Pipeliner) error {
		for key, ends := range e.ends {
			if ends <= e.at {
				pipe.Del(h.ctx, key)
				delete(e.ends, key)
				delete(e.values, key)
				continue
			}
			e.set[key] = max(time.Duration(ends-e.at+999)*µs, stall)
			pipe.PExpire(h.ctx, key, e.set[key])
		}
		return nil
	})
	if err != nil && !errors.Is(err, redis.Nil) {
		h.object("error", "expiring keys: %v", err)
	}
}

// learn reads what the keys hold and until when, and returns what has changed.
func (e *expiring) learn(h *history) (changed []string) {
	keys, err := e.rdb.Keys(h.ctx, e.pattern).Result()
	values, ttls := make([]*redis.StringCmd, len(keys)), make([]*redis.DurationCmd, len(keys))
	if err == nil && len(keys) > 0 {
		_, err = e.rdb.Pipelined(h.ctx, func(pipe redis.Pipeliner) error {
			for i, key := range keys {
				values[i], ttls[i] = pipe.Dump(h.ctx, key), pipe.PTTL(h.ctx, key)
			}
			return nil
		})
	}
	undumped := func(err error) bool { return redis.HasErrorPrefix(err, "WRONGTYPE") } // miniredis dumps strings alone
	if err != nil && !errors.Is(err, redis.Nil) && !undumped(err) {                    // one may expire meanwhile
		h.object("error", "reading keys: %v", err)
		return nil
	}
	took := time.Since(e.asked)
	seen := map[string]string{}
	for i, key := range keys {
		ttl := ttls[i].Val()
		if ttl == -1 {
			h.object("TTL", "%s has none", key)
		}
		if err := values[i].Err(); err != nil && !undumped(err) || ttl < 0 {
			continue
		}
		if seen[key] = values[i].Val(); seen[key] != e.values[key] {
			changed = append(changed, key)
		}
		if _, known := e.ends[key]; !known || ttl > e.set[key] || ttl < e.set[key]-took-2*time.Millisecond {
			e.ends[key], e.set[key] = e.at+(ttl+took).Microseconds(), ttl
		}
	}
	for key := range e.values {
		if _, is := seen[key]; !is {
			delete(e.ends, key)
		}
	}
	e.values = seen
	return changed
}

// see holds the keys against an answer: a denial changes nothing, and a state lasts as long as it means something, and a
// minute longer at most.
func (e *expiring) see(h *history, req request, d throttle.Decision, a Answer) {
	changed := e.learn(h)
	if !d.Allowed && len(changed) > 0 {
		h.object("denial", "it changed %q", changed)
	}
	const µm = int64(62e6)
	for i, c := range req.path {
		key := "hw:{" + h.root + "}:r:" + strings.TrimPrefix(c.Place, h.root)
		ends, is := e.ends[key]
		switch reset := a.Rules[i].Reset; {
		case !is || c.Rule.Algorithm == Concurrency:
		case ends+stall.Microseconds() < reset:
			h.object("TTL", "%s ends in %d µs, and means something for %d", key, ends-h.at, reset-h.at)
		case c.Rule.Algorithm != CalendarQuota && ends > max(reset, h.at)+µm+stall.Microseconds():
			h.object("TTL", "%s ends in %d µs, and means something for %d only", key, ends-h.at, reset-h.at)
		}
	}
	for key, ends := range e.ends {
		if (strings.Contains(key, "}:a:") || strings.Contains(key, "}:c:")) && ends > h.at+32e6 {
			h.object("TTL", "the record %s is kept for %d µs", key, ends-h.at)
		}
	}
}

// again asks for an attempt that was granted: it is not charged again, and has its start.
func (h *history) again() {
	r := h.runs[len(h.runs)-1-h.rng.IntN(min(len(h.runs), 5))]
	if h.at-r.at > 29e6 || len(r.path) == 0 || r.over {
		return
	}
	d, err := h.limiter.Decide(h.ctx, r.req)
	h.note("asked again for %s: granted %v, wait %s", r.id, d.Allowed, d.Wait)
	h.keys.learn(h)
	switch {
	case err != nil:
		h.object("error", "asked again for %s: %v", r.id, err)
	case !d.Allowed:
		h.object("again", "%s is granted no more", r.id)
	case d.Allowed && d.Wait.Microseconds() != max(0, r.start-h.at):
		h.object("again", "%s starts in %s, and its start is in %d µs", r.id, d.Wait, r.start-h.at)
	}
}
