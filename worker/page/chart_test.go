package page

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
	"github.com/headway-go/headway/throttle/upstream"
	"github.com/headway-go/headway/throttle/usage"
	"github.com/headway-go/headway/worker/control"
)

func policyOf(t *testing.T, rules string) *policy.Policy {
	t.Helper()
	p, err := limitsyaml.Parse("limits.yaml", []byte("limits: {p: {rules: ["+rules+"]}}"))
	must(t, err)
	return p
}

// What can start in a slot is the least that a rule admits in it; in the long run it is less where a window is longer than the slot.
func TestAdmitted(t *testing.T) {
	t.Parallel()
	from := time.Date(2030, 1, 31, 12, 0, 0, 0, time.UTC)
	p, err := policy.ParseScope("p")
	must(t, err)
	for rules, want := range map[string]struct {
		slot, span time.Duration
		most, pace int64
		by         string
	}{
		`{name: a, algorithm: sliding-window, limit: 10, per: 1s}`:                                                                               {nowSlot, nowSpan, 150, 150, "a of p"},
		`{name: a, algorithm: sliding-window, limit: 60, per: 1m}`:                                                                               {nowSlot, nowSpan, 60, 15, "a of p"},
		`{name: a, algorithm: sliding-window, limit: 60, per: 10s}`:                                                                              {nowSlot, nowSpan, 120, 90, "a of p"},
		`{name: a, algorithm: fixed-window, limit: 60, per: 10s}`:                                                                                {nowSlot, nowSpan, 120, 90, "a of p"},
		`{name: a, algorithm: fixed-window, limit: 60, per: 7s}`:                                                                                 {nowSlot, nowSpan, 180, 129, "a of p"}, // they begin at multiples of 7 s
		`{name: a, algorithm: token-bucket, limit: 2, per: 1s, burst: 5}`:                                                                        {nowSlot, nowSpan, 35, 30, "a of p"},
		`{name: a, algorithm: calendar, limit: 500, resets: "0 * * * *"}`:                                                                        {daySlot, daySpan, 1000, 0, "a of p"},
		`{name: a, algorithm: fixed-window, limit: 500, per: 30d}`:                                                                               {daySlot, daySpan, 500, 0, "a of p"},
		`{name: a, algorithm: concurrency, limit: 1}, {name: b, algorithm: sliding-window, limit: 9, per: 1h}`:                                   {daySlot, daySpan, 18, 18, "b of p"},
		`{name: a, algorithm: sliding-window, limit: 9, per: 1s, shadow: true}, {name: b, algorithm: sliding-window, limit: 50, per: 1s}`:        {nowSlot, nowSpan, 750, 750, "b of p"},
		`{name: a, algorithm: token-bucket, limit: 9, per: 1s, unit: tokens}, {name: b, algorithm: sliding-window, limit: 50, per: 1s}`:          {nowSlot, nowSpan, 750, 750, "b of p"},
		`{name: a, algorithm: sliding-window, limit: 100, per: 1m}, {name: b, algorithm: token-bucket, limit: 10, per: 1s, burst: 1}`:            {nowSlot, nowSpan, 100, 25, "a of p"},
		`{name: a, algorithm: sliding-window, limit: 1, per: 1s, active: "* 13 * * *"}, {name: b, algorithm: sliding-window, limit: 9, per: 1s}`: {nowSlot, nowSpan, 135, 135, "b of p"},
	} {
		got := admittedIn(policyOf(t, rules), p, from, from.Add(want.slot), want.span)
		if !got.Known || got.Most != want.most || got.Pace != want.pace || ruleWords(got.MostRule) != want.by {
			t.Errorf("%s: %+v, want %+v", rules, got, want)
		}
	}
	paused, err := limitsyaml.Parse("limits.yaml", []byte("limits: {p: {paused: true, rules: [{name: a, algorithm: sliding-window, limit: 9, per: 1s}]}}"))
	must(t, err)
	if got := admittedIn(paused, p, from, from.Add(nowSlot), nowSpan); !got.Known || got.Most != 0 || ruleWords(got.MostRule) != "the pause of p" {
		t.Errorf("paused: %+v", got)
	}
}

// The line of a chart has a step where the limits were changed, and none before the first version; a change in the middle of a slot
// counts for it only if it allows more.
func TestChartSteps(t *testing.T) {
	t.Parallel()
	now := time.Date(2030, 1, 31, 12, 0, 7, 0, time.UTC)
	first := now.Truncate(nowSlot).Add(-7 * nowSlot)
	in := charted{name: "x", slot: nowSlot, span: nowSpan, scope: "p", now: now}
	for i := range 8 {
		in.points = append(in.points, usage.Point{At: first.Add(time.Duration(i) * nowSlot), Sum: usage.Sum{Units: 40, Tasks: 20}})
	}
	rule := func(limit string) *policy.Policy {
		return policyOf(t, `{name: a, algorithm: sliding-window, limit: `+limit+`, per: 1s}`)
	}
	in.periods = []policystore.Period{
		{From: first.Add(nowSlot), Policy: rule("4")}, {From: first.Add(3*nowSlot + time.Second), Policy: rule("8")}, {From: first.Add(5*nowSlot + time.Second), Policy: rule("2")},
	}
	in.events = []control.UpstreamEvent{{At: control.At(first.Add(4 * nowSlot)), What: "pause"}, {At: control.At(first.Add(-time.Hour)), What: "pause"}, {At: control.At(first), What: "limit"}}
	c := in.draw()
	var most []int64
	for _, b := range c.Bars {
		most = append(most, b.Most)
		if b.OverTheLine != (b.Most == 30) || b.Units != 40 || b.Tasks != 20 || b.Y+b.H != chartBase || b.Y <= chartTop {
			t.Errorf("%+v", b)
		}
	}
	if want := []int64{-1, 60, 60, 120, 120, 120, 30, 30}; !slices.Equal(most, want) {
		t.Errorf("%v, want %v", most, want)
	}
	// From the second slot on: three levels, and a line between each two.
	if l := c.Limit; len(l) != 5 || l[0].X1 != "12.50%" || l[0].X2 != "37.50%" || l[1].X1 != l[1].X2 || l[4].X2 != "100.00%" || l[2].Y1 >= l[0].Y1 {
		t.Errorf("%+v", l)
	}
	if len(c.Marks) != 1 || c.Marks[0].X != "50.00%" || len(c.Peak) != 0 || c.Now.Most != 30 || c.PeakAbove {
		t.Errorf("%+v", c)
	}
	if !c.Bars[7].Unfinished || c.Bars[5].Unfinished {
		t.Errorf("%+v", c.Bars)
	}
	in.periods = []policystore.Period{{Policy: rule("1000")}}
	if c := in.draw(); !c.PeakAbove || len(c.Limit) != 0 || c.Bars[0].Y > chartTop+20 {
		t.Errorf("a limit far above: %+v", c)
	}
}

// The screen of a scope shows starts by 15 seconds and by two hours against what its rules admit, and what the API's answers changed; the
// overview shows the API's own limit and the longest wait.
func TestStartsAndAnswers(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	recorder, err := usage.New(s.rdb, usage.Config{App: "billing"})
	must(t, err)
	recorder.Spent("payments/acme", usage.By{Queue: "default", Type: "mail"}, 41)
	must(t, recorder.Flush(t.Context()))
	s.use("payments")
	s.enqueue("payments/acme", "inv", 2)
	for scope, hint := range map[string]upstream.Hint{
		"payments/acme": {Limited: true, Status: 429, Retry: time.Minute, RetryKnown: true, Host: "api.example:443"},
		"search":        {Quotas: []upstream.Quota{{Unit: "requests", Limit: 600, Remaining: 10, Reset: time.Minute, Window: time.Hour}}},
	} {
		if out, err := s.limiter.Report(t.Context(), scope, hint); err != nil || !out.Changed {
			t.Fatalf("%+v, %v", out, err)
		}
	}
	s.sees(http.StatusOK, "/scope?scope=payments/acme",
		"Starts in the last 15 minutes", "each 15 s", "Starts in the last day", `class="bar now"`, ">41<",
		"429, retry after 1m", "paused for 1m", "api.example:443", `class="mark"`, "2 each 15 s, by account of payments")
	s.sees(http.StatusOK, "/", "data-for>since ", "<strong>600</strong>", "ours 1,000, plan")
	s.who = Actor{Name: "vic", Role: RoleViewer, Scopes: []string{"payments/acme"}}
	if body := s.sees(http.StatusOK, "/scope?scope=payments/acme", "429, retry after 1m"); strings.Contains(body, "globex") {
		t.Errorf("for a viewer:\n%s", body)
	}
}

const manyProviders = `limits:
  idle: {scopes: {"*": {rules: [{name: tenant, algorithm: sliding-window, limit: 5, per: 1s}]}}}
  busy: {rules: [{name: plan, algorithm: fixed-window, limit: 1, per: 30d}]}
  stopped: {scopes: {"*": {rules: [{name: tenant, algorithm: sliding-window, limit: 0, per: 1s}]}}}
  tenants: {rules: [{name: plan, algorithm: sliding-window, limit: 100, per: 1s}], scopes: {a: {}, b: {}, c: {rules: [{name: own, algorithm: sliding-window, limit: 50, per: 10s}]}}}
  quiet: {rules: [{name: plan, algorithm: sliding-window, limit: 100, per: 1s}]}
`

// Those in trouble come first: also those whose scopes are, counted by what they are in. An idle provider whose rules stand below it is in none.
func TestThoseInTroubleFirst(t *testing.T) {
	t.Parallel()
	s := newSiteUnder(t, manyProviders, nil)
	s.use("busy")
	s.enqueue("busy", "b", 1)
	s.enqueue("stopped/x", "x", 3)
	s.enqueue("stopped/y", "y", 1)
	_, err := s.store.Pause(t.Context(), policystore.Edit{By: "anna"}, "tenants/a")
	must(t, err)
	for scope, hint := range map[string]upstream.Hint{
		"tenants/b": {Limited: true, Status: 429, Retry: time.Hour, RetryKnown: true},
		"tenants/c": {Quotas: []upstream.Quota{{Unit: "requests", Limit: 5, Remaining: 3, Reset: time.Second, Window: 10 * time.Second}}},
	} {
		_, err = s.limiter.Report(t.Context(), scope, hint)
		must(t, err)
	}
	body := s.sees(http.StatusOK, "/", `<span class="chip suspended">Suspended below</span>`, "below it 2 suspended",
		`<span class="chip paused">Paused below</span>`,
		"below it 1 paused, 1 paused by the API, 1 cut by the API", "not under tenant of stopped/x, limit 0")
	var order []string
	for _, row := range regexp.MustCompile(`data-key="([a-z]+)"`).FindAllStringSubmatch(body, -1) {
		order = append(order, row[1])
	}
	if want := "[stopped tenants busy quiet idle]"; fmt.Sprint(order) != want {
		t.Errorf("the order is %v, want %s\n%s", order, want, body[strings.Index(body, "<main"):])
	}
	s.sees(http.StatusOK, "/?state=paused", ">tenants</a>")
	s.sees(http.StatusOK, "/scope?scope=tenants", "below it 1 paused, 1 paused by the API, 1 cut by the API",
		`<span class="chip api">API pause</span>`, `<span class="chip cut">Cut</span>`)
	s.sees(http.StatusOK, "/scope?scope=stopped", "Suspended below", "below it 2 suspended")
}

// Of more scopes than are read, the screen says that its order and its filter are of a part, and leads to the one that is named.
func TestMoreScopesThanWereRead(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	h := pageOfSite(t, s)
	lower := control.Outline{More: true}
	for i := range 13 {
		lower.Branches = append(lower.Branches, control.Branch{Scope: fmt.Sprint("payments/t", i), Waiting: 1, Own: 1})
	}
	show := func(query string, more bool) string {
		t.Helper()
		lower.More = more
		r := httptest.NewRequest(http.MethodGet, "/scope?scope=payments&"+query, nil)
		data, title, err := h.scopeView(r, s.who, &scopeState{level: control.Level{Scope: "payments", Binding: -1}, lower: lower})
		must(t, err)
		w := httptest.NewRecorder()
		h.render(w, r, http.StatusOK, "scope", view{Title: title, Data: data})
		return w.Body.String()
	}
	has(t, show("", true), "of those that were read the most waiting first", "There are more scopes than were read", "Filter 13 scopes of more")
	has(t, show("q=zz", true), "None of those that were read matches", `href="/scope?scope=payments%2Fzz"`)
	if body := show("q=zz", false); strings.Contains(body, "were read") || !strings.Contains(body, "None matches.") {
		t.Errorf("where all were read:\n%s", body)
	}
}
