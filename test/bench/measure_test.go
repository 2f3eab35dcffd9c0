package bench

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/test/bench/figures"
	"github.com/headway-go/headway/test/checker"
	"github.com/headway-go/headway/test/countapi"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

// measure runs a scenario with each of the contenders and adds a row for each to the table.
func measure(b *testing.B, s scenario, contenders ...contender) {
	b.Helper()
	for _, c := range contenders {
		c.into(b, s, (*outcome).row)
	}
}

// into has the contender work the scenario off and adds the row of what came of it, or a row that says why there is nothing.
func (c contender) into(b *testing.B, s scenario, row func(*outcome) figures.Row) {
	b.Helper()
	b.Run(label(s.name)+"/"+c.name, func(b *testing.B) {
		var err error
		if c.ready != nil {
			err = c.ready()
		}
		for err == nil && b.Loop() {
			var o outcome
			if o, err = c.once(b, s); err == nil {
				add(b, row(&o))
			}
		}
		if err != nil && c.ready == nil {
			b.Fatal(err)
		}
		if err != nil {
			row := figures.NewRow(s.name, c.name)
			row.Missing = err.Error()
			table.add(row)
			b.Skip(err)
		}
	})
}

// add puts a row into the table and reports its figures as the benchmark's own.
func add(b *testing.B, row figures.Row) {
	b.Helper()
	table.add(row)
	b.ReportMetric(0, "ns/op")
	for unit, figure := range map[string]float64{
		"%used": 100 * row.Used, "pick-ups": row.PickUps, "commands": row.Commands, "µs/start": row.Micros, "starts/s": row.Rate,
	} {
		if !math.IsNaN(figure) {
			b.ReportMetric(figure, unit)
		}
	}
	for unit, d := range map[string]time.Duration{"ms-p50": row.P50, "ms-p99": row.P99, "ms-longest": row.Longest} {
		if d >= 0 {
			b.ReportMetric(float64(d)/float64(time.Millisecond), unit)
		}
	}
}

// label is what a benchmark is called: a slash would end a part of its name, which BENCH='Backlog/2000_at_100_per_s' goes by.
func label(name string) string { return strings.ReplaceAll(name, "/", " per ") }

// outcome is what one contender made of one scenario.
type outcome struct {
	*stage
	b        *testing.B
	who      string
	rule     figures.Rule // that binds
	kept     figures.Rule // the same with the contender's pad: when its units are free
	margin   time.Duration
	starts   []start   // of all tasks, in order
	cut      time.Time // when it was ended with tasks left; zero when it was not
	handed   int64     // pick-ups until then; 0 when only runs can be seen
	commands int64
	scripts  time.Duration // that Redis ran scripts
	longest  []slowScript
	idle     float64 // commands a second when all was done, where the scenario asks for it
	bytes    int64
	keys     []string // left, where the scenario asks for it
	lost     int
	notes    []string
}

// once lets the contender work the scenario off.
func (c contender) once(b *testing.B, s scenario) (outcome, error) {
	b.Helper()
	s.outside = c.outside
	st := newStage(b, s, c.change)
	defer st.end()
	rule, ok := ruleNamed(st.limits, s.binding)
	if !ok {
		b.Fatalf("no rule is called %s", s.binding)
	}
	o := outcome{stage: st, b: b, who: c.name, rule: plain(rule), margin: rule.Margin}
	o.kept = o.rule
	o.kept.Per += c.pad
	if err := c.enqueue(st); err != nil {
		return o, err
	}
	o.bytes = ownMemory(b, st.rdb)
	countAnew(b, st.rdb)
	endHogs := hogs(b, s.hogs)
	defer endHogs()
	st.began = time.Now()
	followed := func() {}
	if c.outside {
		followed = st.follow()
	}
	stop, err := c.serve(st)
	if err != nil {
		return o, err
	}
	o.cut = st.wait(c.spell, s.spell(o.rule))
	o.count()
	if err := o.leave(stop); err != nil {
		return o, err
	}
	followed()
	o.starts = st.starts.sorted()
	missing := st.starts.missing()
	if c.lost != nil {
		o.lost = c.lost(missing)
	} else {
		o.lost = st.lost(b, missing)
	}
	return o, nil
}

// count takes down what Redis and the workers have counted.
func (o *outcome) count() {
	until := time.Now()
	o.handed, o.commands = o.picked.Load(), commandsOf(o.b, o.rdb)
	o.scripts, o.longest = scriptTime(o.b, o.rdb), longestScripts(o.b, o.rdb)
	if o.built != nil && o.built.workers != nil {
		o.built.read(o.b.Context())
		handed, notes := o.built.figures()
		o.handed, o.notes = handed, append(o.notes, notes...)
	}
	if o.idlePolls > 0 {
		o.idle = idleRate(o.b, o.rdb, o.idlePolls)
		o.commands -= int64(o.idle * until.Sub(o.began).Seconds())
		o.notes = append(o.notes, fmt.Sprintf("%.1f commands a second of an idle server left out", o.idle))
	}
}

// wait returns when every watched task has started, and a moment later, so that the last ones' commands are counted too. It returns
// the moment at which it gave up, or zero.
func (st *stage) wait(spell, otherwise time.Duration) (cut time.Time) {
	if spell == 0 {
		spell = otherwise
	}
	timer := time.NewTimer(spell)
	defer timer.Stop()
	select {
	case <-timer.C:
		return time.Now()
	case <-st.starts.done:
		<-time.After(50 * time.Millisecond)
		return time.Time{}
	}
}

// row figures the outcome.
func (o *outcome) row() figures.Row {
	row := figures.NewRow(o.name, o.who)
	counted := o.counted()
	row.Tasks, row.Bound = len(o.watched()), o.rule.Bound()
	row.Started, row.Twice, row.Lost = distinct(counted), len(counted)-distinct(counted), o.lost
	begun := len(o.started())
	row.Commands, row.PickUps = perTask(o.commands, begun), perTask(o.handed, begun)
	if o.handed == 0 {
		row.PickUps = perTask(int64(begun), distinct(o.started()))
	}
	row.Bytes, row.Micros = perTask(o.bytes, len(o.tasks)), perTask(o.scripts.Microseconds(), begun)
	row.Longest = longestOfOurs(o.longest)
	o.judge(&row)
	o.pace(&row, counted)
	if o.watch != "" { // the others spent most of it
		row.PickUps, row.Commands, row.Bytes = figures.None, figures.None, figures.None
	}
	if !o.cut.IsZero() {
		o.notes = append(o.notes, fmt.Sprintf("cut after %.0f s", o.cut.Sub(o.began).Seconds()))
	}
	if o.remark != nil {
		o.notes = append(o.notes, o.remark(*o))
	}
	row.Note = strings.Join(o.notes, "; ")
	if o.picture {
		table.draw(o.who, fromFirst(counted))
	}
	return row
}

// started returns the starts before the cut, those that are not watched included.
func (o outcome) started() []start {
	if o.cut.IsZero() {
		return o.starts
	}
	return slices.DeleteFunc(slices.Clone(o.starts), func(s start) bool { return s.at.After(o.cut) })
}

// counted returns the starts that the figures are about.
func (o outcome) counted() []start {
	return slices.DeleteFunc(slices.Clone(o.started()), func(s start) bool { return !strings.HasPrefix(s.scope, o.watch) })
}

// between returns how many starts of scopes with a prefix lie between two moments.
func (o outcome) between(prefix string, from, until time.Time) (n int) {
	for _, s := range o.starts {
		if strings.HasPrefix(s.scope, prefix) && !s.at.Before(from) && s.at.Before(until) {
			n++
		}
	}
	return n
}

func distinct(starts []start) int {
	ids := map[string]bool{}
	for _, s := range starts {
		ids[s.id] = true
	}
	return len(ids)
}

func perTask(n int64, tasks int) float64 {
	if n == 0 || tasks == 0 {
		return figures.None
	}
	return float64(n) / float64(tasks)
}

func fromFirst(starts []start) []time.Duration {
	var since []time.Duration
	for _, s := range starts {
		since = append(since, s.at.Sub(starts[0].at))
	}
	return since
}

// pace figures how well the binding rule was used: at the scope that used it least, where it counts at several. Lateness is that of
// all starts; it has no meaning where more start than the rule admits.
func (o outcome) pace(row *figures.Row, counted []start) {
	var cut time.Duration
	if !o.cut.IsZero() {
		cut = o.cut.Sub(o.began)
	}
	groups := map[string][]time.Duration{}
	for _, s := range counted {
		groups[o.group(s.scope)] = append(groups[o.group(s.scope)], s.at.Sub(o.began))
	}
	var late []time.Duration
	for _, j := range o.watched() {
		if groups[o.group(j.scope)] == nil && cut > 0 {
			row.Used = 0 // a scope where nothing started
		}
	}
	for _, starts := range groups {
		if used := o.rule.Used(starts, cut); !(used >= row.Used) { // None is less than nothing
			row.Used = used
		}
		late = append(late, o.kept.Lateness(starts)...)
	}
	if row.Most <= row.Bound && row.OverAPI == 0 {
		row.P50, row.P99 = figures.Quantile(late, 0.5), figures.Quantile(late, 0.99)
	}
	if n := len(counted); n > 1 {
		until := counted[n-1].at
		if cut > 0 {
			until = o.cut
		}
		row.Rate = float64(n-1) / until.Sub(counted[0].at).Seconds()
	}
}

// judge asks the checker, which shares no code with any limiter, for the most starts in a time of per and whether any rule was
// exceeded: by the starts as the handlers saw them, and by the calls as the API did.
func (o *outcome) judge(row *figures.Row) {
	calls := o.startsAsCalls()
	if o.outside { // starts are calls
		var judged int64
		row.MostAPI, judged, row.OverAPI = o.worst(calls, shortened)
		o.notes = append(o.notes, fmt.Sprintf("%d in %v", judged, o.rule.Per-shortened))
		return
	}
	row.Most, _, row.Over = o.worst(calls, 0)
	if o.at != nil {
		calls = o.at.Log()
		row.MostAPI, _, row.OverAPI = o.worst(calls, max(0, o.transit(calls)-o.margin))
	}
}

// startsAsCalls returns the starts as the checker takes them.
func (o outcome) startsAsCalls() []countapi.Call {
	calls := make([]countapi.Call, len(o.starts))
	for i, s := range o.starts {
		at := s.at.Sub(o.began)
		calls[i] = countapi.Call{Seq: int64(i), ID: s.id, Scope: s.scope, Cost: 1, Arrived: at, Departed: at, Status: 200}
	}
	return calls
}

// shortened is by how much less than its window a limit must be kept at the API by programs outside: their calls take
// more or less time on the way.
const shortened = 20 * time.Millisecond

// worst returns the most calls in a time of per under the binding rule, the most in a time shortened by jitter, and by how many
// units the calls exceed any rule, in any time. Jitter is by how much the calls' times on the way may differ. A token bucket
// without a margin promises its bound for times of per or longer, and with a pad more for shorter ones.
func (o outcome) worst(calls []countapi.Call, jitter time.Duration) (most, judged int64, over float64) {
	limits := string(limitsyaml.Format(o.policy))
	for algorithm, allowed := range map[policy.Algorithm]time.Duration{
		policy.SlidingWindow: jitter, policy.TokenBucket: jitter + max(0, pad-o.margin),
	} {
		report := checker.Judge(o.b, limits, checker.Input{Calls: calls, Jitter: allowed, Epoch: o.began})
		for _, r := range report.Rows {
			if r.Algorithm != string(algorithm) {
				continue
			}
			if r.Exceeded {
				over = max(over, excess(r))
			}
			if r.Rule == o.binding && strings.HasPrefix(r.Scope, o.watch) {
				most, judged = max(most, r.Worst), max(judged, r.Judged)
			}
		}
	}
	return most, judged, over
}

// excess returns by how many units a rule was exceeded.
func excess(r checker.Row) float64 {
	if r.Excess != nil {
		return *r.Excess
	}
	return float64(r.Judged - r.Limit)
}

// transit returns by how much the calls' times on the way differ.
func (o outcome) transit(calls []countapi.Call) time.Duration {
	began := map[string][]time.Time{} // by id, in order
	for _, s := range o.starts {
		began[s.id] = append(began[s.id], s.at)
	}
	var took []time.Duration
	for _, c := range calls {
		if starts := began[c.ID]; len(starts) > 0 {
			took = append(took, o.at.Epoch().Add(c.Arrived).Sub(starts[0]))
			began[c.ID] = starts[1:]
		}
	}
	if len(took) == 0 {
		return 0
	}
	return slices.Max(took) - slices.Min(took)
}
