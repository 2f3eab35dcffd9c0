// Package replay runs recorded demand against a draft of limits, and says what waits each scope would have had, and what the record
// cannot tell. It asks no Redis: all algorithms and turns are computed here, with the numbers that the scripts use.
//
//	record := replay.NewRecord()
//	err := record.Read(file)
//	…
//	report := replay.Run(record, draft, replay.Config{})
//
// Source: docs/replay.md#what-is-simulated
package replay

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/headway-go/headway/throttle/demand"
	"github.com/headway-go/headway/throttle/policy"
)

// Record is recorded demand, of any number of processes. A million tasks take half a gigabyte. Read all of it before the
// first Run.
type Record struct {
	tasks  []task
	joined bool
	names  map[string]*scope
	scopes []*scope

	from, to  int64
	processes map[string]*process
	queues    map[string]bool
	limits    map[string]bool
	sample    float64
	cut       int // inputs that end within a line

	unseen, refused, failed, limited, unended int
}

// scope is a recorded scope.
type scope struct {
	name  string
	tasks []int32
	line  *line // of a run
}

// task is one attempt. Times are µs since 1970.
type task struct {
	id                     uint64 // 0: unknown
	scope                  *scope
	wanted, started, ended int64 // started is 0 for one that waits or was refused
	costs, used            policy.Costs
	cost                   int64
	priority               int32
	deferred               bool
	start                  int64 // of a run; 0: none
	by                     string
}

// process is what is known of a process that recorded.
type process struct {
	from, to int64
	slots    int
	lost     int64
	ended    bool
	full     bool
}

// NewRecord returns a Record without demand.
func NewRecord() *Record {
	return &Record{
		names: map[string]*scope{}, processes: map[string]*process{}, queues: map[string]bool{}, limits: map[string]bool{}, sample: 1,
	}
}

// Tasks returns how many attempts of tasks were read.
func (r *Record) Tasks() int {
	r.join()
	return len(r.tasks)
}

// ErrTooMany says that a record has more tasks than a replay computes.
var ErrTooMany = errors.New("replay: the record has more than 20 million tasks; replay a part of it")

const maxTasks = 20_000_000

// Read adds what r has. A record that ends within a line is noted, and is no error. The others are those of demand.Read, and ErrTooMany.
func (r *Record) Read(in io.Reader) error {
	err := demand.Read(in, func(l *demand.Line) error {
		if l.V > 0 {
			r.process(&l.Process)
			return nil
		}
		if len(r.tasks) == maxTasks {
			return ErrTooMany
		}
		r.task(&l.Task)
		return nil
	})
	if errors.Is(err, demand.ErrCut) {
		r.cut++
		return nil
	}
	return err
}

func (r *Record) process(l *demand.Process) {
	p := r.processes[l.Process]
	if p == nil {
		p = &process{from: l.At}
		r.processes[l.Process] = p
	}
	p.from, p.to = min(p.from, l.At), max(p.to, l.At)
	p.slots, p.lost, p.ended, p.full = max(p.slots, l.Slots), max(p.lost, l.Lost), p.ended || l.End, p.full || l.Full
	if l.Limits != "" {
		r.limits[l.Limits] = true
	}
	if l.Sample > 0 {
		r.sample = min(r.sample, l.Sample)
	}
	r.spans(l.At, l.At)
}

func (r *Record) spans(from, to int64) {
	if r.from == 0 || from < r.from {
		r.from = from
	}
	r.to = max(r.to, to)
}

// task adds a line of a task.
func (r *Record) task(l *demand.Task) {
	t := task{wanted: l.Wanted, started: l.Started, ended: l.Ended, cost: max(l.Cost, 1), priority: int32(l.Priority)} //nolint:gosec // within bounds of policy
	t.id, _ = strconv.ParseUint(l.ID, 16, 64)
	if len(l.Costs) > 0 {
		t.costs = l.Costs
	}
	if len(l.Used) > 0 {
		t.used = l.Used
	}
	if l.Started > 0 {
		r.spans(l.Started, l.Ended)
	}
	if t.scope = r.names[l.Scope]; t.scope == nil {
		t.scope = &scope{name: l.Scope}
		r.names[l.Scope] = t.scope
		r.scopes = append(r.scopes, t.scope)
	}
	t.deferred = l.Outcome == "deferred"
	r.queues[l.Queue], r.joined = true, false
	r.tasks = append(r.tasks, t)
	r.count(l)
}

func (r *Record) count(l *demand.Task) {
	switch {
	case l.Outcome == demand.Refused:
		r.refused++
	case l.Outcome == "deferred", l.Status == 429:
		r.limited++
	case l.Outcome == "failed", l.Outcome == "lost":
		r.failed++
	}
}

// join makes one task of the lines about one attempt, which several processes may have written, and orders tasks by when they wanted to
// start.
func (r *Record) join() {
	if r.joined {
		return
	}
	slices.SortStableFunc(r.tasks, func(a, b task) int { return cmp.Compare(a.time(), b.time()) })
	open, n := map[uint64]int{}, 0 // those that wait or were deferred, by id
	for _, t := range r.tasks {
		at, again := open[t.id]
		again = again && t.id != 0
		merges := again && r.tasks[at].waits()
		switch {
		case merges && t.waits(): // met again
			continue
		case merges:
			t.wanted = r.tasks[at].wanted
		case again: // it came back
			t.wanted = max(t.wanted, r.tasks[at].ended)
		}
		if t.wanted == 0 {
			r.unseen++
		}
		if t.started > 0 && (t.wanted == 0 || t.wanted > t.started) { // who enqueued it may have another clock
			t.wanted = t.started
		}
		if !merges {
			at, n = n, n+1
		}
		r.tasks[at] = t
		if t.waits() || t.deferred {
			open[t.id] = at
		} else if again {
			delete(open, t.id)
		}
	}
	r.tasks, r.joined = r.tasks[:n], true
	slices.SortStableFunc(r.tasks, func(a, b task) int { return cmp.Compare(a.wanted, b.wanted) })
	for _, s := range r.scopes {
		s.tasks = s.tasks[:0]
	}
	if n > 0 && r.to == 0 { // of tasks that wait alone
		r.spans(r.tasks[0].wanted, r.tasks[n-1].wanted)
	}
	r.unended = 0
	for i := range r.tasks {
		t := &r.tasks[i]
		t.scope.tasks = append(t.scope.tasks, int32(i)) //nolint:gosec // maxTasks
		if t.waits() {
			r.unended++
		}
	}
}

// waits reports whether the line says only that the task began to wait.
func (t *task) waits() bool { return t.started == 0 && t.ended == 0 }

// time is when the line was known.
func (t *task) time() int64 {
	if t.started > 0 {
		return t.started
	}
	return cmp.Or(t.ended, t.wanted)
}

// slots returns the changes of how many slots there are, by time: none where a process does not say.
func (r *Record) slots() (changes []change) {
	const beat = 2 * int64(time.Minute/time.Microsecond) // a process that did not end is gone after it
	for _, name := range slices.Sorted(maps.Keys(r.processes)) {
		p := r.processes[name]
		if p.slots == 0 {
			return nil
		}
		changes = append(changes, change{p.from, p.slots})
		if p.ended && p.to < r.to {
			changes = append(changes, change{p.to, -p.slots})
		} else if p.to+beat < r.to {
			changes = append(changes, change{p.to + beat, -p.slots})
		}
	}
	slices.SortStableFunc(changes, func(a, b change) int { return cmp.Compare(a.at, b.at) })
	return changes
}

// change is by how much the number of slots changes.
type change struct {
	at int64
	by int
}

// unknown lists what is missing in the record, in words.
func (r *Record) unknown() (notes []string) {
	note := func(n int, noun, text string) {
		if n > 0 {
			notes = append(notes, many(n, noun)+" "+text)
		}
	}
	lost, open, full := 0, 0, 0
	for _, p := range r.processes {
		lost += int(p.lost)
		if p.full {
			full++
		} else if !p.ended {
			open++
		}
	}
	if r.sample < 1 {
		notes = append(notes, fmt.Sprintf("%g %% of the tenants were recorded: rules that tenants share, and slots, are left out", 100*r.sample))
	}
	note(r.limited, "run", "met a limit of the API's own, which the record does not know: a looser draft may meet more of that")
	note(r.failed, "run", "failed or lost its lease: its retry comes when it came")
	note(r.refused, "task", "ended without a run: under the draft it starts, and takes no time")
	note(r.unseen, "task", "waited since an unknown time, and counts from its start")
	note(r.unended, "task", "still waited when the record ended, or has a run that was not recorded: it starts, and takes no time")
	note(max(0, len(r.limits)-1), "change", "of the limits came while this was recorded: what was is under all of them")
	note(lost, "line", "of the record could not be written")
	note(full, "file", "was full, and what came later is missing")
	note(r.cut+open, "process", "did not end its record: it was killed or still runs, and its last seconds may be missing")
	if len(r.processes) == 0 {
		notes = append(notes, "no process says how many slots it has: every task finds one free")
	}
	if len(r.queues) > 1 {
		notes = append(notes, fmt.Sprintf("the tasks were in %d queues of asynq, whose weights the record does not know", len(r.queues)))
	}
	return notes
}

// many returns "1 run", or "each of 2 runs".
func many(n int, noun string) string {
	switch {
	case n == 1:
		return "1 " + noun
	case noun == "process":
		noun += "e"
	}
	return fmt.Sprintf("each of %d %ss", n, noun)
}
