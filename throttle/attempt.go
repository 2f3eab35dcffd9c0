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
	plan    *plan
	scope   string
	id      string
	record  string // the key of what was granted under the id
	cost    int64
	ahead   time.Duration
	sent    time.Time

	sends atomic.Int32 // how often it went out: go-redis repeats what got no reply
}

// MarshalBinary returns the attempt id. The client asks for it with each send.
func (a *attempt) MarshalBinary() ([]byte, error) {
	a.sends.Add(1)
	return []byte(a.id), nil
}

// String is the attempt id, for hooks that print commands.
func (a *attempt) String() string { return a.id }

func (l *Limiter) attempt(p *plan, req Request) *attempt {
	return &attempt{
		limiter: l, plan: p, scope: req.Scope, id: req.ID, record: p.record(req), cost: req.Cost, ahead: req.Ahead, sent: time.Now(),
	}
}

// call is the script call that decides it; see lua/decide.lua.
func (a *attempt) call() call {
	p := a.plan
	c := newCall(lua.Decide.For(p.kinds), p.keyArgs, 1, 3+2*len(p.bounds), replyHead+replyRule*len(p.bounds))
	c.args = append(c.args, a.record, a.limiter.clock(), a, a.ahead.Microseconds())
	c.args = p.appendArgs(c.args, a.cost)
	c.attempt, c.rules = a, len(p.bounds)
	return c
}

// answer reads the reply. A grant to a caller who has gone goes back.
func (a *attempt) answer(ctx context.Context, reply []int64) (Decision, error) {
	if dead := ended(ctx); dead != nil {
		go a.orphaned(reply)
		return Decision{Binding: -1}, dead
	}
	d := fromReply(a.plan, reply)
	if d.Allowed {
		d.Grant = a.grant(reply)
	}
	return d, nil
}

func (a *attempt) grant(reply []int64) Grant {
	g := Grant{scope: a.scope, id: a.id, record: a.record, cost: a.cost, places: make([]int64, len(a.plan.bounds))}
	g.from = a.sent.Add(time.Duration(reply[3]) * time.Microsecond)
	for i := range g.places {
		g.places[i] = reply[replyHead+replyRule*i+4]
	}
	return g
}

// orphaned gives back what was granted to a caller who has gone. If that fails
// nobody is left to tell: units come back by the clock and leases run out.
func (a *attempt) orphaned(reply []int64) {
	if reply[0] == 1 {
		_ = a.limiter.GiveBack(context.Background(), a.grant(reply))
	}
}
