package worker

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// roundPause is how often asynq would look for tasks if no gate held it back: a
// kick that comes while asynq sleeps between two rounds is heard after 1.5 times
// this at most.
const roundPause = 2 * time.Millisecond

// gate decides when an idle server looks for tasks. asynq asks its queues one
// after the other, a round, until one has a task; when none has, it sleeps and
// begins the next round, and nothing can wake it. So it is told to sleep next to
// nothing, and the gate holds the first call of a round back when the round
// before found nothing: until the poll interval is over, or a kick.
//
// A busy server is never held back, and no queue of a round before another: the
// order in which asynq asks them stays as it is. A gate belongs to one server and
// is safe for concurrent use.
type gate struct {
	interval time.Duration
	asking   chan struct{} // holds one while a queue is asked, or nobody may ask

	mu     sync.Mutex
	empty  map[string]bool // the queues that the round at hand found empty
	asked  time.Time       // when the last of them was
	kicked chan struct{}   // closed by the next kick
	heard  chan struct{}   // closed by a kick since the round at hand began

	stopped chan struct{}
	once    sync.Once
}

// newGate returns a gate whose server looks for tasks every interval on average,
// between half of it and one and a half, as asynq does.
func newGate(interval time.Duration) *gate {
	return &gate{interval: interval, asking: make(chan struct{}, 1), empty: map[string]bool{}, kicked: make(chan struct{}), stopped: make(chan struct{})}
}

// kick has every queue asked once, at once, or again if it is being asked now.
func (g *gate) kick() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.kicked)
	g.kicked = make(chan struct{})
}

// stop makes every look, held back or yet to come, find nothing, at once.
func (g *gate) stop() { g.once.Do(func() { close(g.stopped) }) }

// look asks queue for a task by ask, when it is time to.
func (g *gate) look(ctx context.Context, queue string, ask func(context.Context) *redis.Cmd) *redis.Cmd {
	if !g.pass(queue) {
		return redis.NewCmdResult(nil, redis.Nil)
	}
	select {
	case g.asking <- struct{}{}:
	case <-g.stopped:
		return redis.NewCmdResult(nil, redis.Nil)
	}
	cmd := ask(ctx)
	<-g.asking
	g.mu.Lock()
	defer g.mu.Unlock()
	if errors.Is(cmd.Err(), redis.Nil) {
		g.empty[queue], g.asked = true, time.Now()
	} else {
		clear(g.empty) // asynq begins a new round
	}
	return cmd
}

// pass waits until queue may be asked; false means that the server stops.
func (g *gate) pass(queue string) bool {
	g.mu.Lock()
	idle, heard := g.empty[queue], g.heard
	wait := time.Until(g.asked.Add(g.interval/2 + rand.N(max(g.interval, 1))))
	g.mu.Unlock()
	if idle && !g.rest(wait, heard) {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if idle {
		clear(g.empty)
	}
	if len(g.empty) == 0 {
		g.heard = g.kicked
	}
	return !g.closed()
}

// closed tells whether the gate was stopped.
func (g *gate) closed() bool {
	select {
	case <-g.stopped:
		return true
	default:
		return false
	}
}

// rest waits for the end of wait or a kick; false means that the server stops.
func (g *gate) rest(wait time.Duration, kicked <-chan struct{}) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-kicked:
	case <-g.stopped:
		return false
	}
	return true
}

// dequeues tells asynq's look for a task in a queue from its other scripts, and
// the queue: it alone names these four keys.
func dequeues(ctx context.Context, keys []string) (queue string, ok bool) {
	if _, bounded := ctx.Deadline(); bounded || len(keys) != 4 {
		return "", false
	}
	queue, ok = strings.CutSuffix(keys[0], "pending")
	ok = ok && strings.HasPrefix(queue, "asynq:{") && keys[1] == queue+"paused" && keys[2] == queue+"active" && keys[3] == queue+"lease"
	return queue, ok
}

// gates are those of a Throttle's servers. They are safe for concurrent use.
type gates struct {
	mu  sync.Mutex
	all map[*gate]*slots
}

func (g *gates) add(one *gate, its *slots) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.all == nil {
		g.all = map[*gate]*slots{}
	}
	g.all[one] = its
}

func (g *gates) remove(one *gate) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.all, one)
}

// shut has no server ask for a task until open is called: no answer is on its way when it
// returns.
func (g *gates) shut() (open func()) {
	g.mu.Lock()
	var all []*gate
	for one := range g.all {
		all = append(all, one)
	}
	g.mu.Unlock()
	for _, one := range all {
		one.asking <- struct{}{}
	}
	return func() {
		for _, one := range all {
			<-one.asking
		}
	}
}

// kick has every server look for tasks at once: something was put into pending.
// It does not block, and costs an idle server one round of looks.
func (g *gates) kick() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for one := range g.all {
		one.kick()
	}
}

// lent is how many tasks may run beyond the servers' Concurrency now.
func (g *gates) lent() (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, its := range g.all {
		n += its.beyond()
	}
	return n
}

// refuse says whether no server may start a further task of a tenant now; lent, that there are those slots
// alone that are lent.
func (g *gates) refuse(tenant string, lent bool) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	refuses := len(g.all) > 0
	for _, its := range g.all {
		refuses = its.refuses(tenant, lent) && refuses // each is to know whom it held up
	}
	return refuses
}
