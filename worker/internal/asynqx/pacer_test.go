package asynqx

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
)

// asker stands for asynq and its Redis: it asks queues through a pacer, in rounds,
// and writes down when each was asked.
type asker struct {
	gate   *Pacer
	queues []string
	began  time.Time

	mu    sync.Mutex
	tasks map[string]int
	fails int
	asked []string
	looks int
	wake  func() // called once, while Redis is being asked
}

func newAsker(interval time.Duration, queues ...string) *asker {
	return &asker{gate: NewPacer(interval), queues: queues, began: time.Now(), tasks: map[string]int{}}
}

func (a *asker) redis(queue string) *redis.Cmd {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = append(a.asked, fmt.Sprint(queue, " ", time.Since(a.began)))
	if a.wake != nil {
		a.wake()
		a.wake = nil
	}
	if a.fails > 0 {
		a.fails--
		return redis.NewCmdResult(nil, errors.New("connection refused"))
	}
	if a.tasks[queue] == 0 {
		return redis.NewCmdResult(nil, redis.Nil)
	}
	a.tasks[queue]--
	return redis.NewCmdResult("task", nil)
}

func (a *asker) put(queue string, n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.tasks[queue] += n
}

// times asks as often as a pacer wants.
func times(lease string, once func() *redis.Cmd) ask {
	return func(_ context.Context, n int) (all []found) {
		for range n {
			all = append(all, found{lease, once()})
		}
		return all
	}
}

// round is what asynq does again and again.
func (a *asker) round(ctx context.Context) {
	for _, queue := range a.queues {
		a.mu.Lock()
		a.looks++
		a.mu.Unlock()
		cmd := a.gate.look(ctx, queue, times("", func() *redis.Cmd { return a.redis(queue) })).answer
		if err := cmd.Err(); !errors.Is(err, redis.Nil) {
			return // it found a task, or gives up
		}
	}
	<-time.After(RoundPause)
}

// run runs rounds until the test ends.
func (a *asker) run(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			a.round(ctx)
		}
	}()
	t.Cleanup(func() {
		cancel()
		a.gate.Stop()
		<-done
	})
}

// since returns what was asked after the last call, once all is quiet.
func (a *asker) since() []string {
	synctest.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	out := a.asked
	a.asked = nil
	return out
}

// looked is how often asynq has asked so far.
func (a *asker) looked() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.looks
}

func want(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: asked %q, want %q", what, got, want)
	}
}

// "the pacer holds the first call of a round back when the round before found
// nothing: until the poll interval is over, or a kick"
func TestGate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newAsker(time.Hour, "high", "low")
		a.run(t)
		want(t, "at the start", a.since(), "high 0s", "low 0s")
		<-time.After(time.Second)
		a.put("low", 2)
		want(t, "idle", a.since())
		a.gate.Kick()
		want(t, "after a kick, while it finds tasks", a.since(),
			"high 1s", "low 1s", "high 1s", "low 1s", "high 1s", "low 1s")
		<-time.After(time.Second)
		want(t, "idle again", a.since())
		a.gate.Kick()
		want(t, "a kick for nothing", a.since(), "high 2s", "low 2s")
		<-time.After(RoundPause / 2)
		a.gate.Kick()
		<-time.After(RoundPause)
		want(t, "a kick while asynq sleeps", a.since(), "high 2.002s", "low 2.002s")
	})
}

// "shut keeps a queue from being asked, as if it were empty; what is here is handed out": others are asked as often as
// before, and nobody goes round in circles meanwhile.
func TestGateShut(t *testing.T) {
	t.Parallel()
	const interval = 100 * time.Millisecond
	for _, test := range []struct {
		name        string
		queues      []string
		shut        []string
		least, most int // how often Redis is asked in 20 intervals
	}{
		{"the only one", []string{"a"}, []string{"a"}, 0, 0},
		{"one of two", []string{"a", "b"}, []string{"a"}, 15, 40},
		{"the other", []string{"a", "b"}, []string{"b"}, 15, 40},
		{"both", []string{"a", "b"}, []string{"a", "b"}, 0, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				a := newAsker(interval, test.queues...)
				a.run(t)
				<-time.After(3 * interval)
				for _, queue := range test.shut {
					a.gate.shut(queue)
					a.gate.settled(queue)
					a.put(queue, 3)
				}
				a.gate.Kick()
				a.since()
				before := a.looked()
				<-time.After(20 * interval)
				asked := a.since()
				if n, looks := len(asked), a.looked()-before; n < test.least || n > test.most || looks > 2*n+60 {
					t.Errorf("%d looks, asked %q", looks, asked)
				}
				for _, one := range asked {
					if queue, _, _ := strings.Cut(one, " "); slices.Contains(test.shut, queue) {
						t.Errorf("%s was asked", queue)
					}
				}
				a.gate.Put(NewHandout(test.shut[0], "", "task", time.Now()))
				<-time.After(2 * RoundPause) // asynq may sleep between two rounds
				if _, has := a.gate.serves(test.shut[0]); has != 0 {
					t.Error("what is here is not handed out")
				}
				for _, queue := range test.shut {
					a.gate.open(queue)
				}
				<-time.After(RoundPause * time.Duration(5*len(test.shut)))
				a.since()
				a.mu.Lock()
				defer a.mu.Unlock()
				for _, queue := range test.shut {
					if a.tasks[queue] > 0 {
						t.Errorf("open, and %d tasks are left in %s", a.tasks[queue], queue)
					}
				}
			})
		})
	}
}
