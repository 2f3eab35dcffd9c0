package throttle

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/lua"
)

// sender sends attempts to Redis. Attempts that come while others are in flight are sent together after those, in one script call
// for each provider. No timer collects them: a lone attempt is sent at once, by its own caller.
type sender struct {
	rdb       redis.UniversalClient
	timeout   time.Duration
	unbatched bool
	records   records
	orphan    func(*ask) // gives back what was granted to a caller that has gone

	mu      sync.Mutex
	sending int
	waiting []*ask        // in the order in which they came
	round   chan struct{} // closed when those that wait are answered
}

func newSender(l *Limiter) *sender {
	return &sender{rdb: l.rdb, timeout: l.cfg.Timeout, unbatched: l.cfg.Unbatched, records: records{client: NewID()[:10]}, orphan: l.orphan}
}

const (
	maxSenders = 2
	maxBatch   = 256
	maxTexts   = 200 // of rules in one call, whose number is a byte
)

// ask is one attempt on its way.
type ask struct {
	wire.Attempt
	plan    *plan
	sent    time.Time
	replied time.Time
	round   chan struct{}
	state   atomic.Int32

	now    int64 // by the server's clock
	answer wire.Answer
	err    error
	lease  string // under which it holds what it was granted
	price  price
}

// What became of an attempt that waits with others.
const (
	isWaiting  int32 = iota
	isLeft           // its caller has left: what was granted goes back
	isAnswered       // its caller takes the answer
)

// decide has an attempt decided. A caller whose context ends while others send for it leaves at once; one that sends for itself
// leaves when the client does. Either way what was granted to it is given back. Costs one round trip, which others may share.
func (s *sender) decide(ctx context.Context, a *ask) error {
	if err := wire.Ended(ctx); err != nil {
		return err
	}
	a.sent = time.Now()
	if s.unbatched || a.Peek {
		return s.sendOne(ctx, a)
	}
	s.mu.Lock()
	if s.sending < maxSenders {
		s.sending++
		s.mu.Unlock()
		defer s.next()
		return s.sendOne(ctx, a)
	}
	if s.round == nil {
		s.round = make(chan struct{})
	}
	a.round = s.round
	s.waiting = append(s.waiting, a)
	s.mu.Unlock()
	return s.wait(ctx, a)
}

// sendOne sends one attempt under its caller's context.
func (s *sender) sendOne(ctx context.Context, a *ask) error {
	call := s.newCall([]*ask{a})
	s.send(ctx, call)
	if a.err != nil && wire.Ended(ctx) != nil {
		go s.learn(call)
	}
	return a.err
}

// next ends a sender's turn. Attempts that came meanwhile go out in a goroutine of their own, and the caller does not wait for
// them.
func (s *sender) next() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) == 0 {
		s.sending--
		return
	}
	go s.drain()
}

// drain sends what waits, round after round. Callers that were answered run first: those that ask again at once join the next
// round.
func (s *sender) drain() {
	for {
		s.mu.Lock()
		batch, round := s.waiting, s.round
		if s.waiting, s.round = nil, nil; len(batch) == 0 {
			s.sending--
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		s.together(batch)
		close(round)
		runtime.Gosched()
	}
}

// together sends attempts at once, in one call for each provider.
func (s *sender) together(batch []*ask) {
	var calls sync.WaitGroup
	for len(batch) > 0 {
		var some, rest []*ask
		texts := map[string]bool{}
		for _, a := range batch {
			switch {
			case a.state.Load() == isLeft:
			case len(some) < maxBatch && (len(some) == 0 || some[0].plan.Prefix == a.plan.Prefix) && (len(texts) < maxTexts || texts[a.Text]):
				some, texts[a.Text] = append(some, a), true
			default:
				rest = append(rest, a)
			}
		}
		send := func() {
			call := s.newCall(some)
			s.send(context.Background(), call)
			s.handOut(call)
		}
		if batch = rest; len(batch) > 0 {
			calls.Go(send)
		} else if len(some) > 0 {
			send()
		}
	}
	calls.Wait()
}

// handOut gives back what was granted to callers that have left.
func (s *sender) handOut(c *decideCall) {
	left := slices.DeleteFunc(slices.Clone(c.asks), func(a *ask) bool { return a.state.CompareAndSwap(isWaiting, isAnswered) })
	for _, a := range left {
		if a.err != nil {
			go s.learn(c)
			return
		}
		go s.orphan(a)
	}
}

// wait returns when the attempt's round is back, or its caller's time is over.
func (s *sender) wait(ctx context.Context, a *ask) error {
	timer := time.NewTimer(s.timeout)
	defer timer.Stop()
	var err error
	select {
	case <-a.round:
		return a.err
	case <-ctx.Done():
		err = ctx.Err()
	case <-timer.C:
		err = fmt.Errorf("no answer within %s", s.timeout)
	}
	if a.state.CompareAndSwap(isWaiting, isLeft) {
		return err
	}
	<-a.round
	return a.err
}

// decideCall is one call of decide.
type decideCall struct {
	asks   []*ask
	order  []*ask // as the script answers them
	prefix string
	args   []any
	record string // in which the reply is kept, if an attempt has no id
}

// newCall makes a call of attempts of one provider. Attempts that ask the same are sent as one, with their number.
func (s *sender) newCall(asks []*ask) *decideCall {
	c := &decideCall{asks: asks}
	attempts, groups := make([]wire.Attempt, 0, len(asks)), make([][]*ask, 0, len(asks))
	at := make(map[wire.Attempt]int, len(asks))
	for _, a := range asks {
		if !a.Peek && a.ID == "" && c.record == "" {
			c.record = s.records.take()
		}
		if i, known := at[a.Attempt]; known && a.ID == "" && a.Waiter == "" {
			attempts[i].Many++
			groups[i] = append(groups[i], a)
			continue
		}
		at[a.Attempt] = len(attempts)
		attempts, groups = append(attempts, a.Attempt), append(groups, []*ask{a})
		attempts[len(attempts)-1].Many = 1
	}
	for _, group := range groups {
		c.order = append(c.order, group...)
	}
	id := NewID()
	for i, a := range c.order {
		if a.lease = a.ID; a.ID == "" {
			a.lease = id + "." + strconv.Itoa(i+1)
		}
	}
	c.prefix, c.args = asks[0].plan.Prefix, wire.DecideArgs(asks[0].plan.limiter.clock(), id, c.record, attempts)
	return c
}

// run runs a call and reads its answers, in their order.
func (s *sender) run(ctx context.Context, c *decideCall) (now int64, answers []wire.Answer, err error) {
	reply, err := wire.Call(ctx, s.rdb, s.timeout, lua.Decide, c.prefix, c.args...)
	if err != nil {
		return 0, nil, err
	}
	pooled := func(i int) bool { return c.order[i].plan.Pool != nil }
	now, answers, err = wire.ReadDecide(reply, len(c.order), pooled, func(i int, member string) int { return c.order[i].plan.rulesWith(member) })
	for i, a := range answers {
		c.order[i].plan = c.order[i].plan.with(c.order[i].plan.Pool.Member(a.Member))
	}
	return now, answers, err
}

// send sends a call, and fills in the answers of its attempts or their error.
func (s *sender) send(ctx context.Context, c *decideCall) {
	now, answers, err := s.run(ctx, c)
	replied := time.Now()
	for i, a := range c.order {
		a.replied, a.now, a.err = replied, now, err
		if err == nil {
			a.answer = answers[i]
		}
	}
	if c.record != "" && err == nil {
		s.records.put(c.record)
	}
}

// learn finds out what became of a call without an answer, and gives back what was granted to callers that have left. The call
// is sent again: it changes nothing if it arrived before. If Redis does not answer, units come back by the clock.
func (s *sender) learn(c *decideCall) {
	now, answers, err := s.run(context.Background(), c)
	if err != nil {
		return
	}
	for i, a := range c.order {
		if a.ID == "" && a.state.Load() != isAnswered { // one with an id of its caller's may have been asked for again
			s.orphan(&ask{Attempt: a.Attempt, plan: a.plan, sent: a.sent, lease: a.lease, price: a.price, now: now, answer: answers[i]})
		}
	}
}

// records are the keys that keep the replies of calls for half a minute, used again once their call was answered: a call without
// an answer may yet arrive and must find its own record.
type records struct {
	client string

	mu    sync.Mutex
	idle  []string
	taken uint64
}

func (r *records) take() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if last := len(r.idle) - 1; last >= 0 {
		id := r.idle[last]
		r.idle = r.idle[:last]
		return id
	}
	r.taken++
	return r.client + "." + strconv.FormatUint(r.taken, 36)
}

func (r *records) put(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.idle = append(r.idle, id)
}
