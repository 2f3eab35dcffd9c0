package throttle

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/headway-go/headway/lua"
)

// attempt is one request on its way to be decided.
type attempt struct {
	limiter *Limiter
	plan    *compiledScope
	scope   string
	id      string
	record  string // the key of what was granted under the id, once it is known; see key
	slot    *slot  // of its own, when it has one
	cost    price
	ahead   time.Duration
	late    lateness
	queued  *Request // what was asked for, by one who can wait for a turn
	sent    time.Time
	replied time.Time // zero until whoever asked has its reply

	once  bool         // nobody will ask for it again by its id
	sends atomic.Int32 // how often it went out: go-redis repeats what got no reply
	text  [16]byte     // room for an id of ours, as the client takes it
}

// MarshalBinary returns the attempt id. The client asks for it with each send.
func (a *attempt) MarshalBinary() ([]byte, error) {
	a.sends.Add(1)
	return append(a.text[:0], a.id...), nil
}

// String is the attempt id, for hooks that print commands.
func (a *attempt) String() string { return a.id }

func (l *Limiter) attempt(p *compiledScope, req *Request) *attempt {
	a := &attempt{limiter: l, plan: p, scope: req.Scope, id: p.attemptID(req), once: req.once, cost: p.price(req), ahead: req.MaxDelay, late: req.late, sent: time.Now()}
	if !a.once {
		a.record = p.record(req)
	}
	if req.Turn.WaiterID != "" {
		a.queued = new(Request)
		*a.queued = *req
	}
	return a
}

// member is the id by which a batch knows the attempt, if it needs to.
func (a *attempt) member() string {
	if a.once && a.plan.leases == nil {
		return ""
	}
	return a.id
}

// ticket is the name under which it would wait, if it can.
func (a *attempt) ticket() string {
	if a.queued == nil {
		return ""
	}
	return a.queued.place().ticket()
}

// key returns the key of its record, as the client takes it. One that is known with its
// batch gets a slot when it is sent by itself after all.
func (a *attempt) key() any {
	if a.record == "" {
		a.slot = a.limiter.slots.take()
		a.record = a.slot.at(a.plan.provider)
	}
	if a.slot != nil {
		return a.slot.keyArg
	}
	return a.record
}

// answered lets go of the attempt's own slot.
func (a *attempt) answered() {
	if a.slot != nil {
		a.slot.answered(a, nil)
		a.limiter.slots.put(a.slot)
	}
}

// call is the script call that decides it; see lua/decide.lua and lua/decide_queued.lua. Its arguments are
// made when it is sent alone: most are decided together with others.
func (a *attempt) call() call {
	n := len(a.plan.bounds)
	c := call{script: a.plan.decide, reply: replyHead + replyRule*n, rules: n, attempt: a}
	if a.queued != nil {
		c.script, c.reply = lua.DecideQueued.For(a.plan.kinds), c.reply+turnReply
	}
	return c
}

func (a *attempt) arguments() []any {
	p := a.plan
	if a.queued != nil {
		return a.queuedArguments(a.queued)
	}
	c := newCall(p.decide, p.keyArgs, 2, 3+2*len(p.bounds), 0)
	return p.appendArgs(append(c.args, a.key(), p.upstream, a.limiter.clock(), a, p.ask(a.ahead, a.late)), a.cost)
}

// answer reads the reply. A grant to a caller who has gone goes back.
func (a *attempt) answer(ctx context.Context, reply []int64, d *Decision) error {
	if dead := ended(ctx); dead != nil {
		go a.orphaned(reply)
		d.Binding = -1
		return dead
	}
	if a.plan.read(reply, d); d.Allowed {
		d.Grant = a.grant(reply)
	}
	return nil
}

func (a *attempt) grant(reply []int64) Grant {
	g := Grant{scope: a.scope, id: a.id, plan: a.plan, record: a.record, cost: a.cost}
	g.places, g.told = newPlaces(len(a.plan.bounds))
	g.from = a.sent.Add(time.Duration(reply[3]) * time.Microsecond)
	if a.limiter.clock() == "" { // else a test's, which stands still
		if g.came = a.replied; g.came.IsZero() {
			g.came = time.Now()
		}
		g.came = g.came.Add(time.Duration(reply[3]) * time.Microsecond)
	}
	g.start = reply[2] + reply[3]
	for i := range g.places {
		g.places[i] = reply[replyHead+replyRule*i+4]
	}
	return g
}

// orphaned gives back what was granted to a caller who has gone. If that fails
// nobody is left to tell: units come back by the clock and leases run out.
func (a *attempt) orphaned(reply []int64) {
	if reply[0] == 1 {
		_ = a.limiter.Refund(context.Background(), a.grant(reply))
	}
}
