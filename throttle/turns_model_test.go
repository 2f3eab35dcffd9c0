package throttle

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/lua"
)

// The model of those who wait: what lines, rounds and turns promise, whatever way
// they are kept. Grants are held against the ledgers of model_test.go.

// Where a waiter is.
type stage int

const (
	fresh    stage = iota
	parked         // it was told that it waits
	straight       // it was told that it goes straight to its queue
	released       // Wake has named it, and it has not come
	aside          // its place is kept while its group stands still
	running        // granted
	astray         // it may be anywhere, and may come or not
	gone
)

// waiter is one task.
type waiter struct {
	Place
	priority int
	lane     string
	stage    stage
	order    int64 // of first asking, in its scope and priority
	passed   bool  // it was put elsewhere than its order says, by news or a changed limit
	placed   int64 // when it was put at the end of its line
	aside    bool  // it has been parked
	left     int64 // when it was released last
	asks     int
	d        Decision
	pass     int
}

func (t *waiter) key() string { return t.ticket() }

// strides are those of the lanes of histories and scenes.
var strides = map[string]int{"critical": 1, "default": 2, "low": 6}

// costsByUnit is what it costs by unit, nil where that is a number.
func (t *waiter) costsByUnit() Costs {
	if t.costs == "" {
		return nil
	}
	costs, err := ParseCosts(t.costs)
	must(err)
	return costs
}

// pathOf is the plan of the rules that a task takes anything of.
func (w *turnsWorld) pathOf(t *waiter) *plan {
	p := w.plan(t.Scope)
	if costs := t.costsByUnit(); costs != nil {
		p = w.limiter().plans.counted(p, costs)
	}
	return p
}

// turnsWorld runs one history of those who wait.
type turnsWorld struct {
	rdb      redis.UniversalClient
	prefix   string
	last     *lastCall
	limiters []*Limiter
	version  int
	h        *turnsHistory

	now, back int64
	pass      int
	since     int64 // how far it has stepped back since pass was counted
	awake     int64 // when Wake was called last
	disturbed bool  // the clock has stepped, or limits have changed, for good

	ledgers map[string]*ledger
	tasks   []*waiter
	news    WakeRequest
	pauses  map[string]int64 // until when, by level
	narrow  bool             // a rule was corrected: what costs more than 1 may cost too much
	still   bool             // the group "g/" stands still
	order   int64
	seen    standings
	fresh   bool     // seen is what Redis holds
	keys    []string // of those who wait
	sent    string   // the last script call

	times      map[string]int64 // virtual, by field
	most       int              // of the last Wake
	unfinished bool             // it wanted to be called again at once
}

func newTurnsWorld(rdb redis.UniversalClient, last *lastCall, prefix string, h *turnsHistory) *turnsWorld {
	w := &turnsWorld{rdb: rdb, prefix: prefix, last: last, h: h, now: epoch, awake: epoch, ledgers: map[string]*ledger{}, pauses: map[string]int64{}, news: WakeRequest{Provider: "p"}}
	for _, limits := range h.versions {
		w.know(limits)
	}
	for _, scope := range h.scopes {
		p := w.plan(scope)
		for i, key := range p.keys {
			if w.ledgers[key] == nil {
				w.ledgers[key] = &ledger{rule: p.bounds[i].raised(), last: epoch}
			}
		}
	}
	for _, key := range w.plan(h.scopes[0]).turns[1:] {
		w.keys = append(w.keys, text(key))
	}
	for _, scope := range h.scopes {
		w.keys = append(w.keys, text(w.plan(scope).turns[0]))
	}
	last.keys, last.asked = w.keys, nil
	w.look()
	return w
}

// know adds a version of the limits.
func (w *turnsWorld) know(limits map[string]Node) {
	policy, err := NewPolicy(UnmatchedDeny, limits)
	must(err)
	l, err := New(w.rdb, policy, Config{Prefix: w.prefix, Pad: -1, Unbatched: true})
	must(err)
	l.clock = func() string { return strconv.FormatInt(w.now, 10) }
	w.limiters = append(w.limiters, l)
}

func (w *turnsWorld) limiter() *Limiter { return w.limiters[w.version] }

func (w *turnsWorld) plan(scope string) *plan {
	p, err := w.limiter().plans.of(scope)
	must(err)
	return p
}

func (w *turnsWorld) u() int64 { return w.now + w.back }

func (w *turnsWorld) advance(us int64) {
	for level, until := range w.pauses {
		if us < 0 && until <= w.now {
			delete(w.pauses, level) // it was over, and may be forgotten
		} else if us < 0 {
			w.pauses[level] = until + us // it may end by time that passes, which the step takes nothing of
		}
	}
	w.now += us
	if us >= 0 {
		return
	}
	w.back -= us
	w.disturbed = true
	if w.since -= us; w.since > 1e6 {
		w.pass, w.since = w.pass+1, 0
	}
	for _, l := range w.ledgers {
		l.stepBack(-us, w.now)
	}
}

// ask has a task ask for its start.
func (w *turnsWorld) ask(t *waiter, how standing, ahead, near int64) {
	w.look()
	w.called()
	p := w.pathOf(t)
	for i, key := range p.keys {
		w.ledgers[key].look(p.bounds[i].raised(), w.u(), w.now)
	}
	t.asks++
	req := Request{
		Scope: t.Scope, Cost: t.cost, Costs: t.costsByUnit(), ID: fmt.Sprintf("%s.%d", t.Ticket, t.asks), Ahead: us(ahead), Near: us(near),
		Ticket: t.Ticket, Priority: t.priority, Lane: t.lane, Stride: strides[t.lane], Lead: us(w.h.lead), standing: how,
	}
	if how == again { // by what there is of it, so that histories stay as they are drawn
		req.late = []lateness{{}, {leeway: 20 * time.Millisecond}, {from: min(20*time.Millisecond, req.Ahead)}}[t.asks%3]
	}
	d, err := w.limiter().Decide(ctx, req)
	var tooMuch *CostError
	if errors.As(err, &tooMuch) {
		t.stage = astray // nothing was asked of Redis
		return
	}
	must(err)
	w.sent = "turn"
	if !d.Allowed {
		w.denied(t, how, p, d)
		return
	}
	w.granted(t, how, p, req, d)
}

func (w *turnsWorld) granted(t *waiter, how standing, p *plan, req Request, d Decision) {
	mine := how == again || w.seen.out[scopePath(t.Scope)+"\x00"+t.key()] != ""
	switch {
	case how == rejoins || how == queues:
		fail("%s only wanted a place, and was granted", t.key())
	case mine && d.Wait > req.Ahead, !mine && d.Wait > req.Near:
		fail("%s was granted %v ahead, of %v and %v", t.key(), d.Wait, req.Ahead, req.Near)
	case !mine && len(w.seen.line[scopePath(t.Scope)]) > 0 && w.now-w.awake < 1e6 && !w.disturbed:
		fail("%s was granted before %v, who wait", t.key(), w.seen.line[scopePath(t.Scope)])
	}
	for _, level := range p.scope.levels() {
		if until := w.pauses[level]; w.now+d.Wait.Microseconds() < until {
			fail("%s was granted %v ahead, and %s is paused for %v", t.key(), d.Wait, level, us(until-w.now))
		}
	}
	for i, key := range p.keys {
		start := d.Wait.Microseconds()
		c := charge{id: d.Grant.id, units: t.under(p.bounds[i].Rule), start: w.u() + start, byClock: w.now + start, pass: w.ledgers[key].pass}
		if i := w.ledgers[key].rule.Algorithm; i == Concurrency {
			c.units = 1
		}
		if broken := w.ledgers[key].take(c, w.u(), w.now); broken != "" {
			fail("%s: %s", key, broken)
		}
	}
	t.stage, t.d, t.pass = running, d, w.pass
}

func (w *turnsWorld) denied(t *waiter, how standing, p *plan, d Decision) {
	for _, key := range p.keys {
		w.ledgers[key].seen(w.u(), w.now)
	}
	if !d.Turn.Waits {
		fail("%s was denied and does not wait", t.key())
	}
	if w.seen.out[scopePath(t.Scope)+"\x00"+t.key()] != "" {
		w.h.counts.back++
	}
	w.stand(t, how)
}

// stand notes that a task stands in line: where it stood, or at the end, or, if
// its turn has come, where it stood before that, or before all others who had no turn.
func (w *turnsWorld) stand(t *waiter, how standing) {
	path := scopePath(t.Scope)
	stood := slices.ContainsFunc(w.seen.line[path], func(ticket string) bool { return ticket == t.key() })
	switch {
	case stood, w.seen.parked[path+"\x00"+t.key()]:
	case w.hadPlace(t, w.seen.out[path+"\x00"+t.key()]):
	case how == again || how == rejoins || w.seen.out[path+"\x00"+t.key()] != "":
		t.order, t.passed = front+w.now/1000, w.away(t)
	default:
		w.order++
		t.order, t.passed, t.placed = w.order, w.justLeft(t), w.now
	}
	t.stage = parked
}

// front is less than the order of any who asked for the first time.
const front = -1 << 50

// hadPlace says whether one that was released had stood in line, and goes back there: so its value
// says, which an answer that was sent again may have changed.
func (w *turnsWorld) hadPlace(t *waiter, out string) bool {
	const band, straight = 1 << 32, 1 << 31
	if out == "" {
		return false
	}
	score := number(out[packed:]) - 1<<52 + int64(t.priority)*band
	return score > 0 && score < band && score != straight
}

// justLeft says whether one that a task goes behind may come back to a place that
// is no earlier: places go by the clock, in ms, and run ahead of it by one for each
// task that comes in the same.
func (w *turnsWorld) justLeft(t *waiter) bool {
	return slices.ContainsFunc(w.tasks, func(o *waiter) bool {
		return o != t && o.Scope == t.Scope && o.priority == t.priority && o.placed > 0 &&
			(o.stage == released || o.stage == astray) && w.now-o.placed <= 1000*int64(len(w.tasks))
	})
}

// away says whether others of a task's scope are on their way, who may yet come
// back to their places at the front.
func (w *turnsWorld) away(t *waiter) bool {
	for field := range w.seen.out {
		if scope, ticket, _ := strings.Cut(field, "\x00"); scope == scopePath(t.Scope) && ticket != t.key() {
			return true
		}
	}
	return false
}

// giveBack takes a grant back.
func (w *turnsWorld) giveBack(t *waiter) {
	w.called()
	must(w.limiter().GiveBack(ctx, t.d.Grant))
	now := w.plan(t.Scope)
	for i, key := range now.keys {
		w.ledgers[key].drop(t.d.Grant.id, w.now)
		w.ledgers[key].trim(now.bounds[i].raised(), w.u())
	}
	t.stage, w.sent = gone, "give back"
}

// finish ends a run: its places are freed.
func (w *turnsWorld) finish(t *waiter) {
	p := w.plan(t.Scope)
	t.stage = gone
	if len(p.leases) == 0 {
		return
	}
	w.called()
	keys, _, _ := p.leaseKeys()
	must(scriptOf(lua.Release, "").Run(ctx, w.rdb, append(slices.Clone(keys), text(p.turns[1]), text(p.turns[4])), w.limiter().clock(), t.d.Grant.id).Err())
	for _, key := range keys {
		w.ledgers[key].drop(t.d.Grant.id, w.now)
	}
	w.sent = "release"
}

// tell tells of the pause of a scope or of one above it.
func (w *turnsWorld) tell(scope string, levels int, verb string, us, most int64) {
	p := w.plan(scope)
	level := p.scope.Prefix(levels).String()
	w.called()
	told, err := w.limiter().tell(ctx, p, []word{{verb, scopePath(level), [5]int64{us, most}}})
	must(err)
	had := w.pauses[level]
	w.sent = ""
	switch until := max(0, told[0].until.UnixMicro()); {
	case verb == "lift":
		w.pauses[level] = 0
	case verb == "pause" && until != max(had, w.now+us) && w.back == 0:
		fail("%s is paused until %d, and was until %d; it is %d", level, until, had, w.now)
	case verb == "rest" && had > w.now && until != had && w.back == 0, verb == "rest" && (until <= w.now || until > max(had, w.now+most)) && w.back == 0:
		fail("%s rests until %d, and was paused until %d; it is %d", level, until, had, w.now)
	default:
		w.pauses[level] = until
	}
}

// raised is the rule at the most that an API can make of it.
func (b Bound) raised() Rule {
	r := b.Rule
	if most := b.most(); most > 0 {
		r.Limit = mostOf(r.Limit, most)
	}
	return r
}

// correct tells of a correction of a rule: whatever it is, the ledgers hold the rule to what
// the policy says that may come of it. An API's own limit is one of the rule's window.
func (w *turnsWorld) correct(scope string, rule int, verb string, numbers [5]int64) {
	p := w.plan(scope)
	rule %= len(p.keys)
	if verb == "adopt" && p.bounds[rule].Rule.corrected() {
		numbers[1] = p.bounds[rule].Rule.Per.Microseconds()
	}
	w.called()
	_, err := w.limiter().tell(ctx, p, []word{{verb, p.ruleName(rule), numbers}})
	must(err)
	w.sent, w.narrow = "", true
}
