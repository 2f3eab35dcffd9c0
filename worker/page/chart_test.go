package page

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
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

// The line of a chart is the least that a rule admits in a slot in the long run. Rules with windows longer than the chart do not count.
func TestAdmits(t *testing.T) {
	t.Parallel()
	for rules, want := range map[string]struct {
		of    period
		least int64
		by    string
	}{
		`{name: a, algorithm: sliding-window, limit: 10, per: 1s}`:                                                                               {quarterHour, 150, "a of p"},
		`{name: a, algorithm: sliding-window, limit: 60, per: 1m}`:                                                                               {quarterHour, 15, "a of p"},
		`{name: a, algorithm: fixed-window, limit: 60, per: 7s}`:                                                                                 {quarterHour, 129, "a of p"},
		`{name: a, algorithm: token-bucket, limit: 2, per: 1s, burst: 5}`:                                                                        {quarterHour, 30, "a of p"},
		`{name: a, algorithm: calendar, limit: 500, resets: "0 * * * *"}`:                                                                        {wholeDay, -1, ""},
		`{name: a, algorithm: fixed-window, limit: 500, per: 30d}`:                                                                               {wholeDay, -1, ""},
		`{name: a, algorithm: concurrency, limit: 1}, {name: b, algorithm: sliding-window, limit: 9, per: 1h}`:                                   {wholeDay, 18, "b of p"},
		`{name: a, algorithm: sliding-window, limit: 9, per: 1s, shadow: true}, {name: b, algorithm: sliding-window, limit: 50, per: 1s}`:        {quarterHour, 750, "b of p"},
		`{name: a, algorithm: token-bucket, limit: 9, per: 1s, unit: tokens}, {name: b, algorithm: sliding-window, limit: 50, per: 1s}`:          {quarterHour, 750, "b of p"},
		`{name: a, algorithm: sliding-window, limit: 100, per: 1m}, {name: b, algorithm: token-bucket, limit: 10, per: 1s, burst: 1}`:            {quarterHour, 25, "a of p"},
		`{name: a, algorithm: sliding-window, limit: 1, per: 1s, active: "* 13 * * *"}, {name: b, algorithm: sliding-window, limit: 9, per: 1s}`: {quarterHour, 135, "b of p"},
	} {
		in := drawing{scope: "p", policy: policyOf(t, rules), now: time.Date(2030, 1, 31, 12, 0, 0, 0, time.UTC)}
		if least, rule := in.admits(want.of); least != want.least || rule != want.by {
			t.Errorf("%s: %d by %s, want %+v", rules, least, rule, want)
		}
	}
	paused, err := limitsyaml.Parse("limits.yaml", []byte("limits: {p: {paused: true, rules: [{name: a, algorithm: sliding-window, limit: 9, per: 1s}]}}"))
	must(t, err)
	if least, rule := (drawing{scope: "p", policy: paused}).admits(quarterHour); least != 0 || rule != "the pause of p" {
		t.Errorf("paused: %d by %s", least, rule)
	}
}

// A chart has a bar a slot, a mark for each pause by the API, and the line of the limit unless that is far above the bars.
func TestChart(t *testing.T) {
	t.Parallel()
	now := time.Date(2030, 1, 31, 12, 0, 7, 0, time.UTC)
	first := now.Truncate(quarterHour.slot).Add(-7 * quarterHour.slot)
	var points []usage.Point
	for i := range 8 {
		points = append(points, usage.Point{At: first.Add(time.Duration(i) * quarterHour.slot), Sum: usage.Sum{Units: 40, Tasks: 20}})
	}
	in := drawing{scope: "p", policy: policyOf(t, `{name: a, algorithm: sliding-window, limit: 4, per: 1s}`), now: now}
	in.events = []control.UpstreamEvent{{At: control.At(first.Add(4 * quarterHour.slot)), What: "pause"}, {At: control.At(first.Add(-time.Hour)), What: "pause"}, {At: control.At(first), What: "limit"}}
	c := in.draw(quarterHour, points)
	for _, b := range c.Bars {
		if b.Units != 40 || b.Tasks != 20 || b.Y+b.H != chartBase || b.Y <= chartTop {
			t.Errorf("%+v", b)
		}
	}
	if c.Limit != 60 || c.LimitY <= chartTop || c.LimitY >= c.Bars[0].Y || len(c.Marks) != 1 || c.Marks[0].X != "50.00%" {
		t.Errorf("%+v", c)
	}
	if !c.Bars[7].Unfinished || c.Bars[5].Unfinished {
		t.Errorf("%+v", c.Bars)
	}
	in.policy = policyOf(t, `{name: a, algorithm: sliding-window, limit: 1000, per: 1s}`)
	if c = in.draw(quarterHour, points); c.LimitY != 0 || c.Limit != 15_000 || c.Bars[0].Y > chartTop+20 {
		t.Errorf("a limit far above: %+v", c)
	}
}

// The screens show what started, how runs ended, and what the API's answers changed.
func TestStartsAndAnswers(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	recorder, err := usage.New(s.rdb, usage.Config{App: "billing"})
	must(t, err)
	for range 10 {
		recorder.Spent("payments/acme", usage.By{Queue: "default", Type: "mail"}, 4)
	}
	recorder.Ended("payments/acme", usage.By{}, usage.Ends{Failed: 3, Refused: 2})
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
		"Starts in the last 15 minutes", "each 15 s", "Starts in the last day", `class="bar now"`, ">40<",
		"Of 10 runs in the last hour 3 failed, and its API refused 2.",
		"429, retry after 1m", "paused for 1m", "api.example:443", `class="mark"`, "100 each 2 h in the long run, by tenant of payments/acme")
	s.sees(http.StatusOK, "/", "data-for>since ", "<strong>600</strong>", "ours 1,000, plan")
	s.sees(http.StatusOK, "/failures", "Runs of today (UTC), by provider", `data-label="Started" class="n">10</td>`,
		`data-label="Failed" class="n">3</td>`, `class="n">30 %</td>`, `data-label="Refused by the API" class="n">2</td>`, `class="n">20 %</td>`)
	s.actor = Actor{Name: "vic", Role: RoleViewer, Scopes: []string{"payments/acme"}}
	lacks(t, s.sees(http.StatusOK, "/failures"), "30 %")
	lacks(t, s.sees(http.StatusOK, "/scope?scope=payments/acme", "429, retry after 1m"), "globex")
}

const manyProviders = `limits:
  idle: {scopes: {"*": {rules: [{name: tenant, algorithm: sliding-window, limit: 5, per: 1s}]}}}
  busy: {rules: [{name: plan, algorithm: fixed-window, limit: 1, per: 30d}]}
  stopped: {scopes: {"*": {rules: [{name: tenant, algorithm: sliding-window, limit: 0, per: 1s}]}}}
  tenants: {rules: [{name: plan, algorithm: sliding-window, limit: 100, per: 1s}], scopes: {a: {}, b: {}, c: {rules: [{name: own, algorithm: sliding-window, limit: 50, per: 10s}]}}}
  quiet: {rules: [{name: plan, algorithm: sliding-window, limit: 100, per: 1s}]}
`

// Providers in trouble come first, also if only scopes below them are. An idle provider whose rules count below it is in none.
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

// If there are more scopes than are read, the screen says that it orders and filters a part, and links the scope that the filter names.
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
		data, title, err := h.scopeView(r, s.actor, &scopeState{level: control.Level{Scope: "payments", Binding: -1}, scopeDetails: scopeDetails{lower: lower}})
		must(t, err)
		w := httptest.NewRecorder()
		must(t, h.render(w, r, http.StatusOK, "scope", view{Title: title, Data: data}))
		return w.Body.String()
	}
	has(t, show("", true), "of those that were read the most waiting first", "There are more scopes than were read", "Filter 13 scopes of more")
	has(t, show("q=zz", true), "None of those that were read matches", `href="/scope?scope=payments%2Fzz"`)
	all := show("q=zz", false)
	has(t, all, "None matches.")
	lacks(t, all, "were read")
}
