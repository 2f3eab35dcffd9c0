package page

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/headway-go/headway/internal/inspect"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/worker/control"
	"github.com/headway-go/headway/worker/internal/asynqread"
)

const (
	// firstProviders and nextProviders bound how many providers the first reading and each later one read.
	firstProviders, nextProviders = 200, 3
	// branchesRead is the most scopes of a provider that are read for the overview.
	branchesRead = 1000
)

// rowsAPage is the most rows of a table.
const rowsAPage = 50

// overview is one reading of all providers. It does not change after it was read.
type overview struct {
	limits    control.Limits
	names     []string
	providers map[string]provider
}

// provider is what is read of a provider.
type provider struct {
	control.Level
	Oldest  time.Time    // when the longest wait began, zero if that is not known
	Last    control.Last // when all that waits will have started
	In      int          // how many scopes tasks wait in
	trouble control.Trouble
	read    time.Time
}

func (h *handler) loadOverview(ctx context.Context, _ url.Values, last any) (any, error) {
	o := &overview{providers: map[string]provider{}}
	var err error
	if o.limits, err = h.limits(ctx); err != nil {
		return nil, err
	}
	if o.names, err = h.service.Providers(ctx); err != nil {
		return nil, err
	}
	most := firstProviders
	if before, again := last.(*overview); again {
		most = nextProviders
		for _, name := range o.names {
			if p, is := before.providers[name]; is {
				o.providers[name] = p
			}
		}
	}
	for _, name := range longestAgo(o.names, most, func(name string) time.Time { return o.providers[name].read }) {
		if o.providers[name], err = h.loadProvider(ctx, name, o.limits); err != nil {
			return nil, err
		}
	}
	return o, nil
}

// longestAgo returns the names that were read longest ago, at most as many as asked for.
func longestAgo(names []string, most int, read func(string) time.Time) []string {
	due := slices.Clone(names)
	slices.SortStableFunc(due, func(a, b string) int { return read(a).Compare(read(b)) })
	return due[:min(len(due), most)]
}

// loadProvider reads a provider. It costs some 20 commands, and 8 if nothing waits.
func (h *handler) loadProvider(ctx context.Context, name string, limits control.Limits) (p provider, err error) {
	p.read = h.now()
	if p.Level, err = h.service.Level(ctx, name, limits); err != nil {
		return p, err
	}
	out, err := h.service.Outline(ctx, name, branchesRead)
	if err != nil {
		return p, err
	}
	p.trouble = h.service.Trouble(name, out, limits)
	fullest := ""
	for _, b := range out.Branches {
		if b.Own > 0 {
			fullest = cmp.Or(fullest, b.Scope)
			p.In++
		}
	}
	if fullest == "" {
		return p, nil
	}
	if p.Last, err = h.service.LastStart(ctx, name, out); err != nil {
		return p, err
	}
	p.Oldest, err = h.oldestWait(ctx, name, fullest)
	return p, err
}

// oldestWait returns when the longest wait of a scope began, by the first tasks of its queues; zero if unknown.
func (h *handler) oldestWait(ctx context.Context, provider, scope string) (oldest time.Time, err error) {
	heads, err := inspect.Of(h.limiter.Waitlist()).Heads(ctx, provider, scope)
	if err != nil {
		return oldest, err
	}
	var tasks []asynqread.TaskRef
	for _, head := range heads {
		tasks = append(tasks, asynqread.TaskRef{Queue: head.Queue, ID: head.ID})
	}
	headers, err := asynqread.Headers(ctx, h.cfg.Redis, tasks, queue.HeaderDue)
	for _, text := range headers {
		if at, err := time.Parse(time.RFC3339Nano, text); err == nil && (oldest.IsZero() || at.Before(oldest)) {
			oldest = at
		}
	}
	return oldest, err
}

type overviewData struct {
	Filter, State string
	States        []stateCount
	Rows          []providerRow
	All           int // rows before the filter
	Pages         pages
	Version       int64
	By            string
	None          bool // there are no limits at all
	Waiting       int64
}

type stateCount struct {
	Kind, Word string
	N          int
	On         bool
}

type providerRow struct {
	provider
	Condition condition
	Meter     *meter // of the fullest rule, nil for none
	Vendor    *meter // of the fullest rule for which the API reported a limit of its own, nil for none
}

type meter struct {
	control.Rule
	Limit   int64
	Part    int // percent
	Full    bool
	Binding bool
}

func meterOf(r control.Rule, binding bool) meter {
	m := meter{Rule: r, Limit: r.Counts(), Part: 100, Full: true, Binding: binding}
	if m.Limit > 0 {
		m.Part, m.Full = partOf(r.Used, m.Limit), r.Used >= m.Limit
	}
	return m
}

// partOf returns a part of a limit in percent, from 0 to 100.
func partOf(n, limit int64) int { return int(min(100, max(0, n)*100/max(1, limit))) }

// condition is the state of a scope, in a word or two and a sentence.
type condition struct {
	Kind  string // of conditions
	Word  string
	Text  string
	Until any // a time, zero for none
	rank  int
}

// conditions are the states, worst first.
var conditions = []struct{ kind, word string }{
	{"suspended", "Suspended"}, {"unmatched", "No rule"}, {"paused", "Paused"}, {"api", "API pause"}, {"cut", "Cut"}, {"waiting", "Waiting"},
	{"full", "Full"}, {"open", "Open"}, {"idle", "Idle"},
}

func (c *condition) set(kind string) {
	i := slices.IndexFunc(conditions, func(known struct{ kind, word string }) bool { return known.kind == kind })
	c.Kind, c.Word, c.rank = kind, conditions[i].word, 2*i
}

// conditionOf returns the state of a scope: its own, or what is worse below it.
func conditionOf(l control.Level, below control.Trouble) condition {
	c := ownCondition(l)
	for kind, n := range map[string]int{
		"suspended": below.Suspended, "unmatched": below.Unmatched, "paused": below.Paused, "api": below.UpstreamPaused + below.Broken, "cut": below.Cut,
	} {
		var worse condition
		if worse.set(kind); n > 0 && worse.rank < c.rank {
			c = worse
			c.Word += " below"
			c.rank++ // behind those that are so themselves
		}
	}
	if text := below.String(); text != "" {
		if c.Text != "" {
			c.Text += "; "
		}
		c.Text += "below it " + text
	}
	return c
}

func ownCondition(l control.Level) (c condition) {
	api := len(l.Upstream.Pauses)
	switch {
	case l.PausedScope != "":
		c.set("paused")
		c.Text, c.Until = "paused", l.PausedUntil
		if l.PausedScope != l.Scope {
			c.Text += " with " + l.PausedScope
		}
		if l.PausedBy != "" {
			c.Text += " by " + l.PausedBy
		}
	case l.Unmatched && l.Own > 0:
		c.set("unmatched")
		c.Text = "no rule matches it"
	case l.Unmatched && l.Waiting > 0:
		c.set("waiting")
	case l.Unmatched:
		c.set("idle")
		c.Text = "no rule counts here itself"
	case l.Suspended:
		c.set("suspended")
		c.Text = "a rule has limit 0"
	case len(l.Upstream.Breakers) > 0:
		c.set("api")
		c.Text = "its breaker is open, " + control.BreakersOf(l.Upstream)[0].Why()
	case api > 0:
		c.set("api")
		c.Text, c.Until = "its API asked for a pause", l.Upstream.Pauses[api-1].Until
	default:
		c.set("open")
		for _, r := range l.Rules {
			if r.Admits > 0 && r.Admits < r.Limit {
				c.set("cut")
				c.Text, c.Until = "its API allows "+number(r.Admits)+" of "+number(r.Limit)+" under "+r.Rule, r.AdmitsUntil
			}
		}
		switch {
		case c.Kind == "cut":
		case l.Waiting > 0:
			c.set("waiting")
		case l.Binding >= 0 && l.Rules[l.Binding].Remaining <= 0:
			c.set("full")
		}
	}
	return c
}

func rowOf(p provider) providerRow {
	row := providerRow{provider: p, Condition: conditionOf(p.Level, p.trouble)}
	if p.Binding >= 0 {
		m := meterOf(p.Rules[p.Binding], true)
		m.VendorLimit = 0 // it has a column of its own
		row.Meter = &m
	}
	for _, rule := range p.Rules {
		if m := meterOf(rule, false); m.VendorLimit > 0 && (row.Vendor == nil || m.Part > row.Vendor.Part) {
			row.Vendor = &m
		}
	}
	return row
}

func (h *handler) overviewView(r *http.Request, actor Actor, data any) (any, string, error) {
	o := data.(*overview)
	d := overviewData{Filter: field(r, "q"), State: r.FormValue("state")}
	if v := o.limits.Version; v != nil {
		d.Version, d.By = v.Number, v.By
	}
	counts := map[string]int{}
	var rows []providerRow
	for _, name := range o.names {
		p, is := o.providers[name]
		if !is || h.service.May(actor, control.VerbSee, name) != nil {
			continue
		}
		p.Pause = h.service.PauseOf(name, o.limits)
		row := rowOf(p)
		d.All++
		d.Waiting += p.Waiting
		counts[row.Condition.Kind]++
		if matches(name, d.Filter) && (d.State == "" || d.State == row.Condition.Kind) {
			rows = append(rows, row)
		}
	}
	d.None = len(o.names) == 0
	for _, s := range conditions {
		if n := counts[s.kind]; n > 0 {
			d.States = append(d.States, stateCount{s.kind, s.word, n, d.State == s.kind})
		}
	}
	slices.SortStableFunc(rows, func(a, b providerRow) int {
		return cmp.Or(cmp.Compare(a.Condition.rank, b.Condition.rank), cmp.Compare(b.Waiting, a.Waiting), cmp.Compare(a.Scope, b.Scope))
	})
	d.Rows, d.Pages = pageOf(rows, r)
	return d, "Overview", nil
}

func matches(name, filter string) bool {
	return strings.Contains(strings.ToLower(name), strings.ToLower(filter))
}
