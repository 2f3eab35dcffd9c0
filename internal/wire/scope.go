package wire

import (
	"hash"
	"hash/fnv"
	"math"
	"slices"
	"time"

	"github.com/headway-go/headway/throttle/policy"
)

// Scope is what applies at a scope under a policy, compiled once. It never changes.
type Scope struct {
	Scope  policy.Scope
	Prefix string // of the keys of its provider
	Path   string // after the provider's name
	Text   string // the rules, as scripts read them

	// All are the rules and pauses on the scope's path at any time of day. Rules are those that apply now, in the order of Text;
	// Paused are the indexes of the pauses among them.
	All, Rules []policy.MatchedRule
	Paused     []int
	Shadows    []policy.MatchedRule
	Breakers   []policy.MatchedBreaker // on the scope's path, outermost first
	Tiered     []policy.Scope          // the names on the path whose tiers the rules follow from

	// Pool is the pool on the path, nil for none. Member is the one whose rules are the last ones, nil for none: see With.
	Pool   *Pool
	Member *Member

	Shape int64 // of the rules, see Rules

	// Attached is what the attach function of Scopes returned for the scope.
	Attached any

	From, Until int64 // µs by the server's clock for which Text applies; Until is Never if always
	hours       int64 // when rules begin or end to apply next; Never if they always do
	Most        int64 // no cost up to it is more than a rule can admit
}

// Compiler compiles the scopes of a policy.
type Compiler struct {
	Base            string // throttle.Config.Prefix
	Tolerance       time.Duration
	Version, Policy int64
}

// Compile returns what applies at a scope at a time, given all rules on its path, the weights of its names and its pool, nil for none.
func (c Compiler) Compile(scope policy.Scope, all []policy.MatchedRule, weights []float64, pool *Pool, at time.Time) *Scope {
	s := &Scope{Scope: scope, Prefix: Prefix(c.Base, scope.Provider()), Path: Path(scope.String()), All: all, Until: Never, hours: Never, Most: math.MaxInt64}
	text := Rules{Version: c.Version, Policy: c.Policy}
	for level := 1; level < scope.Len(); level++ { // 1 for a name without a weight
		weight := 1.0
		if level < len(weights) && weights[level] > 0 {
			weight = weights[level]
		}
		text.Weights = append(text.Weights, weight)
	}
	rules, shape := c.rules(s, all, at)
	s.Shape = int64(shape.Sum64() >> 11) //nolint:gosec // 53 bits
	if text.Rules = rules; pool != nil {
		s.Pool, text.Pool = pool, &pool.rules
		s.narrow(pool.from, pool.until)
		s.hours, s.Most = min(s.hours, pool.hours), min(s.Most, pool.most)
	}
	text.Shape, text.From, text.Until = s.Shape, s.From, s.Until
	s.Text = text.Text()
	return s
}

// rules adds to a scope those of all rules that apply at a time. It returns them as scripts read them, and the digest of their shape.
func (c Compiler) rules(s *Scope, all []policy.MatchedRule, at time.Time) (rules []Rule, shape hash.Hash64) {
	shape = fnv.New64a()
	for _, b := range all {
		if b.Rule.Shadow {
			b.Rule.Shadow = false
			s.Shadows = append(s.Shadows, b)
			continue
		}
		if !s.applies(b, at) {
			continue
		}
		kind, numbers := Numbers(b.Rule, c.Tolerance, at)
		rule := Rule{Kind: kind, Level: b.Scope.Len() - 1, Name: Escape(b.Rule.Name), Unit: unitText(b), Numbers: numbers}
		_, _ = shape.Write(append([]byte{kind, byte(rule.Level)}, rule.Name+"\x00"+rule.Unit+"\x00"...))
		rules = append(rules, rule)
		s.Rules = append(s.Rules, b)
		if b.Rule.Algorithm != policy.Concurrency && b.Rule.Active == nil && b.Rule.Limit > 0 { // a rule whose hours are over admits any cost
			s.Most = min(s.Most, b.Rule.Capacity())
		}
	}
	return rules, shape
}

// applies reports whether a rule applies at a time, and narrows the time for which the scope holds.
func (s *Scope) applies(b policy.MatchedRule, at time.Time) bool {
	switch r := b.Rule; {
	case b.Paused():
		s.Paused = append(s.Paused, len(s.Rules))
		if !b.Until.IsZero() {
			s.narrow(0, b.Until.UnixMicro())
		}
	case r.Active != nil:
		active, from, until := r.ActiveAt(at)
		s.narrow(from.UnixMicro(), until.UnixMicro())
		s.hours = min(s.hours, until.UnixMicro())
		if !active {
			return false
		}
	}
	if b.Rule.Algorithm == policy.Calendar {
		p := b.Rule.PeriodsAt(at)
		s.narrow(p.From.UnixMicro(), p.To.UnixMicro())
	}
	return true
}

func (s *Scope) narrow(from, until int64) { s.From, s.Until = max(s.From, from), min(s.Until, until) }

// Holds reports whether the scope's rules are those of a time of the server's clock.
func (s *Scope) Holds(at int64) bool { return s.From <= at && at < s.Until }

// Changes returns when rules begin or end to apply next by their hours, Never if they always apply.
func (s *Scope) Changes() int64 { return s.hours }

// Pause returns the pause by the policy that ends last, nil for none, and when it ends in µs by the server's clock: Never if it
// has no end.
func (s *Scope) Pause() (pause *policy.MatchedRule, ends int64) {
	for _, i := range s.Paused {
		until := int64(Never)
		if b := s.Rules[i]; !b.Until.IsZero() {
			until = b.Until.UnixMicro()
		}
		if pause == nil || until > ends {
			pause, ends = &s.Rules[i], until
		}
	}
	return pause, ends
}

// Leases reports whether runs hold places.
func (s *Scope) Leases() bool {
	return slices.ContainsFunc(s.Rules, func(b policy.MatchedRule) bool { return b.Rule.Algorithm == policy.Concurrency })
}

// unitText is the unit of a rule as scripts read it.
func unitText(b policy.MatchedRule) string {
	switch {
	case b.Paused() || b.Rule.Algorithm == policy.Concurrency:
		return "*"
	case b.Rule.Unit == policy.Requests:
		return ""
	}
	return b.Rule.Unit
}

// Rule is a rule of a scope.
type Rule struct {
	Kind    byte    // T token bucket, S sliding or fixed window, K calendar, C concurrency
	Level   int     // the number of names of its node
	Name    string  // escaped
	Unit    string  // "" requests, "*" each task counts
	Numbers []int64 // as lua/include/rules.lua has them
}

// Rules is what applies at a scope.
type Rules struct {
	Version, Policy, Shape int64 // see lua/include/rules.lua
	From, Until            int64 // µs since the epoch; 0 and Never if they always apply
	Weights                []float64
	Rules                  []Rule
	Pool                   *PoolRules // nil for none
}

// Text returns the rules as scripts read them.
func (r Rules) Text() string {
	b := append(seven(nil, r.Version, r.Policy, r.Shape, r.From, r.Until), byte(len(r.Weights)))
	for _, w := range r.Weights {
		b = seven(b, int64(math.Round(w*1e6)))
	}
	if b = appendRules(b, r.Rules); r.Pool != nil {
		b = append(b, r.Pool.text()...)
	}
	return string(b)
}

// SamePolicy reports whether two texts are of the same policy, and SameRules whether they have the same rules, whatever their versions.
func SamePolicy(a, b string) bool { return len(a) >= 14 && len(b) >= 14 && a[7:14] == b[7:14] }

// SameRules is beside SamePolicy.
func SameRules(a, b string) bool { return len(a) >= 14 && len(b) >= 14 && a[14:] == b[14:] }

func appendRules(b []byte, rules []Rule) []byte {
	for _, rule := range rules {
		b = append(b, rule.Kind, byte(rule.Level), byte(len(rule.Name)>>8), byte(len(rule.Name)), byte(len(rule.Unit)))
		b = append(append(b, rule.Name...), rule.Unit...)
		b = seven(b, rule.Numbers...)
	}
	return b
}
