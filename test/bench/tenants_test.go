package bench

import (
	"fmt"
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/policy"
)

// BenchmarkTenants asks how much longer the tasks of tenant B take behind a
// backlog of tenant A, in one queue, than alone. Both have limits of their own.
func BenchmarkTenants(b *testing.B) {
	ofA, ofB := 20_000, 100
	contenders := []contender{planned, unplanned, usual1}
	if !long() {
		ofA, ofB, contenders = 500, 50, []contender{planned}
	}
	for _, c := range contenders {
		c.spell = 30 * time.Second // the usual way needs that
		alone := tookOf(b, tenants(fmt.Sprintf("B's %d at 50/s, alone", ofB), 0, ofB), c, 0)
		tookOf(b, tenants(fmt.Sprintf("B's %d at 50/s behind A's %d at 10/s", ofB, ofA), ofA, ofB), c, alone)
	}
}

// tenants has all tasks of A before those of B.
func tenants(name string, ofA, ofB int) scenario {
	tasks := append(jobs(ofA, "p/a"), jobs(ofB, "p/b")...)
	return scenario{
		name: name, tasks: tasks, watch: "p/b", binding: "b", level: 2,
		limits: map[string]policy.ScopeConfig{"p": {Scopes: map[string]policy.ScopeConfig{
			"a": {Rules: []policy.Rule{bucket("a", 10, time.Second, 1)}},
			"b": {Rules: []policy.Rule{bucket("b", 50, time.Second, 1)}},
		}}},
	}
}

// tookOf runs a scenario, and returns the time from the server's start to the last task of B's.
func tookOf(b *testing.B, s scenario, c contender, alone time.Duration) (took time.Duration) {
	b.Helper()
	b.Run(label(s.name)+"/"+c.name, func(b *testing.B) {
		c.into(b, s, func(o outcome) {
			row := o.row(b)
			if counted := o.counted(); o.cut.IsZero() {
				took = counted[len(counted)-1].at.Sub(o.began)
				row.Note = fmt.Sprintf("took %.2f s", took.Seconds())
			}
			if took > 0 && alone > 0 {
				row.Note += fmt.Sprintf(", %.2f × alone", took.Seconds()/alone.Seconds())
			}
			add(b, row)
		})
	})
	return took
}
