package bench

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/headway-go/headway/test/bench/figures"
	"github.com/headway-go/headway/throttle/policy"
)

// BenchmarkCrowd gives many tenants, each with a limit of its own, tasks under one limit that all of them share and that binds.
func BenchmarkCrowd(b *testing.B) {
	if !long() {
		measure(b, crowd(200, 50, 500, 1000), planned)
		measureBuilt(b, later(crowd(2000, 5, 2000, 20_000)))
		return
	}
	measure(b, crowd(200, 50, 2000, 60_000), planned)
	measureBuilt(b, crowd(200, 50, 2000, 60_000))
	measureBuilt(b, crowd(20_000, 5, 2000, 200_000))
	s := later(crowd(20_000, 5, 2000, 200_000))
	s.traces = time.Minute
	measureBuilt(b, s)
}

// later has a scenario's tasks enqueued while the workers run, each tenant's one after the other.
func later(s scenario) scenario {
	s.name += ", enqueued meanwhile"
	s.later = true
	slices.SortStableFunc(s.tasks, func(x, y job) int { return cmp.Compare(x.scope, y.scope) })
	return s
}

// crowd has so many tenants, with a rate a second for each and one for all.
func crowd(tenants int, each, all int64, tasks int) scenario {
	return scenario{
		name:  fmt.Sprintf("%d of %d tenants, %d/s each, at %d/s together, two workers", tasks, tenants, each, all),
		tasks: jobs(tasks, numbered("p/t%05d", tenants)...),
		limits: map[string]policy.ScopeConfig{"p": {
			Rules:  []policy.Rule{sliding("account", all, time.Second)},
			Scopes: map[string]policy.ScopeConfig{"*": {Rules: []policy.Rule{bucket("tenant", each, time.Second, each)}}},
		}},
		binding: "account", level: 1, workers: 2, slots: 200,
		remark: func(o outcome) string { return sayLongest(o.longest) },
	}
}

// numbered returns n names.
func numbered(format string, n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf(format, i)
	}
	return names
}

// BenchmarkQuiet asks what a provider with little to do feels of another, with many tenants, in the same worker.
func BenchmarkQuiet(b *testing.B) {
	if !long() {
		measure(b, quiet(40, 200, 1000), builtPrograms)
		return
	}
	measure(b, quiet(300, 10_000, 20_000), builtPrograms)
}

// quiet has a provider's tasks at 20/s behind those of another's tenants, and lasts as long as the former.
func quiet(n, tenants, others int) scenario {
	return scenario{
		name:  fmt.Sprintf("%d at 20/s beside %d of another provider's %d tenants", n, others, tenants),
		tasks: append(jobs(others, numbered("busy/t%05d", tenants)...), jobs(n, "quiet")...),
		limits: map[string]policy.ScopeConfig{
			"quiet": {Rules: []policy.Rule{bucket("quiet", 20, time.Second, 1)}},
			"busy": {
				Rules:  []policy.Rule{sliding("account", 1000, time.Second)},
				Scopes: map[string]policy.ScopeConfig{"*": {Rules: []policy.Rule{bucket("tenant", 5, time.Second, 5)}}},
			},
		},
		binding: "quiet", level: 1, watch: "quiet", slots: 200,
		remark: func(o outcome) string {
			return fmt.Sprintf("the other: %.0f a second; %s", o.besides(), sayLongest(o.longest))
		},
	}
}

// besides returns how many tasks a second started, of those that are not watched, until the last start of one that is.
func (o outcome) besides() float64 {
	watched := o.counted()
	if len(watched) == 0 {
		return 0
	}
	until := watched[len(watched)-1].at
	if !o.cut.IsZero() {
		until = o.cut
	}
	n := o.between("", o.began, until) - o.between(o.watch, o.began, until)
	return float64(n) / until.Sub(o.began).Seconds()
}

// BenchmarkProviders has several providers at once, each under a rule of its own.
func BenchmarkProviders(b *testing.B) {
	n := 4000
	if !long() {
		n = 200
	}
	const providers = 4
	measure(b, scenario{
		name: fmt.Sprintf("%d of %d providers, 100/s each", n, providers), tasks: jobs(n, numbered("p%d", providers)...),
		limits:  map[string]policy.ScopeConfig{"*": {Rules: []policy.Rule{bucket("r", 100, time.Second, 1)}}},
		binding: "r", level: 1,
	}, planned)
}

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
	c.into(b, s, func(o *outcome) figures.Row {
		row := o.row()
		if counted := o.counted(); o.cut.IsZero() {
			took = counted[len(counted)-1].at.Sub(o.began)
			row.Note = fmt.Sprintf("took %.2f s", took.Seconds())
		}
		if took > 0 && alone > 0 {
			row.Note += fmt.Sprintf(", %.2f × alone", took.Seconds()/alone.Seconds())
		}
		return row
	})
	return took
}
