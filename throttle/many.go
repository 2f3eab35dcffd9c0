package throttle

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/lua"
)

// batchCommand is attempts of one provider that are decided in one script call, each as
// if it had been decided alone; see lua/decide_many.lua. Whoever needs more than
// the script knows is decided singly after that.
//
// An attempt that nobody can ask for again by its id is known with its batch
// alone: they have one record between them, in a slot of the batch's.
type batchCommand struct {
	runner   *runner
	limiter  *Limiter
	provider string
	id       string
	slot     *slot
	asked    []*pending     // each as long as it has no outcome
	attempts []*attempt     // of them
	args     []any          // evalsha, the SHA, the number of keys, the keys
	texts    []any          // what the calls refer to, from ARGV[4] on
	keys     keyTable       // where in args they were put
	places   map[string]int // of texts, where they were put
	costs    last[int64]
	rules    [atHand]last[string] // of the first rules of a path
	calls    []byte
	text     bool // the server did not know the script by its hash
	sends    atomic.Int32
}

const (
	maxManyKeys = 1000 // Lua hands them to one command of Redis's
	maxManyPath = 255  // rules of an attempt: their number is one byte
	keysAt      = 3    // in args
	textsAt     = 4    // in ARGV
	atHand      = 4
	maxManyText = 1<<16 - 1 // bytes of a path or a ticket
)

func newMany(first *pending, most int) *batchCommand {
	a := first.call.attempt
	m := &batchCommand{
		runner: first.runner, limiter: a.limiter, provider: a.plan.provider, id: NewID(), slot: a.limiter.slots.take(),
		asked: make([]*pending, 0, most), attempts: make([]*attempt, 0, most), keys: newKeyTable(most),
		places: map[string]int{}, calls: make([]byte, 2, 2+32*most),
	}
	m.args = append(make([]any, 0, 14+2*most), "evalsha", lua.DecideMany.SHA(), 0, m.slot.at(m.provider))
	m.args = append(m.args, a.plan.shared[:]...)
	return m
}

// add takes a call in, unless there is no room or the same attempt is in it.
func (m *batchCommand) add(p *pending) bool {
	a := p.call.attempt
	rules := len(a.plan.keys)
	if rules > maxManyPath || len(m.args)+1+rules > keysAt+maxManyKeys || len(a.plan.path) > maxManyText {
		return false
	}
	id, record := a.member(), 0
	if !a.once {
		var twice bool
		if record, twice = m.keyAt(a.record, keyHash(a.record), a.record); twice {
			return false
		}
	}
	ticket := a.ticket()
	c := two(two(append(m.calls, byte(rules), byte(len(id))), len(a.plan.path)), len(ticket))
	c = two(two(c, m.costAt(a.cost.each)), record)
	for i, key := range a.plan.keys {
		at, _ := m.keyAt(key, a.plan.hashes[i], a.plan.keyArgs[i])
		c = two(two(c, at), m.ruleAt(i, a.plan.rules[i]))
	}
	c = append(append(append(c, id...), a.plan.path...), ticket...)
	if ticket != "" {
		c[1] = 1
	}
	m.calls = c
	m.asked, m.attempts = append(m.asked, p), append(m.attempts, a)
	return true
}

func two(b []byte, n int) []byte { return append(b, byte(n>>8), byte(n)) }

// keyAt returns which of KEYS a key is, and whether it was before.
func (m *batchCommand) keyAt(key string, hash uint64, arg any) (at int, known bool) {
	at, known = m.keys.find(m.args, key, hash)
	if !known {
		m.args = append(m.args, arg)
	}
	return at - keysAt + 1, known
}

// last is where the text of the last call was put: the next one's is mostly the same.
type last[T comparable] struct {
	is T
	at int
}

func (m *batchCommand) costAt(cost int64) int {
	if m.costs.at == 0 || m.costs.is != cost {
		m.costs = last[int64]{cost, m.textAt(strconv.FormatInt(cost, 10), cost)}
	}
	return m.costs.at
}

func (m *batchCommand) ruleAt(i int, arg any) int {
	rule := arg.(string) //nolint:forcetypeassert // see newPlan
	if i >= atHand {
		return m.textAt(rule, arg)
	}
	if known := &m.rules[i]; known.is != rule {
		*known = last[string]{rule, m.textAt(rule, arg)}
	}
	return m.rules[i].at
}

// textAt returns which of ARGV a text is.
func (m *batchCommand) textAt(text string, arg any) int {
	at, known := m.places[text]
	if !known {
		at = textsAt + len(m.texts)
		m.texts = append(m.texts, arg)
		m.places[text] = at
	}
	return at
}

// MarshalBinary returns the calls. The client asks for them with each send, and the
// script is told of all but the first.
func (m *batchCommand) MarshalBinary() ([]byte, error) {
	m.calls[0] = 0
	if m.sends.Add(1) > 1 {
		m.calls[0] = 1
	}
	return m.calls, nil
}

// String is for hooks that print commands.
func (m *batchCommand) String() string { return strconv.Itoa(len(m.asked)) + " attempts" }

func (m *batchCommand) command(ctx context.Context) redis.Cmder {
	m.args[2] = len(m.args) - keysAt
	if m.text {
		m.args[0], m.args[1] = "eval", lua.DecideMany.Source()
	}
	args := append(m.args, m.limiter.clock(), m.id, m)
	return redis.NewStringCmd(ctx, append(args, m.texts...)...)
}

func (m *batchCommand) opened(cmd redis.Cmder) (again []command) {
	reply, err := cmd.(*redis.StringCmd).Result() //nolint:forcetypeassert // see command
	var refused redis.Error
	switch {
	case err == nil:
		m.over()
		return m.handOut(reply)
	case unknownScript(err) && !m.text:
		return m.inFull()
	case errors.As(err, &refused) && m.sends.Load() == 1:
		// It may be about one of them alone, or about this script.
		m.over()
		m.runner.unbatchables.pause()
		return m.unbatchable(m.asked)
	}
	m.failed(err)
	return nil
}

// over lets another batch use the slot, unless this one may yet arrive once more.
func (m *batchCommand) over() {
	if m.sends.Load() == 1 {
		m.limiter.slots.put(m.slot)
	}
}

// inFull sends the text of the script. A batch that may have been decided before
// its reply was lost stays as it is, since no other finds that.
func (m *batchCommand) inFull() (again []command) {
	m.text = true
	wanted := m.asked
	if m.sends.Load() == 1 {
		m.sends.Store(0)
		wanted = stillWanted(slices.Clone(m.asked))
	}
	if len(wanted) == len(m.asked) {
		return []command{m}
	}
	m.limiter.slots.put(m.slot)
	again = m.runner.commands(wanted)
	for _, one := range again {
		if many, ok := one.(*batchCommand); ok {
			many.text = true
		}
	}
	return again
}

// handOut gives each its part of the reply.
func (m *batchCommand) handOut(reply string) (again []command) {
	sends := m.sends.Load()
	var left []*pending
	for i, numbers := range m.read(reply) {
		p := m.asked[i]
		switch {
		case numbers == nil:
			p.finish(nil, errReply)
		case len(numbers) == 0:
			left = append(left, p)
		default:
			p.call.attempt.sends.Add(sends)
			p.finish(numbers, nil)
		}
	}
	if len(left) > 0 {
		m.runner.unbatchables.add(left)
	}
	return m.unbatchable(left)
}

// read writes out the reply for each attempt, as that of decide: empty for one
// that is left to it, nil where the reply ends too early.
func (m *batchCommand) read(reply string) [][]int64 {
	numbers := 0
	for _, a := range m.attempts {
		numbers += replyHead + replyRule*len(a.plan.params)
	}
	all, space := make([][]int64, len(m.attempts)), make([]int64, numbers)
	if len(reply) < 2*packed {
		return all
	}
	now, start := number(reply), number(reply[packed:])
	reply = reply[2*packed:]
	for i, a := range m.attempts {
		rules := a.plan.params
		n := replyHead + replyRule*len(rules)
		switch {
		case len(reply) > 0 && reply[0] == 0:
			all[i], reply = space[:0], reply[1:]
			continue
		case len(reply) < 1+2*packed*len(rules):
			return all
		}
		reply = reply[1:]
		full := space[:n:n]
		space = space[n:]
		full[0], full[2], full[3] = 1, now, start-now
		for j := range rules {
			place, holds := number(reply), number(reply[packed:])
			numbers := full[replyHead+replyRule*j:]
			numbers[1], numbers[3] = rules[j].after(start, place, holds)
			if rules[j].kind != 'C' { // whose places have none
				numbers[4] = place
			}
			reply = reply[2*packed:]
		}
		all[i] = full
	}
	return all
}

// packed is how many bytes a number of a reply has; see lua/include/core/pack.lua.
const packed = 7

func number(b string) (n int64) {
	_ = b[packed-1]
	for i := range packed {
		n = n<<8 | int64(b[i])
	}
	return n
}

// unbatchable has calls decided singly, of callers who have not gone meanwhile: nobody
// would give back what is granted to others. A send of the batch that arrives late
// finds its record and admits nobody. It counts for the attempt nevertheless, but for
// the one that was answered.
func (m *batchCommand) unbatchable(batch []*pending) (again []command) {
	for _, p := range stillWanted(batch) {
		p.singly, p.text = true, false
		p.call.attempt.sends.Add(m.sends.Load() - 1)
		again = append(again, p)
	}
	return again
}

// failed tells of an error, after which nobody knows what was decided.
func (m *batchCommand) failed(err error) {
	var gone []int
	for i, p := range m.asked {
		switch unsettled := p.finish(nil, err); {
		case unsettled && m.attempts[i].once:
			gone = append(gone, i)
		case unsettled:
			go m.runner.settle(p.call)
		}
	}
	if len(gone) > 0 {
		go m.settle(gone)
	}
}

// settle learns what became of attempts whose callers have gone, and gives it
// back. The batch is over then: where it has not arrived it admits nobody.
func (m *batchCommand) settle(gone []int) {
	ctx, cancel := context.WithTimeout(context.Background(), m.runner.timeout)
	defer cancel()
	ask := func(how, script string) (string, error) {
		cmd := redis.NewStringCmd(ctx, how, script, 1, m.args[keysAt], m.limiter.clock(), m.id, "")
		_ = m.runner.rdb.Process(ctx, cmd) // the command has its error
		return cmd.Result()
	}
	reply, err := ask("evalsha", lua.DecideMany.SHA())
	if unknownScript(err) {
		reply, err = ask("eval", lua.DecideMany.Source())
	}
	if err != nil {
		return
	}
	all := m.read(reply)
	for _, i := range gone {
		if len(all[i]) > 0 {
			m.attempts[i].orphaned(all[i])
		}
	}
}

// commands packs a batch: attempts of one provider together, what else there is
// one by one, and behind them.
func (r *runner) commands(batch []*pending) []command {
	if len(batch) == 1 {
		return []command{batch[0]}
	}
	r.unbatchables.mark(batch)
	var together []*batchCommand
	var rest []command
	for i, p := range batch {
		if p.singly {
			rest = append(rest, p)
			continue
		}
		m := of(together, p.call.attempt.plan.provider)
		if m == nil {
			m = newMany(p, len(batch)-i)
			together = append(together, m)
		}
		if !m.add(p) {
			rest = append(rest, p)
		}
	}
	all := make([]command, 0, len(together)+len(rest))
	for _, m := range together {
		if len(m.asked) > 1 {
			all = append(all, m)
			continue
		}
		m.limiter.slots.put(m.slot)
		for _, p := range m.asked { // one, or none where no room was for it
			all = append(all, p)
		}
	}
	return append(all, rest...)
}

func of(all []*batchCommand, provider string) *batchCommand {
	for _, m := range all {
		if m.provider == provider {
			return m
		}
	}
	return nil
}

// unbatchable is what is known to be decided singly: to ask for it together first would
// only be another round trip.
type unbatchable struct {
	mu    sync.Mutex
	plans map[*compiledScope]struct{} // those last decided other than from now on
	until time.Time                   // everything, because the server refused the script
}

// mark marks the calls that have to be decided singly.
func (a *unbatchable) mark(batch []*pending) {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := !a.until.IsZero() && time.Now().Before(a.until)
	for _, p := range batch {
		if all || !p.together() {
			p.singly = true
		} else if _, known := a.plans[p.call.attempt.plan]; known {
			p.singly = true
		}
	}
}

// together says whether a call can be decided together with others: one that takes the
// same under each rule, none of which counts periods, and asks for nothing but a start.
func (p *pending) together() bool {
	a := p.call.attempt
	return a != nil && p.call.args == nil && a.cost.by == nil && !a.late.any() && !a.plan.calendars && (a.queued == nil || a.queued.starts())
}

func (a *unbatchable) add(batch []*pending) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.plans == nil || len(a.plans) > maxPlans {
		a.plans = map[*compiledScope]struct{}{}
	}
	for _, p := range batch {
		a.plans[p.call.attempt.plan] = struct{}{}
	}
}

func (a *unbatchable) remove(p *compiledScope) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.plans, p)
}

// pause has everything decided singly for a while.
func (a *unbatchable) pause() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.until = time.Now().Add(time.Second)
}
