// Package usage records who uses a scope: which applications, queues and task types spent from it lately, how many units in how
// many tasks, and when last. Tokens and whatever else costs by unit are counted separately.
//
//	recorder, err := usage.New(rdb, usage.Config{App: "billing"})
//	go recorder.Run(ctx)
//	limiter, err := throttle.New(rdb, policy, throttle.Config{OnSpent: recorder.Record})
//	…
//	limiter.Allow(ctx, "payments/acme") // is recorded
//
//	report, err := usage.Read(ctx, rdb, usage.Config{}, "payments", time.Hour)
//
// Spending is added up in memory and sent to Redis every ten seconds, so that no task and no decision costs a command. What is
// spent from a scope counts at every level of its path, and with a pool's member also at the levels of that. worker.New records the
// tasks that it starts, with their queue and type, and all else that its limiter grants. A refund takes back what a grant recorded,
// and Settle corrects it. A program that wants to name a queue or a type calls Spent and Settled itself, and leaves OnSpent out.
//
// The record decides nothing. A crash or a fault of Redis loses what was not sent. Everything is bounded: a scope has 40
// combinations of applications, queue and type, those that spent most, and what others spend counts as "other". Slots of time are
// 5 minutes long for an hour, 2 hours for a day, and a day for 31 days. docs/operations.md#who-uses-it has all bounds.
package usage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// The bounds of what a Recorder keeps between two flushes.
const (
	mostInMemory  = 4000 // combinations, in all scopes together
	mostAccounts  = 1000 // scopes
	mostProviders = 100  // that a process records in two hours
	mostNameBytes = 128  // of an application, a queue or a type

	mostUnits = 1_000_000_000_000 // at once of one unit, as of a limit
)

const (
	flushEvery   = 10 * time.Second
	flushTimeout = 5 * time.Second // of one flush, the last one included

	defaultPrefix = "hw"
)

// Config configures a Recorder and Read.
type Config struct {
	// Prefix begins every key: that of throttle.Config. Defaults to "hw".
	Prefix string
	// App is the name of the application that spends: 1 to 128 bytes. New requires it, Read ignores it.
	App string
	// Observer receives failures. Defaults to none.
	Observer Observer
	// Logger gets a line when Redis stops accepting the spending, and one when it accepts it again. Defaults to none.
	Logger *slog.Logger
	// Now is the clock by which spending is assigned to slots of time, for tests. Read ignores it. Defaults to time.Now.
	Now func() time.Time
}

// Observer receives failures, as *metrics.Metrics does.
type Observer interface {
	// Failed reports a flush that failed; kind is "usage".
	Failed(kind string)
}

// By is a spender. Names may be anything, and empty. Only the first 128 bytes of a name count.
type By struct {
	App, Queue, Type string
	// EnqueuedBy is the application that enqueued the task, empty if unknown. App ran it.
	EnqueuedBy string
	// Member is the scope of the pool's member with which it was spent, github/@alice, empty for none: there it counts too. Reports
	// leave it empty.
	Member string
}

// Sum is an amount of spending.
type Sum struct {
	Units int64 // as throttle.Request.Cost counts them; requests, of what costs by unit
	Tasks int64 // how often something was spent
}

// Ends are runs that did not succeed.
type Ends struct {
	Failed  int64
	Refused int64 // by the API, which said when to come back
}

// Shadow is what a shadow rule would have done.
type Shadow struct {
	Rule   string
	Starts int64 // that it was asked about
	Waits  int64 // how many of them would have waited
}

func (s *Sum) add(more Sum) { *s = Sum{s.Units + more.Units, s.Tasks + more.Tasks} }

func (e *Ends) add(more Ends) { *e = Ends{e.Failed + more.Failed, e.Refused + more.Refused} }

// Recorder adds up the spending of one process. It is safe for concurrent use.
type Recorder struct {
	rdb     redis.UniversalClient
	prefix  string
	app     string
	failed  func(kind string)
	log     *slog.Logger
	now     func() time.Time
	timeout time.Duration // of one flush

	mu      sync.Mutex
	current *period
	flushed time.Time // last, or when the Recorder was made
	lost    atomic.Int64

	flushing  sync.Mutex
	failing   bool
	providers map[string]struct{} // recorded in the two hours that began at since
	since     int64
}

// New returns a Recorder that sends to rdb, which the caller closes. It does no I/O; call Run. The error names each invalid field
// of cfg.
func New(rdb redis.UniversalClient, cfg Config) (*Recorder, error) {
	var faults []error
	if rdb == nil {
		faults = append(faults, errors.New("usage: New needs a Redis client, got nil"))
	}
	prefix, err := cfg.prefix()
	if err != nil {
		faults = append(faults, err)
	}
	if err := CheckApp(cfg.App); err != nil {
		faults = append(faults, err)
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	r := &Recorder{
		rdb: rdb, prefix: prefix, app: cfg.App, failed: func(string) {}, log: cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)), now: cfg.Now,
		timeout: flushTimeout, current: newPeriod(),
	}
	if cfg.Observer != nil {
		r.failed = cfg.Observer.Failed
	}
	if r.now == nil {
		r.now = time.Now
	}
	r.flushed = r.now()
	return r, nil
}

// CheckApp returns an error if an application's name is invalid.
func CheckApp(name string) error {
	if n := len(name); n == 0 || n > mostNameBytes {
		return fmt.Errorf("usage: the application's name has %d bytes; give it 1 to %d", n, mostNameBytes)
	}
	return nil
}

func (c Config) prefix() (string, error) {
	if err := wire.CheckPrefix(c.Prefix); err != nil {
		return "", fmt.Errorf("usage: %w", err)
	}
	return cmp.Or(c.Prefix, defaultPrefix), nil
}

// Spent adds units that were spent from a scope, 0 for 1. An empty by.App is that of the Config. It does no I/O and does not
// block. It takes about 100 ns, twice that with a member, and does not allocate for a spender that has spent from the scope since
// the last flush. Impossible spending is lost: from an invalid scope, or of units below 0 or above the largest limit.
func (r *Recorder) Spent(scope string, by By, units int64) {
	r.add(scope, by, Sum{Units: cmp.Or(units, 1), Tasks: 1}, nil, 0)
}

// SpentCosts is Spent for costs by unit. Each unit is counted separately, up to 8 of a scope besides requests, and requests count
// as its units.
func (r *Recorder) SpentCosts(scope string, by By, costs policy.Costs) {
	r.add(scope, by, Sum{Units: costs.Of(policy.Requests), Tasks: 1}, costs, 0)
}

// Settled corrects spending, as throttle.Limiter.Settle corrects a charge: more is the difference of each unit, below 0 if less
// was spent. It counts at the time of the call, and not as another task. It costs what Spent does.
func (r *Recorder) Settled(scope string, by By, more policy.Costs) {
	r.add(scope, by, Sum{Units: more[policy.Requests]}, more, -mostUnits)
}

// Record counts what a limiter granted, settled or refunded: pass it as throttle.Config.OnSpent. It costs what Spent does.
func (r *Recorder) Record(s throttle.Spent) {
	r.add(s.Scope, By{Member: s.Member}, Sum{Units: s.Units, Tasks: s.Tasks}, s.Costs, -mostUnits)
}

// add counts spending of at least `least` of each unit, or else counts it as lost.
func (r *Recorder) add(scope string, by By, sum Sum, costs policy.Costs, least int64) {
	member := by.Member
	by.App, by.Member = cmp.Or(by.App, r.app), ""
	possible := sum.Units >= least && sum.Units <= mostUnits
	for _, n := range costs {
		possible = possible && n >= least && n <= mostUnits
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !possible || !r.current.add(place{scope: scope}, by, sum, costs) {
		r.lost.Add(max(sum.Units, 0))
	} else if member != "" {
		r.current.add(place{member, true}, by, sum, costs)
	}
}

// Ended adds runs that did not succeed to those of their scope, and of the member of by. It costs what Spent does.
func (r *Recorder) Ended(scope string, by By, how Ends) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, at := range []place{{scope: scope}, {by.Member, true}} {
		if a := r.current.account(at); a != nil {
			a.ends.add(how)
		}
	}
}

// Shadowed counts a shadow rule's answer to a start: pass it as throttle.Config.OnShadow. It costs what Spent does.
func (r *Recorder) Shadowed(s throttle.Shadowed) {
	if s.Outcome != throttle.ShadowAllowed && s.Outcome != throttle.ShadowDenied {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if a := r.current.account(place{scope: s.Scope}); a != nil && a.scope.String() == s.Scope {
		a.shadowed(s)
	}
}

// Lost returns how many spent units are not in Redis: it refused them or did not answer, they are impossible, or there were more
// than 100 providers in two hours.
func (r *Recorder) Lost() int64 { return r.lost.Load() }

// Run sends the spending to Redis, if there is any, every ten seconds and when ctx ends. It then returns, after ten seconds at
// most.
func (r *Recorder) Run(ctx context.Context) {
	flush := func() { _ = r.Flush(context.WithoutCancel(ctx)) } // it logs its failure and bounds its time
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			flush()
			return
		case <-tick.C:
			flush()
		}
	}
}

// period is what was spent between two flushes.
type period struct {
	accounts map[place]*account
	combos   int
}

func newPeriod() *period { return &period{accounts: map[place]*account{}} }

// place is where spending counts: at all levels of a scope, or at those of a pool's member alone, since the others have counted it.
type place struct {
	scope  string
	member bool
}

// account is what was spent from a scope.
type account struct {
	scope   policy.Scope
	first   int      // the outermost level at which it counts
	all     spending // that of others included
	by      map[By]*spending
	ends    Ends
	shadows map[string]*Shadow // by rule
}

// spending is what was spent, by unit where costs are.
type spending struct {
	Sum
	units map[string]int64 // but for requests
}

func (s *spending) addAll(more spending) {
	s.add(more.Sum)
	for unit, n := range more.units {
		s.units = plus(s.units, unit, n)
	}
}

// add reports whether there was room to count the scope, or its provider at least.
func (p *period) add(at place, by By, sum Sum, costs policy.Costs) bool {
	a := p.account(at)
	if a == nil {
		return false
	}
	a.all.add(sum)
	known := a.by[by]
	if known == nil {
		known = p.enter(a, by)
	}
	if known != nil { // otherwise it counts among the others
		known.add(sum)
	}
	for unit, n := range costs {
		if n == 0 || unit == policy.Requests || !a.admits(unit) {
			continue
		}
		a.all.units = plus(a.all.units, unit, n)
		if known != nil {
			known.units = plus(known.units, unit, n)
		}
	}
	return true
}

// admits reports whether a unit is counted separately already, or there is room for it.
func (a *account) admits(unit string) bool {
	_, known := a.all.units[unit]
	return known || len(a.all.units) < mostKinds && policy.Costs{unit: 1}.Check() == nil
}

// shadowed counts an answer of a shadow rule, if there is room.
func (a *account) shadowed(s throttle.Shadowed) {
	sum := a.shadows[s.Rule]
	if sum == nil {
		if len(a.shadows) >= mostBy {
			return
		}
		if a.shadows == nil {
			a.shadows = map[string]*Shadow{}
		}
		sum = &Shadow{Rule: s.Rule}
		a.shadows[s.Rule] = sum
	}
	sum.Starts++
	if s.Limited {
		sum.Waits++
	}
}

// account returns the account of a scope, or that of its provider if there are too many; nil if there is none either. A member has
// no other than its own.
func (p *period) account(at place) *account {
	if a := p.accounts[at]; a != nil {
		return a
	}
	s, err := policy.ParseScope(strings.Clone(at.scope)) // so that the memory of a task can be freed
	if err != nil || at.member && len(p.accounts) >= mostAccounts {
		return nil
	}
	if len(p.accounts) >= mostAccounts {
		s = s.Prefix(1)
		if a := p.accounts[place{scope: s.String()}]; a != nil || len(p.accounts) >= mostAccounts+mostProviders {
			return a
		}
	}
	a := &account{scope: s, first: 1, by: map[By]*spending{}}
	if at.member {
		a.first += strings.Count(at.scope[:strings.LastIndex(at.scope, "/@")+1], "/")
	}
	p.accounts[place{s.String(), at.member}] = a
	return a
}

// enter returns the spending of a new spender, nil if there is no room.
func (p *period) enter(a *account, by By) *spending {
	by = By{App: begin(by.App), Queue: begin(by.Queue), Type: begin(by.Type), EnqueuedBy: begin(by.EnqueuedBy)}
	if sum := a.by[by]; sum != nil {
		return sum
	}
	if len(a.by) >= mostBy || p.combos >= mostInMemory {
		return nil
	}
	a.by[by] = &spending{}
	p.combos++
	return a.by[by]
}

// begin returns what counts of a name, as a copy: the memory of a task can then be freed.
func begin(name string) string {
	if len(name) > mostNameBytes {
		name = strings.ToValidUTF8(name[:mostNameBytes], "")
	}
	return strings.Clone(name)
}
