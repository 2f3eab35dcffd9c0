package throttle

import (
	"context"
	"strings"
	"time"

	"github.com/headway-go/headway/throttle/policy"
)

// UpstreamState is what APIs have answered about a scope and the scopes above it, as far as it still
// applies.
type UpstreamState struct {
	// At is the Redis server's time.
	At time.Time
	// Pauses are the pauses that apply, outermost first.
	Pauses []UpstreamPause
	// Corrections are the corrected limits, in the order of the rules.
	Corrections []Correction
}

// UpstreamPause is a pause of a scope, and of the scopes below it, that an API's answer asked for.
type UpstreamPause struct {
	// Scope is the paused scope: the requested one, or one above it.
	Scope string
	// Since and Until are the begin and the end of the pause, by the Redis server's clock.
	Since, Until time.Time
	// Guessed says that the API gave no duration.
	Guessed bool
}

// Correction is the limit that applies in place of a rule's configured one.
type Correction struct {
	// Bound is the rule as configured in the policy.
	Bound policy.MatchedRule
	// Limit is the limit that applies now: Part of the configured limit, or the API's own.
	Limit int64
	// Part is the fraction of the configured limit that applies, in millionths: less than 1,000,000 after
	// refusals, and more after the limit has grown above the configured one.
	Part int64
	// Own is the API's own limit in the rule's window, as far as it is adopted; for a bucket, what its
	// rate comes to in that window. 0 if the API has given none. Refusals reduce an own limit that is
	// larger than the configured one, too.
	Own int64
	// Until is when the configured limit applies again, if no further answers come.
	Until time.Time
}

// UpstreamState returns what APIs have answered about a scope and the scopes above it. Costs one round
// trip. Its errors are those of Report.
func (l *Limiter) UpstreamState(ctx context.Context, scope string) (UpstreamState, error) {
	p, err := l.scopes.of(scope)
	if err != nil {
		return UpstreamState{}, err
	}
	levels := levelsOf(p.scope)
	fields := make([]string, 0, len(levels)+len(p.keys))
	for _, level := range levels {
		fields = append(fields, "P"+scopePath(level))
	}
	for i := range p.keys {
		fields = append(fields, "R"+p.ruleName(i))
	}
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Timeout)
	defer cancel()
	pipe := l.rdb.Pipeline()
	clock, values := pipe.Time(ctx), pipe.HMGet(ctx, upstreamKey(p.provider), fields...)
	if _, err := pipe.Exec(ctx); err != nil {
		return UpstreamState{}, unavailable(ctx, "ask what was told of", scope, err)
	}
	out := UpstreamState{At: clock.Val()}
	if fixed := l.clock(); fixed != "" {
		out.At = time.UnixMicro(sum(fixed))
	}
	for i, v := range values.Val() {
		if i < len(levels) {
			out.addPause(levels[i], text(v))
		} else {
			out.addCorrection(p.bounds[i-len(levels)], text(v), l.cfg.StartTolerance)
		}
	}
	return out, nil
}

// UpstreamBelow returns what APIs have answered about all scopes of a provider, as far as it still applies, in no order. It reads about 1000
// entries; more says that there are others. Costs one round trip. Its errors are those of Report.
func (l *Limiter) UpstreamBelow(ctx context.Context, provider string) (out UpstreamState, more bool, err error) {
	if _, err := policy.ParseScope(provider); err != nil {
		return out, false, err
	}
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Timeout)
	defer cancel()
	pipe := l.rdb.Pipeline()
	clock, part := pipe.Time(ctx), pipe.HScan(ctx, upstreamKey(keyspace(l.cfg.Prefix).provider(provider)), 0, "[PR]*", outlinePart)
	if _, err := pipe.Exec(ctx); err != nil {
		return out, false, unavailable(ctx, "ask what was told of", provider, err)
	}
	if out.At = clock.Val(); l.clock() != "" {
		out.At = time.UnixMicro(sum(l.clock()))
	}
	fields, cursor := part.Val()
	rules, _ := l.scopes.current()
	for i := 0; i+1 < len(fields); i += 2 {
		path, rule, is := strings.Cut(fields[i][1:], ":")
		level := scopeOf(provider, path)
		if !is {
			out.addPause(level, fields[i+1])
			continue
		}
		scope, err := policy.ParseScope(level)
		if err != nil {
			continue
		}
		bounds, _ := rules.Match(scope) // a rule that is no more corrects nothing
		for _, b := range bounds {
			if b.Scope == scope && escape(b.Rule.Name) == rule {
				out.addCorrection(b, fields[i+1], l.cfg.StartTolerance)
			}
		}
	}
	return out, cursor != 0, nil
}

// addPause reads a field of what was told; see lua/include/upstream/upstream.lua.
func (t *UpstreamState) addPause(scope, v string) {
	if len(v) < pauseLength {
		return
	}
	one := UpstreamPause{Scope: scope, Until: time.UnixMicro(number(v)), Since: time.UnixMicro(number(v[packed:])), Guessed: number(v[2*packed:]) > 0}
	if one.Until.After(t.At) {
		t.Pauses = append(t.Pauses, one)
	}
}

// pauseLength is the length of a pause in Redis; see lua/include/upstream/pause.lua.
const pauseLength = 4 * packed

// pauseOver is when a pause ends, or the guess of one is over: from then on it is known to the script alone which start is next.
func pauseOver(v string) time.Time {
	if trial := number(v[3*packed:]); trial > 0 {
		return time.UnixMicro(trial)
	}
	return time.UnixMicro(number(v))
}

// addCorrection does too; see lua/include/upstream/correction.lua.
func (t *UpstreamState) addCorrection(b policy.MatchedRule, v string, pad time.Duration) {
	if len(v) < 10*packed || !correctable(b.Rule) {
		return
	}
	n := make([]int64, len(v)/packed)
	for i := range n {
		n[i] = number(v[i*packed:])
	}
	ends, since, part, grows, own, per, till, raised := n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7]
	now, limit, most, top := t.At.UnixMicro(), b.Rule.Limit, reachOf(b, pad), int64(whole)
	if raised > now {
		top = most
	}
	if till > since { // no more than the whole while the API's own limit counts
		part, since = min(whole, part+max(0, min(now, till)-since)*grows/1_000_000), till
	}
	c := Correction{Bound: b, Until: time.UnixMicro(ends), Part: min(top, part+max(0, now-since)*grows/1_000_000)}
	c.Limit = max(1, mostOf(limit, c.Part))
	window := countedIn(b, pad).Microseconds()
	if b.Rule.Algorithm == policy.TokenBucket && own > 0 && per != window { // a rate
		own, _ = mulDiv(own, window, per)
		own, per = max(1, own), window
	}
	if till > now && own > 0 && per == window {
		c.Own = min(own, mostOf(limit, most))
		c.Limit = max(1, min(c.Own, mostOf(max(limit, c.Own), min(whole, c.Part))))
	}
	if ends > now && c.Limit != limit {
		t.Corrections = append(t.Corrections, c)
	}
}

// levelsOf returns the scope's own path and those above it, outermost first.
func levelsOf(s policy.Scope) (all []string) {
	path := s.String()
	for i := range path {
		if path[i] == '/' {
			all = append(all, path[:i])
		}
	}
	return append(all, path)
}
