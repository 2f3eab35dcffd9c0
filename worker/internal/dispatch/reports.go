package dispatch

import (
	"context"
	"sync"
	"time"

	"github.com/headway-go/headway/internal/waitlist"
	"github.com/headway-go/headway/worker/internal/asynqx"
)

// reports sends to Redis what became of tasks, those of a provider in one call: what comes while a call is under way goes out with
// the next. It is safe for concurrent use.
type reports struct {
	d  *Dispatcher
	mu sync.Mutex
	// next holds what the next call of each provider reports. A provider with a call under way has an entry, nil if there is nothing
	// else to report.
	next map[string]*batch
}

// batch is what one call reports.
type batch struct {
	news []waitlist.News
	sent chan struct{} // closed when the call has ended
}

// add adds news to the next call.
func (r *reports) add(provider string, news ...waitlist.News) *batch {
	r.mu.Lock()
	defer r.mu.Unlock()
	b, sends := r.next[provider]
	if b == nil {
		b = &batch{sent: make(chan struct{})}
		r.next[provider] = b
	}
	b.news = append(b.news, news...)
	if !sends {
		go r.send(provider)
	}
	return b
}

// send reports what there is of a provider, until nothing is left. What Redis did not take goes with a later call. A process that
// stops tries once: a grant comes back when it is overdue, and a place is taken away in its turn.
func (r *reports) send(provider string) {
	d := r.d
	for {
		r.mu.Lock()
		b := r.next[provider]
		if b == nil {
			delete(r.next, provider)
			r.mu.Unlock()
			return
		}
		r.next[provider] = nil
		r.mu.Unlock()
		err := d.list.Report(context.WithoutCancel(d.cfg.Serving), provider, b.news)
		close(b.sent)
		if err == nil {
			continue
		}
		d.cfg.Observer.Failed("claim")
		if more, due := d.repeats.Due("claim", time.Now()); due {
			d.cfg.Log.Warn("cannot report what became of tasks to redis; retrying", "provider", provider, "more", more, "error", err)
		}
		if asynqx.Sleep(d.cfg.Serving, callAgain) {
			r.add(provider, b.news...)
		}
	}
}

// Claim reports to Redis that a task has begun at the start that it was granted. wait returns when that was reported. It takes no lock
// itself, so that no run waits for others that begin: a goroutine that is stopped while it holds one would make all of them start late.
func (d *Dispatcher) Claim(task waitlist.Ref) (wait func()) {
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		<-d.reports.add(task.Provider(), waitlist.News{Ref: task, What: waitlist.Came}).sent
	}()
	return func() { <-sent } // else the task could be found in flight after its run
}

// Unused reports that a task that was granted its start goes back to its place. It does not block unless the process stops.
func (d *Dispatcher) Unused(task waitlist.Ref) error { return d.report(task, waitlist.Unused) }

// Ended reports that a task that may have a place has ended, or is to wait for something else. It does not block unless the process
// stops.
func (d *Dispatcher) Ended(task waitlist.Ref) { _ = d.report(task, waitlist.Gone) }

// report reports what became of a task, and has dispatch called then: others may have turns. A process that stops reports it at once.
func (d *Dispatcher) report(task waitlist.Ref, what waitlist.What) error {
	news := waitlist.News{Ref: task, What: what}
	if d.stopped() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(d.cfg.Serving), asynqx.TryFor)
		defer cancel()
		err := d.list.Report(ctx, task.Provider(), []waitlist.News{news})
		if err != nil {
			d.cfg.Observer.Failed("claim")
		}
		return err
	}
	d.mu.Lock()
	delete(d.out, task)
	d.mu.Unlock()
	d.reportSoon(news)
	return nil
}

// reportSoon reports what became of a task, and has dispatch called when that was sent: what it frees can be granted only then.
func (d *Dispatcher) reportSoon(news waitlist.News) {
	sent := d.reports.add(news.Provider(), news).sent
	go func() {
		<-sent
		d.Wake(news.Provider())
	}()
}
