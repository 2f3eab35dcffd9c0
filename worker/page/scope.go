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
	"github.com/headway-go/headway/throttle/usage"
	"github.com/headway-go/headway/worker/control"
)

const (
	// mostBranches is the most scopes that are read below a provider.
	mostBranches = 10_000
	// nextTurns is how many waiters the screen of a scope shows.
	nextTurns = 10
	// detailsEvery is how often the details of a scope are read while it has viewers.
	detailsEvery = 5 * time.Second
)

// scopeState is one reading of a scope. It does not change after it was read.
type scopeState struct {
	limits  control.Limits
	level   control.Level
	members []control.Member
	turns   control.Turns
	shadows []throttle.RuleState
	hours   []throttle.RuleHours
	texts   map[[2]string]string // of ruleTexts
	scopeDetails
}

// scopeDetails is the part of a scope that costs many commands and changes slowly.
type scopeDetails struct {
	read    time.Time
	lower   control.Outline // the scopes below
	last    control.Last
	trouble control.Trouble
	users   usage.Report // of the last hour
	// quarter and day are what has started, and events what the API's answers changed.
	quarter, day []usage.Point
	events       []control.UpstreamEvent
}

// loadScope reads a scope. It costs some 15 commands, below a pool three or four more, and some 40 more for the details.
func (h *handler) loadScope(ctx context.Context, of url.Values, last any) (any, error) {
	name, s := of.Get("scope"), &scopeState{}
	before, again := last.(*scopeState)
	var err error
	if s.limits, err = h.limitsOf(ctx, name, last); err != nil {
		return nil, err
	}
	if s.level, err = h.service.Level(ctx, name, s.limits); err != nil {
		return nil, err
	}
	if s.level.Pool != "" {
		if s.members, err = h.service.Members(ctx, name); err != nil {
			return nil, err
		}
	}
	if s.turns, err = h.service.Turns(ctx, name, 0, nextTurns); err != nil {
		return nil, err
	}
	if !s.level.Unmatched {
		if s.shadows, err = h.limiter.PeekShadows(ctx, name); err != nil {
			return nil, err
		}
		if s.hours, err = h.limiter.Hours(name); err != nil {
			return nil, err
		}
		s.texts = ruleTexts(h.limiter.Policy(), name)
	}
	if again && h.now().Sub(before.read) < detailsEvery {
		s.scopeDetails = before.scopeDetails
		return s, nil
	}
	s.scopeDetails, err = h.loadDetails(ctx, name, s.limits)
	return s, err
}

// ruleTexts returns the rules that count at a scope as limits.yaml has them, by scope and name.
func ruleTexts(p *policy.Policy, name string) map[[2]string]string {
	texts := map[[2]string]string{}
	if scope, err := policy.ParseScope(name); err == nil {
		bounds, _ := p.Match(scope)
		for _, b := range bounds {
			texts[[2]string{b.Scope.String(), b.Rule.Name}] = limitsyaml.FormatRule(b.Rule)
		}
	}
	return texts
}

func (h *handler) loadDetails(ctx context.Context, name string, limits control.Limits) (d scopeDetails, err error) {
	provider, _, _ := strings.Cut(name, "/")
	config, now := usage.Config{Prefix: h.cfg.KeyPrefix}, h.now()
	d.read = now
	if d.lower, err = h.service.Outline(ctx, provider, mostBranches); err != nil {
		return d, err
	}
	if d.last, err = h.service.LastStart(ctx, name, d.lower); err != nil {
		return d, err
	}
	d.trouble = h.service.Trouble(name, d.lower, limits)
	d.lower.Branches = below(name, d.lower.Branches)
	if d.users, err = usage.Read(ctx, h.cfg.Redis, config, name, time.Hour); err != nil {
		return d, err
	}
	for of, points := range map[period]*[]usage.Point{quarterHour: &d.quarter, wholeDay: &d.day} {
		if *points, err = usage.Series(ctx, h.cfg.Redis, config, name, now.Add(-of.span+of.slot), now.Add(of.slot), of.slot); err != nil {
			return d, err
		}
	}
	d.events, err = h.service.UpstreamEvents(ctx, reader, name)
	return d, err
}

// below returns the scopes that are one level below another.
func below(name string, all []control.Branch) []control.Branch {
	depth := strings.Count(name, "/") + 1
	return slices.DeleteFunc(all, func(b control.Branch) bool {
		return !strings.HasPrefix(b.Scope, name+"/") || strings.Count(b.Scope, "/") != depth
	})
}

type scopeData struct {
	control.Level
	Last      control.Last // when all that waits here and below will have started
	Condition condition
	Meters    []ruleRow
	Members   []memberRow
	Shadows   []shadowRow
	Hours     []throttle.RuleHours
	Turns     control.Turns
	Next      *control.NextTurn // nil if nothing waits here
	Below     []branchRow
	AllBelow  int
	MoreDown  bool
	Filter    string
	Pages     pages
	Used      usage.Report // in the last hour
	Charts    []chart
	Events    []control.UpstreamEvent
	Breakers  []control.Breaker
	Breaks    bool // a breaker counts at the scope itself
	Broken    bool // and is open
	May       may
}

type ruleRow struct {
	meter
	Text    string
	Inherit bool // it counts at a level above
}

type memberRow struct {
	control.Member
	Meters []meter
}

type shadowRow struct {
	throttle.RuleState
	Part  int
	Asked usage.Shadow
}

type branchRow struct {
	control.Branch
	Name      string
	Condition condition
}

// branchCondition is the state of a scope below, empty if it has none of its own.
func (h *handler) branchCondition(b control.Branch, of *scopeState) (s condition) {
	broken, paused, cut := of.lower.UpstreamOf(b.Scope)
	switch why := h.service.HeldBy(b.Scope, of.limits); {
	case why == control.ReasonPaused:
		s.set("paused")
	case why == control.ReasonSuspended:
		s.set("suspended")
	case why == control.ReasonUnmatched && b.Own > 0:
		s.set("unmatched")
	case broken, paused:
		s.set("api")
	case cut:
		s.set("cut")
	}
	return s
}

// may is the list of actions that the page offers. The service checks the rights in any case.
type may struct{ Pause, Set, Act, Payload, Assign, Open bool }

func (h *handler) mayDo(actor Actor, scope string) may {
	can := func(verb control.Verb) bool { return h.service.May(actor, verb, scope) == nil }
	return may{can(control.VerbPause), can(control.VerbSet), can(control.VerbCancel), can(control.VerbPayload), can(control.VerbAssign), can(control.VerbOpen)}
}

func (h *handler) scopeView(r *http.Request, actor Actor, data any) (any, string, error) {
	s := data.(*scopeState)
	name := s.level.Scope
	d := scopeData{
		Level: s.level, Last: s.last, Condition: conditionOf(s.level, s.trouble), Hours: s.hours, Turns: s.turns, MoreDown: s.lower.More,
		Filter: field(r, "q"), May: h.mayDo(actor, name), Used: s.users,
	}
	binds := -1
	d.Breakers = control.BreakersOf(s.level.Upstream)
	if scope, err := policy.ParseScope(name); err == nil {
		_, err := h.limiter.Policy().BreakerAt(scope)
		d.Breaks = err == nil
	}
	d.Broken = slices.ContainsFunc(d.Breakers, func(b control.Breaker) bool { return b.Scope == name })
	if len(s.turns.List) > 0 {
		d.Next = &s.turns.List[0]
		binds = slices.IndexFunc(s.level.Rules, func(x control.Rule) bool { return x.Rule == d.Next.Rule && x.RuleScope == d.Next.RuleScope })
	}
	if binds < 0 {
		binds = s.level.Binding
	}
	for i, rule := range s.level.Rules {
		d.Meters = append(d.Meters, ruleRow{meterOf(rule, i == binds), s.texts[[2]string{rule.RuleScope, rule.Rule}], rule.RuleScope != name})
	}
	for _, m := range s.members {
		row := memberRow{Member: m}
		for _, rule := range m.Rules {
			row.Meters = append(row.Meters, meterOf(rule, false))
		}
		d.Members = append(d.Members, row)
	}
	for _, shadow := range s.shadows {
		row := shadowRow{RuleState: shadow, Part: partOf(shadow.Limit-shadow.Remaining, shadow.Limit)}
		for _, asked := range s.users.Shadows {
			if asked.Rule == shadow.Rule && shadow.Scope == name {
				row.Asked = asked
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
		d.Below[i].Condition = h.branchCondition(d.Below[i].Branch, s)
	}
	d.Events = h.service.VisibleUpstreamEvents(actor, s.events)
	charts := drawing{scope: name, policy: h.limiter.Policy(), events: d.Events, now: h.now()}
	d.Charts = []chart{charts.draw(quarterHour, s.quarter), charts.draw(wholeDay, s.day)}
	return d, name, nil
}
