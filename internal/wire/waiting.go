package wire

import (
	"fmt"
	"strconv"
	"strings"
)

// Task is a task that joins the line.
type Task struct {
	Scope, Text, Queue, ID string
	Priority               int64
	Place                  int64 // the score that it had, or 0
	Cost                   string
}

// JoinArgs returns the arguments of join. Tasks of a leaf follow each other.
func JoinArgs(clock string, tasks []Task) []any {
	number, scopes := map[string]int{}, []any{}
	for _, t := range tasks {
		if number[t.Scope] == 0 {
			scopes = append(scopes, t.Scope, t.Text)
			number[t.Scope] = len(scopes) / 2
		}
	}
	args := append([]any{clock, len(scopes) / 2}, scopes...)
	for i := 0; i < len(tasks); {
		j := i
		for j < len(tasks) && tasks[j].Scope == tasks[i].Scope && tasks[j].Queue == tasks[i].Queue {
			j++
		}
		args = append(args, number[tasks[i].Scope], Escape(tasks[i].Queue), j-i)
		for _, t := range tasks[i:j] {
			rank := strconv.FormatInt(t.Priority, 10)
			if t.Place > 0 {
				rank = "=" + strconv.FormatInt(t.Place, 10)
			}
			args = append(args, t.ID, rank, t.Cost)
		}
		i = j
	}
	return args
}

// Place is the result of join for a task: how many tasks are before it, µs until its expected start, -1 if unknown, and the rule
// that it waits for, from 1; 0 for none, one more than there are for a pause by an API, two more for the members of a pool.
type Place struct{ Before, Expected, Binding int64 }

// ReadJoin reads the reply of join.
func ReadJoin(reply any) (now int64, places []Place, err error) {
	list, _ := reply.([]any)
	if len(list)%3 != 1 {
		return 0, nil, ErrReply
	}
	number := func(i int) int64 { n, _ := list[i].(int64); return n }
	now = number(0)
	for i := 1; i < len(list); i += 3 {
		places = append(places, Place{number(i), number(i + 1), number(i + 2)})
	}
	return now, places, nil
}

// News is what became of a task.
type News struct {
	Waiter string
	What   string // back, used, gone, left
	Path   string // of its scope
	Text   string // of its rules, or ""
}

// AckArgs returns the arguments of ack.
func AckArgs(clock string, news []News) []any {
	args := []any{clock}
	for _, n := range news {
		args = append(args, n.Waiter, n.What, n.Path, n.Text)
	}
	return args
}

// Dispatch is a call of dispatch.
type Dispatch struct {
	Lead, Spread, From int64
	Most               int
	Version, Policy    int64
	Serves             []Weighted
	Skips              []string // scopes whose tasks cannot start at the caller now
	Fresh              map[string]string
}

// Weighted is a queue that is served; a weight of 0 is strict.
type Weighted struct {
	Queue  string
	Weight float64
}

// Args returns the arguments of dispatch.
func (d Dispatch) Args(clock string) []any {
	var serves strings.Builder
	for _, w := range d.Serves {
		fmt.Fprintf(&serves, "%s %g\n", Escape(w.Queue), w.Weight)
	}
	skips := strings.Join(d.Skips, "\n")
	if skips != "" {
		skips += "\n"
	}
	args := []any{clock, d.Lead, d.Spread, d.From, d.Most, fmt.Sprintf("%d %d", d.Version, d.Policy), serves.String(), skips}
	for scope, text := range d.Fresh {
		args = append(args, scope, text)
	}
	return args
}

// Grant is a grant in flight.
type Grant struct {
	Waiter, Queue, ID, Scope, Cost string
	Member                         string // of a pool, as MemberRules has it; "" for none
	Start, Score, Granted, Shape   int64
	Places                         []int64
	Probe                          bool
}

// Lease returns the lease that the grant holds.
func (g Grant) Lease() string { return g.Waiter + "@" + strconv.FormatInt(g.Start, 10) }

// Dispatched is the reply of dispatch.
type Dispatched struct {
	Now, Next        int64
	Granted, Overdue []Grant
	Stale            []string
	Refused          [][3]string
}

// ReadGrant reads a grant in flight.
func ReadGrant(waiter, value string) (Grant, error) {
	r := reader{text: value}
	n := r.byte()
	g := Grant{Waiter: waiter, Probe: n >= 128, Start: r.number(), Score: r.number(), Granted: r.number(), Shape: r.number()}
	for range n % 128 {
		g.Places = append(g.Places, r.number())
	}
	var ok, named bool
	g.Scope, g.Cost, ok = strings.Cut(r.text, "\n")
	g.Cost, g.Member, _ = strings.Cut(g.Cost, "\n")
	g.Queue, g.ID, named = strings.Cut(waiter, ":")
	g.Queue = Unescape(g.Queue)
	if r.short || !ok || !named {
		return g, fmt.Errorf("a grant of %q: %w", waiter, ErrReply)
	}
	return g, nil
}

// ReadDispatch reads the reply of dispatch.
func ReadDispatch(reply any) (d Dispatched, err error) {
	list, _ := reply.([]any)
	if len(list) != 5 {
		return d, ErrReply
	}
	times, _ := list[0].(string)
	r := reader{text: times}
	d.Now, d.Next = r.number(), r.number()
	if r.short {
		return d, ErrReply
	}
	d.Stale = texts(list[2])
	for refused := texts(list[3]); len(refused) >= 3; refused = refused[3:] {
		d.Refused = append(d.Refused, [3]string(refused[:3]))
	}
	for i, grants := range map[int]*[]Grant{1: &d.Granted, 4: &d.Overdue} {
		for pairs := texts(list[i]); len(pairs) >= 2; pairs = pairs[2:] {
			g, err := ReadGrant(pairs[0], pairs[1])
			if err != nil {
				return d, err
			}
			*grants = append(*grants, g)
		}
	}
	return d, nil
}
