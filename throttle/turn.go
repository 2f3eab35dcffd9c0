package throttle

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/headway-go/headway/lua"
	"github.com/headway-go/headway/throttle/policy"
)

// WaiterRef identifies a waiter of a scope. The WaiterRef of a Granted or Overdue task also identifies
// its grant: what is reported about it applies to no other grant of the same task.
type WaiterRef struct {
	Scope string
	ID    string

	cost  int64  // 0 for 1
	costs string // by unit, instead of cost, as Costs.String writes them
	grant string // the id of the grant that it is spoken of; "" for whichever it has
}

// WithGrant returns the reference for one grant of the waiter: what is reported about it applies to no
// other grant of the same task.
func (p WaiterRef) WithGrant(g Grant) WaiterRef {
	p.grant = g.id
	return p
}

// QueuePosition is a waiter's place in its queue after a decision.
type QueuePosition struct {
	// Waits says that it is in the queue of its scope. Waitlist.Dispatch grants its start when that is
	// near.
	Waits bool
	// Ahead is the number of waiters of its own scope that are before it.
	Ahead int64
	// Expected is the estimated time until its start; Never if no clock can tell. Nothing depends on it.
	Expected time.Duration
	// Look is the time within which Waitlist.Dispatch should be called, since waiters wait. It is negative
	// if this decision gives no reason for a call.
	Look time.Duration
	// Again says that it was in the queue before this request: it asked by itself, before it was
	// dispatched.
	Again bool
}

// FallbackDelay returns after how long a waiter should ask again by itself if it was not dispatched:
// 1.5 times the expected wait plus 3 s, or a minute if expected is Never. It is late on purpose. When
// starts lag behind the limits because workers cannot keep up, waiters that ask by themselves would
// delay them further.
func FallbackDelay(expected time.Duration) time.Duration {
	const unknown, slack = time.Minute, 3 * time.Second
	if expected > Never/2 {
		return unknown
	}
	return expected + expected/2 + slack
}

// noTurn is the Turn of a decision that says nothing of lines.
var noTurn = QueuePosition{Look: -1}

const (
	maxTicketBytes = 1024
	maxLaneBytes   = 128
	maxStride      = 1_000_000
	turnReply      = 4 // numbers at the end of a reply
)

// standing is how a ticket is to be taken; see lua/decide_queued.lua.
type standing int

const (
	comes   standing = iota
	again            // its start came too late
	rejoins          // it had its turn and only goes back to the front
	queues           // it only takes its place
)

// again is how a ticket is to be taken, as decide_queued reads it.
func (a *attempt) again(req *Request) any {
	late := a.late.text()
	if req.standing == comes || late == "" && req.Turn.MissedStart.IsZero() {
		return int(req.standing)
	}
	text := strconv.Itoa(int(req.standing)) + late
	if !req.Turn.MissedStart.IsZero() {
		text += " " + strconv.FormatInt(req.Turn.MissedStart.UnixMicro(), 10)
	}
	return text
}

// starts is when the decision lets a run start, by the server's clock.
func (d Decision) starts() time.Time { return d.At.Add(d.Wait) }

// ticket is the name under which one stands in line: its cost is read there.
func (p WaiterRef) ticket() string {
	if p.costs != "" {
		return p.costs + ":" + p.ID
	}
	if p.cost <= defaultCost {
		return ":" + p.ID
	}
	return strconv.FormatInt(p.cost, 10) + ":" + p.ID
}

// readPlace reads what ticket wrote.
func readPlace(scope, ticket string) WaiterRef {
	cost, name, _ := strings.Cut(ticket, ":")
	p := WaiterRef{Scope: scope, ID: name}
	if strings.Contains(cost, "=") {
		p.costs = cost
		return p
	}
	p.cost, _ = strconv.ParseInt(cost, 10, 64)
	return p
}

// under is what one who stands there takes of a rule.
func (p WaiterRef) under(r policy.Rule) int64 {
	if costs, err := policy.ParseCosts(p.costs); err == nil {
		return charged(costs, r)
	}
	return max(defaultCost, p.cost)
}

// place is where one stands who asks so.
func (r *Request) place() WaiterRef {
	return WaiterRef{Scope: r.Scope, ID: r.Turn.WaiterID, cost: r.Cost, costs: r.Costs.String()}
}

// Ref returns the reference of the waiter.
func (a Waiter) Ref() WaiterRef {
	return WaiterRef{Scope: a.Scope, ID: a.ID, cost: a.Cost, costs: a.Costs.String()}
}

const defaultCost = 1

func (r *Request) checkTicket() error {
	if len(r.Turn.WaiterID) > maxTicketBytes {
		return fmt.Errorf("throttle: Request.Turn.WaiterID is %d bytes long; the most is %d", len(r.Turn.WaiterID), maxTicketBytes)
	}
	if err := checkPriority("Request.Turn", r.Turn.Priority); err != nil {
		return err
	}
	return checkLane("Request.Turn", r.Turn.Lane, r.Turn.Stride)
}

func (a Waiter) checkRank() error {
	if err := checkPriority("Waiter", a.Priority); err != nil {
		return err
	}
	return checkLane("Waiter", a.Lane, a.Stride)
}

func checkLane(of, lane string, stride int) error {
	if len(lane) > maxLaneBytes {
		return fmt.Errorf("throttle: %s.Lane is %d bytes long; the most is %d", of, len(lane), maxLaneBytes)
	}
	if stride < 0 || stride > maxStride {
		return fmt.Errorf("throttle: %s.Stride is %d; it is 1 to %d", of, stride, maxStride)
	}
	return nil
}

// appendRank appends a priority and, where there is one, a lane, as scripts read them: see
// lua/include/fairshare/lanes.lua.
func appendRank(text []byte, priority int, lane string, stride int) []byte {
	text = strconv.AppendInt(text, int64(priority), 10)
	if lane == "" {
		return text
	}
	text = strconv.AppendInt(append(text, ':'), int64(max(stride, 1)), 10)
	return append(append(text, ':'), escape(lane)...)
}

// ask is what a task asks for, as decide_queued reads it.
func (a *attempt) ask(req *Request) string {
	text := make([]byte, 0, 48)
	text = appendRank(text, a.plan.effective(req.Turn.Priority), req.Turn.Lane, req.Turn.Stride)
	for _, d := range []time.Duration{a.ahead, min(req.MaxDelay, req.Turn.MaxDelayQueued), req.Turn.DispatchLead} {
		text = strconv.AppendInt(append(text, ' '), d.Microseconds(), 10)
	}
	return string(append(append(text, ' '), a.plan.levels...))
}

// queuedArguments are those of an attempt with a ticket; see lua/decide_queued.lua.
func (a *attempt) queuedArguments(req *Request) []any {
	p := a.plan
	c := newCall(lua.DecideQueued.For(p.kinds), p.keyArgs, 1+len(p.queue), 6+2*len(p.bounds), 0)
	c.args = append(append(c.args, a.key()), p.queue...)
	c.args = append(c.args, a.limiter.clock(), a, a.ask(req), req.place().ticket(), a.again(req), p.others)
	return p.appendArgs(c.args, a.cost)
}

// starts says whether one with a ticket wants to start, and not only to stand in its line.
func (r *Request) starts() bool { return r.standing == comes || r.standing == again }

// readTurn reads the end of a reply; decide's, and one to a request that was granted
// while nobody waited, have none.
func readTurn(t []int64) QueuePosition {
	turn := QueuePosition{Waits: t[0] >= 0, Ahead: max(0, t[0]), Expected: wait(t[1]), Look: -1}
	if t[2] >= 0 {
		turn.Look = time.Duration(t[2]) * time.Microsecond
	}
	turn.Again = t[3] == 1
	return turn
}

// RequeueFront puts a waiter that was granted a start and could not use it back to the front of its
// queue: for example a run that was granted and refunded because its process stops. Several such
// waiters are ordered by the starts that they missed, req.Turn.MissedStart, whichever comes back
// first. Nothing is charged. Costs one round trip. The error is that of Decide.
func (w Waitlist) RequeueFront(ctx context.Context, req Request) (Decision, error) {
	req.standing = rejoins
	return w.l.Decide(ctx, req)
}

// Queue puts a waiter in its queue, whatever its limits would admit now: its caller cannot run it yet.
// A waiter that was dispatched gets its former place back, and a queued one keeps its place. Nothing
// is charged. A scope that meets no rule has no queue, and its waiter is allowed to start. Costs one
// round trip. The error is that of Decide.
func (w Waitlist) Queue(ctx context.Context, req Request) (Decision, error) {
	req.standing = queues
	return w.l.Decide(ctx, req)
}

// effective is the priority that counts for one who asks for a priority.
func (s settings) effective(priority int) int {
	if !s.capped {
		return priority
	}
	return min(priority, s.maxPriority)
}

func checkPriority(of string, priority int) error {
	if priority < -policy.MaxPriority || priority > policy.MaxPriority {
		return fmt.Errorf("throttle: %s.Priority is %d; the most is %d either way", of, priority, policy.MaxPriority)
	}
	return nil
}
