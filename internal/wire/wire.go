// Package wire is the format of what Headway's scripts take and return: keys, texts of rules, arguments and replies. It decides
// nothing. See package lua for the scripts.
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Never is a moment or a wait that no clock reaches, as scripts have it: 2^53 - 1.
const Never = 1<<53 - 1

// Forever is a wait that no clock ends.
const Forever = time.Duration(math.MaxInt64)

// Wait returns a wait in µs as scripts have it.
func Wait(n int64) time.Duration {
	if n < 0 || n >= Never {
		return Forever
	}
	return time.Duration(n) * time.Microsecond
}

// Until returns the time from now until a moment in µs of the same clock; 0 if that has passed.
func Until(moment int64, now time.Time) time.Duration {
	if moment == Never {
		return Forever
	}
	return Wait(max(0, moment-now.UnixMicro()))
}

// ErrReply is a reply that no script of this version gives: another version may have written the keys, or they are damaged.
var ErrReply = errors.New("a script's reply cannot be read")

// seven appends whole numbers from 0 to Never, seven bytes each.
func seven(b []byte, numbers ...int64) []byte {
	for _, n := range numbers {
		b = append(b, byte(n>>48), byte(n>>40), byte(n>>32), byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
	}
	return b
}

// reader reads numbers of seven bytes and bytes. After the end it reads zeros, and short is true.
type reader struct {
	text  string
	short bool
}

func (r *reader) byte() byte {
	if r.text == "" {
		r.short = true
		return 0
	}
	b := r.text[0]
	r.text = r.text[1:]
	return b
}

func (r *reader) number() int64 {
	if len(r.text) < 7 {
		r.text, r.short = "", true
		return 0
	}
	var b [8]byte
	copy(b[1:], r.text)
	r.text = r.text[7:]
	return int64(binary.BigEndian.Uint64(b[:])) //nolint:gosec // 56 bits
}

// Rule is a rule of a scope.
type Rule struct {
	Kind    byte    // T token bucket, S sliding or fixed window, K calendar, C concurrency
	Level   int     // the number of names of its node
	Name    string  // escaped
	Unit    string  // "" requests, "*" each task counts
	Numbers []int64 // as lua/include/rules.lua has them
}

// Rules is what applies at a scope.
type Rules struct {
	Version, Policy, Shape int64 // see lua/include/rules.lua
	From, Until            int64 // µs since the epoch; 0 and Never if they always apply
	Weights                []float64
	Rules                  []Rule
}

// Text returns the rules as scripts read them.
func (r Rules) Text() string {
	b := append(seven(nil, r.Version, r.Policy, r.Shape, r.From, r.Until), byte(len(r.Weights)))
	for _, w := range r.Weights {
		b = seven(b, int64(math.Round(w*1e6)))
	}
	for _, rule := range r.Rules {
		b = append(b, rule.Kind, byte(rule.Level), byte(len(rule.Name)), byte(len(rule.Unit)))
		b = append(append(b, rule.Name...), rule.Unit...)
		b = seven(b, rule.Numbers...)
	}
	return string(b)
}

// Attempt asks for units.
type Attempt struct {
	Scope  string
	Text   string // of its rules
	Many   int    // how many such attempts
	Peek   bool
	ID     string // its own, or ""
	Waiter string // "queue:id" of a task, or ""
	Ahead  int64
	From   int64
	Leeway int64
	Cost   int64
	Costs  string // by unit, instead of Cost
	Missed string // GrantText of a task that came too late for it, instead of its cost
}

// State is what one rule says after a decision.
type State struct{ Place, Left, Retry, Reset int64 }

// The statuses of an answer.
const (
	Denied   = 0
	Allowed  = 1
	Replayed = 2
	MustJoin = 3
	Outdated = 4
	Claimed  = 5
	MustBack = 6 // it had a grant, and is to join at its place
)

// Answer is the decision on one attempt.
type Answer struct {
	Status  byte
	Probe   bool
	Binding int
	Start   int64
	Rules   []State
}

// DecideArgs returns the arguments of decide. Scopes that ask for the same, one after the other, share what they ask for.
func DecideArgs(clock, call, record string, attempts []Attempt) []any {
	texts, number := []any{}, map[string]byte{}
	for _, a := range attempts {
		if number[a.Text] == 0 {
			texts = append(texts, a.Text)
			number[a.Text] = byte(len(texts))
		}
	}
	args := append([]any{clock, call, record, len(texts)}, texts...)
	for i := 0; i < len(attempts); {
		first, alike := attempts[i], 1
		for i+alike < len(attempts) && first.isLike(attempts[i+alike]) {
			alike++
		}
		flags, costs, id := first.asks()
		ask := seven([]byte{flags, number[first.Text]}, int64(alike), int64(max(first.Many, 1)), first.Ahead, first.From, first.Leeway, first.Cost)
		args = append(args, string(ask), costs, id)
		for range alike {
			args = append(args, attempts[i].Scope)
			i++
		}
	}
	return args
}

// isLike reports whether two attempts differ by their scopes alone, and neither by an id.
func (a Attempt) isLike(b Attempt) bool {
	b.Scope = a.Scope
	return a == b && a.ID == "" && a.Waiter == ""
}

// asks returns the flags of an attempt, its costs by unit and its id.
func (a Attempt) asks() (flags byte, costs, id string) {
	costs, id = a.Costs, a.ID
	if a.Peek {
		flags++
	}
	if a.ID != "" {
		flags += 2
	}
	if a.Waiter != "" {
		flags, id = flags+4, a.Waiter
	}
	if a.Missed != "" {
		flags, costs = flags+8, a.Missed
	}
	return flags, costs, id
}

// ReadDecide reads the reply of decide: the server's clock, and an answer for each attempt, in their order. rules says how many
// rules the attempt of an answer has.
func ReadDecide(reply any, attempts int, rules func(i int) int) (now int64, answers []Answer, err error) {
	text, _ := reply.(string)
	r := reader{text: text}
	now = r.number()
	for i := range attempts {
		a := Answer{Status: r.byte()}
		a.Status, a.Probe = a.Status%16, a.Status >= 16
		if a.Status != Outdated {
			a.Binding, a.Start = int(r.byte()), r.number()
			for range rules(i) {
				a.Rules = append(a.Rules, State{r.number(), r.number(), r.number(), r.number()})
			}
		}
		answers = append(answers, a)
	}
	if r.short || r.text != "" {
		return 0, nil, ErrReply
	}
	return now, answers, nil
}

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
// that it waits for, from 1; 0 for none, one more than there are for a pause by an API.
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

func texts(list any) (out []string) {
	all, _ := list.([]any)
	for _, v := range all {
		text, _ := v.(string)
		out = append(out, text)
	}
	return out
}
