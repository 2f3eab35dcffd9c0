package replay

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/headway-go/headway/throttle/policy"
)

// Report is what a draft would have done. docs/json.md has the fields.
type Report struct {
	// From and To are the time of the record.
	From  time.Time `json:"from"`
	To    time.Time `json:"to"`
	Tasks int       `json:"tasks"`
	// Workers and Slots are what recorded: the most slots at once, 0 if that is not known.
	Workers int `json:"workers"`
	Slots   int `json:"slots"`
	// Unknown says what was not judged, or is not exact, and why.
	Unknown []string `json:"unknown"`
	// Scopes are those of the record. Those whose waits change most come first.
	Scopes []Scope `json:"-"`
}

// Scope is one scope of a Report.
type Scope struct {
	Scope string `json:"scope"`
	Tasks int    `json:"tasks"`
	// Waits are those under the draft, of tasks that start, and Were those that were, of tasks that started.
	Waits Waits `json:"waits"`
	Were  Waits `json:"waits_were"`
	// AtLeast says that the waits are a lower bound, since rules of the draft could not be judged.
	AtLeast bool `json:"at_least,omitempty"`
	// Used is how many units start within the time of the record, by unit, and UsedWas how many did.
	Used    map[string]int64 `json:"used"`
	UsedWas map[string]int64 `json:"used_was"`
	// Refused is how many tasks the draft never admits, and Stuck how many wait at the end for a rule that admits nothing.
	Refused int `json:"refused"`
	Stuck   int `json:"stuck"`
	// Rule is what most tasks that wait or are refused wait for, as payments/*:tenant; "workers" for a slot, "no rule" for a scope that
	// meets none. Empty if none waits.
	Rule string `json:"rule,omitempty"`
}

// Waits are percentiles of waits.
type Waits struct {
	P50, P99, Most time.Duration
}

// MarshalJSON writes them in seconds.
func (w Waits) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, `{"p50":%g,"p99":%g,"most":%g}`, w.P50.Seconds(), w.P99.Seconds(), w.Most.Seconds()), nil
}

// Run computes what a draft would have done with the tasks of a record. It does no I/O. A million tasks take some seconds. A Record may
// be used for several drafts, one after the other. Names have the tiers that the draft has by Policy.WithTiers.
func Run(r *Record, draft *policy.Policy) Report {
	r.join()
	for _, s := range r.scopes {
		s.line = nil
	}
	w := &world{Record: r, draft: draft, root: &node{place: -1}, nodes: map[string]*node{}, rules: map[string]*rule{}, notes: map[string]bool{}}
	w.run()
	out := Report{From: time.UnixMicro(r.from).UTC(), To: time.UnixMicro(r.to).UTC(), Tasks: len(r.tasks), Workers: len(r.processes)}
	have := 0
	for _, c := range r.slots() {
		have += c.by
		out.Slots = max(out.Slots, have)
	}
	for _, s := range r.scopes {
		out.Scopes = append(out.Scopes, w.scope(s))
	}
	slices.SortFunc(out.Scopes, func(a, b Scope) int {
		return cmp.Or(cmp.Compare(b.changes(), a.changes()), cmp.Compare(a.Scope, b.Scope))
	})
	if draft.Breaks() {
		w.notes["the draft has breakers, which never open here"] = true
	}
	out.Unknown = append(append([]string{}, r.unknown()...), slices.Sorted(maps.Keys(w.notes))...)
	return out
}

// changes is by how much a scope changes, in µs.
func (s *Scope) changes() int64 {
	if s.Refused+s.Stuck > 0 {
		return never
	}
	return (s.Waits.P99 - s.Were.P99).Abs().Microseconds()
}

func (w *world) scope(s *scope) Scope {
	out := Scope{Scope: s.name, Tasks: len(s.tasks), AtLeast: s.line.least, Used: map[string]int64{}, UsedWas: map[string]int64{}}
	var waits, were []int64
	blamed := map[string]int{}
	for _, i := range s.tasks {
		t := &w.tasks[i]
		if t.started > 0 {
			were = append(were, t.started-t.wanted)
			t.use(out.UsedWas, t.costs)
		}
		switch {
		case t.start > 0:
			waits = append(waits, t.start-t.wanted)
			if t.start <= w.to {
				t.use(out.Used, t.charge)
			}
		case t.by != "":
			out.Refused++
		default:
			out.Stuck++
			t.by = w.stuck(s.line)
		}
		if t.by != "" {
			blamed[t.by]++
		}
	}
	out.Waits, out.Were = waitsOf(waits), waitsOf(were)
	for _, name := range slices.Sorted(maps.Keys(blamed)) {
		if blamed[name] > blamed[out.Rule] {
			out.Rule = name
		}
	}
	return out
}

// stuck returns what a line waits for at the end.
func (w *world) stuck(l *line) string {
	for n := l.node; n != nil; n = n.parent {
		if n.blocked > 0 {
			return n.by.name
		}
	}
	return byWorkers
}

// use adds what the task has spent that was charged some costs.
func (t *task) use(sum map[string]int64, costs policy.Costs) {
	if t.used != nil {
		costs = t.used
	}
	if costs == nil {
		sum[policy.Requests] += t.cost
		return
	}
	for unit := range costs {
		sum[unit] += costs[unit]
	}
	if _, named := costs[policy.Requests]; !named {
		sum[policy.Requests]++
	}
}

func waitsOf(list []int64) Waits {
	if len(list) == 0 {
		return Waits{}
	}
	slices.Sort(list)
	at := func(percent int) time.Duration {
		return time.Duration(list[(len(list)*percent+99)/100-1]) * time.Microsecond
	}
	return Waits{at(50), at(99), at(100)}
}
