package answers

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/throttle/policy"
)

// State is what APIs have answered about a scope and the scopes above it, as far as it still applies.
type State struct {
	// At is the Redis server's time.
	At time.Time
	// Pauses are the pauses that apply, outermost first.
	Pauses []Pause
	// Breakers are the breakers that are open, outermost first.
	Breakers []Breaker
	// Corrections are the corrected limits, in the order of the rules.
	Corrections []Correction
}

// Breaker is the breaker of a scope that is open, so that nothing but probes starts there and in the scopes below it.
type Breaker struct {
	// Scope is the scope whose calls failed: the requested one, or one above it.
	Scope string
	// Since is when it opened, and Next when the next probe may go at first, by the Redis server's clock.
	Since, Next time.Time
	// Probing is how many probes are on their way.
	Probing int
	// Calls and Failures are how many calls opened it and how many of them had failed; 0 if a person did.
	Calls, Failures int64
}

// Pause is a pause of a scope, and of the scopes below it, that an API's answer asked for.
type Pause struct {
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
	// Part is the fraction of the configured limit that applies, in millionths: less than 1,000,000 after refusals, and more
	// after the limit has grown above the configured one.
	Part int64
	// Own is the API's own limit in the rule's window, as far as it is adopted; for a bucket, what its rate comes to in that
	// window. 0 if the API has given none. Refusals reduce an own limit that is larger than the configured one, too.
	Own int64
	// Until is when the configured limit applies again, if no further answers come.
	Until time.Time
}

// State is throttle.Limiter.UpstreamState.
func (r *Reporter) State(ctx context.Context, scope string) (out State, err error) {
	s, err := r.cfg.Scopes.Of(scope)
	if err != nil {
		return out, err
	}
	list, err := r.States(ctx, []*wire.Scope{s})
	if err != nil {
		return out, err
	}
	return list[0], nil
}

// States is State for scopes of one provider, with one command for all.
func (r *Reporter) States(ctx context.Context, scopes []*wire.Scope) ([]State, error) {
	var fields []string
	for _, s := range scopes {
		fields = append(fields, pauseFields(levels(s))...)
		for _, b := range s.Rules {
			fields = append(fields, "R"+wire.RuleName(b))
		}
	}
	if len(fields) == 0 {
		return nil, nil
	}
	var at State
	var values *redis.SliceCmd
	err := r.read(ctx, scopes[0].Scope.String(), &at, func(ctx context.Context, pipe redis.Pipeliner) {
		values = pipe.HMGet(ctx, wire.APIKey(scopes[0].Prefix), fields...)
	})
	if err != nil {
		return nil, err
	}
	list, rest := make([]State, len(scopes)), values.Val()
	for i, s := range scopes {
		many := 2*len(levels(s)) + len(s.Rules)
		list[i].At = at.At
		list[i].addAll(s, rest[:many], r.cfg.Tolerance)
		rest = rest[many:]
	}
	return list, nil
}

// addAll adds the fields of a scope.
func (s *State) addAll(of *wire.Scope, values []any, tolerance time.Duration) {
	paths, provider := levels(of), of.Scope.Provider()
	for i, v := range values {
		text, _ := v.(string)
		switch {
		case i < len(paths):
			s.addPause(wire.ScopeOf(provider, paths[i]), text)
		case i < 2*len(paths):
			s.addBreaker(wire.ScopeOf(provider, paths[i-len(paths)]), text)
		default:
			s.addCorrection(of.Rules[i-2*len(paths)], text, tolerance)
		}
	}
}

// read sends a command with TIME, and sets out.At to the server's time.
func (r *Reporter) read(ctx context.Context, scope string, out *State, send func(context.Context, redis.Pipeliner)) error {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	pipe := r.cfg.Redis.Pipeline()
	clock := pipe.Time(ctx)
	send(ctx, pipe)
	if _, err := pipe.Exec(ctx); err != nil {
		return wire.Unavailable(ctx, "ask what was reported of", scope, err)
	}
	if out.At = clock.Val(); r.cfg.Clock() != "" {
		out.At = r.cfg.Now("") // a test's own
	}
	return nil
}

// Below is throttle.Limiter.UpstreamBelow.
func (r *Reporter) Below(ctx context.Context, provider string) (out State, more bool, err error) {
	if _, err := policy.ParseScope(provider); err != nil {
		return out, false, err
	}
	var part *redis.ScanCmd
	err = r.read(ctx, provider, &out, func(ctx context.Context, pipe redis.Pipeliner) {
		part = pipe.HScan(ctx, wire.APIKey(wire.Prefix(r.cfg.Base, provider)), 0, "[PRB]*", scanPart)
	})
	if err != nil {
		return out, false, err
	}
	fields, cursor := part.Val()
	for i := 0; i+1 < len(fields); i += 2 {
		path, rule, is := strings.Cut(fields[i][1:], ":")
		switch level := wire.ScopeOf(provider, path); {
		case is:
			r.addCorrection(&out, level, rule, fields[i+1])
		case fields[i][0] == 'B':
			out.addBreaker(level, fields[i+1])
		default:
			out.addPause(level, fields[i+1])
		}
	}
	return out, cursor != 0, nil
}

// scanPart is how many fields one command reads: it holds the server up for less than a millisecond.
const scanPart = 1000

// addCorrection adds the correction of a rule, by its level and its escaped name. A rule that is no more corrects nothing.
func (r *Reporter) addCorrection(out *State, level, rule, v string) {
	scope, err := policy.ParseScope(level)
	if err != nil {
		return
	}
	pol, _ := r.cfg.Scopes.Policy()
	matched, _ := pol.Match(scope)
	for _, b := range matched {
		if b.Scope == scope && wire.Escape(b.Rule.Name) == rule {
			out.addCorrection(b, v, r.cfg.Tolerance)
		}
	}
}

// addPause adds a pause of the hash api.
func (s *State) addPause(scope, v string) {
	p, is := wire.ReadPause(v)
	if until := p.Next(s.At.UnixMicro()); is && until > s.At.UnixMicro() {
		s.Pauses = append(s.Pauses, Pause{Scope: scope, Until: time.UnixMicro(until), Since: time.UnixMicro(p.Since), Guessed: p.Length > 0})
	}
}

// addCorrection adds a correction of the hash api, if it is one of the rule as it is now.
func (s *State) addCorrection(b policy.MatchedRule, v string, tolerance time.Duration) {
	c, is := wire.ReadCorrection(v)
	now := s.At.UnixMicro()
	if !is || !correctable(b.Rule) || c.Until <= now {
		return
	}
	if _, numbers := wire.Numbers(b.Rule, tolerance, s.At); !slices.Equal(c.Of, numbers) {
		return
	}
	corrected := Correction{Bound: b, Until: time.UnixMicro(c.Until), Part: c.Part}
	corrected.Limit = wire.LimitOf(c.Kind, c.Numbers, b.Rule, tolerance)
	if c.Own > now {
		corrected.Own = wire.LimitOf(c.Kind, c.Whole, b.Rule, tolerance)
	}
	if corrected.Limit != b.Rule.Limit {
		s.Corrections = append(s.Corrections, corrected)
	}
}

// addBreaker adds a breaker of the hash api.
func (s *State) addBreaker(scope, v string) {
	p, is := wire.ReadPause(v)
	if now := s.At.UnixMicro(); is && p.Probes > 0 {
		b := Breaker{Scope: scope, Since: time.UnixMicro(p.Since), Next: time.UnixMicro(p.Next(now)), Calls: p.Calls, Failures: p.Failures}
		for _, probe := range p.Out {
			if probe.Till > now {
				b.Probing++
			}
		}
		s.Breakers = append(s.Breakers, b)
	}
}
