package page

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/internal/control"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
	"github.com/headway-go/headway/throttle/upstream"
	"github.com/headway-go/headway/throttle/usage"
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
	code, body := s.get("/scope?scope=payments/acme")
	if code != http.StatusOK {
		t.Fatalf("%d %s", code, body)
	}
	has(t, body, "Starts in the last 15 minutes", "each 15 s", "Starts in the last day", `class="bar now"`, ">41<",
		"429, retry after 1m", "paused for 1m", "api.example:443", `class="mark"`, "2 each 15 s, by account of payments")
	if _, body = s.get("/"); !strings.Contains(body, "data-for>since ") {
		t.Errorf("no longest wait in\n%s", body)
	}
	has(t, body, "<strong>600</strong>", "ours 1,000, plan")
	s.who = Actor{Name: "vic", Role: RoleViewer, Scopes: []string{"payments/acme"}}
	if _, body := s.get("/scope?scope=payments/acme"); !strings.Contains(body, "429, retry after 1m") || strings.Contains(body, "globex") {
		t.Errorf("for a viewer:\n%s", body)
	}
}
