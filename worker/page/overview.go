package page

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headway-go/headway/internal/control"
	"github.com/headway-go/headway/throttle"
)

// levelsASnapshot is how many providers one snapshot reads, and oldestASnapshot of how many the longest wait. A page with more reads
// them in turns.
const (
	levelsASnapshot = 8
	oldestASnapshot = 1
)

// rowsAPage is the most rows of a table.
const rowsAPage = 50

// overview is one reading of all providers. It does not change after it was read.
type overview struct {
	limits control.Limits
	levels []control.Level // by name
	read   map[string]time.Time
	oldest map[string]oldestWait
}

// oldestWait is when the longest wait for a provider began, zero if that is not known.
type oldestWait struct{ since, read time.Time }

func (h *handler) overviewTopic(*http.Request, Actor) (topic, error) {
	return topic{key: "overview", cost: fixed(1 + limitsCost + levelsASnapshot*control.LevelCost + oldestASnapshot*throttle.OldestWaitCost), load: h.loadOverview}, nil
}

// loadOverview reads the providers that were read longest ago, and all the first time.
func (h *handler) loadOverview(ctx context.Context, last any) (any, error) {
	before, _ := last.(*overview)
	limits, err := h.limits(ctx)
	if err != nil {
		return nil, err
	}
	names, err := h.service.Providers(ctx)
	if err != nil {
		return nil, err
	}
	known := map[string]control.Level{}
	o := &overview{limits: limits, read: map[string]time.Time{}, oldest: map[string]oldestWait{}}
	if before != nil {
		for _, l := range before.levels {
			known[l.Scope] = l
		}
		maps.Copy(o.read, before.read)
		maps.Copy(o.oldest, before.oldest)
	}
	due := slices.Clone(names)
	slices.SortStableFunc(due, func(a, b string) int { return o.read[a].Compare(o.read[b]) })
	if before != nil {
		due = due[:min(len(due), levelsASnapshot)]
	}
	for _, name := range due {
		l, err := h.service.Level(ctx, name, limits)
		if err != nil {
			return nil, err
		}
		known[name], o.read[name] = l, h.now()
	}
	for _, name := range names {
		if l, is := known[name]; is {
			o.levels = append(o.levels, l)
		}
	}
	return o, h.loadOldest(ctx, o, before == nil)
}

// loadOldest reads the longest wait of the providers for which it was read longest ago, and of some more the first time.
func (h *handler) loadOldest(ctx context.Context, o *overview, first bool) error {
	var due []string
	for _, l := range o.levels {
		if l.Waiting > 0 {
			due = append(due, l.Scope)
		} else {
			delete(o.oldest, l.Scope)
		}
	}
	slices.SortStableFunc(due, func(a, b string) int { return o.oldest[a].read.Compare(o.oldest[b].read) })
	most := oldestASnapshot
	if first {
		most = rowsAPage
	}
	for _, name := range due[:min(len(due), most)] {
		since, err := h.limiter.Waitlist().OldestWait(ctx, name)
		if err != nil {
			return err
		}
		o.oldest[name] = oldestWait{since, h.now()}
	}
	return nil
}

// overviewData is the content of the screen.
type overviewData struct {
	Filter, State string
	States        []stateCount
	Rows          []levelRow
	All           int // rows before the filter
	Pages         pages
	Version       int64
	By            string
	At            time.Time
	None          bool // there are no limits at all
	Waiting       int64
}

type stateCount struct {
	Kind, Word string
	N          int
	On         bool
}

// levelRow is a scope in a table.
type levelRow struct {
	control.Level
	Standing standing
	Meter    *meter // of the fullest rule, nil for none
	Vendor   *meter // of the fullest rule for which the API reported a limit of its own, nil for none
	Oldest   time.Time
}

// meter is a rule with what is used of it.
type meter struct {
	control.Rule
	Limit   int64
	Part    int // of a hundred
	Full    bool
	Binding bool
	Own     bool // a rule of the scope itself, not of a level above
}

func meterOf(r control.Rule, scope string, binding bool) meter {
	m := meter{Rule: r, Limit: r.Counts(), Binding: binding, Own: r.RuleScope == scope}
	switch {
	case m.Limit <= 0:
		m.Part, m.Full = 100, true
	default:
		m.Part = int(min(100, max(0, r.Used)*100/m.Limit))
		m.Full = r.Used >= m.Limit
	}
	return m
}

// standing is the state of a scope, in one word and a sentence.
type standing struct {
	Kind  string // paused, api, suspended, cut, unmatched, waiting, full, open
	Word  string
	Text  string
	Until any // a time, zero for none
	rank  int
}

// standings are the states, worst first.
var standings = []struct{ kind, word string }{
	{"suspended", "Suspended"}, {"unmatched", "No rule"}, {"paused", "Paused"}, {"api", "API pause"}, {"cut", "Cut"}, {"waiting", "Waiting"},
	{"full", "Full"}, {"open", "Open"},
}

func standingOf(l control.Level) standing {
	kind, text, until := "open", "", any(time.Time{})
	switch api := len(l.Upstream.Pauses); {
	case l.PausedScope != "":
		kind, text, until = "paused", "paused", l.PausedUntil
		if l.PausedScope != l.Scope {
			text += " with " + l.PausedScope
		}
		if l.PausedBy != "" {
			text += " by " + l.PausedBy
		}
	case l.Unmatched && l.Below == 0:
		kind, text = "unmatched", "no rule matches it"
	case l.Suspended:
		kind, text = "suspended", "a rule has limit 0"
	case api > 0:
		kind, text, until = "api", "its API asked for a pause", l.Upstream.Pauses[api-1].Until
	default:
		for _, r := range l.Rules {
			if r.Admits > 0 && r.Admits < r.Limit {
				kind, text, until = "cut", "its API allows "+number(r.Admits)+" of "+number(r.Limit)+" under "+r.Rule, r.AdmitsUntil
			}
		}
		if kind != "cut" && l.Waiting > 0 {
			kind = "waiting"
		}
		if kind == "open" && l.Binding >= 0 && l.Rules[l.Binding].Remaining <= 0 {
			kind = "full"
		}
	}
	s := standing{Kind: kind, Text: text, Until: until}
	for i, one := range standings {
		if one.kind == kind {
			s.Word, s.rank = one.word, i
		}
	}
	return s
}

func rowOf(l control.Level) levelRow {
	row := levelRow{Level: l, Standing: standingOf(l)}
	if l.Binding >= 0 {
		m := meterOf(l.Rules[l.Binding], l.Scope, true)
		m.VendorLimit = 0 // it has a column of its own
		row.Meter = &m
	}
	for _, rule := range l.Rules {
		if m := meterOf(rule, l.Scope, false); m.VendorLimit > 0 && (row.Vendor == nil || m.Part > row.Vendor.Part) {
			row.Vendor = &m
		}
	}
	return row
}

func (h *handler) overviewView(r *http.Request, who Actor, data any) (any, string, error) {
	o := data.(*overview)
	d := overviewData{Filter: strings.TrimSpace(r.FormValue("q")), State: r.FormValue("state"), At: o.limits.At}
	if v := o.limits.Version; v != nil {
		d.Version, d.By = v.Number, v.By
	}
	counts := map[string]int{}
	var rows []levelRow
	for _, l := range o.levels {
		if h.service.May(who, control.VerbSee, l.Scope) != nil {
			continue
		}
		row := rowOf(l)
		row.Oldest = o.oldest[l.Scope].since
		d.All++
		d.Waiting += l.Waiting
		counts[row.Standing.Kind]++
		if matches(l.Scope, d.Filter) && (d.State == "" || d.State == row.Standing.Kind) {
			rows = append(rows, row)
		}
	}
	d.None = len(o.levels) == 0
	for _, one := range standings {
		if n := counts[one.kind]; n > 0 {
			d.States = append(d.States, stateCount{one.kind, one.word, n, d.State == one.kind})
		}
	}
	slices.SortStableFunc(rows, func(a, b levelRow) int {
		return cmp.Or(cmp.Compare(a.Standing.rank, b.Standing.rank), cmp.Compare(b.Waiting, a.Waiting), cmp.Compare(a.Scope, b.Scope))
	})
	d.Rows, d.Pages = pageOf(rows, r)
	return d, "Overview", nil
}

// matches reports whether a name contains the filter.
func matches(name, filter string) bool {
	return strings.Contains(strings.ToLower(name), strings.ToLower(filter))
}

// pages is the position of a page in a list.
type pages struct {
	Page, Last int
	Prev, Next string // links, empty for none
}

// pageOf returns the part of a list that a request asks for.
func pageOf[T any](list []T, r *http.Request) ([]T, pages) {
	p := pages{Page: 1, Last: max(1, (len(list)+rowsAPage-1)/rowsAPage)}
	if n, err := strconv.Atoi(r.FormValue("page")); err == nil {
		p.Page = min(max(1, n), p.Last)
	}
	link := func(n int) string {
		query := r.URL.Query()
		query.Set("page", strconv.Itoa(n))
		return "?" + query.Encode()
	}
	if p.Page > 1 {
		p.Prev = link(p.Page - 1)
	}
	if p.Page < p.Last {
		p.Next = link(p.Page + 1)
	}
	from := (p.Page - 1) * rowsAPage
	return list[from:min(len(list), from+rowsAPage)], p
}
