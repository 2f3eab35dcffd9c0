package sim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/inspect"
	"github.com/headway-go/headway/internal/waitlist"
	"github.com/headway-go/headway/lua"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/worker"
	"github.com/headway-go/headway/worker/metrics"
)

// course is a world in which nothing fails but what a test breaks, for what the schedule promises in figures: in fake time they
// are the schedule's own, whatever else the machine does.
type course struct {
	*world

	seen  *counter
	ended chan ran
	takes time.Duration // a run
}

// ran is a task and its start.
type ran struct {
	id string
	at time.Time
}

// counter is an observer that counts pick-ups.
type counter struct {
	*metrics.Metrics
	pickups atomic.Int64
}

func (c *counter) PickedUp(queue string) {
	c.pickups.Add(1)
	c.Metrics.PickedUp(queue)
}

// patience is how long a course waits for a task, in its own time.
const patience = time.Hour

// run runs a test in a course under the rules of provider p.
func run(t *testing.T, rules string, test func(c *course)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &course{
			world: newWorld(t, 1, "limits: {p: "+rules+"}"),
			seen:  &counter{Metrics: metrics.New(metrics.Config{})}, ended: make(chan ran, 100_000),
		}
		c.lag = 200 * time.Microsecond
		test(c)
		c.stop()
		<-time.After(time.Second) // replies that a hook still holds up
	})
}

// long is for a test of figures that takes its time.
func long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("takes its time: make soak SEEDS=")
	}
}

// serve starts a worker process, of which hooks see what it asks of Redis. It runs 32 tasks at a time unless told, whatever the
// machine: of a few slots the last is kept from those who wait, at the price of a pick-up.
func (c *course) serve(serving asynq.Config, hooks ...redis.Hook) {
	if serving.Concurrency == 0 {
		serving.Concurrency = 32
	}
	c.process(worker.MiddlewareConfig{}, serving, func(ctx context.Context, _ *asynq.Task) error {
		id, _ := asynq.GetTaskID(ctx)
		c.ended <- ran{id, time.Now()}
		<-time.After(c.takes)
		return nil
	}, hooks...)
}

// process starts a worker process whose pick-ups are counted.
func (c *course) process(cfg worker.MiddlewareConfig, serving asynq.Config, handler asynq.HandlerFunc, hooks ...redis.Hook) {
	p := &process{w: c.world}
	p.rdb = c.connect(p)
	for _, h := range hooks {
		p.rdb.AddHook(h)
	}
	cfg.Observer = c.seen
	p.serve(cfg, serving, handler)
	c.workers = append(c.workers, p)
}

// plan enqueues n tasks of a scope, numbered from 0, and returns what it was told.
func (c *course) plan(n int, scope string) (told []queue.Result) {
	c.Helper()
	return c.batch(n, queue.Task{Scope: scope, ID: scope})
}

// planIn is plan for a queue, which the tasks have their ids of.
func (c *course) planIn(name string, n int, scope string) {
	c.Helper()
	c.batch(n, queue.Task{Scope: scope, Queue: name, ID: name})
}

func (c *course) batch(n int, like queue.Task) (told []queue.Result) {
	c.Helper()
	tasks := slices.Repeat([]queue.Task{like}, n)
	for i := range tasks {
		tasks[i].Type, tasks[i].ID = "work", fmt.Sprintf("%s %04d", like.ID, i)
	}
	_, err := c.client.EnqueueBatch(c.Context(), queue.Number(slices.Values(tasks)), func(r queue.Result) { told = append(told, r) })
	if err != nil || len(told) != n {
		c.Fatalf("%d of %d were enqueued: %v", len(told), n, err)
	}
	return told
}

// costly enqueues n tasks of scope p/a that cost so much each.
func (c *course) costly(n int, cost int64) {
	c.Helper()
	for i := range n {
		_, err := c.client.Enqueue(c.Context(), queue.Task{Type: "work", Scope: "p/a", ID: fmt.Sprint(i), Cost: cost})
		must(c, err)
	}
}

// finish waits until n tasks have started, each once, and returns the starts in their order.
func (c *course) finish(n int) (runs []ran) {
	c.Helper()
	once := map[string]bool{}
	for len(runs) < n {
		select {
		case r := <-c.ended:
			if once[r.id] {
				c.Errorf("%s ran twice", r.id)
			}
			once[r.id] = true
			runs = append(runs, r)
		case <-time.After(patience):
			c.Fatalf("%d of %d tasks have run", len(runs), n)
		}
	}
	slices.SortStableFunc(runs, func(a, b ran) int { return a.at.Compare(b.at) })
	return runs
}

func took(runs []ran) time.Duration { return runs[len(runs)-1].at.Sub(runs[0].at) }

// used is the part of a rate, by the second, that evenly spaced starts used.
func used(runs []ran, rate float64) float64 {
	return float64(len(runs)-1) / rate / took(runs).Seconds()
}

// uses fails the test where starts used less than a part of a rate.
func (c *course) uses(runs []ran, rate, least float64) {
	c.Helper()
	if share := used(runs, rate); share < least {
		c.Errorf("%.1f %% of the limit was used", 100*share)
	}
}

// pickedUp fails the test where each of so many tasks was picked up more often than so many times.
func (c *course) pickedUp(tasks int, most float64) {
	c.Helper()
	if each := float64(c.seen.pickups.Load()) / float64(tasks); each > most {
		c.Errorf("%.2f pick-ups a task", each)
	}
}

// "asynq sleeps between its looks at an empty queue": with asynq's own interval of a second, and a task released 20 ms before its
// start, 8 % of a limit was used, at 9 pick-ups a task.
func TestPollInterval(t *testing.T) {
	run(t, "{rules: [{name: r, algorithm: token-bucket, limit: 100, per: 1s}]}", func(c *course) {
		const n = 300
		c.serve(asynq.Config{TaskCheckInterval: time.Second})
		c.plan(n, "p/a")
		c.uses(c.finish(n), 100, 0.985)
		c.pickedUp(n, 1.01)
	})
}

// "nothing here decides by a time that was worked out before": others who do not stand in line take a third of the units, further
// ahead than tasks are released, so that every time which was told drifts. By stored times a task was picked up 12 to 81 times.
func TestTurnsDoNotDrift(t *testing.T) {
	long(t)
	run(t, "{rules: [{name: r, algorithm: sliding-window, limit: 40, per: 1s}]}", func(c *course) {
		const n = 200
		c.serve(asynq.Config{})
		c.plan(n, "p/a")
		others, stop := c.limiter(c.admin), make(chan struct{})
		done := make(chan int)
		go func() {
			taken := 0
			for {
				select {
				case <-stop:
					done <- taken
					return
				case <-time.After(25 * time.Millisecond):
					d, err := others.Decide(c.Context(), throttle.Request{Scope: "p/b", MaxDelay: 250 * time.Millisecond})
					if err == nil && d.Allowed {
						taken++
					}
				}
			}
		}()
		c.finish(n)
		close(stop)
		if taken := <-done; taken < n/5 {
			c.Errorf("the others took %d units: the test tested nothing", taken)
		}
		c.pickedUp(n, 1.2)
	})
}

// "what is still out is set aside": two processes share the rounds, and either may pick up what the other has released. Without
// it a task was picked up 1.5 to 2.4 times. When both begin at once, one takes what both have released, some twenty more than it
// has slots for.
func TestTwoProcessesReleaseNoMore(t *testing.T) {
	long(t)
	run(t, "{rules: [{name: r, algorithm: token-bucket, limit: 400, per: 1s}]}", func(c *course) {
		const n = 1000
		c.serve(asynq.Config{})
		c.serve(asynq.Config{})
		c.plan(n, "p/a")
		c.uses(c.finish(n), 400, 0.97)
		c.pickedUp(n, 1.05)
	})
}

// "A start that came too late is given back and decided anew, first of all": no unit of a long window is lost, which would put a
// task off by a window, and no place: a task that was late once went 9,700 places back.
func TestLateStartsLoseNothing(t *testing.T) {
	long(t)
	run(t, "{rules: [{name: r, algorithm: sliding-window, limit: 30, per: 1m}]}", func(c *course) {
		const n = 90
		var grants, late atomic.Int64
		c.serve(asynq.Config{}, redistest.Each(func(cmd redis.Cmder, send func() error) error {
			err := send()
			decides := cmd.Name() == "evalsha" && (cmd.Args()[1] == lua.Decide.SHA() || cmd.Args()[1] == lua.Dispatch.SHA())
			if decides && grants.Add(1)%2 == 0 { // each second one is held back until its start has gone
				late.Add(1)
				<-time.After(400 * time.Millisecond)
			}
			return err
		}))
		told := c.plan(n, "p/a")
		runs := c.finish(n)
		if held := late.Load(); held < 4 {
			c.Errorf("%d replies were late: the test tested nothing", held)
		}
		if d := took(runs); d > 2*time.Minute+5*time.Second {
			c.Errorf("three windows of units took %s", d)
		}
		for i, r := range runs {
			if at := slices.IndexFunc(told, func(t queue.Result) bool { return t.ID == r.id }); at/30 != i/30 {
				c.Errorf("task %d started as number %d, in another window", at, i)
			}
		}
	})
}

// "each waiting task is in its scheduled or retry set for a time after its turn is expected": no healthy run needs that time,
// under a rule that frees a window's units at once either. Spaced evenly it came too early, for 1.45 pick-ups a task.
func TestSafetyNetIsNotNeeded(t *testing.T) {
	long(t)
	run(t, "{rules: [{name: r, algorithm: sliding-window, limit: 100, per: 1m}]}", func(c *course) {
		const n = 300
		c.plan(n, "p/a")
		net := map[string]time.Time{}
		c.each(func(info *asynq.TaskInfo) { net[info.ID] = info.NextProcessAt })
		if len(net) < n/2 {
			c.Fatalf("%d tasks wait: the test tests nothing", len(net))
		}
		c.serve(asynq.Config{Concurrency: 32})
		runs := c.finish(n)
		for _, r := range runs {
			if at, waits := net[r.id]; waits && !r.at.Before(at) {
				c.Errorf("%s started %s after asynq had brought it", r.id, r.at.Sub(at))
			}
		}
		c.pickedUp(n, 1.01)
		if d := took(runs); d > 2*time.Minute+2*time.Second {
			c.Errorf("three windows of units took %s", d)
		}
	})
}

// "A task that does not exist is tried again eight places later, since it may be
// about to be enqueued": a client that is slow between the two steps loses nothing.
func TestPlannedBeforeItExists(t *testing.T) {
	run(t, "{rules: [{name: r, algorithm: token-bucket, limit: 100, per: 1s}]}", func(c *course) {
		const n = 200
		c.serve(asynq.Config{})
		var asks []waitlist.Waiter
		for i := range n {
			asks = append(asks, waitlist.Waiter{Scope: "p/a", Queue: "default", ID: fmt.Sprintf("p/a %04d", i)})
		}
		placed, err := c.limiter(c.admin).Waitlist().Join(c.Context(), asks)
		if err != nil || placed[n-1].Ahead != n-1 {
			c.Fatalf("%+v, %v", placed[n-1], err)
		}
		<-time.After(50 * time.Millisecond) // turns come that nobody is there for
		plain := queue.NewClient(c.admin, queue.ClientConfig{})
		for i := range n {
			task := queue.Task{Type: "work", Scope: "p/a", ID: fmt.Sprintf("p/a %04d", i), Delay: waitlist.SafetyNet(placed[i].Expected)}
			_, err := plain.Enqueue(c.Context(), task)
			must(c, err)
		}
		runs := c.finish(n)
		if d := took(runs); d > 3*time.Second {
			c.Errorf("200 tasks at 100 a second took %s", d)
		}
		c.pickedUp(n, 1.1)
	})
}

// A planned task that was deleted by hand is forgotten when it has been missing for two seconds after its turn: it could have been
// about to be enqueued. It costs the unit of its turn and nothing else, so that with one in ten deleted nine tenths of the quota are used.
func TestOrphans(t *testing.T) {
	long(t)
	run(t, "{rules: [{name: r, algorithm: token-bucket, limit: 100, per: 1s}]}", func(c *course) {
		const n = 300
		told := c.plan(n, "p/a")
		turn := map[string]time.Time{}
		for i := 29; i < n; i += 10 { // the first few went straight to their queue
			if !told[i].Waits {
				c.Fatalf("task %d does not wait", i)
			}
			must(c, c.looks.DeleteTask("default", told[i].ID))
			turn[told[i].ID] = told[i].Start
		}
		left := n - len(turn)
		c.serve(asynq.Config{})
		asks, done := c.limiter(c.admin), make(chan struct{})
		go func() { // which are still there three seconds after their turns
			defer close(done)
			for len(turn) > 0 {
				<-time.After(50 * time.Millisecond)
				for id, at := range turn {
					s, err := inspect.Of(asks.Waitlist()).Task(c.Context(), waitlist.Ref{Scope: "p/a", Queue: "default", ID: id})
					if err == nil && !s.Waits && !s.Dispatched {
						delete(turn, id)
					} else if time.Since(at) > 3*time.Second {
						c.Errorf("%s is deleted, and its turn was %s ago: %+v, %v", id, time.Since(at), s, err)
						return
					}
				}
			}
		}()
		runs := c.finish(left)
		<-done
		c.uses(runs, 100, 0.89)
		c.pickedUp(left, 1.01)
	})
}

// "in nobody's way": a tenant's tasks start as if they were alone behind 1000 planned
// tasks of another one, and 2.3 times later where these stood in the queue.
func TestBacklogIsInNobodysWay(t *testing.T) {
	long(t)
	run(t, `{scopes: {a: {rules: [{name: r, algorithm: token-bucket, limit: 10, per: 1s}]},
		b: {rules: [{name: r, algorithm: token-bucket, limit: 50, per: 1s}]}}}`, func(c *course) {
		const n = 50
		c.plan(1000, "p/a")
		c.serve(asynq.Config{})
		<-time.After(5 * time.Second)
		began, last, left := time.Now(), time.Time{}, n
		c.plan(n, "p/b")
		for left > 0 {
			select {
			case r := <-c.ended:
				if strings.HasPrefix(r.id, "p/b") {
					left, last = left-1, r.at
				}
			case <-time.After(patience):
				c.Fatalf("%d of b have not run", left)
			}
		}
		// Those that go straight to pending, of the first 150 ms, are found when asynq's looks are due: the
		// limit loses as much once, as it does alone.
		const straight = 150 * time.Millisecond
		if d, alone := last.Sub(began), (n-1)*time.Second/50; d > alone+alone/20+20*time.Millisecond+straight {
			c.Errorf("%s after they were enqueued all of b had started; alone they take %s", d, alone)
		}
	})
}

// "What frees units (a run that ends, a grant given back) makes the rounds of its rules due at once", and this process looks: a
// place that is free is taken, not at the next look that was to come, half a second later.
func TestFreedPlaceIsTaken(t *testing.T) {
	for name, processes := range map[string]int{"one process": 1, "two processes": 2} {
		t.Run(name, func(t *testing.T) {
			run(t, "{rules: [{name: r, algorithm: concurrency, limit: 4}]}", func(c *course) {
				const n = 80
				c.takes = 50 * time.Millisecond
				for range processes {
					c.serve(asynq.Config{})
				}
				c.plan(n, "p/a")
				if d, best := took(c.finish(n)), (n/4-1)*c.takes; d > best+best/5 {
					c.Errorf("%d runs of %s, four at a time, took %s; the best is %s", n, c.takes, d, best)
				}
			})
		})
	}
}
