package sim

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
)

// ordered holds starts against the order of their ids: none is more than so many places off.
func (c *course) ordered(runs []ran, places int) {
	c.Helper()
	for i, r := range runs {
		var number int
		_, err := fmt.Sscanf(r.id[strings.LastIndex(r.id, " ")+1:], "%d", &number)
		must(c, err)
		if number > i+places || number < i-places {
			c.Errorf("%s started as number %d", r.id, i)
			return
		}
	}
}

// ofWaiting are the keys of waiting tasks, without the provider's prefix: docs/keys.md has them.
var ofWaiting = regexp.MustCompile(`^hw:\{p\}:(q:.*|ready.*|left.*|blocked|recheck|flights?|queues|rules|costs|units|sequence)$`)

// nothingWaits waits until no key of waiting tasks is left.
func (c *course) nothingWaits() {
	c.Helper()
	var left []string
	for range 600 {
		left = slices.DeleteFunc(c.redis.Keys(), func(key string) bool { return !ofWaiting.MatchString(key) })
		if len(left) == 0 {
			return
		}
		<-time.After(100 * time.Millisecond)
	}
	c.Errorf("of waiting tasks there is left %q", left)
}

const hundred = "{rules: [{name: r, algorithm: token-bucket, limit: 100, per: 1s}]}"

var bothQueues = map[string]int{"live": 1, "low": 1}

// goesOnIn is how long it takes at most until processes know that a queue goes on.
const goesOnIn = 2 * time.Second

func since(runs []ran, at time.Time) []ran {
	return runs[slices.IndexFunc(runs, func(r ran) bool { return !r.at.Before(at) }):]
}

// Two processes that serve a queue each share a limit: the one whose tasks have all run leaves those of the
// other to it. It granted them first, for starts that the other often missed.
func TestYieldsToWhoServesThem(t *testing.T) {
	run(t, hundred, func(c *course) {
		const n = 1000
		c.serve(asynq.Config{Queues: map[string]int{"live": 1}})
		c.serve(asynq.Config{Queues: map[string]int{"low": 1}})
		c.planIn("live", 100, "p/a")
		c.finish(100)
		began := time.Now()
		c.planIn("low", n, "p/b")
		runs := c.finish(n)
		c.uses(since(runs, began.Add(time.Second)), 100, 0.97)
		c.pickedUp(n+100, 1.05)
	})
}

func (c *course) pauseLow() {
	must(c, c.looks.PauseQueue("low"))
}

func (c *course) unpauseLow() {
	must(c, c.looks.UnpauseQueue("low"))
}

// "A queue that stands still takes nothing from others": behind 2000 tasks of a queue that is paused, or that nobody serves,
// another queue gets all of the quota that they share, in other scopes or in the same; it had 21 of 100 a second. And those who
// stood still go on in order, once each, and leave nothing behind.
func TestStandstillTakesNothing(t *testing.T) {
	for name, way := range map[string]struct { // in which a queue stands still and goes on
		serves     map[string]int
		stop, goOn func(c *course)
	}{
		"paused": {bothQueues, (*course).pauseLow, (*course).unpauseLow},
		"nobody serves it": {map[string]int{"live": 1}, func(*course) {}, func(c *course) {
			c.serve(asynq.Config{Queues: map[string]int{"low": 1}})
		}},
	} {
		for _, scope := range []string{"p/a", "p/b"} {
			t.Run(name+", "+scope, func(t *testing.T) {
				if name != "nobody serves it" || scope != "p/b" {
					long(t)
				}
				run(t, hundred, func(c *course) {
					n, others := 300, 2000
					if testing.Short() {
						n, others = 100, 500
					}
					c.knowLow()
					way.stop(c)
					c.serve(asynq.Config{Queues: way.serves})
					c.planIn("low", others, scope)
					c.planIn("live", n, "p/b")
					runs := c.finish(n)
					c.ordered(runs, 10)
					c.uses(runs, 100, 0.98)
					began := time.Now()
					way.goOn(c)
					runs = c.finish(others)
					c.ordered(runs, 40)
					if late := runs[0].at.Sub(began); late > goesOnIn {
						c.Errorf("the first started %s after its queue went on", late)
					}
					c.uses(since(runs, began.Add(goesOnIn)), 100, 0.97)
					c.nothingWaits()
				})
			})
		}
	}
}

// knowLow has asynq know the queue: else it can't be paused.
func (c *course) knowLow() {
	c.Helper()
	_, err := c.plain.Enqueue(asynq.NewTask("nothing", nil), asynq.Queue("low"), asynq.ProcessIn(1000*time.Hour))
	must(c, err)
}

// A queue is paused while its tasks wait, are released and stand in pending, and goes on for some
// moments in between: those who are released hold nothing back, each comes once, and all go on in order.
func TestPausedWhileTasksWait(t *testing.T) {
	run(t, hundred, func(c *course) {
		// What is granted at the moment of the pause, up to a tenth of a second of the limit, is lost once.
		const n, others = 600, 700
		c.takes = 5 * time.Millisecond
		c.serve(asynq.Config{Queues: bothQueues})
		c.planIn("low", others, "p/a")
		runs := c.finish(200)
		c.pauseLow()
		<-time.After(300 * time.Millisecond) // those who were taken before have started
		for {
			select {
			case r := <-c.ended:
				runs = append(runs, r)
				continue
			default:
			}
			break
		}
		before := len(runs)
		c.planIn("live", n, "p/b")
		lives := c.finish(n)
		c.uses(lives, 100, 0.97)
		for range 5 { // whatever a look is about to do
			c.unpauseLow()
			<-time.After(anyTime(c.random, 1500*time.Millisecond))
			c.pauseLow()
			<-time.After(anyTime(c.random, 1500*time.Millisecond))
		}
		c.unpauseLow()
		runs = append(runs, c.finish(others-before)...)
		c.ordered(runs, 60)
		c.nothingWaits()
	})
}

// A worker that is started finds the tasks of a queue that was paused before, and those that another one left. A task that is deleted
// by hand, or archived, while its queue is paused takes nothing, and leaves no key.
func TestRestartedWhilePaused(t *testing.T) {
	run(t, hundred, func(c *course) {
		const others = 300
		c.knowLow()
		c.pauseLow()
		c.serve(asynq.Config{Queues: bothQueues})
		c.planIn("low", others, "p/a")
		<-time.After(2 * time.Second)
		c.workers[0].server.Shutdown()
		<-time.After(time.Minute) // asynq's own times have passed
		c.serve(asynq.Config{Queues: bothQueues})
		<-time.After(3 * time.Second)
		c.planIn("live", 300, "p/b")
		c.uses(c.finish(300), 100, 0.98)
		for i := 210; i < 220; i++ {
			must(c, c.looks.DeleteTask("low", fmt.Sprintf("low %04d", i)))
			must(c, c.looks.ArchiveTask("low", fmt.Sprintf("low %04d", i+50)))
		}
		c.unpauseLow()
		runs := c.finish(100)
		c.workers[1].server.Shutdown()
		c.serve(asynq.Config{Queues: bothQueues})
		c.ordered(append(runs, c.finish(others-100-20)...), 80)
		c.nothingWaits()
	})
}
