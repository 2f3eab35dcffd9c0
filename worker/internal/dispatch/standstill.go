package dispatch

import (
	"time"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/worker/internal/asynqx"
)

// parked is what a watch knows of its provider's parked tasks: those whose queues stand still, and
// those that cost more than a limit admits now. They are kept outside the queues, where they delay no
// other task, until their queues go on or limits change.
type parked struct {
	any     bool      // there are parked tasks
	changes int       // of queues, as of the last poll
	offset  int       // where the next page begins
	all     bool      // read all of them, page by page: queues may have gone on, or limits changed
	from    time.Time // before it, read one page a second
	paged   time.Time
	back    []throttle.WaiterRef // tasks of the last page to unpark
}

const (
	// parkedPage is how many parked tasks one poll checks and unparks, and parkedScopes of how many
	// scopes, so that no script holds the server up for more than a few milliseconds.
	parkedPage, parkedScopes = 200, 48
	// parkedPages is how many pages without a task to unpark are read between two polls.
	parkedPages = 10
)

// heedStandstill checks whether queues that stand still go on, and prepares what the next poll reports
// of them.
func (d *Dispatcher) heedStandstill(one *watch, hours bool) {
	names, _ := d.cfg.Queues.Standing()
	d.cfg.Queues.Ask(d.cfg.Serving, asynqx.StateStays, names...)
	names, changes := d.cfg.Queues.Standing()
	p := &one.parked
	d.mu.Lock()
	if changes != p.changes || one.changed || hours {
		p.changes, p.offset, p.all, p.from, p.back = changes, 0, true, time.Time{}, nil
		one.all, one.changed = true, false // the tasks behind them may start
	}
	d.mu.Unlock()
	one.news.StalledGroups, one.news.Unpark = nil, nil
	for _, name := range names {
		one.news.StalledGroups = append(one.news.StalledGroups, queue.TicketGroups(name)...)
	}
	if p.any && (p.atOnce() || time.Since(p.paged) >= asynqx.StateStays) {
		one.news.Unpark = d.goOn(p, one.provider)
	}
}

// newlyParked returns the state of a new watch, which reads all parked tasks, since queues may have
// gone on and limits changed before. It waits until other processes can know which queues this process
// serves.
func newlyParked() parked { return parked{all: true, from: time.Now().Add(2 * asynqx.StateStays)} }

// atOnce reports whether another page is to be read now.
func (p *parked) atOnce() bool { return p.any && p.all && !time.Now().Before(p.from) }

// goOn returns the parked tasks of one page whose queues do not stand still. If all tasks are to be
// read, it skips pages without any. It also reads past a page that was tried the last time.
func (d *Dispatcher) goOn(p *parked, provider string) []throttle.WaiterRef {
	for range parkedPages {
		tried := len(p.back) > 0
		page, err := d.cfg.Limiter.Waitlist().Parked(d.cfg.Serving, provider, p.offset, parkedPage)
		p.paged = time.Now()
		if err != nil {
			p.from = p.paged.Add(asynqx.StateStays)
			if !d.stopped() {
				d.cfg.Observer.Failed("wake")
			}
			return nil
		}
		read := d.sortPage(p, page)
		if read == len(page) && len(page) < parkedPage {
			p.offset, p.all = 0, false
		}
		if len(p.back) > 0 || !p.all && !tried {
			break
		}
	}
	return p.back
}

// sortPage finds which tasks of a page to unpark, and returns how many it read. Tasks that it tried
// before and that are still parked, since no rules are known for them, stay.
func (d *Dispatcher) sortPage(p *parked, page []throttle.WaiterRef) (read int) {
	tried, scopes, names := map[throttle.WaiterRef]bool{}, map[string]bool{}, make([]string, len(page))
	for _, place := range p.back {
		tried[place] = true
	}
	p.back = nil
	for i, place := range page {
		names[i], _, _ = queue.ReadTicket(place.ID)
		if names[i] != "" && !d.cfg.Queues.Stands(names[i]) {
			d.cfg.Queues.Ask(d.cfg.Serving, asynqx.StateStays, names[i])
		}
	}
	for i, place := range page {
		if names[i] != "" && d.cfg.Queues.Stands(names[i]) || tried[place] {
			p.offset++
			continue
		}
		if scopes[place.Scope] = true; len(scopes) > parkedScopes {
			return i
		}
		p.back = append(p.back, place)
	}
	return len(page)
}

// releaseInto puts tasks of a queue into pending, unless the queue stands still.
func (d *Dispatcher) releaseInto(name string, ids []string) ([]asynqx.Outcome, error) {
	if !d.cfg.Queues.Owns(name) {
		d.cfg.Queues.Ask(d.cfg.Serving, asynqx.ServedStays, name)
	}
	if !d.cfg.Queues.Stands(name) {
		return d.cfg.Mover.Release(d.cfg.Serving, name, ids)
	}
	outcomes := make([]asynqx.Outcome, len(ids))
	for i := range outcomes {
		outcomes[i] = asynqx.StandsStill
	}
	return outcomes, nil
}

// heedStill records that the queue of a granted task stands still. The next poll, which is at once,
// puts the task back to its place and parks it.
func (d *Dispatcher) heedStill(one *watch, a answer) {
	d.cfg.Queues.Note(a.queue, true)
	if d.isOut(one, a.place.ID) {
		one.news.Unused = append(one.news.Unused, a.place)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	one.kick()
}

// slowAfter is the time after which a task that was granted its start counts as slow.
const slowAfter = 250 * time.Millisecond

// late reports whether a task that was granted its start should have come by now.
func (s sent) late() bool {
	due := s.at
	if s.granted != nil && s.granted.Starts().After(due) {
		due = s.granted.Starts()
	}
	return time.Since(due) >= slowAfter
}

// heedSlow checks whether the queues of slow granted tasks stand still. If so, these tasks go back to
// their places.
func (d *Dispatcher) heedSlow(one *watch) {
	slow := map[string][]throttle.WaiterRef{}
	d.mu.Lock()
	for ticket, its := range one.out {
		if name, _, ok := queue.ReadTicket(ticket); ok && its.late() {
			slow[name] = append(slow[name], its.place)
		}
	}
	d.mu.Unlock()
	for name, places := range slow {
		d.cfg.Queues.Ask(d.cfg.Serving, asynqx.StateStays, name)
		if d.cfg.Queues.Stands(name) {
			for _, p := range places {
				if d.isOut(one, p.ID) { // else it has come meanwhile
					one.news.Unused = append(one.news.Unused, p)
				}
			}
		}
	}
}
