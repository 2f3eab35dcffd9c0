package throttle

import (
	"context"
	"strconv"
	"sync"
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

func (l *Limiter) attempt(p *compiledScope, req *Request) *attempt {
	a := &attempt{limiter: l, plan: p, scope: req.Scope, id: p.attemptID(req), once: req.once, cost: price{each: req.Cost}, ahead: req.MaxDelay, late: req.late, sent: time.Now()}
	if len(req.Costs) > 0 {
		a.cost = p.price(req)
	}
	if !a.once {
		a.record = p.record(req)
	}
	if req.Turn.WaiterID != "" {
		a.queued = new(Request)
		*a.queued = *req
	}
	return a
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

// MarshalBinary returns the attempt id. The client asks for it with each send.
func (a *attempt) MarshalBinary() ([]byte, error) {
	a.sends.Add(1)
	return append(a.text[:0], a.id...), nil
}

// String is the attempt id, for hooks that print commands.
func (a *attempt) String() string { return a.id }

// answered lets go of the attempt's own slot.
func (a *attempt) answered() {
	if a.slot != nil {
		a.slot.answered(a, nil)
		a.limiter.slots.put(a.slot)
	}
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
	g.start, g.probe = reply[2]+reply[3], reply[4] > int64(len(g.places))
	for i := range g.places {
		g.places[i] = reply[replyHead+replyRule*i+4]
	}
	return g
}

// few is what most grants need besides, in one piece.
type few struct {
	told   settled
	places [4]int64
}

// newPlaces makes room for where so many rules put a grant's units, and for what is settled of it.
func newPlaces(rules int) ([]int64, *settled) {
	f := new(few)
	if rules > len(f.places) {
		return make([]int64, rules), &f.told
	}
	return f.places[:rules:rules], &f.told
}

// orphaned gives back what was granted to a caller who has gone. If that fails
// nobody is left to tell: units come back by the clock and leases run out.
func (a *attempt) orphaned(reply []int64) {
	if reply[0] == 1 {
		_ = a.limiter.Refund(context.Background(), a.grant(reply))
	}
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

// price is what a request takes under each rule of its plan.
type price struct {
	each int64   // under every rule, where by is nil
	by   []int64 // rule by rule
}

func (c price) at(i int) int64 {
	if c.by == nil {
		return c.each
	}
	return c.by[i]
}

// record returns the key of an attempt's record.
func (p *compiledScope) record(req *Request) string {
	if req.slot != nil {
		return req.slot.at(p.provider)
	}
	return p.attempt(p.attemptID(req))
}

// slot is where the record of an attempt stands that has no id of its caller's.
// The next attempt writes over it, so that a process has as many records as it
// ever had attempts on their way at once: a new key for each costs Redis about
// 1 µs, and some 100 bytes for half a minute.
//
// A slot is used again only when what became of its attempt is known, and it was
// sent but once. Otherwise the attempt may yet arrive, and must then find its own
// record.
type slot struct {
	name  string // what follows the provider in its key; no id can be written so
	spent bool

	provider, key string // its key at the provider that it was used for last
	keyArg        any    // the same, as the client takes it
}

// at returns the slot's key at a provider. Only who has taken the slot may ask.
func (one *slot) at(provider string) string {
	if one.provider != provider {
		one.provider, one.key = provider, provider+one.name
		one.keyArg = one.key
	}
	return one.key
}

// answered says what is known of the attempt in the slot; a nil slot is none.
func (one *slot) answered(a *attempt, err error) {
	if one != nil && (err != nil || a.sends.Load() > 1) {
		one.spent = true
	}
}

// slots are those of one Limiter.
type slots struct {
	client string

	mu    sync.Mutex
	idle  []*slot
	taken uint64 // how many there have ever been
}

func newSlots() *slots { return &slots{client: NewID()[:10]} }

func (s *slots) take() *slot {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last := len(s.idle) - 1; last >= 0 {
		one := s.idle[last]
		s.idle = s.idle[:last]
		return one
	}
	s.taken++
	return &slot{name: "@#" + s.client + "." + strconv.FormatUint(s.taken, 36)}
}

func (s *slots) put(one *slot) {
	if one.spent {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idle = append(s.idle, one)
}
