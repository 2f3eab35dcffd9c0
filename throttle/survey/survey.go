// Package survey reads the state of all rules of a policy, and of what waits under each, for dashboards and metrics.
package survey

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/headway-go/headway/internal/inspect"
	"github.com/headway-go/headway/internal/waitlist"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// Survey is the state of all rules of a policy and of the lines of all providers, for a dashboard.
type Survey struct {
	// At is the Redis server's time; this process's if no rule was read.
	At time.Time
	// Rules has each rule of the policy once, in the order of Pattern and Rule, without shadow rules and pauses.
	Rules []Rule
	// Queues are the scopes with the most waiting tasks, fullest first: at most 200.
	Queues []Queue
	// Partial says that there was more than a survey reads: of the providers, the scopes or the rules.
	Partial bool
}

// Rule is the state of one rule of a policy. A rule at a star counts at many scopes: Used, DoneIn and Limit are those of the
// scope with the most tasks waiting, Waiting and Queues the sums over all scopes.
type Rule struct {
	// Pattern is the rule's place in the policy, Rule its name, and Unit what it counts, as in RuleInfo.
	Pattern, Rule, Unit string
	Algorithm           policy.Algorithm
	// Limit is the most units that the rule admits at once.
	Limit int64
	// Read says that Used and DoneIn are known: for rules of 100 scopes of the policy, and of the 64 scopes with the most waiting
	// tasks.
	Read bool
	// Used is the number of units taken.
	Used int64
	// Waiting is the number of tasks that wait under the rule, each as one unit whatever it costs, and Queues in how many scopes
	// they wait.
	Waiting, Queues int64
	// DoneIn is the time from Survey.At until the rule has admitted all that waits, throttle.Never if no clock can tell.
	DoneIn time.Duration
}

// Queue is the lines of one scope.
type Queue struct {
	Scope string
	// Tasks is the number of waiting tasks, and Ready, for the 64 scopes with the most, the number that all rules would admit now.
	Tasks, Ready int64
	// First is the first task of the longest line, zero if that was emptied meanwhile.
	First waitlist.Ref
	// Rules are the rules that apply to its tasks, as indices in Survey.Rules.
	Rules []int

	meets []ruleOf
	never bool   // no rule matches the scope
	pool  string // the level of the pool on its path
}

const (
	surveyedProviders = 100
	surveyedHeads     = 200
	surveyedScopes    = 100 // of the policy
	surveyedPaths     = 64  // with waiting tasks
	surveyedPools     = 10
	surveyedAtOnce    = 8
)

// Read reads the state of the rules of a limiter's policy, and of the lines of all providers: of 100 providers and 10,000 scopes
// of each at most. It costs one command, and one for each star-free scope of the policy that has rules and no such scope below
// it, 100 at most. While tasks wait, it also counts those of each provider, and costs one command for each of the 200 fullest
// scopes and one for each of the 64 fullest. The members of a pool cost two, and one for each further 50: those of 10 pools are read. The error wraps throttle.ErrUnavailable, or is ctx's.
func Read(ctx context.Context, l *throttle.Limiter) (Survey, error) {
	s := newSurvey(l)
	if err := s.readQueues(ctx); err != nil {
		return Survey{}, err
	}
	if err := s.readRules(ctx); err != nil {
		return Survey{}, err
	}
	s.countReady()
	return s.finish(), nil
}

// survey is a Survey in the making.
type survey struct {
	limiter *throttle.Limiter
	policy  *policy.Policy
	out     Survey
	index   map[ruleOf]int        // of out.Rules, by pattern and name
	at      map[ruleOf]*ruleCount // each rule where it counts
	closed  map[string]bool       // scopes that were read and are paused
	pools   map[string][][]ruleOf // by level, those that were read: where the rules of each member count that nothing holds
}

// ruleOf is a rule at a scope where it counts.
type ruleOf struct{ scope, name string }

// ruleCount is the state of a rule at one scope.
type ruleCount struct {
	index          int // of Survey.Rules
	waiting, lines int64
	state          *throttle.RuleForecast // nil until it is read
	held           time.Duration          // until a pause of its scope ends
	left           int64                  // units that no line has been promised
}

func newSurvey(l *throttle.Limiter) *survey {
	s := &survey{limiter: l, policy: l.Policy(), index: map[ruleOf]int{}, at: map[ruleOf]*ruleCount{}, closed: map[string]bool{}, pools: map[string][][]ruleOf{}}
	for pattern, r := range s.policy.Rules() {
		if !r.Unlimited && !r.Shadow {
			s.out.Rules = append(s.out.Rules, Rule{Pattern: pattern, Rule: r.Name, Unit: r.Unit, Algorithm: r.Algorithm, Limit: r.Capacity()})
		}
	}
	slices.SortFunc(s.out.Rules, func(a, b Rule) int {
		return cmp.Or(cmp.Compare(a.Pattern, b.Pattern), cmp.Compare(a.Rule, b.Rule))
	})
	for i, r := range s.out.Rules {
		s.index[ruleOf{r.Pattern, r.Rule}] = i
	}
	return s
}

// readQueues sums up what waits, by rule.
func (s *survey) readQueues(ctx context.Context) error {
	reader := inspect.Of(s.limiter.Waitlist())
	active, err := s.limiter.Waitlist().ActiveProviders(ctx, time.Time{})
	if err != nil {
		return err
	}
	providers := slices.Sorted(maps.Keys(active))
	if len(providers) > surveyedProviders {
		providers, s.out.Partial = providers[:surveyedProviders], true
	}
	for _, provider := range providers {
		scopes, more, err := reader.Count(ctx, provider, nil)
		if err != nil {
			return err
		}
		if err := reader.ReadFirst(ctx, provider, scopes[:min(surveyedHeads, len(scopes))]); err != nil {
			return err
		}
		s.out.Partial = s.out.Partial || more
		for _, q := range scopes {
			s.count(q)
		}
	}
	slices.SortStableFunc(s.out.Queues, func(a, b Queue) int {
		return cmp.Or(cmp.Compare(b.Tasks, a.Tasks), cmp.Compare(a.Scope, b.Scope))
	})
	s.out.Queues = s.out.Queues[:min(surveyedHeads, len(s.out.Queues))]
	return nil
}

// count adds a scope's tasks to the rules that apply to them. It bypasses the cache of scopes, which is sized for decisions.
func (s *survey) count(of inspect.ScopeQueue) {
	q := Queue{Scope: of.Scope, Tasks: of.Own, First: of.First}
	var bounds []policy.MatchedRule
	parsed, err := policy.ParseScope(of.Scope)
	if err == nil {
		bounds, err = s.policy.MatchAt(parsed, time.Now())
		level, _ := s.policy.PoolOf(parsed)
		q.pool = level.String()
	}
	q.never = err != nil
	for _, b := range bounds {
		if i, known := s.index[ruleOf{b.Pattern, b.Rule.Name}]; known && !b.Paused() {
			at := ruleOf{b.Scope.String(), b.Rule.Name}
			c := s.rule(at, i)
			c.waiting, c.lines = c.waiting+of.Own, c.lines+1
			q.Rules, q.meets = append(q.Rules, i), append(q.meets, at)
		}
	}
	s.out.Queues = append(s.out.Queues, q)
}

func (s *survey) rule(of ruleOf, index int) *ruleCount {
	if s.at[of] == nil {
		s.at[of] = &ruleCount{index: index}
	}
	return s.at[of]
}

// readRules reads the rules of the policy's own scopes, and of the scopes with the most waiting tasks.
func (s *survey) readRules(ctx context.Context) error {
	scopes := s.ownScopes()
	for _, q := range s.out.Queues[:min(surveyedPaths, len(s.out.Queues))] {
		if !q.never && (len(q.meets) > 0 || q.pool != "") && !slices.Contains(scopes, q.Scope) {
			scopes = append(scopes, q.Scope)
		}
	}
	var all errgroup.Group
	all.SetLimit(surveyedAtOnce)
	paces := make([]throttle.Forecast, len(scopes))
	for i, scope := range scopes {
		all.Go(func() (err error) {
			paces[i], err = s.limiter.Pace(ctx, scope)
			return err
		})
	}
	err := all.Wait()
	for i, scope := range scopes {
		s.note(scope, paces[i])
	}
	for _, now := range paces {
		if err == nil && now.Pool != "" && s.pools[now.Pool] == nil && len(s.pools) < surveyedPools {
			err = s.readMembers(ctx, now.Pool)
		}
	}
	return err
}

// read is where the rules of a pattern are read: those of a pool's members at the level of the pool.
func (s *survey) read(pattern string) string {
	above, _, is := strings.Cut(pattern, "/@")
	if level, err := policy.ParseScope(above); is && err == nil {
		if at, _ := s.policy.PoolOf(level); at == level {
			return above
		}
	}
	return pattern
}

// readMembers reads the rules of the members of the pool at a level.
func (s *survey) readMembers(ctx context.Context, level string) error {
	members, err := s.limiter.Members(ctx, level)
	s.pools[level] = [][]ruleOf{}
	for _, m := range members {
		meets := s.note(m.Scope, throttle.Forecast{At: m.At, Rules: m.Rules})
		if _, by := m.Held(); by == "" {
			s.pools[level] = append(s.pools[level], meets)
		}
	}
	return err
}

// room is how many more starts the members of a pool have room for, at most as many as asked for, and takes them.
func (s *survey) room(level string, most int64) (n int64) {
	for _, meets := range s.pools[level] {
		take := most - n
		for _, of := range meets {
			take = min(take, max(0, s.at[of].left))
		}
		for _, of := range meets {
			s.at[of].left -= take
		}
		n += take
	}
	return n
}

// ownScopes returns the scopes that the policy names and has rules for. A scope above another is left out, since it is read with
// that.
func (s *survey) ownScopes() (scopes []string) {
	for _, r := range slices.Backward(s.out.Rules) { // scopes come before those above them
		at := s.read(r.Pattern)
		above := func(scope string) bool { return scope == at || strings.HasPrefix(scope, at+"/") }
		if _, noScope := policy.ParseScope(at); noScope == nil && !slices.ContainsFunc(scopes, above) {
			scopes = append(scopes, at)
		}
	}
	slices.Reverse(scopes)
	if len(scopes) > surveyedScopes {
		scopes, s.out.Partial = scopes[:surveyedScopes], true
	}
	return scopes
}

// note records the state of the rules on a scope's path, or of a member, and returns where they count.
func (s *survey) note(scope string, now throttle.Forecast) (meets []ruleOf) {
	if s.out.At.Before(now.At) {
		s.out.At = now.At
	}
	s.closed[scope] = s.closed[scope] || now.PausedFor > 0
	for i := range now.Rules {
		if r := &now.Rules[i]; r.Paused {
			s.closed[scope] = true
		} else if index, known := s.index[ruleOf{r.Pattern, r.Rule}]; known {
			at := ruleOf{r.Scope, r.Rule}
			c := s.rule(at, index)
			c.state, c.left = r, r.Free()
			c.held = max(c.held, heldUntil(r.Scope, scope, now))
			meets = append(meets, at)
		}
	}
	return meets
}

// heldUntil returns how long pauses alone hold the tasks under a rule: the pauses of its own level and of those above.
func heldUntil(level, scope string, now throttle.Forecast) (held time.Duration) {
	if level == scope {
		held = now.PausedFor
	}
	for _, r := range now.Rules {
		if r.Paused && (r.Scope == level || strings.HasPrefix(level, r.Scope+"/")) {
			held = max(held, r.RetryAfter)
		}
	}
	return held
}

// countReady divides what the rules would admit now among the scopes, the fullest first.
func (s *survey) countReady() {
	for i := range s.out.Queues[:min(surveyedPaths, len(s.out.Queues))] {
		q := &s.out.Queues[i]
		if q.never || s.closed[q.Scope] {
			continue
		}
		q.Ready = q.Tasks
		for _, of := range q.meets {
			if c := s.at[of]; c.state != nil {
				q.Ready = min(q.Ready, max(0, c.left))
			}
		}
		if _, read := s.pools[q.pool]; read {
			q.Ready = s.room(q.pool, q.Ready)
		}
		for _, of := range q.meets {
			s.at[of].left -= q.Ready
		}
	}
}

// finish sums up the counts of each rule over its scopes.
func (s *survey) finish() Survey {
	best := make([]*ruleCount, len(s.out.Rules))
	for _, of := range slices.SortedFunc(maps.Keys(s.at), func(a, b ruleOf) int {
		return cmp.Or(cmp.Compare(a.scope, b.scope), cmp.Compare(a.name, b.name))
	}) {
		c := s.at[of]
		r := &s.out.Rules[c.index]
		r.Waiting, r.Queues = r.Waiting+c.waiting, r.Queues+c.lines
		if c.state != nil && c.above(best[c.index]) {
			best[c.index] = c
		}
	}
	for i, c := range best {
		if c != nil {
			r := &s.out.Rules[i]
			r.Read, r.Used, r.Limit, r.DoneIn = true, c.used(), c.state.Limit, c.doneIn()
		}
	}
	if s.out.At.IsZero() {
		s.out.At = time.Now()
	}
	return s.out
}

// above reports whether more tasks wait for one count than for another, or as many and more is used.
func (c *ruleCount) above(other *ruleCount) bool {
	return other == nil || c.waiting > other.waiting || c.waiting == other.waiting && c.used() > other.used()
}

func (c *ruleCount) used() int64 { return max(0, c.state.Limit-c.state.Remaining) }

func (c *ruleCount) doneIn() time.Duration {
	if c.waiting == 0 {
		return 0
	}
	end := c.state.AdmitsIn(c.waiting)
	if !end.Known() || c.held == throttle.Never || end.In > throttle.Never-c.held {
		return throttle.Never
	}
	return c.held + end.In
}
