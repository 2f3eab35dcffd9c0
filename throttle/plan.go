package throttle

import (
	"crypto/sha256"
	"encoding/base64"
	"math"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"unique"

	"github.com/headway-go/headway/lua"
	"github.com/headway-go/headway/throttle/policy"
)

// compiledScope is what a scope comes to under a policy: the keys and arguments of its
// scripts, worked out once. It is never changed, but that it finds its server's clock, and for its stock.
type compiledScope struct {
	settings
	key      string // under which it is kept: the scope, and which of its rules it leaves out
	most     int64  // no cost up to it is more than a rule can admit
	made     making
	scope    policy.Scope
	all      []policy.MatchedRule // the rules that the scope meets
	bounds   []policy.MatchedRule // those that decide
	shadows  []*shadowRule        // those that are asked beside
	provider string               // the prefix of all its keys, hash tag included
	keys     []string             // of the rules
	keyArgs  []any                // the same, as the client takes them
	hashes   []uint64             // of them; see keyTable
	rules    []any                // each as scripts read it; see lua.Rule
	params   []params             // the same, taken apart
	states   []RuleState          // what is known of each rule before it is asked
	leases   []int                // which rules are concurrency rules
	pauses   []int                // which are no rules but pauses
	kinds    string               // in the order of lua.Kinds
	decide   *lua.Script
	queue    []any  // the keys of who waits: queue, schedule, heap, meta, flight, overdue, upstream, parked
	upstream any    // one of them: what the API has said
	shared   [4]any // those that decide_many takes: upstream, meta, flight, parked
	mark     string // of the scope, in attempt ids; see attemptID
	path     string // of the scope, as scripts take it
	atOnce   any    // what ask returns for one who starts now

	named   []float64 // the weights of the names of the path, as Policy.weights has them
	weights []string  // of the scope at the level of each rule, as scripts read them
	levels  string    // the levels that have rules and the weights there, as turn reads them
	others  string    // the names of the rules that are left out, as scripts read them
	part    portion   // the plan of which they are; none where none is left out

	// From when until when the plan holds, by the server's clock in µs: as long as the
	// periods of its calendars last, and its pauses. For ever where until is 0.
	from, until int64
	hours       interval // the same of the hours in which its rules hold alone
	ends        []int64  // and when each of its rules ends to hold; 0 for those that always do
	calendars   bool     // some rule is a calendar
	open        bool     // none holds, and openRule stands for them

	server atomic.Pointer[clockOffset] // its clock; see clock
	stock  *stock                      // what is charged before it is asked for; nil where nothing may be
}

// plain says that nothing but its rules decides about the scope, and that they are the same at all times: there is
// no pause, no hours and no calendar, nothing is charged ahead, and no shadow rule watches. Most scopes are plain, and most
// of what this package knows is then out of a decision's way.
func (p *compiledScope) plain() bool {
	return len(p.bounds) > 0 && p.until == 0 && p.pauses == nil && p.stock == nil && p.shadows == nil && !p.open
}

// settings are what the policy has for a scope beside its rules. They are the same in all
// plans of the scope, whichever of its rules hold.
type settings struct {
	refusal  error // the application may not spend from the scope
	answers  policy.Answers
	refusals policy.Refusals
	resets   time.Duration // the unit of plain ones; 0 if the policy names none
	hosts    []string      // whose answers count, none for all

	maxPriority int // a higher priority counts as this one, where it is capped
	capped      bool
}

func settingsOf(p *policy.Policy, s policy.Scope, app string) settings {
	its := settings{refusal: p.Authorize(s, app), answers: p.Answers(s), refusals: p.Refusals(s), resets: p.ResetUnit(s), hosts: p.Hosts(s)}
	its.maxPriority, its.capped = p.MaxPriority(s)
	return its
}

func compileScope(keys keyspace, scope policy.Scope, all []policy.MatchedRule, pad time.Duration, at time.Time) *compiledScope {
	p := &compiledScope{key: scope.String(), most: math.MaxInt64, scope: scope, all: all, provider: keys.provider(scope.Provider()), mark: scopeMark(scope)}
	p.bounds = p.inForce(p.split(keys, pad, all), at)
	p.open = len(p.bounds) == 1 && p.bounds[0].Rule == openRule
	p.weigh(nil)
	present := map[byte]bool{}
	for i, b := range p.bounds {
		kind, numbers, more, of := ruleNumbers(b, pad, at)
		width := window(b.Rule)
		if b.Rule.Algorithm == policy.Calendar {
			p.within(of)
			p.calendars = true
			if b.Rule.Limit > 0 {
				width = us(of.to - of.from)
			}
		}
		present[kind] = true
		key := keys.rule(b)
		p.keys, p.keyArgs, p.hashes = append(p.keys, key), append(p.keyArgs, key), append(p.hashes, keyHash(key))
		p.rules = append(p.rules, unique.Make(lua.Rule(kind, numbers, more...)+unitText(b.Rule)).Value()) // so that equal ones compare at once
		p.params = append(p.params, params{kind, numbers})
		p.states = append(p.states, RuleState{RuleInfo: &RuleInfo{
			Scope: b.Scope.String(), Rule: b.Rule.Name, Pattern: b.Pattern, Algorithm: b.Rule.Algorithm, Unit: b.Rule.Unit,
			Limit: b.Rule.Capacity(), Window: width, MaxWait: b.Rule.MaxWait,
		}})
		if b.Paused() {
			p.pause(i)
		}
		if b.Rule.Algorithm == policy.Concurrency {
			p.leases = append(p.leases, i)
		} else if b.Rule.Active == nil && b.Rule != openRule { // when its hours are over it admits any cost
			p.most = min(p.most, b.Rule.Capacity())
		}
	}
	for _, i := range p.pauses { // whatever else they would wait for, they wait as long
		p.states[i].MaxWait = p.maxWait()
	}
	p.kinds = kindsOf(present)
	p.decide = lua.Decide.For(p.kinds)
	p.queue = append([]any{keys.queue(scope)}, queueShared(p.provider)...)
	p.upstream, p.path = upstreamKey(p.provider), scopePath(scope.String())
	p.shared = [4]any{p.upstream, metaKey(p.provider), flightKey(p.provider), parkedKey(p.provider)}
	p.atOnce = "0" + p.path
	p.stock = newStock(p.bounds)
	return p
}

// ruleNumbers are the kind and the numbers of a rule as scripts read them at a time, and of a calendar its window then.
func ruleNumbers(b policy.MatchedRule, pad time.Duration, at time.Time) (kind byte, numbers [4]int64, more []int64, of calendarWindow) {
	most := mostMillionths(b)
	kind, numbers = ruleParams(b.Rule, pad, most)
	switch b.Rule.Algorithm {
	case policy.SlidingWindow:
		numbers[2] = grain(mostOf(b.Rule.Limit, max(most, whole)), numbers[1])
	case policy.Calendar:
		of = periodsOf(b.Rule, at)
		numbers, more = calendarParams(b.Rule, pad, of)
		return kind, numbers, more, of
	}
	return kind, numbers, []int64{most}, of
}

// openRule stands for no rule at all where scripts need one: those who wait for a rule that
// is gone are woken by it. No policy has a rule of its name.
var openRule = policy.Rule{Name: "/", Algorithm: policy.TokenBucket, Limit: policy.MaxLimit, Per: time.Second, Burst: policy.MaxLimit, OnRedisError: policy.FailOpen, Unit: policy.Requests}

// opened returns the plan by which a scope without rules is woken.
func (p *compiledScope) opened(keys keyspace) *compiledScope {
	open := compileScope(keys, p.scope, []policy.MatchedRule{{Rule: openRule, Scope: p.scope}}, 0, time.Time{})
	open.settings = p.settings
	return open
}

// pause notes that a bound is a pause: the plan holds until that ends.
func (p *compiledScope) pause(i int) {
	p.pauses = append(p.pauses, i)
	p.states[i].Paused = true
	if until := p.bounds[i].Until; !until.IsZero() {
		p.within(calendarWindow{to: until.UnixMicro()})
	}
}

// clock is that of the server which decides for the plan.
func (p *compiledScope) clock(all *skews) *clockOffset {
	s := p.server.Load()
	if s == nil || s.gone.Load() {
		s = all.of(p.provider)
		p.server.Store(s)
	}
	return s
}

// ask is how far ahead an attempt may start, and its scope, as decide reads them.
func (p *compiledScope) ask(ahead time.Duration, after lateness) any {
	switch {
	case ahead == 0 && after == lateness{}:
		return p.atOnce
	case after.any():
		return after.text() + " " + strconv.FormatInt(ahead.Microseconds(), 10) + p.path
	}
	return strconv.FormatInt(ahead.Microseconds(), 10) + p.path
}

// check refuses a cost that no wait could admit.
func (p *compiledScope) check(cost int64) error {
	if cost < 1 {
		return &policy.CostError{Scope: p.scope, Cost: cost}
	}
	if cost <= p.most {
		return nil
	}
	return policy.CheckMatched(p.scope, p.bounds, func(policy.Rule) int64 { return cost })
}

// attemptID is the id under which Redis knows an attempt. An id of the caller's own is one of
// its scope: the same id in another scope is another attempt, with a record, and places under
// the rules that both have, of its own. One that the Limiter drew is nobody else's.
func (p *compiledScope) attemptID(req *Request) string {
	if req.once || req.slot != nil {
		return req.ID
	}
	return req.ID + p.mark
}

// scopeMark is what tells a scope's attempt ids from those of others: 72 bits of its hash, so
// that a record is short however long the scope.
func scopeMark(s policy.Scope) string {
	sum := sha256.Sum256([]byte(s.String()))
	return "~" + base64.RawURLEncoding.EncodeToString(sum[:9])
}

// attempt returns the key of the grant under an attempt id.
func (p *compiledScope) attempt(id string) string { return p.provider + "@" + escape(id) }

// appendArgs appends the two arguments of each rule.
func (p *compiledScope) appendArgs(args []any, cost price) []any {
	for i, rule := range p.rules {
		args = append(args, rule, cost.at(i))
	}
	return args
}

// leaseKeys returns the keys of the concurrency rules and their leases in µs.
func (p *compiledScope) leaseKeys() (keys []string, leases []any, shortest time.Duration) {
	for _, i := range p.leases {
		lease := p.bounds[i].Rule.Lease
		keys = append(keys, p.keys[i])
		leases = append(leases, lease.Microseconds())
		if shortest == 0 || lease < shortest {
			shortest = lease
		}
	}
	return keys, leases, shortest
}

// runKeys are where the run times of its concurrency rules stand, in their order.
func (p *compiledScope) runKeys() []string {
	keys := make([]string, len(p.leases))
	for k, i := range p.leases {
		keys[k] = runsKey(p.provider, p.bounds[i])
	}
	return keys
}

// lease is its k-th concurrency rule.
func (p *compiledScope) lease(k int) policy.MatchedRule { return p.bounds[p.leases[k]] }

// longestLease is how long the last place of a run stays taken that is not renewed.
func (p *compiledScope) longestLease() (longest time.Duration) {
	for _, i := range p.leases {
		longest = max(longest, p.bounds[i].Rule.Lease)
	}
	return longest
}

// scopeCache keeps what has been worked out, by scope, up to a bound: a flood of new
// scopes costs work again, never memory.
type scopeCache struct {
	keys keyspace
	pad  time.Duration
	app  string
	now  func(provider string) time.Time // by the clock of the provider's server

	mu      sync.RWMutex
	policy  *policy.Policy
	known   map[string]*compiledScope
	changed chan struct{}    // closed when policy is another one
	before  []*policy.Policy // those before it, the latest last
	turn    int              // how many there have been
}

// making is under which of a limiter's policies a plan was made. One policy may be set
// again.
type making struct {
	by   *scopeCache
	turn int
}

// keptPolicies is how many policies are kept for what was granted under them.
const keptPolicies = 16

func newPlans(policy *policy.Policy, keys keyspace, pad time.Duration, app string) *scopeCache {
	return &scopeCache{policy: policy, keys: keys, pad: pad, app: app, known: map[string]*compiledScope{}, changed: make(chan struct{})}
}

// current returns the policy, and what is closed when it is another one.
func (c *scopeCache) current() (*policy.Policy, <-chan struct{}) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.policy, c.changed
}

// since returns the policies since one that a plan was made under, that one left out; of
// another limiter's plan, or one from long ago, the current one alone.
func (c *scopeCache) since(made making) (later []*policy.Policy) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if made.by != c {
		return []*policy.Policy{c.policy}
	}
	turns := c.turn - made.turn
	if turns == 0 {
		return nil
	}
	return append(slices.Clone(c.before[max(0, len(c.before)-turns+1):]), c.policy)
}

// raises says whether the policy lets any limit grow above the configured one.
func (c *scopeCache) raises() bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.policy.RaisesLimits()
}

// stocks are the plans that may have something in stock, and that are so.
func (c *scopeCache) stocks(are func(*compiledScope) bool) (some []*compiledScope) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.stocked(are)
}

// stocked is stocks where c.mu is held.
func (c *scopeCache) stocked(are func(*compiledScope) bool) (some []*compiledScope) {
	if !c.policy.Prefetches() {
		return nil
	}
	for _, p := range c.known {
		if p.stock != nil && are(p) {
			some = append(some, p)
		}
	}
	return some
}

// earlier returns the policies before the current one, the latest last.
func (c *scopeCache) earlier() []*policy.Policy {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return slices.Clone(c.before)
}

// set makes all scopes be worked out anew, and returns the plans from before that may have something in stock.
func (c *scopeCache) set(policy *policy.Policy) (old []*compiledScope) {
	c.mu.Lock()
	defer c.mu.Unlock()
	old = c.stocked(func(*compiledScope) bool { return true })
	c.before = append(c.before, c.policy)
	c.before = c.before[max(0, len(c.before)-keptPolicies):]
	c.policy, c.known, c.turn = policy, map[string]*compiledScope{}, c.turn+1
	close(c.changed)
	c.changed = make(chan struct{})
	return old
}

const maxPlans = 10_000

func (c *scopeCache) of(scope string) (*compiledScope, error) {
	c.mu.RLock()
	p, pol, turn := c.known[scope], c.policy, c.turn
	c.mu.RUnlock()
	if p != nil && (p.plain() || p.holds(c.now)) {
		return p, nil
	}
	s, err := policy.ParseScope(scope)
	if err != nil {
		return nil, err
	}
	now := c.now(c.keys.provider(s.Provider()))
	bounds, err := pol.MatchAt(s, now)
	if err != nil {
		return nil, err
	}
	p = compileScope(c.keys, s, bounds, c.pad, now)
	p.weigh(pol.Weights(s))
	p.made, p.settings = making{c, turn}, settingsOf(pol, s, c.app)
	c.keep(p)
	return p, nil
}

// keep keeps a plan, unless the policy is another one by now.
func (c *scopeCache) keep(p *compiledScope) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.turn != p.made.turn {
		return
	}
	if len(c.known) >= maxPlans {
		clear(c.known)
	}
	c.known[p.key] = p
}

// forget lets a plan go.
func (c *scopeCache) forget(p *compiledScope) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known[p.key] == p {
		delete(c.known, p.key)
	}
}
