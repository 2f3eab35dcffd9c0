package queue

import (
	"context"
	"math"
	"time"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// poolSum is a pool, and when its members admit the tasks below it: each task takes the member that admits it first.
type poolSum struct {
	members []*memberSum
	waits   time.Duration // how much later than the task before it a task starts with a member before it takes the next in the list
	name    Binding
	seen    time.Time       // when the snapshot was taken, by the local clock
	lines   int64           // the number of queues whose tasks wait there
	starts  []time.Duration // of the first task, the second, and so on, of those that wait and those that were added
}

// memberSum is a member and the units that it was given.
type memberSum struct {
	held  time.Duration // until its pause ends
	rules []*ruleSum
}

// pool returns the sums of the pool on a scope's path, beginning with its current state; nil for none.
func (o *outlook) pool(ctx context.Context, scope string, now throttle.Forecast, seen time.Time) (*poolSum, error) {
	if p := o.pools[now.Pool]; p != nil || now.Pool == "" {
		return p, nil
	}
	members, err := o.limiter.Members(ctx, scope)
	if err != nil {
		return nil, err
	}
	p := &poolSum{name: Binding{Scope: now.Pool, Rule: policy.MembersRule}, seen: seen, lines: now.PoolQueues, waits: now.PoolOverflow}
	shared := map[Binding]*ruleSum{} // members of an account have rules in common
	for _, m := range members {
		one := &memberSum{}
		if until, by := m.Held(); by != "" && until.IsZero() {
			one.held = throttle.Never
		} else if by != "" {
			one.held = max(0, until.Sub(m.At))
		}
		for _, r := range m.Rules {
			if r.Paused {
				continue
			}
			name := Binding{Scope: r.Scope, Rule: r.Rule}
			if shared[name] == nil {
				shared[name] = &ruleSum{RuleForecast: r, name: name}
			}
			one.rules = append(one.rules, shared[name])
		}
		p.members = append(p.members, one)
	}
	for range min(now.PoolWaiting, mostPooled) {
		p.add(Task{Cost: 1})
	}
	o.pools[now.Pool] = p
	return p, nil
}

// mostPooled is of how many tasks that wait below a pool the starts are worked out.
const mostPooled = 1_000_000

// add has the member admit a task that admits it first.
func (p *poolSum) add(t Task) {
	var first *memberSum
	start, latest := throttle.Never, p.waits
	if n := len(p.starts); n > 0 && p.waits > 0 {
		latest += p.starts[n-1]
	}
	for _, m := range p.members {
		if at := m.admitsIn(t); first == nil || at < start {
			first, start = m, at
		}
		if p.waits > 0 && start <= latest {
			break
		}
	}
	for _, r := range first.rules {
		r.units += r.cost(t)
	}
	p.starts = append(p.starts, start)
}

// admitsIn returns the time until the member admits a task after all that it was given; Never if no clock tells.
func (m *memberSum) admitsIn(t Task) (in time.Duration) {
	for _, r := range m.rules {
		if r.units+r.cost(t) == 0 {
			continue
		}
		wait := r.AdmitsIn(r.units + r.cost(t))
		if !wait.Known() {
			return throttle.Never
		}
		in = max(in, wait.In)
	}
	if in > math.MaxInt64-m.held {
		return throttle.Never
	}
	return m.held + in
}

// admitsIn returns the time until the pool has admitted all of a scope's queue, and a task after them. The other queues take one turn for
// each turn of this one.
func (p *poolSum) admitsIn(l *lineSum, t Task) throttle.Estimate {
	mine, lines := l.tasks, p.lines
	if t.Type != "" || t.Cost > 0 || t.Costs != nil {
		mine++
	}
	others := int64(len(p.starts)) - mine
	if l.stood {
		lines--
	}
	if lines <= 0 {
		others = 0
	} else if mine < others/lines {
		others = mine * lines
	}
	place := min(mine+max(0, others), int64(len(p.starts)))
	if place <= 0 {
		return throttle.Estimate{}
	}
	in := p.starts[place-1]
	return throttle.Estimate{In: in, From: in, To: in}
}
