package throttle

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headway-go/headway/internal/wire"
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
	p, err := l.plan(scope)
	if err != nil {
		return UpstreamState{}, err
	}
	levels := levelsOf(p.Scope.Scope)
	fields := make([]string, 0, len(levels)+len(p.Rules))
	for _, level := range levels {
		fields = append(fields, "P"+wire.Path(level))
	}
	for _, b := range p.Rules {
		fields = append(fields, "R"+wire.RuleName(b))
	}
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Timeout)
	defer cancel()
	pipe := l.rdb.Pipeline()
	clock, values := pipe.Time(ctx), pipe.HMGet(ctx, wire.APIKey(p.Prefix), fields...)
	if _, err := pipe.Exec(ctx); err != nil {
		return UpstreamState{}, unavailable(ctx, "ask what was told of", scope, err)
	}
	out := UpstreamState{At: clock.Val()}
	if fixed := l.clock(); fixed != "" {
		out.At = time.UnixMicro(clockOf(fixed))
	}
	for i, v := range values.Val() {
		if i < len(levels) {
			out.addPause(levels[i], textOf(v))
		} else {
			out.addCorrection(p.Rules[i-len(levels)], textOf(v), l.cfg.StartTolerance)
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
	clock, part := pipe.Time(ctx), pipe.HScan(ctx, wire.APIKey(wire.Prefix(l.cfg.Prefix, provider)), 0, "[PR]*", scanPart)
	if _, err := pipe.Exec(ctx); err != nil {
		return out, false, unavailable(ctx, "ask what was told of", provider, err)
	}
	if out.At = clock.Val(); l.clock() != "" {
		out.At = time.UnixMicro(clockOf(l.clock()))
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

func textOf(v any) string {
	text, _ := v.(string)
	return text
}

// clockOf is the time of a test's clock.
func clockOf(text string) int64 {
	n, _ := strconv.ParseInt(text, 10, 64)
	return n
}

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
