package replay

import (
	"container/heap"
	"strings"
	"time"

	"github.com/headway-go/headway/throttle/policy"
)

// node is a name of a path, or the line of a scope. Its ready children take turns by tag, as docs/turns.md#the-tree has it.
type node struct {
	path   string
	parent *node
	line   *line        // of a leaf
	weight float64      // among its siblings
	ready  queue[*node] // its children that could be served

	tag     float64
	last    float64 // the tag of the child that had the last turn
	epoch   int     // of the parent, in which the tag counts
	place   int     // in the parent's ready, -1 if it is not there
	forgets int     // the epoch of its children's tags: it ends when no task waits below
	waiting int

	blocked int64 // until then it is not ready; 0 if it is not blocked
	by      *rule // what blocked it last
	freed   int64 // when that ended
}

// before has ties go by name, as sorted sets do.
func (n *node) before(o *node) bool { return n.tag < o.tag || n.tag == o.tag && n.path < o.path }
func (n *node) moved(to int)        { n.place = to }

// ordered is what a queue holds. moved says where it is now, -1 for nowhere.
type ordered[T any] interface {
	before(T) bool
	moved(to int)
}

var (
	_ ordered[*node]  = (*node)(nil)
	_ ordered[waiter] = waiter{}
	_ ordered[event]  = event{}
)

// queue is a heap.
type queue[T ordered[T]] []T

func (q queue[T]) Len() int           { return len(q) }
func (q queue[T]) Less(i, j int) bool { return q[i].before(q[j]) }
func (q queue[T]) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].moved(i)
	q[j].moved(j)
}

func (q *queue[T]) Push(x any) {
	x.(T).moved(len(*q))
	*q = append(*q, x.(T))
}

func (q *queue[T]) Pop() any {
	last := (*q)[len(*q)-1]
	last.moved(-1)
	*q = (*q)[:len(*q)-1]
	return last
}

// line is the tasks of a scope that wait, and what they meet.
type line struct {
	node   *node
	bounds []policy.MatchedRule
	rules  []*rule
	tasks  queue[waiter]
	why    string // why no task of it can start: it meets no rule
	least  bool   // the waits are a lower bound: rules are left out
}

// waiter is a task that waits. Higher priorities go first, then the order.
type waiter struct {
	priority int32
	at       int32
}

func (w waiter) before(o waiter) bool {
	return w.priority > o.priority || w.priority == o.priority && w.at < o.at
}
func (waiter) moved(int) {}

// tolerance is throttle.Config.StartTolerance, as workers have it.
const tolerance = 5 * time.Millisecond

// event is the end of a task's run, when a node is to be looked at again, or a change of the slots.
type event struct {
	at    int64
	order int // of equal times
	node  *node
	slots int
	task  int32
}

func (e event) before(o event) bool { return e.at < o.at || e.at == o.at && e.order < o.order }
func (event) moved(int)             {}

// world is one run of a record under a draft.
type world struct {
	*Record
	draft *policy.Policy

	root    *node // its children are the providers
	nodes   map[string]*node
	rules   map[string]*rule
	events  queue[event]
	ordered int
	now     int64

	bounded                 bool // by slots
	slots, changes, running int
	full                    int64           // when a task last found no slot
	notes                   map[string]bool // what is not judged, or not exact
}

// run computes the start of every task.
func (w *world) run() {
	for _, c := range w.Record.slots() {
		if w.bounded = w.sample == 1; w.bounded {
			w.changes++
			w.push(event{at: c.at, slots: c.by})
		}
	}
	for next := 0; next < len(w.tasks) || len(w.events) > 0; {
		w.now = never
		if next < len(w.tasks) {
			w.now = max(w.tasks[next].wanted, w.from)
		}
		if len(w.events) > 0 {
			w.now = min(w.now, w.events[0].at)
		}
		for len(w.events) > 0 && w.events[0].at <= w.now {
			w.handle(heap.Pop(&w.events).(event))
		}
		for ; next < len(w.tasks) && w.tasks[next].wanted <= w.now; next++ {
			w.arrive(int32(next)) //nolint:gosec // maxTasks
		}
		w.serve()
	}
}

func (w *world) push(e event) {
	w.ordered++
	e.order = w.ordered
	heap.Push(&w.events, e)
}

// handle frees what a run held, has a blocked node looked at again, or changes the slots.
func (w *world) handle(e event) {
	switch {
	case e.node != nil:
		if e.node.blocked == e.at {
			w.unblock(e.node)
		}
		return
	case e.slots != 0:
		w.slots, w.changes = w.slots+e.slots, w.changes-1
		w.bounded = w.slots > 0 || w.changes > 0 // nothing is known of slots after the record
		return
	}
	w.running--
	t := &w.tasks[e.task]
	for _, r := range t.scope.line.rules {
		more := int64(0)
		if r.of.Rule.Algorithm == policy.Concurrency {
			more = -r.cost(t, t.charge, t.start)
		} else if t.used != nil {
			more = r.cost(t, t.used, t.start) - r.cost(t, t.charge, t.start)
		}
		if more == 0 {
			continue
		}
		r.settle(w.now, t.start, more)
		if more < 0 && r.node.blocked > 0 && r.node.by == r {
			w.unblock(r.node)
		}
	}
}

// arrive gives a task its place, unless no rule of its scope will ever admit it.
func (w *world) arrive(at int32) {
	t := &w.tasks[at]
	if t.scope.line == nil {
		t.scope.line = w.newLine(t.scope.name)
	}
	l := t.scope.line
	t.charge, t.start, t.by = t.costs.Capped(l.bounds), 0, l.why
	for _, r := range l.rules {
		if of := r.of.Rule; of.Active == nil && of.Limit > 0 && r.cost(t, t.charge, w.now) > of.Capacity() {
			t.by = r.name
		}
	}
	if t.by != "" {
		return
	}
	heap.Push(&l.tasks, waiter{t.priority, at})
	for n := l.node; n != nil; n = n.parent {
		n.waiting++
	}
	if len(l.tasks) == 1 {
		w.enter(l.node)
	} else if l.tasks[0].at == at && l.node.blocked > 0 { // it goes first, and may need less
		w.unblock(l.node)
	}
}

// serve starts tasks as long as one can start now.
func (w *world) serve() {
	for len(w.root.ready) > 0 {
		if w.bounded && w.running >= w.slots {
			w.full = w.now
			return
		}
		n := w.root
		for n.line == nil {
			n = n.ready[0]
		}
		at, by := w.now, (*rule)(nil)
		t := &w.tasks[n.line.tasks[0].at]
		for _, r := range n.line.rules {
			if c := r.cost(t, t.charge, w.now); c > 0 {
				if fits := r.fit(w.now, c); fits > at {
					at, by = fits, r
				}
			}
		}
		if by != nil {
			w.block(by, at)
		} else {
			w.start(n, t)
		}
	}
}

func (w *world) start(leaf *node, t *task) {
	t.start, t.by = w.now, w.blame(leaf, t)
	for _, r := range leaf.line.rules {
		if c := r.cost(t, t.charge, w.now); c > 0 {
			r.charge(w.now, c)
		}
	}
	took := int64(1)
	if t.started > 0 {
		took = max(took, t.ended-t.started)
	}
	w.running++
	w.push(event{at: w.now + took, task: heap.Pop(&leaf.line.tasks).(waiter).at})
	turns := t.cost
	if t.charge != nil {
		turns = t.charge.Of(policy.Requests)
	}
	for n := leaf; n != nil; n = n.parent {
		if n.parent != nil {
			n.parent.last = n.tag
			n.tag += float64(min(turns, 10_000)) / n.weight
			heap.Fix(&n.parent.ready, n.place)
		}
		if n.waiting--; n.waiting == 0 {
			n.forgets, n.last = n.forgets+1, 0
		}
	}
	if len(leaf.line.tasks) == 0 {
		w.leave(leaf)
	}
}

// blame returns what a task that starts now has waited for last, "" if it has not waited.
func (w *world) blame(leaf *node, t *task) (name string) {
	if w.now <= t.wanted {
		return ""
	}
	last := t.wanted
	for n := leaf; n != nil; n = n.parent {
		if n.by != nil && n.freed > last {
			last, name = n.freed, n.by.name
		}
	}
	if w.full > last {
		return byWorkers
	}
	return name
}

// byWorkers is what tasks wait for that find no slot.
const byWorkers = "workers"

// enter makes a node ready, and the nodes above it.
func (w *world) enter(n *node) {
	p := n.parent
	if p == nil || n.place >= 0 || n.blocked > 0 || n.line != nil && len(n.line.tasks) == 0 || n.line == nil && len(n.ready) == 0 {
		return
	}
	if n.epoch != p.forgets {
		n.epoch, n.tag = p.forgets, 0
	}
	low := p.last
	if len(p.ready) > 0 {
		low = p.ready[0].tag
	}
	n.tag = max(n.tag, low)
	heap.Push(&p.ready, n)
	w.enter(p)
}

func (w *world) leave(n *node) {
	for p := n.parent; p != nil && n.place >= 0; n, p = p, p.parent {
		heap.Remove(&p.ready, n.place)
		if len(p.ready) > 0 {
			return
		}
	}
}

// block has the node of a rule wait until a moment, or until the rule's units come free.
func (w *world) block(by *rule, at int64) {
	n := by.node
	n.blocked, n.by = at, by
	if at != never {
		w.push(event{at: at, node: n})
	}
	w.leave(n)
}

func (w *world) unblock(n *node) {
	n.blocked, n.freed = 0, w.now
	w.enter(n)
}

// newLine returns the line of a scope, with the rules of the draft.
func (w *world) newLine(name string) *line {
	l := &line{}
	scope, err := policy.ParseScope(name) // Read checks it
	if err == nil {
		l.bounds, err = w.draft.Match(scope)
	}
	if err != nil {
		l.why = "no rule"
		return l
	}
	if level, _ := w.draft.PoolOf(scope); level != (policy.Scope{}) {
		l.least = true
		w.notes["not judged: pool "+w.draft.PoolPattern(level)] = true
	}
	n, names := w.root, strings.Split(name, "/")
	for i := range names {
		weight := 1.0
		if i > 0 {
			weight = w.draft.Weight(scope, i)
		}
		n = w.node(n, strings.Join(names[:i+1], "/"), weight)
	}
	l.node = w.node(n, name+"/!", 1)
	l.node.line = l
	for _, b := range l.bounds {
		switch {
		case b.Rule.Shadow: // it delays nothing
		case w.sample < 1 && b.Scope.Len() < 2: // tenants share it
			l.least = true
			w.notes["not judged: rule "+b.Pattern+":"+b.Rule.Name] = true
		default:
			l.rules = append(l.rules, w.rule(b))
		}
	}
	return l
}

func (w *world) node(parent *node, path string, weight float64) *node {
	n := w.nodes[path]
	if n == nil {
		n = &node{path: path, parent: parent, weight: weight, place: -1}
		w.nodes[path] = n
	}
	return n
}

// rule returns the state of a rule at its level, which the scopes below share.
func (w *world) rule(b policy.MatchedRule) *rule {
	key := b.Scope.String() + ":" + b.Rule.Name
	r := w.rules[key]
	if r == nil {
		r = &rule{counter: newCounter(b, tolerance), of: b, name: b.Pattern + ":" + strings.TrimPrefix(b.Rule.Name, "/"), node: w.nodes[b.Scope.String()]}
		w.rules[key] = r
		if recovers := r.recovers(w.from); !b.Paused() && recovers < never && recovers > (w.to-w.from)/10 {
			w.notes["not exact: rule "+r.name+" counts for longer than a tenth of the record. What was spent of it before is unknown, and it begins unused"] = true
		}
	}
	return r
}
