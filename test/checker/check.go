// Package checker decides from the log of what arrived at an API whether any limit of a limits.yaml was exceeded and whether
// anything was lost. It shares no code with the limiter: it reads the file, lays overrides over "*" and counts windows by itself,
// from the words of the documentation alone.
//
// # What is decided
//
// Every rule counts separately for each scope prefix at which it stands: payments, payments/acme, payments/acme/refunds. Times
// are whole nanoseconds and all arithmetic is exact.
//
//   - sliding-window: the units in any half-open window [t, t+per) are at most limit.
//   - token-bucket: the units of any calls i to j are at most
//     burst + limit/per * (arrived[j] - arrived[i]). What its burst does not pay of a margin lengthens
//     per and that time, as docs/algorithms.md says.
//   - fixed-window: the units in any window [n*per, (n+1)*per) of unix time are at
//     most limit. With opens_on_use: all units are in windows of per that do not overlap,
//     wherever they begin, with at most limit in each. What opened a window may have been
//     taken back, and is not in the log then.
//   - calendar: the units in any period, from one run of resets in timezone to the next,
//     are at most limit, and what the one before left over: of limit and what was left
//     over to it in turn, rollover at most. What came before the log is not known, and
//     all of rollover is taken to be left over to its first period.
//   - concurrency: at any moment at most limit calls are in [arrived, departed),
//     whatever they cost. A call without a departure never ends.
//
// A limit of 0 allows nothing at all, and neither does a scope that meets no rule
// under unmatched: deny, nor one that is paused by hand, until its pause ends.
//
// Units are those that a call says it costs, of the rule's unit; one that costs nothing of it
// is no call of the rule. A call that says a plain number costs that under every rule. What a
// caller settles later is not in the log, so an estimate is judged as it was sent.
//
// A rule with active is judged by the calls that arrived in its hours: in the minutes that match, as the clocks of its time zone
// show them. Shadow rules, weights and shares bound nothing.
//
// Jitter is how much later than it started an arrival may have been seen. Two arrivals may then be closer together than their
// starts were, by that much: the sliding window is judged over per-jitter, the token bucket is given the refill of another
// jitter, a call less than jitter into a fixed window or a period may belong to the one before, a call may have ended that much
// earlier, and one that is that near to the beginning of a rule's hours may have started before. A jitter of per or more leaves
// nothing to judge and is an error.
//
// # Share of the quota used
//
// A backlog waits at a scope from the first arrival until the last id has arrived for the first time: until te. What comes after,
// such as a retry that slept, is left out. The share is what was used in that time by what the rule could have admitted in it:
//
//   - sliding-window: the units in the whole windows of per that fit between the first
//     arrival and te, counted from the first arrival, by limit times their number.
//   - token-bucket: the units from the first arrival to te, both included, by
//     burst + limit/per * (te - first), rounded down to units.
//   - fixed-window: the units in the aligned windows from that of the first arrival
//     to the last that ended by te, by limit times their number. With opens_on_use as a
//     sliding-window.
//   - calendar: the same with its periods.
//   - concurrency: the time for which places were taken from the first arrival to te, by
//     limit times that time.
//
// It is never above 1 for a rule that was kept, is near 1 only for the rule that
// held the others back, and is absent where no whole window fits, and of rules with hours.
package checker

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/headway-go/headway/test/countapi"
)

// costBound keeps sums of costs within an int64.
const costBound = 1 << 40

// Input is what a check is made from.
type Input struct {
	// Limits is what must have been kept. Required.
	Limits *Limits
	// Calls is what arrived, in any order. Defaults to nothing.
	Calls []countapi.Call
	// Epoch is the moment from which the calls' times count, to which fixed windows are aligned. Required where a rule is a
	// fixed-window, a calendar or has hours, and where a pause ends.
	Epoch time.Time
	// Tasks is what should have arrived. Nil means that it is not known: then nothing can be lost or unknown. Defaults to nil.
	Tasks []Task
	// Jitter is how much later than it started a call may have been seen. Defaults to 0.
	Jitter time.Duration
	// PickUps is how often workers took tasks from the queue. Defaults to not known.
	PickUps float64
}

// Row is one rule at one scope.
type Row struct {
	Scope     string
	Rule      string
	Algorithm string
	Limit     int64
	Burst     int64
	Per       time.Duration
	Resets    string // of a calendar
	Unit      string // but for requests
	Active    string // its hours

	Calls    int
	Units    int64
	Worst    int64         // most units seen in one window of per, or beyond those left over in a period, or calls at once
	WorstAt  time.Duration // when that window began
	Bound    int64         // what Worst may be: limit, for a token-bucket burst + limit
	Judged   int64         // Worst with the jitter allowed for
	Excess   *float64
	Exceeded bool
	Used     *float64 // share of the quota, 0 to 1; see the package

	Tasks int // ids that should have arrived here, or did where that is not known
	Lost  int // of them, ids that never arrived with success
}

// Report is the outcome of a check.
type Report struct {
	Rows  []Row // by scope, then in the file's order
	Calls int
	Tasks int

	Unmatched  []string // scopes that were called and meet no rule under deny
	Paused     []string // scopes that were called while they were paused
	Lost       []string // ids that never arrived with success
	Duplicates []string // ids that arrived with success more than once
	Unknown    []string // ids that arrived and are no task; "" is a call without one
	Mismatched []string // ids that arrived under another scope or cost than their task's
	OverBudget []string // ids that arrived more often than 1 + max_retry

	PickUps *float64 // a task, over all
	Jitter  time.Duration
}

// Exceeded says whether any limit was exceeded, a call of a scope without rules or in a pause included.
func (r *Report) Exceeded() bool {
	return len(r.Unmatched)+len(r.Paused) > 0 || slices.ContainsFunc(r.Rows, func(row Row) bool { return row.Exceeded })
}

// OK says whether every limit was kept and every task arrived as it should:
// once with success, under its own scope and cost, within its retries.
func (r *Report) OK() bool {
	return !r.Exceeded() && len(r.Lost)+len(r.Duplicates)+len(r.Unknown)+len(r.Mismatched)+len(r.OverBudget) == 0
}

// Check decides. An error means that nothing was decided.
func Check(in Input) (*Report, error) {
	if in.Limits == nil {
		return nil, errors.New("checker: no limits given")
	}
	calls := slices.Clone(in.Calls)
	slices.SortFunc(calls, func(a, b countapi.Call) int {
		return cmp.Or(cmp.Compare(a.Arrived, b.Arrived), cmp.Compare(a.Seq, b.Seq))
	})
	for _, c := range calls {
		if !payable(c) || c.Departed != countapi.Open && c.Departed < c.Arrived {
			return nil, fmt.Errorf("checker: no such call can be: %+v", c)
		}
	}
	rep := &Report{Calls: len(calls), Jitter: in.Jitter}
	tasks := known(in, calls)
	rep.follow(in, calls, tasks)
	groups, err := rep.groups(in, calls, tasks)
	if err != nil {
		return nil, err
	}
	for _, g := range groups {
		rep.Rows = append(rep.Rows, g.row(in))
	}
	return rep, nil
}

// payable says whether a call can cost what it says.
func payable(c countapi.Call) bool {
	for _, n := range c.Costs {
		if n < 0 || n > costBound {
			return false
		}
	}
	return c.Costs != nil || c.Cost >= 1 && c.Cost <= costBound
}

// units is what a rule counts of a call or a task. A concurrency rule counts places, and only tells what they cost.
func (r rule) units(cost int64, costs map[string]int64) int64 {
	if costs == nil {
		return cost
	}
	if n, given := costs[r.unit]; given || r.unit != requests {
		return n
	}
	return 1
}

// counts says whether something that costs so much has to do with the rule at all.
func (r rule) counts(cost int64, costs map[string]int64) bool {
	return r.algorithm == concurrency || r.units(cost, costs) > 0
}

// known returns the tasks, made up from the calls where none are given.
func known(in Input, calls []countapi.Call) []Task {
	if in.Tasks != nil {
		return in.Tasks
	}
	var tasks []Task
	seen := map[string]bool{"": true}
	for _, c := range calls {
		if !seen[c.ID] {
			seen[c.ID] = true
			tasks = append(tasks, Task{ID: c.ID, Scope: c.Scope, Cost: c.Cost, Costs: c.Costs})
		}
	}
	return tasks
}

// follow looks at what became of each id.
func (r *Report) follow(in Input, calls []countapi.Call, tasks []Task) {
	r.Tasks = len(tasks)
	byID := map[string]Task{}
	for _, t := range tasks {
		byID[t.ID] = t
	}
	arrived, succeeded := map[string]int{}, map[string]int{}
	for _, c := range calls {
		arrived[c.ID]++
		if c.Succeeded() {
			succeeded[c.ID]++
		}
		if t, ok := byID[c.ID]; ok && (t.Scope != c.Scope || t.Cost != c.Cost || !maps.Equal(t.Costs, c.Costs)) {
			r.Mismatched = append(r.Mismatched, c.ID)
		}
	}
	for id, n := range succeeded {
		if n > 1 && id != "" {
			r.Duplicates = append(r.Duplicates, id)
		}
	}
	if in.Tasks != nil {
		for id, n := range arrived {
			if t, ok := byID[id]; !ok {
				r.Unknown = append(r.Unknown, id)
			} else if n > 1+t.MaxRetry {
				r.OverBudget = append(r.OverBudget, id)
			}
		}
		for _, t := range tasks {
			if succeeded[t.ID] == 0 {
				r.Lost = append(r.Lost, t.ID)
			}
		}
	}
	for _, ids := range []*[]string{&r.Duplicates, &r.Unknown, &r.Mismatched, &r.OverBudget, &r.Lost} {
		slices.Sort(*ids)
		*ids = slices.Compact(*ids)
	}
	if in.PickUps > 0 && len(tasks) > 0 {
		a := in.PickUps / float64(len(tasks))
		r.PickUps = &a
	}
}

// group is the calls and tasks that stand under one rule at one scope.
type group struct {
	bound
	rank  int // the order in the file among rules of one scope
	calls []span
	units int64
	until time.Duration // te: the arrival of the last id to come for the first time
	tasks int
	lost  int
	ids   map[string]bool // that have arrived
}

// place is where a scope's calls are counted.
type place struct {
	way
	groups []*group
}

// groups sorts calls and tasks by the rules that they stand under.
func (r *Report) groups(in Input, calls []countapi.Call, tasks []Task) ([]*group, error) {
	type where struct{ scope, rule string }
	all := map[where]*group{}
	places := map[string]place{}
	under := func(scope string) (place, error) {
		if known, ok := places[scope]; ok {
			return known, nil
		}
		found := place{way: in.Limits.match(scope)}
		for i, b := range found.bounds {
			if err := b.judgeable(in.Jitter); err != nil {
				return place{}, err
			}
			at := where{b.scope, b.rule.name}
			if all[at] == nil {
				all[at] = &group{bound: b, rank: i, ids: map[string]bool{}}
			}
			found.groups = append(found.groups, all[at])
		}
		places[scope] = found
		return found, nil
	}
	for _, c := range calls {
		at, err := under(c.Scope)
		if err != nil {
			return nil, err
		}
		switch {
		case at.paused(in.Epoch.Add(c.Arrived)):
			r.Paused = append(r.Paused, c.Scope)
		case at.denied:
			r.Unmatched = append(r.Unmatched, c.Scope)
		}
		for _, g := range at.groups {
			g.add(c, in.Epoch)
		}
	}
	lost := map[string]bool{}
	for _, id := range r.Lost {
		lost[id] = true
	}
	for _, t := range tasks {
		at, err := under(t.Scope)
		if err != nil {
			return nil, err
		}
		for _, g := range at.groups {
			if !g.rule.counts(t.Cost, t.Costs) {
				continue
			}
			g.tasks++
			if lost[t.ID] {
				g.lost++
			}
		}
	}
	for _, scopes := range []*[]string{&r.Unmatched, &r.Paused} {
		slices.Sort(*scopes)
		*scopes = slices.Compact(*scopes)
	}
	var sorted []*group
	for _, g := range all {
		sorted = append(sorted, g)
	}
	slices.SortFunc(sorted, func(a, b *group) int {
		return cmp.Or(slices.Compare(strings.Split(a.scope, "/"), strings.Split(b.scope, "/")),
			cmp.Compare(a.rank, b.rank))
	})
	return sorted, nil
}

// judgeable refuses a jitter that leaves nothing to judge.
func (b bound) judgeable(jitter time.Duration) error {
	per := b.rule.per
	if b.rule.algorithm == calendar {
		per = time.Minute // no period is shorter
	}
	if b.rule.algorithm != concurrency && jitter >= per || jitter < 0 {
		return fmt.Errorf("checker: a jitter of %v leaves nothing to judge of rule %s at %s, per %v", jitter, b.rule.name, b.scope, per)
	}
	return nil
}

// add counts a call, in order of arrival, unless the rule has nothing to do with it.
func (g *group) add(c countapi.Call, epoch time.Time) {
	if !g.rule.counts(c.Cost, c.Costs) || !g.rule.holds(epoch.Add(c.Arrived), 0) {
		return
	}
	units := g.rule.units(c.Cost, c.Costs)
	to := c.Departed
	if to == countapi.Open {
		to = 1<<63 - 1
	}
	g.calls = append(g.calls, span{from: c.Arrived, to: to, units: units})
	g.units += units
	if c.ID == "" || !g.ids[c.ID] {
		g.until = c.Arrived
		g.ids[c.ID] = true
	}
}

// row judges the group's rule.
func (g *group) row(in Input) Row {
	row := Row{
		Scope: g.scope, Rule: g.rule.name, Algorithm: g.rule.algorithm,
		Limit: g.rule.limit, Per: g.rule.per, Resets: g.rule.resets, Active: g.rule.active, Bound: g.rule.limit,
		Calls: len(g.calls), Units: g.units, Tasks: g.tasks, Lost: g.lost, Used: g.used(in.Epoch),
	}
	if g.rule.unit != requests {
		row.Unit = g.rule.unit
	}
	if g.rule.algorithm == tokenBucket {
		row.Burst = g.rule.burst
		row.Bound += g.rule.burst
	}
	seen := g.judge(0, in.Epoch)
	judged := seen
	if in.Jitter > 0 {
		judged = g.judge(in.Jitter, in.Epoch)
	}
	row.Worst, row.WorstAt, row.Judged, row.Exceeded = seen.units, seen.at, judged.units, judged.exceeded
	if judged.excess != nil {
		f, _ := judged.excess.Float64()
		row.Excess = &f
	}
	return row
}

func (g *group) judge(jitter time.Duration, epoch time.Time) worst {
	calls := g.surely(jitter, epoch)
	switch g.rule.algorithm {
	case tokenBucket:
		return bucket(calls, g.rule, jitter)
	case slidingWindow:
		return sliding(calls, g.rule, jitter)
	case fixedWindow:
		if g.rule.onUse {
			return opened(calls, g.rule, jitter)
		}
		return fixed(calls, g.rule, jitter, func(at time.Duration) (start, length time.Duration) {
			_, into := windowOf(at, g.rule.per, epoch)
			return at - into, g.rule.per
		})
	case calendar:
		return fixed(calls, g.rule, jitter, func(at time.Duration) (start, length time.Duration) {
			return g.rule.clock.window(at, epoch)
		})
	}
	return parallel(calls, g.rule, jitter)
}
