package dispatch

import (
	"context"
	"sync"
	"time"

	"github.com/headway-go/headway/internal/waitlist"
)

// claims reports to Redis which tasks have begun the starts that they were granted here, those of a provider together: what comes
// while a call is under way goes out with the next. It is safe for concurrent use.
type claims struct {
	d  *Dispatcher
	mu sync.Mutex
	// next holds what the next call of each provider reports. A provider with a call under way has an entry, nil if there is nothing
	// else to report.
	next map[string]*claim
}

// claim is what one call reports.
type claim struct {
	news []waitlist.News
	told chan struct{} // closed when the call has ended
}

func newClaims(d *Dispatcher) *claims { return &claims{d: d, next: map[string]*claim{}} }

// tell reports that a task has begun. It takes no lock itself, so that no run waits for others that begin: a goroutine that is
// stopped while it holds one would make all of them start late. The returned function waits until that was reported, so that the
// task is not found in flight after its run.
func (c *claims) tell(news waitlist.News) (wait func()) {
	told := make(chan struct{})
	go func() {
		defer close(told)
		<-c.add(news).told
	}()
	return func() { <-told }
}

// add adds a task to the next call.
func (c *claims) add(news waitlist.News) *claim {
	name := news.Provider()
	c.mu.Lock()
	defer c.mu.Unlock()
	one, sends := c.next[name]
	if one == nil {
		one = &claim{told: make(chan struct{})}
		c.next[name] = one
	}
	one.news = append(one.news, news)
	if !sends {
		go c.send(name)
	}
	return one
}

// send reports what there is of a provider, until nothing is left. What Redis did not take goes with the next dispatch.
func (c *claims) send(name string) {
	for {
		c.mu.Lock()
		one := c.next[name]
		if one == nil {
			delete(c.next, name)
			c.mu.Unlock()
			return
		}
		c.next[name] = nil
		c.mu.Unlock()
		if err := c.d.list.Report(context.Background(), name, one.news); err != nil {
			c.d.cfg.Observer.Failed("claim")
			if more, due := c.d.repeats.Due("claim", time.Now()); due {
				c.d.cfg.Log.Warn("cannot report started tasks to redis; retrying with the next call", "provider", name, "more", more, "error", err)
			}
			if !c.d.stopped() {
				c.d.mu.Lock()
				its := c.d.wake(name)
				its.news = append(its.news, one.news...)
				c.d.mu.Unlock()
			}
		}
		close(one.told)
	}
}
