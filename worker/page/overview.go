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

	"github.com/headway-go/headway/internal/inspect"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/worker/control"
	"github.com/headway-go/headway/worker/internal/asynqread"
)

// A snapshot reads levelsASnapshot providers at a glance, and depthsASnapshot of them in depth. A page with more reads them in turns.
const (
	levelsASnapshot = 7
	depthsASnapshot = 1
	// depthCost is the commands of one in depth, without a ZCARD for each line: that takes the server a thousandth of a millisecond.
	// branchesInDepth is the most scopes of it that are read, and oldestOf among how many of the fullest scopes the oldest wait is looked
	// for.
	depthCost       = 8 + control.UpstreamCost + control.LastCost + oldestCost
	branchesInDepth = 1000
	oldestOf        = 1
	oldestCost      = 1 + 4*oldestOf // in two asynq queues
)

// rowsAPage is the most rows of a table.
const rowsAPage = 50

// overview is one reading of all providers. It does not change after it was read.
type overview struct {
	limits control.Limits
	levels []control.Level // by name
	read   map[string]time.Time
	depths map[string]depth
}

// depth is what a glance at a provider does not tell.
type depth struct {
	read   time.Time
	oldest time.Time // when the longest wait began, zero if that is not known
	last   control.Last
	below  control.Trouble // without the scopes that the limits name as paused
	in     int             // how many scopes tasks wait in
}

func (h *handler) overviewTopic(*http.Request, Actor) (topic, error) {
	return topic{key: "overview", cost: fixed(1 + limitsCost + levelsASnapshot*control.LevelCost + depthsASnapshot*depthCost), load: h.loadOverview}, nil
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
	o := &overview{limits: limits, read: map[string]time.Time{}, depths: map[string]depth{}}
	levels, depths := len(names), rowsAPage
	if before != nil {
		for _, l := range before.levels {
			known[l.Scope] = l
		}
		maps.Copy(o.read, before.read)
		maps.Copy(o.depths, before.depths)
		levels, depths = levelsASnapshot, depthsASnapshot
	}
	for _, name := range longestAgo(names, levels, func(name string) time.Time { return o.read[name] }) {
		l, err := h.service.Glance(ctx, name, limits)
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
	for _, name := range longestAgo(names, depths, func(name string) time.Time { return o.depths[name].read }) {
		if o.depths[name], err = h.loadDepth(ctx, name, limits); err != nil {
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

// loadDepth reads a provider in depth.
func (h *handler) loadDepth(ctx context.Context, name string, limits control.Limits) (d depth, err error) {
	d.read = h.now()
	out, err := h.service.Outline(ctx, name, branchesInDepth)
	if err != nil {
		return d, err
	}
	up, err := h.service.Upstream(ctx, name)
	if err != nil {
		return d, err
	}
	if d.below = h.service.Below(name, out, up, limits); len(out.Branches) == 0 || out.Branches[0].Waiting == 0 {
		return d, nil
	}
	for _, b := range out.Branches {
		if b.Own > 0 {
			d.in++
		}
	}
	if d.last, err = h.service.LastStart(ctx, name, out); err != nil {
		return d, err
	}
	d.oldest, err = h.oldestWait(ctx, name, out)
	return d, err
}

// oldestWait returns when the longest wait of a provider's tasks began, as far as the headers of the first tasks of its fullest scopes
// say; zero if none does.
func (h *handler) oldestWait(ctx context.Context, name string, out control.Outline) (oldest time.Time, err error) {
	var scopes []string
	for _, b := range out.Branches {
		if b.Own > 0 && len(scopes) < oldestOf {
			scopes = append(scopes, b.Scope)
		}
	}
	heads, err := inspect.Of(h.limiter.Waitlist()).Heads(ctx, name, scopes...)
	if err != nil {
		return oldest, err
	}
	var tasks []asynqread.TaskRef
	for _, head := range heads[:min(len(heads), 2*oldestOf)] {
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
	Last     control.Last // when all that waits will have started
	In       int          // how many scopes tasks wait in
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

// standing is the state of a scope, in a word or two and a sentence.
type standing struct {
	Kind  string // suspended, unmatched, paused, api, cut, waiting, full, open, idle
	Word  string
	Text  string
	Until any // a time, zero for none
	rank  int
}

// standings are the states, worst first.
var standings = []struct{ kind, word string }{
	{"suspended", "Suspended"}, {"unmatched", "No rule"}, {"paused", "Paused"}, {"api", "API pause"}, {"cut", "Cut"}, {"waiting", "Waiting"},
	{"full", "Full"}, {"open", "Open"}, {"idle", "Idle"},
}

func (s *standing) be(kind string) {
	s.Kind = kind
	s.rank = 2 * slices.IndexFunc(standings, func(one struct{ kind, word string }) bool { return one.kind == kind })
	s.Word = standings[s.rank/2].word
}

// standingOf returns the state of a scope: its own, or what is worse below it.
func standingOf(l control.Level, below control.Trouble) standing {
	s := ownStanding(l)
	for _, one := range []struct {
		kind string
		n    int
	}{
		{"suspended", below.Suspended}, {"unmatched", below.Unmatched}, {"paused", below.Paused}, {"api", below.UpstreamPaused}, {"cut", below.Cut},
	} {
		var worst standing
		if worst.be(one.kind); one.n > 0 && worst.rank < s.rank {
			s = worst
			s.Word += " below"
			s.rank++ // behind those that are so themselves
		}
	}
	if text := below.String(); text != "" {
		if s.Text != "" {
			s.Text += "; "
		}
		s.Text += "below it " + text
	}
	return s
}

func ownStanding(l control.Level) (s standing) {
	api := len(l.Upstream.Pauses)
	switch {
	case l.PausedScope != "":
		s.be("paused")
		s.Text, s.Until = "paused", l.PausedUntil
		if l.PausedScope != l.Scope {
			s.Text += " with " + l.PausedScope
		}
		if l.PausedBy != "" {
			s.Text += " by " + l.PausedBy
		}
	case l.Unmatched && l.Own > 0:
		s.be("unmatched")
		s.Text = "no rule matches it"
	case l.Unmatched && l.Waiting > 0:
		s.be("waiting")
	case l.Unmatched:
		s.be("idle")
		s.Text = "no rule counts here itself"
	case l.Suspended:
		s.be("suspended")
		s.Text = "a rule has limit 0"
	case api > 0:
		s.be("api")
		s.Text, s.Until = "its API asked for a pause", l.Upstream.Pauses[api-1].Until
	default:
		s.be("open")
		for _, r := range l.Rules {
			if r.Admits > 0 && r.Admits < r.Limit {
				s.be("cut")
				s.Text, s.Until = "its API allows "+number(r.Admits)+" of "+number(r.Limit)+" under "+r.Rule, r.AdmitsUntil
			}
		}
		switch {
		case s.Kind == "cut":
		case l.Waiting > 0:
			s.be("waiting")
		case l.Binding >= 0 && l.Rules[l.Binding].Remaining <= 0:
			s.be("full")
		}
	}
	return s
}

func rowOf(l control.Level, below control.Trouble) levelRow {
	row := levelRow{Level: l, Standing: standingOf(l, below)}
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
		in := o.depths[l.Scope]
		in.below.Paused += h.service.PausedBelow(l.Scope, o.limits)
		row := rowOf(l, in.below)
		if l.Waiting > 0 {
			row.Oldest, row.Last, row.In = in.oldest, in.last, in.in
		}
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
