// Package replay runs recorded demand against a draft of limits, and says what waits each scope would have had, and what the record
// cannot tell. It asks no Redis: all algorithms and turns are computed here, with the numbers that the scripts use.
//
//	record := replay.NewRecord()
//	err := record.Read(file)
//	…
//	report := replay.Run(record, draft)
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

	unseen, refused, failed, limited int
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

	charge policy.Costs // of a run: costs, as the draft caps them
	start  int64        // 0: none
	by     string       // what it has waited for, or is refused by
}

// process is the first moment of a process that recorded, and what its lines say together.
type process struct {
	from int64
	demand.Process
}

// NewRecord returns a Record without demand.
func NewRecord() *Record {
	return &Record{
		names: map[string]*scope{}, processes: map[string]*process{}, queues: map[string]bool{}, limits: map[string]bool{}, sample: 1,
	}
}

// ErrTooMany says that a record has more tasks than a replay computes, and ErrTwice that it was read before.
var (
	ErrTooMany = errors.New("replay: the record has more than 20 million tasks; replay a part of it")
	ErrTwice   = errors.New("replay: this record is read a second time")
)

const maxTasks = 20_000_000

// Read adds what r has. A record that ends within a line is noted, and is no error. The others are those of demand.Read, ErrTooMany, and
// ErrTwice.
func (r *Record) Read(in io.Reader) error {
	err := demand.Read(in, func(l *demand.Line) error {
		switch {
		case l.V > 0:
			return r.process(&l.Process)
		case len(r.tasks) == maxTasks:
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

func (r *Record) process(l *demand.Process) error {
	p := r.processes[l.Process]
	if p == nil {
		p = &process{from: l.At}
		r.processes[l.Process] = p
	} else if l.At == p.from {
		return ErrTwice
	}
	p.from = min(p.from, l.At)
	p.At, p.Slots, p.Lost, p.End, p.Full = max(p.At, l.At), max(p.Slots, l.Slots), max(p.Lost, l.Lost), p.End || l.End, p.Full || l.Full
	if l.Limits != "" {
		r.limits[l.Limits] = true
	}
	if l.Sample > 0 {
		r.sample = min(r.sample, l.Sample)
	}
	r.spans(l.At, l.At)
	return nil
}

func (r *Record) spans(from, to int64) {
	r.from, r.to = min(cmp.Or(r.from, from), from), max(r.to, to)
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
	switch {
	case l.Outcome == demand.Refused:
		r.refused++
	case t.deferred, l.Status == 429:
		r.limited++
	case l.Outcome == "failed", l.Outcome == "lost":
		r.failed++
	}
	r.queues[l.Queue], r.joined = true, false
	r.tasks = append(r.tasks, t)
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
	if n > 0 && len(r.processes) == 0 { // no line says when it began
		r.spans(r.tasks[0].wanted, r.tasks[n-1].wanted)
	}
	for i, t := range r.tasks {
		t.scope.tasks = append(t.scope.tasks, int32(i)) //nolint:gosec // maxTasks
	}
}

// waits reports whether the line says only that the task began to wait.
func (t *task) waits() bool { return t.started == 0 && t.ended == 0 }

// time is when the line was known.
func (t *task) time() int64 { return cmp.Or(t.started, t.ended, t.wanted) }

// change is by how much the number of slots changes.
type change struct {
	at int64
	by int
}

// slots returns the changes of how many slots there are, by time: none where a process does not say.
func (r *Record) slots() (changes []change) {
	const beat = int64(time.Minute / time.Microsecond) // between two lines of a process
	for _, name := range slices.Sorted(maps.Keys(r.processes)) {
		p := r.processes[name]
		if p.Slots == 0 {
			return nil
		}
		from, to := p.from, p.At
		if from <= r.from+beat { // of the record in Redis the oldest lines may be gone
			from = r.from
		}
		changes = append(changes, change{from, p.Slots})
		if !p.End { // it was gone when it missed a line
			to += 2 * beat
		}
		if to < r.to {
			changes = append(changes, change{to, -p.Slots})
		}
	}
	slices.SortStableFunc(changes, func(a, b change) int { return cmp.Compare(a.at, b.at) })
	return changes
}

// unknown lists what is missing in the record, in words.
func (r *Record) unknown() (notes []string) {
	note := func(n int, text string) {
		if n > 0 {
			notes = append(notes, fmt.Sprintf(text, n))
		}
	}
	unended, lost, open, full := 0, 0, 0, 0
	for i := range r.tasks {
		if r.tasks[i].waits() {
			unended++
		}
	}
	for _, p := range r.processes {
		lost += int(p.Lost)
		if p.Full {
			full++
		} else if !p.End {
			open++
		}
	}
	if r.sample < 1 {
		notes = append(notes, fmt.Sprintf("%g %% of the tenants were recorded: rules that tenants share, and slots, are left out", 100*r.sample))
	}
	note(r.limited, "runs that met a limit of the API's own: %d. The record does not know that limit, and a looser draft may meet more of it")
	note(r.failed, "runs that failed or lost their leases: %d. Their retries come when they came")
	note(r.refused, "tasks that ended without a run: %d. Under the draft they start, and take no time")
	note(r.unseen, "tasks that waited since an unknown time: %d. They count from their starts")
	note(unended, "tasks without an end: %d. They still waited when the record ended, or their runs were not recorded. Under the draft they take no time")
	note(len(r.limits)-1, "changes of the limits while this was recorded: %d. What was is under all of them")
	note(lost, "lines that could not be written: %d")
	note(full, "files that were full: %d. What came later is missing")
	note(open, "processes that did not end: %d. They were killed or still run, and their last seconds may be missing")
	note(r.cut, "files that are cut off or damaged: %d. What stands behind that place is missing")
	if len(r.processes) == 0 {
		notes = append(notes, "no process says how many slots it has, or what it could not write: every task finds a slot free")
	}
	if len(r.queues) > 1 {
		notes = append(notes, fmt.Sprintf("the tasks were in %d queues of asynq, whose weights the record does not know", len(r.queues)))
	}
	return notes
}
