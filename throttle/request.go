package throttle

import (
	"crypto/rand"
	"time"

	"github.com/headway-go/headway/internal/waitlist"
	"github.com/headway-go/headway/throttle/policy"
)

// Request asks for units under every rule on a scope's path.
type Request struct {
	// Scope is the path to spend from, such as payments/acme/refunds. Required.
	Scope string
	// Cost is the number of units that the request takes under each rate rule. A concurrency rule always
	// counts one place. Defaults to 1; to take nothing, use Costs.
	Cost int64
	// Costs is the request's cost by unit, instead of Cost. A rule that counts none of these units is left
	// out of the decision. Rules with Cap lower a cost that is above what they can admit. Defaults to none.
	//
	// If all are 0, as in policy.Costs{policy.Requests: 0}, nothing is taken, no place either, and no limit applies: the request
	// is allowed unless its scope is paused. Decision.Rules then has the state of all rules, Limited and RetryAfter as for one
	// unit. Shadow rules get no such request. With a Waiter it is an error.
	Costs policy.Costs
	// ID is the attempt id. A request that is repeated with the same Scope and ID within half a minute is not charged again: it
	// is answered with the first grant. 1 to 128 bytes; use a new one for each attempt. Defaults to a random one.
	ID string
	// MaxDelay is how far ahead a start may be granted, at most MaxDelayLimit. The charge counts at that start, and the caller
	// must wait for Decision.Wait. Defaults to 0: the start is now, or the request is denied.
	MaxDelay time.Duration
	// Waiter makes the request one of a task that can wait for a turn; see package worker. It overtakes no task that waits for
	// what its scope shares: it is then denied, with Decision.Joins. Defaults to none.
	Waiter Waiter
	// OnWait is called by Start and Wait before they wait for a granted start, with the time until it. The
	// function it returns is called when that wait is over. Defaults to none.
	OnWait func(ahead time.Duration) (over func())
	// BeforeStart is called by Start once, about a round trip before a granted start comes, for what must be done before the run
	// may begin. The start waits for it. If Start returns no allowed decision, the caller undoes what was done. Defaults to none.
	BeforeStart func()
	// Missed is an allowed decision of Start for the same Waiter that Limiter.InTime has since found too late: the process was
	// stopped before the run. Start decides again, as about any start that came too late. Defaults to none.
	Missed *Decision

	late   lateness // of the start before this one
	missed string   // the grant that a task came too late for, as scripts have it
}

// Waiter is a task that can wait.
type Waiter struct {
	// Queue is its asynq queue and ID its id there, at most 1024 bytes.
	Queue, ID string
	// MaxDelay is Request.MaxDelay for a task that was not granted a start before. At most that.
	MaxDelay time.Duration
	// Granted is what it was granted by dispatch. Start uses it without asking Redis if the run can begin in time, and returns it
	// with Decision.Handed. Defaults to none.
	Granted *waitlist.Granted
}

// Check returns the error of Policy.Check, or of CheckCosts if Costs are set, for the request; or a *ScopeError. It does no I/O.
func (r Request) Check(p *policy.Policy) error {
	scope, err := policy.ParseScope(r.Scope)
	if err != nil {
		return err
	}
	if len(r.Costs) > 0 {
		return p.CheckCosts(scope, r.Costs)
	}
	return p.Check(scope, max(r.Cost, defaultCost))
}

// takesNothing reports whether a request asks for 0 units by its Costs.
func (r *Request) takesNothing() bool { return r.Waiter.ID == "" && r.Costs.Zero() }

func (r *Request) price() price { return price{each: r.Cost, costs: r.Costs} }

// NewID returns a random attempt id: 80 bits in 16 letters.
func NewID() string { return rand.Text()[:16] }
