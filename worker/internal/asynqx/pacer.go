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

// RoundPause is how often asynq would poll for tasks without a pacer. A kick while asynq sleeps takes effect after at most 1.5 times this.
const RoundPause = 2 * time.Millisecond

// Pacer decides when an idle server polls for tasks, and hands it the tasks that this process has taken for it.
//
// asynq polls its queues one after the other, in a round, until one has a task. If none has, it sleeps and begins the next round, and
// cannot be woken. So its sleep is set to almost nothing, and the pacer holds back the first call of a round if the round before found
// nothing: until the poll interval is over, a kick, or the time of a taken task. With a single queue the pacer waits after its answer,
// not before the next poll: asynq would sleep meanwhile.
//
// Redis is polled in the background. A poll without an answer yet returns empty when a task of another queue is to be handed out, and
// the answer is kept for the next poll. A queue that has had tasks several times in a row is asked for several at once, as many as the
// server has slots for. A queue that was empty several times in a row is only checked for any task: that is one command, not three.
//
// A busy server is never held back, and asynq determines the order of its queues. A pacer is safe for concurrent use.
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
	// mostAsked is how many tasks of a queue are requested at once. findsMore is after how many found in a row one more is
	// requested. After vainOften answers without a task, a glance precedes the request.
	mostAsked = 16
	findsMore = 4
	vainOften = 5
)

// NewPacer returns a pacer whose server polls for tasks every 0.5 to 1.5 intervals, like asynq.
func NewPacer(interval time.Duration) *Pacer {
	return &Pacer{
		interval: interval, finds: map[string]int{}, vain: map[string]int{},
		met: map[string]bool{}, empty: map[string]bool{},
		kicked: make(chan struct{}), changed: make(chan struct{}), stopped: make(chan struct{}),
	}
}

// Kick polls every queue once, at once, or again if it is being polled now.
func (p *Pacer) Kick() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.vain)
	close(p.kicked)
	p.kicked = make(chan struct{})
}

// Put hands out tasks that were taken for this server, each at its time. It returns false if the
// server has stopped: it would not poll for them.
func (p *Pacer) Put(list ...*Handout) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.Stopped() {
		return false
	}
	p.add(list...)
	p.change()
	return true
}

// serves reports whether the server polls a queue, and how many of its tasks are here.
func (p *Pacer) serves(name string) (asks bool, has int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.met[QueuePrefix(name)] && !p.Stopped(), len(p.taken)
}

// Withdraw takes back all tasks that were not handed out, once the pacer was stopped. It waits for a request to Redis under way.
func (p *Pacer) Withdraw() []*Handout {
	for {
		p.mu.Lock()
		p.keep()
		changed, waits := p.changed, p.asked != nil
		if !waits {
			defer p.mu.Unlock()
			return p.taken.remove(func(*Handout) bool { return true })
		}
		p.mu.Unlock()
		<-changed
	}
}

// change wakes the polls that wait, to see what has changed. p.mu is held.
func (p *Pacer) change() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// Stop makes every poll, held back or yet to come, return empty at once.
func (p *Pacer) Stop() { p.once.Do(func() { close(p.stopped) }) }

// look finds a task of queue: one that was taken, or one that ask brings from Redis, when it is time to ask.
func (p *Pacer) look(ctx context.Context, queue string, ask ask) found {
	for began := true; ; began = false {
		answer, wait, changed, heard := p.next(ctx, queue, began, ask)
		if answer != nil {
			return *answer
		}
		if !p.rest(wait, changed, heard) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.keep()
			return *nothing()
		}
	}
}

// begins records the queue of a poll: in a round asynq polls each once. p.mu is held.
func (p *Pacer) begins(queue string) {
	p.met[queue] = true
	p.sole = len(p.met) == 1 && (p.sole || p.last == queue)
	p.last, p.begun, p.until = "", time.Now(), time.Time{}
}

// goesOn makes asynq go on to its next queue. p.mu is held.
func (p *Pacer) goesOn(queue string) *found {
	p.last = queue
	p.keep()
	return nothing()
}

func nothing() *found { return &found{answer: redis.NewCmdResult(nil, redis.Nil)} }

// next is one step of a poll: it returns its answer, or how long it waits and what ends that wait earlier.
func (p *Pacer) next(ctx context.Context, queue string, began bool, ask ask) (answer *found, wait time.Duration, changed, heard <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.Stopped() {
		p.keep()
		return nothing(), 0, nil, nil
	}
	if began {
		p.begins(queue)
	} else if answer := p.answer(); answer != nil {
		return answer, 0, nil, nil
	}
	now := time.Now()
	over := p.asked == nil && !p.until.IsZero() && !now.Before(p.until)
	if p.asked == nil && !over && p.room(queue, now) && p.due(queue, now) {
		p.ask(ctx, queue, ask)
	}
	next, others := p.taken.next(queue, now)
	switch {
	case next != nil:
		p.keep()
		return &found{next.Lease, redis.NewCmdResult(next.Message, nil)}, 0, nil, nil
	case others, over, p.empty[queue] && p.left() > 0:
		return p.goesOn(queue), 0, nil, nil
	case p.asked != nil:
		p.asked.awaited = p.asked.queue == queue
		return nil, p.taken.until(now), p.changed, nil
	}
	wait = min(p.taken.until(now), p.rests.Sub(now))
	if !p.until.IsZero() {
		wait = min(wait, p.until.Sub(now))
	}
	return nil, wait, p.changed, p.heard
}

// left returns how many of the queues that asynq has polled are left in the present round. p.mu is held.
func (p *Pacer) left() int { return len(p.met) - len(p.empty) }

// due reports whether a queue is to be polled now: not while it is held back after a round that found nothing. p.mu is held.
func (p *Pacer) due(queue string, now time.Time) bool {
	if p.left() == 0 && (!now.Before(p.rests) || isClosed(p.heard)) {
		clear(p.empty)
	}
	if p.empty[queue] {
		return false
	}
	if len(p.empty) == 0 {
		p.heard = p.kicked
	}
	return true
}

// ask starts a request to Redis. p.mu is held.
func (p *Pacer) ask(ctx context.Context, queue string, ask ask) {
	q := &question{queue: queue, n: p.several(queue), glance: p.pends != nil && p.vain[queue] >= vainOften}
	p.asked = q
	go func() {
		found := []found{*nothing()}
		if !q.glance || p.pends(ctx, queue) {
			found = ask(ctx, q.n)
		}
		p.answered(q, found)
	}()
}

// room reports whether the server has a slot beyond those for the tasks of a queue that are to be handed out. p.mu is held.
func (p *Pacer) room(queue string, now time.Time) bool {
	due, _ := p.taken.due(queue, now)
	return due == 0 || p.free == nil || due < p.free()
}

// several returns how many tasks of a queue to request: one if another queue has some at hand: asynq decides which go first. p.mu is held.
func (p *Pacer) several(queue string) int {
	n := min(1+p.finds[queue]/findsMore, mostAsked)
	if n > 1 && p.free != nil {
		n = min(n, p.free()-len(p.taken))
	}
	if _, others := p.taken.due(queue, time.Now()); others > 0 {
		n = 1
	}
	return max(n, 1)
}

// answered records Redis's answers. Tasks for which no poll waits any more are handed out by the next polls.
func (p *Pacer) answered(q *question, answers []found) {
	p.mu.Lock()
	defer p.mu.Unlock()
	has := 0
	for _, answer := range answers {
		if answer.brings() {
			has++
		}
	}
	if has == q.n {
		p.finds[q.queue] = min(p.finds[q.queue]+has, mostAsked*findsMore)
	} else {
		delete(p.finds, q.queue)
	}
	if has == 0 && errors.Is(answers[0].answer.Err(), redis.Nil) {
		p.vain[q.queue]++
		p.empty[q.queue] = true
		p.rests = time.Now().Add(p.interval/2 + rand.N(max(p.interval, 1)))
	} else {
		delete(p.vain, q.queue)
		clear(p.empty) // asynq begins a new round
	}
	q.found = answers
	if !q.awaited || p.Stopped() {
		p.keep()
	}
	p.change()
}

// answer takes an answer that a poll waits for, if it has come: a task first. All others are kept for
// the next poll. p.mu is held.
func (p *Pacer) answer() *found {
	q := p.asked
	if q == nil || !q.awaited || q.found == nil {
		return nil
	}
	at := max(0, slices.IndexFunc(q.found, found.brings))
	answer := q.found[at]
	q.found = slices.Delete(q.found, at, at+1)
	if !errors.Is(answer.answer.Err(), redis.Nil) {
		p.keep()
		return &answer
	} else if p.sole && p.until.IsZero() {
		// asynq would sleep meanwhile, ignoring what comes, and poll for the same again.
		p.until = p.rests
		if longest := p.begun.Add(p.interval * 3 / 2); p.until.After(longest) {
			p.until = longest
		}
	}
	if p.sole {
		p.keep()
		return nil
	}
	return p.goesOn(q.queue)
}

// keep keeps answers for the next poll: no poll waits for them any more. p.mu is held.
func (p *Pacer) keep() {
	q := p.asked
	if q == nil {
		return
	}
	if q.awaited = false; q.found == nil {
		return // they are kept when they come
	}
	for _, f := range q.found {
		if message, err := f.answer.Text(); err == nil {
			p.add(NewHandout(q.queue, f.lease, message, time.Now()))
		}
	}
	p.asked = nil
}

// add stores tasks to be handed out. p.mu is held.
func (p *Pacer) add(list ...*Handout) {
	p.taken.add(list...)
	if p.overdue == nil {
		p.overdue = time.AfterFunc(handoutStays, p.expire)
	}
}

// expire gives back the tasks for which this server has had no slot: another server may have one.
func (p *Pacer) expire() {
	p.mu.Lock()
	now := time.Now()
	late := p.taken.remove(func(h *Handout) bool { return now.Sub(h.At) >= handoutStays })
	if p.overdue = nil; len(p.taken) > 0 {
		p.overdue = time.AfterFunc(handoutStays, p.expire)
	}
	p.mu.Unlock()
	if len(late) > 0 && p.giveBack != nil {
		p.giveBack(late)
	}
}

// Stopped reports whether the pacer was stopped.
func (p *Pacer) Stopped() bool { return isClosed(p.stopped) }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// rest waits for the end of wait, a change or a kick; false means that the server stops.
func (p *Pacer) rest(wait time.Duration, changed, kicked <-chan struct{}) bool {
	select {
	case <-time.After(wait):
	case <-changed:
	case <-kicked:
	case <-p.stopped:
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
