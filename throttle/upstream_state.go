package throttle

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/throttle/policy"
)

// UpstreamState is what APIs have answered about a scope and the scopes above it, as far as it still applies.
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
	// Own is the API's own limit in the rule's window, as far as it is adopted; for a bucket, what its rate comes to in that window. 0 if
	// the API has given none. Refusals reduce an own limit that is larger than the configured one, too.
	Own int64
	// Until is when the configured limit applies again, if no further answers come.
	Until time.Time
}

// UpstreamState returns what APIs have answered about a scope and the scopes above it. Costs one round
// trip. Its errors are those of Report.
func (l *Limiter) UpstreamState(ctx context.Context, scope string) (out UpstreamState, err error) {
	p, err := l.plan(scope)
	if err != nil {
		return out, err
	}
	levels, provider := p.levels(), p.Scope.Scope.Provider()
	fields := make([]string, 0, len(levels)+len(p.Rules))
	for _, level := range levels {
		fields = append(fields, "P"+level)
	}
	for _, b := range p.Rules {
		fields = append(fields, "R"+wire.RuleName(b))
	}
	var values *redis.SliceCmd
	err = l.readUpstream(ctx, scope, &out, func(ctx context.Context, pipe redis.Pipeliner) {
		values = pipe.HMGet(ctx, wire.APIKey(p.Prefix), fields...)
	})
	if err != nil {
		return out, err
	}
	for i, v := range values.Val() {
		text, _ := v.(string)
		if i < len(levels) {
			out.addPause(wire.ScopeOf(provider, levels[i]), text)
		} else {
			out.addCorrection(p.Rules[i-len(levels)], text, l.cfg.StartTolerance)
		}
	}
	return out, nil
}

// readUpstream reads in one round trip, with the server's time.
func (l *Limiter) readUpstream(ctx context.Context, scope string, out *UpstreamState, read func(context.Context, redis.Pipeliner)) error {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Timeout)
	defer cancel()
	pipe := l.rdb.Pipeline()
	clock := pipe.Time(ctx)
	read(ctx, pipe)
	if _, err := pipe.Exec(ctx); err != nil {
		return wire.Unavailable(ctx, "ask what was told of", scope, err)
	}
	if out.At = clock.Val(); l.clock() != "" {
		out.At = l.serverTime("") // a test's own
	}
	return nil
}

// UpstreamBelow returns what APIs have answered about all scopes of a provider, as far as it still applies, in no order. It reads about 1000
// entries; more says that there are others. Costs one round trip. Its errors are those of Report.
func (l *Limiter) UpstreamBelow(ctx context.Context, provider string) (out UpstreamState, more bool, err error) {
	if _, err := policy.ParseScope(provider); err != nil {
		return out, false, err
	}
	var part *redis.ScanCmd
	err = l.readUpstream(ctx, provider, &out, func(ctx context.Context, pipe redis.Pipeliner) {
		part = pipe.HScan(ctx, wire.APIKey(wire.Prefix(l.cfg.Prefix, provider)), 0, "[PR]*", scanPart)
	})
	if err != nil {
		return out, false, err
	}
	fields, cursor := part.Val()
	rules := l.Policy()
	for i := 0; i+1 < len(fields); i += 2 {
		path, rule, is := strings.Cut(fields[i][1:], ":")
		level := wire.ScopeOf(provider, path)
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
			if b.Scope == scope && wire.Escape(b.Rule.Name) == rule {
				out.addCorrection(b, fields[i+1], l.cfg.StartTolerance)
			}
		}
	}
	return out, cursor != 0, nil
}

// scanPart is how many fields one command reads: it holds the server up for less than a millisecond.
const scanPart = 1000

// addPause adds a pause of the hash api.
func (t *UpstreamState) addPause(scope, v string) {
	if p, is := wire.ReadPause(v); is && p.Ends > t.At.UnixMicro() {
		t.Pauses = append(t.Pauses, UpstreamPause{Scope: scope, Until: time.UnixMicro(p.Ends), Since: time.UnixMicro(p.Since), Guessed: p.Length > 0})
	}
}

// addCorrection adds a correction of the hash api.
func (t *UpstreamState) addCorrection(b policy.MatchedRule, v string, tolerance time.Duration) {
	c, is := wire.ReadCorrection(v)
	now := t.At.UnixMicro()
	if !is || !correctable(b.Rule) || c.Until <= now {
		return
	}
	if _, numbers := wire.Numbers(b.Rule, tolerance, t.At); !slices.Equal(c.Of, numbers) {
		return
	}
	one := Correction{Bound: b, Until: time.UnixMicro(c.Until), Part: c.Part}
	one.Limit = wire.LimitOf(c.Kind, c.Numbers, b.Rule, tolerance)
	if c.Own > now {
		one.Own = wire.LimitOf(c.Kind, c.Whole, b.Rule, tolerance)
	}
	if one.Limit != b.Rule.Limit {
		t.Corrections = append(t.Corrections, one)
	}
}
