package asynqx

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// RoundPause is how often asynq would poll for tasks if no pacer held it back. A kick that comes while
// asynq sleeps between two rounds takes effect after at most 1.5 times this.
const RoundPause = 2 * time.Millisecond

// Pacer decides when an idle server polls for tasks, and hands it the tasks that this process has
// taken for it.
//
// asynq polls its queues one after the other, in a round, until one has a task. If none has, it sleeps
// and begins the next round, and cannot be woken. So its sleep is set to almost nothing, and the pacer
// holds back the first call of a round if the round before found nothing: until the poll interval is
// over, or a kick, or until a taken task is to be handed out. If the server has one queue, the pacer
// waits after its answer, not before the next poll: asynq would sleep meanwhile.
//
// Redis is polled in the background. A poll whose answer is outstanding, perhaps from a distant Redis,
// returns empty when a task of another queue is to be handed out, and asynq goes on to that queue. The
// answer is kept for the next poll. From a queue that has had tasks several times in a row, several
// are requested at once, as many as the server has slots for: asynq alone takes one in each round
// trip.
//
// A queue that was empty several times in a row is only checked for any task, until it has one: that
// is one command, and asynq's script is three.
//
// A busy server is never held back, and no queue of a round ahead of another: asynq determines their
// order. A pacer belongs to one server and is safe for concurrent use.
type Pacer struct {
	interval time.Duration
	free     func() int // how many slots the server has to spare; nil: enough

	mu      sync.Mutex
	met     map[string]bool // queues that asynq has polled, by their prefix
	empty   map[string]bool // the queues that the present round found empty
	last    string          // the queue of the last poll, if it found nothing
	sole    bool            // asynq polled it again: it has no other
	begun   time.Time       // when the present poll began: the lease under which it takes a task is counted from there
	until   time.Time       // how long it lasts, if it found nothing; zero: it has not
	rests   time.Time       // until when the next round is held back, if this one finds nothing
	asked   *question       // the request to Redis under way; nil: none
	finds   map[string]int  // how many tasks of a queue were found in a row
	vain    map[string]int  // how often in a row a queue was empty, without a kick meanwhile
	taken   handouts
	overdue *time.Timer   // nil: no task waits here to be handed out
	kicked  chan struct{} // closed by the next kick
	heard   chan struct{} // closed by a kick since the present round began
	changed chan struct{} // closed when tasks were put here, or an answer has come

	giveBack func([]*Handout)                             // to asynq, for tasks that are not handed out; nil: they stay here
	pends    func(ctx context.Context, queue string) bool // whether a queue may have a task; nil: it may

	stopped chan struct{}
	once    sync.Once
}

// handoutStays is how long after its time a task may stay here if its server has no slot for it.
const handoutStays = 250 * time.Millisecond

// ask requests n tasks from Redis, and returns n answers.
type ask func(ctx context.Context, n int) []found

// found is an answer to a poll, and the lease under which a task in it was taken.
type found struct {
	lease  string
	answer *redis.Cmd
}

// brings reports whether the answer is a task.
func (f found) brings() bool { return f.answer.Err() == nil }

// question is a request to Redis.
type question struct {
	queue   string
	n       int     // for how many tasks
	glance  bool    // first only checks whether there are any
	awaited bool    // a poll waits for it
	found   []found // nil: the answers are yet to come
}

const (
	// mostAsked is how many tasks of a queue are requested at once. findsMore is after how many found
	// in a row one more is requested. After vainOften answers without a task, a glance precedes the
	// request.
	mostAsked = 16
	findsMore = 4
	vainOften = 5
)

// NewPacer returns a pacer whose server polls for tasks every interval on average, between half of it
// and one and a half, like asynq.
func NewPacer(interval time.Duration) *Pacer {
	return &Pacer{
		interval: interval, finds: map[string]int{}, vain: map[string]int{},
		met: map[string]bool{}, empty: map[string]bool{},
		kicked: make(chan struct{}), changed: make(chan struct{}), stopped: make(chan struct{}),
	}
}

// Kick polls every queue once, at once, or again if it is being polled now.
func (g *Pacer) Kick() {
	g.mu.Lock()
	defer g.mu.Unlock()
	clear(g.vain)
	close(g.kicked)
	g.kicked = make(chan struct{})
}

// Put hands out tasks that were taken for this server, each at its time. It returns false if the
// server has stopped: it would not poll for them.
func (g *Pacer) Put(list ...*Handout) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.Stopped() {
		return false
	}
	g.add(list...)
	g.change()
	return true
}

// serves reports whether the server polls a queue, and how many of its tasks are here.
func (g *Pacer) serves(name string) (asks bool, has int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.met[QueuePrefix(name)] && !g.Stopped(), len(g.taken)
}

// Withdraw takes back all tasks that were not handed out, once the pacer was stopped. If a request to
// Redis is under way, it waits for the answers.
func (g *Pacer) Withdraw() []*Handout {
	for {
		g.mu.Lock()
		g.keep()
		changed, waits := g.changed, g.asked != nil
		if !waits {
			defer g.mu.Unlock()
			return g.taken.remove(func(*Handout) bool { return true })
		}
		g.mu.Unlock()
		<-changed
	}
}

// change wakes the polls that wait, to see what has changed. g.mu is held.
func (g *Pacer) change() {
	close(g.changed)
	g.changed = make(chan struct{})
}

// Stop makes every poll, held back or yet to come, return empty at once.
func (g *Pacer) Stop() { g.once.Do(func() { close(g.stopped) }) }

// look finds a task of queue: one that was taken, or one that ask brings from Redis, when it is time
// to ask.
func (g *Pacer) look(ctx context.Context, queue string, ask ask) found {
	for began := true; ; began = false {
		answer, wait, changed, heard := g.next(ctx, queue, began, ask)
		if answer != nil {
			return *answer
		}
		if !g.rest(wait, changed, heard) {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.keep()
			return *nothing()
		}
	}
}

// begins records the queue of a poll: in a round asynq polls each once. g.mu is held.
func (g *Pacer) begins(queue string) {
	g.met[queue] = true
	g.sole = len(g.met) == 1 && (g.sole || g.last == queue)
	g.last, g.begun, g.until = "", time.Now(), time.Time{}
}

// goesOn makes asynq go on to its next queue. g.mu is held.
func (g *Pacer) goesOn(queue string) *found {
	g.last = queue
	g.keep()
	return nothing()
}

func nothing() *found { return &found{answer: redis.NewCmdResult(nil, redis.Nil)} }

// next is one step of a poll: it returns its answer, or how long it waits and what ends that wait
// earlier.
func (g *Pacer) next(ctx context.Context, queue string, began bool, ask ask) (answer *found, wait time.Duration, changed, heard <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.Stopped() {
		g.keep()
		return nothing(), 0, nil, nil
	}
	if began {
		g.begins(queue)
	} else if answer := g.answer(); answer != nil {
		return answer, 0, nil, nil
	}
	now := time.Now()
	over := g.asked == nil && !g.until.IsZero() && !now.Before(g.until)
	if g.asked == nil && !over && g.room(queue, now) && g.due(queue, now) {
		g.ask(ctx, queue, ask)
	}
	one, others := g.taken.next(queue, now)
	switch {
	case one != nil:
		g.keep()
		return &found{one.Lease, redis.NewCmdResult(one.Message, nil)}, 0, nil, nil
	case others, over, g.empty[queue] && g.left() > 0:
		return g.goesOn(queue), 0, nil, nil
	case g.asked != nil:
		g.asked.awaited = g.asked.queue == queue
		return nil, g.taken.until(now), g.changed, nil
	}
	wait = min(g.taken.until(now), g.rests.Sub(now))
	if !g.until.IsZero() {
		wait = min(wait, g.until.Sub(now))
	}
	return nil, wait, g.changed, g.heard
}

// left returns how many of the queues that asynq has polled are left in the present round. g.mu is held.
func (g *Pacer) left() int { return len(g.met) - len(g.empty) }

// due reports whether a queue is to be polled now: not while it is held back after a round that found
// nothing. g.mu is held.
func (g *Pacer) due(queue string, now time.Time) bool {
	if g.left() == 0 && (!now.Before(g.rests) || isClosed(g.heard)) {
		clear(g.empty)
	}
	if g.empty[queue] {
		return false
	}
	if len(g.empty) == 0 {
		g.heard = g.kicked
	}
	return true
}

// ask starts a request to Redis. g.mu is held.
func (g *Pacer) ask(ctx context.Context, queue string, ask ask) {
	q := &question{queue: queue, n: g.several(queue), glance: g.pends != nil && g.vain[queue] >= vainOften}
	g.asked = q
	go func() {
		found := []found{*nothing()}
		if !q.glance || g.pends(ctx, queue) {
			found = ask(ctx, q.n)
		}
		g.answered(q, found)
	}()
}

// room reports whether the server has a slot beyond those for the tasks of a queue that are to be
// handed out. g.mu is held.
func (g *Pacer) room(queue string, now time.Time) bool {
	its, _ := g.taken.due(queue, now)
	return its == 0 || g.free == nil || its < g.free()
}

// several returns how many tasks of a queue to request: one if another queue has some at hand, since
// asynq decides which go first. g.mu is held.
func (g *Pacer) several(queue string) int {
	n := min(1+g.finds[queue]/findsMore, mostAsked)
	if n > 1 && g.free != nil {
		n = min(n, g.free()-len(g.taken))
	}
	if _, others := g.taken.due(queue, time.Now()); others > 0 {
		n = 1
	}
	return max(n, 1)
}

// answered records Redis's answers. Tasks for which no poll waits any more are handed out by the next
// polls.
func (g *Pacer) answered(q *question, answers []found) {
	g.mu.Lock()
	defer g.mu.Unlock()
	has := 0
	for _, one := range answers {
		if one.brings() {
			has++
		}
	}
	if has == q.n {
		g.finds[q.queue] = min(g.finds[q.queue]+has, mostAsked*findsMore)
	} else {
		delete(g.finds, q.queue)
	}
	if has == 0 && errors.Is(answers[0].answer.Err(), redis.Nil) {
		g.vain[q.queue]++
		g.empty[q.queue] = true
		g.rests = time.Now().Add(g.interval/2 + rand.N(max(g.interval, 1)))
	} else {
		delete(g.vain, q.queue)
		clear(g.empty) // asynq begins a new round
	}
	q.found = answers
	if !q.awaited || g.Stopped() {
		g.keep()
	}
	g.change()
}

// answer takes an answer that a poll waits for, if it has come: a task first. All others are kept for
// the next poll. g.mu is held.
func (g *Pacer) answer() *found {
	q := g.asked
	if q == nil || !q.awaited || q.found == nil {
		return nil
	}
	at := max(0, slices.IndexFunc(q.found, found.brings))
	answer := q.found[at]
	q.found = slices.Delete(q.found, at, at+1)
	if !errors.Is(answer.answer.Err(), redis.Nil) {
		g.keep()
		return &answer
	} else if g.sole && g.until.IsZero() {
		// asynq would sleep meanwhile, ignoring what comes, and poll for the same again.
		g.until = g.rests
		if longest := g.begun.Add(g.interval * 3 / 2); g.until.After(longest) {
			g.until = longest
		}
	}
	if g.sole {
		g.keep()
		return nil
	}
	return g.goesOn(q.queue)
}

// keep keeps answers for the next poll: no poll waits for them any more. g.mu is held.
func (g *Pacer) keep() {
	q := g.asked
	if q == nil {
		return
	}
	if q.awaited = false; q.found == nil {
		return // they are kept when they come
	}
	for _, one := range q.found {
		if message, err := one.answer.Text(); err == nil {
			g.add(NewHandout(q.queue, one.lease, message, time.Now()))
		}
	}
	g.asked = nil
}

// add stores tasks to be handed out. g.mu is held.
func (g *Pacer) add(list ...*Handout) {
	g.taken.add(list...)
	if g.overdue == nil {
		g.overdue = time.AfterFunc(handoutStays, g.expire)
	}
}

// expire gives back the tasks for which this server has had no slot: another server may have one.
func (g *Pacer) expire() {
	g.mu.Lock()
	now := time.Now()
	late := g.taken.remove(func(one *Handout) bool { return now.Sub(one.At) >= handoutStays })
	if g.overdue = nil; len(g.taken) > 0 {
		g.overdue = time.AfterFunc(handoutStays, g.expire)
	}
	g.mu.Unlock()
	if len(late) > 0 && g.giveBack != nil {
		g.giveBack(late)
	}
}

// Stopped reports whether the pacer was stopped.
func (g *Pacer) Stopped() bool { return isClosed(g.stopped) }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// rest waits for the end of wait, a change or a kick; false means that the server stops.
func (g *Pacer) rest(wait time.Duration, changed, kicked <-chan struct{}) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-changed:
	case <-kicked:
	case <-g.stopped:
		return false
	}
	return true
}

// Dequeues reports whether a script of asynq's polls a queue for a task, and returns the queue: only
// that script names these four keys.
func Dequeues(ctx context.Context, keys []string) (queue string, ok bool) {
	if _, bounded := ctx.Deadline(); bounded || len(keys) != 4 {
		return "", false
	}
	queue, ok = strings.CutSuffix(keys[0], "pending")
	ok = ok && strings.HasPrefix(queue, "asynq:{") && keys[1] == queue+"paused" && keys[2] == queue+"active" && keys[3] == queue+"lease"
	return queue, ok
}
