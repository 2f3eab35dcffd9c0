package wire

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/lua"
)

const (
	prefix = "hw:{p}:"
	epoch  = int64(1700000000000000)
	second = int64(1000000)

	overdueAfter = 3 * second // see lua/next/dispatch.lua
	claimable    = 2000       // see lua/next/decide.lua
	givesWay     = 10000
	lead, spread = 20000, 80000
)

// waiting is a task with a place.
type waiting struct {
	queue, scope, id, cost string
	priority, arrival      int64
}

func (t *waiting) line() string   { return t.queue + ":" + t.scope }
func (t *waiting) waiter() string { return Waiter(t.queue, t.id) }

// flying is a grant that was not claimed.
type flying struct {
	*waiting
	Grant
	named int64 // when a dispatch named it as overdue
}

// world is what must hold of a provider, beside the Redis that holds it.
type world struct {
	rdb     redis.UniversalClient
	now     int64
	rules   []Rule // of the deepest scope; those of others are the ones that are not below them
	weights map[string]float64
	pool    *PoolRules          // without rules; nil for none
	belongs map[string][]string // the names of the members that have a rule, by its name
	ones    bool                // each task costs one request

	version, policy, shape int64
	limits                 map[int64][]int64 // the limit of each rule, by policy
	counters               map[string]*counter
	pauses                 map[string]*pausing   // by the letter and the node of their fields
	tallies                map[string]*tally     // of breakers that are not open, by node
	aged                   time.Time             // when keys were last made older
	corrections            map[string]correction // of limits, by node and rule
	starts                 map[string]int64      // by attempt id
	lines                  map[string][]*waiting
	flight                 map[string]*flying
	joined, gone           int
	looked                 map[string][]string // the nodes that a first task waited for at the last look, by its line
	unread                 map[string]bool     // queues whose last dispatch had no room for more
	next                   int64               // what the last look said
	calls                  int64
	log                    []string
}

var errModel = errors.New("the model disagrees")

func wrong(format string, a ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errModel}, a...)...)
}

func (w *world) say(format string, a ...any) {
	w.log = append(w.log, fmt.Sprintf("%12d ", w.now-epoch)+fmt.Sprintf(format, a...))
}

func (w *world) run(script string, args []any) (any, error) {
	return Run(context.Background(), w.rdb, scriptOf(script), prefix, args...)
}

func (w *world) clock() string { return strconv.FormatInt(w.now, 10) }

func nodeOf(scope string, level int) string {
	return strings.Join(strings.Split(scope, "/")[:level+1], "/")
}

// plain returns the rules of a scope by a policy, with the periods of now.
func (w *world) plain(scope string, policy int64) Rules {
	out := Rules{Version: w.version, Policy: policy, Shape: w.shape, Until: Never}
	for level := range strings.Count(scope, "/") {
		out.Weights = append(out.Weights, w.weights[nodeOf(scope, level+1)])
	}
	if w.pool != nil && w.pool.Level <= len(out.Weights) {
		of := *w.pool
		of.Members = slices.Clone(of.Members)
		out.Pool = &of
	}
	for i, r := range w.rules {
		if r.Level > len(out.Weights) && w.belongs[r.Name] == nil {
			continue
		}
		r.Numbers = slices.Clone(r.Numbers)
		setLimit(r.Kind, r.Numbers, w.limits[policy][i])
		if r.Kind == 'K' {
			length := r.Numbers[3]
			begin := w.now - w.now%length
			r.Numbers[1], r.Numbers[2], r.Numbers[3] = begin-length, begin, begin+length
			out.Until = min(out.Until, begin+length)
		}
		if w.belongs[r.Name] == nil {
			out.Rules = append(out.Rules, r)
		}
		for _, name := range w.belongs[r.Name] {
			if out.Pool != nil {
				m := out.member(name)
				m.Rules = append(m.Rules, r)
			}
		}
	}
	return out
}

func (w *world) text(scope string) string { return w.plain(scope, w.policy).Text() }

func setLimit(kind byte, numbers []int64, limit int64) {
	if kind == 'T' {
		numbers[2] = limit
	} else {
		numbers[0] = limit
	}
}

// of returns the rules of a scope as they are now, corrections among them.
func (w *world) of(scope string, policy int64) Rules {
	its := w.plain(scope, policy)
	correct := func(rules []Rule) {
		for i, r := range rules {
			if c := w.corrections[w.nodeAt(r, scope)+":"+r.Name]; c.until > w.now && c.of == capacity(r.Kind, r.Numbers) {
				rules[i].Numbers = slices.Clone(r.Numbers) // members may share it
				setLimit(r.Kind, rules[i].Numbers, c.limit)
			}
		}
	}
	correct(its.Rules)
	for i := range its.members() {
		correct(its.Pool.Members[i].Rules)
	}
	return its
}

// uncorrected is when a task could start at first as the corrections end, one after the other.
func (w *world) uncorrected(t *waiting, from int64) int64 {
	first, now := int64(Never), w.now
	for _, c := range w.corrections {
		if c.until <= now {
			continue
		}
		w.now = c.until
		its := w.of(t.scope, w.policy)
		w.now = now
		at, _ := w.joint(t.scope, its, now+from, t.cost, false)
		first = min(first, max(at, c.until))
	}
	return first
}

func unitsOf(r Rule, cost string) int64 {
	if n, err := strconv.ParseInt(cost, 10, 64); err == nil {
		return n
	}
	name := r.Unit
	switch name {
	case "*":
		return 1
	case "":
		name = "requests"
	}
	for part := range strings.SplitSeq(cost, ",") {
		if unit, n, _ := strings.Cut(part, "="); unit == name {
			units, _ := strconv.ParseInt(n, 10, 64)
			return units
		}
	}
	if r.Unit == "" {
		return 1
	}
	return 0
}

func (w *world) counter(r Rule, scope string) *counter {
	key := w.nodeAt(r, scope) + ":" + r.Name
	if w.counters[key] == nil {
		w.counters[key] = &counter{kind: r.Kind}
	}
	return w.counters[key]
}

// joint is the first moment from t on at which all rules and pauses of a scope admit a cost, and whether that is sure. If it has a pool,
// that is so of the rules of its path and those of a member; a sure moment goes before a guess.
func (w *world) joint(scope string, its Rules, t int64, cost string, hope bool) (int64, bool) {
	first, isSure := int64(Never), false
	for _, own := range its.each() {
		at, sure := w.jointOf(scope, own, t, cost, hope)
		if at < Never && (sure && !isSure || sure == isSure && at < first) {
			first, isSure = at, sure
		}
	}
	return first, isSure || first == Never
}

// jointOf is joint of rules without a choice.
func (w *world) jointOf(scope string, its Rules, t int64, cost string, hope bool) (int64, bool) {
	sure := true
	for moved := true; moved; {
		moved = false
		for _, r := range its.Rules {
			c := unitsOf(r, cost)
			if c == 0 {
				continue
			}
			at, certain := w.counter(r, scope).first(r.Numbers, w.now, t, c, hope)
			if at == Never {
				return Never, true
			}
			sure, moved = sure && certain, moved || at > t
			t = at
		}
		for _, p := range w.pausesOf(its.nodes(scope)) {
			at, certain := p.admits(w.now, t)
			sure, moved = sure && certain, moved || at > t
			t = at
		}
	}
	return t, sure && t < its.Until
}

// take charges a start, and says whether a rule is exceeded by it. Buckets and sliding windows count a run as late as it may begin.
func (w *world) take(id, scope string, its Rules, cost string, start, leeway int64) error {
	for _, r := range its.Rules {
		if c := unitsOf(r, cost); c > 0 {
			later := leeway
			if r.Kind != 'T' && !isSliding(r.Kind, r.Numbers) {
				later = 0
			}
			if r.Kind == 'C' { // an id that is used for another scope has one place
				w.counter(r, scope).remove(id)
			}
			if err := w.counter(r, scope).add(r.Numbers, w.now, charge{id: id, start: start + later, units: c}, later == 0); err != nil {
				return wrong("%s at %s, a start at %d: %v", r.Name, w.nodeAt(r, scope), start-epoch, err)
			}
		}
	}
	for _, p := range w.pausesOf(its.nodes(scope)) {
		if start < p.Ends {
			return wrong("a start at %d in a pause until %d", start-epoch, p.Ends-epoch)
		}
		if _, sure := p.admits(w.now, start); !sure {
			return wrong("a start at %d, and as many probes as may be are on their way: %v", start-epoch, p.Out)
		}
		p.send(leaseOf(id, start), start)
	}
	return nil
}

// leaseOf is the id of a probe, which a waiter has anew with each grant.
func leaseOf(id string, start int64) string {
	if strings.Contains(id, ":") {
		return id + "@" + strconv.FormatInt(start, 10)
	}
	return id
}

// giveBack refunds a start, or only its leases.
func (w *world) giveBack(id, scope string, its Rules, start int64, leasesOnly bool) {
	for _, r := range its.Rules {
		if r.Kind == 'C' || !leasesOnly {
			w.counter(r, scope).remove(id)
		}
	}
	for _, p := range w.pausesOf(its.nodes(scope)) {
		p.free(leaseOf(id, start))
	}
	clear(w.looked)
}

// place puts a task in its line: by priority, then arrival.
func (w *world) place(t *waiting) {
	line := append(w.lines[t.line()], t)
	slices.SortStableFunc(line, func(a, b *waiting) int {
		if a.priority != b.priority {
			return int(b.priority - a.priority)
		}
		return int(a.arrival - b.arrival)
	})
	w.lines[t.line()] = line
}

// heads are the first tasks of the lines of the queues that are served, in the order of the lines' names.
func (w *world) heads(serves []Weighted) (out []*waiting) {
	for _, line := range sortedKeys(w.lines) {
		queue, _, _ := strings.Cut(line, ":")
		if len(w.lines[line]) > 0 && slices.ContainsFunc(serves, func(s Weighted) bool { return s.Queue == queue }) {
			out = append(out, w.lines[line][0])
		}
	}
	return out
}

func sortedKeys[V any](m map[string]V) []string {
	return slices.Sorted(maps.Keys(m))
}

// join gives tasks their places.
func (w *world) join(tasks []*waiting, places []int64) error {
	var list []Task
	for i, t := range tasks {
		list = append(list, Task{Scope: t.scope, Text: w.text(t.scope), Queue: t.queue, ID: t.id, Priority: t.priority, Place: places[i], Cost: t.cost})
	}
	w.say("join %s %v of policy %d", tasks[0].line(), names(tasks), w.policy)
	reply, err := w.run("join", JoinArgs(w.clock(), list))
	if err != nil {
		return err
	}
	now, got, err := ReadJoin(reply)
	if err != nil || now != w.now || len(got) != len(tasks) {
		return wrong("join answers %v, %v", reply, err)
	}
	for _, t := range tasks {
		if !slices.Contains(w.lines[t.line()], t) {
			w.place(t)
		}
	}
	for i, t := range tasks {
		if before := slices.Index(w.lines[t.line()], t); int64(before) != got[i].Before {
			return wrong("%d tasks are before %s, join says %d", before, t.id, got[i].Before)
		}
	}
	return nil
}

func names(tasks []*waiting) (out []string) {
	for _, t := range tasks {
		name := t.id
		if t.priority != 0 {
			name += "^" + strconv.FormatInt(t.priority, 10)
		}
		if t.cost != "1" {
			name += "(" + t.cost + ")"
		}
		out = append(out, name)
	}
	return out
}

func scriptOf(name string) *lua.Script {
	return lua.All()[slices.IndexFunc(lua.All(), func(s *lua.Script) bool { return s.Name == name })]
}
