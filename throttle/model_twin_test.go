package throttle

import (
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/lua"
	"github.com/headway-go/headway/throttle/policy"
)

// A twin of each rule's key stands beside it: only what is never given back is
// charged there, at the same starts. Whenever all that was to be given back has
// been, a window rule must say the same as its twin; a token bucket must never hold
// more, and without a margin as much if nothing else was charged meanwhile.

func twinOf(key string) string { return strings.Replace(key, ":{", "-twin:{", 1) }

// probe charges rules at a start that the caller names.
var probe = redis.NewScript(generalParts() + `
local start = tonumber(ARGV[3])
for i = 1, #KEYS do
  local r = load_rule(i, ARGV[2 * i + 2], tonumber(ARGV[2 * i + 3]), ARGV[2], now)
  algorithms[r.kind].charge(r, now, start)
  algorithms[r.kind].save(r, now, start)
end
return 1
`)

// generalParts returns the algorithms of decide, without what it does with them.
func generalParts() string {
	fastPath, general, _ := strings.Cut(lua.Decide.Source(), "local call, format = ")
	_, general, _ = strings.Cut(general, "-- The general way.\n")
	general, _, _ = strings.Cut(general, "local function read_rules()")
	return fastPath + "local call, upstream, reported = redis.call, nil, false\n" + general
}

// charge charges the twins of a grant.
func (w *world) charge(p *compiledScope, req Request, start int64) {
	must(probe.Run(ctx, w.rdb, twins(p), p.args(req.Cost, w.limiters[w.version].clock(), p.attemptID(&req), start)...).Err())
	w.snapshotTwins(p)
}

func twins(p *compiledScope) []string {
	keys := make([]string, len(p.keys))
	for i, key := range p.keys {
		keys[i] = twinOf(key)
	}
	return keys
}

// compare asks rules and twins alike.
func (w *world) compare(p *compiledScope) {
	twin := &compiledScope{scope: p.scope, provider: p.provider, bounds: p.bounds, states: p.states, kinds: p.kinds, keys: twins(p), rules: p.rules, upstream: p.upstream, path: p.path,
		from: p.from, until: p.until, hours: p.hours, ends: p.ends, pauses: p.pauses, open: p.open}
	for _, cost := range []int64{1, 2, 7} {
		a, b := w.peek(p, ask{cost, w.now})[0], w.peek(twin, ask{cost, w.now})[0]
		for i, r := range a.Rules {
			t := b.Rules[i]
			if w.now >= w.crowd && r.ResetAfter == 0 && t.ResetAfter == 0 {
				w.crowd = 0
			}
			rule := p.bounds[i].Rule
			// The twin has nothing to roll over where it has no state, and its windows open where nothing that was given back did.
			if r.Algorithm == policy.Concurrency || rule.Rollover > 0 || rule.OpensOnUse {
				continue
			}
			same := r.Remaining == t.Remaining && r.RetryAfter == t.RetryAfter && r.ResetAfter == t.ResetAfter
			less := r.Remaining <= t.Remaining && r.RetryAfter >= t.RetryAfter && r.ResetAfter >= t.ResetAfter
			exact := r.Algorithm == policy.SlidingWindow || r.Algorithm == policy.FixedWindow && !w.wide ||
				r.Algorithm == policy.Calendar && !rule.Spread ||
				r.Algorithm == policy.TokenBucket && !w.late && w.crowd == 0 && p.bounds[i].Rule.Margin == 0
			if exact && !same || !less {
				fail("%s after giving all back:\n%+v\nits twin:\n%+v", p.keys[i], r, t)
			}
		}
	}
}

func (w *world) snapshotTwins(p *compiledScope) {
	pipe := w.rdb.Pipeline()
	for _, key := range twins(p) {
		pipe.PTTL(ctx, key)
	}
	replies, err := pipe.Exec(ctx)
	must(err)
	for i, key := range twins(p) {
		w.expires[key] = w.now + replies[i].(*redis.DurationCmd).Val().Microseconds() + 1000
	}
}
