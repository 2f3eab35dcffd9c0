package throttle

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/throttle/policy"
)

// Survey is the state of all rules of a policy and of the queues of all providers, for a dashboard.
type Survey struct {
	// At is the Redis server's time; this process's if no rule was read.
	At time.Time
	// Rules has each rule of the policy once, in the order of Pattern and Rule, without shadow rules and
	// pauses.
	Rules []RuleSurvey
	// Queues are the queues of scopes with the most units waiting, fullest first: at most 200.
	Queues []QueueSurvey
	// Partial says that there was more than a survey reads: of the providers, the queues or the rules.
	Partial bool
}

// RuleSurvey is the state of one rule of a policy. A rule at a star counts at many scopes: Used, DoneIn
// and Limit are those of the scope with the most units waiting, Waiting and Queues the sums over all
// scopes.
type RuleSurvey struct {
	// Pattern is the rule's place in the policy, Rule its name, and Unit what it counts, as in RuleInfo.
	Pattern, Rule, Unit string
	Algorithm           policy.Algorithm
	// Limit is the most units that the rule admits at once.
	Limit int64
	// Read says that Used and DoneIn are known. A survey reads the rules of 100 scopes of the policy, and
	// those of the 64 fullest queues.
	Read bool
	// Used is the number of units taken.
	Used int64
	// Waiting is the number of units in the queues under the rule, and Queues the number of these queues.
	Waiting, Queues int64
	// DoneIn is the time from Survey.At until the rule has admitted all that waits: 0 if nothing waits,
	// Never if no clock can tell.
	DoneIn time.Duration
}

// QueueSurvey is the queue of one scope.
type QueueSurvey struct {
	Scope string
	// Tasks is the number of waiters in the queue, and Ready the number that the rules would admit now,
	// all together. Ready is known for the 64 fullest queues.
	Tasks, Ready int64
	// First is the first waiter, the zero WaiterRef if the queue was emptied meanwhile. Joined is about
	// when it joined, by the server's clock. It is zero if the waiter's place is no time, as among lanes.
	// Places follow the clock, a millisecond a waiter.
	First  WaiterRef
	Joined time.Time
	// Rules are the rules that apply to its waiters, as indices in Survey.Rules.
	Rules []int

	sum   nodeSum
	score float64 // of the first
	meets []meeting
	never bool // no rule matches the scope
}

// meeting is a rule that applies to the waiters of a queue.
type meeting struct {
	of   ruleOf
	rule policy.Rule
}

const (
	surveyedProviders = 100
	surveyedQueues    = 10_000
	surveyedEntries   = 1000 // at once: a command of a millisecond
	surveyedHeads     = 200
	surveyedScopes    = 100 // of the policy
	surveyedPaths     = 64  // of queues
	surveyedAtOnce    = 8
)

// Survey reads the state of the policy's rules, and of the queues of all providers. It changes nothing.
// It reads 100 providers and 10,000 queues at most.
//
// Costs one command, and one for each star-free scope of the policy that has rules and no such scope
// below it, 100 at most. While tasks wait, it costs two more for each thousand nodes of a provider's
// tree, two for each of the 200 fullest queues, and one for each of the 64 fullest. The error wraps
// ErrUnavailable, or is ctx's.
func (w Waitlist) Survey(ctx context.Context) (Survey, error) {
	s := newSurvey(w)
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
	w      Waitlist
	policy *policy.Policy
	out    Survey
	index  map[ruleAt]int        // of out.Rules
	at     map[ruleOf]*ruleCount // each rule where it counts
	closed map[string]bool       // scopes that were read and are paused
}

// ruleOf is a rule at a scope where it counts.
type ruleOf struct{ scope, name string }

// ruleCount is the state of a rule at one scope.
type ruleCount struct {
	index          int // of Survey.Rules
	waiting, lines int64
	state          *RuleForecast // nil until it is read
	held           time.Duration // until a pause of its scope ends
	left           int64         // units that no queue has been promised
}

func newSurvey(w Waitlist) *survey {
	s := &survey{w: w, policy: w.l.Policy(), index: map[ruleAt]int{}, at: map[ruleOf]*ruleCount{}, closed: map[string]bool{}}
	for pattern, r := range s.policy.Rules() {
		if !r.Unlimited && !r.Shadow {
			s.out.Rules = append(s.out.Rules, RuleSurvey{Pattern: pattern, Rule: r.Name, Unit: r.Unit, Algorithm: r.Algorithm, Limit: r.Capacity()})
		}
	}
	slices.SortFunc(s.out.Rules, func(a, b RuleSurvey) int {
		return cmp.Or(cmp.Compare(a.Pattern, b.Pattern), cmp.Compare(a.Rule, b.Rule))
	})
	for i, r := range s.out.Rules {
		s.index[ruleAt{r.Pattern, r.Rule}] = i
	}
	return s
}

// readQueues sums up what waits, by rule.
func (s *survey) readQueues(ctx context.Context) error {
	active, err := s.w.ActiveProviders(ctx, time.Time{})
	if err != nil {
		return err
	}
	providers := slices.Sorted(maps.Keys(active))
	if len(providers) > surveyedProviders {
		providers, s.out.Partial = providers[:surveyedProviders], true
	}
	for _, provider := range providers {
		if err := s.readProvider(ctx, provider); err != nil {
			return unavailable(ctx, "survey the queues of", provider, err)
		}
	}
	slices.SortStableFunc(s.out.Queues, func(a, b QueueSurvey) int {
		return cmp.Or(cmp.Compare(b.sum.units, a.sum.units), cmp.Compare(a.Scope, b.Scope))
	})
	s.out.Queues = s.out.Queues[:min(surveyedHeads, len(s.out.Queues))]
	if err := s.readHeads(ctx); err != nil {
		return unavailable(ctx, "survey the queues of", s.w.l.cfg.Prefix, err)
	}
	return nil
}

// readProvider counts the queues of one provider by the records of their nodes; see
// lua/include/fairshare/tree.lua.
func (s *survey) readProvider(ctx context.Context, provider string) error {
	reader := s.w.Waiting(provider)
	seen := map[string]bool{}
	for !reader.last {
		if len(s.out.Queues) >= surveyedQueues {
			s.out.Partial = true
			return nil
		}
		reader.open = reader.open[:0]
		if err := reader.readEntries(ctx, surveyedEntries); err != nil {
			return err
		}
		var scopes, fields []string
		for _, line := range reader.open {
			if !seen[line.scope] {
				seen[line.scope] = true
				scopes, fields = append(scopes, line.scope), append(fields, "n"+scopePath(line.scope)+"/")
			}
		}
		if len(scopes) == 0 {
			continue
		}
		var records *redis.SliceCmd
		err := s.w.read(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
			records = pipe.HMGet(ctx, metaKey(reader.prefix()), fields...)
		})
		if err != nil {
			return err
		}
		for i, scope := range scopes {
			if sum := readNodeSum(records.Val()[i]); sum.kids > 0 {
				s.count(scope, sum)
			}
		}
	}
	return nil
}

// count adds a queue to the rules that apply to its waiters. It bypasses the cache of scopes, which is
// sized for decisions.
func (s *survey) count(scope string, sum nodeSum) {
	q := QueueSurvey{Scope: scope, sum: sum}
	var bounds []policy.MatchedRule
	parsed, err := policy.ParseScope(scope)
	if err == nil {
		bounds, err = s.policy.MatchAt(parsed, time.Now())
	}
	q.never = err != nil
	for _, b := range bounds {
		if i, known := s.index[ruleAt{b.Pattern, b.Rule.Name}]; known && !b.Paused() {
			of := ruleOf{b.Scope.String(), b.Rule.Name}
			one := s.rule(of, i)
			one.waiting, one.lines = one.waiting+sum.of(b.Rule.Unit), one.lines+1
			q.Rules, q.meets = append(q.Rules, i), append(q.meets, meeting{of, b.Rule})
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

// readHeads reads the length and the first waiter of the fullest queues.
func (s *survey) readHeads(ctx context.Context) error {
	if len(s.out.Queues) == 0 {
		return nil
	}
	counts, heads := make([]*redis.IntCmd, len(s.out.Queues)), make([]*redis.ZSliceCmd, len(s.out.Queues))
	ctx, cancel := context.WithTimeout(ctx, s.w.l.cfg.Timeout)
	defer cancel()
	// The keys of one provider share a slot; those of several do not.
	_, err := s.w.l.rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, q := range s.out.Queues {
			provider, _, _ := strings.Cut(q.Scope, "/")
			key := s.w.Waiting(provider).lineKey(q.Scope)
			counts[i], heads[i] = pipe.ZCard(ctx, key), pipe.ZRangeWithScores(ctx, key, 0, 0)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for i := range s.out.Queues {
		q := &s.out.Queues[i]
		q.Tasks = counts[i].Val()
		if head := heads[i].Val(); len(head) > 0 {
			q.First, q.score = readPlace(q.Scope, text(head[0].Member)), head[0].Score
		}
	}
	return nil
}

// joined returns about when a waiter came to its place; see place_after in
// lua/include/fairshare/tasks.lua. It is zero for places of waiters that came back to the front, and
// for places ahead of the clock.
func joined(score float64, now time.Time) time.Time {
	const band, middle, latest = int64(1) << 32, int64(1) << 31, int64(18 * 24 * time.Hour / time.Millisecond)
	place := ((int64(score) % band) + band) % band
	if place < middle/2 {
		return time.Time{}
	}
	age := ((now.UnixMilli()-(place-middle/2))%middle + middle) % middle
	if age > latest {
		return time.Time{}
	}
	return now.Add(-time.Duration(age) * time.Millisecond)
}
