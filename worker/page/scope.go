package page

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
	"github.com/headway-go/headway/throttle/usage"
	"github.com/headway-go/headway/worker/control"
	"github.com/headway-go/headway/worker/internal/asynqread"
)

const (
	// mostBranches is the most scopes that are read below a provider.
	mostBranches = 10_000
	// mostLevels is how many names a scope has at most.
	mostLevels = 8
	// nextTurns is how many waiters the screen of a scope shows.
	nextTurns = 10
)

// scopeState is one reading of a scope. It does not change after it was read: the next reading makes
// another.
type scopeState struct {
	limits  control.Limits
	level   control.Level
	turns   control.Turns
	shadows []throttle.RuleState
	hours   []throttle.RuleHours
	texts   map[[2]string]string // the rules as limits.yaml has them, by scope and name
	slow    [slowParts]slowPart
	// lower are the scopes below, users the applications that spent in the last hour, now and day the
	// starts over the last quarter of an hour and the last day.
	lower    control.Outline
	last     control.Last
	upstream control.Upstream
	below    control.Trouble
	users    usage.Report
	now, day []usage.Point
	// past are the policies of the last day, and events the changes by the API's answers.
	past   []policystore.Period
	events []control.UpstreamEvent
}

// slowPart is a part that costs many commands and changes slowly. A snapshot reads at most one of them.
type slowPart struct{ read time.Time }

const (
	slowLower = iota
	slowUsers
	slowNow
	slowDay
	slowEvents
	slowParts
)

// slowEvery is how often each part is read while it has viewers, and slowCost the most commands that it
// costs. Usage is written every ten seconds.
var (
	slowEvery = [slowParts]time.Duration{
		slowLower: 5 * time.Second, slowUsers: 30 * time.Second, slowNow: 10 * time.Second, slowDay: 5 * time.Minute, slowEvents: 5 * time.Second,
	}
	slowCost = [slowParts]int{slowLower: 20 + control.LastCost + control.UpstreamCost, slowUsers: 39, slowNow: 5, slowDay: 13, slowEvents: mostLevels + 1}
)

// quickCost is the cost of the other parts.
const quickCost = limitsCost + control.WholeLevelCost + 3

func (h *handler) scopeTopic(r *http.Request, _ Actor) (topic, error) {
	name := r.FormValue("scope")
	return topic{
		key: "scope\x00" + name,
		cost: func(last any) int {
			if s, is := last.(*scopeState); is {
				if part := s.due(h.now()); part >= 0 {
					return quickCost + slowCost[part]
				}
				return quickCost
			}
			return quickCost // the first reading asks for each of its other parts
		},
		load: func(ctx context.Context, last any) (any, error) { return h.loadScope(ctx, name, last) },
	}, nil
}

// due returns the slow part to read next, -1 for none.
func (s *scopeState) due(now time.Time) int {
	for part := range s.slow {
		if now.Sub(s.slow[part].read) >= slowEvery[part] {
			return part
		}
	}
	return -1
}

func (h *handler) loadScope(ctx context.Context, name string, last any) (any, error) {
	s := &scopeState{}
	before, again := last.(*scopeState)
	if again {
		*s = *before
	}
	var err error
	if s.limits, err = h.limits(ctx); err != nil {
		return nil, err
	}
	if !again {
		if err = h.checkScope(ctx, name, s.limits); err != nil {
			return nil, err
		}
	}
	if s.level, err = h.service.Level(ctx, name, s.limits); err != nil {
		return nil, err
	}
	if s.turns, err = h.service.Turns(ctx, name, 0, nextTurns); err != nil {
		return nil, err
	}
	s.shadows, s.hours, s.texts = nil, nil, map[[2]string]string{}
	if !s.level.Unmatched {
		if s.shadows, err = h.limiter.PeekShadows(ctx, name); err != nil {
			return nil, err
		}
		if s.hours, err = h.limiter.Hours(name); err != nil {
			return nil, err
		}
		s.describe(h.limiter.Policy(), name)
	}
	for {
		part := s.due(h.now())
		if part < 0 {
			return s, nil
		}
		if !again {
			if err := turn(ctx, slowCost[part]); err != nil {
				return nil, err
			}
		}
		if err := h.loadSlow(ctx, s, name, part); err != nil {
			return nil, err
		}
		if s.slow[part].read = h.now(); again {
			return s, nil
		}
	}
}

// describe sets the rules as they are in the limits.
func (s *scopeState) describe(p *policy.Policy, name string) {
	scope, err := policy.ParseScope(name)
	if err != nil {
		return
	}
	bounds, err := p.Match(scope)
	if err != nil {
		return
	}
	for _, b := range bounds {
		if b.Rule.Name != "" {
			s.texts[[2]string{b.Scope.String(), b.Rule.Name}] = limitsyaml.FormatRule(b.Rule)
		}
	}
}

func (h *handler) loadSlow(ctx context.Context, s *scopeState, name string, part int) (err error) {
	provider, _, _ := strings.Cut(name, "/")
	of, now := usage.Config{Prefix: h.cfg.KeyPrefix}, h.now()
	switch part {
	case slowLower:
		return h.loadLower(ctx, s, provider, name)
	case slowUsers:
		s.users, err = usage.Read(ctx, h.cfg.Redis, of, name, time.Hour)
	case slowNow:
		s.now, err = usage.Series(ctx, h.cfg.Redis, of, name, now.Add(-nowSpan+nowSlot), now.Add(nowSlot), nowSlot)
	case slowDay:
		s.day, err = usage.Series(ctx, h.cfg.Redis, of, name, now.Add(-daySpan+daySlot), now.Add(daySlot), daySlot)
	case slowEvents:
		if s.past, err = h.pastPolicies(ctx); err == nil {
			s.events, err = h.service.UpstreamEvents(ctx, everybody, name)
		}
	}
	return err
}

// loadLower reads the scopes below.
func (h *handler) loadLower(ctx context.Context, s *scopeState, provider, name string) (err error) {
	if s.lower, err = h.service.Outline(ctx, provider, mostBranches); err != nil {
		return err
	}
	if s.last, err = h.service.LastStart(ctx, name, s.lower); err != nil {
		return err
	}
	if s.upstream, err = h.service.Upstream(ctx, provider); err != nil {
		return err
	}
	s.below = h.service.Below(name, s.lower, s.upstream, s.limits)
	s.lower.Branches = below(name, s.lower.Branches)
	return nil
}

// below returns the scopes that are one level below another.
func below(name string, all []control.Branch) []control.Branch {
	depth := strings.Count(name, "/") + 1
	return slices.DeleteFunc(all, func(b control.Branch) bool {
		return !strings.HasPrefix(b.Scope, name+"/") || strings.Count(b.Scope, "/") != depth
	})
}

// scopeData is the content of the screen.
type scopeData struct {
	control.Level
	Last     control.Last // when all that waits here and below will have started
	Standing standing
	Meters   []ruleRow
	Shadows  []shadowRow
	Hours    []throttle.RuleHours
	Turns    control.Turns
	Next     *control.NextTurn // nil if nothing waits here
	Below    []branchRow
	AllBelow int
	MoreDown bool
	Filter   string
	Pages    pages
	Users    []usage.Spender
	Other    usage.Sum
	Ends     usage.Ends // of the last hour, as Users and Started are
	Started  int64
	UsedFrom time.Time
	Charts   []chart
	Events   []control.UpstreamEvent
	May      may
}

// ruleRow is a rule with its text.
type ruleRow struct {
	meter
	Text    string
	Inherit bool // it counts at a level above
}

type shadowRow struct {
	throttle.RuleState
	Part  int
	Asked usage.Shadow
}

type branchRow struct {
	control.Branch
	Name     string
	Standing standing
}

// branchStanding is the state of a scope below, as far as the limits and what APIs have said tell it: of a scope without any state of its
// own it is empty.
func (h *handler) branchStanding(b control.Branch, of *scopeState) (s standing) {
	paused, cut := of.upstream.Of(b.Scope)
	switch why := h.service.Held(b.Scope, of.limits); {
	case why == control.ReasonPaused:
		s.be("paused")
	case why == control.ReasonSuspended:
		s.be("suspended")
	case why == control.ReasonUnmatched && b.Own > 0:
		s.be("unmatched")
	case paused:
		s.be("api")
	case cut:
		s.be("cut")
	}
	return s
}

// may is the list of actions that the page offers. The service checks the rights in any case.
type may struct{ Pause, Set, Act, Payload, Assign bool }

func (h *handler) mayDo(who Actor, scope string) may {
	can := func(verb control.Verb) bool { return h.service.May(who, verb, scope) == nil }
	return may{can(control.VerbPause), can(control.VerbSet), can(control.VerbCancel), can(control.VerbPayload), can(control.VerbAssign)}
}

func (h *handler) scopeView(r *http.Request, who Actor, data any) (any, string, error) {
	s := data.(*scopeState)
	name := s.level.Scope
	under := s.below
	under.Paused += h.service.PausedBelow(name, s.limits)
	d := scopeData{
		Level: s.level, Last: s.last, Standing: standingOf(s.level, under), Hours: s.hours, Turns: s.turns, MoreDown: s.lower.More,
		Filter: strings.TrimSpace(r.FormValue("q")), Users: s.users.Spenders, Other: s.users.Other, Ends: s.users.Ends, Started: s.users.All.Tasks, UsedFrom: s.users.From, May: h.mayDo(who, name),
	}
	binds := -1
	if len(s.turns.List) > 0 {
		d.Next = &s.turns.List[0]
		binds = slices.IndexFunc(s.level.Rules, func(x control.Rule) bool { return x.Rule == d.Next.Rule && x.RuleScope == d.Next.RuleScope })
	}
	if binds < 0 {
		binds = s.level.Binding
	}
	for i, rule := range s.level.Rules {
		d.Meters = append(d.Meters, ruleRow{meterOf(rule, name, i == binds), s.texts[[2]string{rule.RuleScope, rule.Rule}], rule.RuleScope != name})
	}
	for _, shadow := range s.shadows {
		row := shadowRow{RuleState: shadow}
		if shadow.Limit > 0 {
			row.Part = int(min(100, max(0, shadow.Limit-shadow.Remaining)*100/shadow.Limit))
		}
		for _, one := range s.users.Shadows {
			if one.Rule == shadow.Rule && shadow.Scope == name {
				row.Asked = one
			}
		}
		d.Shadows = append(d.Shadows, row)
	}
	var rows []branchRow
	for _, b := range s.lower.Branches { // an actor that may see a scope may see those below it
		d.AllBelow++
		if matches(b.Scope[len(name)+1:], d.Filter) {
			rows = append(rows, branchRow{Branch: b, Name: b.Scope[len(name)+1:]})
		}
	}
	d.Below, d.Pages = pageOf(rows, r)
	for i := range d.Below {
		d.Below[i].Standing = h.branchStanding(d.Below[i].Branch, s)
	}
	d.Events = h.service.SeenUpstreamEvents(who, s.events)
	now := h.now()
	periods := slices.DeleteFunc(slices.Clone(s.past), func(p policystore.Period) bool { return p.From.After(now) })
	periods = append(periods, policystore.Period{From: now, Policy: h.limiter.Policy()})
	for _, in := range []charted{
		{name: "the last 15 minutes", points: s.now, slot: nowSlot, span: nowSpan},
		{name: "the last day", points: s.day, slot: daySlot, span: daySpan},
	} {
		in.scope, in.periods, in.events, in.now = name, periods, d.Events, now
		d.Charts = append(d.Charts, in.draw())
	}
	return d, name, nil
}

// waitersTopic returns the topic of a page of the waiters in a scope's own queue.
func (h *handler) waitersTopic(r *http.Request, _ Actor) (topic, error) {
	name := r.FormValue("scope")
	from := (pageNumber(r) - 1) * rowsAPage
	return topic{
		key: "waiters\x00" + name + "\x00" + r.FormValue("page"),
		cost: func(last any) int {
			before, again := last.(*waiters)
			if !again {
				return snapshotCommands
			}
			return waitersCost + 1 + min(newTasks, before.unknown())
		},
		load: func(ctx context.Context, last any) (any, error) {
			limits, err := h.limits(ctx) // the limits to use
			if err != nil {
				return nil, err
			}
			before, again := last.(*waiters)
			if !again {
				if err := h.checkScope(ctx, name, limits); err != nil {
					return nil, err
				}
			}
			turns, err := h.service.Turns(ctx, name, from, rowsAPage)
			if err == nil && len(turns.List) == 0 && turns.All > 0 { // the queue is shorter by now: its last page
				turns, err = h.service.Turns(ctx, name, int((turns.All-1)/rowsAPage*rowsAPage), rowsAPage)
			}
			if err != nil {
				return nil, err
			}
			return h.loadWaiters(ctx, turns, before)
		},
	}, nil
}

// waiters is a page of waiters, with those facts about each task that do not change.
type waiters struct {
	turns control.Turns
	tasks map[string]waiter // by queue and id
}

type waiter struct {
	Type, EnqueuedBy, Cost, Priority string
	Since, Patience                  time.Time
	Known                            bool // it was looked up
	Gone                             bool
}

const (
	// waitersCost is the commands for a page of waiters, without those for single tasks.
	waitersCost = limitsCost + 2*2 + rowsAPage/10
	// newTasks is how many tasks one reading looks up at most, with a command each: those that are new on the
	// page.
	newTasks = snapshotCommands - waitersCost - 1 // a script that Redis does not know yet is sent twice
)

// unknown returns how many tasks of the page were not looked up yet.
func (w *waiters) unknown() (n int) {
	for _, one := range w.turns.List {
		if !w.tasks[one.Queue+"\x00"+one.ID].Known {
			n++
		}
	}
	return n
}

func (h *handler) loadWaiters(ctx context.Context, turns control.Turns, before *waiters) (*waiters, error) {
	w := &waiters{turns: turns, tasks: map[string]waiter{}}
	var look []asynqread.TaskRef
	for _, one := range turns.List {
		key := one.Queue + "\x00" + one.ID
		known := waiter{}
		if before != nil {
			known = before.tasks[key]
		}
		if known.Known {
			w.tasks[key] = known
		} else if len(look) < newTasks {
			look = append(look, asynqread.TaskRef{Queue: one.Queue, ID: one.ID})
		}
	}
	heads, err := asynqread.TaskHeads(ctx, h.cfg.Redis, look)
	if err != nil {
		return nil, err
	}
	for _, one := range look {
		head, is := heads[one]
		if !is {
			w.tasks[one.Queue+"\x00"+one.ID] = waiter{Known: true, Gone: true}
			continue
		}
		w.tasks[one.Queue+"\x00"+one.ID] = waiterOf(head)
	}
	return w, nil
}

// waiterRow is a row of the table.
type waiterRow struct {
	control.NextTurn
	waiter
	Value string // its name in forms
}

type waitersData struct {
	Scope     string
	All       int64
	Rows      []waiterRow
	Pages     pages
	Unmatched bool
	May       may
}

func (h *handler) waitersView(r *http.Request, who Actor, data any) (any, string, error) {
	w := data.(*waiters)
	d := waitersData{Scope: w.turns.Scope, All: w.turns.All, Unmatched: w.turns.Unmatched, May: h.mayDo(who, w.turns.Scope)}
	for _, one := range w.turns.List {
		value := url.Values{"queue": {one.Queue}, "id": {one.ID}}.Encode()
		d.Rows = append(d.Rows, waiterRow{one, w.tasks[one.Queue+"\x00"+one.ID], value})
	}
	d.Pages = pagesFor(w.turns.All, pageNumber(r), r)
	return d, "Who waits in " + w.turns.Scope, nil
}
