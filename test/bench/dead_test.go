package bench

import (
	"fmt"
	"testing"
	"time"

	"github.com/headway-go/headway/test/bench/figures"
	"github.com/headway-go/headway/throttle/policy"
)

// BenchmarkDeadAPI has the API of one tenant answer 503 for a while, beside a tenant whose API is well: to the built programs with a
// breaker, and to the usual way, whose failed tasks come back as asynq has it.
func BenchmarkDeadAPI(b *testing.B) {
	d := outage{alive: 5 * time.Second, dead: 25 * time.Second, back: 30 * time.Second}
	if !long() {
		d = outage{alive: time.Second, dead: 2 * time.Second, back: 2 * time.Second}
	}
	for _, c := range []contender{builtPrograms, usualLimit} {
		d.before(c).into(b, d.scenario(), d.row)
	}
}

// outage is how long an API is alive in a run, then dead, and then back.
type outage struct{ alive, dead, back time.Duration }

func (d outage) lasts() time.Duration { return d.alive + d.dead + d.back }

const ill, well = "p/ill", "p/well"

// scenario has two tenants with more tasks than they can start.
func (d outage) scenario() scenario {
	const limit = 50
	return calling(scenario{
		name: fmt.Sprintf("a dead API beside another, %d/s each, dead from %.0f s to %.0f s of %.0f, two workers",
			limit, d.alive.Seconds(), (d.alive + d.dead).Seconds(), d.lasts().Seconds()),
		tasks: jobs(2*limit*int(d.lasts().Seconds()+5), ill, well),
		limits: map[string]policy.ScopeConfig{"p": {Scopes: map[string]policy.ScopeConfig{"*": {
			Breaker: policy.Breaker{In: 5 * time.Second, Wait: time.Second},
			Rules:   []policy.Rule{bucket("tenant", limit, time.Second, 1)},
		}}}},
		binding: "tenant", level: 2, watch: ill, workers: 2,
	})
}

// before has the outage befall a contender's run, and ends the run with it.
func (d outage) before(c contender) contender {
	serve := c.serve
	c.spell = d.lasts()
	c.serve = func(st *stage) (func() error, error) {
		dies := st.began.Add(d.alive).Sub(st.at.Epoch())
		st.at.Fail(ill, dies, dies+d.dead)
		return serve(st)
	}
	return c
}

// row figures what is used once the API is back, and notes the calls to the dead one, when a whole second's quota is used again, and
// what the other tenant has.
func (d outage) row(o *outcome) figures.Row {
	part := func(scope string, from, until time.Time) float64 { // of the limit, in %
		return 100 * float64(o.between(scope, from, until)) / (float64(o.rule.Limit) * until.Sub(from).Seconds())
	}
	dies := o.began.Add(d.alive)
	back := dies.Add(d.dead)
	end := back.Add(d.back)
	full := back
	for full.Before(end) && part(ill, full, full.Add(time.Second)) < 95 {
		full = full.Add(100 * time.Millisecond)
	}
	again := "never 95 % in a second after that"
	if full.Before(end) {
		again = fmt.Sprintf("95 %% in a second again %.1f s after that, and %.1f %% from then on", full.Sub(back).Seconds(), part(ill, full, end))
	}
	o.notes = append(o.notes,
		fmt.Sprintf("%.1f %% of the limit while it is dead: %d calls, %d of them in the second half",
			part(ill, dies, back), o.between(ill, dies, back), o.between(ill, dies.Add(d.dead/2), back)),
		again, fmt.Sprintf("the other tenant %.1f %% meanwhile, %.1f %% afterwards", part(well, dies, back), part(well, back, end)))
	row := o.row()
	row.Used = part(ill, back, end) / 100
	row.P50, row.P99 = -1, -1 // how late a start is says nothing of an API that was dead
	return row
}
